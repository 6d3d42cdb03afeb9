"""Predicted over measured iterations of benchmarks/clusters.py, as an SVG: a point for each row, before and after."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rtk.viz.painter import PAD, WIDTH, Sheet, number_axis
from rtk.viz.style import FAINT

BEFORE, AFTER = "#E69F00", "#0072B2"
SHARES, SECONDS = (0.5, 0.7, 0.9, 1.0, 1.1, 1.5, 2, 3, 5), (1, 2, 5, 10, 20, 50, 100, 200)
HEIGHT, LEFT = 320.0, 70.0


def write_chart(result: Mapping[str, Any], path: Path) -> None:
    """Draw the rows of both parts."""
    a100 = [(row["measured_s"], row["before_s"], row["left_out_s"]) for row in result["a100"]["rows"]]
    v100 = [(row["measured_s"], row["before_s"], row["told_s"]) for row in result["v100"]["rows"]]
    sheet = Sheet("Predicted over measured iteration times")
    sheet.heading(
        [
            "Circles: 46 shapes of models of 176 to 195 billion parameters on 384 A100, each predicted by constants "
            "fitted on the other models. Triangles: four jobs on 16 to 256 V100, told their program and network."
        ]
    )
    sheet.key(
        [((BEFORE,), "rtk's own program and default network", False), ((AFTER,), "program and network told", False)]
    )
    sheet.y += 8
    panel = sheet.panel(HEIGHT, LEFT, WIDTH - PAD, (1.0, 220.0), (0.45, 6.5))
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.minorticks_off()
    panel.set(xlim=(1.0, 220.0), ylim=(0.45, 6.5))
    number_axis(panel, "y", SHARES, [f"{share:g}" for share in SHARES])
    number_axis(panel, "x", SECONDS, [f"{time_s}" for time_s in SECONDS], has_lines=False)
    panel.set_xlabel("measured (s)")
    panel.axhline(1.0, color=FAINT, linewidth=1.2)
    for rows, marker in ((a100, "o"), (v100, "^")):
        for place, colour in ((1, BEFORE), (2, AFTER)):
            ratios = [row[place] / row[0] for row in rows]
            panel.scatter(
                [row[0] for row in rows], ratios, s=22, c=colour, marker=marker, alpha=0.75, linewidths=0, zorder=3
            )
    sheet.y += 44
    path.write_text(sheet.picture().svg())
