"""SlipStream's figures: the example, atlases, re-plans at 2,048 workers, and throughput under failures.

`python benchmarks/slipstream.py [--only SECTION …] [-o FILE]`

Machine code is warm: everything is run once before it is timed. `ablation` also draws `docs/images/`.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.benchmarks.slipstream_atlas import atlases, command, example
from rtk.benchmarks.slipstream_capped import capped_atlases, capped_plans
from rtk.benchmarks.slipstream_chart import write_chart
from rtk.benchmarks.slipstream_replan import in_place, replan, unlike
from rtk.benchmarks.slipstream_rotation import rotation
from rtk.benchmarks.slipstream_throughput import ablation, figure_9

CHART = Path(__file__).parent.parent / "docs" / "images" / "slipstream-ablation.svg"


def drawn_ablation() -> dict[str, Any]:
    """The ablation, and its chart."""
    found = ablation()
    write_chart(found["rows"], CHART)
    return found


def main() -> None:
    """Measure the sections asked for and write the result."""
    sections: dict[str, Callable[[], Any]] = {
        "example": example,
        "atlases": atlases,
        "command": command,
        "capped_atlases": capped_atlases,
        "capped_plans": capped_plans,
        "replan": replan,
        "unlike": unlike,
        "figure_9": figure_9,
        "ablation": drawn_ablation,
        "in_place": in_place,
        "rotation": rotation,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="-")
    parser.add_argument("--only", nargs="*", choices=list(sections), metavar="SECTION")
    arguments = parser.parse_args()
    result: dict[str, Any] = {}
    for name in arguments.only or sections:
        start_s = time.perf_counter()
        result[name] = sections[name]()
        result[f"{name}_took_s"] = time.perf_counter() - start_s
    write_result(result, arguments.output)


if __name__ == "__main__":
    main()
