"""Groups of peers that sum slowly, and jobs that are slow as a whole: who is examined when, and what is made of it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations, groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.profilers.failslow.monitor.job import FIRST_PAUSE, LONGEST_PAUSE, Expected, Pauses, judged
from rtk.profilers.failslow.monitor.ring import LiveMonitor
from rtk.schemas.conditions import HEALTHY, Conditions, Pair, SlowLink, SlowWorker
from rtk.schemas.protocols import Examined, Measured

LEAST_S = 0.004
PEERS = ("0/0", "1/0", "2/0")
SLOW: Pair = ("0/0", "2/0")
Delays = Mapping[Pair, float]
Past = Callable[[int], Delays]  # what is slow in an iteration


def examined(
    delays_s: Delays, factors: Mapping[str, float] | None = None, peers: tuple[str, ...] = PEERS
) -> dict[str, Examined]:
    """What workers measure of whom, where messages take 0.2 ms at least."""
    found = {}
    for name in peers:
        pairs = [pair for pair in combinations(peers, 2) if pair[0] == name]
        ways = [(pair[1], 2 * (0.0002 + delays_s.get(pair, 0.0))) for pair in pairs]
        found[name] = Examined(0.02 * (factors or {}).get(name, 1.0), tuple(ways))
    return found


class Job:
    """Some peers who sum, are examined when they are to be, and have slow links probed, or not."""

    def __init__(self, past: Past, probes: bool, peers: tuple[str, ...] = PEERS) -> None:
        self.watch = LiveMonitor(peers, peers, Expected(LEAST_S, sum_s=lambda one, other: 0.002))
        self.past, self.probes, self.peers = past, probes, peers
        self.now = HEALTHY
        self.examinations: list[int] = []

    def told(self, iterations: int) -> Iterator[tuple[int, Conditions]]:
        """What is said in which iteration; an examination follows two iterations later."""
        asked: dict[tuple[str, ...], int] = {}
        for iteration in range(iterations):
            asked = {group: asked.get(group, iteration) for group in self.now.suspects}
            is_pause = any(since + 1 == iteration for since in asked.values())
            self.examinations += [iteration] if is_pause else []
            for one in self._measured(iteration, is_pause):
                found = self.watch.note(one)
                if found is not None:
                    self.now = found
                    yield iteration, found

    def _measured(self, iteration: int, is_pause: bool) -> Iterator[Measured]:
        delays_s = self.past(iteration)
        steps = 2 * (len(self.peers) - 1)
        lasts_s = 0.003 + steps * max(delays_s.values(), default=0.0)
        found = examined(delays_s, peers=self.peers)
        for number, name in enumerate(self.peers):
            probed = [link.ends for link in self.now.slow_links if name in link.ends] if self.probes else []
            yield Measured(
                name,
                iteration,
                sent=tuple((pair[pair[0] == name], -1, float(iteration)) for pair in probed),
                arrived=tuple((pair[pair[0] == name], -1, iteration + delays_s.get(pair, 0.0)) for pair in probed),
                reduction_s=(
                    iteration + 0.1 * number,
                    iteration + 0.1 * (len(self.peers) - 1) + lasts_s + 0.01 * number,
                ),
                peers=tuple(peer for peer in self.peers if peer != name),
                examined=found[name] if is_pause else None,
            )


def slow(first: int, stop: int, delay_s: float = 0.02, pair: Pair = SLOW) -> Past:
    """A link that is slow for some iterations."""
    return lambda iteration: {pair: delay_s} if first <= iteration < stop else {}


@given(
    st.integers(3, 9).flatmap(lambda n: st.tuples(st.just(n), st.sampled_from(list(combinations(range(n), 2))))),
    st.integers(1, 30),
    st.floats(2 * LEAST_S, 0.5),
    st.booleans(),
)
def test_the_slow_link_of_a_group_is_found(
    case: tuple[int, tuple[int, int]], first: int, delay_s: float, probes: bool
) -> None:
    """Whichever it is and however many peers there are, within 15 iterations; it is well again after five good ones,
    which show in probes, and in the sum where nobody probes."""
    peers = tuple(f"{k}/0" for k in range(case[0]))
    pair = peers[case[1][0]], peers[case[1][1]]
    job = Job(slow(first, first + 12, delay_s, pair), probes, peers)
    (suspected, who), (found, link), (relieved, last) = job.told(first + 30)
    assert (suspected, who) == (first + 2, Conditions(suspects=(peers,)))
    assert found <= first + 14
    assert [one.ends for one in link.slow_links] == [pair]
    assert link.slow_links[0].delay_s == pytest.approx(delay_s, abs=1e-5)
    assert (link.slow_workers, link.suspects) == ((), ())
    assert (relieved, last) == (first + 12 + 4, HEALTHY)
    assert job.examinations == [found]


def test_late_arrivals_are_no_reason() -> None:
    """A sum begins when its last worker does."""
    assert list(Job(lambda iteration: {}, False).told(30)) == []


@given(st.integers(200, 500))
@settings(max_examples=20)
def test_nobody_is_examined_for_ever(iterations: int) -> None:
    """Where nothing is found the suspicion is dropped, and comes back after pauses that double."""

    class Blind(Job):
        def _measured(self, iteration: int, is_pause: bool) -> Iterator[Measured]:
            for one in super()._measured(iteration, is_pause):
                yield replace(one, examined=examined({})[one.worker] if is_pause else None)

    job = Blind(slow(3, iterations), False)
    said = [found for _, found in job.told(iterations)]
    assert said == [Conditions(suspects=(PEERS,)), HEALTHY] * (len(said) // 2) + said[2 * (len(said) // 2) :]
    gaps = [later - sooner for sooner, later in zip(job.examinations, job.examinations[1:], strict=False)]
    assert gaps == [min(FIRST_PAUSE * 2**n, LONGEST_PAUSE) + 2 for n in range(len(gaps))]
    assert len(gaps) >= 3


def test_a_second_slow_link_is_looked_for_when_the_sum_takes_longer_still() -> None:
    """Not before the pause is over; then both are known, and each is relieved when it is well."""
    both: Past = lambda n: {  # noqa: E731
        **({SLOW: 0.01} if 5 <= n < 70 else {}),
        **({("0/0", "1/0"): 0.04} if 12 <= n < 50 else {}),
    }
    job = Job(both, True)
    links = [{one.ends: one.delay_s for one in found.slow_links} for _, found in job.told(100) if not found.suspects]
    assert [list(one) for one, _ in groupby(links)] == [[SLOW], [("0/0", "1/0"), SLOW], [SLOW], []]
    assert len(job.examinations) <= 3


def test_a_group_that_is_slow_from_the_start_is_compared_with_others() -> None:
    """What two other groups of three take is usual for the third one, too."""
    names = [[f"{k}/{i}" for k in range(3)] for i in range(3)]
    everybody = [name for group in names for name in group]
    watch = LiveMonitor(everybody, everybody, Expected(LEAST_S))
    said = []
    for iteration in range(4):
        for number, group in enumerate(names):
            lasts_s = 0.2 if number == 1 else 0.01
            for name in group:
                peers = tuple(peer for peer in group if peer != name)
                spans = (float(iteration), iteration + lasts_s)
                said.append(watch.note(Measured(name, iteration, reduction_s=spans, peers=peers)))
    assert [one for one in said if one is not None] == [Conditions(suspects=(tuple(names[1]),))]


@given(st.sets(st.sampled_from(list(combinations(range(5), 2))), max_size=4), st.integers(0, 4), st.floats(1.3, 3.0))
def test_what_an_examination_shows(pairs: set[Pair], slowest: int, factor: float) -> None:
    """Of five workers up to four slow links, such as all of one worker's, and one slow worker."""
    peers = tuple(f"{k}/0" for k in range(5))
    ends = {(peers[one], peers[other]) for one, other in pairs}  # type: ignore[call-overload]
    found = judged(examined(dict.fromkeys(ends, 0.01), {peers[slowest]: factor}, peers), Expected(LEAST_S))
    assert found.tried == {*combinations(peers, 2)}
    assert found.links == {pair: pytest.approx(0.0102, abs=3e-4) for pair in ends}
    assert found.workers == {peers[slowest]: pytest.approx(factor)}


