"""The replay's books: they agree with a replay that counts one iteration after the other, and nothing is lost."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.runners.replay.engine import Record, refused, replay, report_of, stretches_of, yardstick_of
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Place, Plan
from rtk.schemas.replay import Checkpointing, Fleet, Moment, Pause, StateChange, TrainingState, Transition

KINDS = ("detecting", "planning", "copying", "restarting", "checkpointing")


@dataclass(frozen=True)
class Scripted:
    """A policy that answers each moment, told apart by its time, as it was told to."""

    first: TrainingState
    answers: Mapping[float, Transition]

    def begin(self, fleet: Fleet) -> TrainingState:
        """As told."""
        return self.first

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """As told."""
        return self.answers[moment.time_s]

    def plan(self, standing: TrainingState) -> Plan | None:
        """None: nobody asks."""
        return None

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """Nobody sits anywhere."""
        return {}


class Counted:
    """The same replay second by second, in exact fractions of these: the oracle."""

    def __init__(self, policy: Scripted, end: int) -> None:
        self.spent: defaultdict[str, Any] = defaultdict(int)
        self.standing, self.part, self.ahead, self.since = policy.first, Fraction(0), Fraction(0), Fraction(0)
        self.pauses: list[list[Any]] = []  # kind and seconds left
        self.uncertain: list[tuple[Fraction, int]] = []
        self.steps: list[tuple[float, StateChange]] = []
        for now in range(end + 1):
            changes = now == end or now in policy.answers
            while self.is_due(now - changes):
                self.take_next()
                if changes:  # only what has waited for this boundary comes before the change
                    break
            if now == end:
                break
            if now in policy.answers:
                self.steps = [(now + step.after_s, step) for step in policy.answers[now]]
            while self.is_due(now):
                self.take_next()
            self.second(now)
        self.spend("working", self.part - self.ahead)

    def spend(self, purpose: str, lasts: Any) -> None:
        """So much time goes there."""
        self.spent[purpose] += lasts

    def is_due(self, now: float) -> bool:
        """Whether the next step is, and nothing hinders it."""
        return bool(self.steps) and self.steps[0][0] <= now and self.may_take(self.steps[0][1])

    def take_next(self) -> None:
        """Take the next step."""
        self.take(self.steps.pop(0)[1])

    def may_take(self, step: StateChange) -> bool:
        """Whether nothing hinders a step."""
        return step.interrupts or (not self.pauses and not self.part)

    def take(self, step: StateChange) -> None:
        """A standing takes over."""
        self.spent[step.answer] += 1
        kept = Fraction(0)
        if step.interrupts:
            kept = self.kept(step)
            self.spend("lost", max(Fraction(0), self.part - self.ahead - kept))
        waited = [(kind, left) for kind, left in self.pauses]
        own = sum(Fraction(pause.lasts_s) for pause in step.pauses)
        self.pauses = [[pause.kind, Fraction(pause.lasts_s)] for pause in step.pauses if pause.lasts_s]
        for kind, left in waited:
            if kind != "checkpointing" and left > own:
                self.pauses.append([kind, left - own])
            own = max(Fraction(0), own - left)
        self.ahead = max(Fraction(0), kept - (self.part - self.ahead))
        if step.rolls_back:
            self.spent["working"] -= sum(work for work, _ in self.uncertain)
            self.spent["lost"] += sum(work for work, _ in self.uncertain)
            self.spent["microbatches"] -= sum(batch for _, batch in self.uncertain)
            self.saved()
        self.part, self.standing = kept, step.standing

    def kept(self, step: StateChange) -> Fraction:
        """Of an interrupted iteration; while all pause nobody gets further."""
        following, running = step.standing.iteration_time_s, self.standing.iteration_time_s
        if following is None or step.rolls_back:
            return Fraction(0)
        share = 1 - Fraction(step.left)
        if self.pauses:
            share = min(share, self.part / Fraction(running) if running else Fraction(0))
        return share * Fraction(following)

    def second(self, now: int) -> None:
        """One second passes."""
        at = Fraction(now)
        while at < now + 1:
            at += self.some(now + 1 - at)
            while at < now + 1 and self.is_due(float(at)):
                self.take_next()

    def some(self, most: Fraction) -> Fraction:
        """Time passes until something ends, at most so much; returns how much."""
        if self.pauses:
            kind, left = self.pauses[0]
            took: Fraction = min(most, left)
            self.spend(kind, took)
            self.pauses[0][1] -= took
            if not self.pauses[0][1] and self.pauses.pop(0)[0] == "checkpointing":
                self.saved()
        elif self.standing.iteration_time_s is None:
            took = most
            self.spend("waiting", took)
        else:
            took = min(most, Fraction(self.standing.iteration_time_s) - self.part)
            self.part += took
            if self.part == self.standing.iteration_time_s:
                self.commit()
        return took

    def commit(self) -> None:
        """An iteration counts."""
        took = self.part - self.ahead
        self.spend("working", took)
        self.spent["microbatches"] += self.standing.microbatches
        self.uncertain.append((took, self.standing.microbatches))
        self.since, self.part, self.ahead = self.since + self.part, Fraction(0), Fraction(0)
        every = self.standing.checkpointing
        if every is not None and self.since >= every.every_s:
            self.pauses = [["checkpointing", Fraction(every.pause_s)]]

    def saved(self) -> None:
        """A checkpoint is done."""
        self.since, self.uncertain = Fraction(0), []


CHECKPOINTS = st.none() | st.builds(Checkpointing, st.integers(1, 20).map(float), st.integers(1, 4).map(float))
STANDINGS = st.builds(
    TrainingState,
    st.just("somewhere"),
    st.none() | st.integers(1, 9).map(float),
    st.integers(1, 5),
    st.integers(0, 4),
    checkpointing=CHECKPOINTS,
)
PAUSES = st.lists(st.builds(Pause, st.sampled_from(KINDS[:4]), st.integers(0, 12).map(float)), max_size=3).map(tuple)
STEPS = st.builds(
    StateChange, STANDINGS, st.sampled_from(["a", "b"]), PAUSES, st.integers(0, 15).map(float), st.booleans()
).flatmap(
    lambda step: st.builds(
        lambda back, left: replace(step, rolls_back=back and step.interrupts, left=left),
        st.booleans(),
        st.sampled_from([1.0, 0.75, 0.5, 0.25]),
    )
)
ANSWERS = st.dictionaries(
    st.integers(1, 90), st.lists(STEPS, max_size=2).map(lambda steps: tuple(sorted(steps, key=lambda s: s.after_s))),
    max_size=6,
)  # fmt: skip


def moments_of(answers: Mapping[int, Any], nodes: int = 4) -> list[Moment]:
    """The beginning, and a node that comes and goes at each time."""
    names = tuple(f"n{number}" for number in range(nodes))
    return [Moment(float(time), Fleet(names), came=("passer-by",)) for time in (0, *sorted(answers))]


@settings(max_examples=200)
@given(STANDINGS, ANSWERS, st.integers(91, 140))
def test_a_replay_equals_one_that_counts_seconds(first: TrainingState, answers: Any, end: int) -> None:
    """Whatever steps come when: every purpose's seconds, the micro-batches and the answers are those of the oracle."""
    policy = Scripted(first, {float(time): steps for time, steps in answers.items()})
    found = replay(policy, moments_of(answers), float(end))
    expected = Counted(policy, end).spent
    got = dict(found.spent_s) | dict(found.answers) | {"microbatches": found.microbatches}
    names = {name for name in {*got, *expected} if abs(got.get(name, 0) - expected[name]) > 1e-6}
    assert not names, {name: (got.get(name, 0), float(expected[name])) for name in names}
    assert sum(found.spent_s.values()) == pytest.approx(end)
    assert sum(span.microbatches for span in found.spans) == found.microbatches


