"""A worker with several virtual stages is lost, and comes back: what is trained does not show it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from rtk.planners.recovery.answers import PolicyName  # noqa: E402
from rtk.profilers.models.gpt import language_model_loss  # noqa: E402
from rtk.runners.checkpoint import read_manifest  # noqa: E402
from rtk.runners.program import BeginSum, Compute, lower  # noqa: E402
from rtk.runners.resilience.protocol import Job  # noqa: E402
from rtk.runners.torch.iteration import Iteration  # noqa: E402
from rtk.runners.training import JobConfig, TrainingConfig  # noqa: E402
from rtk.schemas.plan import Optimizer, Place, Placement, Plan  # noqa: E402
from rtk.schemas.trace import Trace, TraceEvent, print_trace  # noqa: E402

from ..placed_plans import folded, looped  # noqa: E402
from . import scripted  # noqa: E402
from .placed import placed_plan  # noqa: E402
from .processes import ProcessJob, single_process  # noqa: E402
from .scripted import Died, ThreadJob, replan_with  # noqa: E402
from .test_survival import FOREVER, Story  # noqa: E402

DEPTH, RATE = scripted.BLOCKS + 2, 1e-4


def double() -> list[nn.Module]:
    return [layer.double() for layer in scripted.layers()]


def tied() -> list[nn.Module]:
    found = double()
    found[-1].get_submodule("logits").weight = found[0].get_parameter("token.weight")
    return found


def alone(iterations: int, microbatches: int, layers: Callable[[], list[nn.Module]] = double) -> list[float]:
    """The losses of one process."""
    whole, losses = nn.Sequential(*layers()), list[float]()
    optimizer = torch.optim.AdamW(whole.parameters(), lr=RATE)
    for iteration in range(iterations):
        optimizer.zero_grad()
        batch = scripted.batches(microbatches)(iteration)
        total = torch.stack([language_model_loss(whole(inputs), targets) for inputs, targets in batch]).mean()
        total.backward()
        losses.append(total.item())
        optimizer.step()
    return losses


def without(placement: Placement, optimizer: Optimizer, dead: frozenset[Place]) -> Plan:
    """Two pipelines of three columns, whose dead workers' micro-batches go to peers chunk by chunk."""
    plan = placed_plan(placement, DEPTH, (3, 2), "FIW", dead=dead, seconds=0.001)
    return replace(plan, optimizer=optimizer)


@pytest.mark.parametrize("optimizer", ["synchronous", "staggered"])
@pytest.mark.parametrize("placement", [folded(3, 2), looped(3, 2)], ids=["v", "loop"])
def test_a_lost_worker_leaves_no_trace(placement: Placement, optimizer: Optimizer) -> None:
    """A worker that holds two ranges of layers is lost amidst an iteration, which is done anew by its peer; later it
    comes back, and takes both ranges from that: every loss is that of one process, and all holders agree."""
    plan = without(placement, optimizer, frozenset())
    replan = replan_with(plan, lambda dead, may_move: (without(placement, optimizer, dead), ()))
    job = ThreadJob(plan, Job(plan, 8), replan, {("1/1", 2)}, changes={"make_layers": double})
    job.start("1/1", not_before=5)  # it waits from the beginning on, and so cannot come too late
    assert job.run().exit_code == 0
    assert job.losses() == pytest.approx(alone(8, plan.total_microbatches()), abs=1e-12)
    (joined,) = job.events("join")
    assert (joined["worker"], joined["source"]) == ("1/1", "0/1")
    assert joined["layers"] == "layers 1 and 4"
    assert job.checksums().keys() == set(range(DEPTH))
    assert all(len(found) == 1 for found in job.checksums().values())


