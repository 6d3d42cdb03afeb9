"""A plan under torchtitan's trainer, run by rtk and by torch: `python benchmarks/titan_equal.py [-o FILE]`.

In an environment that has torchtitan 0.3.0 (`.ci/run` makes one). Two stages of its debug Llama on CPUs, 3 steps of
AdamW, as in tests/runners/test_titan.py: gradient norms of torch's own schedule for a placement (1F1B where a rank has
one stage), and how far others are from it: rtk, and torch by what `rtk export --to torchtitan` writes, among them a
zero-bubble order under `fully_shard`, where torch has been seen to compute wrong gradients.
"""

import argparse
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.tests.runners.test_titan import EXPORTED, OWN, Case, train_all

OTHERS: tuple[Case, ...] = (
    ("1f1b", "rtk", 1),
    ("zero-bubble", "rtk", 1),
    *EXPORTED,
    ("zero-bubble", "torch, fully_shard", 1),
)


def difference(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> float:
    """The largest absolute difference of a parameter."""
    ours = {name: value for rank in found for name, value in rank["parameters"].items()}
    return max(float((value - ours[name]).abs().max()) for rank in wanted for name, value in rank["parameters"].items())


def main() -> None:
    """Train once a case and write what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="-")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = train_all(Path(folder), tuple(dict.fromkeys((*OWN.values(), *OTHERS))))
    runs = {
        f"{runtime}, {schedule}": {
            "norms": made[-1]["norms"],
            "losses": made[-1]["losses"],
            "parameter_difference": difference(made, found[OWN[schedule]]),
        }
        for (schedule, runtime, _), made in found.items()
    }
    write_result({"runs": runs, "torchtitan": version("torchtitan")}, given.output)


if __name__ == "__main__":
    main()
