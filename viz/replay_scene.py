"""What every picture of a replay shows: averages over equal steps of time, shares of the time, colours."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

from ..schemas.replay_report import PolicyReport, ReplayReport, Stretch
from .looks import ALARM, GROUND, INK, LOOKS, curve_colour
from .units import SECOND, TimeUnit

FAULT_FREE = "fault-free"  # what all others are measured against; no way of surviving anything

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0
_UNITS = (
    (3 * DAY_S, TimeUnit("days", 1 / DAY_S)),
    (2 * HOUR_S, TimeUnit("h", 1 / HOUR_S)),
    (3 * MINUTE_S, TimeUnit("min", 1 / MINUTE_S)),
)

# Steps are of a round length, so that a year is drawn day by day.
MOST_STEPS = 366
_STEPS_S = (
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(MINUTE_S * count for count in (1, 2, 5, 10, 15, 30)),
    *(HOUR_S * count for count in (1, 2, 3, 6, 12)),
    *(DAY_S * count for count in (1, 2, 4, 7, 14, 28)),
)

# In a shorter step it is to be seen which iteration happened to end in it, and not how fast they were.
LEAST_ITERATIONS = 5

# Okabe and Ito's colours first, as far as they can be seen as a line on white; then darker ones.
_COLOURS = (
    LOOKS["F"].colour, LOOKS["B"].colour, LOOKS["W"].colour, LOOKS["allreduce"].colour, INK, LOOKS["I"].colour,
    curve_colour(1), curve_colour(2), ALARM, LOOKS["other"].colour, curve_colour(0),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Purpose:
    """What time went to: words, a colour, and whether words in it must be white to be read."""

    words: str
    colour: str
    is_dark: bool = False


USEFUL = Purpose("working at the fault-free pace", LOOKS["W"].colour)
SLOWER = Purpose("working, slower than that", "#BFE8DB")
_PURPOSES = {
    "lost_s": Purpose("lost work", ALARM, is_dark=True),
    "detecting_s": Purpose("detecting", curve_colour(1), is_dark=True),
    "planning_s": Purpose("planning", LOOKS["allreduce"].colour),
    "copying_s": Purpose("copying", LOOKS["F"].colour),
    "restarting_s": Purpose("restarting", LOOKS["I"].colour),
    "checkpointing_s": Purpose("checkpointing", LOOKS["step"].colour),
    "waiting_s": Purpose("waiting", GROUND),
}
PURPOSES = (USEFUL, SLOWER, *_PURPOSES.values())


@dataclass(frozen=True, slots=True)
class Axis:
    """Time from 0 to an end, in steps of one length; the last one is up to a half shorter or longer."""

    end_s: float
    step_s: float

    @property
    def steps(self) -> int:
        """How many there are."""
        return max(1, round(self.end_s / self.step_s))

    @property
    def unit(self) -> TimeUnit:
        """In which it reads well."""
        return next((unit for least_s, unit in _UNITS if self.end_s >= least_s), SECOND)

    def edge(self, step: int) -> float:
        """Where a step begins; the one after the last: the end."""
        return step * self.step_s if step < self.steps else self.end_s


@dataclass(frozen=True, slots=True)
class Course:
    """A policy over time: averages over each step of the axis.

    Attributes:
        policy: what it made of the trace.
        colour: its own.
        throughput: as a share of the fault-free cluster's.
        working, there: nodes.
    """

    policy: PolicyReport
    colour: str
    throughput: tuple[float, ...]
    working: tuple[float, ...]
    there: tuple[float, ...]


def axis_of(report: ReplayReport, most: int = MOST_STEPS) -> Axis:
    """The time axis, in at most so many steps of some iterations each: of the first round length that does."""
    end_s = max(_ends_s(report.policies), default=0.0)
    least_s = max(end_s / most, LEAST_ITERATIONS * max(one.healthy_iteration_time_s for one in report.policies))
    step_s = next((step_s for step_s in _STEPS_S if step_s >= least_s), least_s)
    return Axis(end_s, min(step_s, end_s) or step_s)


def courses_of(report: ReplayReport, axis: Axis, colours: dict[str, str]) -> list[Course]:
    """The policies that train, the best first; the fault-free cluster only where nothing else trains."""
    per_s = fault_free_per_s(report)
    return [_course(policy, axis, per_s, colours[policy.policy]) for policy in contestants(report)]


def ranked(report: ReplayReport) -> list[PolicyReport]:
    """The policies that train, the best first."""
    return sorted((one for one in report.policies if one.refusal is None), key=lambda one: -one.goodput)


def contestants(report: ReplayReport) -> list[PolicyReport]:
    """The policies that train, the best first, without the fault-free cluster unless it is alone."""
    trained = ranked(report)
    return [one for one in trained if one.policy != FAULT_FREE] or trained


def colours_of(reports: Iterable[ReplayReport]) -> dict[str, str]:
    """A colour for each policy, the same in all reports; those after the eleventh share them."""
    names = dict.fromkeys(one.policy for report in reports for one in report.policies)
    return {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(names)}


def duration_s(policy: PolicyReport) -> float:
    """How long its replay took: all that its time went to."""
    return float(sum(getattr(policy.time, one.name) for one in fields(policy.time)))


def fault_free_per_s(report: ReplayReport) -> float:
    """Micro-batches that the fault-free cluster commits each second: what makes a policy's goodput out of its own."""
    best = max(report.policies, key=lambda one: one.microbatches)
    lasts_s = duration_s(best)
    return best.microbatches / best.goodput / lasts_s if best.goodput > 0 and lasts_s > 0 else 0.0


