"""`rtk profile refine`: what a run measured corrects a profile."""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.documents import read_document
from ..schemas.errors import InvalidInputError, remark
from ..schemas.files import STANDARD_STREAM
from ..schemas.quantities import print_percent, print_time
from .console import Common, Output, emit, grouped, print_json, print_table

if TYPE_CHECKING:
    from ..profilers.comparing import Comparison
    from ..profilers.refine import MeasuredRun, Refinement
    from ..schemas.profile import Profile
    from ..viz.diff import Difference


_COLUMNS = ("F", "I", "W", "B", "step")
_WORST_CLOCK = {
    "gpu annotations": "times are those of gpu_user_annotation, which torch makes too short for backward passes "
    "(pytorch/kineto#1022): give one trace a rank, with its kernels and the calls that launch them",
    "cpu": "times are the CPU's: from an annotation's first operation to its end, without waiting for messages",
    "kernels": "times are the GPU's: from the first to the last kernel of each annotation",
}


@grouped
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
    *,
    common: Common,
) -> None:
    """Correct a profile's times by what a run measured, stage by stage.

    A layer's times are scaled by what its stage took over what the profile says; several timelines with other stages
    give finer factors. Traces are those of torch's profiler in which a pipeline's operations are annotated (PP:0F1), as
    torch's pipelining does (torchtitan), or traces of Megatron with call stacks.
    """
    from ..schemas.plan import Plan
    from ..schemas.profile import Profile
    from ..wiring import profile_refine

    if [profile, *timeline, *(plan or ())].count(STANDARD_STREAM) > 1:
        raise InvalidInputError("standard input can be read only once", where="`-`", fix="give one `-`")
    read = read_document(profile, Profile)
    plans = [read_document(path, Plan) for path in plan or ()]
    refinement, runs = profile_refine(read, timeline, plans)
    emit(refinement.profile, output, common.as_json)
    if not common.quiet:
        _print_stages(refinement, runs)
        for words in _remarks(refinement, runs, read):
            remark(words)


def _print_stages(refinement: "Refinement", runs: "list[MeasuredRun]") -> None:
    """Each stage's times before and after, and the factor between them."""
    operations = [one for one in _COLUMNS if any(reading.operation == one for reading in refinement.readings)]
    rows = []
    for (run, layers, _), own in groupby(
        refinement.readings, key=lambda one: (one.run, one.layers, one.tensor_parallel)
    ):
        found = {reading.operation: reading for reading in own}
        stage = next(re.split("[/:]", name)[-1] for name, seat in runs[run].seats.items() if seat.layers == layers)
        name = f"run {run}, stage {stage}" if len(runs) > 1 else f"stage {stage}"
        cells = (
            f"{found[one].before_s * 1e3:.3g}→{found[one].after_s * 1e3:.3g}" if one in found else ""
            for one in operations
        )
        # By how much the passes of a micro-batch became longer.
        passes = [reading for reading in found.values() if reading.operation != "step"]
        before_s, after_s = sum(one.before_s for one in passes), sum(one.after_s for one in passes)
        rows.append((name, f"{layers[0]}-{layers[1] - 1}", *cells, f"{after_s / before_s:.3f}" if before_s else ""))
    columns = ("", "layers", *(f"{one} ms" for one in operations), "factor")
    print_table(columns, rows, to_stderr=True)


def _remarks(refinement: "Refinement", runs: "list[MeasuredRun]", before: "Profile") -> Iterator[str]:
    """What else there is to know: who is slow, what is not corrected, and by what times were told."""
    from ..profilers.refine import contradictions

    for clock in sorted({str(run.timeline.options.get("clock")) for run in runs} & set(_WORST_CLOCK)):
        yield _WORST_CLOCK[clock]
    for run in runs:
        if len({span.iteration for span in run.timeline.spans}) == 1:
            yield f"{run.name} has one iteration only, which may include warming up"
    for slow in refinement.slow:
        worker, _, stage = slow.worker.partition(":")
        rank = runs[slow.run].timeline.options.get("ranks", {}).get(worker)
        name = worker + ("" if rank is None else f" (rank {rank})") + (f" at virtual stage {stage}" if stage else "")
        yield f"worker {name} takes {slow.ratio:.2f} times as long as its peers: it is not counted"
    for reading in refinement.readings:
        if not reading.before_s and reading.measured_s > 1e-6:
            where = f"layers {reading.layers[0]} to {reading.layers[1] - 1}"
            took = f"{print_time(reading.measured_s)} were measured"
            yield f"{where}: the profile has no time for {reading.operation} that could be scaled; {took}"
    for number in sorted(contradictions(refinement)):
        yield f"{runs[number].name} contradicts other timelines: stages lie between what they say"
    yield from _remarks_of_pairs(refinement.profile, before)
    if refinement.profile.origin != before.origin:
        yield "all times are measured now; bytes are as they were"
    elif before.origin != "measured":
        yield f"some times are not corrected: the profile stays {before.origin}"


