"""A report of `rtk bubble`: as words, as a picture with a bar a stage, and as a page."""

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from ..schemas.bubble import BubbleChange, BubbleReport, StageBubble
from ..schemas.quantities import SECOND, print_percent, print_time
from ..schemas.text import counted
from .painter import PAD, WIDTH, Picture, Sheet, painting, time_axis
from .style import FAINT, GROUND, INK, LOOKS, DrawnBox, page

if TYPE_CHECKING:
    from rich.text import Text

SEEN = 5e-4  # of an imbalance that is told
LEFT, BAR, GAP, AXIS = 100, 24, 8, 46
# The parts of a stage's iteration: the field, words and a colour.
PARTS = (
    ("before_s", "idle before the first operation", "#DDE1E8"),
    ("compute_s", "computing (F, I, W, B)", LOOKS["F"].colour),
    ("between_s", "idle between operations", GROUND),
    ("after_s", "idle after the last operation", "#B7BDC9"),
    ("step_s", "optimizer step", LOOKS["step"].colour),
)
GUIDE = (
    ("Bubble ratio", "the share of an iteration in which the average worker computes nothing: with sums, steps, "
     "messages and waits."),
    ("Idle over computing", "idle time over computing time of all workers. An ideal pipeline of even stages has "
     "(p - 1) / (v m), for p workers of v virtual stages in a row and m micro-batches."),
    ("Exposed communication", "while a stream of communication is busy and none of computing; it lies in the idle "
     "parts."),
    ("By its orders", "an iteration of the same orders with the times that were measured, and the least that any order "
     "of these operations on these workers takes: proven."),
)  # fmt: skip


def title_of_bubble(report: BubbleReport) -> str:
    """What a page or picture of it is called."""
    name = report.bound.schedule if report.bound else "a pipeline"
    return f"Bubbles of {report.read}: {name}"


def words_of_bubble(report: BubbleReport) -> str:
    """A report in words."""
    told = [*_facts(report), "", *_table(report.stages)]
    if report.bound is not None:
        told += ["", *_bound(report)]
    if report.remarks:
        told += ["", *(f"note: {remark}" for remark in report.remarks)]
    return "\n".join(told)


def _facts(report: BubbleReport) -> Iterator[str]:
    time_s, count = print_time(report.iteration_time_s), counted(report.iterations, "iteration")
    promised = "" if report.planned_s is None else f"; the plan promised {print_time(report.planned_s)}"
    yield f"An iteration takes {time_s} ({count}, {report.source}, by {report.clock}){promised}."
    shape = f"{counted(report.pipelines, 'pipeline')} of {counted(len(report.stages), 'worker')}"
    chunks = f" with {report.virtual_stages} virtual stages each" if report.virtual_stages > 1 else ""
    yield f"{shape}{chunks}, {counted(report.microbatches, 'micro-batch', 'es')} a pipeline."
    yield (
        f"The average worker computes nothing for {print_percent(report.bubble_ratio)} of it (bubble ratio); idle time "
        f"is {print_percent(report.idle_over_compute)} of computing time."
    )
    busiest = max(report.stages, key=lambda one: one.compute_s)
    if report.imbalance > SEEN:
        where = f"stage {busiest.stage}" if len({one.compute_s for one in report.stages}) > 1 else "the busiest stage"
        yield f"Imbalance: {where} computes {print_percent(report.imbalance)} longer than the mean of all."


