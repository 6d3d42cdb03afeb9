"""A profile as a table on standard error: one row for layers that are alike, and their sum."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from ..schemas.profile import TIMES, Layer, LayerCost, held_bytes
from .console import print_table, remark

if TYPE_CHECKING:
    from ..schemas.profile import Profile


def print_layers(profile: "Profile") -> None:
    """Print what each layer costs, for people; ± is half the width of the middle half of the readings of F, I and W."""
    degrees = sorted({cost.tensor_parallel for layer in profile.layers for cost in layer.costs})
    columns = ("F ms", "I ms", "W ms", "step ms", "±", "held MB", "stash", "weights")
    columns = ("layer", *(("TP",) if len(degrees) > 1 else ()), *columns)
    rows = [row for same in _groups(profile.layers) for row in _rows(same, len(degrees) > 1)]
    print_table(columns, [*rows, *_totals(profile, degrees)], to_stderr=True)
    remark(_circumstances(profile))


def _groups(layers: Sequence[Layer]) -> Iterator[list[tuple[int, Layer]]]:
    """Neighbours that differ in nothing but their number."""
    numbered = list(enumerate(layers))
    for _, same in groupby(numbered, key=lambda one: replace(one[1], name=_title(one[0], one[1]))):
        yield list(same)


def _title(place: int, layer: Layer) -> str:
    """A layer's name without the number that it begins with, if it is its own."""
    name = layer.name or ""
    return name.removeprefix(f"{place} ")


def _rows(same: Sequence[tuple[int, Layer]], with_degree: bool) -> Iterator[tuple[str, ...]]:
    (first, layer), (last, _) = same[0], same[-1]
    title = _title(first, layer)
    name = f"{first} {title}".rstrip() if first == last else f"{first}-{last} {title}".rstrip() + f" x{len(same)}"
    for number, cost in enumerate(layer.costs):
        sizes = (layer.activation_bytes, layer.weight_stash_bytes, layer.parameter_bytes)
        degree = (f"{cost.tensor_parallel}",) if with_degree else ()
        bytes_ = [*map(_mb, sizes)] if number == 0 else ["", "", ""]
        yield (name if number == 0 else "", *degree, *_times(cost), *bytes_)


def _times(cost: LayerCost) -> Iterator[str]:
    """The four times, and the spread of F, I and W together."""
    yield from (_ms(getattr(cost, name)) for name in TIMES.values())
    yield "" if cost.spread is None or not cost.work_s else f"{cost.spread.work_s / cost.work_s:.1%}"


def _ms(time_s: float) -> str:
    return f"{time_s * 1e3:.3f}" if time_s < 0.1 else f"{time_s * 1e3:.1f}"


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.2f}" if size_bytes < 1e8 else f"{size_bytes / 1e6:.0f}"


def _totals(profile: "Profile", degrees: Sequence[int]) -> Iterator[tuple[str, ...]]:
    parameter_bytes, _ = held_bytes(profile.layers, 0, len(profile.layers))
    sizes = (
        sum(layer.activation_bytes for layer in profile.layers),
        sum(layer.weight_stash_bytes for layer in profile.layers),
        parameter_bytes,
    )
    for degree in degrees:
        costs = [cost for layer in profile.layers for cost in layer.costs if cost.tensor_parallel == degree]
        times = (_ms(sum(getattr(cost, name) for cost in costs)) for name in TIMES.values())
        bytes_ = [*map(_mb, sizes)] if degree == degrees[0] else ["", "", ""]
        yield ("all", *((f"{degree}",) if len(degrees) > 1 else ()), *times, "", *bytes_)


def _circumstances(profile: "Profile") -> str:
    sequences = f" of {profile.sequence_length} tokens" if profile.sequence_length else ""
    form = ["checkpointing"] if profile.model.get("checkpointing") else []
    said = ", ".join([str(profile.model.get("dtype", "fp32")), *form])
    origin = "computed for" if profile.origin == "analytic" else "measured on"
    return f"{origin} {profile.device.name}, {said}; micro-batches of {profile.microbatch_size}{sequences}"
