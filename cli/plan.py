"""`rtk plan …`: Plans out of Profiles, one verb a method."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from annotated_types import Predicate

from ..schemas.documents import typed
from ..schemas.errors import InvalidInputError
from ..schemas.fields import Count, Factor, Seconds
from ..schemas.text import listed
from .cluster import ClusterOption, OverlayOption, read_site
from .console import Debug, Json, Output, Quiet, Seed, emit, remark
from .options import (
    LinkDelays,
    MemoryLimit,
    Microbatches,
    Pipelines,
    ProfileFile,
    RequireOptimal,
    Slow,
    Solver,
    SolverOption,
    Stages,
    Technique,
    TechniqueOption,
    TimeLimit,
    own_proof,
    parse_effort,
    parse_link_delays,
    parse_memory_limit,
    parse_places,
    parse_slow_places,
    require_proof,
    summary,
)
from .plan_oobleck import oobleck, reconfigure, templates
from .plan_slipstream import slipstream
from .plan_small import batch, mitigate

if TYPE_CHECKING:
    from ..schemas.conditions import Pair
    from ..schemas.plan import Place, Plan


# `rtk plan topology`: slow workers and links where they cost least.


NAME, AS_IT_IS = "topology", "as it is"
MOST_NAMED = 8  # of what moves, in words
ONE_LINK = re.compile(r"(\d{1,9}/\d{1,9})-(\d{1,9}/\d{1,9})=(.+)")


class TopologySchedule(StrEnum):
    """The schedule of every pipeline."""

    ONE_F_ONE_B = "1f1b"
    ZERO_BUBBLE = "zero-bubble"


def topology(
    profile: ProfileFile,
    pp: Stages,
    microbatches: Microbatches,
    dp: Pipelines = 1,
    slow: Slow = None,
    slow_link: Annotated[
        list[str] | None,
        typer.Option(
            "--slow-link",
            metavar="k/i-k/j=SECONDS",
            help="A message between these two workers takes SECONDS, wherever they sit. Repeatable.",
        ),
    ] = None,
    schedule: Annotated[
        TopologySchedule, typer.Option("--schedule", help="The order of operations.")
    ] = TopologySchedule.ONE_F_ONE_B,
    memory_limit: MemoryLimit = None,
    seed: Seed = 0,
    output: Output = "-",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Plan who takes which place when workers or links are slow, and uneven pipelines where these help.

    Workers are named by the places they have now. As it is, uneven micro-batches (S2), other places (S3) and both are
    planned and timed; the fastest is the plan. Its options say who moves (`assignment`).
    """
    from ..planners.plain.verbs import plan_topology
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    limits, links = parse_memory_limit(memory_limit), _parse_slow_links(slow_link)
    made = plan_topology(
        read_document(profile, Profile),
        pp=pp,
        microbatches=microbatches,
        dp=dp,
        slow=parse_slow_places(slow),
        slow_link=links,
        schedule=schedule.value,
        memory_limit=limits,
        seed=seed,
    )
    emit(made, output, as_json)
    remark(summary(made))
    for line in topology_words(made):
        remark(line)


def _parse_slow_links(values: Sequence[str] | None) -> "dict[Pair, float]":
    """`0/1-1/1=0.05`: a message between workers 0/1 and 1/1 takes 50 ms; above 0."""
    from ..schemas.conditions import pair_of
    from ..schemas.plan import name_of

    links: dict[Pair, float] = {}
    for value in values or ():
        match = ONE_LINK.fullmatch(value)
        if match is None:
            raise _wrong(value, "write k/i-k/j=SECONDS, such as 0/1-1/1=0.05")
        one, other = (name_of(place) for place in parse_places(match.groups()[:2], "--slow-link"))
        pair = pair_of(one, other)
        try:
            delay_s = float(match[3])
        except ValueError:
            raise _wrong(value, "a delay is in seconds, without a unit: 0/1-1/1=0.05") from None
        if not 0 < delay_s < float("inf"):
            raise _wrong(value, "a delay is finite and above 0")
        if one == other or pair in links:
            raise _wrong(value, "a link has two ends; give each link once, whichever way")
        links[pair] = delay_s
    return links


def _wrong(value: str, fix: str) -> InvalidInputError:
    return InvalidInputError(f"{value!r} cannot be read", where="--slow-link", fix=fix)


def _is_worker(name: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}/[0-9]{1,9}", name) is not None


def _is_pair(name: str) -> bool:
    return name.count("-") == 1 and all(map(_is_worker, name.split("-")))


WorkerName = Annotated[str, Predicate(_is_worker)]


@dataclass(frozen=True, slots=True)
class _TopologyOptions:
    """What a plan's options say of who sits where."""

    microbatches: Count
    slow: dict[WorkerName, Factor]
    slow_links: dict[Annotated[str, Predicate(_is_pair)], Seconds]
    taken: str
    assignment: dict[WorkerName, WorkerName]
    iteration_time_s: dict[str, Seconds]

    __pydantic_config__: ClassVar[Any] = {"extra": "ignore", "strict": True}


