"""A replay as one HTML page that can be mailed: a verdict in words, pictures, a table, and what was assumed."""

from collections.abc import Sequence
from html import escape

from ..schemas.replay_report import PolicyReport, ReplayReport
from .page import page
from .replay_comparison import comparison_table, comparison_verdict, labels_of
from .replay_scene import FAULT_FREE, colours_of, contestants, ranked
from .replay_svg import bars, overlaid, picture_svg, strips
from .replay_words import (
    QUESTION,
    assumptions,
    most_amounts,
    print_amount,
    print_memory,
    print_share,
    report_facts,
    title_of,
    verdict,
)
from .units import print_time

MOST_ANSWERS = 3

_STYLE = """<style>
body { max-width: 1280px; margin: 1.4rem auto; padding: 0 1rem; }
h2 { font-size: 1.15rem; margin: 1.6rem 0 .3rem; }
.verdict { font-size: 1.05rem; margin: .8rem 0; padding: .7rem 1rem; background: #F3F6FA;
  border-left: 4px solid #2BB38A; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0; font-size: .87rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #E3E6EB; text-align: right; vertical-align: top; }
th { font-weight: 600; color: #4B5563; } thead th { vertical-align: bottom; }
th:first-child, th.words, td.words { text-align: left; } tbody th { color: inherit; white-space: nowrap; }
td.words { color: #4B5563; font-weight: 400; }
.best { background: #E3F5EF; font-weight: 600; } .reference * { color: #6B7280; font-weight: 400; }
i.dot { display: inline-block; width: .7em; height: .7em; margin-right: .45em; }
svg { display: block; max-width: 100%; height: auto; }
@media screen { svg { min-width: 52rem; } td.words:last-child { min-width: 13rem; } }
@page { size: A4 landscape; margin: 8mm; }
@media print {
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  body { margin: 0; padding: 0; max-width: none; font-size: 10.5px; line-height: 1.35; }
  h1 { font-size: 15px; } h2 { font-size: 13px; } .verdict { font-size: 12px; margin: 4px 0; padding: 4px 10px; }
  table { font-size: 9.5px; margin: 4px 0; } th, td { padding: 1px 7px; }
  details { font-size: 9px; max-width: none; margin: 0; } dl { gap: 0 8px; margin: 2px 0; }
  svg { max-width: 88%; } svg, tr, .verdict, details { break-inside: avoid; }
  .turn { break-before: page; } h2 { break-after: avoid; }
}
</style>"""

_GUIDE = (
    ("Goodput", "micro-batches that counted in the end, beside those of the same cluster if it never failed and never "
     "paused. It can exceed what nodes are there for: a policy may have a better schedule than that cluster."),
    ("Time", "dark green: so long would the fault-free cluster have taken for the same; pale green: the rest of the "
     "time at work, in which iterations took longer because nodes were missing or slow. The rest is not training."),
    ("GPU-hours", "present: of GPUs that were there; useful: that the fault-free cluster would have taken for the same "
     "training; lost: the difference, below 0 where a policy's own schedule makes up for more than failures take; "
     "idle: without a place in the plan. The cost is that of the present ones."),
    ("Memory", "the most that any GPU held under any plan that was in force."),
)  # fmt: skip

_HEADINGS = (
    "policy", "goodput", "GPU-hours present", "useful", "idle", "lost", "cost", "cost of a useful GPU-hour",
    "peak GPU memory", "healthy iteration",
)  # fmt: skip


def replay_html(report: ReplayReport, title: str | None = None) -> str:
    """Draw a report as one HTML page without scripts, which needs no network and prints on two pages.

    Args:
        report: what is drawn.
        title: stands above; None: the model's name and the trace's.

    Returns:
        The page's text; equal arguments give equal text.
    """
    colours = colours_of([report])
    return page(title or title_of(report), report_facts(report), _STYLE + _section(report, colours), _guide([report]))


