"""Fits of latency and bandwidth: exact where the data are, bounded where noise is, deaf to what does not fit."""

import itertools
import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.profilers.link_survey import LinkFit, fit_allreduce, fit_link

latencies = st.one_of(st.just(0.0), st.floats(1e-7, 1.0))
per_byte = st.one_of(st.just(0.0), st.floats(1e-12, 1e-6))
SIZES = [4.0**power for power in range(1, 13)]
size_lists = st.lists(st.sampled_from(SIZES), min_size=2, max_size=9, unique=True).map(sorted)


def cost(readings_s: Mapping[float, Sequence[float]], alpha: float, beta: float) -> float:
    """The sum of errors of a line, of one reading a size."""
    return sum(abs(math.log((alpha + beta * size) / time_s)) for size, (time_s,) in readings_s.items())


@given(latencies, per_byte, size_lists, st.integers(1, 4))
def test_exact_times_give_exact_latency_and_bandwidth(
    alpha: float, beta: float, sizes: list[float], repeat: int
) -> None:
    """Times on a line give that line, without an error and without a range."""
    if alpha + beta == 0:
        return
    fit = fit_link({size: [alpha + beta * size] * repeat for size in sizes})
    first_s, last_s = alpha + beta * sizes[0], alpha + beta * sizes[-1]
    assert fit.latency_s == pytest.approx(alpha, rel=1e-6, abs=1e-6 * first_s)
    assert fit.s_per_byte == pytest.approx(beta, rel=1e-6, abs=1e-6 * last_s / sizes[-1])
    assert fit.worst_error < 1e-6
    for span, value in ((fit.latency_range_s, fit.latency_s), (fit.s_per_byte_range, fit.s_per_byte)):
        assert span == pytest.approx((value, value), rel=1e-9)


@given(st.floats(1e-6, 0.1), st.floats(1e-12, 1e-7), size_lists, st.data())
def test_bounded_noise_gives_a_bounded_error(
    alpha: float, beta: float, sizes: list[float], data: st.DataObject
) -> None:
    """Noise of 5 % at most bounds the errors at all sizes, and so those of latency and bandwidth."""
    noise = data.draw(st.lists(st.floats(-0.05, 0.05), min_size=len(sizes), max_size=len(sizes)))
    true_s = [alpha + beta * size for size in sizes]
    fit = fit_link({size: [time_s * (1 + part)] for size, time_s, part in zip(sizes, true_s, noise, strict=True)})
    # The line through the first and the last point, or through the last one without latency, is among those tried.
    noise_log = math.log(1.05 / 0.95)
    most_log = 2 * len(sizes) * noise_log
    assert math.log1p(fit.worst_error) <= most_log + 1e-9
    assert math.log1p(fit.median_error) <= 4 * noise_log + 1e-9
    off = math.exp(most_log + noise_log) - 1  # of the fit from the true line, at each size
    least, most = sizes[0], sizes[-1]
    assert abs(fit.latency_s - alpha) <= off * (true_s[0] * most + true_s[-1] * least) / (most - least)
    assert abs(fit.s_per_byte - beta) <= off * (true_s[0] + true_s[-1]) / (most - least)


@given(size_lists, st.data())
def test_no_line_through_two_points_fits_better(sizes: list[float], data: st.DataObject) -> None:
    """Whatever was measured, no line through two of the points, without negative parts, has a smaller sum of errors."""
    times_s = data.draw(st.lists(st.floats(1e-6, 1.0), min_size=len(sizes), max_size=len(sizes)))
    readings_s = {size: [time_s] for size, time_s in zip(sizes, times_s, strict=True)}
    fit = fit_link(readings_s)
    assert fit.latency_s >= 0
    assert fit.s_per_byte >= 0
    for (one, one_s), (other, other_s) in itertools.combinations(zip(sizes, times_s, strict=True), 2):
        beta = (other_s - one_s) / (other - one)
        if beta >= 0 and one_s - beta * one >= 0:
            found = cost(readings_s, fit.latency_s, fit.s_per_byte)
            assert found <= cost(readings_s, one_s - beta * one, beta) * (1 + 1e-9)


@given(st.floats(1e-6, 0.1), st.floats(1e-12, 1e-7), st.integers(1, len(SIZES) - 2), st.floats(0.001, 1000))
def test_a_size_that_does_not_fit_does_not_bend_the_line(alpha: float, beta: float, odd: int, factor: float) -> None:
    """One size between others may take any time: the line is that of the others, and the size its worst error."""
    times_s = {size: [alpha + beta * size] for size in SIZES}
    times_s[SIZES[odd]][0] *= factor
    fit = fit_link(times_s)
    assert fit.latency_s == pytest.approx(alpha, rel=1e-5)
    assert fit.s_per_byte == pytest.approx(beta, rel=1e-5, abs=1e-5 * alpha / SIZES[-1])
    assert fit.worst_error == pytest.approx(max(factor, 1 / factor) - 1, rel=1e-4, abs=1e-6)


@given(st.integers(2, 64), st.floats(1e-6, 0.1), st.floats(1e-12, 1e-7))
def test_a_ring_gives_its_step(ranks: int, alpha: float, beta: float) -> None:
    """An all-reduce of 2 (n - 1) steps of 1/n of the bytes has the latency and the bandwidth of one of them."""
    readings_s = {int(size): [2 * (ranks - 1) * (alpha + size / ranks * beta)] for size in SIZES}
    fit = fit_allreduce(readings_s, ranks)
    assert fit.latency_s == pytest.approx(alpha)
    assert fit.s_per_byte == pytest.approx(beta, rel=1e-5)


@settings(max_examples=20)
@given(st.lists(st.lists(st.floats(1e-5, 1e-2), min_size=3, max_size=9), min_size=2, max_size=5), st.integers(0, 9))
def test_ranges_hold_the_estimate_and_repeat(times_s: list[list[float]], seed: int) -> None:
    """The same readings and seed give the same fit, whose ranges hold what it says."""
    readings_s = dict(zip(SIZES, times_s, strict=False))
    fit: LinkFit = fit_link(readings_s, seed)
    assert fit == fit_link(readings_s, seed)
    for (low, high), value in ((fit.latency_range_s, fit.latency_s), (fit.s_per_byte_range, fit.s_per_byte)):
        assert low <= value <= high


def test_no_bandwidth_where_size_makes_no_difference() -> None:
    """Times that do not grow with the size have no bandwidth, and a range that is open above."""
    fit = fit_link({size: [2.0, 2.0] for size in (1, 10, 100)})
    assert fit.bandwidth_bytes_per_s is None
    assert fit.bandwidth_range_bytes_per_s[1] is None
    assert fit.latency_s == 2.0


@given(st.floats(1e-6, 0.1), st.floats(1e-12, 1e-7), st.lists(st.floats(1, 1000), min_size=1, max_size=5))
def test_readings_that_have_waited_change_nothing(alpha: float, beta: float, waits: list[float]) -> None:
    """Where more than a quarter of the readings of every size have not waited, the others may be any times longer."""
    parts = [1.0] * (len(waits) // 3 + 2) + waits
    fit = fit_link({size: [part * (alpha + beta * size) for part in parts] for size in SIZES})
    assert fit.latency_s == pytest.approx(alpha, rel=1e-5)
    assert fit.s_per_byte == pytest.approx(beta, rel=1e-5, abs=1e-5 * alpha / SIZES[-1])