def topology_words(plan: "Plan") -> list[str]:
    """Who moves and what it is worth, in lines; none for plans of other planners."""
    if plan.planner.name != NAME:
        return []
    told: _TopologyOptions = typed(plan.planner.options, _TopologyOptions, "/planner/options")
    return [
        _worth(told),
        *_few(list(_moves(told.assignment))),
        *_few([_link(name, delay_s, told.assignment) for name, delay_s in told.slow_links.items()]),
        *_gathered(told),
        *_uneven(plan, told.microbatches),
    ]


def topology_section(plan: "Plan") -> list[str]:
    """The same for `rtk explain`, after a line that is empty; nothing for plans of other planners."""
    told = topology_words(plan)
    return ["", "Who sits where, and what it is worth", *(f"  {line}" for line in told)] if told else []


def _worth(told: _TopologyOptions) -> str:
    """What each of the four answers takes."""
    times_s = told.iteration_time_s
    ordered = sorted(times_s, key=lambda name: (name != AS_IT_IS, len(name), name))
    times = ", ".join(f"{name} {times_s[name]:.6g} s" for name in ordered)
    return f"taken: {told.taken} ({times})"


def _few(lines: Sequence[str]) -> list[str]:
    more = len(lines) - MOST_NAMED
    return [*lines[:MOST_NAMED], f"… and {more} more"] if more > 0 else list(lines)


def _moves(assignment: Mapping[str, str]) -> Iterator[str]:
    for name, place in assignment.items():
        if assignment.get(place) != name:
            yield f"worker {name} goes to {place}"
        elif name < place:
            yield f"workers {name} and {place} change places"


def _link(pair: str, delay_s: float, assignment: Mapping[str, str]) -> str:
    """What a slow link carried, and what it carries now."""
    from ..schemas.plan import place_of

    ends = pair.split("-")
    before, after = (_traffic(*map(place_of, names)) for names in (ends, [assignment.get(end, end) for end in ends]))
    kept = f"still carries {after}" if before == after else f"carries {after} instead of {before}"
    return f"slow link {pair} ({delay_s:g} s) {kept}"


def _traffic(here: "Place", there: "Place") -> str:
    """What the link between two places carries."""
    if here[1] == there[1]:
        return f"the sums of stage {here[1]}"
    if here[0] == there[0] and abs(here[1] - there[1]) == 1:
        return f"what stages {min(here[1], there[1])} and {max(here[1], there[1])} of pipeline {here[0]} send"
    return "nothing"


def _gathered(told: _TopologyOptions) -> Iterator[str]:
    """In how many pipelines and stages slow workers sit, where that has changed."""
    from ..schemas.plan import place_of

    then, now = (
        [len(set(numbers)) for numbers in zip(*(place_of(name) for name in names), strict=True)]
        for names in (told.slow, [told.assignment.get(name, name) for name in told.slow])
    )
    if then != now:
        yield f"pipelines with slow workers: {now[0]} instead of {then[0]}; stages: {now[1]} instead of {then[1]}"


def _uneven(plan: "Plan", usual: int) -> Iterator[str]:
    counts = [pipeline.microbatches for pipeline in plan.pipelines]
    fewer = [f"pipeline {k} {count}" for k, count in enumerate(counts) if count < usual]
    if fewer:
        yield f"micro-batches instead of {usual}: {', '.join(_few(fewer))}, others up to {max(counts)}"


# `rtk plan joint`: dead workers, slow workers and slow links in one schedule.


