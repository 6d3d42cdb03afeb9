"""`rtk detect`: what is slow in logs of a job."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM, write_bytes
from ..viz.style import PICTURE_ENDINGS
from .console import Debug, Json, Quiet, picture_ending, print_document, remark

if TYPE_CHECKING:
    from .detecting import DetectionResult


# The formats that `rtk detect` can be told.


class LogFormat(StrEnum):
    """What a file may be read as."""

    CSV = "csv"
    JSONL = "jsonl"
    NUMBERS = "numbers"
    MEGATRON = "megatron"
    TORCHTITAN = "torchtitan"
    NANOGPT = "nanogpt"
    MLPERF = "mlperf"
    DLLOGGER = "dllogger"
    CALLS = "calls"
    OPERATIONS = "operations"

    @property
    def is_series(self) -> bool:
        """Whether such a file tells iteration times line by line."""
        return self not in (LogFormat.CALLS, LogFormat.OPERATIONS)


NAME = "detect"
SUMMARY = "Find what is slow in logs of iteration times, of calls, and in traces."

FIX = f"end it in {', '.join(PICTURE_ENDINGS)}, or these and .gz; --json prints the findings"


class Mode(StrEnum):
    """How a series is followed."""

    ROBUST = "robust"
    PAPER = "paper"


def command(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Logs of iteration times, call logs, Flight Recorder dumps, traces, tables of operations, .gz or not. "
            "`-` is stdin, for logs of iteration times and call logs."
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on reading as the log (or stdin) grows, until Ctrl-C or its end.")
    ] = False,
    format_name: Annotated[
        LogFormat | None, typer.Option("--format", help="Read the files as this; else it is recognised.")
    ] = None,
    mode: Annotated[
        Mode, typer.Option("--mode", help="The detector: the default one, or the one that the paper describes.")
    ] = Mode.ROBUST,
    shortest: Annotated[
        int | None,
        typer.Option(
            "--shortest", min=3, help="How many slow iterations it takes to confirm a fail-slow; 10 by default."
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help=f"A picture ({', '.join(PICTURE_ENDINGS)}); .gz compresses.")
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if anything is slow.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find fail-slows: when each began, was confirmed and went away, how slow it was, and where it comes from.

    Logs of iteration times are those of Megatron-LM, torchtitan, nanoGPT, MLPerf and rtk run --json, CSV and JSON lines
    with iter_s, iter_ms or t, or one number (in s) a line. They are read line by line, however long they are.

    With --follow, what changes is told line by line as it happens, and everything once more at the end; with --json the
    one document comes at the end, and the lines go to standard error. Of a call log, what one rank tells is followed;
    whole files of it are compared rank by rank.
    """
    from ..profilers.failslow.tracker import SHORTEST
    from ..schemas.detection import Detection
    from .detecting import DetectionRequest, examined, followed, print_findings

    ending = picture_ending(output, PICTURE_ENDINGS, FIX) if output is not None else None
    _check(files, follow, format_name)
    question = DetectionRequest(mode.value, shortest or SHORTEST, format_name, is_drawn=output is not None)
    found = followed(files[0], question, as_json, quiet) if follow else examined(files, question)
    if output is not None and ending is not None:
        write_bytes(output, _picture(found, ending))
        remark(f"wrote {output}")
    findings = tuple(one.findings for one in found)
    if as_json:
        print_document(Detection(findings))
    else:
        print_findings(findings)
    if exit_code and any(one.events for one in findings):
        raise typer.Exit(1)


def _check(files: list[str], follow: bool, format_name: LogFormat | None) -> None:
    if files.count(STANDARD_STREAM) > 1:
        raise InvalidInputError("standard input can be read only once", where="FILE", fix="give one `-`")
    if follow and len(files) > 1:
        raise InvalidInputError(
            f"{len(files)} files to be followed",
            where="--follow",
            fix="give one file, and each other its own rtk detect",
        )
    if format_name is LogFormat.OPERATIONS and (follow or STANDARD_STREAM in files):
        raise InvalidInputError(
            "tables of operations are read as whole files",
            where="--format operations",
            fix="leave --follow out, and give files",
        )


def _picture(found: "list[DetectionResult]", ending: str) -> bytes:
    from ..viz.detection import Panel, drawn_detection

    panels = [Panel(one.findings, one.points) for one in found]
    return drawn_detection(panels, "Iteration times, and what was slow", ending)
