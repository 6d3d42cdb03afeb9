"""Adaptra's jobs as its authors ran them: stages, micro-batches, times, and orders of the systems compared.

The paper prints neither micro-batches nor times. The authors' artifact (github.com/wutianyuan1/PipeMorph, the system's
later name) has both: its launch scripts say how many micro-batches, its profiles how long operations take, its logs how
long iterations take where nothing is slow. Of its logs of slow iterations, which the figures were drawn from, no number
is used; they only tell in which way messages pass (adaptra_messages.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

from .adaptra_messages import Delays, Way, exchanging_s, passing_s

if TYPE_CHECKING:
    from ...planners.shape import Shape
    from ...runners.simulator import Simulation
    from ...schemas.plan import Plan
    from ...schemas.profile import Profile

System = Literal["1F1B", "ZB", "Adaptra-CPU", "Adaptra"]
SYSTEMS: tuple[System, ...] = ("1F1B", "ZB", "Adaptra-CPU", "Adaptra")
IN_TURN: tuple[Way, ...] = ("forth first", "back first")

EQUAL_S = (0.01, 0.01, 0.01)  # for operations of 10 ms the artifact's generator makes the orders of ZB
# By how much a delegated message comes later: fitted to figure 14's 579 ms, and to nothing else.
DELEGATED_S = 0.0034
DELEGATED = ("how much later a delegated message comes",)


@dataclass(frozen=True, slots=True)
class Setting:
    """A pipeline of equal stages.

    Attributes:
        stages: how many.
        microbatches: how many pass.
        times_s: of F, I and W of each stage, in s (the paper's F, B and W).
    """

    stages: int
    microbatches: int
    times_s: tuple[float, float, float]

    @property
    def last(self) -> int:
        """The last link."""
        return self.stages - 2


@dataclass(frozen=True, slots=True)
class Job:
    """A job whose iterations were timed.

    Attributes:
        setting: its pipeline.
        undelayed_s: of an iteration where nothing is slow, measured: 1F1B, ZB, and ZB by delegates only. What this is
            above the simulated pipeline (the optimizer, gaps between kernels) is added to whatever is simulated.
    """

    setting: Setting
    undelayed_s: tuple[float, float, float]

    def undelayed(self, system: System) -> float:
        """Of a system, in s."""
        return self.undelayed_s[min(SYSTEMS.index(system), 2)]


def _job(stages: int, times_ms: tuple[float, float, float], undelayed_ms: tuple[float, float, float]) -> Job:
    """A job of the artifact: its scripts give each pipeline three micro-batches a stage."""
    forward_s, input_s, weight_s = (one / 1000 for one in times_ms)
    first_s, second_s, third_s = (one / 1000 for one in undelayed_ms)
    return Job(Setting(stages, 3 * stages, (forward_s, input_s, weight_s)), (first_s, second_s, third_s))


# Times: means over stages of what the artifact's profiler saw (its simu.txt, in whole ms). Iterations: its times.txt.
JOBS = {
    "7B": _job(4, (9.0, 9.75, 5.75), (421.68, 394.0, 435.4)),
    "14B": _job(8, (9.25, 10.125, 5.875), (862.08, 767.0, 787.16)),
    "30B": _job(8, (10.375, 12.25, 6.625), (974.64, 932.82, 1104.24)),
    "60B": _job(8, (11.125, 12.375, 6.125), (1040.54, 962.36, 1165.12)),
}


def fitted_of(*systems: System) -> tuple[str, ...]:
    """What was fitted to figure 14 and the times of these systems rest on."""
    return DELEGATED if any(system.startswith("Adaptra") for system in systems) else ()


def iteration_s(job: Job, system: System, delays_s: Delays, way: Way = "forth first") -> float:
    """How long an iteration of a job takes, in s.

    Args:
        job: which.
        system: whose orders, and how it sends.
        delays_s: of links.
        way: how ZB's messages share a link.
    """
    added_s = simulated_s(job.setting, system, delays_s, way) - simulated_s(job.setting, system, {}, way)
    if system == "Adaptra":  # which has the orders of ZB until something is slow
        added_s = simulated_s(job.setting, system, delays_s) - simulated_s(job.setting, "ZB", {})
    return job.undelayed(system) + added_s


def in_turn_s(job: Job, system: System, delays_s: Delays) -> tuple[float, float]:
    """The same, one message after the other on a link; a range for ZB, whose messages' order is not known."""
    found = [iteration_s(job, system, delays_s, way) for way in (IN_TURN if system == "ZB" else IN_TURN[:1])]
    return min(found), max(found)


def simulated_s(setting: Setting, system: System, delays_s: Delays, way: Way = "forth first") -> float:
    """One iteration of the pipeline alone, in s."""
    if system == "1F1B":
        return exchanging_s(one_f_one_b(setting), delays_s)
    if system == "ZB":
        return passing_s(_equal_orders(setting), unaware(setting), delays_s, way)
    return delegated(setting, system, {link: delay_s + DELEGATED_S for link, delay_s in delays_s.items()}).makespan_s


def delegated(setting: Setting, system: System, delays_s: Delays) -> Simulation:
    """One iteration by delegates: Adaptra plans for the delays, without a limit of memory; Adaptra-CPU knows none."""
    from ...runners.simulator import simulate
    from ...schemas.conditions import under_conditions

    plan = adapted(setting, delays_s) if system == "Adaptra" else unaware(setting)
    return simulate(under_conditions(plan, {}, {(None, link): delay_s for link, delay_s in delays_s.items()}))


def unaware(setting: Setting) -> Plan:
    """The orders of ZB and of Adaptra-CPU, those of equal operations, with the setting's times."""
    plan = _equal_orders(setting)
    template = plan.templates[0]
    forward_s, input_s, weight_s = setting.times_s
    stages = tuple(
        replace(stage, forward_s=forward_s, backward_input_s=input_s, backward_weight_s=weight_s)
        for stage in template.stages
    )
    return replace(plan, templates=(replace(template, stages=stages),), prediction=None)


def adapted(setting: Setting, delays_s: Delays) -> Plan:
    """Algorithm 2's plan for these delays, without a limit of memory."""
    return _adapted(setting, tuple(sorted(delays_s.items())))


@cache
def _adapted(setting: Setting, delays_s: tuple[tuple[int, float], ...]) -> Plan:
    from ...planners.adaptra.plan import plan_adaptra
    from ...planners.scheduling.solve import Effort

    delayed = replace(_shape(setting), link_delay_s={(None, link): delay_s for link, delay_s in delays_s})
    return plan_adaptra(_profile(setting), delayed, "adapted", Effort())


def _equal_orders(setting: Setting) -> Plan:
    """Algorithm 2's plan for operations of 10 ms where nothing is slow."""
    return adapted(replace(setting, times_s=EQUAL_S), {})


@cache
def one_f_one_b(setting: Setting) -> Plan:
    """1F1B's plan."""
    from ...planners.pipeline import plan_pipeline

    return plan_pipeline(_profile(setting), _shape(setting), "1f1b")


def _profile(setting: Setting) -> Profile:
    from ...schemas.profile import Layer, LayerCost, Profile

    return Profile((Layer((LayerCost(*setting.times_s),)),) * setting.stages)


def _shape(setting: Setting) -> Shape:
    from ...planners.shape import Shape

    return Shape(setting.stages, 1, setting.microbatches)
