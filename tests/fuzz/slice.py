"""A slice of what `benchmarks/fuzz.py` does for the suite: the same cases each time, in a process that may not grow."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __name__ != "worker":
    from ..warm import fork

CASES = 48


def wrong_cases(group: str) -> list[Any]:
    """The cases of a group of files that are not right; each can be repeated: `fuzz.py --only GROUP --case NUMBER`."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "tally.json"
        process = fork(__file__, group, told)
        process.join(170)
        assert process.exitcode == 0
        tally = json.loads(told.read_text())
    assert tally["cases"] == CASES
    assert tally["codes"].keys() >= {"0", "2"}  # some are answered, and some refused
    return list(tally["findings"])


def _tell_cases(group: str, told: Path) -> None:
    """Run the cases of a group, and write what came of them."""
    from rtk.tests.fuzz.cases import fuzz

    told.write_text(json.dumps(asdict(fuzz([group], range(CASES), 0))))


if __name__ == "worker":
    _tell_cases(*globals()["ARGUMENTS"])
