"""What was found slow, as a picture: iteration times over iterations, with the episodes shaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

from ..schemas.detection import Attribution, FailSlow, FileFindings
from .looks import ALARM
from .page import page
from .shapes import CHARACTER, PAD, WIDTH, heading, image, px, rect, text
from .thinning import Point
from .units import TimeUnit, print_number, print_time, ticks, time_unit

LEFT, RIGHT = 74, 104  # for the times, and for what the lines at the right mean
HEAD, RIBBON, PLOT, FOOT, LINE, GAP = 66, 9, 230, 40, 17, 26
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
class Panel:
    """One file: what was found in it, and its iteration times as few points; none where they are not known."""

    findings: FileFindings
    points: Sequence[Point] = ()


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the parts of a panel lie, in pixels."""

    panel: Panel
    unit: TimeUnit
    top: float
    longest_s: float
    label_lines: int

    @property
    def findings(self) -> FileFindings:
        return self.panel.findings

    @property
    def ribbon(self) -> float:
        return self.top + HEAD + self.label_lines * LABEL_LINE

    @property
    def plot(self) -> float:
        return self.ribbon + RIBBON + 3

    @property
    def bottom(self) -> float:
        return self.plot + PLOT

    @property
    def end(self) -> float:
        return self.bottom + FOOT + len(_told(self.findings.events)) * LINE + GAP

    def x(self, place: float) -> float:
        return LEFT + (WIDTH - RIGHT - LEFT) * place / max(self.findings.samples, 1)

    def y(self, time_s: float) -> float:
        return self.bottom - PLOT * min(time_s, self.longest_s) / self.longest_s

    def stop(self, event: FailSlow) -> int:
        return self.findings.samples if event.relief is None else event.relief


def detection_svg(panels: Sequence[Panel], title: str) -> str:
    """Draw findings as an SVG image, a panel a file.

    Args:
        panels: in the order in which they are drawn.
        title: stands above.

    Returns:
        The image's text; equal arguments give equal text.
    """
    head, top = heading(title, ())
    return _image(panels, title, head, top + 8)


def detection_html(panels: Sequence[Panel], title: str) -> str:
    """Draw findings as one HTML page that needs no network: the image, and how to read it."""
    found = sum(len(panel.findings.events) for panel in panels)
    facts = [f"{_counted(found, 'fail-slow')} in {_counted(len(panels), 'file')}"]
    return page(title, facts, _image(panels, title, [], 22), _GUIDE)


def _image(panels: Sequence[Panel], title: str, parts: list[str], legend: float) -> str:
    parts += _legend(legend)
    top = legend + 12.0
    for panel in panels:
        frame = _framed(panel, top)
        parts += _panel(frame)
        top = frame.end
    return image(parts, title, top)


def words_of_attribution(shares: Attribution) -> str:
    """How much of a slow-down each part is to blame for."""
    parts = (
        (shares.worker_share, "the slowest workers"),
        (shares.stage_share, "the last stage"),
        (shares.link_share, "the slowest links"),
        (shares.data_share, "unlike micro-batches"),
    )
    told = ", ".join(f"{100 * share:.0f} % by {what}" for share, what in parts if abs(share) >= 0.005)
    return f"slowed down {shares.slowdown:.3g} x" + (f", of that {told}" if told else "")


def _framed(panel: Panel, top: float) -> _Frame:
    longest_s = _longest_s(panel)
    draft = _Frame(panel, time_unit(longest_s), top, longest_s, 0)
    lines = max((level for _, _, level in _labels(draft)), default=-1) + 1
    return _Frame(panel, draft.unit, top, longest_s, lines)


def _longest_s(panel: Panel) -> float:
    """How long the longest time is that the plot shows: all but a few outliers, and every episode."""
    highs = sorted(point.high for point in panel.points)
    usual_s = panel.findings.usual_s or 0.0
    slowest_s = max((usual_s * event.severity for event in panel.findings.events), default=usual_s)
    common_s = highs[round((1 - OUTLIERS) * (len(highs) - 1))] if highs else 0.0
    # Spikes may fill the plot no further than to twice what is worth looking at.
    worth_s = max(slowest_s, usual_s) or common_s
    return max(HEADROOM * slowest_s, 1.08 * min(common_s, 2 * worth_s)) or 1.0


def _legend(y: float) -> list[str]:
    entries = (
        (SERIES, "iteration time"),
        (SPREAD, "shortest to longest"),
        (USUAL, "usual time"),
        (UNNOTICED, "slow, not noticed yet"),
        (SUSPECTED, "suspected (provisional)"),
        (CERTAIN, "confirmed"),
        (SHADE, "fail-slow, onset to relief"),
    )
    parts, x = [], float(PAD)
    for colour, words in entries:
        parts += [rect(x, y - 9, 12, 11, colour), text(x + 17, y, words)]
        x += 17 + len(words) * CHARACTER + 16
    return parts


