"""Reproductions made once for all tests of a file, with what of rtk each of them asked."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any
from unittest.mock import patch

from rtk import planners
from rtk.benchmarks.papers import catalogue, telling
from rtk.benchmarks.papers.reproduction import Basis, Reproduction

PAGE = Path(__file__).parents[2] / "docs" / "reproductions.md"
# Doors through which planners, simulator and detectors are asked, by folder of `planners/` and by basis.
DOORS = {
    "pipeline": ("planners.pipeline:plan_pipeline",),
    "slipstream": ("planners.slipstream.replanner:Replanner.entry", "planners.slipstream.replanner:Replanner.in_place"),
    "oobleck": ("planners.oobleck.templates:plan_templates", "planners.oobleck.assignment:reinstantiate"),
    "batch": ("planners.batch.distribute:distribute",),
    "greyhound": ("planners.greyhound.mitigate:plan_topology",),
    "adaptra": ("planners.adaptra.plan:plan_adaptra",),
    "policies": ("planners.recovery.catalogue:policy",),
    "scheduling": ("planners.scheduling.solve:solve",),
    Basis.SIMULATED: (
        "runners.simulator:simulate",
        "runners.simulator:execute",
        "runners.replay.engine:replay",
    ),
    Basis.DETECTED: (
        "profilers.failslow.tracker:track",
        "profilers.failslow.calls.iterations:Periods.note",
    ),
}
PLANNERS = tuple(folder for folder in DOORS if not isinstance(folder, Basis))


@dataclass(frozen=True)
class Made:
    """A reproduction, and how often each door was opened for it."""

    reproduction: Reproduction
    asked: Counter[str]


@cache
def made(name: str) -> Made:
    """One, made once, from nothing: no other one's cached results are used."""
    forget()
    with counting() as asked:
        return Made(catalogue.reproduce(name), asked)


def forget() -> None:
    """Empty the caches of all reproductions."""
    for module in [one for name, one in sys.modules.items() if name.startswith("rtk.benchmarks.papers")]:
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def load() -> None:
    """Load whatever could ask planners, for what is loaded while doors are watched would keep the watched ones."""
    for name in catalogue.names():
        catalogue.maker(name)
    for module in walk_packages(planners.__path__, "rtk.planners."):
        import_module(module.name)


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count openings of doors, wherever a module has them by name."""
    load()
    asked: Counter[str] = Counter()
    patches = [one for kind, doors in DOORS.items() for door in doors for one in _patches(kind, door, asked)]
    for one in patches:
        one.start()
    try:
        yield asked
    finally:
        for one in reversed(patches):
            one.stop()


def _patches(kind: str, door: str, asked: Counter[str]) -> Iterator[Any]:
    module, _, path = door.partition(":")
    owner: Any = import_module(f"rtk.{module}")
    *classes, name = path.split(".")
    for one in classes:
        owner = getattr(owner, one)
    function = getattr(owner, name)
    counted = _counted(kind, function, asked)
    yield patch.object(owner, name, counted)
    for other in [one for key, one in sys.modules.items() if key.startswith("rtk.")]:
        if other is not owner and vars(other).get(name) is function:
            yield patch.object(other, name, counted)


def _counted(kind: str, function: Callable[..., Any], asked: Counter[str]) -> Callable[..., Any]:
    @wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        asked[kind] += 1
        return function(*arguments, **named)

    return counted


def names_of(paper: str) -> list[str]:
    """The names of a paper's reproductions."""
    return [name for name in catalogue.names() if name.startswith(paper)]


def require_truth(name: str) -> None:
    """A row says how it came about: whoever is named was asked, and nobody who is not."""
    one, asked = made(name).reproduction, made(name).asked
    bases = {row.basis for row in one.rows}
    assert one.name == name
    assert set(one.planners) <= {folder for folder in PLANNERS if asked[folder]}
    assert bool(one.planners) == any(asked[folder] for folder in PLANNERS)
    assert Basis.PLANNED not in bases or one.planners
    assert Basis.SIMULATED not in bases or asked[Basis.SIMULATED]
    assert (Basis.DETECTED in bases) == bool(asked[Basis.DETECTED])
    assert all(row.basis is not Basis.QUOTED or not row.fitted for row in one.rows)


def require_on_page(name: str) -> None:
    """The page has what the generator writes of it: its section, and its line of the summary."""
    page = PAGE.read_text()
    assert telling.section(made(name).reproduction) in page, (
        f"rtk reproduce all --markdown docs/reproductions.md: {name}"
    )
    assert telling.summary_line(made(name).reproduction) in page.splitlines()


def require_rows_on_page(name: str) -> None:
    """The page has what the generator writes line by line: for what is made in part."""
    lines = telling.section(made(name).reproduction).splitlines()
    assert [line for line in lines if line not in PAGE.read_text().splitlines()] == []
