"""Pipelines of one shape: as the simulator has them, with micro-batches spread evenly."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.recovery.job import TrainingJob
from rtk.planners.recovery.layout import JobPipelines, alike, spread
from rtk.runners.simulator import simulate

from .stories import held_at_most, jobs


@given(st.integers(1, 100), st.integers(1, 2000))
def test_micro_batches_are_spread_as_evenly_as_can_be(pipelines: int, more: int) -> None:
    """All of them, and no pipeline has two more than another."""
    found = spread(pipelines + more, pipelines)
    assert sum(found) == pipelines + more and len(found) == pipelines
    assert max(found) - min(found) <= 1


@settings(max_examples=25)
@given(jobs(), st.data())
def test_an_outcome_is_what_the_simulator_says_of_the_plan(asked: TrainingJob, data: st.DataObject) -> None:
    """Time and the most that a GPU holds, for any number of pipelines."""
    pipelines = data.draw(st.integers(1, asked.shape.dp))
    microbatches = data.draw(st.integers(pipelines, asked.microbatches))
    found = JobPipelines(asked)
    layout = alike(spread(microbatches, pipelines))
    outcome, plan = found.outcome(layout), found.plan(layout)
    simulated = simulate(plan)
    assert outcome.iteration_time_s == pytest.approx(simulated.iteration_time_s, rel=1e-9)
    assert outcome.peak_memory_bytes == pytest.approx(held_at_most(plan, asked, simulated.peak_memory_bytes))


@settings(max_examples=10)
@given(jobs())
def test_all_pipelines_are_those_of_the_pipeline_planner(asked: TrainingJob) -> None:
    """The job's own shape has the plan that `rtk plan pipeline` makes."""
    plan = JobPipelines(asked).plan(alike([asked.shape.microbatches] * asked.shape.dp))
    assert replace(plan, planner=None) == replace(  # type: ignore[arg-type]
        plan_pipeline(asked.profile, asked.shape, asked.schedule), planner=None  # type: ignore[arg-type]
    )  # fmt: skip
