"""What a model's name means, told before torch is imported: a mistyped name is answered at once."""

from pathlib import Path

from ...schemas.errors import InvalidInputError
from ..analytic.configuration import MODEL_FAMILIES, MODELS, is_config, no_such_model, read_config, unsupported
from .presets import PRESETS

# Under these keys the configs of transformers' decoders say how many attention heads a block has; a model without any,
# such as Mamba, is built otherwise.
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "decoder_attention_heads")


def require_model(name: str) -> None:
    """Raise InvalidInputError unless a name can mean a model that is measured or run; looks at files, imports nothing.

    Args:
        name: a preset, `file.py:factory`, or a Hugging Face config.json or its folder.
    """
    if name in PRESETS:
        return
    if is_config(name):
        require_decoder(name)
    elif ":" in name or name.endswith(".py"):
        require_file(name)
    elif name in MODELS:
        raise InvalidInputError(
            f"{name} is known by its shape only",
            fix="compute its profile: --analytic --gpu NAME; or give a config.json",
        )
    else:
        raise no_such_model(name, PRESETS, "file.py:factory")


def require_decoder(name: str) -> None:
    """Raise InvalidInputError if a config can be told at once to be of no decoder that rtk can make."""
    told, file = read_config(name)
    kind = told["model_type"]
    if "auto_map" in told:
        raise unsupported(f"{kind} brings code of its own, which rtk does not execute", file, "/auto_map")
    if kind not in MODEL_FAMILIES and not told.keys() & HEADS:
        raise unsupported(f"{kind}: its config names no attention heads", file, "/model_type", kind)


def require_file(name: str) -> tuple[Path, str]:
    """The file and the function of `file.py:factory`.

    Raises:
        InvalidInputError: the name says no function, or there is no such file.
    """
    path, _, factory = name.rpartition(":")
    if not path or not factory:
        raise InvalidInputError(f"{name} names no factory", fix="write file.py:factory, with the function's name")
    if not Path(path).is_file():
        raise InvalidInputError("there is no such file", where=path, fix="check the path; write file.py:factory")
    return Path(path), factory
