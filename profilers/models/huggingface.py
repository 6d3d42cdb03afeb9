"""A Hugging Face decoder from its `config.json`: nothing from the network, transformers' code alone.

The model is made and cut without its values: its parameters are on the meta device, and while it is cut they are views
of one small memory of random numbers. Values come afterwards, layer by layer (weights.py): who trains some layers reads
and holds only these.
"""

import copy
import ctypes
import gc
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...schemas.checkpoint import HuggingFaceNames
from ...schemas.errors import InvalidInputError, require_package
from ...schemas.plan import Layers
from ...schemas.profile import AS_USUAL, ModelForm
from ...schemas.text import joined
from ..analytic.configuration import read_config, unsupported
from .cut import cut_module
from .gpt import language_model_loss
from .model import (
    DEFAULT_MICROBATCH_SIZE,
    DEFAULT_SEQUENCE_LENGTH,
    TORCH_TYPES,
    LossInFloat32,
    Model,
    ModelSize,
    describe,
    matching,
    require_memory,
    seeded,
    token_example,
)
from .sharding import transformers_plan
from .skeleton import with_checkpoints
from .weights import (
    FileWeights,
    ModelWeights,
    RandomWeights,
    give_values,
    require_weights,
    weights_beside,
    weights_digest,
)

# What a config must say itself: transformers would fill in the sizes of some model of the family.
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


@dataclass(frozen=True)
class HuggingFace:
    """A model in a folder of Hugging Face's form: `config.json`, and safetensors, whole or in shards with an index.

    Args:
        folder: with `config.json` in it, or the path of that.
        random_weights: begin with random weights, whatever there is; else the folder must hold some.
    """

    folder: str
    random_weights: bool = False

    def load(
        self,
        microbatch_size: int | None = None,
        sequence_length: int | None = None,
        seed: int = 0,
        form: ModelForm = AS_USUAL,
    ) -> Model:
        """The model without its values, which `Model.fill` gives; arguments and errors as `load_model`."""
        weights = None if self.random_weights else self.folder
        return load_config(self.folder, microbatch_size, sequence_length, seed, form, weights, self.random_weights)

    def settings(self) -> dict[str, Any]:
        """What must be the same for all workers, by the names that a refusal tells."""
        told = {"model": self.folder, "random_weights": self.random_weights}
        if self.random_weights:
            return told
        return told | {"weights": weights_digest(require_weights(self.folder))}


def load_config(
    name: str,
    microbatch_size: int | None,
    sequence_length: int | None,
    seed: int,
    form: ModelForm,
    weights: str | None = None,
    random_weights: bool = False,
    filled: bool = False,
) -> Model:
    """Make the model of a `config.json`, or of the folder that it is in; arguments as `load_model`.

    Attention is torch's `scaled_dot_product_attention`, dropout is as the config says, and the layers are the decoder's
    unless `form.cut` names others. GPT-2's transposed linear layers become ordinary ones, which compute the same, so
    that their weight gradients can be put off.

    Raises:
        InvalidInputError: transformers is missing, the config is no causal language model's, its values do not fit, or
            the weights do not.
        InfeasibleError: the model does not fit into this machine's free memory; nothing has been allocated. Of one that
            is not filled its `fill` says so, of the layers that it is to fill.
    """
    told, file = read_config(name)
    if weights is not None and random_weights:
        raise InvalidInputError("weights are given, and random ones asked for", where=weights, fix="leave one away")
    path = None if random_weights else require_weights(weights) if weights else weights_beside(Path(name))
    if path is not None and "quantization_config" in told:
        raise InvalidInputError(
            "the weights are quantized: such a model is not trained",
            where=f"{file}, /quantization_config",
            fix="give weights in float32 or bfloat16, or ask for random ones",
        )
    with _offline():
        config = _config(told, file)
        width, vocabulary = config.hidden_size, config.vocab_size
        microbatch_size = microbatch_size or DEFAULT_MICROBATCH_SIZE
        sequence_length = _sequence_length(config, sequence_length, file)
        needs = _Needs(name, width, vocabulary, microbatch_size * sequence_length, form)
        parameters = _count(config, file)
        if filled:
            needs.require(parameters)
        with seeded(seed), _on_meta():
            root = _make(config, TORCH_TYPES[form.dtype])
        transposed = _conv1ds(root)
        from_files = None if path is None else FileWeights(path, root, file, transposed)
    example = token_example(microbatch_size, sequence_length, vocabulary)
    cut = form.cut or _decoder(root, config.num_hidden_layers, file)
    root = _with_linears(root)
    layers, names = _cut_on_few_words(root, config, form, cut, (microbatch_size, sequence_length), name)
    _give_back_memory()
    initialize: Any = root._init_weights
    fill = _Filling(from_files or RandomWeights(layers, names, initialize, seed), names, needs)
    if filled:
        fill(layers, (0, len(layers)))
    return Model(
        name=name,
        layers=layers,
        loss=LossInFloat32(language_model_loss),
        microbatch_size=microbatch_size,
        sequence_length=sequence_length,
        vocabulary=vocabulary,
        example=example,
        form=form,
        tensor_parallel=transformers_plan(config.model_type, config.base_model_tp_plan),
        fill=None if filled else fill,
        names=HuggingFaceNames(str(Path(file).parent), told, names, tuple(sorted(transposed))),
    )


