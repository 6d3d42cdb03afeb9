"""What a run trains: what follows from the plan, and what the model must be."""

from pathlib import Path

import pytest
import torch

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.skeleton import Checkpointed
from rtk.runners.training import Training, training_of
from rtk.running import load_training
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, ModelForm, Profile

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
    training = training_of(told, Training(f"{tmp_path}/mine.py:Whole"))
    assert training.form == ModelForm("steps.*", "bf16", True)
    assert training.settings()["cut"] == "steps.*"
    model, corpus = load_training(told, training)
    assert [isinstance(layer, Checkpointed) for layer in model.layers] == [False, True, True, False]
    assert {one.dtype for layer in model.layers for one in layer.parameters()} == {torch.bfloat16}
    assert (corpus.microbatch_size, corpus.sequence_length) == (3, 9)


def test_plans_of_usual_models_say_nothing_new() -> None:
    """A plan whose profile says no form trains in the usual one."""
    training = training_of(plan(2, name="gpt-tiny"), Training("gpt-tiny", microbatch_size=2))
    assert training.form == ModelForm()
    assert not {"form", "cut", "dtype", "checkpointing"} & training.settings().keys()


def test_tied_weights_across_stages_are_refused(tmp_path: Path) -> None:
    """A model whose two ends share a matrix does not run in two stages, and the error says what would help."""
    (tmp_path / "mine.py").write_text(WHOLE)
    told = plan(2, cut="steps.*")
    training = training_of(told, Training(f"{tmp_path}/mine.py:Whole"))
    with pytest.raises(InvalidInputError, match=r"tied weights.*\n.*\n.*tie_word_embeddings"):
        load_training(told, training)


def test_unknown_forms_are_refused() -> None:
    """A plan that asks for a type that there is not is refused."""
    with pytest.raises(InvalidInputError, match="'fp8' is no type"):
        training_of(plan(2, dtype="fp8"), Training("gpt-tiny", microbatch_size=2))
