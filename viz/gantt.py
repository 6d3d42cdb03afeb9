"""A self-contained HTML page with an interactive Gantt chart and, beneath it, the memory of each worker.

The page is `page.css`, `page.js` and the timelines as `pack.py` packs them; it needs no network.
"""

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from ..schemas.columns import columns_of
from .facts import Labelled, facts_of_all, layers_of
from .pack import pack

GUIDE = (
    ("Row", "one worker k/i: it holds stage i (consecutive layers of the model) of pipeline k, and does one thing at a "
     "time. Time runs to the right. Of pipelines that are alike one is drawn: click the line above it to see all."),
    ("Bar", "one operation on one micro-batch, whose number it carries. F computes the forward pass; I the gradient of "
     "the stage's input, for which the stage before waits; W the gradient of its weights, which can wait; B is I and W "
     "in one."),
    ("Grey", "the worker is idle: a bubble. The less grey, the better the schedule."),
    ("Stacked", "where bars are thinner than a pixel, each column shows how its time is shared out; zoom in for the "
     "bars themselves."),
    ("Hatched", "a re-routed micro-batch: 1.3 is micro-batch 3 of pipeline 1, computed here in place of pipeline 1's "
     "own worker."),
    ("Memory", "what the worker holds for micro-batches between their forward and their backward; the dashed line is "
     "its limit."),
    ("Pale", "done in vain: a worker failed before the iteration was committed, and this was done again. What is not "
     "pale then was kept. Where a row is reddish, the worker is not there."),
    ("Dark edge", "of a resumption: this operation begins with a message that its sender has kept, and sends again."),
    ("Framed", "run again for its message alone, which had been lost: its gradients are not summed again."),
    ("Mouse", "point at a bar for its times. Drag to zoom, double-click to see all. Ctrl and the wheel zoom, and so "
     "does the wheel over the time axis; Shift and the wheel, or dragging the axis, move in time. Click the legend to "
     "hide a kind."),
    ("Keys", "<kbd>+</kbd> <kbd>-</kbd> zoom, <kbd>←</kbd> <kbd>→</kbd> move, <kbd>0</kbd> shows all, <kbd>/</kbd> "
     "searches."),
    ("Search", "1.3 is micro-batch 3 of pipeline 1, on all its workers; 3 that of every pipeline; F1.3 its forward "
     "passes; 0/1 a worker."),
)  # fmt: skip

TINT = (
    "Tint", "worker k/i holds several virtual stages (chunks), whose numbers the legend says: the later its stage, the "
    "paler a bar. 5F1.3 finds the forward pass of micro-batch 1.3 through virtual stage 5.",
)  # fmt: skip

_TOOLS = """<div id="tools"><div class="bar" role="toolbar" aria-label="view">
<button id="out" aria-label="zoom out">&minus;</button><button id="in" aria-label="zoom in">+</button>
<button id="all">all</button><button id="fit" title="all rows in the window">fit rows</button>
<button id="fold" hidden>show all pipelines</button>
<label>search<input id="search" placeholder="1.3" spellcheck="false"></label>
<label>rows<input id="rows" placeholder="0-3, 1/2, */0" spellcheck="false"></label>
<label>times<input id="times" spellcheck="false"></label>
<span id="found" role="status"></span><span class="space"></span><button id="theme">dark</button>
</div><div class="bar" id="legend" role="group" aria-label="kinds of operations"></div></div>"""


def gantt_html(timelines: Sequence[Labelled], title: str) -> str:
    """Draw timelines as one HTML page that needs no network.

    Args:
        timelines: labels and timelines; several are laid over each other, one row a worker and timeline.
        title: the page's title.

    Returns:
        The page's text; equal arguments give equal text.
    """
    drawn = [(label, columns_of(timeline)) for label, timeline in timelines]
    said = [*facts_of_all(drawn), layers_of(drawn)]
    facts = "".join(f'<p class="facts">{escape(fact)}</p>' for fact in said if fact)
    entries = [*GUIDE, TINT] if any(columns.seats for _, columns in drawn) else GUIDE
    guide = "".join(f"<dt>{word}</dt><dd>{text}</dd>" for word, text in entries)
    packed = b64encode(pack(drawn)).decode()
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">\n'
        f"<style>{_asset('page.css')}</style></head>\n<body>\n<h1>{escape(title)}</h1>\n{facts}\n"
        f"<noscript><p>This chart needs JavaScript.</p></noscript>\n{_TOOLS}\n"
        f'<div id="view" tabindex="0" role="application" aria-label="{escape(title)}: operations of each worker over '
        f'time"><canvas id="canvas"></canvas><div id="spacer"></div></div>\n<div id="tip" role="tooltip"></div>\n'
        f"<details open><summary>How to read this</summary><dl>{guide}</dl></details>\n"
        f'<script type="application/octet-stream" id="data">{packed}</script>\n'
        f"<script>{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return files("rtk.viz").joinpath(name).read_text(encoding="utf-8")
