"""Dead workers where workers hold several virtual stages: who runs what, how long it takes, and what is proven."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.placement.problem import placed_problem
from rtk.planners.scheduling.solve import Effort
from rtk.planners.slipstream.placed_rerouting import rerouted_plan, routings
from rtk.schemas.check import check_plan
from rtk.schemas.placement import loop_placement, v_placement
from rtk.schemas.plan import Plan

from .placed_grids import placed_grid, placed_grids

RULES, HEURISTIC = Effort("rules"), Effort("heuristic")


@settings(max_examples=25, deadline=None)
@given(placed_grids(), st.booleans())
def test_every_microbatch_runs_once_at_each_virtual_stage_on_a_live_peer(plan: Plan, split: bool) -> None:
    """Whoever has died, under any limit that admits a micro-batch: the plan is valid, no worker of another column runs
    anything of a stage, nor does a dead one."""
    found = rerouted_plan(plan, split, RULES)
    assert check_plan(found) == []
    ran = [
        (operation.pipeline, operation.microbatch, found.virtual_stage(worker, operation), worker.stage)
        for worker in found.live_workers()
        for operation in worker.operations()
        if operation.kind == "F"
    ]
    column_of = found.templates[0].column_of
    assert len(set(ran)) == len(ran) == found.total_microbatches() * len(column_of)
    assert all(column == column_of[stage] for *_, stage, column in ran)


@settings(max_examples=25, deadline=None)
@given(placed_grids())
def test_no_routing_is_below_the_bound(plan: Plan) -> None:
    """The bound is over all routings, so none that is tried takes less; who reaches it is proven."""
    promised = rerouted_plan(plan, True, RULES).prediction
    assert promised is not None and promised.proof_scope == "all-routings"
    assert promised.lower_bound_s <= promised.iteration_time_s
    assert (promised.proof == "optimal") == (promised.lower_bound_s == promised.iteration_time_s)


@settings(max_examples=25, deadline=None)
@given(placed_grids(), st.floats(0.6, 1.0), st.booleans())
def test_no_plan_is_below_its_bound_where_a_full_backward_takes_less_than_its_halves(
    plan: Plan, share: float, alike: bool
) -> None:
    """Orders get B in the end, and then they take less than the same ones with I and W: the bound is for those, too."""
    (template,) = plan.templates
    stages = tuple(
        replace(one, backward_s=share * (one.backward_input_s + one.backward_weight_s)) for one in template.stages
    )
    first, *others = plan.workers
    workers = plan.workers if alike else (replace(first, slowdown=None if first.failed else 1.5), *others)
    shorter = replace(plan, templates=(replace(template, stages=stages),), workers=workers)
    found = rerouted_plan(shorter, True, RULES)
    assert check_plan(found) == []
    assert found.prediction is not None and found.prediction.lower_bound_s <= found.prediction.iteration_time_s


@settings(max_examples=30, deadline=None)
@given(placed_grids(), st.booleans())
def test_whichever_way_micro_batches_go_no_peer_has_more_than_its_share(plan: Plan, alike: bool) -> None:
    """All run on live peers. Where workers are alike none of a column has more than its share of micro-batches, rounded
    up, over all its chunks; nor, if chunks go to different peers, than that of chunks."""
    home = placed_problem(plan)
    live = home.live.reshape(len(plan.pipelines), -1).sum(axis=0)
    ways = list(routings(home, alike))
    for executor in ways:
        assert home.live[executor].all()
        assert (home.worker_column[executor] == home.column[None, :]).all()
        for column, held in enumerate(home.seats) if alike else ():
            counts = [(executor[:, held] == worker).sum() for worker in range(home.workers)]
            assert max(counts) <= len(held) * -(-home.jobs // int(live[column]))
            if len(ways) == 3 and executor is ways[-1]:
                assert max(counts) <= -(-len(held) * home.jobs // int(live[column]))


@pytest.mark.parametrize(("column", "makespan"), [(0, 27.0), (1, 27.5), (2, 28.0), (3, 28.5)])
def test_a_v_loses_a_worker_at_the_memory_of_1f1b_and_keeps_its_period(column: int, makespan: float) -> None:
    """3 pipelines of 4 columns with 6 micro-batches each, times in those of a whole stage: 18 on two peers take 27 at
    least, which is the period wherever the worker was (design note, section 8)."""
    for limit in (8, None):
        plan = placed_grid(v_placement(4), 3, 6, {(1, column)}, limit, times=(0.5, 0.5, 0.5))
        apart = rerouted_plan(plan, True, HEURISTIC).prediction
        together = rerouted_plan(replace(plan, optimizer="synchronous"), True, HEURISTIC).prediction
        assert apart is not None and together is not None
        assert (together.iteration_time_s, apart.iteration_time_s) == (makespan, 27.0)
        assert apart.proof == together.proof == "optimal"


@pytest.mark.parametrize(("microbatches", "makespan", "period"), [(5, 23.5, 22.5), (3, 14.5, 13.5)])
def test_chunks_apart_are_faster_where_peers_cannot_share_evenly(
    microbatches: int, makespan: float, period: float
) -> None:
    """With 15 or 9 micro-batches on two peers, one worker has a chunk more than the other, not a micro-batch more."""
    for staggered, most in ((False, makespan), (True, period)):
        plan = placed_grid(v_placement(4), 3, microbatches, {(1, 2)}, 8, staggered=staggered, times=(0.5, 0.5, 0.5))
        found = rerouted_plan(plan, True, HEURISTIC).prediction
        assert found is not None and found.iteration_time_s <= most


def test_slow_peers_take_fewer_chunks() -> None:
    """A dead worker's micro-batches go to who has least to do then."""
    plan = placed_grid(loop_placement(2, 2), 3, 6, {(0, 0)})
    workers = tuple(replace(one, slowdown=1.5) if one.place == (1, 0) else one for one in plan.workers)
    found = rerouted_plan(replace(plan, workers=workers), True, RULES)
    assert found.prediction is not None and found.prediction.proof_scope == "routing"
    taken = {one.place: len(one.operations()) for one in found.live_workers()}
    assert taken[1, 0] < taken[2, 0]
