"""Models out of Hugging Face configs: what they compute, and what is wrong with configs."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rtk.profilers.models import huggingface, model
from rtk.profilers.models.huggingface import HuggingFace
from rtk.profilers.models.load import load_model
from rtk.profilers.models.model import apply, seeded, tied, token_example
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


MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 3}


def saved(folder: Path, config: dict[str, Any], **given: Any) -> Any:
    """A model that transformers has made of a config, with its weights in the folder."""
    transformers.utils.logging.disable_progress_bar()
    made = transformers.AutoConfig.for_model(**config)
    with seeded(3):
        whole = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="sdpa").eval()
        for one in whole.parameters():
            torch.nn.init.normal_(one, std=0.2)  # biases and norms, too
    whole.save_pretrained(folder, **given)
    return whole


@pytest.mark.parametrize(
    "config",
    [LLAMA, LLAMA | {"tie_word_embeddings": True}, GPT2 | {"resid_pdrop": 0.1}, MIXTRAL],
    ids=["llama", "tied", "gpt2", "mixtral"],
)
def test_layers_give_what_transformers_gives(tmp_path: Path, config: dict[str, Any]) -> None:
    """Layers filled part by part from shards give, without dropout, the logits of the model that was saved."""
    whole = saved(tmp_path, config, max_shard_size="8KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    model = HuggingFace(str(tmp_path)).load(2, 7)
    assert model.fill is not None
    assert all(one.is_meta for layer in model.layers for one in layer.parameters())
    layers = copy.deepcopy(model.layers)
    model.fill(layers, (2, len(layers)))
    assert all(one.is_meta for one in layers[1].parameters())
    model.fill(layers, (0, 2))
    tokens, _ = model.example(5)
    for layer in layers:
        layer.eval()
    with torch.no_grad():
        assert torch.equal(apply(layers, tokens), whole(tokens).logits)
    unique = {id(one): one.numel() for layer in layers for one in layer.parameters()}
    assert sum(unique.values()) == sum(one.numel() for one in whole.parameters())
    assert model.names is not None
    assert set(model.names.names.values()) == {name for name, _ in whole.named_parameters()}


def test_many_words(tmp_path: Path) -> None:
    """A model of many words is cut as one of few, and has all of them afterwards, and its padding."""
    config = LLAMA | {"vocab_size": 3001, "pad_token_id": 2999, "tie_word_embeddings": False}
    whole = saved(tmp_path, config)
    model = load_model(str(tmp_path), 2, 7)
    tokens, _ = model.example(5)
    assert int(tokens.max()) > huggingface.FEW_WORDS
    with torch.no_grad():
        assert torch.equal(apply(model.layers, tokens), whole(tokens).logits)
    (embedding,) = (one for one in model.layers[0].modules() if isinstance(one, nn.Embedding))
    assert (embedding.num_embeddings, embedding.padding_idx) == (3001, 2999)
    assert isinstance(head := model.layers[-1].get_submodule("lm_head"), nn.Linear)
    assert head.out_features == 3001


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral"])
def test_large_microbatches_are_not_computed_to_be_cut(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers for many tokens are the same as if all had been computed, with constants of their size."""
    config = {"llama": LLAMA, "gpt2": GPT2, "mixtral": MIXTRAL}[kind]
    whole = saved(tmp_path, config)
    model = load_model(str(tmp_path), 5, 31)
    tokens, _ = model.example(5)
    with torch.no_grad():
        assert torch.equal(apply([one.eval() for one in model.layers], tokens), whole(tokens).logits)
    form = ModelForm(dtype="bf16", checkpointing=True)
    outlined = load_model(str(tmp_path), 5, 31, form=form).layers
    monkeypatch.setattr(huggingface, "FEW_TOKENS", 1000)
    computed = load_model(str(tmp_path), 5, 31, form=form).layers
    for one, other in zip(outlined, computed, strict=True):
        kinds = [{name: (value.shape, value.dtype) for name, value in it.named_buffers()} for it in (one, other)]
        assert kinds[0] == kinds[1]
    with torch.no_grad():
        logits = (apply([one.eval() for one in layers], tokens) for layers in (outlined, computed))
        assert torch.equal(*logits)


