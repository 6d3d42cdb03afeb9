"""The scheduling problem: workers with costs, delays and memory limits, and which worker runs which micro-batch where.

A Plan without its orders, as numbers. Workers are numbered as in the plan; **jobs** are the micro-batches in rank
order, micro-batch j of every pipeline before j+1 of any. In solutions an operation is a code, `3 * job + kind`.

Gradients are summed in parts: runs of layers with the same holders, from the last to the first. The sum of a part
begins when all its holders have ended their operations and are through with the parts behind that they hold, and takes
its share of their longest `allreduce_s` (docs/semantics.md). Where each worker holds one stage, somebody holds both of
two neighbouring parts of a component, so the parts of a component are summed one after the other. Where all pipelines
cut the layers alike, a part is a stage, and a component too.

A `Problem` has one stage a worker; the parts, and what they say, are of placements as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...schemas.kernels import MutableInts, compiled, kernel
from ...schemas.orders import KINDS as LETTERS
from ...schemas.orders import Kind, Operation, Token, parse_columns, print_operation
from ...schemas.plan import Layers, Plan, Stage, Worker, merged_ranges
from .forms import pays

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]


Ranges = tuple[Layers, ...]  # of the layers that a worker holds: ascending, with others between them


@dataclass(frozen=True)
class Parts:
    """The parts of stages, in ascending order of layers.

    Workers of the same layers are a group. Stages are known by their layers, and groups by theirs; both are numbered
    ascending. Where each worker holds one stage, groups are stages.

    Attributes:
        held: the layers of each stage, ascending, each once.
        groups: the layers of each group.
        own: of each group, its parts, ascending.
        behind: of each part, those that some holder of it sums just before it.
        shares: of each part, the stages that hold it, and which share of its all-reduce each takes for it.
        layers: of each part.
    """

    held: tuple[Layers, ...]
    groups: tuple[Ranges, ...]
    own: tuple[tuple[int, ...], ...]
    behind: tuple[tuple[int, ...], ...]
    shares: tuple[tuple[tuple[int, float], ...], ...]
    layers: tuple[Layers, ...]

    @cached_property
    def number(self) -> dict[Layers, int]:
        """The number of each stage."""
        return {layers: number for number, layers in enumerate(self.held)}

    @cached_property
    def group(self) -> dict[Ranges, int]:
        """The number of each group."""
        return {layers: number for number, layers in enumerate(self.groups)}

    @cached_property
    def foremost(self) -> tuple[int, ...]:
        """Of each group, its first part, which it sums last."""
        return tuple(own[0] for own in self.own)

    @cached_property
    def hindmost(self) -> tuple[int, ...]:
        """Of each group, its last part, which it sums first."""
        return tuple(own[-1] for own in self.own)

    @cached_property
    def linked(self) -> tuple[bool, ...]:
        """Whether somebody sums a part just after the next one: where each holds one stage, no others are linked."""
        return tuple(part + 1 in behind for part, behind in enumerate(self.behind))

    @cached_property
    def alone(self) -> tuple[bool, ...]:
        """Of each group, whether no other shares layers with it, and it sums once."""
        return tuple(len(self.shares[part]) == 1 and self.foremost[n] == part for n, part in enumerate(self.hindmost))

    def lasts_s(self, reduce_s: Sequence[float]) -> list[float]:
        """How long the sum of each part takes, in s, where all of a stage's layers take `reduce_s`."""
        return [max(reduce_s[stage] * share for stage, share in holders) for holders in self.shares]

    def begun_s(self, lasts_s: Sequence[float], ends_s: Sequence[float]) -> list[float]:
        """When the sum of each part begins, in s.

        Args:
            lasts_s: how long each takes.
            ends_s: when the last worker of each group has ended its operations.
        """
        found = [0.0] * len(lasts_s)
        for group, part in enumerate(self.hindmost):
            found[part] = max(found[part], ends_s[group])
        for part in reversed(range(len(found))):
            for before in self.behind[part]:
                found[part] = max(found[part], found[before] + lasts_s[before])
        return found

    def own_s(self, lasts_s: Sequence[float]) -> list[float]:
        """How long the parts of each group take together, in s."""
        return [sum(lasts_s[part] for part in own) for own in self.own]

    def following_s(self, lasts_s: Sequence[float]) -> list[float]:
        """What follows each group's last end at least, in s: its own sums, and all that wait for them."""
        chains_s = list(lasts_s)
        waiting_s = [0.0] * len(chains_s)
        for part, behind in enumerate(self.behind):
            chains_s[part] += waiting_s[part]
            for before in behind:
                waiting_s[before] = max(waiting_s[before], chains_s[part])
        return [chains_s[part] for part in self.hindmost]