def _panel(frame: _Frame) -> list[str]:
    return [
        *_heading(frame),
        *(rect(frame.x(event.onset), frame.plot, _width(frame, event), PLOT, SHADE) for event in frame.findings.events),
        *_grid(frame),
        *_usual(frame),
        *_curve(frame),
        *_events(frame),
        *_words(frame),
    ]


def _heading(frame: _Frame) -> list[str]:
    found = frame.findings
    facts = [found.kind, _counted(found.samples, "sample")]
    facts.append("too few to know what is usual" if found.usual_s is None else f"usually {print_time(found.usual_s)}")
    facts.append(_counted(len(found.events), "fail-slow") if found.events else "nothing slow")
    if found.attribution is not None:
        facts.append(words_of_attribution(found.attribution))
    y = frame.top + 30
    name = f'<text x="{PAD}" y="{px(y)}" style="font-size:14px;font-weight:600">{escape(found.file)}</text>'
    return [name, text(PAD, y + 17, " · ".join(facts), "n")]


def _grid(frame: _Frame) -> list[str]:
    parts = []
    for value in ticks(frame.unit.of(frame.longest_s), 5):
        y = frame.y(value / frame.unit.per_second)
        parts.append(f'<path class="g" d="M{px(LEFT)} {px(y)}H{px(WIDTH - RIGHT)}"/>')
        parts.append(text(LEFT - 8, y + 4, f"{print_number(value)} {frame.unit.name}", "e"))
    for value in ticks(frame.findings.samples, 10):
        if value == int(value):
            x = frame.x(value)
            parts.append(f'<path class="g" d="M{px(x)} {px(frame.bottom)}v5"/>')
            parts.append(text(x, frame.bottom + 17, f"{value:.0f}", "m"))
    parts.append(
        text((LEFT + WIDTH - RIGHT) / 2, frame.bottom + 32, "sample (iterations in the order of the log)", "n m")
    )
    return parts


def _usual(frame: _Frame) -> list[str]:
    usual_s = frame.findings.usual_s
    if usual_s is None:
        return []
    parts = []
    for factor, dash, words in ((1.0, "", "usual"), (1.1, ' stroke-dasharray="1.5 4"', "+10 %")):
        y = frame.y(factor * usual_s)
        line = f'<path stroke="{USUAL}" stroke-width="1.2"{dash} d="M{px(LEFT)} {px(y)}H{px(WIDTH - RIGHT)}"/>'
        below = 7 if factor == 1.0 and PLOT * usual_s / frame.longest_s < 130 else 0  # the two words must not touch
        parts += [line, f'<text x="{WIDTH - RIGHT + 6}" y="{px(y + 4 + below)}" style="fill:{USUAL}">{words}</text>']
    return parts


def _curve(frame: _Frame) -> list[str]:
    points = frame.panel.points
    if not points:
        return _modelled(frame)
    middles = [(frame.x(point.first + point.count / 2), frame.y(point.middle)) for point in points]
    line = "L".join(f"{px(x)} {px(y)}" for x, y in middles)
    parts = []
    if any(point.count > 1 for point in points):
        parts.append(_band(frame, points))
    look = f'fill="none" stroke="{SERIES}" stroke-width="1.1" stroke-linejoin="round"'
    parts.append(f'<path {look} d="M{line}"/>')
    parts += [_beyond(frame, point) for point in points if point.high > frame.longest_s]
    return parts


def _band(frame: _Frame, points: Sequence[Point]) -> str:
    """From the shortest to the longest time of each stretch."""
    forth = [f"{px(frame.x(point.first))} {px(frame.y(point.high))}H{px(_after(frame, point))}" for point in points]
    back = [
        f"{px(_after(frame, point))} {px(frame.y(point.low))}H{px(frame.x(point.first))}" for point in reversed(points)
    ]
    return f'<path fill="{SPREAD}" d="M{"L".join([*forth, *back])}Z"/>'


def _after(frame: _Frame, point: Point) -> float:
    return frame.x(point.first + point.count)


def _beyond(frame: _Frame, point: Point) -> str:
    x = frame.x(point.first + point.count / 2)
    tip = f"up to {print_time(point.high)}"
    triangle = f"M{px(x - 3)} {px(frame.plot + 5)}h6l-3 -5Z"
    return f'<g><title>{tip}</title><path fill="{SERIES}" d="{triangle}"/></g>'


def _modelled(frame: _Frame) -> list[str]:
    """Where the times themselves are not known: the usual one, outside of what is slow."""
    usual_s = frame.findings.usual_s
    if usual_s is None:
        return []
    starts = [0, *(frame.stop(event) for event in frame.findings.events)]
    ends = [*(event.onset for event in frame.findings.events), frame.findings.samples]
    gaps = [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]
    lines = "".join(f"M{px(frame.x(start))} {px(frame.y(usual_s))}H{px(frame.x(end))}" for start, end in gaps)
    return [f'<path fill="none" stroke="{SERIES}" stroke-width="1.6" d="{lines}"/>'] if lines else []


