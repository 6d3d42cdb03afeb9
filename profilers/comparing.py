"""What changed from one Profile to another, the noise of measured times taken into account.

What is counted (sizes, names, layers, device) is compared exactly. Times are compared as ratios. First the overall one,
the median over all layers' F, I and W, weighted by time: a machine that is faster or slower in all is said once. Then
each layer and operation relative to it: it differs where the logarithm of that ratio is farther from 0 than its noise,
and where the overall one is within its noise also that of the ratio itself.

The noise is WIDTH times the relative spreads of both profiles (half the width of the middle half of the readings),
added as independent ones are, and at least FLOOR. A spread counts as at least the median of its operation's over all
layers, for that of a few readings is uncertain itself. Medians of 10 or more readings hardly ever are off by so much:
two profiles of the same thing differ nowhere (a test counts), and a tenth shows where spreads are 2 %. Where a
profile says no spread the noise is UNKNOWN. What is smaller than RESOLUTION_S is below a clock's reading, and no
difference.

Where the noise is over TOO_NOISY, that nothing differs says nothing: a change of a quarter would not show.

A network has no spread in a profile: its numbers differ where one is more than 1 + NETWORK times the other. What pairs
are worth (`overlap`) has none either, and differs where it does by more than FLOOR.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from statistics import median
from typing import Any

from ..schemas.documents import pointer, to_tree
from ..schemas.profile import PASSES, TIMES, Layer, LayerCost, Profile, Spread

WIDTH = 2.5
FLOOR = 0.02
UNKNOWN = 0.05
TOO_NOISY = 0.25
RESOLUTION_S = 1e-6
NETWORK = 0.25
WHOLE = "F+I+W"
FULL = "B"  # a full backward pass
_HALVES = (PASSES["I"], PASSES["W"])
_SIZES = ("parameter_bytes", "state_bytes", "activation_bytes", "weight_stash_bytes", "output_bytes")
_TIES = ("tied_to", "tied_bytes", "tied_state_bytes")
_GIVEN = ("model", "origin", "device", "microbatch_size", "sequence_length")

Pair = tuple[int, int]  # places of one layer in both profiles


@dataclass(frozen=True, slots=True)
class Fact:
    """Something exact that differs.

    Attributes:
        path: a JSON pointer into the second profile, or into the first where the second has no such place.
        layers: the second profile's layers of which this holds, where it is of layers.
        before: the first profile's value, as JSON; None where it has none.
        after: the second's.
    """

    path: str
    layers: tuple[int, ...]
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class TimeRatio:
    """How a time compares.

    Attributes:
        layers: the layer's places in both profiles.
        tensor_parallel: the degree.
        operation: F, I, W, step, F+I+W for the three together, or B, where both profiles say what that takes.
        before_s, after_s: the times.
        relative: after over before, over the overall ratio, or over 1 where that is nearer and the overall ratio is
            within its noise.
        noise: how far from 1 `relative` may be without a difference: between 1 / (1 + noise) and 1 + noise.
    """

    layers: Pair
    tensor_parallel: int
    operation: str
    before_s: float
    after_s: float
    relative: float
    noise: float

    @property
    def differs(self) -> bool:
        """Whether the times differ by more than their noise, beyond the overall ratio."""
        return _is_beyond(self.relative, self.noise)


@dataclass(frozen=True, slots=True)
class Overall:
    """The ratio that most times have in common, and its noise, as in TimeRatio."""

    ratio: float
    noise: float

    @property
    def differs(self) -> bool:
        """Whether times as a whole differ by more than their noise."""
        return _is_beyond(self.ratio, self.noise)

    @property
    def is_unclear(self) -> bool:
        """Whether the noise is so large that times as a whole neither differ nor agree."""
        return self.noise > TOO_NOISY and not self.differs


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs, and all times that both profiles have; `overall` is None where they have none in common."""

    facts: tuple[Fact, ...]
    overall: Overall | None
    times: tuple[TimeRatio, ...]

    @property
    def differing(self) -> tuple[TimeRatio, ...]:
        """The times that differ."""
        return tuple(one for one in self.times if one.differs)

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.facts or self.differing or (self.overall and self.overall.differs))


