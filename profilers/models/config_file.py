"""Reading a Hugging Face `config.json`: what it says, before anybody makes or computes anything of it.

Imports no torch: `rtk profile --analytic` reads by it, too.
"""

import json
from pathlib import Path
from typing import Any

from ...schemas.documents import unique_keys
from ...schemas.errors import InvalidInputError
from ...schemas.files import read_bytes

FAMILIES = ("gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "olmo2", "mixtral")


def is_config(name: str) -> bool:
    """Whether a model's name means a config, or a folder that should have one."""
    return name.endswith(".json") or Path(name).is_dir()


def read_config(name: str) -> tuple[dict[str, Any], str]:
    """What a config says, and its file.

    Args:
        name: the file, or the folder that its `config.json` is in.

    Raises:
        InvalidInputError: there is none, it is no JSON object, a key stands twice, or it says no model_type.
    """
    file = _file(name)
    told = _parse(read_bytes(file), file)
    if not isinstance(told, dict):
        raise InvalidInputError("the config is no JSON object", where=f"{file}, /", fix="give a Hugging Face config")
    if str(told.get("format")).startswith("rtk."):
        raise InvalidInputError(f"this is an {told['format']}, no model's config", where=file, fix="give a config.json")
    if not isinstance(told.get("model_type"), str):
        raise InvalidInputError(
            "the config does not say its model_type", where=f"{file}, /model_type", fix="give a Hugging Face config"
        )
    return told, file


def unsupported(what: str, file: str, place: str, near: str | None = None) -> InvalidInputError:
    """The error for a config that says something sensible which rtk cannot make."""
    return InvalidInputError(
        f"unsupported architecture: {what}",
        where=f"{file}, {place}",
        fix=f"did you mean {near}?" if near else f"families that are known to work: {', '.join(FAMILIES)}",
    )


def _file(name: str) -> str:
    if not Path(name).is_dir():
        return name
    file = Path(name) / "config.json"
    if not file.is_file():
        raise InvalidInputError("the folder has no config.json", where=name, fix="give a Hugging Face model's folder")
    return str(file)


def _parse(data: bytes, file: str) -> Any:
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        where = f"{file}, line {error.lineno} column {error.colno}"
        raise InvalidInputError(f"the config is not valid JSON: {error.msg}", where=where) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the config is not valid JSON: {error}", where=file) from error
