"""Adaptra Figure 21: 1,200 iterations of a 140B model, nine times slow links and a network card that fails.

The trace is table 3's; each stretch of it is simulated as one iteration times its length.
"""

from collections.abc import Iterator
from functools import cache

from .adaptra_pipelines import FOURTEEN_BILLION, SYSTEMS, BlockedSystem, Delays, System, iteration_s
from .reproduction import Claim, Reproduction, Row

ITERATIONS, SLOW_ITERATIONS = 1200, 70
# Slow links and their delay, in s, of each of the nine events (table 3).
EVENTS: tuple[tuple[tuple[int, ...], float], ...] = (
    ((2,), 0.03),
    ((0, 5), 0.04),
    ((6,), 0.02),
    ((2, 3, 6), 0.05),
    ((5,), 0.06),
    ((1, 6), 0.06),
    ((0, 4), 0.02),
    ((0, 1, 2), 0.04),
    ((4, 5), 0.05),
)
PRINTED_MIN: dict[System, float] = {"1F1B": 45.4, "ZB": 46.9, "Adaptra": 33.2}
SETTING = FOURTEEN_BILLION.scaled(2.12)  # fitted: Adaptra takes 33.2 minutes


def reproduce() -> Reproduction:
    """All of it."""
    return Reproduction(
        "adaptra-figure-21",
        "Adaptra Figure 21: minutes that 1,200 iterations of the 140B model take on 128 GPUs",
        tuple(_rows()),
        (
            Claim(
                "without delays 1F1B is slower than the others",
                iteration_s(SETTING, "1F1B", {}) > iteration_s(SETTING, "ZB", {}),
            ),
            Claim("Adaptra is the fastest under each of the nine events", all(map(_is_fastest, EVENTS))),
        ),
        METHOD,
        UNSAID,
    )


METHOD = (
    "Pipelines of eight stages with 16 micro-batches, ratios of F, B and W and blocking factor 1.234 as in figures "
    "14 and 15; iterations of each event and of none simulated. Fitted: operations take 2.12 times as long as the "
    "14B model's, so that Adaptra takes 33.2 minutes (there are 1.25 times as many parameters a GPU, in tensors of "
    "8 GPUs). The other two systems' times are predicted."
)
UNSAID = (
    "Times of operations, N and the cost of 1F1B's and ZB's checkpoint and restart at iteration 1,030 are not said. "
    "The restart is counted as nothing: every minute would add 0.03 to the two ratios. Finding a slow link is "
    "counted as nothing either: with three of 70 slow iterations as ZB's it would cost Adaptra 1.7 %.",
    "ZB falls behind 1F1B in the paper by 3 %; in ours 1F1B is behind by 4 %. As in figure 15 our transport model "
    "is too kind to ZB: with that figure's factor of 2.46 it would take 61 minutes.",
    "What a sample is, is not said. With one a micro-batch ours is at 19.5 a second undelayed, Adaptra at 17.5 to "
    "20.5 under the events and ZB at 8.7 to 10.3 where delays are 50 or 60 ms (paper: above 20 most of the time, "
    "around 10).",
)


def _rows() -> Iterator[Row]:
    ours = {system: minutes(system) for system in SYSTEMS}
    yield Row("Adaptra, min", PRINTED_MIN["Adaptra"], ours["Adaptra"], "fitted", 0.10)
    blocked: tuple[BlockedSystem, ...] = ("1F1B", "ZB")
    for system in blocked:
        yield Row(f"{system}, min", PRINTED_MIN[system], ours[system], "model", 0.10)
    for system, printed in (("1F1B", 1.37), ("ZB", 1.41)):
        yield Row(f"{system} over Adaptra", printed, ours[system] / ours["Adaptra"], "model", 0.10)
    yield Row("Adaptra-CPU over Adaptra", None, ours["Adaptra-CPU"] / ours["Adaptra"], "model")


@cache
def minutes(system: System) -> float:
    """How long the whole trace takes, in minutes; where nothing is slow Adaptra has the orders of ZB."""
    slow_s = sum(iteration_s(SETTING, system, _delays_s(*event)) for event in EVENTS)
    undelayed_s = iteration_s(SETTING, "1F1B" if system == "1F1B" else "ZB", {})
    return (SLOW_ITERATIONS * slow_s + (ITERATIONS - SLOW_ITERATIONS * len(EVENTS)) * undelayed_s) / 60


def _delays_s(links: tuple[int, ...], delay_s: float) -> Delays:
    return dict.fromkeys(links, delay_s)


def _is_fastest(event: tuple[tuple[int, ...], float]) -> bool:
    *others, adapted_s = (iteration_s(SETTING, system, _delays_s(*event)) for system in SYSTEMS)
    return adapted_s <= min(others)
