"""What was found slow, as a picture: iteration times over iterations, with the episodes shaded.

A long series is shown by few points: the least, the middle and the greatest value of each stretch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from ..schemas.detection import PLACES, Attribution, FailSlow, FileFindings, Scope
from ..schemas.quantities import print_number, print_percent, print_time, ticks, time_unit
from ..schemas.text import counted
from .painter import PAD, WIDTH, Picture, Sheet, number_axis, painting
from .style import ALARM, FAINT, INK, DrawnBox, apart, in_lanes, measured, page, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 1200
# Of each stretch, so many values are looked at for its middle, and so many are kept once it is over.
LOOKED_AT, KEPT = 256, 15

LEFT, RIGHT = 74, 104  # for the times, and for what the lines at the right mean
RIBBON, PLOT, FOOT, LINE, GAP = 9, 230, 40, 17, 26
LABEL_LINE, MOST_LABEL_LINES = 15, 3
# An episode's beginnings are told in so many lines beneath the plot.
MOST_TOLD = 12
# The greatest time that is shown leaves so much room above the slowest episode; what is above is marked at the edge.
HEADROOM, OUTLIERS = 1.25, 0.005

SERIES, SPREAD, USUAL = "#2F5D8C", "#BBD6EA", "#2E7D4F"
SHADE, UNNOTICED, SUSPECTED, CERTAIN = "#FBE9E7", "#EBC9C5", "#E6A23C", ALARM

_GUIDE = (
    ("Curve", "how long each iteration took. Where there are many, the dark line is the middle of some of them, and "
     "the pale band reaches from the shortest to the longest. A triangle at the top: longer than the picture is high."),
    ("Green", "the usual time, when nothing is slow; dotted, 10 % above it: what takes longer is slow."),
    ("Shaded", "a fail-slow, from its first slow iteration to the first one that is as usual again. The red line is "
     "its median, and the number says how many times the usual that is."),
    ("Ribbon", "above the shade: pale until it was suspected (the third slow iteration in a row, as a rule), amber "
     "until it was confirmed, red from then on; the green end is the relief. Pale all along: found in hindsight."),
    ("Mouse", "point at a shade for its numbers."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    """A stretch of a series: its first place, how many values it has, and the least, middle and greatest of them."""

    first: int
    count: int
    low: float
    middle: float
    high: float


@dataclass(slots=True)
class _Stretch:
    first: int
    count: int
    low: float
    high: float
    values: list[float] = field(default_factory=list)

    def note(self, value: float, is_kept: bool) -> None:
        self.count += 1
        self.low, self.high = min(self.low, value), max(self.high, value)
        if is_kept:
            self.values.append(value)

    def joined(self, after: "_Stretch") -> "_Stretch":
        """This stretch and the one after it as one."""
        low, high = min(self.low, after.low), max(self.high, after.high)
        both = _Stretch(self.first, self.count + after.count, low, high, self.values + after.values)
        both.close()
        return both

    def close(self) -> None:
        """Keep only some values, evenly from the least to the greatest, the middle one among them."""
        if len(self.values) > KEPT:
            self.values.sort()
            last = len(self.values) - 1
            self.values = [self.values[round(index * last / (KEPT - 1))] for index in range(KEPT)]


class Thinned:
    """Takes values one by one and keeps at most `MOST_POINTS` stretches of equal length, in bounded memory."""

    def __init__(self) -> None:
        self._width = 1
        self._stretches: list[_Stretch] = []

    def note(self, value: float) -> None:
        """The next value."""
        if not self._stretches or self._stretches[-1].count == self._width:
            if self._stretches:
                self._stretches[-1].close()
            if len(self._stretches) == MOST_POINTS:
                pairs = zip(self._stretches[::2], self._stretches[1::2], strict=True)
                self._stretches = [left.joined(right) for left, right in pairs]
                self._width *= 2
            before = self._stretches[-1] if self._stretches else None
            first = before.first + before.count if before else 0
            self._stretches.append(_Stretch(first, 0, value, value))
        stretch = self._stretches[-1]
        stretch.note(value, stretch.count % max(1, self._width // LOOKED_AT) == 0)

    def points(self) -> list[Point]:
        """The series so far; the middles are exact as long as a stretch is no longer than `KEPT` values."""
        return [Point(one.first, one.count, one.low, median(one.values), one.high) for one in self._stretches]


@dataclass(frozen=True, slots=True)
class Panel:
    """One file: what was found in it, and its iteration times as few points; none where they are not known."""

    findings: FileFindings
    points: Sequence[Point] = ()


@dataclass(frozen=True, slots=True)
class _DrawnPanel:
    """A file's panel under way: how many samples it shows, up to which time, and where it begins on the sheet."""

    panel: Panel
    longest_s: float
    axes: "Axes"
    top: float

    @property
    def usual_s(self) -> float | None:
        """The usual time."""
        return self.panel.findings.usual_s

    def stop(self, event: FailSlow) -> int:
        """Where an event ends, or the series."""
        return self.panel.findings.samples if event.relief is None else event.relief

    def y(self, time_s: float) -> float:
        """A time's height on the sheet."""
        return self.top + PLOT * (1 - min(time_s, self.longest_s) / self.longest_s)


