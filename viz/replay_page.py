"""A replay as one HTML page that can be mailed: a verdict in words, pictures, a table, and what was assumed.

Several replays stand side by side: which policy, and on which cluster, trains most, and which trains cheapest.
"""

import math
from collections.abc import Callable, Sequence
from html import escape

from ..schemas.quantities import print_share, print_time
from ..schemas.replay import ABOVE, PolicyReport, ReplayReport
from ..schemas.text import listed
from .replay import (
    FAULT_FREE,
    QUESTION,
    assumptions,
    colours_of,
    contestants,
    draw_bars,
    draw_overlaid,
    draw_strips,
    most_amounts,
    print_amount,
    print_memory,
    ranked,
    replay_part,
    report_facts,
    title_of,
    trace_name,
    verdict,
)
from .style import page

MOST_ANSWERS = 3

REPORT_STYLE = """<style>
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
    ("Goodput", "micro-batches that counted in the end, as a share of those that the job's nodes would have trained "
     f"with the fastest plan for the job's shape, if none had ever failed or paused. It is above 100 % {ABOVE}."),
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
    return page(
        title or title_of(report), report_facts(report), REPORT_STYLE + _section(report, colours), _guide([report])
    )


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
    sections = ""
    for name, report in named:
        facts = "".join(f'<p class="facts">{escape(fact)}</p>' for fact in report_facts(report))
        sections += f'<div class="turn"><h2>{escape(name)}</h2>{facts}{_section(report, colours)}</div>'
    return page(title or QUESTION, (), REPORT_STYLE + summary + sections, _guide(reports))


def _section(report: ReplayReport, colours: dict[str, str]) -> str:
    """All about one report, but its title and its facts."""
    said = f'<p class="verdict">{verdict(report)}</p>'
    if not ranked(report):
        return said + _table(report, colours)
    pictures = (replay_part(one, report, colours).svg() for one in (draw_overlaid, draw_bars, draw_strips))
    first, *others = (f'<div class="scroll">{picture}</div>' for picture in pictures)
    return f'{said}{first}{_table(report, colours)}<div class="turn">{"".join(others)}</div>'


def _guide(reports: Sequence[ReplayReport]) -> list[tuple[str, str]]:
    """How to read it, and what was assumed; the same for several reports is said once."""
    assumed = dict.fromkeys(one for report in reports for one in assumptions(report))
    return [*_GUIDE, *assumed]


def _table(report: ReplayReport, colours: dict[str, str]) -> str:
    """A row a policy: the best first, then the fault-free cluster, then those that refuse."""
    trained = contestants(report)
    best = trained[0].policy if trained and trained[0].goodput > 0 else FAULT_FREE
    references = [one for one in ranked(report) if one not in trained]
    most = most_amounts(report)
    rows = [_row(one, colours, "best" if one.policy == best != FAULT_FREE else "", most) for one in trained]
    rows += [_row(one, colours, "reference", most) for one in references]
    rows += [
        f'<tr>{_name(one.policy, colours)}<td class="words" colspan="{len(_HEADINGS)}">cannot train: '
        f"{escape(one.refusal)}</td></tr>"
        for one in report.policies
        if one.refusal is not None
    ]
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
    often = sorted(policy.answers.items(), key=lambda one: (-one[1], one[0]))
    answers = listed((f"{escape(one)} {'once' if n == 1 else f'{n} times'}" for one, n in often), MOST_ANSWERS)
    told = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr class="{look}">{_name(policy.policy, colours)}{told}<td class="words">{answers}</td></tr>'


def _name(policy: str, colours: dict[str, str]) -> str:
    return f'<th><i class="dot" style="background:{colours[policy]}"></i>{escape(policy)}</th>'


Named = tuple[str, ReplayReport]
_NOTE = (
    "Green: the best of its column. Goodput is measured against each job's own fault-free cluster; the other columns "
    "compare all jobs, by micro-batches that counted."
)
# A price is told for so many micro-batches that it is at least 1.
_BUNDLES = ((1, "a micro-batch"), (1000, "1,000 micro-batches"), (10**6, "a million micro-batches"))


def labels_of(reports: Sequence[ReplayReport]) -> list[str]:
    """What tells reports apart: the job's nodes and its spares, else the trace too, else a number."""
    nodes = [_nodes(report) for report in reports]
    traces = [trace_name(report) for report in reports]
    for labels in (nodes, [f"{each}, {trace}" for each, trace in zip(nodes, traces, strict=True)]):
        if len(set(labels)) == len(labels):
            return labels
    return [f"{each} ({number})" for number, each in enumerate(nodes, start=1)]


def comparison_verdict(named: Sequence[Named]) -> str:
    """For a manager, as HTML: what is best of all, where that can be said, and the best policy of each report."""
    found = _all(named)
    said = [_best_of_all(found)] if _are_comparable(named) and any(one.microbatches for _, one in found) else []
    return " ".join([*said, *(_winner(*one) for one in named)]).replace(" %", "&nbsp;%")


