"""The traces of a sweep's file: files, and what is to be generated."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runners.traces.formats import Format
from ..schemas.cluster_file import Value
from ..schemas.quantities import parse_time_s
from .cluster import Site
from .replay_job import nodes_at_start
from .sweep_values import choices, flag, number, placed, require_keys, seeds_of, texts, word
from .trace import Leaving, reading_of
from .trace_generate import Between, Repairs, recipe_of

if TYPE_CHECKING:
    from ..planners.policies.job import Job
    from ..runners.traces.generate import Recipe
    from ..runners.traces.read import Reading

    Source = tuple[str | Recipe, Reading]

Settings = Mapping[str, Any]
# What the values of the keys are. Those of `generate` are called as the options of `rtk trace generate`.
OF_FILES: dict[str, Callable[[Value], Any]] = {
    "file": Value.text,
    "format": partial(word, kind=Format),
    "nodes": Value.count,
    "leaving": partial(word, kind=Leaving),
    "slow_faults": flag,
}
OF_GENERATED: dict[str, Callable[[Value], Any]] = {
    "nodes": Value.count,
    "duration": lambda value: parse_time_s(value.text(), value.where),
    "mtbf": Value.text,
    "repair": Value.text,
    "distribution": partial(word, kind=Between),
    "shape": number,
    "repair_distribution": partial(word, kind=Repairs),
    "repair_sigma": number,
    "rack_size": Value.count,
    "rack_mtbf": Value.text,
    "rack_repair": Value.text,
    "slow_every": Value.text,
    "slow_lasts": Value.text,
    "slow_factor": number,
    "slow_link_every": Value.text,
    "slow_link_lasts": Value.text,
    "slow_link_delay": Value.text,
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
    source: "Callable[[Job, Site], Source]"

    @property
    def name(self) -> str:
        """What reports call it."""
        return ", ".join(text if key == "trace" else f"{key} {text}" for key, text in self.axes.items())


def swept_traces(value: Value, folder: Path) -> Iterator[SweptTrace]:
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


def _file(folder: Path, chosen: dict[str, Value], seed: int, drawn: Mapping[str, str]) -> SweptTrace:
    others = {key: value for key, value in chosen.items() if key != "file"}
    given = {key: OF_FILES[key](value) for key, value in others.items()}
    name = chosen["file"].text()
    path = str((folder / name).absolute())
    return SweptTrace({"trace": name, **texts(others), **drawn}, seed, partial(_read, path, given, seed))


def _read(path: str, given: Settings, seed: int, job: "Job", site: Site) -> "Source":
    leaving, slow_faults = given.get("leaving", Leaving.RANDOM), given.get("slow_faults", False)
    nodes = given.get("nodes", nodes_at_start(site))
    return path, reading_of(given.get("format"), nodes, leaving, slow_faults, seed)


def _generated(value: Value, seeds: tuple[int, ...]) -> Iterator[SweptTrace]:
    entries = value.entries(OF_GENERATED)
    require_keys(value, entries, "duration")
    for chosen in choices(entries):
        given = {key: OF_GENERATED[key](one) for key, one in chosen.items()}
        for seed in seeds:
            axes = {"trace": "generated", **texts(chosen), "seed": str(seed)}
            yield SweptTrace(axes, seed, partial(_made, value, given, seed))


def _made(value: Value, given: Settings, seed: int, job: "Job", site: Site) -> "Source":
    settings = {"repairs" if key == "repair_distribution" else key: one for key, one in given.items()}
    nodes = settings.pop("nodes", None) or (job.nodes if site.cluster is None else len(site.cluster.nodes))
    with placed(value):
        recipe = recipe_of(nodes, settings.pop("duration"), seed, **settings)
    return recipe, reading_of(None, nodes, Leaving.RANDOM, False, seed)
