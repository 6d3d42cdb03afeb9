"""The `rtk` command: its verbs, and the exit codes that errors end in."""

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from errno import EDQUOT, EFBIG, EIO, ENOSPC

import typer

from .. import __version__
from ..schemas.errors import EXTRAS, BugError, InvalidInputError, RtkError, RuntimeFailedError, not_installed
from ..schemas.files import BOUND
from ..schemas.quantities import parse_bytes
from .commands import Commands
from .completion import VARIABLE, start_completing
from .console import SETTINGS, ends_itself, forget_output, print_error_json, reader_has_gone
from .job import blaming_the_file, take_defaults
from .usage import usage_error
from .verbs import CONTEXT

CANNOT_HOLD = (ENOSPC, EDQUOT, EFBIG, EIO)  # what a full or broken disk says

app = typer.Typer(
    name="rtk",
    cls=Commands,
    context_settings=CONTEXT,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich's markdown for the help would double the start-up time
    help="Plan, simulate and run large-model training that keeps going when workers fail or slow down.",
)


def _print_version(value: bool) -> None:
    if value:
        print(f"rtk {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", "-V", callback=_print_version, is_eager=True, help="Print the version."
    ),
    max_input: str = typer.Option(
        "1GiB", "--max-input", metavar="SIZE", help="Largest input file, unpacked. Give it before the command's name."
    ),
    job: str | None = typer.Option(
        None,
        "--config",
        envvar="RTK_CONFIG",
        metavar="FILE",
        help="The job's file; by default rtk.toml here, or further up in the repository. Before the command's name.",
    ),
    no_job: bool = typer.Option(False, "--no-config", help="Read no job's file; before the command's name."),
) -> None:
    """Plan, simulate and run large-model training that keeps going when workers fail or slow down."""
    usual_bytes, BOUND.most_bytes = BOUND.most_bytes, parse_bytes(max_input, "--max-input")
    context.call_on_close(lambda: setattr(BOUND, "most_bytes", usual_bytes))  # it is this command's, not the process's
    take_defaults(context, job, no_job)


@ends_itself()
def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit.

    0 done, 1 a finding, 2 bad input, 3 infeasible, 4 not proven optimal, 5 a failed run, 70 a bug of rtk, 130
    interrupted.
    """
    line = sys.argv[1:] if arguments is None else arguments
    SETTINGS.arguments = tuple(line)
    SETTINGS.as_json, SETTINGS.has_answered, SETTINGS.command = wants_json(line), False, ""
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    try:
        _run(arguments)
    except KeyboardInterrupt:
        _fail("interrupted", RtkError("interrupted"), 130)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and reader_has_gone():  # else it was a pipe of ours
            # As `head` does; the rest cannot be said to anybody.
            forget_output()
            sys.exit(0)
        told = _told(error)
        _fail(f"error: {told}", told, told.exit_code)


def wants_json(line: Sequence[str]) -> bool:
    """Whether a line asks for JSON; what stands behind `--` is another program's."""
    return "--json" in (line[: line.index("--")] if "--" in line else line)


def _told(error: Exception) -> RtkError:
    """What is said of an error, and the exit code: never 1, which is a finding's."""
    if isinstance(error, RtkError):
        return error
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package in EXTRAS:
        return not_installed(package)
    if isinstance(error, typer.TyperException):
        return usage_error(error)
    if isinstance(error, MemoryError):
        return RuntimeFailedError("there is not enough memory", fix="ask for less at once, or take a larger machine")
    if isinstance(error, OSError) and error.errno in CANNOT_HOLD and error.filename is None:
        return InvalidInputError(
            f"cannot write: {error.strerror}", where="standard output", fix="make room there, or write to a file"
        )
    return BugError(
        f"this is a bug of rtk ({type(error).__name__}: {error})",
        fix="report it, with what the same command prints with --debug",
    )


def _run(arguments: list[str] | None) -> None:
    """Run one command, and see all of its output written."""
    if VARIABLE in os.environ:
        start_completing()
    try:
        with blaming_the_file():
            app(arguments, prog_name="rtk")
    except SystemExit as end:
        # Where a reader has gone typer ends with 1, which is a finding's, and after Ctrl-C without a word.
        why = end.__context__.__cause__ if isinstance(end.__context__, typer.Exit) else end.__context__
        if isinstance(why, BrokenPipeError | KeyboardInterrupt):
            raise why from None
        sys.stdout.flush()
        raise


def _fail(message: str, error: RtkError, code: int) -> None:
    with suppress(OSError):
        print(message, file=sys.stderr)
        if SETTINGS.as_json:
            print_error_json(error, code)
            sys.stdout.flush()
        if SETTINGS.debug:
            traceback.print_exc()
    forget_output()
    sys.exit(code)


if __name__ == "__main__":
    main()