@dataclass(frozen=True, slots=True)
class _Needs:
    """What decides how much memory the training of some layers takes."""

    name: str
    width: int
    vocabulary: int
    tokens: int
    form: ModelForm

    def require(self, parameters: int) -> None:
        """Raise InfeasibleError unless so many parameters can be trained on this machine."""
        size = ModelSize(parameters, self.width, self.vocabulary)
        require_memory(self.name, size, self.tokens, self.form.dtype)


class _Filling:
    """Gives layers their values, from wherever these come.

    Args:
        weights: the values.
        names: the model's names of the layers' tensors.
        needs: of memory.
    """

    def __init__(self, weights: ModelWeights, names: Mapping[str, str], needs: _Needs) -> None:
        self._weights, self._names, self._needs = weights, names, needs

    def __call__(self, layers: Sequence[nn.Module], held: Layers) -> None:
        """Fill the layers [first, stop) in place, of the model or of a copy of it; what has values keeps them.

        Raises:
            InfeasibleError: these layers do not fit into this machine's free memory; nothing has been allocated.
            InvalidInputError: a file has been changed since it was checked.
        """
        found = [(place, *one) for place in range(*held) for one in _tensors(layers[place]).items()]
        empty = {one: place for place, _, one in found if one.is_meta}
        self._needs.require(sum(one.numel() for one in empty))
        values: dict[nn.Parameter, torch.Tensor] = {}
        for place, local, one in found:
            name = self._names[f"{place}.{local}"]
            if isinstance(one, nn.Parameter):
                if one.is_meta and one not in values:
                    values[one] = self._weights.read(name)
            elif self._weights.has_buffers:
                one.copy_(self._weights.read(name))
        give_values(layers, values)


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """A module's parameters and persistent buffers by name, themselves; what has two names stands under both."""
    found: dict[str, torch.Tensor] = module.state_dict(keep_vars=True)
    return found


def _give_back_memory() -> None:
    """Let the system have what cutting a model has left free: the C library would keep it, and a stage comes on top."""
    gc.collect()
    if hasattr(library := ctypes.CDLL(None), "malloc_trim"):  # glibc
        library.malloc_trim(0)


# The model without its values.


def hollow_model(told: dict[str, Any], where: str) -> nn.Module:
    """A model of transformers' without any values.

    Args:
        told: its config.
        where: that comes from, for errors.

    Raises:
        InvalidInputError: transformers is missing, or cannot make it.
    """
    with _offline():
        config = _config(told, where)
        _count(config, where)
        with torch.device("meta"):
            return _make(config, torch.float32)


@contextmanager
def _on_meta() -> Iterator[None]:
    """Parameters that modules are made with have no values; buffers, which are computed, have theirs."""

    def without_value(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return None
        return nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)

    hook: Any = without_value  # torch's type says that it gives nothing
    handle = register_module_parameter_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


