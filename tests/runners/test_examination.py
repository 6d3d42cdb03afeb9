"""Pauses in which suspicious groups are examined: on the virtual clock, between threads, and in real runs."""

import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rtk.planners.pipeline import plan_pipeline  # noqa: E402
from rtk.planners.recovery.answers import PolicyName  # noqa: E402
from rtk.planners.shape import Shape  # noqa: E402
from rtk.profilers.failslow.monitor.ring import monitor_of  # noqa: E402
from rtk.runners import passes  # noqa: E402
from rtk.runners.program import Sending  # noqa: E402
from rtk.runners.torch.examination import examine  # noqa: E402
from rtk.runners.torch.faults import DelayedTransport, slowest_links  # noqa: E402
from rtk.runners.training import JobConfig, TrainingConfig  # noqa: E402
from rtk.runners.virtual.cluster import (  # noqa: E402
    COMPUTE_S,
    ROUNDS,
    EpochConditions,
    VirtualMachines,
    exchanges_of,
    pause,
)
from rtk.runners.virtual.job import SwitchCosts, simulate_story  # noqa: E402
from rtk.schemas.conditions import Conditions, pair_of, under_conditions  # noqa: E402
from rtk.schemas.documents import canonical  # noqa: E402
from rtk.schemas.errors import RuntimeFailedError  # noqa: E402
from rtk.schemas.plan import Plan, delay_at_home_s  # noqa: E402
from rtk.schemas.profile import Layer, LayerCost, Profile  # noqa: E402
from rtk.schemas.protocols import Examined, Hand, Replanned  # noqa: E402
from rtk.schemas.trace import Trace, TraceEvent, print_trace  # noqa: E402

from .processes import ProcessJob  # noqa: E402
from .test_detours import world  # noqa: E402
from .test_transport_epochs import close_all, in_background, in_ranks  # noqa: E402

MODEL = Path(__file__).parents[2] / "benchmarks" / "small_model.py"
PACED = TrainingConfig(f"{MODEL}:eight", (), 1e-3, 2, 32, 1, True, "auto", 0)
NAMES = [f"{k}/0" for k in range(12)]


def plan_of(pp: int, dp: int, seconds: float = 0.01) -> Plan:
    """1F1B of eight layers, three micro-batches a pipeline; an F takes so long."""
    share_s = seconds * pp / 8
    return plan_pipeline(Profile((Layer((LayerCost(share_s, share_s, share_s),)),) * 8), Shape(pp, dp, 3), "1f1b")


# On the virtual clock


@given(st.sets(st.integers(0, 60), min_size=1, max_size=50))
def test_whose_messages_are_tried(ranks: set[int]) -> None:
    """Each pair of a small group; of a larger one everybody, with a few others."""
    group = tuple(sorted(ranks))
    pairs = [pair_of(str(one), str(other)) for one, other in exchanges_of(group)]
    if len(group) <= passes.PAIRWISE_MOST:
        assert sorted(pairs) == sorted(pair_of(str(one), str(other)) for one, other in combinations(group, 2))
    else:
        assert {end for pair in pairs for end in pair} == {str(rank) for rank in group}
        assert len(pairs) <= 3 * len(group)


def test_a_pause_lasts_as_long_as_its_messages_and_slow_workers() -> None:
    """Links take what they do in truth, faults included; workers are as slow as they are."""
    plan = under_conditions(plan_of(2, 3), {"1/1": 2.0}, {(None, 0): 0.03})
    names = tuple(worker.name for worker in plan.workers)
    ends = ("0/1", "2/1")
    standing = EpochConditions(names, (1.0,) * 5 + (3.0,), ((ends, 1.0, 0.5),), frozenset(), (), ())
    staging = VirtualMachines(plan, "auto").staged(canonical(plan).decode(), standing)
    ranks = tuple(names.index(name) for name in ("0/1", "1/1", "2/1"))
    one = pause(staging, [ranks], names)
    assert [one.found[rank].compute_s for rank in ranks] == pytest.approx([COMPUTE_S, 2 * COMPUTE_S, 3 * COMPUTE_S])
    exchanges = {pair_of(names[rank], to): s for rank in ranks for to, s in one.found[rank].exchanges}
    assert exchanges == {("0/1", "1/1"): 0.0, ends: 1.0, ("1/1", "2/1"): 0.0}
    assert one.lasts_s == pytest.approx(3 * COMPUTE_S + (1 + 2 * ROUNDS) * 0.5)
    everybody = pause(staging, [tuple(range(6))], names)
    shown = {pair_of(names[rank], to): s / 2 for rank in range(6) for to, s in everybody.found[rank].exchanges}
    assert shown == {
        pair: 0.5 if pair == ends else pytest.approx(delay_at_home_s(plan, *pair)) for pair in combinations(names, 2)
    }


