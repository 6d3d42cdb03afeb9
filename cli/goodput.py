"""`rtk goodput`: where a job's GPU-hours went, from its logs."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..schemas.errors import InvalidInputError, remark
from ..schemas.files import STANDARD_STREAM, written
from ..schemas.log_formats import JobLogFormat
from ..schemas.text import counted
from ..viz.style import PICTURE_ENDINGS
from .console import Common, Writes, emit, ends_quietly, grouped, print_document


@grouped
def command(
    files: Annotated[
        list[str],
        typer.Argument(help="Logs of one job, of all its attempts, .gz or not. `-` is stdin."),
    ],
    format_name: Annotated[
        JobLogFormat | None, typer.Option("--format", help="Read the files as this; else it is recognised.")
    ] = None,
    patterns: Annotated[
        list[str] | None,
        typer.Option(
            "--pattern",
            metavar="REGEX",
            help="What lines of your own look like: groups as in docs/goodput.md. Repeatable.",
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, help="GPUs of the job, where its logs do not say, or say wrong.")
    ] = None,
    sacct: Annotated[
        str | None,
        typer.Option("--sacct", help="What Slurm says of its attempts: sacct --parsable2, or sacct --json."),
    ] = None,
    kubernetes: Annotated[
        str | None, typer.Option("--kubernetes", help="Events of its pods: kubectl get events -o json.")
    ] = None,
    timezone: Annotated[
        str,
        typer.Option("--timezone", metavar="ZONE", help="Of clocks in logs that name none, such as Europe/Berlin."),
    ] = "UTC",
    trace: Annotated[
        str | None,
        typer.Option("--trace", help="Where to write its failures, for rtk replay; .csv, or JSON lines."),
        Writes("JSON lines"),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help=f"Where to write the ledger (.json), or a picture ({', '.join(PICTURE_ENDINGS)})."
        ),
        Writes(),
    ] = None,
    *,
    common: Common,
) -> None:
    """Say where a job's GPU-hours went, over all restarts: each second of each GPU in one class.

    Useful; slow; redone (lost at a roll-back); checkpoint; detection; restart and rendezvous; load; idle; unknown.
    Goodput is the useful share, ETTR the share of useful and slow time. The logs of Megatron-LM, NeMo, torchtitan,
    DeepSpeed, Lightning and nvidia-resiliency-ext are recognised, and read as streams.

    With --trace the failures become a trace, and standard error says which rtk replay answers what another way of
    recovering would have saved.
    """
    from ..profilers.goodput import goodput
    from ..profilers.ledger.failure_trace import failures_of, replay_words
    from ..runners.traces.read import write_events

    ending = _ending(output)
    if files.count(STANDARD_STREAM) > 1:
        raise InvalidInputError("standard input can be read only once", where="FILE", fix="give one `-`")
    ledger = goodput(
        files,
        format_name=format_name,
        patterns=patterns or (),
        gpus=gpus,
        sacct=sacct,
        kubernetes=kubernetes,
        timezone=timezone,
    )
    if trace is not None:
        found = failures_of(ledger)
        write_events(trace, found.events)
        remark(f"wrote {trace}: {counted(len(ledger.failures), 'failure')}; what other policies would have kept:")
        remark(f"  {shlex.join(replay_words(ledger, trace))}")
    if output is not None and ending == ".json":
        emit(ledger, output, common.as_json)
        remark(f"wrote {output}")
        return
    if output is not None:
        from ..viz.drawing import PAINTERS, drawn

        drawing = PAINTERS[type(ledger)].drawing_of([ledger], [Path(files[0]).name])
        with written(output) as stream:
            stream.writelines(drawn(drawing, drawing.title, ending))
        remark(f"wrote {output}")
    if common.as_json:
        print_document(ledger)
    else:
        from rich.console import Console

        from ..viz.terminal import terminal_ledger

        console = ends_quietly(Console(highlight=False))
        console.print(terminal_ledger(ledger, console.width))


def _ending(output: str | None) -> str:
    """What an output ends in; the ledger itself where it is standard output."""
    if output is None or output == STANDARD_STREAM:
        return ".json"
    ending = Path(output.removesuffix(".gz")).suffix
    if ending not in (".json", *PICTURE_ENDINGS):
        raise InvalidInputError(
            f"the ending {ending!r} names neither a ledger nor a picture",
            where=f"--output {output}",
            fix=f"end it in .json, {', '.join(PICTURE_ENDINGS)}, or these and .gz",
        )
    return ending
