"""Adaptra Figure 17: two or three slow links at once in the 14B model, 30 ms each: averages over four settings."""

from .adaptra_pipelines import JOBS, System, fitted_of, in_turn_s
from .reproduction import Basis, Claim, Reproduction, Row

JOB = JOBS["14B"]
SETTINGS = ((0, 1), (0, 2), (0, 6), (0, 3, 6))  # slow links: adjacent, skipping one, first and last, three
SAVED: dict[System, float] = {"1F1B": 0.516, "ZB": 0.575, "Adaptra-CPU": 0.231}


def reproduce() -> Reproduction:
    """Adaptra Figure 17: two or three slow links at once in the 14B model, 30 ms each: averages over four settings."""
    rows = tuple(_row(system, round(1 - saved, 3)) for system, saved in SAVED.items())
    return Reproduction(
        "adaptra-figure-17",
        "Adaptra Figure 17: Adaptra's iteration time over the others' with 2 or 3 links of 30 ms, mean of 4 settings",
        ("pipeline", "adaptra"),
        rows,
        (Claim("Adaptra is faster than each of the others in all four settings", _is_fastest()),),
        METHOD,
        UNSAID,
    )


METHOD = (
    "As adaptra-figure-15, with several links slow; the paper's percentages saved are turned into ratios. Nothing is "
    "fitted to this figure."
)
UNSAID = (
    "Bars are in the picture only; the text has the averages. Whether these are means of ratios or ratios of means "
    "is not said; here they are means of ratios.",
)


def _row(system: System, printed: float) -> Row:
    ratios = [_ratios(system, links) for links in SETTINGS]
    low, high = (sum(ends) / len(SETTINGS) for ends in zip(*ratios, strict=True))
    if system == "ZB":
        return Row(f"Adaptra over {system}", printed, (low, high), Basis.SIMULATED, 0.10, borrowed=fitted_of("Adaptra"))
    return Row(f"Adaptra over {system}", printed, low, Basis.SIMULATED, 0.10, borrowed=fitted_of("Adaptra"))


def _ratios(system: System, links: tuple[int, ...]) -> tuple[float, float]:
    """Adaptra's time over a system's; the ends of its range."""
    delays_s = dict.fromkeys(links, 0.03)
    adapted_s, _ = in_turn_s(JOB, "Adaptra", delays_s)
    least_s, most_s = in_turn_s(JOB, system, delays_s)
    return adapted_s / most_s, adapted_s / least_s


def _is_fastest() -> bool:
    return all(_ratios(system, links)[1] <= 1 for system in SAVED for links in SETTINGS)
