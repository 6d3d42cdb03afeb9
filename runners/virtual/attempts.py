"""The epochs of a story (job.py), the tries at their iterations, and when what happened in one of them.

Times of an execution count from the beginning of its iteration, in s; those of an IterationAttempt are on the story's
clock.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ...schemas.orders import Operation
from ...schemas.plan import Layers, Plan
from ...schemas.resumption import seat_at, seats_in
from ...schemas.timeline import Span
from ..program import Compute, Program, computed_in, step_s
from ..resilience.membership import layers_of
from ..resilience.protocol import Epoch, MicrobatchLoss
from ..simulator import Cuts, Execution, is_computed, name_of_operation, seconds_of
from .cluster import Process, TimedProgram
from .partial_work import LogLimit, PartialWork, worked


@dataclass(eq=False)
class IterationAttempt:
    """One try at an iteration: where it lies in time, and what was done in it.

    Attributes:
        iteration: its number.
        start_s: when it began, on the story's clock.
        staging: the program, and how slow workers and links were.
        actors: who executed it, by rank.
        execution: what was done.
        broken_s: by link, when it breaks, counted from the start.
        before: what each rank had of the iteration at the start.
        log: what it keeps of messages.
        cuts_s: when each rank left it, on the story's clock; infinite where it did not.
        added: by rank, what it ran once it had left, on the story's clock.
    """

    iteration: int
    start_s: float
    staging: TimedProgram
    actors: tuple[Process, ...]
    execution: Execution
    broken_s: Cuts
    before: tuple[PartialWork, ...]
    log: LogLimit
    cuts_s: list[float] = field(init=False)
    added: dict[int, list[Span]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cuts_s = [math.inf] * len(self.actors)

    @property
    def program(self) -> Program:
        """What was executed."""
        return self.staging.program

    def spans(self) -> Iterable[Span]:
        """What was executed, on the story's clock."""
        for actor, own, cut_s in zip(self.actors, self.execution.spans, self.cuts_s, strict=True):
            stop_s = min(cut_s, actor.died_s)
            for span in own:
                start_s, end_s = span.start_s + self.start_s, span.end_s + self.start_s
                if start_s < stop_s:
                    yield replace(span, start_s=start_s, end_s=min(end_s, stop_s), iteration=self.iteration)
        yield from (span for own in self.added.values() for span in own)

    def work(self, rank: int, until_s: float = math.inf, called_s: float = math.inf) -> PartialWork:
        """What a rank has of the iteration if it leaves it then, being called at a time before (`worked`)."""
        return worked(self.before[rank], self.program, self.execution, rank, self.start_s, until_s, called_s, self.log)

    def has_losses(self, rank: int) -> bool:
        """Whether a rank computes losses: it holds the model's last layer."""
        plan = self.program.plan
        return plan.stages_of(self.program.workers[rank])[-1].layers[1] == layers_of(plan)

    def run_weights(self, rank: int, work: PartialWork) -> float:
        """Have a rank that has left run the W of what it has half done in parts of its stage; gives when it is done."""
        plan, worker = self.program.plan, self.program.workers[rank]
        seats, end_s = seats_in(plan, worker), self.cuts_s[rank]
        self.added[rank] = []
        for number, layers in work.halves:
            one = Compute(Operation("W", *plan.microbatch_at(number), seat_at(seats, layers)), layers)
            stage = plan.stage_at(worker, one.operation)
            start_s, end_s = end_s, end_s + seconds_of(one, stage, worker)
            name = name_of_operation(one, worker.pipeline, stage)
            self.added[rank].append(Span(worker.name, name, start_s, end_s, self.iteration))
        return end_s

    def under_way_s(self, rank: int, now_s: float) -> float:
        """When a rank ends the operation that it is in; now, where it is in none."""
        spans = (span for span in self.execution.spans[rank] if is_computed(span))
        ends_s = (span.end_s for span in spans if self.start_s + span.start_s < now_s)
        return max(now_s, self.start_s + max(ends_s, default=0.0))

    def stepped_s(self, rank: int) -> float:
        """When a rank has made its step; at once, where it never does."""
        done_s = self.execution.done_s[rank]
        return self.start_s + done_s if math.isfinite(done_s) else 0.0

    def end_s(self) -> float:
        """When those who live have made their steps."""
        return max((one for one in self.execution.done_s if math.isfinite(one)), default=0.0) + self.start_s

    def done_s(self, plan: Plan, ranks: Sequence[int]) -> float:
        """When workers of the same layers have made their steps: as the period is reckoned, or later where somebody
        stood still.

        Args:
            plan: the epoch's.
            ranks: theirs.

        Returns:
            Seconds from the beginning of the iteration.
        """
        last_s = max((last_end_s(self.execution.spans[rank]) for rank in ranks), default=0.0)
        sums_s = max(self.program.reduction(rank).duration_s for rank in ranks)
        steps_s = sums_s + max(step_s(plan, self.program.workers[rank]) for rank in ranks)
        return max(last_s + steps_s, *(self.execution.done_s[rank] for rank in ranks))


@dataclass(eq=False)
class EpochState:
    """An epoch.

    Attributes:
        message: by which the coordinator began it.
        plan: the message's.
        actors: its members, by rank.
        last: its last iteration, as far as members have been told.
        runs: the tries at its iterations, in order.
        held_up: an iteration that waits for a commit, and when it could have begun, in s.
        called_s: by rank, when who was told to regroup, or has lost touch, ceased to begin anything.
        left_s: by rank, when it has finished what it was in then.
    """

    message: Epoch
    plan: Plan
    actors: tuple[Process, ...]
    last: int
    runs: list[IterationAttempt] = field(default_factory=list)
    held_up: tuple[int, float] | None = None
    called_s: dict[int, float] = field(default_factory=dict)
    left_s: dict[int, float] = field(default_factory=dict)


def half_way_s(program: Program, execution: Execution, rank: int) -> float | None:
    """When a worker begins the operation in the middle of its order; None where it does not come to that."""
    operations = sum(1 for _ in computed_in(program.instructions[rank]))
    middle = execution.spans[rank][operations // 2 :][:1] if operations else ()
    return middle[0].start_s if middle and is_computed(middle[0]) else None


def stages_of(program: Program, alive: Sequence[int]) -> list[list[int]]:
    """The living ranks that hold the same layers, and so sum and step together."""
    stages: dict[tuple[Layers, ...], list[int]] = {}
    for rank in alive:
        stages.setdefault(program.plan.layers_of(program.workers[rank]), []).append(rank)
    return list(stages.values())


def first_start_s(execution: Execution, ranks: Sequence[int]) -> float | None:
    """When a stage begins; None for one that computes nothing."""
    firsts = [own[0].start_s for rank in ranks for own in [execution.spans[rank]] if own and is_computed(own[0])]
    return min(firsts, default=None)


def last_end_s(spans: Sequence[Span]) -> float:
    """When a worker ends its last operation; 0 for one that computes nothing."""
    return max((span.end_s for span in spans if is_computed(span)), default=0.0)


def losses_of(work: PartialWork) -> tuple[MicrobatchLoss, ...]:
    """The losses that a worker tells: nobody computes them here, but that they are there decides what is kept."""
    return tuple((number, None, 1.0) for number in sorted(work.losses))
