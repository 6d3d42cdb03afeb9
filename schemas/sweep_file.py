"""The file of `rtk sweep`: lists of models, jobs, clusters, traces and costs, of which every combination is tried."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

from .cluster_file import YamlValue, read_yaml
from .degrees import AUTO
from .documents import read_document
from .errors import RtkError
from .files import STANDARD_STREAM
from .orders import LeanSchedule
from .profile import Profile
from .quantities import parse_memory_limit, parse_time_s
from .replay import AskedJob, Costs, parse_cost
from .site import Site, machines_of
from .text import did_you_mean

KEYS = ("profiles", "jobs", "clusters", "traces", "policies", "costs", "until")
COUNTS = ("pp", "dp", "microbatches", "tensor_parallel", "chunks")
# What is longer is no file here, and the system would not even look.
LONGEST_PATH = 200

T = TypeVar("T")
Axes = Mapping[str, str]  # what was taken from which list, as it stands in the file


@dataclass(frozen=True)
class SweepWords:
    """The words of a sweep's file that the wings know.

    Attributes:
        formats: of traces.
        leavings: who leaves when a count drops.
        policies: all that there are.
        require_policy: raises InvalidInputError for a name that is none of a policy.
    """

    formats: Sequence[str]
    leavings: Sequence[str]
    policies: tuple[str, ...]
    require_policy: Callable[[str], None]


@dataclass(frozen=True)
class SweepChoice(Generic[T]):
    """One of a list.

    Attributes:
        axes: what was taken from which list, as it stands in the file.
        value: what that means.
        place: where it stands, or should.
    """

    axes: Axes
    value: T
    place: YamlValue


@dataclass(frozen=True)
class SweptTrace:
    """A trace of a sweep.

    Attributes:
        axes: what was taken from which list, as it stands in the file.
        seed: of all that is drawn.
        place: where it stands.
        file: its absolute path; None: it is to be generated.
        settings: how it is read, or generated, by the names of the options of `rtk trace`.
    """

    axes: Axes
    seed: int
    place: YamlValue
    file: str | None
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What reports call it."""
        return ", ".join(text if key == "trace" else f"{key} {text}" for key, text in self.axes.items())


Taken = tuple[SweepChoice[Profile], SweepChoice[Site], SweepChoice[AskedJob], SweptTrace, SweepChoice[Costs]]


@dataclass(frozen=True)
class SweepSpec:
    """What a sweep's file says.

    Attributes:
        profiles, clusters, jobs, traces, costs: the lists.
        policies: of all replays.
        until_s: when all traces end; None: with their last events.
    """

    profiles: Sequence[SweepChoice[Profile]]
    clusters: Sequence[SweepChoice[Site]]
    jobs: Sequence[SweepChoice[AskedJob]]
    traces: Sequence[SweptTrace]
    costs: Sequence[SweepChoice[Costs]]
    policies: tuple[str, ...]
    until_s: float | None

    def combinations(self) -> Iterator[Taken]:
        """Every combination of one of each list, in their order."""
        return product(self.profiles, self.clusters, self.jobs, self.traces, self.costs)


def read_sweep_file(path: str, words: SweepWords) -> SweepSpec:
    """Read a sweep's file.

    Args:
        path: the file; paths in it begin at its folder. `-` is standard input, and the folder is this one.
        words: that may stand there.

    Raises:
        InvalidInputError: a value is not what it should be; says file, line and key.
    """
    whole = read_yaml(path)
    entries = whole.entries(KEYS)
    require_keys(whole, entries, "profiles", "jobs", "traces")
    folder = Path() if path == STANDARD_STREAM else Path(path).parent
    profiles = [
        SweepChoice({"profile": one.text()}, read_document(str(folder / one.text()), Profile), one)
        for one in items_of(entries["profiles"])
    ]
    clusters = [SweepChoice({}, Site(), whole)]
    if "clusters" in entries:
        clusters = [_cluster(one, folder) for one in items_of(entries["clusters"])]
    jobs = [job for one in items_of(entries["jobs"]) for job in _jobs(one)]
    traces = [trace for one in items_of(entries["traces"]) for trace in _traces(one, folder, words)]
    policies, until = _policies(entries.get("policies"), words), entries.get("until")
    until_s = None if until is None else parse_time_s(until.text(), until.where)
    costs = _costs(entries["costs"]) if "costs" in entries else [SweepChoice({}, Costs(), whole)]
    count = len(profiles) * len(clusters) * len(jobs) * len(traces) * len(costs)
    if count > MOST_REPLAYS:
        raise whole.wrong(f"{count} replays are too many", f"take some out of the lists, up to {MOST_REPLAYS}")
    return SweepSpec(profiles, clusters, jobs, traces, costs, policies, until_s)


