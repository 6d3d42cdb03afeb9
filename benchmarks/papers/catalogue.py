"""Which tables and figures there are, the function that makes each, loaded when asked for, and what there is not."""

from collections.abc import Callable
from importlib import import_module

from ...planners.scheduling.forms import many_problems
from .reproduction import Reproduction

# name: a module beside this one, and its function that makes it.
MAKERS: dict[str, str] = {
    "slipstream-figures-3-5-6": "slipstream_figures.figures_3_5_6",
    "slipstream-table-1": "slipstream_tables.table_1",
    "slipstream-table-2": "slipstream_tables.table_2",
    "slipstream-table-3": "slipstream_tables.table_3",
    "slipstream-figure-8": "slipstream_figures.figure_8",
    "slipstream-figure-9": "slipstream_figures.figure_9",
    "slipstream-figure-10": "slipstream_figures.figure_10",
    "slipstream-figure-11": "slipstream_figures.figure_11",
    "oobleck-table-1": "oobleck.table_1",
    "oobleck-table-2": "oobleck.table_2",
    "oobleck-table-3": "oobleck.table_3",
    "oobleck-table-4": "oobleck.table_4",
    "oobleck-figure-10": "oobleck.figure_10",
    "oobleck-figure-11": "oobleck.figure_11",
    "greyhound-tables-3-4": "greyhound.tables_3_4",
    "greyhound-table-5": "greyhound.table_5",
    "greyhound-table-6": "greyhound.table_6",
    "greyhound-figure-12": "greyhound.figure_12",
    "greyhound-figure-13": "greyhound.figure_13",
    "greyhound-figure-14": "greyhound.figure_14",
    "greyhound-figure-15": "greyhound.figure_15",
    "greyhound-figure-16": "greyhound.figure_16",
    "greyhound-figure-18": "greyhound.figure_18",
    "greyhound-figure-20": "greyhound.figure_20",
    "adaptra-figure-5": "adaptra.figure_5",
    "adaptra-figure-8": "adaptra.figure_8",
    "adaptra-figure-14": "adaptra.figure_14",
    "adaptra-figure-15": "adaptra.figure_15",
    "adaptra-figure-16": "adaptra.figure_16",
    "adaptra-figure-17": "adaptra.figure_17",
    "adaptra-figure-18": "adaptra.figure_18",
    "adaptra-figure-19": "adaptra.figure_19",
    "adaptra-figure-20": "adaptra.figure_20",
    "adaptra-figure-21": "adaptra.figure_21",
    "ntp-figures-3-4-6-7": "ntp.losses",
    "rtk-policy": "rtk_policy.spot_traces",
}

# What the papers have beside these, and why it is not among them.
ABSENT: dict[str, str] = {
    "SlipStream Figures 1, 2, 4, 7": "drawings of parallelism, of the fault-free case, of one operator and of a "
    "normalization; Figures 3, 5 and 6 have their numbers",
    "ReCycle (slides) Tables 1, 2 and Figure 9": "SlipStream's Tables 1, 2 and Figure 8 again; their samples per s are "
    "used there",
    "Oobleck Figures 2 to 9": "drawings of the method and toy examples, without results",
    "Oobleck Figure 12": "more models of Figure 10 (Appendix C), which oobleck-figure-10 has",
    "Greyhound Table 1 and Figures 1 to 6": "what was observed on a production cluster for months; the traces are not "
    "public, and there is nothing to compute from",
    "Greyhound Table 2": "words (how effective and how costly S1 to S4 are), no numbers",
    "Greyhound Figures 7 to 11": "drawings of the method; the passes over rings and trees of Figure 10 are what `rtk "
    "probe` does",
    "Greyhound Figure 17": "seconds of GEMM and NCCL tests on A10, A100 and H800 at full and at 300 MHz: only those "
    "machines have them",
    "Greyhound Figure 19": "how long 10 to 76 GB take from GPUs to host memory, or to disk, and back: bandwidths of "
    "their machine, which are not printed; fitting them to the one printed ratio, 6.72, would say nothing",
    "Adaptra Figure 1": "a 14B model on 8 H800 under small delays, bars without numbers; adaptra-figure-15 has it",
    "Adaptra Figures 2, 6, 9": "one GPU's kernels in a profiler: how NCCL holds up what comes after it",
    "Adaptra Figure 3": "measured on GPUs under delays of each packet, curves without numbers; how messages are cut "
    "into packets is not said",
    "Adaptra Figures 7, 10 to 13 and Tables 1, 2": "drawings, notation and the models' degrees; used where they count",
    "Adaptra Table 3": "an input: the trace of adaptra-figure-21",
    "NTP Figures 1, 2, 5, 8 to 11 and Table 1": "throughput and power of B200 racks by their own simulator, and "
    "kernels of a prototype on 2 DGX A100: curves without printed numbers, on machines that only they have",
}


def names() -> tuple[str, ...]:
    """All names, in the order of the papers."""
    return tuple(MAKERS)


def summary(name: str) -> str:
    """What one is: the first paragraph said of its function, which is not called for it; its name must be known."""
    told = maker(name).__doc__ or ""
    return " ".join(told.partition("\n\n")[0].split()).rstrip(".")


def reproduce(name: str) -> Reproduction:
    """Make one; its name must be known."""
    with many_problems():  # one of replays plans hundreds of times
        return maker(name)()


def maker(name: str) -> Callable[[], Reproduction]:
    """The function that makes one, of a module loaded now; its name must be known."""
    module, _, function = MAKERS[name].partition(".")
    made: Callable[[], Reproduction] = getattr(import_module(f".{module}", __package__), function)
    return made
