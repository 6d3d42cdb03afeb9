"""Hypothesis, tuned for every machine alike: the same examples each time, no clock in them, a moderate number.

And what tests of several folders share.
"""

import compileall
import gc
import os
import signal
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]

# The emulated network is not in the wheel; against that, what needs it is not even read.
IN_CHECKOUT_ONLY = ["test_detours.py", "test_examination.py", "test_sidesteps.py", "test_slow_network.py"]
collect_ignore = [] if find_spec("rtk.benchmarks.slow_network") else [f"runners/{name}" for name in IN_CHECKOUT_ONLY]

settings.register_profile(
    "rtk",
    derandomize=True,
    deadline=None,
    max_examples=24,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("rtk")

# A shell starts what it puts into the background deaf to Ctrl-C, and so are all its children: tests that press it, in
# this process or in one of its own, would wait until their time is up.
for number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    """rtk is compiled once, before workers begin: else each process of the tests would do so, a second of each.

    Where the environment forbids Python to keep what it compiles (PYTHONDONTWRITEBYTECODE, as in many containers), it
    is read all the same.
    """
    if hasattr(config, "workerinput"):
        return
    for package in PACKAGES:
        compileall.compile_dir(ROOT.joinpath(*package.split(".")[1:]), maxlevels=0, quiet=2)


def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: tests of real processes mostly wait."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is loaded to collect tests stays: looking for garbage in it again and again takes every process seconds.

    And torch computes alone in each process of the tests. Its threads wait for each other by spinning: where others
    compute as well, small models take 40 times as much of the processors as one thread does. And the tests' own files
    are kept as pytest has compiled them, whatever the environment says, for the next time.
    """
    gc.disable()
    keeps_nothing, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = keeps_nothing
        gc.freeze()
        gc.enable()
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)


# Files of a few long tests, which come first: else the last of them keeps one process alone when all others are done.
LONG = ("test_tour_training.py", "papers/test_slipstream.py", "test_pages.py", "test_tour_profiling.py", "test_tour.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long files first, all others in their order."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local search gives up after a tenth of its tries: for tests of what holds however long it searches."""
    monkeypatch.setattr("rtk.planners.scheduling.solve.ANNEALING_RUNS", 600)
    monkeypatch.setattr("rtk.planners.scheduling.solve.MOVES", 2000)
    monkeypatch.setattr("rtk.planners.placement.search.ANNEALING_RUNS", 600)
    monkeypatch.setattr("rtk.planners.placement.moves.MOVES", 2000)
