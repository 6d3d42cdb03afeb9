"""The checker of rests: valid ones have no problem, and every kind of broken one is found.

What is broken in one place is drawn from valid rests (tests/rests.py): a checker that finds nothing there checks
nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rtk.schemas.check import Violation
from rtk.schemas.check_rest import check_rest, check_resumption
from rtk.schemas.check_standing import check_standing
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.orders import KINDS
from rtk.schemas.plan import Plan
from rtk.schemas.resumption import (
    LedgerEntry,
    Resend,
    Rest,
    RestOperation,
    RestPrediction,
    RestWorker,
    Resumption,
    SharedLayers,
    Standing,
    Stash,
    SumCopy,
    held_messages,
    layer_runs,
    print_rest_operation,
    stashes_of,
)

from ..rests import rests
from ..strategies import BY_HAND, hand_plan, number_of

Drawn = tuple[Plan, Rest]
Change = Callable[[st.DataObject, list[RestOperation], int], None]
FEW = settings(max_examples=15, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


@settings(max_examples=30)
@given(rests())
def test_valid_rests_have_no_problem(drawn: Drawn) -> None:
    """Whatever standings are, and whoever does what is left in whatever order, a whole rest passes."""
    assert check_rest(*drawn) == []


@settings(max_examples=20)
@given(rests())
def test_rests_come_back_from_a_file_as_they_were(drawn: Drawn) -> None:
    """A document of a rest is read as it was written, and passes with its plan."""
    document = Resumption(BY_HAND, *drawn)
    document.validate()
    assert parse_document(canonical(document), Resumption, "r.json") == document
    assert check_resumption(document) == []


# What is run.


def _with_order(plan: Plan, rest: Rest, number: int, order: list[RestOperation]) -> Rest:
    worker = plan.live_workers()[number]
    stages = [(one, plan.stage_at(worker, one.operation).layers) for one in order]
    text = " ".join(print_rest_operation(one, worker.pipeline, layers) for one, layers in stages)
    return _with(rest, "workers", number, order=text)


def _with(rest: Rest, name: str, place: int, **changes: Any) -> Rest:
    """The rest with one entry of a list of its own changed."""
    entries = list(getattr(rest, name))
    entries[place] = replace(entries[place], **changes)
    changed: dict[str, Any] = {name: tuple(entries)}
    return replace(rest, **changed)


def _without(entries: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return entries[:place] + entries[place + 1 :]


def _drop(data: st.DataObject, order: list[RestOperation], place: int) -> None:
    del order[place]


def _double(data: st.DataObject, order: list[RestOperation], place: int) -> None:
    order.insert(data.draw(st.integers(0, len(order))), order[place])


def _toggle(data: st.DataObject, order: list[RestOperation], place: int) -> None:
    order[place] = order[place]._replace(accumulates=not order[place].accumulates)


def _rename(data: st.DataObject, order: list[RestOperation], place: int) -> None:
    kind = data.draw(st.sampled_from([kind for kind in KINDS if kind != order[place].kind]))
    order[place] = order[place]._replace(operation=order[place].operation._replace(kind=kind))


def _renumber(data: st.DataObject, order: list[RestOperation], place: int) -> None:
    own = order[place].operation
    microbatch = data.draw(st.integers(0, 5).filter(lambda number: number != own.microbatch))
    order[place] = order[place]._replace(operation=own._replace(microbatch=microbatch))


def _shrink(data: st.DataObject, order: list[RestOperation], place: int) -> None:
    first, stop = order[place].layers
    assume(stop > first + 1)
    order[place] = order[place]._replace(layers=data.draw(st.sampled_from([(first + 1, stop), (first, stop - 1)])))


def _reverse(data: st.DataObject, order: list[RestOperation], place: int) -> None:
    """The next operation of the same piece comes before it."""
    own = order[place]
    later = [
        n for n, one in enumerate(order) if n > place and one[1:] == own[1:] and one.operation[1:] == own.operation[1:]
    ]
    assume(bool(later))
    order[place], order[later[0]] = order[later[0]], own


@pytest.mark.parametrize("change", [_drop, _double, _toggle, _rename, _renumber, _shrink, _reverse])
@FEW
@given(rests(lambda rest: any(one.order for one in rest.workers)), st.data())
def test_another_operation_is_found(change: Change, drawn: Drawn, data: st.DataObject) -> None:
    """An operation that is dropped, doubled, of another kind, micro-batch or layer, or too early, makes a problem."""
    plan, rest = drawn
    busy = [number for number, one in enumerate(rest.workers) if one.order]
    number = data.draw(st.sampled_from(busy))
    order = list(rest.operations(number, plan))
    change(data, order, data.draw(st.integers(0, len(order) - 1)))
    assert check_rest(plan, _with_order(plan, rest, number, order)) != []


@FEW
@given(rests(), st.data())
def test_operation_of_another_worker_is_found(drawn: Drawn, data: st.DataObject) -> None:
    """What goes into the sums cannot change hands alone: its forward pass, or its stash, stays behind."""
    plan, rest = drawn
    assume(len(rest.workers) > 1)
    number = data.draw(st.integers(0, len(rest.workers) - 1))
    order = list(rest.operations(number, plan))
    places = [place for place, one in enumerate(order) if one.accumulates]
    assume(bool(places))
    moved = order.pop(data.draw(st.sampled_from(places)))
    other = data.draw(st.integers(0, len(rest.workers) - 1).filter(lambda n: n != number))
    # Where pipelines are unlike, a worker of another one may have no such stage to name.
    assume((moved.operation.stage or 0) < len(plan.template_of(plan.live_workers()[other].pipeline).stages))
    target = list(rest.operations(other, plan))
    target.insert(data.draw(st.integers(0, len(target))), moved)
    broken = _with_order(plan, _with_order(plan, rest, number, order), other, target)
    assert check_rest(plan, broken) != []


# What is sent.


@FEW
@given(rests(lambda rest: bool(rest.sends)), st.data())
def test_message_that_nobody_sends_is_found(drawn: Drawn, data: st.DataObject) -> None:
    """Without a kept message that is sent, its taker lacks it, unless it is made anew."""
    plan, rest = drawn
    place = data.draw(st.integers(0, len(rest.sends) - 1))
    send = rest.sends[place]
    made = {
        (kind, number_of(plan, one.operation), one.layers[at])
        for number in range(len(rest.workers))
        for one in rest.operations(number, plan)
        for kind, at in ((("activation", 1) if one.kind == "F" else ("gradient", 0)),)
        if one.kind != "W"
    }
    assume((send.kind, send.microbatch, send.boundary) not in made)
    problems = check_rest(plan, replace(rest, sends=_without(rest.sends, place)))
    assert f"its {send.kind} is neither kept nor made" in problems[0].message


@FEW
@given(rests(lambda rest: bool(rest.sends)), st.data())
def test_wrong_message_is_found(drawn: Drawn, data: st.DataObject) -> None:
    """A message of who has not kept it, to who has it, twice, or to nobody who waits, is a problem at its place."""
    plan, rest = drawn
    place = data.draw(st.integers(0, len(rest.sends) - 1))
    send = rest.sends[place]
    name = data.draw(st.sampled_from(["source", "target", "microbatch", "boundary", "kind", "twice"]))
    places = [one.place for one in rest.workers]
    if name == "twice":
        broken = replace(rest, sends=(*rest.sends, send))
    else:
        value: Any = {
            "source": st.sampled_from([*(p for p in places if not _has(rest, p, send)), "9/9"]),
            "target": st.sampled_from([*(p for p in places if p != send.target), "9/9"]),
            "microbatch": st.integers(0, 20).filter(lambda number: number != send.microbatch),
            "boundary": st.integers(0, 9).filter(lambda number: number != send.boundary),
            "kind": st.sampled_from([kind for kind in ("activation", "gradient") if kind != send.kind]),
        }[name]
        changes: dict[str, Any] = {name: data.draw(value)}
        changed = replace(send, **changes)
        broken = replace(rest, sends=(*rest.sends[:place], changed, *rest.sends[place + 1 :]))
    assert any(problem.path.startswith(("/sends/", "/workers/")) for problem in check_rest(plan, broken))


def _has(rest: Rest, place: str, send: Resend) -> bool:
    name = next(one.worker for one in rest.workers if one.place == place)
    standing = next(one for one in rest.standings if one.worker == name)
    return any(
        (own.kind, own.boundary) == (send.kind, send.boundary) and send.microbatch in own.microbatches
        for own in standing.messages
    )


@FEW
@given(rests(), st.data())
def test_message_in_vain_is_found(drawn: Drawn, data: st.DataObject) -> None:
    """A message that nobody needs is a problem."""
    plan, rest = drawn
    kept = [
        (worker.place, own.kind, number, own.boundary)
        for worker in rest.workers
        for standing in rest.standings
        if standing.worker == worker.worker
        for own in standing.messages
        for number in own.microbatches
    ]
    sent = {(send.kind, send.microbatch, send.boundary) for send in rest.sends}
    spare = [one for one in kept if one[1:] not in sent]
    targets = [one.place for one in rest.workers]
    assume(bool(spare) and len(targets) > 1)
    source, kind, number, boundary = data.draw(st.sampled_from(spare))
    target = data.draw(st.sampled_from([place for place in targets if place != source]))
    more = replace(rest, sends=(*rest.sends, Resend(source, target, kind, number, boundary)))
    # Who waits for the operation that makes it may take the kept one as well.
    problems = check_rest(plan, more)
    assume(problems != [])
    assert problems[0].path == f"/sends/{len(rest.sends)}"


# What everybody has.


@FEW
@given(rests(), st.data())
def test_ledger_that_lacks_a_micro_batch_is_found(drawn: Drawn, data: st.DataObject) -> None:
    """Whose gradient is nowhere, or in two parts of a sum, is named."""
    plan, rest = drawn
    entries = [
        (n, e)
        for n, standing in enumerate(rest.standings)
        for e, entry in enumerate(standing.ledger)
        if not rest.workers[n].given_up
        and set(range(*entry.layers)) & _layers(plan.layers_of(plan.live_workers()[n])) - _layers(rest.sealed)
    ]
    assume(bool(entries))
    n, e = data.draw(st.sampled_from(entries))
    standing = rest.standings[n]
    numbers = set(standing.ledger[e].microbatches)
    numbers ^= {data.draw(st.integers(0, plan.total_microbatches() - 1))}
    entry = replace(standing.ledger[e], microbatches=tuple(sorted(numbers)))
    ledger = (*standing.ledger[:e], entry, *standing.ledger[e + 1 :])
    assert check_rest(plan, _with(rest, "standings", n, ledger=ledger)) != []


def _layers(ranges: tuple[tuple[int, int], ...]) -> set[int]:
    return {layer for first, stop in ranges for layer in range(first, stop)}


@FEW
@given(rests(), st.data())
def test_wrong_seal_is_found(drawn: Drawn, data: st.DataObject) -> None:
    """The layers that are sealed are those of the standings, none less and none more."""
    plan, rest = drawn
    layer = data.draw(st.integers(0, plan.templates[0].stages[-1].layers[1] - 1))
    problems = check_rest(plan, replace(rest, sealed=layer_runs(_layers(rest.sealed) ^ {layer})))
    assert problems[0].path == "/sealed"


@FEW
@given(rests(lambda rest: bool(rest.copies)), st.data())
def test_wrong_copy_is_found(drawn: Drawn, data: st.DataObject) -> None:
    """A sum that a holder lacks must be copied once, from who has it."""
    plan, rest = drawn
    place = data.draw(st.integers(0, len(rest.copies) - 1))
    copy = rest.copies[place]
    ways: list[tuple[SumCopy, ...]] = [
        _without(rest.copies, place),
        (*rest.copies, copy),
        (*_without(rest.copies, place), replace(copy, target=copy.source)),
        (*rest.copies, replace(copy, source="9/9")),
        (*_without(rest.copies, place), replace(copy, source=copy.target, target=copy.source)),
    ]
    problems = check_rest(plan, replace(rest, copies=data.draw(st.sampled_from(ways))))
    assert problems[0].path.startswith("/copies")


@FEW
@given(rests(lambda rest: any(one.given_up for one in rest.workers)), st.data())
def test_sums_that_must_be_given_up_are_found(drawn: Drawn, data: st.DataObject) -> None:
    """Who has run I and will not run W has sums that are of no use, and says so."""
    plan, rest = drawn
    spoilt = [number for number, one in enumerate(rest.workers) if one.given_up]
    number = data.draw(st.sampled_from(spoilt))
    fewer = layer_runs(sorted(_layers(rest.workers[number].given_up))[1:])
    problems = check_rest(plan, _with(rest, "workers", number, given_up=fewer))
    assert problems[0].path == f"/workers/{number}/given_up"


@FEW
@given(rests(), st.data())
def test_sums_given_up_in_vain_are_missed(drawn: Drawn, data: st.DataObject) -> None:
    """What is given up is lost: a ledger in it, or an I whose W is to come, is a problem."""
    plan, rest = drawn
    number = data.draw(st.integers(0, len(rest.workers) - 1))
    standing, holds = rest.standings[number], plan.layers_of(plan.live_workers()[number])
    kept = {layer for entry in standing.ledger for layer in range(*entry.layers)} & _layers(holds)
    has_half = any(stash.after == "I" for stash in standing.stashes) and standing.holds == holds
    kept = _layers(holds) if has_half else kept - _layers(rest.sealed)
    assume(bool(kept) and not rest.workers[number].given_up)
    layer = data.draw(st.sampled_from(sorted(kept)))
    assert check_rest(plan, _with(rest, "workers", number, given_up=((layer, layer + 1),))) != []


@FEW
@given(rests(), st.data())
def test_stash_that_is_not_there_is_found(drawn: Drawn, data: st.DataObject) -> None:
    """Who goes on with what was under way must have it."""
    plan, rest = drawn
    used = [
        (n, s)
        for n, standing in enumerate(rest.standings)
        for s, stash in enumerate(standing.stashes)
        if standing.holds == plan.layers_of(plan.live_workers()[n])
        and any(one.accumulates and one.kind != "F" for one in rest.operations(n, plan))
        and stash.after == "I"
    ]
    assume(bool(used))
    n, s = data.draw(st.sampled_from(used))
    stashes = _without(rest.standings[n].stashes, s)
    assert check_rest(plan, _with(rest, "standings", n, stashes=stashes)) != []


TWICE, SEALED = (f"layer {layer} is in the ledger twice, or sealed" for layer in (3, 4))
STANDING = Standing(
    "a", (2, 5), True, (LedgerEntry((2, 4), (0, 3)),), ((4, 5),), ties=(SharedLayers((0, 4), is_sealed=True),)
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layers": (2, 7)}, "it holds the layers 2-7 of 6"),
        ({"layers": None}, "it holds no layers, and has something of the iteration"),
        ({"ledger": (LedgerEntry((1, 3), (0,)),)}, "there are gradients of the layers 1-3 where 2-5 are held"),
        ({"ledger": (LedgerEntry((2, 4), (0, 8)),)}, "there is no micro-batch 8, only 8"),
        ({"ledger": (LedgerEntry((2, 4), (3, 3)),)}, "the micro-batches are not ascending, each once"),
        (
            {"ledger": (LedgerEntry((2, 4), (0,)), LedgerEntry((3, 4), (1,)))},
            TWICE,
        ),
        ({"ledger": (LedgerEntry((4, 5), (0,)),)}, SEALED),
        ({"sealed": ((5, 6),)}, "the layers 5-6 are sealed where 2-5 are held"),
        ({"ledger": (), "sealed": ((3, 4), (4, 5))}, "the sealed layers are not ascending, neighbours joined"),
        ({"ties": (SharedLayers((0, 1), is_sealed=True),)}, "a sum has ended here of layers that are not held"),
        ({"ties": (SharedLayers((0,)),)}, "[0] are no layers that share parameters"),
    ],
)
def test_impossible_standing_has_its_reason(changes: dict[str, Any], reason: str) -> None:
    """What no worker can have is told in words; what one can have is no fault."""
    assert check_standing(6, 8, STANDING) is None
    assert check_standing(6, 8, replace(STANDING, **changes)) == reason


OF_RANGES = Standing(
    "a", (0, 2), True, (LedgerEntry((0, 1), (0,)),), stashes=(Stash("I", (0,), (4, 5)),), further=((4, 6),)
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"further": ((2, 6),)}, "the layers held, 0-2, 2-6, are not ascending, neighbours joined"),
        ({"further": ((4, 7),)}, "it holds the layers 0-2, 4-7 of 6"),
        ({"ledger": (LedgerEntry((1, 5), (0,)),)}, "there are gradients of the layers 1-5 where 0-2, 4-6 are held"),
        ({"sealed": ((1, 5),)}, "the layers 1-5 are sealed where 0-2, 4-6 are held"),
        ({"stashes": (Stash("F", (1,)),)}, "something is under way in other layers than a stage's"),
        ({"stashes": (Stash("F", (1,), (1, 5)),)}, "something is under way in other layers than a stage's"),
        ({"stashes": (Stash("F", (1,), (4, 6)), Stash("I", (1,), (5, 6)))}, "micro-batch 1 is under way twice"),
        ({"stashes": (Stash("I", (0,), (0, 2)),)}, "W of micro-batch 0 is done, and still to do"),
    ],
)
def test_impossible_standing_in_several_ranges_has_its_reason(changes: dict[str, Any], reason: str) -> None:
    """A micro-batch may be done in one stage and under way in another; what is said of a stage must fit with itself."""
    assert check_standing(6, 8, OF_RANGES) is None
    assert check_standing(6, 8, replace(OF_RANGES, **changes)) == reason


# By hand: stages a and b of 1 layer and 3 x 1 s, links of 0.5 s; the worker 1/1 is dead.

PLAN = replace(
    hand_plan({"0/0": "F0 B0", "0/1": "F0 B0 F1.0 B1.0", "1/0": "F0 B0", "1/1": None}, 1, delay_s=0.5, limit_bytes=1.0),
    optimizer="synchronous",
)
DONE_0 = LedgerEntry((0, 1), (0,))
BY_HAND_REST = Rest(
    iteration=3,
    standings=(
        Standing("p", (0, 1), False, (DONE_0,), messages=()),
        Standing("q", (1, 2), False, (LedgerEntry((1, 2), (0,)),)),
        Standing("s", (0, 1), False, stashes=stashes_of({1: "F"}), messages=held_messages([("activation", 1, 1)])),
    ),
    workers=(
        RestWorker("0/0", "p"),
        RestWorker("0/1", "q", "F1.0 B1.0"),
        RestWorker("1/0", "s", "B0"),
    ),
    sends=(Resend("1/0", "0/1", "activation", 1, 1),),
    # The message 0.5 s, F and B of b 3 s, the gradient 0.5 s, B of a 2 s; by the plan, b's four operations and so on.
    prediction=RestPrediction(6.0, 5.0, 0.2, 10.0),
)


TOO_HIGH = "what is left takes 6 s, less than its “lower bound” 6.1 s"


def test_rest_by_hand_is_valid() -> None:
    """What is left of two micro-batches: F and B of one at the peer of the dead worker, from a message kept."""
    assert check_rest(PLAN, BY_HAND_REST) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"makespan_s": 5.5}, ("/prediction/makespan_s", "5.5 s is predicted, the orders give 6 s")),
        ({"redo_s": 6.0}, ("/prediction/redo_s", "6 s is predicted, the orders give 10 s")),
        (
            {"lower_bound_s": 6.1, "gap": 6.0 / 6.1 - 1},
            ("/prediction/lower_bound_s", TOO_HIGH),
        ),
        ({"gap": 0.3}, ("/prediction/gap", "a gap of 0.3 is stated, it is 0.2")),
    ],
)
def test_wrong_prediction_is_found(changes: dict[str, float], problem: tuple[str, str]) -> None:
    """Each number of a prediction is what the orders give."""
    assert BY_HAND_REST.prediction is not None
    rest = replace(BY_HAND_REST, prediction=replace(BY_HAND_REST.prediction, **changes))
    assert check_rest(PLAN, rest) == [Violation(*problem)]


def test_deadlock_is_told_in_words() -> None:
    """Two workers that wait for each other's later operations are named with them."""
    rest = replace(
        BY_HAND_REST,
        standings=tuple(
            Standing(name, layers, False) for name, layers in (("p", (0, 1)), ("q", (1, 2)), ("s", (0, 1)))
        ),
        workers=(
            RestWorker("0/0", "p", "F0 B0 F1.0 B1.0"),
            RestWorker("0/1", "q", "F1.0 B1.0 F0 B0"),
            RestWorker("1/0", "s"),
        ),
        sends=(),
        prediction=None,
    )
    (problem,) = check_rest(PLAN, rest)
    assert problem.path == "/workers/0/order"
    assert problem.message == (
        "deadlock: B0.0 on worker 0/0 (operation 1) waits for B0.0 on worker 0/1 (operation 3); "
        "F1.0 on worker 0/1 (operation 0) waits for F1.0 on worker 0/0 (operation 2)"
    )


