"""Traces of single ranks: what happens to each process, and what that means for whole workers."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.rank_trace import by_rank, by_worker, spare_ranks, whole_newcomers
from rtk.schemas.trace import EventKind, Trace, TraceEvent, check_trace, joins

from ..strategies import hand_plan

KINDS: list[EventKind] = ["fail", "stop", "join", "slow_compute", "recover"]
LOST = {"kind": "fail", "iteration": 1}
Rank = tuple[str, int]


def plan_of(ranks: int) -> Plan:
    """Two pipelines of one stage on so many GPUs; of the second one the worker is dead where there are three."""
    made = hand_plan({"0/0": "F0 B0", "1/0": "F0 B0", "2/0": None}, 1)
    (template,) = made.templates
    stages = tuple(replace(stage, tensor_parallel=ranks) for stage in template.stages)
    return replace(made, templates=(replace(template, stages=stages),))


def is_valid(plan: Plan, events: list[TraceEvent]) -> bool:
    """Whether a trace of these can happen."""
    try:
        check_trace(plan, Trace(tuple(events)))
    except InvalidInputError:
        return False
    return True


@st.composite
def rank_traces(draw: st.DrawFn, ranks: int) -> Trace:
    """Events that can happen to workers of so many ranks, and to single ranks of them."""
    plan, events = plan_of(ranks), list[TraceEvent]()
    for iteration in sorted(draw(st.lists(st.integers(0, 9), max_size=12))):
        kind = draw(st.sampled_from(KINDS))
        event = TraceEvent(
            kind,
            iteration=iteration,
            worker=draw(st.sampled_from(["0/0", "1/0", "2/0"])),
            factor=draw(st.sampled_from([1.5, 2.0])) if kind == "slow_compute" else None,
            gpu=draw(st.none() | st.integers(0, ranks - 1)) if ranks > 1 else None,
        )
        if is_valid(plan, [*events, event]):
            events.append(event)
    return Trace(tuple(events))


def missing_after(plan: Plan, trace: Trace) -> list[set[Rank]]:
    """Which ranks are gone after each event, by a rule of its own."""
    ranks = {worker.name: plan.gpus_of(worker) for worker in plan.workers}
    gone = {(worker.name, rank) for worker in plan.workers if worker.failed for rank in range(ranks[worker.name])}
    found, stopped = [], set[Rank]()
    for event in trace.events:
        assert event.worker is not None
        whom = {(event.worker, rank) for rank in range(ranks[event.worker]) if event.gpu in (None, rank)}
        if event.kind in ("fail", "stop"):
            stopped |= whom - gone if event.kind == "stop" else set()
            gone |= whom
        elif event.kind == "join":
            gone -= whom
            stopped -= whom
        elif event.kind == "recover":
            gone -= whom & stopped
            stopped -= whom
        found.append(set(gone))
    return found


@given(st.data(), st.integers(2, 3))
def test_a_worker_is_away_while_a_rank_is(data: st.DataObject, ranks: int) -> None:
    """Seen from outside a worker is lost with its first rank and back with the last, and that can happen."""
    plan = plan_of(ranks)
    trace = data.draw(rank_traces(ranks))
    seen = by_worker(plan, trace)
    assert all(event.gpu is None for event in seen.events)
    away = {worker.name for worker in plan.workers if worker.failed}
    changes = []
    for gone in missing_after(plan, trace):
        now = {worker for worker, _ in gone}
        changes += [("gone", worker) for worker in sorted(now - away)] + [
            ("back", worker) for worker in sorted(away - now)
        ]
        away = now
    told: list[tuple[str, str]] = []
    out = {worker.name for worker in plan.workers if worker.failed}
    for event in seen.events:
        name = event.worker or ""
        if event.kind in ("fail", "stop"):
            told.append(("gone", name))
            out.add(name)
        elif event.kind == "join" or (event.kind == "recover" and name in out):
            told.append(("back", name))
            out.discard(name)
    for worker in ("0/0", "1/0", "2/0"):
        assert sorted(one for one in told if one[1] == worker) == sorted(one for one in changes if one[1] == worker)


@given(st.data())
def test_workers_of_one_gpu_are_as_ever(data: st.DataObject) -> None:
    """Their traces stay as they are, by rank and by worker, and every join is a whole worker's."""
    plan, trace = plan_of(1), data.draw(rank_traces(1))
    assert by_rank(plan, trace) == by_worker(plan, trace) == trace
    assert (whole_newcomers(plan, trace), spare_ranks(plan, trace)) == (joins(trace), 0)