def detection_picture(panels: Sequence[Panel], title: str) -> Picture:
    """Draw findings as a still picture, a panel a file.

    Args:
        panels: in the order in which they are drawn.
        title: stands above.
    """
    return _picture(panels, title, has_heading=True)


def detection_html(panels: Sequence[Panel], title: str) -> str:
    """Draw findings as one HTML page that needs no network: the image, and how to read it."""
    found = sum(len(panel.findings.events) for panel in panels)
    facts = [f"{counted(found, 'fail-slow')} in {counted(len(panels), 'file')}"]
    return page(title, facts, _picture(panels, title, has_heading=False).svg(), _GUIDE)


def drawn_detection(panels: Sequence[Panel], title: str, ending: str) -> bytes:
    """The bytes of a page or of a still picture of findings, by the ending of its file's name."""
    is_page = ending == ".html"
    return detection_html(panels, title).encode() if is_page else detection_picture(panels, title).data(ending)


@painting()
def _picture(panels: Sequence[Panel], title: str, has_heading: bool) -> Picture:
    sheet = Sheet(title)
    if has_heading:
        sheet.heading()
    key = (
        (SERIES, "iteration time"),
        (SPREAD, "shortest to longest"),
        (USUAL, "usual time"),
        (UNNOTICED, "slow, not noticed yet"),
        (SUSPECTED, "suspected (provisional)"),
        (CERTAIN, "confirmed"),
        (SHADE, "fail-slow, onset to relief"),
    )
    sheet.key([((colour,), words, False) for colour, words in key])
    for panel in panels:
        _draw_panel(sheet, panel)
    return sheet.picture()


def words_of_attribution(shares: Attribution) -> str:
    """How much of a slow-down each part is to blame for."""
    parts = (
        (shares.worker_share, "the slowest workers"),
        (shares.stage_share, "the last stage"),
        (shares.link_share, "the slowest links"),
        (shares.data_share, "unlike micro-batches"),
    )
    told = ", ".join(f"{print_percent(round(share, 2))} by {what}" for share, what in parts if abs(share) >= 0.005)
    return f"slowed down {shares.slowdown:.3g} x" + (f", of that {told}" if told else "")


