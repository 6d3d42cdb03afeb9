"""Reading a plan that is about to be executed, and what is to happen to it: valid, and meant for each other."""

from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.documents import digest, read_document
from ..schemas.errors import InvalidInputError
from ..schemas.files import source_of

if TYPE_CHECKING:
    from ..schemas.plan import Plan
    from ..schemas.trace import Trace

ProfileOption = Annotated[
    str | None, typer.Option("--profile", help="Refuse the plan unless it was made from this profile.")
]


def read_valid_plan(path: str, profile: str | None = None) -> "Plan":
    """Read a plan and refuse it unless it is valid and, where a profile's path is given, made from that profile."""
    from ..schemas.check import require_valid
    from ..schemas.plan import Plan

    plan = read_document(path, Plan)
    check_profile(plan, profile)
    require_valid(plan, source_of(path))
    return plan


def read_valid_trace(path: str, plan: "Plan") -> "Trace":
    """Read a trace and refuse it where it cannot happen to the plan's workers."""
    from ..runners.cast import check_trace
    from ..schemas.trace import read_trace

    trace = read_trace(path)
    try:
        check_trace(plan, trace)
    except InvalidInputError as error:
        raise InvalidInputError(error.what, where=f"{source_of(path)}, {error.where}", fix=error.fix) from None
    return trace


def check_profile(plan: "Plan", path: str | None) -> None:
    """Raise InvalidInputError if a profile's path is given and the plan was made from another profile."""
    if path is None:
        return
    from ..schemas.profile import Profile

    made_from = plan.inputs.get("profile")
    found = digest(read_document(path, Profile))
    if made_from != found:
        said = f"sha256 {made_from[:12]}…" if made_from else "no profile that it names"
        raise InvalidInputError(
            f"the plan was made from {said}, not from this profile (sha256 {found[:12]}…)",
            where=f"{path}, against /inputs/profile of the plan",
            fix="make the plan again from this profile",
        )
