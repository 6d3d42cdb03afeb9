"""Slices of tensors: what ranks of any degree hold, and what they take from those of another."""

from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.slices import SlicePiece, TensorCut, pieces_for, place_of, shared_slices

DEGREES = st.integers(1, 8)


@st.composite
def cuts(draw: st.DrawFn) -> TensorCut:
    """A cut of any size, whether or not a degree divides it, and of heads that many ranks repeat."""
    parts = draw(st.integers(1, 3))
    size, most = parts * draw(st.integers(1, 40)), draw(st.none() | st.integers(1, 4))
    return TensorCut(draw(st.integers(0, 2)), size, parts, most)


def held(cut: TensorCut, degree: int, rank: int) -> list[int]:
    """The indices of the whole that a rank holds, in its order."""
    return [index for first, stop in cut.spans(degree, rank) for index in range(first, stop)]


@given(cuts(), DEGREES)
def test_every_index_is_held_once(cut: TensorCut, degree: int) -> None:
    """The ranks of a group hold the whole tensor together, nothing twice but what neighbours repeat, and none holds
    more than its width."""
    found = [held(cut, degree, rank) for rank in range(degree)]
    assert sorted(index for own in found[:: cut.copies(degree)] for index in own) == list(range(cut.size))
    assert all(own == found[rank - rank % cut.copies(degree)] for rank, own in enumerate(found))
    assert max(map(len, found)) == cut.parts * cut.width(degree)


@given(cuts(), st.lists(DEGREES, min_size=1, max_size=3))
def test_groups_of_any_degrees_have_slices_in_common(cut: TensorCut, degrees: list[int]) -> None:
    """The slices that several groups share are the whole, once, and each is held by all who are said to, and no others,
    where they are said to."""
    slices, end = shared_slices(cut, degrees), 0
    seats = [(group, rank) for group, degree in enumerate(degrees) for rank in range(degree)]
    for one in slices:
        first, stop = one.span
        assert first == end < stop
        end = stop
        for group, rank in seats:
            own = held(cut, degrees[group], rank)
            assert ((group, rank) in one.holders) == (first in own)
            if first in own:
                place = place_of(cut, degrees[group], rank, first)
                assert own[place : place + stop - first] == list(range(first, stop))
        assert {group for group, _ in one.holders} == set(range(len(degrees)))
    assert end == cut.size


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
