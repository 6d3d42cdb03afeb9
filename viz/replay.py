"""What every picture of a replay shows: averages over equal steps of time, shares of the time, colours, and words for
whoever pays for the cluster: which policy is best, what that is worth, what was assumed.

And still pictures: throughput of all policies, each policy beside its nodes, and where time went.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ..schemas.quantities import (
    SECOND,
    TimeUnit,
    print_bytes,
    print_number,
    print_percent,
    print_rate,
    print_share,
    print_time,
    ticks,
)
from ..schemas.replay import PolicyReport, ReplayReport, Stretch
from .painter import PAD, WIDTH, Picture, Sheet, number_axis, painting, stepped, time_axis
from .style import ALARM, FAINT, GROUND, INK, LOOKS, DrawnBox, apart, curve_colour, measured, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
class TimeAxis:
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


def axis_of(report: ReplayReport, most: int = MOST_STEPS) -> TimeAxis:
    """The time axis, in at most so many steps of some iterations each: of the first round length that does."""
    ends_s = (max([duration_s(one), *(last.time_s for last in one.stretches[-1:])]) for one in report.policies)
    end_s = max(ends_s, default=0.0)
    least_s = max(end_s / most, LEAST_ITERATIONS * max(one.healthy_iteration_time_s for one in report.policies))
    step_s = next((step_s for step_s in _STEPS_S if step_s >= least_s), least_s)
    return TimeAxis(end_s, min(step_s, end_s) or step_s)


def courses_of(report: ReplayReport, axis: TimeAxis, colours: dict[str, str]) -> list[Course]:
    """The policies that train, the best first; the fault-free cluster only where nothing else trains."""
    per_s = fault_free_per_s(report)
    return [
        Course(
            policy,
            colours[policy.policy],
            averages(axis, policy.stretches, lambda one: max(0.0, one.microbatches_per_s) / per_s if per_s else 0.0),
            averages(axis, policy.stretches, lambda one: one.working_nodes),
            averages(axis, policy.stretches, lambda one: one.nodes),
        )
        for policy in contestants(report)
    ]


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


def averages(axis: TimeAxis, stretches: Sequence[Stretch], value: Callable[[Stretch], float]) -> tuple[float, ...]:
    """Time-weighted means of a value over each step of an axis; a stretch lasts until the next one begins."""
    sums = [0.0] * axis.steps
    ends = [*(stretch.time_s for stretch in stretches[1:]), axis.end_s]
    for stretch, end_s in zip(stretches, ends, strict=False):  # without stretches there is still an end
        for step in range(_step_at(axis, stretch.time_s), _step_at(axis, end_s) + 1):
            lasts_s = min(end_s, axis.edge(step + 1)) - max(stretch.time_s, axis.edge(step))
            sums[step] += max(0.0, lasts_s) * value(stretch)
    lengths = (axis.edge(step + 1) - axis.edge(step) for step in range(axis.steps))
    return tuple(total / length if length > 0 else 0.0 for total, length in zip(sums, lengths, strict=True))


def _step_at(axis: TimeAxis, time_s: float) -> int:
    return min(int(time_s / axis.step_s), axis.steps - 1) if axis.step_s > 0 else 0


RESTART = "checkpoint-restart"  # what everybody can do without any of the others
QUESTION = "Which policy should this cluster run?"
# Goodputs that print alike are alike.
LEVEL = 0.0005
MOST_DECIMALS = 12
# What is said of a job and of a trace, as far as it is known.
_JOB_WORDS = (
    ("dp", "{} pipeline{}"), ("pp", "{} stage{}"), ("microbatches", "{} micro-batch{e} a pipeline"),
    ("tensor_parallel", "tensor parallelism {}"), ("nodes", "{} node{}"), ("gpus_per_node", "GPUs of a node: {}"),
    ("schedule", "schedule {}"),
)  # fmt: skip
_TRACE_WORDS = (
    ("moments", "{} change{}"), ("moments_with_losses", "{} of them with losses"), ("nodes_lost", "{} node{} lost"),
    ("gpus_lost", "{} GPU{} of nodes that stayed lost"),
    ("nodes_at_start", "{} node{} at the start"), ("nodes_min", "{} at the fewest"), ("nodes_max", "{} at the most"),
)  # fmt: skip


def print_span(seconds: float) -> str:
    """A time in the unit in which people say it, such as `30 min`, `12 h` or `345 days`."""
    for unit_s, name in ((DAY_S, "days"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if seconds >= 3 * unit_s or (seconds >= unit_s and seconds % unit_s == 0):
            count = print_number(float(f"{seconds / unit_s:.3g}"))
            return f"{count} day" if name == "days" and count == "1" else f"{count} {name}"
    return print_time(seconds)


def print_amount(value: float, most: float | None = None) -> str:
    """A number of hours or a sum of money, such as `1,234` or `12.3`.

    Args:
        value: the number.
        most: the greatest of those that stand under each other, all with its decimals; None: it stands alone.
    """
    greatest = abs(value if most is None else most)
    decimals = max(0, 2 - math.floor(math.log10(greatest))) if 0 < greatest < 100 else 0
    return f"{value:z,.{min(decimals, MOST_DECIMALS)}f}"


def most_amounts(report: ReplayReport) -> tuple[float, float]:
    """The most GPU-hours and the highest cost of all policies, whose decimals all others have."""
    trained = ranked(report)
    hours = max((one.gpu_hours.present for one in trained), default=0.0)
    return hours, max((one.cost for one in trained), default=0.0)


def print_memory(size: float) -> str:
    """A GPU's memory with one decimal of GiB, such as `74.0 GiB`; what is smaller as it is."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else print_bytes(size)


