"""`rtk quickstart`: the whole flow on this machine, in about a minute."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import Debug, Json, Quiet, Seed, print_json, progress, remark
from .coordinating import JobConfig, available_cores, training_of
from .profile import Measuring, measure
from .run import run_here

if TYPE_CHECKING:
    from ..schemas.plan import Plan
    from ..schemas.profile import Profile
    from ..schemas.timeline import Timeline

NAME = "quickstart"
SUMMARY = "The whole flow on this machine, in a minute."

MODEL = "gpt-tiny"
PP, DP, MICROBATCHES, ITERATIONS = 2, 2, 4, 6
STEPS = 6
# Workers that share a core take turns; this much longer than their share, so that each can keep the plan's pace.
MARGIN = 1.5


def command(
    folder: Annotated[str, typer.Option("--output", "-o", help="The folder for all files.")] = "rtk-quickstart",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Profile a tiny GPT, plan 2 pipelines of 2 stages, simulate the plan, run it on 4 processes, and draw both."""
    from ..runners.simulator import simulate
    from ..schemas.documents import read_document, write_document
    from ..schemas.timeline import Timeline

    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    files = {name: str(place / name) for name in ("profile.json", "plan.json", "simulated.json", "measured.json")}
    _say(1, f"measuring {MODEL}, layer by layer", f"rtk profile {MODEL} -o profile.json")
    profile = measure(Measuring(MODEL, repeats=10, seed=seed))
    write_document(files["profile.json"], profile)
    _say(2, f"planning {DP} pipelines of {PP} stages", "rtk plan pipeline profile.json --schedule zero-bubble …")
    plan, paced = _plan(profile)
    write_document(files["plan.json"], plan)
    _say(3, "simulating the plan on a virtual clock", "rtk simulate plan.json --timeline simulated.json")
    simulation = simulate(plan)
    write_document(files["simulated.json"], simulation.timeline)
    _say(4, f"training on {PP * DP} processes{' at the pace of the plan' if paced else ''}", "rtk run plan.json …")
    _run(plan, files["measured.json"], paced, seed)
    measured = read_document(files["measured.json"], Timeline)
    _say(5, "drawing both timelines", "rtk viz simulated.json measured.json -o timelines.html")
    pictures = _draw(place, simulation.timeline, measured)
    _say(STEPS, "comparing", "")
    _compare(simulation.iteration_time_s, _iteration_time_s(measured), paced, [*files.values(), *pictures], as_json)


def _plan(profile: "Profile") -> "tuple[Plan, bool]":
    """The plan; paced and slowed down where the workers outnumber the cores they run on."""
    from ..planners.pipeline import plan_pipeline
    from ..planners.scheduling.assemble import with_prediction
    from ..planners.shape import Shape
    from ..schemas.conditions import under_conditions

    plan = plan_pipeline(profile, Shape(PP, DP, MICROBATCHES), "zero-bubble")
    cores = available_cores()
    if cores >= PP * DP:
        return plan, False
    factor = MARGIN * PP * DP / cores
    remark(f"      {PP * DP} workers share {cores} cores: every operation is planned to take {factor:g} times as long")
    slow = {worker.name: factor for worker in plan.workers}
    return with_prediction(under_conditions(plan, slow, {})), True


def _run(plan: "Plan", timeline: str, paced: bool, seed: int) -> None:
    training = training_of(plan, MODEL, None, 1e-3, None, None, threads=1, paced=paced, seed=seed)
    with progress() as bar:
        bar.add_task("training", total=None)
        run_here(plan, training, JobConfig(ITERATIONS, timeline=timeline), quiet=True)


def _draw(place: Path, simulated: "Timeline", measured: "Timeline") -> list[str]:
    from ..schemas.files import write_bytes
    from ..viz.gantt import gantt_html

    last = max(span.iteration for span in measured.spans)
    pictures = {
        "simulated.html": ([("simulated", simulated)], "The plan, simulated"),
        "measured.html": ([("measured", measured)], "The run, measured"),
        "timelines.html": (
            [("simulated", simulated), ("measured", _only(measured, last))],
            "One plan, two runners: simulated over measured",
        ),
    }
    for name, (timelines, title) in pictures.items():
        write_bytes(str(place / name), gantt_html(timelines, title).encode())
    return [str(place / name) for name in pictures]


def _only(timeline: "Timeline", iteration: int) -> "Timeline":
    """One iteration of a timeline, starting at 0."""
    from dataclasses import replace

    spans = [span for span in timeline.spans if span.iteration == iteration]
    first_s = min(span.start_s for span in spans)
    moved = (replace(s, start_s=s.start_s - first_s, end_s=s.end_s - first_s) for s in spans)
    return replace(timeline, spans=tuple(moved))


def _iteration_time_s(timeline: "Timeline") -> float:
    """The median time between the starts of neighbouring iterations."""
    from statistics import median

    starts: dict[int, float] = {}
    for span in timeline.spans:
        starts[span.iteration] = min(span.start_s, starts.get(span.iteration, span.start_s))
    return median(starts[n + 1] - starts[n] for n in range(len(starts) - 1))


def _compare(predicted_s: float, measured_s: float, paced: bool, files: list[str], as_json: bool) -> None:
    if as_json:
        times = {"predicted_iteration_time_s": predicted_s, "measured_iteration_time_s": measured_s}
        print_json({**times, "paced": paced, "files": files})
        return
    print(f"iteration time: predicted {predicted_s:.4f} s, measured {measured_s:.4f} s", end="")
    print(f" ({measured_s / predicted_s - 1:+.1%}{', paced' if paced else ''})")
    print(f"pictures: {', '.join(file for file in files if file.endswith('.html'))}")


def _say(step: int, what: str, command_line: str) -> None:
    remark(f"[{step}/{STEPS}] {what}{f'   ({command_line})' if command_line else ''}")
