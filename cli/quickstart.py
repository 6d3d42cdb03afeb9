"""`rtk quickstart`: what rtk does, shown on this machine in about a minute."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.quantities import print_change, print_time
from .console import Common, Seed, counting, grouped, print_json, print_table

if TYPE_CHECKING:
    from ..whole_flow import QuickstartResult


@grouped
def command(
    folder: Annotated[str, typer.Option("--output", "-o", help="The folder for all files.")] = "rtk-quickstart",
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulate a larger job in seconds, on 16 GPUs and without torch.")
    ] = False,
    seed: Seed = 0,
    *,
    common: Common,
) -> None:
    """See a training survive a killed worker: profile a tiny GPT, plan, train on 4 processes, kill one, draw the run.

    The others go on without the killed worker, a replacement joins, and the losses are compared with those of an
    undisturbed run. Each step prints its command, so that you can repeat it by hand.
    """
    from ..whole_flow import quickstart

    found = quickstart(folder, seed, counting, simulated=simulate)
    if common.as_json:
        print_json(_document(found))
        return
    if not found.simulated:
        rows = [
            (str(one.iteration), str(one.live_workers), *map(_loss, (one.loss, one.undisturbed_loss)))
            for one in found.iterations
        ]
        print_table(("iteration", "workers", "loss", "loss, undisturbed"), rows)
    for pace in found.paces:
        took = "simulated" if found.simulated else "measured"
        times = f"predicted {print_time(pace.predicted_s)}, {took} {print_time(pace.measured_s)}"
        print(f"an iteration of {pace.live_workers} workers: {times} ({print_change(pace.beyond)})")
    if found.busy:
        print(found.busy)
    print("", found.conclusion, "", *_next(Path(folder), found), sep="\n")


def _loss(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.6f}"


def _next(folder: Path, found: "QuickstartResult") -> Iterator[str]:
    """What to look at, and what to do then."""
    yield f"look:  {folder / 'run.html'}   the run, with the failure; also as run.svg"
    if not found.simulated:
        yield f"       {folder / 'compare.html'}   one iteration, as planned and as executed"
    yield f"next:  rtk explain {folder / 'plan.json'}   why an iteration takes as long as it does"
    if not found.simulated:
        yield "       rtk quickstart --simulate   the same for a job on 16 GPUs, in seconds"
    yield "       rtk monitor -- torchrun --nproc-per-node 8 train.py   find what is slow in your own job, unchanged"


def _document(found: "QuickstartResult") -> dict[str, object]:
    return {
        **asdict(found),
        "predicted_iteration_time_s": found.predicted_s,
        "measured_iteration_time_s": found.measured_s,
        "largest_difference": found.largest_difference,
        "conclusion": found.conclusion,
    }