def comparison_html(
    reports: Sequence[ReplayReport], labels: Sequence[str] | None = None, title: str | None = None
) -> str:
    """Several reports as one HTML page: which policy to run, and on which cluster; such as with and without spares.

    Args:
        reports: of one model, as a rule; of others only goodputs are compared.
        labels: a name for each; None: what tells them apart, such as their nodes.
        title: stands above; None: the question.

    Returns:
        The page's text; equal arguments give equal text.
    """
    names = labels_of(reports) if labels is None else list(labels)
    named = list(zip(names, reports, strict=True))
    colours = colours_of(reports)
    summary = f'<p class="verdict">{comparison_verdict(named)}</p>{comparison_table(named, colours)}'
    sections = "".join(
        f'<div class="turn"><h2>{escape(name)}</h2>{_facts(report)}{_section(report, colours)}</div>'
        for name, report in named
    )
    return page(title or QUESTION, (), _STYLE + summary + sections, _guide(reports))


def _section(report: ReplayReport, colours: dict[str, str]) -> str:
    """All about one report, but its title and its facts."""
    said = f'<p class="verdict">{verdict(report)}</p>'
    if not ranked(report):
        return said + _table(report, colours)
    pictures = (picture_svg(one, report, colours) for one in (overlaid, bars, strips))
    first, *others = (f'<div class="scroll">{picture}</div>' for picture in pictures)
    return f'{said}{first}{_table(report, colours)}<div class="turn">{"".join(others)}</div>'


def _facts(report: ReplayReport) -> str:
    return "".join(f'<p class="facts">{escape(fact)}</p>' for fact in report_facts(report))


def _guide(reports: Sequence[ReplayReport]) -> list[tuple[str, str]]:
    """How to read it, and what was assumed; the same for several reports is said once."""
    assumed = dict.fromkeys(one for report in reports for one in assumptions(report))
    return [*_GUIDE, *assumed]


def _table(report: ReplayReport, colours: dict[str, str]) -> str:
    """A row a policy: the best first, then the fault-free cluster, then those that refuse."""
    trained = contestants(report)
    best = trained[0].policy if trained and trained[0].goodput > 0 else FAULT_FREE
    references = [one for one in ranked(report) if one not in trained]
    refused = [one for one in report.policies if one.refusal is not None]
    most = most_amounts(report)
    rows = [_row(one, colours, "best" if one.policy == best != FAULT_FREE else "", most) for one in trained]
    rows += [_row(one, colours, "reference", most) for one in references]
    rows += [_refused(one, colours) for one in refused]
    head = "".join(f"<th>{heading}</th>" for heading in _HEADINGS) + '<th class="words">most frequent answers</th>'
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _row(policy: PolicyReport, colours: dict[str, str], look: str, most: tuple[float, float]) -> str:
    """A policy that trains; `most`: the most GPU-hours and the highest cost of all that do."""
    hours, (most_hours, highest) = policy.gpu_hours, most
    cells = (
        print_share(policy.goodput),
        *(print_amount(value, most_hours) for value in (hours.present, hours.useful, hours.idle, hours.lost)),
        print_amount(policy.cost, highest),
        f"{policy.cost / hours.useful:,.2f}" if hours.useful > 0 else "",
        print_memory(policy.peak_memory_bytes) if policy.peak_memory_bytes else "",
        print_time(policy.healthy_iteration_time_s) if policy.healthy_iteration_time_s else "never trains",
    )
    told = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr class="{look}">{_name(policy, colours)}{told}<td class="words">{_answers(policy)}</td></tr>'


def _refused(policy: PolicyReport, colours: dict[str, str]) -> str:
    why = escape(policy.refusal or "")
    return f'<tr>{_name(policy, colours)}<td class="words" colspan="{len(_HEADINGS)}">cannot train: {why}</td></tr>'


def _name(policy: PolicyReport, colours: dict[str, str]) -> str:
    return f'<th><i class="dot" style="background:{colours[policy.policy]}"></i>{escape(policy.policy)}</th>'


def _answers(policy: PolicyReport) -> str:
    """What was done most often."""
    often = sorted(policy.answers.items(), key=lambda one: (-one[1], one[0]))
    more = len(often) - MOST_ANSWERS
    told = ", ".join(
        f"{escape(answer)} {'once' if count == 1 else f'{count} times'}" for answer, count in often[:MOST_ANSWERS]
    )
    return told + (f" and {more} more" if more > 0 else "")
