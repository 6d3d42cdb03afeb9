"""`rtk sweep`: lists of what is to be replayed with what, whose cross product is hundreds of questions for `replaying`.

It stands at the root as that does: its questions are of the planners' jobs and the runners' traces.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path, PurePath
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

from .planners.plain.verbs import AskedJob, job_of
from .replaying import ReplayRequest, digest_of, replays
from .runners.traces.formats import Leaving, TraceFormat
from .runners.traces.generate import recipe_of
from .runners.traces.read import reading_of
from .schemas.cluster_file import YamlValue, read_yaml
from .schemas.documents import canonical_json, read_document, write_document
from .schemas.errors import InfeasibleError, InvalidInputError, RtkError, remark
from .schemas.files import STANDARD_STREAM, write_bytes
from .schemas.orders import LeanSchedule
from .schemas.profile import Profile
from .schemas.quantities import parse_memory_limit, parse_time_s
from .schemas.replay import ReplayReport, parse_cost
from .schemas.site import Site, machines_of
from .schemas.text import did_you_mean

if TYPE_CHECKING:
    from .planners.recovery.job import TrainingJob
    from .runners.traces.generate import FaultScenario
    from .runners.traces.read import TraceOptions
    from .schemas.replay import Costs

    Source = tuple[str | FaultScenario, TraceOptions]


KEYS = ("profiles", "jobs", "clusters", "traces", "policies", "costs", "until")
COUNTS = ("pp", "dp", "microbatches", "tensor_parallel")
# What is longer is no file here, and the system would not even look.
LONGEST_PATH = 200
LONGEST_NAME = 80  # of a report's file, before the digest

T = TypeVar("T")
Axes = Mapping[str, str]  # what was taken from which list, as it stands in the file


@dataclass(frozen=True)
class _Choice(Generic[T]):
    axes: Axes
    value: T


@dataclass(frozen=True)
class _Job(_Choice[AskedJob]):
    place: YamlValue


NOWHERE = _Choice[Site]({}, Site())


@dataclass(frozen=True)
class Combination:
    """One of each list.

    Attributes:
        axes: what was taken from which list, as it stands in the file.
        question: what is asked.
        digest: of all that the answer depends on.
    """

    axes: Axes
    question: ReplayRequest
    digest: str

    @property
    def name(self) -> str:
        """Of its report's file: for people, and unlike any other's."""
        shape, seed = self.question.job.shape, self.axes.get("seed")
        parts = [_stem(self.axes["profile"]), f"{shape.dp}x{shape.pp}", _stem(self.axes["trace"])]
        parts += [] if seed is None else [f"seed{seed}"]
        slug = re.sub(r"[^A-Za-z0-9_]+", "-", "-".join(parts))[:LONGEST_NAME]
        return f"{slug}-{self.digest[:16]}.json"


def sweep(
    spec: str,
    output: str,
    jobs: int = 1,
    executor: str = "process",
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """Replay every combination of models, jobs, clusters, traces and costs: `rtk sweep`.

    Args:
        spec: the YAML file of lists, as `rtk sweep --help` tells; `-` is standard input.
        output: the folder of a report a combination; those that are there already, of the same inputs, are not made
            again.
        jobs: processes, which share the combinations.
        executor: who replays: "process", "dask:ADDRESS", "ray" or "ray:ADDRESS".
        tell: hears how many replays are finished, and of how many.

    Returns:
        What all have in common, as `summary.json` in the folder says it: see `summary_of`.

    Raises:
        InvalidInputError: a value of the file is not what it should be, the folder cannot be made, or there is no such
            executor.
        InfeasibleError: a cluster is too small for a job.
        RuntimeFailedError: a cluster's scheduler does not answer, or a process has ended by itself.
    """
    from .runners.replay.executors import executor_of

    combinations, folder = read_sweep(spec), SweepFolder(output)
    outcomes = folder.finished(combinations)
    missing = [number for number in range(len(combinations)) if number not in outcomes]
    if outcomes:
        remark(f"{len(outcomes)} of {len(combinations)} reports are there already")
    tell(len(outcomes), len(combinations))
    try:
        if missing:
            with executor_of(executor, min(jobs, len(missing))) as pool:
                for index, found in replays([combinations[number].question for number in missing], pool):
                    number = missing[index]
                    if isinstance(found, InfeasibleError):
                        outcomes[number] = SweepOutcome({}, {}, found.what)
                    else:
                        outcomes[number] = folder.keep(combinations[number], found)
                    tell(len(outcomes), len(combinations))
    except KeyboardInterrupt:
        remark("what is finished is kept: the same command goes on from there")
        raise
    summary = summary_of([(one, outcomes[number]) for number, one in enumerate(combinations)])
    folder.summarize(summary)
    return summary


def read_sweep(path: str) -> list[Combination]:
    """Read a sweep: every combination of one of each list, in their order, equal ones once.

    Args:
        path: the file; paths in it begin at its folder. `-` is standard input, and the folder is this one.

    Raises:
        InvalidInputError: a value is not what it should be; says file, line and key.
        InfeasibleError: a cluster is too small for a job.
    """
    whole = read_yaml(path)
    entries = whole.entries(KEYS)
    require_keys(whole, entries, "profiles", "jobs", "traces")
    folder = Path() if path == STANDARD_STREAM else Path(path).parent
    profiles = [
        _Choice({"profile": one.text()}, read_document(str(folder / one.text()), Profile))
        for one in items_of(entries["profiles"])
    ]
    clusters = [_cluster(one, folder) for one in items_of(entries["clusters"])] if "clusters" in entries else [NOWHERE]
    jobs = [job for one in items_of(entries["jobs"]) for job in _jobs(one)]
    traces = [trace for one in items_of(entries["traces"]) for trace in swept_traces(one, folder)]
    policies, until = _policies(entries.get("policies")), entries.get("until")
    until_s = None if until is None else parse_time_s(until.text(), until.where)
    all_costs = _costs(entries.get("costs"))
    count = len(profiles) * len(clusters) * len(jobs) * len(traces) * len(all_costs)
    if count > MOST_REPLAYS:
        raise whole.wrong(f"{count} replays are too many", f"take some out of the lists, up to {MOST_REPLAYS}")
    found: dict[str, Combination] = {}
    for profile, cluster, job, trace, costs in product(profiles, clusters, jobs, traces, all_costs):
        with placed(job.place):
            made = job_of(profile.value, cluster.value, job.value, costs.value, trace.seed)
        source, reading = trace.source(made, cluster.value)
        question = ReplayRequest(made, source, reading, policies, until_s, trace.name)
        axes = {**profile.axes, **cluster.axes, **job.axes, **trace.axes, **costs.axes}
        one = Combination(axes, question, digest_of(question))
        found[one.digest] = one
    return list(found.values())


def _cluster(value: YamlValue, folder: Path) -> _Choice[Site]:
    text = value.text()
    path = folder / text
    with placed(value):
        return _Choice(
            {"cluster": text},
            machines_of(str(path) if len(text) < LONGEST_PATH and path.is_file() else text, None, 1),
        )


def _jobs(value: YamlValue) -> "Iterator[_Job]":
    """The jobs that an item stands for: every key may have a list."""
    entries = value.entries((*COUNTS, "schedule", "memory_limit"))
    require_keys(value, entries, "pp", "microbatches")
    for chosen in choices(entries):
        asked = AskedJob(**{key: chosen[key].count() for key in COUNTS if key in chosen})  # type: ignore[arg-type]
        if (schedule := chosen.get("schedule")) is not None:
            asked = replace(asked, schedule=word(schedule, get_args(LeanSchedule)))
        if (limit := chosen.get("memory_limit")) is not None:
            with placed(limit):
                asked = replace(asked, memory_limit_bytes=parse_memory_limit(limit.text()))
        yield _Job(texts(chosen), asked, value)


def _costs(value: YamlValue | None) -> "list[_Choice[Costs]]":
    """The costs: of each a number, or several in a list."""
    from .schemas.replay import Costs

    found = []
    for chosen in choices({} if value is None else value.entries()):
        given: dict[str, Any] = {key: parse_cost(key, one.text(), one.where) for key, one in chosen.items()}
        found.append(_Choice(texts(chosen), Costs(**given)))
    return found


def _policies(value: YamlValue | None) -> tuple[str, ...]:
    from .planners.recovery.catalogue import NAMES, require_name

    if value is None:
        return NAMES
    items = items_of(value)
    for item in items:
        with placed(item):
            require_name(item.text())
    return tuple(dict.fromkeys(item.text() for item in items))


def _stem(name: str) -> str:
    return PurePath(name).name.partition(".")[0]


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


Settings = Mapping[str, Any]
# What the values of the keys are. Those of `generate` are called as the options of `rtk trace generate`.
OF_FILES: dict[str, Callable[[YamlValue], Any]] = {
    "file": YamlValue.text,
    "format": partial(word, words=tuple(TraceFormat)),
    "nodes": YamlValue.count,
    "leaving": partial(word, words=get_args(Leaving)),
    "slow_faults": flag,
}
OF_GENERATED: dict[str, Callable[[YamlValue], Any]] = {
    "nodes": YamlValue.count,
    "duration": lambda value: parse_time_s(value.text(), value.where),
    "mtbf": YamlValue.text,
    "repair": YamlValue.text,
    "distribution": partial(word, words=("exponential", "weibull")),
    "shape": number,
    "repair_distribution": partial(word, words=("exponential", "lognormal", "fixed")),
    "repair_sigma": number,
    "rack_size": YamlValue.count,
    "rack_mtbf": YamlValue.text,
    "rack_repair": YamlValue.text,
    "slow_every": YamlValue.text,
    "slow_lasts": YamlValue.text,
    "slow_factor": number,
    "slow_link_every": YamlValue.text,
    "slow_link_lasts": YamlValue.text,
    "slow_link_delay": YamlValue.text,
}


@dataclass(frozen=True)
class SweptTrace:
    """A trace of a sweep.

    Attributes:
        axes: what was taken from which list, as it stands in the file.
        seed: of all that is drawn.
        source: the file or recipe, and how it is read, for a job and its machines: their nodes count where the trace
            does not say its own.
    """

    axes: Mapping[str, str]
    seed: int
    source: "Callable[[TrainingJob, Site], Source]"

    @property
    def name(self) -> str:
        """What reports call it."""
        return ", ".join(text if key == "trace" else f"{key} {text}" for key, text in self.axes.items())


def swept_traces(value: YamlValue, folder: Path) -> Iterator[SweptTrace]:
    """The traces that an item stands for: a path, `file` and what it does not say itself, or `generate`.

    Raises:
        InvalidInputError: a value is not what it should be.
    """
    if value.node.id == "scalar":
        yield _file(folder, {"file": value}, 0, {})
        return
    is_made = "generate" in value.entries()
    entries = value.entries(("generate", "seeds") if is_made else (*OF_FILES, "seeds"))
    seeds = seeds_of(entries.pop("seeds", None))
    if is_made:
        yield from _generated(entries["generate"], seeds or (0,))
        return
    require_keys(value, entries, "file")
    for chosen in choices(entries):
        yield from (_file(folder, chosen, seed, {"seed": str(seed)}) for seed in seeds)
        if not seeds:
            yield _file(folder, chosen, 0, {})


def _file(folder: Path, chosen: dict[str, YamlValue], seed: int, drawn: Mapping[str, str]) -> SweptTrace:
    others = {key: value for key, value in chosen.items() if key != "file"}
    given = {key: OF_FILES[key](value) for key, value in others.items()}
    name = chosen["file"].text()
    path = str((folder / name).absolute())
    return SweptTrace({"trace": name, **texts(others), **drawn}, seed, partial(_read, path, given, seed))


def _read(path: str, given: Settings, seed: int, job: "TrainingJob", site: Site) -> "Source":
    leaving, slow_faults = given.get("leaving", "random"), given.get("slow_faults", False)
    nodes = given.get("nodes", site.nodes_at_start())
    return path, reading_of(given.get("format"), nodes, leaving, slow_faults, seed)


def _generated(value: YamlValue, seeds: tuple[int, ...]) -> Iterator[SweptTrace]:
    entries = value.entries(OF_GENERATED)
    require_keys(value, entries, "duration")
    for chosen in choices(entries):
        given = {key: OF_GENERATED[key](one) for key, one in chosen.items()}
        for seed in seeds:
            axes = {"trace": "generated", **texts(chosen), "seed": str(seed)}
            yield SweptTrace(axes, seed, partial(_made, value, given, seed))


def _made(value: YamlValue, given: Settings, seed: int, job: "TrainingJob", site: Site) -> "Source":
    settings = {"repairs" if key == "repair_distribution" else key: one for key, one in given.items()}
    nodes = settings.pop("nodes", None) or (job.nodes if site.cluster is None else len(site.cluster.nodes))
    with placed(value):
        recipe = recipe_of(nodes, settings.pop("duration"), seed, **settings)
    return recipe, reading_of(None, nodes, "random", False, seed)


# The folder of a sweep: a report a combination, and a summary of all.
#
# A report is there whole or not at all, and says by a digest what it answers: run again, a sweep makes what is missing.


SUMMARY_FILE = "summary.json"


@dataclass(frozen=True)
class SweepOutcome:
    """What came of a combination.

    Attributes:
        goodput: by policy; 0 where it cannot train this job.
        refusals: why some cannot.
        impossible: why not even the cluster that never fails can; None where it can.
    """

    goodput: dict[str, float]
    refusals: dict[str, str]
    impossible: str | None = None


def outcome_of(report: ReplayReport) -> SweepOutcome:
    """What a report says of each policy."""
    return SweepOutcome(
        {one.policy: one.goodput for one in report.policies},
        {one.policy: one.refusal for one in report.policies if one.refusal is not None},
    )


class SweepFolder:
    """Reports, each under its combination's name.

    Args:
        path: the folder; it may be there already, the folder that it stands in must be.

    Raises:
        InvalidInputError: the folder cannot be made.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        try:
            self._path.mkdir(exist_ok=True)
        except OSError as error:
            what = f"cannot make the folder: {error.strerror or error}"
            raise InvalidInputError(what, where=path, fix="check the path and its permissions") from error

    def finished(self, combinations: Iterable[Combination]) -> dict[int, SweepOutcome]:
        """The outcomes that are there, by the combinations' numbers; damaged reports and those of others are not."""
        found = ((number, self._read(one)) for number, one in enumerate(combinations))
        return {number: outcome for number, outcome in found if outcome is not None}

    def keep(self, combination: Combination, report: ReplayReport) -> SweepOutcome:
        """Write a report; what is written when this returns outlives this process."""
        write_document(str(self._path / combination.name), report)
        return outcome_of(report)

    def summarize(self, summary: dict[str, Any]) -> None:
        """Write what all reports say together."""
        write_bytes(str(self._path / SUMMARY_FILE), canonical_json(summary))

    def _read(self, combination: Combination) -> SweepOutcome | None:
        path = self._path / combination.name
        if not path.exists():
            return None
        try:
            report = read_document(str(path), ReplayReport)
        except InvalidInputError:
            return None
        return outcome_of(report) if report.inputs.get("question") == combination.digest else None