def parts_of(held: Iterable[Ranges]) -> Parts:
    """The parts of stages.

    Args:
        held: the layers of each live worker's stages, ascending; any number of workers may hold the same.
    """
    return _parts_of(tuple(sorted(set(held))))


@lru_cache(maxsize=64)  # a replay times thousands of plans of the same stages
def _parts_of(held: tuple[Ranges, ...]) -> Parts:
    stages = sorted({layers for one in held for layers in one})
    cuts = sorted({boundary for layers in stages for boundary in layers})
    place = {boundary: number for number, boundary in enumerate(cuts)}
    shares: list[list[tuple[int, float]]] = [[] for _ in cuts]
    for stage, (first, stop) in enumerate(stages):
        for part in range(place[first], place[stop]):
            shares[part].append((stage, (cuts[part + 1] - cuts[part]) / (stop - first)))
    there = [part for part, holders in enumerate(shares) if holders]  # nobody alive may hold the layers between two
    number = {part: n for n, part in enumerate(there)}
    own: dict[Ranges, tuple[int, ...]] = {}
    for one in held:
        parts = tuple(number[part] for first, stop in one for part in range(place[first], place[stop]))
        own[merged_ranges(one)] = parts
    behind: list[set[int]] = [set() for _ in there]
    for parts in own.values():
        for part, before in pairwise(parts):
            behind[part].add(before)
    groups = tuple(sorted(own))
    return Parts(
        tuple(stages),
        groups,
        tuple(own[group] for group in groups),
        tuple(tuple(sorted(before)) for before in behind),
        tuple(tuple(shares[part]) for part in there),
        tuple((cuts[part], cuts[part + 1]) for part in there),
    )


FORWARD, BACKWARD, WEIGHT = 0, 1, 2  # kinds in operation codes; BACKWARD is I where split, B otherwise
KINDS = 3
# Plain Python does with so many operations what has to be done while the machine code is loaded (about half a second).
INTERPRETED_OPERATIONS = 150_000
LETTER_F, LETTER_I, LETTER_W, LETTER_B, DOT, SPACE, ZERO = b"FIWB. 0"
NO_WORKER = NO_PIPELINE = -1


@dataclass(frozen=True, eq=False)
class Workers:
    """What each worker holds and costs; arrays over the workers, times in s with the slow-down in them.

    Attributes:
        pipeline, stage: the worker's place.
        parts: in which gradients are summed.
        group: number of the worker's layers among those that live workers hold, ascending; peers share it.
        live: whether it has not failed.
        forward_s, input_s, weight_s, full_s: durations of F, I, W and B.
        allreduce_s, optimizer_s: what follows a stage's last operation.
        activation_bytes, stash_bytes: held from F on, and between I and W.
        limit_bytes: memory limit, infinite where there is none.
    """

    pipeline: Ints
    stage: Ints
    parts: Parts
    group: Ints
    live: Flags
    forward_s: Floats
    input_s: Floats
    weight_s: Floats
    full_s: Floats
    allreduce_s: Floats
    optimizer_s: Floats
    activation_bytes: Floats
    stash_bytes: Floats
    limit_bytes: Floats

    @property
    def durations_s(self) -> Floats:
        """Of F, I, W and B, workers x 4, in s."""
        return np.stack((self.forward_s, self.input_s, self.weight_s, self.full_s), axis=1)

    @property
    def held_bytes(self) -> Floats:
        """An activation, a stash and the limit, workers x 3."""
        return np.stack((self.activation_bytes, self.stash_bytes, self.limit_bytes), axis=1)

    @cached_property
    def sums_s(self) -> list[float]:
        """How long the sum of each part's gradients takes, in s."""
        return self.parts.lasts_s(self._most(self.allreduce_s))

    @cached_property
    def steps_s(self) -> list[float]:
        """What each group's slowest optimizer step takes, in s."""
        return self._most(self.optimizer_s)

    def _most(self, times_s: Floats) -> list[float]:
        """The largest of each group's live workers."""
        most_s = np.zeros(len(self.parts.held))
        np.maximum.at(most_s, self.group[self.live], times_s[self.live])
        found: list[float] = most_s.tolist()
        return found


