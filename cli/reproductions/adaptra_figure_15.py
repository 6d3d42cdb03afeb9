"""Adaptra Figure 15: a 14B model on eight stages, how much a delay of 60 ms on the last link slows each system."""

from collections.abc import Iterator

from .adaptra_pipelines import BLOCKING_15, FOURTEEN_BILLION, System, iteration_s
from .reproduction import Claim, Reproduction, Row

LAST, DELAY_S = FOURTEEN_BILLION.last, 0.06
PRINTED: dict[System, float] = {"1F1B": 2.70, "ZB": 4.24, "Adaptra-CPU": 2.15, "Adaptra": 1.13}


def reproduce() -> Reproduction:
    """All of it."""
    return Reproduction(
        "adaptra-figure-15",
        "Adaptra Figure 15: iteration time of the 14B model with 60 ms on the last link, over that without a delay",
        (*_slowdowns(), *_curve()),
        (Claim("ZB is slowed most, then 1F1B, Adaptra-CPU, and Adaptra least", _is_ordered()),),
        METHOD,
        UNSAID,
    )


METHOD = (
    "As adaptra-figure-14, with its times (14B on eight stages has as many parameters a stage as 7B on four), N = 2 "
    "S as there, and its blocking factor 1.234: nothing is fitted to this figure but where a row says so."
)
UNSAID = (
    "N and the times of operations are not said. With N = 12 Adaptra is at 1.13 and Adaptra-CPU at 1.84, with N = "
    "24 they are at 1.01 and 2.12: no N with these times meets both within 5 %.",
    "ZB's 4.24 wants sends to hold the stream for 2.46 delays, where 703 ms of figure 14 want 1.23 and 1F1B's 2.70 "
    "here 1.43. So blocking is not in proportion to the delay, and the paper does not say what it is; our transport "
    "model, in which a send holds its sender, is too kind to ZB.",
    "Adaptra plans without a limit of memory, ZB within 1F1B's: so at 20 ms it is even quicker than ZB without a "
    "delay.",
    "The text says 48.1 % and 24.6 % of ZB's time are saved by delegates and by adapting; of 4.24, 2.15 and 1.13 "
    "they are 49.3 % and 24.1 %, for each system's ratio is to its own time without a delay.",
)


def _slowdowns() -> Iterator[Row]:
    yield Row("1F1B, figure 14's blocking", 2.70, _slowdown("1F1B"), "model", 0.10)
    yield Row("ZB, figure 14's blocking", 4.24, _slowdown("ZB"), "model", note="disclosed; see Unsaid")
    fitted = _slowdown("ZB", blocking=BLOCKING_15["ZB"])
    yield Row("ZB, 2.458 delays a send", 4.24, fitted, "fitted", 0.10, note="the factor is fitted to this number")
    yield Row("Adaptra-CPU", 2.15, _slowdown("Adaptra-CPU"), "model", 0.10)
    yield Row("Adaptra", 1.13, _slowdown("Adaptra"), "model", 0.10)


def _curve() -> Iterator[Row]:
    for system in ("Adaptra-CPU", "Adaptra"):
        for delay_ms in (20, 40):
            yield Row(f"{system}, {delay_ms} ms", None, _slowdown(system, delay_ms / 1000))


def _slowdown(system: System, delay_s: float = DELAY_S, blocking: float | None = None) -> float:
    """How many times as long as without a delay; Adaptra without a delay runs the orders of ZB."""
    factor = {} if blocking is None else {"blocking": blocking}
    undelayed_s = iteration_s(FOURTEEN_BILLION, "1F1B" if system == "1F1B" else "Adaptra-CPU", {})
    return iteration_s(FOURTEEN_BILLION, system, {LAST: delay_s}, **factor) / undelayed_s


def _is_ordered() -> bool:
    ours = {system: _slowdown(system) for system in PRINTED}
    return sorted(ours, key=ours.__getitem__) == sorted(PRINTED, key=PRINTED.__getitem__)