# What hundreds of replays say together: per policy, and for each value of what was varied.


FAULT_FREE = "fault-free"
SEED = "seed"  # repeats a replay; its values mean nothing
LEVEL = 1e-9  # goodputs that differ by less are alike

Swept = Sequence[tuple[Combination, SweepOutcome]]


def summary_of(swept: Swept) -> dict[str, Any]:
    """The whole as JSON.

    `policies`: over all replays the mean, quartiles, least and most goodput of each, the share of replays in which it
    is the best (several may be) of those that do fail, and in how many it cannot train the job, which counts as no
    goodput. `axes`: for each value of what was varied, the mean goodputs. `replays`: each one's file, what was taken
    from which list, and goodputs. `impossible`: those that not even a cluster that never fails can train.
    """
    possible = [(one, outcome) for one, outcome in swept if outcome.impossible is None]
    outcomes = [outcome for _, outcome in possible]
    return {
        "replays": [
            {"file": one.name, "axes": dict(one.axes), "goodput": outcome.goodput} for one, outcome in possible
        ],
        "impossible": [
            {"axes": dict(one.axes), "why": outcome.impossible}
            for one, outcome in swept
            if outcome.impossible is not None
        ],
        "policies": {name: _policy(name, outcomes) for name in _names(outcomes)},
        "axes": {
            axis: {
                value: means_of([outcome for one, outcome in possible if one.axes.get(axis) == value])
                for value in dict.fromkeys(one.axes[axis] for one, _ in possible if axis in one.axes)
            }
            for axis in _varied(possible)
        },
    }


