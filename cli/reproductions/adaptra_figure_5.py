"""Adaptra Figures 4 and 5: four stages, twelve micro-batches, a delay of 10 or 20 ms on the first link.

The paper's own simulation, with all its constants: F = B = W = 10 ms.
"""

from .adaptra_pipelines import EQUAL_S, Setting, System, delegated
from .reproduction import Basis, Claim, Reproduction, Row

SETTING = Setting(4, 12, EQUAL_S)
PRINTED = {0.0: 390, 0.01: 400, 0.02: 440}  # ms by the delay in s


def reproduce() -> Reproduction:
    """Adaptra Figures 4 and 5: four stages, twelve micro-batches, a delay of 10 or 20 ms on the first link.

    The paper's own simulation, with all its constants: F = B = W = 10 ms.
    """
    frozen = [
        Row(f"{1000 * delay_s:g} ms of delay, ms", paper, _ms(delay_s), Basis.SIMULATED, 0)
        for delay_s, paper in PRINTED.items()
    ]
    adapted = [
        Row(f"{1000 * delay_s:g} ms, adapted, ms", None, _ms(delay_s, "Adaptra"), Basis.SIMULATED)
        for delay_s in (0.01, 0.02)
    ]
    first = Row(
        "20 ms: the first backward of stage 0 begins, ms", 110, 1000 * _first_backward_s(0.02), Basis.SIMULATED, 0
    )
    return Reproduction(
        "adaptra-figure-5",
        "Adaptra Figures 4 and 5: ms an iteration takes under a delay between stages 0 and 1",
        ("adaptra",),
        (*frozen, first, *adapted),
        (Claim("the first 10 ms cost 10 ms, the next 10 ms cost 40 ms", round(_ms(0.02) - _ms(0.01), 6) == 40),),
        METHOD,
        UNSAID,
    )


METHOD = (
    "The orders of Algorithms 2 and 3 for no delay, kept as they are, simulated with delegated sends under the "
    "delay; `adapted`: Algorithm 2 for that delay."
)
UNSAID = (
    "There is no limit of memory in these figures: with room for 7, 5, 3 and 1 activations 390 ms would be 420.",
    "What the paper calls ZeroBubble here is its own generator at no delay: zero-bubble's own orders give 390, 430 "
    "and 500 ms.",
)


def _ms(delay_s: float, system: System = "Adaptra-CPU") -> float:
    return 1000 * delegated(SETTING, system, {0: delay_s}).makespan_s


def _first_backward_s(delay_s: float) -> float:
    spans = delegated(SETTING, "Adaptra-CPU", {0: delay_s}).timeline.spans
    return min(span.start_s for span in spans if span.worker == "0/0" and span.op.startswith("I"))