def title_of(report: ReplayReport) -> str:
    """Whose replay it is."""
    return f"{_told(report.job, 'model', 'A model')} under {trace_name(report)}"


def trace_name(report: ReplayReport) -> str:
    """The trace's file, without its folders."""
    return PurePath(str(report.trace.get("name") or "a trace")).name


def report_facts(report: ReplayReport) -> list[str]:
    """A line each about the job and about the trace, as far as the report knows.

    `Job: gpt3-2.7b, 4 pipelines, 8 stages, 8 micro-batches a pipeline, …`
    """
    job, trace = report.job, report.trace
    of_job = [_counted(form, job[name]) for name, form in _JOB_WORDS if job.get(name) is not None]
    span, mean = trace.get("duration_s"), trace.get("nodes_mean")
    of_trace = [print_span(span)] if isinstance(span, int | float) else []
    of_trace += [_counted(form, trace[name]) for name, form in _TRACE_WORDS if trace.get(name) is not None]
    of_trace += [f"{mean:.3g} on average"] if isinstance(mean, int | float) else []
    return [
        f"Job: {', '.join([_told(job, 'model', 'a model'), *of_job])}",
        f"Trace: {', '.join([trace_name(report), *of_trace])}",
        *(f"Note: {one}." for one in report.remarks),
    ]


def verdict(report: ReplayReport) -> str:
    """For a manager, as HTML: the best policy, how much better than others it is, and what that is worth."""
    if not ranked(report):
        return "None of the policies can train this job at all; the table says why."
    best, *others = contestants(report)
    if best.policy == FAULT_FREE:
        return "No policy was replayed that survives failures: there is nothing to choose from."
    if best.goodput <= 0:
        return "Nothing that any policy trains under this trace counts in the end: there is nothing to choose from."
    of = f"the best of {len(others) + 1} policies" if others else "the only policy that was replayed"
    compared = [*others[:1], *(one for one in others[1:] if one.policy == RESTART)]
    said = [
        f"<strong>{escape(best.policy)}</strong> is {of}: it trains <strong>{print_share(best.goodput)}</strong> of "
        "what the whole cluster would if nothing ever failed.",
        *(_against(best, one, is_next=place == 0) for place, one in enumerate(compared)),
    ]
    base = next((one for one in others if one.policy == RESTART), None)
    said.append(_worth(best, base))
    said.append("All this is computed from a trace and assumed costs, which stand at the end.")
    return " ".join(said).replace(" %", "&nbsp;%")


def assumptions(report: ReplayReport) -> list[tuple[str, str]]:
    """What the figures hang on, as words and their meaning in HTML."""
    found = [("Nodes and workers", report.mapping), ("Costs of changes", cost_words(report.costs))]
    time_s, nodes = report.fault_free.get("iteration_time_s"), report.fault_free.get("nodes")
    if isinstance(time_s, int | float) and nodes is not None:
        count = f"{report.fault_free['microbatches']} micro-batches" if "microbatches" in report.fault_free else ""
        found.append(("100 %", f"what {nodes} nodes would train that never fail: an iteration {'of ' * bool(count)}"
                      f"{count} each {print_time(time_s)}, without checkpoints"))  # fmt: skip
    bound = report.fault_free.get("goodput_bound")
    if isinstance(bound, int | float):
        found.append(
            (
                "At most",
                f"{print_percent(bound)}: no policy can train more, for all GPUs that are there compute all the time",
            )
        )
    return [(word, escape(text)) for word, text in found if text]


