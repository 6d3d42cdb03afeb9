"""The operations of what is left of an iteration as columns, and what their messages are: for checking many at once.

Operations that work on the same micro-batch in the same layers, for the same end, are a **piece** of work. A message is
a number, its **key**: its kind, its boundary and its micro-batch; who has it is a number as well, worker x keys + key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from .check import FORWARD, WEIGHT, TimedColumns, durations_of
from .orders import KINDS, NONE, SUFFIX, Operation, parse_columns
from .plan import Layers, Plan, Stage, Worker
from .resumption import Rest, RestOperation, Standing, print_rest_operation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

ACTIVATION, GRADIENT = range(2)  # kinds of messages
MESSAGE_KINDS = ("activation", "gradient")
NOBODY = -1
_SUFFIX = re.compile(rf"{SUFFIX}(?= |$)")


@dataclass(frozen=True)
class RestSeats:
    """The virtual stages of the live workers of a plan, by worker, ascending: one of each where it has no placement.

    Attributes:
        stages: which they are.
        owner: the number of the live worker that holds each; array of seats.
        number: which virtual stage each is; array of seats.
        layers: [first, stop) of each; array of seats x 2.
        workers: how many live workers there are.
    """

    stages: tuple[Stage, ...]
    owner: Ints
    number: Ints
    layers: Ints
    workers: int

    @classmethod
    def of(cls, plan: Plan) -> RestSeats:
        """Those of a plan."""
        live = plan.live_workers()
        rows = [(n, stage) for n, worker in enumerate(live) for stage in plan.seats_of(worker)]
        owner, number = np.array(rows, dtype=np.int64).reshape(-1, 2).T
        stages = tuple(stage for worker in live for stage in plan.stages_of(worker))
        layers = np.array([stage.layers for stage in stages], dtype=np.int64).reshape(-1, 2)
        return cls(stages, owner, number, layers, len(live))

    def places(self, worker: Ints, stage: Ints) -> Ints:
        """The places of stages of live workers, which hold them; arrays of one length."""
        if len(self.owner) == self.workers:  # each holds one
            return worker
        depth = int(self.number.max()) + 1
        found: Ints = np.searchsorted(self.owner * depth + self.number, worker * depth + stage)
        return found

    @cached_property
    def known(self) -> frozenset[tuple[int, Layers]]:
        """All of them, each by the number of its live worker and its layers."""
        return frozenset(zip(self.owner.tolist(), (stage.layers for stage in self.stages), strict=True))


@dataclass(frozen=True)
class RestColumns(TimedColumns):
    """A rest, with the operations of all its workers as columns.

    Attributes:
        plan: the one to follow.
        rest: what is left before it; its workers are those that live in the plan.
        counts: operations of each live worker, which stand together; array of live workers.
        kind: each operation's place in `KINDS`; array of n, as are the next.
        pipeline, number: the micro-batch that each works on: its pipeline, and its number there.
        stage: the virtual stage that each is of.
        start, stop: [start, stop) of the layers that it computes.
        accumulates: whether its gradients go into the sums.
    """

    plan: Plan
    rest: Rest
    counts: Ints
    kind: Ints
    pipeline: Ints
    number: Ints
    stage: Ints
    start: Ints
    stop: Ints
    accumulates: Flags

    def __len__(self) -> int:
        return len(self.kind)

    # The plan.

    @cached_property
    def live(self) -> tuple[Worker, ...]:
        """The live workers."""
        return self.plan.live_workers()

    @cached_property
    def number_at(self) -> dict[str, int]:
        """The number of each live worker, by its place `k/i`."""
        return {worker.name: number for number, worker in enumerate(self.live)}

    @cached_property
    def seats(self) -> RestSeats:
        """What the live workers hold."""
        return RestSeats.of(self.plan)

    @cached_property
    def seat(self) -> Ints:
        """Each operation's place among the seats; array of n."""
        return self.seats.places(self.worker, self.stage)

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """Those of the live workers, in their order."""
        return tuple(map(self.rest.standing_of, range(len(self.rest.workers))))

    @cached_property
    def layers(self) -> int:
        """How many the model has."""
        return self.plan.total_layers()

    @cached_property
    def offsets(self) -> Ints:
        """The global number of each pipeline's micro-batch 0, and of one behind the last."""
        return np.array(self.plan.microbatch_offsets, dtype=np.int64)

    @cached_property
    def microbatches(self) -> int:
        """How many the iteration has."""
        return self.plan.total_microbatches()

    # The operations.

    @cached_property
    def microbatch(self) -> Ints:
        """The global number of each operation's micro-batch; array of n."""
        found: Ints = self.offsets[self.pipeline] + self.number
        return found

    @cached_property
    def share(self) -> Floats:
        """What part of its stage's layers each operation computes; array of n."""
        found: Floats = (self.stop - self.start) / (self.seats.layers[:, 1] - self.seats.layers[:, 0])[self.seat]
        return found

    @cached_property
    def duration_s(self) -> Floats:
        """What each operation takes in s; array of n."""
        found: Floats = durations_of(self.plan, self.live)[self.seat, self.kind] * self.share
        return found

    def operation(self, row: int) -> RestOperation:
        """The operation in a row."""
        worker = self.live[self.worker[row]]
        stage = int(self.stage[row]) if len(self.plan.seats_of(worker)) > 1 else None
        own = Operation(KINDS[self.kind[row]], int(self.pipeline[row]), int(self.number[row]), stage)
        return RestOperation(own, (int(self.start[row]), int(self.stop[row])), bool(self.accumulates[row]))

    def name(self, row: int) -> str:
        """An operation in words, for messages."""
        first, stop = self.seats.layers[self.seat[row]].tolist()
        token = print_rest_operation(self.operation(row), NOBODY, (first, stop))
        return f"{token} on worker {self.live[self.worker[row]].name} (operation {self.place(row)})"

    # Pieces of work.

    @cached_property
    def piece(self) -> Ints:
        """The piece of work, at its worker, that each operation is of, which tells stages apart; array of n."""
        return self.pieces(self.worker, self.microbatch, self.start, self.stop, self.accumulates)

    def pieces(self, worker: Ints, microbatch: Ints, start: Ints, stop: Ints, accumulates: Flags | Ints) -> Ints:
        """Numbers for pieces of work; arrays of one length, as the columns are."""
        edge = self.layers + 1
        found: Ints = (((worker * self.microbatches + microbatch) * edge + start) * edge + stop) * 2 + accumulates
        return found

    # Messages.

    @property
    def keys(self) -> int:
        """How many messages there can be."""
        return 2 * (self.layers + 1) * self.microbatches

    def key(self, kind: Ints | int, boundary: Ints, microbatch: Ints) -> Ints:
        """Numbers for messages; arrays of one length."""
        found: Ints = (kind * (self.layers + 1) + boundary) * self.microbatches + microbatch
        return found

    @cached_property
    def takes(self) -> Ints:
        """The message that each operation needs, or NONE; array of n."""
        forward, weight = self.kind == FORWARD, self.kind == WEIGHT
        boundary = np.where(forward, self.start, self.stop)
        at_an_end = boundary == np.where(forward, 0, self.layers)
        key = self.key(np.where(forward, ACTIVATION, GRADIENT), boundary, self.microbatch)
        return np.where(weight | at_an_end, NONE, key)

    @cached_property
    def makes(self) -> Ints:
        """The message that comes of each operation, or NONE; array of n."""
        forward = self.kind == FORWARD
        boundary = np.where(forward, self.stop, self.start)
        key = self.key(np.where(forward, ACTIVATION, GRADIENT), boundary, self.microbatch)
        return np.where(self.kind == WEIGHT, NONE, key)

    @cached_property
    def kept(self) -> Ints:
        """Which live worker has kept which message, ascending."""
        own = [(number, one) for number, standing in enumerate(self.standings) for one in standing.messages]
        counts = np.array([len(one.microbatches) for _, one in own], dtype=np.int64)
        heads = [(number, MESSAGE_KINDS.index(one.kind), one.boundary) for number, one in own]
        worker, kind, boundary = np.array(heads, dtype=np.int64).reshape(-1, 3).T
        microbatch = np.fromiter(chain.from_iterable(one.microbatches for _, one in own), np.int64, int(counts.sum()))
        key = self.key(np.repeat(kind, counts), np.repeat(boundary, counts), microbatch)
        return np.sort(np.repeat(worker, counts) * self.keys + key)

    def has(self, worker: Ints, key: Ints) -> Flags:
        """Whether each of some live workers has kept a message."""
        return is_among(worker * self.keys + key, self.kept)

    def delay_s(self, key: Ints, source: Ints, target: Ints) -> Floats:
        """What messages take between live workers in s: by the link behind the stage that holds the layer before the
        boundary, of the pipeline of both, else of the micro-batch's template; arrays of one length."""
        home = np.array([worker.pipeline for worker in self.live], dtype=np.int64)
        boundary, microbatch = key // self.microbatches % (self.layers + 1), key % self.microbatches
        origin = np.searchsorted(self.offsets, microbatch, side="right") - 1
        inside_s, between_s = self._link_delays
        found = np.where(home[source] == home[target], inside_s[home[source], boundary], between_s[origin, boundary])
        return np.where(source == target, 0.0, found)

    @cached_property
    def _link_delays(self) -> tuple[Floats, Floats]:
        """Delays at each boundary inside each pipeline, and to others; arrays of pipelines x boundaries, in s."""
        inside_s, between_s = (np.zeros((len(self.plan.pipelines), self.layers + 1)) for _ in range(2))
        for k in range(len(self.plan.pipelines)):
            template = self.plan.template_of(k)
            if len(template.stages) == 1:
                continue
            stops = [stage.layers[1] for stage in template.stages]
            link = np.searchsorted(stops, np.arange(self.layers + 1)).clip(max=len(stops) - 2)
            inside_s[k] = np.array([one.delay_s for one in self.plan.links_of(k)])[link]
            between_s[k] = np.array([one.delay_s for one in template.links])[link]
        return inside_s, between_s