def with_any_split(workers: Workers) -> Workers:
    """Workers whose I and W take no longer than those of any backward pass, split in two or not.

    What is proven of them, with all backward passes split, holds for all orders, also where a full pass takes less than
    its two halves: its message comes no earlier than after I here, and it takes no less than I and W here.
    """
    input_s, weight_s = least_halves_s(workers.input_s, workers.weight_s, workers.full_s)
    return replace(workers, input_s=input_s, weight_s=weight_s)


def least_halves_s(input_s: Floats, weight_s: Floats, full_s: Floats) -> tuple[Floats, Floats]:
    """I and W, in s, such that neither they nor B ever take less: arrays of equal shape.

    Args:
        input_s, weight_s, full_s: what I, W and B take.
    """
    shorter = full_s < (input_s + weight_s) * (1 - ROUNDING)
    least_s = np.where(shorter, np.minimum(input_s, full_s), input_s)
    return least_s, np.where(shorter, np.minimum(weight_s, full_s - least_s), weight_s)


@dataclass(frozen=True, eq=False)
class Problem:
    """What has to be ordered.

    Attributes:
        workers: the workers, failed ones among them (they execute nothing).
        origin, microbatch: of each job, its pipeline and its number there; arrays of `jobs`.
        depth: stages of each pipeline.
        executor: worker of each job at each stage, `jobs x stages`, NO_WORKER beyond its pipeline's depth.
        split: whether a job's backward is split in I and W at a stage, `jobs x stages`.
        inside_s: delay of the hop between stages i and i+1 inside pipeline k, `pipelines x (stages - 1)`, in s.
        between_s: the same for a micro-batch of pipeline k between workers of different pipelines.
        staggered: whether the period counts, or the makespan.
    """

    workers: Workers
    origin: Ints
    microbatch: Ints
    depth: Ints
    executor: Ints
    split: Flags
    inside_s: Floats
    between_s: Floats
    staggered: bool

    @property
    def jobs(self) -> int:
        """How many micro-batches there are, over all pipelines."""
        return len(self.origin)

    @property
    def hops_s(self) -> Floats:
        """`hop_s`, with none after the last stage, `jobs x stages`."""
        found = np.zeros(self.executor.shape)
        found[:, :-1] = self.hop_s
        return found

    @cached_property
    def operations(self) -> int:
        """How many operations there are, over all workers."""
        return int(2 * (self.executor != NO_WORKER).sum() + self.split.sum())

    @cached_property
    def jobs_of(self) -> tuple[tuple[int, ...], ...]:
        """The jobs of each worker, in rank order."""
        found: list[list[int]] = [[] for _ in self.workers.stage]
        for job, route in enumerate(self.executor.tolist()):
            for worker in route:
                if worker != NO_WORKER:
                    found[worker].append(job)
        return tuple(tuple(jobs) for jobs in found)

    @cached_property
    def job_counts(self) -> Ints:
        """How many jobs each worker has."""
        return np.bincount(self.executor[self.executor != NO_WORKER], minlength=len(self.workers.stage))

    @cached_property
    def hop_s(self) -> Floats:
        """Delay of each job's hop from stage i to i+1 and back, `jobs x (stages - 1)`, in s; 0 beyond its depth."""
        sender, receiver = self.executor[:, :-1], self.executor[:, 1:]
        passed = receiver != NO_WORKER
        home, other = self.workers.pipeline[sender], self.workers.pipeline[receiver]
        links = np.arange(sender.shape[1])
        delay: Floats = np.where(home == other, self.inside_s[home, links], self.between_s[self.origin][:, links])
        return np.where(passed, delay, 0.0)

    def backward_s(self, worker: int, split: bool) -> float:
        """Duration in s of I on a worker, or of B where the backward is not split."""
        return float(self.workers.input_s[worker] if split else self.workers.full_s[worker])

    def with_objective(self, staggered: bool) -> Problem:
        """The same problem for the period, or for the makespan."""
        return replace(self, staggered=staggered)


