"""The scheduling problem where workers hold several virtual stages: costs, queues and memory a seat, clock and limit a
worker.

A seat is a worker and one of its virtual stages. It stands beside `scheduling/problem.py`, in which a worker is its one
stage: that is what its kernels' speed rests on. A plain plan is a problem here too, of one seat a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.orders import KINDS as LETTERS
from ...schemas.orders import joined_tokens, parse_columns
from ...schemas.plan import Plan
from ..scheduling.problem import BACKWARD, CODE_OF_KIND, FORWARD, KINDS, NO_WORKER, WEIGHT, ranked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

SeatOrders = Sequence[Sequence[int]]  # of each worker, operation codes


@dataclass(frozen=True, eq=False)
class PlacedProblem:
    """What has to be ordered. All pipelines are of one template, so they are cut and placed alike.

    An operation code is `(job * stages + stage) * KINDS + kind`; stages are virtual ones throughout. In an order
    the F of a pair stands as `~code`, and the B that runs beside it is behind it.

    Attributes:
        origin, microbatch: of each job, its pipeline and its number there, in rank order; arrays of jobs.
        column: of each virtual stage; array of stages.
        pipeline, worker_column: of each worker; arrays of workers, failed ones among them.
        live: whether a worker has not failed; array of workers.
        executor: worker of each job at each stage; jobs x stages.
        split: whether a job's backward is split in I and W at a stage; jobs x stages.
        duration_s: of F, I, W and B, with slow-downs in them; workers x stages x 4, 0 where a worker has no such seat.
        activation_bytes, stash_bytes: held from F on, and between I and W; arrays of stages.
        limit_bytes: of each worker, infinite where there is none.
        hop_s: of each job from stage v to v + 1 and back by its route; jobs x (stages - 1), 0 within a column.
        allreduce_s, optimizer_s: of a worker of each column: the sums over its stages; arrays of columns.
        staggered: whether the period counts, or the makespan.
        overlap: what F and a full backward take side by side over the two one after the other; 1 where none may.
    """

    origin: Ints
    microbatch: Ints
    column: Ints
    pipeline: Ints
    worker_column: Ints
    live: Flags
    executor: Ints
    split: Flags
    duration_s: Floats
    activation_bytes: Floats
    stash_bytes: Floats
    limit_bytes: Floats
    hop_s: Floats
    allreduce_s: Floats
    optimizer_s: Floats
    staggered: bool
    overlap: float = 1.0

    @property
    def jobs(self) -> int:
        """How many micro-batches there are, over all pipelines."""
        return len(self.origin)

    @property
    def stages(self) -> int:
        """How many virtual stages there are."""
        return len(self.column)

    @property
    def workers(self) -> int:
        """How many workers there are, failed ones among them."""
        return len(self.pipeline)

    @cached_property
    def seats(self) -> tuple[tuple[int, ...], ...]:
        """The virtual stages of each column."""
        return tuple(tuple(np.flatnonzero(self.column == c).tolist()) for c in range(int(self.column.max()) + 1))

    @cached_property
    def operations(self) -> int:
        """How many operations there are, over all workers."""
        return int(2 * self.executor.size + self.split.sum())

    @cached_property
    def shares(self) -> Floats:
        """For each worker the least that a pair takes over its two passes one after the other; 1 where none may."""
        found: Floats = np.ones(self.workers)
        for worker in range(self.workers) if self.overlap < 1 else ():
            held = np.flatnonzero((self.executor == worker).any(axis=0))
            f_s, b_s = self.duration_s[worker, held, FORWARD][:, None], self.duration_s[worker, held, KINDS][None, :]
            both_s = np.maximum(f_s + b_s, np.finfo(float).tiny)
            found[worker] = np.maximum(np.maximum(f_s, b_s) / both_s, self.overlap).min(initial=1.0)
        return found

    def with_objective(self, staggered: bool) -> PlacedProblem:
        """The same problem for the period, or for the makespan."""
        return replace(self, staggered=staggered)

    def with_split(self, split: bool) -> PlacedProblem:
        """The same problem with all backwards split in I and W, or none."""
        return replace(self, split=np.full(self.executor.shape, split))

    def routed(self, plan: Plan, executor: Ints) -> PlacedProblem:
        """The same micro-batches by another routing.

        Args:
            plan: of the same template and pipelines.
            executor: worker of each job at each virtual stage; jobs x stages.
        """
        return replace(self, executor=executor, hop_s=_hops_s(plan, self.origin, self.pipeline, executor))

    def costing(self, plan: Plan) -> PlacedProblem:
        """The same routing and split backwards with another plan's durations, delays and limits.

        Args:
            plan: of the same micro-batches, pipelines and placement.
        """
        return _problem(plan, self.origin, self.microbatch, self.executor, self.split)


def placed_problem(plan: Plan, *, split: bool = True) -> PlacedProblem:
    """The problem in which every pipeline runs its own micro-batches.

    Args:
        plan: pipelines of one template and workers; its orders do not matter.
        split: whether backwards are split in I and W.
    """
    origin, microbatch = ranked(plan)
    columns = len(plan.templates[0].columns)
    executor = origin[:, None] * columns + np.array(plan.templates[0].column_of)[None, :]
    return _problem(plan, origin, microbatch, executor, np.full(executor.shape, split))


def ordered_placed_problem(plan: Plan) -> tuple[PlacedProblem, SeatOrders]:
    """The problem that a valid plan's orders answer, its routing and its split backwards; and these orders as codes."""
    origin, microbatch = ranked(plan)
    number = np.zeros((len(plan.pipelines), int(microbatch.max()) + 1), dtype=np.int64)
    number[origin, microbatch] = np.arange(len(origin))
    stages = len(plan.templates[0].stages)
    texts, pipelines = [one.order or "" for one in plan.workers], [one.pipeline for one in plan.workers]
    columns = parse_columns(texts, pipelines, list(map(plan.seats_of, plan.workers)))
    worker = np.repeat(np.arange(len(texts)), columns.counts)
    job = number[columns.pipeline, columns.microbatch]
    executor = np.full((len(origin), stages), NO_WORKER, dtype=np.int64)
    executor[job, columns.stage] = worker
    split = np.zeros(executor.shape, dtype=np.bool_)
    halves = columns.kind == LETTERS.index("I")
    split[job[halves], columns.stage[halves]] = True
    kind = np.array([CODE_OF_KIND[one] for one in LETTERS])[columns.kind]
    codes = (job * stages + columns.stage) * KINDS + kind
    if columns.is_paired is not None:
        codes = np.where(columns.is_paired, ~codes, codes)
    orders = [one.tolist() for one in np.split(codes, np.cumsum(columns.counts)[:-1])]
    return _problem(plan, origin, microbatch, executor, split), orders


