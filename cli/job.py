"""How commands take from a job's file what their command lines leave open.

click asks a context's `default_map` for what neither the command line nor the environment gives. Ours reads the file
only when a command that has keys is run: others do not look for it.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from ..runners.processes import LAUNCHED
from ..schemas.errors import InvalidInputError, RtkError, remark
from ..schemas.text import joined

if TYPE_CHECKING:
    from ..schemas.job_file import JobFile, JobKey, JobValue


class JobSource:
    """The job's file that this command is run beside, looked for when it is first needed.

    Args:
        named: the file that is to be read; None: look for one.
        is_off: there is none.
    """

    def __init__(self, named: str | None, is_off: bool) -> None:
        self._named, self._is_off = named, is_off

    @cached_property
    def path(self) -> str | None:
        """As messages name it. A worker has none: whoever started it has given it all values."""
        if self._is_off or LAUNCHED in os.environ:
            return None
        if self._named is not None:
            return self._named
        from ..schemas.job_file import find_job_file

        found = find_job_file(Path.cwd())
        return None if found is None else os.path.relpath(found)

    @cached_property
    def file(self) -> "JobFile | None":
        """What it says; None where there is none.

        Raises:
            InvalidInputError: it is wrong.
        """
        from ..schemas.job_file import read_job_file

        return None if self.path is None else read_job_file(self.path)


@dataclass(frozen=True)
class FromJob:
    """A value for one parameter of a command; called when click takes it."""

    command: str
    parameter: Any
    key: "JobKey"
    source: JobSource

    def value(self) -> "JobValue | None":
        """The value, None where the file does not say it; raises as `JobSource.file`."""
        file = self.source.file
        return None if file is None else file.values.get(self.key)

    def __call__(self) -> "JobValue | None":
        """Note that the value is taken.

        Raises:
            InvalidInputError: as `value`, or it is none for the parameter.
        """
        value = self.value()
        if value is not None:
            TAKEN[self.parameter.name] = self
            try:
                self.parameter.get_runtime_param().coerce(value, param=self.parameter, ctx=None)
            except typer.BadParameter as error:
                words = f"{error.message[:1].lower()}{error.message[1:]}".removeprefix("value error, ")
                raise InvalidInputError(
                    f"{self.key.name}: {words}",
                    where=self.where(),
                    fix=f"correct it there, or give rtk {self.command} {names_of(self.parameter)[0]}",
                ) from None
        return value

    def where(self) -> str:
        """The place in the file, for errors."""
        assert self.source.file is not None
        return self.source.file.where(self.key)


TAKEN: dict[str, FromJob] = {}  # what the running command takes from the file, by its parameters' names


class JobDefaults:
    """What click asks for defaults: first for a command's own, by its name, then for its parameters'.

    Args:
        command: such as `plan pipeline`; empty for `rtk` itself.
        source: where the values are.
    """

    def __init__(self, command: str, source: JobSource) -> None:
        self._command, self.source = command, source

    def get(self, name: str) -> "JobDefaults | FromJob | None":
        """The defaults of a command in this group, or one of a parameter; None where there is none.

        Raises:
            InvalidInputError: the file is wrong.
        """
        from ..schemas.job_file import COMMANDS

        inner = f"{self._command} {name}".strip()
        if any(f"{command} ".startswith(f"{inner} ") for command in COMMANDS):
            return JobDefaults(inner, self.source)
        if self._command not in COMMANDS or self.source.path is None:
            return None
        found = self._own.get(name)
        return None if found is None or found.value() is None else found

    @cached_property
    def _own(self) -> dict[str, FromJob]:
        """What a job's file can say of this command, by its parameters' names."""
        from ..schemas.job_file import key_of

        return {
            parameter.name: FromJob(self._command, parameter, key, self.source)
            for parameter in command_of(self._command).params
            for option in names_of(parameter)
            if (key := key_of(self._command, option))
        }


def command_of(name: str) -> Any:
    """The command of a name such as `plan pipeline`."""
    from .commands import load  # which needs this module

    first, *inner = name.split()
    command = load(first)
    for word in inner:
        command = command.commands[word]
    return command


def names_of(parameter: Any) -> list[str]:
    """`--output` and `-o`, or `PROFILE` for an argument."""
    is_option = parameter.param_type_name == "option"
    return list(parameter.opts) if is_option else [(parameter.metavar or parameter.name).upper()]


def take_defaults(context: typer.Context, named: str | None, is_off: bool) -> None:
    """Have all commands below this context take from the job's file what their command lines leave open."""
    context.default_map = cast(Any, JobDefaults("", JobSource(named, is_off)))
    TAKEN.clear()


def gives(defaults: Any, command: str, parameter: str) -> bool:
    """Whether a job's file gives a parameter of a command in a group, whose `default_map` this is."""
    inner = defaults.get(command) if isinstance(defaults, JobDefaults) else None
    return isinstance(inner, JobDefaults) and inner.get(parameter) is not None


def source_of(context: typer.Context) -> JobSource:
    """Where the running command's values come from."""
    return cast(JobDefaults, context.find_root().default_map).source


def settle(given: dict[str, Any]) -> dict[str, Any]:
    """A command's parameters without those of the file that do not count beside the others; says which do.

    Args:
        given: all parameters by name.
    """
    settled = dict(given)
    for name, one in list(TAKEN.items()):
        other, is_set = one.key.only.get(one.command, (name, True))
        if bool(given.get(other)) != is_set:
            settled[name] = one.parameter.default
            del TAKEN[name]
    if TAKEN:
        path = next(iter(TAKEN.values())).source.path
        told = ", ".join(f"{one.key.name} {shown(one.value())}" for one in TAKEN.values())
        remark(f"from {path}: {told}")
    return settled


def shown(value: "JobValue | None") -> str:
    """A value for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else " ".join(value or ())


@contextmanager
def blaming_the_file() -> Iterator[None]:
    """Errors about an option that the file has given say where that is in the file."""
    try:
        yield
    except RtkError as error:
        option = (error.where or "").split(" ")[0]
        one = next((one for one in TAKEN.values() if option in names_of(one.parameter)), None)
        if one is not None:
            error.where = one.where()
        raise


def homes_of(command: str, parameters: Iterable[Any]) -> str:
    """`pp and dp in [shape] of rtk.toml`: where parameters of a command may stand that are missing; else empty.

    Args:
        command: such as `plan pipeline`.
        parameters: of click's.
    """
    from ..schemas.job_file import FILE_NAME, key_of

    found = [key_of(command, option) for one in parameters for option in names_of(one)]
    tables: dict[str, list[str]] = {}
    for key in filter(None, found):
        tables.setdefault(key.table, []).append(key.name)
    told = [f"{joined(names)} in [{table}]" for table, names in tables.items()]
    return f"{joined(told)} of {FILE_NAME}" if told else ""
