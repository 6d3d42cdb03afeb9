"""What a replay was worth: a Record, measured against the cluster that never fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from ...schemas.replay_report import GpuHours, PolicyReport, Stretch, WhereTimeWent
from .engine import Record
from .spans import Span, merged, neighbours

MOST_STRETCHES = 2000  # of a report; more are merged, the shortest first
HOUR_S = 3600.0
NOTHING = GpuHours(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Yardstick:
    """The fault-free cluster over the same time.

    Attributes:
        microbatches: that it commits.
        gpu_s: that it takes for one of them.
        gpus_per_node: of every node.
        gpu_hour_price: in any currency.
    """

    microbatches: int
    gpu_s: float
    gpus_per_node: int
    gpu_hour_price: float


def yardstick_of(fault_free: Record, gpus_per_node: int, gpu_hour_price: float) -> Yardstick:
    """What others are measured against, of the fault-free cluster's record over the same trace."""
    began = fault_free.began
    assert began.iteration_time_s is not None
    gpu_s = began.iteration_time_s * began.nodes * gpus_per_node / began.microbatches
    return Yardstick(fault_free.microbatches, gpu_s, gpus_per_node, gpu_hour_price)


def report_of(policy: str, record: Record, yardstick: Yardstick, healthy_s: float | None) -> PolicyReport:
    """What a policy made of a trace.

    Args:
        policy: its name.
        record: of its replay.
        yardstick: of the same trace.
        healthy_s: its iteration time with all nodes there; None: it does not train then.
    """
    hours = yardstick.gpus_per_node / HOUR_S
    present_h, working_h = hours * record.present_s, hours * record.worked_s
    useful_h = record.microbatches * yardstick.gpu_s / HOUR_S
    return PolicyReport(
        policy=policy,
        goodput=record.microbatches / yardstick.microbatches if yardstick.microbatches else 0.0,
        microbatches=record.microbatches,
        healthy_iteration_time_s=healthy_s or 0.0,
        time=_where(record.spent_s),
        gpu_hours=GpuHours(present_h, useful_h, present_h - working_h, present_h - useful_h),
        cost=present_h * yardstick.gpu_hour_price,
        peak_memory_bytes=record.peak_memory_bytes,
        answers=dict(sorted(record.answers.items())),
        stretches=tuple(stretches_of(record.spans)),
    )


def refused(policy: str, why: str) -> PolicyReport:
    """Of a policy that cannot train the job."""
    return PolicyReport(policy, 0.0, 0, 0.0, WhereTimeWent(), NOTHING, 0.0, 0.0, refusal=why)


def stretches_of(spans: Sequence[Span], most: int = MOST_STRETCHES) -> list[Stretch]:
    """Throughput over time, in at most so many stretches: neighbours are merged until none is shorter than a share."""
    least_s = (spans[-1].end_s - spans[0].start_s) / most if len(spans) > most else 0.0
    return [_stretch(merged(group)) for group in neighbours(spans, least_s)]


def _where(spent_s: Mapping[str, float]) -> WhereTimeWent:
    """Purposes have the names of the fields, less their unit; roll-backs may leave a rounding below 0."""
    names = [one.name for one in fields(WhereTimeWent)]
    return WhereTimeWent(**{name: max(0.0, spent_s.get(name.removesuffix("_s"), 0.0)) for name in names})


def _stretch(span: Span) -> Stretch:
    lasts_s = span.end_s - span.start_s
    rate = span.microbatches / lasts_s if lasts_s > 0 else 0.0
    return Stretch(span.start_s, round(span.nodes), round(span.working_nodes), rate)
