"""The parts of planning what is left of an iteration: seals, what is left, who does it, how long it takes at least."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.resumption.agreement import agree
from rtk.planners.resumption.costs import costs_of
from rtk.planners.resumption.crew import Crew
from rtk.planners.resumption.plan import plan_rest
from rtk.planners.resumption.remaining import remaining
from rtk.planners.resumption.routing import route
from rtk.planners.scheduling.forms import Form
from rtk.schemas.check_rest import check_rest
from rtk.schemas.conditions import HEALTHY, Conditions, SlowLink, SlowWorker
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.plan import Link, Pipeline, Place, Plan, Planner, Stage, Template, Worker
from rtk.schemas.resumption import HeldMessages, LedgerEntry, SharedLayers, Standing, Stash, SumCopy

LAYERS = 4


def pipelines(cuts: list[list[int]], microbatches: int, limit_bytes: float | None = None) -> Plan:
    """A plan of a pipeline for each row of cuts, every operation of a layer 1 s: all F first, or none with a limit."""
    templates = tuple(
        Template(
            f"t{k}",
            tuple(
                Stage(
                    (a, b), b - a, b - a, b - a, activation_bytes=2.0, weight_stash_bytes=1.0,
                    memory_limit_bytes=limit_bytes,
                )
                for a, b in pairwise(row)
            ),
            tuple(Link(0.0) for _ in row[2:]),
        )
        for k, row in enumerate(cuts)
    )  # fmt: skip
    order = " ".join([*(f"F{j}" for j in range(microbatches)), *(f"I{j} W{j}" for j in range(microbatches))])
    if limit_bytes is not None:
        order = " ".join(f"F{j} I{j} W{j}" for j in range(microbatches))
    workers = tuple(Worker(k, i, order) for k, row in enumerate(cuts) for i in range(len(row) - 1))
    return Plan(
        Planner("toy", "0", {}),
        templates,
        tuple(Pipeline(template.name, microbatches) for template in templates),
        "synchronous",
        workers,
    )


ALIKE = pipelines([[0, 2, 4], [0, 2, 4]], 2)
NAMES = ("a", "b", "c", "d")
SEATS: tuple[tuple[str, Place], ...] = tuple(
    (name, worker.place) for name, worker in zip(NAMES, ALIKE.workers, strict=True)
)


def nothing(name: str, plan: Plan = ALIKE) -> Standing:
    """A worker that has begun nothing."""
    return Standing(name, plan.stage_of(plan.workers[NAMES.index(name)]).layers)


def crew_of(*standings: Standing) -> Crew:
    """Four workers, of whom some have something."""
    known = {standing.worker: standing for standing in standings}
    return Crew.seated(ALIKE, SEATS, [known.get(name, nothing(name)) for name in NAMES])


def test_what_one_has_of_a_sum_that_has_ended_all_get() -> None:
    """A sum that has ended at one of two holders is copied to the other."""
    found = agree(crew_of(replace(nothing("a"), sealed=((0, 2),))))
    assert found.sealed == ((0, 2),)
    assert found.copies == (SumCopy("0/0", "1/0", (0, 2)),)


TIE = (0, 3)


@pytest.mark.parametrize(
    ("a_has", "b_has", "tie_at", "sealed"),
    [
        (((0, 2),), ((2, 4),), "b", ((0, 4),)),
        (((0, 2),), ((2, 4),), "", ((1, 3),)),  # what is shared has not ended
        (((0, 2),), (), "a", ((1, 2),)),  # the other layer of it is summed anew
    ],
)
def test_a_layer_is_sealed_with_all_that_it_shares(
    a_has: tuple[tuple[int, int], ...],
    b_has: tuple[tuple[int, int], ...],
    tie_at: str,
    sealed: tuple[tuple[int, int], ...],
) -> None:
    """Layers 0 and 3 share parameters: neither counts as sealed without the other, and without what they share."""

    def standing(name: str, has: tuple[tuple[int, int], ...]) -> Standing:
        return replace(nothing(name), sealed=has, ties=(SharedLayers(TIE, name == tie_at),))

    rest = [replace(nothing(name), ties=(SharedLayers(TIE),)) for name in "cd"]
    found = agree(crew_of(standing("a", a_has), standing("b", b_has), *rest))
    assert found.sealed == sealed
    tied = {copy.target for copy in found.copies if TIE in copy.ties}
    assert tied == ({"0/0", "1/0", "1/1"} if sealed == ((0, 4),) else set())


def test_what_is_held_nowhere_is_computed_again() -> None:
    """Once logs are lost, who needs an activation has those below computed again: for the message alone, once."""
    done = LedgerEntry((0, 2), (0, 1, 2, 3))
    crew = crew_of(replace(nothing("a"), ledger=(done,)))
    left = remaining(crew, ())
    assert left.cuts == (0, 2, 4)
    assert left.forward.all()
    assert not left.counts[0].any() and left.counts[1].all()
    assert not left.backward[0].any()
    kept = HeldMessages("activation", 2, (0, 1, 2, 3))
    left = remaining(crew_of(replace(nothing("a"), ledger=(done,), messages=(kept,))), ())
    assert not left.forward[0].any()


def test_a_stash_that_cannot_be_finished_pollutes_the_sums_it_is_in() -> None:
    """Who has done I, and gets other layers, gives up what it has of the sums; after F nothing is given up."""
    other = pipelines([[0, 1, 4], [0, 2, 4]], 2)
    for after, given_up in (("I", ((0, 1),)), ("F", ())):
        has = Standing(
            "a", (0, 2), ledger=(LedgerEntry((0, 2), (0,)),), stashes=(Stash(after, (1,)),)  # type: ignore[arg-type]
        )  # fmt: skip
        crew = Crew.seated(other, SEATS, [has, nothing("b"), nothing("c"), nothing("d")])
        assert remaining(crew, ()).given_up[0] == given_up


def test_layers_that_share_parameters_are_kept_or_given_up_together() -> None:
    """Who no longer holds a layer gives up what it has of those that share parameters with it."""
    other = pipelines([[0, 1, 4], [0, 2, 4]], 2)
    has = Standing("a", (0, 2), ledger=(LedgerEntry((0, 2), (0,)),), ties=(SharedLayers((0, 1)),))
    crew = Crew.seated(other, SEATS, [has, nothing("b"), nothing("c"), nothing("d")])
    assert remaining(crew, ()).given_up[0] == ((0, 1),)


def test_free_work_goes_to_who_has_least_left() -> None:
    """Two peers share what is left so that both end alike, and keep what is theirs as far as that goes."""
    kept = HeldMessages("activation", 2, (0, 1))
    crew = crew_of(replace(nothing("a"), ledger=(LedgerEntry((0, 2), (0, 1)),), messages=(kept,)))
    left = remaining(crew, ())
    executor = route(crew, costs_of(crew, ALIKE, left.cuts, ()), left, Form(False))
    assert sorted(executor[2:, 0].tolist()) == [0, 2]
    assert executor[:, 1].tolist() == [1, 1, 3, 3]


def test_a_slow_worker_gets_less_and_predictions_are_as_plans_make_them() -> None:
    """What is slow is reckoned with where work is given away, not in what is predicted, which the checker judges."""
    standings = tuple(
        replace(nothing(name), ledger=(LedgerEntry(nothing(name).layers or (0, 0), (0,)),)) for name in "a"
    )
    everyone = (*standings, *(nothing(name) for name in "bcd"))
    slow = Conditions(slow_workers=(SlowWorker("c", 3.0),), slow_links=(SlowLink(("a", "b"), 0.5),))
    even, uneven = (plan_rest(ALIKE, SEATS, 1, everyone, conditions) for conditions in (HEALTHY, slow))
    assert check_rest(ALIKE, even) == check_rest(ALIKE, uneven) == []
    counts = [len(rest.workers[2].order.split()) for rest in (even, uneven)]
    assert counts[1] < counts[0]


def test_nothing_left_takes_no_time() -> None:
    """Where all sums have ended, nobody has anything to do but to take the step."""
    all_sealed = tuple(replace(nothing(name), sealed=(nothing(name).layers or (0, 0),)) for name in NAMES)
    rest = plan_rest(ALIKE, SEATS, 1, all_sealed, HEALTHY)
    assert check_rest(ALIKE, rest) == []
    assert not any(worker.order for worker in rest.workers)
    assert rest.prediction is not None and rest.prediction.makespan_s == 0.0


def test_nothing_done_is_no_reason_to_resume() -> None:
    """Where all is left, doing the iteration again is as quick."""
    with pytest.raises(InfeasibleError, match="as quick"):
        plan_rest(pipelines([[0, 2, 4], [0, 2, 4]], 1), SEATS, 1, tuple(map(nothing, NAMES)), HEALTHY)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ([replace(nothing("a"), ledger=(LedgerEntry((0, 2), (7,)),))], "beyond 4"),
        ([replace(nothing("a"), ledger=(LedgerEntry((1, 3), (0,)),))], "does not hold"),
        ([replace(nothing(name), ledger=(LedgerEntry((0, 2), (0,)),)) for name in "ac"], "same micro-batch"),
        ([replace(nothing("a"), messages=(HeldMessages("gradient", 9, (0,)),))], "model of 4"),
        ([replace(nothing("a"), sealed=((0, 2),), ties=(SharedLayers((0, 1)),))], "unlike ties"),
    ],
)
def test_standings_that_cannot_be_are_refused(wrong: list[Standing], what: str) -> None:
    """A standing of what there is not, or two with the same, is invalid input."""
    known = {standing.worker: standing for standing in wrong}
    standings = tuple(known.get(name, nothing(name)) for name in NAMES)
    with pytest.raises(InvalidInputError, match=what):
        plan_rest(ALIKE, SEATS, 1, standings, HEALTHY)


def test_a_place_that_nobody_takes_is_refused() -> None:
    """Every live place needs somebody whose standing is known."""
    with pytest.raises(InvalidInputError, match="1/1"):
        plan_rest(ALIKE, SEATS[:3], 1, tuple(map(nothing, NAMES)), HEALTHY)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=4, max_size=4), st.sampled_from([4.0, 5.0]))
def test_memory_limits_hold_from_the_first_moment_on(stashed: list[bool], limit_bytes: float) -> None:
    """What is under way at time 0 counts: an F waits until there is room, and all ends."""
    plan = pipelines([[0, 2, 4], [0, 2, 4]], 2, limit_bytes)
    own = tuple(number for number, has in enumerate(stashed[:2]) if has)[: int(limit_bytes // 2)]
    has = nothing("a")
    if own:
        has = replace(has, stashes=(Stash("F", own),), messages=(HeldMessages("activation", 2, own),))
    done = replace(nothing("d"), ledger=(LedgerEntry((2, 4), (2, 3)),), messages=(HeldMessages("gradient", 2, (2, 3)),))
    rest = plan_rest(plan, SEATS, 1, (has, nothing("b"), nothing("c"), done), HEALTHY)
    assert check_rest(plan, rest) == []


def test_machine_code_and_plain_python_plan_the_same() -> None:
    """Kernels give the same answer compiled."""
    crew = crew_of(replace(nothing("a"), ledger=(LedgerEntry((0, 2), (0, 1)),)))
    left = remaining(crew, ())
    costs = costs_of(crew, ALIKE, left.cuts, ())
    plain, machine = (route(crew, costs, left, Form(compiled)) for compiled in (False, True))
    assert np.array_equal(plain, machine)
