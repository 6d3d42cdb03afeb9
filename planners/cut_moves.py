"""The local search for even cuts (even_cut.py), as kernels: the best of all small moves of boundaries, again and again.

Cuts are compared by the busiest worker, the sum of squares of workers, the largest chunk and the sum of squares of
chunks, in this order, each rounded so that the order in which floats are added decides nothing.
"""

from math import floor

from ..schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel

REACH = 3  # layers that a boundary moves at once
MOST_PAIRED = 40  # boundaries of which two are moved together
WORTHS = 4  # numbers by which cuts are compared
FINEST = 1e12  # sums are compared as multiples of all work over this


@kernel
def improves(
    sums: Floats, column_of: Ints, ends: Ints, chunks: MutableFloats, workers: MutableFloats, best: MutableFloats
) -> bool:
    """Whether a cut is better than the best one so far; if it is, `best` is what it is worth.

    Args:
        sums: of the first layers, from 0 to all, as each column takes them; columns x (layers + 1).
        column_of: of each virtual stage.
        ends: of the stages, from 0 to all layers.
        chunks, workers: space for a number each.
        best: what the best cut is worth.
    """
    width = ends[len(column_of)] + 1
    for column in range(len(workers)):
        workers[column] = 0.0
    for stage in range(len(column_of)):
        start = column_of[stage] * width
        chunks[stage] = sums[start + ends[stage + 1]] - sums[start + ends[stage]]
        workers[column_of[stage]] += chunks[stage]
    busiest = 0.0
    for worker in workers:
        busiest = max(busiest, worker)
    busiest = floor(busiest * FINEST + 0.5)
    if busiest > best[0]:
        return False
    squares = 0.0
    for worker in workers:
        squares += worker * worker
    squares = floor(squares * FINEST + 0.5)
    if busiest == best[0] and squares > best[1]:
        return False
    largest, chunk_squares = 0.0, 0.0
    for chunk in chunks:
        largest = max(largest, chunk)
        chunk_squares += chunk * chunk
    largest, chunk_squares = floor(largest * FINEST + 0.5), floor(chunk_squares * FINEST + 0.5)
    is_smaller = largest < best[2] or (largest == best[2] and chunk_squares < best[3])
    if busiest == best[0] and squares == best[1] and not is_smaller:
        return False
    best[0], best[1], best[2], best[3] = busiest, squares, largest, chunk_squares
    return True


@kernel
def make(ends: MutableInts, first: int, last: int, by: int, to: int) -> None:
    """Move two boundaries by so many layers each; with `to` 0 all from the first to the last, by as many."""
    if to != 0:
        ends[first] += by
        ends[last] += to
    else:
        for boundary in range(first, last + 1):
            ends[boundary] += by


@kernel
def attempt(
    sums: Floats,
    column_of: Ints,
    ends: MutableInts,
    spaces: tuple[MutableFloats, MutableFloats, MutableFloats],
    move: MutableInts,
    tried: tuple[int, int, int, int],
) -> None:
    """Look at a move (arguments of `make`), if it leaves a layer at least in each chunk; the best one is in `move`."""
    first, last, by, to = tried
    make(ends, first, last, by, to)
    before, behind = ends[first] > ends[first - 1], ends[last] < ends[last + 1]
    apart = ends[first] < ends[first + 1] and ends[last] > ends[last - 1]
    if before and behind and apart and improves(sums, column_of, ends, spaces[0], spaces[1], spaces[2]):
        move[0], move[1], move[2], move[3] = first, last, by, to
    make(ends, first, last, -by, -to)


@kernel
def descend(
    sums: Floats,
    column_of: Ints,
    ends: MutableInts,
    spaces: tuple[MutableFloats, MutableFloats, MutableFloats],
    move: MutableInts,
) -> None:
    """Make the best of all small moves until none makes the cut better.

    Args:
        sums, column_of, ends: as for `improves`.
        spaces: its chunks, workers, and best.
        move: space for what `make` takes.
    """
    stages = len(column_of)
    spaces[2][0] = float("inf")
    improves(sums, column_of, ends, spaces[0], spaces[1], spaces[2])
    while True:
        move[2] = 0
        for one in range(1, stages):
            for by in range(-REACH, REACH + 1):
                attempt(sums, column_of, ends, spaces, move, (one, one, by, 0))
        for one in range(1, stages if stages <= MOST_PAIRED + 1 else 1):
            for other in range(one + 1, stages):
                for by in range(-1, 2, 2):
                    attempt(sums, column_of, ends, spaces, move, (one, other, by, 0))
                for by in range(-1, 2, 2):
                    for to in range(-1, 2, 2):
                        attempt(sums, column_of, ends, spaces, move, (one, other, by, to))
        if move[2] == 0:
            return
        make(ends, move[0], move[1], move[2], move[3])
