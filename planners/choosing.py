"""`--placement`: what is asked for, and `best`: placements compared by what their plans are worth.

None is best everywhere: a V or a loop fills its pipeline in a fraction of the time, and crosses every link several
times. So under the delays and limits given each is planned, and the shortest iteration wins. What the others came to,
and what is proven of it, is written into the plan: the rejected ones are part of the argument.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ..schemas.documents import typed
from ..schemas.errors import InfeasibleError, InvalidInputError, remark
from ..schemas.fields import STRICT, Bytes, Count, Ratio, Seconds
from ..schemas.plan import Plan, Proof
from ..schemas.quantities import print_time
from ..schemas.text import counted
from .shape import PlacementName, Shape

OPTION = "placements"  # of the planner
USUAL_CHUNKS = 2
SAME = 1e-9  # iteration times this close, relatively, differ by rounding


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
        vs = [("v", chunks) for chunks in sorted({USUAL_CHUNKS, deepest}) if chunks <= deepest and chunks > 1]
        loops = [("loop", chunks) for chunks in range(2, deepest + 1)]
        tried = (replace(shape, placement=name, chunks=chunks) for name, chunks in (("plain", 1), *vs, *loops))
        return [_without_way_back(one) for one in tried]


def parse_placement(text: str, chunks: int | None) -> PlacementChoice:
    """What `--placement` and `--chunks` say: `plain`, `loop`, `v` or `best`, with chunks in either, as in `best:4`.

    Args:
        text: of `--placement`.
        chunks: of `--chunks`; None: it is not given.

    Raises:
        InvalidInputError: there is no such placement, both say chunks, or a plain one is to have several.
    """
    match = re.fullmatch(r"(plain|loop|v|best)(?::([1-9]\d{0,5}))?", text)
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


def plan_chosen(shape: Shape, choice: PlacementChoice, make: Callable[[Shape], Plan]) -> Plan:
    """A plan by the placement that is asked for.

    Args:
        shape: all else that is asked for; its own placement does not count.
        choice: the placement.
        make: plans a shape.

    Returns:
        The plan. Under `best` that of the shortest iteration, of equal ones the first, and so plain if that is one;
        `planner.options["placements"]` says what each was worth: `iteration_time_s`, `lower_bound_s`, `proof`,
        `bubble_ratio` and the largest worker's `peak_memory_bytes`, or the `refusal` that it met.

    Raises:
        InfeasibleError: no placement can be planned; says why plain cannot.
        InvalidInputError: as `make` does.
    """
    shapes = choice.shapes(shape)
    if choice.name != "best":
        return make(shapes[0])
    found = [(one, _attempt(one, make)) for one in shapes]
    best: Plan | None = None
    for _, plan in found:
        if isinstance(plan, Plan) and (best is None or _time_s(plan) < _time_s(best) * (1 - SAME)):
            best = plan
    if best is None:
        raise next(error for _, error in found if isinstance(error, InfeasibleError))
    told = [{**_row(one, plan), **({"chosen": True} if plan is best else {})} for one, plan in found]
    return replace(best, planner=replace(best.planner, options=best.planner.options | {OPTION: told}))


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
    chosen: bool = False

    __pydantic_config__: ClassVar[Any] = STRICT


def comparison(plan: Plan) -> Iterator[str]:
    """What `best` has found of each placement, a line each; nothing where none were compared.

    Raises:
        InvalidInputError: what the plan says of them is nothing that `best` writes.
    """
    place = f"/planner/options/{OPTION}"
    rows: tuple[ComparedPlacement, ...] = typed(
        plan.planner.options.get(OPTION, []), tuple[ComparedPlacement, ...], place
    )
    for row in rows:
        name = row.placement if row.chunks == 1 else f"{row.placement}, {row.chunks} chunks"
        if row.refusal is not None:
            yield f"{name}: {row.refusal}"
            continue
        proven = "optimal" if row.proof == "optimal" else f"no less than {print_time(row.lower_bound_s)}"
        yield f"{name}: {print_time(row.iteration_time_s)} ({proven})" + (", taken" if row.chosen else "")


def _attempt(shape: Shape, make: Callable[[Shape], Plan]) -> Plan | InfeasibleError:
    try:
        return make(shape)
    except InfeasibleError as error:
        return error


def _time_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.iteration_time_s


def _row(shape: Shape, plan: Plan | InfeasibleError) -> dict[str, Any]:
    named = {"placement": shape.placement, "chunks": shape.chunks}
    if isinstance(plan, InfeasibleError):
        return {**named, "refusal": plan.what}
    prediction = plan.prediction
    assert prediction is not None
    return {
        **named,
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
