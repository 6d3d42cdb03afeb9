"""What all commands share: their common options, what they print where, and how errors end them."""

import atexit
import json
import logging
import os
import select
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, get_annotations, signature
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from ..runners.processes import arguments_of
from ..schemas.documents import Document, canonical, canonical_json, write_document
from ..schemas.errors import REMARKS, InvalidInputError, RtkError, remark
from ..schemas.files import STANDARD_STREAM
from ..schemas.overwriting import guarded, refused, require_kind
from ..schemas.quantities import Quantity
from .completion import completed
from .job import settle

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


@dataclass
class Settings:
    """What the common options of the running command say, and what it has become.

    Attributes:
        trains: a worker of a job: threads of it may be inside torch, whatever ends it (`ends_itself`).
        as_json: standard output is for JSON; known before the line is read, for errors in it.
        has_answered: the one JSON document is printed, or the last event.
        command: `plan pipeline`.
        arguments: the command line behind `rtk`.
    """

    quiet: bool = False
    debug: bool = False
    force: bool = False
    trains: bool = False
    as_json: bool = False
    has_answered: bool = False
    command: str = ""
    arguments: tuple[str, ...] = ()


SETTINGS = Settings()
SPINNER_AFTER_S = 1.0
WIDE = 1000  # columns of what is no terminal: there a table's lines are not broken


def _setting(name: str) -> Callable[[bool], bool]:
    """What typer calls with a flag's value: it is kept among the settings."""

    def put(value: bool) -> bool:
        setattr(SETTINGS, name, value)
        return value

    return put


Quiet = Annotated[bool, typer.Option("--quiet", "-q", callback=_setting("quiet"), help="No progress and no remarks.")]
Debug = Annotated[
    bool, typer.Option("--debug", callback=_setting("debug"), help="Show a traceback when something fails.")
]
Force = Annotated[
    bool,
    typer.Option("--force", callback=_setting("force"), help="Overwrite also what is read, and files of another kind."),
]


@dataclass(frozen=True)
class Common:
    """The options that all commands have, `force` those that write; `SETTINGS` holds the last three for all others."""

    as_json: Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on standard output.")] = False
    quiet: Quiet = False
    debug: Debug = False
    force: Force = False

    def arguments(self) -> list[str]:
        """The same on the command line of another process."""
        given = {"--json": self.as_json, "--quiet": self.quiet, "--debug": self.debug, "--force": self.force}
        return arguments_of(given)


@dataclass(frozen=True)
class Writes:
    """Marks an option that names a file which the command writes.

    Attributes:
        kind: of file, as `kind_of` says it, where it is known before; else it is compared when it is written.
        files: the files that its value names, where that is not one file's name.
    """

    kind: str | None = None
    files: Callable[[Any], Iterable[str]] | None = None


def quantity(kind: Quantity, option: str, words: str, least: float = 0.0) -> Any:
    """An option that is a quantity, with a unit or in its base unit: one name in all help pages, one way to read it.

    Args:
        kind: of quantity.
        option: its name.
        words: the help.
        least: what it may be at the least.
    """

    def parse(value: str | float) -> float:
        return kind.parse(value, option, least=least) if isinstance(value, str) else value  # else it is the default

    return typer.Option(option, parser=parse, metavar=kind.name, help=words)


@dataclass(frozen=True)
class CommonOfEvents(Common):
    """The same of commands that tell event after event."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines on standard output, one an event.")] = False


TELL_EVENTS = frozenset({"run", "coordinate"})  # they print JSON lines

Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all randomness.")]
Output = Annotated[
    str, typer.Option("--output", "-o", help="Where to write; `-` is standard output, .gz compresses."), Writes()
]


class _Printing(logging.Handler):
    """Prints remarks on standard error, unless --quiet."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line."""
        if not SETTINGS.quiet:
            print(record.getMessage(), file=sys.stderr)


REMARKS.addHandler(_Printing())
REMARKS.setLevel(logging.INFO)
REMARKS.propagate = False  # what others, such as a model's file, set up for logging would print them once more


Result = TypeVar("Result")