@settings(deadline=None, max_examples=25)
@given(st.data(), st.integers(3, 5), st.integers(1, 2), st.booleans(), st.sampled_from(["auto", "direct", "delegated"]))
def test_any_slow_link_of_peers_is_named_and_relieved(
    data: st.DataObject, dp: int, pp: int, staggered: bool, transport: Sending
) -> None:
    """Within 15 iterations, after one pause, with its delay and nothing else; the same story twice is the same."""
    plan = replace(plan_of(pp, dp), optimizer="staggered" if staggered else "synchronous", prediction=None)
    stage, first = data.draw(st.integers(0, pp - 1)), data.draw(st.integers(1, 6))
    ends = data.draw(st.sampled_from(list(combinations(range(dp), 2))))
    link, delay_s = "-".join(f"{k}/{stage}" for k in ends), data.draw(st.floats(0.008, 0.2))
    trace = Trace(
        (
            TraceEvent("slow_link", iteration=first, link=link, delay_s=delay_s),
            TraceEvent("recover", iteration=first + 20, link=link),
        )
    )
    one, again = (
        simulate_story(plan, trace, 45, staying, monitor=monitor_of(plan), transport=transport) for _ in range(2)
    )
    assert one == again
    found = [told.as_json() for _, told in one.announced if told.event in ("examine", "slow_link", "relief")]
    assert [fields["event"] for fields in found] == ["examine", "slow_link", "relief"]
    assert (found[1]["link"], found[1]["delay_s"]) == (link, pytest.approx(delay_s, abs=1e-4))
    assert found[1]["iteration"] <= first + 15
    assert first + 20 < found[2]["iteration"] <= first + 27


# Between threads


def rank_of(number: int, slowdown: float = 1.0, paced: bool = False, own: float = 1.0) -> Any:
    """As much of a rank as an examination needs."""
    held = SimpleNamespace(device=torch.device("cpu"))
    return SimpleNamespace(
        number=number, slowdown=slowdown, paced=paced, own_slowdown=own, held=held, now_s=time.perf_counter
    )