def cost_words(costs: Mapping[str, Any]) -> str:
    """The fields of `Costs`, with their units; those without a number were left to rtk."""
    given = [_cost(name, value) for name, value in sorted(costs.items()) if value is not None]
    left = [_cost_name(name) for name, value in sorted(costs.items()) if value is None]
    return ", ".join(given) + (f"; worked out from the model and the trace: {', '.join(left)}" if left else "")


def _cost(name: str, value: Any) -> str:
    """A cost with its unit; whatever stands in a file's place of a number, as it is."""
    if not isinstance(value, int | float) or not name.endswith("_s"):
        return f"{_cost_name(name)} {value}"
    is_rate = name.endswith("_bytes_per_s")
    return f"{_cost_name(name)} {f'{print_rate(value)}' if is_rate else print_span(value)}"


def _cost_name(name: str) -> str:
    words = name.removesuffix("_s").removesuffix("_bytes_per").replace("_", " ")
    return words.replace("gpu hour", "GPU-hour")


def _against(best: PolicyReport, other: PolicyReport, is_next: bool) -> str:
    """How much better the best is than another."""
    name = ("The next best, " if is_next else "") + escape(other.policy)
    if best.goodput - other.goodput < LEVEL:
        return f"{name}, is level with it." if is_next else f"{name} is level with it."
    verb = ", trains" if is_next else " trains"
    less = f", {print_share(1 - other.goodput / best.goodput)} less training" if other.goodput > 0 else ""
    return f"{name}{verb} {print_share(other.goodput)}{less}."


def _worth(best: PolicyReport, base: PolicyReport | None) -> str:
    """What the best gains over check-pointing and restarting, in GPU-hours and money; without that, what it uses."""
    if base is None:
        return (
            f"{print_amount(best.gpu_hours.present)} GPU-hours train what would take a cluster that never fails "
            f"{print_amount(best.gpu_hours.useful)}."
        )
    hours = best.gpu_hours.useful - base.gpu_hours.useful
    bill = f" that costs {print_amount(best.cost)} either way" if best.cost > 0 else ""
    present = best.gpu_hours.present
    price = ""
    if present > 0 and best.cost > 0:
        each = best.cost / present
        price = f", worth <strong>{print_amount(hours * each)}</strong> at {print_number(round(each, 6))} a GPU-hour"
    return (
        f"Beside {escape(base.policy)} it saves <strong>{print_amount(hours)} GPU-hours</strong>{price}: "
        f"so much more training comes out of a cluster{bill}."
    )


def _told(facts: Mapping[str, Any], name: str, otherwise: str) -> str:
    return str(facts[name]) if facts.get(name) is not None else otherwise


def _counted(form: str, count: Any) -> str:
    """A count with its noun, in the singular where it is 1."""
    return form.format(count, "" if count == 1 else "s", e="" if count == 1 else "es")


LEFT, RIGHT = 150, 200  # for the policies' names, and for these with their goodputs
PLOT, NODES, STRIP, BAR = 250, 50, 30, 18
GAP, BAR_GAP, LABEL_LINE, AXIS = 7, 4, 15, 40
# Lines cross each other less in longer steps.
OVERLAID_STEPS = 92
# Where little is missing, an axis of shares begins not at 0, but so far below 1 that what is missing can be seen.
ZOOMS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)

Part = Callable[[Sheet, ReplayReport, dict[str, str]], None]


@painting()
def replay_picture(reports: Sequence[tuple[str, ReplayReport]], title: str | None = None) -> Picture:
    """Draw reports as one still picture, one under the other.

    Args:
        reports: with their names, which are written where there are several.
        title: stands above; None: the model's name and the trace's, or of several reports the question.
    """
    sheet = Sheet(title or (title_of(reports[0][1]) if len(reports) == 1 else QUESTION))
    colours = colours_of(report for _, report in reports)
    sheet.heading(report_facts(reports[0][1]) if len(reports) == 1 else ())
    for name, report in reports:
        if len(reports) > 1:
            sheet.y += 6
            sheet.subtitle(name)
            sheet.facts(report_facts(report))
        for part in (draw_overlaid, draw_strips, draw_bars):
            sheet.y += 10
            part(sheet, report, colours)
    return sheet.picture()


@painting()
def replay_part(part: Part, report: ReplayReport, colours: dict[str, str]) -> Picture:
    """One of the parts as a picture of its own."""
    sheet = Sheet(title_of(report))
    part(sheet, report, colours)
    return sheet.picture()


