"""Who is there before a job begins, and whether it may: with all workers of its plan, or once enough of them have come.

A part of the coordinator's rules (rules.py), pure as they are. torchft's lighthouse has such a wait (`--min_replicas`,
`--join_timeout_ms`; torchft: src/lighthouse.rs).
"""

from collections.abc import Mapping

from ...schemas.plan import name_of
from ...schemas.protocols import Hand
from .events import Wake
from .membership import Crew, Newcomer, Seats, coming, layers_of, live_places
from .protocol import Job


class Quorum:
    """The workers that wait for a job to begin.

    Args:
        job: what to do.

    Attributes:
        wanted: the names of all workers that the plan has, by their places.
        crew: those of them that are there, each at its place; they can make the state of every layer.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.wanted: Seats = {place: name_of(place) for place in live_places(job.plan)}
        self.crew: Crew = ()
        self._waits = 0  # how often the wait for others has begun
        self._is_over = False  # that wait

    def see(self, newcomers: Mapping[int, Newcomer]) -> Wake | None:
        """Somebody may have come or gone; gives a timer, where a wait for others begins.

        Args:
            newcomers: who waits for a place, by connection.
        """
        there = coming(newcomers, self._job.first_iteration)
        anything = ((0, layers_of(self._job.plan)),)
        before = self.crew
        self.crew = tuple(Hand(name, place, anything) for place, name in self.wanted.items() if name in there)
        least = self._job.min_workers
        if self.crew == before or least is None or least > len(self.crew):
            self._is_over = self._is_over and self.crew == before
            return None
        self._waits, self._is_over = self._waits + 1, False
        return Wake(self._job.join_wait_s, f"gather/{self._waits}")

    def elapse(self, number: str) -> None:
        """A timer has come to its end, of the last wait or of one before."""
        self._is_over = self._is_over or int(number) == self._waits

    def is_complete(self, newcomers: Mapping[int, Newcomer]) -> bool:
        """Whether all are there, and those who are to wait beside them."""
        return len(self.crew) == len(self.wanted) and len(newcomers) >= len(self.wanted) + self._job.newcomers

    @property
    def is_enough(self) -> bool:
        """Whether there are enough to begin without the others, and nobody has come for long."""
        return self._is_over
