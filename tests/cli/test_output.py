"""Standard output that cannot be written: a full disk is one error, a reader that has gone is none."""

import os
from pathlib import Path

import pytest

from .shell import endings

# What each of them loads by itself is loaded once for all.
LOAD = """
from importlib import import_module
from rtk.cli.main import main
for verb in ("explain", "trace", "verify", "viz"):
    import_module(f"rtk.cli.{verb}")
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
# Python writes at once, or when the process ends.
BUFFERED = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])


def run(tmp_path: Path, output: int, unbuffered: str) -> dict[str, tuple[int, str]]:
    """Each command's exit code and errors, in a process of its own that ends as the interpreter does."""
    (tmp_path / "spot.csv").write_text(SPOT)
    scripts = [f"main({arguments!r})" for arguments in COMMANDS.values()]
    found = endings(LOAD, scripts, output, tmp_path, {"PYTHONUNBUFFERED": unbuffered})
    return dict(zip(COMMANDS, found, strict=True))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@BUFFERED
def test_a_full_disk_is_one_error(tmp_path: Path, unbuffered: str) -> None:
    """Exit code 2, as for a file that cannot be written, and nothing but what, where and what to do."""
    with Path("/dev/full").open("wb") as full:
        found = run(tmp_path, full.fileno(), unbuffered)
    for command, (code, told) in found.items():
        told_lines = [line.partition(":")[0] for line in told.splitlines()]
        assert (code, told_lines) == (2, ["error", "at", "do"]), command
        assert told.startswith("error: cannot write: No space left on device\nat: standard output\n"), command


@BUFFERED
def test_a_reader_that_has_gone_is_no_error(tmp_path: Path, unbuffered: str) -> None:
    """Exit code 0 and not a word, as when `head` has seen enough."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        assert run(tmp_path, pipe.fileno(), unbuffered) == dict.fromkeys(COMMANDS, (0, ""))
