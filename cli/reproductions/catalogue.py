"""Which tables and figures there are, and the module that makes each; modules are loaded when asked for."""

from collections.abc import Callable
from importlib import import_module

from .reproduction import Reproduction

# name: module beside this one, whose `reproduce()` makes it.
MODULES: dict[str, str] = {
    "slipstream-figures-3-5-6": "slipstream_figures_3_5_6",
    "slipstream-table-1": "slipstream_table_1",
    "slipstream-figure-8": "slipstream_figure_8",
    "slipstream-figure-9": "slipstream_figure_9",
    "slipstream-figure-10": "slipstream_figure_10",
    "slipstream-figure-11": "slipstream_figure_11",
    "oobleck-table-2": "oobleck_table_2",
    "oobleck-table-4": "oobleck_table_4",
    "oobleck-figure-10": "oobleck_figure_10",
    "greyhound-figure-12": "greyhound_figure_12",
    "greyhound-figure-14": "greyhound_figure_14",
    "greyhound-figure-15": "greyhound_figure_15",
    "greyhound-figure-20": "greyhound_figure_20",
    "adaptra-figure-5": "adaptra_figure_5",
    "adaptra-figure-8": "adaptra_figure_8",
    "adaptra-figure-14": "adaptra_figure_14",
    "adaptra-figure-15": "adaptra_figure_15",
    "adaptra-figure-16": "adaptra_figure_16",
    "adaptra-figure-17": "adaptra_figure_17",
    "adaptra-figure-19": "adaptra_figure_19",
    "adaptra-figure-21": "adaptra_figure_21",
    "rtk-policy": "rtk_policy",
}


def names() -> tuple[str, ...]:
    """All names, in the order of the papers."""
    return tuple(MODULES)


def summary(name: str) -> str:
    """What one is, in a line: the first one of its module, which is not made for it; its name must be known."""
    told = import_module(f".{MODULES[name]}", __package__).__doc__ or ""
    return told.partition("\n")[0].rstrip(".")


def reproduce(name: str) -> Reproduction:
    """Make one; its name must be known."""
    made: Callable[[], Reproduction] = import_module(f".{MODULES[name]}", __package__).reproduce
    return made()