FEW_WORDS = 509  # a prime, which no other size of a model is


def _cut_on_few_words(
    root: nn.Module, config: Any, form: ModelForm, cut: str, tokens: tuple[int, int], name: str
) -> tuple[list[nn.Module], dict[str, str]]:
    """The layers of a model, and its own names of their tensors, found with as little memory and time as possible.

    Args:
        root: the model, without values.
        config: of it.
        form: in which it is.
        cut: which of its modules become layers.
        tokens: rows and columns of a micro-batch.
        name: of the model, for errors.

    Raises:
        InvalidInputError: as `_cut`.
    """
    rows, columns = tokens
    is_large = rows * columns > FEW_TOKENS
    with _offline():
        short = _with_few_words(config, root, form)
        words = short.config.vocab_size
        if is_large:  # computed in full on a few tokens, of which a model of its own is used up
            another = _with_few_words(config, None, form)
    if is_large:
        _cut(another, root, form, cut, _inputs_of(1, min(columns, TOKENS_TRIED), words), name)
    with _outlined(matching(short, cut, name).values()) if is_large else nullcontext():
        layers, names = _cut(short, root, form, cut, _inputs_of(rows, columns, words), name)
    if short is not root:
        _lengthen(layers, short, root)
    return layers, names


def _with_few_words(config: Any, root: nn.Module | None, form: ModelForm) -> Any:
    """A model to cut instead of another one, which has fewer words where that one has many; else that one.

    How a model is cut does not depend on its words, and embedding, head and logits are often larger than all else.

    Args:
        config: of the other model.
        root: the other model; None: one like it is wanted, where it has few words.
        form: in which it is.
    """
    few = copy.deepcopy(config)
    if config.vocab_size > FEW_WORDS and FEW_WORDS not in vars(config).values():
        few.vocab_size = FEW_WORDS
        if isinstance(few.pad_token_id, int) and few.pad_token_id >= FEW_WORDS:
            few.pad_token_id = None
    elif root is not None:
        return root
    with _on_meta():
        return _with_linears(_make(few, TORCH_TYPES[form.dtype]))


def _lengthen(layers: Sequence[nn.Module], short: Any, root: Any) -> None:
    """Let layers that were cut out of a model with few words know how many there are; parameters aside."""
    for name, module in short.named_modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = root.get_submodule(name).padding_idx
    short.config.pad_token_id = root.config.pad_token_id
    for known in (short.config, *(module for layer in layers for module in layer.modules())):
        for name, value in list(vars(known).items()):
            if isinstance(value, int) and value == FEW_WORDS:
                vars(known)[name] = root.config.vocab_size


FEW_TOKENS = 64  # of a micro-batch whose forward pass nobody waits for
TOKENS_TRIED = 8


def _inputs_of(size: int, length: int, words: int) -> Callable[[int], torch.Tensor]:
    example = token_example(size, length, words)
    return lambda seed: example(seed)[0]


