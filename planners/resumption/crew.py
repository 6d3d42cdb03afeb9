"""Who takes which place of the plan that follows, with what he has of the iteration under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ...schemas.errors import InvalidInputError
from ...schemas.plan import Layers, Place, Plan, Stage, Worker, name_of
from ...schemas.resumption import Standing, layers_in


class Seat(NamedTuple):
    """A virtual stage that a worker holds; its only one where the plan has no placement.

    Attributes:
        worker: its number.
        stage: which virtual stage; None: the only one.
        costs: what its operations take.
    """

    worker: int
    stage: int | None
    costs: Stage


@dataclass(frozen=True, eq=False)
class Crew:
    """The live workers of a plan, which are numbered in its order, each with its standing.

    Attributes:
        plan: that follows.
        workers: its live workers.
        standings: of who takes their places.
    """

    plan: Plan
    workers: tuple[Worker, ...]
    standings: tuple[Standing, ...]

    @classmethod
    def seated(cls, plan: Plan, seats: Sequence[tuple[str, Place]], standings: Sequence[Standing]) -> Crew:
        """The crew of a plan.

        Raises:
            InvalidInputError: a place is not taken, or nobody knows what its worker has.
        """
        name_at = {place: name for name, place in seats}
        standing_of = {standing.worker: standing for standing in standings}
        if len(standing_of) < len(standings):
            raise InvalidInputError("a worker has two standings", where="/standings")
        workers = plan.live_workers()
        for worker in workers:
            if name_at.get(worker.place) not in standing_of:
                raise InvalidInputError(
                    f"nobody with a standing takes the place {worker.name}",
                    where="/seats",
                    fix="let every live place of the plan be taken by a worker that has said what it has",
                )
        return cls(plan, workers, tuple(standing_of[name_at[worker.place]] for worker in workers))

    @cached_property
    def seats(self) -> tuple[Seat, ...]:
        """What the workers hold in the plan that follows, by worker, ascending; seats are numbered in this order."""
        return tuple(
            Seat(number, stage if len(held) > 1 else None, costs)
            for number, (worker, held) in enumerate(zip(self.workers, self.columns, strict=True))
            for stage, costs in zip(held, self.plan.stages_of(worker), strict=True)
        )

    @cached_property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """The virtual stages of each worker."""
        return tuple(map(self.plan.seats_of, self.workers))

    @cached_property
    def stages(self) -> tuple[tuple[Layers, ...], ...]:
        """The layers of each worker's stages."""
        return tuple(tuple(stage.layers for stage in self.plan.stages_of(worker)) for worker in self.workers)

    @cached_property
    def holds(self) -> tuple[tuple[Layers, ...], ...]:
        """The layers of each worker in the plan that follows, as ranges."""
        return tuple(map(self.plan.layers_of, self.workers))

    @cached_property
    def seat_of(self) -> dict[tuple[int, Layers], int]:
        """The number of each seat, by its worker and its layers."""
        return {(seat.worker, seat.costs.layers): number for number, seat in enumerate(self.seats)}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The places `k/i` of the workers."""
        return tuple(name_of(worker.place) for worker in self.workers)

    @cached_property
    def layers(self) -> int:
        """How many layers the model has."""
        return self.plan.total_layers()

    @cached_property
    def microbatches(self) -> int:
        """How many micro-batches an iteration has."""
        return self.plan.total_microbatches()

    @cached_property
    def splits(self) -> tuple[bool, ...]:
        """Whether each worker's F is followed by I and W; that of who has nothing by what its order in the plan has."""
        pairs = zip(self.workers, self.standings, strict=True)
        return tuple(_splits(worker.order or "", standing) for worker, standing in pairs)

    @cached_property
    def kept(self) -> tuple[frozenset[int], ...]:
        """The layers that each worker had and has in the plan that follows."""
        pairs = zip(self.standings, self.holds, strict=True)
        return tuple(layers_in(standing.holds) & layers_in(holds) for standing, holds in pairs)

    def stays(self, number: int) -> bool:
        """Whether a worker has the very layers that it had."""
        return self.standings[number].holds == self.holds[number]


def _splits(order: str, standing: Standing) -> bool:
    kinds = "I" in order, "B" in order
    is_new = standing.layers is None or standing.is_empty
    return kinds[0] if is_new and kinds[0] != kinds[1] else standing.splits