def _draw_panel(sheet: Sheet, panel: Panel) -> None:
    """A file: what it is, its times with the episodes, and these in words."""
    found, longest_s = panel.findings, _longest_s(panel)
    facts = [found.kind, counted(found.samples, "sample")]
    facts.append("too few to know what is usual" if found.usual_s is None else f"usually {print_time(found.usual_s)}")
    facts.append(counted(len(found.events), "fail-slow") if found.events else "nothing slow")
    if found.attribution is not None:
        facts.append(words_of_attribution(found.attribution))
    sheet.y += 12
    sheet.subtitle(found.file)
    sheet.facts([" · ".join(facts)])
    labels = _labels(found)
    sheet.y += 19 + LABEL_LINE * max((level + 1 for _, _, level in labels), default=0)
    ribbon = sheet.y
    for event, x, level in labels:
        foot, start = ribbon - 5 - LABEL_LINE * level, _x(found, event.onset)
        sheet.line([start, start], [foot + 3, ribbon], ALARM, 0.6)
        sheet.words(x, foot, _severity(event), ALARM)
    sheet.y += RIBBON + 3
    samples = max(found.samples, 1)
    top = sheet.y
    axes = sheet.panel(PLOT, LEFT, WIDTH - RIGHT, (0.0, samples), (0.0, longest_s))
    series = _DrawnPanel(panel, longest_s, axes, top)
    shades = [
        DrawnBox(
            event.onset, max(series.stop(event), event.onset + samples / (WIDTH - RIGHT - LEFT)), longest_s, 0.0, SHADE,
            tip="\n".join([f"{event.severity:.2f} x the usual time", _places(event), _blame(event), *event.evidence]),
        )
        for event in found.events
    ]  # fmt: skip
    sheet.boxes(axes, shades, under_grid=True)
    _draw_axes(series)
    _draw_usual(sheet, series)
    _draw_times(sheet, series)
    for event in found.events:
        sheet.boxes(None, _ribbon(series, event, ribbon))
        if found.usual_s is not None:
            axes.plot(
                [event.onset, series.stop(event)], [found.usual_s * event.severity] * 2, color=ALARM, linewidth=1.6
            )
    sheet.y += FOOT + 12
    for words, colour in _told(found.events):
        sheet.words(LEFT, sheet.y, words, colour)
        sheet.y += LINE
    sheet.y += GAP - LINE


def _longest_s(panel: Panel) -> float:
    """How long the longest time is that the plot shows: all but a few outliers, and every episode."""
    highs = sorted(point.high for point in panel.points)
    usual_s = panel.findings.usual_s or 0.0
    slowest_s = max((usual_s * event.severity for event in panel.findings.events), default=usual_s)
    common_s = highs[round((1 - OUTLIERS) * (len(highs) - 1))] if highs else 0.0
    # Spikes may fill the plot no further than to twice what is worth looking at.
    worth_s = max(slowest_s, usual_s) or common_s
    return max(HEADROOM * slowest_s, 1.08 * min(common_s, 2 * worth_s)) or 1.0


def _x(found: FileFindings, place: float) -> float:
    """A sample's place on the sheet."""
    return LEFT + (WIDTH - RIGHT - LEFT) * place / max(found.samples, 1)


def _draw_axes(series: _DrawnPanel) -> None:
    unit = time_unit(series.longest_s)
    times = ticks(unit.of(series.longest_s), 5)
    names = [f"{print_number(time)} {unit.name}" for time in times]
    number_axis(series.axes, "y", [time / unit.per_second for time in times], names)
    places = [place for place in ticks(series.panel.findings.samples, 10) if place == int(place)]
    number_axis(series.axes, "x", places, [f"{place:.0f}" for place in places], has_lines=False)
    series.axes.set_xlabel("sample (iterations in the order of the log)", color=FAINT)


def _draw_usual(sheet: Sheet, series: _DrawnPanel) -> None:
    """The usual time, and what is 10 % above it, with words at the right that keep apart."""
    if series.usual_s is None:
        return
    above, usual = apart([series.y(1.1 * series.usual_s), series.y(series.usual_s)], 13, series.top + PLOT)
    for factor, y, dashes, words in ((1.0, usual, "-", "usual"), (1.1, above, (0, (1.5, 4)), "+10 %")):
        series.axes.axhline(factor * series.usual_s, color=USUAL, linewidth=1.2, linestyle=dashes)
        sheet.words(WIDTH - RIGHT + 6, y + 4, words, USUAL)


def _draw_times(sheet: Sheet, series: _DrawnPanel) -> None:
    """Iteration times; where they are not known, those that the findings speak of."""
    points, axes, longest_s = series.panel.points, series.axes, series.longest_s
    if not points:  # the usual time, outside of what is slow
        if series.usual_s is not None:
            events = series.panel.findings.events
            starts = [0, *(series.stop(event) for event in events)]
            ends = [*(event.onset for event in events), series.panel.findings.samples]
            for start, end in zip(starts, ends, strict=True):
                axes.plot([start, end], [series.usual_s] * 2, color=SERIES, linewidth=1.6)
        return
    if any(point.count > 1 for point in points):
        edges = [place for point in points for place in (point.first, point.first + point.count)]
        highs = [min(high, longest_s) for point in points for high in (point.high, point.high)]
        lows = [min(low, longest_s) for point in points for low in (point.low, point.low)]
        axes.fill_between(edges, lows, highs, color=SPREAD, linewidth=0)
    middles = [point.first + point.count / 2 for point in points]
    axes.plot(middles, [min(point.middle, longest_s) for point in points], color=SERIES, linewidth=1.1)
    for point in points:
        if point.high > longest_s:
            (mark,) = axes.plot([point.first + point.count / 2], [longest_s], "^", color=SERIES, markersize=6,
                                clip_on=False)  # fmt: skip
            mark.set_gid(sheet.tip(f"up to {print_time(point.high)}"))


