"""The plans that were asked for since an epoch began, and the answers."""

from collections.abc import Iterable, Iterator

from ...schemas.conditions import Conditions
from ...schemas.plan import Layers, Plan, name_of
from ...schemas.protocols import Hand
from .events import MakePlan, Planned

Crew = tuple[Hand, ...]


class Questions:
    """Which plan follows the running one, for every crew and all conditions that could be; each is asked once."""

    def __init__(self) -> None:
        self._count = 0
        self._asked: dict[tuple[Crew, Conditions], int] = {}
        self._answers: dict[int, Planned] = {}

    def ask(self, plan: Plan, crew: Crew, conditions: Conditions) -> MakePlan | None:
        """What has the next plan made; None where it was asked for already."""
        if (crew, conditions) in self._asked:
            return None
        self._count += 1
        self._asked[crew, conditions] = self._count
        return MakePlan(self._count, plan, crew, conditions)

    def answer(self, crew: Crew, conditions: Conditions) -> Planned | None:
        """The answer for a crew under these conditions, where it is there."""
        return self._answers.get(self._asked.get((crew, conditions), -1))

    def note(self, planned: Planned) -> None:
        """An answer has come; one to a question of an earlier epoch is of no use."""
        if planned.number in self._asked.values():
            self._answers[planned.number] = planned

    def begin_epoch(self) -> None:
        """Another plan is running: all questions are new."""
        self._asked.clear()
        self._answers.clear()

    def restart(self) -> None:
        """Answers that were under way will not come."""
        self._asked = {question: number for question, number in self._asked.items() if number in self._answers}


def held_by(crew: Iterable[Hand]) -> Iterator[Layers]:
    """The layers that somebody of a crew has."""
    return (hand.layers for hand in crew if hand.layers is not None)


def seats_of(crew: Crew) -> tuple[tuple[str, str], ...]:
    """Everybody where he is, as an answer says it."""
    return tuple((hand.worker, name_of(hand.place)) for hand in crew if hand.place is not None)
