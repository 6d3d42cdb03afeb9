"""Which part of a tensor each rank of a tensor-parallel group holds, and who has what of it at another degree."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Span = tuple[int, int]  # indices [first, stop)
Seat = tuple[int, int]  # which of several groups, and which of its ranks

# A cut module stands under this name in what calls it on each rank: without it names are those of the whole layer.
CUT = "_cut"


@dataclass(frozen=True, slots=True)
class TensorCut:
    """How the ranks of a group divide a tensor along one of its dimensions.

    Attributes:
        dimension: along which.
        size: of the whole tensor there.
        parts: tensors of equal size that stand side by side there, each of which is divided, as queries, keys and
            values are in one matrix.
        most: ranks that it can be divided among, such as its key-value heads; of more ranks, a multiple of these, as
            many next to each other hold the same (Shazeer, 2019, "Fast Transformer Decoding", has one head for all).
            None: as many as there are.
    """

    dimension: int
    size: int
    parts: int = 1
    most: int | None = None

    def copies(self, degree: int) -> int:
        """How many ranks next to each other hold the same."""
        return 1 if self.most is None else max(1, degree // self.most)

    def width(self, degree: int) -> int:
        """Indices of each part that a rank holds; the last ranks hold fewer where the degree does not divide them."""
        return -(-self.size // self.parts // (degree // self.copies(degree)))

    def spans(self, degree: int, rank: int) -> tuple[Span, ...]:
        """The indices of the whole tensor that a rank of the group holds, one span of each part, in its own order."""
        length, width, place = self.size // self.parts, self.width(degree), rank // self.copies(degree)
        first, stop = min(place * width, length), min((place + 1) * width, length)
        return tuple((part * length + first, part * length + stop) for part in range(self.parts))


@dataclass(frozen=True, slots=True)
class SlicePiece:
    """What a rank takes of one source.

    Attributes:
        source: the rank that has it, of the source's group.
        taken: the indices [first, stop) along the cut's dimension of what the source holds.
        placed: those of what the taker holds.
    """

    source: int
    taken: Span
    placed: Span


def pieces_for(cut: TensorCut, degree: int, rank: int, source_degree: int) -> tuple[SlicePiece, ...]:
    """Where a rank finds all that it holds, in the order in which it holds it, among ranks of another degree.

    Both are intersections of slices of the whole, so a group may take from one of any degree, a worker that goes on
    with fewer ranks as one that has come anew.

    Args:
        cut: of the tensor.
        degree: of the group of the rank that takes.
        rank: that one.
        source_degree: of the group that is taken from.
    """
    held: dict[Span, list[tuple[int, int]]] = {}  # who has each span of the whole, and where among what it holds
    for source in range(source_degree):
        for span, place in _places(cut, source_degree, source):
            held.setdefault(span, []).append((source, place))
    nearest = rank * source_degree // degree
    found = []
    for (first, stop), own in _places(cut, degree, rank):
        for (start, end), holders in held.items():
            if max(first, start) < min(stop, end):
                source, theirs = min(holders, key=lambda one: abs(one[0] - nearest))
                taken = theirs + max(first, start) - start, theirs + min(stop, end) - start
                placed = own + max(first, start) - first, own + min(stop, end) - first
                found.append(SlicePiece(source, taken, placed))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class SharedSlice:
    """Indices of a tensor that the same ranks of several groups hold.

    Attributes:
        span: the indices [first, stop) of the whole along the cut's dimension.
        holders: all that hold them, ascending: one rank of each group, or several where ranks hold the same.
    """

    span: Span
    holders: tuple[Seat, ...]


def shared_slices(cut: TensorCut, degrees: Sequence[int]) -> tuple[SharedSlice, ...]:
    """The whole of a tensor, in the pieces in which groups of these degrees have it together, ascending."""
    holds = {(group, rank): cut.spans(degree, rank) for group, degree in enumerate(degrees) for rank in range(degree)}
    bounds = sorted({bound for spans in holds.values() for span in spans for bound in span})
    found = []
    for first, stop in pairwise(bounds):
        holders = (seat for seat, spans in holds.items() if any(a <= first and stop <= b for a, b in spans))
        found.append(SharedSlice((first, stop), tuple(holders)))
    return tuple(found)


def place_of(cut: TensorCut, degree: int, rank: int, first: int) -> int:
    """Where an index of the whole stands among what a rank holds, which has it."""
    for (start, end), own in _places(cut, degree, rank):
        if start <= first < end:
            return own + first - start
    raise AssertionError((cut, degree, rank, first))


def _places(cut: TensorCut, degree: int, rank: int) -> Iterator[tuple[Span, int]]:
    """Each span of the whole that a rank holds, and where that begins among what it holds."""
    place = 0
    for first, stop in cut.spans(degree, rank):
        yield (first, stop), place
        place += stop - first
