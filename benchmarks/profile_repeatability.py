"""How far profiles of one model, measured one after the other by the command, lie apart layer by layer.

`python benchmarks/profile_repeatability.py [--model M] [--profiles P] [-o FILE]`. For each two profiles in a row and
each layer: the difference of its work (F + I + W), and of each operation's time as a part of that work, both in parts
of the earlier work. `apart` is as it comes; `shared_speed` is what of it a change of the machine's speed would
explain, the same for all layers; `corrected` is apart less that, what the measurement itself adds. `claimed` is the
profiles' own spread. `wall_s` is how long the command took, start and loopback included.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.schemas.documents import read_document
from rtk.schemas.profile import PASSES, LayerCost, Profile


def profile(model: str, folder: Path) -> tuple[Profile, float]:
    """A new profile by the command, and how long it took, in s."""
    path = str(folder / "profile.json")
    start_s = time.perf_counter()
    subprocess.run([sys.executable, "-m", "rtk.cli.main", "profile", model, "-o", path, "--quiet"], check=True)
    return read_document(path, Profile), time.perf_counter() - start_s


def apart(before: Profile, after: Profile) -> dict[str, Any]:
    """How two profiles differ."""
    costs = [
        (one.costs[0], other.costs[0])
        for one, other in zip(before.layers, after.layers, strict=True)
        if one.costs[0].work_s > 0
    ]
    speed = sum(other.work_s for _, other in costs) / sum(one.work_s for one, _ in costs)
    ratios = [other.work_s / one.work_s for one, other in costs]
    return {
        "apart": [ratio - 1 for ratio in ratios],
        "shared_speed": speed - 1,
        "corrected": [ratio / speed - 1 for ratio in ratios],
        "operations": {
            name: max(abs(getattr(other, name) - getattr(one, name)) / one.work_s for one, other in costs)
            for name in PASSES.values()
        },
        "claimed": [_claimed(one) for one, _ in costs],
    }


def _claimed(cost: LayerCost) -> float | None:
    spread = cost.spread
    if spread is None:
        return None
    return spread.work_s / cost.work_s


def summary(pairs: Sequence[dict[str, Any]], key: str) -> dict[str, float]:
    """The median and the largest |difference| over all layers and pairs."""
    values = [abs(value) for one in pairs for value in one[key]]
    return {"median": median(values), "worst": max(values)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt-tiny")
    parser.add_argument("--profiles", type=int, default=6)
    parser.add_argument("-o", "--output", default="-")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        profiles, walls_s = zip(*(profile(options.model, Path(folder)) for _ in range(options.profiles)), strict=True)
    pairs = [apart(before, after) for before, after in pairwise(profiles)]
    figures = {key: summary(pairs, key) for key in ("apart", "corrected")}
    print(f"{options.model}: {figures}, wall {median(walls_s):.1f} s", file=sys.stderr)
    write_result({"model": options.model, "pairs": pairs, "figures": figures, "wall_s": walls_s}, options.output)


if __name__ == "__main__":
    main()