def steady(iteration_s: float, every: Checkpointing | None, end_s: float) -> Record:
    """Ten micro-batches an iteration on two nodes, and nothing ever happens."""
    first = TrainingState("here", iteration_s, 10, 2, checkpointing=every)
    return replay(Scripted(first, {}), moments_of({}, nodes=2), end_s)


@given(st.floats(0.01, 50), st.floats(1, 1e7))
def test_without_events_the_throughput_is_that_of_the_plan(iteration_s: float, end_s: float) -> None:
    """As many iterations are committed as fit, to one."""
    found = steady(iteration_s, None, end_s)
    assert found.microbatches / 10 == pytest.approx(end_s / iteration_s, abs=1.001)


@given(st.floats(0.01, 50), st.integers(1, 1000), st.floats(0, 100), st.floats(1, 1e7))
def test_checkpoints_take_their_share(iteration_s: float, every: int, pause_s: float, end_s: float) -> None:
    """They pause training after each whole number of iterations that makes `every_s`, for months as for minutes."""
    found = steady(iteration_s, Checkpointing((every - 0.5) * iteration_s, pause_s), end_s)
    assert sum(found.spent_s.values()) == pytest.approx(end_s)
    assert found.microbatches / 10 * iteration_s == pytest.approx(found.spent_s["working"], abs=1.001 * iteration_s)
    rounds = end_s / (every * iteration_s + pause_s)
    assert found.spent_s["checkpointing"] == pytest.approx(rounds * pause_s, abs=1.01 * pause_s + 1e-6)


