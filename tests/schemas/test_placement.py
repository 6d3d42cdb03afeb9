"""Plans with placements: valid ones have no problem, all readings agree, and broken ones are named at their place."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling.assemble import with_prediction
from rtk.planners.scheduling.evaluate import evaluate
from rtk.schemas.check import check_plan, check_timeline, deadlock_free_times
from rtk.schemas.conditions import PlanConditions
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.orders import KINDS, Operation, print_order
from rtk.schemas.placement import linked_columns
from rtk.schemas.plan import Plan, Stage, Template
from rtk.schemas.resumption import LedgerEntry, Rest, RestWorker, Resumption, nothing_of, parse_rest_order
from rtk.schemas.timeline import Span, Timeline

from ..placed_plans import any_placed_plans, folded, looped, placed_plans
from ..strategies import hand_plan, limited

Tree = dict[str, Any]
V = folded(2, 2)
WHOLE: dict[str, str | None] = {"0/0": "0F0 3F0 3I0 3W0 0I0 0W0", "0/1": "1F0 2F0 2B0 1B0"}
PEERS: dict[str, str | None] = {"1/0": "0F0 3F0 3B0 0B0", "1/1": "1F0 2F0 2B0 1B0"}


def _v() -> Plan:
    """A V of two workers and four virtual stages, two pipelines of a micro-batch each."""
    return with_prediction(hand_plan({**WHOLE, **PEERS}, 1, delay_s=0.25, limit_bytes=2.0, placement=V), 8.0)


@settings(max_examples=30)
@given(any_placed_plans())
def test_valid_plans_have_no_problem(plan: Plan) -> None:
    """Random valid plans, whatever their placement, routing by chunk, split, delays and slow-downs, pass."""
    plan.validate()
    assert plan.prediction is not None
    assert check_plan(plan) == []


@settings(max_examples=30)
@given(any_placed_plans())
def test_evaluator_and_checker_agree(plan: Plan) -> None:
    """Starts and ends of all operations are equal to the last bit, and a timeline of them keeps the plan."""
    evaluation = evaluate(plan)
    rows = [timed for row in evaluation.operations for timed in row]
    start_s, end_s = deadlock_free_times(plan)
    assert [timed.start_s for timed in rows] == start_s.tolist()
    assert [timed.end_s for timed in rows] == end_s.tolist()
    tokens = [token for worker in plan.workers for token in (worker.order or "").split()]
    spans = [
        Span(plan.workers[timed.worker].name, token, timed.start_s, timed.end_s, 0)
        for timed, token in zip(rows, tokens, strict=True)
    ]
    assert check_timeline(plan, Timeline(source="simulated", spans=tuple(spans))) == []


@settings(max_examples=40)
@given(any_placed_plans())
def test_files_are_read_back(plan: Plan) -> None:
    """A plan with a placement is a document of version 2.0, and its bytes are the plan."""
    data = canonical(plan)
    assert json.loads(data)["format_version"] == "2.0"
    assert parse_document(data, Plan, "p.json") == plan
    assert canonical(parse_document(data, Plan, "p.json")) == data


@given(any_placed_plans())
def test_critical_path_spans_the_schedule(plan: Plan) -> None:
    """It begins at 0 and ends as sums begin, and each step waits for the one before, through however many workers."""
    evaluation = evaluate(plan)
    path = evaluation.critical_path()
    assert path[0].start_s == 0
    window = evaluation.decided_by(path)
    assert path[-1].end_s == pytest.approx(window.end_s, rel=1e-9)
    assert all(earlier.end_s <= later.start_s * (1 + 1e-9) for earlier, later in pairwise(path))
    lasts_s = window.length_s if plan.optimizer == "staggered" else window.reduced_s
    step_s = max(one.optimizer_s for one in evaluation.windows.values())
    whole_s = lasts_s if plan.optimizer == "staggered" else lasts_s + step_s
    assert whole_s == pytest.approx(evaluation.iteration_time_s, rel=1e-9)


@given(any_placed_plans())
def test_columns_are_linked_where_a_hop_is_between_them(plan: Plan) -> None:
    """By the placement alone as by the template that has it: what is slow elsewhere is not felt."""
    for k in range(len(plan.pipelines)):
        template = plan.template_of(k)
        pairs = list(combinations(range(len(template.columns)), 2))
        linked = [pair for pair in pairs if template.link_between(*pair) is not None]
        assert linked_columns(template.columns) == set(linked)
        slow = PlanConditions(links_s=tuple((((k, i), (k, j)), 1.0) for i, j in pairs))
        assert [pair for pair, _ in slow.felt(template.columns).links_s] == [((k, i), (k, j)) for i, j in linked]


def test_a_worker_holds_the_sum_of_its_seats() -> None:
    """Thirds of an activation are counted and multiplied, so a limit of a whole one is kept by three of them."""
    plan = hand_plan({"0/0": "0F0 1F0 2F0 2B0 1B0 0B0"}, 1, limit_bytes=1.0, placement=((0, 1, 2),))
    thirds = tuple(replace(one, activation_bytes=1 / 3, weight_stash_bytes=0.0) for one in plan.templates[0].stages)
    plan = replace(plan, templates=(replace(plan.templates[0], stages=thirds),))
    assert check_plan(plan) == []
    assert evaluate(plan).peak_memory_bytes == (1.0,)
    less = replace(plan, templates=(replace(plan.templates[0], memory_limits_bytes=(0.9,)),))
    (problem,) = check_plan(less)
    assert problem.path == "/workers/0/order"
    assert "its limit is" in problem.message


def test_sums_begin_with_the_last_layers_of_all_ranges() -> None:
    """A worker of a V sums its last chunk first, then, when its other peers are there, its first one; both readings."""
    plan = _v()
    stages = tuple(
        replace(stage, allreduce_s=reduce_s, optimizer_s=1.0)
        for stage, reduce_s in zip(plan.templates[0].stages, (1.0, 2.0, 4.0, 8.0), strict=True)
    )
    plan = replace(plan, templates=(replace(plan.templates[0], stages=stages),), prediction=None)
    found = evaluate(plan)
    (w0, w1), (w2, w3) = (found.operations[n : n + 2] for n in (0, 2))
    outer, inner = found.windows[(0, 1), (3, 4)], found.windows[(1, 3),]
    assert outer.begun_s == max(w0[-1].end_s, w2[-1].end_s) + 8
    assert inner.begun_s == max(w1[-1].end_s, w3[-1].end_s) + 4
    assert (outer.sum_s, inner.sum_s, outer.optimizer_s) == (1, 2, 2)
    assert found.makespan_s == max(outer.reduced_s, inner.reduced_s) + 2
    assert check_plan(with_prediction(plan)) == []


def test_chunks_of_a_micro_batch_may_go_to_different_peers() -> None:
    """Chunk 0 of a dead worker goes to one peer and chunk 3 to another."""
    orders: dict[str, str | None] = {"0/0": None, "0/1": WHOLE["0/1"]}
    orders |= {"1/0": "0F0 0F0.0 3F0 3B0 0B0.0 0B0", "1/1": PEERS["1/1"]}
    orders |= {"2/0": "0F0 3F0 3F0.0 3B0.0 3B0 0B0", "2/1": PEERS["1/1"]}
    assert check_plan(with_prediction(hand_plan(orders, 1, placement=V))) == []


def _tree(change: Callable[[Tree], None]) -> bytes:
    tree = json.loads(canonical(_v()))
    change(tree)
    return json.dumps(tree).encode()


def _template(**values: Any) -> Callable[[Tree], None]:
    return lambda tree: tree["templates"][0].update(values)


def _delays(*delays_s: float) -> Callable[[Tree], None]:
    return _template(links=[{"delay_s": delay_s} for delay_s in delays_s])


def _order(text: str) -> Callable[[Tree], None]:
    return lambda tree: tree["workers"][0].update(order=text)


def _plain(tree: Tree) -> None:
    tree["templates"][0].update(placement=[[0], [1], [2], [3]], memory_limits_bytes=None)


def _three_columns(tree: Tree) -> None:
    tree["templates"][0].update(placement=[[0], [1, 2], [3]], memory_limits_bytes=None)


def _stage_limit(tree: Tree) -> None:
    tree["templates"][0]["stages"][1]["memory_limit_bytes"] = 5


def _own_links(tree: Tree) -> None:
    tree["pipelines"][0]["links"] = [{"delay_s": 1.0}, {"delay_s": 0.0}, {"delay_s": 2.0}]


PLACEMENT = "/templates/0/placement"
BAD: dict[str, tuple[Callable[[Tree], None], str, str]] = {
    "stage missed": (_template(placement=[[0, 3], [1]]), "stage 2 is at no column", PLACEMENT),
    "stage doubled": (_template(placement=[[0, 3], [1, 2, 3]]), "stage 3 is there twice", PLACEMENT),
    "empty column": (_template(placement=[[0, 1, 2, 3], []]), "the column is empty", f"{PLACEMENT}/1"),
    "no columns": (_template(placement=[]), "stage 0 is at no column", PLACEMENT),
    "descending": (_template(placement=[[3, 0], [1, 2]]), "holds [3, 0] of 4 virtual stages", f"{PLACEMENT}/0"),
    "twice in a column": (_template(placement=[[0, 0, 3], [1, 2]]), "holds [0, 0, 3]", f"{PLACEMENT}/0"),
    "beyond the stages": (_template(placement=[[0, 3], [1, 2, 4]]), "holds [1, 2, 4] of 4", f"{PLACEMENT}/1"),
    "negative": (_template(placement=[[-1, 3], [1, 2]]), "greater than or equal to 0", f"{PLACEMENT}/0/0"),
    "no number": (_template(placement=[["0", 3], [1, 2]]), "valid integer", f"{PLACEMENT}/0/0"),
    "more columns than stages": (_template(placement=[[0], [1], [2], [3], [0]]), "5 columns for 4 stages", PLACEMENT),
    "another length than workers": (_three_columns, "worker 0/2 must stand here", "/workers/2"),
    "plain": (_plain, "which needs no placement", PLACEMENT),
    "in 1.0": (lambda tree: tree.update(format_version="1.0"), "version 1.0 does not know", "/format_version"),
    "in 1.3": (lambda tree: tree.update(format_version="1.3"), "version 1.3 does not know", "/format_version"),
    "4.0": (lambda tree: tree.update(format_version="4.0"), "version 4.0 is not known here", "/format_version"),
    "limit at a stage": (_stage_limit, "a stage has a limit", "/templates/0/stages/1/memory_limit_bytes"),
    "limits of wrong length": (_template(memory_limits_bytes=[1]), "1 limits for 2 columns", "memory_limits_bytes"),
    "links between columns": (_delays(0.25), "1 links for 4 stages", "/templates/0/links"),
    "link in a column": (_delays(0.25, 1.0, 0.25), "stages 1 and 2 are at one column", "/templates/0/links/1/delay_s"),
    "unlike delays": (_delays(0.25, 0.0, 0.5), "between the same columns, 0 and 1", "/templates/0/links/2/delay_s"),
    "unlike delays of a pipeline": (_own_links, "between the same columns", "/pipelines/0/links/2/delay_s"),
    "no prefix": (_order("0F0 F0"), "'F0' does not say of which virtual stage it is", "/workers/0/order"),
    "not held": (_order("1F0"), "'1F0' is of a virtual stage that the worker does not hold", "/workers/0/order"),
    "leading zero": (_order("03F0"), "'03F0' is not an operation", "/workers/0/order"),
    "space inside": (_order("3 F0"), "'3' is not an operation", "/workers/0/order"),
    "no micro-batch": (_order("3F"), "'3F' is not an operation", "/workers/0/order"),
    "no micro-batch behind a dot": (_order("3F1."), "'3F1.' is not an operation", "/workers/0/order"),
    "lower case": (_order("3f0"), "'3f0' is not an operation", "/workers/0/order"),
    "pair": (_order("(0F0;3B0)OVERLAP_F_B"), "is not an operation", "/workers/0/order"),
    "ten digits": (_order("1000000000F0"), "is not an operation", "/workers/0/order"),
    "unknown key": (_template(colour="red"), "colour", "/templates/0/colour"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_at_their_place(name: str) -> None:
    """What contradicts the placement is one error with its JSON pointer and a way out."""
    change, what, where = BAD[name]
    with pytest.raises(InvalidInputError) as caught:
        parse_document(_tree(change), Plan, "p.json")
    assert what in str(caught.value)
    assert where in (caught.value.where or "")


def test_prefix_on_a_worker_of_one_stage_is_refused() -> None:
    """Where a column holds one virtual stage, also beside others that hold several, tokens have no prefix."""
    plan = hand_plan({"0/0": "0F0 2F0 2B0 0B0", "0/1": "F0 B0"}, 1, placement=((0, 2), (1,)))
    plan.validate()
    assert check_plan(plan) == []
    workers = (plan.workers[0], replace(plan.workers[1], order="1F0 1B0"))
    with pytest.raises(InvalidInputError, match="the worker holds one only"):
        replace(plan, workers=workers).validate()


def test_version_2_without_placement_is_written_back_as_1() -> None:
    """Who says 2.0 without need is understood; the writer takes the lowest version."""
    plain = with_prediction(hand_plan({"0/0": "F0 B0"}, 1))
    tree = json.loads(canonical(plain)) | {"format_version": "2.0"}
    assert canonical(parse_document(json.dumps(tree).encode(), Plan, "p.json")) == canonical(plain)


def test_later_2_x_ignores_unknown_keys_with_a_warning() -> None:
    """A key that version 2.1 may have is ignored, and said."""
    tree = json.loads(canonical(_v())) | {"format_version": "2.1"}
    tree["templates"][0]["colour"] = "red"
    with pytest.warns(UserWarning, match="colour"):
        assert parse_document(json.dumps(tree).encode(), Plan, "p.json") == _v()


def test_limits_of_columns_need_a_placement() -> None:
    """Without one they stand at the stages."""
    template = Template("t0", (Stage((0, 1), 1.0, 1.0, 1.0),), (), None, (1.0,))
    plan = replace(hand_plan({"0/0": "F0 B0"}, 1), templates=(template,))
    with pytest.raises(InvalidInputError, match="without a placement"):
        plan.validate()


def test_a_rest_with_a_placement_is_no_file_of_before() -> None:
    """Its format version is 2.0, also where only who is left held several stages; a file that says 1.0 is refused."""
    plan = _v()
    rest = Rest(0, (nothing_of("a", ((0, 1), (3, 4))),), (RestWorker("0/0", "a", "0F0 3F0:3-4~"),))
    written = canonical(Resumption(plan.planner, plan, rest))
    assert b'"format_version": "2.0"' in written
    with pytest.raises(InvalidInputError, match="has a placement"):
        parse_document(written.replace(b'"2.0"', b'"1.0"'), Resumption, "r.json")
    plain = hand_plan({"0/0": "F0 B0"}, 1)
    assert not Resumption(plain.planner, plain, replace(rest, standings=(nothing_of("a", ((0, 1),)),))).is_placed
    assert Resumption(plain.planner, plain, rest).is_placed


def test_passes_that_stay_done_are_counted_by_stages() -> None:
    """Who holds both stages at the turn of a V has one range of layers, in which a micro-batch has passed twice each
    way."""
    plan = _v()
    live = plan.live_workers()
    standings = tuple(nothing_of(worker.name, plan.layers_of(worker)) for worker in live)
    turn = [worker.name for worker in live].index("0/1")
    done = replace(standings[turn], ledger=(LedgerEntry((1, 3), (0,)),))
    standings = (*standings[:turn], done, *standings[turn + 1 :])
    rest = Rest(0, standings, tuple(RestWorker(worker.name, worker.name) for worker in live))
    assert rest.kept(turn, plan) == {0: ((1, 2), (2, 3))}
    assert rest.passes_kept(plan) == 4


@pytest.mark.parametrize("order", ["F0", "1F0", "0F0:1", "0F00", "0f0"])
def test_operations_of_a_rest_name_a_stage_that_is_held(order: str) -> None:
    """As in orders: who holds several virtual stages says which one it is, of those."""
    with pytest.raises(InvalidInputError, match="not an operation of what is left") as caught:
        parse_rest_order(order, 0, {0: (0, 1), 3: (3, 4)})
    assert "0F1.3 (the virtual stages here are 0, 3)" in (caught.value.fix or "")


# What the checker says of orders; each is a message, and the place.


def _problems(orders: dict[str, str | None], placement: Any = V, microbatches: int = 1) -> list[tuple[str, str]]:
    plan = hand_plan(orders, microbatches, placement=placement)
    plan.validate()
    return [(problem.path, problem.message) for problem in check_plan(plan)]


@pytest.mark.parametrize(
    ("orders", "path", "what"),
    [
        ({"0/0": "0F0 3F0 3B0 0B0 0B0"}, 0, "micro-batch 0.0 at virtual stage 0 has 1 F, 2 B"),
        ({"0/0": "0F0 3F0 0B0"}, 0, "micro-batch 0.0 at virtual stage 3 has 1 F; it needs"),
        ({"0/0": "0F0 3F0 3I0 0B0"}, 0, "virtual stage 3 has 1 F, 1 I"),
        ({"0/0": "0F0 3F0 3B0 3W0 0B0"}, 0, "virtual stage 3 has 1 F, 1 W, 1 B"),
        (
            {"0/0": "0F0 3B0 3F0 0B0"},
            0,
            "B of micro-batch 0.0 at virtual stage 3 on worker 0/0 (operation 1) comes before",
        ),
        (
            {"0/0": "0F0 3F0 3W0 3I0 0B0"},
            0,
            "W of micro-batch 0.0 at virtual stage 3 on worker 0/0 (operation 2) comes",
        ),
        (
            {"0/0": "3F0 0F0 3B0 0B0"},
            0,
            "F of micro-batch 0.0 at virtual stage 3 on worker 0/0 (operation 0) comes before F",
        ),
        (
            {"0/0": "0F0 3F0 0B0 3B0"},
            0,
            "B of micro-batch 0.0 at virtual stage 0 on worker 0/0 (operation 2) comes before B",
        ),
        ({"0/0": "0F0 3F0 3B0 0B0 3F7 3B7"}, 0, "is foreign"),
    ],
)
def test_broken_orders_are_named(orders: dict[str, str | None], path: int, what: str) -> None:
    """Too many, too few, and what comes before what it needs, of one seat or of two of a worker."""
    (found, message), *_ = _problems({**WHOLE, **orders})
    assert found == f"/workers/{path}/order"
    assert what in message


def test_a_seat_stays_on_one_worker() -> None:
    """F and B of a seat on two peers are named, both."""
    orders = {**WHOLE, **PEERS, "0/0": "0F0 3F0 0B0", "1/0": "0F0 3F0 3B0 3B0.0 0B0"}
    ((path, message),) = _problems(orders)
    assert path == "/workers/2/order"
    assert "B of micro-batch 0.0 at virtual stage 3 on worker 1/0" in message
    assert "one worker must run both" in message


def test_a_peer_of_another_placement_is_none() -> None:
    """A V and a loop of the same cut share no micro-batches, though column 0 of both holds virtual stage 0."""
    plan = hand_plan({**WHOLE, **PEERS}, 1, placement=V)
    loop = replace(plan.templates[0], name="t1", placement=looped(2, 2))
    workers = (
        replace(plan.workers[0], order="3F0 3B0"),
        plan.workers[1],
        replace(plan.workers[2], order="0F0.0 0F0 2F0 2B0 0B0 0B0.0"),
        replace(plan.workers[3], order="1F0 3F0 3B0 1B0"),
    )
    pipelines = (plan.pipelines[0], replace(plan.pipelines[1], template="t1"))
    mixed = replace(plan, templates=(plan.templates[0], loop), pipelines=pipelines, workers=workers)
    mixed.validate()
    problems = check_plan(mixed)
    assert {problem.path for problem in problems} == {"/workers/2/order"}
    assert "is foreign" in problems[0].message


def test_a_deadlock_of_a_worker_and_another_is_a_ring() -> None:
    """Worker 0/0 waits for virtual stage 2 of micro-batch 0, and 0/1, ahead of that, for stage 0 of micro-batch 1."""
    orders: dict[str, str | None] = {
        "0/0": "0F0 3F0 3B0 0B0 0F1 3F1 3B1 0B1",
        "0/1": "1F1 2F1 1F0 2F0 2B0 1B0 2B1 1B1",
    }
    ((path, message),) = _problems(orders, microbatches=2)
    assert path == "/workers/0/order"
    assert message == (
        "deadlock: F of micro-batch 0.0 at virtual stage 3 on worker 0/0 (operation 1) waits for "
        "F of micro-batch 0.0 at virtual stage 2 on worker 0/1 (operation 3); "
        "F of micro-batch 0.1 at virtual stage 1 on worker 0/1 (operation 0) waits for "
        "F of micro-batch 0.1 at virtual stage 0 on worker 0/0 (operation 4)"
    )


@settings(max_examples=40)
@given(placed_plans(max_dp=2, max_microbatches=3), st.data())
def test_any_broken_order_is_found(plan: Plan, data: st.DataObject) -> None:
    """An operation that is dropped, doubled, or moved to another seat of its worker is a problem of that order."""
    busy = [number for number, worker in enumerate(plan.workers) if worker.order]
    number = data.draw(st.sampled_from(busy))
    worker = plan.workers[number]
    operations = list(worker.operations())
    place = data.draw(st.integers(0, len(operations) - 1))
    how = data.draw(st.sampled_from(["dropped", "doubled", "reseated", "rekinded"]))
    one = operations.pop(place)
    if how == "doubled":
        operations[place:place] = [one, one]
    if how == "reseated":
        seats = plan.seats_of(worker)
        assume(len(seats) > 1)
        operations.insert(place, one._replace(stage=data.draw(st.sampled_from([v for v in seats if v != one.stage]))))
    if how == "rekinded":
        kind = data.draw(st.sampled_from([kind for kind in KINDS if kind != one.kind]))
        operations.insert(place, Operation(kind, one.pipeline, one.microbatch, one.stage))
    workers = list(plan.workers)
    workers[number] = replace(worker, order=print_order(operations, worker.pipeline))
    problems = check_plan(replace(plan, workers=tuple(workers), prediction=None))
    assert problems
    assert {problem.path for problem in problems} == {f"/workers/{number}/order"}


@settings(max_examples=40)
@given(any_placed_plans())
def test_limits_below_the_peaks_are_named_by_worker(plan: Plan) -> None:
    """A limit of a column that a worker does not keep is a problem of this worker alone."""
    peaks = evaluate(plan).peak_memory_bytes
    number = max(range(len(peaks)), key=peaks.__getitem__)
    worker = plan.workers[number]
    assume(peaks[number] > 0)
    columns = {(template.name, i): max(peaks) for template in plan.templates for i in range(len(template.columns))}
    columns[plan.pipelines[worker.pipeline].template, worker.stage] = peaks[number] * 0.9
    problems = check_plan(limited(replace(plan, prediction=None), columns))
    assert f"/workers/{number}/order" in {problem.path for problem in problems}
    assert all("its limit is" in problem.message for problem in problems)
