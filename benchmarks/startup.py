"""How long commands take to start: `python benchmarks/startup.py [COMMAND…] [-o FILE]`.

Wall-clock seconds, medians of 10 runs. Another checkout is measured where PYTHONPATH has a folder that has it as `rtk`.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from rtk.benchmarks.common import in_turns, spread, write_result

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
PLAN = str(GOLDEN / "plan-two-stages.json")
TURNS, RUNS = 2, 5
COMMANDS = {
    "rtk --version": ["--version"],
    "rtk --help": ["--help"],
    "rtk plan --help": ["plan", "--help"],
    "rtk run --help": ["run", "--help"],
    "rtk verify PLAN": ["verify", PLAN],
    "rtk plan pipeline": ["plan", "pipeline", str(GOLDEN / "profile-slots4.json"), "--pp", "4", "--dp", "3"],
    "rtk profile WRONG-NAME": ["profile", "gpt-tinny"],
    "rtk run PLAN --model WRONG-NAME": ["run", PLAN, "--model", "gpt-tinny"],
}


def seconds(command: list[str]) -> float:
    """Wall-clock time of one run of a command."""
    start_s = time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=False)
    took_s = time.perf_counter() - start_s
    assert done.returncode in (0, 2) and b"Traceback" not in done.stderr, done.stderr
    return took_s


def main() -> None:
    """Measure in turns and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", help=f"some of {', '.join(COMMANDS)}; by default all")
    parser.add_argument("-o", "--output", default="-")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        planned = ["--microbatches", "6", "--schedule", "zero-bubble", "-o", str(Path(folder) / "plan.json")]
        commands = {"python -c pass": ["-c", "pass"]}
        for name in asked.commands or COMMANDS:
            more = planned if name == "rtk plan pipeline" else []
            commands[name] = ["-c", "from rtk.cli.main import main; main()", *COMMANDS[name], *more]
        sides = {name: partial(seconds, [sys.executable, *arguments]) for name, arguments in commands.items()}
        times = in_turns(sides, TURNS, RUNS)
    result = {name: spread([value for turn in turns for value in turn]) for name, turns in times.items()}
    write_result(result, asked.output)


if __name__ == "__main__":
    main()