def test_the_yardstick_measures_itself_as_one() -> None:
    """The fault-free cluster's own goodput is 1, all its GPU-hours are useful, and nothing is lost or idle."""
    record = steady(2.0, None, 7200.0)
    found = report_of("fault-free", record, yardstick_of(record, 8, 2.0), 2.0)
    assert found.goodput == 1
    assert found.gpu_hours.present == found.gpu_hours.useful == 32
    assert found.gpu_hours.idle == found.gpu_hours.lost == 0
    assert found.cost == 64


def test_many_spans_become_few_stretches_with_the_same_micro_batches() -> None:
    """Merged stretches commit in all what the spans did, and lie in order of time."""
    answers = {time: (StateChange(TrainingState("x", 1.0, 3, 2), "on"),) for time in range(1, 400)}
    policy = Scripted(TrainingState("x", 1.0, 3, 2), {float(time): steps for time, steps in answers.items()})
    moments = [Moment(float(t), Fleet(("a", "b", "c")[: 2 + t % 2])) for t in range(400)]
    record = replay(policy, moments, 400.0)
    found = stretches_of(record.spans, most=50)
    ends = [*(one.time_s for one in found[1:]), 400.0]
    assert len(found) <= 51
    total = sum(one.microbatches_per_s * (end - one.time_s) for one, end in zip(found, ends, strict=True))
    assert total == pytest.approx(record.microbatches)
    assert ends == sorted(ends)


def test_moments_out_of_order_and_no_moments_are_refused() -> None:
    """A trace that goes back in time, or has nothing, is an error that says so."""
    policy = Scripted(TrainingState("x", 1.0, 1, 1), {5.0: (), 3.0: ()})
    with pytest.raises(InvalidInputError, match="comes after"):
        replay(policy, [Moment(0.0, Fleet(())), Moment(5.0, Fleet(("a",))), Moment(3.0, Fleet(()))])
    with pytest.raises(InvalidInputError, match="no events"):
        replay(policy, [])


def test_moments_are_read_as_they_come() -> None:
    """A trace without an end is replayed as far as it is asked for."""

    def endless() -> Any:
        time = 0.0
        while True:
            yield Moment(time, Fleet(("a",)), came=("b",))
            time += 10.0

    class Idle(Scripted):
        def react(self, standing: TrainingState, moment: Moment) -> Transition:
            return ()

    assert replay(Idle(TrainingState("x", 1.0, 1, 1), {}), endless(), 1000.0).microbatches == 1000


def test_a_moment_at_which_nothing_changes_only_closes_the_trace() -> None:
    """The policy is not asked about it, and what was under way goes on to it."""
    fleet = Fleet(("a",))
    policy = Scripted(
        TrainingState("x", 1.0, 1, 1), {1.0: (StateChange(TrainingState("x", 2.0, 1, 1), "on", after_s=4.0),)}
    )
    moments = [Moment(0.0, fleet), Moment(1.0, fleet, came=("b",)), Moment(3.0, fleet), Moment(9.0, fleet)]
    record = replay(policy, moments)
    assert (record.lasts_s, record.microbatches, dict(record.answers)) == (9.0, 5 + 2, {"on": 1})


def test_what_is_due_after_the_end_does_not_happen() -> None:
    """A change in the last instant is answered then or never: the books close with the trace."""
    slower = TrainingState("x", 2.0, 1, 1)
    for after_s, answers in ((0.0, {"on": 1}), (4.0, {})):
        policy = Scripted(TrainingState("x", 1.0, 1, 1), {9.0: (StateChange(slower, "on", after_s=after_s),)})
        record = replay(policy, [Moment(0.0, Fleet(("a",))), Moment(9.0, Fleet(("a",)), came=("b",))])
        assert (record.lasts_s, record.microbatches, dict(record.answers)) == (9.0, 9, answers)
        assert (sum(record.spent_s.values()), record.spans[-1].end_s) == (9.0, 9.0)


def test_a_change_of_pace_is_no_answer() -> None:
    """A step without a word takes over like any other, and is not counted."""
    policy = Scripted(TrainingState("x", 1.0, 1, 1), {4.0: (StateChange(TrainingState("x", 2.0, 1, 1), ""),)})
    record = replay(policy, [Moment(0.0, Fleet(("a",))), Moment(4.0, Fleet(("a",), {"a": 2.0}))], 10.0)
    assert (record.microbatches, dict(record.answers)) == (4 + 3, {})


def test_a_policy_that_cannot_train_says_why() -> None:
    """Its report carries the reason, and nothing else."""
    found = refused("bamboo", "two stages do not fit")
    assert (found.refusal, found.goodput, found.gpu_hours.present) == ("two stages do not fit", 0.0, 0.0)
