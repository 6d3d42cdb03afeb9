"""From a model's name to its layers, its loss, and examples to feed it with."""

from ...schemas.errors import InvalidInputError
from ...schemas.form import AS_USUAL, ModelForm
from ...schemas.text import did_you_mean
from ..analytic.catalogue import MODELS as COMPUTED
from .checkpointed import with_checkpoints
from .config_file import is_config
from .gpt import TENSOR_PARALLEL, gpt_layers, gpt_parameters, language_model_loss
from .huggingface import load_config
from .memory import Size, free_bytes, require_memory
from .model import Model as Model
from .model import in_type, loss_in_float32, seeded, token_example
from .presets import PRESETS, Preset
from .user_file import load_file


def load_model(
    name: str,
    microbatch_size: int | None = None,
    sequence_length: int | None = None,
    seed: int = 0,
    form: ModelForm = AS_USUAL,
) -> Model:
    """Make a model with parameters that follow from the seed; torch's global generator stays as it was.

    Args:
        name: a preset; `file.py:factory`, whose `factory()` returns the layers, or a module that `form.cut` cuts (the
            file may also define `example(microbatch_size, sequence_length)`, `loss(output, target)` and
            `tensor_parallel`); or a Hugging Face `config.json`, or the folder it is in.
        microbatch_size: samples in a micro-batch; None for the model's default.
        sequence_length: tokens in a sample; None for the model's default.
        seed: of the initial parameters.
        form: which of its modules are layers, in which numbers, and whether they keep their inputs only.

    Returns:
        The model, on the CPU.

    Raises:
        InvalidInputError: the name or a size means nothing, the model cannot be cut, or the user's file does not work.
        InfeasibleError: the model does not fit into this machine's free memory; nothing has been allocated.
    """
    for value, option in ((microbatch_size, "--microbatch-size"), (sequence_length, "--sequence-length")):
        if value is not None and value < 1:
            raise InvalidInputError(f"{value} is no size", where=option, fix="give a whole number of at least 1")
    if name in PRESETS:
        return _load_preset(name, PRESETS[name], microbatch_size, sequence_length, seed, form)
    if is_config(name):
        return load_config(name, microbatch_size, sequence_length, seed, form)
    if ":" in name or name.endswith(".py"):
        return load_file(name, microbatch_size, sequence_length, seed, form)
    raise _unknown(name)


def _unknown(name: str) -> InvalidInputError:
    if name in COMPUTED:
        return InvalidInputError(
            f"{name} is known by its shape only",
            fix="compute its profile: --analytic --gpu NAME; or give a config.json",
        )
    known = f"{', '.join(PRESETS)}, file.py:factory, or a Hugging Face config.json"
    return InvalidInputError(f"there is no model {name!r}", fix=did_you_mean(name, PRESETS, f"the models are {known}"))


def _load_preset(
    name: str, preset: Preset, microbatch_size: int | None, sequence_length: int | None, seed: int, form: ModelForm
) -> Model:
    microbatch_size = microbatch_size or preset.microbatch_size
    sequence_length = sequence_length or preset.sequence_length
    if sequence_length > preset.config.positions:
        raise InvalidInputError(
            f"{name} has {preset.config.positions} positions, fewer than a sequence of {sequence_length}",
            where="--sequence-length",
            fix=f"give at most {preset.config.positions}",
        )
    if form.cut is not None:
        raise InvalidInputError(f"{name} is a list of layers already", where="--cut", fix="leave --cut away")
    _require_memory(name, preset, microbatch_size * sequence_length, form)
    with seeded(seed):
        layers = gpt_layers(preset.config)
    in_type(layers, form.dtype)
    return Model(
        name=name,
        layers=with_checkpoints(layers, range(1, len(layers) - 1)) if form.checkpointing else layers,
        loss=loss_in_float32(language_model_loss),
        microbatch_size=microbatch_size,
        sequence_length=sequence_length,
        vocabulary=preset.config.vocabulary,
        example=token_example(microbatch_size, sequence_length, preset.config.vocabulary),
        form=form,
        tensor_parallel=TENSOR_PARALLEL,
    )


def _require_memory(name: str, preset: Preset, tokens: int, form: ModelForm) -> None:
    def needed_bytes(preset: Preset) -> int:
        return _size(preset).needed_bytes(tokens, form.dtype)

    free = free_bytes()
    fitting = [other for other, preset in PRESETS.items() if needed_bytes(preset) <= free]
    require_memory(name, _size(preset), tokens, form.dtype, fitting)


def _size(preset: Preset) -> Size:
    return Size(gpt_parameters(preset.config), preset.config.width, preset.config.vocabulary)
