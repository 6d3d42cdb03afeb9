"""`rtk sweep`: hundreds of replays, of every combination of models, jobs, clusters, traces and costs."""

from typing import Annotated

import typer

from ..schemas.errors import InfeasibleError, remark
from ..schemas.quantities import print_share
from .console import Common, counting, grouped, print_json, print_table

HEADINGS = ("policy", "mean", "25 %", "median", "75 %", "least", "most", "best in", "cannot train")
KEYS = ("mean", "lower_quartile", "median", "upper_quartile", "min", "max", "best_share")  # of the columns


@grouped
def command(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="The YAML file of lists; `-` is standard input.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FOLDER", help="A report a combination, and summary.json.")
    ],
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes, which share the combinations.")] = 1,
    executor: Annotated[
        str,
        typer.Option(
            "--executor", metavar="process|dask:ADDRESS|ray[:ADDRESS]", help="Who replays: processes, or a cluster's."
        ),
    ] = "process",
    *,
    common: Common,
) -> None:
    """Replay every combination of models, jobs, clusters, traces and costs, and say what they have in common.

    SPEC has lists of profiles, jobs (pp, dp, microbatches, tensor_parallel, schedule, memory_limit, placement, chunks),
    clusters, traces (a path; file with format, nodes, leaving, slow_faults, seeds; or generate with the options of
    `rtk trace generate`, and seeds), policies, costs, and until. A value of a job, a trace or a cost may be a list, of
    which each item is tried. Reports that are in FOLDER already, of the same inputs, are not made again. Goodputs are
    those of `rtk replay`; a policy that cannot train a job counts as 0.
    """
    from ..sweeping import sweep

    with counting("replays") as tell:
        summary = sweep(spec, output, jobs, executor, tell)
    impossible, replays = summary["impossible"], summary["replays"]
    if impossible:
        remark(f"{len(impossible)} of {len(impossible) + len(replays)} cannot be: {impossible[0]['why']}")
    if common.as_json:
        print_json(summary)
    elif replays:
        # The best policy first; then, for whatever was varied, mean goodputs: a column for each value.
        best_first = sorted(summary["policies"].items(), key=lambda item: (-item[1]["mean"], item[0]))
        rows = [
            [name, *(print_share(one[key]) for key in KEYS), str(one["refusals"] or "")] for name, one in best_first
        ]
        print_table(HEADINGS, rows)
        for axis, values in summary["axes"].items():
            print()
            means = ([name, *(print_share(one[name]) for one in values.values())] for name, _ in best_first)
            print_table([axis, *values], means)
    if not replays:
        raise InfeasibleError("none of the jobs can be trained", where="jobs", fix="take smaller ones, or larger GPUs")
