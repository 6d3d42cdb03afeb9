"""Unlike pipelines with zero-bubble orders: backwards split, weight gradients in the drain; slow parts heeded.

Each pipeline gets the orders of `planners/pipeline.py` by itself, for what is slow in it as far as that is
known; sums of gradients are not counted there, so that orders depend on stages, micro-batches and troubles only. Orders
are made once, and timed under any troubles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from ... import __version__
from ...schemas.plan import Layers, Pipeline, Plan, Planner, Stage, Template, Worker
from ...schemas.profile import Connection, HoldsBytes
from ..batch.groups import Pace
from ..pipeline import zero_bubble
from ..scheduling.lower_bound import lower_bound
from ..scheduling.problem import ROUNDING, home_problem, with_orders
from .retimed import Retimed
from .slowness import HEALTHY, PlanSlowness, share_layers, under_troubles
from .unlike_pipelines import TemplateLike, UnlikePipelines

FULL, LONG = 3, 6  # micro-batches a stage at which a pipeline is timed


@dataclass(frozen=True, slots=True)
class ZeroBubbleKey:
    """What a pipeline's orders depend on.

    Attributes:
        nodes: of its shape.
        microbatches: that it has.
        planned: what is slow in it as far as its orders are made for that, as if it were number 0.
    """

    nodes: int
    microbatches: int
    planned: PlanSlowness = HEALTHY


@dataclass(frozen=True)
class _PipelineTimer:
    """A pipeline by itself, ready to be timed; whether no orders would end sooner under what they are made for."""

    orders: tuple[str, ...]
    retimed: Retimed
    activation_bytes: tuple[float, ...]
    optimal: bool


class ZeroBubblePipelines:
    """Shapes, made ready to say what pipelines of them take and hold.

    Args:
        layers: of the model.
        connection: that gradients are summed over.
        shape_of: a shape by its nodes.
    """

    def __init__(
        self, layers: Sequence[HoldsBytes], connection: Connection, shape_of: Callable[[int], TemplateLike]
    ) -> None:
        self._shape_of, self._unlike = shape_of, UnlikePipelines(layers, connection, shape_of)
        self._run, self._ends_s = cache(self._made), cache(self._timed)

    def orders(self, kind: ZeroBubbleKey) -> tuple[str, ...]:
        """Of each stage of a pipeline that is number 0.

        Raises:
            InfeasibleError: a memory limit does not admit a single micro-batch.
        """
        return self._run(kind).orders

    def activation_bytes(self, kind: ZeroBubbleKey) -> tuple[float, ...]:
        """The most that a GPU of each stage holds of activations; the rest as for `orders`."""
        return self._run(kind).activation_bytes

    def iteration_time_s(self, kinds: Sequence[ZeroBubbleKey], troubles: PlanSlowness = HEALTHY) -> float:
        """How long an iteration of these pipelines takes, as `rtk simulate` of their plan under troubles has it."""
        own = troubles.by_pipeline()
        found = {(kind, own.get(k, HEALTHY)) for k, kind in enumerate(kinds)}
        ends = [(kind.nodes, self._ends_s(kind, planned)) for kind, planned in found]
        return self._unlike.summed_s(ends, len(kinds), partial(self._slower_sum_s, kinds, troubles))

    def pace(self, nodes: int, troubles: PlanSlowness = HEALTHY) -> Pace:
        """The time of a pipeline as a line: exact at `FULL`, and for more wherever its orders are optimal there.

        Args:
            nodes: of its shape.
            troubles: in it, as if it were number 0; its orders are made for them.
        """
        stages = self._shape_of(nodes).stages
        full = ZeroBubbleKey(nodes, FULL * len(stages), troubles)
        full_s = max(self._ends_s(full, troubles))
        factors = {place[1]: factor for place, factor in troubles.factors}
        each_s = max(stage.work_s * factors.get(i, 1.0) for i, stage in enumerate(stages))
        if not self._run(full).optimal:
            long = replace(full, microbatches=LONG * len(stages))
            each_s = (max(self._ends_s(long, troubles)) - full_s) / (long.microbatches - full.microbatches)
        return Pace(max(0.0, full_s - full.microbatches * each_s), each_s)

    def _slower_sum_s(self, kinds: Sequence[ZeroBubbleKey], troubles: PlanSlowness, layers: Layers) -> float:
        """How much longer the all-reduce of the stages of these layers takes."""
        ends = (
            ([self._stage(kinds, place).layers for place in pair], delay_s)
            for pair, delay_s in troubles.across_s.items()
        )
        delays_s = (delay_s for pair, delay_s in ends if layers in pair and share_layers(*pair))
        return 2 * (len(kinds) - 1) * max(delays_s, default=0.0)

    def _stage(self, kinds: Sequence[ZeroBubbleKey], place: tuple[int, int]) -> Stage:
        return self._shape_of(kinds[place[0]].nodes).stages[place[1]]

    def _timed(self, kind: ZeroBubbleKey, own: PlanSlowness) -> tuple[float, ...]:
        return tuple(self._run(kind).retimed.ends_s(own).tolist())

    def _made(self, kind: ZeroBubbleKey) -> _PipelineTimer:
        bare = self._alone(kind)
        slowed = under_troubles(bare, kind.planned)
        problem = home_problem(slowed, split=True)
        bound_s = lower_bound(problem).value_s
        plan = with_orders(bare, problem, zero_bubble(problem, bound_s))
        retimed = Retimed.of(plan)
        orders = tuple(worker.order or "" for worker in plan.workers)
        optimal = retimed.iteration_time_s(kind.planned) <= bound_s * (1 + ROUNDING)
        return _PipelineTimer(orders, retimed, tuple(retimed.peaks_bytes().tolist()), optimal)

    def _alone(self, kind: ZeroBubbleKey) -> Plan:
        """A pipeline without orders, and without what follows its last operation."""
        shape = self._shape_of(kind.nodes)
        stages = tuple(replace(stage, allreduce_s=0.0, optimizer_s=0.0) for stage in shape.stages)
        return Plan(
            planner=Planner("oobleck", __version__, {}),
            templates=(Template("alone", stages, shape.links),),
            pipelines=(Pipeline("alone", kind.microbatches),),
            optimizer="synchronous",
            workers=tuple(Worker(0, i, "") for i in range(len(stages))),
        )
