"""Memory over time, from spans and sizes."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.simulator import simulate
from rtk.schemas.plan import Plan
from rtk.schemas.timeline import Timeline
from rtk.viz.facts import memory_curves, peak_bytes

MakePlan = Callable[..., Plan]

sizes = {"pipelines": st.integers(1, 2), "stages": st.integers(1, 4), "microbatches": st.integers(1, 5)}


def test_steps_of_a_small_timeline(small: Timeline) -> None:
    """F adds the activations at its start, I leaves the stash at its end, W and B free the rest at their end."""
    assert memory_curves(small) == {"0/0": ((0, 10), (1, 20), (4, 14), (5, 10), (7, 0))}


def test_no_sizes_no_curves(small: Timeline) -> None:
    """A worker without sizes, or without activations, has no curve."""
    assert memory_curves(replace(small, workers=())) == {}
    assert memory_curves(replace(small, workers=(replace(small.workers[0], activation_bytes=0),))) == {}


def test_backward_without_forward_frees_nothing(small: Timeline) -> None:
    """A timeline that begins in the middle never shows less than nothing."""
    assert {size for _, size in memory_curves(replace(small, spans=small.spans[2:]))["0/0"]} == {0}


def test_iterations_hold_their_own(small: Timeline) -> None:
    """The same micro-batch of two iterations under way at once is held twice."""
    again = tuple(replace(s, iteration=1, start_s=s.start_s + 2, end_s=s.end_s + 2) for s in small.spans)
    curve = memory_curves(replace(small, spans=small.spans + again))["0/0"]
    assert peak_bytes(curve) > peak_bytes(memory_curves(small)["0/0"])
    assert curve[-1] == (9, 0)


@given(split=st.booleans(), **sizes)
def test_never_negative_and_zero_at_the_end(
    make_plan: MakePlan, split: bool, pipelines: int, stages: int, microbatches: int
) -> None:
    """Over a whole iteration memory rises in time order, is never negative, and ends at exactly zero."""
    simulation = simulate(make_plan(pipelines, stages, microbatches, split))
    curves = memory_curves(simulation.timeline)
    assert len(curves) == pipelines * stages
    for points in curves.values():
        assert all(size >= 0 for _, size in points)
        assert [time_s for time_s, _ in points] == sorted(time_s for time_s, _ in points)
        assert points[-1][1] == 0


def test_peaks_are_the_simulators(rerouted_plan: Plan, rerouted: Timeline) -> None:
    """The curves' peaks are those that the simulator counts on its own."""
    peaks = {worker: peak_bytes(points) for worker, points in memory_curves(rerouted).items()}
    simulated = dict(
        zip((w.name for w in rerouted_plan.workers), simulate(rerouted_plan).peak_memory_bytes, strict=True)
    )
    assert all(abs(simulated[worker] - peak) < 1e-6 for worker, peak in peaks.items())
