"""Several replays side by side: which policy, and on which cluster, trains most, and which trains cheapest."""

import math
from collections.abc import Callable, Sequence
from html import escape

from ..schemas.replay_report import PolicyReport, ReplayReport
from .replay_scene import FAULT_FREE, contestants
from .replay_words import print_amount, print_share, trace_name

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
    above = "".join(f'<th colspan="{len(columns)}" style="text-align:center">{_heading(*one)}</th>' for one in named)
    below = "".join(f"<th>{heading}</th>" for _ in named for heading, _, _ in columns)
    policies = [name for name in colours if name != FAULT_FREE]
    best = {name: max((one.goodput for _, one in _all(named) if one.policy == name), default=-1.0) for name in policies}
    rows = (_row(name, named, columns, colours[name]) for name in sorted(policies, key=lambda name: -best[name]))
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
    least = min((_price(one) for _, one in found), default=math.inf)
    if least < math.inf:
        count, bundle = _bundle(found)

        def told(one: PolicyReport) -> str:
            return print_amount(count * _price(one), count * least) if _price(one) < math.inf else ""

        columns.append((f"cost of {bundle}", told, lambda one: -_price(one)))
    return columns


def _heading(name: str, report: ReplayReport) -> str:
    """A report's name, and its nodes where the name is another."""
    nodes = _nodes(report)
    return escape(name) + (f"<br><small>{escape(nodes)}</small>" if nodes not in name else "")


def _row(name: str, named: Sequence[Named], columns: Sequence[_Column], colour: str) -> str:
    cells = "".join(_cells(name, report, columns) for _, report in named)
    return f'<tr><th><i class="dot" style="background:{colour}"></i>{escape(name)}</th>{cells}</tr>'


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
    cheap_where, cheap = min(found, key=lambda one: _price(one[1]))
    if _price(cheap) == math.inf:
        return f"{said}."
    count, bundle = _bundle(found)
    price = f"{bundle} cost {print_amount(count * _price(cheap))}"
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


def _price(policy: PolicyReport) -> float:
    """Of one micro-batch."""
    return policy.cost / policy.microbatches if policy.cost > 0 and policy.microbatches else math.inf


def _bundle(found: Sequence[tuple[str, PolicyReport]]) -> tuple[int, str]:
    """For how many micro-batches a price is told."""
    least = min(_price(one) for _, one in found)
    return next((bundle for bundle in _BUNDLES if bundle[0] * least >= 1), _BUNDLES[-1])


def _nodes(report: ReplayReport) -> str:
    """`384 nodes and 16 spares`, as far as the report knows."""
    nodes, most = report.job.get("nodes"), report.trace.get("nodes_max")
    if not isinstance(nodes, int):
        return trace_name(report)
    spares = most - nodes if isinstance(most, int) else 0
    return f"{nodes} nodes" + (f" and {spares} spare{'s' * (spares > 1)}" if spares > 0 else "")