def test_random_values_of_a_part(tmp_path: Path) -> None:
    """Random weights are as transformers draws them, and of any part what they are of the whole."""
    write(tmp_path, GPT2)
    whole = load_model(str(tmp_path), 2, 7, seed=3)
    model = HuggingFace(str(tmp_path), random_weights=True).load(2, 7, seed=3)
    assert model.fill is not None
    model.fill(model.layers, (1, 3))
    for place in (1, 2):
        for one, other in zip(model.layers[place].parameters(), whole.layers[place].parameters(), strict=True):
            assert torch.equal(one, other)
    assert all(one.is_meta for one in model.layers[0].parameters())
    named = {name: one.detach() for layer in whole.layers[1:3] for name, one in layer.named_parameters()}
    assert float(named["module.mlp.c_fc.weight"].std()) == pytest.approx(0.02, rel=0.1)
    assert float(named["module.mlp.c_proj.weight"].std()) == pytest.approx(0.01, rel=0.1)  # by twice the layers
    assert torch.equal(named["module.ln_1.weight"], torch.ones(16))
    unlike = load_model(str(tmp_path), 2, 7, seed=4)
    assert not torch.equal(unlike.layers[1].get_parameter("module.mlp.c_fc.weight"), named["module.mlp.c_fc.weight"])
    head = load_model(str(tmp_path), 2, 7, seed=3).layers
    assert head[0].get_parameter("root.transformer.wte.weight") is head[-1].get_parameter("lm_head.weight")


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


HEAD = "lm_head.weight"
NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(NORM), r"weights lack model\.norm\.weight of the model\n.*safetensors and .*config\.json"),
        (lambda w: w.pop(HEAD), r"lack lm_head\.weight(.|\n)*tie_word_embeddings"),
        (lambda w: w.update({NORM: torch.ones(15)}), r"model\.norm\.weight has the shape \[15\] in .*, \[16\] by"),
        (lambda w: w.update({NORM: torch.ones(16, dtype=torch.int8)}), r"is I8 in the weights: quantized"),
        (lambda w: w.update({"score.weight": torch.ones(1)}), r"score\.weight among the weights are of no parameter"),
    ],
    ids=["missing", "no-head", "shape", "type", "unknown"],
)
def test_weights_that_do_not_fit(tmp_path: Path, change: Callable[[Any], Any], message: str) -> None:
    """What does not fit between weights and config is said with its name and both files, before anything is read."""
    saved(tmp_path, LLAMA | {"tie_word_embeddings": False})
    edit(tmp_path, change)
    with pytest.raises(InvalidInputError, match=message):
        load_model(str(tmp_path))
    assert load_model(str(tmp_path), 1, 7, random_weights=True).layers


def test_weights_that_are_tied_in_one_place_only(tmp_path: Path) -> None:
    """A config that ties what differs in the file is refused; two equal copies, or the head's alone, are fine."""
    whole = saved(tmp_path, LLAMA | {"tie_word_embeddings": True})
    tokens = token_example(2, 7, 31)(0)[0]
    embedding = "model.embed_tokens.weight"
    edit(tmp_path, lambda w: w.update({HEAD: w[embedding].clone()}))
    equal = load_model(str(tmp_path), 2, 7)
    edit(tmp_path, lambda w: w.pop(embedding))
    alone = load_model(str(tmp_path), 2, 7)
    with torch.no_grad():
        assert torch.equal(apply(equal.layers, tokens), whole(tokens).logits)
        assert torch.equal(apply(alone.layers, tokens), whole(tokens).logits)
    edit(tmp_path, lambda w: w.update({embedding: w[HEAD] + 1}))
    with pytest.raises(InvalidInputError, match=r"tied in the config, and differ in the w.*\n.*/tie_word_embeddings"):
        load_model(str(tmp_path))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """A missing shard, a config alone, pickles and a broken file are told with the place and the way out."""
    write(tmp_path, LLAMA)
    with pytest.raises(InvalidInputError, match=r"no weights: no model\.safetensors"):
        HuggingFace(str(tmp_path)).load()
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(InvalidInputError, match="pickled"):
        load_model(str(tmp_path))
    (tmp_path / "pytorch_model.bin").unlink()
    saved(tmp_path, LLAMA, max_shard_size="8KB")
    shard = next(iter(sorted(tmp_path.glob("model-*.safetensors"))))
    shard.rename(tmp_path / "other")
    with pytest.raises(InvalidInputError, match=rf"1 of \d+ files of weights are missing: {shard.name}"):
        load_model(str(tmp_path))
    shard.write_bytes((tmp_path / "other").read_bytes()[:-20])
    with pytest.raises(InvalidInputError, match=rf"weights cannot be read: .*\n.*{shard.name}"):
        load_model(str(tmp_path))
    write(tmp_path, json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": {}})
    with pytest.raises(InvalidInputError, match="quantized"):
        load_model(str(tmp_path))


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