def test_what_the_plan_knows_is_not_found() -> None:
    """Delays that it expects, and workers that it knows to be slow; and a link alone has none to be compared with."""
    known = Expected(LEAST_S, delay_s=lambda one, other: 0.03 if (one, other) == SLOW else 0.0, slowdown={"1/0": 2.0})
    shown = judged(examined({SLOW: 0.03}, {"1/0": 2.0}), known)
    assert (shown.links, shown.workers) == ({}, {})
    two = judged(examined({SLOW: 0.5}, {"2/0": 9.0}, SLOW), Expected(LEAST_S))
    assert two.links == {}
    assert two.workers == {"2/0": pytest.approx(9.0)}


def whole(iteration: int, iteration_s: float, found: Mapping[str, Examined] | None = None) -> list[Measured]:
    """An iteration in which nothing is measured but how long it takes."""
    return [Measured(name, iteration, examined=(found or {}).get(name), iteration_s=iteration_s) for name in PEERS]


def test_everybody_is_examined_when_iterations_are_slow_for_no_known_reason() -> None:
    """Once that is confirmed, within 15 iterations; what is found then is said, and nobody is examined
    again while it explains them."""
    watch = LiveMonitor(PEERS, PEERS, Expected(LEAST_S))
    said: list[tuple[int, Conditions]] = []
    for iteration in range(80):
        jitter = 1 + 0.01 * (iteration * 7 % 5)
        asked = bool(said) and bool(said[-1][1].suspects)
        found = examined({}, {"1/0": 1.5}) if asked else None
        for one in whole(iteration, jitter * (1.5 if iteration >= 40 else 1.0), found):
            news = watch.note(one)
            said += [(iteration, news)] if news is not None else []
    (suspected, who), (_, slow_one), *rest = said
    assert 42 <= suspected <= 55
    assert who == Conditions(suspects=(PEERS,))
    assert slow_one == Conditions(slow_workers=(SlowWorker("1/0", 1.5),))
    assert rest == []


def test_iterations_that_a_known_link_slows_down_make_nobody_a_suspect() -> None:
    """What is known to be slow explains them."""
    watch = LiveMonitor(PEERS, PEERS, Expected(LEAST_S))
    said = []
    for iteration in range(90):
        is_slow = iteration >= 40
        at_s = float(iteration)
        for one in whole(iteration, 1.5 if is_slow else 1.0):
            sent = ((PEERS[1], 0, at_s),) if one.worker == PEERS[0] else ()
            arrived = ((PEERS[0], 0, at_s + 0.02 * is_slow),) if one.worker == PEERS[1] else ()
            said.append(watch.note(replace(one, sent=sent, arrived=arrived)))
    assert [one for one in said if one is not None] == [Conditions((SlowLink(PEERS[:2], 0.02),))]


@given(st.lists(st.integers(1, 400), max_size=12))
def test_pauses(waits: list[int]) -> None:
    """They double, up to the longest, as long as there is need of one; after a long quiet time they are short again."""
    pauses, now = Pauses(), 0
    for wait in waits:
        if pauses.is_over(now):
            pauses.begin(now)
            assert not pauses.is_over(now + FIRST_PAUSE - 1)
        assert pauses.is_over(now + LONGEST_PAUSE)
        now += wait
