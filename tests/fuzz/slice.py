"""A slice of `benchmarks/fuzz.py` for the suite: the same cases each time, in a process that may not grow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"
CASES = 200


def wrong_cases(group: str) -> list[Any]:
    """The cases of a group of files that are not right; each can be repeated: `fuzz.py --only GROUP --case NUMBER`."""
    command = [sys.executable, str(FUZZ), "--only", group, "--batch", "0", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    tally = json.loads(done.stdout)
    assert tally["cases"] == CASES
    assert tally["codes"].keys() >= {"0", "2"}  # some are answered, and some refused
    return list(tally["findings"])
