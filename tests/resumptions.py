"""A job of four workers in which one dies in the middle of an iteration, told by the simulator: both ways."""

from dataclasses import replace
from functools import cache

import rtk
from rtk.runners.virtual.job import SimulatedRun
from rtk.schemas.plan import Plan, Stage, Template
from rtk.schemas.resumption import Resumption
from rtk.schemas.trace import Trace, TraceEvent

from .strategies import hand_plan

# The trace of that death, as a file.
KILL = '{"time_s": 20.0, "kind": "fail", "worker": "1/1"}\n'
ORDERS = {
    "0/0": "F0 F1 I0 F2 W0 I1 W1 I2 W2",
    "0/1": "F0 I0 F1 W0 I1 F2 W1 I2 W2",
    "1/0": "F0 F1 I0 F2 W0 I1 W1 I2 W2",
    "1/1": "F0 I0 F1 W0 I1 F2 W1 I2 W2",
}


@cache
def small_plan() -> Plan:
    """Two pipelines of two stages, three micro-batches, a second an operation; sums and steps take half a second."""
    plan = hand_plan(dict(ORDERS), 3, delay_s=0.1, limit_bytes=8.0)
    (template,) = plan.templates
    stages: tuple[Stage, ...] = tuple(replace(one, allreduce_s=0.5, optimizer_s=0.5) for one in template.stages)
    return replace(plan, templates=(Template(template.name, stages, template.links),))


@cache
def killed(log_memory: float | None = None) -> SimulatedRun:
    """Worker 1/1 dies 7.8 s after the first operation of iteration 1; `log_memory` 0: it is done anew."""
    trace = Trace((TraceEvent(kind="fail", time_s=20.0, worker="1/1"),))
    return rtk.inject(small_plan(), trace, iterations=3, log_memory=log_memory)


def resumed() -> Resumption:
    """What was left of that iteration."""
    (found,) = killed().resumptions
    return found
