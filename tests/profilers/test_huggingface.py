"""Models out of Hugging Face configs: what they compute, and what is wrong with configs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rtk.profilers.models import huggingface, model
from rtk.profilers.models.load import load_model
from rtk.profilers.models.model import apply, seeded, tied
from rtk.profilers.models.skeleton import Checkpointed, title_of
from rtk.runners.torch.stage import TorchStage
from rtk.schemas import errors
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.profile import ModelForm

transformers = pytest.importorskip("transformers")

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 31,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 31,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 32,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


def write(folder: Path, config: Any) -> str:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return str(path)


@pytest.mark.parametrize("config", [LLAMA, GPT2 | {"resid_pdrop": 0.1}])
def test_layers_give_what_transformers_gives(tmp_path: Path, config: dict[str, Any]) -> None:
    """The layers of a config give, in float32 and without dropout, the logits of the model that transformers makes."""
    model = load_model(write(tmp_path, config), 2, 7, seed=3)
    made = transformers.AutoConfig.for_model(**config)
    with seeded(3):
        whole = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="sdpa").eval()
    tokens, _ = model.example(5)
    for layer in model.layers:
        layer.eval()
    with torch.no_grad():
        torch.testing.assert_close(apply(model.layers, tokens), whole(tokens).logits, rtol=1e-5, atol=1e-6)
    unique = {id(one): one.numel() for layer in model.layers for one in layer.parameters()}
    assert sum(unique.values()) == sum(one.numel() for one in whole.parameters())


def test_llama_in_pieces(tmp_path: Path) -> None:
    """A Llama-like config in its folder: its blocks, what is before and after, sizes, and a tensor-parallel plan."""
    write(tmp_path, LLAMA | {"tie_word_embeddings": False, "quantization_config": {"quant_method": "fp8"}})
    model = load_model(str(tmp_path))
    assert [title_of(one) for one in model.layers] == ["Embedding", *["LlamaDecoderLayer"] * 3, "LlamaRMSNorm+Linear"]
    assert (model.microbatch_size, model.sequence_length, model.vocabulary) == (4, 32, 31)
    assert model.tensor_parallel is not None
    assert model.tensor_parallel["self_attn.o_proj"] == "rowwise"
    assert tied(model.layers) == {}
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_gpt2_is_tied_and_deferrable(tmp_path: Path) -> None:
    """GPT-2's head is tied to its embedding, and the weight gradients of all its linear layers can be put off."""
    model = load_model(write(tmp_path, GPT2), 2, 7)
    assert tied(model.layers) == {3: (0, 4 * 31 * 16)}
    assert sum(isinstance(module, nn.Linear) for module in model.layers[1].modules()) == 4
    stage = TorchStage([model.layers[1]])
    output = stage.forward(0, torch.randn(2, 7, 16))
    stage.backward_input(0, torch.ones_like(output))
    weights = [one for one in stage.parameters() if one.dim() == 2]
    assert all(one.grad is None for one in weights)
    stage.backward_weight(0)
    assert all(one.grad is not None for one in weights)


def test_forms(tmp_path: Path) -> None:
    """In bf16, with checkpoints, and cut elsewhere: rotary positions stay exact, and the gradients have the type."""
    form = ModelForm(cut="model.layers.[12]", dtype="bf16", checkpointing=True)
    model = load_model(write(tmp_path, LLAMA), 2, 7, form=form)
    assert [isinstance(layer, Checkpointed) for layer in model.layers] == [False, True, True, False]
    assert title_of(model.layers[0]) == "Embedding+LlamaDecoderLayer"
    inputs, targets = model.example(0)
    torch.autograd.backward(model.loss(apply(model.layers, inputs), targets))
    parameters = [one for layer in model.layers for one in layer.parameters()]
    assert all(one.grad is not None and one.grad.dtype == torch.bfloat16 for one in parameters)
    frequencies = [one for name, one in model.layers[0].named_buffers() if name.endswith("inv_freq")]
    assert frequencies and all(one.dtype == torch.float32 for one in frequencies)


def test_too_large_is_refused_before_allocating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config beyond the free memory is infeasible, counted without making the model."""
    monkeypatch.setattr(model, "free_bytes", lambda: 4 * 10**9)
    monkeypatch.setattr(huggingface, "_with_linears", lambda root: pytest.fail("it was built"))
    large = LLAMA | {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256, "num_hidden_layers": 32}
    large |= {"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False}
    with pytest.raises(InfeasibleError, match=r"needs 119\.\d GiB ") as raised:
        load_model(write(tmp_path, large))
    assert raised.value.exit_code == 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"model_type": ', r"not valid JSON: .*\n.*config\.json, line 1 column 16"),
        ('{"model_type": "llama", "model_type": "gpt2"}', "not valid JSON"),
        ("[1]", "is no JSON object"),
        ({"format": "rtk.profile"}, "rtk.profile, no model's config"),
        ({"hidden_size": 3}, r"does not say its model_type\n.*/model_type"),
        (LLAMA | {"auto_map": {"AutoConfig": "x.Y"}}, r"unsupported architecture: .* code of its own.*\n.*/auto_map"),
        (LLAMA | {"model_type": "llamma"}, r"unsupported architecture: llamma.*\n.*/model_type\n.*did you mean llama"),
        (LLAMA | {"model_type": "xyzzyx"}, r"unsupported architecture: xyzzyx.*\n.*\n.*gpt2, .*llama"),
        (LLAMA | {"model_type": "vit"}, "unsupported architecture: vit"),
        (LLAMA | {"model_type": "bart"}, "unsupported architecture: bart is no plain decoder"),
        ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, r"does not say hidden_size\n.*, /hidden_size"),
        ({k: v for k, v in GPT2.items() if k != "n_embd"}, r"does not say n_embd\n.*, /n_embd"),
        (LLAMA | {"vocab_size": "many"}, r"not valid: .*'vocab_size' expected int.*\n.*, /vocab_size"),
        (LLAMA | {"num_attention_heads": 5}, r"hidden size \(16\) is not a multiple of the number of attention heads"),
        (LLAMA | {"num_hidden_layers": 0}, r"num_hidden_layers is 0\n.*, /num_hidden_layers"),
        (LLAMA | {"hidden_act": "nope"}, "cannot make this model: KeyError: 'nope'"),
        (LLAMA | {"num_key_value_heads": 3}, "does not work on an example"),
    ],
)
def test_bad_configs(tmp_path: Path, config: Any, message: str) -> None:
    """A config that is wrong is an error that says what and, as far as possible, where."""
    with pytest.raises(InvalidInputError, match=message) as raised:
        load_model(write(tmp_path, config))
    assert "config.json" in str(raised.value)


def test_bad_places(tmp_path: Path) -> None:
    """A folder without a config, a missing file and too long a sequence are refused."""
    with pytest.raises(InvalidInputError, match=r"has no config\.json"):
        load_model(str(tmp_path))
    with pytest.raises(InvalidInputError, match="cannot read the file"):
        load_model(str(tmp_path / "other.json"))
    with pytest.raises(InvalidInputError, match="32 positions, fewer than a sequence of 33"):
        load_model(write(tmp_path, LLAMA), 1, 33)
    with pytest.raises(
        InvalidInputError, match=r"no module of LlamaForCausalLM is called layers\.\*\n.*\n.*model\.lay"
    ):
        load_model(write(tmp_path, LLAMA), 1, 7, form=ModelForm(cut="layers.*"))


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers is not installed the error says what to install."""
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(InvalidInputError, match=r"pip install 'rtk-train\[hf\]'"):
        load_model(write(tmp_path, LLAMA))
