"""The monitor of a running job: what it calls slow, from when on, and when no longer."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.profilers.failslow.monitor.job import FLAPPING_WITHIN, GOOD, MOST_GOOD, UNSEEN, Expected, Hysteresis
from rtk.profilers.failslow.monitor.ring import MARGIN, SETTLED, LiveMonitor
from rtk.schemas.conditions import HEALTHY, Conditions, Pair, SlowLink, SlowWorker
from rtk.schemas.protocols import Examined, Measured

NAMES = ("0/0", "0/1", "0/2", "0/3")
LINKS: tuple[Pair, ...] = (("0/0", "0/1"), ("0/1", "0/2"), ("0/2", "0/3"))
LEAST_S = 0.004
LAST = LINKS[-1]
Delay = Callable[[str, str, int], float]  # of a message from one to the other, by its number


def monitor(names: Sequence[str] = NAMES, **expected: object) -> LiveMonitor:
    """A monitor of a job with these workers, all of them there."""
    return LiveMonitor(names, names, Expected(LEAST_S, **expected))  # type: ignore[arg-type]


def reports(
    iteration: int,
    delay_s: Delay,
    links: Iterable[Pair] = LINKS,
    pace: Mapping[str, float] | None = None,
    clock_s: Mapping[str, float] | None = None,
    names: Sequence[str] = NAMES,
) -> list[Measured]:
    """What all workers measure: three messages each way over each link, by clocks that may be apart."""
    sent: dict[str, list[tuple[str, int, float]]] = {name: [] for name in names}
    arrived: dict[str, list[tuple[str, int, float]]] = {name: [] for name in names}
    apart = clock_s or {}
    for ends in links:
        for one, other in (ends, ends[::-1]):
            for number in range(3):
                at_s = iteration + number / 10
                sent[one].append((other, number, at_s + apart.get(one, 0.0)))
                arrived[other].append((one, number, at_s + delay_s(one, other, number) + apart.get(other, 0.0)))
    paces = pace or {}
    return [Measured(name, iteration, paces.get(name), tuple(sent[name]), tuple(arrived[name])) for name in names]


def told(watch: LiveMonitor, measured: Iterable[Measured]) -> Conditions | None:
    """What is said of an iteration, at most once."""
    said = [found for one in measured if (found := watch.note(one)) is not None]
    assert len(said) <= 1
    return said[0] if said else None


def slow_last(delay_s: float, usual_s: float = 0.001) -> Delay:
    """The last link takes so long, the others as usual."""
    return lambda one, other, _: delay_s if {one, other} == {*LAST} else usual_s


def history(watch: LiveMonitor, delays_s: Iterable[float], begin: int = 0) -> Iterator[tuple[int, Conditions]]:
    """What is said in which iteration, by the last link's delays."""
    for iteration, delay_s in enumerate(delays_s, start=begin):
        found = told(watch, reports(iteration, slow_last(delay_s)))
        if found is not None:
            yield iteration, found


@given(st.integers(1, 3), st.floats(0, 0.05), st.floats(4.01, 50), st.integers(0, 30))
def test_links_that_are_slow_from_the_start_are_found(links: int, planned_s: float, times: float, relief: int) -> None:
    """A lone one or all of them: the plan is the yardstick, and they are found once it is no chance of a beginning."""
    watch, slow_s = monitor(NAMES[: links + 1], delay_s=lambda one, other: planned_s), planned_s + times * LEAST_S
    said: dict[int, Conditions] = {}
    for iteration in range(60):
        delay_s = slow_s if iteration < SETTLED + 2 + relief else planned_s
        names = NAMES[: links + 1]
        found = told(watch, reports(iteration, lambda *_, now_s=delay_s: now_s, LINKS[:links], names=names))
        if found is not None:
            said[iteration] = found
    (first, slow), (last, relieved) = said.items()
    assert first == SETTLED + 1 and SETTLED + 2 + relief <= last
    assert {one.ends for one in slow.slow_links} == {*LINKS[:links]}
    assert all(one.delay_s == pytest.approx(slow_s, abs=1e-5) for one in slow.slow_links)
    assert relieved == HEALTHY


@given(
    st.integers(1, 3), st.floats(0, 0.05), st.floats(1.0, 20.0), st.floats(0, 1), st.lists(st.floats(0, 1), max_size=9)
)
def test_a_plan_that_is_wrong_for_everything_accuses_no_link(
    links: int, planned_s: float, pace: float, share: float, noise: list[float]
) -> None:
    """Links that are as much slower than planned as operations are, and a little more, are as usual."""
    names = NAMES[: links + 1]
    watch = monitor(names, delay_s=lambda one, other: planned_s)
    for iteration in range(30):
        late_s = (
            pace * (planned_s + MARGIN * share * LEAST_S) + (noise[iteration % len(noise)] if noise else 0) * LEAST_S
        )
        paces = dict.fromkeys(names, pace)
        assert (
            told(watch, reports(iteration, lambda *_, now_s=late_s: now_s, LINKS[:links], paces, names=names)) is None
        )


