"""What a run trains: what follows from the plan, and what the model must be."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.skeleton import Checkpointed
from rtk.runners.resilience.announcements import Announcement, IterationCommitted
from rtk.runners.resilience.link import CoordinatorLink
from rtk.runners.resilience.protocol import Failed, Leaving, Returning
from rtk.runners.torch import worker as workers
from rtk.runners.torch.task import Task
from rtk.runners.torch.worker import _leave_when_told, _Shape, end_at_once, hello_of
from rtk.runners.training import NOT_BEFORE, JobConfig, TrainingConfig, training_of
from rtk.running import controller_of, work
from rtk.schemas.documents import digest
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, ModelForm, Profile
from rtk.training import Training

from ..runners.processes import single_process

WHOLE = """
from torch import nn

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(256, 4)
        self.steps = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.out = nn.Linear(4, 256)
        self.out.weight = self.words.weight

    def forward(self, tokens):
        return self.out(self.steps[1](self.steps[0](self.words(tokens))))
"""


def plan(stages: int, **told: object) -> Plan:
    """Of four layers, from a profile whose `model` says something."""
    layers = (Layer((LayerCost(1.0, 1.0, 1.0),)),) * 4
    profile = Profile(layers, model=dict(told), microbatch_size=3, sequence_length=9)
    return plan_pipeline(profile, Shape(stages, 1, 2), "1f1b")


def test_the_form_follows_from_the_plan(tmp_path: Path) -> None:
    """Model, cut, type and checkpointing are those of the profile behind the plan, as sizes are, for every worker."""
    (tmp_path / "mine.py").write_text(WHOLE)
    told = plan(1, cut="steps.*", dtype="bf16", checkpointing=True)
    training = training_of(told, TrainingConfig(f"{tmp_path}/mine.py:Whole"))
    assert training.form == ModelForm("steps.*", "bf16", True)
    assert training.settings()["cut"] == "steps.*"
    model, corpus = Training.of(training).load(told)
    assert [isinstance(layer, Checkpointed) for layer in model.layers] == [False, True, True, False]
    assert {one.dtype for layer in model.layers for one in layer.parameters()} == {torch.bfloat16}
    assert (model.microbatch_size, model.sequence_length) == (3, 9)
    assert corpus.batch(0)[0][0].shape == (3, 9)


def test_plans_of_usual_models_say_nothing_new() -> None:
    """A plan whose profile says no form trains in the usual one."""
    training = training_of(plan(2, name="gpt-tiny"), TrainingConfig("gpt-tiny", microbatch_size=2))
    assert training.form == ModelForm()
    assert not {"form", "cut", "dtype", "checkpointing"} & training.settings().keys()


def test_unknown_forms_are_refused() -> None:
    """A plan that asks for a type that there is not is refused."""
    with pytest.raises(InvalidInputError, match="'fp8' is no type"):
        training_of(plan(2, dtype="fp8"), TrainingConfig("gpt-tiny", microbatch_size=2))


def test_models_that_read_no_bytes_are_refused(tmp_path: Path) -> None:
    """Data of ours are bytes: a model with fewer words is refused before anything runs."""
    (tmp_path / "mine.py").write_text(WHOLE.replace("256", "16"))
    told = plan(1, cut="steps.*")
    with pytest.raises(InvalidInputError, match="vocabulary must be 256 or more"):
        Training.of(training_of(told, TrainingConfig(f"{tmp_path}/mine.py:Whole"))).load(told)


def test_worker_introduces_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hello names place, plan, settings and process; only one that has been there is not held back."""
    (tmp_path / "mine.py").write_text(WHOLE)
    told = plan(1, cut="steps.*")
    training = training_of(told, TrainingConfig(f"{tmp_path}/mine.py:Whole"))
    model, corpus = Training.of(training).load(told)
    task = Task(
        name="0/0",
        plan=told,
        make_layers=lambda: model.layers,
        loss=model.loss,
        optimizer=torch.optim.SGD,
        batch=corpus.batch,
        settings=training.settings(),
        secret=b"secret",
    )
    monkeypatch.setenv(NOT_BEFORE, "7")
    hello = hello_of(task, "10.0.0.1:5", ("10.0.0.2:6",), _Shape(task))
    first, again = hello("proof", None), hello("proof", Returning(epoch=1, committed=2))
    assert (first.worker, first.store, first.others, first.pid) == ("0/0", "10.0.0.1:5", ("10.0.0.2:6",), os.getpid())
    assert (first.plan, first.job) == (digest(told), training.settings())
    assert (first.not_before, again.not_before) == (7, 0)


def test_worker_that_is_to_go_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On SIGTERM a worker tells its coordinator that it leaves, and goes on with its iteration."""
    handlers: dict[int, Callable[..., None]] = {}
    sent: Queue[object] = Queue()
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    _leave_when_told(cast(CoordinatorLink, SimpleNamespace(send=sent.put)))
    handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert sent.get(timeout=5) == Leaving()
    assert "asked to leave" in capsys.readouterr().err


def test_worker_whose_thread_sleeps_for_ever_ends_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It tells the coordinator why, as far as that listens, and its process ends with the code."""
    sent: list[object] = []
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    end_at_once(cast(CoordinatorLink, SimpleNamespace(send=sent.append)), 5, "it hangs")
    assert sent == [Failed(5, "it hangs")]
    assert ended == [5]
    assert capsys.readouterr().err == "error: it hangs; this worker ends itself\n"


def test_worker_of_a_job_trains_until_it_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds its coordinator, gives the losses of one process, and leaves."""
    (tmp_path / "mine.py").write_text(WHOLE)
    whole = plan(1, cut="steps.*")
    training = training_of(whole, TrainingConfig(f"{tmp_path}/mine.py:Whole", learning_rate=0.1))
    monkeypatch.setattr(workers, "_leave_when_told", lambda link: None)
    losses: list[float] = []

    def note(what: Announcement) -> None:
        if isinstance(what, IterationCommitted) and what.loss is not None:
            losses.append(what.loss)

    server = controller_of(whole, JobConfig(3)).server(b"a secret for one test only", note, is_watchful=False)
    leading = threading.Thread(target=server.run, daemon=True)
    leading.start()
    work(whole, training, "0/0", [server.address], b"a secret for one test only", 10.0)
    leading.join(10)
    assert losses == pytest.approx(single_process(whole, training, 3))
