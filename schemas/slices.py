"""Which part of a tensor each rank of a tensor-parallel group holds, and who has what of it at another degree."""

from collections.abc import Iterator
from dataclasses import dataclass

Span = tuple[int, int]  # indices [first, stop)

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
    """

    dimension: int
    size: int
    parts: int = 1

    def width(self, degree: int) -> int:
        """Indices of each part that a rank holds; the last ranks hold fewer where the degree does not divide them."""
        return -(-self.size // self.parts // degree)

    def spans(self, degree: int, rank: int) -> tuple[Span, ...]:
        """The indices of the whole tensor that a rank of the group holds, one span of each part, in its own order."""
        length, width = self.size // self.parts, self.width(degree)
        first, stop = min(rank * width, length), min((rank + 1) * width, length)
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
    held = [one for source in range(source_degree) for one in _places(cut, source_degree, source)]
    return tuple(
        SlicePiece(
            source,
            (theirs + max(first, start) - start, theirs + min(stop, end) - start),
            (own + max(first, start) - first, own + min(stop, end) - first),
        )
        for _, (first, stop), own in _places(cut, degree, rank)
        for source, (start, end), theirs in held
        if max(first, start) < min(stop, end)
    )


def _places(cut: TensorCut, degree: int, rank: int) -> Iterator[tuple[int, Span, int]]:
    """The rank, each span of the whole that it holds, and where that begins among what it holds."""
    place = 0
    for first, stop in cut.spans(degree, rank):
        yield rank, (first, stop), place
        place += stop - first