def _remarks_of_pairs(refined: "Profile", before: "Profile") -> Iterator[str]:
    """What passes side by side took, where that is not what was told."""
    if refined.overlap != before.overlap:
        told = "not known" if before.overlap is None else f"{before.overlap:.3f}"
        yield f"F and B side by side take {refined.overlap:.3f} of the two one after the other (before: {told})"


# `rtk profile compare`: what changed from one profile to another.


_LAYER_WORDS = {
    "parameter_bytes": "parameters",
    "state_bytes": "gradients and optimizer state",
    "activation_bytes": "activations of a micro-batch",
    "weight_stash_bytes": "stash of a micro-batch for W",
    "output_bytes": "output",
    "tied_to": "tied to layer",
    "tied_bytes": "bytes saved by the tie",
    "tied_state_bytes": "state saved by the tie",
    "costs": "tensor-parallel degrees",
    "name": "name",
}


@grouped
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="The profile before; `-` is standard input.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The profile after; `-` is standard input.")],
    as_markdown: Annotated[bool, typer.Option("--md", help="A Markdown table, for a pull request.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if the profiles differ.")] = False,
    *,
    common: Common,
) -> None:
    """Say what changed from profile A to profile B, beyond the noise of what was measured.

    Sizes and settings are compared exactly. Of times the overall ratio is said first (the machine), then the layers and
    operations that differ from it by more than their noise: 2.5 times both profiles' spreads, at least 2 %; 5 % where a
    profile says no spread. With a noise above 25 % times are too noisy to tell, and count as no difference: measure
    again with more --repeats, or on a quieter machine. Numbers of the network differ from 25 % on.
    """
    from ..profilers.comparing import compare as comparison_of
    from ..schemas.profile import Profile
    from ..viz import diff

    if a == b == STANDARD_STREAM:
        raise InvalidInputError("standard input can be read only once", where="A and B", fix="give one `-`")
    if common.as_json and as_markdown:
        raise InvalidInputError("--json and --md are two forms of one answer", where="--md", fix="give one of them")
    before, after = read_document(a, Profile), read_document(b, Profile)
    found = comparison_of(before, after)
    facts = diff.PlanDiff(tuple(_changes_of_facts(found)))
    times = tuple(_changes_of_times(found, after))
    if common.as_json:
        print_json(_tree(found, diff.as_tree(diff.PlanDiff((*facts.changes, *times)))))
    elif as_markdown:
        print(f"{verdict(found)}\n")
        print(diff.as_markdown(diff.PlanDiff((*facts.changes, *times))))
    else:
        print(verdict(found))
        if facts:
            print(diff.as_words(facts))
        _print_times(found, after)
    if exit_code and found:
        raise typer.Exit(1)


def verdict(found: "Comparison") -> str:
    """What changed, in a line: whether the machine did, or layers, or what is counted."""
    times = _verdict_of_times(found)
    if not found and found.overall is not None and found.overall.is_unclear:
        return times
    if not found:
        return f"no difference: {times}"
    if not found.facts:
        return times
    return f"{_count(len(found.facts), 'size or setting differs', 'sizes or settings differ')}; {times}"


def _verdict_of_times(found: "Comparison") -> str:

    if found.overall is None:
        return "the profiles have no times in common"
    noise = f"noise {print_percent(found.overall.noise)}"
    as_long, agree = f"{found.overall.ratio:.3f} times as long", f"overall {found.overall.ratio:.3f}, {noise}"
    layers = len({one.layers for one in found.differing})
    if not layers and found.overall.is_unclear:
        return f"the times are too noisy to tell: overall {found.overall.ratio:.2f} x, {noise}"
    if not layers:
        alike = f"times are {as_long} in all layers alike ({noise})"
        return alike if found.overall.differs else f"times agree within their noise ({agree})"
    everyone = _count(len({one.layers for one in found.times}), "layer", "layers")
    others = f"the others are {as_long} ({noise})" if found.overall.differs else f"the others agree ({agree})"
    if found.overall.is_unclear:
        others = f"the others are too noisy to tell (overall {found.overall.ratio:.2f} x, {noise})"
    return f"the times of {layers} of {everyone} differ, {others}"


