"""A plan's critical path in parts that a person can follow: who computes what, and which links are waited for.

The path (`Evaluation.critical_path`) has hundreds of operations. Here those that follow each other on one worker are
one leg, and so are the single ones by which a micro-batch is passed on from stage to stage; rounds of equal legs are
told once. In a staggered plan it begins with the window of the stage that decides the period.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import fsum

from ...schemas.orders import print_operation
from ...schemas.plan import Plan, place_of
from ..scheduling.evaluate import ROUNDING, Evaluation, Timed

KINDS = "FIWB"
# Rounds of more legs than this are not looked for.
LONGEST_ROUND = 24


@dataclass(frozen=True, slots=True)
class Leg:
    """Operations of one worker that follow each other, or the passing on of a micro-batch from worker to worker.

    Attributes:
        workers: their names, in the order of the path; one, or all that pass the micro-batch on.
        first, last: the first and the last operation, as their workers' orders name them.
        operations: how many of each kind.
        links: those with a delay on the way, `k/i-k/j`; the first may lie before the first operation.
        start_s, end_s: from the end of the leg before it.
        compute_s, delay_s: what of it is computed, and what is delay of links; both together are all of it.
    """

    workers: tuple[str, ...]
    first: str
    last: str
    operations: dict[str, int]
    links: tuple[str, ...]
    start_s: float
    end_s: float
    compute_s: float
    delay_s: float

    def same_as(self, other: "Leg") -> bool:
        """Whether the same workers do the same, with other micro-batches."""
        return (self.workers, self.operations, self.links) == (other.workers, other.operations, other.links)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Legs that the path goes through `times` times; `legs` are those of the first round."""

    legs: tuple[Leg, ...]
    times: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the iteration: what it is, how long it lasts in s, and which share of the iteration that is."""

    what: str
    time_s: float
    share: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The path that makes the iteration as long as it is.

    Attributes:
        start_s: where it starts: 0, or the start of the deciding stage's window in a staggered plan.
        stretches: its parts, without a gap between them.
        stage: the deciding stage, whose all-reduce and optimizer step follow.
        allreduce_s: all sums of gradients from the path's end on.
        optimizer_s: of that stage; a synchronous plan's step is that of the slowest stage.
        by_place: the iteration by worker, by link, and what follows; the shares add up to 1.
        by_kind: the same by kind of operation, `delay` for all links.
    """

    start_s: float
    stretches: tuple[Stretch, ...]
    stage: int
    allreduce_s: float
    optimizer_s: float
    by_place: tuple[Share, ...]
    by_kind: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """An operation on the path with the delay before it, in s, both without what lies before the path's start."""

    timed: Timed
    link: str
    delay_s: float
    compute_s: float


def critical_path(evaluation: Evaluation, names: Sequence[str]) -> CriticalPath:
    """What an evaluated plan's iteration time is made of.

    Args:
        evaluation: the plan's times.
        names: what to call the plan's workers, `k/i`.
    """
    plan, path = evaluation.plan, evaluation.critical_path()
    window = evaluation.decided_by(path)
    deciding = (worker for worker in plan.live_workers() if evaluation.window_of(worker) is window)
    ends = plan.workers[path[-1].worker] if path else next(deciding)
    staggered = plan.optimizer == "staggered"
    start_s = window.start_s if staggered else 0.0
    steps_s = [window.optimizer_s] if staggered else [other.optimizer_s for other in evaluation.windows.values()]
    steps = list(_steps(path, start_s, names))
    after = {"all-reduce": window.allreduce_s, "optimizer step": max(steps_s)}
    return CriticalPath(
        start_s,
        tuple(_stretches(list(_legs(plan, steps, start_s, names)))),
        ends.stage,
        after["all-reduce"],
        after["optimizer step"],
        _shares({**_by_worker(steps, names), **_by_link(steps), **after}, evaluation.iteration_time_s),
        _shares({**_by_operation(steps), **after}, evaluation.iteration_time_s),
    )


def _steps(path: Sequence[Timed], from_s: float, names: Sequence[str]) -> Iterator[_Step]:
    for earlier, timed in pairwise([*path[:1], *path]):
        if timed.start_s >= from_s or timed.end_s > from_s:
            moved = earlier.worker != timed.worker
            delay_s = max(timed.start_s - max(earlier.end_s, from_s), 0.0) if moved else 0.0
            link = _link(earlier, timed, names) if delay_s > ROUNDING * timed.start_s else ""
            yield _Step(timed, link, delay_s if link else 0.0, timed.end_s - max(timed.start_s, from_s))


