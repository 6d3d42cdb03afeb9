"""`rtk plan pipeline`: the classic schedules, or given orders, for any shape, costs, delays and limits."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from .. import __version__
from ..schemas.check import check_plan, in_brief
from ..schemas.errors import InfeasibleError, InvalidInputError
from ..schemas.orders import Kind, Operation, Schedule, Token, print_order
from ..schemas.plan import Layers, Link, Placement, Plan, Planner, Stage, Worker
from ..schemas.profile import Profile
from .placement.bounds import bound_of
from .placement.pipelines import with_placed_pipelines
from .scheduling.assemble import with_prediction
from .scheduling.list_schedule import DispatchRules, ListScheduler, Priority, most_in_flight, rooms
from .scheduling.lower_bound import lower_bounds_s
from .scheduling.problem import KINDS, Orders, Problem, alone, home_problem
from .scheduling.solve import Effort
from .shape import Shape, plan_without_orders, shape_options

THOROUGH = Effort("heuristic")  # for those who have a second or two
SPLIT_KINDS: tuple[Kind, ...] = ("F", "I", "W")  # of operation codes, whose jobs are the micro-batches here


def plan_pipeline(profile: Profile, shape: Shape, schedule: Schedule, effort: Effort = THOROUGH) -> Plan:
    """Plan fault-free pipelines of one shape.

    Args:
        profile: the model's costs.
        shape: stages, pipelines, micro-batches, limits and delays.
        schedule: GPipe, 1F1B or zero-bubble; with several virtual stages a worker, 1F1B is the best order of full
            backwards that is found, such as interleaved 1F1B on a loop, and zero-bubble that of I and W apart.
        effort: how hard to try where orders are searched for: those of several virtual stages, or with pairs.

    Returns:
        A checked plan with its prediction.

    Raises:
        InfeasibleError: a memory limit admits no schedule of this kind, or there are too few layers.
        InvalidInputError: a link or limit that the shape does not have, or a schedule that is not for its placement.
    """
    planner = Planner("pipeline", __version__, {"schedule": schedule, **shape_options(profile, shape)})
    if shape.overlap and schedule == "gpipe":
        what = "GPipe runs all forwards before the first backward, so none are side by side"
        raise InvalidInputError(what, where="--overlap", fix="take 1f1b or zero-bubble, or leave it out")
    if shape.columns is None and not shape.overlap:
        return with_prediction(scheduled(plan_without_orders(profile, shape, planner), schedule))
    if schedule == "gpipe":
        raise InvalidInputError(
            "GPipe has one stage a worker", where="--schedule", fix="take 1f1b or zero-bubble, or --placement plain"
        )
    empty = plan_without_orders(profile, shape, planner)
    return with_placed_pipelines(empty, split=schedule == "zero-bubble", effort=effort)


def scheduled(plan: Plan, schedule: Schedule) -> Plan:
    """A plan without orders with those of a classic schedule in each pipeline; still without a prediction.

    Zero-bubble orders are made for workers as slow as they are, and for each pipeline's own links.

    Args:
        plan: all its workers alive.
        schedule: GPipe, 1F1B or zero-bubble.

    Raises:
        InfeasibleError: a memory limit admits no schedule of this kind.
    """
    slow: defaultdict[int, list[float | None]] = defaultdict(list)
    for worker in plan.workers:
        slow[worker.pipeline].append(worker.slowdown)
    kinds = [
        (each.template, each.microbatches, plan.links_of(k), tuple(slow[k])) for k, each in enumerate(plan.pipelines)
    ]
    orders = {kind: _orders(alone(plan, kinds.index(kind)), schedule) for kind in dict.fromkeys(kinds)}
    return _with_orders(plan, [orders[kind] for kind in kinds])


def plan_from_orders(
    profile: Profile,
    orders: Sequence[Sequence[Operation]],
    shape: Shape,
    planner: str,
    source: str,
    placement: Placement | None = None,
    pairs: Sequence[Collection[int]] = (),
    cut: Sequence[Layers] | None = None,
) -> Plan:
    """Make a plan of orders that come from elsewhere, the same in every pipeline.

    Args:
        profile: the model's costs.
        orders: the order of each column, as pipeline 0 has it.
        shape: columns (as many as orders), pipelines, micro-batches, limits and delays.
        planner: who made the orders, for the plan to name.
        source: where they came from, for errors.
        placement: the virtual stages of each column; None: that of the shape.
        pairs: of each column, the places of the forwards that run beside the backward behind them; none if empty.
        cut: the layers of each stage, where they came along.

    Returns:
        A checked plan with its prediction.

    Raises:
        InvalidInputError: the orders are incomplete, deadlock, or hold more than a memory limit.
        InfeasibleError: the profile cannot be cut into that many stages.
    """
    made_by = Planner(planner, __version__, shape_options(profile, shape))
    empty = plan_without_orders(profile, shape, made_by, placement, cut)
    beside = pairs or [()] * len(orders)
    workers = (_with_order(worker, orders[worker.stage], beside[worker.stage]) for worker in empty.workers)
    plan = replace(empty, workers=tuple(workers))
    problems = check_plan(plan)
    if problems:
        fix = "correct the orders; worker k/i runs that of column i, and operations are counted from 0"
        raise InvalidInputError(in_brief(problems), where=source, fix=fix)
    return with_prediction(plan, bound_of(plan) if plan.is_placed or plan.may_pair else 0.0)


def _with_order(worker: Worker, order: Sequence[Operation], pairs: Collection[int]) -> Worker:
    """A worker with the order and the pairs of its column, of its own micro-batches."""
    own = (one._replace(pipeline=worker.pipeline) for one in order)
    return replace(worker, order=print_order(own, worker.pipeline, pairs))


def _with_orders(plan: Plan, orders: Sequence[Sequence[Sequence[Token]]]) -> Plan:
    """The plan with orders and without a prediction; `orders[k][i]` is that of stage i in pipeline k."""
    texts = (
        print_order((Operation(kind, k, j) for kind, j in order), k) for k, rows in enumerate(orders) for order in rows
    )
    workers = (
        Worker(worker.pipeline, worker.stage, text, worker.slowdown)
        for worker, text in zip(plan.workers, texts, strict=True)
    )
    return replace(plan, workers=tuple(workers))


def _orders(one: Plan, schedule: Schedule) -> list[list[Token]]:
    """The order of each stage of a single pipeline."""
    stages, links, microbatches = one.template_of(0).stages, one.links_of(0), one.pipelines[0].microbatches
    match schedule:  # each name of `Schedule`: mypy says which one is missing
        case "gpipe":
            return gpipe(stages, links, microbatches)
        case "1f1b":
            return one_forward_one_backward(stages, links, microbatches)
        case "zero-bubble":
            problem = home_problem(one, split=True)
            orders = zero_bubble(problem, lower_bounds_s(problem))
            return [[(SPLIT_KINDS[code % KINDS], code // KINDS) for code in order] for order in orders]


# GPipe: all forwards, then all backwards.
#
# Y. Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", NeurIPS 2019.
# Without its re-materialization, which a profile may have in its costs; the backwards run in the order of the forwards,
# as in torch's ScheduleGPipe, so that they stay FIFO between stages.


def gpipe(stages: Sequence[Stage], links: Sequence[Link], microbatches: int) -> list[list[Token]]:
    """The order of each stage; `links` do not matter.

    Raises:
        InfeasibleError: a memory limit does not admit all micro-batches at once.
    """
    for index, room in enumerate(most_in_flight(stages, microbatches)):
        if room < microbatches:
            raise InfeasibleError(
                f"GPipe holds all {microbatches} micro-batches at once, the limit of stage {index} admits {room}",
                where="--memory-limit",
                fix="take fewer micro-batches, or --schedule 1f1b",
            )
    forwards: list[Token] = [("F", j) for j in range(microbatches)]
    backwards: list[Token] = [("B", j) for j in range(microbatches)]
    return [forwards + backwards for _ in stages]


# 1F1B: a warm-up of forwards, then a forward and a backward in turns.
#
# D. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, in the synchronous
# form of DAPPLE (S. Fan et al., PPoPP 2021) and Megatron-LM. Stage i of S holds at most S - i micro-batches. We deviate
# where a memory limit admits fewer: the warm-up is cut to what fits, and later stages never warm up deeper than earlier
# ones, for they would wait for forwards that are never sent.


def one_forward_one_backward(stages: Sequence[Stage], links: Sequence[Link], microbatches: int) -> list[list[Token]]:
    """The order of each stage; `links` do not matter.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    orders = []
    depth = microbatches
    for index, room in enumerate(most_in_flight(stages, microbatches)):
        depth = min(depth, len(stages) - index, room)
        # F0 … F(depth-1), then B0 F(depth) B1 …, so that at most `depth` micro-batches are held.
        order: list[Token] = [("F", j) for j in range(depth)]
        for j in range(microbatches):
            order.append(("B", j))
            if j + depth < microbatches:
                order.append(("F", j + depth))
        orders.append(order)
    return orders


