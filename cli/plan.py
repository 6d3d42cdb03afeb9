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
    ConditionOptions,
    EffortOptions,
    ProfileFile,
    ShapeOptions,
    Slow,
    TechniqueOption,
    parse_places,
    parse_slow_places,
    present,
)
from .plan_oobleck import oobleck, reconfigure, templates
from .plan_slipstream import slipstream
from .plan_small import batch, mitigate

if TYPE_CHECKING:
    from ..schemas.conditions import Pair


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
            metavar="k/i-k/j=SECONDS",
            help="A message between these two workers takes SECONDS, wherever they sit. Repeatable.",
        ),
    ] = None,
    schedule: Annotated[LeanSchedule, typer.Option("--schedule", help="The order of operations.")] = "1f1b",
    seed: Seed = 0,
    output: Output = "-",
    *,
    common: Common,
) -> None:
    """Plan who takes which place when workers or links are slow, and uneven pipelines where these help.

    Workers are named by the places they have now. As it is, uneven micro-batches (S2), other places (S3) and both are
    planned and timed; the fastest is the plan. Its options say who moves (`assignment`).
    """
    from ..planners.greyhound.words import topology_words
    from ..planners.plain.verbs import plan_topology
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    given, links = shape.given(), _parse_slow_links(slow_link)
    made = plan_topology(
        read_document(profile, Profile),
        **given,
        slow=parse_slow_places(slow),
        slow_link=links,
        schedule=schedule,
        seed=seed,
    )
    present(made, output, common, topology_words(made))


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
    *,
    effort: EffortOptions,
    output: Output = "-",
    common: Common,
) -> None:
    """Plan for dead workers, slow workers and slow links at once.

    Every stage's micro-batches go to who ends first with them, slow links inside single pipelines are bypassed where
    that helps, and warm-ups absorb the delays that are left. The bound holds for every routing.
    """
    from ..planners.plain.verbs import plan_joint
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    given = shape.given()
    made = plan_joint(
        read_document(profile, Profile),
        **given,
        failed=parse_places(failed, "--failed"),
        technique=technique,
        slow=parse_slow_places(slow),
        **effort.given(),
    )
    bypassed = listed(made.planner.options["bypassed_links"])
    lines = [f"slow links that carry nothing: {bypassed}"] if bypassed else []
    present(made, output, common, lines, effort.require_optimal)


app = typer.Typer(no_args_is_help=True, help="Make a plan from a profile.")


@app.callback()
def plan() -> None:
    """Make a plan from a profile."""


@app.command("pipeline")
@grouped
def pipeline(
    profile: ProfileFile,
    shape: ConditionOptions,
    schedule: Annotated[Schedule, typer.Option("--schedule", help="The order of operations.")] = "1f1b",
    output: Output = "-",
    *,
    common: Common,
) -> None:
    """Plan a classic schedule: GPipe, 1F1B, or zero-bubble with the backward split in I and W."""
    from ..planners.plain.verbs import plan_pipeline
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    given = shape.given()
    present(plan_pipeline(read_document(profile, Profile), **given, schedule=schedule), output, common)


@app.command("adaptra")
@grouped
def adaptra(
    profile: ProfileFile,
    shape: ConditionOptions,
    technique: Annotated[
        Literal["initial", "adapted", "best"],
        typer.Option("--technique", help="Orders made before the delays, adapted to them, or the best found for them."),
    ] = "best",
    *,
    effort: EffortOptions,
    output: Output = "-",
    common: Common,
) -> None:
    """Plan warm-ups that absorb slow links.

    The plan's options say which delay each link tolerates before its bubbles cascade; standard error names the links
    that are beyond that.
    """
    from ..planners.adaptra.plan import cascading_links
    from ..planners.plain.verbs import plan_adaptra
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile

    given = {**effort.given(), **shape.given()}
    made = plan_adaptra(read_document(profile, Profile), **given, technique=technique)
    cascading = listed(cascading_links(made), between="; ")
    lines = [f"delays beyond what the warm-ups absorb: {cascading}"] if cascading else []
    present(made, output, common, lines, effort.require_optimal)


app.command("slipstream")(slipstream)
app.command("joint")(joint)
app.command("batch")(batch)
app.command("templates")(templates)
app.command("oobleck")(oobleck)
app.command("reconfigure")(reconfigure)
app.command("topology")(topology)
app.command("mitigate")(mitigate)
