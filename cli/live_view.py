"""The live view of a run on a terminal: workers, speed, loss, what has happened. Imported only where it is shown."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..schemas.placement import placement_words
from ..schemas.plan import name_of
from ..schemas.quantities import print_change, print_time
from ..schemas.text import counted, listed
from .learning_curve import FAILED
from .run_output import RunStory, StoryLine, clock, print_loss, printable

LEAST_BETWEEN_S = 0.25  # between two refreshes; what matters more than an iteration is shown at once
WIDEST = 120
MOST_ROWS = 8  # of pipelines; more are summed up per stage
MOST_LINES = 3  # of such sums
CELL = 7  # the width of a place in the grid
LABEL = 11  # the width of what stands left of a row
GAP = 4  # between the workers and the facts beside them
FACTS = 42  # the width that these need
CURVE_LINES = 4  # of the learning curve, above its axis
LEAST_HAPPENINGS = 2  # that have room below it
BARS = "▁▂▃▄▅▆▇█"


class LiveView:
    """Shows a story and keeps it up to date.

    Args:
        story: what to show.
        console: where; standard output by default.
    """

    def __init__(self, story: RunStory, console: Console | None = None) -> None:
        # No thread of its own: the story changes only between two calls.
        self._console = console or Console()
        self._live = Live(RunView(story), console=self._console, auto_refresh=False)
        self._shown_s = float("-inf")

    def update(self, is_urgent: bool) -> None:
        """Show how things stand now; where it is not urgent, only if that was not done a moment ago."""
        if not self._live.is_started:
            self._live.start()
        if is_urgent or time.monotonic() - self._shown_s >= LEAST_BETWEEN_S:
            self._live.refresh()
            self._shown_s = time.monotonic()

    def stop(self) -> None:
        """Show the last state, leave it there and give the terminal back."""
        if self._live.is_started:
            self._live.refresh()
            self._live.stop()
            if not self._console.is_terminal:  # there rich ends no line
                self._console.line()


class RunView:
    """A story as something that rich can render, at any width.

    Args:
        story: what to show.
    """

    def __init__(self, story: RunStory) -> None:
        self._story = story

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        story, width = self._story, min(options.max_width, WIDEST)
        inner = width - 4
        parts = [_head(story, inner, console, options), Text(), *_exceptions(story, inner), _progress(story)]
        height = sum(len(console.render_lines(part, options.update_width(inner))) for part in parts)
        # A view higher than the terminal could not be drawn anew in place.
        room = max(0, console.size.height - height - 4)
        if room > CURVE_LINES + 1 + min(LEAST_HAPPENINGS, len(story.happenings)) and len(story.curve) > 1:
            parts[-1:-1] = [*_curve(story, inner), Text()]
            room -= CURVE_LINES + 2
        if room and story.happenings:
            parts += [Text(), *(_happening(one, inner) for one in list(story.happenings)[-room:])]
        yield Panel(
            Group(*parts), box=box.ROUNDED, border_style="dim", width=width, title=_title(story), title_align="left"
        )


def _title(story: RunStory) -> Text:
    facts, columns = story.facts, set(_columns_of(story))
    noun = "worker" if facts.plan.is_placed else "stage"
    of = counted(max(columns), noun) if len(columns) == 1 else f"{min(columns)} to {max(columns)} {noun}s"
    parts = [
        f"{counted(len(facts.plan.pipelines), 'pipeline')} of {of}",
        *dict.fromkeys(placement_words(one.placement) for one in facts.plan.templates if one.placement is not None),
        f"{facts.plan.optimizer} optimizer",
        *(["paced"] if facts.paced else []),
    ]
    shape = Text(" · ".join(parts), "not dim")
    return Text.assemble((printable(facts.model), "bold not dim"), " · ", shape) if facts.model else shape


def _head(story: RunStory, inner: int, console: Console, options: ConsoleOptions) -> RenderableType:
    """The workers and the facts, side by side where there is room."""
    # A row per pipeline and a column per stage; where that is too much, how many of each stage are alive. Where workers
    # hold several virtual stages, what is called a stage here is a column.
    columns = _columns_of(story)
    workers = _grid(story, columns) if _has_room(columns, inner) else _sums(story, columns, inner)
    beside = inner - console.measure(workers, options=options.update_width(inner)).maximum - GAP
    if beside < FACTS:
        return Group(workers, Text(), _facts(story, inner))
    both = Table.grid()
    both.add_row(Padding(workers, (0, GAP, 0, 0)), _facts(story, beside))
    return both


# The workers


def _columns_of(story: RunStory) -> list[int]:
    """How many workers each pipeline has."""
    plan = story.facts.plan
    return [len(plan.template_of(k).columns) for k in range(len(plan.pipelines))]


def _noun(story: RunStory) -> str:
    """What the workers of one number hold."""
    return "column" if story.facts.plan.is_placed else "stage"


def _has_room(stages: Sequence[int], inner: int) -> bool:
    return len(stages) <= MOST_ROWS and LABEL + max(stages) * CELL <= inner


def _grid(story: RunStory, stages: Sequence[int]) -> Table:
    table = _columns(max(stages), CELL)
    table.add_row(_dim(_noun(story)), *(_dim(str(i)) for i in range(max(stages))))
    for k, count in enumerate(stages):
        table.add_row(_dim(f"pipeline {k}"), *(_cell(story, name_of((k, i))) for i in range(count)))
    return table


def _columns(count: int, width: int) -> Table:
    table = Table.grid()
    table.add_column(width=LABEL)
    for _ in range(count):
        table.add_column(width=width, justify="right", no_wrap=True)
    return table


def _cell(story: RunStory, place: str) -> Text:
    """Who sits at a place: in colour a worker that is named after another one, in red that it has just died."""
    name = story.seats.get(place)
    if place in story.dead:
        return Text("dead", style="red")
    if name is None:
        return _dim("—")
    return Text(printable(name), style="" if name == place else "cyan")


@dataclass(frozen=True)
class _Alive:
    """How many of a stage's workers are alive."""

    stage: int
    found: int
    of: int

    @property
    def style(self) -> str:
        return "" if self.found == self.of else "yellow" if self.found else "red"


