"""Standard output that cannot be written: a full disk is one error, a reader that has gone is none."""

import os
from itertools import product
from pathlib import Path

import pytest

from .shell import endings

# What each of them loads by itself is loaded once for all, and nobody looks for garbage in it at its end.
LOAD = """
import gc, io
from importlib import import_module
from rtk.cli.main import main
for name in ("cli.explain", "cli.trace", "cli.verify", "cli.viz", "planners.explain.what_if", "viz.gantt", "wiring"):
    import_module(f"rtk.{name}")
for name in ("matplotlib.axes", "pydantic", "rich.table"):
    import_module(name)
gc.freeze()
"""
PLAN = Path(__file__).parents[1] / "golden" / "plan-two-stages.json"
SPOT = "".join(f"0,add,{node}\n" for node in "abcdefgh") + "600000,remove,c\n3600000,remove,a\n"
# A document, a table, lines of text, a chart, help, a version: all the ways in which commands write.
COMMANDS = {
    "document": ("explain", str(PLAN), "--json"),
    "table": ("trace", "show", "spot.csv"),
    "words": ("verify", str(PLAN)),
    "chart": ("viz", str(PLAN)),
    "help": ("--help",),
    "version": ("--version",),
}
# What they write to; the pipe's reader has gone.
OUTPUTS = {"disk": 'os.dup2(os.open("/dev/full", os.O_WRONLY), 1)', "pipe": ""}
# Python writes when the process ends, or at once: then standard output is what PYTHONUNBUFFERED makes of it.
WAYS = {
    "buffered": "",
    "unbuffered": 'sys.stdout = io.TextIOWrapper(open(1, "wb", 0, closefd=False), write_through=True)',
}
Found = dict[tuple[str, str, str], tuple[int, str]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The exit code and errors of each command, each in a process of its own that ends as the interpreter does."""
    place = tmp_path_factory.mktemp("output")
    (place / "spot.csv").write_text(SPOT)
    cases = [*product(OUTPUTS, WAYS, COMMANDS)]
    scripts = [f"{OUTPUTS[output]}\n{WAYS[way]}\nmain({COMMANDS[command]!r})" for output, way, command in cases]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        return dict(zip(cases, endings(LOAD, scripts, pipe.fileno(), place), strict=True))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("way", WAYS)
def test_a_full_disk_is_one_error(way: str, found: Found) -> None:
    """Exit code 2, as for a file that cannot be written, and nothing but what, where and what to do."""
    for command in COMMANDS:
        code, told = found["disk", way, command]
        told_lines = [line.partition(":")[0] for line in told.splitlines()]
        assert (code, told_lines) == (2, ["error", "at", "do"]), command
        assert told.startswith("error: cannot write: No space left on device\nat: standard output\n"), command


@pytest.mark.parametrize("way", WAYS)
def test_a_reader_that_has_gone_is_no_error(way: str, found: Found) -> None:
    """Exit code 0 and not a word, as when `head` has seen enough."""
    assert [found["pipe", way, command] for command in COMMANDS] == [(0, "")] * len(COMMANDS)
