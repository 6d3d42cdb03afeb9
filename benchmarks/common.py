"""What the benchmarks share: measurements in turns, the machine they ran on, and canonical JSON."""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from statistics import median, quantiles
from typing import Any

from rtk import __version__
from rtk.schemas.documents import canonical_json
from rtk.schemas.files import write_bytes
from rtk.schemas.gpus import gpu_of_device


def machine() -> dict[str, Any]:
    """Facts that a figure depends on: processor, cores, load (over 1, 5 and 15 minutes), Python and libraries."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": list(os.getloadavg()),
        "system": platform.platform(),
        "versions": {
            "python": platform.python_version(),
            "rtk": __version__,
            **{name: version(name) for name in ("numba", "numpy", "torch") if find_spec(name)},
        },
    }


def gpu_here(device: str) -> str:
    """What the first GPU of this machine is called in our table (schemas/gpus.py); "cpu" where the device is one."""
    if device == "cpu":
        return "cpu"
    import torch

    name = torch.cuda.get_device_name(0)
    if (found := gpu_of_device(name)) is None:
        raise SystemExit(f"error: nothing is known of {name}; add it to schemas/gpus.py")
    return found


def in_turns(sides: Mapping[str, Callable[[], float]], rounds: int, repeats: int) -> dict[str, list[list[float]]]:
    """Measure several sides in turns, so that a change of the machine's mood meets all of them.

    Args:
        sides: what to measure, by name; each call measures once and returns the value.
        rounds: how often every side has its turn.
        repeats: measurements in a turn; one more comes before them and is not counted, to warm up.

    Returns:
        For each side its values, one list a turn.
    """
    values: dict[str, list[list[float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            measure()
            values[name].append([measure() for _ in range(repeats)])
    return values


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median of two or more values, and the quartiles around it."""
    lower, _, upper = quantiles(values, n=4)
    return {"median": median(values), "lower_quartile": lower, "upper_quartile": upper}


def write_result(result: Mapping[str, Any], output: str) -> None:
    """Write a result, with the machine's facts, as canonical JSON to a file or (`-`) standard output."""
    write_bytes(output, canonical_json({**result, "machine": machine()}))
