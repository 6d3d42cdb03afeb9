"""A replay as plain SVG: throughput of all policies, each policy beside the nodes that it had, and where time went."""

from collections.abc import Callable, Sequence
from html import escape

from ..schemas.replay_report import ReplayReport
from .looks import FAINT, GROUND, INK
from .replay_plot import (
    LEFT,
    RIGHT,
    Plot,
    area,
    bold,
    line,
    round_range,
    share_range,
    subtitle,
    times,
    zoom_words,
    zoomed,
)
from .replay_scene import (
    FAULT_FREE,
    PURPOSES,
    Course,
    Purpose,
    axis_of,
    colours_of,
    contestants,
    courses_of,
    duration_s,
    shares_of,
)
from .replay_words import QUESTION, print_share, print_span, report_facts, title_of
from .shapes import CHARACTER, PAD, WIDTH, heading, image, px, rect, text
from .units import print_percent, ticks

PLOT, NODES, STRIP, BAR = 250, 50, 30, 18
GAP, BAR_GAP, LABEL_LINE, LEGEND_LINE, AXIS = 7, 4, 15, 19, 40
# Lines cross each other less in longer steps.
OVERLAID_STEPS = 92
NARROWEST_NUMBER = 44.0


Picture = Callable[[ReplayReport, dict[str, str], float], tuple[list[str], float]]


def replay_svg(reports: Sequence[tuple[str, ReplayReport]], title: str | None = None) -> str:
    """Draw reports as one SVG image, one under the other.

    Args:
        reports: with their names, which are written where there are several.
        title: stands above; None: the model's name and the trace's, or of several reports the question.

    Returns:
        The image's text; equal arguments give equal text.
    """
    title = title or (title_of(reports[0][1]) if len(reports) == 1 else QUESTION)
    colours = colours_of(report for _, report in reports)
    parts, top = heading(title, report_facts(reports[0][1]) if len(reports) == 1 else ())
    for name, report in reports:
        if len(reports) > 1:
            parts.append(subtitle(top + 24, name))
            parts += [text(PAD, top + 42 + 16 * line, fact, "n") for line, fact in enumerate(report_facts(report))]
            top += 62
        for picture in PICTURES:
            more, top = picture(report, colours, top + 10)
            parts += more
    return image(parts, title, top)


def picture_svg(picture: Picture, report: ReplayReport, colours: dict[str, str]) -> str:
    """One of the `PICTURES` as an image of its own."""
    parts, end = picture(report, colours, 0.0)
    return image(parts, title_of(report), end)


def overlaid(report: ReplayReport, colours: dict[str, str], top: float) -> tuple[list[str], float]:
    """Throughput of every policy over time, all in one plot, and above it the nodes that are there.

    Args:
        report: whose policies.
        colours: of the policies.
        top: where the picture begins, in pixels.

    Returns:
        Its parts, and where it ends.
    """
    axis = axis_of(report, OVERLAID_STEPS)
    courses = courses_of(report, axis, colours)
    if not courses:
        return [], top
    fine = axis_of(report)
    there = courses_of(report, fine, colours)[0].there
    nodes = Plot(fine, top + 46, NODES, *round_range(there))
    plot = Plot(axis, nodes.bottom + 30, PLOT, *share_range([share for one in courses for share in one.throughput]))
    what = (
        f"Throughput, as a share of the fault-free cluster's; each step is the average of {print_span(axis.step_s)}; "
        "at the right, goodput: the average of the whole trace"
    )
    begins = f"; the axis begins at {nodes.low:.0f}" if nodes.low else ""
    parts = [
        subtitle(top + 18, "Throughput over time"),
        text(LEFT, nodes.top - 8, f"Nodes there; each step is the average of {print_span(fine.step_s)}{begins}", "n"),
        *_nodes(nodes, there),
        text(LEFT, plot.top - 9, what + zoom_words(plot.low), "n"),
        *_shares(plot),
        *times(plot),
        *(line(plot, course.throughput, course.colour, 1.7) for course in reversed(courses)),
        *_labels(plot, courses),
    ]
    return parts, plot.bottom + AXIS


