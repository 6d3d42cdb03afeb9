"""What options ask for is what is trained: `rtk run` against the same in plain torch, its logs, and its refusals."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rtk.cli.job import TAKEN
from rtk.runners.torch.data.tokens import Tokens
from rtk.runners.training import TrainingConfig, training_of
from rtk.schemas.documents import read_document, write_document
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.training import Training

from .shell import rtk, rtk_forked
from .test_flow import FACTORY

ITERATIONS, EVERY, WARMUP, CLIP = 6, 3, 2, 0.05
RATE, DECAY, FINAL = 0.02, 0.1, 0.25
OPTIONS = (
    "--model", "model.py:tiny", "--data", "train.bin", "--data-dtype", "uint16", "--eval-data", "valid.npy",
    "--lr", f"{RATE}", "--betas", "0.8,0.9", "--weight-decay", f"{DECAY}", "--clip-norm", f"{CLIP}",
    "--lr-schedule", "linear", "--warmup", f"{WARMUP}", "--min-lr-ratio", f"{FINAL}", "--iterations", f"{ITERATIONS}",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, tokens to train and to evaluate on, and a plan of four workers."""
    place = tmp_path_factory.mktemp("options")
    (place / "model.py").write_text(FACTORY)
    tokens = np.random.default_rng(1).integers(0, 200, 3000).cumsum() % 200
    (place / "train.bin").write_bytes(tokens[:2500].astype("<u2").tobytes())
    np.save(place / "valid.npy", tokens[2500:].astype("<u2"))
    layers = (Layer((LayerCost(0.01, 0.01, 0.01),), activation_bytes=2, weight_stash_bytes=1),) * 4
    write_document(str(place / "p.json"), Profile(layers, microbatch_size=2, sequence_length=16))
    shape = ("--pp", "2", "--dp", "2", "--microbatches", "3")
    assert rtk("plan", "pipeline", "p.json", *shape, "-o", "plan.json", cwd=place).returncode == 0
    return place


def factor(step: int) -> float:
    """A rise over the warm-up, then a line down to the end."""
    if step < WARMUP:
        return step / WARMUP
    return 1 - (1 - FINAL) * (step - WARMUP) / (ITERATIONS - WARMUP)


def plain_torch(place: Path) -> tuple[list[float], list[float], list[float]]:
    """Losses, norms of gradients and evaluations of the same training in one process, with torch's own parts."""
    plan = read_document(str(place / "plan.json"), Plan)
    asked = TrainingConfig(f"{place}/model.py:tiny", (str(place / "train.bin"),), data_dtype="uint16")
    model, data = Training.of(training_of(plan, asked)).load(plan)
    whole = nn.Sequential(*model.layers)
    matrices, vectors = ([one for one in whole.parameters() if (one.dim() > 1) == yes] for yes in (True, False))
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.8, 0.9))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    held_out = Tokens(place / "valid.npy", sequence_length=16)
    total = plan.total_microbatches()

    def mean(rows: Callable[[int], Any]) -> torch.Tensor:
        parts = [rows(number) for number in range(total)]
        losses = [F.cross_entropy(whole(inputs).flatten(0, 1), targets.flatten()) for inputs, targets in parts]
        return torch.stack(losses).mean()

    def evaluation() -> float:
        with torch.no_grad():
            return mean(
                lambda n: [torch.stack(one) for one in zip(held_out[2 * n], held_out[2 * n + 1], strict=True)]
            ).item()

    found: tuple[list[float], list[float], list[float]] = ([], [], [])
    for iteration in range(ITERATIONS):
        if iteration and iteration % EVERY == 0:
            found[2].append(evaluation())
        optimizer.zero_grad()
        loss = mean(data.batch(iteration).__getitem__)
        loss.backward()  # type: ignore[no-untyped-call]
        found[0].append(loss.item())
        found[1].append(float(nn.utils.clip_grad_norm_(whole.parameters(), CLIP)))
        optimizer.step()
        schedule.step()
    found[2].append(evaluation())
    return found


