"""`rtk verify`: the independent checker."""

from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.files import source_of
from .console import Common, grouped, print_json
from .options import ProfileOption, check_profile, quality

if TYPE_CHECKING:
    pass


@grouped
def command(
    plan: Annotated[str, typer.Argument(help="The plan; `-` is standard input.")],
    profile: ProfileOption = None,
    timeline: Annotated[
        str | None, typer.Option("--timeline", help="Check also that this timeline keeps the plan.")
    ] = None,
    *,
    common: Common,
) -> None:
    """Check a plan: order, dependencies, deadlocks, memory, completeness, and its prediction.

    Exits with 1 if the plan is not valid.
    """
    from ..schemas.check import check_plan, check_timeline
    from ..schemas.documents import read_document
    from ..schemas.plan import Plan
    from ..schemas.timeline import Timeline

    read = read_document(plan, Plan)
    check_profile(read, profile)
    problems = check_plan(read)
    if timeline is not None and not problems:
        problems = check_timeline(read, read_document(timeline, Timeline))
    if common.as_json:
        tree = [{"path": problem.path, "message": problem.message} for problem in problems]
        print_json({"valid": not problems, "problems": tree})
    else:
        for problem in problems:
            print(f"{problem.path}: {problem.message}")
        # Where there are several routings, what the plan says is proven of them is not checked here.
        prediction = read.prediction
        has_scope = prediction is not None and prediction.proof_scope is not None
        claim = f" (it says: {quality(prediction)})" if prediction is not None and has_scope else ""
        verdict = f"valid{claim}" if not problems else f"not valid, {len(problems)} problem(s)"
        print(f"{source_of(plan)}: {verdict}")
    raise typer.Exit(1 if problems else 0)
