"""What reproductions start from: times recorded here, the artifacts' traces, and profiles as drawn."""

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import as_file, files
from typing import Any

from ...runners.traces.read import read_moments
from ...schemas.profile import Layer, LayerCost, Profile
from ...schemas.replay import Moment

FILE = "measured.json"  # which `benchmarks/paper_times.py` writes: times, mostly


@cache
def measured(name: str) -> Any:
    """What is recorded for a table or figure, by the name of its reproduction."""
    return json.loads((files(__package__) / FILE).read_text())[name]


@cache
def moments_of(file: str) -> tuple[Moment, ...]:
    """The moments of a trace of spot instances in `traces/`, the fleet at the start first."""
    with as_file(files(__package__) / "traces" / file) as path:
        return tuple(read_moments(str(path)))


def stages_profile(works: Sequence[float]) -> Profile:
    """Stages as figures draw them, a layer each: F, I and W are a third of its work, state and activations a byte."""
    return Profile(
        tuple(
            Layer((LayerCost(work / 3, work / 3, work / 3),), parameter_bytes=1.0, activation_bytes=1.0)
            for work in works
        )
    )
