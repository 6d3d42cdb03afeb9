"""A ledger of a job as pictures and as a page: where its GPU-hours went, attempt by attempt, and what failures cost."""

from collections.abc import Callable, Iterable, Sequence
from html import escape

from ..schemas.ledger import CLASSES, GoodputLedger, JobAttempt, JobFailure, LedgerClass
from ..schemas.quantities import print_percent, print_share, ticks
from ..schemas.text import counted
from .painter import PAD, WIDTH, Picture, Sheet, number_axis, time_axis
from .replay import HOUR_S, Purpose, TimeAxis, print_amount, print_span
from .replay_page import REPORT_STYLE
from .style import ALARM, FAINT, GROUND, IDLE, INK, LOOKS, DrawnBox, curve_colour, page, shortened

LOOKS_OF_CLASSES: dict[LedgerClass, Purpose] = {
    "useful": Purpose("useful", LOOKS["W"].colour),
    "slow": Purpose("slow", "#BFE8DB"),
    "redone": Purpose("redone: lost iterations", ALARM, is_dark=True),
    "checkpoint": Purpose("checkpoint", LOOKS["step"].colour),
    "detection": Purpose("detection", curve_colour(1), is_dark=True),
    "restart": Purpose("restart and rendezvous", LOOKS["I"].colour),
    "load": Purpose("load and start-up", LOOKS["F"].colour),
    "idle": Purpose("idle: not running", GROUND),
    "unknown": Purpose("unknown", IDLE),
}
# Classes whose time a better way of surviving failures, or of saving, could turn into progress.
COSTLY: tuple[LedgerClass, ...] = tuple(name for name in CLASSES if name != "useful")
MOST_ROWS = 24  # attempts that have a row of their own; more are drawn in one
MOST_FAILURES = 30  # in the table: the most expensive
_STYLE = f"{REPORT_STYLE}<style>td:not(.words) {{ white-space: nowrap; }}</style>"
LEFT, RIGHT = 210, 24
BAR, ROW, GAP, AXIS = 44, 18, 4, 40

Segment = tuple[LedgerClass, float, float]


def sentence(ledger: GoodputLedger) -> str:
    """What a manager reads first: how much made progress, and what cost most."""
    total_gpu_s = ledger.time.total_gpu_s
    hours = f"{print_amount(total_gpu_s / HOUR_S)} {ledger.unit}"
    first = f"Of {hours}, {print_share(ledger.goodput)} made progress"
    worst = [(name, ledger.time.of(name)) for name in COSTLY if ledger.time.of(name) > 0]
    worst.sort(key=lambda one: -one[1])
    if not worst:
        return f"{first}."
    told = [
        f"{LOOKS_OF_CLASSES[name].words.partition(':')[0]} ({print_amount(gpu_s / HOUR_S)} {ledger.unit}, "
        f"{print_share(gpu_s / total_gpu_s)})"
        for name, gpu_s in worst[:2]
    ]
    return f"{first}; the most expensive: {', then '.join(told)}."


def ledger_facts(ledger: GoodputLedger) -> list[str]:
    """Lines beneath the title."""
    gpus = sorted({one.gpus for one in ledger.attempts if one.gpus is not None})
    on = f" on {' or '.join(map(str, gpus))} GPU{'s' * (gpus != [1])}" if gpus else ""
    saves = ledger.saves
    kept = f", {ledger.iterations_skipped} of them without an update" if ledger.iterations_skipped else ""
    facts = [
        f"goodput {print_share(ledger.goodput)}, effective training time ratio (ETTR) {print_share(ledger.ettr)}",
        f"{print_span(ledger.span_s)}{on}: {counted(len(ledger.attempts), 'attempt')}, "
        f"{counted(len(ledger.failures), 'failure')}",
        f"{counted(ledger.iterations, 'iteration')}{kept}; {ledger.iterations_lost} were lost and done again",
    ]
    if saves.count and saves.pause_s is not None:
        every = "" if saves.every_s is None else f", one every {print_span(saves.every_s)}"
        facts.append(f"{counted(saves.count, 'checkpoint')}{every}, {print_span(saves.pause_s)} each")
    if ledger.evaluations:
        hours = f"{print_amount(ledger.evaluation_gpu_s / HOUR_S)} {ledger.unit}, counted as useful"
        told = hours if ledger.evaluation_gpu_s else "the log does not tell how long they took"
        facts.append(f"{counted(ledger.evaluations, 'evaluation')}: {told}")
    lines = ledger.lines
    formats = ", ".join(sorted({one for one in lines.formats.values() if one is not None}))
    facts.append(
        f"{counted(lines.read, 'line')} of {counted(len(lines.formats), 'log')}{f' ({formats})' if formats else ''}: "
        f"{lines.telling} tell of the job's course, {lines.not_understood} were not understood"
    )
    return facts


