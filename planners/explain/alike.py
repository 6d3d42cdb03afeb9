"""Pipelines that are alike in all that counts, and the plan with one of each kind."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ...schemas.orders import Operation, print_order
from ...schemas.plan import Plan, Worker, name_of

Orders = Sequence[tuple[Worker, tuple[Operation, ...]]]  # of one pipeline's workers


@dataclass(frozen=True)
class Alike:
    """A plan with one pipeline of each kind: it takes as long as the whole plan, and the same changes improve it.

    Attributes:
        plan: the pipelines that are kept, numbered anew; without a prediction.
        pipelines: for each of them those of the whole plan that it stands for, itself first.
        rerouted: whether a micro-batch is executed by another pipeline than its own.
    """

    plan: Plan
    pipelines: tuple[tuple[int, ...], ...]
    rerouted: bool

    def names_of(self, worker: int) -> tuple[str, ...]:
        """The workers of the whole plan that one of the plan's workers stands for, itself first."""
        found = self.plan.workers[worker]
        return tuple(name_of((k, found.stage)) for k in self.pipelines[found.pipeline])


def one_of_each(plan: Plan) -> Alike:
    """Keep one of the pipelines that have the same template, links, slow-downs and orders.

    Where any micro-batch is executed by another pipeline than its own, all are kept.
    """
    orders = [(worker, worker.operations()) for worker in plan.workers]
    if any(op.pipeline != worker.pipeline for worker, operations in orders for op in operations):
        return Alike(replace(plan, prediction=None), tuple((k,) for k in range(len(plan.pipelines))), rerouted=True)
    found: dict[object, list[int]] = {}
    kept: list[Orders] = []
    for k, members in groupby(orders, lambda pair: pair[0].pipeline):
        pipeline = list(members)
        alike = found.setdefault(_kind(plan, k, pipeline), [])
        if not alike:
            kept.append(pipeline)
        alike.append(k)
    smaller = replace(
        plan,
        pipelines=tuple(plan.pipelines[members[0]] for members in found.values()),
        workers=tuple(_numbered(worker, ops, k) for k, pipeline in enumerate(kept) for worker, ops in pipeline),
        prediction=None,
    )
    return Alike(smaller, tuple(map(tuple, found.values())), rerouted=False)


def _kind(plan: Plan, k: int, orders: Orders) -> object:
    """Equal for pipelines that are alike."""
    pipeline = plan.pipelines[k]
    links = plan.links_of(k)
    tokens = tuple(tuple((op.kind, op.microbatch) for op in operations) for _, operations in orders)
    return pipeline.template, links, tuple(worker.slowdown or 1.0 for worker, _ in orders), tokens


def _numbered(worker: Worker, operations: Sequence[Operation], k: int) -> Worker:
    """The worker in the pipeline of another number, in its order too."""
    order = print_order((op._replace(pipeline=k) for op in operations), k)
    return replace(worker, pipeline=k, order=order)