def _cluster(value: YamlValue, folder: Path) -> SweepChoice[Site]:
    text = value.text()
    path = folder / text
    with placed(value):
        return SweepChoice(
            {"cluster": text},
            machines_of(str(path) if len(text) < LONGEST_PATH and path.is_file() else text, None, 1),
            value,
        )


def _jobs(value: YamlValue) -> Iterator[SweepChoice[AskedJob]]:
    """The jobs that an item stands for: every key may have a list."""
    entries = value.entries((*COUNTS, "schedule", "memory_limit", "placement"))
    require_keys(value, entries, "pp", "microbatches")
    for chosen in choices(entries):
        counts = {key: chosen[key].count() for key in COUNTS if key in chosen and not _is_auto(key, chosen)}
        asked = AskedJob(**counts)  # type: ignore[arg-type]
        if (schedule := chosen.get("schedule")) is not None:
            asked = replace(asked, schedule=word(schedule, get_args(LeanSchedule)))
        if (placement := chosen.get("placement")) is not None:
            asked = replace(asked, placement=placement.text())
        if (limit := chosen.get("memory_limit")) is not None:
            with placed(limit):
                asked = replace(asked, memory_limit_bytes=parse_memory_limit(limit.text()))
        yield SweepChoice(texts(chosen), asked, value)


def _is_auto(key: str, chosen: Mapping[str, YamlValue]) -> bool:
    """Whether it is the profile's best degree that is asked for, which depends on the profile and the machines."""
    return key == "tensor_parallel" and chosen[key].text() == AUTO


def _costs(value: YamlValue) -> list[SweepChoice[Costs]]:
    """The costs: of each a number, or several in a list."""
    found = []
    for chosen in choices(value.entries()):
        given: dict[str, Any] = {key: parse_cost(key, one.text(), one.where) for key, one in chosen.items()}
        found.append(SweepChoice(texts(chosen), Costs(**given), value))
    return found


def _policies(value: YamlValue | None, words: SweepWords) -> tuple[str, ...]:
    if value is None:
        return words.policies
    items = items_of(value)
    for item in items:
        with placed(item):
            words.require_policy(item.text())
    return tuple(dict.fromkeys(item.text() for item in items))


# Values of a sweep's file: lists in which every item is tried, words, numbers, and errors that name their place.


MOST_REPLAYS = 100_000  # of a sweep, and so of its seeds: more is a slip of the pen


@contextmanager
def placed(value: YamlValue) -> Iterator[None]:
    """Errors that name options, or no place, name the place in the file instead."""
    try:
        yield
    except RtkError as error:
        where = error.where or ""
        if where and not where.startswith("--"):
            raise
        entries = value.entries() if value.node.id == "mapping" else {}
        place = entries.get(_as_keys(where), value)
        raise type(error)(error.what, where=place.where, fix=_as_keys(error.fix or "") or None) from None


def items_of(value: YamlValue) -> list[YamlValue]:
    """The items of a list; what is no list is one by itself.

    Raises:
        InvalidInputError: the list is empty.
    """
    items = value.items() if value.is_list else [value]
    if not items:
        raise value.wrong("the list is empty", "give at least one")
    return items


def choices(entries: Mapping[str, YamlValue]) -> Iterator[dict[str, YamlValue]]:
    """A mapping in which each list stands for one of its items in turn."""
    for chosen in product(*(items_of(value) for value in entries.values())):
        yield dict(zip(entries, chosen, strict=True))


def texts(chosen: Mapping[str, YamlValue]) -> dict[str, str]:
    """The values as they stand there."""
    return {key: value.text() for key, value in chosen.items()}


def require_keys(value: YamlValue, entries: Mapping[str, YamlValue], *keys: str) -> None:
    """Raise InvalidInputError if a mapping lacks one of these."""
    for key in keys:
        if key not in entries:
            raise value.wrong(f"the key {key!r} is missing", "add it")


def word(value: YamlValue, words: Sequence[str]) -> Any:
    """One of some words.

    Raises:
        InvalidInputError: it is none of them.
    """
    text = value.text()
    if text not in words:
        raise value.wrong(f"{text!r} is not known here", did_you_mean(text, words, f"write one of {', '.join(words)}"))
    return text


