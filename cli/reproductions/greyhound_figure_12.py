"""Greyhound Figure 12: two slow workers of a pipeline in two stages, or in one: 8.5 and 8 s an iteration."""

from collections.abc import Iterator
from dataclasses import dataclass

from .greyhound_pipelines import iteration_s
from .reproduction import Basis, Claim, Reproduction, Row
from .stages import stages_profile


@dataclass(frozen=True, slots=True)
class Drawing:
    """What the picture may show: pipelines of so many stages, so many micro-batches each, F and B together in s."""

    stages: int
    microbatches: int
    slow: float
    microbatch_s: float

    @property
    def fitted(self) -> tuple[str, ...]:
        """All of it, to two numbers."""
        shown = ("stages", "micro-batches", "slow-down", "time of a micro-batch")
        return tuple(f"{what} of figure 12 with {self.stages} stages" for what in shown)

    def iteration_s(self, *slow: str) -> float:
        """An iteration of 1F1B with these workers slow, in s."""
        profile, factors = stages_profile([self.microbatch_s] * self.stages), dict.fromkeys(slow, self.slow)
        return iteration_s(profile, self.stages, 2, self.microbatches, factors)

    @property
    def scattered_s(self) -> float:
        """Stragglers in two stages of one pipeline."""
        return self.iteration_s(f"0/{self.stages - 2}", f"0/{self.stages - 1}")

    @property
    def consolidated_s(self) -> float:
        """Stragglers in one stage, of two pipelines."""
        return self.iteration_s(f"0/{self.stages - 1}", f"1/{self.stages - 1}")


DRAWINGS = (Drawing(3, 4, 1.5, 1.0), Drawing(5, 6, 2.0, 0.5))


def reproduce() -> Reproduction:
    """Greyhound Figure 12: two slow workers of a pipeline in two stages, or in one: 8.5 and 8 s an iteration."""
    smallest = DRAWINGS[0]
    answers = _answers(smallest)
    return Reproduction(
        "greyhound-figure-12",
        "Greyhound Figure 12: s an iteration with two stragglers scattered over stages, and in one stage",
        ("pipeline", "greyhound"),
        (*(row for drawing in DRAWINGS for row in _rows(drawing)), *_ours(answers)),
        (Claim("rtk's plans are quicker than both", all(time_s < 8 for time_s in answers.values())),),
        METHOD,
        UNSAID,
    )


METHOD = (
    "1F1B plans of two alike pipelines, simulated with two workers slow. Fitted to the two printed numbers: stages, "
    "micro-batches, how slow, and the time of a micro-batch; arithmetic does the rest, so both are met exactly."
)
UNSAID = (
    "What the picture shows is not in the text: how many stages and micro-batches, how slow the stragglers are. "
    "Three stages, four micro-batches, 1.5 times and 1 s fit both numbers, and so do five, six, 2 times and 0.5 s.",
    "1F1B takes (P - k + k s + (m - 1) s) u with k slow stages: each stage beyond the first costs (s - 1) u, here "
    "0.5 s.",
    "In different pipelines, consolidated stragglers slow both; S2 then has nothing to shift. Ours puts them into "
    "the first stage, whose warm-up hides a part, or gives their pipeline fewer micro-batches.",
)


def _rows(drawing: Drawing) -> Iterator[Row]:
    shape = f"{drawing.stages} stages, {drawing.microbatches} micro-batches"
    yield Row(f"{shape}: in two stages, s", 8.5, drawing.scattered_s, Basis.SIMULATED, 0.03, drawing.fitted)
    yield Row(f"{shape}: in one stage, s", 8.0, drawing.consolidated_s, Basis.SIMULATED, 0.03, drawing.fitted)


def _ours(answers: dict[str, float]) -> Iterator[Row]:
    for name, time_s in answers.items():
        yield Row(f"3 stages: in two, after {name} by rtk, s", None, time_s, Basis.PLANNED)


def _answers(drawing: Drawing) -> dict[str, float]:
    """What rtk's S2, S3 and both make of the scattered stragglers, in s."""
    from ...planners.greyhound.plan import plan_topology
    from ...planners.shape import Shape

    slow = dict.fromkeys((f"0/{drawing.stages - 2}", f"0/{drawing.stages - 1}"), drawing.slow)
    shape = Shape(drawing.stages, 2, drawing.microbatches)
    made = plan_topology(stages_profile([drawing.microbatch_s] * drawing.stages), shape, slow, {})
    times_s: dict[str, float] = made.planner.options["iteration_time_s"]
    return {name: time_s for name, time_s in times_s.items() if name != "as it is"}
