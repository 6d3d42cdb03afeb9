"""The recursions of `mapping_kernels`, ready to be asked: bounds for intervals of tau, and the mappings behind them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from ...schemas.kernels import pays
from ..scheduling.forms import Form
from .mapping_kernels import cost_after, cost_before, cost_slowest, fewest_stages, least_costs, least_costs_by_count
from .objective import FLAT, Objective
from .stages import Stages, fill_of

INTERPRETED_STEPS = 3000  # of one recursion; to load machine code takes half a second
StageKey = tuple[int, int, int]  # index of the degree, first layer, end of the layers
Mapping = tuple[StageKey, ...]
State = tuple[bool, int]  # of a place: whether the last slowest stage is in it; how many stages, where they are counted


@dataclass(frozen=True)
class Request:
    """What to map.

    Attributes:
        stages: those there may be.
        gpus_per_node: M.
        objective: what mappings are judged by.
        nodes: of the largest pipeline; one for which there are layers enough.
    """

    stages: Stages
    gpus_per_node: int
    objective: Objective
    nodes: int


class Tables:
    """A request as the kernels take it.

    A stage needs room for as many micro-batches as there are stages from it on; `room` is infinite where a pipeline
    never has more in flight than fit. `fewest` is the fewest stages from each place to the end. `knows_tau` says
    whether T depends on tau.
    """

    def __init__(self, request: Request) -> None:
        self.degrees, self.layers = request.stages.degrees, request.stages.layers
        self.gpus, self.nodes = request.gpus_per_node, request.nodes
        self.places = (self.layers + 1) * self.gpus * (self.nodes + 1)
        self.fill = int(fill_of(self.degrees, self.gpus))
        times_s, room = request.stages.times_s(), request.stages.room()
        room[room >= request.objective.in_flight(self.layers, 0)] = inf
        self.most = int(min(self.layers, room[times_s < inf].max()))
        self.taus = np.unique(times_s[(room >= 1) & (times_s < inf)])
        steps = self.layers**2 * len(self.degrees) * self.gpus * self.nodes // 2
        self.form = Form(pays(least_costs, steps, INTERPRETED_STEPS))
        weights = request.objective.weights
        self.knows_tau = weights != FLAT
        self.degree_list, self.weights = self.form.ints(self.degrees), self.form.ints(weights)
        self.times_s, self.room = self.form.floats(times_s.ravel()), self.form.floats(room.ravel())
        self.fewest = self.form.float_space(self.places)
        shape = (self.layers, self.gpus, self.nodes)
        self.form.kernel(fewest_stages)(self.degree_list, self.room, *shape, self.fewest)

    def index(self, stage: StageKey) -> int:
        """Where a stage stands."""
        degree, first, stop = stage
        return (degree * self.layers + first) * (self.layers + 1) + stop

    def place(self, first: int, gpus_left: int) -> int:
        """Where a place stands, by its first layer and all the GPUs it has."""
        return (first * self.gpus + gpus_left % self.gpus) * (self.nodes + 1) + gpus_left // self.gpus

    def next_stages(self, first: int, gpus_left: int) -> Iterator[StageKey]:
        """The stages that a place may begin with: those that end first first, of them the lowest degree."""
        for stop in range(first + 1, self.layers + 1):
            for degree, gpus in enumerate(self.degrees):
                if (gpus_left - 1) // self.gpus == (gpus_left - gpus) // self.gpus:
                    yield degree, first, stop


class Recursion:
    """Least costs of all places, tau in an interval: with a count of stages, or as if the fewest always followed."""

    def __init__(self, tables: Tables, smallest: int, counting: bool) -> None:
        self._tables, self._smallest, self._counting = tables, smallest, counting
        self._most = tables.most if counting else 0
        self._counts = self._most + 1
        self._low_s, self._high_s = 0.0, 0.0
        self._bounds_s: dict[tuple[int, int], list[float]] = {}

    def bound_s(self, nodes: int, first: int, stop: int) -> float:
        """What T is at least if tau is one of the times with indices first to stop - 1; what it is, if there is one."""
        if (first, stop) not in self._bounds_s:
            self._run(first, stop)
            done_s = np.asarray(self._done_s[: (self._tables.nodes + 1) * self._counts])
            self._bounds_s[first, stop] = done_s.reshape(-1, self._counts).min(axis=1).tolist()
        return self._bounds_s[first, stop][nodes]

    def mapping(self, nodes: int, first: int, stop: int) -> Mapping:
        """The first of the mappings that cost no more than the bound for these times: one time, or T knows no tau.

        All states that such a mapping may be in are followed at once, so that the first stage on any way is seen.
        """
        self._run(first, stop)
        tables, layer, gpus_left = self._tables, 0, nodes * self._tables.gpus
        states, chosen = self._best_states(tables.place(0, gpus_left)), []
        while layer < tables.layers:
            stage, states = next(self._ways(layer, gpus_left, states))
            chosen.append(stage)
            layer, gpus_left = stage[2], gpus_left - tables.degrees[stage[0]]
        return tuple(chosen)

    def _best_states(self, place: int) -> set[State]:
        costs_s = [self._done_s[place * self._counts + count] for count in range(self._counts)]
        return {(True, count) for count, cost_s in enumerate(costs_s) if cost_s == min(costs_s)}

    def _ways(self, first: int, gpus_left: int, states: set[State]) -> Iterator[tuple[StageKey, set[State]]]:
        """The stages that some of these states of a place owe their cost to, and the states behind them."""
        for stage in self._tables.next_stages(first, gpus_left):
            place = self._tables.place(first, gpus_left)
            source = self._tables.place(stage[2], gpus_left - self._tables.degrees[stage[0]])
            if self._tables.times_s[self._tables.index(stage)] <= self._high_s:
                behind = {found for state in states for found in self._behind(place, source, state, stage)}
                if behind:
                    yield stage, behind

    def _behind(self, place: int, source: int, state: State, stage: StageKey) -> Iterator[State]:
        """The states of `source` that, with this stage before them, cost what this state of `place` does."""
        done, count = state
        cost_s = (self._done_s if done else self._after_s)[place * self._counts + count]
        before_s, slowest_s, after_s = self._costs_s(stage)
        for at_end in self._counts_behind(source, count, stage):
            at = source * self._counts + at_end
            if done and self._done_s[at] + before_s == cost_s:
                yield True, at_end
            if self._after_s[at] + (slowest_s if done else after_s) == cost_s:
                yield False, at_end

    def _counts_behind(self, source: int, count: int, stage: StageKey) -> list[int]:
        """The counts at `source` from which that stage leads to this count, and that its memory admits."""
        room, fewest = self._tables.room[self._tables.index(stage)], self._tables.fewest[source]
        behind = {count, count - 1} if count == self._most else {count - 1}
        return [at_end for at_end in sorted(behind) if at_end >= 0 and max(at_end, fewest) < room]

    def _costs_s(self, stage: StageKey) -> tuple[float, float, float]:
        """What a stage costs before the slowest one, as the slowest one, and after it."""
        time_s, weights = self._tables.times_s[self._tables.index(stage)], self._tables.weights
        return (
            cost_before(time_s, self._low_s, weights),
            cost_slowest(time_s, self._low_s, weights),
            cost_after(time_s, self._low_s, self._high_s, weights),
        )

    @cached_property
    def _after_s(self) -> Any:
        return self._tables.form.float_space(self._tables.places * self._counts)

    @cached_property
    def _done_s(self) -> Any:
        return self._tables.form.float_space(self._tables.places * self._counts)

    @cached_property
    def _largest(self) -> Any:
        return self._tables.form.int_space(self._tables.places)

    def _run(self, first: int, stop: int) -> None:
        """Work out the least costs for the times with indices first to stop - 1."""
        tables = self._tables
        self._low_s, self._high_s = float(tables.taus[first]), float(tables.taus[stop - 1])
        question = (
            *(tables.degree_list, tables.times_s, tables.room, tables.fewest),
            *(tables.layers, tables.gpus, tables.nodes, self._smallest, tables.fill),
            *(self._low_s, self._high_s, tables.weights),
        )
        if self._counting:
            by_count = tables.form.kernel(least_costs_by_count)
            by_count(*question, self._most, self._largest, self._after_s, self._done_s)
        else:
            tables.form.kernel(least_costs)(*question, self._after_s, self._done_s)
