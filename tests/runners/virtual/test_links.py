"""Stories of links: slow ones that a monitor finds and a plan is adapted to, and broken ones."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.runners.program import AllReduce, Send, Sending, lower
from rtk.runners.resilience.announcements import EpochBegun, WorkerFailed, WorkerSlowed
from rtk.runners.simulator import execute, simulate
from rtk.runners.virtual.cluster import (
    EpochConditions,
    TimedProgram,
    VirtualMachines,
    measured,
)
from rtk.runners.virtual.job import SimulatedRun, SwitchCosts, simulate_story
from rtk.schemas.conditions import HEALTHY, Conditions, Pair, SlowLink, SlowWorker, pair_of, under_conditions
from rtk.schemas.documents import canonical
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.plan import Plan, delay_at_home_s
from rtk.schemas.protocols import Hand, Measured, Replanned
from rtk.schemas.trace import EventKind, Trace, TraceEvent, check_trace

from ...strategies import hand_plan, plans

BOTH: tuple[Sending, ...] = ("direct", "delegated")
WAYS: tuple[Sending, ...] = ("auto", *BOTH)
COSTS = SwitchCosts(heartbeat_limit_s=2.0, regroup_s=0.5)


def one_f_one_b(warmups: int) -> str:
    """An order of six micro-batches."""
    steady = (f"B{done} F{done + warmups}" for done in range(6 - warmups))
    return " ".join([*(f"F{n}" for n in range(warmups)), *steady, *(f"B{n}" for n in range(6 - warmups, 6))])


LATE: dict[str, str | None] = {f"0/{i}": one_f_one_b(warmups) for i, warmups in enumerate((3, 2, 1))}
# With room for delays on the last link.
EARLY: dict[str, str | None] = {f"0/{i}": one_f_one_b(warmups) for i, warmups in enumerate((4, 3, 1))}


class Watching:
    """Finds a link, or a worker, that has been slow in three iterations in a row, and relieves it after two good ones.

    Attributes:
        seen: all that it was shown.
        forgotten: whom it was told to forget.
    """

    def __init__(self, usual_s: Callable[[str, str], float] = lambda one, other: 0.0) -> None:
        self.usual_s = usual_s
        self.seen: list[Measured] = []
        self.forgotten: list[str] = []
        self._late: dict[Pair, list[float]] = {}
        self._paces: dict[str, list[float]] = {}
        self._said = HEALTHY

    def note(self, measured: Measured) -> Conditions | None:
        self.seen.append(measured)
        sent = {
            (one.worker, to, number): at_s
            for one in self.seen
            if one.iteration == measured.iteration
            for to, number, at_s in one.sent
        }
        delays_s = [
            (source, at_s - sent[source, measured.worker, number])
            for source, number, at_s in measured.arrived
            if (source, measured.worker, number) in sent
        ]
        for source in sorted({source for source, _ in delays_s}):
            late_s = max(one for peer, one in delays_s if peer == source) - self.usual_s(source, measured.worker)
            self._late.setdefault(pair_of(source, measured.worker), []).append(round(late_s, 6))
        self._paces.setdefault(measured.worker, []).append(measured.pace or 1.0)
        links = (SlowLink(pair, max(own[-2:])) for pair, own in sorted(self._late.items()) if self._is_slow(pair, own))
        slow = (SlowWorker(name, own[-1]) for name, own in sorted(self._paces.items()) if min(own[-3:]) > 1.1)
        found = Conditions(tuple(links), tuple(slow))
        was, self._said = self._said, found
        return None if found == was else found

    def _is_slow(self, pair: Pair, late_s: list[float]) -> bool:
        if any(link.ends == pair for link in self._said.slow_links):
            return max(late_s[-2:]) > 0.1
        return len(late_s) >= 3 and min(late_s[-3:]) > 0.1

    def forget(self, worker: str) -> None:
        self.forgotten.append(worker)


def adapting(plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
    """The plan with room for a delay while there is one, and that without if not, as long as everybody is there."""
    orders = EARLY if conditions.slow_links else LATE
    found = replace(hand_plan(orders, 6), optimizer=plan.optimizer)
    for link in conditions.slow_links:
        found = under_conditions(found, {}, {(None, 1): link.delay_s})
    return Replanned(found, tuple((hand.worker, hand.place) for hand in crew if hand.place is not None))


def staying(plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
    return Replanned(plan, tuple((hand.worker, hand.place) for hand in crew if hand.place is not None))


def helpless(plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
    raise InfeasibleError("it does not fit into memory")


def on(iteration: int, kind: EventKind, link: str, **more: float) -> TraceEvent:
    return TraceEvent(kind, iteration=iteration, link=link, **more)  # type: ignore[arg-type]


def told(story: SimulatedRun, *events: str) -> list[tuple[str, int]]:
    return [(one.event, one.iteration or 0) for _, one in story.announced if one.event in events]


def times_s(story: SimulatedRun) -> list[float]:
    return [round(b - a, 6) for a, b in pairwise((0.0, *story.committed_s))]


SLOW = (on(2, "slow_link", "0/1-0/2", delay_s=2.0), on(10, "recover", "0/2-0/1"))


@pytest.mark.parametrize("optimizer", ["synchronous", "staggered"])
def test_a_slow_link_is_found_adapted_to_and_relieved(optimizer: str) -> None:
    """It is found in its third iteration, the adapted plan runs from the next one or two on, and until relief."""
    plan = replace(hand_plan(LATE, 6), optimizer=optimizer)  # type: ignore[arg-type]
    story = simulate_story(plan, Trace(SLOW), 18, adapting, COSTS, monitor=Watching())
    assert told(story, "slow_link") == [("slow_link", 4)]
    _, (_, adapted), _ = told(story, "epoch")
    assert adapted == (5 if optimizer == "synchronous" else 6)
    assert [[w.order for w in one.workers] for one in story.plans] == [
        list(orders.values()) for orders in (LATE, EARLY, LATE)
    ]
    delegated = [one.delegated for _, one in story.announced if isinstance(one, EpochBegun)]
    assert delegated == [(), ("0/1-0/2",), ()]
    ((relief, relieved),) = told(story, "relief")
    assert (relief, 10 < relieved <= 13) == ("relief", True)
    assert (story.exit_code, len(story.committed_s)) == (0, 18)
    kinds = [event.kind for event in story.timeline.events]
    assert kinds == ["slow_link", "slow_link", "epoch", "recover", "relief", "epoch"]


def test_what_each_step_of_the_loop_is_worth() -> None:
    """While the link is slow: direct sends cost most, then delegates with the old orders, then the adapted plan."""
    plan = hand_plan(LATE, 6)
    healthy_s = simulate(plan).iteration_time_s
    slow = under_conditions(plan, {}, {(None, 1): 2.0})
    direct_s, delegated_s = (simulate(slow, transport=way).iteration_time_s for way in BOTH)
    story = simulate_story(plan, Trace(SLOW), 18, adapting, COSTS, monitor=Watching())
    adapted_s = simulate(story.plans[1]).iteration_time_s
    assert healthy_s < adapted_s < delegated_s < direct_s
    spent_s = times_s(story)
    assert spent_s[:2] == [healthy_s] * 2
    assert spent_s[2:5] == [direct_s] * 3
    assert spent_s[5:10] == [adapted_s + COSTS.regroup_s, *[adapted_s] * 4]
    assert spent_s[-1] == healthy_s


def test_nobody_looks_without_a_monitor() -> None:
    """A link is as slow as it is sent over, and nothing follows from it."""
    plan = hand_plan(LATE, 6)
    slow = under_conditions(plan, {}, {(None, 1): 2.0})
    ways: tuple[tuple[Sending, Sending], ...] = (("auto", "direct"), ("direct", "direct"), ("delegated", "delegated"))
    for transport, way in ways:
        story = simulate_story(plan, Trace(SLOW), 4, adapting, COSTS, transport=transport)
        slow_s = simulate(slow, transport=way).iteration_time_s
        assert times_s(story)[2:] == [slow_s] * 2
        assert len(story.plans) == 1


def test_a_delay_that_the_plan_knows_is_delegated() -> None:
    """By `auto` a link with a planned delay has delegates from the start."""
    plan = hand_plan(LATE, 6, delay_s=0.5)
    story = simulate_story(plan, Trace(()), 2, staying, COSTS)
    assert story.iteration_time_s == simulate(plan).iteration_time_s
    assert simulate(plan, transport="direct").iteration_time_s > simulate(plan).iteration_time_s


def test_without_another_plan_training_goes_on() -> None:
    """A re-plan that is infeasible is said, and the running plan goes on, from then on by delegates."""
    plan = hand_plan(LATE, 6)
    story = simulate_story(plan, Trace(SLOW[:1]), 9, helpless, COSTS, monitor=Watching())
    assert told(story, "kept") == [("kept", 5)]
    assert (story.exit_code, len(story.committed_s)) == (0, 9)
    delegated_s = simulate(under_conditions(plan, {}, {(None, 1): 2.0})).iteration_time_s
    assert times_s(story)[-1] == delegated_s


def test_a_slow_worker_is_found() -> None:
    """Its pace is that of its operations; another plan for it does not make it slower than it is."""
    first = hand_plan(LATE, 6)

    def reckoning(plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
        slow = {one.worker: one.factor for one in conditions.slow_workers}
        return Replanned(under_conditions(first, slow, {}), staying(plan, crew, conditions).seats)

    trace = Trace((TraceEvent("slow_compute", iteration=1, worker="0/1", factor=3.0),))
    story = simulate_story(first, trace, 8, reckoning, COSTS, monitor=Watching())
    (slow,) = (one for _, one in story.announced if isinstance(one, WorkerSlowed))
    assert (slow.worker, slow.factor, slow.iteration) == ("0/1", 3.0, 3)
    assert [worker.slowdown for worker in story.plans[-1].workers] == [None, 3.0, None]
    slow_s = simulate(under_conditions(first, {"0/1": 3.0}, {})).iteration_time_s
    assert times_s(story)[1:4] == [slow_s] * 3
    assert times_s(story)[-1] == slow_s
    assert [event.worker for event in story.timeline.events if event.kind == "slow_worker"] == ["0/1"]


@pytest.mark.parametrize("optimizer", ["synchronous", "staggered"])
def test_a_broken_link_gets_a_detour(optimizer: str) -> None:
    """What is lost is noticed at once, taken for serious after the heartbeat limit, and redone over a third worker."""
    plan = replace(hand_plan(LATE, 6), optimizer=optimizer)  # type: ignore[arg-type]
    trace = Trace((on(0, "slow_link", "0/0-0/1", delay_s=0.25), on(2, "fail", "0/1-0/2")))
    story = simulate_story(plan, trace, 5, staying, COSTS)
    assert (story.exit_code, len(story.committed_s)) == (0, 5)
    assert told(story, "broken_link", "epoch", "recovered") == [
        ("epoch", 0),
        ("broken_link", 2),
        ("epoch", 2),
        ("recovered", 2),
    ]
    at_s = {event.kind: event.time_s for event in story.timeline.events}
    assert at_s["broken_link"] == at_s["epoch"] >= at_s["fail"] + COSTS.heartbeat_limit_s
    assert story.timeline.events[-1].message.endswith("0/0 passes on what 0/1-0/2 have for each other")
    # Link 0/0-0/1 is still slow and direct; the detour leads over it, and by delegates.
    detour = [span for span in story.timeline.spans if span.iteration == 4 and span.op == "F0"]
    ends_s = {span.worker: (span.start_s, span.end_s) for span in detour}
    assert ends_s["0/2"][0] - ends_s["0/1"][1] == pytest.approx(0.25)


def test_a_detour_that_breaks_is_replaced() -> None:
    """A link breaks that only a detour leads over: its two ends say so, and the messages go yet another way."""
    plan = hand_plan({f"0/{i}": "F0 B0" for i in range(4)}, 1)
    trace = Trace((on(1, "fail", "0/1-0/2"), on(2, "fail", "0/0-0/1")))
    story = simulate_story(plan, trace, 5, staying, COSTS)
    assert (story.exit_code, len(story.committed_s)) == (0, 5)
    detours = [one.detours for _, one in story.announced if isinstance(one, EpochBegun)]
    assert detours == [{}, {"0/1-0/2": "0/0"}, {"0/0-0/1": "0/3", "0/1-0/2": "0/3"}]


def test_a_link_that_carries_nothing_breaks_unnoticed() -> None:
    """Nobody suspects anything while nothing is lost, and a link that has recovered is as it was."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0", "1/0": "F0 B0", "1/1": "F0 B0"}, 1)
    trace = Trace((on(1, "fail", "0/0-1/1"), on(2, "fail", "0/0-0/1")))
    story = simulate_story(plan, trace, 4, staying, COSTS)
    assert told(story, "broken_link") == [("broken_link", 2)]
    breaks = TraceEvent("fail", time_s=9.5, link="0/0-0/1")
    recovers = TraceEvent("recover", time_s=9.75, link="0/0-0/1")
    again = simulate_story(plan, Trace((breaks, recovers)), 4, staying, COSTS)
    assert told(again, "broken_link", "recovered") == [("broken_link", 1), ("recovered", 1)]