def test_a_worker_is_lost_while_sums_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies before the last operation of its order, when the gradients of its other stage are being summed with its
    peer: every loss is that of one process, and what was begun leaves no trace."""
    plan = without(folded(3, 2), "synchronous", frozenset())
    replan = replan_with(plan, lambda dead, may_move: (without(folded(3, 2), "synchronous", dead), ()))
    run, died = Iteration._run_operation, list[str]()

    def strike(iteration: Iteration, one: Compute) -> None:
        name, order = iteration.rank.worker.name, list(iteration.rank.worker.operations())
        if (name, iteration.number) == ("1/1", 2) and one.operation == order[-1] and not died:
            died.append(name)
            raise Died
        run(iteration, one)

    monkeypatch.setattr(Iteration, "_run_operation", strike)
    job = ThreadJob(plan, Job(plan, 5), replan, changes={"make_layers": double})
    assert job.run().exit_code == 0
    assert died == ["1/1"]
    assert any(isinstance(one, BeginSum) for one in lower(plan).instructions[4][:-3])
    assert job.losses() == pytest.approx(alone(5, plan.total_microbatches()), abs=1e-12)
    assert all(len(found) == 1 for found in job.checksums().values())


def test_the_holder_of_both_ends_of_a_tied_model_is_lost() -> None:
    """Embedding and head, which share their matrix, lie on the first worker of a V; the one that comes for it takes
    the matrix for both, and has one parameter."""
    placement = folded(3, 2)
    plan = without(placement, "synchronous", frozenset())
    replan = replan_with(plan, lambda dead, may_move: (without(placement, "synchronous", dead), ()))
    job = ThreadJob(plan, Job(plan, 6), replan, {("1/0", 2)}, changes={"make_layers": tied})
    job.start("1/0", not_before=4)  # it waits from the beginning on, and so cannot come too late
    assert job.run().exit_code == 0
    assert job.losses() == pytest.approx(alone(6, plan.total_microbatches(), tied), abs=1e-12)
    assert [(one["worker"], one["iteration"]) for one in job.events("join")] == [("1/0", 4)]
    held = job.workers["1/0"].held
    assert held.stage.layers[0].get_parameter("token.weight") is held.stage.layers[-1].get_parameter("logits.weight")
    assert all(len(found) == 1 for found in job.checksums().values())


def test_chunks_of_micro_batches_wait_on_the_host() -> None:
    """Where a worker may hold two chunks, further ones wait for their backward pass on the host, each by itself."""
    plan = placed_plan(folded(3, 2), DEPTH, (4,), limit_bytes=4.0)
    job = ThreadJob(plan, Job(plan, 3), changes={"make_layers": double})
    job.run()
    assert job.losses() == pytest.approx(alone(3, 4), abs=1e-12)
    waiting = job.workers["0/0"].held.stage._hosting.keys
    assert waiting and waiting <= {(number, layers) for number in range(4) for layers in ((0, 1), (5, 6))}


def test_checkpoints_know_no_placement(tmp_path: Path) -> None:
    """What a V has saved goes on as a loop, that as a plain pipeline, and that as a V: losses are those of one run."""
    plain = replace(scripted.plan_of(3, 1, 3, "zero-bubble"), prediction=None)
    plans = [placed_plan(folded(3, 2), DEPTH, (3,)), placed_plan(looped(2, 3), DEPTH, (3,)), plain]
    losses, resume = list[float | None](), None
    for turn, plan in enumerate([*plans, plans[0]]):
        job = Job(plan, 2 * turn + 2, 2 * turn, resume, checkpoint=str(tmp_path), checkpoint_every=2)
        done = ThreadJob(plan, job, changes={"make_layers": double})
        done.run()
        losses += done.losses()
        resume = done.events("checkpoint")[-1]["path"]
        assert resume is not None
        files = read_manifest(Path(resume)).files
        assert [file.layers for file in files] == sorted(own for one in plan.workers for own in plan.layers_of(one))
    assert losses == pytest.approx(alone(8, 3), abs=1e-12)


MODEL = Path(__file__).parents[2] / "benchmarks" / "double_model.py"  # of ten layers
TRAINING = TrainingConfig(f"{MODEL}:layers", (), RATE, 1, 16, threads=1, paced=False, seed=0)


@pytest.mark.parametrize("placement", [folded(4, 2), looped(4, 2)], ids=["v", "loop"])
def test_processes_of_a_placement_lose_as_one_does(placement: Placement) -> None:
    """Four real workers of a V and of a loop, over gloo: every loss is that of one process to 1e-12 in float64."""
    plan = placed_plan(placement, 10, (5,), "FIW", seconds=0.002)
    with ProcessJob(plan, JobConfig(3), TRAINING) as job:
        assert job.result().exit_code == 0
    assert job.losses() == pytest.approx(single_process(plan, TRAINING, 3), abs=1e-12)


def test_a_killed_process_of_a_v_leaves_no_trace() -> None:
    """One of four real workers, of two V pipelines, is killed at any moment; SlipStream's plan sends its chunks to
    its peer, a replacement takes both ranges of its layers: every loss is that of one process to 1e-12 in float64."""
    plan = placed_plan(folded(2, 2), 10, (3, 3), "FIW", seconds=0.002)
    with ProcessJob(plan, JobConfig(FOREVER, heartbeat_limit_s=2.0), TRAINING) as job:
        job.wait_for_iteration(1)
        story, since = Story(job), len(job.said)
        story.kill("1/1")
        story.await_live(3, since)
        story.bring_back("1/1")
        job.server.finish(0, "enough")
        job.result()
    losses = job.losses()
    assert losses == pytest.approx(single_process(plan, TRAINING, len(losses)), abs=1e-12)
    assert [one["event"] for one in job.said].count("join") == 1
    assert all(one["live_workers"] in (3, 4) for one in job.said if one["event"] == "iteration")


@pytest.mark.parametrize(
    ("placement", "optimizer"), [(folded(2, 2), "synchronous"), (looped(2, 2), "staggered")], ids=["v", "loop"]
)
def test_an_iteration_that_loses_a_process_goes_on(placement: Placement, optimizer: Optimizer, tmp_path: Path) -> None:
    """One of four real workers kills itself amidst an iteration: what the others have of it, of both their stages,
    stays, what is left is done by SlipStream's next plan, and every loss is that of one process to 1e-12 in float64."""
    plan = replace(placed_plan(placement, 10, (3, 3), "FIW", seconds=0.002), optimizer=optimizer)
    (tmp_path / "death.jsonl").write_bytes(print_trace(Trace((TraceEvent("fail", iteration=2, worker="1/1"),))))
    how = JobConfig(5, heartbeat_limit_s=5.0, policy=PolicyName.SLIPSTREAM, inject=str(tmp_path / "death.jsonl"))
    with ProcessJob(plan, how, TRAINING) as job:
        assert job.result().exit_code == 0
    assert job.losses() == pytest.approx(single_process(plan, TRAINING, 5), abs=1e-12)
    (resumed,) = [one for one in job.said if one["event"] == "resume"]
    assert (resumed["iteration"], resumed["kept"] > 0, resumed["left"] > 0) == (2, True, True)
    assert not any(one["event"] == "redo" for one in job.said)