def strips(report: ReplayReport, colours: dict[str, str], top: float) -> tuple[list[str], float]:
    """Each policy over time by itself: its throughput, its nodes at work, and the nodes that are there.

    Args:
        report: whose policies.
        colours: of the policies.
        top: where the picture begins, in pixels.

    Returns:
        Its parts, and where it ends.
    """
    axis = axis_of(report)
    courses = courses_of(report, axis, colours)
    if not courses:
        return [], top
    full = max(max(course.working) for course in courses) or 1.0
    high, low = share_range([one for course in courses for one in _seen_in_strip(course, full)])
    words = f"from {100 * low:.3g} % to {100 * high:.3g} % of the fault-free throughput, and of {full:.0f} nodes"
    key = _strip_key(top + 38, [one.colour for one in courses], f"{words}; averages of {print_span(axis.step_s)}")
    parts = [subtitle(top + 18, "Each policy by itself"), *key]
    plot = Plot(axis, top + 52, STRIP, high, low)
    for number, course in enumerate(courses):
        plot = Plot(axis, top + 52 + number * (STRIP + GAP), STRIP, high, low)
        parts += _strip(plot, course, full)
    return [*parts, *times(plot, lines=False)], plot.bottom + AXIS


def bars(report: ReplayReport, colours: dict[str, str], top: float) -> tuple[list[str], float]:
    """A bar for every policy: where its time went, and its goodput.

    Args:
        report: whose policies.
        colours: of the policies.
        top: where the picture begins, in pixels.

    Returns:
        Its parts, and where it ends.
    """
    shown = contestants(report)
    if not shown:
        return [], top
    told = [(policy, shares_of(policy)) for policy in shown]
    # Here colours are purposes: those of the policies would only look like some of them.
    key, y = _bar_key(top + 40, {purpose for _, shares in told for purpose, share in shares if share > 0})
    low = zoomed(min(shares[0][1] for _, shares in told))
    parts = [subtitle(top + 18, f"Where {print_span(max(map(duration_s, shown)))} went{zoom_words(low)}"), *key]
    parts.append(text(WIDTH - RIGHT + 10, y - 7, "goodput", "n"))
    for policy, shares in told:
        parts.append(text(LEFT - 8, y + BAR / 2 + 4, policy.policy, "e"))
        parts += _bar(shares, low, y)
        parts.append(bold(WIDTH - RIGHT + 10, y + BAR / 2 + 4, print_share(policy.goodput)))
        y += BAR + BAR_GAP
    for value in ticks(1 - low, 10):
        parts.append(text(_bar_x(low + value, low), y + 12, print_percent(low + value), "m n"))
    return parts, y + 26


PICTURES: tuple[Picture, ...] = (overlaid, strips, bars)


def _nodes(plot: Plot, there: Sequence[float]) -> list[str]:
    """How many nodes are there."""
    parts = [area(plot, there, GROUND)]
    for value in ticks(plot.high - plot.low, 3):
        if value == int(value):
            y = plot.y(plot.low + value)
            parts.append(f'<path class="g" d="M{LEFT} {px(y)}H{WIDTH - RIGHT}"/>')
            parts.append(text(LEFT - 8, y + 4, f"{plot.low + value:.0f}", "e"))
    return parts


def _shares(plot: Plot) -> list[str]:
    """Lines at round shares, and a dashed one for the fault-free cluster."""
    parts = []
    for value in ticks(plot.high - plot.low, 6):
        y = plot.y(plot.low + value)
        parts.append(f'<path class="g" d="M{LEFT} {px(y)}H{WIDTH - RIGHT}"/>')
        parts.append(text(LEFT - 8, y + 4, print_percent(plot.low + value), "e"))
    look = f'stroke="{FAINT}" stroke-dasharray="5 4"'
    parts.append(f'<path {look} d="M{LEFT} {px(plot.y(1.0))}H{WIDTH - RIGHT}"/>')
    return parts


def _labels(plot: Plot, courses: Sequence[Course]) -> list[str]:
    """Each line's name and goodput at its end; the words keep apart, and a thin line leads to them."""
    ends: list[tuple[float, str, Course | None]] = [(plot.y(1.0), FAULT_FREE, None)]
    ends += [(plot.y(course.throughput[-1]), course.policy.policy, course) for course in courses]
    places = sorted(ends, key=lambda one: one[:2])
    parts = []
    for y, (at, name, course) in zip(apart([one[0] for one in places], plot), places, strict=True):
        words = name if course is None else f"{name} {print_share(course.policy.goodput)}"
        colour = FAINT if course is None else course.colour
        x = WIDTH - RIGHT
        parts.append(f'<path fill="none" stroke="{colour}" d="M{x + 1} {px(at)}l12 {px(y - at)}h5"/>')
        parts.append(text(x + 22, y + 4, words, "n" if course is None else ""))
    return parts