def _link(sender: Timed, receiver: Timed, names: Sequence[str]) -> str:
    """The link's name: its workers, the one of the earlier stage first."""
    ends = sorted((names[sender.worker], names[receiver.worker]), key=lambda name: place_of(name)[1])
    return "-".join(ends)


def _legs(plan: Plan, steps: Sequence[_Step], start_s: float, names: Sequence[str]) -> Iterator[Leg]:
    end_s = start_s
    for part in _parts(steps):
        first, last = part[0].timed, part[-1].timed
        yield Leg(
            workers=tuple(names[worker] for worker, _ in groupby(part, lambda step: step.timed.worker)),
            first=print_operation(first.operation, plan.workers[first.worker].pipeline),
            last=print_operation(last.operation, plan.workers[last.worker].pipeline),
            operations=dict(sorted(Counter(step.timed.operation.kind for step in part).items(), key=_in_order)),
            links=tuple(step.link for step in part if step.link),
            start_s=end_s,
            end_s=last.end_s,
            compute_s=fsum(step.compute_s for step in part),
            delay_s=fsum(step.delay_s for step in part),
        )
        end_s = last.end_s


def _in_order(kind_and_count: tuple[str, int]) -> int:
    return KINDS.index(kind_and_count[0])


def _parts(steps: Sequence[_Step]) -> list[list[_Step]]:
    """The steps of each leg."""
    parts: list[list[_Step]] = []
    for _, group in groupby(steps, lambda step: step.timed.worker):
        run = list(group)
        if parts and _passes_on(parts[-1], run):
            parts[-1] += run
        else:
            parts.append(run)
    return parts


def _passes_on(part: Sequence[_Step], run: Sequence[_Step]) -> bool:
    """Whether a worker's only operation hands on what those before it handed to it, in the same direction."""
    kinds = [step.timed.operation.kind == "F" for step in (*part, *run)]
    workers = [step.timed.worker for step in (*part, *run)]
    return len(set(workers)) == len(workers) and len(set(kinds)) == 1


def _stretches(legs: Sequence[Leg]) -> Iterator[Stretch]:
    at = 0
    while at < len(legs):
        length, times = max(
            ((length, _times(legs, at, length)) for length in range(1, LONGEST_ROUND + 1)),
            key=lambda found: (found[0] * found[1] if found[1] > 1 else 0, -found[0]),
        )
        stop = at + length * times
        yield Stretch(tuple(legs[at : at + length]), times, legs[at].start_s, legs[stop - 1].end_s)
        at = stop


def _times(legs: Sequence[Leg], at: int, length: int) -> int:
    """How often a round of some legs follows itself, from a place on; at least once."""
    stop = at + length
    while stop + length <= len(legs) and all(
        a.same_as(b) for a, b in zip(legs[at : at + length], legs[stop : stop + length], strict=True)
    ):
        stop += length
    return (stop - at) // length


def _by_worker(steps: Sequence[_Step], names: Sequence[str]) -> dict[str, float]:
    return _sums((f"worker {names[step.timed.worker]}", step.compute_s) for step in steps)


def _by_link(steps: Sequence[_Step]) -> dict[str, float]:
    return _sums((f"link {step.link}", step.delay_s) for step in steps if step.link)


def _by_operation(steps: Sequence[_Step]) -> dict[str, float]:
    return {
        **_sums((step.timed.operation.kind, step.compute_s) for step in steps),
        "delay": fsum(step.delay_s for step in steps),
    }


def _sums(times_s: Iterable[tuple[str, float]]) -> dict[str, float]:
    parts: dict[str, list[float]] = {}
    for what, time_s in times_s:
        parts.setdefault(what, []).append(time_s)
    return {what: fsum(found) for what, found in parts.items()}


def _shares(times_s: dict[str, float], iteration_s: float) -> tuple[Share, ...]:
    """Those that take time, the longest first."""
    shares = [Share(what, time_s, time_s / iteration_s) for what, time_s in times_s.items() if time_s]
    return tuple(sorted(shares, key=lambda share: -share.time_s))
