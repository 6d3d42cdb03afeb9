"""Reading files that settings of a job stand in: what each is, and who reads it."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ....schemas.diagnosis import SettingsFile, ToldSetting
from ....schemas.errors import InvalidInputError
from ....schemas.files import opened, source_of
from ...failslow.readers.printed_arguments import BEGIN
from ..collected import VARIABLE, Collected
from .megatron_arguments import read_megatron_arguments
from .python import read_python
from .shell import ShellReader
from .torchtitan import read_torchtitan
from .yaml_files import read_yaml

MOST_BYTES = 16 << 20  # a log's arguments stand at its beginning
_VARIABLE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)")
_PROGRAMS = r"srun|torchrun|ft_launcher|export|sbatch|exec|python3?"
_SCRIPT = re.compile(rf"^#!|^#SBATCH|^\s*(?:\w+=\S*\s+)*(?:{_PROGRAMS})\b", re.MULTILINE)
_LAUNCHES = re.compile(r"\b(?:torchrun|ft_launcher|srun|torch\.distributed\.(?:run|launch)|rtk run)\b")


def read_settings(path: str, collected: Collected, kind: str | None = None) -> SettingsFile:
    """Note all settings of one file.

    Args:
        path: as of `opened`; `-` is standard input.
        collected: where what is found goes.
        kind: what to read it as, a key of `KINDS`; None: it is recognised.

    Returns:
        What the file was read as, and how many of its settings are known.

    Raises:
        InvalidInputError: it cannot be read, is no text, or is nothing that settings are known of.
    """
    source = source_of(path)
    text = _text_of(path)
    found = kind or recognised(path, text)
    if found is None:
        raise InvalidInputError(
            "nothing of it is recognised as settings of a job",
            where=source,
            fix="give the output of env, a .env file, a batch or launch script, TOML of torchtitan, YAML, a log of "
            "Megatron with its arguments, or a Python script that calls init_process_group",
        )
    before = collected.count
    KINDS[found](text, collected, source)
    return SettingsFile(source, found, collected.count - before)


def _text_of(path: str) -> str:
    with opened(path) as stream:
        data = stream.read(MOST_BYTES)
    try:
        return data.decode("utf-8", errors="strict" if len(data) < MOST_BYTES else "ignore")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"the file is not UTF-8 text (byte {error.start})", where=source_of(path)) from error


def recognised(path: str, text: str) -> str | None:
    """What a file is, a key of `KINDS`; None: nothing that is known."""
    if path.endswith(".toml"):
        return "torchtitan"
    if path.endswith(".py"):
        return "python"
    if path.endswith((".yaml", ".yml")):
        return "YAML"
    if BEGIN.search(text):
        return "megatron arguments"
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assigned = sum(bool(_VARIABLE.match(line)) for line in lines)
    if lines and 2 * assigned > len(lines) and not _LAUNCHES.search(text) and "#SBATCH" not in text:
        return "environment"
    return "script" if _SCRIPT.search(text) or _LAUNCHES.search(text) else None


def read_environment(text: str, collected: Collected, file: str) -> None:
    """Note the variables of the output of `env`, or of a `.env` file; lines of neither form continue a value."""
    for number, line in enumerate(text.splitlines(), start=1):
        if found := _VARIABLE.match(line):
            collected.variable(ToldSetting(found[1], found[2].strip().strip("'\""), file, number), VARIABLE)


def read_variables(variables: Mapping[str, str], collected: Collected, file: str) -> None:
    """Note variables that are at hand, such as those of this process; `file` says whose they are."""
    for name, value in sorted(variables.items()):
        collected.variable(ToldSetting(name, value, file), VARIABLE)


def _script(text: str, collected: Collected, file: str, line: int = 1) -> None:
    """Note what a script says, and what it sources: a name is looked for from its folder, then from this one."""
    done = {Path(file).resolve()}  # what sources itself, or what has sourced it, is read once

    def sourced(name: str) -> tuple[str, str] | None:
        """Where a sourced script lies, and its text, empty where it was read already; None: it is not here."""
        for path in (Path(file).parent / name, Path(name)):
            try:
                place = path.resolve()
                text = "" if place in done else _text_of(str(path)) if path.is_file() else None  # a pipe would wait
            except (OSError, ValueError, RuntimeError, InvalidInputError):
                continue  # a loop of links, a name that is none, no text
            if text is not None:
                done.add(place)
                return str(path), text
        return None

    ShellReader(collected, file, sourced).read(text, line)


def _yaml(text: str, collected: Collected, file: str) -> None:
    read_yaml(text, collected, file, _script)


def read_lines(lines: Iterable[str], collected: Collected, file: str) -> None:
    """Note the settings of command lines that were typed, `file` is the option they were given with."""
    for line in lines:
        _script(line, collected, file)


KINDS: Mapping[str, Callable[[str, Collected, str], None]] = {
    "environment": read_environment,
    "script": _script,
    "torchtitan": read_torchtitan,
    "megatron arguments": read_megatron_arguments,
    "python": read_python,
    "YAML": _yaml,
}
