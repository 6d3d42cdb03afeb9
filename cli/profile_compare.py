"""`rtk profile compare`: what changed from one profile to another."""

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.documents import read_document
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM
from .console import Debug, Json, Quiet, print_json, print_table

if TYPE_CHECKING:
    from ..profilers.comparing import Comparison, Fact, TimeRatio
    from ..schemas.profile import Profile
    from ..viz.diff import Difference

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


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="The profile before; `-` is standard input.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The profile after; `-` is standard input.")],
    as_markdown: Annotated[bool, typer.Option("--md", help="A Markdown table, for a pull request.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if the profiles differ.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Say what changed from profile A to profile B, beyond the noise of what was measured.

    Sizes and settings are compared exactly. Of times the overall ratio is said first (the machine), then the layers and
    operations that differ from it by more than their noise: 2.5 times both profiles' spreads, at least 2 %; 5 % where a
    profile says no spread. Numbers of the network differ from 25 % on.
    """
    from ..profilers.comparing import compare as comparison_of
    from ..schemas.profile import Profile
    from ..viz import diff

    if a == b == STANDARD_STREAM:
        raise InvalidInputError("standard input can be read only once", where="A and B", fix="give one `-`")
    if as_json and as_markdown:
        raise InvalidInputError("--json and --md are two forms of one answer", where="--md", fix="give one of them")
    before, after = read_document(a, Profile), read_document(b, Profile)
    found = comparison_of(before, after)
    facts = diff.PlanDiff(tuple(_changes_of_facts(found)))
    times = tuple(_changes_of_times(found, after))
    if as_json:
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
    if not found:
        return f"no difference: {times}"
    if not found.facts:
        return times
    return f"{_count(len(found.facts), 'size or setting differs', 'sizes or settings differ')}; {times}"


def _verdict_of_times(found: "Comparison") -> str:
    from ..viz.units import print_percent

    if found.overall is None:
        return "the profiles have no times in common"
    noise = f"noise {print_percent(found.overall.noise)}"
    as_long, agree = f"{found.overall.ratio:.3f} times as long", f"overall {found.overall.ratio:.3f}, {noise}"
    layers = len({one.layers for one in found.differing})
    if not layers:
        alike = f"times are {as_long} in all layers alike ({noise})"
        return alike if found.overall.differs else f"times agree within their noise ({agree})"
    everyone = _count(len({one.layers for one in found.times}), "layer", "layers")
    others = f"the others are {as_long} ({noise})" if found.overall.differs else f"the others agree ({agree})"
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
            yield Difference(fact.path, "layers", fact.before, fact.after, _of_layers(fact, becoming))


def _of_layers(fact: "Fact", becoming: str) -> str:
    """A fact about layers in words."""
    name = fact.path.rpartition("/")[2]
    if name not in _LAYER_WORDS:
        what = "is gone" if fact.after is None else "is new"
        return f"layer {fact.layers[0]} ({fact.before if fact.after is None else fact.after}) {what}"
    noun = "layer" if len(fact.layers) == 1 else "layers"
    return f"{_LAYER_WORDS[name]} of {noun} {_ranges(fact.layers)}: {becoming}"


def _changes_of_times(found: "Comparison", after: "Profile") -> "Iterator[Difference]":
    """What differs in times: all in all, then layer by layer."""
    from ..profilers.comparing import WHOLE
    from ..schemas.profile import TIMES
    from ..viz.diff import Difference, becomes
    from ..viz.units import print_percent

    if found.overall is not None and found.overall.differs:
        words = f"all layers: {found.overall.ratio:.3f} times as long (noise {print_percent(found.overall.noise)})"
        yield Difference("/layers", "times", None, found.overall.ratio, words)
    for one in found.differing:
        path = f"/layers/{one.layers[1]}" + ("" if one.operation == WHOLE else _cost_path(one, after, TIMES))
        name = f"{one.operation} of layer {one.layers[1]} ({after.layers[one.layers[1]].name or 'without a name'})"
        beside = f"{one.relative:.3f} times the overall ratio, noise {print_percent(one.noise)}"
        becoming = becomes(one.before_s, one.after_s, "s")
        yield Difference(path, "times", one.before_s, one.after_s, f"{name}: {becoming}; {beside}")


def _cost_path(one: "TimeRatio", after: "Profile", names: dict[str, str]) -> str:
    degrees = [cost.tensor_parallel for cost in after.layers[one.layers[1]].costs]
    return f"/costs/{degrees.index(one.tensor_parallel)}/{names[one.operation]}"


def _print_times(found: "Comparison", after: "Profile") -> None:
    """The layers whose times differ, and how many times as long as overall; nothing stands where they do not differ."""
    from ..profilers.comparing import WHOLE
    from ..schemas.profile import TIMES
    from ..viz.units import print_time

    operations = (*TIMES, WHOLE)
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

    overall = None if found.overall is None else {**asdict(found.overall), "differs": found.overall.differs}
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
