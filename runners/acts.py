"""The acts of a story (story.py): epochs, the tries at their iterations, and when what happened in one of them.

Times of an execution count from the beginning of its iteration, in s; those of a Run are on the story's clock.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..schemas.plan import Layers, Plan
from ..schemas.protocols import Examined
from ..schemas.timeline import Span
from .cast import Process
from .machines import Staging
from .program import Compute, Program
from .resilience.messages import Epoch
from .simulator import Cuts, Execution, is_computed


@dataclass(eq=False)
class Run:
    """One try at an iteration: where it lies in time, and what was done in it.

    Attributes:
        iteration: its number.
        start_s: when it began, on the story's clock.
        staging: the program, and how slow workers and links were.
        actors: who executed it, by rank.
        execution: what was done.
        broken_s: by link, when it breaks, counted from the start.
        cut_s: when it was broken off, on the story's clock; infinite where it was not.
    """

    iteration: int
    start_s: float
    staging: Staging
    actors: tuple[Process, ...]
    execution: Execution
    broken_s: Cuts
    cut_s: float = math.inf

    @property
    def program(self) -> Program:
        """What was executed."""
        return self.staging.program

    def spans(self) -> Iterable[Span]:
        """What was executed, on the story's clock."""
        for actor, own in zip(self.actors, self.execution.spans, strict=True):
            stop_s = min(self.cut_s, actor.died_s)
            for span in own:
                start_s, end_s = span.start_s + self.start_s, span.end_s + self.start_s
                if start_s < stop_s:
                    yield replace(span, start_s=start_s, end_s=min(end_s, stop_s), iteration=self.iteration)

    def end_s(self) -> float:
        """When those who live have made their steps."""
        return max((one for one in self.execution.done_s if math.isfinite(one)), default=0.0) + self.start_s

    def done_s(self, plan: Plan, ranks: Sequence[int]) -> float:
        """When a stage has made its step: as the period is reckoned, or later where somebody stood still.

        Args:
            plan: the epoch's.
            ranks: who holds the stage.

        Returns:
            Seconds from the beginning of the iteration.
        """
        stages = [plan.stage_of(self.program.workers[rank]) for rank in ranks]
        last_s = max((last_end_s(self.execution.spans[rank]) for rank in ranks), default=0.0)
        steps_s = max(stage.allreduce_s for stage in stages) + max(stage.optimizer_s for stage in stages)
        return max(last_s + steps_s, *(self.execution.done_s[rank] for rank in ranks))


@dataclass(eq=False)
class Act:
    """An epoch.

    Attributes:
        message: by which the coordinator began it.
        plan: the message's.
        actors: its members, by rank.
        last: its last iteration, as far as that is known.
        runs: the tries at its iterations, in order.
        held_up: an iteration that waits for a commit, and when it could have begun, in s.
        examined: what members have found before the first iteration, by rank.
    """

    message: Epoch
    plan: Plan
    actors: tuple[Process, ...]
    last: int
    runs: list[Run] = field(default_factory=list)
    held_up: tuple[int, float] | None = None
    examined: Mapping[int, Examined] = field(default_factory=dict)


def half_way_s(program: Program, execution: Execution, rank: int) -> float | None:
    """When a worker begins the operation in the middle of its order; None where it does not come to that."""
    operations = sum(isinstance(one, Compute) for one in program.instructions[rank])
    middle = execution.spans[rank][operations // 2 :][:1] if operations else ()
    return middle[0].start_s if middle and is_computed(middle[0]) else None


def stages_of(program: Program, alive: Sequence[int]) -> list[list[int]]:
    """The living ranks that hold the same layers, and so sum and step together."""
    stages: dict[Layers, list[int]] = {}
    for rank in alive:
        stages.setdefault(program.plan.stage_of(program.workers[rank]).layers, []).append(rank)
    return list(stages.values())


def first_start_s(execution: Execution, ranks: Sequence[int]) -> float | None:
    """When a stage begins; None for one that computes nothing."""
    firsts = [own[0].start_s for rank in ranks for own in [execution.spans[rank]] if own and is_computed(own[0])]
    return min(firsts, default=None)


def last_end_s(spans: Sequence[Span]) -> float:
    """When a worker ends its last operation; 0 for one that computes nothing."""
    return max((span.end_s for span in spans if is_computed(span)), default=0.0)