@contextmanager
def _outlined(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Let layers give what has the shape of what they give, and depends on all that they take, without computing it.

    That is enough to find out what goes into them at a micro-batch's true size, where to compute a whole model takes
    minutes and the memory of all that flows between its layers. That they are a chain is found out on few tokens.
    """
    outlined = list(layers)
    for layer in outlined:
        layer.forward = _outline(layer)
    try:
        yield
    finally:
        for layer in outlined:
            del layer.forward  # the class has it


def _outline(layer: nn.Module) -> Callable[..., Any]:
    forward = layer.forward
    hollow: dict[int, Any] = {id(one): nn.Parameter(torch.empty_like(one, device="meta")) for one in layer.parameters()}
    twin = copy.deepcopy(layer, hollow).to("meta")

    @wraps(forward)
    def outline(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        shapes = [one.to("meta") if isinstance(one, torch.Tensor) else one for one in leaves]
        taken, named = tree_unflatten(shapes, spec)
        try:
            given, given_spec = tree_flatten(twin(*taken, **named))
        except Exception:  # of what needs values; a layer that is broken raises again
            return forward(*args, **kwargs)
        tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
        means = [float(_some_of(one).double().clamp(-1e3, 1e3).mean()) for one in tensors]
        number = int.from_bytes(hashlib.sha256(str(means).encode()).digest()[:4]) / 2**32
        found = [_filled_like(one, number) if isinstance(one, torch.Tensor) else one for one in given]
        return tree_unflatten(found, given_spec)

    return outline


def _some_of(tensor: torch.Tensor) -> torch.Tensor:
    """Some numbers of a tensor, from everywhere in it."""
    return tensor.detach()[tuple(slice(None, None, max(1, size // 16)) for size in tensor.shape)]


def _filled_like(shape: torch.Tensor, number: float) -> torch.Tensor:
    """A tensor of a shape that repeats one row, which depends on a number from 0 to 1, and takes no more memory."""
    width = shape.shape[-1] if shape.dim() else 1
    row = torch.sin(torch.arange(width, dtype=torch.float64) + 6 * number).to(shape.dtype)
    return (row if shape.dim() else row[0]).expand(shape.shape)


def _cut(
    short: nn.Module,
    root: nn.Module,
    form: ModelForm,
    pattern: str,
    inputs_of: Callable[[int], torch.Tensor],
    name: str,
) -> tuple[list[nn.Module], dict[str, str]]:
    """The layers, on the meta device and of the whole model's shapes, and what that calls all that they hold.

    Args:
        short: the model to cut.
        root: the whole model.
        form: which layers keep their inputs only.
        pattern: of the layers' names.
        inputs_of: what the model to cut takes, by a seed.
        name: of the model, for errors.
    """
    whole, owners = _tensors(root), dict[torch.Tensor, str]()
    for owner, one in _tensors(short).items():
        owners.setdefault(one, owner)
    stand_ins = give_values([short], _stand_ins(short.parameters()))
    owner_of = {stand_ins.get(one, one): owner for one, owner in owners.items()}  # type: ignore[call-overload]
    layers, blocks = cut_module(short, pattern, inputs_of, name)
    if form.checkpointing:
        layers = with_checkpoints(layers, blocks)
    names = {
        f"{place}.{local}": owner_of[one]
        for place, layer in enumerate(layers)
        for local, one in _tensors(layer).items()
    }
    give_values([*layers, short], {one: whole[owner_of[one]].detach() for one in stand_ins.values()})
    return layers, names


RANDOM = 1_000_003  # so many numbers, over and over: a prime, so that no two rows of a matrix are alike
DEVIATION = 0.02
APART, ALIGNED = 8345, 16  # where parameters begin in them


def _stand_ins(parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, torch.Tensor]:
    """Values by which a model shows how it computes: parts of one memory, as large as the largest parameter.

    Whether a model can be cut does not depend on its values, as long as they are not alike: they need not be its own.
    Vectors are about 1, as the scales of norms are, matrices about 0.
    """
    some = torch.randn(RANDOM, generator=torch.Generator().manual_seed(0)) * DEVIATION
    by_type: dict[torch.dtype, list[nn.Parameter]] = {}
    for one in parameters:
        by_type.setdefault(one.dtype, []).append(one)
    found: dict[nn.Parameter, torch.Tensor] = {}
    for dtype, alike in by_type.items():
        memory = some.to(dtype).repeat(2 + max(one.numel() for one in alike) // RANDOM)
        for number, one in enumerate(alike):
            start = number * APART % (RANDOM - APART)
            start -= start % ALIGNED
            value = memory[start : start + one.numel()].view(one.shape)
            found[one] = 1 + value if one.dim() < 2 else value
    return found


@contextmanager
def _offline() -> Iterator[None]:
    """Import transformers so that it asks nobody for anything, and make it say errors only."""
    require_package("transformers", "a Hugging Face config.json")
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when it is imported first
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _config(told: dict[str, Any], file: str) -> Any:
    """The config as transformers understands it, checked for what makes a decoder."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    kind = told["model_type"]
    if kind not in CAUSAL or kind not in CONFIG_MAPPING:
        what = f"{kind} is no causal language model that transformers knows"
        raise unsupported(what, file, "/model_type", kind)
    # How a checkpoint's numbers are packed does not matter to random ones.
    plain = {name: value for name, value in told.items() if name not in ("quantization_config", "torch_dtype", "dtype")}
    try:
        config = CONFIG_MAPPING[kind].from_dict(plain)
    except Exception as error:
        # The key that the message names first, if it names one.
        key = next((word for word in str(error).split("'")[1::2] if word in told), None)
        where = f"{file}, /{key}" if key else file
        raise InvalidInputError(f"the config is not valid: {_reason(error)}", where=where) from error
    if config.is_encoder_decoder or config.get_text_config() is not config:
        raise unsupported(f"{kind} is no plain decoder", file, "/model_type")
    lacking = [size for size in SIZES if not hasattr(config, size)]
    if lacking:
        raise unsupported(f"a config of {kind} has no {joined(lacking)}", file, "/model_type")
    for size in SIZES:
        key = config.attribute_map.get(size, size)
        if not {key, size} & told.keys():
            raise InvalidInputError(f"the config does not say {key}", where=f"{file}, /{key}", fix=f"add {key}")
        value = getattr(config, size)
        if not isinstance(value, int) or value < 1:
            raise InvalidInputError(f"{key} is {value}", where=f"{file}, /{key}", fix="give a whole number from 1 on")
    config.use_cache = False
    return config


def _sequence_length(config: Any, asked: int | None, file: str) -> int:
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int):
        return asked or DEFAULT_SEQUENCE_LENGTH
    if asked is not None and asked > positions:
        raise InvalidInputError(
            f"{file} has {positions} positions, fewer than a sequence of {asked}",
            where="--sequence-length",
            fix=f"give at most {positions}",
        )
    return asked or min(DEFAULT_SEQUENCE_LENGTH, positions)