def test_too_much_memory_is_found() -> None:
    """A stash that is gone on with counts from the start, beside what is begun."""
    rest = replace(
        BY_HAND_REST,
        standings=(
            Standing("p", (0, 1), False, stashes=stashes_of({0: "F"}), messages=held_messages([("activation", 1, 0)])),
            Standing("q", (1, 2), False),
            Standing("s", (0, 1), False),
        ),
        workers=(
            RestWorker("0/0", "p", "F1.0 B0 B1.0"),
            RestWorker("0/1", "q", "F0 B0 F1.0 B1.0"),
            RestWorker("1/0", "s"),
        ),
        sends=(Resend("0/0", "0/1", "activation", 0, 1),),
        prediction=None,
    )
    assert check_rest(PLAN, rest) == [Violation("/workers/0/order", "worker 0/0 holds up to 2 B, its limit is 1 B")]


def test_what_is_run_for_nobody_is_found() -> None:
    """An operation that is run for a message which nobody waits for is a problem."""
    rest = _with(BY_HAND_REST, "workers", 0, order="F1.0~")
    problems = check_rest(PLAN, replace(rest, prediction=None))
    what = "F1.0~ on worker 0/0 (operation 0) is run for a message that nobody waits for"
    assert problems == [Violation("/workers/0/order", what)]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"workers": BY_HAND_REST.workers[:2]}, ("/workers", "the workers are not those that live in the plan")),
        ({"standings": BY_HAND_REST.standings[:2]}, ("/workers/2/worker", "worker s has no standing")),
        (
            {"standings": (*BY_HAND_REST.standings, BY_HAND_REST.standings[0])},
            ("/standings", "worker p has 2 standings"),
        ),
    ],
)
def test_people_of_another_plan_are_found(changes: dict[str, Any], problem: tuple[str, str]) -> None:
    """Every live place has a worker, and every worker one standing."""
    assert check_rest(PLAN, replace(BY_HAND_REST, **changes)) == [Violation(*problem)]


@pytest.mark.parametrize(
    ("order", "what"),
    [
        ("F2.0", "F2.0 on worker 0/0 (operation 0) is of no micro-batch"),
        ("F0:0-2", "F0.0:0-2 on worker 0/0 (operation 0) is of layers that are not held there: 0-1 are"),
        ("G0", "'G0' is not an operation of what is left"),
    ],
)
def test_foreign_operations_are_found(order: str, what: str) -> None:
    """Operations of what there is not are named."""
    assert check_rest(PLAN, _with(BY_HAND_REST, "workers", 0, order=order)) == [Violation("/workers/0/order", what)]