def apart(wanted: Sequence[float], plot: Plot) -> list[float]:
    """Places in ascending order, near those wanted, but a line apart: pushed down, then up where they hang over."""
    found: list[float] = []
    for y in wanted:
        found.append(max(y, found[-1] + LABEL_LINE) if found else y)
    limit = max(plot.bottom, plot.top + LABEL_LINE * (len(found) - 1))
    for place in reversed(range(len(found))):
        found[place] = min(found[place], limit)
        limit = found[place] - LABEL_LINE
    return found


def _strip_key(y: float, colours: Sequence[str], words: str) -> list[str]:
    """What is drawn of each policy; throughput is in its own colour, of which a few are shown."""
    few = colours[:3]
    entries = (([GROUND], 11.0, "nodes there"), ([INK], 2.0, "nodes at work"), (few, 11.0, "throughput"))
    parts, x = [], float(LEFT)
    for shown, height, name in entries:
        each = 14 / len(shown)
        parts += [rect(x + n * each, y - 4 - height / 2, each, height, colour) for n, colour in enumerate(shown)]
        parts.append(text(x + 19, y, name))
        x += 19 + len(name) * CHARACTER + 16
    return [*parts, text(x, y, words, "n")]


def _seen_in_strip(course: Course, full: float) -> list[float]:
    return [*course.throughput, *(count / full for count in (*course.working, *course.there))]


def _strip(plot: Plot, course: Course, full: float) -> list[str]:
    """One policy: grey are the nodes that are there, a dark line those at work, coloured the throughput."""
    return [
        *_marked(course.policy.policy, plot.top, STRIP, course.colour),
        area(plot, [count / full for count in course.there], GROUND),
        area(plot, course.throughput, course.colour),
        line(plot, [count / full for count in course.working], INK, 0.9),
        f'<path stroke="{GROUND}" d="M{LEFT} {px(plot.bottom)}H{WIDTH - RIGHT}"/>',
        bold(WIDTH - RIGHT + 10, plot.top + STRIP / 2 + 4, print_share(course.policy.goodput)),
    ]


def _marked(name: str, y: float, height: float, colour: str) -> list[str]:
    """A policy's name before its row, with its colour."""
    return [rect(LEFT - 16, y + height / 2 - 5, 10, 10, colour), text(LEFT - 22, y + height / 2 + 4, name, "e")]


def _bar_key(y: float, seen: set[Purpose]) -> tuple[list[str], float]:
    """What the colours mean that are there to be seen, broken into lines, and where the first bar may begin."""
    parts, x = [], float(LEFT)
    for purpose in PURPOSES:
        length = 17 + len(purpose.words) * CHARACTER + 16
        if purpose not in seen:
            continue
        if x + length > WIDTH - RIGHT:
            x, y = float(LEFT), y + LEGEND_LINE
        parts += [rect(x, y - 9, 12, 11, purpose.colour), text(x + 17, y, purpose.words)]
        x += length
    return parts, y + 14


def _bar_x(share: float, low: float) -> float:
    return LEFT + (WIDTH - RIGHT - LEFT) * min(max(share - low, 0.0) / (1 - low), 1.0)


def _bar(shares: Sequence[tuple[Purpose, float]], low: float, y: float) -> list[str]:
    """A policy's time from left to right, with per cent where there is room."""
    parts, done = [], 0.0
    for purpose, share in shares:
        x, right = _bar_x(done, low), _bar_x(done + share, low)
        done += share
        if right <= x:
            continue
        words = text((x + right) / 2, y + BAR / 2 + 4, print_share(share), "m") if right - x >= NARROWEST_NUMBER else ""
        words = words.replace("<text ", '<text style="fill:#fff" ') if purpose.is_dark else words
        tip = escape(f"{purpose.words}: {100 * share:.3g} %")
        parts.append(f"<g><title>{tip}</title>{rect(x, y, right - x, BAR, purpose.colour)}{words}</g>")
    return parts