def number(value: YamlValue) -> float:
    """A plain number.

    Raises:
        InvalidInputError: it is none.
    """
    try:
        return float(value.text())
    except ValueError:
        raise value.wrong(f"{value.text()!r} is no number", "write one such as 1.5") from None


def flag(value: YamlValue) -> bool:
    """`true` or `false`.

    Raises:
        InvalidInputError: it is neither.
    """
    text = value.text()
    if text not in ("true", "false"):
        raise value.wrong(f"{text!r} is neither true nor false", "write true or false")
    return text == "true"


def seeds_of(value: YamlValue | None) -> tuple[int, ...]:
    """A number of seeds, which are 0, 1 and so on, or a list of them; none where nothing stands.

    Raises:
        InvalidInputError: a seed is no whole number of 0 or more, or there are more than `MOST_REPLAYS`.
    """
    if value is None:
        return ()
    if not value.is_list:
        if value.count() > MOST_REPLAYS:
            raise value.wrong(f"{value.text()} seeds are too many", f"up to {MOST_REPLAYS}")
        return tuple(range(value.count()))
    seeds = items_of(value)
    for one in seeds:
        if re.fullmatch(r"\d{1,9}", one.text(), re.ASCII) is None:
            raise one.wrong(f"{one.text()!r} is no seed", "a seed is a whole number of 0 or more")
    return tuple(int(one.text()) for one in seeds)


def _as_keys(text: str) -> str:
    """A text in which options are called as the keys of the file are."""
    return re.sub(r"--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), text)


# The traces of a sweep's file: files, and what is to be generated.


# What the values of the keys are, of a file's with the words that may stand there. Those of `generate` are called as
# the options of `rtk trace generate`.
OF_FILES: dict[str, Callable[[YamlValue, SweepWords], Any]] = {
    "file": lambda value, words: value.text(),
    "format": lambda value, words: word(value, words.formats),
    "nodes": lambda value, words: value.count(),
    "leaving": lambda value, words: word(value, words.leavings),
    "slow_faults": lambda value, words: flag(value),
}
OF_GENERATED: dict[str, Callable[[YamlValue], Any]] = {
    "nodes": YamlValue.count,
    "duration": lambda value: parse_time_s(value.text(), value.where),
    "mtbf": YamlValue.text,
    "repair": YamlValue.text,
    "distribution": lambda value: word(value, ("exponential", "weibull")),
    "shape": number,
    "repair_distribution": lambda value: word(value, ("exponential", "lognormal", "fixed")),
    "repair_sigma": number,
    "rack_size": YamlValue.count,
    "gpus_per_node": YamlValue.count,
    "gpu_mtbf": YamlValue.text,
    "gpu_repair": YamlValue.text,
    "rack_mtbf": YamlValue.text,
    "rack_repair": YamlValue.text,
    "slow_every": YamlValue.text,
    "slow_lasts": YamlValue.text,
    "slow_factor": number,
    "slow_link_every": YamlValue.text,
    "slow_link_lasts": YamlValue.text,
    "slow_link_delay": YamlValue.text,
}


def _traces(value: YamlValue, folder: Path, words: SweepWords) -> Iterator[SweptTrace]:
    """The traces that an item stands for: a path, `file` and what it does not say itself, or `generate`."""
    entries, seeds = {"file": value}, tuple[int, ...]()
    if value.node.id != "scalar":
        is_made = "generate" in value.entries()
        entries = value.entries(("generate", "seeds") if is_made else (*OF_FILES, "seeds"))
        seeds = seeds_of(entries.pop("seeds", None))
        if is_made:
            yield from _generated(entries["generate"], seeds or (0,))
            return
        require_keys(value, entries, "file")
    drawn: list[tuple[int, Axes]] = [(seed, {"seed": str(seed)}) for seed in seeds] or [(0, {})]
    for chosen in choices(entries):
        others = {key: one for key, one in chosen.items() if key != "file"}
        given = {key: OF_FILES[key](one, words) for key, one in others.items()}
        name = chosen["file"].text()
        for seed, told in drawn:
            axes = {"trace": name, **texts(others), **told}
            yield SweptTrace(axes, seed, value, str((folder / name).absolute()), given)


def _generated(value: YamlValue, seeds: tuple[int, ...]) -> Iterator[SweptTrace]:
    entries = value.entries(OF_GENERATED)
    require_keys(value, entries, "duration")
    for chosen in choices(entries):
        given = {key: OF_GENERATED[key](one) for key, one in chosen.items()}
        for seed in seeds:
            axes = {"trace": "generated", **texts(chosen), "seed": str(seed)}
            yield SweptTrace(axes, seed, value, None, given)