def test_a_link_of_peers() -> None:
    """A sum goes around a ring in 2 (n - 1) steps, each as slow as its slowest link; broken, it takes a detour."""
    plan = hand_plan({f"{k}/0": "F0 B0" for k in range(3)}, 1)
    slow = Trace((on(1, "slow_link", "0/0-2/0", delay_s=0.25),))
    watching = Watching()
    story = simulate_story(plan, slow, 3, staying, COSTS, monitor=watching)
    assert times_s(story) == [3.0, 4.0, 4.0]
    last = watching.seen[-1]
    assert (last.reduction_s, last.peers) == ((10.0, 11.0), ("0/0", "1/0"))
    story = simulate_story(plan, Trace((*slow.events, on(2, "fail", "0/0-1/0"))), 4, staying, COSTS)
    assert told(story, "broken_link") == [("broken_link", 2)]
    assert times_s(story)[-1] == 4.0  # over 2/0, whose link to 0/0 is the slow one


def test_with_nobody_between_a_worker_is_lost() -> None:
    """Where no third worker is there, one of the two has to go."""
    story = simulate_story(hand_plan({"0/0": "F0 B0", "0/1": "F0 B0"}, 1), _broken(1), 4, helpless, COSTS)
    assert (story.exit_code, len(story.committed_s)) == (5, 1)
    assert [one.worker for _, one in story.announced if isinstance(one, WorkerFailed)] == ["0/1"]


