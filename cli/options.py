"""Reading the small languages of option values: `I=SECONDS`, `k/i=FACTOR`, `N[,N…]`."""

import math
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.documents import digest, read_document
from ..schemas.errors import InvalidInputError, LimitReachedError
from ..schemas.files import source_of
from ..schemas.quantities import USUAL_TIME_LIMIT_S

if TYPE_CHECKING:
    from ..planners.scheduling.solve import Effort
    from ..schemas.conditions import LinkPlace
    from ..schemas.plan import Place, Plan, Prediction
    from ..schemas.trace import Trace


class Solver(StrEnum):
    """What polishes a schedule that the heuristics have not proven optimal."""

    AUTO = "auto"
    HEURISTIC = "heuristic"
    MILP = "milp"
    CP_SAT = "cp-sat"


SolverOption = Annotated[
    Solver,
    typer.Option(
        "--solver",
        help="Exact solver; auto takes cp-sat if installed, else milp, if it has time. "
        "One that is named also proves by itself.",
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        min=0,
        metavar="SECONDS",
        help=f"Of exact solvers, in all. {USUAL_TIME_LIMIT_S:g} if a solver or a proof is asked for, else 0.",
    ),
]
RequireOptimal = Annotated[
    bool, typer.Option("--require-optimal", help="Unless the plan is proven optimal, end with exit code 4.")
]
LinkDelays = Annotated[
    list[str] | None,
    typer.Option("--link-delay", metavar="[K/]I=SECONDS", help="Delay of link I, in pipeline K only. Repeatable."),
]
Slow = Annotated[
    list[str] | None,
    typer.Option("--slow", metavar="k/i=FACTOR", help="Worker k/i takes FACTOR times as long. Repeatable."),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option("--memory-limit", metavar="BYTES[,BYTES…]", help="Activation bytes of a worker: one, or one a stage."),
]


def parse_link_delays(values: Sequence[str] | None) -> "dict[LinkPlace, float]":
    """`0=0.02` is link 0 of every pipeline, `1/0=0.02` that of pipeline 1; seconds, 0 or more."""
    delays: dict[LinkPlace, float] = {}
    for value in values or ():
        match = re.fullmatch(r"(?:(\d+)/)?(\d+)=(.+)", value)
        if match is None:
            raise _wrong("--link-delay", value, "write I=SECONDS or K/I=SECONDS, such as 0=0.02")
        pipeline, link, seconds = match.groups()
        number = _number("--link-delay", seconds, "a delay is in seconds, without a unit: 0=0.02")
        if number < 0:
            raise _wrong("--link-delay", value, "a delay is 0 or more")
        place = (None if pipeline is None else int(pipeline), int(link))
        if place in delays:
            raise _wrong("--link-delay", value, "give each link once")
        delays[place] = number
    return delays


def parse_slow(values: Sequence[str] | None) -> dict[str, float]:
    """`1/2=1.5`: worker 1/2 takes 1.5 times as long; factors above 0."""
    slow: dict[str, float] = {}
    for value in values or ():
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})=(.+)", value)
        if match is None:
            raise _wrong("--slow", value, "write k/i=FACTOR, such as 1/2=1.5")
        pipeline, stage, factor = match.groups()
        worker = f"{int(pipeline)}/{int(stage)}"
        slow_down = _number("--slow", factor, "a factor is a plain number: 1/2=1.5")
        if slow_down <= 0 or worker in slow:
            raise _wrong("--slow", value, "a factor is above 0, and each worker is given once")
        slow[worker] = slow_down
    return slow


def parse_slow_places(values: Sequence[str] | None) -> "dict[Place, float]":
    """The same by place: `1/2=1.5` is (1, 2) and 1.5."""
    from ..schemas.plan import place_of

    return {place_of(worker): factor for worker, factor in parse_slow(values).items()}


def parse_places(values: Sequence[str] | None, option: str) -> "list[Place]":
    """`1/2` is worker 2 of pipeline 1."""
    from ..schemas.plan import parse_place

    return [parse_place(value, option) for value in values or ()]


def parse_block(value: str, option: str) -> tuple[int, int]:
    """`1x2`: one pipeline by two stages."""
    match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})", value)
    if match is None:
        raise _wrong(option, value, "write pipelines x stages, such as 1x2")
    return int(match[1]), int(match[2])


def parse_share(value: str, whole: int, option: str) -> int:
    """`12` is 12, `25%` a quarter of the whole, rounded down."""
    match = re.fullmatch(r"(\d{1,9})|(\d{1,3}(?:\.\d{1,6})?)%", value)
    if match is None or (match[2] and float(match[2]) > 100):
        raise _wrong(option, value, "write a number, or a percentage up to 100%, such as 25%")
    # In whole millionths: 0.07 * 100 is more than 7.
    return int(match[1]) if match[1] else round(float(match[2]) * 10**6) * whole // 10**8


