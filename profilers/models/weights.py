"""Where the values of a Hugging Face model's parameters come from: safetensors files, or a random generator.

Either gives the values of one parameter at a time, by its name in the model, so that whoever needs a few layers reads
no others. Which tensors of a file make a parameter is transformers' own knowledge (its `conversion_mapping`): most
have the parameter's name, experts of some models stand in the file one by one and in the model in one tensor.
"""

import copy
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from ...schemas.documents import unique_keys
from ...schemas.errors import InvalidInputError
from ...schemas.files import read_bytes, unreadable
from ...schemas.text import listed
from .model import describe, seeded

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
COMPARED_BYTES = 1 << 20  # of each file
MAPPED_BYTES = 1 << 24  # of a file at a time
NAMED = 3  # names of tensors in an error
FLOATS = ("F64", "F32", "F16", "BF16")


class ModelWeights(Protocol):
    """The values of a model's parameters."""

    def read(self, name: str) -> torch.Tensor:
        """The value of a parameter or persistent buffer, by its name in the model, in memory of its own."""
        ...

    @property
    def has_buffers(self) -> bool:
        """Whether persistent buffers have values here; else they are as they were made."""
        ...


def weights_beside(path: Path) -> Path | None:
    """The safetensors in a model's folder, or beside its config.json: a file, or an index of several; None: none.

    Raises:
        InvalidInputError: there are weights that are not safetensors.
    """
    folder = path if path.is_dir() else path.parent
    if not path.is_dir() and path.name != "config.json":
        return None
    for name in (INDEX, ONE_FILE):
        if (folder / name).exists():
            return folder / name
    pickles = [name for name in PICKLES if (folder / name).exists()]
    if pickles:
        raise InvalidInputError(
            "the folder's weights are pickled, which could run code when they are read",
            where=str(folder / pickles[0]),
            fix="save them as safetensors (save_pretrained of transformers does), or ask for random weights",
        )
    return None


def require_weights(name: str) -> Path:
    """The safetensors that are asked for by a file, an index of several, or the folder of either.

    Raises:
        InvalidInputError: there are none.
    """
    path = Path(name)
    if path.is_file() and (path.suffix == ".safetensors" or path.name.endswith(".index.json")):
        return path
    found = weights_beside(path) if path.is_dir() or path.name == "config.json" else None
    if found is None:
        raise InvalidInputError(
            f"there are no weights: no {ONE_FILE} and no {INDEX}" if path.exists() else "there is no such folder",
            where=name,
            fix="give a folder with safetensors in it, or ask for random weights",
        )
    return found


def weights_digest(path: Path) -> str:
    """A sha256 that tells weights from others without reading all of them: the files' names, sizes and beginnings.

    Args:
        path: as `require_weights` gives it.

    Raises:
        InvalidInputError: a file cannot be read.
    """
    digest = hashlib.sha256()
    files = [path] if path.suffix == ".safetensors" else [path, *sorted(path.parent.glob("*.safetensors"))]
    for file in files:
        try:
            digest.update(f"{file.name} {file.stat().st_size}\n".encode())
            with file.open("rb") as stream:
                digest.update(stream.read(COMPARED_BYTES))
        except OSError as error:
            raise unreadable(str(file), error) from error
    return digest.hexdigest()


@dataclass(slots=True, eq=False)
class _Source:
    """Tensors of files that make one or several of a model's tensors.

    Attributes:
        name: the model's tensor that they make, the first of several.
        converter: transformers' way to make it; None: as it is.
        parts: (the pattern by which the converter knows it, the tensor's name in its file).
    """

    name: str
    converter: Any
    parts: list[tuple[str, str]] = field(default_factory=list)


