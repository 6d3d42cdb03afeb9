"""Pipelines of equal stages for Adaptra's figures: the systems compared, and what slow links cost each.

The constants of figures 14 to 17 and 21 stand here, with where they come from. The paper prints neither the times of
operations nor the number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ...planners.shape import Shape
    from ...runners.simulator import Simulation
    from ...schemas.conditions import LinkPlace
    from ...schemas.plan import Plan
    from ...schemas.profile import Profile

System = Literal["1F1B", "ZB", "Adaptra-CPU", "Adaptra"]
SYSTEMS: tuple[System, ...] = ("1F1B", "ZB", "Adaptra-CPU", "Adaptra")
BlockedSystem = Literal["1F1B", "ZB"]
BLOCKED = ("1F1B", "ZB")  # they send from the stream that computes; the others have delegates
Delays = Mapping[int, float]  # seconds by link; link i lies between stages i and i + 1

STASH = 0.5  # of an activation is held from I until W


@dataclass(frozen=True, slots=True)
class Setting:
    """A pipeline of equal stages.

    Attributes:
        stages: how many.
        microbatches: how many pass.
        times_s: of F, I and W of each stage, in s (the paper's F, B and W).
        held: for so many activations a stage has memory; None: for any number.
    """

    stages: int
    microbatches: int
    times_s: tuple[float, float, float]
    held: int | None = None

    @property
    def last(self) -> int:
        """The last link."""
        return self.stages - 2

    def scaled(self, factor: float) -> Setting:
        """The same with operations that take so many times as long."""
        forward_s, input_s, weight_s = self.times_s
        return replace(self, times_s=(factor * forward_s, factor * input_s, factor * weight_s))


# Four stages of the 7B model: figure 14's printed times and bubble rates say N (F + B + W) = 298 ms, and 370 ms without
# a delay; with F = B, 1F1B's memory and N = 8 they give these times (adaptra_figure_14.py says what of it is fitted).
SEVEN_BILLION = Setting(4, 8, (0.0153, 0.0153, 0.00665), held=4)
# Eight stages of the 14B model have as many parameters each, hence the same times; and N = 2 S again.
FOURTEEN_BILLION = replace(SEVEN_BILLION, stages=8, microbatches=16, held=8)
# Parameters per GPU, by table 2: 30 billion on 16 of them and 60 on 32, against 7 on 4 (pipelines are alike).
MODELS = {
    "7B": SEVEN_BILLION,
    "14B": FOURTEEN_BILLION,
    "30B": FOURTEEN_BILLION.scaled((30 / 16) / (7 / 4)),
    "60B": FOURTEEN_BILLION.scaled((60 / 32) / (7 / 4)),
}
BLOCKING = 1.234  # a send holds its sender for so many delays: fitted to figure 14's 703 ms
# What figure 15's 4.24 and 2.70 would want instead, fitted to them.
BLOCKING_15 = {"ZB": 2.458, "1F1B": 1.428}


def profile_of(setting: Setting) -> Profile:
    """A layer a stage, which holds a byte for each activation."""
    from ...schemas.profile import Layer, LayerCost, Profile

    layer = Layer((LayerCost(*setting.times_s),), activation_bytes=1.0, weight_stash_bytes=STASH)
    return Profile((layer,) * setting.stages)


def simulated(setting: Setting, system: System, delays_s: Delays, blocking: float = BLOCKING) -> Simulation:
    """One iteration of a system under delays of links.

    1F1B, ZB and Adaptra-CPU keep the orders they have without a delay, in the setting's memory; Adaptra plans for the
    delays, without a limit of memory, for it offloads.

    Args:
        setting: the pipeline.
        system: whose orders, and how it sends.
        delays_s: of links.
        blocking: for how many delays a send holds its sender, where it is not delegated.
    """
    from ...runners.simulator import simulate
    from ...schemas.conditions import under_conditions

    if system == "Adaptra":
        return simulate(adapted(setting, delays_s), transport="delegated")
    is_blocked = system in BLOCKED
    lasting_s: dict[LinkPlace, float] = {
        (None, link): delay_s * (blocking if is_blocked else 1) for link, delay_s in delays_s.items()
    }
    plan = under_conditions(_unaware(setting, system == "1F1B"), {}, lasting_s)
    return simulate(plan, transport="direct" if is_blocked else "delegated")


def iteration_s(setting: Setting, system: System, delays_s: Delays, blocking: float = BLOCKING) -> float:
    """How long that iteration takes, in s."""
    return simulated(setting, system, delays_s, blocking).iteration_time_s


def blocked_s(setting: Setting, system: BlockedSystem, delays_s: Delays) -> tuple[float, float]:
    """How long an iteration takes, in s, by the blocking factors of figure 14 and of figure 15."""
    factors = (BLOCKING, BLOCKING_15[system])
    low, high = sorted(iteration_s(setting, system, delays_s, factor) for factor in factors)
    return low, high


@cache
def _unaware(setting: Setting, is_1f1b: bool) -> Plan:
    """1F1B's orders, or those of Adaptra's own rules where nothing is slow, which are what the paper calls ZB."""
    from ...planners.adaptra.plan import plan_adaptra
    from ...planners.pipeline.plan import plan_pipeline
    from ...planners.scheduling.solve import Effort

    if is_1f1b:
        return plan_pipeline(profile_of(setting), "1f1b", _shape(setting))
    limited = replace(_shape(setting), memory_limit_bytes=None if setting.held is None else [float(setting.held)])
    return plan_adaptra(profile_of(setting), limited, "adapted", Effort())


def adapted(setting: Setting, delays_s: Delays) -> Plan:
    """Algorithm 2's plan for these delays, without a limit of memory."""
    from ...planners.adaptra.plan import plan_adaptra
    from ...planners.scheduling.solve import Effort

    delayed = replace(_shape(setting), link_delay_s={(None, link): delay_s for link, delay_s in delays_s.items()})
    return plan_adaptra(profile_of(setting), delayed, "adapted", Effort())


def _shape(setting: Setting) -> Shape:
    from ...planners.shape import Shape

    return Shape(setting.stages, 1, setting.microbatches)
