"""Fail-slows in series of iteration times: what is found, when, and what is not."""

import tracemalloc
from itertools import islice, pairwise
from math import inf, isnan, nan
from random import Random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.profilers.failslow.tracker import SHORTEST, EpisodeChange, Mode, Tracker, fewest_samples, track
from rtk.schemas.detection import Episode
from rtk.schemas.errors import InvalidInputError

MODES = get_args(Mode)
modes = st.sampled_from(MODES)


def noisy(levels: list[tuple[int, float]], seed: int = 0, noise: float = 0.01) -> list[float]:
    """Times at some levels for so many samples each, with noise."""
    chance = Random(seed)
    return [level * (1 + chance.gauss(0, noise)) for samples, level in levels for _ in range(samples)]


def followed(
    times_s: list[float], mode: Mode = "robust", shortest: int = SHORTEST
) -> tuple[Tracker, list[EpisodeChange]]:
    """A tracker that has noted all of them, and what it said with each."""
    tracker = Tracker(mode, shortest)
    changes: list[EpisodeChange] = []
    for time_s in times_s:
        changes += tracker.note(time_s)
    return tracker, changes


@st.composite
def series(draw: st.DrawFn) -> list[float]:
    """Up to six levels, noise, and spikes."""
    levels = draw(st.lists(st.tuples(st.integers(1, 120), st.floats(0.5, 4.0)), min_size=0, max_size=6))
    times_s = noisy(levels, draw(st.integers(0, 99)), draw(st.sampled_from([0.0, 0.005, 0.06])))
    for place in draw(st.lists(st.integers(0, 700), max_size=30)):
        if place < len(times_s):
            times_s[place] *= draw(st.floats(0.1, 30.0))
    return times_s


@settings(max_examples=40, deadline=None)
@given(series(), modes, st.integers(-20, 20))
def test_the_unit_does_not_matter(times_s: list[float], mode: Mode, power: int) -> None:
    """Times in another unit have the same episodes; severities are the same but for rounding."""

    def places(scale: float) -> list[tuple[int | None, ...]]:
        return [(e.onset, e.provisional, e.confirmed, e.relief) for e in track([t * scale for t in times_s], mode)]

    assert places(1.0) == places(2.0**power)


@settings(max_examples=40, deadline=None)
@given(series(), modes)
def test_what_is_said_fits_together(times_s: list[float], mode: Mode) -> None:
    """Every episode was announced in order: provisional then dismissed or confirmed, levels, relief; none overlap."""
    tracker, changes = followed(times_s, mode)
    changes += tracker.finish()
    state = "usual"
    allowed = {
        "usual": {"provisional": "suspected", "confirmed": "slow"},
        "suspected": {"dismissed": "usual", "confirmed": "slow"},
        "slow": {"level": "slow", "relief": "usual"},
    }
    for change in changes:
        state = allowed[state][change.kind]
    episodes = tracker.episodes
    assert [c.episode.onset for c in changes if c.kind == "confirmed"] == [e.onset for e in episodes]
    for episode in episodes:
        known = [p for p in (episode.onset, episode.provisional, episode.confirmed) if p is not None]
        assert known == sorted(known)
        assert known[-1] < len(times_s)
    assert all(one.relief is not None and one.onset < one.relief <= other.onset for one, other in pairwise(episodes))


