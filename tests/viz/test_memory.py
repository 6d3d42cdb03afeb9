"""Memory over time, from spans and sizes."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.simulator import simulate
from rtk.schemas.columns import columns_of
from rtk.schemas.orders import KINDS
from rtk.schemas.plan import Plan
from rtk.schemas.timeline import Event, Span, Timeline, WorkerMemory
from rtk.viz.facts import lost_of, resumed_at_s
from rtk.viz.memory import Points, memory_curves, peak_bytes

MakePlan = Callable[..., Plan]

sizes = {"pipelines": st.integers(1, 2), "stages": st.integers(1, 4), "microbatches": st.integers(1, 5)}


def story(chance: random.Random) -> Timeline:
    """Operations in any order, epochs and re-runs among them, of a worker that holds one stage or two."""
    placed = chance.random() < 0.5
    spans = []
    for _ in range(60):
        op = chance.choice(["0", "3"] if placed else [""]) + chance.choice("FFFIIWB") + chance.choice(["0", "1", "1.1"])
        op = chance.choice(["allreduce", "step", *[op + chance.choice(["", "", "", "~"])] * 9])
        start_s = chance.randrange(40) / 2
        spans.append(Span("0/0", op, start_s, start_s + chance.randrange(4) / 2, chance.randrange(2)))
    kinds = ["epoch"] * 3 + ["resume"] * chance.choice([0, 0, 4])
    events = tuple(Event(chance.randrange(40) / 2, kind) for kind in kinds[chance.choice([0, 0, 3]) :])
    held = [WorkerMemory("0/0", 3.3, weight_stash_bytes=0.7, stage=one) for one in ((0, 3) if placed else (None,))]
    return Timeline("measured", tuple(spans), tuple(held), events)


def walked(timeline: Timeline) -> Points:
    """The same, one change after the other, with sets of what is held."""
    columns = columns_of(timeline)
    sizes, resumed_s = timeline.workers, resumed_at_s(columns)
    lost = lost_of(columns) if resumed_s else np.zeros(len(columns), dtype=bool)
    rows = [n for n in np.lexsort((columns.end_s, columns.start_s)) if columns.is_computed[n]]
    fields = columns.iteration, columns.pipeline, columns.microbatch, columns.is_again
    stage = columns.virtual_stage if sizes[0].stage is not None else np.zeros(len(columns), dtype=int)
    piece = {n: tuple(int(column[n]) for column in (*fields, stage)) for n in rows}
    kind = {n: KINDS[columns.kind[n]] for n in rows}
    changes: list[tuple[float, str, tuple[int, ...]]]
    changes = [(event.time_s, "drop", (-1,) * 5) for event in timeline.events if event.kind == "epoch"]
    changes += [((columns.start_s if kind[n] == "F" else columns.end_s)[n], kind[n], piece[n]) for n in rows]
    followed = {piece[n] for n in rows if kind[n] != "F"}
    changes += [(columns.end_s[n], "free", piece[n]) for n in rows if piece[n][3] and piece[n] not in followed]
    vain = {piece[n] for n in rows if lost[n]}
    whole, rest, points = set[Any](), set[Any](), []
    for time_s, what, one in sorted(changes, key=lambda change: change[0]):
        was_whole = one in whole
        gone = {one} if what != "drop" else vain if time_s in resumed_s else whole | rest
        whole, rest = whole - gone, rest - gone
        whole |= {one} if what == "F" else set()
        rest |= {one} if what == "I" and was_whole and not one[3] else set()
        counts = [[sum(held[4] == (size.stage or 0) for held in among) for among in (whole, rest)] for size in sizes]
        each = zip(counts, sizes, strict=True)
        points.append((time_s, sum(n * size.activation_bytes + m * size.weight_stash_bytes for (n, m), size in each)))
    return tuple(points)


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


@given(st.integers(0, 2**32))
def test_curves_are_those_of_a_walk_through_the_changes(seed: int) -> None:
    """Whatever happens, re-runs and epochs that drop all or some among it: point by point, and to the last bit."""
    timeline = story(random.Random(seed))
    assert memory_curves(timeline) == {"0/0": walked(timeline)}
