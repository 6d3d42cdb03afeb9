"""Conditions: what is slow, or broken, while everybody lives; and a plan under them, its orders as they are."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from .errors import InvalidInputError
from .fields import STRICT, Factor, Index, Seconds
from .plan import Link, Pipeline, Plan

LinkPlace = tuple[int | None, int]  # (pipeline, link); pipeline None means all of them
Pair = tuple[str, str]  # two workers by the names they were started with, in ascending order


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Two workers whose messages to each other take `delay_s`, in all: the mean of both directions."""

    ends: Pair
    delay_s: Seconds

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class SlowWorker:
    """A worker whose operations take `factor` times as long as planned."""

    worker: str
    factor: Factor

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is wrong with workers that live and with the links between them, wherever they sit in the plan.

    Attributes:
        slow_links: in the order of their ends.
        slow_workers: in the order of their names.
        broken_links: pairs of workers that do not reach each other directly, in order.
        suspects: groups of workers in which somebody, or a link, is slow, though nobody knows which; each in the order
            of names. They are to be examined.
        level: which costly remedies what is slow has been worth by now (Greyhound's S2, S3, S4 are 0, 1, 2).
    """

    slow_links: tuple[SlowLink, ...] = ()
    slow_workers: tuple[SlowWorker, ...] = ()
    broken_links: tuple[Pair, ...] = ()
    suspects: tuple[tuple[str, ...], ...] = ()
    level: Index = 0

    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def is_slow(self) -> bool:
        """Whether something is slow, known or suspected; what is broken is not."""
        return bool(self.slow_links or self.slow_workers or self.suspects)

    def without(self, worker: str) -> "Conditions":
        """What is left of them when a worker is gone; where nothing is slow any more, no remedy is worth its cost."""
        left = Conditions(
            tuple(link for link in self.slow_links if worker not in link.ends),
            tuple(one for one in self.slow_workers if one.worker != worker),
            tuple(pair for pair in self.broken_links if worker not in pair),
            tuple(group for group in self.suspects if worker not in group),
        )
        return replace(left, level=self.level) if left.is_slow else left


HEALTHY = Conditions()


def pair_of(one: str, other: str) -> Pair:
    """Two workers as the ends of a link."""
    return (one, other) if one <= other else (other, one)


def under_conditions(plan: Plan, slow: Mapping[str, float], link_delay_s: Mapping[LinkPlace, float]) -> Plan:
    """The plan as it is under slow workers and links; its prediction, which no longer holds, is dropped.

    Args:
        plan: the plan.
        slow: slow-down factor by worker name `k/i`, instead of the plan's own.
        link_delay_s: delay in s by (pipeline or None for all, link), instead of the plan's own.

    Raises:
        InvalidInputError: the plan has no such worker or link, or the worker has failed.
    """
    if not slow and not link_delay_s:
        return plan
    _check_workers(plan, slow)
    _check_links(plan, link_delay_s)
    workers = tuple(replace(w, slowdown=slow.get(w.name, w.slowdown)) for w in plan.workers)
    # Hops between pipelines take the template's delay, so a delay for all pipelines belongs there.
    common = {link: delay for (pipeline, link), delay in link_delay_s.items() if pipeline is None}
    templates = tuple(
        replace(template, links=_replaced(template.links, common)) if template.links else template
        for template in plan.templates
    )
    pipelines = tuple(_pipeline(plan, k, link_delay_s) for k in range(len(plan.pipelines)))
    return replace(plan, workers=workers, templates=templates, pipelines=pipelines, prediction=None)


def _pipeline(plan: Plan, number: int, link_delay_s: Mapping[LinkPlace, float]) -> Pipeline:
    pipeline = plan.pipelines[number]
    own = {link: delay for (k, link), delay in link_delay_s.items() if k == number}
    common = {link: delay for (k, link), delay in link_delay_s.items() if k is None}
    if not own and pipeline.links is None:
        return pipeline
    return replace(pipeline, links=_replaced(plan.links_of(number), {**common, **own}))


def _replaced(links: tuple[Link, ...], delays_s: Mapping[int, float]) -> tuple[Link, ...]:
    return tuple(Link(delays_s.get(i, link.delay_s)) for i, link in enumerate(links))


def _check_workers(plan: Plan, slow: Mapping[str, float]) -> None:
    names = [worker.name for worker in plan.live_workers()]
    for name in slow:
        if name not in names:
            raise InvalidInputError(
                f"there is no live worker {name}", where="--slow", fix=f"workers run from 0/0 to {names[-1]}"
            )


def _check_links(plan: Plan, link_delay_s: Mapping[LinkPlace, float]) -> None:
    for pipeline, link in link_delay_s:
        chosen = range(len(plan.pipelines)) if pipeline is None else [pipeline]
        depths = [len(plan.template_of(k).links) for k in chosen if 0 <= k < len(plan.pipelines)]
        if not depths or not 0 <= link < max(depths):
            place = f"{link}" if pipeline is None else f"{pipeline}/{link}"
            raise InvalidInputError(
                f"there is no link {place}", where="--link-delay", fix="link i lies between stages i and i+1"
            )
