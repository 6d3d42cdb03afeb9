"""What a dead GPU costs: its node, its worker, or a part of its worker.

Of a node that lacks a GPU, a policy that knows whole nodes only has nothing (`WholeNodes`). Seen worker by worker
(`WorkerByWorker`) the others of the node go on: that of the dead GPU is lost, and peers take its micro-batches; or it
goes on at the next smaller tensor-parallel degree that the profile has costs at, as a slow worker to the joint planner.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import cast

from ...schemas.plan import Place, Plan, Stage
from ...schemas.profile import Profile, activations_held
from ...schemas.protocols import RecoveryPolicy
from ...schemas.replay import Fleet, Gpu, Moment, StateChange, TrainingState, Transition
from ..scheduling.evaluate import evaluate
from ..shape import stages_at, template_of
from .adapting import Adapting
from .detecting import Unheeding, Watched
from .interruption import Resuming
from .job import Horizon, TrainingJob, copying_connection, gpu_bytes, regrouping
from .slipstream import GridJob, SlipStream

MOST_KEPT = 64  # standings whose memory is remembered


class WholeNodes:
    """Around a policy that knows whole nodes only: a node that lacks a GPU is lost to it, though there, and paid for.

    Args:
        policy: for all else.
    """

    def __init__(self, policy: RecoveryPolicy) -> None:
        self._policy = policy

    def begin(self, fleet: Fleet) -> TrainingState:
        """As the policy, on the nodes that have all their GPUs."""
        return self._policy.begin(fleet.of_nodes)

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """As the policy, which is asked as well where only GPUs of nodes change that it does without."""
        return self._policy.react(standing, moment.of_nodes)

    def plan(self, standing: TrainingState) -> Plan | None:
        """As the policy."""
        return self._policy.plan(standing)

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """As the policy."""
        return self._policy.seats(standing)


def worker_lost(job: TrainingJob) -> RecoveryPolicy:
    """SlipStream, to which a worker is lost with one of its GPUs, and the other workers of its node are not."""
    slipstream = SlipStream(GridJob.replayed(job, by_worker=True))
    return WorkerByWorker(Resuming(Unheeding(slipstream), job.costs), job)


def degree_lowered(job: TrainingJob) -> RecoveryPolicy:
    """The same, but who has lost a GPU comes again at once at the next smaller degree, where memory admits that."""
    adapting = Adapting(SlipStream(GridJob.replayed(job, by_worker=True)), Horizon())
    return Watched(WorkerByWorker(Resuming(adapting, job.costs), job, LowerDegrees.replayed(job)), job.costs)


@dataclass(frozen=True)
class WorkersLayout:
    """A standing of a policy to which each worker is a node of its own."""

    held: TrainingState


class WorkerByWorker:
    """Around a policy to which each worker is a node of its own: it is told of nodes and of GPUs.

    A worker is called NODE:n, the n-th of its node. Those that have lost a GPU come last: others take seats before.

    Args:
        policy: of a job whose units are workers.
        job: whose nodes may hold several.
        lower: the degrees at which workers go on that have lost a GPU; None: these are lost.
    """

    def __init__(self, policy: RecoveryPolicy, job: TrainingJob, lower: LowerDegrees | None = None) -> None:
        self._policy, self._job, self._lower = policy, job, lower
        self._degree, self._per_node = job.shape.degree, job.workers_per_node
        self._peaks_bytes = lru_cache(maxsize=MOST_KEPT)(self._activations_held)

    def begin(self, fleet: Fleet) -> TrainingState:
        """As the policy, with all workers or, where that is no slower or memory wants it, with whole ones only."""
        every = self._degrees(fleet.nodes, fleet.dead_gpus)
        begun = {}
        for degrees in _once(every, self._whole(every)):
            found = self._policy.begin(self._seen(fleet, degrees))
            if self._fits(found, degrees):
                begun[found.microbatches_per_s] = self._told(found, degrees)
        return begun[max(begun)]

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """As the policy; who goes on at a smaller degree is lost, and comes again, unless the others are faster alone.

        A repaired GPU copies its part of the state beside training, and takes part from an iteration's end on.
        """
        held, every = _held(standing), self._degrees(moment.fleet.nodes, moment.fleet.dead_gpus)
        seated, hit = set(self._policy.seats(held).values()), set(map(self._worker_of, moment.lost_gpus))
        whole = self._whole(every)
        stay = whole | {worker: every[worker] for worker in every if worker in seated and worker not in hit}

        found: list[tuple[float, Transition, Mapping[str, int]]] = []
        for degrees in _once(every, stay, whole):
            if degrees == whole != stay and found:
                break  # that is for when somebody has no memory for a smaller degree
            steps = self._policy.react(held, self._seen_moment(moment, degrees, seated))
            last = steps[-1].standing if steps else held
            if self._fits(last, degrees):
                found.append((last.microbatches_per_s, steps, degrees))
        _, steps, after = max(found, key=lambda one: one[0])
        return tuple(self._finished(held, steps, moment, after))

    def _finished(
        self, held: TrainingState, steps: Transition, moment: Moment, after: Mapping[str, int]
    ) -> Iterator[StateChange]:
        """The policy's steps, counted in nodes, with what changes of degrees cost, and called what they are."""
        raised = self._raised(held, moment, after)
        if raised and steps and not any(step.interrupts for step in steps):
            steps = (self._raising(steps[-1], raised),)
        comes_again = any(worker in after for worker in map(self._worker_of, moment.lost_gpus))
        for step in steps:
            answer = "lower" if comes_again and step.answer == "join" else step.answer
            yield replace(step, standing=self._told(step.standing, after), answer=answer)

    def plan(self, standing: TrainingState) -> Plan | None:
        """As the policy."""
        return self._policy.plan(_held(standing))

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """The nodes of the workers that the policy has seated."""
        return {place: _node_of(worker) for place, worker in self._policy.seats(_held(standing)).items()}

    # Which workers there are, and at which degree each works

    def _degrees(self, nodes: Collection[str], dead: Mapping[str, Collection[int]]) -> dict[str, int]:
        """The degree of each worker that can work, those that have all their GPUs first."""
        whole: dict[str, int] = {}
        lowered: dict[str, int] = {}
        for node in nodes:
            for number in range(self._per_node):
                lacks = sum(gpu // self._degree == number for gpu in dead.get(node, ()))
                degree = self._degree if not lacks else self._lower.of(self._degree - lacks) if self._lower else 0
                if degree:
                    (lowered if lacks else whole)[f"{node}:{number}"] = degree
        return whole | lowered

    def _whole(self, degrees: Mapping[str, int]) -> dict[str, int]:
        """The workers that have all their GPUs."""
        return {worker: degree for worker, degree in degrees.items() if degree == self._degree}

    def _worker_of(self, gpu: Gpu) -> str:
        return f"{gpu[0]}:{gpu[1] // self._degree}"

    def _seen(self, fleet: Fleet, degrees: Mapping[str, int]) -> Fleet:
        """The fleet with a node for each worker, slow where its degree is smaller."""
        slow = {}
        for worker, degree in degrees.items():
            lowered = self._lower.factor(degree) if self._lower and degree < self._degree else 1.0
            factor = fleet.slow.get(_node_of(worker), 1.0) * lowered
            if factor > 1:
                slow[worker] = factor
        links = {
            (min(ends), max(ends)): delay_s
            for (one, other), delay_s in fleet.slow_links.items()
            for ends in product(self._names(one), self._names(other))
            if ends[0] != ends[1] and degrees.keys() >= {*ends}
        }
        return Fleet(tuple(degrees), slow, links)

    def _names(self, node: str) -> Iterator[str]:
        return (f"{node}:{number}" for number in range(self._per_node))

    def _seen_moment(self, moment: Moment, after: Mapping[str, int], seated: Collection[str]) -> Moment:
        """The moment, as it happens to workers: who is at work and has lost a GPU, or works no more, is lost."""
        before = self._degrees_before(moment)
        hit = set(map(self._worker_of, moment.lost_gpus))
        gone = (worker for worker in seated if worker not in after or worker in hit or _node_of(worker) in moment.lost)
        came = [worker for worker in after if _node_of(worker) in moment.came or worker in hit or worker not in before]
        known = None if moment.known is None else self._seen(moment.known, after)
        return replace(
            moment,
            fleet=self._seen(moment.fleet, after),
            known=known,
            lost=tuple(sorted(gone)),
            came=tuple(came),
            lost_gpus=(),
            came_gpus=(),
        )

    def _degrees_before(self, moment: Moment) -> dict[str, int]:
        """The degrees of workers of nodes that stay, before the moment."""
        stayed = [node for node in moment.fleet.nodes if node not in moment.came]
        return self._degrees(stayed, {**moment.fleet.dead_gpus, **moment.lacked_before})

    # What becomes of a worker's degree

    def _raised(self, held: TrainingState, moment: Moment, after: Mapping[str, int]) -> set[str]:
        """The workers at work of which a repaired GPU makes the degree higher."""
        before, seated = self._degrees_before(moment), set(self._policy.seats(held).values())
        mended = set(map(self._worker_of, moment.came_gpus)) & seated
        return {worker for worker in mended if before.get(worker, self._degree) < after.get(worker, 0)}

    def _raising(self, step: StateChange, raised: Collection[str]) -> StateChange:
        """On at higher degrees, once the repaired GPUs have their parts of the state."""
        assert self._lower is not None
        places = [place for place, worker in self._policy.seats(step.standing).items() if worker in raised]
        most = max((self._lower.slice_bytes(stage) for _, stage in places), default=0.0)
        copying_s = copying_connection(self._job).transfer_s(most)
        pauses = regrouping(self._job.costs, planning_s=self._job.costs.planning_s)
        return replace(step, answer="raise", pauses=pauses, after_s=copying_s)

    def _fits(self, held: TrainingState, degrees: Mapping[str, int]) -> bool:
        """Whether GPUs of smaller degrees hold what they would have to."""
        return all(
            most <= self._lower.room_bytes(stage) for stage, most in self._held_lowered(held, degrees) if self._lower
        )

    def _held_lowered(self, held: TrainingState, degrees: Mapping[str, int]) -> list[tuple[int, float]]:
        """The stage of each worker at work at a smaller degree, and the most that a GPU of it holds."""
        if self._lower is None or all(degree == self._degree for degree in degrees.values()):
            return []
        seats = self._policy.seats(held).items()
        lowered = {
            place: degrees[worker] for place, worker in seats if degrees.get(worker, self._degree) < self._degree
        }
        peaks = self._peaks_bytes(held) if lowered else {}
        return [(place[1], self._lower.held_bytes(place[1], one, peaks[place])) for place, one in lowered.items()]

    def _activations_held(self, held: TrainingState) -> dict[Place, float]:
        """The most activations that a GPU of each worker holds at the job's own degree; of a standing that trains."""
        plan = self._policy.plan(held)
        assert plan is not None
        found = (plan.prediction or evaluate(plan)).peak_memory_bytes
        return {worker.place: most for worker, most in zip(plan.workers, found, strict=True)}

    def _told(self, held: TrainingState, degrees: Mapping[str, int]) -> TrainingState:
        """A standing of the policy, counted in nodes."""
        workers = self._policy.seats(held).values()
        gpus = sum(degrees.get(worker, self._degree) for worker in workers)
        most = max(held.peak_memory_bytes, max((most for _, most in self._held_lowered(held, degrees)), default=0.0))
        nodes = gpus / (self._degree * self._per_node)
        return replace(held, formation=WorkersLayout(held), nodes=nodes, peak_memory_bytes=most)


class LowerDegrees:
    """The tensor-parallel degrees below a job's own at which its workers can go on, and what that makes of them.

    Args:
        profile: has the costs.
        stages: of alike pipelines, as they are cut.
        pipelines: how many there are.
        degree: the job's own.
        microbatches: of a pipeline.
        limits: of what a GPU of each stage may hold of activations, in bytes; one for all, or None.
    """

    def __init__(
        self,
        profile: Profile,
        stages: Sequence[Stage],
        pipelines: int,
        degree: int,
        microbatches: int,
        limits: Sequence[float] | None = None,
    ) -> None:
        self._profile, self._cut, self._pipelines = profile, stages, pipelines
        self._degree, self._microbatches, self._limits = degree, microbatches, limits

    @classmethod
    def replayed(cls, job: TrainingJob) -> LowerDegrees:
        """Those of a job's workers."""
        shape = job.shape
        stages = template_of(job.profile, shape).stages
        return cls(job.profile, stages, shape.dp, shape.degree, shape.microbatches, shape.memory_limit_bytes)

    @property
    def degrees(self) -> tuple[int, ...]:
        """Those of the profile up to the job's own, ascending."""
        return tuple(self._stages)

    def of(self, gpus: int) -> int:
        """The largest degree of the profile for so many GPUs; 0: there is none, or not even state has room there."""
        return max((degree for degree in self._roomy if degree <= gpus), default=0)

    def factor(self, degree: int) -> float:
        """How many times as long a worker takes for an iteration's work, in the stage that this costs most.

        What its sum of gradients and its step then take longer is shared out among its operations.
        """
        return max((self.factor_at([stage], degree) for stage in range(len(self._cut))), default=1.0)

    def factor_at(self, stages: Collection[int], degree: int) -> float:
        """The same of a worker that has these stages."""
        lower_s, usual_s = (
            sum(self._iteration_s(self._stages[one][stage]) for stage in stages) for one in (degree, self._degree)
        )
        # A stage that takes no time has none that a factor could make longer.
        return lower_s / usual_s if usual_s else 1.0

    def slice_bytes(self, stage: int) -> float:
        """Parameters, gradients and optimizer state that a GPU of a stage has at the job's own degree."""
        return self._state_bytes(stage, self._degree)

    def room_bytes(self, stage: int) -> float:
        """What a GPU of a stage has for all that it holds; infinite where nothing says so.

        That is the device's memory, and no more than what a limit of activations leaves beside state at the job's own
        degree: at a smaller one there is more state, and so less room for activations.
        """
        room_bytes, limits = self._profile.device.memory_bytes or math.inf, self._limits
        if limits is None:
            return room_bytes
        limit_bytes = limits[stage] if len(limits) > 1 else limits[0]
        return min(room_bytes, limit_bytes + self.slice_bytes(stage))

    def held_bytes(self, stage: int, degree: int, activation_bytes: float) -> float:
        """What a GPU of a stage holds at a degree, which would hold so much of activations at the job's own."""
        layers = self._profile.layers[slice(*self._own[stage].layers)]
        own, lower = (activations_held(layers, one) for one in (self._degree, degree))
        return self._state_bytes(stage, degree) + (activation_bytes * lower / own if own else 0.0)

    def gpu_bytes(self, stages: Collection[int], degree: int) -> float:
        """Parameters, gradients and optimizer state that a GPU of a worker with these stages has at a degree."""
        return sum(self._state_bytes(stage, degree) for stage in stages)

    def has_room(self, stages: Sequence[int], degree: int, activation_bytes: float) -> bool:
        """Whether a GPU of a worker with these stages holds them at a degree, with activations as of `held_bytes`."""
        first, *further = stages
        held_bytes = self.held_bytes(first, degree, activation_bytes) + self.gpu_bytes(further, degree)
        return held_bytes <= self.room_bytes(first)

    @cached_property
    def _roomy(self) -> tuple[int, ...]:
        """The degrees at which a GPU of any stage holds at least parameters and state."""
        numbers = range(len(self._cut))
        return tuple(
            degree
            for degree in self._stages
            if all(self._state_bytes(i, degree) <= self.room_bytes(i) for i in numbers)
        )

    def _state_bytes(self, stage: int, degree: int) -> float:
        return gpu_bytes(self._profile.layers, replace(self._own[stage], tensor_parallel=degree))

    def _iteration_s(self, stage: Stage) -> float:
        """What a worker has to do in an iteration, with the micro-batches of its own pipeline."""
        return stage.work_s * self._microbatches + stage.allreduce_s + stage.optimizer_s

    @property
    def _own(self) -> tuple[Stage, ...]:
        return self._stages[self._degree]

    @cached_property
    def _stages(self) -> dict[int, tuple[Stage, ...]]:
        """The job's stages at its own degree and at each smaller one of the profile, cut as at its own."""
        degrees = (degree for degree in self._profile.degrees if degree <= self._degree)
        return {degree: stages_at(self._profile, self._cut, self._pipelines, degree) for degree in degrees}


def _once(*choices: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """Each of some choices once, in their order."""
    for number, choice in enumerate(choices):
        if choice not in choices[:number]:
            yield choice


def _held(standing: TrainingState) -> TrainingState:
    return cast("WorkersLayout", standing.formation).held


def _node_of(worker: str) -> str:
    return worker.rpartition(":")[0]
