"""`rtk config show`: what the job's file says, and what its keys stand for."""

from collections.abc import Iterator
from typing import Any

import typer

from ..schemas.errors import remark
from ..schemas.job_file import FILE_NAME, KEYS, JobFile, JobKey, ValueKind
from ..schemas.text import joined, listed
from .console import Common, grouped, print_json, print_table
from .job import command_of, names_of, shown, source_of

MOST_COMMANDS = 3  # of a row

app = typer.Typer(no_args_is_help=True, help="What a job's file says.")


@app.callback()
def config() -> None:
    """What a job's file says."""


@app.command("show")
@grouped
def show(context: typer.Context, *, common: Common) -> None:
    """Show all keys of a job's file: value, where it comes from, and the commands that use it.

    An option on a command line goes before the file, and the file before a default. The file is the rtk.toml of the
    working directory; in a git repository also the nearest one above it. `rtk --config FILE config show` shows another.
    """
    source = source_of(context)
    file = source.file
    if common.as_json:
        print_json({"file": source.path, "keys": [_tree(key, file) for key in KEYS]})
        return
    if file is None:
        remark(f"there is no {FILE_NAME} here; rtk init writes one")
    rows = [(key.place, _value(key, file), _origin(key, file), listed(key.options, MOST_COMMANDS)) for key in KEYS]
    print_table(("key", "value", "from", "used by"), rows, left=4)


def _value(key: JobKey, file: JobFile | None) -> str:
    if file is not None and key in file.values:
        return shown(file.values[key])
    return joined(dict.fromkeys(str(one) for one in _defaults(key)), "or")


def _origin(key: JobKey, file: JobFile | None) -> str:
    if file is None or key not in file.values:
        return "default"
    line = file.lines.get(key)
    return file.path if line is None else f"{file.path}:{line}"


def _tree(key: JobKey, file: JobFile | None) -> dict[str, Any]:
    """A row as JSON: of the file its value as it counts, else the defaults of the commands."""
    told = {"key": key.place, "options": dict(key.options)}
    if file is None or key not in file.values:
        return {**told, "from": "default", "value": None, "defaults": list(dict.fromkeys(_defaults(key)))}
    value = file.values[key]
    exact = int(value) if key.kind is ValueKind.COUNT and isinstance(value, str) else value
    return {**told, "from": "file", "line": file.lines.get(key), "value": exact}


def _defaults(key: JobKey) -> Iterator[Any]:
    """What the key's options hold where nothing is given; nothing of those that have no default."""
    for name, option in key.options.items():
        parameter = next(one for one in command_of(name).params if option in names_of(one))
        if parameter.default is not None and parameter.default is not False:
            yield parameter.default
