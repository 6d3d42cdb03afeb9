"""S3: who sits where when workers and links are slow: every arrangement, a formula written anew, and schedules."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.greyhound import arrangement
from rtk.planners.greyhound.arrangement import Kinds, Search
from rtk.planners.greyhound.mitigate import placed, plan_topology
from rtk.planners.greyhound.topology import best_assignment
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.shape import Shape, plan_without_orders
from rtk.runners.simulator import simulate
from rtk.schemas.conditions import Pair, pair_of
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.plan import Pipeline, Place, Plan, Planner, place_of
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, Profile

Troubles = tuple[dict[str, float], dict[Pair, float]]


def profile(times_s: Sequence[float], delay_s: float = 0.0) -> Profile:
    """A layer a stage, F, I and W equally long, with a usual delay of links."""
    layers = tuple(Layer((LayerCost(time_s, time_s, time_s),), parameter_bytes=1.0) for time_s in times_s)
    return Profile(layers, network=Network(inter_node=Connection(delay_s, 10.0)))


def bare(times_s: Sequence[float], dp: int, microbatches: int, delay_s: float = 0.0) -> Plan:
    """Pipelines without orders."""
    shape = Shape(len(times_s), dp, microbatches)
    return plan_without_orders(profile(times_s, delay_s), shape, Planner("by hand", "1", {}))


def home(plan: Plan) -> dict[str, Place]:
    """Everybody at the place that he is named after."""
    return {worker.name: place_of(worker.name) for worker in plan.workers}


@st.composite
def cases(draw: st.DrawFn, most_places: int = 6) -> tuple[Plan, Troubles]:
    """Pipelines of a few places, and some slow workers and links."""
    pp = draw(st.integers(1, 4))
    dp = draw(st.integers(1, most_places // pp))
    times_s = draw(st.lists(st.sampled_from([1.0, 1.0, 2.0]), min_size=pp, max_size=pp))
    plan = bare(times_s, dp, draw(st.integers(1, 8)), draw(st.sampled_from([0.0, 0.1])))
    return plan, draw(troubles(plan))


@st.composite
def troubles(draw: st.DrawFn, plan: Plan) -> Troubles:
    """Up to three slow workers, some of them alike, and up to three slow links."""
    names = st.sampled_from([worker.name for worker in plan.workers])
    slow = draw(st.dictionaries(names, st.sampled_from([1.0, 1.5, 2.0, 3.0]), max_size=3))
    pairs = st.tuples(names, names).filter(lambda pair: pair[0] < pair[1]).map(lambda pair: pair_of(*pair))
    several = len(plan.workers) > 1
    links = draw(st.dictionaries(pairs, st.sampled_from([0.5, 2.0, 6.0]), max_size=3)) if several else {}
    return slow, links


def model_s(plan: Plan, places: dict[str, Place], trouble: Troubles, counts: Sequence[int]) -> float:
    """T by the formula of `arrangement_kernels`, written anew."""
    slow, links = trouble
    who, stages = {place: name for name, place in places.items()}, plan.templates[0].stages
    pp, dp = len(stages), len(plan.pipelines)

    def delay_s(one: Place, other: Place) -> float:
        return links.get(pair_of(who[one], who[other]), 0.0)

    ends_s = []
    for d, m in enumerate(counts):
        factor = [slow.get(who[d, p], 1.0) for p in range(pp)]
        forward_s = [stage.duration_s("F") * s for stage, s in zip(stages, factor, strict=True)]
        back_s = [stage.duration_s("B") * s for stage, s in zip(stages, factor, strict=True)]
        hop_s = [max(plan.links_of(d)[p].delay_s, delay_s((d, p), (d, p + 1))) for p in range(pp - 1)]
        work_s = [f + b for f, b in zip(forward_s, back_s, strict=True)]
        pipeline_s = max(
            sum(work_s)
            + 2 * sum(hop_s)
            + (m - w) * max((sum(work_s[p : q + 1]) + 2 * sum(hop_s[p:q])) / (q - p + 1) for q in range(p, pp))
            + (w - 1) * max(forward_s[p], back_s[p])
            for p, w in ((p, min(pp - p, m)) for p in range(pp))
        )
        for p, stage in enumerate(stages):
            between_s = max((delay_s((a, p), (b, p)) for a in range(dp) for b in range(a)), default=0.0)
            before_s = sum(back_s[:p]) + sum(hop_s[:p])
            ends_s.append(pipeline_s - before_s + stage.allreduce_s + stage.optimizer_s + 2 * (dp - 1) * between_s)
    return max(ends_s)


@given(cases())
@settings(max_examples=20)
def test_no_arrangement_is_better_by_the_formula(case: tuple[Plan, Troubles]) -> None:
    """Where every pipeline keeps its micro-batches: the answer takes what the formula says, and no other takes less."""
    plan, trouble = case
    counts = [pipeline.microbatches for pipeline in plan.pipelines]
    found = best_assignment(plan, home(plan), *trouble, keep_microbatches=True)
    names, places = list(home(plan)), list(home(plan).values())
    least_s = min(
        model_s(plan, dict(zip(names, order, strict=True)), trouble, counts) for order in permutations(places)
    )
    assert found.proof == "optimal"
    assert found.after_s == pytest.approx(least_s)
    assert found.after_s == pytest.approx(model_s(plan, found.places, trouble, counts))
    assert found.before_s == pytest.approx(model_s(plan, home(plan), trouble, counts))
    assert sorted(found.places.values()) == places


@given(cases(most_places=10))
@settings(max_examples=20)
def test_an_assignment_only_makes_things_better(case: tuple[Plan, Troubles]) -> None:
    """With uneven pipelines, too: all micro-batches are done, nobody moves for nothing, those who move are named, and
    the same question has the same answer."""
    plan, trouble = case
    found = best_assignment(plan, home(plan), *trouble)
    assert found == best_assignment(plan, home(plan), *trouble)
    assert sum(found.microbatches) == plan.total_microbatches()
    assert min(found.microbatches) >= 1
    assert found.after_s <= found.before_s * (1 + 1e-9)
    assert found.after_s == pytest.approx(model_s(plan, found.places, trouble, found.microbatches))
    assert {name for name, _, _ in found.moves} == {n for n, place in home(plan).items() if found.places[n] != place}
    if not found.moves:
        assert found.places == home(plan)


@given(cases(most_places=10), st.integers(0, 4))
@settings(max_examples=20)
def test_no_more_move_than_may(case: tuple[Plan, Troubles], most: int) -> None:
    """A swap of a running job copies state: its number of workers is bounded, and a looser bound is no worse."""
    plan, trouble = case
    bound, free = (
        best_assignment(plan, home(plan), *trouble, keep_microbatches=True, most_moves=n) for n in (most, None)
    )
    assert len(bound.moves) <= most
    assert free.after_s <= bound.after_s * (1 + 1e-9) <= bound.before_s * (1 + 2e-9)


@given(cases(most_places=8), st.booleans())
@settings(max_examples=20)
def test_the_local_search_is_as_good_as_looking_at_all(case: tuple[Plan, Troubles], keep: bool) -> None:
    """On small cases, which it never gets."""
    plan, trouble = case
    counts = [pipeline.microbatches for pipeline in plan.pipelines] if keep else None
    search = Search(plan, home(plan), Kinds.among(home(plan), *trouble), counts)
    if (search.home > 0).any():
        most = len(search.home)
        found, best = (search.time_s(who) for who in (search.local(most, 0), search.exact(most)))
        assert found == pytest.approx(best, rel=1e-8)


def test_machine_code_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether plain Python searches or machine code, and however large the case."""
    plan = bare([1.0] * 4, 6, 8)
    slow, links = {"0/1": 2.0, "3/2": 1.5, "5/0": 1.5}, {("0/0", "1/0"): 1.0, ("2/1", "2/2"): 6.0}
    found = []
    for steps in (10**12, 0):
        monkeypatch.setattr(arrangement, "pays", lambda *_, steps=steps: steps == 0)
        found.append(best_assignment(plan, home(plan), slow, links))
        found.append(best_assignment(bare([1.0] * 2, 3, 8), home(bare([1.0] * 2, 3, 8)), {"0/1": 2.0}, {}))
    assert found[:2] == found[2:]
    assert [one.proof for one in found[:2]] == ["none", "optimal"]