JITTER_S = st.floats(0, LEAST_S * 0.99)


@given(st.data(), st.floats(0, 0.05), st.integers(1, 12))
def test_jitter_below_the_threshold_is_never_an_alarm(data: st.DataObject, usual_s: float, iterations: int) -> None:
    """Whatever messages take beyond what is expected of their link, as long as it is less than the threshold."""
    watch = monitor(delay_s=lambda one, other: usual_s)
    for iteration in range(iterations):
        jitter_s = iter(data.draw(st.lists(JITTER_S, min_size=18, max_size=18)))
        assert told(watch, reports(iteration, lambda *_, extra_s=jitter_s: usual_s + next(extra_s))) is None


@given(st.integers(0, 10), st.floats(LEAST_S * 1.6, 1.0), st.floats(-5, 5), st.permutations(range(4)))
def test_a_step_is_found_after_three_iterations(
    healthy: int, delay_s: float, apart_s: float, order: Sequence[int]
) -> None:
    """No earlier and no later, with its own delay however far clocks are apart, and whoever tells first; relief takes
    five, and its name is healthy."""
    watch = monitor()
    for iteration in range(healthy + 13):
        is_slow = healthy <= iteration < healthy + 5
        measured = reports(iteration, slow_last(delay_s if is_slow else 0.001), clock_s={"0/3": apart_s})
        said = told(watch, [measured[place] for place in order])
        if iteration == healthy + 2:
            assert said is not None
            assert [link.ends for link in said.slow_links] == [LAST]
            assert said.slow_links[0].delay_s == pytest.approx(delay_s, abs=1e-6)
        else:
            assert said == (HEALTHY if iteration == healthy + 9 else None)


def test_a_link_that_is_slow_from_the_start() -> None:
    """It is usual for none of the others."""
    assert list(history(monitor(), [0.03] * 5)) == [(2, Conditions((SlowLink(LAST, 0.03),)))]


def test_what_the_plan_expects_is_not_slow() -> None:
    """Only what comes on top of it."""
    watch = monitor(delay_s=lambda one, other: 0.03 if (one, other) == LAST else 0.0)
    assert list(history(watch, [0.03] * 5)) == []
    assert list(history(watch, [0.04] * 5, begin=5)) == [(7, Conditions((SlowLink(LAST, 0.04),)))]


def test_one_direction_is_enough() -> None:
    """Where the other has no samples, the link's delay is that of the one."""
    watch = monitor()
    said = []
    for iteration in range(4):
        one_way = [
            Measured(one.worker, iteration, sent=one.sent, arrived=one.arrived if one.worker == "0/3" else ())
            for one in reports(iteration, slow_last(0.001 if iteration == 0 else 0.02))
        ]
        said.append(told(watch, one_way))
    assert said == [None, None, None, Conditions((SlowLink(LAST, 0.02),))]


@pytest.mark.parametrize(
    ("delays_s", "said"),
    [
        ([0.03] * 3 + [0.036] * 9, [0.03]),
        ([0.03] * 3 + [0.05] * 2 + [0.03] + [0.05] * 2, [0.03]),
        ([0.03] * 3 + [0.05] * 3, [0.03, 0.05]),
        ([0.03] * 3 + [0.002] * 5, [0.03, None]),
        ([0.03] * 3 + [0.002] * 4 + [0.03] * 3 + [0.002] * 4, [0.03]),
        ([0.03] * 3 + [0.002] * 3 + [0.03] * 2 + [0.002] * 2, [0.03, None]),
    ],
)
def test_another_delay_is_told_only_once_it_stays(delays_s: list[float], said: list[float | None]) -> None:
    """It must be further than a quarter and the threshold from the old one for three iterations, or good for five; one
    or two bad ones in between do not put relief off, three do."""
    found = [conditions for _, conditions in history(monitor(), [0.001, *delays_s])]
    assert found == [HEALTHY if delay_s is None else Conditions((SlowLink(LAST, delay_s),)) for delay_s in said]