def _count(config: Any, file: str) -> int:
    """The parameters, tied ones once, of a model that takes no memory; finds out whether transformers can make it."""
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in _make(config, torch.float32).parameters())
    except Exception as error:
        raise InvalidInputError(
            f"transformers cannot make this model: {_reason(error)}", where=file, fix="correct the config"
        ) from error


def _make(config: Any, dtype: torch.dtype) -> nn.Module:
    from transformers import AutoModelForCausalLM

    make: Any = AutoModelForCausalLM
    try:
        model: nn.Module = make.from_config(config, dtype=dtype, attn_implementation="sdpa")
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error):
            raise
        model = make.from_config(config, dtype=dtype, attn_implementation="eager")
    return model.train()


def _conv1ds(root: nn.Module) -> dict[str, nn.Module]:
    """Each of transformers' Conv1D, a linear layer whose matrix is transposed, by the name of that matrix."""
    from transformers.pytorch_utils import Conv1D

    return {f"{name}.weight": module for name, module in root.named_modules() if type(module) is Conv1D}


def _with_linears(root: nn.Module) -> nn.Module:
    """The model with each of transformers' Conv1D as an nn.Linear."""
    from transformers.pytorch_utils import Conv1D

    for name, module in list(root.named_modules()):
        if type(module) is Conv1D:
            linear = nn.Linear(module.nx, module.nf, device="meta")
            linear.weight = nn.Parameter(module.weight.detach().t().contiguous())
            linear.bias = module.bias
            root.set_submodule(name, linear)
    return root


def _decoder(root: nn.Module, count: int, file: str) -> str:
    """The pattern of the decoder's layers: the outermost list of as many modules as the config says."""
    for name, module in sorted(root.named_modules(), key=lambda one: one[0].count(".")):
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return f"{name}.*"
    raise unsupported(f"{type(root).__name__} has no list of {count} layers", file, "/model_type")


def _reason(error: Exception) -> str:
    """What transformers' validation says, which stands in the last of several lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) < 2:
        return describe(error)
    return lines[-1].partition(": ")[2] or lines[-1]