@settings(max_examples=80, deadline=None)
@given(series(), modes)
def test_severity_is_the_median_of_the_event(times_s: list[float], mode: Mode) -> None:
    """Over the usual time beside it, whether the event is over or not, and at whatever moment one asks."""
    tracker = Tracker(mode)
    usual_s: list[float] = []  # beside each event that was found
    for time_s in times_s:
        confirmed = [change for change in tracker.note(time_s) if change.kind == "confirmed"]
        usual_s += [tracker.usual_s or 0.0] * len(confirmed)
        if tracker.samples % 7 == 0:
            events = [episode for episode in tracker.episodes if episode.confirmed is not None]
            for episode, beside_s in zip(events, usual_s, strict=True):
                slow = sorted(times_s[episode.onset : episode.relief or tracker.samples])
                assert episode.severity == pytest.approx(slow[len(slow) // 2] / beside_s, rel=2e-4)


def test_an_open_event_counts_as_a_whole() -> None:
    """Slow by 13 %, then by 40 %: while it is open it is as severe as half of its samples so far, and so at relief."""
    times_s = noisy([(100, 1.0), (60, 1.13), (100, 1.4)], noise=0.001)
    tracker, changes = followed(times_s)
    assert [round(change.episode.severity, 2) for change in changes if change.kind == "level"] == [1.4]
    assert [round(one.severity, 2) for one in tracker.episodes] == [1.4]
    assert [round(one.severity, 2) for one in followed(times_s[:200])[0].episodes] == [1.13]
    assert track(times_s) == tracker.episodes


@settings(max_examples=40, deadline=None)
@given(series(), modes)
def test_the_end_comes_once(times_s: list[float], mode: Mode) -> None:
    """Finishing again changes nothing, and leaves no suspicion."""
    tracker, _ = followed(times_s, mode)
    tracker.finish()
    episodes = tracker.episodes
    assert tracker.finish() == ()
    assert tracker.episodes == episodes
    assert all(episode.confirmed is not None for episode in episodes)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e-6, 1e6),
    st.lists(st.tuples(st.integers(1, 8), st.integers(9, 60), st.floats(1.0, 50.0)), max_size=20),
)
def test_short_bursts_are_no_slowness(usual_s: float, bursts: list[tuple[int, int, float]]) -> None:
    """A constant series with bursts of up to 8 iterations, as far apart, confirms nothing."""
    times_s = [usual_s] * 40
    for length, pause, factor in bursts:
        times_s += [usual_s * factor] * length + [usual_s] * pause
    assert track(times_s) == ()


@given(st.floats(1e-9, 1e9), st.integers(0, 150), modes)
@settings(max_examples=30, deadline=None)
def test_a_constant_series_is_usual(usual_s: float, samples: int, mode: Mode) -> None:
    """Nothing is found in a constant series of any length, and its time is the usual one."""
    tracker, changes = followed([usual_s] * samples, mode)
    assert tracker.finish() == ()
    assert changes == []
    assert tracker.samples == samples
    assert tracker.usual_s is None if samples == 0 else tracker.usual_s == pytest.approx(usual_s)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("time_s", [0.0, -1.0, nan, inf, -inf])
def test_what_is_no_time_is_refused(mode: Mode, time_s: float) -> None:
    """What is not a finite number above 0 is refused with its place, and the tracker goes on as if it had not come."""
    times_s = noisy([(100, 1.0), (60, 1.5)])
    tracker, changes = followed(times_s[:90], mode)
    with pytest.raises(InvalidInputError) as caught:
        tracker.note(time_s)
    assert caught.value.where is not None and "sample 90" in caught.value.where
    for one in times_s[90:]:
        changes += tracker.note(one)
    assert changes == followed(times_s, mode)[1]
    with pytest.raises(InvalidInputError, match="nan" if isnan(time_s) else "is no iteration time"):
        track([1.0, time_s], mode)


def test_wrong_settings_are_refused() -> None:
    """Fewer than 3 iterations cannot confirm, and there are two modes."""
    with pytest.raises(InvalidInputError, match="2 slow iterations"):
        Tracker(shortest=2)
    with pytest.raises(InvalidInputError, match="mode 'exact'"):
        Tracker("exact")  # type: ignore[arg-type]


