"""The field's own orders for several virtual stages a worker, as they were published.

ZB-V (P. Qi et al., "Zero bubble pipeline parallelism", 2024, section 6), V-Half and V-Min ("Pipeline parallelism with
controllable memory", 2024), interleaved 1F1B (D. Narayanan et al., "Efficient large-scale language model training on
GPU clusters", 2021, section 2.2), interleaved zero bubble (torch's, after ZB1P of the first) and DualPipeV (DeepSeek's,
without what its overlapped pairs gain). They know no costs: all assume that F, I and W take one unit each, at every
virtual stage. So they are what a search is measured against, and candidates of it.

S is the number of columns, C that of virtual stages on each, M that of micro-batches. Activations are counted in those
of a column with all its virtual stages, of 1/C each, held until W: 1F1B holds S.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from ..scheduling.problem import BACKWARD, FORWARD, KINDS, WEIGHT

if TYPE_CHECKING:
    from .problem import Ints, PlacedProblem, SeatOrders


class SeatOperation(NamedTuple):
    """An operation of the one pipeline that a published order is about."""

    kind: int
    stage: int
    microbatch: int


ColumnOrders = tuple[tuple[SeatOperation, ...], ...]  # of each column


@dataclass(frozen=True)
class PublishedForm:
    """A published order.

    Attributes:
        name: its own name.
        placement: the one that it is for; V has two virtual stages a column here.
        split: whether it has I and W, or B.
        fewest: the least number of micro-batches that it is published for, by S.
        orders: of each column, by S, C and M; I stands for B where it is not split.
        activations: the most that a column holds, by S, C and M, where M is large enough to reach it.
    """

    name: str
    placement: Literal["loop", "v"]
    split: bool
    fewest: Callable[[int], int]
    orders: Callable[[int, int, int], ColumnOrders]
    activations: Callable[[int, int, int], Fraction]


def column_of_loop(columns: int, chunks: int) -> tuple[int, ...]:
    """The column of each virtual stage of a loop: round after round from the first column to the last."""
    return tuple(range(columns)) * chunks


def column_of_v(columns: int, chunks: int) -> tuple[int, ...]:
    """The column of each virtual stage of a V: to the last column and back, and on in zigzag."""
    there = tuple(range(columns))
    return tuple(chain.from_iterable(there[:: -1 if leg % 2 else 1] for leg in range(chunks)))


def published_orders(problem: PlacedProblem) -> Iterator[tuple[str, SeatOrders]]:
    """The published orders for a problem's placement, each with its name; memory limits may not admit them.

    Every pipeline runs its own micro-batches by the same order. Where a backward is not split, B stands at I's place.
    None where micro-batches are re-routed, or the placement is another one.
    """
    columns = len(problem.seats)
    chunks, rest = divmod(problem.stages, columns)
    own = problem.pipeline[problem.executor] == problem.origin[:, None]
    if rest or chunks < 2 or not own.all():
        return
    column = tuple(problem.column.tolist())
    counts = np.bincount(problem.origin).tolist()
    for form in PUBLISHED:
        fits = column_of_loop(columns, chunks) if form.placement == "loop" else column_of_v(columns, 2)
        if column == fits:
            yield form.name, _as_codes(problem, [_rows_of(form, columns, chunks, count) for count in counts])


@lru_cache(maxsize=64)  # a search of shapes asks for the same with other times and limits
def _rows_of(form: PublishedForm, columns: int, chunks: int, microbatches: int) -> tuple[Ints, ...]:
    """What each column runs, a row (kind, stage, micro-batch) an operation."""
    return tuple(np.array(row, np.int64).reshape(-1, 3) for row in form.orders(columns, chunks, microbatches))


def _as_codes(problem: PlacedProblem, orders: Sequence[Sequence[Ints]]) -> SeatOrders:
    """One pipeline's orders each, as operation codes of each worker."""
    job = np.zeros((len(orders), int(problem.microbatch.max(initial=0)) + 1), np.int64)
    job[problem.origin, problem.microbatch] = np.arange(len(problem.origin))
    found: list[list[int]] = []
    for pipeline, column in zip(problem.pipeline.tolist(), problem.worker_column.tolist(), strict=True):
        if pipeline >= len(orders):
            found.append([])
            continue
        kind, stage, microbatch = orders[pipeline][column].T
        number = job[pipeline, microbatch]
        runs = (kind != WEIGHT) | problem.split[number, stage]
        found.append(((number * problem.stages + stage) * KINDS + kind)[runs].tolist())
    return found