def dearest(ledger: GoodputLedger) -> list[JobFailure]:
    """The failures that cost most, in their order."""
    kept = sorted(ledger.failures, key=lambda one: (-one.cost_gpu_s, one.attempt))[:MOST_FAILURES]
    return sorted(kept, key=lambda one: one.attempt)


def segments_of(attempt: JobAttempt) -> list[Segment]:
    """An attempt over time: what it did from when to when; lost iterations are those at its end.

    Pauses and slowness within training have no places of their own: the bar of all classes shows how much there was.
    """
    training_s = attempt.progress_s if attempt.training_s is None else attempt.training_s
    lasted_s = attempt.until_s - attempt.begin_s
    gpus = attempt.time.total_gpu_s / lasted_s if lasted_s > 0 else 1.0  # also where its own lines do not say
    progress_s = max(attempt.progress_s, training_s)
    lost_s = min(attempt.time.redone_gpu_s / gpus, progress_s - training_s)
    noticed_s = attempt.noticed_s
    if noticed_s is None:
        noticed_s = min(progress_s + attempt.time.detection_gpu_s / gpus, attempt.until_s)
    end_s = max(noticed_s, attempt.until_s - attempt.time.idle_gpu_s / gpus)  # what passed until then was restart
    found: list[Segment] = [
        ("restart", attempt.begin_s, training_s),
        ("useful", training_s, progress_s - lost_s),
        ("redone", progress_s - lost_s, progress_s),
        ("detection", progress_s, noticed_s),
        ("restart", noticed_s, end_s),
        ("idle", end_s, attempt.until_s),
    ]
    return [one for one in found if one[2] > one[1]]


def ledger_picture(ledger: GoodputLedger, title: str) -> Picture:
    """Draw a ledger as one still picture: the classes, then the attempts.

    Args:
        ledger: what is drawn.
        title: stands above.
    """
    sheet = Sheet(title)
    sheet.heading((sentence(ledger), *ledger_facts(ledger)))
    for part in (draw_classes, draw_attempts):
        sheet.y += 10
        part(sheet, ledger)
    return sheet.picture()


def draw_classes(sheet: Sheet, ledger: GoodputLedger) -> None:
    """One bar: where all GPU-hours went."""
    total_gpu_s = ledger.time.total_gpu_s
    sheet.subtitle(f"Where {print_amount(total_gpu_s / HOUR_S)} {ledger.unit} went")
    _key(sheet, {name for name, gpu_s in ledger.time if gpu_s > 0})
    sheet.y += 4
    panel = sheet.panel(BAR, PAD, WIDTH - RIGHT, (0.0, 1.0), (BAR, 0.0))
    boxes, done = [], 0.0
    for name, gpu_s in ledger.time:
        share, look = gpu_s / total_gpu_s, LOOKS_OF_CLASSES[name]
        if share > 0:
            hours = f"{print_amount(gpu_s / HOUR_S)} {ledger.unit}"
            labels = (f"{look.words.partition(':')[0]}\n{print_share(share)}", print_share(share))
            tip = f"{look.words}: {print_percent(share)}, {hours}"
            boxes.append(
                DrawnBox(done, done + share, 0, BAR, look.colour, labels, "white" if look.is_dark else INK, tip)
            )
        done += share
    sheet.boxes(panel, boxes)
    places = ticks(1.0, 10)
    number_axis(panel, "x", places, [print_percent(place) for place in places], has_lines=False)
    sheet.y += 26


def draw_attempts(sheet: Sheet, ledger: GoodputLedger) -> None:
    """The attempts over time, a row each; very many in one row."""
    attempts = ledger.attempts
    rows: Sequence[Sequence[JobAttempt]] = [[one] for one in attempts] if len(attempts) <= MOST_ROWS else [attempts]
    sheet.subtitle(f"{counted(len(attempts), 'attempt')} over {print_span(ledger.span_s)}")
    _key(sheet, {name for one in attempts for name, _, _ in segments_of(one)})
    sheet.words(WIDTH - RIGHT, sheet.y - 3, "restart: with loading; within training all is one colour", FAINT, "right")
    sheet.y += 4
    top, each = sheet.y, ROW + GAP
    panel = sheet.panel(len(rows) * each, LEFT, WIDTH - RIGHT, (0.0, ledger.span_s), (len(rows) * each, 0.0))
    boxes = []
    for number, row in enumerate(rows):
        y = number * each
        sheet.words(LEFT - 8, top + y + ROW / 2 + 4, shortened(_label(number, row), LEFT - 8 - PAD), side="right")
        for attempt in row:
            for name, from_s, to_s in segments_of(attempt):
                look = LOOKS_OF_CLASSES[name]
                tip = f"{look.words}: {print_span(to_s - from_s)}, from {print_span(from_s)} on"
                boxes.append(DrawnBox(from_s, to_s, y, y + ROW, look.colour, tip=tip))
    sheet.boxes(panel, boxes)
    time_axis(panel, TimeAxis(ledger.span_s, ledger.span_s).unit, ledger.span_s, 12)
    sheet.y += AXIS


