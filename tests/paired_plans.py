"""Hypothesis strategies: random valid plans whose workers run forwards and full backwards side by side."""

from dataclasses import replace

from hypothesis import strategies as st

from rtk.planners.scheduling.assemble import with_prediction
from rtk.schemas.check import check_plan
from rtk.schemas.orders import print_order
from rtk.schemas.plan import Plan, Worker

from .placed_plans import placed_plans
from .strategies import plans


@st.composite
def paired_plans(draw: st.DrawFn, max_dp: int = 2) -> Plan:
    """A random valid plan, with a placement or without, some of whose neighbours F and B are pairs."""
    plan = draw(st.one_of(plans(max_pp=4, max_dp=max_dp), placed_plans(max_dp=max_dp)))
    overlap = draw(st.sampled_from([0.55, 0.8, 1.0]))
    templates = tuple(replace(one, overlap=overlap) for one in plan.templates)
    plan = replace(plan, templates=templates, prediction=None)
    for number, worker in enumerate(plan.workers):
        for place in _neighbours(worker):
            if draw(st.booleans()):
                workers = list(plan.workers)
                workers[number] = with_pairs(plan.workers[number], {*plan.workers[number].pairs(), place})
                tried = replace(plan, workers=tuple(workers))
                plan = plan if check_plan(tried) else tried
    return with_prediction(plan)


def with_pairs(worker: Worker, pairs: set[int]) -> Worker:
    """The worker with other pairs in its order."""
    return replace(worker, order=print_order(worker.operations(), worker.pipeline, pairs))


def _neighbours(worker: Worker) -> list[int]:
    """The places of forwards that a full backward of another micro-batch follows, none of them twice."""
    order, found = worker.operations(), []
    for place in range(len(order) - 1):
        one, other = order[place : place + 2]
        if one.kind == "F" and other.kind == "B" and one[1:3] != other[1:3]:
            found.append(place)
    return found