def comparison_table(named: Sequence[Named], colours: dict[str, str]) -> str:
    """A row a policy; for each report its goodput, what it trains beside the most of all, and its price; as HTML."""
    columns = _columns(named)
    above = ""
    for name, report in named:
        nodes = _nodes(report)
        heading = escape(name) + (f"<br><small>{escape(nodes)}</small>" if nodes not in name else "")
        above += f'<th colspan="{len(columns)}" style="text-align:center">{heading}</th>'
    below = "".join(f"<th>{heading}</th>" for _ in named for heading, _, _ in columns)
    policies = [name for name in colours if name != FAULT_FREE]
    best = {name: max((one.goodput for _, one in _all(named) if one.policy == name), default=-1.0) for name in policies}
    rows = (
        f"<tr>{_name(name, colours)}{''.join(_cells(name, report, columns) for _, report in named)}</tr>"
        for name in sorted(policies, key=lambda name: -best[name])
    )
    head = f'<thead><tr><th rowspan="2">policy</th>{above}</tr><tr>{below}</tr></thead>'
    note = f'<p class="facts">{_NOTE}</p>' if len(columns) > 1 else ""
    return f'<div class="scroll"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>{note}'


# A column: its heading, what it says of a policy, and by what the best one is known: the greater the better.
_Column = tuple[str, Callable[[PolicyReport], str], Callable[[PolicyReport], float]]


def _columns(named: Sequence[Named]) -> list[_Column]:
    columns: list[_Column] = [("goodput", lambda one: print_share(one.goodput), lambda one: one.goodput)]
    found = _all(named)
    most = max((one.microbatches for _, one in found), default=0)
    if not (_are_comparable(named) and most):
        return columns
    columns.append(
        ("trained, of the most", lambda one: print_share(one.microbatches / most), lambda one: one.microbatches)
    )
    least = min((_price_of(one) for _, one in found), default=math.inf)
    if least < math.inf:
        count, bundle = _bundle(found)

        def told(one: PolicyReport) -> str:
            return print_amount(count * _price_of(one), count * least) if _price_of(one) < math.inf else ""

        columns.append((f"cost of {bundle}", told, lambda one: -_price_of(one)))
    return columns


def _cells(name: str, report: ReplayReport, columns: Sequence[_Column]) -> str:
    """What one report says of a policy; green where no other policy of the report does better."""
    rivals = _rivals(report)
    mine = next((one for one in report.policies if one.policy == name), None)
    if mine is None or mine.refusal is not None:
        words = "" if mine is None else "cannot train"
        return f'<td colspan="{len(columns)}" style="text-align:center">{words}</td>'
    cells = []
    for _, told, worth in columns:
        look = ' class="best"' if worth(mine) >= max(map(worth, rivals)) else ""
        cells.append(f"<td{look}>{told(mine)}</td>")
    return "".join(cells)


def _best_of_all(found: Sequence[tuple[str, PolicyReport]]) -> str:
    where, most = max(found, key=lambda one: one[1].microbatches)
    said = f"{_strong(most)} ({escape(where)}) trains the most"
    cheap_where, cheap = min(found, key=lambda one: _price_of(one[1]))
    if _price_of(cheap) == math.inf:
        return f"{said}."
    count, bundle = _bundle(found)
    price = f"{bundle} cost {print_amount(count * _price_of(cheap))}"
    if cheap is most:
        return f"{said}, and is the cheapest, too: {price}."
    return f"{said}; {_strong(cheap)} ({escape(cheap_where)}) is the cheapest: {price}."


def _winner(name: str, report: ReplayReport) -> str:
    rivals = _rivals(report)
    if not rivals:
        return f"{escape(name)}: nothing can train."
    if rivals[0].goodput <= 0:
        return f"{escape(name)}: nothing that is trained counts in the end."
    return f"{escape(name)}: {_strong(rivals[0])} is best, with a goodput of {print_share(rivals[0].goodput)}."


def _strong(policy: PolicyReport) -> str:
    return f"<strong>{escape(policy.policy)}</strong>"


def _rivals(report: ReplayReport) -> list[PolicyReport]:
    """The policies that train, the best first."""
    return [one for one in contestants(report) if one.policy != FAULT_FREE]


def _all(named: Sequence[Named]) -> list[tuple[str, PolicyReport]]:
    return [(name, one) for name, report in named for one in _rivals(report)]


def _are_comparable(named: Sequence[Named]) -> bool:
    """Whether micro-batches are the same in all reports: those of one model."""
    models = [report.job.get("model") for _, report in named]
    return all(model is not None and model == models[0] for model in models)


def _price_of(policy: PolicyReport) -> float:
    """Of one micro-batch."""
    return policy.cost / policy.microbatches if policy.cost > 0 and policy.microbatches else math.inf


def _bundle(found: Sequence[tuple[str, PolicyReport]]) -> tuple[int, str]:
    """For how many micro-batches a price is told."""
    least = min(_price_of(one) for _, one in found)
    return next((bundle for bundle in _BUNDLES if bundle[0] * least >= 1), _BUNDLES[-1])


def _nodes(report: ReplayReport) -> str:
    """`384 nodes and 16 spares`, as far as the report knows."""
    nodes, most = report.job.get("nodes"), report.trace.get("nodes_max")
    if not isinstance(nodes, int):
        return trace_name(report)
    spares = most - nodes if isinstance(most, int) else 0
    return f"{nodes} nodes" + (f" and {spares} spare{'s' * (spares > 1)}" if spares > 0 else "")