def _key(sheet: Sheet, seen: Iterable[LedgerClass]) -> None:
    shown = [look for name, look in LOOKS_OF_CLASSES.items() if name in seen]
    sheet.key([((look.colour,), look.words, False) for look in shown], PAD, RIGHT)


def _label(number: int, row: Sequence[JobAttempt]) -> str:
    if len(row) != 1:
        return "all attempts"
    did = row[0]
    has = f"{did.first_iteration}–{did.last_iteration}" if did.last_iteration is not None else "no iteration"  # noqa: RUF001
    return f"{number + 1}: {has}, {did.ended}"


def ledger_html(ledger: GoodputLedger, title: str) -> str:
    """Draw a ledger as one HTML page without scripts, which needs no network and can be printed.

    Args:
        ledger: what is drawn.
        title: stands above.

    Returns:
        The page's text; equal ledgers give equal text.
    """
    pictures = "".join(f'<div class="scroll">{_part(part, ledger)}</div>' for part in (draw_classes, draw_attempts))
    warnings = "".join(f"<li>{escape(one)}</li>" for one in ledger.warnings)
    warned = f"<h2>Before you believe it</h2><ul>{warnings}</ul>" if warnings else ""
    facts = "".join(f'<p class="facts">{escape(fact)}</p>' for fact in ledger_facts(ledger))
    body = f'<p class="verdict">{escape(sentence(ledger))}</p>{facts}{pictures}'
    body += _classes_table(ledger) + _failures_table(ledger) + warned
    guide = [(escape(word), escape(meaning)) for word, meaning in ledger.definitions.items() if word not in CLASSES]
    return page(title, (), _STYLE + body, guide)


def _part(part: Callable[[Sheet, GoodputLedger], None], ledger: GoodputLedger) -> str:
    sheet = Sheet("")
    part(sheet, ledger)
    return sheet.picture().svg()


def _classes_table(ledger: GoodputLedger) -> str:
    """A row a class, with what it means."""
    total_gpu_s = ledger.time.total_gpu_s
    rows = "".join(
        f'<tr><th><i class="dot" style="background:{LOOKS_OF_CLASSES[name].colour}"></i>{name}</th>'
        f"<td>{print_amount(gpu_s / HOUR_S, min(total_gpu_s / HOUR_S, 99.0))}</td>"
        f"<td>{print_share(gpu_s / total_gpu_s)}</td>"
        f'<td class="words">{escape(CLASSES[name])}</td></tr>'
        for name, gpu_s in ledger.time
    )
    head = f'<tr><th>class</th><th>{ledger.unit}</th><th>share</th><th class="words">what it is</th></tr>'
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def _failures_table(ledger: GoodputLedger) -> str:
    """A row a failure: what it was, and what it cost."""
    if not ledger.failures:
        return "<h2>No failure</h2>"
    shown = dearest(ledger)
    most = max(one.cost_gpu_s for one in shown) / HOUR_S
    left = len(ledger.failures) - len(shown)
    more = f"<p>{counted(left, 'cheaper failure')} more; the ledger in JSON has all.</p>" if left else ""
    rows = "".join(_failure_row(one, most) for one in shown)
    heads = ("attempt", "noticed after", "to notice", "to restart", "idle", "iterations lost", "redone", ledger.unit)
    head = "".join(f"<th>{one}</th>" for one in heads) + '<th class="words">cause</th>'
    return (
        f"<h2>What {counted(len(ledger.failures), 'failure')} cost</h2>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}'
    )


def _failure_row(one: JobFailure, most: float) -> str:
    cells = (
        print_span(one.time_s),
        print_span(one.detection_s),
        print_span(one.restart_s),
        print_span(one.idle_s),
        f"{one.iterations_lost}",
        print_span(one.redone_s),
        print_amount(one.cost_gpu_s / HOUR_S, most),
    )
    who = f" ({', '.join(f'rank {name}' if name.isdecimal() else name for name in one.ranks)})" if one.ranks else ""
    what = escape(f"{one.cause}{who}, {one.where}")
    told = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr><th>{one.attempt + 1}</th>{told}<td class="words">{what}</td></tr>'
