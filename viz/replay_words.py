"""A replay in words for whoever pays for the cluster: which policy is best, what that is worth, what was assumed."""

import math
from collections.abc import Mapping
from html import escape
from pathlib import PurePath
from typing import Any

from ..schemas.replay_report import PolicyReport, ReplayReport
from .replay_scene import DAY_S, FAULT_FREE, HOUR_S, MINUTE_S, contestants, ranked
from .units import print_bytes, print_number, print_time

RESTART = "checkpoint-restart"  # what everybody can do without any of the others
QUESTION = "Which policy should this cluster run?"
# Goodputs that print alike are alike.
LEVEL = 0.0005
MOST_DECIMALS = 12


def print_span(seconds: float) -> str:
    """A time in the unit in which people say it, such as `30 min`, `12 h` or `345 days`."""
    for unit_s, name in ((DAY_S, "days"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if seconds >= 3 * unit_s or (seconds >= unit_s and seconds % unit_s == 0):
            count = print_number(float(f"{seconds / unit_s:.3g}"))
            return f"{count} day" if name == "days" and count == "1" else f"{count} {name}"
    return print_time(seconds)


def print_amount(value: float, most: float | None = None) -> str:
    """A number of hours or a sum of money, such as `1,234` or `12.3`.

    Args:
        value: the number.
        most: the greatest of those that stand under each other, all with its decimals; None: it stands alone.
    """
    greatest = abs(value if most is None else most)
    decimals = max(0, 2 - math.floor(math.log10(greatest))) if 0 < greatest < 100 else 0
    return f"{value:z,.{min(decimals, MOST_DECIMALS)}f}"


def most_amounts(report: ReplayReport) -> tuple[float, float]:
    """The most GPU-hours and the highest cost of all policies, whose decimals all others have."""
    trained = ranked(report)
    hours = max((one.gpu_hours.present for one in trained), default=0.0)
    return hours, max((one.cost for one in trained), default=0.0)


def print_memory(size: float) -> str:
    """A GPU's memory with one decimal of GiB, such as `74.0 GiB`; what is smaller as it is."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else print_bytes(size)


def print_share(share: float) -> str:
    """A share of one as per cent with one decimal, such as `98.0 %`: figures of a column stand under each other."""
    return f"{100 * share:.1f} %"


def title_of(report: ReplayReport) -> str:
    """Whose replay it is."""
    return f"{_told(report.job, 'model', 'A model')} under {trace_name(report)}"


def trace_name(report: ReplayReport) -> str:
    """The trace's file, without its folders."""
    return PurePath(str(report.trace.get("name") or "a trace")).name


def report_facts(report: ReplayReport) -> list[str]:
    """A line each about the job and about the trace, as far as the report knows."""
    return [line for line in (_job_line(report.job), _trace_line(report)) if line]


def verdict(report: ReplayReport) -> str:
    """For a manager, as HTML: the best policy, how much better than others it is, and what that is worth."""
    if not ranked(report):
        return "None of the policies can train this job at all; the table says why."
    best, *others = contestants(report)
    if best.policy == FAULT_FREE:
        return "No policy was replayed that survives failures: there is nothing to choose from."
    if best.goodput <= 0:
        return "Nothing that any policy trains under this trace counts in the end: there is nothing to choose from."
    compared = [*others[:1], *(one for one in others[1:] if one.policy == RESTART)]
    said = [
        _praise(best, len(others)),
        *(_against(best, one, is_next=place == 0) for place, one in enumerate(compared)),
    ]
    base = next((one for one in others if one.policy == RESTART), None)
    said.append(_worth(best, base) if base is not None else _bill(best))
    said.append("All this is computed from a trace and assumed costs, which stand at the end.")
    return " ".join(said).replace(" %", "&nbsp;%")


def assumptions(report: ReplayReport) -> list[tuple[str, str]]:
    """What the figures hang on, as words and their meaning in HTML."""
    found = [("Nodes and workers", report.mapping), ("Costs of changes", cost_words(report.costs))]
    time_s, nodes = report.fault_free.get("iteration_time_s"), report.fault_free.get("nodes")
    if isinstance(time_s, int | float) and nodes is not None:
        count = f"{report.fault_free['microbatches']} micro-batches" if "microbatches" in report.fault_free else ""
        found.append(("100 %", f"what {nodes} nodes would train that never fail: an iteration {'of ' * bool(count)}"
                      f"{count} each {print_time(time_s)}, without checkpoints"))  # fmt: skip
    bound = report.fault_free.get("goodput_bound")
    if isinstance(bound, int | float):
        found.append(
            ("At most", f"{bound:.1%}: no policy can train more, for all GPUs that are there compute all the time")
        )
    return [(word, escape(text)) for word, text in found if text]


def cost_words(costs: Mapping[str, Any]) -> str:
    """The fields of `Costs`, with their units; those without a number were left to rtk."""
    given = [_cost(name, value) for name, value in sorted(costs.items()) if value is not None]
    left = [_cost_name(name) for name, value in sorted(costs.items()) if value is None]
    return ", ".join(given) + (f"; worked out from the model and the trace: {', '.join(left)}" if left else "")


def _cost(name: str, value: Any) -> str:
    """A cost with its unit; whatever stands in a file's place of a number, as it is."""
    if not isinstance(value, int | float) or not name.endswith("_s"):
        return f"{_cost_name(name)} {value}"
    is_rate = name.endswith("_bytes_per_s")
    return f"{_cost_name(name)} {f'{print_number(value / 1e9)} GB/s' if is_rate else print_span(value)}"


def _cost_name(name: str) -> str:
    words = name.removesuffix("_s").removesuffix("_bytes_per").replace("_", " ")
    return words.replace("gpu hour", "GPU-hour")


def _praise(best: PolicyReport, others: int) -> str:
    of = f"the best of {others + 1} policies" if others else "the only policy that was replayed"
    return (
        f"<strong>{escape(best.policy)}</strong> is {of}: it trains <strong>{print_share(best.goodput)}</strong> of "
        "what the whole cluster would if nothing ever failed."
    )


def _against(best: PolicyReport, other: PolicyReport, is_next: bool) -> str:
    """How much better the best is than another."""
    name = ("The next best, " if is_next else "") + escape(other.policy)
    if best.goodput - other.goodput < LEVEL:
        return f"{name}, is level with it." if is_next else f"{name} is level with it."
    verb = ", trains" if is_next else " trains"
    less = f", {print_share(1 - other.goodput / best.goodput)} less training" if other.goodput > 0 else ""
    return f"{name}{verb} {print_share(other.goodput)}{less}."


def _worth(best: PolicyReport, base: PolicyReport) -> str:
    """What the best gains over check-pointing and restarting, in GPU-hours and money."""
    hours = best.gpu_hours.useful - base.gpu_hours.useful
    bill = f" that costs {print_amount(best.cost)} either way" if best.cost > 0 else ""
    return (
        f"Beside {escape(base.policy)} it saves <strong>{print_amount(hours)} GPU-hours</strong>{_price(best, hours)}: "
        f"so much more training comes out of a cluster{bill}."
    )


def _bill(best: PolicyReport) -> str:
    hours = best.gpu_hours
    return (
        f"{print_amount(hours.present)} GPU-hours train what would take a cluster that never fails "
        f"{print_amount(hours.useful)}."
    )


def _price(policy: PolicyReport, hours: float) -> str:
    present = policy.gpu_hours.present
    if present <= 0 or policy.cost <= 0:
        return ""
    each = policy.cost / present
    return f", worth <strong>{print_amount(hours * each)}</strong> at {print_number(round(each, 6))} a GPU-hour"


def _told(facts: Mapping[str, Any], name: str, otherwise: str) -> str:
    return str(facts[name]) if facts.get(name) is not None else otherwise


def _counted(form: str, count: Any) -> str:
    """A count with its noun, in the singular where it is 1."""
    return form.format(count, "" if count == 1 else "s", e="" if count == 1 else "es")


def _job_line(job: Mapping[str, Any]) -> str:
    """`gpt3-2.7b: 4 pipelines of 8 stages, 8 micro-batches each, on 32 nodes of 1 GPU`."""
    words = (
        ("dp", "{} pipeline{}"), ("pp", "{} stage{}"), ("microbatches", "{} micro-batch{e} a pipeline"),
        ("tensor_parallel", "tensor parallelism {}"), ("nodes", "{} node{}"), ("gpus_per_node", "GPUs of a node: {}"),
        ("schedule", "schedule {}"),
    )  # fmt: skip
    told = [_counted(form, job[name]) for name, form in words if job.get(name) is not None]
    return f"Job: {', '.join([_told(job, 'model', 'a model'), *told])}"


def _trace_line(report: ReplayReport) -> str:
    trace = report.trace
    span = trace.get("duration_s")
    told = [print_span(span)] if isinstance(span, int | float) else []
    words = (
        ("moments", "{} change{}"), ("moments_with_losses", "{} of them with losses"),
        ("nodes_lost", "{} node{} lost"), ("nodes_at_start", "{} node{} at the start"),
        ("nodes_min", "{} at the fewest"), ("nodes_max", "{} at the most"),
    )  # fmt: skip
    told += [_counted(form, trace[name]) for name, form in words if trace.get(name) is not None]
    mean = trace.get("nodes_mean")
    told += [f"{mean:.3g} on average"] if isinstance(mean, int | float) else []
    return f"Trace: {', '.join([trace_name(report), *told])}"