def is_among(values: Ints, known: Ints) -> Flags:
    """Whether each value is one of those that are known, which ascend."""
    if not len(known):
        return np.zeros(len(values), dtype=bool)
    found: Flags = known[np.searchsorted(known, values).clip(max=len(known) - 1)] == values
    return found


def read_rest(plan: Plan, rest: Rest) -> RestColumns:
    """The operations of a rest whose workers are those that live in a plan.

    Raises:
        InvalidInputError: an order has something else than operations in it.
    """
    live, seats = plan.live_workers(), RestSeats.of(plan)
    texts = [one.order for one in rest.workers]
    plain = [_SUFFIX.sub("", text) if ":" in text or "~" in text else text for text in texts]
    numbers = list(map(plan.seats_of, live))
    counts, kind, pipeline, number, stage, _ = parse_columns(plain, [worker.pipeline for worker in live], numbers)
    held = seats.layers[seats.places(np.repeat(np.arange(len(live)), counts), stage)]
    start, stop = held[:, 0].copy(), held[:, 1].copy()
    accumulates = np.ones(len(kind), dtype=bool)
    for text, row in zip(texts, (np.cumsum(counts) - counts).tolist(), strict=True):
        for place, layers, again in _suffixes(text):
            start[row + place], stop[row + place] = layers or (start[row + place], stop[row + place])
            accumulates[row + place] = not again
    return RestColumns(plan, rest, counts, kind, pipeline, number, stage, start, stop, accumulates)


def _suffixes(text: str) -> list[tuple[int, Layers | None, bool]]:
    """The operations of an order with something behind the token of a plan: place, layers, and whether it has `~`."""
    if ":" not in text and "~" not in text:
        return []
    found = []
    for place, token in enumerate(text.split(" ")):
        match = _SUFFIX.search(token)
        if match is not None and match[0]:
            layers = None if match[1] is None else (int(match[1]), int(match[2]))
            found.append((place, layers, match[3] is not None))
    return found
