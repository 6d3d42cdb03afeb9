"""Lowering: what each worker's program sends, receives and ends with."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given

from rtk.runners.program import AllReduce, Compute, Message, Receive, Send, Step, lower
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Link, Pipeline, Plan, Stage, Template, Worker

from ..strategies import BY_HAND, hand_plan, plans


@given(plans())
def test_each_send_has_its_receive(plan: Plan) -> None:
    """Every message is sent once and received once, by the rank that it is sent to, and takes its link's delay."""
    program = lower(plan)
    sent: dict[Message, tuple[int, int, float]] = {}
    received: dict[Message, tuple[int, int]] = {}
    for rank, instructions in enumerate(program.instructions):
        for instruction in instructions:
            if isinstance(instruction, Send):
                assert instruction.message not in sent
                sent[instruction.message] = rank, instruction.to, instruction.delay_s
            elif isinstance(instruction, Receive):
                assert instruction.message not in received
                received[instruction.message] = instruction.source, rank
    assert {message: (source, to) for message, (source, to, _) in sent.items()} == received
    for message, (source, to, delay_s) in sent.items():
        a, b = program.workers[source], program.workers[to]
        assert abs(a.stage - b.stage) == 1
        assert min(a.stage, b.stage) == message.link
        assert (message.kind == "activation") == (a.stage < b.stage)
        assert delay_s == plan.hop_delay_s(message.pipeline, message.link, a, b)
    hops = [len(plan.template_of(k).stages) - 1 for k in range(len(plan.pipelines))]
    assert len(sent) == sum(2 * hop * plan.pipelines[k].microbatches for k, hop in enumerate(hops))


@given(plans())
def test_programs_are_the_orders_with_their_exchanges(plan: Plan) -> None:
    """A program computes its order; F and I or B receive right before and send right after; W exchanges nothing."""
    for worker, instructions in zip(plan.live_workers(), lower(plan).instructions, strict=True):
        computed = [step.operation for step in instructions if isinstance(step, Compute)]
        assert tuple(computed) == worker.operations()
        for place, step in enumerate(instructions):
            if isinstance(step, Compute):
                last = len(plan.template_of(step.operation.pipeline).stages) - 1
                first_of_kind = 0 if step.operation.kind == "F" else last
                last_of_kind = last - first_of_kind
                receives = step.operation.kind != "W" and worker.stage != first_of_kind
                sends = step.operation.kind != "W" and worker.stage != last_of_kind
                before = instructions[place - 1] if place else None
                after = instructions[place + 1]
                assert isinstance(before, Receive) == receives
                assert isinstance(after, Send) == sends
                if isinstance(before, Receive):
                    assert _of(before.message) == step.operation[1:]
                if isinstance(after, Send):
                    assert _of(after.message) == step.operation[1:]


def _of(message: Message) -> tuple[int, int]:
    return message.pipeline, message.microbatch


@given(plans())
def test_programs_end_with_allreduce_and_step(plan: Plan) -> None:
    """The last two instructions are the all-reduce among all live peers of the stage, and the optimizer's step."""
    program = lower(plan)
    groups: Counter[tuple[int, ...]] = Counter()
    for rank, (worker, instructions) in enumerate(zip(program.workers, program.instructions, strict=True)):
        reduce, step = instructions[-2:]
        assert isinstance(reduce, AllReduce)
        assert step == Step(plan.optimizer == "synchronous", plan.stage_of(worker).optimizer_s)
        assert rank in reduce.group
        assert {program.workers[member].stage for member in reduce.group} == {worker.stage}
        groups[reduce.group] += 1
        assert not any(isinstance(other, AllReduce | Step) for other in instructions[:-2])
    assert all(len(group) == count for group, count in groups.items())
    assert sorted(rank for group in groups for rank in group) == list(range(len(program.workers)))


def test_small_program_reads_as_written() -> None:
    """The program of a worker between two stages, in full."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 I0 W0", "0/2": "F0 B0"}, 1, delay_s=0.5)
    down = [Message("activation", 0, 0, link) for link in range(2)]
    up = [Message("gradient", 0, 0, link) for link in range(2)]
    forward, backward, weight = plan.workers[1].operations()
    assert lower(plan).instructions[1] == (
        Receive(down[0], 0),
        Compute(forward),
        Send(down[1], 2, 0.5),
        Receive(up[1], 2),
        Compute(backward),
        Send(up[0], 0, 0.5),
        Compute(weight),
        AllReduce((1,), 0.0),
        Step(True, 0.0),
    )


def test_failed_workers_have_no_rank() -> None:
    """Ranks number the live workers; a failed worker's micro-batches go to who runs them."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0 F1.0 B1.0", "1/0": "F0 B0", "1/1": None}, 1)
    program = lower(plan)
    assert [worker.name for worker in program.workers] == ["0/0", "0/1", "1/0"]
    assert program.instructions[2][1] == Send(Message("activation", 1, 0, 0), 1, 0.0)
    assert program.instructions[0][-2] == AllReduce((0, 2), 0.0)
    assert program.instructions[1][-2] == AllReduce((1,), 0.0)


def test_pipelines_of_unlike_cuts_are_refused() -> None:
    """Gradients of stages that hold other layers cannot be reduced among peers: one error, no silent wrong result."""

    def template(name: str, cut: int) -> Template:
        return Template(name, (Stage((0, cut), 1, 1, 1), Stage((cut, 4), 1, 1, 1)), (Link(),))

    plan = Plan(
        BY_HAND,
        (template("t0", 2), template("t1", 1)),
        (Pipeline("t0", 1), Pipeline("t1", 1)),
        "synchronous",
        tuple(Worker(k, i, "F0 B0") for k in range(2) for i in range(2)),
    )
    with pytest.raises(InvalidInputError, match="'t1' cuts the layers elsewhere than 't0'") as caught:
        lower(plan)
    assert caught.value.where == "/templates/1/stages"
    alike = replace(plan, templates=(template("t0", 2), template("t1", 2)))
    assert len(lower(alike).instructions) == 4
