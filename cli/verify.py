"""`rtk verify`: the independent checker."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM, source_of
from ..schemas.placement import placements_of
from ..schemas.text import counted
from .console import Common, grouped, print_json
from .github import Github, annotation
from .options import ProfileOption, check_profile, quality

if TYPE_CHECKING:
    from ..schemas.check import Violation
    from ..schemas.plan import Plan
    from ..schemas.resumption import Resumption


@grouped
def command(
    plans: Annotated[
        list[str],
        typer.Argument(metavar="PLAN...", help="Plans, resumptions and atlases; `-` is standard input."),
    ],
    profile: ProfileOption = None,
    timeline: Annotated[
        str | None, typer.Option("--timeline", help="Check also that this timeline keeps to the plan.")
    ] = None,
    as_github: Github = False,
    *,
    common: Common,
) -> None:
    """Check plans: order, dependencies, deadlocks, memory, completeness, and the prediction.

    Of a resumption the plan is checked, and what is left of the iteration: that every micro-batch is once in the
    gradients of every layer, be it kept or done now, and that whatever is taken up is there.

    Ends with exit code 1 if one of them is not valid.
    """
    if common.as_json and as_github:
        raise InvalidInputError("--json and --github are two forms of one answer", where="--github", fix="give one")
    if plans.count(STANDARD_STREAM) > 1:
        raise InvalidInputError("standard input can be read only once", where="PLAN", fix="give one `-`")
    if timeline is not None and (len(plans) > 1 or is_atlas(plans[0])):
        raise InvalidInputError("one timeline for several plans", where="--timeline", fix="give the plan that was run")
    from ..schemas.plan import Plan

    found: dict[str, Sequence[Violation]] = {}
    for name, document in (one for path in plans for one in _read(path)):
        plan = document if isinstance(document, Plan) else document.plan
        check_profile(plan, profile)
        found[name] = _problems(document, timeline) or _without_room(plan, profile)
        if not (common.as_json or as_github):
            _print(name, document, found[name])
    if common.as_json:
        print_json(_tree(found))
    if as_github:
        for file, problems in found.items():
            for one in problems:
                print(annotation("error", file, "rtk verify", f"{one.path}: {one.message}"))
    raise typer.Exit(1 if any(found.values()) else 0)


def is_atlas(path: str) -> bool:
    """Whether it is a folder that `rtk plan slipstream` has made."""
    return (Path(path) / "atlas.json").is_file()


def _read(path: str) -> Iterator[tuple[str, "Plan | Resumption"]]:
    """A file's plan or resumption, or the plans that an atlas is for, made again; and what each is called."""
    from ..schemas.documents import read_one_of
    from ..schemas.plan import Plan
    from ..schemas.resumption import Resumption

    if not is_atlas(path):
        yield source_of(path), read_one_of(path, Plan, Resumption)
        return
    from ..planners.plain.slipstream import plan_from_atlas  # takes longer to load than most plans to be checked
    from ..planners.slipstream.atlas_folder import read_atlas

    for failures in range(read_atlas(path).most_failures + 1):
        yield f"{path}, {counted(failures, 'failure')}", plan_from_atlas(path, failures=failures)


def _problems(document: "Plan | Resumption", timeline: str | None) -> Sequence["Violation"]:
    from ..schemas.check import check_plan, check_timeline
    from ..schemas.check_rest import check_resumption
    from ..schemas.documents import read_document
    from ..schemas.resumption import Resumption
    from ..schemas.timeline import Timeline

    if isinstance(document, Resumption):
        if timeline is not None:
            what = "no timeline can be held against a resumption: it does not know when what was kept was done"
            raise InvalidInputError(what, where="--timeline", fix="leave it out")
        return check_resumption(document)
    problems = check_plan(document)
    if timeline is not None and not problems:
        problems = check_timeline(document, read_document(timeline, Timeline))
    return problems


def _without_room(plan: "Plan", profile: str | None) -> Sequence["Violation"]:
    """Who has no room for what it holds, as far as the profile and nothing else says what there is."""
    if profile is None or plan.planner.options.get("memory_limit_bytes") is not None or "cluster" in plan.inputs:
        return []
    from ..schemas.check_memory import check_memory
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    return check_memory(plan, read_document(profile, Profile))


def _tree(found: Mapping[str, Sequence["Violation"]]) -> dict[str, object]:
    problems = [{"file": file, "path": one.path, "message": one.message} for file, of in found.items() for one in of]
    return {"valid": not problems, "problems": problems}


def _print(file: str, document: "Plan | Resumption", problems: Sequence["Violation"]) -> None:
    from ..schemas.plan import Plan

    for problem in problems:
        print(f"{problem.path}: {problem.message}")
    # Where there are several routings, what the plan says is proven of them is not checked here.
    prediction = getattr(document, "prediction", None)
    has_scope = prediction is not None and prediction.proof_scope is not None
    claim = f" (it says: {quality(prediction)})" if prediction is not None and has_scope else ""
    verdict = f"not valid, {counted(len(problems), 'problem')}" if problems else f"valid{claim}"
    placed = placements_of(document) if isinstance(document, Plan) else ()  # no resumption has one
    placements = "".join(f"; {words}" for words in placed)
    print(f"{file}: {verdict}{placements}")