@given(st.integers(3, 20), st.integers(1, FLAPPING_WITHIN))
def test_a_link_that_flaps_is_soon_left_alone(bad: int, good: int) -> None:
    """However long it goes on, there are at most as many reliefs as doublings lead from five to the good stretch."""
    one = Hysteresis()
    reliefs, was = 0, None
    for iteration in range(1000):
        one.note(iteration, 0.03 if iteration % (bad + good) < bad else 0.0, 0.0, LEAST_S)
        reliefs += was is not None and one.found is None
        was = one.found
    assert reliefs <= max(0, (good // GOOD).bit_length())


def test_what_flapped_and_was_quiet_for_long_is_relieved_soon_again() -> None:
    """More good iterations than usual are needed after a flap; after a long quiet time five will do."""
    one = Hysteresis()
    found = []
    values = [1.0] * 3 + [0.0] * 5 + [1.0] * 3 + [0.0] * 10 + [0.0] * 250 + [1.0] * 3 + [0.0] * 5
    for iteration, value in enumerate(values):
        before = one.found
        one.note(iteration, value, 0.0, 0.1)
        if (before is None) != (one.found is None):
            found.append(iteration)
    assert found == [2, 7, 10, 20, 273, 278]


def test_a_link_without_messages_is_neither_good_nor_bad_but_relieved_on_trial() -> None:
    """Iterations without samples interrupt nothing; long after the last one the link is tried, later each time."""
    watch, iteration, switches = monitor(), 0, []
    for _ in range(3):  # three measured ones, with nothing in between
        for links in (LINKS, LINKS[:2], LINKS[:2]):
            said = told(watch, reports(iteration, slow_last(0.03), links))
            switches += [iteration] if said is not None else []
            iteration += 1
    assert switches == [6]
    for wait in (UNSEEN * GOOD, UNSEEN * GOOD * 2):
        last = iteration - 3 if wait == UNSEEN * GOOD else iteration - 1
        while (said := told(watch, reports(iteration, slow_last(0.03), LINKS[:2]))) is None:
            iteration += 1
        assert (said, iteration - last) == (HEALTHY, wait)
        slow = [told(watch, reports(iteration + n, slow_last(0.03))) for n in (1, 2, 3)]
        assert slow == [None, None, Conditions((SlowLink(LAST, 0.03),))]
        iteration += 4


def sums(iteration: int, lasts_s: float, peers: Sequence[str]) -> list[Measured]:
    """A group's sum, which each worker begins a little later than the one before."""
    return [
        Measured(
            name,
            iteration,
            reduction_s=(iteration + 0.1 * n, iteration + 0.1 * (len(peers) - 1) + lasts_s + 0.01 * n),
            peers=tuple(peer for peer in peers if peer != name),
        )
        for n, name in enumerate(peers)
    ]


def test_two_peers_whose_sums_take_longer() -> None:
    """A ring of two passes its link twice, so the link's delay is half of what the sum takes longer."""
    pair = ("0/0", "1/0")
    watch = monitor(pair, sum_s=lambda one, other: 0.002)
    said = [told(watch, sums(n, 0.002 if n < 4 else 0.042, pair)) for n in range(7)]
    assert said == [None] * 6 + [Conditions((SlowLink(pair, 0.02),))]
    probed = [told(watch, reports(n, lambda *_: 0.02, [pair], names=pair)) for n in range(7, 20)]
    assert probed == [None] * 13  # delegates probe what they have nothing to send over: as slow as before
    healed = [told(watch, reports(n, lambda *_: 0.0, [pair], names=pair)) for n in range(20, 25)]
    assert healed == [None] * 4 + [HEALTHY]


def paces(iteration: int, pace: Mapping[str, float]) -> list[Measured]:
    """What workers say of their pace."""
    return [Measured(name, iteration, value) for name, value in pace.items()]


def test_a_worker_that_is_slower_than_the_others() -> None:
    """Beyond a fifth, for three iterations, of three workers or more; what all have in common is not slow."""
    even = {"0/0": 3.0, "0/1": 3.0, "0/2": 3.33}
    watch = monitor(list(even))
    assert [told(watch, paces(n, even)) for n in range(5)] == [None] * 5
    slow = Conditions(slow_workers=(SlowWorker("0/2", 1.33),))
    assert [told(watch, paces(n, even | {"0/2": 4.0})) for n in (5, 6, 7, 8)] == [None, None, slow, None]
    assert [told(watch, paces(n, even)) for n in range(9, 14)] == [None] * 5  # 1.11 is not good enough
    assert [told(watch, paces(n, even | {"0/2": 3.0})) for n in range(14, 19)] == [None] * 4 + [HEALTHY]
    two = monitor(["0/0", "0/1"])
    assert [told(two, paces(n, {"0/0": 1.0, "0/1": 9.0})) for n in range(5)] == [None] * 5


def test_a_worker_that_the_plan_knows_to_be_slow() -> None:
    """It is slow only beyond that."""
    watch = monitor(NAMES, slowdown={"0/3": 2.0})
    known = {"0/0": 1.0, "0/1": 1.0, "0/2": 1.0, "0/3": 2.0}
    assert [told(watch, paces(n, known)) for n in range(5)] == [None] * 5
    slower = [told(watch, paces(n, known | {"0/3": 3.0})) for n in (5, 6, 7)]
    assert slower == [None, None, Conditions(slow_workers=(SlowWorker("0/3", 1.5),))]


def test_a_worker_that_is_gone_is_forgotten() -> None:
    """Its links and its pace are those of another machine from then on; what is known of others stays."""
    watch = monitor()
    both = {("0/2", "0/3"): 0.03, ("0/0", "0/1"): 0.05}
    delay: Delay = lambda one, other, _: both.get((min(one, other), max(one, other)), 0.001)  # noqa: E731
    list(history(watch, [0.001]))
    found = [told(watch, reports(n, delay)) for n in (1, 2, 3)][-1]
    assert found is not None
    assert [link.ends for link in found.slow_links] == [("0/0", "0/1"), ("0/2", "0/3")]
    watch.forget("0/3")
    three = [told(watch, reports(n, delay, LINKS[:2], names=NAMES[:3])) for n in (4, 5)]
    assert three == [None, None]
    again = [told(watch, reports(n, delay)) for n in (6, 7, 8, 9)]  # nobody knew that it would come in 6
    assert again == [None, None, None, found]


def test_a_redone_iteration_counts_as_it_was_done_last() -> None:
    """What was measured before, by whomever, is dropped; late and old news are not looked at."""
    watch = monitor()
    list(history(watch, [0.001]))
    for iteration in (1, 2):
        for one in reports(iteration, slow_last(0.5))[:3]:
            assert watch.note(one) is None
        assert told(watch, reports(iteration, slow_last(0.03))) is None
        assert told(watch, reports(iteration, slow_last(9.0))) is None
    assert told(watch, reports(3, slow_last(0.03))) == Conditions((SlowLink(LAST, 0.03),))


def test_a_worker_that_waits_is_not_waited_for() -> None:
    """It tells nothing any more, though it lives: once the next but one iteration begins, the others are looked at."""
    watch = monitor((*NAMES, "1/0"))
    assert list(history(watch, [0.001, 0.03, 0.03, 0.03, 0.03])) == [(3, Conditions((SlowLink(LAST, 0.03),)))]


def test_one_that_follows_another_tells_what_it_finds_in_any_case() -> None:
    """Whoever was told of a slow link before hears of its relief as well, after a few iterations."""
    watch = LiveMonitor(NAMES, NAMES, Expected(LEAST_S), is_resumed=True)
    assert list(history(watch, [0.001] * 9)) == [(GOOD - 1, HEALTHY)]
    watch = LiveMonitor(NAMES, NAMES, Expected(LEAST_S), is_resumed=True)
    assert list(history(watch, [0.03] * 9)) == [(2, Conditions((SlowLink(LAST, 0.03),)))]


ANYBODY = st.sampled_from([*NAMES, "7/7"])
ANYTHING = st.builds(
    Measured,
    ANYBODY,
    st.integers(0, 40),
    st.none() | st.floats(0.1, 9.0),
    st.lists(st.tuples(ANYBODY, st.integers(0, 3), st.floats(0, 9)), max_size=4).map(tuple),
    st.lists(st.tuples(ANYBODY, st.integers(0, 3), st.floats(0, 9)), max_size=4).map(tuple),
    st.none() | st.tuples(st.floats(0, 9), st.floats(0, 9)),
    st.lists(ANYBODY, max_size=4).map(tuple),
    st.none()
    | st.builds(Examined, st.floats(0, 9), st.lists(st.tuples(ANYBODY, st.floats(0, 9)), max_size=3).map(tuple)),
    st.none() | st.floats(0, 9),
)


@given(st.lists(ANYTHING | ANYBODY, max_size=60))
def test_whatever_comes_little_is_kept(events: list[Measured | str]) -> None:
    """In any order, of strangers, of iterations over and over: some numbers a pair of workers, and two iterations; what
    is said is in order, of the job's workers, and never the same twice."""
    watch, last = monitor(), HEALTHY
    for event in events:
        if isinstance(event, str):
            watch.forget(event)
            last = Conditions(
                tuple(link for link in last.slow_links if event not in link.ends),
                tuple(one for one in last.slow_workers if one.worker != event),
                suspects=tuple(group for group in last.suspects if event not in group),
            )
            continue
        said = watch.note(event)
        if said is not None:
            assert said != last
            assert list(said.slow_links) == sorted(said.slow_links, key=lambda link: link.ends)
            last = said
        kept = vars(watch)
        assert len(kept["_reports"]) <= 2
        assert len(kept["_links"]) <= 6
        assert len(kept["_workers"]) <= 4


def test_the_longest_wait_is_bounded() -> None:
    """However often a link has flapped, enough good iterations relieve it."""
    one = Hysteresis()
    for iteration in range(2000):
        one.note(iteration, 0.03 if iteration % 30 < 3 else 0.0, 0.0, LEAST_S)
    for iteration in range(2000, 2000 + MOST_GOOD):
        one.note(iteration, 0.0, 0.0, LEAST_S)
    assert one.found is None
