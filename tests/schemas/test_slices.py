"""Slices of tensors: what ranks of any degree hold, and what they take from those of another."""

from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.slices import SlicePiece, TensorCut, pieces_for

DEGREES = st.integers(1, 8)


@st.composite
def cuts(draw: st.DrawFn) -> TensorCut:
    """A cut of any size, whether or not a degree divides it."""
    parts = draw(st.integers(1, 3))
    return TensorCut(draw(st.integers(0, 2)), parts * draw(st.integers(1, 40)), parts)


def held(cut: TensorCut, degree: int, rank: int) -> list[int]:
    """The indices of the whole that a rank holds, in its order."""
    return [index for first, stop in cut.spans(degree, rank) for index in range(first, stop)]


@given(cuts(), DEGREES)
def test_every_index_is_held_once(cut: TensorCut, degree: int) -> None:
    """The ranks of a group hold the whole tensor together and nothing twice, and none holds more than its width."""
    found = [held(cut, degree, rank) for rank in range(degree)]
    assert sorted(index for own in found for index in own) == list(range(cut.size))
    assert max(map(len, found)) == cut.parts * cut.width(degree)


@given(cuts(), DEGREES, DEGREES)
def test_a_group_of_any_degree_can_be_taken_from(cut: TensorCut, degree: int, source_degree: int) -> None:
    """Put where they belong, the pieces of other ranks' slices are all that a rank holds, once and in its order."""
    sources = [held(cut, source_degree, rank) for rank in range(source_degree)]
    for rank in range(degree):
        own, end = held(cut, degree, rank), 0
        for piece in pieces_for(cut, degree, rank, source_degree):
            (first, stop), (start, until) = piece.placed, piece.taken
            assert own[first:stop] == sources[piece.source][start:until]
            assert first == end < stop
            end = stop
        assert end == len(own)


@given(cuts(), DEGREES)
def test_the_same_degree_takes_from_the_same_rank(cut: TensorCut, degree: int) -> None:
    """Between groups of one degree each rank takes its slice as it is."""
    for rank in range(degree):
        pieces = pieces_for(cut, degree, rank, degree)
        assert all(piece.source == rank and piece.taken == piece.placed for piece in pieces)


def test_half_a_group_takes_two_slices_each() -> None:
    """From four ranks to two each takes of both that hold its half, for each of the matrices side by side."""
    cut = TensorCut(0, 16, parts=2)
    assert pieces_for(cut, 2, 1, 4) == (
        SlicePiece(2, (0, 2), (0, 2)),
        SlicePiece(3, (0, 2), (2, 4)),
        SlicePiece(2, (2, 4), (4, 6)),
        SlicePiece(3, (2, 4), (6, 8)),
    )
