"""`rtk doctor`: which settings of a job contradict each other, and what failures cost with them."""

import os
import sys
from collections.abc import Iterator
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.quantities import DURATION, print_number, print_time
from ..schemas.text import counted, joined
from .console import WIDE, Common, grouped, print_document, quantity

if TYPE_CHECKING:
    from ..schemas.diagnosis import Diagnosis, JobCosts

GPU_HOURS = "GPU-hours"


@grouped
def command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Batch and launch scripts, torchtitan's TOML, logs of Megatron with its arguments, Python scripts "
            "that call init_process_group, .env files, outputs of env. `-` is stdin."
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", help="A file to be read as an environment; `-` is stdin: env | rtk doctor --env -"),
    ] = None,
    here: Annotated[bool, typer.Option("--here", help="Read the environment of this process, too.")] = False,
    torchrun: Annotated[
        list[str] | None, typer.Option("--torchrun", help="A command line, of torchrun, ft_launcher or srun.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, help="GPUs of the job, where the settings do not say it.")
    ] = None,
    iteration_s: Annotated[float | None, quantity(DURATION, "--iteration-time", "What an iteration takes.")] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option("--checkpoint-every", min=1, help="Iterations between two checkpoints.")
    ] = None,
    save_s: Annotated[
        float | None, quantity(DURATION, "--save-time", "What a save takes, while training waits.")
    ] = None,
    restart_s: Annotated[
        float | None,
        quantity(DURATION, "--restart-time", "From the end of the old processes to the first new iteration."),
    ] = None,
    mtbf_s: Annotated[float | None, quantity(DURATION, "--mtbf", "Mean time between failures of the job.")] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if anything is found.")] = False,
    *,
    common: Common,
) -> None:
    """Say which settings of a job contradict each other, what a hang and a failure cost, and what is cheap to change.

    For jobs of any framework: nothing of rtk has to run in them. Each finding names where its settings stand, and the
    documentation, thread or source file that says so. Nothing is executed, and of an environment only what is about
    time-outs and restarts is shown.
    """
    from ..profilers.diagnosing import KnownFacts, doctor

    found = doctor(
        files or (),
        environments=env or (),
        variables=os.environ if here else None,
        lines=[f"torchrun {line}" if line.lstrip().startswith("-") else line for line in torchrun or ()],
        facts=KnownFacts(gpus, iteration_s, checkpoint_every, save_s, restart_s, mtbf_s),
    )
    if common.as_json:
        print_document(found)
    else:
        for line in _lines(found):
            print(line)
    if exit_code and found.findings:
        raise typer.Exit(1)


def _lines(found: "Diagnosis") -> Iterator[str]:
    """The diagnosis for people."""
    read = [f"{one.file} ({one.kind}, {counted(one.known, 'setting')} known)" for one in found.files]
    yield from _wrapped(f"read {joined(read)}" if read else "read no file", "", "  ")
    for finding in found.findings:
        yield ""
        yield from _wrapped(f"{finding.severity}: {finding.says} [{finding.rule}]", "", "  ")
        for setting in finding.settings:
            yield from _wrapped(setting.words, "  ", "    ")
        yield from _wrapped(f"do: {finding.fix}", "  ", "    ")
        yield from _wrapped(f"see: {'; '.join(finding.sources)}", "  ", "    ")
    yield ""
    yield counted(len(found.findings), "finding") if found.findings else "no contradictions, no risks that a rule knows"
    yield from _costs(found.costs)
    for one in found.unread:
        if one.kind == "unknown":
            yield from _wrapped(f"not known: {one.setting.words}: {one.why}", "", "  ")


def _costs(costs: "JobCosts") -> Iterator[str]:
    yield ""
    if costs.hang_ended_by is None:
        yield "a hang: nothing ends it, as far as the settings say"
    elif costs.hang_s is None:
        yield from _wrapped(f"a hang: {costs.hang_ended_by.words} ends it: only the job itself knows when", "", "  ")
    else:
        said = f"a hang: {print_time(costs.hang_s)}, until {costs.hang_ended_by.words} ends it"
        yield from _wrapped(said + _gpu_hours(costs.hang_gpu_hours), "", "  ")
    parts = [("detection at worst", costs.hang_s), ("restart", costs.restart_s), ("computed again", costs.redone_s)]
    known = [f"{name} {print_time(value)}" for name, value in parts if value is not None]
    yield from _wrapped(f"a failure: {joined(known) or 'not known'}{_gpu_hours(costs.failure_gpu_hours)}", "", "  ")
    for change in costs.changes:
        said = (
            f"cheap to change: {change.says}: {print_number(change.saves_gpu_hours)} {GPU_HOURS} less at a {change.at}"
        )
        yield from _wrapped(said, "", "  ")
    for one in costs.missing:
        yield f"would say more: {one}"


def _gpu_hours(hours: float | None) -> str:
    return "" if hours is None else f": {print_number(hours)} {GPU_HOURS}"


def _wrapped(text: str, first: str, then: str) -> list[str]:
    width = get_terminal_size().columns if sys.stdout.isatty() else WIDE
    return wrap(text, width, initial_indent=first, subsequent_indent=then, break_long_words=False)