def draw_overlaid(sheet: Sheet, report: ReplayReport, colours: dict[str, str]) -> None:
    """Throughput of every policy over time, all in one plot, and above it the nodes that are there.

    Args:
        sheet: on which, beneath what is there.
        report: whose policies.
        colours: of the policies.
    """
    axis, fine = axis_of(report, OVERLAID_STEPS), axis_of(report)
    courses = courses_of(report, axis, colours)
    if not courses:
        return
    sheet.subtitle("Throughput over time")
    there = courses_of(report, fine, colours)[0].there
    high, low = round_range(there)
    begins = f"; the axis begins at {low:.0f}" if low else ""
    _remark(sheet, f"Nodes there; each step is the average of {print_span(fine.step_s)}{begins}", 20)
    nodes = _over_time(sheet, fine, NODES, (low, high))
    _area(nodes, fine, there, GROUND, NODES)
    counts = [low + count for count in ticks(high - low, 3) if count == int(count)]
    number_axis(nodes, "y", counts, [f"{count:.0f}" for count in counts])
    high, low = share_range([share for one in courses for share in one.throughput])
    _remark(
        sheet,
        f"Throughput, as a share of the fault-free cluster's; each step is the average of {print_span(axis.step_s)}; "
        f"at the right, goodput: the average of the whole trace{zoom_words(low)}",
        22,
    )
    top = sheet.y
    plot = _over_time(sheet, axis, PLOT, (low, high))
    shares = [low + share for share in ticks(high - low, 6)]
    number_axis(plot, "y", shares, [print_percent(share) for share in shares])
    time_axis(plot, axis.unit, axis.end_s, 12)
    plot.axhline(1.0, color=FAINT, linewidth=1.0, dashes=(5, 4))
    for course in reversed(courses):
        xs, ys = stepped(plot, _edges(axis), course.throughput, PLOT)
        plot.plot(xs, ys, color=course.colour, linewidth=1.7, solid_joinstyle="miter")
    scale = PLOT / (high - low)
    ends = [(top + scale * (high - 1.0), FAULT_FREE, FAINT, FAINT)]
    for one in courses:
        goodput = f" {print_share(one.policy.goodput)}"
        name = shortened(one.policy.policy, RIGHT - 22 - PAD - measured(goodput))
        ends.append((top + scale * (high - min(max(one.throughput[-1], low), high)), name + goodput, one.colour, INK))
    ends.sort(key=lambda one: one[:2])
    x, bottom = WIDTH - RIGHT, max(top + PLOT, top + LABEL_LINE * (len(ends) - 1))
    for y, (at, words, colour, ink) in zip(apart([one[0] for one in ends], LABEL_LINE, bottom), ends, strict=True):
        sheet.line([x + 1, x + 13, x + 18], [at, y, y], colour)
        sheet.words(x + 22, y + 4, words, ink)
    sheet.y = max(sheet.y, bottom - AXIS + 10) + AXIS


def draw_strips(sheet: Sheet, report: ReplayReport, colours: dict[str, str]) -> None:
    """Each policy over time by itself: its throughput, its nodes at work, and the nodes that are there.

    Args:
        sheet: on which, beneath what is there.
        report: whose policies.
        colours: of the policies.
    """
    axis = axis_of(report)
    courses = courses_of(report, axis, colours)
    if not courses:
        return
    full = max(max(course.working) for course in courses) or 1.0
    seen = [
        share for one in courses for share in (*one.throughput, *(count / full for count in (*one.working, *one.there)))
    ]
    high, low = share_range(seen)
    sheet.subtitle("Each policy by itself")
    few = [course.colour for course in courses[:3]]
    sheet.key([((GROUND,), "nodes there", False), ((INK,), "nodes at work, the line", False),
               (few, "throughput, in the policy's colour", False)], LEFT)  # fmt: skip
    _remark(
        sheet,
        f"from {print_percent(low)} to {print_percent(high)} of the fault-free throughput, and of {full:.0f} nodes; "
        f"averages of {print_span(axis.step_s)}",
        4,
    )
    for course in courses:
        middle = sheet.y + STRIP / 2
        sheet.boxes(None, [DrawnBox(LEFT - 16, LEFT - 6, middle - 5, middle + 5, course.colour)])
        sheet.words(LEFT - 22, middle + 4, shortened(course.policy.policy, LEFT - 22 - PAD), side="right")
        sheet.words(WIDTH - RIGHT + 10, middle + 4, print_share(course.policy.goodput), bold=True)
        plot = _over_time(sheet, axis, STRIP, (low, high))
        _area(plot, axis, [count / full for count in course.there], GROUND, STRIP)
        _area(plot, axis, course.throughput, course.colour, STRIP)
        xs, ys = stepped(plot, _edges(axis), [count / full for count in course.working], STRIP)
        plot.plot(xs, ys, color=INK, linewidth=0.9)
        plot.axhline(low, color=GROUND, linewidth=1.0)
        sheet.y += GAP
    sheet.y -= GAP
    time_axis(plot, axis.unit, axis.end_s, 12, has_lines=False)
    sheet.y += AXIS


