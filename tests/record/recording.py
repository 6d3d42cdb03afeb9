"""The record of behaviour: what commands over all verbs and formats write, kept as digests, byte for byte.

Every command of `commands.py` runs in this process, in a folder of its own that holds a copy of `inputs/`. What it
writes on its streams and into files is made steady (`steady`), and its digest, its size and how it begins stand in a
JSON file for each group of commands. `python -m rtk.tests.record` rewrites these; `python -m rtk.tests.record FOLDER`
writes all outputs in full into a folder instead, so that those of two versions can be compared with `diff -r`.
"""

import gzip
import hashlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rtk import __version__

from ..cli.shell import rtk
from .commands import GROUPS

HERE = Path(__file__).parent
SURROUNDINGS = {"COLUMNS": "80", "NO_COLOR": "1", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
CLOCK = re.compile(r'(?<="unix_time_s": )\d+(\.\d+)?')
DECIMAL = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?")
SIGNIFICANT, WRITTEN_OUT = 9, 13  # digits that are kept of a number that has so many or more
BEGINNING = 100

Outputs = dict[str, str]  # by "stdout", "stderr", and names of files
Outcome = dict[str, Any]


def run(line: str, folder: Path) -> tuple[int, Outputs]:
    """Run a command in a folder, filled for it, and give its exit code and whatever it wrote, made steady.

    What follows `<` is the file that it reads on standard input.
    """
    shutil.copytree(HERE / "inputs", folder, dirs_exist_ok=True)
    before = _contents(folder)
    command, _, given = line.partition(" < ")
    stdin = (folder / given).read_text() if given else None
    # Usage errors name the program after these two: it is to be `rtk`, whether pytest or `python -m` runs us.
    program = (patch.object(sys, "argv", ["rtk"]), patch.object(sys.modules["__main__"], "__package__", None))
    with program[0], program[1]:
        done = rtk(*command.split(), stdin=stdin, cwd=folder, environment=SURROUNDINGS)
    written = {name: data for name, data in _contents(folder).items() if before.get(name) != data}
    gone = dict.fromkeys(before.keys() - _contents(folder).keys(), b"(removed)")
    streams = {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    outputs = {name: steady(data, name, folder) for name, data in {**streams, **written, **gone}.items() if data}
    return done.returncode, outputs


def steady(data: bytes, name: str, folder: Path) -> str:
    """What a command wrote without what depends on the machine, the clock, or Python's version.

    What is packed is unpacked; the command's folder, rtk's version, and the time of an event, are replaced by words;
    and of numbers that are written out in full 9 digits count, for Python 3.12 adds up floats in another way than 3.11.
    """
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode(errors="backslashreplace")
    text = text.replace(str(folder), "FOLDER").replace(__version__, "VERSION")
    text = CLOCK.sub("NOW", text)
    return DECIMAL.sub(lambda found: _rounded(found[0]), text)


def outcome(line: str, folder: Path) -> Outcome:
    """What is recorded of a command: its exit code, and of whatever it wrote digest, size and beginning."""
    code, outputs = run(line, folder)
    return {"exit": code, **{name: _told(text) for name, text in sorted(outputs.items())}}


def recorded(group: str) -> dict[str, Outcome]:
    """What stands on record for a group's commands."""
    record: dict[str, Outcome] = json.loads((HERE / f"{group}.json").read_text())
    return record


def check(group: str, line: str, folder: Path) -> None:
    """Compare what a command does now to what is on record; the error shows both."""
    was, now = recorded(group).get(line, {}), outcome(line, folder)
    differences = [
        f"{name}\n  was {was.get(name)}\n  is  {now.get(name)}"
        for name in sorted(was.keys() | now.keys())
        if was.get(name) != now.get(name)
    ]
    hint = "`python -m rtk.tests.record FOLDER` at both versions and `diff -r` show it; without FOLDER it is recorded."
    assert not differences, "\n".join([f"rtk {line}", *differences, hint])


def rewrite(folder: Path) -> None:
    """Put on record what all commands do now."""
    for group, lines in GROUPS.items():
        record = {line: outcome(line, folder / f"{group}-{number}") for number, line in enumerate(lines)}
        (HERE / f"{group}.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def write_out(target: Path, folder: Path) -> None:
    """Write all outputs in full, a folder a command, called by its first words and a digest of the line."""
    for lines in GROUPS.values():
        for line in lines:
            key = hashlib.sha256(line.encode()).hexdigest()[:6]
            place = target / f"{re.sub('[^a-z0-9]+', '-', line)[:60]}-{key}"
            code, outputs = run(line, folder / key)
            for name, text in {"command": f"{line}\n{code}\n", **outputs}.items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_text(text)


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def _rounded(number: str) -> str:
    if len(number) < WRITTEN_OUT:
        return number
    return repr(float(f"{float(number):.{SIGNIFICANT}g}"))


def _told(text: str) -> dict[str, Any]:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {"sha256": digest, "bytes": len(text.encode()), "begins": " ".join(text[:BEGINNING].split())}
