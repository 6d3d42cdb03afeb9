"""`python -m rtk.tests.cpu [--json FILE] [pytest's arguments]`: run tests, and print the processor time of each file.

A test's time is this process's and that of all that it has started, alive or ended, with its fixtures: what is set up
for several tests counts for the first of them. Time of a process that outlives its parent is lost.
"""

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TICK = 1 / os.sysconf("SC_CLK_TCK")


def processor_time() -> float:
    """Seconds of this process and of everything beneath it."""
    times: dict[int, int] = {}
    below: defaultdict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        below[int(fields[1])].append(int(folder.name))
        times[int(folder.name)] = sum(map(int, fields[11:15]))  # user and system, its own and of children waited for
    family = [os.getpid()]
    for process in family:
        family += below[process]
    return sum(times.get(process, 0) for process in family) * TICK


class Meter:
    """A plugin of pytest that keeps what each test took, by its name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        """What it takes to read all files of tests, and to load what they import."""
        before = processor_time()
        try:
            return (yield)
        finally:
            self.seconds["collection"] = processor_time() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """One test with its fixtures."""
        before = processor_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = processor_time() - before

    def files(self) -> dict[str, float]:
        """The sums by file, the dearest first."""
        sums: defaultdict[str, float] = defaultdict(float)
        for name, seconds in self.seconds.items():
            sums[name.partition("::")[0]] += seconds
        return dict(sorted(sums.items(), key=lambda entry: -entry[1]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m rtk.tests.cpu", description=__doc__)
    parser.add_argument("--json", type=Path, help="write every test's seconds here")
    options, arguments = parser.parse_known_args()
    meter = Meter()
    code = pytest.main(["-q", *arguments], plugins=[meter])
    for file, seconds in meter.files().items():
        print(f"{seconds:8.1f} s  {file}")
    print(f"{sum(meter.seconds.values()):8.1f} s  in all")
    if options.json:
        options.json.write_text(json.dumps(meter.seconds, indent=1))
    raise SystemExit(code)