def numbered(sequence: Iterable[tuple[int, int]], microbatches: int) -> tuple[SeatOperation, ...]:
    """An order from its (kind, stage) in turn: each takes the next micro-batch of its kind; those beyond the last go.

    Published orders are written for a pipeline that fills; with fewer micro-batches operations are left out of them.
    """
    taken: dict[tuple[int, int], int] = {}
    row = []
    for kind, stage in sequence:
        number = taken.get((kind, stage), 0)
        taken[kind, stage] = number + 1
        if number < microbatches:
            row.append(SeatOperation(kind, stage, number))
    return tuple(row)


# ZB-V and DualPipeV: a number of times each pattern, by column.


def zb_v(columns: int, chunks: int, microbatches: int) -> ColumnOrders:
    """ZB-V: the period is 6M / C units for M of at least 2S; with fewer than 2S - 1 it is that of 2S - 1 with gaps."""

    def sequence(column: int) -> Iterator[tuple[int, int]]:
        """Kinds and virtual stages of a column, in order."""
        down, up = column, 2 * columns - 1 - column
        round_down, round_up = [(BACKWARD, down), (WEIGHT, down)], [(FORWARD, up), (BACKWARD, up), (WEIGHT, up)]
        count = max(microbatches, 2 * columns - 1)
        yield from [(FORWARD, down)] * (2 * (columns - column) - 1)
        yield from [(FORWARD, up), (FORWARD, down)] * column
        yield from round_up * (columns - column)
        entering = count - 2 * columns + column + 1
        yield from [(FORWARD, down), *round_down, *round_up] * entering
        yield from [*round_down, *round_up] * (columns - 1 - column)
        yield from [(BACKWARD, down), (BACKWARD, up)] * column
        yield from round_down * (columns - column)
        yield from [(WEIGHT, up)] * column
        yield from [(WEIGHT, down)] * column

    return tuple(numbered(sequence(column), microbatches) for column in range(columns))


def dual_pipe_v(columns: int, chunks: int, microbatches: int) -> ColumnOrders:
    """DualPipeV with B as I and W one after the other, where its forwards and backwards do not overlap."""

    def sequence(column: int) -> Iterator[tuple[int, int]]:
        """Kinds and virtual stages of a column, in order."""
        down, up = column, 2 * columns - 1 - column
        whole_down, whole_up = [(BACKWARD, down), (WEIGHT, down)], [(BACKWARD, up), (WEIGHT, up)]
        ahead = columns - 1 - column
        yield from [(FORWARD, down)] * (2 * ahead)
        yield from [(FORWARD, down), (FORWARD, up)] * (column + 1)
        yield from [*whole_up, (FORWARD, up)] * ahead
        entering = max(microbatches, 2 * columns) - 2 * columns + column + 1
        yield from [(FORWARD, down), *whole_up, (FORWARD, up), *whole_down] * entering
        yield from [*whole_up, (FORWARD, up), *whole_down] * ahead
        # The second half of what is left puts W off until nothing else is to be done.
        deferred: list[tuple[int, int]] = []
        for turn in range(2 * (column + 1)):
            stage = (up, down)[turn % 2]
            yield BACKWARD, stage
            if turn <= column:
                yield WEIGHT, stage
            else:
                deferred.append((WEIGHT, stage))
        for _ in range(ahead):
            yield from deferred[:1]
            deferred = [*deferred[1:], (WEIGHT, down)]
            yield BACKWARD, down
        yield from deferred

    return tuple(numbered(sequence(column), microbatches) for column in range(columns))


# Interleaved 1F1B and interleaved zero bubble: groups of micro-batches pass one virtual stage after another.