def test_a_slow_link_between_peers_goes_out_of_use() -> None:
    """One swap suffices, after which its ends have nothing to send to each other, and nothing is lost."""
    plan = bare([1.0] * 4, 4, 8)
    link = ("0/0", "1/0")
    found = best_assignment(plan, home(plan), {}, {link: 1.0}, most_moves=2)
    healthy = best_assignment(plan, home(plan), {}, {})
    assert found.before_s == pytest.approx(healthy.before_s + 2 * 3 * 1.0)
    assert found.after_s == pytest.approx(healthy.before_s)
    (k, i), (other, j) = (found.places[name] for name in link)
    assert i != j
    assert k != other or abs(i - j) > 1
    assert len(found.moves) == 2


def test_stragglers_of_one_stage_come_into_one_pipeline() -> None:
    """Two slow workers in two pipelines slow down both; together in one that has fewer micro-batches they cost less."""
    plan = bare([1.0] * 2, 4, 8)
    found = best_assignment(plan, home(plan), {"0/1": 2.0, "1/1": 2.0}, {})
    assert len({found.places[name][0] for name in ("0/1", "1/1")}) == 1
    apart = best_assignment(plan, home(plan), {"0/1": 2.0, "1/1": 2.0}, {}, most_moves=0)
    assert found.after_s < apart.after_s < apart.before_s


