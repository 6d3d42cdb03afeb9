"""How long commands take to start: `python benchmarks/startup.py [-o FILE]`. Wall-clock seconds, medians of 15 runs."""

import argparse
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from rtk.benchmarks.common import in_turns, spread, write_result

PROFILE = Path(__file__).parents[1] / "tests" / "golden" / "profile-slots4.json"
RUNS = 15


def seconds(command: list[str]) -> float:
    """Wall-clock time of one run of a command."""
    start_s = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start_s


def main() -> None:
    """Measure in turns and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="-")
    output = parser.parse_args().output
    rtk = str(Path(sys.executable).with_name("rtk"))
    with tempfile.TemporaryDirectory() as folder:
        plan = ["plan", "pipeline", str(PROFILE), "--pp", "4", "--dp", "3", "--microbatches", "6"]
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "rtk --help": [rtk, "--help"],
            "rtk plan pipeline": [rtk, *plan, "--schedule", "zero-bubble", "-o", str(Path(folder) / "plan.json")],
        }
        times = in_turns({name: partial(seconds, command) for name, command in commands.items()}, RUNS, 1)
    write_result({name: spread([value for turn in turns for value in turn]) for name, turns in times.items()}, output)


if __name__ == "__main__":
    main()
