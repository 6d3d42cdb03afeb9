"""A training on rows of tokens, read ahead by processes, whose workers are killed: the rows stay the same."""

import signal
import time
from pathlib import Path

import numpy as np
import pytest

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.runners.checkpoint import find, read_manifest
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

from ..processes import ProcessJob, single_process

SCRIPT = """
import multiprocessing
import torch
from rtk.train import Tokens, Training

multiprocessing.current_process()._config["daemon"] = False  # as it is where no test has forked the worker

def make():
    return [torch.nn.Embedding(64, 16), torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 64)]

training = Training(
    model=make,
    data=Tokens({path!r}, "uint16", sequence_length=8),
    microbatch_size=2,
    sequence_length=8,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    loader_workers=1,
)
"""


def plan_of(pp: int, dp: int, microbatches: int) -> Plan:
    """1F1B of four layers."""
    layer = Layer((LayerCost(0.01, 0.01, 0.01),), activation_bytes=2, weight_stash_bytes=1)
    return plan_pipeline(Profile((layer,) * 4), Shape(pp, dp, microbatches), "1f1b")


def children_of(pid: int) -> list[int]:
    """The processes that a process has forked."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_rows_survive_their_workers(tmp_path: Path) -> None:
    """Killed and replaced, losses are those of one process; readers die with workers; other data are refused; a batch
    of another size goes on at the next row."""
    path, numbers = tmp_path / "t.bin", np.random.default_rng(3)
    numbers.integers(0, 64, 5000).astype("uint16").tofile(path)
    whole = path.read_bytes()
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(path=str(path)))
    plan, training = plan_of(2, 2, 2), TrainingConfig("", script=str(script), learning_rate=1e-3)
    how = JobConfig(iterations=1_000_000, checkpoint=str(tmp_path / "saved"), checkpoint_every=0)
    with ProcessJob(plan, how, training) as job:
        job.wait_for_iteration(3)
        readers = children_of(job.processes["1/1"].pid)
        assert len(readers) == 1
        since = len(job.said)
        job.signal("1/1", signal.SIGKILL)
        job.wait_for(lambda one: one["event"] == "iteration" and one["live_workers"] == 3, since=since)
        other = tmp_path / "other.bin"  # the others' file stays what it was
        other.write_bytes(whole[:-2] + b"\x01\x00" if whole[-2:] != b"\x01\x00" else whole[:-2] + b"\x02\x00")
        path.rename(tmp_path / "kept.bin")
        other.rename(path)
        job.processes["1/1"].join(10)
        job.start("1/1")
        job.processes["1/1"].join(60)
        assert job.processes["1/1"].exitcode == 2
        (tmp_path / "kept.bin").rename(path)
        since = len(job.said)
        job.start("1/1")
        place = job.wait_for(lambda one: one["event"] == "iteration" and one["live_workers"] == 4, since=since)
        job.wait_for_iteration(job.said[place]["iteration"] + 2)
        job.server.stop()
        job.result()
    deadline_s = time.monotonic() + 5
    while Path(f"/proc/{readers[0]}").exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not Path(f"/proc/{readers[0]}").exists()
    losses = job.losses()
    assert losses == pytest.approx(single_process(plan, training, len(losses)), rel=1e-4)
    saved = read_manifest(find(tmp_path / "saved"))
    assert saved.row == saved.iteration * 4 * 2