def test_dead_places_stay_empty() -> None:
    """Nobody moves to where somebody is dead; the stage's others work for him, and fewer delays make their sum."""
    plan = bare([1.0] * 3, 3, 6)
    start = {name: place for name, place in home(plan).items() if name != "1/0"}
    found = best_assignment(plan, start, {"1/0": 9.0}, {("0/0", "2/0"): 1.0, ("1/0", "2/2"): 9.0})
    assert set(found.places.values()) == set(start.values())
    assert found.before_s - best_assignment(plan, start, {}, {}).before_s == pytest.approx(2 * 1 * 1.0)
    assert found.after_s < found.before_s


def test_what_cannot_be_assigned() -> None:
    """Unlike pipelines, and fewer micro-batches than pipelines where these are distributed."""
    plan = bare([1.0] * 2, 2, 2)
    other = replace(plan.templates[0], name="t1")
    unlike = replace(plan, templates=(*plan.templates, other), pipelines=(plan.pipelines[0], Pipeline("t1", 2)))
    with pytest.raises(InvalidInputError, match="unlike pipelines"):
        best_assignment(unlike, home(plan), {}, {})
    tight = replace(plan.templates[0].stages[0], activation_bytes=2.0, memory_limit_bytes=1.0)
    template = replace(plan.templates[0], stages=(tight, plan.templates[0].stages[1]))
    with pytest.raises(InfeasibleError, match="memory limit"):
        best_assignment(replace(plan, templates=(template,)), home(plan), {"0/0": 2.0}, {})


@given(cases(most_places=8), st.sampled_from(["1f1b", "zero-bubble"]))
@settings(max_examples=15)
def test_a_topology_plan_is_valid_and_never_worse(case: tuple[Plan, Troubles], schedule: str) -> None:
    """It lasts as long as it says, in the simulator too, no longer than as it is, and has all micro-batches."""
    plan, trouble = case
    costs = profile([stage.forward_s for stage in plan.templates[0].stages])
    shape = Shape(len(plan.templates[0].stages), len(plan.pipelines), plan.pipelines[0].microbatches)
    made = plan_topology(costs, shape, *trouble, schedule)  # type: ignore[arg-type]
    assert made.prediction is not None
    options, iteration_s = made.planner.options, made.prediction.iteration_time_s
    assert iteration_s == pytest.approx(min(options["iteration_time_s"].values()))
    assert iteration_s == pytest.approx(options["iteration_time_s"][options["taken"]])
    assert iteration_s == pytest.approx(simulate(made).report(made, 0.0).iteration_time_s)
    assert made.total_microbatches() == plan.total_microbatches()
    assert all(name != place for name, place in options["assignment"].items())


