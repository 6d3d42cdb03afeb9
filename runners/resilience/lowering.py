"""Whether a worker that has lost a rank goes on at a smaller degree: the choice, and what it is made of.

Its other ranks can share its layers anew, as many of them as the model's cuts allow, and come back as a worker that is
slow by a factor that a profile tells, or the numbers of GPUs. Or its peers do its work until another process takes the
place of the lost rank. Planners are asked for both, with everybody who is there: for the plan without it, and for the
one with it, slow. The smaller iteration time wins, if it pays for copies of the state, there and back, within so many
iterations as the job's other moves have (`--normalize-within`). How long it takes to become another rank nobody knows
beforehand, and nobody but the worker waits for it.

"Nonuniform-Tensor-Parallelism" (2025) lowers the degree of a whole replica; here one worker's alone.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...schemas.conditions import Conditions
from ...schemas.protocols import DegreeFactors, Hand
from .announcements import DegreeChosen
from .conditions import slowed
from .events import MakePlan, Planned
from .membership import Crew, Questions
from .rank_units import RankProcess, Shape

if TYPE_CHECKING:
    from .rules import CoordinatorRules

FIRST_NUMBER = 500_000_000  # of the questions asked here; the rules' are below it

_Question = tuple[int, Crew, Conditions]  # in an epoch: who would be there, and what is slow


class DegreeChooser:
    """What is chosen for workers that lack ranks.

    Args:
        known: at which degrees they may go on, and how slow they are then.

    Attributes:
        degrees: by worker, that at which it is to go on; others are to be whole.
    """

    def __init__(self, known: DegreeFactors) -> None:
        self._known = known
        self.degrees: dict[str, int] = {}
        self._questions = Questions[_Question, Planned]()
        self._rejected: dict[str, tuple[int, int]] = {}  # by worker, in which epoch which degree was no gain
        self._told: set[str] = set()  # workers of which it was said that they wait

    def factor(self, worker: str, degree: int) -> float:
        """How many times as long as planned a worker's operations take at a degree."""
        return self._known.factors[worker][degree]

    def possible(self, processes: Sequence[RankProcess]) -> int:
        """The largest degree at which some processes of a worker can go on together; 0: there is none."""
        worker = processes[0].hello.worker if processes else ""
        known = self._known.factors.get(worker, {}).keys()
        shared = known & set.intersection(*(set(one.hello.degrees) for one in processes)) if processes else set()
        return max((degree for degree in shared if degree <= len(processes)), default=0)

    def whole_again(self, worker: str) -> None:
        """A worker has all its ranks: nothing is chosen for it any more."""
        self.degrees.pop(worker, None)
        self._rejected.pop(worker, None)
        self._told.discard(worker)

    def note(self, answer: Planned) -> bool:
        """Take a planner's answer, if it is to a question that was asked here."""
        if answer.number < FIRST_NUMBER:
            return False
        self._questions.note(replace(answer, number=answer.number - FIRST_NUMBER))
        return True

    def restart(self) -> None:
        """Answers that were under way will not come."""
        self._questions.restart()

    def refuse(self, worker: str, degree: int, why: str) -> DegreeChosen | None:
        """What is to be said of a worker that has no smaller degree; None where that was said already."""
        return self._waiting(DegreeChosen(worker=worker, degree=None, of=degree, reason=why))

    def choose(self, worker: str, degree: int, of: int, rules: "CoordinatorRules") -> list[MakePlan | DegreeChosen]:
        """Whether a worker is to go on at a degree: what is to be asked for that, or what was chosen.

        Args:
            worker: that is no member, in an epoch that goes on without it.
            degree: the largest that is possible.
            of: that of the plan.
            rules: of the job.
        """
        if self._rejected.get(worker) == (rules.epoch, degree):
            return []
        crew, now, factor = rules.crew(), rules.circumstances.now, self.factor(worker, degree)
        asked = (
            (rules.epoch, crew, now),
            (rules.epoch, (*crew, Hand(worker, None, None)), slowed(now, worker, factor)),
        )
        numbers = [(self._questions.ask(one), one) for one in asked]
        questions: list[MakePlan | DegreeChosen] = [
            MakePlan(FIRST_NUMBER + number, rules.plan, question[1], question[2])
            for number, question in numbers
            if number is not None
        ]
        without, lowered = map(self._questions.answer, asked)
        if questions or without is None or lowered is None:
            return questions
        self._questions.clear()
        is_seated = worker in {name for name, _ in lowered.seats} and not lowered.restart
        chosen = DegreeChosen(
            worker=worker,
            degree=degree,
            of=of,
            factor=factor,
            is_profiled=degree in self._known.profiled,
            lowered_s=lowered.iteration_time_s if is_seated else None,
            without_s=without.iteration_time_s if without.plan is not None else None,
            cost_s=self._known.costs_s.get(worker, {}).get(degree),
            within=self._known.within,
            reason=_why_not(lowered, is_seated),
        )
        if chosen.is_lowered:
            self.degrees[worker] = degree
            self._told.discard(worker)
            return [chosen]
        self._rejected[worker] = rules.epoch, degree
        waiting = self._waiting(chosen)
        return [] if waiting is None else [waiting]

    def _waiting(self, chosen: DegreeChosen) -> DegreeChosen | None:
        """What is said once of a worker that waits for its ranks."""
        is_news = chosen.worker not in self._told
        self._told.add(chosen.worker)
        return chosen if is_news else None


def _why_not(lowered: Planned, is_seated: bool) -> str:
    if lowered.plan is None:
        return f"there is no plan with it: {lowered.reason}"
    return "" if is_seated else "the plan with it does without it"


def shapes_for(degree: int, processes: Collection[RankProcess]) -> dict[RankProcess, Shape]:
    """Which of a worker's processes are to be its ranks at a smaller degree, and which ones.

    Who is such a rank already, or becomes it, stays it; the others are taken in the order of the ranks that they were
    started as.

    Args:
        degree: so many are chosen.
        processes: as many or more.
    """
    found: dict[RankProcess, Shape] = {}
    vacant = set(range(degree))
    for one in processes:
        rank, ranks = one.becomes or one.shape
        if ranks == degree and rank in vacant:
            found[one] = (rank, ranks)
            vacant.discard(rank)
    others = sorted((one for one in processes if one not in found), key=lambda one: (one.hello.rank, one.connection))
    return found | {one: (rank, degree) for one, rank in zip(others, sorted(vacant), strict=False)}
