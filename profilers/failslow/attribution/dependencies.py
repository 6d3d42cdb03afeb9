"""Which operation waits for which: the dependencies of a step, as the trace of a Megatron-like job implies them.

After "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25), section 3.2: computation of a
stage runs in the order in which it was seen; a message waits for what it carries, a micro-batch for its message; both
ends of a message and all members of a collective start together. Messages of a kind follow one another. What happens
after the last backward pass is a chain. Unlike the published code, messages are matched by micro-batch and chunk.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ....schemas.errors import InvalidInputError
from . import kinds
from .operations import Operations

Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """Operations that start together, as both ends of a message do.

    Attributes:
        members: places in `Operations.operations`.
        among_peers: whether all data-parallel peers start together as well.
    """

    members: Members
    among_peers: bool


@dataclass(frozen=True, slots=True)
class Dependencies:
    """A step's dependencies.

    Attributes:
        events: in an order in which each comes after what it waits for.
        before: for each operation, those that must be over.
    """

    events: tuple[Event, ...]
    before: tuple[Members, ...]


class _Graph:
    """The dependencies as they are collected.

    Args:
        job: the operations.
        where: the file, for errors.
    """

    def __init__(self, job: Operations, where: str) -> None:
        self.where = where
        self.operations = job.operations
        self.before: list[list[int]] = [[] for _ in job.operations]
        self.together: list[Members] = []
        self._of: dict[tuple[int, str], list[int]] = defaultdict(list)
        # The order of a stage is that of the usual start; peers and steps run the same program.
        usual_s = np.median(job.start_s.reshape(len(job.operations), -1), axis=1)
        for place in sorted(range(len(job.operations)), key=lambda place: (usual_s[place], self._rank(place))):
            self._of[job.operations[place].stage, job.operations[place].kind].append(place)
        self.usual_s = usual_s
        self.stages = range(len(job.ranks))

    def _rank(self, place: int) -> tuple[int, str]:
        return self.operations[place].number, self.operations[place].kind

    def of(self, stage: int, *several: str) -> list[int]:
        """A stage's operations of some kinds, in the order in which they usually start."""
        found = [place for kind in several for place in self._of.get((stage, kind), ())]
        return sorted(found, key=lambda place: (self.usual_s[place], self._rank(place)))

    def chain(self, places: Iterable[int]) -> None:
        """Each waits for the one before."""
        for earlier, later in pairwise(places):
            self.before[later].append(earlier)


def dependencies_of(job: Operations, where: str) -> Dependencies:
    """Find out what each operation waits for.

    Args:
        job: the operations.
        where: the file, for errors.

    Raises:
        InvalidInputError: messages do not fit to the micro-batches, or operations wait for one another in a circle.
    """
    graph = _Graph(job, where)
    for stage in graph.stages:
        graph.chain(graph.of(stage, *kinds.COMPUTE))
        for kind in kinds.MESSAGES:
            graph.chain(graph.of(stage, kind))
        _delay_first_backward(graph, stage)
        _fetch_parameters(graph, stage)
        _finish(graph, stage)
    _exchange(graph)
    for group in ([p for s in graph.stages for p in graph.of(s, kind)] for kind in (kinds.EMBEDDING, kinds.CLIP)):
        if group:
            graph.together.append(tuple(group))
    return Dependencies(_sorted(graph), tuple(tuple(sorted(set(before))) for before in graph.before))


def _delay_first_backward(graph: _Graph, stage: int) -> None:
    """The first backward messages are asked for once the last but one forward pass of the warm-up is done."""
    order = graph.of(stage, *kinds.COMPUTE)
    first = next((n for n, p in enumerate(order) if graph.operations[p].kind == kinds.BACKWARD), 0)
    if first >= 2:
        for kind in (kinds.BACKWARD_SEND, kinds.BACKWARD_RECV):
            for place in graph.of(stage, kind)[:1]:
                graph.before[place].append(order[first - 2])


def _fetch_parameters(graph: _Graph, stage: int) -> None:
    """The first forward pass of a chunk waits for the chunk's parameters; with overlap, gradients for its last."""
    graph.chain(graph.of(stage, kinds.PARAMETERS, kinds.GRADIENTS))
    for place in graph.of(stage, kinds.PARAMETERS):
        for first in _of_chunk(graph, stage, kinds.FORWARD, place)[:1]:
            graph.before[first].append(place)
    if _overlaps(graph):
        for place in graph.of(stage, kinds.GRADIENTS):
            graph.before[place].extend(_of_chunk(graph, stage, kinds.BACKWARD, place)[-1:])


def _of_chunk(graph: _Graph, stage: int, kind: str, place: int) -> list[int]:
    chunk = graph.operations[place].chunk
    return [p for p in graph.of(stage, kind) if graph.operations[p].chunk == chunk]


