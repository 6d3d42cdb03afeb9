"""Whether an atlas that was read is what a planner has written, or its parts contradict each other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ...schemas.atlas import Atlas, AtlasEntry
from ...schemas.check import check_promise
from ...schemas.documents import pointer, typed
from ...schemas.errors import InvalidInputError
from ...schemas.fields import Count, Factor, Seconds
from ...schemas.plan import Prediction
from ...schemas.profile import Connection
from ..scheduling.proof import ROUNDING
from ..shape import Shape
from .cluster import Technique
from .placement import Cost

OPTIONS = "/planner/options"

_PLACE = re.compile(r"(?:(\d{1,9})/)?(\d{1,9})")


@dataclass(frozen=True, slots=True)
class _AtlasOptions:
    """Of `planner.options`, those that plans are made by; the others are for people, and for whoever runs the plan."""

    pp: Count
    dp: Count
    microbatches: Count
    technique: Technique
    solver: Literal["auto", "heuristic", "milp", "cp-sat"]
    time_limit_s: Seconds
    cost: Cost
    slow: dict[str, Factor]
    link_delay_s: dict[str, Seconds]
    network: Connection | None

    __pydantic_config__: ClassVar[Any] = {"extra": "ignore", "strict": True, "allow_inf_nan": False}


def require_consistent(atlas: Atlas) -> None:
    """Raise InvalidInputError, with a JSON pointer, where an atlas says of itself what cannot be.

    That an entry keeps its promise is seen once its plan is made: `require_kept`.
    """
    options: _AtlasOptions = typed(atlas.planner.options, _AtlasOptions, OPTIONS)
    stages = len(atlas.template.stages)
    for name, is_so in (
        ("pp", options.pp == stages),
        ("dp", options.dp == atlas.dp),
        ("microbatches", options.microbatches == atlas.microbatches),
        ("technique", (options.technique == "staggered") == (atlas.optimizer == "staggered")),
        ("technique", (options.technique != "adaptive") == atlas.split),
    ):
        if not is_so:
            raise contradiction(f"{name} {getattr(options, name)} is not what it says elsewhere", f"{OPTIONS}/{name}")
    Shape(stages, atlas.dp, atlas.microbatches)  # which has its bounds
    for name, parts, what in (("slow", stages, "worker"), ("link_delay_s", stages - 1, "link")):
        for key in getattr(options, name):
            at = _PLACE.fullmatch(key)
            if at is None or int(at[1] or 0) >= atlas.dp or int(at[2]) >= parts or (what == "worker" and not at[1]):
                raise contradiction(f"there is no {what} {key}", OPTIONS + pointer((name, key)))
    for number, entry in enumerate(atlas.plans):
        for problem in check_promise(entry.prediction, atlas.optimizer):
            raise contradiction(problem.message, f"/plans/{number}{problem.path}")


def require_kept(entry: AtlasEntry, found: Prediction) -> None:
    """Raise InvalidInputError where what an entry's recipe makes is not what the entry promises.

    Slots and rotations promise what they take themselves: workers that skip slots, or whose backwards are joined again,
    may be sooner.
    """
    promised_s = entry.prediction.iteration_time_s
    late_s = found.iteration_time_s - promised_s
    if late_s > ROUNDING * promised_s or (late_s < -ROUNDING * promised_s and entry.recipe.scheduled == "workers"):
        what = f"an iteration of {promised_s:.12g} s is promised, the recipe's takes {found.iteration_time_s:.12g} s"
        raise contradiction(what, f"/plans/{entry.failed_units}/prediction/iteration_time_s")


def contradiction(what: str, where: str) -> InvalidInputError:
    """The error for an atlas that was changed."""
    fix = "bring back the atlas as rtk plan slipstream wrote it, or make it again"
    return InvalidInputError(f"the atlas contradicts itself: {what}", where=where, fix=fix)