def _changes_of_facts(found: "Comparison") -> "Iterator[Difference]":
    from ..viz.diff import Difference, becomes, unit_of

    for fact in found.facts:
        kind, _, rest = fact.path.removeprefix("/").partition("/")
        becoming = becomes(_brief(fact.before), _brief(fact.after), unit_of(fact.path))
        if not fact.layers:
            name = rest.replace("/", " ") or kind.replace("_", " ")
            yield Difference(
                fact.path, "settings" if not rest else kind, fact.before, fact.after, f"{name}: {becoming}"
            )
        else:
            name = fact.path.rpartition("/")[2]
            if name in _LAYER_WORDS:
                noun = "layer" if len(fact.layers) == 1 else "layers"
                words = f"{_LAYER_WORDS[name]} of {noun} {_ranges(fact.layers)}: {becoming}"
            else:
                what, who = ("is gone", fact.before) if fact.after is None else ("is new", fact.after)
                words = f"layer {fact.layers[0]} ({who}) {what}"
            yield Difference(fact.path, "layers", fact.before, fact.after, words)


def _changes_of_times(found: "Comparison", after: "Profile") -> "Iterator[Difference]":
    """What differs in times: all in all, then layer by layer."""
    from ..profilers.comparing import WHOLE
    from ..schemas.profile import ALL_PASSES, TIMES
    from ..viz.diff import Difference, becomes

    names = {**TIMES, **ALL_PASSES}
    if found.overall is not None and found.overall.differs:
        words = f"all layers: {found.overall.ratio:.3f} times as long (noise {print_percent(found.overall.noise)})"
        yield Difference("/layers", "times", None, found.overall.ratio, words)
    for one in found.differing:
        layer, path = after.layers[one.layers[1]], f"/layers/{one.layers[1]}"
        if one.operation != WHOLE:
            degrees = [cost.tensor_parallel for cost in layer.costs]
            path += f"/costs/{degrees.index(one.tensor_parallel)}/{names[one.operation]}"
        name = f"{one.operation} of layer {one.layers[1]} ({layer.name or 'without a name'})"
        beside = f"{one.relative:.3f} times the overall ratio, noise {print_percent(one.noise)}"
        becoming = becomes(one.before_s, one.after_s, "s")
        yield Difference(path, "times", one.before_s, one.after_s, f"{name}: {becoming}; {beside}")


def _print_times(found: "Comparison", after: "Profile") -> None:
    """The layers whose times differ, and how many times as long as overall; nothing stands where they do not differ."""
    from ..profilers.comparing import FULL, WHOLE
    from ..schemas.profile import TIMES

    told = any(one.operation == FULL for one in found.times)
    operations = (*TIMES, *((FULL,) if told else ()), WHOLE)
    rows = []
    for key, group in groupby(found.times, key=lambda one: (one.layers, one.tensor_parallel)):
        own = {one.operation: one for one in group}
        if not any(one.differs for one in own.values()):
            continue
        (_, layer), degree = key
        name = (after.layers[layer].name or f"layer {layer}") + (f", degree {degree}" if degree > 1 else "")
        cells = (f"{own[one].relative:.3f}" if one in own and own[one].differs else "" for one in operations)
        whole = own.get(WHOLE) or next(iter(own.values()))
        rows.append((name, *cells, print_time(whole.before_s), print_time(whole.after_s)))
    if rows:
        print_table(("layer", *operations, "before", "after"), rows)


def _tree(found: "Comparison", changes: dict[str, Any]) -> dict[str, Any]:
    """The comparison as JSON: what `rtk diff` says of its changes, and how times compare."""
    from dataclasses import asdict

    overall = (
        None
        if found.overall is None
        else {
            **asdict(found.overall),
            "differs": found.overall.differs,
            "too_noisy": found.overall.is_unclear,
        }
    )
    times = [{**asdict(one), "differs": one.differs} for one in found.times]
    return {**changes, "verdict": verdict(found), "overall": overall, "times": times}


def _brief(value: Any) -> Any:
    """A value as a line can hold it."""
    if isinstance(value, dict):
        return "1 entry" if len(value) == 1 else f"{len(value)} entries"
    if isinstance(value, list):
        return ", ".join(str(_brief(one)) for one in value)
    return f"{value[:12]}…" if isinstance(value, str) and len(value) == 64 else value  # a digest


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """`1 to 3, 5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in runs)