def _broken(iteration: int) -> Trace:
    return Trace((on(iteration, "fail", "0/0-0/1"),))


@settings(max_examples=25, deadline=None)
@given(plans(max_pp=3, max_microbatches=3), st.integers(1, 4), st.sampled_from(WAYS))
def test_with_nothing_slow_a_monitor_changes_nothing(plan: Plan, iterations: int, transport: Sending) -> None:
    """Without events a monitor sees every worker once an iteration, at its planned pace, and the story is the same."""
    watching = Watching(lambda one, other: 1e9)
    plain = simulate_story(plan, Trace(()), iterations, staying, transport=transport)
    story = simulate_story(plan, Trace(()), iterations, staying, monitor=watching, transport=transport)
    names = [worker.name for worker in plan.live_workers()]
    assert sorted((one.iteration, one.worker) for one in watching.seen) == sorted(
        (number, name) for number in range(iterations) for name in names
    )
    paces = {worker.name: worker.slowdown or 1.0 for worker in plan.live_workers()}
    assert all(one.pace in (None, pytest.approx(paces[one.worker])) for one in watching.seen)
    if all(pace <= 1.1 for pace in paces.values()):
        assert (story.timeline, story.committed_s) == (plain.timeline, plain.committed_s)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(["synchronous", "staggered"]), st.sampled_from(WAYS))