# Zero bubble: the backward split in I and W, the W in what would be bubbles.
#
# P. Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024. As in its section 3.1 a constructive rule is tried in
# several variants and the best is kept: the warm-ups of its ZB-H1 (S - i forwards at stage i, the memory of 1F1B) and
# ZB-H2 (2(S - i) - 1, no bubble on equal stages), with and without waiting for a message that is about to arrive. We
# deviate: times are exact and per stage, delays are per link, limits are in bytes, and the best is the one of least
# makespan; its authors take the longest stage time, which suits a staggered optimizer.
#
# Without a memory limit, warm-ups are only preferences: forwards go on while nothing better is there. That holds more
# micro-batches than ZB-H1, and buys slack: the same orders lose less when a link turns slow (tests hold the figures).


def zero_bubble(problem: Problem, bounds_s: Iterable[float]) -> Orders:
    """The order of each stage.

    Args:
        problem: one pipeline, its backwards split, and its makespan as objective.
        bounds_s: makespans that no orders beat, in s, of which one is asked for where those before are not reached; the
            search ends when one is.

    Returns:
        Operation codes of each stage.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    variants = list(_variants(problem))
    scheduler = ListScheduler(problem, runs=len(variants))
    best: Orders = []
    best_s, bound_s, bounds = float("inf"), 0.0, iter(bounds_s)
    for rules in variants:
        length_s = scheduler.run(rules)
        if length_s < best_s:
            best, best_s = scheduler.orders(), length_s
        while best_s > bound_s and (larger_s := next(bounds, None)) is not None:
            bound_s = max(bound_s, larger_s)
        if best_s <= bound_s:
            break
    return best


def _variants(problem: Problem) -> Iterator[DispatchRules]:
    room = rooms(problem)
    depth = len(room)
    unlimited = [problem.jobs] * depth
    h1 = [depth - i for i in range(depth)]
    h2 = [2 * (depth - i) - 1 for i in range(depth)]
    for wait in (0.0, 0.5, 1.0):
        for warmup in (h2, h1, [1] * depth):
            capped = [min(x, most) for x, most in zip(warmup, room, strict=True)]
            for in_flight, priority in (
                (unlimited, Priority.INPUT_FIRST),
                (capped, Priority.INPUT_FIRST),
                (unlimited, Priority.ALTERNATE),
            ):
                yield DispatchRules(capped, in_flight, [wait] * depth, unlimited, [priority] * depth)