def _sums(story: RunStory, stages: Sequence[int], inner: int) -> Table:
    """Per stage how many of its workers are alive; of very many stages only those that lack some."""
    alive = []
    for stage in range(max(stages)):
        holders = [k for k, count in enumerate(stages) if stage < count]
        alive.append(_Alive(stage, sum(_is_alive(story, name_of((k, stage))) for k in holders), len(holders)))
    width = max(len(str(len(stages))), len(str(max(stages)))) + 2
    across = (inner - LABEL) // width
    if len(alive) > MOST_LINES * across:
        alive = [one for one in alive if one.found < one.of]
    lines = min(MOST_LINES, -(-len(alive) // across))
    each = min(across, -(-len(alive) // max(1, lines)))
    table = _columns(each, width)
    for line in range(lines):
        shown = alive[line * each : (line + 1) * each]
        table.add_row(_dim(_noun(story)), *(_dim(str(one.stage)) for one in shown))
        table.add_row(_dim("alive"), *(Text(str(one.found), style=one.style) for one in shown))
    return table


def _is_alive(story: RunStory, place: str) -> bool:
    return place in story.seats and place not in story.dead


def _exceptions(story: RunStory, inner: int) -> Iterator[RenderableType]:
    """What sums do not show: which places are vacant, and who sits at another one than its own."""
    if _has_room(_columns_of(story), inner):
        return
    vacant = [worker.name for worker in story.facts.plan.workers if not _is_alive(story, worker.name)]
    away = [f"{name} at {place}" for place, name in story.seats.items() if name != place]
    for label, names in (("vacant", vacant), ("moved", away)):
        if names:
            named = printable(listed(names))
            yield Text.assemble((f"{label:{LABEL}}", "dim"), named, overflow="ellipsis", no_wrap=True)
    if vacant or away:
        yield Text()


# The facts


def _facts(story: RunStory, width: int) -> Table:
    table = Table.grid()
    table.add_column(style="dim", width=LABEL, no_wrap=True)
    table.add_column(width=width - LABEL, no_wrap=True, overflow="ellipsis")
    loss = print_loss(story.loss)
    bars = sparkline(story.losses, width - LABEL - len(loss) - 2)
    table.add_row("workers", f"{story.live_workers} of {len(story.facts.plan.workers)}, epoch {story.epoch}")
    table.add_row("loss", Text.assemble(loss, "  ", (bars, "cyan")))
    if story.curve.evaluations:
        table.add_row("evaluation", story.evaluated_in_words().removeprefix("evaluation "))
    table.add_row("iteration", "-" if story.time_s is None else print_time(story.time_s))
    table.add_row("predicted", _predicted(story.predicted_s, story.time_s) if story.predicted_s else "-")
    table.add_row("tokens", "-" if story.tokens_per_s is None else f"{story.tokens_per_s:.0f} /s")
    changes = [*story.changes(), f"{print_time(story.lost_s)} lost"]
    table.add_row("changes", ", ".join(changes) if story.changes() else "none")
    if story.pace:
        table.add_row("pace", Text(printable(story.pace), "yellow"))
    if story.slow:
        table.add_row("slow", Text(printable(listed(f"{who} {how}" for who, how in story.slow.items())), "yellow"))
    return table


def _predicted(predicted_s: float, time_s: float | None) -> str:
    """What an iteration is to take, and how far what it took is from that."""
    measured = "" if time_s is None else f", measured {print_change(time_s / predicted_s - 1)}"
    return f"{print_time(predicted_s)}{measured}"


def sparkline(values: Iterable[float | None], width: int) -> str:
    """The last values as a row of bars between their least and their greatest; a space where there is none."""
    shown = list(values)[-max(1, width) :]
    known = [value for value in shown if value is not None]
    if not known:
        return ""
    least, top = min(known), len(BARS) - 1
    spread = max(known) - least
    bars = {value: BARS[round((value - least) / spread * top)] if 0 < spread < math.inf else BARS[3] for value in known}
    return "".join(" " if value is None else bars[value] for value in shown)


def _curve(story: RunStory, inner: int) -> Iterator[Text]:
    """The losses of all iterations so far, of the lines above the axis and it; crosses are failures."""
    drawing = story.curve.drawn(inner - LABEL - len(f" {story.iteration}"), CURVE_LINES)
    labels = {0: f"loss {drawing.most:.4g}", CURVE_LINES - 1: f"{drawing.least:.4g}"}
    for number, line in enumerate(drawing.lines):
        text = Text.assemble((f"{labels.get(number, ''):>{LABEL - 1}} ", "dim"), (line, "cyan"))
        for y, x in drawing.evaluations:
            if y == number:
                text.stylize("magenta", LABEL + x, LABEL + x + 1)
        yield text
    axis = Text.assemble(f"{drawing.first:>{LABEL - 1}} {drawing.axis} {drawing.last}", style="dim")
    axis.highlight_regex(FAILED, "not dim red")
    yield axis


def _progress(story: RunStory) -> Table:
    done, of = 0 if story.iteration is None else story.iteration + 1, story.iterations
    words = counted(done, "iteration") if of is None else f"{done} of {counted(of, 'iteration')}"
    left_s = story.remaining_s
    if left_s and story.end is None:
        minutes, seconds = divmod(round(left_s), 60)
        hours, minutes = divmod(minutes, 60)
        words += f", {f'{hours}:{minutes:02d}' if hours else minutes}:{seconds:02d} left"
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True)
    bar = ProgressBar(total=of or 1, completed=done if of else 0, complete_style="cyan", finished_style="cyan")
    table.add_row(bar, words)
    return table


# What has happened


def _happening(one: StoryLine, inner: int) -> Text:
    """One line; where it is too long, what it cost is the last thing to be cut."""
    words, room = one.words, inner - len(clock(one.at_s)) - 2 - len(one.cost)
    if len(words) > room:
        words = f"{words[: max(0, room - 1)].rstrip()}…"
    parts = [(clock(one.at_s), "dim"), ("  ", ""), (words, "red" if one.is_bad else ""), (one.cost, "dim")]
    return Text.assemble(*parts, overflow="ellipsis", no_wrap=True)


def _dim(text: str) -> Text:
    return Text(text, style="dim")
