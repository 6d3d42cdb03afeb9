"""`rtk profile refine`: what a run measured corrects a profile."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.documents import read_document
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM
from .console import Debug, Json, Output, Quiet, emit, print_table, remark

if TYPE_CHECKING:
    from ..profilers.refine import Refinement
    from ..profilers.stage_readings import Reading, Run
    from ..schemas.profile import Profile

_COLUMNS = ("F", "I", "W", "B", "step")
_WORST_CLOCK = {
    "gpu annotations": "times are those of gpu_user_annotation, which torch makes too short for backward passes "
    "(pytorch/kineto#1022): give one trace a rank, with its kernels and the calls that launch them",
    "cpu": "times are the CPU's: from an annotation's first operation to its end, without waiting for messages",
    "kernels": "times are the GPU's: from the first to the last kernel of each annotation",
}


def refine(
    profile: Annotated[str, typer.Argument(help="The profile to correct; `-` is standard input.")],
    timeline: Annotated[
        list[str],
        typer.Option(
            "--timeline",
            help="What was measured: a timeline of rtk run, a trace of torch's profiler, or a folder of such traces. "
            "Repeatable; single traces are the ranks of one job.",
        ),
    ],
    plan: Annotated[
        list[str] | None,
        typer.Option("--plan", help="The plan that was run; else stages are cut as rtk plan cuts them. Repeatable."),
    ] = None,
    output: Output = STANDARD_STREAM,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Correct a profile's times by what a run measured, stage by stage.

    A layer's times are scaled by what its stage took over what the profile says; several timelines with other stages
    give finer factors. Traces are those of torch's profiler in which a pipeline's operations are annotated (PP:0F1), as
    torch's pipelining does (torchtitan), or traces of Megatron with call stacks.
    """
    from ..profilers.refine import refine as refined_by
    from ..schemas.plan import Plan
    from ..schemas.profile import Profile
    from .measured_runs import given_timelines, run_of

    if [profile, *timeline, *(plan or ())].count(STANDARD_STREAM) > 1:
        raise InvalidInputError("standard input can be read only once", where="`-`", fix="give one `-`")
    read = read_document(profile, Profile)
    plans = [read_document(path, Plan) for path in plan or ()]
    runs = [run_of(given, read, plans) for given in given_timelines(timeline)]
    refinement = refined_by(read, runs)
    emit(refinement.profile, output, as_json)
    if not quiet:
        _print_stages(refinement, runs)
        for words in _remarks(refinement, runs, read):
            remark(words)


def _print_stages(refinement: "Refinement", runs: "list[Run]") -> None:
    """Each stage's times before and after, and the factor between them."""
    operations = [one for one in _COLUMNS if any(reading.operation == one for reading in refinement.readings)]
    rows = []
    for (run, layers, _), own in groupby(
        refinement.readings, key=lambda one: (one.run, one.layers, one.tensor_parallel)
    ):
        found = {reading.operation: reading for reading in own}
        stage = next(name.partition("/")[2] for name, seat in runs[run].seats.items() if seat.layers == layers)
        name = f"run {run}, stage {stage}" if len(runs) > 1 else f"stage {stage}"
        cells = (_becomes(found[one]) if one in found else "" for one in operations)
        rows.append((name, f"{layers[0]}-{layers[1] - 1}", *cells, _factor(found.values())))
    columns = ("", "layers", *(f"{one} ms" for one in operations), "factor")
    print_table(columns, rows, to_stderr=True)


def _becomes(reading: "Reading") -> str:
    return f"{reading.before_s * 1e3:.3g}→{reading.after_s * 1e3:.3g}"


def _factor(readings: "Iterable[Reading]") -> str:
    """By how much the passes of a micro-batch became longer."""
    passes = [reading for reading in readings if reading.operation != "step"]
    before_s, after_s = sum(one.before_s for one in passes), sum(one.after_s for one in passes)
    return f"{after_s / before_s:.3f}" if before_s else ""


def _remarks(refinement: "Refinement", runs: "list[Run]", before: "Profile") -> Iterator[str]:
    """What else there is to know: who is slow, what is not corrected, and by what times were told."""
    from ..profilers.refine import contradictions

    for clock in sorted({str(run.timeline.options.get("clock")) for run in runs} & set(_WORST_CLOCK)):
        yield _WORST_CLOCK[clock]
    for run in runs:
        if len({span.iteration for span in run.timeline.spans}) == 1:
            yield f"{run.name} has one iteration only, which may include warming up"
    for slow in refinement.slow:
        rank = runs[slow.run].timeline.options.get("ranks", {}).get(slow.worker)
        name = slow.worker if rank is None else f"{slow.worker} (rank {rank})"
        yield f"worker {name} takes {slow.ratio:.2f} times as long as its peers: it is not counted"
    for reading in refinement.readings:
        if not reading.before_s and reading.measured_s > 1e-6:
            where = f"layers {reading.layers[0]} to {reading.layers[1] - 1}"
            took = f"{reading.measured_s * 1e3:.3f} ms were measured"
            yield f"{where}: the profile has no time for {reading.operation} that could be scaled; {took}"
    for number in sorted(contradictions(refinement)):
        yield f"{runs[number].name} contradicts other timelines: stages lie between what they say"
    if refinement.profile.origin != before.origin:
        yield "all times are measured now; bytes are as they were"
    elif before.origin != "measured":
        yield f"some times are not corrected: the profile stays {before.origin}"