def grouped(command: Callable[..., Result]) -> Callable[..., Result]:
    """A command to which typer gives options one by one, and which receives groups of them as dataclasses.

    A parameter whose type is a dataclass stands for those fields of it that are annotated with an option: they take its
    place, in their order. A command that writes files has --force; without it files are refused that it must not
    overwrite, or cannot write, before it begins.
    """
    shown: list[Parameter] = []
    groups: dict[str, tuple[type, list[str]]] = {}
    hints = get_type_hints(command, include_extras=True)
    for parameter in signature(command).parameters.values():
        kind = hints[parameter.name]
        if isinstance(kind, type) and is_dataclass(kind):
            options = list(_options_of(kind))
            groups[parameter.name] = kind, [option.name for option in options]
            shown += options
        else:
            shown.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=kind))

    outputs = {one.name: writes for one in shown if (writes := _marked(one.annotation, Writes)) is not None}
    if not outputs:
        shown = [one for one in shown if one.name != "force"]

    @wraps(command)
    def gathering(**given: Any) -> Result:
        given = settle(given)
        with guarded(not SETTINGS.force):
            if not SETTINGS.force:
                require_outputs(shown, outputs, given)
            return called(given)

    def called(given: dict[str, Any]) -> Result:
        for name, (kind, options) in groups.items():
            given[name] = kind(**{option: given.pop(option) for option in options if option in given})
        return command(**given)

    module = command.__module__.rpartition(".")[2]
    shown = [completed(parameter, module) for parameter in shown]
    gathering.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    gathering.__annotations__ = {option.name: option.annotation for option in shown}
    return gathering


def _marked(annotation: Any, kind: type[Result]) -> Result | None:
    """What of a kind an option is annotated with; the last one goes first."""
    return next((one for one in reversed(get_args(annotation)) if isinstance(one, kind)), None)


def require_outputs(options: Iterable[Parameter], outputs: Mapping[str, Writes], given: Mapping[str, Any]) -> None:
    """Refuse at once files that could not be written after all the work, or that would take another file's place.

    Args:
        options: of the command.
        outputs: those that name files which it writes.
        given: the values of all.

    Raises:
        InvalidInputError: a folder is missing or closed, an output is one of the inputs, or the same as another output,
            or a file of another kind.
    """
    called = {one.name: _flag_of(one) for one in options}
    values = ((name, value if isinstance(value, list | tuple) else [value]) for name, value in given.items())
    taken = {os.path.realpath(one): called[name] for name, several in values if name not in outputs
             for one in several if isinstance(one, str) and one and Path(one).is_file()}  # fmt: skip
    for name, writes in outputs.items():
        for path in [given[name]] if writes.files is None else writes.files(given[name]):
            _require_output(path, writes.kind, called[name], taken)


def _require_output(path: str | None, kind: str | None, option: str, taken: dict[str, str]) -> None:
    """Refuse one file, and note that it is taken; arguments as above, `taken` files with the options that say so."""
    if path is None or path == STANDARD_STREAM or (path and Path(path).exists() and not Path(path).is_file()):
        return  # what is no file, such as /dev/null or an atlas, is written to as it is
    where, folder = f"{option} {path}".strip(), Path(path).parent
    if not path or not folder.is_dir() or not os.access(folder, os.W_OK):
        what = f"nothing can be written into the folder {folder}" if path else "a file without a name"
        raise InvalidInputError(what, where=where, fix="check the path and its permissions")
    same = next((option for one, option in taken.items() if _is_same(one, path)), None)
    if same is not None:
        raise refused(where, f"{same} is the same file")
    taken[os.path.realpath(path)] = option
    require_kind(path, kind, where)


def _is_same(one: str, other: str) -> bool:
    """Whether two names lead to the same file, also one that is still to be written."""
    if Path(one).exists() and Path(other).exists():
        return Path(one).samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def _flag_of(option: Parameter) -> str:
    """What a parameter is called on the command line."""
    marked = _marked(option.annotation, OptionInfo)
    # Where typer's option is an annotation, its first name stands in the place of the default.
    names = () if marked is None else (marked.default, *(marked.param_decls or ()))
    return next((one for one in names if isinstance(one, str) and one.startswith("--")), option.name.upper())


def _options_of(group: type) -> Iterator[Parameter]:
    hints: dict[str, Any] = {}
    for kind in reversed(group.__mro__):
        hints |= get_annotations(kind)
    for one in fields(group):
        if get_origin(hints[one.name]) is Annotated:
            usual = Parameter.empty if one.default is MISSING else one.default
            yield Parameter(one.name, Parameter.KEYWORD_ONLY, default=usual, annotation=hints[one.name])


def picture_ending(output: str, endings: Collection[str], fix: str, option: str = "--output") -> str:
    """What a picture's file ends in, `.gz` apart.

    Args:
        output: its name.
        endings: those that say which picture it is to be.
        fix: what to do about any other.
        option: that says it.

    Raises:
        InvalidInputError: it ends in none of them.
    """
    ending = Path(output.removesuffix(".gz")).suffix
    if ending not in endings:
        raise InvalidInputError(
            f"the ending {ending!r} names no picture" if ending else "without an ending the kind of picture is unknown",
            where=f"{option} {output}",
            fix=fix,
        )
    return ending


