"""Forwards and backwards side by side, in real runs and on the virtual clock: what is trained does not show it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from rtk.planners.recovery.answers import PolicyName  # noqa: E402
from rtk.runners.program import Compute, Pair, computed_in, lower  # noqa: E402
from rtk.runners.resilience.protocol import Job  # noqa: E402
from rtk.runners.simulator import execute, simulate  # noqa: E402
from rtk.runners.torch.evaluation import forward_only  # noqa: E402
from rtk.runners.torch.iteration import Iteration  # noqa: E402
from rtk.runners.torch.runner import PlanRunner  # noqa: E402
from rtk.runners.training import JobConfig  # noqa: E402
from rtk.runners.virtual.partial_work import NOTHING, worked  # noqa: E402
from rtk.schemas.check import check_timeline  # noqa: E402
from rtk.schemas.orders import print_operation  # noqa: E402
from rtk.schemas.plan import Optimizer, Placement, Plan, plain_placement  # noqa: E402
from rtk.schemas.timeline import Timeline  # noqa: E402
from rtk.schemas.trace import Trace, TraceEvent, print_trace  # noqa: E402
from rtk.wiring import inject  # noqa: E402

from ..placed_plans import folded, looped  # noqa: E402
from .paired import paired  # noqa: E402
from .placed import placed_plan  # noqa: E402
from .processes import ProcessJob, single_process  # noqa: E402
from .ranks import run_ranks  # noqa: E402
from .scripted import Died, ThreadJob, replan_with  # noqa: E402
from .test_placed_runs import batch, check_equal, layers_of, sgd  # noqa: E402
from .test_placed_survival import DEPTH, TRAINING, alone, double  # noqa: E402

V = folded(4, 2)


def pairs_of_plan(plan: Plan) -> int:
    """How many pairs all workers run."""
    return sum(len(worker.pairs()) for worker in plan.workers)


@pytest.mark.parametrize(
    "placement", [V, looped(4, 2), ((0, 5), (1, 3), (2, 4)), plain_placement(3)], ids=["v", "loop", "odd", "plain"]
)
def test_pairs_train_as_one_process_does(placement: Placement) -> None:
    """Two pipelines of which one has lost a worker, with a limit on the gradients: 1e-12 in float64."""
    depth = 2 * sum(map(len, placement))
    plan = paired(placed_plan(placement, depth, (6, 5), "FB", dead=[(1, 1)]))
    assert pairs_of_plan(plan) > 5
    check_equal(plan, layers_of(depth), transport="auto", clip_norm=0.01)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(2, 3), st.integers(2, 3), st.integers(1, 6), st.booleans(), st.booleans())
def test_any_pairs_train_as_one_process_does(
    columns: int, chunks: int, microbatches: int, is_tied: bool, adds: bool
) -> None:
    """Zigzags and loops of any size, tied weights and losses that layers add."""
    placement = (folded if is_tied else looped)(columns, chunks)
    depth = columns * chunks
    check_equal(paired(placed_plan(placement, depth, (microbatches,), "FB")), layers_of(depth, is_tied, adds))


def test_an_evaluation_runs_the_forwards_of_pairs() -> None:
    """What is computed of held-out micro-batches is every F, in the order of the plan, and no pair."""
    plan = paired(placed_plan(V, 8, (6,), "FB"))
    program = lower(plan)
    for number, instructions in enumerate(program.instructions):
        rank: Any = SimpleNamespace(program=program, number=number, plan=plan, instructions=instructions)
        kept = forward_only(rank, 6).instructions[number]
        assert not any(isinstance(one, Pair) for one in kept)
        wanted = [one for one in computed_in(instructions) if one.operation.kind == "F"]
        assert [one for one in kept if isinstance(one, Compute)] == wanted


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 60))
def test_a_worker_on_the_virtual_clock_has_both_passes_of_a_pair_or_none(until_s: float) -> None:
    """What is done of an iteration at any moment is all pairs that have ended: an F without its B is in no ledger."""
    plan = paired(placed_plan(V, 8, (6,), "FB"))
    program = lower(plan)
    execution = execute(program)
    for rank in range(len(program.workers)):
        work = worked(NOTHING, program, execution, rank, until_s=until_s)
        spans = execution.spans[rank]
        done = {
            one
            for one, span in zip(computed_in(program.instructions[rank]), spans, strict=False)
            if span.end_s <= until_s
        }
        for one in program.instructions[rank]:
            if isinstance(one, Pair):
                assert (one.forward in done) == (one.backward in done)
        backward = sum(one.operation.kind == "B" for one in done)
        assert sum(map(len, work.ledger.values())) == backward  # each stage is one layer


@pytest.mark.parametrize("optimizer", ["synchronous", "staggered"])
def test_a_worker_with_pairs_is_lost(optimizer: Optimizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies as a pair begins; the others go on by a plan without pairs, it comes back: losses are one process's."""
    placement = folded(3, 2)
    plan = replace(paired(placed_plan(placement, DEPTH, (3, 2), "FB", seconds=0.001)), optimizer=optimizer)
    assert plan.workers[4].pairs()
    run, died = Iteration._run_pair, list[str]()

    def strike(iteration: Iteration, one: Pair) -> None:
        if (iteration.rank.worker.name, iteration.number) == ("1/1", 2) and not died:
            died.append("1/1")
            raise Died
        run(iteration, one)

    monkeypatch.setattr(Iteration, "_run_pair", strike)

    def replan(dead: frozenset[tuple[int, int]], may_move: bool) -> tuple[Plan, tuple[()]]:
        return replace(placed_plan(placement, DEPTH, (3, 2), "FB", dead=dead, seconds=0.001), optimizer=optimizer), ()

    job = ThreadJob(plan, Job(plan, 5), replan_with(plan, replan), changes={"make_layers": double})
    assert job.run().exit_code == 0
    assert died == ["1/1"]
    assert job.losses() == pytest.approx(alone(5, plan.total_microbatches()), abs=1e-12)
    assert all(len(found) == 1 for found in job.checksums().values())