def with_placed_orders(plan: Plan, problem: PlacedProblem, orders: SeatOrders) -> Plan:
    """The plan with orders given as operation codes, without a prediction; failed workers keep none."""
    # As `print_order` does, in a fifth of the time: tokens are put together from parts that are printed once.
    letters = np.where(problem.split[..., None], list("FIW"), list("FBW")).reshape(-1)
    jobs = list(zip(problem.origin.tolist(), problem.microbatch.tolist(), strict=True))
    numbers = [[f"{j}" if k == own else f"{k}.{j}" for k, j in jobs] for own in range(len(plan.pipelines))]
    workers = []
    for worker, order in zip(plan.workers, orders, strict=True):
        if not worker.failed:
            codes, paired = unpaired(order)
            job, stage = np.divmod(codes // KINDS, problem.stages)
            prefix = [f"{v}" if len(plan.seats_of(worker)) > 1 else "" for v in range(problem.stages)]
            tokens = zip(stage.tolist(), letters[codes].tolist(), job.tolist(), strict=True)
            own = numbers[worker.pipeline]
            texts = [prefix[v] + letter + own[j] for v, letter, j in tokens]
            worker = replace(worker, order=joined_tokens(texts, np.flatnonzero(paired).tolist()))
        workers.append(worker)
    return replace(plan, workers=tuple(workers), prediction=None)


def unpaired(order: Sequence[int]) -> tuple[Ints, Flags]:
    """The operation codes of an order, and which are F that run beside the B behind them."""
    codes = np.asarray(order, dtype=np.int64)
    paired = codes < 0
    return np.where(paired, ~codes, codes), paired


def spared_s(problem: PlacedProblem, orders: SeatOrders) -> float:
    """How much less all workers are busy for what they run side by side, in s."""
    found_s = 0.0
    for worker, order in enumerate(orders):
        codes, paired = unpaired(order)
        forward = np.flatnonzero(paired)
        if len(forward):
            stage = codes // KINDS % problem.stages
            f_s = problem.duration_s[worker, stage[forward], FORWARD]
            b_s = problem.duration_s[worker, stage[forward + 1], KINDS]
            both_s = np.maximum(np.maximum(f_s, b_s), problem.overlap * (f_s + b_s))
            found_s += float((f_s + b_s - both_s).sum())
    return found_s


def work_s(problem: PlacedProblem) -> Floats:
    """What each worker has to do, in s; array of workers."""
    stage = np.arange(problem.stages)[None, :]
    duration_s = problem.duration_s[problem.executor, stage]
    halves_s = duration_s[..., BACKWARD] + duration_s[..., WEIGHT]
    backward_s = np.where(problem.split, halves_s, duration_s[..., KINDS])
    found: Floats = np.zeros(problem.workers)
    np.add.at(found, problem.executor, duration_s[..., FORWARD] + backward_s)
    return found


def needed_bytes(problem: PlacedProblem) -> Floats:
    """The most that one of the micro-batches routed to each worker needs there; array of workers.

    Before its last F there it holds all its activations, and later no more: a stash is part of an activation.
    """
    found: Floats = np.zeros(problem.workers)
    for seats in problem.seats:
        runs = problem.executor[:, seats]
        needs = (runs[:, :, None] == runs[:, None, :]) @ problem.activation_bytes[list(seats)]
        np.maximum.at(found, runs, needs)
    return found


def held_bytes(problem: PlacedProblem, orders: SeatOrders) -> Floats:
    """The most that each worker holds by its order; array of workers. Seats are counted, so nothing drifts."""
    found = np.zeros(problem.workers)
    for worker, order in enumerate(orders):
        if not len(order):
            continue
        cell, kind = np.divmod(unpaired(order)[0], KINDS)
        stage = cell % problem.stages
        split = problem.split.ravel()[cell]
        held = np.zeros(len(cell))
        for one in np.unique(stage).tolist():
            here = stage == one
            whole = np.cumsum(here * np.select([kind == FORWARD, kind == BACKWARD], [1, -1], 0))
            stashed = np.cumsum(here * np.select([(kind == BACKWARD) & split, kind == WEIGHT], [1, -1], 0))
            held += whole * problem.activation_bytes[one] + stashed * problem.stash_bytes[one]
        found[worker] = held.max()
    return found


def _problem(plan: Plan, origin: Ints, microbatch: Ints, executor: Ints, split: Flags) -> PlacedProblem:
    (template,) = plan.templates
    stages = template.stages
    pipeline = np.array([worker.pipeline for worker in plan.workers])
    duration_s = np.zeros((len(plan.workers), len(stages), 4))
    for number, worker in enumerate(plan.workers):
        for v in plan.seats_of(worker):
            duration_s[number, v] = [stages[v].duration_s(kind) * (worker.slowdown or 1.0) for kind in "FIWB"]
    limits = [plan.limit_bytes(worker) for worker in plan.workers]
    return PlacedProblem(
        origin=origin,
        microbatch=microbatch,
        column=np.array(template.column_of),
        pipeline=pipeline,
        worker_column=np.array([worker.stage for worker in plan.workers]),
        live=np.array([not worker.failed for worker in plan.workers]),
        executor=executor,
        split=split,
        duration_s=duration_s,
        activation_bytes=np.array([stage.activation_bytes for stage in stages], dtype=np.float64),
        stash_bytes=np.array([stage.weight_stash_bytes for stage in stages], dtype=np.float64),
        limit_bytes=np.array([np.inf if limit is None else limit for limit in limits], dtype=np.float64),
        hop_s=_hops_s(plan, origin, pipeline, executor),
        allreduce_s=np.array([sum(stages[v].allreduce_s for v in held) for held in template.columns]),
        optimizer_s=np.array([sum(stages[v].optimizer_s for v in held) for held in template.columns]),
        staggered=plan.optimizer == "staggered",
        overlap=template.overlap or 1.0,
    )


def _hops_s(plan: Plan, origin: Ints, pipeline: Ints, executor: Ints) -> Floats:
    """Seconds of each hop of each job: by its pipeline's own links inside one, by the template's between two."""
    inside_s = np.array([[link.delay_s for link in plan.links_of(k)] for k in range(len(plan.pipelines))])
    between_s = np.array([link.delay_s for link in plan.templates[0].links])
    sender, receiver = pipeline[executor[:, :-1]], pipeline[executor[:, 1:]]
    links = np.arange(executor.shape[1] - 1)
    found: Floats = np.where(sender == receiver, inside_s[sender, links], between_s[links])
    return found
