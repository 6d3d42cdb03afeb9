"""Settings in torchtitan's TOML files (torchtitan/config/job_config.py)."""

import re
import tomllib
from typing import Any

from ....schemas.diagnosis import ToldSetting
from ....schemas.errors import InvalidInputError
from ..collected import Collected

_SECTION, _KEY = re.compile(r"\s*\[\s*([\w.]+)\s*\]"), re.compile(r"\s*([\w.-]+)\s*=")


def read_torchtitan(text: str, collected: Collected, file: str) -> None:
    """Note a file's settings, and torchtitan's own defaults of the time-outs that it does not set.

    Args:
        text: of the file.
        collected: where what is found goes.
        file: its name.

    Raises:
        InvalidInputError: it is no TOML.
    """
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the file is not valid TOML: {error}", where=file, fix="correct the place") from error
    lines = _lines(text)
    collected.uses_torchtitan(ToldSetting("torchtitan", "", file))
    for section, keys in tree.items():
        for key, value in keys.items() if isinstance(keys, dict) else ():
            name = f"{section}.{key}"
            collected.torchtitan(name, ToldSetting(name, _text(value), file, lines.get(name)))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _lines(text: str) -> dict[str, int]:
    """The line of each key, `section.key`: tomllib does not say it."""
    section = ""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _SECTION.match(line):
            section = header[1]
        elif key := _KEY.match(line):
            found.setdefault(f"{section}.{key[1]}" if section else key[1], number)
    return found
