"""The ranks of an epoch's workers, and what pairs of workers are among ranks."""

from itertools import chain, product

from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.resilience.protocol import MeetingPoint, RankAssignment
from rtk.runners.torch.layout import RankLayout, points_of

DEGREES = st.lists(st.integers(1, 4), min_size=3, max_size=5)


@given(DEGREES)
def test_seats_give_ranks_in_their_order(degrees: list[int]) -> None:
    """Each worker has as many ranks as meeting points, and a rank is met at the point of its number."""
    points = [[MeetingPoint(f"{worker}:{share}") for share in range(n)] for worker, n in enumerate(degrees)]
    seats = [RankAssignment("0/0", own[0].store, own[0].store, (), tuple(own[1:])) for own in points]
    layout = RankLayout.of_seats(seats)
    assert layout.degrees == tuple(degrees)
    assert [point.store for point in points_of(seats)] == [f"{worker}:{share}" for worker, share in layout.seats]


@given(DEGREES)
def test_a_detour_of_workers_is_one_of_each_pair_of_their_ranks(degrees: list[int]) -> None:
    """No rank of the one reaches one of the other directly: each pair has one of the worker between in its midst."""
    layout = RankLayout(tuple(degrees))
    found = layout.detours([(0, 2, 1)])
    assert [(one, other) for one, other, _ in found] == layout.pairs([(0, 2)])
    assert layout.pairs([(0, 2)]) == list(product(layout.ranks_of(0), layout.ranks_of(2)))
    assert all(one < other and between in layout.ranks_of(1) for one, other, between in found)


@given(st.integers(1, 5))
def test_workers_of_one_rank_are_their_ranks(workers: int) -> None:
    """Where nobody has several ranks, numbers of workers and of ranks are the same."""
    layout = RankLayout((1,) * workers)
    pairs = [(one, other) for one in range(workers) for other in range(one + 1, workers)]
    detours = [
        (one, other, between) for one, other in pairs for between in range(workers) if between not in (one, other)
    ]
    assert layout.pairs(pairs) == pairs
    assert layout.detours(detours) == detours
    assert list(chain.from_iterable(map(layout.ranks_of, range(workers)))) == list(range(workers))