CODE_OF_KIND: dict[Kind, int] = {"F": FORWARD, "I": BACKWARD, "B": BACKWARD, "W": WEIGHT}
Orders = Sequence[Sequence[int]]  # operation codes of each worker: lists, or numpy arrays in large plans
Tokens = tuple[
    Any, Any
]  # arrays of texts of all codes: in orders of a micro-batch's own pipeline, and in those of others


def alone(plan: Plan, number: int) -> Plan:
    """The plan of one pipeline of a plan, which is pipeline 0 there; orders do not matter."""
    workers = tuple(replace(worker, pipeline=0) for worker in plan.workers if worker.pipeline == number)
    return replace(plan, pipelines=(plan.pipelines[number],), workers=workers)


def home_problem(plan: Plan, *, split: bool) -> Problem:
    """The problem in which every pipeline runs its own micro-batches.

    Args:
        plan: templates, pipelines and live workers; its orders do not matter.
        split: whether backwards are split in I and W.
    """
    origin, microbatch = ranked(plan)
    first = np.cumsum([0, *(len(plan.template_of(k).stages) for k in range(len(plan.pipelines)))])
    depth = np.diff(first)
    stages = np.arange(int(depth.max()))
    inside = stages < depth[origin][:, None]
    executor = np.where(inside, first[origin][:, None] + stages, NO_WORKER)
    return _problem(plan, origin, microbatch, executor, inside & split)


def problem_of(plan: Plan) -> Problem:
    """The problem that a plan's orders answer: its routing and its backward split."""
    return ordered_problem_of(plan)[0]


def codes_of(plan: Plan, problem: Problem) -> Orders:
    """A plan's orders as operation codes."""
    number = {
        place: job for job, place in enumerate(zip(problem.origin.tolist(), problem.microbatch.tolist(), strict=True))
    }
    return [
        [KINDS * number[op.pipeline, op.microbatch] + CODE_OF_KIND[op.kind] for op in worker.operations()]
        for worker in plan.workers
    ]


def ordered_problem_of(plan: Plan) -> tuple[Problem, Orders]:
    """What `problem_of` and `codes_of` say, read at once, the codes as arrays."""
    origin, microbatch = ranked(plan)
    number = np.zeros((len(plan.pipelines), int(microbatch.max()) + 1), dtype=np.int64)
    number[origin, microbatch] = np.arange(len(origin))
    depth = max(len(plan.template_of(k).stages) for k in range(len(plan.pipelines)))
    executor = np.full((len(origin), depth), NO_WORKER, dtype=np.int64)
    split = np.zeros(executor.shape, dtype=np.bool_)
    texts, pipelines = [one.order or "" for one in plan.workers], [one.pipeline for one in plan.workers]
    columns = parse_columns(texts, pipelines, list(map(plan.seats_of, plan.workers)))
    worker = np.repeat(np.arange(len(texts)), columns.counts)
    job, stage = number[columns.pipeline, columns.microbatch], columns.stage
    forward, split_backward = (columns.kind == LETTERS.index(kind) for kind in "FI")
    executor[job[forward], stage[forward]] = worker[forward]
    split[job[split_backward], stage[split_backward]] = True
    codes = KINDS * job + np.array([CODE_OF_KIND[kind] for kind in LETTERS])[columns.kind]
    orders = cast("Orders", np.split(codes, np.cumsum(columns.counts)[:-1]))
    return _problem(plan, origin, microbatch, executor, split), orders


