"""Mixed precision in jobs of real processes, one of which is killed: masters and the loss scale survive."""

import signal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rtk.planners.pipeline import plan_pipeline  # noqa: E402
from rtk.planners.shape import Shape  # noqa: E402
from rtk.runners.training import JobConfig, Precision, TrainingConfig  # noqa: E402
from rtk.schemas.profile import Layer, LayerCost, Profile  # noqa: E402

from .processes import ProcessJob  # noqa: E402

# A loss so large that fp16 overflows until its scale has fallen; AdamW steps as it does for any other.
MODEL = """
from torch import nn
from torch.nn.functional import cross_entropy

def layers():
    return [nn.Embedding(256, 16), *(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2)), nn.Linear(16, 256)]

def loss(output, target):
    return 1000 * cross_entropy(output.flatten(0, -2).float(), target.flatten())
"""
ITERATIONS, FOREVER = 12, 1_000_000
COST = LayerCost(0.004, 0.004, 0.004)
PLAN = plan_pipeline(Profile((Layer((COST,), activation_bytes=2, weight_stash_bytes=1),) * 4), Shape(2, 2, 2), "1f1b")


def iterations(job: ProcessJob) -> list[dict[str, Any]]:
    """What was said of each committed iteration."""
    return [one for one in job.said if one["event"] == "iteration"]


@pytest.mark.parametrize("precision", ["bf16-master", "fp16-master"])
def test_a_kill_leaves_what_is_trained(precision: Precision, tmp_path: Path) -> None:
    """Of a job of which a worker is killed the same iterations are skipped as of an undisturbed one, and its losses are
    the same but for rounding; what goes on from a checkpoint, with the scale as it had become, has equal bits."""
    file, saved = tmp_path / "model.py", str(tmp_path / "saved")
    file.write_text(MODEL)
    training = TrainingConfig(f"{file}:layers", (), 1e-3, 1, 16, paced=True, precision=precision)
    with ProcessJob(
        PLAN, JobConfig(ITERATIONS, checkpoint=saved, checkpoint_every=8), training, is_watchful=False
    ) as calm:
        assert calm.result().exit_code == 0
    with ProcessJob(PLAN, JobConfig(FOREVER, heartbeat_limit_s=2.0), training, is_watchful=False) as wild:
        wild.wait_for_iteration(2)
        since = len(wild.said)
        wild.signal("1/1", signal.SIGKILL)
        wild.wait_for(lambda one: one["event"] == "iteration" and one["live_workers"] == 3, since=since)
        wild.wait_for_iteration(ITERATIONS)
        wild.server.finish(0, "enough")
        wild.result()
    skipped = [one["iteration"] for one in iterations(calm) if one["skipped"]]
    assert (skipped[:3] == [0, 1, 2]) == (precision == "fp16-master")
    assert [one["iteration"] for one in iterations(wild)[:ITERATIONS] if one["skipped"]] == skipped
    assert wild.losses()[:ITERATIONS] == pytest.approx(calm.losses(), rel=2e-3)
    begin = str(Path(saved, "step-00000008"))
    with ProcessJob(PLAN, JobConfig(ITERATIONS, resume=begin), training, is_watchful=False) as rest:
        assert rest.result().exit_code == 0
    assert rest.losses() == calm.losses()[8:]
    assert [one["iteration"] for one in iterations(rest) if one["skipped"]] == [n for n in skipped if n >= 8]
