"""An iteration can be run up to its step, says what it did, and can be slowed down or cut short."""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.runners.program import AllReduce, Compute, GradientBucket, Send, lower
from rtk.runners.resilience.protocol import StepTerms
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.iteration import Iteration, groups_of, splits_backward
from rtk.runners.torch.rank import Rank, SpanTimer
from rtk.runners.torch.transport import Tags
from rtk.schemas.errors import RuntimeFailedError
from rtk.schemas.orders import Operation, Schedule
from rtk.schemas.plan import Optimizer, Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.timeline import Span

from ..strategies import unlike_plans
from .placed import placed_plan

WIDTH = 4
MICROBATCHES = 3

Batch = list[tuple[torch.Tensor, torch.Tensor]]


class Alone:
    """The transport of a plan of one worker, to whom nobody sends anything; counts the ranks' meetings."""

    def __init__(self) -> None:
        self.sums = 0

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        raise AssertionError("nothing comes")

    def receive(self, tag: int, source: int) -> torch.Tensor:
        raise AssertionError("nothing comes")

    def send(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        raise AssertionError("nobody takes it")

    def deliver(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        raise AssertionError("nobody takes it")

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        self.sums += 1

    def begin_sum(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        self.all_reduce(group, tensor)

    def end_sums(self) -> None:
        pass

    def flush(self, but: int = 0) -> None:
        pass

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass


def make_plan(schedule: Schedule = "zero-bubble", cost_s: float = 1.0) -> Plan:
    profile = Profile((Layer((LayerCost(cost_s, cost_s, cost_s, optimizer_s=cost_s),)),) * 2)
    return plan_pipeline(profile, Shape(1, 1, MICROBATCHES), schedule)


def make_rank(plan: Plan, spans: list[Span] | None = None) -> Rank:
    torch.manual_seed(1)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
    program = lower(plan)
    held = HeldStage(
        layers,
        (0, 2),
        F.mse_loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        is_last=True,
        is_split=splits_backward(program.instructions[0]),
    )
    like = torch.empty(2, WIDTH)
    record = ([] if spans is None else spans).append
    return Rank(program, 0, held, Alone(), lambda boundary: like, time.perf_counter, record)


def batch() -> Batch:
    generator = torch.Generator().manual_seed(2)
    return [(x, x.flip(0)) for x in torch.randn(MICROBATCHES, 2, WIDTH, generator=generator)]


@given(schedule=st.sampled_from(["1f1b", "zero-bubble", "gpipe"]))
def test_nothing_changes_before_the_step(schedule: Schedule) -> None:
    """Up to the all-reduce the state stays, and may be computed again with the same gradients; then the step steps."""
    rank = make_rank(make_plan(schedule))
    before = rank.held.checksums()
    first = Iteration(rank, 0, batch())
    first.reduce()
    gradients = rank.held.gradients.buffers[0].clone()
    again = Iteration(rank, 0, batch())
    again.reduce()
    assert rank.held.checksums() == before
    assert torch.equal(rank.held.gradients.buffers[0], gradients)
    again.step(StepTerms(MICROBATCHES, None, 0))
    assert rank.held.checksums() != before
    other = make_rank(make_plan(schedule))
    Iteration(other, 0, batch()).run()
    assert other.held.checksums() == rank.held.checksums()


class Writing(Alone):
    """Notes when sums begin; may write to them whenever it likes, as long as nobody has waited for them."""

    def __init__(self, did: list[str]) -> None:
        super().__init__()
        self.did = did
        self.begun: list[torch.Tensor] = []

    def begin_sum(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        self.did.append("sum")
        self.begun.append(tensor)

    def end_sums(self) -> None:
        self.did.append("end")
        self.begun.clear()


def two_stages(did: list[str], **options: Any) -> Rank:
    """A worker of two virtual stages, who has a peer and exchanges messages with nobody."""
    rank = make_rank(placed_plan(((0, 1),), 2, (2, 2), "FB"))
    return replace(rank, transport=Writing(did), record=lambda span: did.append(span.op), **options)


def test_the_sum_of_a_stage_begins_among_the_operations_of_another() -> None:
    """The last stage's gradients are on their way before the first one's are whole; nobody waits before the end."""
    did: list[str] = []
    Iteration(two_stages(did), 0, batch()).reduce()
    last, first = (max(n for n, one in enumerate(did) if one.startswith(f"{stage}B")) for stage in (1, 0))
    sums = [n for n, one in enumerate(did) if one == "sum"]
    assert sums == [last + 1, first + 1] and last + 1 < first
    assert did[-2:] == ["end", "allreduce"]


def test_a_sum_that_breaks_off_may_be_written_to_for_long() -> None:
    """Where training goes on after an error, what is still summed then is none of the gradients that begin anew."""
    did: list[str] = []
    stopped = [False]

    def stop(operation: int) -> None:
        if "sum" in did and not stopped[0]:
            stopped[0] = True
            raise RuntimeFailedError("a peer is gone")

    rank = two_stages(did, before=stop, before_sums=lambda run: None)
    wanted = two_stages([])
    Iteration(wanted, 0, batch()).reduce()
    with pytest.raises(RuntimeFailedError):
        Iteration(rank, 0, batch()).reduce()
    transport = rank.transport
    assert isinstance(transport, Writing) and transport.begun
    rank.held.reset()
    again = Iteration(rank, 0, batch())
    for one in transport.begun:
        one.fill_(torch.nan)
    transport.begun.clear()
    again.reduce()
    assert torch.equal(rank.held.gradients.buffers[0], wanted.held.gradients.buffers[0])


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_an_iteration_says_what_it_did(schedule: Schedule) -> None:
    """Each micro-batch's own loss and count is told, the iteration's is their mean; who ran backward is told."""
    rank = make_rank(make_plan(schedule))
    whole = nn.Sequential(*rank.held.stage.layers)
    wanted = {n: F.mse_loss(whole(x), target).item() for n, (x, target) in enumerate(batch())}
    run = Iteration(rank, 0, batch())
    assert (run.losses, run.microbatches, run.loss) == ({}, (), None)
    run.reduce()
    assert {number: total for number, (total, _) in run.losses.items()} == pytest.approx(wanted)
    assert {count for _, count in run.losses.values()} == {1.0}
    assert run.loss == pytest.approx(sum(wanted.values()) / MICROBATCHES)
    assert sorted(run.microbatches) == list(range(MICROBATCHES))


@given(st.integers(0, 3 * MICROBATCHES - 1))
def test_an_iteration_cut_short_can_be_run_again(place: int) -> None:
    """The hook sees the operations in order from 0; an iteration that it ends, once reset, runs again as if new."""
    seen: list[int] = []

    def stop(operation: int) -> None:
        seen.append(operation)
        if operation == place:
            raise KeyboardInterrupt

    rank = make_rank(make_plan())
    wanted = make_rank(make_plan())
    run = Iteration(replace(rank, before=stop), 0, batch())
    with pytest.raises(KeyboardInterrupt):
        run.reduce()
    assert seen == list(range(place + 1))
    rank.held.reset()
    for one in (rank, wanted):
        Iteration(one, 0, batch()).run()
    assert rank.held.checksums() == wanted.held.checksums()


@pytest.mark.parametrize(("optimizer", "meetings"), [("synchronous", 1), ("staggered", 0)])
def test_ranks_meet_where_the_plan_says(optimizer: Optimizer, meetings: int) -> None:
    """Before a synchronous step all ranks meet once; a staggered one waits for nobody, and `step` never does."""
    rank = make_rank(replace(make_plan(), optimizer=optimizer))
    run = Iteration(rank, 0, batch())
    run.reduce()
    agreed = run.agree()
    run.step(agreed.terms)
    assert agreed.terms.count == MICROBATCHES
    assert (agreed.terms.norm is None) == (meetings == 0)
    assert isinstance(rank.transport, Alone)
    assert rank.transport.sums == meetings


def ticking(step_s: float) -> Iterator[float]:
    return (number * step_s for number in count())


@pytest.mark.parametrize(
    ("paced", "slowdown", "wanted_s"), [(False, 1.0, []), (False, 3.0, [2.0]), (True, 1.0, [4.0]), (True, 3.0, [14.0])]
)
def test_slowness_is_slept(
    monkeypatch: pytest.MonkeyPatch, paced: bool, slowdown: float, wanted_s: list[float]
) -> None:
    """What took 1 s lasts three times as long at slowdown 3; paced, three times what the plan says, here 5 s."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    clock = ticking(1.0)
    rank = replace(make_rank(make_plan()), paced=paced, now_s=lambda: next(clock))
    with SpanTimer(rank, 0, "F0", 5.0, slowdown):
        pass
    assert slept == wanted_s


def test_both_slownesses_count_in_a_paced_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan's slowdown and the injected one multiply an operation's time, and leave the step's alone."""
    now_s = [0.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    plan = make_plan(cost_s=2.0)
    plan = replace(plan, workers=(replace(plan.workers[0], slowdown=2.0),), prediction=None)
    spans: list[Span] = []
    rank = replace(make_rank(plan, spans), paced=True, slowdown=3.0, now_s=lambda: now_s[0])
    Iteration(rank, 4, batch()).run()
    lasted_s = {span.op: span.end_s - span.start_s for span in spans}
    assert list(lasted_s) == [*(plan.workers[0].order or "").split(), "step"]
    stage = plan.stage_of(plan.workers[0])
    step_s = lasted_s.pop("step")
    assert step_s == stage.optimizer_s
    assert all(seconds == 6 * stage.duration_s(op[0]) for op, seconds in lasted_s.items())
    assert {(span.worker, span.iteration) for span in spans} == {("0/0", 4)}


def test_what_is_true_of_a_worker_counts_and_not_what_its_plan_believes() -> None:
    """A paced worker keeps its own slowness under any plan; its pace is over the times of a stage that is not slow."""
    plan = make_plan(cost_s=0.001)
    plan = replace(plan, workers=(replace(plan.workers[0], slowdown=50.0),), prediction=None)
    rank = replace(make_rank(plan), paced=True, true_slowdown=2.0)
    stage_s = plan.stage_of(plan.workers[0]).forward_s
    assert rank.duration_s(Compute(Operation("F", 0, 0))) == 2 * stage_s
    run = Iteration(rank, 0, batch())
    assert run.pace is None
    run.reduce()
    assert run.pace is not None
    assert run.pace >= 2
    assert run.reduction_s is None


def test_a_failed_operation_leaves_no_span() -> None:
    """What raises is not slept out and not recorded."""
    spans: list[Span] = []
    rank = replace(make_rank(make_plan(), spans), paced=True)
    with pytest.raises(KeyError), SpanTimer(rank, 0, "F0", 100.0):
        raise KeyError
    assert spans == []


@given(unlike_plans(max_microbatches=3))
def test_tags_tell_all_messages_apart(plan: Plan) -> None:
    """No two messages of an iteration, nor of it and the next, have one tag, however many links each pipeline has; nor
    has one of evaluation, or of what is left of an iteration."""
    tags, sent = Tags(plan), [one.message for rank in lower(plan).instructions for one in rank if isinstance(one, Send)]
    of_rest, layers = Tags(plan, is_rest=True), plan.templates[0].stages[-1].layers[1]
    kept = {replace(message, link=link) for message in sent for link in range(1, layers)}
    found = {tags.of(message, n) for message in sent for n in (6, 7)}
    found |= {tags.of_evaluation(message, n) for message in sent for n in (0, 1)}
    found |= {of_rest.of(message, n) for message in kept for n in (6, 7)}
    assert len(found) == 4 * len(sent) + 2 * len(kept)


class Recording(nn.Module):
    """Notes the random numbers that it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.drawn.append(torch.rand(()).item())
        return value * self.drawn[-1]


def drawn_by(recording: Recording) -> list[float]:
    """What a layer has drawn since it was last asked."""
    drawn, recording.drawn = recording.drawn, []
    return drawn


def test_randomness_depends_on_its_place_in_the_training_only() -> None:
    """What a layer draws is given by seed, iteration, micro-batch and layer, and unlike in all of them."""
    layers = [Recording(), Recording()]
    rank = make_rank(make_plan())
    own = rank.held.stage.layers
    own[0], own[1] = (nn.Sequential(*both) for both in zip(own, layers, strict=True))
    found: dict[tuple[int, int, int, int], float] = {}
    for seed, number in ((0, 0), (0, 1), (1, 0), (0, 0)):
        run = Iteration(replace(rank, seed=seed), number, batch())
        run.reduce()
        for place, layer in enumerate(layers):
            for microbatch, value in enumerate(drawn_by(layer)):
                assert found.setdefault((seed, number, microbatch, place), value) == value
    assert len(set(found.values())) == len(found) == 3 * MICROBATCHES * 2


def test_what_a_program_needs() -> None:
    """Whether a rank splits its backward pass, and over which groups it sums, is read off its instructions."""
    peers = lower(plan_pipeline(Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),) * 2), Shape(2, 2, 2), "zero-bubble"))
    assert [groups_of(one) for one in peers.instructions] == [{(0, 2)}, {(1, 3)}, {(0, 2)}, {(1, 3)}]
    assert groups_of((AllReduce((GradientBucket((0, 1), (0, 2)), GradientBucket((1, 3), (0, 1)))),)) == {(0, 2), (0, 1)}
    assert splits_backward(lower(make_plan("zero-bubble")).instructions[0])
    assert not splits_backward(lower(make_plan("1f1b")).instructions[0])
