"""Plans whose workers run forwards and backwards side by side, made of plans without, by no planner of ours."""

from dataclasses import replace
from itertools import pairwise

from rtk.schemas.check import check_plan
from rtk.schemas.orders import print_order
from rtk.schemas.plan import Plan


def paired(plan: Plan, overlap: float = 0.8) -> Plan:
    """The plan with every F that a full backward of another micro-batch follows run beside that, where no ring of waits
    comes of it; what pairs take is `overlap` of their passes."""
    templates = tuple(replace(one, overlap=overlap) for one in plan.templates)
    found = replace(plan, templates=templates, prediction=None)
    for place, worker in enumerate(plan.workers):
        operations = worker.operations()
        pairs = set[int]()
        for at, (one, then) in enumerate(pairwise(operations)):
            if (one.kind, then.kind) != ("F", "B") or one[1:3] == then[1:3]:
                continue
            order = print_order(operations, worker.pipeline, {*pairs, at})
            workers = list(found.workers)
            workers[place] = replace(worker, order=order)
            tried = replace(found, workers=tuple(workers))
            if not check_plan(tried):
                found, pairs = tried, {*pairs, at}
    return found