def groups_of(columns: int, microbatches: int) -> list[int]:
    """How many micro-batches pass a loop together: S or more, as equal as can be; Megatron's where S divides M."""
    rounds = max(1, microbatches // columns)
    each, more = divmod(microbatches, rounds)
    return [each + 1] * more + [each] * (rounds - more)


def interleaved(columns: int, chunks: int, microbatches: int) -> ColumnOrders:
    """Interleaved 1F1B; where S does not divide M as torch has it, or with groups of two sizes where it has none."""
    groups = groups_of(columns, microbatches)

    def order(column: int) -> tuple[SeatOperation, ...]:
        forward, backward = _in_groups(columns, chunks, groups, column)
        ahead = min(len(forward), (chunks - 1) * groups[0] + 2 * (columns - 1 - column))
        pairs = zip(forward[ahead:], backward, strict=False)
        both = chain.from_iterable((f, b, _weight_of(b)) for f, b in pairs)
        rest = chain.from_iterable((b, _weight_of(b)) for b in backward[len(forward) - ahead :])
        return (*forward[:ahead], *both, *rest)

    return tuple(order(column) for column in range(columns))


def interleaved_zero_bubble(columns: int, chunks: int, microbatches: int) -> ColumnOrders:
    """Interleaved zero bubble: half as many F ahead, and each W as many turns late as the column has before it."""
    groups = groups_of(columns, microbatches)

    def order(column: int) -> Iterator[SeatOperation]:
        """The operations of a column, each W put off."""
        forward, backward = _in_groups(columns, chunks, groups, column)
        ahead = min(len(forward), (chunks - 1) * groups[0] + columns - 1 - column)
        yield from forward[:ahead]
        for turn, operation in enumerate(backward):
            yield from forward[ahead + turn : ahead + turn + 1]
            yield operation
            if turn >= column:
                yield _weight_of(backward[turn - column])
        yield from map(_weight_of, backward[max(0, len(backward) - column) :])

    return tuple(tuple(order(column)) for column in range(columns))


def _in_groups(
    columns: int, chunks: int, groups: Sequence[int], column: int
) -> tuple[list[SeatOperation], list[SeatOperation]]:
    """All F of a column and all I, a group of micro-batches after the other: first F of the first virtual stage, ..."""
    firsts = [0, *accumulate(groups)]
    blocks = [range(first, first + size) for first, size in zip(firsts, groups, strict=False)]
    stages = range(column, columns * chunks, columns)
    forward = [SeatOperation(FORWARD, stage, j) for block in blocks for stage in stages for j in block]
    backward = [SeatOperation(BACKWARD, stage, j) for block in blocks for stage in stages[::-1] for j in block]
    return forward, backward


def _weight_of(operation: SeatOperation) -> SeatOperation:
    return operation._replace(kind=WEIGHT)


# V-Half and V-Min: a building block, repeated every six units, whose lifetime is the memory; then squeezed.
#
# The block says when one micro-batch runs on each column. Repeated as it is, it is right in the middle and slow at both
# ends. There operations move up: until the first micro-batch is through, F may overtake what is not ready; once the
# last one has entered, anything may, W last. None may where the memory that the block itself needs would not do.

PERIOD = 6
Block = Callable[[int, int], tuple[int, int, int, int]]


def v_half_block(columns: int, column: int) -> tuple[int, int, int, int]:
    """V-Half's block: when F of the first and the second virtual stage start, and I of the second and the first."""
    shift = 0 if columns % 2 else 3
    back = 3 * columns + shift - 1
    return 2 * column, 3 * columns - 2 - column, back + 2 * column, back + 3 * columns - 1 - column


def v_min_block(columns: int, column: int) -> tuple[int, int, int, int]:
    """V-Min's block, as V-Half's."""
    shift = 0 if columns % 3 else 2
    back = 2 * columns + shift
    return column, 2 * columns - 1 - column, back + column, back + 2 * columns - 1 - column


def v_half(columns: int, chunks: int, microbatches: int) -> ColumnOrders:
    """V-Half: 6M + 3S - 7 half units for even S, at about half of 1F1B's memory."""
    return _Squeezing(columns, microbatches, v_half_block).orders()


def v_min(columns: int, chunks: int, microbatches: int) -> ColumnOrders:
    """V-Min: 6M + 4S - 5 half units unless S is a multiple of 3, at about a third of 1F1B's memory."""
    return _Squeezing(columns, microbatches, v_min_block).orders()


def block_activations(columns: int, block: Block) -> Fraction:
    """What a repeated block holds on the column with the most."""
    many = 4 * columns  # until the first micro-batch is through, and once more
    return Fraction(max(_most_held(_repeated(columns, many, block, column)) for column in range(columns)), 2)


def _repeated(columns: int, microbatches: int, block: Block, column: int) -> list[SeatOperation]:
    """A column's order if nothing moves: W stand in the gaps that the blocks leave, first come first served."""
    kinds = (FORWARD, FORWARD, BACKWARD, BACKWARD)
    stages = (column, 2 * columns - 1 - column, 2 * columns - 1 - column, column)
    start = {
        at + PERIOD * j: SeatOperation(kind, stage, j)
        for at, kind, stage in zip(block(columns, column), kinds, stages, strict=True)
        for j in range(microbatches)
    }
    row: list[SeatOperation] = []
    pending: list[SeatOperation] = []
    for time in range(max(start) + 1):
        if time in start:
            row.append(start[time])
            if start[time].kind == BACKWARD:
                pending.append(_weight_of(start[time]))
        elif pending:
            row.append(pending.pop(0))
    return row + pending


def _most_held(row: Sequence[SeatOperation]) -> int:
    """The most micro-batches that an order holds on its virtual stages together."""
    return max(accumulate((one.kind == FORWARD) - (one.kind == WEIGHT) for one in row))


class _Squeezing:
    """Runs the repeated block unit by unit, and lets operations move up at both ends."""

    def __init__(self, columns: int, microbatches: int, block: Block) -> None:
        self.last_stage, self.microbatches = 2 * columns - 1, microbatches
        self.rows = [_repeated(columns, microbatches, block, column) for column in range(columns)]
        self.most = max(map(_most_held, self.rows))
        self.held = [0] * columns
        self.done: set[SeatOperation] = set()

    def orders(self) -> ColumnOrders:
        """What each column runs, once all rows are played."""
        found: list[list[SeatOperation]] = [[] for _ in self.rows]
        through, entered = SeatOperation(BACKWARD, 0, 0), SeatOperation(FORWARD, 0, self.microbatches - 1)
        while any(self.rows):
            is_ending, is_beginning = entered in self.done, through not in self.done
            moving = (FORWARD, BACKWARD, WEIGHT) if is_ending else (FORWARD,) if is_beginning else ()
            chosen = [self._choice(column, moving) for column in range(len(self.rows))]
            for column, at in enumerate(chosen):
                if at is not None:
                    operation = self.rows[column].pop(at)
                    self.held[column] += (operation.kind == FORWARD) - (operation.kind == WEIGHT)
                    found[column].append(operation)
            self.done.update(row[-1] for row, at in zip(found, chosen, strict=True) if at is not None)
        return tuple(map(tuple, found))

    def _choice(self, column: int, moving: tuple[int, ...]) -> int | None:
        """Which place of its row a column runs next: the first that is ready and fits, W only where nothing else is."""
        later: int | None = None
        held = most = self.held[column]
        looked_at: set[tuple[int, int]] = set()
        for at, operation in enumerate(self.rows[column]):
            place = operation.kind, operation.stage
            if (at == 0 or operation.kind in moving) and place not in looked_at and self._is_ready(operation):
                if operation.kind == WEIGHT and moving:
                    later = at if later is None else later
                elif operation.kind != FORWARD or most < self.most:
                    return at
            # Of each kind and virtual stage only the first can be ready, and F finds no room once memory is full.
            looked_at.add(place)
            held += (operation.kind == FORWARD) - (operation.kind == WEIGHT)
            most = max(most, held)
            if not moving or len(looked_at) == 2 * KINDS or (moving == (FORWARD,) and most == self.most):
                break
        return later

    def _is_ready(self, operation: SeatOperation) -> bool:
        kind, stage, microbatch = operation
        if kind == FORWARD:
            return stage == 0 or SeatOperation(FORWARD, stage - 1, microbatch) in self.done
        if kind == BACKWARD and stage < self.last_stage:
            return SeatOperation(BACKWARD, stage + 1, microbatch) in self.done
        return SeatOperation(FORWARD if kind == BACKWARD else BACKWARD, stage, microbatch) in self.done


PUBLISHED = (
    PublishedForm("ZB-V", "v", True, lambda s: 2 * s - 1, zb_v, lambda s, c, m: Fraction(s)),
    PublishedForm("V-Half", "v", True, lambda s: 1, v_half, lambda s, c, m: block_activations(s, v_half_block)),
    PublishedForm("V-Min", "v", True, lambda s: 1, v_min, lambda s, c, m: block_activations(s, v_min_block)),
    PublishedForm("DualPipeV", "v", True, lambda s: 2 * s, dual_pipe_v, lambda s, c, m: s + Fraction(1, 2)),
    PublishedForm(
        "interleaved 1F1B",
        "loop",
        False,
        lambda s: s,
        interleaved,
        lambda s, c, m: Fraction((c - 1) * groups_of(s, m)[0] + 2 * s - 1, c),
    ),
    PublishedForm(
        "interleaved zero bubble",
        "loop",
        True,
        lambda s: s,
        interleaved_zero_bubble,
        lambda s, c, m: Fraction((c - 1) * groups_of(s, m)[0] + s, c),
    ),
)
