"""`rtk plan …`: Plans out of Profiles, one verb a method."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..schemas.errors import InvalidInputError
from ..schemas.orders import LeanSchedule, Schedule
from ..schemas.text import listed
from .console import Common, Output, Seed, grouped
from .options import (
    ChunksOption,
    ConditionOptions,
    EffortOptions,
    PlacedOptions,
    PlacementOption,
    PlanOutput,
    ProfileFile,
    ShapeOptions,
    Slow,
    TechniqueOption,
    parse_places,
    parse_slow_places,
    present,
)
from .plan_best import best
from .plan_oobleck import oobleck, reconfigure, templates
from .plan_slipstream import slipstream

if TYPE_CHECKING:
    from ..schemas.conditions import Pair

from dataclasses import asdict
from typing import Any

from ..schemas.documents import canonical_json
from ..schemas.errors import remark
from ..schemas.files import STANDARD_STREAM, write_bytes
from ..schemas.quantities import DURATION, SHARE, USUAL_TIME_LIMIT_S, Quantity, parse_time_s, print_number, print_time
from .console import print_json, quantity

WORDS = {
    "S2": "uneven micro-batches",
    "S3": "other places for workers",
    "S4": "checkpoint and restart on other machines",
}


@grouped
def mitigate(
    costs: Annotated[
        str,
        typer.Option(
            "--costs",
            metavar="[S2=]DURATION,…",
            help="What S2, S3 and S4 take: 5s,1min,20min, or some of them: S3=1min,S4=20min.",
        ),
    ],
    left: Annotated[
        str | None,
        typer.Option(
            "--left",
            metavar="[S2=]SHARE,…",
            help="Of the slow-down, what is left under S2, S3 and S4: 60%,20%,0, or some of them: S2=60%.",
        ),
    ] = None,
    revert_cost: Annotated[
        float, quantity(DURATION, "--revert-cost", "What undoing S3 on relief takes; added to its cost.")
    ] = 0.0,
    output: Output = "-",
    *,
    common: Common,
) -> None:
    """Plan when to switch from doing nothing (S1) to micro-batches (S2), places (S3) and a restart (S4).

    `after_s` is what the slow-down has cost so far: iterations' times beyond the usual, added up. Nobody knows when it
    will end: these moments never cost more than `ratio` times what the best choice would, had one known. Strategies
    that a cheaper one makes needless are dropped. Without --json standard output has a table; a file has JSON.
    """
    from ..planners.plain.verbs import plan_mitigate

    shares = _of_strategies(SHARE, "--left", left) if left else None
    found = plan_mitigate(_of_strategies(DURATION, "--costs", costs), left=shares, revert_cost=revert_cost)
    tree = asdict(found)
    if output != STANDARD_STREAM:
        write_bytes(output, canonical_json(tree))
    if common.as_json:
        print_json(tree)
    elif output == STANDARD_STREAM:
        print("S1  at once           nothing: it may pass")
        for one in found.switches:
            print(f"{one.strategy}  {f'{print_time(one.after_s)} lost':<16}  {WORDS[one.strategy]}")
        for other in found.dropped:
            print(f"{other.strategy}  never             {other.why}")
        print(
            f"never more than {print_number(found.ratio)} times the loss of one who knows when it ends (proven, tight)"
        )


def _of_strategies(kind: Quantity, option: str, value: str) -> dict[str, float]:
    """`5s,1min,20min` are those of S2, S3 and S4; `S3=1min,S4=20min` name them."""
    from ..planners.greyhound.mitigate import STRATEGIES

    parts = value.split(",")
    named = [re.fullmatch(r"(S\d)=(.+)", part) for part in parts]
    if not any(named) and len(parts) > len(STRATEGIES):
        raise InvalidInputError(f"{len(parts)} numbers for 3 strategies", where=option, fix="give those of S2, S3, S4")
    pairs = [
        (match[1], match[2]) if match else (name, part)
        for match, part, name in zip(named, parts, [*STRATEGIES, *parts], strict=False)
    ]
    if len({name for name, _ in pairs}) < len(pairs) or (any(named) and not all(named)):
        raise InvalidInputError(
            f"{value!r} cannot be read", where=option, fix="name none, or each once: S3=1min,S4=20min"
        )
    return {name: kind.parse(text, option) for name, text in pairs}


# `rtk plan batch`: micro-batches for pipelines of unlike speed.


@grouped
def batch(
    times: Annotated[
        str, typer.Option("--times", metavar="DURATION,…", help="What a micro-batch takes, in each pipeline.")
    ],
    microbatches: Annotated[int, typer.Option("--microbatches", min=1, help="Micro-batches of all pipelines.")],
    multiple_of: Annotated[
        int, typer.Option("--multiple-of", min=1, help="Each pipeline gets a multiple of it; for 1F1B its stages.")
    ] = 1,
    objective: Annotated[
        Literal["min-max", "variance"],
        typer.Option("--objective", help="Least time of the slowest, or least variance of all times."),
    ] = "min-max",
    solver: Annotated[
        Literal["exact", "pyomo"],
        typer.Option("--solver", help="pyomo (HiGHS, and SCIP for the variance) also takes bounds."),
    ] = "exact",
    at_least: Annotated[
        str | None, typer.Option("--at-least", metavar="N[,N…]", help="Micro-batches: one, or one a pipeline.")
    ] = None,
    at_most: Annotated[
        str | None, typer.Option("--at-most", metavar="N[,N…]", help="Micro-batches: one, or one a pipeline.")
    ] = None,
    time_limit: Annotated[float, quantity(DURATION, "--time-limit", "Of pyomo's solvers.")] = USUAL_TIME_LIMIT_S,
    output: Output = "-",
    *,
    common: Common,
) -> None:
    """Distribute micro-batches over pipelines of unlike speed; each gets at least one.

    Without --json standard output has a line for people; a file has JSON.
    """
    from ..planners.plain.verbs import plan_batch

    times_s = [parse_time_s(text, f"--times, pipeline {index}") for index, text in enumerate(times.split(","))]
    found = plan_batch(
        times_s,
        microbatches=microbatches,
        multiple_of=multiple_of,
        objective=objective,
        solver=solver,
        at_least=_parse_bounds("--at-least", at_least),
        at_most=_parse_bounds("--at-most", at_most),
        time_limit=time_limit,
    )
    tree: dict[str, Any] = {
        "microbatches": list(found.microbatches),
        "slowest_s": found.slowest_s,
        "objective": found.objective,
    }
    line = f"slowest {print_time(found.slowest_s)} ({found.objective})"
    if output != STANDARD_STREAM:
        write_bytes(output, canonical_json(tree))
    if common.as_json:
        print_json(tree)
    elif output == STANDARD_STREAM:
        print(f"{' '.join(map(str, found.microbatches))}: {line}")
    else:
        remark(line)


def _parse_bounds(option: str, value: str | None) -> int | Sequence[int] | None:
    """`8` for all pipelines, `8,8,4` one a pipeline."""
    if value is None:
        return None
    parts = value.split(",")
    if not all(re.fullmatch(r"\d{1,9}", part) for part in parts):
        raise InvalidInputError(f"{value!r} cannot be read", where=option, fix="give whole numbers, such as 8 or 8,8,4")
    bounds = [int(part) for part in parts]
    return bounds[0] if len(bounds) == 1 else bounds


# `rtk plan topology`: slow workers and links where they cost least.


ONE_LINK = re.compile(r"(\d{1,9}/\d{1,9})-(\d{1,9}/\d{1,9})=(.+)")


@grouped
def topology(
    profile: ProfileFile,
    shape: ShapeOptions,
    slow: Slow = None,
    slow_link: Annotated[
        list[str] | None,
        typer.Option(
            "--slow-link",
            metavar="k/i-k/j=DURATION",
            help="What a message between these two workers takes, wherever they sit. Repeatable.",
        ),
    ] = None,
    schedule: Annotated[LeanSchedule, typer.Option("--schedule", help="The order of operations.")] = "1f1b",
    seed: Seed = 0,
    output: PlanOutput = "-",
    *,
    common: Common,
) -> None:
    """Plan who takes which place when workers or links are slow, and uneven pipelines where these help.

    Workers are named by the places they have now. As it is, uneven micro-batches (S2), other places (S3) and both are
    planned and timed; the fastest is the plan. Its options say who moves (`assignment`).
    """
    from ..planners.greyhound.mitigate import topology_words
    from ..planners.plain.verbs import plan_topology
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    given, links = shape.given(), _parse_slow_links(slow_link)
    read = read_document(profile, Profile)
    with shape.planning():
        made = plan_topology(
            read,
            **given,
            slow=parse_slow_places(slow),
            slow_link=links,
            schedule=schedule,
            seed=seed,
        )
    present(made, output, common, topology_words(made))


def _parse_slow_links(values: Sequence[str] | None) -> "dict[Pair, float]":
    """`0/1-1/1=50ms`: a message between workers 0/1 and 1/1 takes 50 ms; above 0."""
    from ..schemas.conditions import pair_of
    from ..schemas.plan import name_of

    links: dict[Pair, float] = {}
    for value in values or ():
        match = ONE_LINK.fullmatch(value)
        if match is None:
            raise _wrong(value, "write k/i-k/j=DURATION, such as 0/1-1/1=50ms")
        one, other = (name_of(place) for place in parse_places(match.groups()[:2], "--slow-link"))
        pair = pair_of(one, other)
        if one == other or pair in links:
            raise _wrong(value, "a link has two ends; give each link once, whichever way")
        links[pair] = DURATION.parse_above_zero(match[3], f"--slow-link {value}")
    return links


def _wrong(value: str, fix: str) -> InvalidInputError:
    return InvalidInputError(f"{value!r} cannot be read", where="--slow-link", fix=fix)


# `rtk plan joint`: dead workers, slow workers and slow links in one schedule.


@grouped
def joint(
    profile: ProfileFile,
    shape: ConditionOptions,
    failed: Annotated[
        list[str] | None, typer.Option("--failed", metavar="k/i", help="A dead worker. Repeatable.")
    ] = None,
    technique: TechniqueOption = "staggered",
    slow: Slow = None,
    placement: PlacementOption = "plain",
    chunks: ChunksOption = None,
    *,
    effort: EffortOptions,
    output: PlanOutput = "-",
    common: Common,
) -> None:
    """Plan for dead workers, slow workers and slow links at once.

    Every stage's micro-batches go to who ends first with them, slow links inside single pipelines are bypassed where
    that helps, and warm-ups absorb the delays that are left. The bound holds for every routing. Workers with several
    virtual stages share single chunks of micro-batches where that is more even.
    """
    from ..planners.choosing import comparison
    from ..planners.plain.verbs import plan_joint
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    given = shape.given()
    read = read_document(profile, Profile)
    with shape.planning():
        made = plan_joint(
            read,
            **given,
            failed=parse_places(failed, "--failed"),
            technique=technique,
            slow=parse_slow_places(slow),
            placement=placement,
            chunks=chunks,
            **effort.given(),
        )
    bypassed = listed(made.planner.options["bypassed_links"])
    lines = [f"slow links that carry nothing: {bypassed}"] if bypassed else []
    present(made, output, common, [*comparison(made), *lines], effort.require_optimal)


app = typer.Typer(no_args_is_help=True, help="Make a plan from a profile.")


@app.callback()
def plan() -> None:
    """Make a plan from a profile."""


@app.command("pipeline")
@grouped
def pipeline(
    profile: ProfileFile,
    shape: PlacedOptions,
    schedule: Annotated[Schedule, typer.Option("--schedule", help="The order of operations.")] = "1f1b",
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Forwards and backwards side by side where it pays (profile's overlap).")
    ] = False,
    output: PlanOutput = "-",
    *,
    common: Common,
) -> None:
    """Plan a classic schedule: GPipe, 1F1B, or zero-bubble with the backward split in I and W.

    With several virtual stages a worker, 1f1b is the best order of full backwards that is found (interleaved 1F1B on a
    loop), zero-bubble that of I and W apart. Under best standard error says what each placement is worth.
    """
    from ..planners.choosing import comparison
    from ..planners.plain.verbs import plan_pipeline
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    given = shape.given()
    read = read_document(profile, Profile)
    with shape.planning():
        made = plan_pipeline(read, **given, schedule=schedule, overlap=overlap)
    present(made, output, common, comparison(made))


@app.command("adaptra")
@grouped
def adaptra(
    profile: ProfileFile,
    shape: PlacedOptions,
    technique: Annotated[
        Literal["initial", "adapted", "best"],
        typer.Option("--technique", help="Orders made before the delays, adapted to them, or the best found for them."),
    ] = "best",
    *,
    effort: EffortOptions,
    output: PlanOutput = "-",
    common: Common,
) -> None:
    """Plan warm-ups that absorb slow links.

    The plan's options say which delay each link tolerates before its bubbles cascade; standard error names the links
    that are beyond that.
    """
    from ..planners.adaptra.plan import cascading_links
    from ..planners.choosing import comparison
    from ..planners.plain.verbs import plan_adaptra
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    given = {**effort.given(), **shape.given()}
    read = read_document(profile, Profile)
    with shape.planning():
        made = plan_adaptra(read, **given, technique=technique)
    cascading = listed(cascading_links(made), between="; ")
    lines = [f"delays beyond what the warm-ups absorb: {cascading}"] if cascading else []
    present(made, output, common, [*comparison(made), *lines], effort.require_optimal)


app.command("best")(best)
app.command("slipstream")(slipstream)
app.command("joint")(joint)
app.command("batch")(batch)
app.command("templates")(templates)
app.command("oobleck")(oobleck)
app.command("reconfigure")(reconfigure)
app.command("topology")(topology)
app.command("mitigate")(mitigate)
