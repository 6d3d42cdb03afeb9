"""A checkpoint in the form of others: `rtk checkpoint export`.

It stands at the root because the runners have the checkpoint, and the profilers know the other form.
"""

import json
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .runners.checkpoint import find, read_manifest, refuse_partial, reporting_failure, sync_folder, write_durably
from .schemas.errors import InvalidInputError, remark, require_package
from .schemas.text import listed

if TYPE_CHECKING:
    import torch

    from .profilers.models.export import HuggingFaceForm
    from .runners.torch.saved_tensors import SavedTensors

ExportedType = Literal["fp32", "bf16", "fp16"]
SHARD_BYTES = 5e9
# What lies beside a model's weights and is no part of them.
COMPANIONS = (
    "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*", "vocab.*",
    "merges.txt", "spiece.model", "sentencepiece*.model",
)  # fmt: skip
WRAPPERS = re.compile(r"\b(_orig_mod|_checkpoint_wrapped_module)\.")  # of torch.compile and of FSDP's checkpointing


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """What was written.

    Attributes:
        written: the folder.
        iteration: how many were done when the checkpoint was saved.
        parameters: how many numbers.
        dtype: the type of most of them.
        files: that hold them.
        copied: files that lay beside the model's config.
    """

    written: str
    iteration: int
    parameters: int
    dtype: str
    files: tuple[str, ...]
    copied: tuple[str, ...]


def export_checkpoint(
    checkpoint: str,
    output: str,
    *,
    dtype: ExportedType | None = None,
    shard_bytes: float = SHARD_BYTES,
    source: str | None = None,
) -> ExportedModel:
    """Write a checkpoint's model as a folder that `from_pretrained` of transformers reads.

    Only one layer is in memory at a time. The folder appears whole or not at all.

    Args:
        checkpoint: its folder (`step-1000` is `step-00001000`), or one that holds several, of which the newest is
            taken.
        output: the folder to write, which is not there or empty.
        dtype: of all weights; None: as they were trained, in float32 where there are masters.
        shard_bytes: a file of weights is at the most as large, unless one tensor is larger.
        source: the folder from which the tokenizer is copied; None: where the config came from.

    Returns:
        What was written.

    Raises:
        InvalidInputError: there is no whole checkpoint, its model is none of Hugging Face's, or the folder is taken.
        CheckpointFailedError: the disk is full, or does not take a file; nothing is left of it.
    """
    folder = _folder_of(checkpoint)
    names = read_manifest(folder).hugging_face
    if names is None:
        raise InvalidInputError(
            "the checkpoint does not say what its tensors are called elsewhere: its model is none of Hugging Face's, "
            "or an earlier version saved it",
            where=str(folder),
            fix="resume from it with --model FOLDER of a Hugging Face model, and save it again",
        )
    _require_free(Path(output))
    require_package("torch", "a checkpoint")
    from .profilers.models.export import HuggingFaceForm
    from .runners.torch.saved_tensors import SavedTensors

    form = HuggingFaceForm(names, str(folder))
    tensors = _Tensors(SavedTensors(folder), form, dtype, str(folder))
    shards = _shards(tensors.kinds, shard_bytes)
    target = Path(output).resolve()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with reporting_failure(temporary, "exported"):
            temporary.mkdir(parents=True)
            _write_weights(temporary, shards, tensors)
            config = _config(names.config, tensors.dtype, form.architecture)
            write_durably(temporary / "config.json", [_json(config)])
            copied = _copy_companions(Path(source or names.folder), temporary, is_asked=source is not None)
            sync_folder(temporary)
            temporary.rename(target)  # over an empty folder, too
            sync_folder(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    parameters = sum(kind.numel() for kind in tensors.kinds.values())
    return ExportedModel(output, tensors.iteration, parameters, tensors.dtype, tuple(shards), copied)


def _folder_of(checkpoint: str) -> Path:
    """The checkpoint's folder; a partial one is refused, and so is a folder without any."""
    path = Path(checkpoint)
    step = re.fullmatch(r"step-(\d{1,8})", path.name)
    if step and not path.exists():  # without the noughts, as one says it
        path = path.with_name(f"step-{int(step[1]):08d}")
    if (path / "checkpoint.json").is_file():
        refuse_partial(path, read_manifest(path))
    return find(path)


def _require_free(output: Path) -> None:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InvalidInputError(
            "there is something already", where=f"--output {output}", fix="name a folder that is not there yet"
        )


class _Tensors:
    """The tensors that are to be written, made layer by layer.

    Args:
        saved: the checkpoint.
        form: how it turns into them.
        dtype: of all; None: as they are.
        where: the checkpoint, for errors.

    Attributes:
        kinds: all of them on the meta device, layer after layer.
        dtype: the type of most of their numbers, as torch calls it.
        iteration: of the checkpoint.
    """

    def __init__(self, saved: "SavedTensors", form: "HuggingFaceForm", dtype: ExportedType | None, where: str) -> None:
        import torch

        self._saved, self._form = saved, form
        self._type = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, None: None}[dtype]
        self.iteration = saved.manifest.iteration
        self._entries = self._by_layer(where)
        self.kinds: dict[str, torch.Tensor] = {}
        self._layer_of: dict[str, int] = {}
        for layer, entries in self._entries.items():
            kinds = {name: self._cast(saved.kinds[entry]) for name, entry in entries.items()}
            for name, kind in form.written(kinds).items():
                self.kinds[name] = kind
                self._layer_of[name] = layer
        numbers = Counter[str]()
        for kind in self.kinds.values():
            numbers[str(kind.dtype).removeprefix("torch.")] += kind.numel()
        self.dtype = numbers.most_common(1)[0][0]
        self._made: tuple[int, dict[str, torch.Tensor]] = -1, {}

    def read(self, name: str) -> "torch.Tensor":
        """The value of one; quickest layer after layer."""
        layer = self._layer_of[name]
        if self._made[0] != layer or name not in self._made[1]:
            self._made = -1, {}
            values = {one: self._cast(self._saved.read(entry)) for one, entry in self._entries[layer].items()}
            self._made = layer, self._form.written(values)
        return self._made[1].pop(name)

    def _cast(self, value: "torch.Tensor") -> "torch.Tensor":
        return value.to(self._type) if self._type is not None and value.is_floating_point() else value

    def _by_layer(self, where: str) -> dict[int, dict[str, str]]:
        """For each layer its tensors' names, and the entries that hold them; what is tied stands with the first."""
        told = self._saved.manifest.hugging_face
        assert told is not None
        names = {_plain(place): name for place, name in told.names.items()}
        layers: dict[int, dict[str, str]] = {}
        found: set[str] = set()
        entries = [entry for entry in self._saved.kinds if "/" not in entry]
        for entry in sorted(entries, key=lambda entry: int(entry.partition(".")[0])):
            name = names.get(_plain(entry))
            if name is None:
                raise InvalidInputError(
                    f"nothing says what {entry} is called elsewhere", where=f"{where}/checkpoint.json"
                )
            if name not in found:
                found.add(name)
                master = f"{entry}/master"
                layers.setdefault(int(entry.partition(".")[0]), {})[name] = (
                    master if master in self._saved.kinds else entry
                )
        lacking = sorted(set(names.values()) - found)
        if lacking:
            raise InvalidInputError(
                f"the checkpoint lacks {listed(lacking, 3)}", where=where, fix="export another checkpoint"
            )
        return layers


