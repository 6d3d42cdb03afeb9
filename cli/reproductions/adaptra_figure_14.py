"""Adaptra Figure 14: a 7B model on four stages, 30 ms on the last link: zero-bubble, with delegates, adapted.

Neither the number of micro-batches nor the times of operations are printed; bubble rates are, which bind them.
"""

from collections.abc import Iterator
from dataclasses import replace

from .adaptra_pipelines import SEVEN_BILLION, Setting, System, iteration_s, simulated
from .reproduction import Claim, Reproduction, Row

DELAYS_S = {2: 0.03}
PRINTED_MS: dict[System, float] = {"ZB": 703, "Adaptra-CPU": 579, "Adaptra": 398}
BUBBLE_RATES: dict[System, float] = {"ZB": 0.574, "Adaptra-CPU": 0.488, "Adaptra": 0.253}
UNDELAYED_MS = 703 / 1.9
OTHER_COUNTS = (6, 7, 8, 9, 10)


def reproduce() -> Reproduction:
    """All of it."""
    return Reproduction(
        "adaptra-figure-14",
        "Adaptra Figure 14: ms an iteration of the 7B model takes with 30 ms between stages 2 and 3",
        (*_times(), *_bubbles(), *_other_counts()),
        (Claim("zero-bubble > with delegates > adapted > undelayed", _is_ordered()),),
        METHOD,
        UNSAID,
    )


METHOD = (
    "rtk's planner and simulator: orders for no delay in 1F1B's memory, sent directly (ZB) or by delegates "
    "(Adaptra-CPU), and Algorithm 2's without a limit of memory (Adaptra). Fitted: F + B + W = 298 ms / N, which "
    "all three printed times and bubble rates say, 703 (1 - 0.574) = 299, 579 (1 - 0.488) = 296, 398 (1 - 0.253) = "
    "297; F by the 370 ms without a delay (703 / 1.9), B taken to be as long; and N = 8, by 579 ms: F = B = 15.3 "
    "ms, W = 6.65 ms. Predicted from these: 398 ms. Fitted to 703 alone: a direct send holds its sender for 1.234 "
    "times the delay."
)
UNSAID = (
    "N, F, B, W and the memory are not said. With N = 6 to 10 and the same two bonds 579 ms become what the rows of "
    "the range say; N = 8 is the nearest (7: 543, 9: 601). Without a limit of memory no N comes nearer than 15 %: "
    "slackness 2 absorbs too much.",
    "What holds a stream while a link is slow is described, not quantified (3.2). A queue of one message in each "
    "direction changes nothing, for the stages send more slowly than the link carries; held for exactly the 30 ms, "
    "ZB would take 640 ms. So 703 is met by the fitted factor only.",
    "N = 2 S leaves Algorithm 2's upper limit N - 2 S at 0, which the printed rule could not run by; ours is at "
    "least 1.",
)


def _times() -> Iterator[Row]:
    undelayed_ms = 1000 * iteration_s(SEVEN_BILLION, "Adaptra-CPU", {})
    yield Row("ZB, undelayed", UNDELAYED_MS, undelayed_ms, "fitted", 0.03)
    yield Row("ZB, 1.234 delays a send", 703, _ms("ZB"), "fitted", 0.03, note="the factor is fitted to this number")
    held_ms = 1000 * iteration_s(SEVEN_BILLION, "ZB", DELAYS_S, 1.0)
    yield Row("ZB, one delay a send", 703, held_ms, "model", note="nothing fitted to it, so it is not judged")
    yield Row("Adaptra-CPU", 579, _ms("Adaptra-CPU"), "fitted", 0.03, note="N is fitted to it, among 6 to 10")
    yield Row("Adaptra", 398, _ms("Adaptra"), "model", 0.03, note="predicted")


def _bubbles() -> Iterator[Row]:
    for system, rate in BUBBLE_RATES.items():
        ours = simulated(SEVEN_BILLION, system, DELAYS_S).bubble_ratio
        yield Row(f"{system}, bubble rate", rate, ours, "model" if system == "Adaptra" else "fitted")


def _other_counts() -> Iterator[Row]:
    for system in ("Adaptra-CPU", "Adaptra"):
        found_ms = [_ms(system, bound_to(count)) for count in OTHER_COUNTS]
        yield Row(f"{system}, N = 6 to 10", PRINTED_MS[system], (min(found_ms), max(found_ms)), "range")


def bound_to(microbatches: int) -> Setting:
    """The setting with another N, F = B and W of which follow from the bubble rates and the undelayed time.

    In 1F1B's memory an iteration takes N (F + B + W) + (S - 1) (F + B - W) where nothing is slow.
    """
    work_s = 0.298 / microbatches
    forth_and_back_less_weights_s = (UNDELAYED_MS / 1000 - 0.298) / 3
    forward_s = (work_s + forth_and_back_less_weights_s) / 4
    return replace(SEVEN_BILLION, microbatches=microbatches, times_s=(forward_s, forward_s, work_s - 2 * forward_s))


def _ms(system: System, setting: Setting = SEVEN_BILLION) -> float:
    return 1000 * iteration_s(setting, system, DELAYS_S)


def _is_ordered() -> bool:
    times_ms = [_ms("ZB"), _ms("Adaptra-CPU"), _ms("Adaptra"), 1000 * iteration_s(SEVEN_BILLION, "ZB", {})]
    return times_ms == sorted(times_ms, reverse=True)
