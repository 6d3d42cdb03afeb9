"""Reading a plan that is about to be executed: valid, and made from the profile that the user means."""

from ..schemas.check import require_valid
from ..schemas.documents import STANDARD_STREAM, digest, read_document
from ..schemas.errors import InvalidInputError
from ..schemas.plan import Plan
from ..schemas.profile import Profile


def read_valid_plan(path: str, profile: str | None = None) -> Plan:
    """Read a plan and refuse it unless it is valid and, where a profile's path is given, made from that profile."""
    plan = read_document(path, Plan)
    check_profile(plan, profile)
    require_valid(plan, "standard input" if path == STANDARD_STREAM else path)
    return plan


def check_profile(plan: Plan, path: str | None) -> None:
    """Raise InvalidInputError if a profile's path is given and the plan was made from another profile."""
    if path is None:
        return
    made_from = plan.inputs.get("profile")
    found = digest(read_document(path, Profile))
    if made_from != found:
        said = f"sha256 {made_from[:12]}…" if made_from else "no profile that it names"
        raise InvalidInputError(
            f"the plan was made from {said}, not from this profile (sha256 {found[:12]}…)",
            where=f"{path}, against /inputs/profile of the plan",
            fix="make the plan again from this profile",
        )
