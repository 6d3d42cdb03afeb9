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
class RestColumns(TimedColumns):
    """A rest, with the operations of all its workers as columns.

    Attributes:
        plan: the one to follow.
        rest: what is left before it; its workers are those that live in the plan.
        counts: operations of each live worker, which stand together; array of live workers.
        kind: each operation's place in `KINDS`; array of n, as are the next.
        pipeline, number: the micro-batch that each works on: its pipeline, and its number there.
        start, stop: [start, stop) of the layers that it computes.
        accumulates: whether its gradients go into the sums.
    """

    plan: Plan
    rest: Rest
    counts: Ints
    kind: Ints
    pipeline: Ints
    number: Ints
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
    def stages(self) -> tuple[Stage, ...]:
        """What each live worker holds."""
        return tuple(map(self.plan.stage_of, self.live))

    @cached_property
    def held(self) -> Ints:
        """[first, stop) of the layers that each live worker holds; array of live workers x 2."""
        return np.array([stage.layers for stage in self.stages], dtype=np.int64).reshape(-1, 2)

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
        """What part of its worker's layers each operation computes; array of n."""
        found: Floats = (self.stop - self.start) / (self.held[:, 1] - self.held[:, 0])[self.worker]
        return found

    @cached_property
    def duration_s(self) -> Floats:
        """What each operation takes in s; array of n."""
        found: Floats = durations_of(self.plan, self.live)[self.worker, self.kind] * self.share
        return found

    def operation(self, row: int) -> RestOperation:
        """The operation in a row."""
        own = Operation(KINDS[self.kind[row]], int(self.pipeline[row]), int(self.number[row]))
        return RestOperation(own, (int(self.start[row]), int(self.stop[row])), bool(self.accumulates[row]))

    def name(self, row: int) -> str:
        """An operation in words, for messages."""
        worker = int(self.worker[row])
        token = print_rest_operation(self.operation(row), NOBODY, self.stages[worker].layers)
        return f"{token} on worker {self.live[worker].name} (operation {self.place(row)})"

    # Pieces of work.

    @cached_property
    def piece(self) -> Ints:
        """The piece of work, at its worker, that each operation is of; array of n."""
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
    live = plan.live_workers()
    texts = [one.order for one in rest.workers]
    plain = [_SUFFIX.sub("", text) if ":" in text or "~" in text else text for text in texts]
    seats = list(map(plan.seats_of, live))
    counts, kind, pipeline, number, _ = parse_columns(plain, [worker.pipeline for worker in live], seats)
    held = np.array([plan.stage_of(worker).layers for worker in live], dtype=np.int64).reshape(-1, 2)
    start, stop = np.repeat(held[:, 0], counts), np.repeat(held[:, 1], counts)
    accumulates = np.ones(len(kind), dtype=bool)
    for text, row in zip(texts, (np.cumsum(counts) - counts).tolist(), strict=True):
        for place, layers, again in _suffixes(text):
            start[row + place], stop[row + place] = layers or (start[row + place], stop[row + place])
            accumulates[row + place] = not again
    return RestColumns(plan, rest, counts, kind, pipeline, number, start, stop, accumulates)


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