def test_random_links_end_and_repeat(data: st.DataObject, optimizer: str, transport: Sending) -> None:
    """Whatever links do, the job ends with all iterations done, and the same trace gives the same story."""
    orders: dict[str, str | None] = {f"{k}/{i}": "F0 F1 B0 B1" for k in range(2) for i in range(3)}
    plan = replace(hand_plan(orders, 2, delay_s=data.draw(st.sampled_from([0.0, 0.5]))), optimizer=optimizer)  # type: ignore[arg-type]
    links = st.sampled_from(["0/0-0/1", "0/1-0/2", "1/2-0/1", "0/0-1/0", "1/1-0/1", "1/2-1/1"])
    events = sorted(
        data.draw(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["slow_link", "fail", "recover"]), links))),
        key=lambda event: event[0],
    )
    trace = Trace(
        tuple(on(n, kind, link, **({"delay_s": 1.0} if kind == "slow_link" else {})) for n, kind, link in events)  # type: ignore[arg-type]
    )
    check_trace(plan, trace)
    one, other = (
        simulate_story(plan, trace, 8, staying, COSTS, monitor=Watching(), transport=transport) for _ in range(2)
    )
    assert canonical(one.timeline) == canonical(other.timeline)
    assert one.announced == other.announced
    assert (one.exit_code, len(one.committed_s)) == (0, 8)


def standing(plan: Plan, **more: object) -> EpochConditions:
    names = tuple(worker.name for worker in plan.live_workers())
    usual = EpochConditions(names, (1.0,) * len(names), (), frozenset(), (), ())
    return replace(usual, **more)  # type: ignore[arg-type]


