"""Predicted over measured iterations of benchmarks/clusters.py, as an SVG: a point for each row."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtk.viz.painter import PAD, WIDTH, Sheet, number_axis
from rtk.viz.style import FAINT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEFORE, AFTER = "#E69F00", "#0072B2"
TABLES = {
    "megatron-sc21": ("#0072B2", "Megatron-LM 2021"),
    "megatron-recomputation": ("#56B4E9", "Megatron-LM 2022"),
    "nemo-h100": ("#009E73", "NeMo, H100"),
    "megascale-megatron": ("#CC79A7", "Megatron-LM in MegaScale"),
    "mt-nlg": ("#D55E00", "MT-NLG, DeepSpeed"),
}
HEIGHT, LEFT, MIDDLE = 300.0, 70.0, 860.0

Point = tuple[float, float, float]  # measured, before, after


def write_chart(result: Mapping[str, Any], path: Path) -> None:
    """Draw the rows of all parts."""
    sheet = Sheet("Predicted over measured iteration times")
    sheet.heading(
        [
            "Left: 46 shapes of models of 176 to 195 billion parameters on 384 A100, each predicted by constants that "
            "were fitted on the other models. Right: four jobs on 16 to 256 V100, by which their sustained "
            "share was chosen. Below: iterations of five published tables, with nothing fitted to them."
        ]
    )
    sheet.key([((BEFORE,), "before", False), ((AFTER,), "program and network told", False)])
    sheet.y += 8
    top = sheet.y
    a100 = [(row["measured_s"], row["before_s"], row["left_out_s"]) for row in result["a100"]["rows"]]
    _panel(
        sheet,
        a100,
        (LEFT, MIDDLE),
        (98.0, 162.0),
        (0.5, 1.15),
        (range(100, 161, 10), (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1)),
    )
    sheet.y = top
    v100 = [(row["measured_s"], row["before_s"], row["told_s"]) for row in result["v100"]["rows"]]
    _panel(sheet, v100, (MIDDLE + 70, WIDTH - PAD), (1.0, 200.0), (0.7, 7.0), ((1, 3, 10, 30, 100), (0.8, 1, 2, 3, 5)))
    sheet.y += 44
    _tables(sheet, result["tables"])
    path.write_text(sheet.picture().svg())


def _tables(sheet: Sheet, tables: Mapping[str, Any]) -> None:
    """What others published, with nothing fitted to it, over the size of the job."""
    sheet.y += 16
    sheet.key([((colour,), words, False) for colour, words in TABLES.values()])
    sheet.y += 8
    across, marks = (6.0, 16000.0), ((8, 32, 128, 512, 2048, 8192), (0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3))
    panel = _axes(sheet, (LEFT, WIDTH - PAD), across, (0.68, 1.32), marks)
    panel.set_xlabel("GPUs")
    for name, (colour, _) in TABLES.items():
        rows = tables[name]["rows"]
        ratios = [row["told_s"] / row["measured_s"] for row in rows]
        panel.scatter([row["gpus"] for row in rows], ratios, s=26, c=colour, alpha=0.75, linewidths=0, zorder=3)
    sheet.y += 44


def _panel(
    sheet: Sheet,
    points: Sequence[Point],
    place: tuple[float, float],
    across: tuple[float, float],
    upwards: tuple[float, float],
    marks: tuple[Sequence[float], Sequence[float]],
) -> None:
    """Points from one side to another of the sheet, on logarithmic axes with these marks."""
    panel = _axes(sheet, place, across, upwards, marks)
    panel.set_xlabel("measured (s)")
    for number, colour in ((1, BEFORE), (2, AFTER)):
        ratios = [point[number] / point[0] for point in points]
        panel.scatter([point[0] for point in points], ratios, s=26, c=colour, alpha=0.75, linewidths=0, zorder=3)


def _axes(
    sheet: Sheet,
    place: tuple[float, float],
    across: tuple[float, float],
    upwards: tuple[float, float],
    marks: tuple[Sequence[float], Sequence[float]],
) -> "Axes":
    """Logarithmic axes with these marks, and a line where both times are equal."""
    panel = sheet.panel(HEIGHT, *place, across, upwards)
    panel.set(xscale="log", yscale="log")
    panel.minorticks_off()
    panel.set(xlim=across, ylim=upwards)
    number_axis(panel, "x", marks[0], [f"{mark:g}" for mark in marks[0]], has_lines=False)
    number_axis(panel, "y", marks[1], [f"{mark:g}" for mark in marks[1]])
    panel.axhline(1.0, color=FAINT, linewidth=1.2)
    return panel