def test_two_tiers_and_relief() -> None:
    """A step is suspected with its third iteration, confirmed with its tenth; a higher level and the relief follow."""
    tracker, changes = followed(noisy([(200, 1.0), (60, 1.5), (60, 2.0), (60, 1.0)]))
    assert [change.kind for change in changes] == ["provisional", "confirmed", "level", "relief"]
    episode = tracker.episodes[0]
    assert (episode.onset, episode.provisional, episode.confirmed, episode.relief) == (200, 202, 209, 320)
    assert [round(change.episode.severity, 1) for change in changes[1:3]] == [1.5, 2.0]
    assert tracker.usual_s == pytest.approx(1.0, rel=0.01)


def test_a_suspicion_is_dismissed() -> None:
    """Five slow iterations are a suspicion that goes away."""
    _, changes = followed(noisy([(100, 1.0), (5, 1.5), (50, 1.0)]))
    assert [change.kind for change in changes] == ["provisional", "dismissed"]
    assert changes[0].episode == Episode(100, 102, None, None, changes[0].episode.severity)


def test_steps_below_ten_percent_add_up() -> None:
    """Two steps of 7 % are a fail-slow, which comparing neighbours does not see."""
    times_s = noisy([(200, 1.0), (150, 1.07), (150, 1.145)])
    (episode,) = track(times_s)
    assert episode.onset == pytest.approx(350, abs=3)
    assert track(times_s, "paper") == ()


def test_slow_from_the_start() -> None:
    """What was slow from the start on shows when it ends; then it is said in hindsight."""
    tracker, changes = followed(noisy([(200, 1.4), (100, 1.0)]))
    assert [change.kind for change in changes] == ["confirmed", "relief"]
    (episode,) = tracker.episodes
    assert (episode.onset, episode.provisional, episode.relief) == (0, None, 200)
    assert episode.severity == pytest.approx(1.4, rel=0.02)


@pytest.mark.parametrize("usual", [5, 12, 20])
def test_short_series_are_judged_at_their_end(usual: int) -> None:
    """A series too short to learn from is judged by what there is."""
    tracker, changes = followed(noisy([(usual, 1.0), (0, 1.0)]))
    assert tracker.usual_s is None
    assert changes == [] == list(tracker.finish())
    assert tracker.usual_s == pytest.approx(1.0, rel=0.02)


def test_a_short_series_with_a_step() -> None:
    """Twelve iterations and twelve slow ones: the step is found at the end."""
    (episode,) = track(noisy([(14, 1.0), (14, 2.0)]))
    assert (episode.onset, episode.confirmed) == (14, 27)


def test_memory_is_bounded() -> None:
    """A hundred times the samples take no more memory."""
    tracker = Tracker()
    chance = Random(1)

    def follow(samples: int) -> int:
        for _ in range(samples):
            tracker.note(1 + chance.random() / 50)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = follow(2000)
        assert follow(20_000) - before < 2000
    finally:
        tracemalloc.stop()


def test_generated_jobs_are_judged_right() -> None:
    """In jobs shaped like the paper's tables, and hard ones, each fail-slow is found, and nothing else."""
    from rtk.benchmarks.papers.failslow import communication_jobs, computation_jobs, hard_jobs

    for job in [*islice(computation_jobs(7), 12), *islice(communication_jobs(7), 50), *hard_jobs(7)]:
        found = [(e.onset, e.relief or len(job.times_s)) for e in track(job.times_s.tolist())]
        for event in job.events:
            assert any(onset < event.end and relief > event.onset for onset, relief in found), job.kind
        for onset, relief in found:
            assert any(onset < event.end and relief > event.begun for event in job.events), job.kind


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.floats(1.2, 5.0), st.sampled_from(MODES), st.integers(3, 20), st.integers(0, 99))
def test_too_short_a_series_confirms_nothing(usual: int, factor: float, mode: Mode, shortest: int, seed: int) -> None:
    """Below `fewest_samples` no fail-slow is confirmed, wherever it begins and however slow it is."""
    count = fewest_samples(mode, shortest) - 1
    times_s = noisy([(min(usual, count), 1.0), (max(count - usual, 0), factor)], seed)
    assert all(one.confirmed is None for one in track(times_s, mode, shortest))