def draw_bars(sheet: Sheet, report: ReplayReport, colours: dict[str, str]) -> None:
    """A bar for every policy: where its time went, and its goodput.

    Args:
        sheet: on which, beneath what is there.
        report: whose policies.
        colours: of the policies; here colours are purposes, for those of the policies would only look like some.
    """
    told = [(policy, shares_of(policy)) for policy in contestants(report)]
    if not told:
        return
    low = zoomed(min(shares[0][1] for _, shares in told))
    longest_s = max(duration_s(policy) for policy, _ in told)
    sheet.subtitle(f"Where {print_span(longest_s)} went{zoom_words(low)}")
    seen = {purpose for _, shares in told for purpose, share in shares if share > 0}
    sheet.key([((purpose.colour,), purpose.words, False) for purpose in PURPOSES if purpose in seen], LEFT, RIGHT)
    sheet.words(WIDTH - RIGHT + 10, sheet.y - 3, "goodput", FAINT)
    sheet.y += 4
    top, each = sheet.y, BAR + BAR_GAP
    panel = sheet.panel(len(told) * each, LEFT, WIDTH - RIGHT, (low, 1.0), (len(told) * each, 0.0))
    boxes = []
    for number, (policy, shares) in enumerate(told):
        y, done = number * each, 0.0
        sheet.words(LEFT - 8, top + y + BAR / 2 + 4, shortened(policy.policy, LEFT - 8 - PAD), side="right")
        sheet.words(WIDTH - RIGHT + 10, top + y + BAR / 2 + 4, print_share(policy.goodput), bold=True)
        for purpose, share in shares:
            start, end = (min(max(place, low), 1.0) for place in (done, done + share))
            done += share
            if end > start:
                ink, tip = "white" if purpose.is_dark else INK, f"{purpose.words}: {print_percent(share)}"
                boxes.append(DrawnBox(start, end, y, y + BAR, purpose.colour, (print_share(share),), ink, tip))
    sheet.boxes(panel, boxes)
    places = [low + share for share in ticks(1 - low, 10)]
    number_axis(panel, "x", places, [print_percent(place) for place in places], has_lines=False)
    sheet.y += 26


def share_range(shares: Sequence[float]) -> tuple[float, float]:
    """The greatest and the least share that an axis shows."""
    low = zoomed(min(shares))
    return max(1.0, *shares) + 0.03 * (1 - low), low


def zoomed(least: float) -> float:
    """Where an axis begins on which this share is to be seen."""
    return next((1 - zoom for zoom in ZOOMS if 1 - least <= zoom), 0.0)


def zoom_words(low: float) -> str:
    """That an axis of shares does not begin at 0, where that is so."""
    return f"; the axis begins at {print_percent(low)}" if low else ""


def round_range(counts: Sequence[float]) -> tuple[float, float]:
    """The greatest and the least count that an axis shows: round ones; what is not 0 stands above the least."""
    least, most = min(counts), max(counts)
    step = max(1.0, ticks(1.2 * (most - least) or 1.0, 2)[-1] / 2)
    low = max(math.ceil(least / step) - 1, 0) * step if least > most / 2 else 0.0
    return max(math.ceil(most / step) * step, low + step), low


def _remark(sheet: Sheet, words: str, lead: float) -> None:
    """A line above a plot, so many pixels further down."""
    sheet.y += lead
    sheet.words(LEFT, sheet.y, shortened(words, WIDTH - PAD - LEFT), FAINT)
    sheet.y += 8


def _over_time(sheet: Sheet, axis: TimeAxis, height: float, shown: tuple[float, float]) -> "Axes":
    return sheet.panel(height, LEFT, WIDTH - RIGHT, (0.0, axis.end_s or 1.0), shown)


def _edges(axis: TimeAxis) -> list[float]:
    return [axis.edge(step) for step in range(axis.steps + 1)]


def _area(plot: "Axes", axis: TimeAxis, values: Sequence[float], colour: str, height: float) -> None:
    """What is under a step line."""
    xs, ys = stepped(plot, _edges(axis), values, height)
    low = plot.get_ylim()[0]
    plot.fill([xs[0], *xs, xs[-1]], [low, *ys, low], color=colour, alpha=0.6, linewidth=0)
