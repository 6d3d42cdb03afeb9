"""A model's name is judged at once, and alike wherever a model is named."""

import json
from pathlib import Path

import pytest

from rtk.profilers.analytic.configuration import FAMILIES, MODEL_FAMILIES, known_model
from rtk.profilers.models.names import require_model
from rtk.profilers.models.presets import PRESETS
from rtk.schemas.errors import InvalidInputError

MAMBA = {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2}  # no vocab_size, as in published ones


def refusal(name: str) -> str:
    """Why a name means no model that is measured."""
    with pytest.raises(InvalidInputError) as caught:
        require_model(name)
    return str(caught.value)


@pytest.mark.parametrize("name", ["gpt-tinny", "gpt3-meduim", "gpt_small"])
def test_a_mistyped_name_is_corrected(name: str) -> None:
    """A name that is nearly a preset's is answered with that preset, and with all that may be given instead."""
    said = refusal(name)
    assert "did you mean gpt" in said
    assert all(preset in said for preset in PRESETS)
    assert "config.json" in said


@pytest.mark.parametrize("name", ["meta-llama/Llama-3-8B", "gpt2/large", "org/x_y-1.5"])
def test_a_hub_name_is_told_that_nothing_is_downloaded(name: str) -> None:
    """For a name of the Hugging Face hub the remedy is to download its config.json, measured or computed."""
    with pytest.raises(InvalidInputError) as caught:
        known_model(name)
    for said in (refusal(name), str(caught.value)):
        assert f"there is no model and no folder '{name}'" in said
        assert "nothing is downloaded: download the model's config.json yourself, and give its folder" in said


def test_an_unsupported_architecture_is_told_at_once_with_what_is_supported(tmp_path: Path) -> None:
    """A Mamba config is unsupported before its missing sizes count: one list for both ways, and no unlike namesake."""
    (tmp_path / "config.json").write_text(json.dumps(MAMBA))
    with pytest.raises(InvalidInputError) as computed:
        known_model(str(tmp_path))
    measured = refusal(str(tmp_path))
    for said in (measured, str(computed.value)):
        assert said.startswith("unsupported architecture: mamba")
        assert "/model_type" in said
        assert "did you mean" not in said
        assert f"rtk measures {', '.join(MODEL_FAMILIES)}" in said
        assert f"computes {', '.join(FAMILIES)}" in said
    assert measured.splitlines()[-1] == str(computed.value).splitlines()[-1]


def test_names_that_mean_a_model_pass(tmp_path: Path) -> None:
    """Presets, a file that is there, and a config of a decoder are not refused, even where their insides are wrong."""
    file = tmp_path / "net.py"
    file.write_text("raise ValueError")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "never-heard-of", "n_head": 2}))
    for name in (*PRESETS, f"{file}:make", str(tmp_path)):
        require_model(name)
