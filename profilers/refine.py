"""A Profile corrected by measured Timelines: what stages took says how long their layers take.

A stage's time is the sum of its layers'. So each layer's cost is scaled by what its stage took, over what the profile
says it takes. Several timelines with different cuts give finer factors: a layer's is the product of one for each
stage that it was measured in, such that all the stages' sums agree with the measurements; of all profiles whose sums
do, this is the one closest to the profile before (by the Kullback-Leibler divergence). It is found by multiplicative
updates, all stages at once (SMART: Byrne, IEEE Trans. Image Processing 2 (1993) 96). One timeline takes one update.
Where timelines contradict each other the sums lie between them.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..schemas.documents import digest
from ..schemas.errors import InvalidInputError
from ..schemas.profile import TIMES, Layer, LayerCost, Profile, Spread
from .stage_readings import Reading, Run, SlowWorker, readings_of

Floats: TypeAlias = NDArray[np.float64]

ROUNDS = 20_000
SETTLED = 1e-13  # the largest change of a factor's logarithm
_PARTS: dict[str, tuple[str, ...]] = {"B": ("I", "W")} | {kind: (kind,) for kind in TIMES}


@dataclass(frozen=True, slots=True)
class Refinement:
    """A refined profile, what it rests on, and who was left out."""

    profile: Profile
    readings: tuple[Reading, ...]
    slow: tuple[SlowWorker, ...]


def refine(profile: Profile, runs: Sequence[Run]) -> Refinement:
    """Correct a profile's times by what was measured; its bytes, sizes and network stay as they are.

    * What counts as a stage's time is told in `readings_of`.
    * A B corrects the sum of I and W, which keep their shares.
    * A layer's factor holds for all its tensor-parallel degrees.
    * The spread becomes the readings', relative to the stage's time; where there are too few to say (measure.py) it
      stays as it was, relative to the time.
    * Of an operation that takes no time in the profile nothing can be scaled: it stays so.
    * `origin` becomes "measured" once every time in the profile has been corrected; `model["refined"]` says by which
      timelines, and which profile and origin there were before: bytes are still of that origin.

    Args:
        profile: what to correct.
        runs: measured timelines; at least one.

    Raises:
        InvalidInputError: a timeline is simulated, paced or without operations, a worker that nobody knows, or layers
            or degrees that the profile does not have.
    """
    found = [readings_of(run, number, len(profile.layers)) for number, run in enumerate(runs)]
    readings = [_with_before(reading, profile) for own, _ in found for reading in own]
    factors, is_corrected = _factors(profile, [reading for reading in readings if reading.before_s > 0])
    spreads = _spreads(len(profile.layers), readings)
    layers = tuple(
        replace(layer, costs=tuple(_scaled(cost, factors[:, index], spreads[:, index]) for cost in layer.costs))
        for index, layer in enumerate(profile.layers)
    )
    refined = replace(
        profile,
        layers=layers,
        origin="measured" if _is_all(profile, is_corrected) else profile.origin,
        model={**profile.model, "refined": _history(profile, runs)},
    )
    after = tuple(replace(reading, after_s=_sum_s(refined.layers, reading)) for reading in readings)
    return Refinement(refined, after, tuple(slow for _, own in found for slow in own))


def contradictions(refinement: Refinement) -> Counter[int]:
    """How many readings of each run the refined profile is more than 1 % away from: runs that contradict each other."""
    return Counter(
        reading.run
        for reading in refinement.readings
        if reading.before_s > 0 and abs(reading.after_s - reading.measured_s) > 0.01 * reading.measured_s
    )


def _history(profile: Profile, runs: Sequence[Run]) -> dict[str, object]:
    return {
        "profile": digest(profile),
        "origin": profile.origin,
        "timelines": [digest(run.timeline) for run in runs],
    }


def _with_before(reading: Reading, profile: Profile) -> Reading:
    return replace(reading, before_s=_sum_s(profile.layers, reading))


def _sum_s(layers: Sequence[Layer], reading: Reading) -> float:
    first, stop = reading.layers
    costs = (_cost(layers[index], index, reading.tensor_parallel) for index in range(first, stop))
    return math.fsum(getattr(cost, TIMES[part]) for cost in costs for part in _PARTS[reading.operation])


def _cost(layer: Layer, index: int, degree: int) -> LayerCost:
    for cost in layer.costs:
        if cost.tensor_parallel == degree:
            return cost
    raise InvalidInputError(
        f"there is no cost at tensor_parallel {degree}",
        where=f"the profile, /layers/{index}/costs",
        fix="profile that degree",
    )


def _factors(profile: Profile, readings: Sequence[Reading]) -> tuple[Floats, NDArray[np.bool_]]:
    """What to multiply each time by, and which were measured; arrays of 4 operations (as in TIMES) by layers."""
    shape = len(TIMES), len(profile.layers)
    if not readings:
        return np.ones(shape), np.zeros(shape, dtype=np.bool_)
    costs = np.array([_row(profile, reading).ravel() for reading in readings])  # readings by (operations · layers)
    measured_s = np.array([max(reading.measured_s, 1e-12) for reading in readings])
    holds = costs > 0
    share = 1 / max(int(holds.sum(axis=0).max()), 1)  # so that the updates of one layer do not add up to too much
    logs = np.zeros(costs.shape[1])
    for _ in range(ROUNDS):
        update = share * (np.log(measured_s / (costs @ np.exp(logs))) @ holds)
        logs += update
        if share == 1 or np.abs(update).max() < SETTLED:
            break
    return np.exp(logs).reshape(shape), holds.any(axis=0).reshape(shape)


def _row(profile: Profile, reading: Reading) -> Floats:
    """What the profile says of each operation and layer that a reading sums up; array of 4 operations by layers, s."""
    row = np.zeros((len(TIMES), len(profile.layers)))
    for number, (kind, name) in enumerate(TIMES.items()):
        if kind in _PARTS[reading.operation]:
            for index in range(*reading.layers):
                row[number, index] = getattr(_cost(profile.layers[index], index, reading.tensor_parallel), name)
    return row


def _spreads(layers: int, readings: Iterable[Reading]) -> Floats:
    """The relative spread of what each operation and layer was measured in, the largest; NaN where nobody says one."""
    spreads = np.full((len(TIMES), layers), np.nan)
    for reading in readings:
        for number, kind in enumerate(TIMES):
            if kind in _PARTS[reading.operation]:
                own = spreads[number, slice(*reading.layers)]
                spreads[number, slice(*reading.layers)] = np.fmax(own, reading.spread)
    return spreads


def _scaled(cost: LayerCost, factors: Floats, spreads: Floats) -> LayerCost:
    """A cost times factors; arrays of 4 operations, as in TIMES."""
    times = {name: getattr(cost, name) * float(factor) for name, factor in zip(TIMES.values(), factors, strict=True)}
    widths = dict(_widths(cost, times, factors, spreads))
    spread = Spread(**widths) if set(TIMES.values()) - {"optimizer_s"} <= set(widths) else None
    return replace(cost, **times, spread=spread)


def _widths(
    cost: LayerCost, times: Mapping[str, float], factors: Floats, spreads: Floats
) -> Iterator[tuple[str, float]]:
    """The spread of each operation, where it is known."""
    for name, factor, spread in zip(TIMES.values(), factors, spreads, strict=True):
        if not math.isnan(spread):
            yield name, times[name] * float(spread)
        elif cost.spread is not None:
            yield name, getattr(cost.spread, name) * float(factor)


def _is_all(profile: Profile, is_corrected: NDArray[np.bool_]) -> bool:
    """Whether every time that is not zero was corrected."""
    return all(
        is_corrected[number, index] or not any(getattr(cost, name) for cost in layer.costs)
        for number, name in enumerate(TIMES.values())
        for index, layer in enumerate(profile.layers)
    )
