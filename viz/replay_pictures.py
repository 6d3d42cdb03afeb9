"""Replays as still pictures: throughput of all policies, each policy beside its nodes, and where time went."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..schemas.replay_report import ReplayReport
from ..schemas.units import print_percent, ticks
from .painter import PAD, WIDTH, Picture, Sheet, number_axis, painting, stepped, time_axis
from .placing import DrawnBox, apart, measured, shortened
from .replay import (
    FAULT_FREE,
    PURPOSES,
    QUESTION,
    TimeAxis,
    axis_of,
    colours_of,
    contestants,
    courses_of,
    duration_s,
    print_share,
    print_span,
    report_facts,
    shares_of,
    title_of,
)
from .style import FAINT, GROUND, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        f"from {100 * low:.3g} % to {100 * high:.3g} % of the fault-free throughput, and of {full:.0f} nodes; "
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
                ink, tip = "white" if purpose.is_dark else INK, f"{purpose.words}: {100 * share:.3g} %"
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
