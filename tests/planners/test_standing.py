"""What a running plan says of its job: enough to plan for other failures of its workers."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.shape import Shape
from rtk.planners.slipstream.cluster import AtlasRequest, alike, connection_of, opening, opening_of
from rtk.planners.slipstream.replanner import Replanner
from rtk.schemas.atlas import Atlas
from rtk.schemas.check import check_plan
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Pipeline, Plan
from rtk.schemas.profile import Connection

from ..strategies import hand_plan
from .running_plans import SLIPSTREAM, bearable, dead_places, made_by, profile, running_plans, short_search

UNIFORM = (1.0, 1.0, 1.0)
ALIKE = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0", "1/0": "F0 B0", "1/1": "F0 B0"}, 1)


@pytest.fixture(scope="module", autouse=True)
def _short() -> Iterator[None]:
    with short_search():
        yield


def _replanned(common: Atlas, failed: frozenset[tuple[int, int]]) -> Plan:
    return Replanner(common, common.dp * len(common.template.stages)).in_place(failed, compared=False)


def _with_options(**options: Any) -> Plan:
    return replace(ALIKE, planner=replace(ALIKE.planner, options=options))


@given(st.sampled_from(SLIPSTREAM), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.data())
def test_a_plan_of_slipstream_gives_its_opening_back(
    maker: str, pp: int, dp: int, microbatches: int, data: st.DataObject
) -> None:
    """All but the bytes of state, which no plan tells; written and read again, whoever has failed."""
    shape = Shape(pp, dp, microbatches)
    times = data.draw(st.lists(st.sampled_from([UNIFORM, (1.0, 2.0, 0.5)]), min_size=pp, max_size=pp))
    failed = frozenset(data.draw(st.sets(st.tuples(st.integers(0, dp - 1), st.integers(0, pp - 1)), max_size=2)))
    plan = made_by(maker, profile(times), shape, failed if bearable(failed, pp, dp) else frozenset())
    common = opening(profile(times), AtlasRequest(shape, maker))  # type: ignore[arg-type]
    planner = replace(common.planner, options=common.planner.options | {"solver": "rules"})
    found = opening_of(parse_document(canonical(plan), Plan, "here"))
    assert found == replace(common, planner=planner, state_bytes=(0.0,) * pp)


@settings(max_examples=30)
@given(running_plans())
def test_planning_for_the_same_failures_is_no_worse(plan: Plan) -> None:
    """A plan for the failures that the running plan has: valid, of the same job, and it takes no longer."""
    found = _replanned(opening_of(plan), dead_places(plan))
    assert check_plan(found) == []
    assert found.templates == plan.templates
    assert found.optimizer == plan.optimizer
    assert dead_places(found) == dead_places(plan)
    assert [worker.slowdown for worker in found.workers] == [worker.slowdown for worker in plan.workers]
    assert found.prediction is not None and plan.prediction is not None
    assert found.prediction.iteration_time_s <= plan.prediction.iteration_time_s * (1 + 1e-9)


@given(running_plans(makers=("1f1b", "zero-bubble", "adapted")))
def test_links_of_single_pipelines_stay_slow(plan: Plan) -> None:
    """Every pipeline keeps the delays of its links; where none has its own, workers are alike."""
    common = opening_of(plan)
    found = _replanned(common, frozenset())
    assert [_delays_s(found, k) for k in range(common.dp)] == [_delays_s(plan, k) for k in range(common.dp)]
    assert alike(common) == all(pipeline.links is None for pipeline in plan.pipelines)


def _delays_s(plan: Plan, pipeline: int) -> list[float]:
    own = plan.pipelines[pipeline].links
    return [link.delay_s for link in (plan.template_of(pipeline).links if own is None else own)]


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (Pipeline("t1", 1), "pipelines 0 and 1 differ (t0 and t1): only alike pipelines can be re-planned yet"),
        (Pipeline("t0", 2), "pipelines 0 and 1 differ (1 and 2): only alike pipelines can be re-planned yet"),
    ],
)
def test_unlike_pipelines_are_refused(other: Pipeline, what: str) -> None:
    """Of two templates, or with different numbers of micro-batches."""
    templates = (*ALIKE.templates, replace(ALIKE.templates[0], name="t1"))
    plan = replace(ALIKE, templates=templates, pipelines=(ALIKE.pipelines[0], other))
    with pytest.raises(InvalidInputError) as caught:
        opening_of(plan)
    assert caught.value.what == what
    assert caught.value.where is not None
    assert caught.value.where.startswith("/pipelines/1/")


def test_state_and_network_are_read_where_options_say_them() -> None:
    """Bytes of each stage, and the connection that they are copied over."""
    network = {"latency_s": 0.5, "bandwidth_bytes_per_s": 8}
    common = opening_of(_with_options(state_bytes=[3, 4.5], network=network))
    assert common.state_bytes == (3, 4.5)
    assert connection_of(common) == Connection(0.5, 8)
    assert connection_of(opening_of(_with_options(network={}))) == Connection(0.0, None)


@pytest.mark.parametrize("said", [None, 3, "x", [1.0], [1.0, -1.0], [1.0, True], {"latency_s": -1}, [1.0, float("inf")],
                                  {"bandwidth_bytes_per_s": 0}, {"bandwidth_bytes_per_s": "fast"}])  # fmt: skip
def test_options_that_say_nothing_usable_count_as_unknown(said: object) -> None:
    """A plan's options may hold anything."""
    common = opening_of(_with_options(state_bytes=said, network=said, cost=said, technique=said))
    assert common.state_bytes == (0.0, 0.0)
    assert connection_of(common) == Connection()
    assert (common.planner.options["cost"], common.split) == ("heuristic", False)
