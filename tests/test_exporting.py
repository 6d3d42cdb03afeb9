"""Checkpoints as folders of Hugging Face's form: what transformers reads out of them, and what is refused."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rtk import exporting
from rtk.exporting import export_checkpoint
from rtk.profilers.models.huggingface import HuggingFace
from rtk.profilers.models.joint import ModelCuts
from rtk.profilers.models.model import Model, apply
from rtk.runners.checkpoint import CheckpointFailedError, publish
from rtk.runners.torch.checkpoint import write_part
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.recut import recut
from rtk.runners.torch.tensor_files import Divisions
from rtk.schemas.checkpoint import Checkpoint
from rtk.schemas.errors import InvalidInputError

from .cli.shell import rtk
from .profilers.test_huggingface import GPT2, LLAMA, MIXTRAL, saved

transformers = pytest.importorskip("transformers")

State = dict[str, torch.Tensor]


def from_pretrained(folder: Path, **given: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", **given).eval()


def trained(source: Path) -> tuple[Model, State]:
    """A model of a folder after one step, and its state, with that of its optimizer."""
    model = HuggingFace(str(source)).load(2, 7)
    assert model.fill is not None
    whole = (0, len(model.layers))
    model.fill(model.layers, whole)
    held = HeldStage(model.layers, whole, model.loss, lambda p: torch.optim.AdamW(p, lr=0.01), is_last=True)
    inputs, targets = model.example(0)
    held.stage.forward(0, inputs, targets)
    held.stage.backward(0)
    held.optimizer.step()
    return model, held.state()


def checkpoint(folder: Path, model: Model, state: State, *cuts: int, **given: Any) -> Path:
    """A checkpoint of a state, in a file for the layers between the cuts."""
    edges = [0, *cuts, len(model.layers)]
    parts = []
    for first, stop in itertools.pairwise(edges):
        held = {name: one for name, one in state.items() if first <= int(name.partition(".")[0]) < stop}
        parts.append(write_part(folder, 7, (first, stop), held))
    manifest = Checkpoint(7, len(model.layers), "0" * 64, 0, 1, tuple(parts), hugging_face=model.names)
    return publish(folder, replace(manifest, **given))


@pytest.mark.parametrize("config", [LLAMA, GPT2 | {"attn_pdrop": 0.1}, MIXTRAL], ids=["llama", "gpt2-tied", "mixtral"])
def test_what_was_trained_is_read(tmp_path: Path, config: dict[str, Any]) -> None:
    """The logits of what transformers reads are those of the layers, to the bit; config and tokenizer are kept."""
    saved(tmp_path / "source", config)
    (tmp_path / "source" / "tokenizer.json").write_text("{}")
    (tmp_path / "source" / "notes.txt").write_text("mine")
    model, state = trained(tmp_path / "source")
    folder = checkpoint(tmp_path / "saved", model, state, 2)
    for most_bytes in (1e9, 5e3):
        output = tmp_path / f"out-{most_bytes:.0f}"
        done = export_checkpoint(str(folder), str(output), shard_bytes=most_bytes)
        tokens = model.example(3)[0]
        with torch.no_grad():
            assert torch.equal(
                from_pretrained(output)(tokens).logits, apply([one.eval() for one in model.layers], tokens)
            )
        assert json.loads((output / "config.json").read_text()) == json.loads(
            (tmp_path / "source" / "config.json").read_text()
        )
        assert done.copied == ("generation_config.json", "tokenizer.json")
        assert (done.iteration, done.dtype) == (7, "float32")
    assert len(done.files) > 3
    assert all((output / file).stat().st_size < 5e3 + 4000 for file in done.files)  # and the header
    names = {name for file in done.files for name in load_file(output / file)}
    assert names == set(load_file(tmp_path / "source" / "model.safetensors"))


def test_slices_of_ranks_are_put_together(tmp_path: Path) -> None:
    """What two ranks have saved, each its slices, is exported as what one has saved: the same bytes."""
    saved(tmp_path / "source", LLAMA)
    model, state = trained(tmp_path / "source")
    whole, layers = checkpoint(tmp_path / "whole", model, state), (0, len(model.layers))
    tables = enumerate(map(ModelCuts(model.tensor_parallel).tensors, model.layers))
    cuts = {f"{number}.{name}": cut for number, table in tables for name, cut in table.items()}
    assert len(cuts) > 10
    slices = [dict(recut([state], list(state), cuts, 2, rank)) for rank in range(2)]
    parts = [
        write_part(tmp_path / "two", 7, layers, own, Divisions(cuts), rank=(rank, 2)) for rank, own in enumerate(slices)
    ]
    manifest = Checkpoint(7, layers[1], "0" * 64, 0, 1, tuple(parts), hugging_face=model.names)
    for name, folder in (("one", whole), ("both", publish(tmp_path / "two", manifest))):
        export_checkpoint(str(folder), str(tmp_path / name))
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "both/model.safetensors").read_bytes()


def test_types(tmp_path: Path) -> None:
    """Masters are exported rather than what was rounded from them; a type that is asked for is that of all."""
    saved(tmp_path / "source", LLAMA)
    model, state = trained(tmp_path / "source")
    masters = {f"{name}/master": one for name, one in state.items() if "/" not in name}
    rounded = {name: one.bfloat16() for name, one in state.items() if "/" not in name}
    folder = checkpoint(tmp_path / "saved", model, rounded | masters)
    assert export_checkpoint(str(tmp_path / "saved"), str(tmp_path / "masters")).dtype == "float32"
    export_checkpoint(str(folder.with_name("step-7")), str(tmp_path / "short"), dtype="bf16")
    tokens = model.example(3)[0]
    with torch.no_grad():
        expected = apply([one.eval() for one in model.layers], tokens)
        assert torch.equal(from_pretrained(tmp_path / "masters")(tokens).logits, expected)
    short = from_pretrained(tmp_path / "short")
    assert {one.dtype for one in short.parameters()} == {torch.bfloat16}
    embedding = rounded["0.root.model.embed_tokens.weight"]
    assert torch.equal(short.get_parameter("model.embed_tokens.weight"), embedding)


def test_names_of_wrapped_layers(tmp_path: Path) -> None:
    """What torch.compile and checkpointing put into names does not matter, in the state and in what names it."""
    saved(tmp_path / "source", LLAMA)
    model, state = trained(tmp_path / "source")
    wrapped = {name.replace("module.", "_orig_mod.module.", 1): one for name, one in state.items()}
    folder = checkpoint(tmp_path / "saved", model, wrapped)
    export_checkpoint(str(folder), str(tmp_path / "out"))
    tokens = model.example(3)[0]
    with torch.no_grad():
        expected = apply([one.eval() for one in model.layers], tokens)
        assert torch.equal(from_pretrained(tmp_path / "out")(tokens).logits, expected)


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial checkpoints, those of other models, folders that are taken; after an error there is no folder."""
    saved(tmp_path / "source", LLAMA)
    model, state = trained(tmp_path / "source")
    first = {name: one for name, one in state.items() if name.startswith("0.")}
    part = write_part(tmp_path / "saved", 7, (0, 1), first)
    rest = ((1, len(model.layers)),)
    manifest = Checkpoint(7, len(model.layers), "0" * 64, 0, 1, (part,), missing=rest, hugging_face=model.names)
    partial = publish(tmp_path / "saved", manifest)
    output = tmp_path / "out"
    with pytest.raises(InvalidInputError, match="checkpoint is partial: layers 1-4 of 5 are missing"):
        export_checkpoint(str(partial), str(output))
    with pytest.raises(InvalidInputError, match="no complete checkpoint"):
        export_checkpoint(str(tmp_path / "saved"), str(output))
    other = checkpoint(tmp_path / "other", model, state, hugging_face=None)
    with pytest.raises(InvalidInputError, match=r"none of Hugging Face's, or an earlier version saved it"):
        export_checkpoint(str(other), str(output))
    whole = checkpoint(tmp_path / "whole", model, state)
    with pytest.raises(InvalidInputError, match="something already"):
        export_checkpoint(str(whole), str(tmp_path / "source"))
    with pytest.raises(InvalidInputError, match=r"no such folder\n.*--source nowhere"):
        export_checkpoint(str(whole), str(output), source="nowhere")

    def full(*_: object, is_asked: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "_copy_companions", full)
    with pytest.raises(CheckpointFailedError, match="could not be exported: No space left"):
        export_checkpoint(str(whole), str(output))
    assert not output.exists()
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.wheel("checkpoint export")
def test_command(tmp_path: Path) -> None:
    """`rtk checkpoint export` writes the newest checkpoint, and says what is in it; exit code 2 where it cannot."""
    saved(tmp_path / "source", LLAMA)
    checkpoint(tmp_path / "saved", *trained(tmp_path / "source"))
    command = ("checkpoint", "export", "saved", "--to", "hf", "-o", "model", "--json")
    done = rtk(*command, "--shard-size", "8kB", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["files"] == sorted(one.name for one in (tmp_path / "model").glob("*.safetensors"))
    assert f"wrote model: {told['parameters']} parameters in float32, {len(told['files'])} files" in done.stderr
    again = rtk(*command, cwd=tmp_path)
    assert again.returncode == 2
    assert "something already" in again.stderr
