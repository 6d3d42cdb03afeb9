"""Oobleck for a job that runs: reconfiguration behind the coordinator's `Replan`."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ...schemas.conditions import Conditions
from ...schemas.errors import InfeasibleError
from ...schemas.plan import Layers, Place, Plan, name_of
from ...schemas.protocols import Hand, Replanned
from ...schemas.templates import nodes_of_stages
from ..oobleck.assignment import CrewNode, crew_of, node_shapes
from ..oobleck.reconfiguration import Reconfigurer


class Regrouping:
    """Unlike pipelines of all nodes that are there (a `Replan`).

    A node is the workers that the first plan puts on one node, by their names, and counts while all of them are there:
    the others of a broken node wait until its lost workers have been started again. Slow links and slow workers change
    nothing.

    Args:
        plan: that the job starts with, made from templates.
        pays_within: iterations within which new pipelines must have paid for their copies; 0: as little as must be.

    Raises:
        InvalidInputError: the plan was not made from templates.
    """

    def __init__(self, plan: Plan, pays_within: int) -> None:
        self._plan, self._pays_within = plan, pays_within
        self._reconfigurer = Reconfigurer(plan)
        self._workers = dict(self._homes(plan))

    def __call__(self, plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
        """The plan for the whole nodes that are there: the running one, where nobody comes or goes.

        Raises:
            InfeasibleError: they are too few, or hold not all layers.
        """
        seats = tuple((hand.worker, hand.place) for hand in crew if hand.place is not None)
        if len(seats) == len(crew) == len(plan.live_workers()):
            return Replanned(plan, seats)
        found = self._reconfigurer.next_of(plan, list(self._nodes(plan, crew)), self._pays_within)
        return Replanned(found.plan, tuple(self._seats(found.plan, found.pipelines)))

    def moving_s(self, usual_s: float) -> float:
        """Nobody moves because of what is slow."""
        return math.inf

    def warm_up(self) -> None:
        """Plan for one node less, so that what is loaded and made ready once is there when the first node is lost."""
        with suppress(InfeasibleError):
            self._reconfigurer.next_of(self._plan, crew_of(self._plan, self._gpus)[:-1], self._pays_within)

    @property
    def _gpus(self) -> int:
        return self._reconfigurer.templates.gpus_per_node

    def _homes(self, plan: Plan) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Every node of the first plan, named by its first worker, and its workers."""
        for k, pipeline in enumerate(plan.pipelines):
            for shape in node_shapes(plan.template_by_name[pipeline.template].stages, self._gpus):
                workers = tuple(name_of((k, i)) for i in range(*shape.stages))
                yield workers[0], workers

    def _nodes(self, plan: Plan, crew: Sequence[Hand]) -> Iterator[CrewNode]:
        """The nodes all of whose workers are there."""
        hands = {hand.worker: hand for hand in crew}
        for name, workers in self._workers.items():
            present = [hands[worker] for worker in workers if worker in hands]
            if len(present) == len(workers):
                position = self._position(plan, present)
                yield CrewNode(name, position, None if position is None else _layers(present))

    def _position(self, plan: Plan, hands: Sequence[Hand]) -> Place | None:
        """The pipeline of a node and its index there; None where not all of it is at work."""
        found = set()
        for hand in hands:
            if hand.place is None or hand.layers is None:
                return None
            k, i = hand.place
            found.add((k, nodes_of_stages(plan.template_of(k).stages, self._gpus)[i]))
        return found.pop() if len(found) == 1 else None

    def _seats(self, plan: Plan, pipelines: Sequence[Sequence[str]]) -> Iterator[tuple[str, Place]]:
        """Who takes which place: the workers of a node its stages, in order."""
        for k, names in enumerate(pipelines):
            for name, shape in zip(names, node_shapes(plan.template_of(k).stages, self._gpus), strict=True):
                for worker, stage in zip(self._workers[name], range(*shape.stages), strict=True):
                    yield worker, (k, stage)


def _layers(hands: Sequence[Hand]) -> Layers:
    """The layers that the workers of a node hold together; those of one node follow each other."""
    held = [hand.layers for hand in hands if hand.layers is not None]
    return min(first for first, _ in held), max(stop for _, stop in held)
