"""Atlas: the plans for every number of failures, computed ahead: what each promises, and what rebuilds it."""

import re
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MinLen

from .degrees import OPTION as DEGREES
from .errors import InvalidInputError
from .fields import STRICT, Bytes, Count, Index, Name, Ratio
from .plan import Optimizer, Planner, Prediction, Template

MOST_TARGET = 1_000_000_000  # micro-batches

_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class SlotRules:
    """The rules of a schedule, what each worker of a stage runs next: one entry a stage, or one for all stages.

    `weight_wait` is a share of W's duration; `priority` counts `planners/scheduling/list_schedule.py`'s Priority.
    """

    warmup: tuple[Count, ...]
    in_flight: tuple[Count, ...]
    weight_wait: tuple[Ratio, ...]
    backlog: tuple[Count, ...]
    priority: tuple[Index, ...]
    held_back: tuple[Index, ...] = (0,)

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Targets:
    """What the workers of each stage aim at in their rounds (planners/slipstream/rotation.py); one entry a stage.

    A target has four points, between which it is linear: in a worker's first round, a ramp later, a ramp before the end
    of its rounds, and at the end; a ramp is as many rounds as there are stages, at most a third of all.

    Attributes:
        in_flight: micro-batches between their F and I (or B) that a worker fills up to.
        backlog: W that may be pending before one is due.
        weights_first: whether a W that is due goes before an F.
        fill: the share of an I or a W that must fit in before what a worker waits for, for it to go first.
    """

    in_flight: tuple[tuple[Ratio, Ratio, Ratio, Ratio], ...]
    backlog: tuple[tuple[Ratio, Ratio, Ratio, Ratio], ...]
    weights_first: tuple[bool, ...]
    fill: tuple[Ratio, ...]

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class NarrowSlots:
    """Slots of `grid` micro-batches at all stages alike: how many of them each stage begins and ends with."""

    grid: Count
    first: tuple[Index, ...]
    last: tuple[Index, ...]

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Recipe:
    """What rebuilds a plan bit for bit.

    Either slots and rules: at each stage `group_sizes` micro-batches run side by side, but for `narrow` slots where
    there are some, and `rules` schedule the slots, or each worker on its own, as `scheduled` says. Or, by `targets`
    instead of rules, each of `group_sizes` workers of a stage in rotation. Or `stored`, the sha256 of a plan that a
    search has found and that stands in `plans/` beside the atlas.
    """

    group_sizes: tuple[Count, ...] | None = None
    rules: SlotRules | None = None
    scheduled: Literal["slots", "workers", "rotation"] | None = None
    stored: Name | None = None
    targets: Targets | None = None
    narrow: NarrowSlots | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"group_sizes", "rules", "scheduled", "stored", "targets", "narrow"})
    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class AtlasEntry:
    """The plan for one number of failed units: how many workers of each stage are dead, its promise, its recipe.

    The promise's memory stands by stage: what a worker of it holds at most. Beside a placement columns count as stages.
    """

    failed_units: Index
    failures: tuple[Index, ...]
    prediction: Prediction
    recipe: Recipe

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True)
class Atlas:
    """Everything that the plans have in common, and one entry for each number of failures from 0 on.

    Attributes:
        planner: who made it, with the options of all plans.
        template: the shape of every pipeline.
        dp: pipelines.
        microbatches: of each pipeline.
        optimizer: of all plans.
        split: whether backwards may be split in I and W.
        failure_unit: pipelines x stages of a block of workers that die together.
        state_bytes: parameters, gradients and optimizer state of each stage, or column of a placement: what a worker
            copies to take it over.
        plans: entry f is for f failed units.
        inputs: sha256 of what it was made from.
    """

    planner: Planner
    template: Template
    dp: Count
    microbatches: Count
    optimizer: Optimizer
    split: bool
    failure_unit: tuple[Count, Count]
    state_bytes: tuple[Bytes, ...]
    plans: Annotated[tuple[AtlasEntry, ...], MinLen(1)]
    inputs: dict[str, str] = field(default_factory=dict)

    FORMAT: ClassVar[str] = "rtk.atlas"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    __pydantic_config__: ClassVar[Any] = STRICT

    @cached_property
    def most_failures(self) -> int:
        """The largest number of failed units that it has a plan for."""
        return len(self.plans) - 1

    @property
    def has_degrees(self) -> bool:
        """Whether it has tensor-parallel degrees: readers of earlier format versions would seat a worker on one GPU."""
        return DEGREES in self.planner.options

    @cached_property
    def is_placed(self) -> bool:
        """Whether its plans have a placement; then it is a document of format version 2.0."""
        return self.template.placement is not None

    @property
    def may_pair(self) -> bool:
        """Whether its template says what pairs of passes take; then it is a document of format version 3.0."""
        return self.template.overlap is not None

    @property
    def shards_optimizer(self) -> bool:
        """Whether peers share the optimizer's state; then it is a document of format version 3.0."""
        return self.template.shard_optimizer is not None

    def validate(self) -> None:
        """Raise InvalidInputError where the parts contradict each other."""
        links, stages = len(self.template.links), len(self.template.columns)
        if links != len(self.template.stages) - 1:
            what = f"{links} links for {len(self.template.stages)} stages"
            raise InvalidInputError(what, where="/template/links")
        if len(self.state_bytes) != stages:
            raise InvalidInputError(f"{len(self.state_bytes)} sizes for {stages} stages", where="/state_bytes")
        if self.dp % self.failure_unit[0] or stages % self.failure_unit[1]:
            raise InvalidInputError(
                f"{self.dp} pipelines of {stages} stages are no whole number of blocks that die together",
                where="/failure_unit",
            )
        for number, entry in enumerate(self.plans):
            if entry.failed_units != number:
                raise InvalidInputError(
                    f"the plan for {number} failures must stand here", where=f"/plans/{number}/failed_units"
                )
            self.validate_entry(entry, f"/plans/{number}")

    def validate_entry(self, entry: AtlasEntry, where: str) -> None:
        """Raise InvalidInputError where one entry, which need not be in `plans` yet, contradicts what all share.

        Args:
            entry: for any number of failures.
            where: its JSON pointer, for errors.
        """
        stages = len(self.template.columns)
        if len(entry.failures) != stages or max(entry.failures) >= self.dp:
            raise InvalidInputError(
                f"failures must name {stages} stages, each with a live worker of {self.dp}", where=f"{where}/failures"
            )
        _check_blocks(entry, self.failure_unit, f"{where}/failures")
        if len(entry.prediction.peak_memory_bytes) != stages:
            raise InvalidInputError(
                f"one peak for each of {stages} stages", where=f"{where}/prediction/peak_memory_bytes"
            )
        live = [self.dp - dead for dead in entry.failures]
        if self.is_placed and entry.recipe.stored is None:
            what = "a plan with a placement has no recipe, it is stored beside the atlas"
            raise InvalidInputError(what, where=f"{where}/recipe")
        _check_recipe(entry.recipe, live, f"{where}/recipe")
        if entry.recipe.narrow is not None:
            _check_narrow(entry.recipe, self.dp * self.microbatches, f"{where}/recipe/narrow")


