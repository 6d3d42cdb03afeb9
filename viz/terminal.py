"""Pictures in text: timelines, pipeline templates and replays, in colours where the terminal has them and readable
where it has not."""

from rich.text import Text

from ..schemas.ledger import GoodputLedger
from ..schemas.quantities import print_number, print_share, print_time, ticks
from ..schemas.replay import ReplayReport
from ..schemas.templates import Templates
from .facts import Drawable
from .ledger import LOOKS_OF_CLASSES, dearest, ledger_facts, sentence
from .replay import HOUR_S, PURPOSES, contestants, print_amount, print_span, report_facts, shares_of, title_of
from .scene import Bar, Gap, Row, Scene, lay_out
from .style import INK, LOOKS, time_colour
from .templates import facts_of, least_share, rows_of

BUBBLE = "·"
SHORT = {"allreduce": "AR", "step": "S", "other": "?"}
MAX_EVENTS = 10
APART = "   "  # entries of the legend
INDENT = 2  # of a template's nodes
NARROWEST_BAR = 10
# Without colours a character tells what it is.
_CHARACTERS = dict(zip(PURPOSES, "█▒×dpcrk·", strict=True))  # noqa: RUF001

Cell = tuple[str, str]


def terminal_gantt(timeline: Drawable, width: int, label: str = "") -> Text:
    """Draw a timeline in lines of text.

    Each operation begins with its letter and, where it fits, its micro-batch; lines fill it up to its end, another line
    a kind, which colours cover where there are any. A lower-case letter or `F1.3` is a re-routed micro-batch.

    Args:
        timeline: what is drawn.
        width: columns of the terminal.
        label: what to call the timeline; its source where empty.
    """
    scene = lay_out([(label or timeline.source, timeline)], "")
    margin = max((len(row.worker) for row in scene.rows), default=0) + 1
    columns = max(width - margin - 1, 10)
    lines = [Text(scene.facts[0], style="bold")]
    hidden = 0
    bars_of: dict[Row, list[Bar]] = {row: [] for row in scene.rows}
    for bar in scene.bars:
        bars_of[bar.row].append(bar)
    says_stage = _has_room_for_stages(scene, columns)
    for row, bars in bars_of.items():
        gaps = [gap for gap in scene.gaps if gap.row == row]
        cells, lost = _cells(row, bars, gaps, columns, scene.end_s, says_stage)
        hidden += lost
        lines.append(Text.assemble(f"{row.worker:>{margin - 1}} ", *cells))
    unit = scene.unit
    line = [" "] * (columns + 12)
    for value in ticks(unit.of(scene.end_s), max(columns // 14, 1)):
        place = round(value / unit.per_second * columns / scene.end_s) if scene.end_s else 0
        words = f"╵{print_number(value)}"
        if place + len(words) <= columns:
            line[place : place + len(words)] = words
    words = f" {unit.name}"
    end = len("".join(line).rstrip())
    line[end : end + len(words)] = words
    lines += [Text(" " * margin + "".join(line).rstrip()), Text(""), *_legend(scene, width)]
    remarks = (
        (True, f"F2: forward of micro-batch 2; one column is {print_time(scene.end_s / columns)}"),
        (says_stage, "5F2: forward of micro-batch 2 through virtual stage 5"),
        (bool(scene.chunks), f"the later a worker's chunk the paler: {'; '.join(scene.chunks)}"),
        (bool(scene.gaps), "empty: the worker is not there"),
        (any(bar.rerouted for bar in scene.bars),
         "F1.3: forward of micro-batch 3 re-routed from pipeline 1; f where that does not fit"),
        (any(bar.again for bar in scene.bars), "F2~: run again for its message alone"),
        (any(bar.half for bar in scene.bars), "where a forward and a backward run side by side F is drawn first"),
        (hidden > 0, f"{hidden} operations are shorter than a column and not shown"),
        (bool(scene.title), scene.title.strip()),
    )  # fmt: skip
    lines += [Text(remark, style="dim") for is_so, remark in remarks if is_so]
    events = [mark for mark in scene.marks if mark.is_event]
    lines += [Text(f"! {print_time(mark.time_s)}  {mark.words}", style="red") for mark in events[:MAX_EVENTS]]
    if len(events) > MAX_EVENTS:
        lines.append(Text(f"! and {len(events) - MAX_EVENTS} more events", style="red"))
    return Text("\n").join(lines)


def _has_room_for_stages(scene: Scene, columns: int) -> bool:
    """Whether virtual stages can be said of all whose micro-batch is: in between, `F27I2` could be read as F27."""
    scale = columns / scene.end_s if scene.end_s else 0.0
    for bar in scene.bars:
        length = round(bar.span.end_s * scale) - round(bar.span.start_s * scale)
        words = SHORT.get(bar.kind, bar.kind) + bar.label
        if bar.stage is not None and len(words) <= length < len(f"{bar.stage}{words}"):
            return False
    return bool(scene.chunks)


def _cells(
    row: Row, bars: list[Bar], gaps: list[Gap], columns: int, end_s: float, says_stage: bool
) -> tuple[list[Cell], int]:
    """A row's characters with their styles, and how many operations were too short for one."""
    cells: list[Cell] = [(BUBBLE if row.busy else " ", "dim")] * columns
    scale = columns / end_s if end_s else 0.0
    hidden = 0
    for gap in gaps:
        first, stop = round(gap.start_s * scale), min(round(gap.end_s * scale), columns)
        cells[first:stop] = [(" ", "")] * (stop - min(first, columns))
    for bar in sorted(bars, key=lambda bar: bar.span.start_s):
        first, stop = round(bar.span.start_s * scale), round(bar.span.end_s * scale)
        middle = (first + stop) // 2
        first, stop = (middle if bar.half == 2 else first), (middle if bar.half == 1 else stop)
        hidden += first == stop
        cells[first:stop] = _drawn(bar, stop - first, says_stage)
    return cells, hidden


def _drawn(bar: Bar, length: int, says_stage: bool) -> list[Cell]:
    look = LOOKS[bar.kind]
    letter = SHORT.get(bar.kind, bar.kind)
    stage = "" if bar.stage is None or not says_stage else str(bar.stage)
    words = stage + letter + bar.label
    if len(words) > length:
        words = (letter.lower() if bar.rerouted else letter)[:length]
    mark = "bold underline " if bar.rerouted else ""
    if bar.again:
        words = f"{words}~"[:length]
    named = [(character, f"{mark}{INK} on {bar.colour}") for character in words]
    # Where there are colours the filling line has that of its ground, and is not seen.
    return named + [(look.fill, f"{bar.colour} on {bar.colour}")] * (length - len(words))


def _legend(scene: Scene, width: int) -> list[Text]:
    """What the letters and lines mean, packed into lines of the width."""
    entries = [
        Text.assemble(
            (SHORT.get(kind, kind), f"{INK} on {colours[0]}"),
            *((LOOKS[kind].fill * (2 if len(colours) == 1 else 1), f"{colour} on {colour}") for colour in colours),
            f" {LOOKS[kind].words.partition(' (')[0]}",
        )
        for kind in scene.kinds()
        for colours in [scene.colours(kind)]
    ]
    lines = [Text()]
    for entry in [*entries, Text(f"{BUBBLE * 3} idle")]:
        if lines[-1] and len(lines[-1]) + len(APART) + len(entry) > width:
            lines.append(Text())
        lines[-1].append_text(Text(APART) + entry if lines[-1] else entry)
    return lines


def terminal_templates(templates: Templates, width: int) -> Text:
    """Draw pipeline templates in lines of text.

    A node is `[…]`, a stage its layers and, after `x`, its GPUs; the slowest has a `*`, and where there are colours
    their depth is the time.

    Args:
        templates: what is drawn.
        width: columns of the terminal.
    """
    rows = rows_of(templates)
    low = least_share(rows)
    lines = [Text(fact, style="bold" if n == 0 else "") for n, fact in enumerate(facts_of(templates))]
    for row in rows:
        lines += [Text(f"{row.name}, {row.shape}: {row.time}, slowest {row.slowest}"), Text(" " * INDENT)]
        for blocks in row.by_node():
            stages = []
            for block in blocks:
                words = f"{block.layers}x{block.stage.tensor_parallel}" + ("*" if block.is_slowest else "")
                ground = time_colour((block.share - low) / (1 - low))
                stages.append(Text(words, f"{'bold ' if block.is_slowest else ''}{INK} on {ground}"))
            node = Text.assemble("[", Text(" ").join(stages), "]")
            if len(lines[-1]) > INDENT:
                if len(lines[-1]) + 1 + len(node) > width:
                    lines.append(Text(" " * INDENT))
                else:
                    lines[-1].append(" ")
            lines[-1].append_text(node)
    lines.append(Text("[…] a node; 0–3x2 layers 0 to 3 on 2 GPUs; * the slowest stage", style="dim"))  # noqa: RUF001
    return Text("\n").join(lines)


def terminal_replay(report: ReplayReport, width: int) -> Text:
    """Draw where each policy's time went in lines of text.

    Args:
        report: what is drawn; the best policy comes first.
        width: columns of the terminal.
    """
    lines = [Text(title_of(report), "bold"), *(Text(fact) for fact in report_facts(report))]
    shown = contestants(report)
    names = max((len(one.policy) for one in shown), default=0)
    bar = max(NARROWEST_BAR, width - names - len(" 100.0 % ") - 1)
    for one in shown:
        line, done, column = Text(f"{one.policy:{names}} {print_share(one.goodput):>7} "), 0.0, 0
        for purpose, share in shares_of(one):
            done += share
            stop = round(bar * min(done, 1.0))  # rounded at their ends, so that the columns add up
            ink = "white" if purpose.is_dark else INK
            line.append(_CHARACTERS[purpose] * (stop - column), f"{ink} on {purpose.colour}")
            column = stop
        lines.append(line)
    lines += [Text(f"{one.policy} cannot train: {one.refusal}") for one in report.policies if one.refusal is not None]
    seen = {purpose for one in shown for purpose, share in shares_of(one) if share > 0}
    key = ", ".join(f"{_CHARACTERS[purpose]} {purpose.words}" for purpose in PURPOSES if purpose in seen)
    lines += [Text(f"goodput; {key}", "dim")] if seen else []
    return Text("\n").join(lines)


def terminal_ledger(ledger: GoodputLedger, width: int) -> Text:
    """Draw where a job's time went in lines of text: a bar a class, then its most expensive failures.

    Args:
        ledger: what is drawn.
        width: columns of the terminal.
    """
    lines = [Text(sentence(ledger), "bold"), *(Text(fact) for fact in ledger_facts(ledger))]
    total_gpu_s = ledger.time.total_gpu_s
    names = max(map(len, LOOKS_OF_CLASSES))
    bar = max(NARROWEST_BAR, width - names - len("  100.0 %  1,234,567 GPU-hours "))
    for name, gpu_s in ledger.time:
        look, share = LOOKS_OF_CLASSES[name], gpu_s / total_gpu_s
        hours = print_amount(gpu_s / HOUR_S, min(total_gpu_s / HOUR_S, 99.0))
        line = Text(f"{name:{names}} {print_share(share):>7} {hours:>9} {ledger.unit} ")
        lines.append(line.append("█" * round(bar * share), look.colour))
    lines += [
        Text(
            f"failure after {print_span(one.time_s)}: {one.cause} ({one.where}); noticed in "
            f"{print_span(one.detection_s)}, restarted in {print_span(one.restart_s)}, idle "
            f"{print_span(one.idle_s)}, {one.iterations_lost} iterations lost: "
            f"{print_amount(one.cost_gpu_s / HOUR_S)} {ledger.unit}"
        )
        for one in dearest(ledger)
    ]
    lines += [Text(f"note: {one}", "dim") for one in ledger.warnings]
    return Text("\n").join(lines)
