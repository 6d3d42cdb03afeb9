"""Adaptra Figure 18: a slow link of a data-parallel group, moved to a pipeline (Falcon, Adaptra) and adapted to.

8.04 times the healthy iteration as it is, 3.6 times less by moving it, another 1.96 times less by Adaptra.
"""

from collections.abc import Iterator

from ...planners.greyhound.plan import plan_topology
from ...planners.shape import Shape
from ...schemas.conditions import pair_of
from .adaptra_pipelines import JOBS, fitted_of, in_turn_s
from .reproduction import Basis, Claim, Reproduction, Row
from .stages import stages_profile

JOB, DELAY_S = JOBS["7B"], 0.03
LEFT_ALONE, MOVED, ADAPTED = 8.04, 3.6, 1.96
TOLERANCE = 0.10


def reproduce() -> Reproduction:
    """Adaptra Figure 18: a slow link of a data-parallel group, moved to a pipeline (Falcon, Adaptra) and adapted to.

    8.04 times the healthy iteration as it is, 3.6 times less by moving it, another 1.96 times less by Adaptra.
    """
    return Reproduction(
        "adaptra-figure-18",
        "Adaptra Figure 18: iteration time of the 7B model with a slow link of 30 ms, over that without",
        ("adaptra", "greyhound"),
        tuple(_rows()),
        (Claim("rtk's own S3 moves the slow link of a data-parallel group to where it costs nothing", _is_moved()),),
        METHOD,
        UNSAID,
    )


METHOD = (
    "Once moved, the slow link lies between two stages: the artifact's 7B job of four stages, as in figures 14 to 16, "
    "one link of 30 ms, by rtk's planner and simulator. Falcon: ZB's orders and sends, messages one after the other; "
    "Adaptra: by delegates, adapted. Ranges are over the three links, and over which of two of ZB's messages goes "
    "first. Nothing is fitted to this figure."
)
UNSAID = (
    "Which link of a pipeline the slow one becomes, and what the second pipeline and its sum add to an iteration: the "
    "artifact's undelayed iteration of one pipeline is taken.",
    "8.04 itself: how the sum's messages are cut into packets, each of which is delayed, is not said. A sum moves "
    "hundreds of times the bytes of a message between stages, which by the printed 30 ms each would be far more "
    "than 8 times; the paper's own number is put in.",
)


def _rows() -> Iterator[Row]:
    falcon = [one / JOB.undelayed("ZB") for link in range(3) for one in in_turn_s(JOB, "ZB", {link: DELAY_S})]
    adaptra = [in_turn_s(JOB, "Adaptra", {link: DELAY_S})[0] / JOB.undelayed("ZB") for link in range(3)]
    yield Row("as it is", LEFT_ALONE, LEFT_ALONE, Basis.QUOTED)
    printed = LEFT_ALONE / MOVED
    yield Row("moved (Falcon)", round(printed, 3), _ends(falcon), Basis.SIMULATED, TOLERANCE)
    adapted = round(printed / ADAPTED, 3)
    yield Row(
        "moved and adapted (Adaptra)",
        adapted,
        _ends(adaptra),
        Basis.SIMULATED,
        TOLERANCE,
        borrowed=fitted_of("Adaptra"),
    )
    gains = [one / two for one, two in zip(falcon[::2], adaptra, strict=True)]
    gains += [one / two for one, two in zip(falcon[1::2], adaptra, strict=True)]
    yield Row("Falcon over Adaptra", ADAPTED, _ends(gains), Basis.SIMULATED, TOLERANCE, borrowed=fitted_of("Adaptra"))


def _ends(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def _is_moved() -> bool:
    """Whether two pipelines of four stages are as quick after S3 as without a slow link."""
    profile, shape = stages_profile([1.0] * 4), Shape(4, 2, JOB.setting.microbatches)
    healthy_s, times_s = (
        plan_topology(profile, shape, {}, slow).planner.options["iteration_time_s"]
        for slow in ({}, {pair_of("0/1", "1/1"): 10.0})
    )
    return bool(abs(times_s["S3"] / healthy_s["as it is"] - 1) < 1e-9)