@given(st.data(), st.integers(2, 3))
def test_every_event_finds_its_ranks(data: st.DataObject, ranks: int) -> None:
    """By rank a trace names each rank, can happen, and leaves the same ranks missing."""
    plan, trace = plan_of(ranks), data.draw(rank_traces(ranks))
    spread = by_rank(plan, trace)
    assert all(event.gpu is not None for event in spread.events)
    assert is_valid(plan, list(spread.events))
    assert by_rank(plan, spread) == spread
    assert missing_after(plan, spread)[-1:] == missing_after(plan, trace)[-1:]


def test_a_worker_all_of_whose_ranks_were_stopped_recovers() -> None:
    """It goes on, as one of a single rank does, and nobody joins."""
    events = (TraceEvent("stop", iteration=1, worker="0/0"), TraceEvent("recover", iteration=3, worker="0/0"))
    assert by_worker(plan_of(2), Trace(events)).events == events


def test_newcomers_are_counted_by_their_own_worker_s_ranks() -> None:
    """One worker is on two GPUs, another one on one: two processes of the one are new, and one of them once more."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0"}, 1)
    first, second = plan.templates[0].stages
    unlike = replace(plan.templates[0], stages=(replace(first, tensor_parallel=2), second))
    whom: list[tuple[str, int | None]] = [("0/0", None), ("0/1", None), ("0/0", 1)]
    kinds: list[EventKind] = ["fail", "join"]
    events = [(kind, worker, gpu) for worker, gpu in whom for kind in kinds]
    trace = Trace(
        tuple(TraceEvent(kind, iteration=n, worker=who, gpu=gpu) for n, (kind, who, gpu) in enumerate(events))
    )
    unlike_plan = replace(plan, templates=(unlike,))
    assert (whole_newcomers(unlike_plan, trace), spare_ranks(unlike_plan, trace)) == (2, 3)


def test_a_slow_rank_makes_its_worker_slow() -> None:
    """The slowest counts, until it is itself again or is replaced."""

    def at(iteration: int, kind: EventKind, gpu: int, factor: float | None = None) -> TraceEvent:
        return TraceEvent(kind, iteration=iteration, worker="0/0", gpu=gpu, factor=factor)

    trace = Trace((at(1, "slow_compute", 0, 2.0), at(2, "slow_compute", 1, 1.5), at(3, "recover", 0), at(4, "fail", 1),
                   at(4, "join", 1)))  # fmt: skip
    told = [(event.iteration, event.kind, event.factor) for event in by_worker(plan_of(2), trace).events]
    assert told == [(1, "slow_compute", 2.0), (3, "slow_compute", 1.5), (4, "fail", None), (5, "join", None)]


@pytest.mark.parametrize(
    ("ranks", "events", "what", "where"),
    [
        (1, [{"kind": "fail", "gpu": 0, "iteration": 1}], None, None),
        (1, [{"kind": "fail", "gpu": 1, "iteration": 1}], "worker 0/0 is on one GPU", "/events/0/gpu"),
        (2, [{"kind": "fail", "gpu": 2, "iteration": 1}], "worker 0/0 is on 2 GPUs, from 0 on", "/events/0/gpu"),
        (2, [{"kind": "join", "gpu": 1, "iteration": 1}], "worker 0/0:1 lives, nobody can join", "/events/0"),
        (2, [{"kind": "fail", "gpu": 1, "iteration": 1}] * 2, "worker 0/0:1 is gone by then", "/events/1"),
        (2, [LOST, {"kind": "stop", "gpu": 1, "iteration": 2}], "0/0:1 is gone", "/events/1"),
        (2, [LOST, {"kind": "join", "iteration": 1}], "in the midst of", "/events/1/iteration"),
        (2, [{"kind": "fail", "gpu": 1, "iteration": 1}, {"kind": "join", "gpu": 1, "iteration": 1}], None, None),
        (2, [{"kind": "fail", "gpu": 1, "iteration": 1}, {"kind": "fail", "iteration": 2}], None, None),
    ],
)  # fmt: skip
def test_what_cannot_happen_to_a_rank_is_refused(
    ranks: int, events: list[dict[str, Any]], what: str | None, where: str | None
) -> None:
    """Ranks that there are not, that live or are gone; one that stands by may take over at once."""
    trace = Trace(tuple(TraceEvent(worker="0/0", **event) for event in events))
    trace.validate()
    if what is None:
        check_trace(plan_of(ranks), trace)
        return
    with pytest.raises(InvalidInputError, match=what) as caught:
        check_trace(plan_of(ranks), trace)
    assert (caught.value.where, bool(caught.value.fix)) == (where, True)