def parse_memory_limit(value: str | None) -> list[float] | None:
    """`8e9` for all stages, `8e9,8e9,4e9` one a stage; bytes, 0 or more."""
    if value is None:
        return None
    limits = [_number("--memory-limit", part, "limits are in bytes, without a unit") for part in value.split(",")]
    if min(limits) < 0:
        raise _wrong("--memory-limit", value, "a limit is 0 or more bytes")
    return limits


def parse_effort(solver: Solver, time_limit_s: float | None, seed: int, require_optimal: bool) -> "Effort":
    """How hard a planner shall try; without a time limit an exact solver runs only where it or a proof is asked for."""
    from ..planners.plain.verbs import effort_of

    return effort_of(solver.value, time_limit_s, seed, require_optimal)


def _number(option: str, text: str, fix: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise _wrong(option, text, fix) from None
    if not math.isfinite(number):
        raise _wrong(option, text, "give a finite number")
    return number


def _wrong(option: str, value: str, fix: str) -> InvalidInputError:
    return InvalidInputError(f"{value!r} cannot be read", where=option, fix=fix)


# Reading a plan that is about to be executed, and what is to happen to it: valid, and meant for each other.


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
    from ..runners.virtual.cluster import check_trace
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


# What the plan commands share: the options that give a shape, and what is said of a plan.


ProfileFile = Annotated[str, typer.Argument(help="The profile; `-` is standard input.")]
Stages = Annotated[int, typer.Option("--pp", min=1, help="Stages of a pipeline.")]
Microbatches = Annotated[int, typer.Option("--microbatches", min=1, help="Micro-batches of each pipeline.")]
Pipelines = Annotated[int, typer.Option("--dp", min=1, help="Pipelines (data-parallel degree).")]


class Technique(StrEnum):
    """SlipStream's three, each with those before it."""

    ADAPTIVE = "adaptive"
    DECOUPLED = "decoupled"
    STAGGERED = "staggered"


TechniqueOption = Annotated[
    Technique,
    typer.Option("--technique", help="Re-routing; with backwards split where it helps; and staggered optimizers."),
]

SCOPES = {None: "", "routing": " for the routing taken", "all-routings": " over all routings"}


def require_proof(made: "Plan") -> None:
    """Raise LimitReachedError unless a plan, already written, is proven optimal, by the solver if one is named."""
    from ..planners.scheduling.solve import OPTION

    demand_proof(made.prediction)
    own = made.planner.options.get(OPTION)
    if own is not None and own["proof"] != "optimal":
        raise LimitReachedError(
            f"{own['solver']} has not proven the plan optimal itself",
            where="--require-optimal",
            fix="the plan is written all the same; raise --time-limit, or leave --solver out: any proof will do then",
        )


def demand_proof(prediction: "Prediction | None", of: str = "") -> None:
    """Raise LimitReachedError unless a prediction is proven optimal; `of` says whose it is, for messages."""
    assert prediction is not None
    if prediction.proof != "optimal":
        raise LimitReachedError(
            f"{of}{prediction.iteration_time_s:.6g} s is not proven optimal: "
            f"the bound is {prediction.lower_bound_s:.6g} s",
            where="--require-optimal",
            fix="the plan is written all the same; for a proof raise --time-limit, or name another --solver",
        )


def summary(made: "Plan") -> str:
    """A plan's promise, in a line."""
    prediction = made.prediction
    assert prediction is not None
    return (
        f"iteration {prediction.iteration_time_s:.6g} s ({quality(prediction)}), "
        f"bubbles {prediction.bubble_ratio:.1%}, {len(made.live_workers())} workers"
    )


def quality(prediction: "Prediction") -> str:
    """How good a plan is proven to be."""
    proven = "optimal" if prediction.proof == "optimal" else f"at most {prediction.gap:.2%} above the optimum"
    return proven + SCOPES[prediction.proof_scope]


def scope_section(made: "Plan") -> list[str]:
    """What the plan's bound is over, for `rtk explain`, after an empty line; nothing where there is no choice."""
    prediction = made.prediction
    if prediction is None or prediction.proof_scope is None:
        return []
    bound = f"The plan's own bound, {prediction.lower_bound_s:.6g} s,"
    if prediction.proof_scope == "routing":
        return ["", f"{bound} is for the routing taken: micro-batches on other workers might take less."]
    return ["", f"{bound} is over all routings: nor would micro-batches on other workers take less."]


def own_proof(made: "Plan") -> Iterator[str]:
    """What the solver that was asked for by name has proven itself, in a line; nothing where none was."""
    from ..planners.scheduling.solve import OPTION

    own = made.planner.options.get(OPTION)
    if own is None:
        return
    assert made.prediction is not None
    if not own["is_asked"]:
        why = "no time is left, or it takes no problem of so many"
        yield f"{own['solver']} was not asked for a proof of its own: {own['operations']} operations, {why}"
    elif own["proof"] == "optimal":
        yield f"{own['solver']} proves it itself: no orders of this routing take less"
    else:
        proven = f"no more than {own['lower_bound_s']:.6g} s" if own["proof"] == "bound" else "nothing"
        bound = f"the bound is the planner's, {made.prediction.lower_bound_s:.6g} s"
        yield f"{own['solver']} itself proves {proven}; {bound}"
