"""Greyhound Figure 18: what tracking costs an iteration, 0.39 % on average and 1.1 % at most."""

from collections.abc import Iterator
from statistics import mean

from .measured import measured
from .reproduction import Basis, Claim, Reproduction, Row

NAME = "greyhound-figure-18"
MEAN, MOST = 0.0039, 0.011


def reproduce() -> Reproduction:
    """Greyhound Figure 18: what tracking costs an iteration, 0.39 % on average and 1.1 % at most.

    What was recorded.
    """
    return Reproduction(
        NAME,
        "Greyhound Figure 18: the share of a job that tracking takes",
        (),
        tuple(_rows()),
        (Claim("an iteration eight times as long has less of it", _shares()[0] > _shares()[-1]),),
        METHOD,
        UNSAID,
    )


METHOD = (
    "Measured once by `benchmarks/monitor_overhead.py --quick`: `rtk monitor` on an unchanged DDP script, two gloo "
    "ranks on two cores. By accounts: the calls times what each costs, and the watching process, over the ranks' "
    "processor time. In turns: iterations with and without it, which on a shared machine shows more chance than "
    "monitor."
)
UNSAID = (
    "Strategies and models are in the picture only. Theirs are GPUs, whose calls cost the host as much and the job "
    "less.",
)


def _rows() -> Iterator[Row]:
    recorded = measured(NAME)
    for one in recorded:
        what = f"iterations of {1000 * one['iteration_s']:.0f} ms"
        yield Row(f"{what}, by accounts", MOST, one["accounted"], Basis.MEASURED, 0.0, sense="at most")
        yield Row(f"{what}, in turns, median", MOST, one["in_turns"], Basis.MEASURED)
    yield Row("mean, by accounts", MEAN, mean(_shares()), Basis.MEASURED, 0.0, sense="at most")


def _shares() -> list[float]:
    """By accounts, the shortest iterations first."""
    return [one["accounted"] for one in measured(NAME)]
