"""`--placement`: what is asked for, and `best`: placements compared by what their plans are worth.

None is best everywhere: a V or a loop fills its pipeline in a fraction of the time, and crosses every link several
times. So under the delays and limits given each is planned, and the shortest iteration wins. What the others came to,
and what is proven of it, is written into the plan: the rejected ones are part of the argument.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from ..schemas.documents import typed
from ..schemas.errors import InfeasibleError, InvalidInputError, remark
from ..schemas.fields import STRICT, Bytes, Count, Ratio, Seconds
from ..schemas.plan import Link, Plan, Proof, Stage
from ..schemas.quantities import print_time
from ..schemas.text import counted
from .scheduling.evaluate import evaluate
from .shape import PlacementName, Shape

Transport = Literal["auto", "direct", "delegated"]

NAMES = ("plain", "loop", "v", "best")
OPTION = "placements"  # of the planner
USUAL_CHUNKS = 2
SAME = 1e-9  # worths this close, relatively, differ by rounding
Tried = TypeVar("Tried")  # what is compared: a shape, or degrees


@dataclass(frozen=True)
class PlacementChoice:
    """A placement, or the best of several.

    Attributes:
        name: of it; `best` tries plain, a V of two chunks and of `chunks`, and loops of two up to `chunks`.
        chunks: virtual stages of each worker, at most.
    """

    name: PlacementName | Literal["best"] = "plain"
    chunks: int = 1

    def shapes(self, shape: Shape) -> list[Shape]:
        """The shapes that are tried, plain first.

        Args:
            shape: all else that is asked for.
        """
        if self.name != "best":
            return [replace(shape, placement=self.name, chunks=self.chunks)]
        deepest = self.chunks if shape.pp > 1 else 1  # one worker that holds all is one stage, however it is cut
        tried: list[tuple[PlacementName, int]] = [("plain", 1)]
        tried += [("v", chunks) for chunks in sorted({min(USUAL_CHUNKS, deepest), deepest}) if chunks > 1]
        tried += [("loop", chunks) for chunks in range(2, deepest + 1)]
        return [_without_way_back(replace(shape, placement=name, chunks=chunks)) for name, chunks in tried]


def parse_placement(text: str, chunks: int | None) -> PlacementChoice:
    """What `--placement` and `--chunks` say: `plain`, `loop`, `v` or `best`, with chunks in either, as in `best:4`.

    Args:
        text: of `--placement`.
        chunks: of `--chunks`; None: it is not given.

    Raises:
        InvalidInputError: there is no such placement, both say chunks, or a plain one is to have several.
    """
    match = re.fullmatch(rf"({'|'.join(NAMES)})(?::([1-9]\d{{0,5}}))?", text)
    if match is None:
        raise InvalidInputError(
            f"{text!r} is no placement", where="--placement", fix="take plain, loop, v or best; or best:4 for 4 chunks"
        )
    if match[2] and chunks is not None and int(match[2]) != chunks:
        raise InvalidInputError(
            f"{text} and {counted(chunks, 'chunk')} contradict each other",
            where="--chunks",
            fix="leave one of them out",
        )
    asked = int(match[2]) if match[2] else chunks
    if asked is not None and asked < 1:
        raise InvalidInputError(f"{asked} chunks are none", where="--chunks", fix="give 1 or more")
    name: Any = match[1]
    if name == "plain":
        if asked not in (None, 1):
            raise InvalidInputError(
                "a plain placement has one stage a worker", where="--chunks", fix="add --placement loop, v or best"
            )
        return PlacementChoice()
    if asked == 1:
        remark(f"--placement {name} with one chunk a worker is plain")
        return PlacementChoice()
    return PlacementChoice(name, asked or USUAL_CHUNKS)


def plan_chosen(
    shape: Shape, choice: PlacementChoice, make: Callable[[Shape], Plan], transport: Transport = "auto"
) -> Plan:
    """A plan by the placement that is asked for.

    Args:
        shape: all else that is asked for; its own placement does not count.
        choice: the placement.
        make: plans a shape.
        transport: how messages will be sent: a direct send holds its worker for the link's delay, and that counts in
            the comparison; others do not.

    Returns:
        The plan. Under `best` that of the shortest iteration, of equal ones the first, and so plain if that is one;
        `planner.options["placements"]` says what each was worth: `iteration_time_s`, `lower_bound_s`, `proof`,
        `bubble_ratio` and the largest worker's `peak_memory_bytes`, or the `refusal` that it met; with direct sends
        also `direct_s`, by which they are compared then.

    Raises:
        InfeasibleError: no placement can be planned; says why plain cannot.
        InvalidInputError: as `make` does.
    """
    shapes = choice.shapes(shape)
    if choice.name != "best":
        return make(shapes[0])
    is_direct = transport == "direct"

    def told(one: Shape, plan: Plan | InfeasibleError, worth_s: float | None) -> dict[str, Any]:
        direct = {"direct_s": worth_s} if is_direct and worth_s is not None else {}
        return {"placement": one.placement, "chunks": one.chunks, **worth_of(plan), **direct}

    worth = direct_time_s if is_direct else lambda plan: plan.predicted.iteration_time_s
    return best_compared(OPTION, shapes, make, worth, told)


def best_compared(
    option: str,
    tried: Iterable[Tried],
    make: Callable[[Tried], Plan],
    worth: Callable[[Plan], float],
    told: Callable[[Tried, Plan | InfeasibleError, float | None], dict[str, Any]],
) -> Plan:
    """The plan of least worth, of equal ones the first; an option of its planner says what each was worth.

    Args:
        option: its name.
        tried: what to plan for.
        make: a plan for one of them.
        worth: what plans are compared by.
        told: what the option says of one: what was tried, its plan or refusal, and its worth, if it has one.

    Raises:
        InfeasibleError: none can be planned; says why the first cannot.
        InvalidInputError: as `make` does.
    """
    found = [(one, _attempt(one, make)) for one in tried]
    plans = [plan for _, plan in found if isinstance(plan, Plan)]
    if not plans:
        raise next(error for _, error in found if isinstance(error, InfeasibleError))
    worths = {id(plan): worth(plan) for plan in plans}
    least = min(worths.values())
    best = next(plan for plan in plans if worths[id(plan)] * (1 - SAME) <= least)
    rows = [
        {**told(one, plan, worths.get(id(plan))), **({"chosen": True} if plan is best else {})} for one, plan in found
    ]
    return replace(best, planner=replace(best.planner, options=best.planner.options | {option: rows}))


@dataclass(frozen=True, slots=True)
class ComparedPlacement:
    """What `best` has found of a placement, as it stands in the plan: its worth, or its refusal."""

    placement: str
    chunks: Count
    refusal: str | None = None
    iteration_time_s: Seconds = 0.0
    lower_bound_s: Seconds = 0.0
    proof: Proof = "none"
    bubble_ratio: Ratio = 0.0
    peak_memory_bytes: Bytes = 0.0
    direct_s: Seconds | None = None
    chosen: bool = False

    __pydantic_config__: ClassVar[Any] = STRICT


def comparison(plan: Plan) -> Iterator[str]:
    """What `best` has found of each placement, a line each; nothing where none were compared.

    Raises:
        InvalidInputError: what the plan says of them is nothing that `best` writes.
    """
    yield from comparison_words(plan.planner.options.get(OPTION, []), f"/planner/options/{OPTION}")


def comparison_words(told: Any, place: str) -> Iterator[str]:
    """The same of what stands elsewhere, such as in a replay's report.

    Args:
        told: as `planner.options["placements"]` of a plan.
        place: where it stands, for errors.
    """
    rows: tuple[ComparedPlacement, ...] = typed(told, tuple[ComparedPlacement, ...], place)
    for row in rows:
        name = row.placement if row.chunks == 1 else f"{row.placement}, {row.chunks} chunks"
        direct = "" if row.direct_s is None else f", {print_time(row.direct_s)} by direct sends"
        yield f"{name}: {worth_words(row, direct)}"


class Worth(Protocol):
    """What a comparison has found of one of its plans: its worth, or its refusal."""

    @property
    def refusal(self) -> str | None:
        """Why there is no plan."""
        ...

    @property
    def iteration_time_s(self) -> float:
        """What the plan promises."""
        ...

    @property
    def lower_bound_s(self) -> float:
        """What is proven of it."""
        ...

    @property
    def proof(self) -> Proof:
        """How."""
        ...

    @property
    def chosen(self) -> bool:
        """Whether it was taken."""
        ...


def worth_words(row: Worth, more: str = "") -> str:
    """What of a comparison's row is told to people; `more` follows the time."""
    if row.refusal is not None:
        return row.refusal
    proven = "optimal" if row.proof == "optimal" else f"no less than {print_time(row.lower_bound_s)}"
    return f"{print_time(row.iteration_time_s)} ({proven}){more}{', taken' if row.chosen else ''}"


