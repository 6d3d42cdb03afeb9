"""A worker with several virtual stages is lost, and comes back: what is trained does not show it."""

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from rtk.profilers.models.gpt import language_model_loss  # noqa: E402
from rtk.runners.checkpoint import read_manifest  # noqa: E402
from rtk.runners.resilience.protocol import Job  # noqa: E402
from rtk.schemas.plan import Optimizer, Place, Placement, Plan  # noqa: E402

from ..placed_plans import folded, looped  # noqa: E402
from . import scripted  # noqa: E402
from .placed import placed_plan  # noqa: E402
from .scripted import ThreadJob, replan_with  # noqa: E402

DEPTH, RATE = scripted.BLOCKS + 2, 1e-4


def double() -> list[nn.Module]:
    return [layer.double() for layer in scripted.layers()]


def alone(iterations: int, microbatches: int) -> list[float]:
    """The losses of one process."""
    whole, losses = nn.Sequential(*double()), list[float]()
    optimizer = torch.optim.AdamW(whole.parameters(), lr=RATE)
    for iteration in range(iterations):
        optimizer.zero_grad()
        batch = scripted.batches(microbatches)(iteration)
        total = torch.stack([language_model_loss(whole(inputs), targets) for inputs, targets in batch]).mean()
        total.backward()  # type: ignore[no-untyped-call]
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
    leading = job.begin()
    job.wait_for(lambda one: one["event"] == "iteration" and one["live_workers"] == 5)
    job.start("1/1", not_before=5)
    leading.join(60)
    assert not leading.is_alive() and not job.failures, (job.said[-5:], job.failures)
    assert job.losses() == pytest.approx(alone(8, plan.total_microbatches()), abs=1e-12)
    (joined,) = job.events("join")
    assert (joined["worker"], joined["source"]) == ("1/1", "0/1")
    assert joined["layers"] == "layers 1 and 4"
    assert job.checksums().keys() == set(range(DEPTH))
    assert all(len(found) == 1 for found in job.checksums().values())


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