def compare(a: Profile, b: Profile) -> Comparison:
    """Compare two profiles.

    Layers are the same by their place; where one profile has more of them, by their names without numbers, in order.

    Args:
        a: the profile before.
        b: the profile after.
    """
    pairs = _pairs(a.layers, b.layers)
    widened = _with_usual_spread(a), _with_usual_spread(b)
    found = [
        _CostPair((place, other), old, new)
        for place, other in pairs
        for old in widened[0].layers[place].costs
        for new in widened[1].layers[other].costs
        if old.tensor_parallel == new.tensor_parallel
    ]
    overall = _overall(found)
    times = tuple(one for times in found for one in times.ratios(overall)) if overall else ()
    return Comparison((*_given(a, b), *_layer_facts(a.layers, b.layers, pairs)), overall, times)


@dataclass(frozen=True, slots=True)
class _CostPair:
    """One layer's cost in both profiles."""

    pair: Pair
    old: LayerCost
    new: LayerCost

    def ratios(self, overall: Overall) -> Iterator[TimeRatio]:
        """Each operation's times, and those of the passes together, relative to an overall ratio."""
        sums = {**{kind: (name,) for kind, name in TIMES.items()}, WHOLE: tuple(PASSES.values())}
        if self.old.backward_s is not None and self.new.backward_s is not None:
            sums[FULL] = _HALVES  # whose spreads count for it
        for operation, names in sums.items():
            before_s, after_s = (
                one.full_s if operation == FULL else _sum_s(one, names) for one in (self.old, self.new)
            )
            if max(before_s, after_s) > 0:
                expected = [overall.ratio] if overall.differs else [overall.ratio, 1.0]
                nearest = min(
                    (_relative(before_s * one, after_s) for one in expected), key=lambda one: abs(math.log(one))
                )
                degree, noise = self.old.tensor_parallel, self.noise(names)
                yield TimeRatio(self.pair, degree, operation, before_s, after_s, nearest, noise)

    def noise(self, names: Sequence[str]) -> float:
        """The noise of the ratio of some operations' times."""
        if self.old.spread is None or self.new.spread is None:
            return UNKNOWN
        return max(FLOOR, WIDTH * math.hypot(*(_relative_spread(cost, names) for cost in (self.old, self.new))))


def _relative(expected_s: float, found_s: float) -> float:
    """The ratio of two times; 1 where a clock does not tell them apart."""
    if abs(found_s - expected_s) < RESOLUTION_S:
        return 1.0
    smallest_s = RESOLUTION_S / 10  # what came or went is a great ratio, though none by zero
    return max(found_s, smallest_s) / max(expected_s, smallest_s)


def _overall(found: Sequence[_CostPair]) -> Overall | None:
    """The median of the passes' ratios, weighted by time, and the median of their noise, weighted alike."""
    weighed = []
    for one in found:
        for name in PASSES.values():
            before_s, after_s = getattr(one.old, name), getattr(one.new, name)
            if min(before_s, after_s) > 0:
                weighed.append((after_s / before_s, math.sqrt(before_s * after_s), one.noise((name,))))
    if not weighed:
        return None
    ratio = _weighted_median((ratio, weight) for ratio, weight, _ in weighed)
    return Overall(ratio, _weighted_median((noise, weight) for _, weight, noise in weighed))


def _weighted_median(values: Iterable[tuple[float, float]]) -> float:
    """The value with half of the weight on either side; values with their weights."""
    ordered = sorted(values)
    half, passed = sum(weight for _, weight in ordered) / 2, 0.0
    for value, weight in ordered:
        passed += weight
        if passed >= half:
            return value
    return ordered[-1][0]


def _is_beyond(ratio: float, noise: float) -> bool:
    return abs(math.log(ratio)) > math.log1p(noise)


def _sum_s(cost: LayerCost, names: Sequence[str]) -> float:
    return math.fsum(getattr(cost, name) for name in names)


def _relative_spread(cost: LayerCost, names: Sequence[str]) -> float:
    """The spread of a sum of operations over the sum: they are disturbed together, so their spreads add up."""
    time_s = _sum_s(cost, names)
    return math.fsum(getattr(cost.spread, name) for name in names) / time_s if time_s else 0.0