def _policy(name: str, outcomes: Sequence[SweepOutcome]) -> dict[str, Any]:
    goodputs = [outcome.goodput[name] for outcome in outcomes]
    lower, median, upper = quantiles(goodputs, n=4, method="inclusive") if len(goodputs) > 1 else goodputs * 3
    return {
        "mean": fmean(goodputs),
        "lower_quartile": lower,
        "median": median,
        "upper_quartile": upper,
        "min": min(goodputs),
        "max": max(goodputs),
        "best_share": fmean(name in _best(outcome) for outcome in outcomes),
        "refusals": sum(name in outcome.refusals for outcome in outcomes),
    }


def _best(outcome: SweepOutcome) -> set[str]:
    """The best policies of a replay, apart from the cluster that never fails, to which nothing compares."""
    rivals = {name: goodput for name, goodput in outcome.goodput.items() if name != FAULT_FREE}
    most = max(rivals.values(), default=0.0)
    return {name for name, goodput in rivals.items() if 0 < goodput >= most - LEVEL}


def _varied(possible: Swept) -> list[str]:
    """What has more than one value, in the file's order."""
    axes = dict.fromkeys(axis for one, _ in possible for axis in one.axes)
    return [
        axis for axis in axes if axis != SEED and len({one.axes[axis] for one, _ in possible if axis in one.axes}) > 1
    ]


def means_of(outcomes: Sequence[SweepOutcome]) -> dict[str, float]:
    """The mean goodput of each policy."""
    return {name: fmean(outcome.goodput[name] for outcome in outcomes) for name in _names(outcomes)}


def _names(outcomes: Sequence[SweepOutcome]) -> Iterable[str]:
    return outcomes[0].goodput if outcomes else ()