@pytest.fixture(scope="module")
def events(folder: Path) -> list[dict[str, Any]]:
    """Of a run with all of them, a part of which stands in the job's file; it keeps two logs."""
    (folder / "rtk.toml").write_text(
        f"[training]\neval_every = {EVERY}\nlog_to = ['jsonl:log.jsonl', 'tensorboard:tb']\n"
    )
    done = rtk_forked("run", "plan.json", *OPTIONS, "--json", cwd=folder)
    (folder / "rtk.toml").unlink()
    assert done.returncode == 0 and "is written" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def of_kind(events: list[dict[str, Any]], kind: str, key: str) -> list[float]:
    return [event[key] for event in events if event["event"] == kind]


def test_a_run_is_what_plain_torch_trains(folder: Path, events: list[dict[str, Any]]) -> None:
    """Losses, gradient norms, learning rates and evaluations are those of AdamW's groups, clip_grad_norm_ and a
    schedule of torch's on the whole model."""
    losses, norms, evaluations = plain_torch(folder)
    assert of_kind(events, "iteration", "loss") == pytest.approx(losses, rel=1e-5)
    assert of_kind(events, "iteration", "grad_norm") == pytest.approx(norms, rel=1e-4)
    assert min(norms) > CLIP  # so each step was clipped
    rates = [RATE * factor(step) for step in range(ITERATIONS)]
    assert of_kind(events, "iteration", "learning_rate") == pytest.approx(rates)
    assert of_kind(events, "evaluation", "iteration") == [3, 6]
    assert of_kind(events, "evaluation", "loss") == pytest.approx(evaluations, rel=1e-5)
    assert events[-1]["evaluation_loss"] == of_kind(events, "evaluation", "loss")[-1]


def test_logs_have_what_was_said(folder: Path, events: list[dict[str, Any]]) -> None:
    """The file of JSON lines is what --json prints, and TensorBoard finds the same losses."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()] == events
    found = EventAccumulator(str(folder / "tb"))
    found.Reload()
    for tag, kind, key in (
        ("training/loss", "iteration", "loss"),
        ("training/grad_norm", "iteration", "grad_norm"),
        ("training/learning_rate", "iteration", "learning_rate"),
        ("evaluation/loss", "evaluation", "loss"),
    ):
        assert [one.value for one in found.Scalars(tag)] == pytest.approx(of_kind(events, kind, key)), tag
        assert [one.step for one in found.Scalars(tag)] == of_kind(events, kind, "iteration")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--clip-norm 0", "at: --clip-norm\ndo: take a number above 0, usually 1; for no clipping leave it out"),
        ("--clip-norm inf", "at: --clip-norm\n"),
        ("--betas 0.9", "at: --betas\ndo: take two numbers from 0 to below 1, such as 0.9,0.95"),
        ("--eval-every 3", "at: --eval-every\ndo: give --eval-data as well, or leave it out"),
        ("--warmup 10", "error: a warm-up of 10 iterations is not over after all 10\nat: --warmup\n"),
        (
            "--log-to wandb:x",
            "at: --log-to\ndo: write tensorboard:FOLDER, prometheus:HOST:PORT, otlp:URL or jsonl:FILE",
        ),
        ("--log-to jsonl:plan.json", "is the same file\nat: --log-to plan.json"),
        ("--log-to jsonl:model.py", "error: the file is text, which JSON lines would overwrite\nat: --log-to model.py"),
        ("--log-to jsonl:a.jsonl --metrics a.jsonl", "is the same file"),
        ("--coordinator h:1 --lr-schedule cosine --worker 0/0", "at: --lr-schedule\ndo: give --lr-steps N"),
        ("--coordinator h:1 --log-to jsonl:a --worker 0/0", "the coordinator decides on --log-to"),
    ],
)
def test_what_cannot_be_is_refused_at_once(folder: Path, options: str, told: str) -> None:
    """With exit code 2, before torch is loaded or anything is written."""
    before = sorted(folder.iterdir())
    done = rtk("run", "plan.json", "--model", "model.py:tiny", *options.split(), cwd=folder)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert sorted(folder.iterdir()) == before


def test_the_job_s_file_is_blamed_for_its_values(folder: Path) -> None:
    """A value of the file that does not fit is told with its line."""
    (folder / "bad.toml").write_text("[training]\n\nclip_norm = -1\n")
    done = rtk("--config", "bad.toml", "run", "plan.json", "--model", "model.py:tiny", cwd=folder)
    TAKEN.clear()  # of this process, in which the command has run
    assert (done.returncode, "at: bad.toml, training.clip_norm (line 3)" in done.stderr) == (2, True), done.stderr
