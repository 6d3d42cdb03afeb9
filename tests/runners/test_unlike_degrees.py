"""Workers of unlike degrees, each rank a real process: whoever is lost, losses are those of one process."""

import signal
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rtk.schemas.plan import Plan  # noqa: E402

from .ranked import RankedJob, losses_alone, plan_of  # noqa: E402
from .test_survival import FOREVER  # noqa: E402


def with_degrees(plan: Plan, *degrees: int) -> Plan:
    """The same plan with its stages on so many GPUs, which last as long."""
    (template,) = plan.templates
    stages = zip(template.stages, degrees, strict=True)
    changed = tuple(replace(stage, tensor_parallel=degree) for stage, degree in stages)
    return replace(plan, templates=(replace(template, stages=changed),))


def event(kind: str, worker: str) -> Any:
    """Tells what was announced of a worker."""
    return lambda one: (one["event"], one.get("worker")) == (kind, worker)


def test_workers_of_two_gpus_and_of_one_are_lost_and_come_back() -> None:
    """Of two stages, on two GPUs and on one, both workers of a pipeline are lost, one by one of its ranks; the peers go
    on, and whoever comes back has their state, with the same checksum of whole layers."""
    plan = with_degrees(plan_of(2, 2, 2, 2, "zero-bubble"), 2, 1)
    with RankedJob(plan, FOREVER, clip_norm=0.5) as job:
        at = job.wait_for_iteration(1)
        for process in ("1/1", "1/0:0"):
            job.signal(process, signal.SIGKILL)
            at = job.wait_for(event("failure", process.partition(":")[0]), since=at)
        for process in ("1/1", "1/0:0"):
            job.start(process)
            at = job.wait_for(event("join", process.partition(":")[0]), since=at)
        job.wait_for(lambda one: one["event"] == "iteration", since=at)
        losses = job.losses()
        assert losses == pytest.approx(losses_alone(len(losses), 4, 0.5), rel=1e-12)