def _overlaps(graph: _Graph) -> bool:
    """Whether gradients are reduced while other chunks are still at work."""
    return any(graph.of(stage, kinds.SEPARATE_GRADIENTS) for stage in graph.stages)


def _finish(graph: _Graph, stage: int) -> None:
    """What a stage does after its last backward pass, one after the other."""
    reduce = graph.of(stage, kinds.GRADIENTS)
    last = [*graph.of(stage, *kinds.COMPUTE)[-1:], *graph.of(stage, kinds.COLLECTION)]
    head = [*last, *graph.of(stage, kinds.LAYERNORM), *graph.of(stage, kinds.EMBEDDING)]
    middle = graph.of(stage, kinds.SEPARATE_GRADIENTS) if _overlaps(graph) else reduce
    chain = [*head, *middle, *graph.of(stage, kinds.CLIP), *graph.of(stage, kinds.OPTIMIZER)]
    graph.chain(chain)
    if _overlaps(graph) and reduce:
        graph.before[chain[len(last)]].append(reduce[-1])


def _exchange(graph: _Graph) -> None:
    """Messages wait for what they carry, and micro-batches for their messages; both ends start together."""
    for compute, send, receive, step in (
        (kinds.FORWARD, kinds.FORWARD_SEND, kinds.FORWARD_RECV, 1),
        (kinds.BACKWARD, kinds.BACKWARD_SEND, kinds.BACKWARD_RECV, -1),
    ):
        sent: dict[tuple[int, int], int] = {}
        for stage in graph.stages:
            for message, owner in _owners(graph, stage, send, compute, step):
                graph.before[message].append(owner)
                sent[_cargo(graph, owner)] = message
        for stage in graph.stages:
            order = graph.of(stage, compute)
            for message, owner in _owners(graph, stage, receive, compute, -step):
                graph.before[owner].append(message)
                at = order.index(owner)
                graph.before[message].extend(order[max(at - 1, 0) : at])
                chunk, microbatch = _cargo(graph, owner)
                if (chunk - step, microbatch) in sent:
                    graph.together.append((sent[chunk - step, microbatch], message))


def _cargo(graph: _Graph, place: int) -> tuple[int, int]:
    operation = graph.operations[place]
    return operation.model_chunk, operation.microbatch


def _owners(graph: _Graph, stage: int, kind: str, compute: str, towards: int) -> list[tuple[int, int]]:
    """Each message of a kind with the computation that it comes from, or is for.

    Args:
        graph: what is known.
        stage: whose messages.
        kind: their kind.
        compute: the kind of the computation.
        towards: where the other end is: 1 at the next chunk of the model, -1 at the one before.

    Raises:
        InvalidInputError: there are neither as many messages as computations with another end, nor as all of them, the
            ones without other end included (some recorders list these as well).
    """
    messages, everyone = graph.of(stage, kind), graph.of(stage, compute)
    last = max((o.model_chunk for o in graph.operations if o.kind in kinds.COMPUTE), default=0)
    ends = [p for p in everyone if 0 <= graph.operations[p].model_chunk + towards <= last]
    for owners in (ends, everyone):
        if len(owners) == len(messages):
            return list(zip(messages, owners, strict=True))
    raise InvalidInputError(
        f"stage {stage} has {len(messages)} {kind} for {len(ends)} {compute} with a peer",
        where=graph.where,
        fix="give every message of the recorded steps, with mb_id and gmc of every forward- and backward-compute",
    )


def _sorted(graph: _Graph) -> tuple[Event, ...]:
    """All events, each after what it waits for."""
    grouped = {place for members in graph.together for place in members}
    alone = [(place,) for place in range(len(graph.operations)) if place not in grouped]
    groups = [*graph.together, *alone]
    event_of = {place: number for number, members in enumerate(groups) for place in members}
    needs = [{event_of[b] for p in members for b in graph.before[p]} - {n} for n, members in enumerate(groups)]
    order = _topological(needs, graph.where)
    return tuple(Event(groups[n], graph.operations[groups[n][0]].kind in kinds.AMONG_PEERS) for n in order)


def _topological(needs: Sequence[set[int]], where: str) -> list[int]:
    followers: list[list[int]] = [[] for _ in needs]
    for number, before in enumerate(needs):
        for one in sorted(before):
            followers[one].append(number)
    missing = [len(before) for before in needs]
    order = [number for number, count in enumerate(missing) if not count]
    for number in order:
        for follower in followers[number]:
            missing[follower] -= 1
            if not missing[follower]:
                order.append(follower)
    if len(order) != len(needs):
        raise InvalidInputError(
            "operations wait for one another in a circle",
            where=where,
            fix="check seq_id, mb_id, gmc and start_ts: messages must start in the order of their micro-batches",
        )
    return order
