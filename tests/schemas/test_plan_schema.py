"""Plan: where its parts contradict each other, and the small questions it answers."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Link, Pipeline, Plan, Prediction, Stage, Template, Worker, name_of, place_of

from ..strategies import hand_plan, plans


@given(plans(max_microbatches=3))
def test_random_plans_agree_with_themselves(plan: Plan) -> None:
    """Plans made by code pass the same consistency checks as plans read from files."""
    plan.validate()


@given(plans(max_microbatches=3))
def test_microbatches_are_numbered_through(plan: Plan) -> None:
    """Global numbers of micro-batches run through the pipelines without a gap."""
    offsets = [plan.microbatch_offset(k) for k in range(len(plan.pipelines))]
    numbers = [offsets[k] + j for k, pipeline in enumerate(plan.pipelines) for j in range(pipeline.microbatches)]
    assert numbers == list(range(plan.total_microbatches()))


@given(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)))
def test_a_place_is_read_from_its_name(place: tuple[int, int]) -> None:
    """A place's name is `k/i`, that of its worker, and says which place it is."""
    assert place_of(name_of(place)) == place
    assert Worker(*place).name == name_of(place) == f"{place[0]}/{place[1]}"


@pytest.mark.parametrize("name", ["", "0", "0/", "/0", "0/0/0", "0/a", "0-0"])
def test_what_names_no_place_is_refused(name: str) -> None:
    """Text of another form is a ValueError."""
    with pytest.raises(ValueError):
        place_of(name)


def _plan() -> Plan:
    order = "F0 B0"
    return hand_plan({"0/0": order, "0/1": order, "1/0": order, "1/1": order}, 1)


def _with_template(**changes: object) -> Plan:
    plan = _plan()
    return replace(plan, templates=(replace(plan.templates[0], **changes),))  # type: ignore[arg-type]


def _with_stage(number: int, change: Callable[[Stage], Stage]) -> Plan:
    stages = list(_plan().templates[0].stages)
    stages[number] = change(stages[number])
    return _with_template(stages=tuple(stages))


def _with_worker(number: int, worker: Worker) -> Plan:
    plan = _plan()
    return replace(plan, workers=(*plan.workers[:number], worker, *plan.workers[number + 1 :]))


def _longer(template: Template) -> Template:
    """A template of another name, whose last stage has one layer more."""
    *before, last = template.stages
    stages = (*before, replace(last, layers=(last.layers[0], last.layers[1] + 1)))
    return replace(template, name="longer", stages=stages)


BAD: dict[str, tuple[Callable[[], Plan], str, str]] = {
    "two templates of one name": (
        lambda: replace(_plan(), templates=_plan().templates * 2),
        "two templates have one name",
        "/templates",
    ),
    "templates of two models": (
        lambda: replace(_plan(), templates=(*_plan().templates, _longer(_plan().templates[0]))),
        "layers, those of template",
        "/templates/1/stages",
    ),
    "hole between stages": (
        lambda: _with_stage(1, lambda stage: replace(stage, layers=(2, 3))),
        "must start at 1",
        "/templates/0/stages/1/layers",
    ),
    "empty stage": (
        lambda: _with_stage(0, lambda stage: replace(stage, layers=(0, 0))),
        "and hold one",
        "/templates/0/stages/0/layers",
    ),
    "stash above activation": (
        lambda: _with_stage(0, lambda stage: replace(stage, weight_stash_bytes=2.0)),
        "more than the activation_bytes",
        "/templates/0/stages/0/weight_stash_bytes",
    ),
    "too few links": (lambda: _with_template(links=()), "0 links for 2 stages", "/templates/0/links"),
    "unknown template": (
        lambda: replace(_plan(), pipelines=(Pipeline("t0", 1), Pipeline("t9", 1))),
        "there is no template 't9'",
        "/pipelines/1/template",
    ),
    "too many links of a pipeline": (
        lambda: replace(_plan(), pipelines=(Pipeline("t0", 1), Pipeline("t0", 1, (Link(), Link())))),
        "2 links for 2 stages",
        "/pipelines/1/links",
    ),
    "missing worker": (
        lambda: replace(_plan(), workers=_plan().workers[:3]),
        "worker 1/1 must stand here",
        "/workers/3",
    ),
    "swapped workers": (
        lambda: replace(_plan(), workers=_plan().workers[::-1]),
        "worker 0/0 must stand here",
        "/workers/0",
    ),
    "worker too many": (
        lambda: replace(_plan(), workers=(*_plan().workers, Worker(2, 0, ""))),
        "no further worker must stand here",
        "/workers/4",
    ),
    "neither order nor failed": (lambda: _with_worker(1, Worker(0, 1)), "either an order or", "/workers/1"),
    "both order and failed": (
        lambda: _with_worker(1, Worker(0, 1, "F0", failed=True)),
        "either an order or",
        "/workers/1",
    ),
    "order that is none": (
        lambda: _with_worker(2, Worker(1, 0, "F0 0F1xyz")),
        "'0F1xyz' is not an operation (operation 1, counted from 0)",
        "/workers/2/order",
    ),
    "peaks of other workers": (
        lambda: replace(_plan(), prediction=Prediction(1, 1, 1, 1, 0, "none", 0, (1.0,))),
        "1 peaks for 4 workers",
        "/prediction/peak_memory_bytes",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_contradiction_is_refused_at_its_place(name: str) -> None:
    """Parts that contradict each other are one error with the JSON pointer of the place."""
    make, what, where = BAD[name]
    with pytest.raises(InvalidInputError) as caught:
        make().validate()
    assert what in caught.value.what
    assert caught.value.where == where


def test_full_backward_takes_both_halves() -> None:
    """B lasts as long as I and W together, if nothing else is said."""
    stage = Stage((0, 1), 1.0, 2.0, 4.0)
    assert [stage.duration_s(kind) for kind in "FIWB"] == [1.0, 2.0, 4.0, 6.0]
    assert replace(stage, backward_s=5.0).duration_s("B") == 5.0


def test_hops_take_the_link_of_the_two_workers() -> None:
    """Inside a pipeline its own link counts where given, between pipelines the template's of the micro-batch's."""
    plan = replace(_plan(), pipelines=(Pipeline("t0", 1, (Link(7.0),)), Pipeline("t0", 1)))
    w00, w01, w10, w11 = plan.workers
    assert plan.hop_delay_s(0, 0, w00, w01) == 7.0
    assert plan.hop_delay_s(1, 0, w01, w00) == 7.0
    assert plan.hop_delay_s(0, 0, w10, w11) == 0.0
    assert plan.hop_delay_s(0, 0, w00, w11) == 0.0


def test_failed_workers_have_no_operations_and_no_rank() -> None:
    """Failed workers stay in the plan but do not count among the live ones."""
    plan = _with_worker(1, Worker(0, 1, failed=True))
    assert [worker.name for worker in plan.live_workers()] == ["0/0", "1/0", "1/1"]
    assert plan.workers[1].operations() == ()
