"""Damaged files given to the commands that read them: `python benchmarks/fuzz.py [--cases N] [--seed S] [-o FILE]`.

Every kind of file that rtk reads is damaged where it has its structure (`tests/fuzz/mutation.py`), and given to the
commands that read it (`tests/fuzz/samples.py`), in processes that may not grow by more than a gigabyte. A case is right
if it ends within 5 s of CPU, with a documented exit code, without a traceback, and with nothing written where it
failed (`tests/fuzz/cases.py`). `--only` takes some of the four groups; `--case` repeats one case of a group, and
`--keep` names a folder for the damaged files of cases that are not right.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.tests.fuzz.cases import fuzz
from rtk.tests.fuzz.samples import TARGETS

GROUPS = sorted({target.group for target in TARGETS})
BATCH = 500  # cases a process: what grows from case to case is no single case's fault


def main() -> None:
    """Run the cases, write what came of them, and end with 1 if any was not right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000, help="how many in all, the groups in turns")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=GROUPS, action="append", help="a group of files; repeatable")
    parser.add_argument("--case", type=int, help="only this case of the one group of --only, in this process")
    parser.add_argument("--batch", type=int, nargs=2, metavar=("FIRST", "STOP"), help=argparse.SUPPRESS)
    parser.add_argument("--keep", type=Path, help="a folder for damaged files")
    parser.add_argument("-o", "--output", default="-", help="where to write the JSON")
    asked = parser.parse_args()
    groups = asked.only or GROUPS
    if asked.case is not None or asked.batch is not None:
        first, stop = asked.batch or (asked.case, asked.case + 1)
        print(json.dumps(asdict(fuzz(groups, range(first, stop), asked.seed, asked.keep))))
        return
    found: list[dict[str, Any]] = []
    for one in in_batches(groups, asked.cases // len(groups), asked.seed, asked.keep):
        found.append(one)
        if asked.output != "-":
            write_result(summed(found, asked.seed), asked.output)  # what an interruption leaves is as good, but less
    result = summed(found, asked.seed)
    write_result(result, asked.output)
    sys.exit(1 if result["findings"] else 0)


def in_batches(groups: list[str], cases: int, seed: int, keep: Path | None) -> Iterator[dict[str, Any]]:
    """So many cases of each group, in processes of their own."""
    for first in range(0, cases, BATCH):
        for group in groups:
            yield _batch(group, first, min(first + BATCH, cases), seed, keep)


def summed(found: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """What came of some batches together."""
    codes = sum((Counter(one["codes"]) for one in found), Counter[str]())
    findings = [finding for one in found for finding in one["findings"]]
    return {
        "seed": seed,
        "cases": sum(one["cases"] for one in found),
        "exit_codes": dict(sorted(codes.items())),
        "wrong": dict(Counter(finding["what"] for finding in findings)),
        "findings": findings,
        "slowest_s": max(one["slowest_s"] for one in found),
        "grown_bytes": max(one["grown_bytes"] for one in found),
    }


def _batch(group: str, first: int, stop: int, seed: int, keep: Path | None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--only", group, "--batch", str(first), str(stop), "--seed", str(seed)]
    done = subprocess.run(
        [*command, *(("--keep", str(keep)) if keep else ())], capture_output=True, text=True, check=False
    )
    if done.returncode:
        stuck = {"case": {"number": first, "group": group}, "what": "the process ended", "output": done.stderr[-5000:]}
        return {"cases": stop - first, "codes": {}, "findings": [stuck], "slowest_s": 0.0, "grown_bytes": 0}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
