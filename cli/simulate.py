"""`rtk simulate`: a plan on a virtual clock."""

from typing import TYPE_CHECKING, Annotated

import typer

from .console import Debug, Json, Quiet, Seed, print_document, print_table
from .parsing import LinkDelays, Slow, parse_link_delays, parse_slow
from .verify import ProfileOption

if TYPE_CHECKING:
    from ..schemas.plan import Plan
    from ..schemas.report import Report

NAME = "simulate"
SUMMARY = "Execute a plan on a virtual clock."


def command(
    plan: Annotated[str, typer.Argument(help="The plan; `-` is standard input.")],
    link_delay: LinkDelays = None,
    slow: Slow = None,
    jitter: Annotated[float, typer.Option("--jitter", min=0, help="Log-normal sigma of operation times.")] = 0.0,
    seed: Seed = 0,
    timeline: Annotated[str | None, typer.Option("--timeline", help="Write the timeline to this file.")] = None,
    profile: ProfileOption = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Execute a plan on a virtual clock, its orders as they are, under slow workers and links."""
    from ..planners.scheduling.bounds.lower_bound import lower_bound
    from ..planners.scheduling.problem import problem_of
    from ..runners.simulator import simulate
    from ..schemas.conditions import under_conditions
    from ..schemas.documents import write_document
    from .plans import read_valid_plan

    read = read_valid_plan(plan, profile)
    conditions = under_conditions(read, parse_slow(slow), parse_link_delays(link_delay))
    simulation = simulate(conditions, jitter, seed)
    # Jitter may make operations shorter than the plan says, and so an iteration shorter than the plan's bound.
    bound_s = 0.0 if jitter else min(lower_bound(problem_of(conditions)).value_s, simulation.iteration_time_s)
    report = simulation.report(conditions, bound_s)
    if timeline is not None:
        write_document(timeline, simulation.timeline)
    if as_json:
        print_document(report)
    else:
        _print(report, read)


def _print(report: "Report", plan: "Plan") -> None:
    print_table(
        ("", ""),
        [
            ("iteration", f"{report.iteration_time_s:.6g} s"),
            ("makespan", f"{report.makespan_s:.6g} s"),
            ("period", f"{report.period_s:.6g} s"),
            ("lower bound", f"{report.lower_bound_s:.6g} s"),
            ("bubbles", f"{report.bubble_ratio:.2%}"),
            ("micro-batches a second", f"{report.microbatches_per_s:.6g}"),
            ("peak activations of a worker", f"{max(report.peak_memory_bytes):.6g} bytes"),
        ],
    )
    if plan.prediction and plan.prediction.iteration_time_s:
        change = report.iteration_time_s / plan.prediction.iteration_time_s - 1
        print(f"{change:+.2%} against the plan's prediction")