def _ribbon(series: _DrawnPanel, event: FailSlow, top: float) -> list[DrawnBox]:
    """How far an event was known: not, suspected, confirmed; and its relief."""
    found, stop = series.panel.findings, series.stop(event)
    suspected = stop if event.provisional is None else event.provisional
    confirmed = stop if event.confirmed is None else event.confirmed
    suspected = min(suspected, confirmed)
    phases = ((event.onset, suspected, UNNOTICED), (suspected, confirmed, SUSPECTED), (confirmed, stop, CERTAIN))
    boxes = [
        DrawnBox(_x(found, first), _x(found, min(last, stop)), top, top + RIBBON, colour)
        for first, last, colour in phases
        if first < min(last, stop)
    ]
    if event.relief is not None:
        boxes.append(DrawnBox(_x(found, stop) - 1.5, _x(found, stop) + 1.5, top - 1, top + RIBBON + 1, USUAL))
    return boxes


def _labels(found: FileFindings) -> list[tuple[FailSlow, float, int]]:
    """The events that are labelled, where the words begin, and in which line above the plot."""
    lengths = [measured(_severity(event)) + 10 for event in found.events]
    xs = [min(_x(found, one.onset), WIDTH - PAD - length) for one, length in zip(found.events, lengths, strict=True)]
    lanes = in_lanes([(x, x + length) for x, length in zip(xs, lengths, strict=True)], MOST_LABEL_LINES)
    return [(event, x, lane) for event, x, lane in zip(found.events, xs, lanes, strict=True) if lane is not None]


def _severity(event: FailSlow) -> str:
    names = event.scope.names
    shown = ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")
    return f"{event.severity:.2f} x" + (f", {Scope(event.scope.kind, (shown,)).words}" if names else "")


def _told(events: Sequence[FailSlow]) -> list[tuple[str, str]]:
    """Lines of words, and their colours: of each event what it is, and what speaks for it."""
    length, lines = WIDTH - LEFT - PAD, []
    for event in events[:MOST_TOLD]:
        lines += [
            (line, INK) for line in wrapped(f"{event.severity:.2f} x · {_places(event)} · {_blame(event)}", length)
        ]
        lines += [(line, FAINT) for line in wrapped(" · ".join(event.evidence), length)]
    if len(events) > MOST_TOLD:
        lines.append((f"and {len(events) - MOST_TOLD} more", FAINT))
    return lines


def _places(event: FailSlow) -> str:
    """In samples, as the axis counts."""
    places = (("suspected", event.provisional), ("confirmed", event.confirmed), ("over", event.relief))
    said = [f"slow since sample {event.onset}", *(f"{word} {place}" for word, place in places if place is not None)]
    return ", ".join(said if event.relief is not None else [*said, "not over"])


def _blame(event: FailSlow) -> str:
    return f"{event.scope.words}, {'cause unknown' if event.cause == 'unknown' else event.cause}"


# The same as a table for a terminal.


COLUMNS = ("since", "suspected", "confirmed", "until", "slow-down", "cause", "where")


def cells_of(event: FailSlow) -> list[str]:
    """A fail-slow's row of such a table; `-` is not yet, or was found in hindsight."""
    places = [str(event.places.get(name, "-")) for name in PLACES]
    return [*places, f"{event.severity:.2f} x", event.cause, event.scope.words]


def nothing_slow(found: FileFindings, fewest: int) -> str:
    """What is said where nothing was found slow.

    Args:
        found: in a log.
        fewest: so many samples it takes to find anything.
    """
    if found.attribution is None and found.samples < fewest:
        return f"too few to tell whether anything is slow ({fewest} are needed)"
    return "nothing slow"