def _plain(entry: str) -> str:
    return WRAPPERS.sub("", entry)


def _shards(kinds: "dict[str, torch.Tensor]", most_bytes: float) -> "dict[str, dict[str, torch.Tensor]]":
    """The tensors of each file, by its name; in a file the larger types first, as safetensors want it."""
    files: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, kind in kinds.items():
        if files[-1] and size + kind.numel() * kind.itemsize > most_bytes:
            files.append({})
            size = 0
        files[-1][name] = kind
        size += kind.numel() * kind.itemsize
    ordered = [dict(sorted(file.items(), key=lambda one: -one[1].itemsize)) for file in files]
    if len(ordered) == 1:
        return {"model.safetensors": ordered[0]}
    return {f"model-{n:05d}-of-{len(ordered):05d}.safetensors": file for n, file in enumerate(ordered, start=1)}


def _write_weights(folder: Path, shards: "dict[str, dict[str, torch.Tensor]]", tensors: _Tensors) -> None:
    from .runners.torch.tensor_files import write_tensors

    for file, kinds in shards.items():
        write_tensors(folder / file, kinds, tensors.read)
    if len(shards) > 1:
        every = [kind for kinds in shards.values() for kind in kinds.values()]
        total = sum(kind.numel() * kind.itemsize for kind in every)
        index = {
            "metadata": {"total_parameters": sum(kind.numel() for kind in every), "total_size": total},
            "weight_map": {name: file for file, kinds in shards.items() for name in kinds},
        }
        write_durably(folder / "model.safetensors.index.json", [_json(index)])


def _config(told: dict[str, Any], dtype: str, architecture: str) -> dict[str, Any]:
    """The config that the model was made of, with the type of the weights; nothing is quantized."""
    config = {key: value for key, value in told.items() if key != "quantization_config"}
    key = "torch_dtype" if "torch_dtype" in config and "dtype" not in config else "dtype"
    return {"architectures": [architecture], **config, key: dtype}


def _copy_companions(source: Path, folder: Path, is_asked: bool) -> tuple[str, ...]:
    """Copy the tokenizer, and what else lies beside a config; gives the files' names."""
    if not source.is_dir():
        if is_asked:
            raise InvalidInputError("there is no such folder", where=f"--source {source}", fix="check the path")
        remark(f"no tokenizer is copied: the folder {source} is not there")
        return ()
    found = sorted(_companions(source))
    for path in found:
        shutil.copyfile(path, folder / path.name)
    return tuple(path.name for path in found)


def _companions(source: Path) -> Iterator[Path]:
    for path in source.iterdir():
        if path.is_file() and any(fnmatch(path.name, pattern) for pattern in COMPANIONS):
            yield path


def _json(tree: dict[str, Any]) -> bytes:
    return (json.dumps(tree, indent=2, ensure_ascii=False, allow_nan=True) + "\n").encode()