def staged(plan: Plan, transport: Sending = "auto", **more: object) -> TimedProgram:
    return VirtualMachines(plan, transport).staged(canonical(plan).decode(), standing(plan, **more))


@settings(max_examples=60, deadline=None)
@given(plans(max_pp=4, max_microbatches=3))
def test_at_home_all_is_as_planned(plan: Plan) -> None:
    """Without faults, with everybody at home, the true program is the first plan's own."""
    assert staged(plan).program == lower(plan)


def test_delays_belong_to_machines() -> None:
    """Two workers take their link along when they change places; what the running plan says of links is not true."""
    plan = under_conditions(hand_plan(LATE, 6), {}, {(None, 0): 1.0, (None, 1): 5.0})
    assert [delay_at_home_s(plan, *pair) for pair in (("0/0", "0/1"), ("0/2", "0/1"), ("0/0", "0/2"))] == [1.0, 5.0, 0]
    moved = staged(plan, names=("0/1", "0/0", "0/2"), links=((("0/0", "0/2"), 3.0, 0.5),))
    delays_s = {
        frozenset((rank, one.to)): one.delay_s
        for rank, own in enumerate(moved.program.instructions)
        for one in own
        if isinstance(one, Send)
    }
    assert delays_s == {frozenset((0, 1)): 1.0, frozenset((1, 2)): 0.5}
    assert moved.direct == frozenset()  # for the running plan reckons with delays
    assert staged(plan, "direct").direct == {(0, 1), (1, 2)}
    over = staged(plan, "direct", broken=frozenset({("0/1", "0/2")}), detours=((1, 2, 0),))
    assert over.direct == {(0, 1)}
    assert not over.cuts({(1, 2): 0.0})
    assert over.cuts({(1, 2): 0.0, (0, 2): 3.0}) == {(0, 2): 3.0, (1, 2): 3.0}


def test_probes_and_samples() -> None:
    """Over a delegated link without messages one probe goes each way; direct messages count only where waited for."""
    plan = hand_plan({f"{k}/{i}": "F0 B0" for k in range(2) for i in range(2)}, 1)
    quiet = staged(plan, delegated=((0, 2),), links=((("0/0", "1/0"), 1.0, 0.25),))
    seen = [measured(quiet, execute(quiet.program), rank, standing(plan).names, 3, 10.0) for rank in range(4)]
    assert [(to, number, at_s) for to, number, at_s in seen[0].sent if number < 0] == [("1/0", -4, 10.0)]
    assert [one for one in seen[2].arrived if one[1] < 0] == [("0/0", -4, 10.25)]
    (reduction,) = (one for one in quiet.program.instructions[0] if isinstance(one, AllReduce))
    assert (reduction.duration_s, seen[0].peers, seen[0].pace) == (0.5, ("1/0",), 1.0)
    assert all(arrived for arrived in (seen[1].arrived, seen[3].arrived))
    busy = hand_plan(LATE, 6)
    direct, delegated = staged(busy, "direct"), staged(busy, "delegated")
    for staging, known in ((direct, 1), (delegated, 6)):
        found = measured(staging, execute(staging.program, direct=staging.direct), 1, standing(busy).names, 0, 0.0)
        assert len([one for one in found.arrived if one[0] == "0/0"]) == known


def test_the_dead_are_forgotten() -> None:
    """A monitor hears of a worker's death, as in a real run."""
    plan = hand_plan({f"{k}/0": "F0 B0" for k in range(2)}, 1)
    watching = Watching()
    trace = Trace((TraceEvent("fail", iteration=1, worker="1/0"),))
    story = simulate_story(plan, trace, 3, helpless, COSTS, monitor=watching)
    assert (watching.forgotten, story.exit_code) == (["1/0"], 5)


def test_links_that_can_fail() -> None:
    """Neighbours of any pipelines and peers have links; others have none."""
    plan = hand_plan({f"{k}/{i}": "F0 B0" for k in range(2) for i in range(3)}, 1)
    for link in ("0/0-1/1", "1/2-0/1", "0/1-1/1"):
        check_trace(plan, Trace((on(0, "fail", link), on(1, "recover", link), on(1, "slow_link", link, factor=2.0))))
    with pytest.raises(InvalidInputError, match="there is no link 0/0-1/2"):
        check_trace(plan, Trace((on(0, "fail", "0/0-1/2"),)))