def emit(document: Document, output: str, as_json: bool) -> None:
    """Write a document to `output`, and once to standard output when --json asks for it."""
    write_document(output, document)
    if as_json and output != STANDARD_STREAM:
        write_document(STANDARD_STREAM, document)
    SETTINGS.has_answered |= as_json or output == STANDARD_STREAM


def print_json(tree: Any) -> None:
    """Print one JSON document, canonical, on standard output."""
    sys.stdout.write(canonical_json(tree).decode())
    SETTINGS.has_answered = True


def print_document(document: Document) -> None:
    """Print one document, canonical, on standard output."""
    sys.stdout.write(canonical(document).decode())
    SETTINGS.has_answered = True


def print_error_json(error: RtkError, exit_code: int) -> None:
    """The error as JSON on standard output: as an event, or as the one document.

    Nothing where the document is printed already, or the event that tells of the end.
    """
    told = {"what": error.what, "where": error.where, "fix": error.fix, "exit_code": exit_code}
    if SETTINGS.has_answered:
        return
    if SETTINGS.command in TELL_EVENTS:
        print(json.dumps({"event": "error", "error": told, "unix_time_s": time.time()}, sort_keys=True), flush=True)
    else:
        print_json({"error": told})


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str]], to_stderr: bool = False, left: int = 1) -> None:
    """Print a table.

    Args:
        columns: the headings; where all are empty there is no line of them.
        rows: the cells, as text.
        to_stderr: where standard output belongs to a document.
        left: so many columns are left-aligned, the others are right-aligned.
    """
    from rich.console import Console
    from rich.table import Table

    columns = list(columns)
    table = Table(box=None, pad_edge=False, show_header=any(columns))
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right")
    for row in rows:
        table.add_row(*row)
    # Names stand as they are.
    console = ends_quietly(Console(stderr=to_stderr, soft_wrap=True, markup=False, emoji=False))
    if not console.is_terminal:
        console.width = WIDE
    console.print(table)


def ends_quietly(console: "Console") -> "Console":
    """A console that leaves it to `main` what happens when its reader has gone; rich ends with 1, a finding's code."""

    def raise_again() -> NoReturn:
        raise  # what is being handled

    console.on_broken_pipe = raise_again  # type: ignore[method-assign]
    return console


def reader_has_gone() -> bool:
    """Whether standard output or standard error is a pipe that nobody reads any more."""
    poll = select.poll()
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
            poll.register(stream.fileno(), select.POLLOUT)  # type: ignore[union-attr]
    return any(event & select.POLLERR for _, event in poll.poll(0))


def forget_output() -> None:
    """Drop what was not written yet, so that the interpreter does not stumble over it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextmanager
def ends_itself() -> Iterator[None]:
    """What is inside ends this process with the exit code that it has, also where it is a worker's.

    The interpreter's own end kills the threads that are inside torch at this moment, and C++ then aborts the process:
    134, which job scripts take for a worker that was killed, and start again. So a worker ends without it, once its
    exit functions have run.
    """
    try:
        yield
    except BaseException as error:
        if not SETTINGS.trains:
            raise
        code = error.code if isinstance(error, SystemExit) else 1
        if not isinstance(error, SystemExit):
            traceback.print_exc()
        atexit._run_exitfuncs()
        forget_output()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _is_silent() -> bool:
    """Whether nobody sees what is shown while work is under way: no terminal, --quiet, or CI."""
    return SETTINGS.quiet or bool(os.environ.get("CI")) or not sys.stderr.isatty()


@contextmanager
def working(what: str) -> Iterator[None]:
    """What is inside may take long: from its second second on a spinner on standard error says what it does."""
    done = Event()

    def show() -> None:
        if not done.wait(SPINNER_AFTER_S):
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
            with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
                bar.add_task(what, total=None)
                done.wait()

    if _is_silent():
        yield
        return
    spinner = Thread(target=show, daemon=True)
    spinner.start()
    try:
        yield
    finally:
        done.set()
        spinner.join()


def wrote(output: str, then: str) -> None:
    """Say what file was written, and on a terminal what to do with it next; nothing of standard output."""
    if output == STANDARD_STREAM:
        return
    remark(f"wrote {output}")
    suggest(then)


def suggest(then: str) -> None:
    """Say on a terminal, dimly, which command comes next."""
    if not _is_silent():
        remark(f"next: {then}" if os.environ.get("NO_COLOR") else f"\x1b[2mnext: {then}\x1b[0m")


@contextmanager
def progress() -> "Iterator[Progress]":
    """A progress bar on standard error: only on a terminal, and neither under --quiet nor in CI."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=_is_silent(), transient=True) as bar:
        yield bar


@contextmanager
def counting(what: str) -> "Iterator[Callable[[int, int], None]]":
    """A progress bar that says what is under way; it is told how much of how much is done."""
    with progress() as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
