"""Other people's detectors: ruptures (off-line) and river (on-line), with settings as they come and as suit best.

All are given values in units of their noise (`noise_of`). As they come: ruptures with the penalty of the Bayesian
information criterion for a step in the mean, 2 log n, and its default width; river with its defaults
(KSWIN left out: a millisecond a sample). As suits best:
the best of a grid on the very series that are scored, which favours them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rtk.benchmarks.failslow_labelled import Detector, Floats
from rtk.benchmarks.failslow_views import noise_of

PENALTIES = (5, 10, 20, 30, 100, 300, 1000)  # times log n
WIDTHS = (20, 60)


def default_settings() -> dict[str, Detector]:
    """Each peer as it comes."""
    from river import drift

    return {
        "ruptures KernelCPD (linear)": _kernel_cpd(2),
        "ruptures Binseg": _binseg(2),
        "ruptures Window": _window(2, 100),
        "river ADWIN": _river(drift.ADWIN),
        "river PageHinkley": _river(drift.PageHinkley),
    }


def best_settings() -> dict[str, dict[str, Detector]]:
    """What is tried to find the best setting of each."""
    from river import drift

    return {
        "ruptures KernelCPD (linear)": {f"penalty {p} log n": _kernel_cpd(p) for p in PENALTIES},
        "ruptures Binseg": {f"penalty {p} log n": _binseg(p) for p in (10, 300)},
        "ruptures Window": {
            f"width {width}, penalty {p} log n": _window(p, width) for p in PENALTIES[1:-1] for width in WIDTHS
        },
        "river ADWIN": {
            f"delta {delta:g}": _river(partial(drift.ADWIN, delta=delta))
            for delta in (0.05, 2e-3, 2e-5, 1e-8, 1e-20, 1e-50)
        },
        "river PageHinkley": {
            f"threshold {most}": _river(partial(drift.PageHinkley, threshold=most))
            for most in (20, 50, 200, 1000, 5000, 20000)
        },
    }


def _standard(values: Floats) -> Floats:
    return (values - np.median(values)) / noise_of(values)


def _kernel_cpd(penalty: float) -> Detector:
    """What Pelt finds with squared distances, exactly and fast."""
    import ruptures

    def detect(values: Floats) -> list[int]:
        search = ruptures.KernelCPD(kernel="linear", min_size=2).fit(_standard(values)[:, None])
        return list(search.predict(pen=penalty * np.log(len(values)))[:-1])

    return detect


def _binseg(penalty: float) -> Detector:
    import ruptures

    def detect(values: Floats) -> list[int]:
        search = ruptures.Binseg(model="l2").fit(_standard(values))
        return list(search.predict(pen=penalty * np.log(len(values)))[:-1])

    return detect


def _window(penalty: float, width: int) -> Detector:
    import ruptures

    def detect(values: Floats) -> list[int]:
        if len(values) < 2 * width:
            return []
        search = ruptures.Window(width=width, model="l2", jump=1).fit(_standard(values))
        return list(search.predict(pen=penalty * np.log(len(values)))[:-1])

    return detect


def _river(make: Callable[[], Any]) -> Detector:
    """The change of ADWIN is where its window begins now; the others only say when they see one."""

    def detect(values: Floats) -> list[int]:
        detector, found = make(), []
        for place, value in enumerate(_standard(values).tolist()):
            detector.update(value)
            if detector.drift_detected:
                width = int(getattr(detector, "width", 1))
                found.append(max(place + 1 - width, 0))
        return found

    return detect