def _with_usual_spread(profile: Profile) -> Profile:
    """A profile in which no spread is less, relative to its time, than the median of its operation's over all costs."""
    costs = [cost for layer in profile.layers for cost in layer.costs if cost.spread is not None]
    usual = {}
    for name in TIMES.values():
        found = [_relative_spread(cost, (name,)) for cost in costs if getattr(cost, name) > 0]
        usual[name] = median(found) if found else 0.0

    def widened(cost: LayerCost) -> LayerCost:
        if cost.spread is None:
            return cost
        widths = {name: max(getattr(cost.spread, name), share * getattr(cost, name)) for name, share in usual.items()}
        return replace(cost, spread=Spread(**widths))

    layers = (replace(one, costs=tuple(map(widened, one.costs))) for one in profile.layers)
    return replace(profile, layers=tuple(layers))


def _pairs(a: Sequence[Layer], b: Sequence[Layer]) -> list[Pair]:
    if len(a) == len(b):
        return [(index, index) for index in range(len(a))]
    matcher = SequenceMatcher(None, [_plain_name(one) for one in a], [_plain_name(one) for one in b], autojunk=False)
    return [(m.a + place, m.b + place) for m in matcher.get_matching_blocks() for place in range(m.size)]


def _plain_name(layer: Layer) -> str:
    """A layer's name without the numbers that count layers: `3 Block` and `layers.3` are like `4 Block`, `layers.4`."""
    return re.sub(r"\d+", "", layer.name or "")


def _given(a: Profile, b: Profile) -> Iterator[Fact]:
    """What profiles say beside their layers."""
    for name in _GIVEN:
        yield from _differences((name,), to_tree(getattr(a, name), name), to_tree(getattr(b, name), name))
    yield from (fact for fact in _differences(("overlap",), a.overlap, b.overlap) if not _is_alike(fact, FLOOR))
    for fact in _differences(("network",), to_tree(a.network), to_tree(b.network)):
        if not _is_alike(fact, NETWORK):
            yield fact


def _is_alike(fact: Fact, share: float) -> bool:
    """Whether both are numbers, the larger one by no more than such a share."""
    numbers = [value for value in (fact.before, fact.after) if isinstance(value, int | float) and value > 0]
    return len(numbers) == 2 and max(numbers) <= min(numbers) * (1 + share)


def _differences(place: tuple[str, ...], before: Any, after: Any) -> Iterator[Fact]:
    """Values that differ, in objects within objects."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({**before, **after}):
            yield from _differences((*place, name), before.get(name), after.get(name))
    elif before != after:
        yield Fact(pointer(place), (), before, after)


def _layer_facts(a: Sequence[Layer], b: Sequence[Layer], pairs: Sequence[Pair]) -> Iterator[Fact]:
    """Layers that came and went, and what is not the same of the others; one fact for all layers with the same."""
    gone = sorted(set(range(len(a))) - {old for old, _ in pairs})
    new = sorted(set(range(len(b))) - {place for _, place in pairs})
    yield from (Fact(f"/layers/{index}", (index,), a[index].name or f"layer {index}", None) for index in gone)
    yield from (Fact(f"/layers/{index}", (index,), None, b[index].name or f"layer {index}") for index in new)
    for name in (*_SIZES, *_TIES):
        yield from _grouped(name, [(new, getattr(a[old], name), getattr(b[new], name)) for old, new in pairs])
    yield from _grouped("costs", [(new, _degrees(a[old]), _degrees(b[new])) for old, new in pairs])
    if len(a) == len(b):  # else numbers in names are others
        yield from _grouped("name", [(new, a[old].name, b[new].name) for old, new in pairs])


def _degrees(layer: Layer) -> list[int]:
    return sorted(cost.tensor_parallel for cost in layer.costs)


def _grouped(name: str, values: Sequence[tuple[int, Any, Any]]) -> Iterator[Fact]:
    """What differs in an attribute of layers: their places with the values before and after."""
    groups: dict[str, list[tuple[int, Any, Any]]] = {}
    for index, before, after in values:
        if before != after:
            groups.setdefault(repr((before, after)), []).append((index, before, after))
    for group in groups.values():
        layers = tuple(index for index, _, _ in group)
        yield Fact(f"/layers/{layers[0]}/{name}", layers, group[0][1], group[0][2])


def noise_of(times: Iterable[TimeRatio]) -> float | None:
    """The median noise of times: how large a difference shows; None where there are none."""
    noises = [one.noise for one in times]
    return median(noises) if noises else None
