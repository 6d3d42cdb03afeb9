"""Pipelines of equal stages for Greyhound's figures: as they are with slow workers, and after S2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from .measured import stages_profile

if TYPE_CHECKING:
    from ...schemas.profile import Profile


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """One slow pipeline among alike ones: iteration times in s, healthy, slow, and after S2 with its micro-batches."""

    healthy_s: float
    slow_s: float
    after_s: float
    microbatches: tuple[int, ...]

    @property
    def before(self) -> float:
        """How many times as long as healthy."""
        return self.slow_s / self.healthy_s

    @property
    def after(self) -> float:
        """How many times as long as healthy after S2."""
        return self.after_s / self.healthy_s


def iteration_s(profile: Profile, stages: int, pipelines: int, microbatches: int, slow: Mapping[str, float]) -> float:
    """An iteration of 1F1B with workers slow, nothing done about them, simulated; in s."""
    from ...planners.pipeline import plan_pipeline
    from ...planners.shape import Shape
    from ...runners.simulator import simulate
    from ...schemas.conditions import under_conditions

    plan = plan_pipeline(profile, Shape(stages, pipelines, microbatches), "1f1b")
    return simulate(under_conditions(plan, slow, {})).iteration_time_s


@cache
def rebalanced(
    stages: int,
    pipelines: int,
    microbatches: int,
    factor: float,
    slow: int = 1,
    stage: int = 0,
    microbatch_s: float = 1.0,
) -> Rebalanced:
    """S2 by rtk's planner, simulated, where a worker each of some pipelines is slow.

    Args:
        stages: of each pipeline.
        pipelines: alike ones.
        microbatches: of each pipeline at first.
        factor: how many times as long the slow workers take.
        slow: how many pipelines have one.
        stage: of the slow workers.
        microbatch_s: F and B at a stage.
    """
    from ...planners.greyhound.mitigate import plan_topology
    from ...planners.shape import Shape
    from ...runners.simulator import simulate

    profile, shape = stages_profile([microbatch_s] * stages), Shape(stages, pipelines, microbatches)
    factors = {f"{k}/{stage}": factor for k in range(slow)}
    made = plan_topology(profile, shape, factors, {})
    return Rebalanced(
        iteration_s(profile, stages, pipelines, microbatches, {}),
        iteration_s(profile, stages, pipelines, microbatches, factors),
        simulate(made).iteration_time_s,
        tuple(pipeline.microbatches for pipeline in made.pipelines),
    )
