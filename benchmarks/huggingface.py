"""Architectures of Hugging Face's: loaded, cut, trained and exported, each compared with what transformers does.

`python benchmarks/huggingface.py [-o FILE] [--only NAME …]`. Of every architecture transformers makes a small model and
saves it, in shards. Then

* `loss_difference`: the first loss from the folder, of layers in two stages of which each was filled alone, from that
  of `from_pretrained`, relative to it;
* `step_difference`: the largest difference of a parameter after three steps of AdamW by two stages, with weight
  gradients put off, from that of the same steps by transformers' model; `moved` is the largest change of any;
* `logits_equal`: whether `from_pretrained` of what `rtk checkpoint export` wrote gives the same bits as the layers.
"""

import argparse
import copy
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rtk.benchmarks.common import write_result
from rtk.exporting import export_checkpoint
from rtk.profilers.models.huggingface import HuggingFace
from rtk.profilers.models.model import apply, seeded
from rtk.runners.checkpoint import publish
from rtk.runners.torch.checkpoint import write_part
from rtk.runners.torch.held_stage import HeldStage
from rtk.schemas.checkpoint import Checkpoint
from rtk.schemas.profile import ModelForm

LLAMA: dict[str, Any] = {
    "vocab_size": 301,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2: dict[str, Any] = {
    "vocab_size": 301,
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
HEADS = {"num_key_value_heads": 4}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
BERT = LLAMA | {"is_decoder": True, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": 0}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2"} | GPT2 | {"tie_word_embeddings": False},
    "gpt2-tied": {"model_type": "gpt2"} | GPT2,
    "llama": {"model_type": "llama"} | LLAMA,
    "llama-tied": {"model_type": "llama"} | LLAMA | {"tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2"} | LLAMA,
    "qwen3": {"model_type": "qwen3"} | LLAMA | {"head_dim": 8},
    "mistral": {"model_type": "mistral"} | LLAMA,
    "gemma": {"model_type": "gemma"} | LLAMA | {"head_dim": 8},
    "gemma2": {"model_type": "gemma2"} | LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 8},
    "gemma3_text": {"model_type": "gemma3_text"} | LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 8},
    "gpt_neox": {"model_type": "gpt_neox"} | LLAMA,
    "phi": {"model_type": "phi"} | LLAMA | {"embd_pdrop": 0.0},
    "phi3": {"model_type": "phi3"} | LLAMA,
    "olmo2": {"model_type": "olmo2"} | LLAMA,
    "opt": {"model_type": "opt"}
    | LLAMA
    | {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0, "pad_token_id": 1},
    "bloom": {"model_type": "bloom", "vocab_size": 301, "hidden_size": 32, "n_layer": 4, "n_head": 4},
    "falcon": {"model_type": "falcon"} | LLAMA | {"multi_query": True},
    "gptj": {"model_type": "gptj", "rotary_dim": 4} | GPT2,
    "stablelm": {"model_type": "stablelm"} | LLAMA | {"partial_rotary_factor": 0.5},
    "starcoder2": {"model_type": "starcoder2"} | LLAMA | {"residual_dropout": 0.0, "embedding_dropout": 0.0},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4} | LLAMA,
    "qwen3_moe": {"model_type": "qwen3_moe", "head_dim": 8} | LLAMA | MOE,
    "olmoe": {"model_type": "olmoe"} | LLAMA | MOE,
    "deepseek_v3": {"model_type": "deepseek_v3", "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2}
    | {"topk_group": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
    | {"v_head_dim": 8, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
    | LLAMA
    | HEADS,
    "bert": {"model_type": "bert"} | BERT,
}
SIZE, LENGTH, STEPS = 2, 16, 3


def try_architecture(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Everything of one architecture."""
    begun_s = time.perf_counter()
    whole = save_model(config, folder / "source")
    model = HuggingFace(str(folder / "source")).load(SIZE, LENGTH, form=ModelForm())
    loaded_s = time.perf_counter() - begun_s
    assert model.fill is not None
    middle = len(model.layers) // 2
    is_tied = any(one in set(model.layers[0].parameters()) for one in model.layers[-1].parameters())
    ranges = [(0, len(model.layers))] if is_tied else [(0, middle), (middle, len(model.layers))]
    stages = []
    for held in ranges:
        layers = copy.deepcopy(model.layers)
        model.fill(layers, held)
        stages.append(HeldStage(layers, held, model.loss, _adamw, is_last=held[1] == len(layers), is_split=True))
    inputs, targets = model.example(0)
    expected = torch.nn.functional.cross_entropy(whole(inputs).logits.flatten(0, 1).float(), targets.flatten())
    with torch.no_grad():
        found: Any = model.loss(apply([layer for stage in stages for layer in stage.stage.layers], inputs), targets)
    result: dict[str, Any] = {
        "architecture": type(whole).__name__,
        "parameters": sum(one.numel() for one in whole.parameters()),
        "stages": len(stages),
        "load_and_cut_s": loaded_s,
        "loss_difference": abs(float(found) - float(expected.detach())) / float(expected.detach()),
    }
    before = {name: one.detach().clone() for name, one in whole.named_parameters()}
    train_both(stages, whole, model)
    parts = [write_part(folder, STEPS, stage.layers_range, stage.state()) for stage in stages]
    manifest = Checkpoint(STEPS, len(model.layers), "0" * 64, 0, 1, tuple(parts), hugging_face=model.names)
    export_checkpoint(str(publish(folder, manifest)), str(folder / "exported"), shard_bytes=20e3)
    exported = from_pretrained(folder / "exported")
    layers = [layer.eval() for stage in stages for layer in stage.stage.layers]
    with torch.no_grad():
        result["logits_equal"] = torch.equal(apply(layers, inputs), exported(inputs).logits)
    others = dict(whole.named_parameters())
    result["step_difference"] = max(
        float((one - others[name]).detach().abs().max()) for name, one in exported.named_parameters()
    )
    result["moved"] = max(float((one - before[name]).detach().abs().max()) for name, one in others.items())
    kept = json.loads((folder / "exported" / "config.json").read_text())
    source = json.loads((folder / "source" / "config.json").read_text())
    result["config_kept"] = kept == source
    return result


def save_model(config: dict[str, Any], folder: Path) -> Any:
    """A model that transformers makes and saves, its parameters all unlike; itself."""
    import transformers

    made = transformers.AutoConfig.for_model(**config)
    with seeded(1):
        make: Any = transformers.AutoModelForCausalLM
        whole = make.from_config(made)
        with torch.no_grad():
            for one in whole.parameters():
                one.add_(torch.randn_like(one) * 0.02)
    whole.save_pretrained(folder, max_shard_size="20KB")
    return from_pretrained(folder)


def from_pretrained(folder: Path) -> Any:
    """What transformers reads from a folder, without dropout."""
    import transformers

    read: Any = transformers.AutoModelForCausalLM.from_pretrained
    try:
        return read(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    except ValueError:  # there is none for this architecture
        return read(folder, dtype=torch.float32, attn_implementation="eager").eval()


def train_both(stages: Sequence[HeldStage], whole: Any, model: Any) -> None:
    """The same steps by stages and by transformers' model."""
    for stage in stages:
        stage.stage.layers.eval()
    optimizer = _adamw(whole.parameters())
    for step in range(STEPS):
        inputs, targets = model.example(step)
        value = inputs
        for stage in stages:
            value = stage.stage.forward(step, value, targets if stage.is_last else None)
        gradient = None
        for stage in reversed(stages):
            gradient = stage.stage.backward_input(step, gradient)
            stage.stage.backward_weight(step)
        for stage in stages:
            stage.optimizer.step()
            stage.gradients.clear()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(whole(inputs).logits.flatten(0, 1).float(), targets.flatten())
        torch.autograd.backward(loss)
        optimizer.step()


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([one for one in parameters if isinstance(one, nn.Parameter)], lr=1e-4)


def main(arguments: Sequence[str] | None = None) -> None:
    """Try all architectures and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="-")
    parser.add_argument("--only", nargs="+", choices=[*ARCHITECTURES], default=[*ARCHITECTURES])
    options = parser.parse_args(arguments)
    import transformers

    logging: Any = transformers.utils.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    rows = []
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            try:
                row = try_architecture(ARCHITECTURES[name], Path(folder))
            except Exception as error:
                traceback.print_exc()
                row = {"error": str(error)}
        rows.append({"name": name} | row)
        print(rows[-1], file=sys.stderr)
    write_result({"rows": rows, "transformers": transformers.__version__}, options.output)


if __name__ == "__main__":
    main()