def joint(
    profile: ProfileFile,
    pp: Stages,
    microbatches: Microbatches,
    dp: Pipelines = 1,
    failed: Annotated[
        list[str] | None, typer.Option("--failed", metavar="k/i", help="A dead worker. Repeatable.")
    ] = None,
    technique: TechniqueOption = Technique.STAGGERED,
    slow: Slow = None,
    link_delay: LinkDelays = None,
    memory_limit: MemoryLimit = None,
    cluster: ClusterOption = None,
    overlay: OverlayOption = None,
    solver: SolverOption = Solver.AUTO,
    time_limit: TimeLimit = None,
    require_optimal: RequireOptimal = False,
    seed: Seed = 0,
    output: Output = "-",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Plan for dead workers, slow workers and slow links at once.

    Every stage's micro-batches go to who ends first with them, slow links inside single pipelines are bypassed where
    that helps, and warm-ups absorb the delays that are left. The bound holds for every routing.
    """
    from ..planners.plain.verbs import plan_joint
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    site, read = read_site(cluster, overlay), read_document(profile, Profile)
    there = site.troubles(pp, dp)
    dead, effort = parse_places(failed, "--failed"), parse_effort(solver, time_limit, seed, require_optimal)
    dead += [place for place in there.failed if place not in dead]
    planned = plan_joint(
        site.adapted(read),
        pp=pp,
        microbatches=microbatches,
        dp=dp,
        failed=dead,
        technique=technique.value,
        slow={**there.slow, **parse_slow_places(slow)},
        link_delay={**there.link_delay_s, **parse_link_delays(link_delay)},
        memory_limit=parse_memory_limit(memory_limit),
        solver=effort.solver,
        time_limit=effort.time_limit_s,
        seed=seed,
    )
    made = site.signed(planned, read)
    emit(made, output, as_json)
    remark(summary(made))
    for line in own_proof(made):
        remark(line)
    bypassed = made.planner.options["bypassed_links"]
    if bypassed:
        remark(f"slow links that carry nothing: {listed(bypassed)}")
    if require_optimal:
        require_proof(made)


app = typer.Typer(no_args_is_help=True, help="Make a plan from a profile.")


@app.callback()
def plan() -> None:
    """Make a plan from a profile."""


class ClassicSchedule(StrEnum):
    """The classic schedules."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    ZERO_BUBBLE = "zero-bubble"


@app.command("pipeline")
def pipeline(
    profile: ProfileFile,
    pp: Stages,
    microbatches: Microbatches,
    schedule: Annotated[
        ClassicSchedule, typer.Option("--schedule", help="The order of operations.")
    ] = ClassicSchedule.ONE_F_ONE_B,
    dp: Pipelines = 1,
    memory_limit: MemoryLimit = None,
    link_delay: LinkDelays = None,
    cluster: ClusterOption = None,
    overlay: OverlayOption = None,
    output: Output = "-",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Plan a classic schedule: GPipe, 1F1B, or zero-bubble with the backward split in I and W."""
    from ..planners.plain.verbs import plan_pipeline
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    site, read = read_site(cluster, overlay), read_document(profile, Profile)
    planned = plan_pipeline(
        site.adapted(read),
        pp=pp,
        microbatches=microbatches,
        schedule=schedule.value,
        dp=dp,
        memory_limit=parse_memory_limit(memory_limit),
        link_delay={**site.delays_alone(pp, dp).link_delay_s, **parse_link_delays(link_delay)},
    )
    made = site.signed(planned, read)
    emit(made, output, as_json)
    remark(summary(made))


class AdaptraTechnique(StrEnum):
    """Whose warm-ups: Adaptra's before it knows the delays, Adaptra's for them, or the best that is found."""

    INITIAL = "initial"
    ADAPTED = "adapted"
    BEST = "best"


@app.command("adaptra")
def adaptra(
    profile: ProfileFile,
    pp: Stages,
    microbatches: Microbatches,
    technique: Annotated[
        AdaptraTechnique,
        typer.Option("--technique", help="Orders made before the delays, adapted to them, or the best found for them."),
    ] = AdaptraTechnique.BEST,
    dp: Pipelines = 1,
    memory_limit: MemoryLimit = None,
    link_delay: LinkDelays = None,
    cluster: ClusterOption = None,
    overlay: OverlayOption = None,
    solver: SolverOption = Solver.AUTO,
    time_limit: TimeLimit = None,
    require_optimal: RequireOptimal = False,
    seed: Seed = 0,
    output: Output = "-",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Plan warm-ups that absorb slow links.

    The plan's options say which delay each link tolerates before its bubbles cascade; standard error names the links
    that are beyond that.
    """
    from ..planners.adaptra.plan import cascading_links
    from ..planners.plain.verbs import plan_adaptra
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    effort = parse_effort(solver, time_limit, seed, require_optimal)
    site, read = read_site(cluster, overlay), read_document(profile, Profile)
    planned = plan_adaptra(
        site.adapted(read),
        pp=pp,
        microbatches=microbatches,
        technique=technique.value,
        dp=dp,
        memory_limit=parse_memory_limit(memory_limit),
        link_delay={**site.delays_alone(pp, dp).link_delay_s, **parse_link_delays(link_delay)},
        solver=effort.solver,
        time_limit=effort.time_limit_s,
        seed=seed,
    )
    made = site.signed(planned, read)
    emit(made, output, as_json)
    remark(summary(made))
    for line in own_proof(made):
        remark(line)
    cascading = cascading_links(made)
    if cascading:
        remark(f"delays beyond what the warm-ups absorb: {listed(cascading, between='; ')}")
    if require_optimal:
        require_proof(made)


app.command("slipstream")(slipstream)
app.command("joint")(joint)
app.command("batch")(batch)
app.command("templates")(templates)
app.command("oobleck")(oobleck)
app.command("reconfigure")(reconfigure)
app.command("topology")(topology)
app.command("mitigate")(mitigate)