def direct_time_s(plan: Plan) -> float:
    """The iteration time if every message holds its sender for the link's delay, in s.

    That is as if F and I took so much longer, and links no time.

    Args:
        plan: whose pipelines run their own micro-batches.
    """
    templates, pipelines = [], []
    for k, pipeline in enumerate(plan.pipelines):
        delays_s = [link.delay_s for link in plan.links_of(k)]
        template = replace(plan.template_of(k), name=f"t{k}", links=(Link(),) * len(delays_s))
        sends = zip(template.stages, [*delays_s, 0.0], [0.0, *delays_s], strict=True)
        stages = tuple(_holding(stage, up_s, down_s) for stage, up_s, down_s in sends)
        templates.append(replace(template, stages=stages))
        pipelines.append(replace(pipeline, template=template.name, links=None))
    timed = evaluate(replace(plan, templates=tuple(templates), pipelines=tuple(pipelines), prediction=None))
    return timed.period_s if plan.optimizer == "staggered" else timed.makespan_s


def _holding(stage: Stage, up_s: float, down_s: float) -> Stage:
    """A stage that is held for these times by what its F and its I send."""
    return replace(
        stage,
        forward_s=stage.forward_s + up_s,
        backward_input_s=stage.backward_input_s + down_s,
        backward_s=None if stage.backward_s is None else stage.backward_s + down_s,
    )


def _attempt(tried: Tried, make: Callable[[Tried], Plan]) -> Plan | InfeasibleError:
    try:
        return make(tried)
    except InfeasibleError as error:
        return error


def worth_of(plan: Plan | InfeasibleError) -> dict[str, Any]:
    """What a comparison writes into the plan of one that it has tried, beside its name."""
    if isinstance(plan, InfeasibleError):
        return {"refusal": plan.what}
    prediction = plan.predicted
    return {
        "iteration_time_s": prediction.iteration_time_s,
        "lower_bound_s": prediction.lower_bound_s,
        "proof": prediction.proof,
        "bubble_ratio": prediction.bubble_ratio,
        "peak_memory_bytes": max(prediction.peak_memory_bytes),
    }


def _without_way_back(shape: Shape) -> Shape:
    """Without a delay of a loop's way back, which other placements do not have."""
    if shape.placement == "loop" or shape.pp <= 2:
        return shape
    delays = {place: delay_s for place, delay_s in (shape.link_delay_s or {}).items() if place[1] != shape.pp - 1}
    return replace(shape, link_delay_s=delays)
