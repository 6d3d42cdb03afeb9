"""A job's operations, put in order: the same operation of all steps and data-parallel peers side by side."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ....schemas.errors import InvalidInputError
from . import table
from .table import KNOWN, Table, Times, Whole

# A table with more empty places than this has steps that are not alike at all.
MOST_EMPTY = 50


@dataclass(frozen=True, slots=True)
class StageOperation:
    """One operation of a stage in every step.

    Attributes:
        stage: the stage.
        kind: what it does, one of `kinds.KNOWN`.
        number: the how-manieth of its kind in the step, from 0.
        chunk: the part of the model among those of its stage; -1: of none.
        model_chunk: the part of the model among all; -1: of none.
        microbatch: -1: of none.
    """

    stage: int
    kind: str
    number: int
    chunk: int
    model_chunk: int
    microbatch: int


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """What was measured of a job.

    Attributes:
        operations: those of one step, in the order of stage, kind and number.
        ranks: names of the workers, by stage and peer.
        start_s: since the beginning of the step, by operation, step and peer.
        duration_s: the same, waiting included.
        left_out: how many steps had other operations than most.
    """

    operations: tuple[StageOperation, ...]
    ranks: tuple[tuple[str, ...], ...]
    start_s: Times
    duration_s: Times
    left_out: int

    @property
    def steps(self) -> int:
        """How many steps were measured."""
        return int(self.start_s.shape[1])

    @property
    def peers(self) -> int:
        """How many data-parallel peers a stage has."""
        return int(self.start_s.shape[2])

    @property
    def end_s(self) -> Times:
        """When each operation was over."""
        return self.start_s + self.duration_s


def arrange(table: Table, where: str) -> Operations:
    """Put the rows of a table, which may have any order, in order.

    Args:
        table: the rows.
        where: the file, for errors.

    Returns:
        The operations of all steps that have those that most steps have.

    Raises:
        InvalidInputError: an operation is there twice, workers differ in what they do, or a rank has two places.
    """
    # A number for each row that says which operation of a step it is.
    _, stage = np.unique(table.whole["stage"], return_inverse=True)
    numbers, number = np.unique(table.whole["seq_id"], return_inverse=True)
    code: Whole = (stage * len(KNOWN) + table.kind) * len(numbers) + number
    codes, first, operation = np.unique(code, return_index=True, return_inverse=True)
    steps, step = np.unique(table.whole["step"], return_inverse=True)
    peers, peer = np.unique(table.whole["dp_rank"], return_inverse=True)
    shape = (len(codes), len(steps), len(peers))
    if np.prod(shape, dtype=float) > MOST_EMPTY * (len(step) + 1000):
        raise _unlike(where)
    cell = (operation * shape[1] + step) * shape[2] + peer
    count = np.bincount(cell, minlength=shape[0] * shape[1] * shape[2]).reshape(shape)
    if count.max() > 1:
        row = int(np.flatnonzero(count.reshape(-1)[cell] > 1)[-1])
        twice, whole = _operation(table, row), table.whole
        raise InvalidInputError(
            f"rank {whole['rank'][row]} has {twice.kind} {twice.number} twice in step {whole['step'][row]}",
            where=f"{where}, row {row + 1}",
            fix="number the operations of a kind by seq_id, and give each once",
        )
    # The operations that most steps have on all peers, and the steps that have these and no others.
    is_on_all = np.asarray((count > 0).all(axis=2))
    is_used: NDArray[np.bool_] = np.asarray(is_on_all.mean(axis=1) > 0.5)
    is_kept: NDArray[np.bool_] = np.asarray(is_on_all[is_used].all(axis=0)) & ~(count > 0)[~is_used].any(axis=(0, 2))
    if not is_used.any() or not is_kept.any():
        raise _unlike(where)

    def laid_out(column: Times) -> Times:
        full = np.zeros(count.size)
        full[cell] = column
        return full.reshape(shape)[is_used][:, is_kept]

    # Seconds since 1970 would lose digits with each sum.
    begun_s = np.full(len(steps), np.inf)
    np.minimum.at(begun_s, step, table.start_s)
    operations = tuple(_operation(table, int(row)) for row in first[is_used])
    return Operations(
        operations,
        _ranks(table, len(peers), peer, where),
        laid_out(table.start_s - begun_s[step]),
        laid_out(table.duration_s),
        int((~is_kept).sum()),
    )


def _operation(table: Table, row: int) -> StageOperation:
    chunk, model_chunk, microbatch = (int(table.whole[name][row]) for name in ("mc", "gmc", "mb_id"))
    stage, number = (int(table.whole[name][row]) for name in ("stage", "seq_id"))
    return StageOperation(stage, KNOWN[table.kind[row]], number, chunk, model_chunk, microbatch)


def _ranks(table: Table, peers: int, peer: Whole, where: str) -> tuple[tuple[str, ...], ...]:
    """The rank of each stage and peer."""
    stages = int(table.whole["stage"].max()) + 1
    place = table.whole["stage"] * peers + peer
    pairs = np.unique(np.stack([place, table.whole["rank"]]), axis=1)
    if pairs.shape[1] != stages * peers or len(np.unique(pairs[1])) != stages * peers:
        raise InvalidInputError(
            f"{stages} stages of {peers} peers have {len(np.unique(pairs[1]))} ranks in {pairs.shape[1]} places",
            where=where,
            fix="number stages from 0, and give each stage and dp_rank one rank of its own",
        )
    names = [str(rank) for rank in pairs[1]]
    return tuple(tuple(names[stage * peers : (stage + 1) * peers]) for stage in range(stages))


def _unlike(where: str) -> InvalidInputError:
    return InvalidInputError(
        "there is no step in which all peers of each stage do the same operations",
        where=where,
        fix="give whole steps of all ranks; steps with evaluation or a checkpoint may be among them",
    )


# Which operation waits for which: the dependencies of a step, as the trace of a Megatron-like job implies them.
#
# After "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25), section 3.2: computation of
# a stage runs in the order in which it was seen; a message waits for what it carries, a micro-batch for its message;
# both ends of a message and all members of a collective start together. Messages of a kind follow one another. What
# happens after the last backward pass is a chain. Unlike the published code, messages are matched by micro-batch and
# chunk.


Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SimultaneousStart:
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

    events: tuple[SimultaneousStart, ...]
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
        graph.chain(graph.of(stage, *table.COMPUTE))
        for kind in table.MESSAGES:
            graph.chain(graph.of(stage, kind))
        _delay_first_backward(graph, stage)
        _fetch_parameters(graph, stage)
        _finish(graph, stage)
    _exchange(graph)
    for group in ([p for s in graph.stages for p in graph.of(s, kind)] for kind in (table.EMBEDDING, table.CLIP)):
        if group:
            graph.together.append(tuple(group))
    return Dependencies(_sorted(graph), tuple(tuple(sorted(set(before))) for before in graph.before))


def _delay_first_backward(graph: _Graph, stage: int) -> None:
    """The first backward messages are asked for once the last but one forward pass of the warm-up is done."""
    order = graph.of(stage, *table.COMPUTE)
    first = next((n for n, p in enumerate(order) if graph.operations[p].kind == table.BACKWARD), 0)
    if first >= 2:
        for kind in (table.BACKWARD_SEND, table.BACKWARD_RECV):
            for place in graph.of(stage, kind)[:1]:
                graph.before[place].append(order[first - 2])


def _fetch_parameters(graph: _Graph, stage: int) -> None:
    """The first forward pass of a chunk waits for the chunk's parameters; with overlap, gradients for its last."""
    graph.chain(graph.of(stage, table.PARAMETERS, table.GRADIENTS))
    for place in graph.of(stage, table.PARAMETERS):
        for first in _of_chunk(graph, stage, table.FORWARD, place)[:1]:
            graph.before[first].append(place)
    if _overlaps(graph):
        for place in graph.of(stage, table.GRADIENTS):
            graph.before[place].extend(_of_chunk(graph, stage, table.BACKWARD, place)[-1:])