class FileWeights:
    """The values in safetensors files, checked against the model by what the files' headers say.

    Args:
        path: a file, or an index of several.
        root: the model as transformers makes it, its parameters on the meta device.
        config: where the model's config is, for errors.
        transposed: names of matrices that the layers have the other way round.

    Raises:
        InvalidInputError: a file is missing or broken; a tensor is missing, or of another shape, or of no plain
            floating type, or no parameter of the model; tied weights differ.
    """

    has_buffers = True

    def __init__(self, path: Path, root: nn.Module, config: str, transposed: Collection[str]) -> None:
        self._path, self._config, self._transposed = path, config, transposed
        self._model: Any = root
        self._files = self._index()
        self._shapes: dict[str, list[int]] = {}
        self._types: dict[str, str] = {}
        self._read_headers()
        self._made_of: dict[str, _Source] = {}
        self._made_shapes: dict[str, list[int]] = {}
        self._rest: dict[str, torch.Tensor] = {}  # what was made beside what was asked for
        self._wanted = dict(root.state_dict())
        self._match()
        self._check()

    def read(self, name: str) -> torch.Tensor:
        """The value of a parameter or persistent buffer, in the type that it has in the model."""
        value = self._rest.pop(name, None)
        source = self._made_of[name]
        if value is None and source.converter is None and name not in self._transposed:
            return self._copied(source.parts[0][1], self._wanted[name])
        if value is None:
            made = self._made(source, self._tensor)
            value = made.pop(name)
            self._rest = made
        if name in self._transposed:
            value = value.t()
        # A tensor of a file is mapped memory; the model's is its own.
        return torch.empty(value.shape, dtype=self._wanted[name].dtype).copy_(value)

    # The files

    def _index(self) -> dict[str, Path]:
        """The file of each tensor."""
        folder, path = self._path.parent, self._path
        if path.suffix == ".safetensors":
            with self._opened(path) as tensors:
                return dict.fromkeys(tensors.keys(), path)
        try:
            told = json.loads(read_bytes(str(path)), object_pairs_hook=unique_keys)
            files = {str(name): str(file) for name, file in told["weight_map"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidInputError(
                f"the index of weights does not say which file holds what: {describe(error)}",
                where=f"{path}, /weight_map",
                fix="copy the index anew",
            ) from error
        if any(Path(file).name != file for file in files.values()):
            raise InvalidInputError(
                "the index of weights names files outside of its folder", where=f"{path}, /weight_map"
            )
        missing = sorted({file for file in files.values() if not (folder / file).is_file()})
        if missing:
            raise InvalidInputError(
                f"{len(missing)} of {len(set(files.values()))} files of weights are missing: {listed(missing, NAMED)}",
                where=str(folder),
                fix="copy them into the folder",
            )
        return {name: folder / file for name, file in files.items()}

    def _read_headers(self) -> None:
        for path in sorted(set(self._files.values())):
            names = [name for name, file in self._files.items() if file == path]
            with self._opened(path) as tensors:
                lacking = sorted(set(names) - set(tensors.keys()))
                if lacking:
                    raise InvalidInputError(
                        f"the file lacks {listed(lacking, NAMED)}, which the index says that it holds",
                        where=str(path),
                        fix="copy the file and the index anew",
                    )
                for name in names:
                    part = tensors.get_slice(name)
                    self._shapes[name], self._types[name] = list(part.get_shape()), str(part.get_dtype())

    def _opened(self, path: Path) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            return safe_open(path, framework="pt", device="cpu")
        except (SafetensorError, OSError) as error:
            raise InvalidInputError(
                f"the weights cannot be read: {describe(error)}", where=str(path), fix="copy the file anew"
            ) from error

    def _tensor(self, name: str) -> torch.Tensor:
        # Opened for one tensor, so that no more than that stays mapped.
        with self._opened(self._files[name]) as tensors:
            value: torch.Tensor = tensors.get_tensor(name)
            return value

    def _copied(self, key: str, like: torch.Tensor) -> torch.Tensor:
        """A tensor of a file in memory of its own; no more of the file is mapped than a piece of it."""
        value = torch.empty(like.shape, dtype=like.dtype)
        rows = like.shape[0] if like.dim() else 1
        step = max(1, rows * MAPPED_BYTES // max(1, value.nbytes))
        if step >= rows:
            return value.copy_(self._tensor(key))
        for row in range(0, rows, step):
            with self._opened(self._files[key]) as tensors:
                value[row : row + step] = tensors.get_slice(key)[row : row + step]
        return value

    # Which tensors make which parameters

    def _match(self) -> None:
        from transformers import core_model_loading as loading
        from transformers.conversion_mapping import get_model_conversion_mapping

        transforms = get_model_conversion_mapping(self._model)
        renamings: Any = [one for one in transforms if isinstance(one, loading.WeightRenaming)]
        converters: Any = [one for one in transforms if isinstance(one, loading.WeightConverter)]
        converter_of = {pattern: one for one in converters for pattern in one.source_patterns}
        prefix, sources = self._model.base_model_prefix, dict[str, _Source]()
        for key in sorted(self._files, key=loading.dot_natural_key):
            name, pattern = loading.rename_source_key(key, renamings, converters, prefix, self._wanted)
            if name not in self._wanted and key in self._wanted:  # written by its name in the model
                name, pattern = key, None
            converter = None if pattern is None else converter_of[pattern]
            source = sources.setdefault(name, _Source(name, converter))
            source.parts.append((pattern or key, key))
        for source in sources.values():
            shapes = self._shapes_made(source)
            for name, shape in shapes.items():
                self._made_of[name] = source
                self._made_shapes[name] = shape

    def _shapes_made(self, source: _Source) -> dict[str, list[int]]:
        """The model's tensors that a source makes, and their shapes: the conversion itself, on the meta device."""
        if source.converter is None:
            return {source.name: self._shapes[source.parts[0][1]]}
        try:
            made = self._made(source, lambda key: torch.empty(self._shapes[key], device="meta"))
        except Exception as error:
            keys = [key for _, key in source.parts]
            raise self._error(
                f"{listed(keys, NAMED)} do not make {source.name}: {describe(error)}", self._files[keys[0]]
            ) from error
        return {name: list(value.shape) for name, value in made.items()}

    def _made(self, source: _Source, tensor: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
        if source.converter is None:
            return {source.name: tensor(source.parts[0][1])}
        converter = copy.deepcopy(source.converter)
        for pattern, key in source.parts:
            converter.add_tensor(source.name, key, pattern, tensor(key))
        made = converter.convert(source.name, model=self._model, config=self._model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}

    # What may be wrong

    def _check(self) -> None:
        for name, wanted in self._wanted.items():
            if name in self._made_of:
                self._check_tensor(name, wanted)
        self._tie()
        missing = [name for name in self._wanted if name not in self._made_of]
        if missing:
            tie = "; or say tie_word_embeddings in the config" if missing == ["lm_head.weight"] else ""
            raise self._error(
                f"the weights lack {_so_many(missing)} of the model", self._path, f"copy all of the weights{tie}"
            )
        unknown = [
            source.parts[0][1]
            for name, source in self._made_of.items()
            if name not in self._wanted and not self._is_ignored(name)
        ]
        if unknown:
            raise self._error(
                f"{_so_many(unknown)} among the weights are of no parameter of the model",
                self._files[unknown[0]],
                "give the config that belongs to the weights",
            )

    def _check_tensor(self, name: str, wanted: torch.Tensor) -> None:
        keys = [key for _, key in self._made_of[name].parts]
        if self._made_shapes[name] != list(wanted.shape):
            raise self._error(
                f"{name} has the shape {self._made_shapes[name]} in the weights, {list(wanted.shape)} by the config",
                self._files[keys[0]],
            )
        odd = next((key for key in keys if self._types[key] not in FLOATS), None)
        if odd is not None and wanted.is_floating_point():
            raise self._error(
                f"{odd} is {self._types[odd]} in the weights: quantized models are not trained",
                self._files[odd],
                f"give weights of {', '.join(FLOATS)}",
            )

    def _tie(self) -> None:
        """Let tied tensors have one source; whichever of them the files hold."""
        for target, owner in self._model.all_tied_weights_keys.items():
            keys = [self._made_of[one].parts[0][1] for one in (target, owner) if one in self._made_of]
            if len(keys) == 2 and not self._are_equal(*keys):
                raise InvalidInputError(
                    f"{target} and {owner} are tied in the config, and differ in the weights",
                    where=f"{self._config}, /tie_word_embeddings",
                    fix="say tie_word_embeddings false in the config, or give weights that are tied",
                )
            for one, other in ((target, owner), (owner, target)):
                if one not in self._made_of and other in self._made_of:
                    source = self._made_of[other]
                    self._made_of[one] = _Source(one, None, source.parts)

    def _are_equal(self, one: str, other: str) -> bool:
        """Whether two tensors of the files are equal, read a piece at a time."""
        if self._shapes[one] != self._shapes[other]:
            return False
        with self._opened(self._files[one]) as first, self._opened(self._files[other]) as second:
            pair = first.get_slice(one), second.get_slice(other)
            rows, step = self._shapes[one][0], 1024
            return all(torch.equal(*(part[at : at + step] for part in pair)) for at in range(0, rows, step))

    def _is_ignored(self, name: str) -> bool:
        """Whether a tensor that no parameter is made of may be there: masks of old, what transformers says."""
        buffers = {one for one, _ in self._model.named_buffers()}
        prefixed = f"{self._model.base_model_prefix}.{name}"
        patterns: Collection[str] = self._model._keys_to_ignore_on_load_unexpected or ()
        old = name.endswith((".attn.bias", ".attn.masked_bias", "inv_freq", ".attention.bias", ".masked_bias"))
        return name in buffers or prefixed in buffers or old or any(re.search(one, name) for one in patterns)

    def _error(self, what: str, path: Path, fix: str = "give the weights that belong to the config") -> Exception:
        return InvalidInputError(what, where=f"{path} and {self._config}", fix=fix)


def _so_many(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} tensors ({listed(names, NAMED)})"


class RandomWeights:
    """Random values as transformers draws them, layer by layer: each has a seed of its own, of the run's and its place.

    So a layer has the same values wherever it is made, and none needs another one to be made before it; transformers
    itself draws all of a model from one generator, so that its values for the same seed are others.

    Args:
        layers: of the model, on the meta device; they stay as they are.
        names: the names in the model of the layers' tensors (`3.mlp.weight`).
        initialize: draws what one module itself has, given that module.
        seed: of the run.
    """

    has_buffers = False

    def __init__(
        self,
        layers: Sequence[nn.Module],
        names: Mapping[str, str],
        initialize: Callable[[nn.Module], Any],
        seed: int,
    ) -> None:
        self._layers, self._initialize, self._seed = layers, initialize, seed
        self._homes: dict[str, tuple[int, str]] = {}
        for place, name in names.items():
            layer, _, local = place.partition(".")
            self._homes.setdefault(name, (int(layer), local))
        self._drawn: dict[str, torch.Tensor] = {}  # of the last layer, what nobody has taken yet

    def read(self, name: str) -> torch.Tensor:
        """The value of a parameter."""
        if name not in self._drawn:
            self._drawn = {}
            self._drawn = self._draw(self._homes[name][0])
        return self._drawn.pop(name)

    def _draw(self, place: int) -> dict[str, torch.Tensor]:
        from transformers import initialization

        layer = copy.deepcopy(self._layers[place])
        give_values([layer], {one: torch.empty_like(one, device="cpu") for one in layer.parameters()})
        for buffer in layer.buffers():
            buffer._is_hf_initialized = True  # type: ignore[attr-defined]  # transformers leaves it as it is
        seed = hashlib.sha256(f"{self._seed} {place}".encode()).digest()
        modules = list(layer.modules())
        guard: Any = initialization.guard_torch_init_functions
        with torch.no_grad(), seeded(int.from_bytes(seed[:7])), guard():
            for module in reversed(modules):  # an outer one after those in it
                self._initialize(module)
        values = dict(layer.named_parameters())
        return {
            name: values[local].detach() for name, (at, local) in self._homes.items() if at == place and local in values
        }


def give_values(
    modules: Iterable[nn.Module], values: Mapping[nn.Parameter, torch.Tensor]
) -> dict[nn.Parameter, nn.Parameter]:
    """Let parameters have other values, wherever in the modules they stand: new parameters take their places.

    Args:
        modules: that may hold them.
        values: of the parameters, on any device; what is not named stays.

    Returns:
        The new parameter of each old one.
    """
    new = {old: nn.Parameter(value, requires_grad=old.requires_grad) for old, value in values.items()}
    for root in modules:
        for module in root.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter in new:
                    module._parameters[name] = new[parameter]
    return new
