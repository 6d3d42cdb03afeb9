"""All orders of tiny plans, one by one, for what must hold in each."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

from hypothesis import strategies as st

from rtk.planners.scheduling.evaluate import OrderEvaluation, evaluate
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan, Template

from ..strategies import hand_plan, templates

ROUNDING = 1e-9
# Stages, micro-batches, and whether the backward is split; those with at most some thousand orders.
SHAPES = [
    *((1, 1, True), (1, 3, False), (1, 3, True), (1, 4, False)),
    *((2, 1, True), (2, 2, False), (2, 2, True), (2, 3, False), (3, 2, False)),
]


@st.composite
def limited_pipelines(draw: st.DrawFn, most: int = 3) -> Plan:
    """One pipeline with random costs, slow-downs and limits; its orders are any. Larger `most`: more micro-batches."""
    depth, microbatches, split = draw(st.sampled_from(SHAPES))
    if most > 3:
        microbatches = draw(st.integers(1, most))
    order = any_order([(0, j) for j in range(microbatches)], split)
    plan = hand_plan({f"0/{i}": order for i in range(depth)}, microbatches)
    plan = replace(plan, templates=(draw(limited_templates(depth, microbatches)),))
    slow = st.sampled_from([None, 1.5, 3.0])
    return replace(plan, workers=tuple(replace(worker, slowdown=draw(slow)) for worker in plan.workers))


@st.composite
def limited_templates(draw: st.DrawFn, depth: int, microbatches: int) -> Template:
    """A template with limits that some number of micro-batches, whole and stashed, just meets; or with none."""
    template = draw(templates(depth))
    counts = st.one_of(st.none(), st.tuples(st.integers(1, microbatches), st.integers(0, microbatches)))
    limits = [
        None if some is None else some[0] * stage.activation_bytes + some[1] * stage.weight_stash_bytes
        for stage, some in zip(template.stages, (draw(counts) for _ in range(depth)), strict=True)
    ]
    stages = (replace(s, memory_limit_bytes=limit) for s, limit in zip(template.stages, limits, strict=True))
    return replace(template, stages=tuple(stages))


def any_order(microbatches: Sequence[tuple[int, int]], split: bool | Sequence[bool]) -> str:
    """The operations of micro-batches (pipeline, number), one after the other; `split`: of all, or of each."""
    apart = [split] * len(microbatches) if isinstance(split, bool) else split
    return " ".join(
        f"{kind}{k}.{j}" if k else f"{kind}{j}"
        for (k, j), own in zip(microbatches, apart, strict=True)
        for kind in ("FIW" if own else "FB")
    )


def all_orders(plan: Plan) -> Iterator[OrderEvaluation]:
    """Every plan with the same operations on the same workers that keeps its limits and does not deadlock.

    There must be one. If the first worker's micro-batches are alike everywhere, they come in one order there.
    """
    choices: list[list[str | None]] = []
    for number, worker in enumerate(plan.workers):
        tokens = (worker.order or "").split()
        forwards = [token for token in tokens if token[0] == "F"]
        chains = tuple(tuple(token for token in tokens if token[1:] == forward[1:]) for forward in forwards)
        orders = list(_interleavings(chains))
        if number == 0 and len({_pattern(plan, forward[1:]) for forward in forwards}) == 1:
            orders = [order for order in orders if [token for token in order if token[0] == "F"] == forwards]
        kept = (order for order in orders if _keeps_limit(plan, number, order))
        choices.append([None] if worker.failed else [" ".join(order) for order in kept])
    some = False
    for chosen in product(*choices):
        other = replace(plan, workers=tuple(replace(w, order=o) for w, o in zip(plan.workers, chosen, strict=True)))
        try:
            found = evaluate(other)
        except InvalidInputError:
            continue
        some = True
        yield found
    assert some


def _pattern(plan: Plan, microbatch: str) -> tuple[str, ...]:
    """What each worker executes of a micro-batch."""
    orders = [(worker.order or "").split() for worker in plan.workers]
    return tuple("".join(token[0] for token in order if token[1:] == microbatch) for order in orders)


def _keeps_limit(plan: Plan, number: int, order: tuple[str, ...]) -> bool:
    """Whether a worker's memory stays within its limit, counted as the checker does."""
    stage = plan.stage_of(plan.workers[number])
    whole = stashed = 0
    most = 0.0
    for token in order:
        whole += {"F": 1, "I": -1, "B": -1, "W": 0}[token[0]]
        stashed += {"F": 0, "I": 1, "B": 0, "W": -1}[token[0]]
        most = max(most, whole * stage.activation_bytes + stashed * stage.weight_stash_bytes)
    return stage.memory_limit_bytes is None or most <= stage.memory_limit_bytes * (1 + ROUNDING)


@cache
def _interleavings(chains: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    if not any(chains):
        return ((),)
    found: list[tuple[str, ...]] = []
    for place, chain in enumerate(chains):
        if chain:
            rest = (*chains[:place], chain[1:], *chains[place + 1 :])
            found += ((chain[0], *order) for order in _interleavings(rest))
    return tuple(found)
