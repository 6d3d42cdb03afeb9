"""Adaptra Figure 20: what delegates cost where nothing is slow: under 5 % up to 30B, 17 % at 60B."""

from collections.abc import Iterator
from statistics import median

from .adaptra_pipelines import JOBS, SYSTEMS, System
from .measured import measured
from .reproduction import Basis, Claim, Reproduction, Row

NAME = "adaptra-figure-20"
LITTLE, LARGEST = 1.05, 1.17
PRINTED = {"7B": LITTLE, "14B": LITTLE, "30B": LITTLE, "60B": LARGEST}
DIRECT: tuple[System, ...] = SYSTEMS[:2]


def reproduce() -> Reproduction:
    """Adaptra Figure 20: what delegates cost where nothing is slow: under 5 % up to 30B, 17 % at 60B.

    What rtk's runner has, recorded, and what the authors' logs say.
    """
    return Reproduction(
        NAME,
        "Adaptra Figure 20: an iteration by delegates over a direct one, nothing slow",
        (),
        (*_ours(), *_theirs()),
        (Claim("by the logs the largest model's overhead over ZB is the largest", _is_largest()),),
        METHOD,
        UNSAID,
    )


METHOD = (
    "rtk's: `rtk run` with delegated sends over direct ones, paced, on two cores, median of six turns "
    "(`benchmarks/slow_links.py`), measured once. Theirs: undelayed iterations of the artifact's logs, which are "
    "those of figures 15 and 16: the authors' own figures put in, nothing computed."
)
UNSAID = (
    "Which of the two direct systems each percentage is over: “comparable to ZB and 1F1B” may mean the slower one. By "
    "the logs it would be 10 % over ZB with 7B and 18 % with 30B, where the text has under 5 %.",
    "What delegates cost on GPUs is a matter of copies to hosts and back. On a machine without GPUs, where all "
    "messages pass through the host anyway, they cost nothing.",
)


def _ours() -> Iterator[Row]:
    ratio = median(measured(NAME))
    yield Row("rtk's runner, without GPUs", LITTLE, ratio, Basis.MEASURED, 0.0, sense="at most")


def _theirs() -> Iterator[Row]:
    for model, printed in PRINTED.items():
        for system in DIRECT:
            ours = JOBS[model].undelayed("Adaptra") / JOBS[model].undelayed(system)
            yield Row(f"{model}, by the logs, over {system}", printed, ours, Basis.QUOTED)


def _is_largest() -> bool:
    over = {model: job.undelayed("Adaptra") / job.undelayed("ZB") for model, job in JOBS.items()}
    return max(over, key=over.__getitem__) == "60B"