@given(st.integers(1, 5), st.integers(1, 3), st.data())
@settings(max_examples=20)
def test_the_model_is_exact_for_slow_workers(pp: int, dp: int, data: st.DataObject) -> None:
    """Without delays, in full pipelines of equal stages of which one worker each may be slow, it gives the time of the
    1F1B schedule."""
    slow = {f"{k}/{data.draw(st.integers(0, pp - 1))}": data.draw(st.sampled_from([1.0, 1.5, 2.0])) for k in range(dp)}
    made = plan_topology(Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),) * pp), Shape(pp, dp, 2 * pp + 1), slow, {})
    options = made.planner.options
    assert options["iteration_time_s"]["as it is"] == pytest.approx(options["model_s"]["as it is"])


def test_what_is_slow_is_in_the_plan_at_its_new_place() -> None:
    """Slow workers, the delay of a link inside a pipeline, and what one between peers adds to the sums."""
    plan = bare([1.0] * 3, 2, 4, 0.5)
    slow, links = {"0/1": 2.0}, {("0/0", "0/1"): 3.0, ("0/2", "1/2"): 1.0, ("0/0", "1/2"): 9.0}
    as_it_is = best_assignment(plan, home(plan), slow, links, keep_microbatches=True, most_moves=0)
    there = placed(plan, as_it_is, slow, links)
    assert [worker.slowdown for worker in there.workers] == [None, 2.0, None, None, None, None]
    assert [link.delay_s for link in there.links_of(0)] == [3.0, 0.5]
    assert there.pipelines[1].links is None
    more_s = [
        b.allreduce_s - a.allreduce_s for a, b in zip(*(p.templates[0].stages for p in (plan, there)), strict=True)
    ]
    assert more_s == pytest.approx([0.0, 0.0, 2.0])


def test_figure_12_and_15_of_the_paper() -> None:
    """Two stragglers in two stages take 8.5 s, in one 8 s, and 7 s in the first; one group of four that is 1.77 times
    as slow takes 1.31 s, and 0.83 s with uneven micro-batches."""
    even = Profile((Layer((LayerCost(1 / 3, 1 / 3, 1 / 3),)),) * 3)
    times_s = plan_topology(even, Shape(3, 2, 4), {"0/1": 1.5, "0/2": 1.5}, {}).planner.options["iteration_time_s"]
    assert (times_s["as it is"], times_s["S3"]) == pytest.approx((8.5, 7.0))
    one_stage = plan_topology(even, Shape(3, 2, 4), {"0/2": 1.5, "1/2": 1.5}, {}).planner.options
    assert one_stage["iteration_time_s"]["as it is"] == pytest.approx(8.0)
    factor = (4 * 1.31 / 0.83 - 1) / 3
    third_s = 1.31 / factor / 24
    group = Profile((Layer((LayerCost(third_s, third_s, third_s),)),))
    made = plan_topology(group, Shape(1, 4, 8), {"0/0": factor}, {})
    assert made.planner.options["iteration_time_s"]["as it is"] == pytest.approx(1.31)
    assert evaluate(made).iteration_time_s == pytest.approx(0.83, rel=0.003)
    assert [pipeline.microbatches for pipeline in made.pipelines] == [5, 9, 9, 9]


def test_stages_that_take_no_time() -> None:
    """Only the slow link between peers is left, and goes."""
    plan = bare([0.0] * 2, 2, 4)
    found = best_assignment(plan, home(plan), {"0/0": 2.0}, {("0/0", "1/0"): 0.5})
    assert found.before_s - found.after_s == pytest.approx(2 * 0.5)


def test_a_large_search_ends() -> None:
    """256 workers, 13 of them slow, and as many slow links, several of them between peers of one stage: nearly all that
    is lost comes back, though to move a single one of these links gains nothing."""
    plan = bare([1.0] * 8, 32, 16)
    names = list(home(plan))
    slow = dict.fromkeys(names[::20], 2.0)
    links = {pair_of(a, b): 2.0 for a, b in zip(names[3::20], names[11::20], strict=False)}
    found = best_assignment(plan, home(plan), slow, links)
    assert found.after_s < 1.05 * best_assignment(plan, home(plan), {}, {}).before_s < 0.4 * found.before_s
    assert np.unique(list(found.places.values()), axis=0).shape == (256, 2)