def _table(stages: tuple[StageBubble, ...]) -> Iterator[str]:
    headings = ("stage", "workers", "computes", "step", "before", "between", "after", "exposed communication")
    rows = [headings]
    for one in stages:
        parts = (one.compute_s, one.step_s, one.before_s, one.between_s, one.after_s)
        seen = "not told" if one.exposed_communication_s is None else print_time(one.exposed_communication_s)
        rows.append((str(one.stage), str(one.workers), *map(print_time, parts), seen))  # type: ignore[arg-type]
    widths = [max(len(row[column]) for row in rows) for column in range(len(headings))]
    yield from ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _bound(report: BubbleReport) -> Iterator[str]:
    bound = report.bound
    assert bound is not None
    even = print_percent(bound.even_ratio)
    yield f"It ran {bound.schedule}; even stages in 1F1B would idle for {even} of computing time."
    yield (
        f"By the measured times its orders take {print_time(bound.modelled_s)}, and {print_time(bound.dependency_s)} "
        f"(bubble ratio {print_percent(bound.dependency_bubble_ratio)}) if messages took no time. No order of these "
        f"operations on these workers takes less than {print_time(bound.lower_bound_s)}."
    )
    if not bound.changes:
        yield f"None of {counted(bound.tried, 'change')} that were tried would help."
        return
    yield f"What would help most, of {counted(bound.tried, 'change')} that were tried:"
    for number, change in enumerate(bound.changes, start=1):
        yield f"  {number}. {_help(change, bound.modelled_s)}"


def _help(change: BubbleChange, modelled_s: float) -> str:
    assumes = f"; assumed: {change.assumes}" if change.assumes else ""
    saved = f"saves {print_time(change.saved_s)} ({print_percent(change.saved_s / modelled_s)})"
    return f"{change.what}: {print_time(change.iteration_time_s)}, {saved}{assumes}"


@painting()
def bubble_picture(report: BubbleReport, title: str) -> Picture:
    """Draw a report: a bar a stage, divided as its iteration is, and what would help."""
    sheet = Sheet(title)
    sheet.heading(list(_facts(report)))
    sheet.key([((colour,), words, False) for _, words, colour in PARTS])
    sheet.y += 6
    top, each = sheet.y, BAR + GAP
    panel = sheet.panel(
        len(report.stages) * each, LEFT, WIDTH - PAD, (0.0, report.iteration_time_s or 1.0),
        (len(report.stages) * each, 0.0),
    )  # fmt: skip
    boxes = []
    for row, stage in enumerate(report.stages):
        y, start_s = row * each, 0.0
        sheet.words(LEFT - 8, top + y + BAR / 2 + 4, f"stage {stage.stage}", side="right")
        for name, words, colour in PARTS:
            end_s = start_s + getattr(stage, name)
            if end_s > start_s:
                said = print_percent((end_s - start_s) / report.iteration_time_s)
                tip = f"stage {stage.stage}, {words}: {print_time(end_s - start_s)}, {said}"
                boxes.append(DrawnBox(start_s, end_s, y, y + BAR, colour, (said,), INK, tip))
            start_s = end_s
    sheet.boxes(panel, boxes)
    time_axis(panel, SECOND, report.iteration_time_s, 10, has_lines=False)
    sheet.y += AXIS
    if report.bound is not None:
        sheet.subtitle("Beside its schedule")
        sheet.facts(line.strip() for line in _bound(report))
    if report.remarks:
        sheet.facts(f"note: {remark}" for remark in report.remarks)
    sheet.y += PAD
    return sheet.picture()


def bubble_html(report: BubbleReport, title: str) -> str:
    """Draw a report as one HTML page without scripts."""
    chart = f'<div class="scroll">{bubble_picture(report, title).svg()}</div>'
    table = "".join(f'<p class="facts">{escape(line)}</p>' for line in _bound(report)) if report.bound else ""
    return page(title, _facts(report), chart + table, GUIDE)


def bubble_chart(report: BubbleReport, width: int) -> "Text":
    """Draw a report for a terminal: a line a stage, with a letter for each part."""
    from rich.text import Text

    marks = dict(zip((name for name, _, _ in PARTS), (".", "#", "-", " ", "+"), strict=True))
    room, text = max(width - 12, 10), Text()
    for stage in report.stages:
        text.append(f"stage {stage.stage:>3} ", style=FAINT)
        done_s, drawn = 0.0, 0
        for name, _, _ in PARTS:
            done_s += getattr(stage, name)
            until = round(room * done_s / report.iteration_time_s) if report.iteration_time_s else 0
            text.append(marks[name] * (until - drawn))
            drawn = until
        text.append("\n")
    text.append(", ".join(f"{marks[name]!r} {words}" for name, words, _ in PARTS) + "\n", style=FAINT)
    return text
