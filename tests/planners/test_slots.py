"""The rank-group quotient: slots cut the ranks, and their expanded plan keeps what they promise, exactly where said."""

from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random
from unittest.mock import patch

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling.assemble import with_orders_and_prediction
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.list_schedule import DispatchRules, Priority
from rtk.planners.scheduling.problem import problem_of, with_orders
from rtk.planners.slipstream import slots as slots_module
from rtk.planners.slipstream.slot_search import SlotSearch
from rtk.planners.slipstream.slots import Slots, SlotScheduler, SlotTimes, expanded, open_slots, route
from rtk.schemas.atlas import NarrowSlots
from rtk.schemas.check import check_plan
from rtk.schemas.plan import Link, Plan, Stage, Template

from .equal_pipelines import Cluster, clusters, rules


@st.composite
def _slots(draw: st.DrawFn) -> Slots:
    """Any cut of up to 40 ranks at up to five stages."""
    jobs = draw(st.integers(1, 40))
    sizes = tuple(draw(st.lists(st.integers(1, jobs), min_size=1, max_size=5)))
    return Slots(jobs, sizes, draw(st.booleans()), draw(st.none() | _narrow(jobs, sizes)))


@st.composite
def _narrow(draw: st.DrawFn, jobs: int, sizes: tuple[int, ...]) -> NarrowSlots:
    """Any slots of one grid at the start and at the end."""
    grid = draw(st.integers(1, min(sizes)))
    first = [draw(st.integers(0, jobs // grid)) for _ in sizes]
    return NarrowSlots(grid, tuple(first), tuple(draw(st.integers(0, jobs // grid - a)) for a in first))


def _ends(slots: Slots, stage: int) -> list[int]:
    """Where each slot of a stage ends in the ranks."""
    size, jobs = slots.group_sizes[stage], slots.jobs
    if slots.narrow is not None:
        grid, first, last = slots.narrow.grid, slots.narrow.first[stage], slots.narrow.last[stage]
        begins, rest = [grid] * first, jobs - grid * (first + last)
        between = [rest % size] * (rest % size > 0) + [size] * (rest // size)
        return list(accumulate([*begins, *between, *[grid] * last]))
    begin = slots.ends.tolist()[0][stage]
    return [min(begin + slot * size, jobs) for slot in range(int(slots.counts[stage]))]


def _opened(ends: list[int], other_ends: list[int], before: int) -> int:
    """How many slots that end at `other_ends` wait for one of the first `before` that end at `ends`."""
    waits_for = [next(slot for slot, end in enumerate(ends) if end >= needed) for needed in other_ends]
    return sum(slot < before for slot in waits_for)


def _scheduled(cluster: Cluster, slots: Slots, by: DispatchRules) -> tuple[SlotTimes, Plan]:
    """Slots scheduled by rules, and the plan that they expand to; checked while it is made."""
    scheduler = SlotScheduler(cluster.pipeline, int(slots.counts.max()))
    times = scheduler.run(slots, by)
    assume(np.isfinite(times.makespan_s))
    return times, _expanded(cluster, slots, scheduler)


def _expanded(cluster: Cluster, slots: Slots, scheduler: SlotScheduler | SlotSearch, *run: object) -> Plan:
    problem, orders = expanded(cluster.home, slots, scheduler.orders(*run))  # type: ignore[arg-type]
    return with_orders_and_prediction(cluster.plan, problem, orders, 0.0)


@st.composite
def _slot_cases(draw: st.DrawFn) -> tuple[Cluster, Slots, DispatchRules]:
    """A cluster, slots that its live workers can bear, and any rules."""
    cluster = draw(clusters())
    widest = draw(st.booleans())
    sizes = tuple(live if widest else draw(st.integers(1, live)) for live in cluster.live)
    narrow = draw(st.none() | _narrow(cluster.jobs, sizes))
    return cluster, Slots(cluster.jobs, sizes, draw(st.booleans()), narrow), draw(rules(cluster.stages))


@st.composite
def _full_cases(draw: st.DrawFn, *, whole: bool) -> tuple[Cluster, Slots, DispatchRules]:
    """As many dead workers in each stage, so many that the live ones share all micro-batches evenly; any rules."""
    cluster = draw(clusters(whole=whole))
    live = draw(st.sampled_from([n for n in range(1, cluster.dp + 1) if cluster.jobs % n == 0]))
    failed = {
        (k, i) for i in range(cluster.stages) for k in draw(st.permutations(range(cluster.dp)))[: cluster.dp - live]
    }
    cluster = replace(cluster, failed=frozenset(failed))
    return cluster, Slots(cluster.jobs, cluster.live), draw(rules(cluster.stages))


@given(_slots())
def test_slots_cut_the_ranks_completely_in_order_and_no_wider_than_said(slots: Slots) -> None:
    """Each rank is in one slot, slots follow each other, none is empty, and none holds more than its stage's group."""
    ranks = np.arange(slots.jobs)
    for stage, size in enumerate(slots.group_sizes):
        held = np.bincount(slots.slot_of(ranks, stage), minlength=int(slots.counts[stage]))
        assert (np.diff(slots.slot_of(ranks, stage)) >= 0).all()
        assert len(held) == slots.counts[stage]
        assert held.min() >= 1
        assert held.max() <= size
        if slots.narrow is None:
            assert len(held) == -(-slots.jobs // size)
            assert (held[1:-1] == size).all()
            assert not slots.remainder_first or (held[1:] == size).all()
        assert np.cumsum(held).tolist() == _ends(slots, stage)


@given(_slots())
def test_slots_wait_for_the_first_slot_that_ends_at_their_highest_rank_or_later(slots: Slots) -> None:
    """What opens a slot is what the definition says, upwards and downwards."""
    counts, stages = slots.counts.tolist(), len(slots.group_sizes)
    opened = {}
    for shift in (1, -1):
        opened[shift] = [0] * (stages * (max(counts) + 1))
        open_slots(stages, shift, counts, slots.ends.ravel().tolist(), opened[shift])
    ends = [_ends(slots, stage) for stage in range(stages)]
    for stage, other in [*pairwise(range(stages)), *pairwise(reversed(range(stages)))]:
        for before in range(counts[stage] + 1):
            found = opened[other - stage][before * stages + stage]
            assert found == _opened(ends[stage], ends[other], before)


@settings(max_examples=50)
@given(_slot_cases())
def test_expanded_slots_are_a_valid_plan_that_takes_no_longer(case: tuple[Cluster, Slots, DispatchRules]) -> None:
    """Any slots, rules, limits and places: the checker accepts the plan, and neither makespan nor period is longer."""
    cluster, slots, by = case
    times, plan = _scheduled(cluster, slots, by)
    found = evaluate(plan)
    assert check_plan(plan) == []
    assert plan.prediction is not None
    assert (plan.prediction.makespan_s, plan.prediction.period_s) == (found.makespan_s, found.period_s)
    assert found.makespan_s <= times.makespan_s
    assert found.period_s <= times.period_s


@settings(max_examples=30)
@given(_slot_cases())
def test_live_workers_keep_their_own_and_share_the_rest_evenly(case: tuple[Cluster, Slots, DispatchRules]) -> None:
    """Only micro-batches of dead workers move, to live peers of the stage; nobody has more than one in a slot; F, I and
    W stay together."""
    cluster, slots, by = case
    _, plan = _scheduled(cluster, slots, by)
    executor = problem_of(plan).executor
    home = cluster.home.executor
    stays = cluster.home.workers.live[home]
    assert (executor[stays] == home[stays]).all()
    assert cluster.home.workers.live[executor].all()
    assert (executor % cluster.stages == np.arange(cluster.stages)).all()
    for stage, count in enumerate(slots.counts.tolist()):
        assert np.bincount(executor[:, stage]).max() <= count
    for worker in plan.workers:
        executed = {kind: {(k, j) for o, k, j, _ in worker.operations() if o == kind} for kind in "FIWB"}
        assert executed["F"] == executed["I"] | executed["B"]
        assert executed["W"] == executed["I"]


@settings(max_examples=40)
@given(clusters(limits=False))
def test_the_widest_slots_give_the_busiest_worker_the_least_that_it_must_have(cluster: Cluster) -> None:
    """With groups as large as the live workers are many, nobody has more than ceil(M / L) micro-batches."""
    search = SlotSearch(cluster.pipeline, cluster.dp)
    slots = search.widest(cluster.dead)
    plan = _expanded(cluster, slots, search, slots, search.candidates(slots)[0])
    most = problem_of(plan).job_counts.reshape(cluster.dp, -1).max(axis=0)
    assert most.tolist() == [-(-cluster.jobs // live) for live in cluster.live]


@settings(max_examples=50)
@given(clusters())
def test_slots_at_their_bound_are_exact(cluster: Cluster) -> None:
    """Where slots reach the bound on all routings, the expanded plan has their makespan, or period, to the last bit."""
    search = SlotSearch(cluster.pipeline, cluster.dp)
    found = search.look(cluster.dead)
    assume(np.isfinite(found.value_s))
    plan = _expanded(cluster, found.slots, search, found.slots, found.rules)
    evaluation, live = evaluate(plan), np.array(cluster.live)
    if found.times.makespan_s == search.bound.value_s(live, False):
        assert evaluation.makespan_s == found.times.makespan_s
    if found.times.period_s == search.bound.value_s(live, True):
        assert evaluation.period_s == found.times.period_s


@settings(max_examples=30)
@given(st.booleans().flatmap(lambda whole: _full_cases(whole=whole)))
def test_slots_without_gaps_are_one_pipeline(case: tuple[Cluster, Slots, DispatchRules]) -> None:
    """Where all stages have L live workers and L divides the micro-batches M, every worker plays every slot: whatever
    the rules, bound or limits, the plan's times are those of one pipeline with M / L micro-batches and these orders, to
    the last bit, fractions too."""
    cluster, slots, by = case
    scheduler = SlotScheduler(cluster.pipeline, int(slots.counts.max()))
    scheduler.run(slots, by)
    plan = _expanded(cluster, slots, scheduler)
    one = replace(cluster, dp=1, microbatches=int(slots.counts[0]), failed=frozenset())
    alone = evaluate(with_orders(one.plan, one.home, [order.tolist() for order in scheduler.orders()]))
    found = evaluate(plan)
    assert (found.makespan_s, found.period_s) == (alone.makespan_s, alone.period_s)
    for worker, row in zip(plan.workers, found.operations, strict=True):
        if not worker.failed:
            assert [timed.end_s for timed in row] == [timed.end_s for timed in alone.operations[worker.stage]]


@settings(max_examples=30)
@given(_full_cases(whole=True))
def test_slots_without_gaps_and_waits_are_exact(case: tuple[Cluster, Slots, DispatchRules]) -> None:
    """If no W waits either, which may be in vain, the slots' own makespan and period are those of the plan."""
    cluster, slots, by = case
    times, plan = _scheduled(cluster, slots, replace(by, weight_wait=[0.0] * cluster.stages))
    assert plan.prediction is not None
    assert (plan.prediction.makespan_s, plan.prediction.period_s) == (times.makespan_s, times.period_s)


@settings(max_examples=30)
@given(_full_cases(whole=True), st.randoms(use_true_random=False))
def test_places_do_not_matter_without_gaps(case: tuple[Cluster, Slots, DispatchRules], chance: Random) -> None:
    """Without gaps it is all one which workers of a stage are dead."""
    cluster, slots, by = case
    _, plan = _scheduled(cluster, slots, by)
    _, other = _scheduled(_elsewhere(cluster, chance), slots, by)
    assert plan.prediction is not None
    assert other.prediction is not None
    assert plan.prediction == replace(other.prediction, peak_memory_bytes=plan.prediction.peak_memory_bytes)


def _elsewhere(cluster: Cluster, chance: Random) -> Cluster:
    """As many dead workers of each stage, in other places."""
    failed = ((k, i) for i, number in enumerate(cluster.dead) for k in chance.sample(range(cluster.dp), number))
    return replace(cluster, failed=frozenset(failed))


@settings(max_examples=30)
@given(clusters(), st.randoms(use_true_random=False))
def test_places_do_not_matter_at_the_bound(cluster: Cluster, chance: Random) -> None:
    """Nor where slots reach the bound, however many workers of each stage are dead."""
    search = SlotSearch(cluster.pipeline, cluster.dp)
    found = search.look(cluster.dead)
    assume(found.value_s == found.bound_s)
    taken_s = {
        evaluate(_expanded(each, found.slots, search, found.slots, found.rules)).iteration_time_s
        for each in (cluster, _elsewhere(cluster, chance))
    }
    assert taken_s == {found.value_s}


@settings(max_examples=30)
@given(_slot_cases())
def test_no_worker_holds_more_than_the_slots_say(case: tuple[Cluster, Slots, DispatchRules]) -> None:
    """The peaks of slots bound those of the workers, and are those of the workers that play every slot."""
    cluster, slots, by = case
    scheduler = SlotScheduler(cluster.pipeline, int(slots.counts.max()))
    assume(np.isfinite(scheduler.run(slots, by).makespan_s))
    peaks, plan = scheduler.peaks_bytes(), _expanded(cluster, slots, scheduler)
    counts = problem_of(plan).job_counts
    for worker, held in enumerate(evaluate(plan).peak_memory_bytes):
        stage = plan.workers[worker].stage
        assert held <= peaks[stage]
        if counts[worker] == slots.counts[stage]:
            assert held == peaks[stage]


@settings(max_examples=40)
@given(_slot_cases())
def test_machine_code_equals_plain_python_bit_for_bit(case: tuple[Cluster, Slots, DispatchRules]) -> None:
    """Interpreted and compiled, the same rules give slots the same orders, times and peaks, and jobs the same workers.

    So they do where a limit stops them for ever.
    """
    cluster, slots, by = case
    found = []
    for machine_code in (False, True):
        with (
            patch.object(slots_module, "kernel_pays", lambda *_, answer=machine_code: answer),
            patch.object(slots_module, "pays", lambda *_, answer=machine_code: answer),
        ):
            scheduler = SlotScheduler(cluster.pipeline, int(slots.counts.max()))
            times = scheduler.run(slots, by)
            routing = route(cluster.home.workers.live.reshape(cluster.dp, -1), slots).tolist()
            some = [routing, times.makespan_s, times.period_s, times.end_s.tolist()]
            if times.end_s.size:
                some += [[order.tolist() for order in scheduler.orders()], scheduler.peaks_bytes()]
            found.append(some)
    assert found[0] == found[1]


def test_slots_that_a_limit_stops_take_for_ever() -> None:
    """Three workers at stage 1 wait for two slots of the two at stage 0, which may not start the second before the
    first has returned: infinite times, and no orders out of it."""
    stages = tuple(Stage((i, i + 1), 1.0, 1.0, 1.0, activation_bytes=1.0, memory_limit_bytes=1.0) for i in range(2))
    cluster = Cluster(Template("t0", stages, (Link(0.0),)), 3, 1, (True, True), frozenset({(0, 0)}))
    by = DispatchRules([1, 1], [9, 9], [0.0, 0.0], [9, 9], [Priority.INPUT_FIRST] * 2)
    times = SlotScheduler(cluster.pipeline, 3).run(Slots(3, (2, 3)), by)
    assert times.makespan_s == times.period_s == float("inf")
    assert SlotSearch(cluster.pipeline, 3).look(cluster.dead).value_s < float("inf")


def test_a_scheduler_is_as_good_as_new_after_every_run() -> None:
    """Runs of other slots in between, stopped ones too, leave nothing behind."""
    stages = tuple(Stage((i, i + 1), 2.0, 3.0, 1.0, activation_bytes=1.0, memory_limit_bytes=2.0) for i in range(3))
    cluster = Cluster(Template("t0", stages, (Link(1.0),) * 2), 4, 5, (True,) * 3, frozenset({(0, 0)}))
    by = DispatchRules([3, 2, 1], [9] * 3, [0.5] * 3, [9] * 3, [Priority.INPUT_FIRST] * 3)
    scheduler = SlotScheduler(cluster.pipeline, 20)
    kinds = [(3, 4, 4), (1, 4, 4), (3, 3, 3), (4, 2, 4)]
    fresh = {sizes: SlotScheduler(cluster.pipeline, 20).run(Slots(20, sizes), by).makespan_s for sizes in kinds}
    for sizes in [*kinds, *reversed(kinds)]:
        assert scheduler.run(Slots(20, sizes), by).makespan_s == fresh[sizes]
