"""Who is accused of being slow where workers share cores: nobody."""

import os
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.resilience.conditions import Crowding, are_crowded, cores_here
from rtk.runners.resilience.protocol import Cores, Hello, encode, from_worker
from rtk.schemas.conditions import HEALTHY, Conditions
from rtk.schemas.protocols import Measured


class Accuser:
    """A monitor that always finds something."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def note(self, measured: Measured) -> Conditions | None:
        return HEALTHY

    def forget(self, worker: str) -> None:
        self.forgotten.append(worker)


def hello(worker: str, cores: Cores | None, paced: bool = False) -> Hello:
    return Hello("", worker, "store:1", "plan", {"paced": paced}, cores=cores)


def crowding_of(*hellos: Hello) -> tuple[Crowding, list[str]]:
    """A monitor that has met some workers, and what it has said."""
    told: list[str] = []
    crowding = Crowding(Accuser(), told.append)
    for one in hellos:
        crowding.arrive(one)
    return crowding, told


def is_silent(crowding: Crowding) -> bool:
    return crowding.note(Measured("0/0", 1)) is None


SHARED = Cores("here", (0, 1))


def test_nobody_is_accused_while_workers_share_cores() -> None:
    """From the worker that is too many on, until one of them is gone; that is said once."""
    names = ["0/0", "0/1", "1/0"]
    crowding, told = crowding_of(*(hello(name, SHARED) for name in names[:2]))
    assert (is_silent(crowding), told) == (False, [])
    for _ in range(2):
        crowding.arrive(hello(names[2], SHARED))
        assert is_silent(crowding)
        crowding.forget(names[2])
        assert not is_silent(crowding)
    assert len(told) == 1
    assert isinstance(crowding._monitor, Accuser)
    assert crowding._monitor.forgotten == [names[2]] * 2


def test_workers_that_do_not_share_cores_crowd_nobody() -> None:
    """On other machines, on cores of their own, with a pace, or of a version that does not say which they have."""
    apart = [hello(f"0/{n}", Cores(f"machine {n}", (0,))) for n in range(3)]
    pinned = [hello(f"0/{n}", Cores("here", (n,))) for n in range(3)]
    paced = [hello(f"0/{n}", SHARED, paced=True) for n in range(3)]
    silent = [hello(f"0/{n}", None) for n in range(3)]
    twice = [hello("0/0", SHARED) for _ in range(3)]  # a worker, its successor, and the one after that
    for hellos in (apart, pinned, paced, silent, twice):
        assert not is_silent(crowding_of(*hellos)[0])


@given(
    halves=st.lists(
        st.sampled_from([frozenset({0, 1, 2, 3}), frozenset({0, 1}), frozenset({2, 3}), frozenset({2})]),
        min_size=1,
        max_size=6,
    )
)
def test_workers_are_crowded_where_no_one_to_one_choice_of_cores_exists(halves: list[frozenset[int]]) -> None:
    """Some of them have fewer cores together than they are (Hall): found among all subsets."""
    subsets = [group for size in range(1, len(halves) + 1) for group in combinations(halves, size)]
    expected = any(len(group) > len(frozenset[int]().union(*group)) for group in subsets)
    assert are_crowded(halves) == expected


def test_a_worker_says_which_cores_it_has() -> None:
    """Those that this process may use; and its hello is read as it was said."""
    mine = cores_here()
    assert set(mine.usable) == os.sched_getaffinity(0)
    assert from_worker(encode(hello("0/0", mine))) == hello("0/0", mine)