def test_processes_with_pairs_lose_as_one_does() -> None:
    """Four real workers of a V with pairs, over gloo: every loss is that of one process to 1e-12 in float64."""
    plan = paired(placed_plan(V, 10, (6,), "FB", seconds=0.002))
    assert pairs_of_plan(plan) > 3
    with ProcessJob(plan, JobConfig(3), TRAINING) as job:
        assert job.result().exit_code == 0
    assert job.losses() == pytest.approx(single_process(plan, TRAINING, 3), abs=1e-12)


def test_an_iteration_with_pairs_loses_a_process(tmp_path: Path) -> None:
    """One of four real workers kills itself amidst an iteration with pairs; the job goes on by SlipStream's plan, and
    every loss is that of one process to 1e-12 in float64."""
    plan = paired(placed_plan(folded(2, 2), 10, (4, 4), "FB", seconds=0.002))
    assert pairs_of_plan(plan) > 3
    (tmp_path / "death.jsonl").write_bytes(print_trace(Trace((TraceEvent("fail", iteration=2, worker="1/1"),))))
    how = JobConfig(5, heartbeat_limit_s=5.0, policy=PolicyName.SLIPSTREAM, inject=str(tmp_path / "death.jsonl"))
    with ProcessJob(plan, how, TRAINING) as job:
        assert job.result().exit_code == 0
    assert job.losses() == pytest.approx(single_process(plan, TRAINING, 5), abs=1e-12)


def test_a_paced_pair_lasts_as_planned() -> None:
    """In a paced run both spans of a pair are those of the pair, which is no shorter than planned, and the timeline
    keeps the plan."""
    plan = paired(placed_plan(folded(2, 2), 4, (4,), "FB", seconds=0.01))
    assert pairs_of_plan(plan) > 1

    def train(runner: PlanRunner) -> Timeline | None:
        runner.step(batch(0, 4))
        return runner.timeline()

    timeline = run_ranks(plan, layers_of(4), F.mse_loss, sgd, train, paced=True)[0]
    assert timeline is not None
    assert check_timeline(plan, timeline) == []
    spans = {(span.worker, span.op): span for span in timeline.spans}
    for worker in plan.workers:
        for place in worker.pairs():
            one, other = (spans[worker.name, print_operation(op, 0)] for op in worker.operations()[place : place + 2])
            assert (one.start_s, one.end_s) == (other.start_s, other.end_s)
            assert one.end_s - one.start_s >= 0.8 * 0.03 - 1e-9  # F takes 10 ms, B 20


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_a_job_on_the_virtual_clock_loses_a_worker_amidst_pairs(data: st.DataObject) -> None:
    """Whenever a worker is lost, the job commits all its iterations by SlipStream's answers, and the iterations before
    take what the simulator says of the plan with pairs."""
    plan = paired(placed_plan(folded(2, 2), 4, (4, 4), "FB"))
    each_s, lost = simulate(plan).iteration_time_s, data.draw(st.sampled_from(["0/0", "1/1"]))
    at_s = data.draw(st.floats(0.1, 3 * each_s))
    fails = Trace((TraceEvent("fail", time_s=at_s, worker=lost),))
    story = inject(plan, fails, iterations=4, policy="slipstream")
    assert (story.exit_code, len(story.committed_s)) == (0, 4)
    for number, committed_s in enumerate(story.committed_s[: int(at_s // each_s)]):
        assert committed_s == pytest.approx((number + 1) * each_s)
