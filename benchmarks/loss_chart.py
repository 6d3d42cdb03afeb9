"""The loss of a run over that of another one, and their difference, from the JSON lines that `rtk run --json` prints.

`python benchmarks/loss_chart.py RUN.jsonl FAULT_FREE.jsonl -o OUT.html`
"""

import argparse
import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

MARKED = ("failure", "join", "leave")


def read(path: str) -> list[dict[str, Any]]:
    """All events of a run."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def losses(events: list[dict[str, Any]]) -> dict[int, float]:
    """Loss by iteration."""
    return {one["iteration"]: one["loss"] for one in events if one["event"] == "iteration"}


def chart(run: list[dict[str, Any]], fault_free: list[dict[str, Any]]) -> go.Figure:
    """Both curves, marked where something happened, and the difference below."""
    ours, theirs = losses(run), losses(fault_free)
    numbers = sorted(ours.keys() & theirs.keys())
    difference = [abs(ours[n] - theirs[n]) for n in numbers]
    figure = make_subplots(rows=2, shared_xaxes=True, row_heights=[0.7, 0.3], vertical_spacing=0.06)
    calm = {"color": "#9aa5b1", "width": 6}
    figure.add_scatter(x=numbers, y=[theirs[n] for n in numbers], name="fault-free", line=calm, row=1, col=1)
    figure.add_scatter(x=numbers, y=[ours[n] for n in numbers], name="with faults", line_color="#b5301d", row=1, col=1)
    figure.add_scatter(x=numbers, y=difference, name="difference", line_color="#2b5fa8", row=2, col=1)
    for one in run:
        if one["event"] in MARKED:
            words = f"{one['event']} {one['worker']}"
            figure.add_vline(one["iteration"], line_dash="dot", line_color="#555", annotation_text=words, row=1, col=1)
    largest = max(difference)
    figure.update_layout(title=f"Loss with faults and without: they differ by {largest:.1e} at most", template="none")
    figure.update_yaxes(title="loss", row=1)
    figure.update_yaxes(title="|difference|", exponentformat="e", row=2)
    figure.update_xaxes(title="iteration", row=2)
    return figure


def main() -> None:
    """Draw the chart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("fault_free")
    parser.add_argument("-o", "--output", required=True)
    arguments = parser.parse_args()
    chart(read(arguments.run), read(arguments.fault_free)).write_html(arguments.output)


if __name__ == "__main__":
    main()