def _check_blocks(entry: AtlasEntry, failure_unit: tuple[int, int], where: str) -> None:
    pipelines, depth = failure_unit
    failures = entry.failures
    for stage, dead in enumerate(failures):
        if dead % pipelines or dead != failures[stage - stage % depth]:
            raise InvalidInputError(
                f"{dead} failures of stage {stage} are not made of blocks of {pipelines} x {depth} workers",
                where=f"{where}/{stage}",
            )
    if sum(failures) != entry.failed_units * pipelines * depth:
        raise InvalidInputError(
            f"{sum(failures)} workers are dead, where {entry.failed_units} blocks hold "
            f"{entry.failed_units * pipelines * depth}",
            where=where,
        )


def _check_recipe(recipe: Recipe, live: list[int], where: str) -> None:
    """`live` is the number of live workers of each stage."""
    by, other = (recipe.targets, recipe.rules) if recipe.scheduled == "rotation" else (recipe.rules, recipe.targets)
    made = [part is not None for part in (recipe.group_sizes, by, recipe.scheduled)]
    if other is not None or (any(made) if recipe.stored is not None else not all(made)):
        what = "a recipe is either `stored` or `group_sizes` with `rules` and `scheduled`, in rotation with `targets`"
        raise InvalidInputError(what, where=where)
    if recipe.stored is not None and not _SHA256.fullmatch(recipe.stored):
        raise InvalidInputError(f"{recipe.stored!r} is no sha256 in hexadecimal", where=f"{where}/stored")
    if recipe.rules is not None:
        _check_rules(recipe.rules, len(live), f"{where}/rules")
    if recipe.targets is not None:
        _check_targets(recipe.targets, len(live), f"{where}/targets")
    if recipe.group_sizes is not None:
        _check_group_sizes(recipe.group_sizes, live, f"{where}/group_sizes")


