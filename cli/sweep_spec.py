"""The file of `rtk sweep`: lists of what is to be replayed with what, whose cross product is hundreds of questions."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..schemas.cluster_file import Value, read_yaml
from ..schemas.documents import read_document
from ..schemas.files import STANDARD_STREAM
from ..schemas.quantities import parse_time_s
from .cluster import Site
from .parsing import parse_memory_limit
from .replay_job import Asked, Schedule, job_of, parse_cost, read_machines
from .replaying import Question, digest_of
from .sweep_traces import swept_traces
from .sweep_values import MOST_REPLAYS, choices, items_of, placed, require_keys, texts, word

if TYPE_CHECKING:
    from ..schemas.profile import Profile
    from ..schemas.replay import Costs

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
class _Job(_Choice[Asked]):
    place: Value


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
    question: Question
    digest: str

    @property
    def name(self) -> str:
        """Of its report's file: for people, and unlike any other's."""
        shape, seed = self.question.job.shape, self.axes.get("seed")
        parts = [_stem(self.axes["profile"]), f"{shape.dp}x{shape.pp}", _stem(self.axes["trace"])]
        parts += [] if seed is None else [f"seed{seed}"]
        slug = re.sub(r"[^A-Za-z0-9_]+", "-", "-".join(parts))[:LONGEST_NAME]
        return f"{slug}-{self.digest[:16]}.json"


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
    profiles = [_profile(one, folder) for one in items_of(entries["profiles"])]
    clusters = [_cluster(one, folder) for one in items_of(entries["clusters"])] if "clusters" in entries else [NOWHERE]
    jobs = [job for one in items_of(entries["jobs"]) for job in _jobs(one)]
    traces = [trace for one in items_of(entries["traces"]) for trace in swept_traces(one, folder)]
    policies, until_s = _policies(entries.get("policies")), _until_s(entries.get("until"))
    all_costs = _costs(entries.get("costs"))
    count = len(profiles) * len(clusters) * len(jobs) * len(traces) * len(all_costs)
    if count > MOST_REPLAYS:
        raise whole.wrong(f"{count} replays are too many", f"take some out of the lists, up to {MOST_REPLAYS}")
    found: dict[str, Combination] = {}
    for profile, cluster, job, trace, costs in product(profiles, clusters, jobs, traces, all_costs):
        with placed(job.place):
            made = job_of(profile.value, cluster.value, job.value, costs.value, trace.seed)
        source, reading = trace.source(made, cluster.value)
        question = Question(made, source, reading, policies, until_s, trace.name)
        axes = {**profile.axes, **cluster.axes, **job.axes, **trace.axes, **costs.axes}
        one = Combination(axes, question, digest_of(question))
        found[one.digest] = one
    return list(found.values())


def _profile(value: Value, folder: Path) -> "_Choice[Profile]":
    from ..schemas.profile import Profile

    return _Choice({"profile": value.text()}, read_document(str(folder / value.text()), Profile))


def _cluster(value: Value, folder: Path) -> _Choice[Site]:
    text = value.text()
    path = folder / text
    with placed(value):
        return _Choice(
            {"cluster": text},
            read_machines(str(path) if len(text) < LONGEST_PATH and path.is_file() else text, None, 1),
        )


def _jobs(value: Value) -> "Iterator[_Job]":
    """The jobs that an item stands for: every key may have a list."""
    entries = value.entries((*COUNTS, "schedule", "memory_limit"))
    require_keys(value, entries, "pp", "microbatches")
    for chosen in choices(entries):
        asked = Asked(**{key: chosen[key].count() for key in COUNTS if key in chosen})  # type: ignore[arg-type]
        if (schedule := chosen.get("schedule")) is not None:
            asked = replace(asked, schedule=word(schedule, Schedule))
        if (limit := chosen.get("memory_limit")) is not None:
            with placed(limit):
                asked = replace(asked, memory_limit_bytes=parse_memory_limit(limit.text()))
        yield _Job(texts(chosen), asked, value)


def _costs(value: Value | None) -> "list[_Choice[Costs]]":
    """The costs: of each a number, or several in a list."""
    from ..schemas.replay import Costs

    found = []
    for chosen in choices({} if value is None else value.entries()):
        given: dict[str, Any] = {key: parse_cost(key, one.text(), one.where) for key, one in chosen.items()}
        found.append(_Choice(texts(chosen), Costs(**given)))
    return found


def _policies(value: Value | None) -> tuple[str, ...]:
    from ..planners.policies.catalogue import NAMES, require_name

    if value is None:
        return NAMES
    items = items_of(value)
    for item in items:
        with placed(item):
            require_name(item.text())
    return tuple(dict.fromkeys(item.text() for item in items))


def _until_s(value: Value | None) -> float | None:
    return None if value is None else parse_time_s(value.text(), value.where)


def _stem(name: str) -> str:
    return PurePath(name).name.partition(".")[0]
