"""The ways in which `rtk`'s own policy can hold a job, each with what it may give at best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.plan import Stage
from ...schemas.protocols import Policy
from ...schemas.replay import Fleet, TrainingState
from ..shape import template_of
from .job import TrainingJob
from .slipstream import SlipStream
from .unheeding import Unheeding
from .unlike_zero_bubble import UnlikeZeroBubble

MOST_STAGES = 4  # times the job's own
LEAST_SHARE = 0.95  # of the fastest way's throughput with all nodes: slower ones are not tried
BISECTIONS = 30


@dataclass(frozen=True, eq=False)
class Way:
    """A way to hold a job.

    Attributes:
        policy: whose answers and standings are this way's.
        grid: the job in a grid of its shape; None where pipelines are unlike.
        nodes: that it uses at most.
        is_last: whether it is for nodes with which no other way can go on.
    """

    policy: Policy
    grid: TrainingJob | None
    nodes: int
    is_last: bool = False

    def begin(self, fleet: Fleet, believed: Fleet) -> TrainingState:
        """On these nodes; those that are believed to be slow stand together."""
        if not believed.is_slow:
            return self.policy.begin(fleet)
        there = sorted(fleet.nodes[: self.nodes], key=lambda node: node in believed.slow)
        return self.adapted(self.policy.begin(replace(fleet, nodes=tuple(there))), believed, fleet)

    def adapted(self, standing: TrainingState, believed: Fleet, fleet: Fleet) -> TrainingState:
        """The same nodes in the same places, with a plan for what is believed to be slow, where the way has one."""
        if isinstance(self.policy, UnlikeZeroBubble):
            return self.policy.adapted(standing, believed, fleet)
        return standing

    def holders(self, standing: TrainingState) -> int:
        """How many nodes hold a layer, of the layer that fewest hold."""
        seats = self.policy.seats(standing)
        if self.grid is None or not seats:
            return len({pipeline for pipeline, _ in seats})
        return min(Counter(stage for _, stage in {(node, stage) for (_, stage), node in seats.items()}).values())

    @cached_property
    def most_per_s(self) -> Callable[[int], float]:
        """Micro-batches a second on so many nodes, none of which is slow."""
        return cache(lambda nodes: self.policy.begin(_anybody(nodes)).microbatches_per_s)

    @cached_property
    def bound_per_s(self) -> Callable[[int], float]:
        """The same at most, by the work of stages alone, which takes no planning; infinite where that is not known."""
        return cache(lambda nodes: float("inf") if self.grid is None else _bound_per_s(self.grid, nodes))

    def may_give(self, nodes: int, least_per_s: float) -> bool:
        """Whether so many nodes can give more micro-batches a second than so many.

        By the work of stages first. Then more nodes are asked, for they should give no less: so many that a power of
        two is missing, which makes questions few, and answers the same whatever was asked before.
        """
        if self.bound_per_s(nodes) <= least_per_s:
            return False
        missing = max(0, self.nodes - nodes)
        more = self.nodes - (1 << missing.bit_length() >> 1)
        return self.most_per_s(more) > least_per_s and self.most_per_s(nodes) > least_per_s


def ways_of(job: TrainingJob) -> tuple[Way, ...]:
    """Those that fit the GPUs: grids as far as they are, with all nodes there, not far slower than the fastest way.

    Unlike pipelines and the job's own grid are there anyway, the ones for they go on where too few nodes for a grid are
    left. Oobleck's 1F1B is none of them: with backwards split the same pipelines are no slower. Where not even two
    pipelines fit the nodes that are left, one goes on, though it loses its state with the next failure.

    Raises:
        InfeasibleError: none fits.
    """
    found, refusals = [], []
    for made in _conceivable(job):
        try:
            way = made()
            found.append((way.most_per_s(job.nodes), way))
        except (InfeasibleError, InvalidInputError) as error:
            refusals.append(error)
    if not found:
        raise refusals[0]
    least_per_s = LEAST_SHARE * max(each for each, _ in found)
    return tuple(way for each, way in found if each >= least_per_s or way.grid is None or way.grid is job)


def _conceivable(job: TrainingJob) -> Iterator[Callable[[], Way]]:
    yield lambda: Way(UnlikeZeroBubble(job), None, job.nodes)
    yield lambda: Way(UnlikeZeroBubble(job, fault_tolerance=0), None, job.nodes, is_last=True)
    for one in (job, *_other_grids(job)):
        yield partial(_in_grid, one)


def _in_grid(job: TrainingJob) -> Way:
    return Way(Unheeding(SlipStream(job)), job, job.nodes)


def _other_grids(job: TrainingJob) -> Iterator[TrainingJob]:
    """The job in fewer or more stages, on as many nodes, with the same global batch."""
    workers, limits = job.shape.pp * job.shape.dp, job.shape.memory_limit_bytes or ()
    if len(limits) > 1:
        return  # what is said stage by stage has no meaning for other stages
    for pp in range(1, min(len(job.profile.layers), job.shape.pp * MOST_STAGES) + 1):
        if pp == job.shape.pp or (job.shape.pp % pp and pp % job.shape.pp):
            continue
        dp = workers // pp
        if dp * pp != workers or job.microbatches % dp:
            continue
        try:
            yield replace(job, shape=replace(job.shape, pp=pp, dp=dp, microbatches=job.microbatches // dp))
        except InvalidInputError:
            continue  # its pipelines do not fill nodes


def _bound_per_s(job: TrainingJob, nodes: int) -> float:
    """What a grid with empty seats gives at most: the workers of a column work, sum and step, one after the other."""
    grid, microbatches = job.grid, job.microbatches
    stages = template_of(job.profile, job.shape).stages
    columns = [stages[first : first + grid.unit_stages] for first in range(0, len(stages), grid.unit_stages)]

    def nodes_for(stage: Stage, limit_s: float) -> float:
        """Of a column with this stage, to be done in time."""
        left_s = limit_s - stage.allreduce_s - stage.optimizer_s
        each = int(left_s / stage.work_s) if stage.work_s else microbatches
        return -(-microbatches // (each * grid.unit_pipelines)) if each > 0 else float("inf")

    def is_enough(limit_s: float) -> bool:
        return sum(max(nodes_for(stage, limit_s) for stage in column) for column in columns) <= min(nodes, job.nodes)

    low_s, high_s = 0.0, sum(stage.work_s * microbatches + stage.allreduce_s + stage.optimizer_s for stage in stages)
    for _ in range(BISECTIONS):
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if is_enough(middle_s) else (middle_s, high_s)
    return microbatches / low_s if low_s else float("inf")


def _anybody(nodes: int) -> Fleet:
    return Fleet(tuple(map(str, range(nodes))))