def _check_rules(rules: SlotRules, stages: int, where: str) -> None:
    for rule in fields(rules):
        entries = len(getattr(rules, rule.name))
        if entries not in (1, stages):
            raise InvalidInputError(f"{entries} rules for {stages} stages", where=f"{where}/{rule.name}")
    if min(rules.weight_wait) < 0:
        raise InvalidInputError("a wait for W is a share of its duration, 0 or more", where=f"{where}/weight_wait")
    if max(rules.priority) > 3:
        raise InvalidInputError("a priority is 0 to 3", where=f"{where}/priority")


def _check_targets(targets: Targets, stages: int, where: str) -> None:
    for target in fields(targets):
        entries = len(getattr(targets, target.name))
        if entries != stages:
            raise InvalidInputError(f"{entries} targets for {stages} stages", where=f"{where}/{target.name}")
    for name, least, rows in (("in_flight", 1, targets.in_flight), ("backlog", 0, targets.backlog)):
        for stage, row in enumerate(rows):
            if not least <= min(row) <= max(row) <= MOST_TARGET:
                raise InvalidInputError(
                    f"a target is {least} to {MOST_TARGET} micro-batches", where=f"{where}/{name}/{stage}"
                )
    if min(targets.fill) < 0:
        raise InvalidInputError("a share of W's duration is 0 or more", where=f"{where}/fill")


def _check_group_sizes(group_sizes: tuple[int, ...], live: list[int], where: str) -> None:
    if len(group_sizes) != len(live):
        raise InvalidInputError(f"{len(group_sizes)} group sizes for {len(live)} stages", where=where)
    for stage, (size, workers) in enumerate(zip(group_sizes, live, strict=True)):
        if size > workers:
            raise InvalidInputError(
                f"a group of {size} micro-batches has only {workers} live workers", where=f"{where}/{stage}"
            )


def _check_narrow(recipe: Recipe, jobs: int, where: str) -> None:
    assert recipe.narrow is not None
    sizes, narrow = recipe.group_sizes, recipe.narrow
    if sizes is None or recipe.targets is not None:
        raise InvalidInputError("narrow slots need `group_sizes` with `rules`", where=where)
    if narrow.grid > min(sizes):
        raise InvalidInputError(f"slots of {narrow.grid} micro-batches are not narrow", where=f"{where}/grid")
    for name, counts in (("first", narrow.first), ("last", narrow.last)):
        if len(counts) != len(sizes):
            raise InvalidInputError(f"{len(counts)} numbers for {len(sizes)} stages", where=f"{where}/{name}")
    for stage, counts in enumerate(zip(narrow.first, narrow.last, strict=True)):
        if sum(counts) * narrow.grid > jobs:
            raise InvalidInputError(f"there are only {jobs} micro-batches", where=f"{where}/last/{stage}")