def _events(frame: _Frame) -> list[str]:
    labels = {index: (x, level) for index, x, level in _labels(frame)}
    return [_event(frame, event, labels.get(index)) for index, event in enumerate(frame.findings.events)]


def _event(frame: _Frame, event: FailSlow, label: tuple[float, int] | None) -> str:
    """One fail-slow: its ribbon, its median, its severity, and all numbers as a tooltip."""
    x, width = frame.x(event.onset), _width(frame, event)
    parts = [f'<path fill-opacity="0" d="M{px(x)} {px(frame.plot)}h{px(width)}v{PLOT}h{px(-width)}Z"/>']
    parts += _ribbon(frame, event)
    if frame.findings.usual_s is not None:
        y = frame.y(frame.findings.usual_s * event.severity)
        parts.append(f'<path stroke="{ALARM}" stroke-width="1.6" d="M{px(x)} {px(y)}h{px(width)}"/>')
    if label is not None:
        at, level = label
        y = frame.ribbon - 5 - LABEL_LINE * level
        parts.append(f'<path stroke="{ALARM}" stroke-width=".6" d="M{px(x)} {px(y + 3)}V{px(frame.ribbon)}"/>')
        parts.append(text(at, y, _severity(event), "v"))
    return f"<g><title>{escape(_tip(event))}</title>{''.join(parts)}</g>"


def _ribbon(frame: _Frame, event: FailSlow) -> list[str]:
    stop = frame.stop(event)
    suspected = stop if event.provisional is None else event.provisional
    confirmed = stop if event.confirmed is None else event.confirmed
    suspected = min(suspected, confirmed)
    marks = ((event.onset, suspected, UNNOTICED), (suspected, confirmed, SUSPECTED), (confirmed, stop, CERTAIN))
    parts = [
        rect(frame.x(first), frame.ribbon, max(frame.x(min(last, stop)) - frame.x(first), 0), RIBBON, colour)
        for first, last, colour in marks
        if first < min(last, stop)
    ]
    if event.relief is not None:
        parts.append(rect(frame.x(stop) - 1.5, frame.ribbon - 1, 3, RIBBON + 2, USUAL))
    return parts


def _labels(frame: _Frame) -> list[tuple[int, float, int]]:
    """Which events are labelled: their number, where the words begin, and in which line above the plot."""
    taken = [0.0] * MOST_LABEL_LINES
    found = []
    for index, event in enumerate(frame.findings.events):
        words = len(_severity(event)) * CHARACTER + 10
        x = min(frame.x(event.onset), WIDTH - RIGHT - words + 10)
        level = next((level for level, end in enumerate(taken) if x >= end), None)
        if level is not None:
            taken[level] = x + words
            found.append((index, x, level))
    return found


def _severity(event: FailSlow) -> str:
    names = event.scope.names
    shown = ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")
    return f"{event.severity:.2f} x" + (f", {event.scope.kind} {shown}" if names else "")


def _words(frame: _Frame) -> list[str]:
    """The numbers of each event in words, beneath the plot."""
    y = frame.bottom + FOOT + 12
    return [text(LEFT, y + LINE * n, words, look) for n, (words, look) in enumerate(_told(frame.findings.events))]


def _told(events: Sequence[FailSlow]) -> list[tuple[str, str]]:
    """Lines of words, and how they look: of each event what it is, and what speaks for it."""
    most = int((WIDTH - LEFT - PAD) / (CHARACTER * 0.95))
    lines = []
    for event in events[:MOST_TOLD]:
        lines += [(line, "") for line in wrap(f"{event.severity:.2f} x · {_places(event)} · {_blame(event)}", most)]
        lines += [(line, "n") for line in wrap(" · ".join(event.evidence), most)]
    if len(events) > MOST_TOLD:
        lines.append((f"and {len(events) - MOST_TOLD} more", "n"))
    return lines


def _tip(event: FailSlow) -> str:
    words = [f"{event.severity:.2f} x the usual time", _places(event), _blame(event), *event.evidence]
    return "\n".join(words)


def _places(event: FailSlow) -> str:
    places = (("suspected", event.provisional), ("confirmed", event.confirmed), ("relief", event.relief))
    said = [f"slow since sample {event.onset}", *(f"{word} {place}" for word, place in places if place is not None)]
    return ", ".join(said if event.relief is not None else [*said, "not over"])


def _blame(event: FailSlow) -> str:
    where = event.scope.kind + (f" {', '.join(event.scope.names)}" if event.scope.names else "")
    return f"{where}, {'cause unknown' if event.cause == 'unknown' else event.cause}"


def _width(frame: _Frame, event: FailSlow) -> float:
    return max(frame.x(frame.stop(event)) - frame.x(event.onset), 1.0)


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")
