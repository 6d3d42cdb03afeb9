"""The whole flow on this machine, in about a minute: `rtk quickstart`.

It stands at the root because every wing has its part in it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from .runners.processes import available_cores
from .runners.training import JobConfig, Training
from .running import run
from .schemas.documents import read_document, write_document
from .schemas.errors import remark, require_package
from .wiring import profile_measured

if TYPE_CHECKING:
    from .schemas.plan import Plan
    from .schemas.profile import Profile
    from .schemas.timeline import Timeline

MODEL = "gpt-tiny"
PP, DP, MICROBATCHES, ITERATIONS = 2, 2, 4, 6
STEPS = 6
# Workers that share a core take turns; this much longer than their share, so that each can keep the plan's pace.
MARGIN = 1.5
Progress = Callable[[int, int], None]  # hears how much is done, and of how much


@dataclass(frozen=True)
class QuickstartResult:
    """What came of it: an iteration's time as simulated and as measured, whether the run was paced, and the files."""

    predicted_s: float
    measured_s: float
    paced: bool
    files: tuple[str, ...]


@contextmanager
def _unshown(what: str) -> Iterator[Progress]:
    yield lambda done, of: None


def quickstart(
    folder: str = "rtk-quickstart",
    seed: int = 0,
    showing: Callable[[str], AbstractContextManager[Progress]] = _unshown,
) -> QuickstartResult:
    """Profile a tiny GPT, plan 2 pipelines of 2 stages, simulate the plan, run it on 4 processes, and draw both.

    Args:
        folder: for all files.
        seed: of all randomness.
        showing: shows how far something is that it is told.

    Raises:
        InvalidInputError: the folder cannot be made.
        RuntimeFailedError: training could not go on.
    """
    from .runners.simulator import simulate
    from .schemas.timeline import Timeline

    require_package("torch")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    files = {name: str(place / name) for name in ("profile.json", "plan.json", "simulated.json", "measured.json")}
    _say(1, f"measuring {MODEL}, layer by layer", f"rtk profile {MODEL} -o profile.json")
    with showing(f"measuring {MODEL}") as tell:
        profile = profile_measured(MODEL, repeats=10, seed=seed, tell=tell)
    write_document(files["profile.json"], profile)
    _say(2, f"planning {DP} pipelines of {PP} stages", "rtk plan pipeline profile.json --schedule zero-bubble …")
    plan, paced = _plan(profile)
    write_document(files["plan.json"], plan)
    _say(3, "simulating the plan on a virtual clock", "rtk simulate plan.json --timeline simulated.json")
    simulation = simulate(plan)
    write_document(files["simulated.json"], simulation.timeline)
    _say(4, f"training on {PP * DP} processes{' at the pace of the plan' if paced else ''}", "rtk run plan.json …")
    with showing("training"):
        run(plan, Training(MODEL, paced=paced, seed=seed), JobConfig(ITERATIONS, timeline=files["measured.json"]))
    measured = read_document(files["measured.json"], Timeline)
    _say(5, "drawing both timelines", "rtk viz simulated.json measured.json -o timelines.html")
    pictures = _draw(place, simulation.timeline, measured)
    _say(STEPS, "comparing", "")
    measured_s = _iteration_time_s(measured)
    return QuickstartResult(simulation.iteration_time_s, measured_s, paced, (*files.values(), *pictures))


def _plan(profile: "Profile") -> "tuple[Plan, bool]":
    """The plan; paced and slowed down where the workers outnumber the cores they run on."""
    from .planners.pipeline import plan_pipeline
    from .planners.scheduling.assemble import with_prediction
    from .planners.shape import Shape
    from .schemas.conditions import under_conditions

    plan = plan_pipeline(profile, Shape(PP, DP, MICROBATCHES), "zero-bubble")
    cores = available_cores()
    if cores >= PP * DP:
        return plan, False
    factor = MARGIN * PP * DP / cores
    remark(f"      {PP * DP} workers share {cores} cores: every operation is planned to take {factor:g} times as long")
    slow = {worker.name: factor for worker in plan.workers}
    return with_prediction(under_conditions(plan, slow, {})), True


def _draw(place: Path, simulated: "Timeline", measured: "Timeline") -> list[str]:
    from .schemas.files import write_bytes
    from .viz.gantt import gantt_html

    # The last iteration, starting at 0.
    last = max(span.iteration for span in measured.spans)
    spans = [span for span in measured.spans if span.iteration == last]
    first_s = min(span.start_s for span in spans)
    moved = tuple(replace(one, start_s=one.start_s - first_s, end_s=one.end_s - first_s) for one in spans)
    pictures = {
        "simulated.html": ([("simulated", simulated)], "The plan, simulated"),
        "measured.html": ([("measured", measured)], "The run, measured"),
        "timelines.html": (
            [("simulated", simulated), ("measured", replace(measured, spans=moved))],
            "One plan, two runners: simulated over measured",
        ),
    }
    for name, (timelines, title) in pictures.items():
        write_bytes(str(place / name), gantt_html(timelines, title).encode())
    return [str(place / name) for name in pictures]


def _iteration_time_s(timeline: "Timeline") -> float:
    """The median time between the starts of neighbouring iterations."""
    starts: dict[int, float] = {}
    for span in timeline.spans:
        starts[span.iteration] = min(span.start_s, starts.get(span.iteration, span.start_s))
    return median(starts[n + 1] - starts[n] for n in range(len(starts) - 1))


def _say(step: int, what: str, command_line: str) -> None:
    remark(f"[{step}/{STEPS}] {what}{f'   ({command_line})' if command_line else ''}")