@pytest.mark.parametrize(("size", "pairwise"), [(3, 3), (10, 3), (10, 10)])
def test_a_group_examines_itself(size: int, pairwise: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All measure what their links take, both ways, be it all pairs or a ring and trees; others measure nothing."""
    monkeypatch.setattr(passes, "PAIRWISE_MOST", pairwise)
    transports, group, slow = world(size + 1, ()), tuple(range(size)), (0, size - 1)

    def work(rank: int) -> Examined | None:
        delays_s = slowest_links((sum(slow) - rank, 0.1) for end in slow if end == rank)
        return examine(rank_of(rank), [group], NAMES, DelayedTransport(transports[rank], delays_s))

    found = in_ranks(size + 1, work)
    close_all(transports)
    assert found[size] is None
    shown = {pair_of(NAMES[rank], to): s for rank in group for to, s in found[rank].exchanges}
    assert {pair for pair, took_s in shown.items() if took_s >= 0.2} == {pair_of(NAMES[0], NAMES[size - 1])}
    assert all(found[rank].compute_s > 0 for rank in group)


def test_who_is_in_two_groups_examines_one_after_the_other() -> None:
    """Nobody waits in a circle, and all messages are answered."""
    transports, groups = world(4, ()), [(0, 1, 2), (1, 2, 3), (0, 3)]
    found = in_ranks(4, lambda rank: examine(rank_of(rank), groups, NAMES, transports[rank]))
    close_all(transports)
    assert sum(len(one.exchanges) for one in found) == 3 + 3 + 1


def test_products_are_as_slow_as_operations() -> None:
    """In a paced run they last what they are to last, times what the worker, and a fault, slow it down."""
    transports = world(2, ())
    ranks = [rank_of(0, 1.5, paced=True, own=2.0), rank_of(1, 1.0, paced=True)]
    found = in_ranks(2, lambda rank: examine(ranks[rank], [(0, 1)], NAMES, transports[rank]))
    close_all(transports)
    assert found[0].compute_s >= 3 * COMPUTE_S
    assert found[1].compute_s >= COMPUTE_S


def test_who_waits_in_a_pause_is_woken() -> None:
    """An examination ends with the connections, as everything does."""
    transports = world(3, ())
    wait = [partial(examine, rank_of(rank), [(0, 1, 2)], NAMES, transports[rank]) for rank in (0, 1)]
    waiting = [in_background(one) for one in wait]
    time.sleep(0.2)  # the third one never comes
    for transport in transports[:2]:
        transport.interrupt()
    for one in waiting:
        with pytest.raises(RuntimeFailedError):
            one.result(10)
    close_all(transports)


# In stories and real runs: the same

STAGE = ("0/1", "1/1", "2/1")
SLOW = TraceEvent("slow_link", iteration=4, link="0/1-2/1", delay_s=0.03)


def staying(plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
    """The running plan, whatever is slow."""
    return Replanned(plan, tuple((hand.worker, hand.place) for hand in crew if hand.place is not None))


def told(said: Iterable[dict[str, Any]]) -> list[tuple[str, int]]:
    """What became of the suspicious stage, and of its link, and when; on a busy machine others may be late, too."""
    own = (one for one in said if one.get("link") == SLOW.link or one.get("workers") == STAGE)
    return [(one["event"], one["iteration"]) for one in own]


@pytest.mark.checkout  # trains a model of benchmarks/
def test_the_slow_link_of_three_peers_is_named(tmp_path: Path) -> None:
    """Within 15 iterations, after a pause; in a real run as on the virtual clock."""
    plan, iterations = plan_of(2, 3, 0.02), 12
    story = simulate_story(plan, Trace((SLOW,)), iterations, staying, SwitchCosts(), monitor=monitor_of(plan))
    fields = [one.as_json() for _, one in story.announced]
    wanted = [("examine", 8), ("slow_link", 9), ("examined", 9)]
    assert told(fields) == wanted
    (link,) = (one for one in fields if one["event"] == "slow_link")
    assert (link["link"], link["delay_s"]) == ("0/1-2/1", pytest.approx(0.03))
    assert [one["iteration"] for one in fields if one["event"] == "epoch"] == [0, 8, 10]
    with_pause_s, without_s = (story.committed_s[n] - story.committed_s[n - 1] for n in (8, 7))
    # Beside a new epoch, the pause takes seven messages over the link, and the products.
    assert with_pause_s - without_s == pytest.approx(0.05 + COMPUTE_S + (1 + 2 * ROUNDS) * 0.03)
    with faulty(plan, iterations, SLOW, tmp_path) as job:
        assert job.result(60).exit_code == 0
    assert told(job.said) == wanted
    _, link, examined = (one for one in job.said if one.get("link") == SLOW.link or one.get("workers") == STAGE)
    assert link["delay_s"] == pytest.approx(0.03, abs=0.01)
    assert "0/1-2/1" in examined["found"]


def faulty(plan: Plan, iterations: int, event: TraceEvent, folder: Path) -> ProcessJob:
    """A job of real processes in which something becomes slow, and which adapts to nothing."""
    inject = folder / "trace.jsonl"
    inject.write_bytes(print_trace(Trace((event,))))
    return ProcessJob(plan, JobConfig(iterations, policy=PolicyName.SLIPSTREAM, inject=str(inject)), PACED)


@pytest.mark.checkout  # trains a model of benchmarks/
def test_a_death_in_a_pause(tmp_path: Path) -> None:
    """The others do not wait for the dead: they go on without it, and everything else is committed."""
    plan = plan_of(1, 3)
    slow = TraceEvent("slow_link", iteration=1, link="0/0-1/0", delay_s=0.06)
    with faulty(plan, 12, slow, tmp_path) as job:
        job.wait_for(lambda one: one["event"] == "examine")
        time.sleep(0.05)
        job.processes["2/0"].kill()
        assert job.result(60).exit_code == 0
    assert [one["iteration"] for one in job.said if one["event"] == "iteration"] == list(range(12))
    events = [one["event"] for one in job.said]
    assert events.index("examine") < events.index("failure")
    assert "examined" not in events