def _of_chunk(graph: _Graph, stage: int, kind: str, place: int) -> list[int]:
    chunk = graph.operations[place].chunk
    return [p for p in graph.of(stage, kind) if graph.operations[p].chunk == chunk]


def _overlaps(graph: _Graph) -> bool:
    """Whether gradients are reduced while other chunks are still at work."""
    return any(graph.of(stage, table.SEPARATE_GRADIENTS) for stage in graph.stages)


def _finish(graph: _Graph, stage: int) -> None:
    """What a stage does after its last backward pass, one after the other."""
    reduce = graph.of(stage, table.GRADIENTS)
    last = [*graph.of(stage, *table.COMPUTE)[-1:], *graph.of(stage, table.COLLECTION)]
    head = [*last, *graph.of(stage, table.LAYERNORM), *graph.of(stage, table.EMBEDDING)]
    middle = graph.of(stage, table.SEPARATE_GRADIENTS) if _overlaps(graph) else reduce
    chain = [*head, *middle, *graph.of(stage, table.CLIP), *graph.of(stage, table.OPTIMIZER)]
    graph.chain(chain)
    if _overlaps(graph) and reduce:
        graph.before[chain[len(last)]].append(reduce[-1])


def _exchange(graph: _Graph) -> None:
    """Messages wait for what they carry, and micro-batches for their messages; both ends start together."""
    for compute, send, receive, step in (
        (table.FORWARD, table.FORWARD_SEND, table.FORWARD_RECV, 1),
        (table.BACKWARD, table.BACKWARD_SEND, table.BACKWARD_RECV, -1),
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
    last = max((o.model_chunk for o in graph.operations if o.kind in table.COMPUTE), default=0)
    ends = [p for p in everyone if 0 <= graph.operations[p].model_chunk + towards <= last]
    for owners in (ends, everyone):
        if len(owners) == len(messages):
            return list(zip(messages, owners, strict=True))
    raise InvalidInputError(
        f"stage {stage} has {len(messages)} {kind} for {len(ends)} {compute} with a peer",
        where=graph.where,
        fix="give every message of the recorded steps, with mb_id and gmc of every forward- and backward-compute",
    )


def _sorted(graph: _Graph) -> tuple[SimultaneousStart, ...]:
    """All events, each after what it waits for."""
    grouped = {place for members in graph.together for place in members}
    alone = [(place,) for place in range(len(graph.operations)) if place not in grouped]
    groups = [*graph.together, *alone]
    event_of = {place: number for number, members in enumerate(groups) for place in members}
    needs = [{event_of[b] for p in members for b in graph.before[p]} - {n} for n, members in enumerate(groups)]
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
            where=graph.where,
            fix="check seq_id, mb_id, gmc and start_ts: messages must start in the order of their micro-batches",
        )
    return tuple(SimultaneousStart(groups[n], graph.operations[groups[n][0]].kind in table.AMONG_PEERS) for n in order)
