"""What is wrong in a plan of alike pipelines, as problems: as it is, as it was planned for, and with nobody dead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.plan import Plan, Stage, Worker
from ..scheduling.problem import Problem, alone, home_problem
from .bypass import slow_pairs
from .water_fill import job_s

if TYPE_CHECKING:
    from ..scheduling.problem import Flags


@dataclass(frozen=True)
class Situation:
    """Alike pipelines, some of whose workers failed or are slow, and some of whose links are.

    Attributes:
        plan: the pipelines; its orders do not matter.
        split: whether backwards are split in I and W.
    """

    plan: Plan
    split: bool

    @property
    def stages(self) -> Sequence[Stage]:
        """The stages of each pipeline."""
        return self.plan.template_of(0).stages

    @cached_property
    def home(self) -> Problem:
        """Every worker runs its own micro-batches, failed ones too."""
        return home_problem(self.plan, split=self.split)

    @cached_property
    def usual(self) -> Problem:
        """The same with nobody and nothing slow: what whoever does not adapt reckons with."""
        return home_problem(_usual(self.plan), split=self.split)

    @cached_property
    def revived(self) -> Problem:
        """The home problem with nobody failed."""
        return home_problem(_revived(self.plan), split=self.split)

    @cached_property
    def pipeline(self) -> Problem:
        """One pipeline alone, with nobody failed or slow, and no link."""
        return home_problem(alone(_revived(_usual(self.plan)), 0), split=self.split)

    @property
    def live(self) -> Flags:
        """Who has not failed, pipelines x stages."""
        return self.home.workers.live.reshape(len(self.home.depth), -1)

    @property
    def equal_stages(self) -> Flags:
        """Of each stage, whether none of its live workers is slow."""
        each_s = job_s(self.home)
        equal: Flags = (np.isinf(each_s) | (each_s == job_s(self.usual))).all(axis=0)
        return equal

    @property
    def alike(self) -> bool:
        """Whether the workers of each stage and their links are equal, but for who failed."""
        return bool(self.equal_stages.all() and (self.home.inside_s == self.home.between_s).all())

    @cached_property
    def slow(self) -> Flags:
        """The pairs of workers that are slower than others (`bypass.slow_pairs`)."""
        return slow_pairs(self.home)


def _usual(plan: Plan) -> Plan:
    workers = tuple(replace(worker, slowdown=None) for worker in plan.workers)
    return replace(plan, workers=workers, pipelines=tuple(replace(pipe, links=None) for pipe in plan.pipelines))


def _revived(plan: Plan) -> Plan:
    workers = (Worker(*worker.place, "") if worker.failed else worker for worker in plan.workers)
    return replace(plan, workers=tuple(workers))
