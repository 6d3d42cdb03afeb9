"""A job's operations, put in order: the same operation of all steps and data-parallel peers side by side."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....schemas.errors import InvalidInputError
from .kinds import KNOWN
from .table import Table, Times, Whole

# A table with more empty places than this has steps that are not alike at all.
MOST_EMPTY = 50


@dataclass(frozen=True, slots=True)
class Operation:
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

    operations: tuple[Operation, ...]
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
    codes, first, operation = np.unique(_codes(table), return_index=True, return_inverse=True)
    steps, step = np.unique(table.whole["step"], return_inverse=True)
    peers, peer = np.unique(table.whole["dp_rank"], return_inverse=True)
    shape = (len(codes), len(steps), len(peers))
    if np.prod(shape, dtype=float) > MOST_EMPTY * (len(step) + 1000):
        raise _unlike(where)
    cell = (operation * shape[1] + step) * shape[2] + peer
    count = np.bincount(cell, minlength=shape[0] * shape[1] * shape[2]).reshape(shape)
    _check_once(count, table, cell, where)
    is_used, is_kept = _common(count > 0, where)

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


def _codes(table: Table) -> Whole:
    """A number for each row that says which operation of a step it is."""
    _, stage = np.unique(table.whole["stage"], return_inverse=True)
    numbers, number = np.unique(table.whole["seq_id"], return_inverse=True)
    codes: Whole = (stage * len(KNOWN) + table.kind) * len(numbers) + number
    return codes


def _operation(table: Table, row: int) -> Operation:
    chunk, model_chunk, microbatch = (int(table.whole[name][row]) for name in ("mc", "gmc", "mb_id"))
    stage, number = (int(table.whole[name][row]) for name in ("stage", "seq_id"))
    return Operation(stage, KNOWN[table.kind[row]], number, chunk, model_chunk, microbatch)


def _check_once(count: NDArray[Any], table: Table, cell: Whole, where: str) -> None:
    if count.max() > 1:
        row = int(np.flatnonzero(count.reshape(-1)[cell] > 1)[-1])
        operation, whole = _operation(table, row), table.whole
        raise InvalidInputError(
            f"rank {whole['rank'][row]} has {operation.kind} {operation.number} twice in step {whole['step'][row]}",
            where=f"{where}, row {row + 1}",
            fix="number the operations of a kind by seq_id, and give each once",
        )


def _common(is_there: NDArray[np.bool_], where: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The operations that most steps have on all peers, and the steps that have these and no others."""
    on_all = np.asarray(is_there.all(axis=2))
    is_used = np.asarray(on_all.mean(axis=1) > 0.5)
    is_kept = np.asarray(on_all[is_used].all(axis=0)) & ~is_there[~is_used].any(axis=(0, 2))
    if not is_used.any() or not is_kept.any():
        raise _unlike(where)
    return is_used, is_kept


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