def coded(orders: Sequence[Sequence[Token]]) -> Orders:
    """The orders of a pipeline alone, whose jobs are its micro-batches, as operation codes."""
    return [[KINDS * j + CODE_OF_KIND[kind] for kind, j in order] for order in orders]


def in_jobs(orders: Orders, jobs: Sequence[int]) -> Orders:
    """The orders of a pipeline alone as they are among others, where its micro-batch j is job `jobs[j]`."""
    return [[KINDS * jobs[code // KINDS] + code % KINDS for code in order] for order in orders]


def with_orders(plan: Plan, problem: Problem, orders: Orders) -> Plan:
    """The plan with orders given as operation codes; failed workers keep none."""
    large = pays(write_orders, problem.operations, INTERPRETED_OPERATIONS)
    texts = _written(problem, orders) if large else _joined(plan, problem, orders)
    workers = tuple(  # `replace` would take ten times as long
        worker if worker.failed else Worker(worker.pipeline, worker.stage, text, worker.slowdown)
        for worker, text in zip(plan.workers, texts, strict=True)
    )
    return replace(plan, workers=workers, prediction=None)


def _joined(plan: Plan, problem: Problem, orders: Orders) -> list[str]:
    """The text of each worker's order, from those of its operations."""
    home = np.repeat(problem.origin, KINDS)
    tokens = list(_tokens_by_stage(problem))

    def text(worker: Worker, order: Sequence[int]) -> str:
        own, foreign = tokens[worker.stage]
        codes = np.asarray(order, dtype=np.int64)
        return " ".join(np.where(home[codes] == worker.pipeline, own[codes], foreign[codes]).tolist())

    return [text(worker, order) for worker, order in zip(plan.workers, orders, strict=True)]


def _written(problem: Problem, orders: Orders) -> list[str]:
    """The same by machine code, character by character."""
    workers, counts = problem.workers, np.array([len(order) for order in orders])
    codes = np.concatenate([np.asarray(order, dtype=np.int64) for order in orders])
    digits = sum(len(str(int(numbers.max(initial=0)))) for numbers in (problem.origin, problem.microbatch))
    text = np.empty((digits + len("F. ")) * len(codes), dtype=np.uint8)
    stops = np.zeros(len(counts), dtype=np.int64)
    split = np.ascontiguousarray(problem.split, dtype=np.int8).ravel()
    write: Any = compiled(write_orders)
    write(
        problem.executor.shape[1], workers.pipeline, workers.stage, problem.origin, problem.microbatch, split,
        counts, codes, text, stops,
    )  # fmt: skip
    whole = text[: stops.max(initial=0)].tobytes().decode("ascii")
    starts = [0, *stops.tolist()[:-1]]
    # A space stands behind each operation.
    return [whole[start : max(start, stop - 1)] for start, stop in zip(starts, stops.tolist(), strict=True)]


@kernel
def put_number(number: int, at: int, text: MutableInts) -> int:
    """Write a decimal number from a place on; returns the place behind it."""
    stop = at + 1
    rest = number // 10
    while rest > 0:
        stop += 1
        rest //= 10
    for place in range(stop - 1, at - 1, -1):
        text[place] = ZERO + number % 10
        number //= 10
    return stop


@kernel
def write_orders(
    stages: int,
    home: Sequence[int],
    stage: Sequence[int],
    origin: Sequence[int],
    microbatch: Sequence[int],
    split: Sequence[int],
    counts: Sequence[int],
    codes: Sequence[int],
    text: MutableInts,
    stops: MutableInts,
) -> None:
    """Write the orders of all workers behind each other, as schemas/orders.py reads them.

    Args:
        stages: of the deepest pipeline.
        home, stage: the pipeline and the stage of each worker.
        origin, microbatch, split: as `Problem` has them.
        counts, codes: how many operations each worker has, and all of them behind each other.
        text: receives the characters, with a space behind each operation.
        stops: receives where each worker's order ends.
    """
    at = 0
    row = 0
    for worker in range(len(counts)):
        for _ in range(counts[worker]):
            job, kind = codes[row] // KINDS, codes[row] % KINDS
            if kind == FORWARD:
                text[at] = LETTER_F
            elif kind == WEIGHT:
                text[at] = LETTER_W
            else:
                text[at] = LETTER_I if split[job * stages + stage[worker]] else LETTER_B
            at += 1
            if origin[job] != home[worker]:
                at = put_number(origin[job], at, text)
                text[at] = DOT
                at += 1
            at = put_number(microbatch[job], at, text)
            text[at] = SPACE
            at += 1
            row += 1
        stops[worker] = at


def _tokens_by_stage(problem: Problem) -> Iterator[Tokens]:
    """For each stage, how its operation codes are written."""
    tokens = partial(_tokens, problem.origin.tobytes(), problem.microbatch.tobytes(), len(problem.depth) == 1)
    for split in problem.split.T:
        if split.all() or not split.any():
            yield tokens("I" if split[0] else "B")
        else:
            choice = np.repeat(split, KINDS)
            own, foreign = (np.where(choice, *pair) for pair in zip(tokens("I"), tokens("B"), strict=True))
            yield own, foreign


@lru_cache(maxsize=2)  # for I and for B: a running job writes the same ones in every plan
def _tokens(origin: bytes, microbatch: bytes, single: bool, backward: Kind) -> Tokens:
    """How operation codes are written where the backward is I, or B; `single` if there is one pipeline."""
    kinds: tuple[Kind, ...] = ("F", backward, "W")
    places = zip(*(np.frombuffer(each, dtype=np.int64).tolist() for each in (origin, microbatch)), strict=True)
    operations = [Operation(kind, k, j) for k, j in places for kind in kinds]
    own = np.array([print_operation(operation, operation.pipeline) for operation in operations], dtype=object)
    if single:
        return own, own
    return own, np.array([print_operation(operation, NO_PIPELINE) for operation in operations], dtype=object)


def ranked(plan: Plan) -> tuple[Ints, Ints]:
    """Pipeline and number of every micro-batch, in rank order: by number, then by pipeline; arrays of jobs."""
    counts = [pipeline.microbatches for pipeline in plan.pipelines]
    origin = np.repeat(np.arange(len(counts)), counts)
    microbatch = np.concatenate([np.arange(count) for count in counts])
    order = np.lexsort((origin, microbatch))
    return origin[order], microbatch[order]


def _problem(plan: Plan, origin: Ints, microbatch: Ints, executor: Ints, split: Flags) -> Problem:
    depth = np.array([len(plan.template_of(k).stages) for k in range(len(plan.pipelines))])
    inside_s = np.zeros((len(depth), max(int(depth.max()) - 1, 0)))
    between_s = np.zeros_like(inside_s)
    for k, pipeline in enumerate(plan.pipelines):
        common = [link.delay_s for link in plan.template_of(k).links]
        between_s[k, : len(common)] = common
        inside_s[k, : len(common)] = common if pipeline.links is None else [link.delay_s for link in pipeline.links]
    staggered = plan.optimizer == "staggered"
    return Problem(_workers(plan), origin, microbatch, depth, executor, split, inside_s, between_s, staggered)


def _workers(plan: Plan) -> Workers:
    stages = [plan.stage_of(worker) for worker in plan.workers]
    slow = np.array([worker.slowdown or 1.0 for worker in plan.workers])
    f, i, w, b = (np.array([stage.duration_s(kind) for stage in stages]) * slow for kind in "FIWB")
    parts = parts_of((stage.layers,) for worker, stage in zip(plan.workers, stages, strict=True) if not worker.failed)
    limits = [np.inf if stage.memory_limit_bytes is None else stage.memory_limit_bytes for stage in stages]
    return Workers(
        pipeline=np.array([worker.pipeline for worker in plan.workers]),
        stage=np.array([worker.stage for worker in plan.workers]),
        parts=parts,
        group=np.array([_group(parts, stage) for stage in stages]),
        live=np.array([not worker.failed for worker in plan.workers]),
        forward_s=f,
        input_s=i,
        weight_s=w,
        full_s=b,
        allreduce_s=np.array([stage.allreduce_s for stage in stages], dtype=np.float64),
        optimizer_s=np.array([stage.optimizer_s for stage in stages], dtype=np.float64),
        activation_bytes=np.array([stage.activation_bytes for stage in stages], dtype=np.float64),
        stash_bytes=np.array([stage.weight_stash_bytes for stage in stages], dtype=np.float64),
        limit_bytes=np.array(limits, dtype=np.float64),
    )


def _group(parts: Parts, stage: Stage) -> int:
    """The number of a worker's layers; where nobody alive holds just these, that of others, for it executes nothing."""
    if stage.layers in parts.number:
        return parts.number[stage.layers]
    return min(sum(stop <= stage.layers[0] for _, stop in parts.held), len(parts.held) - 1)


# A value beside a bound that is proven: how both are compared.


# Sums of the same times in another order differ by less than this, relatively.
ROUNDING = 1e-9


class Proven:
    """What is known of a value: the bound that nothing undercuts. Both in s."""

    value_s: float
    bound_s: float

    @property
    def goal_s(self) -> float:
        """A value this low, in s, differs from the bound by rounding only."""
        return self.bound_s * (1 + ROUNDING)

    @property
    def optimal(self) -> bool:
        """Whether the value reaches its bound, up to rounding."""
        return self.value_s <= self.goal_s


# The windows of stages: from the first start of their workers to the last sum of gradients, and what they add up to.
#
# Workers of the same layers share all their sums, and so one window.


@dataclass(frozen=True, eq=False)
class Windows:
    """Each group's first start, its last sum of gradients, and its slowest optimizer step; arrays of groups, in s.

    Attributes:
        begin_s: its first start.
        end_s: when its last sum begins, that of its first layers: where all cut alike, its last end.
        reduce_s: what this sum takes.
        step_s: what its optimizer step takes.
        meets_s: when its first sum begins, that of its last layers: no sum begins later if its workers end by then.
        alone: whether it shares no layers with other groups, so that it sums once and for itself.
    """

    begin_s: Floats
    end_s: Floats
    reduce_s: Floats
    step_s: Floats
    meets_s: Floats
    alone: Flags

    @property
    def makespan_s(self) -> float:
        """End of the iteration when every worker starts at 0, all-reduce and optimizer included."""
        return float((self.end_s + self.reduce_s).max() + self.step_s.max())

    @property
    def lengths_s(self) -> Floats:
        """From each group's first start to the end of its own optimizer step."""
        lengths: Floats = self.end_s - self.begin_s + self.reduce_s + self.step_s
        return lengths

    @property
    def period_s(self) -> float:
        """Smallest time after which the schedule repeats when each worker steps its optimizer on its own."""
        return float(self.lengths_s.max())

    @property
    def deadlines_s(self) -> Floats:
        """When each group may end, with the makespan and the longest window kept: at the latest, where it is alone."""
        whole_s = (self.end_s + self.reduce_s).max() - self.reduce_s
        window_s = self.begin_s + self.period_s - self.reduce_s - self.step_s
        kept: Floats = np.where(self.alone, np.minimum(whole_s, window_s), self.meets_s)
        return kept


def stage_windows(problem: Problem, first_s: Floats, last_s: Floats) -> Windows:
    """The windows of a problem's groups.

    Args:
        problem: whose workers they are.
        first_s, last_s: first start and last end of each worker; what is said of workers without operations is ignored.
    """
    workers, busy, parts = problem.workers, problem.job_counts > 0, problem.workers.parts
    groups = len(parts.held)
    begin_s, ends_s = np.full(groups, np.inf), np.zeros(groups)
    np.minimum.at(begin_s, workers.group[busy], first_s[busy])
    np.maximum.at(ends_s, workers.group[busy], last_s[busy])
    lasts_s = workers.sums_s
    begun_s = parts.begun_s(lasts_s, ends_s.tolist())
    return Windows(
        begin_s,
        np.array([begun_s[part] for part in parts.foremost]),
        np.array([lasts_s[part] for part in parts.foremost]),
        np.array(workers.steps_s),
        np.array([begun_s[part] for part in parts.hindmost]),
        np.array(parts.alone),
    )