def shares_of(policy: PolicyReport) -> list[tuple[Purpose, float]]:
    """Where time went, in shares of the whole that add up to 1.

    Working is told in two parts: so long would the fault-free cluster have taken, and the rest, which went by because
    iterations were slower than that cluster's: nodes were missing, slow, or more busy.
    """
    whole_s = duration_s(policy) or 1.0
    working = policy.time.working_s / whole_s
    useful = min(max(policy.goodput, 0.0), working)
    others = [(purpose, getattr(policy.time, name) / whole_s) for name, purpose in _PURPOSES.items()]
    return [(USEFUL, useful), (SLOWER, working - useful), *others]


def averages(axis: Axis, stretches: Sequence[Stretch], value: Callable[[Stretch], float]) -> tuple[float, ...]:
    """Time-weighted means of a value over each step of an axis; a stretch lasts until the next one begins."""
    sums = [0.0] * axis.steps
    ends = [*(stretch.time_s for stretch in stretches[1:]), axis.end_s]
    for stretch, end_s in zip(stretches, ends, strict=False):  # without stretches there is still an end
        for step in range(_step_at(axis, stretch.time_s), _step_at(axis, end_s) + 1):
            lasts_s = min(end_s, axis.edge(step + 1)) - max(stretch.time_s, axis.edge(step))
            sums[step] += max(0.0, lasts_s) * value(stretch)
    lengths = (axis.edge(step + 1) - axis.edge(step) for step in range(axis.steps))
    return tuple(total / length if length > 0 else 0.0 for total, length in zip(sums, lengths, strict=True))


def _step_at(axis: Axis, time_s: float) -> int:
    return min(int(time_s / axis.step_s), axis.steps - 1) if axis.step_s > 0 else 0


def _ends_s(policies: Iterable[PolicyReport]) -> Iterable[float]:
    for one in policies:
        yield max(duration_s(one), one.stretches[-1].time_s if one.stretches else 0.0)


def _course(policy: PolicyReport, axis: Axis, per_s: float, colour: str) -> Course:
    stretches = policy.stretches
    return Course(
        policy,
        colour,
        averages(axis, stretches, lambda one: max(0.0, one.microbatches_per_s) / per_s if per_s else 0.0),
        averages(axis, stretches, lambda one: one.working_nodes),
        averages(axis, stretches, lambda one: one.nodes),
    )
