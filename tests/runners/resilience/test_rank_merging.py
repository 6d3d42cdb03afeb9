"""What ranks say becomes one message of their worker, whatever the order in which they say it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.resilience.protocol import Doing, Hello, Ready, Returning, Vote, Whereabouts
from rtk.runners.resilience.rank_merging import (
    are_unlike,
    known_by_all,
    unlike_votes,
    worker_ready,
    worker_vote,
    worker_whereabouts,
)

SUMS = st.dictionaries(st.integers(0, 3), st.sampled_from(["a", "b"]))


@given(st.lists(st.tuples(SUMS, SUMS), min_size=1, max_size=4))
def test_checksums_are_unlike_where_a_rank_has_said_another_than_its_peer(
    told: list[tuple[dict[int, str], dict[int, str]]],
) -> None:
    """Ranks are compared with those of the same number, as far as both have said something of a layer."""
    ours, theirs = (
        worker_ready([Ready(1, (0, 4), tuple(one.items())) for one in side]) for side in zip(*told, strict=True)
    )
    assert ours is not None and theirs is not None
    one, other = dict(ours.checksums), dict(theirs.checksums)
    for layer in one.keys() & other.keys():
        wanted = any(a[layer] != b[layer] for a, b in told if layer in a and layer in b)
        assert are_unlike(one[layer], other[layer]) == wanted


def test_ranks_that_hold_other_layers_are_not_ready_together() -> None:
    """There is no such worker."""
    assert worker_ready([Ready(1, (0, 1)), Ready(1, (1, 2))]) is None


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=2, max_size=4), st.integers(0, 3))
def test_a_vote_has_the_norms_of_all_ranks_and_is_finite_where_all_are(squares: list[float | None], bad: int) -> None:
    """A squared norm is the sum over the ranks, and None where one of them is not finite; losses are of rank 0."""
    votes = [
        Vote(1, 0, rank != bad, (0, 1), ((0, float(rank), 1.0),), norms=((5, square),))
        for rank, square in enumerate(squares)
    ]
    found = worker_vote(votes)
    assert found.is_finite == (bad >= len(squares))
    assert found.losses == ((0, 0.0, 1.0),)
    known = [square for square in squares if square is not None]
    assert found.norms == ((5, pytest.approx(math.fsum(known)) if len(known) == len(squares) else None),)
    assert unlike_votes(votes) is None


def where(doing: Doing, idle_s: float, *peers: str, epoch: int = 2) -> Whereabouts:
    """An answer."""
    return Whereabouts(1, epoch, doing, "something", idle_s, peers)


@pytest.mark.parametrize(
    ("answers", "rank", "peers"),
    [
        ([where("waiting", 9.0, "0/0:1"), where("computing", 9.0)], 1, ()),
        ([where("preparing", 30.0), where("waiting", 30.0, "0/0:0")], 0, ()),
        ([where("computing", 0.1), where("computing", 60.0)], 1, ()),
        ([where("listening", 9.0), where("waiting", 5.0, "1/0")], 1, ("1/0",)),
        ([where("listening", 9.0), where("waiting", 9.0, "0/0:0")], 0, ()),
        ([where("waiting", 9.0, "0/0:1"), where("waiting", 2.0, "0/0:0")], 1, ()),
        ([where("computing", 0.1), where("waiting", 7.0, "1/0", epoch=1)], 1, ("1/0",)),
        ([where("joining", 3.0), where("listening", 3.0)], 0, ()),
    ],
)
def test_the_rank_that_holds_up_the_others_answers_for_the_worker(
    answers: list[Whereabouts], rank: int, peers: tuple[str, ...]
) -> None:
    """Whom the others wait for; those it waits for within the worker are left out."""
    found, answer = worker_whereabouts("0/0", dict(enumerate(answers)))
    assert (found, answer.peers) == (rank, peers)


def test_a_worker_knows_what_its_least_informed_rank_knows() -> None:
    """And nothing where one of them has never been in an epoch."""

    def hello(known: Returning | None) -> Hello:
        return Hello("", "0/0", "store:1", "plan", {}, returning=known)

    assert known_by_all([hello(Returning(3, 7)), hello(Returning(2, 8))]) == Returning(2, 8)
    assert known_by_all([hello(Returning(3, 7)), hello(None)]) is None
