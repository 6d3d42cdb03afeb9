"""A link that is slow from the first iteration on: found and adapted to, imitated and live (some ten seconds)."""

import json
from pathlib import Path

import pytest

from .shell import rtk, rtk_forked

MODEL = """from torch import nn


def layers():
    return [nn.Embedding(256, 8), nn.Linear(8, 256)]
"""
DELAY_S = 0.04


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with a plan of two stages, its model, and a trace in which their link is slow from the start."""
    costs = {"tensor_parallel": 1, "forward_s": 0.01, "backward_input_s": 0.01, "backward_weight_s": 0.01}
    head = {"format": "rtk.profile", "format_version": "1.0", "model": {"name": "toy"}, "origin": "given"}
    (tmp_path / "p.json").write_text(json.dumps({**head, "layers": [{"costs": [costs]}] * 2}))
    (tmp_path / "m.py").write_text(MODEL)
    slow = {"iteration": 0, "kind": "slow_link", "link": "0/0-0/1", "delay_s": DELAY_S}
    (tmp_path / "slow.jsonl").write_text(json.dumps(slow) + "\n")
    asked = ("plan", "pipeline", "p.json", "--schedule", "zero-bubble", "--pp", "2", "--dp", "1", "--microbatches", "6")
    assert rtk(*asked, "-o", "plan.json", cwd=tmp_path).returncode == 0
    return tmp_path


def test_imitated(job: Path) -> None:
    """The virtual clock's job says so after seven iterations, and goes on by another plan."""
    done = rtk("simulate", "plan.json", "--iterations", "20", "--inject", "slow.jsonl", "--timeline", "t.json", cwd=job)
    assert done.returncode == 0
    events = json.loads((job / "t.json").read_text())["events"]
    assert [event["kind"] for event in events] == ["slow_link", "slow_link", "epoch"]
    assert "0/0-0/1 is slow: 40 ms" in done.stdout + done.stderr


def test_live(job: Path) -> None:
    """Real workers with a true delay do the same, and are much faster from then on."""
    asked = ("--model", "m.py:layers", "--paced", "--microbatch-size", "1", "--sequence-length", "8")
    rest = ("--iterations", "14", "--inject", "slow.jsonl", "--metrics", "m.jsonl")
    done = rtk_forked("run", "plan.json", *asked, *rest, cwd=job)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in (job / "m.jsonl").read_text().splitlines()]
    (found,) = [one for one in told if one["event"] == "slow_link"][:1]
    assert found["link"] == "0/0-0/1"
    assert found["delay_s"] == pytest.approx(DELAY_S, rel=0.5)
    times_s = [one["iteration_time_s"] for one in told if one["event"] == "iteration"]
    assert min(times_s[-4:]) < 0.75 * min(times_s[:5])
