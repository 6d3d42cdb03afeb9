"""Shapes from config.json files, against the models that transformers makes of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rtk.profilers.analytic.configuration import FAMILIES, MODELS, known_model, read_configuration, shape_of
from rtk.profilers.analytic.costs import MicrobatchShape, block_bytes
from rtk.profilers.analytic.estimate import forward_flops
from rtk.schemas.errors import InvalidInputError

CONFIGS = Path(__file__).parents[1] / "golden" / "configs"
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 160,
    "vocab_size": 300,
    "max_position_embeddings": 128,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 128, "vocab_size": 300}
    | dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), 0.0),
    "gpt_neox": SIZES,
    "llama": {**GROUPED, "attention_bias": True, "mlp_bias": True},
    "mistral": {**GROUPED, "head_dim": 32},
    "opt": {**SIZES, "ffn_dim": 256, "word_embed_proj_dim": 64, "dropout": 0.0},
    "qwen2": {**GROUPED, "tie_word_embeddings": True},
    "qwen3": {**GROUPED, "head_dim": 32},
}


def made(family: str, implementation: str, dtype: torch.dtype = torch.float32) -> Any:
    """A family's small model, and its configuration's values."""
    transformers = pytest.importorskip("transformers")
    none = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = transformers.AutoConfig.for_model(family, **SMALL[family], **none)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation, dtype=dtype)
    return model, {**config.to_dict(), "model_type": family}


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_and_flops_of_transformers(family: str) -> None:
    """A family's model has the parameters, and does the FLOPs forward, that its configuration says; exactly."""
    model, values = made(family, "eager")
    shape = shape_of(values, "config.json")
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.randint(300, (2, 32)), use_cache=False)
    assert sum(forward_flops(shape, MicrobatchShape(2, 32, "fp32"))) == counter.get_total_flops()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_activations_of_transformers(family: str, dtype: Any) -> None:
    """A block keeps what autograd saves for it, to 6 %, or what W needs where that is more."""
    model, values = made(family, "sdpa", {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype])
    block = next(module for module in model.modules() if isinstance(module, nn.ModuleList))[0]
    batch = MicrobatchShape(2, 64, dtype)
    inputs = torch.randn(2, 64, 64, dtype=model.dtype, requires_grad=True)
    rotary = next((module for module in model.modules() if type(module).__name__.endswith("RotaryEmbedding")), None)
    places = {} if rotary is None else {"position_embeddings": rotary(inputs, torch.arange(64)[None])}
    saved_bytes = saved(block, inputs, lambda: block(inputs, attention_mask=None, **places))
    held = block_bytes(shape_of(values, "config.json"), batch)
    assert held.activation == pytest.approx(max(saved_bytes, held.weight_stash), rel=0.06)


def saved(block: nn.Module, inputs: torch.Tensor, run: Any) -> int:
    """The storages that autograd saves while a block runs, its parameters excepted, and its input."""
    kept = [inputs.detach()]

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    own = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    sizes = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in kept}
    return sum(size for place, size in sizes.items() if place not in own)


@pytest.mark.parametrize("size", ["8b", "70b", "405b"])
def test_llama_of_its_configuration(size: str) -> None:
    """Llama 3's published config.json gives the shape we know by name, and transformers' number of parameters."""
    transformers = pytest.importorskip("transformers")
    path = CONFIGS / f"llama-3.1-{size}.json"
    shape = read_configuration(str(path))
    assert shape == MODELS[f"llama3-{size}"].shape
    config = transformers.AutoConfig.for_model(**json.loads(path.read_text()))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_folder_with_a_configuration(tmp_path: Path) -> None:
    """A folder is as good as the config.json in it; without one it is refused."""
    with pytest.raises(InvalidInputError, match=r"has no config\.json"):
        known_model(str(tmp_path))
    (tmp_path / "config.json").write_bytes((CONFIGS / "gpt2.json").read_bytes())
    assert known_model(str(tmp_path)).shape.parameters == 124_439_808
    assert known_model(str(tmp_path)).sequence_length == 1024


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama4"}, r"unsupported architecture: llama4\n(.|\n)*did you mean llama\? "),
        ({"hidden_size": None}, r"has no hidden_size\nat: c\.json, /hidden_size"),
        ({"hidden_size": 0}, r"hidden_size is 0, and must be a whole number(.|\n)*/hidden_size"),
        ({"vocab_size": "many"}, r"vocab_size is 'many'"),
        ({"num_hidden_layers": True}, r"num_hidden_layers is True"),
        ({"num_hidden_layers": 10**12}, r"num_hidden_layers is 1000000000000"),
        ({"num_attention_heads": 7}, r"num_attention_heads 7 does not divide hidden_size 64"),
        ({"num_key_value_heads": 3}, r"3 heads of keys and values do not divide 4(.|\n)*/num_key_value_heads"),
        ({"hidden_act": "xielu"}, r"the activation 'xielu' is not supported(.|\n)*known are gelu"),
        ({"tie_word_embeddings": "no"}, r"tie_word_embeddings is 'no', and must be true or false"),
        ({"model_type": "opt", "word_embed_proj_dim": 32, "ffn_dim": 8}, r"word_embed_proj_dim 32 are not supported"),
    ],
)
def test_bad_configurations(change: dict[str, Any], message: str) -> None:
    """What a configuration lacks or gets wrong is named, with its place."""
    with pytest.raises(InvalidInputError, match=message):
        shape_of({"model_type": "llama", **GROUPED, **change}, "c.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "no JSON object"),
        ("\udcff", "not valid JSON"),
        ('{"hidden_size": 8, "hidden_size": 9}', "'hidden_size' stands twice"),
        ('{"hidden_size": 8}', r"does not say its model_type\nat: .*c\.json, /model_type"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, text: str, message: str) -> None:
    """A file that is not JSON, holds no object or a key twice, or says no architecture is refused by its name."""
    path = tmp_path / "c.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InvalidInputError, match=message):
        known_model(str(path))


def test_code_of_its_own_is_not_asked_for(tmp_path: Path) -> None:
    """A config with an auto_map has the shape that its model_type says: nothing of it is executed."""
    told = json.loads((CONFIGS / "gpt2.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(told | {"auto_map": {"AutoConfig": "x.Y"}}))
    assert read_configuration(str(tmp_path)) == read_configuration(str(CONFIGS / "gpt2.json"))
