"""`rtk quickstart`: the whole flow on this machine, in about a minute."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from .console import Common, Seed, grouped, print_json, progress


@grouped
def command(
    folder: Annotated[str, typer.Option("--output", "-o", help="The folder for all files.")] = "rtk-quickstart",
    seed: Seed = 0,
    *,
    common: Common,
) -> None:
    """Profile a tiny GPT, plan 2 pipelines of 2 stages, simulate the plan, run it on 4 processes, and draw both."""
    from ..whole_flow import quickstart

    found = quickstart(folder, seed, _showing)
    if common.as_json:
        times = {"predicted_iteration_time_s": found.predicted_s, "measured_iteration_time_s": found.measured_s}
        print_json({**times, "paced": found.paced, "files": list(found.files)})
        return
    print(f"iteration time: predicted {found.predicted_s:.4f} s, measured {found.measured_s:.4f} s", end="")
    print(f" ({found.measured_s / found.predicted_s - 1:+.1%}{', paced' if found.paced else ''})")
    print(f"pictures: {', '.join(file for file in found.files if file.endswith('.html'))}")


@contextmanager
def _showing(what: str) -> Iterator[Callable[[int, int], None]]:
    with progress() as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
