"""Lowering: what each worker's program sends, receives and ends with."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.runners.program import (
    AllReduce,
    BeginSum,
    Compute,
    GradientBucket,
    Instruction,
    Message,
    Program,
    Receive,
    Send,
    Step,
    lower,
    lower_rest,
    made_by,
    taken_by,
)
from rtk.schemas.orders import parse_order
from rtk.schemas.plan import Link, Pipeline, Plan, Stage, Template, Worker
from rtk.schemas.resumption import HeldMessages, Resend, Rest, RestWorker, Standing

from ..placed_plans import any_placed_plans
from ..strategies import BY_HAND, any_plans, hand_plan, plans, unlike_plans


@given(any_plans())
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


@given(any_plans())
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
                    assert _of(before.message) == step.operation[1:3]
                if isinstance(after, Send):
                    assert _of(after.message) == step.operation[1:3]


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
        (part,) = reduce.parts
        assert rank in part.ranks
        assert {program.workers[member].stage for member in part.ranks} == {worker.stage}
        assert part.duration_s == max(plan.stage_of(program.workers[member]).allreduce_s for member in part.ranks)
        groups[part.ranks] += 1
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
        AllReduce((GradientBucket((1, 2), (1,)),)),
        Step(True, 0.0),
    )


def test_program_of_a_v_reads_as_written() -> None:
    """Where two virtual stages that follow each other are one worker's, it takes what it has made, and no message is
    sent; its sums begin with the last layers, and its step is those of all its stages."""
    stages = tuple(Stage((2 * v, 2 * v + 2), 1.0, 1.0, 1.0, optimizer_s=1.0 + v, allreduce_s=1.0) for v in range(4))
    template = Template("v", stages, (Link(0.5), Link(0.0), Link(0.5)), placement=((0, 3), (1, 2)))
    workers = Worker(0, 0, "0F0 3F0 3B0 0B0"), Worker(0, 1, "1F0 2F0 2I0 2W0 1I0 1W0")
    plan = Plan(BY_HAND, (template,), (Pipeline("v", 1),), "synchronous", workers)
    program = lower(plan)
    first, last, back, end = workers[0].operations()
    down = [Message("activation", 0, 0, link) for link in range(3)]
    up = [Message("gradient", 0, 0, link) for link in range(3)]
    assert program.instructions[0] == (
        Compute(first, (0, 2)),
        Send(down[0], 1, 0.5),
        Receive(down[2], 1),
        Compute(last, (6, 8)),
        Compute(back, (6, 8)),
        Send(up[2], 1, 0.5),
        Receive(up[0], 1),
        Compute(end, (0, 2)),
        AllReduce((GradientBucket((6, 8), (0,), 1.0), GradientBucket((0, 2), (0,), 1.0))),
        Step(True, 5.0),
    )
    forward, turn, *_ = workers[1].operations()
    assert program.instructions[1][1:3] == (Compute(forward, (2, 4)), Compute(turn, (4, 6)))
    assert not program.own_messages(0)
    assert program.own_messages(1) == {Message("activation", 0, 0, 4), Message("gradient", 0, 0, 4)}
    assert [program.at_boundary(message).link for message in down] == [2, 4, 6]


@settings(max_examples=60)
@given(any_placed_plans())
def test_each_operation_has_its_message_or_makes_it(plan: Plan) -> None:
    """What an operation of a placed plan takes, it receives from who makes it, over the link between their stages, or
    its own rank has made it before; nothing else is sent, and computations say which layers they run."""
    program = lower(plan)
    sent: dict[Message, tuple[int, int]] = {}
    received: dict[Message, tuple[int, int]] = {}
    for rank, (worker, instructions) in enumerate(zip(program.workers, program.instructions, strict=True)):
        made: set[Message | None] = set()
        for before, one in pairwise((None, *instructions)):
            if isinstance(one, Send):
                assert isinstance(before, Compute)
                sent[one.message] = rank, one.to
                assert program.at_boundary(one.message) == _made(program, rank, before)
                receiver = program.workers[one.to]
                assert one.delay_s == plan.hop_delay_s(one.message.pipeline, one.message.link, worker, receiver)
            elif isinstance(one, Receive):
                received[one.message] = one.source, rank
            elif isinstance(one, Compute):
                assert program.layers_of(rank, one) == plan.stage_at(worker, one.operation).layers
                assert (one.layers is None) == (len(plan.seats_of(worker)) == 1)
                taken = taken_by(one.operation, program.layers_of(rank, one), plan.total_layers())
                if isinstance(before, Receive):
                    assert program.at_boundary(before.message) == taken
                else:
                    assert taken is None or taken in made & program.own_messages(rank)
                made.add(_made(program, rank, one))
    assert sent == received


def _made(program: Program, rank: int, one: Compute) -> Message | None:
    return made_by(one.operation, program.layers_of(rank, one), program.plan.total_layers())


@settings(max_examples=60)
@given(any_placed_plans())
def test_nobody_waits_in_a_circle_for_sums(plan: Plan) -> None:
    """All who hold a layer sum it once, each worker its last layers first, and steps are of all that it holds."""
    program = lower(plan)
    holders: dict[int, set[int]] = {layer: set() for layer in range(plan.total_layers())}
    for rank, worker in enumerate(program.workers):
        reduction, step = program.reduction(rank), program.instructions[rank][-1]
        layers = [part.layers for part in reduction.parts]
        assert layers == sorted(layers, reverse=True)
        held = [layer for part in reduction.parts for layer in range(*part.layers)]
        assert sorted(held) == [layer for one in plan.layers_of(worker) for layer in range(*one)]
        for layer in held:
            holders[layer].add(rank)
        assert isinstance(step, Step)
        assert step.duration_s == sum(stage.optimizer_s for stage in plan.stages_of(worker))
    for rank in range(len(program.workers)):
        for part in program.reduction(rank).parts:
            assert all(holders[layer] == set(part.ranks) for layer in range(*part.layers))


@settings(max_examples=60)
@given(any_placed_plans())
def test_the_sum_of_a_stage_begins_once_it_is_whole(plan: Plan) -> None:
    """With a placement each sum that others take part in is begun once: when the last backward pass of its layers has
    ended and its message is sent, no later than need be, and in the order in which all ranks sum."""
    program = lower(plan)
    for rank, instructions in enumerate(program.instructions):
        begun = [one.part for one in instructions if isinstance(one, BeginSum)]
        parts = program.reduction(rank).parts
        assert begun == [part for part in parts if len(part.ranks) > 1]
        for part in begun:
            place = instructions.index(BeginSum(part))
            assert not any(_adds_to(one, part) for one in instructions[place:])
            before = [one for one in instructions[:place] if not isinstance(one, BeginSum)]
            later = parts[: parts.index(part) + 1]  # of these at least one has only now become whole
            own = [one for one in before if isinstance(one, Compute)]
            assert not own or any(_adds_to(own[-1], one) for one in later)
            assert not own or isinstance(before[-1], Compute | Send)
            assert not isinstance(instructions[place + 1], Send)


def _adds_to(one: Instruction, part: GradientBucket) -> bool:
    """Whether it adds to the gradients of these layers."""
    if not isinstance(one, Compute) or one.operation.kind not in ("B", "W"):
        return False
    return one.layers is None or one.layers[0] <= part.layers[0] < one.layers[1]


def test_failed_workers_have_no_rank() -> None:
    """Ranks number the live workers; a failed worker's micro-batches go to who runs them."""
    plan = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0 F1.0 B1.0", "1/0": "F0 B0", "1/1": None}, 1)
    program = lower(plan)
    assert [worker.name for worker in program.workers] == ["0/0", "0/1", "1/0"]
    assert program.instructions[2][1] == Send(Message("activation", 1, 0, 0), 1, 0.0)
    assert program.instructions[0][-2] == AllReduce((GradientBucket((0, 1), (0, 2)),))
    assert program.instructions[1][-2] == AllReduce((GradientBucket((1, 2), (1,)),))


@given(unlike_plans())
def test_every_layer_is_summed_over_all_that_hold_it(plan: Plan) -> None:
    """The parts of a rank's all-reduce tile its stage from its end to its beginning, each as long as can be, and name
    all live holders."""
    program = lower(plan)
    held = [plan.stage_of(worker).layers for worker in program.workers]
    for rank, (first, stop) in enumerate(held):
        (reduce,) = (one for one in program.instructions[rank] if isinstance(one, AllReduce))
        boundaries = [stop] + [part.layers[0] for part in reduce.parts]
        assert [part.layers[::-1] for part in reduce.parts] == list(pairwise(boundaries))
        assert boundaries[-1] == first
        for part in reduce.parts:
            for layer in range(*part.layers):
                assert part.ranks == tuple(n for n, (start, end) in enumerate(held) if start <= layer < end)
        assert all(a.ranks != b.ranks for a, b in pairwise(reduce.parts))


@given(plan=unlike_plans().filter(lambda plan: not any(w.failed for w in plan.workers)), data=st.data())
def test_a_sum_begins_when_the_last_of_its_holders_has_ended(plan: Plan, data: st.DataObject) -> None:
    """Where nobody is dead, in each pipeline a stage ends no sooner than the next one, as backward passes do, and sums
    take no time: whoever has ended waits for nobody but the holders of the layers to be summed."""
    program = lower(plan)
    ended_s: dict[int, float] = {}
    for rank in sorted(range(len(program.workers)), key=lambda rank: program.workers[rank].stage, reverse=True):
        worker = program.workers[rank]
        behind = [ended_s[n] for n in ended_s if program.workers[n].pipeline == worker.pipeline]
        ended_s[rank] = max(behind, default=0.0) + data.draw(st.floats(0, 10))
    parts = [list(program.reduction(rank).parts) for rank in range(len(program.workers))]
    free_s = dict(ended_s)
    while any(parts):
        part = next(own[0] for own in parts if own and all(parts[n] and parts[n][0] == own[0] for n in own[0].ranks))
        begun_s = max(free_s[rank] for rank in part.ranks)
        assert begun_s == max(ended_s[rank] for rank in part.ranks)
        for rank in part.ranks:
            free_s[rank] = begun_s
            parts[rank].pop(0)


@given(unlike_plans())
def test_holders_sum_a_part_for_as_long_as_the_slowest_needs_for_its_share(plan: Plan) -> None:
    """All holders of a part name it alike; it takes the largest of their shares of `allreduce_s`, by layers."""
    program = lower(plan)
    for rank in range(len(program.workers)):
        for part in program.reduction(rank).parts:
            assert all(part in program.reduction(holder).parts for holder in part.ranks)
            holders = [plan.stage_of(program.workers[holder]) for holder in part.ranks]
            share = part.layers[1] - part.layers[0]
            shares_s = [stage.allreduce_s * share / (stage.layers[1] - stage.layers[0]) for stage in holders]
            assert part.duration_s == pytest.approx(max(shares_s))


@given(unlike_plans(), st.data())
def test_what_layers_share_is_summed_by_all_in_one_order(plan: Plan, data: st.DataObject) -> None:
    """Who holds one of the layers that share something sums it with all who do, after its own layers, and for all ranks
    ties stand in one order: so no ranks wait for each other in a circle. The rest is the program without ties."""
    layers = plan.templates[0].stages[-1].layers[1]
    places = st.lists(st.integers(0, layers - 1), min_size=1, max_size=3, unique=True).map(sorted).map(tuple)
    ties = data.draw(st.lists(places, max_size=3, unique=True))
    program, without = lower(plan, ties), lower(plan)
    held = [plan.stage_of(worker).layers for worker in program.workers]
    for rank, (first, stop) in enumerate(held):
        reduction = program.reduction(rank)
        assert [one.layers for one in reduction.ties] == [t for t in ties if any(first <= n < stop for n in t)]
        for tie in reduction.ties:
            assert tie.ranks == tuple(n for n, (a, b) in enumerate(held) if any(a <= one < b for one in tie.layers))
        assert reduction.groups == {*(one.ranks for one in reduction.parts), *(one.ranks for one in reduction.ties)}
        assert replace(reduction, ties=()) == without.reduction(rank)
        assert program.peers(rank) == without.peers(rank)
        own = [one for one in program.instructions[rank] if not isinstance(one, AllReduce)]
        assert own == [one for one in without.instructions[rank] if not isinstance(one, AllReduce)]


def test_a_program_of_unlike_cuts_reads_as_written() -> None:
    """Three stages beside two: the middle one is summed in halves, one with each of the two."""

    def template(name: str, cuts: tuple[int, ...]) -> Template:
        shape = tuple(Stage(held, 1, 1, 1, allreduce_s=held[0]) for held in pairwise(cuts))
        return Template(name, shape, tuple(Link() for _ in shape[1:]))

    plan = Plan(
        BY_HAND,
        (template("n3", (0, 2, 4, 6)), template("n2", (0, 3, 6))),
        (Pipeline("n3", 1), Pipeline("n2", 1)),
        "synchronous",
        tuple(Worker(k, i, "F0 B0") for k, depth in enumerate((3, 2)) for i in range(depth)),
    )
    # Of the all-reduces, 0, 2 and 4 s of the one and 0 and 3 s of the other, a layer takes 0, 1, 2, 0 and 1 s.
    parts = [
        (GradientBucket((0, 2), (0, 3)),),
        (GradientBucket((3, 4), (1, 4), 1), GradientBucket((2, 3), (1, 3), 1)),
        (GradientBucket((4, 6), (2, 4), 4),),
        (GradientBucket((2, 3), (1, 3), 1), GradientBucket((0, 2), (0, 3))),
        (GradientBucket((4, 6), (2, 4), 4), GradientBucket((3, 4), (1, 4), 1)),
    ]
    assert [one[-2] for one in lower(plan).instructions] == [AllReduce(own) for own in parts]


# What is left of an iteration


def whole_rest(plan: Plan) -> Rest:
    """The rest of which nothing is done yet: everybody runs its order."""
    workers = tuple(RestWorker(one.name, one.name, one.order or "") for one in plan.live_workers())
    return Rest(0, tuple(Standing(one.name, plan.stage_of(one).layers) for one in plan.live_workers()), workers)


def by_boundary(plan: Plan, instruction: Instruction) -> Instruction:
    """An instruction of a plan's program, its message with a boundary for a link."""
    if not isinstance(instruction, Send | Receive):
        return instruction
    message = instruction.message
    stages = plan.template_of(message.pipeline).stages
    return replace(instruction, message=replace(message, link=stages[message.link].layers[1]))


@given(any_plans())
def test_a_rest_of_everything_is_the_plan(plan: Plan) -> None:
    """Where nothing is done, what is left is the plan's program, with boundaries for links."""
    program, rest = lower(plan), whole_rest(plan)
    left = lower_rest(plan, rest)
    assert left == replace(
        program,
        instructions=tuple(tuple(by_boundary(plan, one) for one in own) for own in program.instructions),
        rest=rest,
    )


@given(any_plans(), st.data())
def test_nothing_is_summed_of_what_is_sealed(plan: Plan, data: st.DataObject) -> None:
    """What is sealed and what is to be summed tile each rank's stage as its parts do, cut at the borders of what is
    sealed; of ties those are left of which nothing is sealed; all holders say the same."""
    layers = plan.templates[0].stages[-1].layers[1]
    first, stop = sorted(data.draw(st.tuples(st.integers(0, layers), st.integers(0, layers))))
    sealed = ((first, stop),) if first < stop else ()
    ties = [(0, layers - 1)] if (first <= 0 < stop) == (first <= layers - 1 < stop) else []
    left, whole = lower_rest(plan, replace(whole_rest(plan), sealed=sealed), ties), lower(plan, ties)
    for rank in range(len(whole.workers)):
        reduction, before = left.reduction(rank), whole.reduction(rank)
        both = sorted((*reduction.parts, *reduction.sealed), key=lambda part: part.layers)
        assert [n for part in both for n in range(*part.layers)] == [
            n for part in before.parts[::-1] for n in range(*part.layers)
        ]
        assert {n for part in reduction.sealed for n in range(*part.layers)} <= set(range(first, stop))
        assert {n for part in reduction.parts for n in range(*part.layers)}.isdisjoint(range(first, stop))
        assert sum(part.duration_s for part in both) == pytest.approx(before.duration_s)
        for part in both:
            assert any(part.ranks == one.ranks for one in before.parts)
            assert all(part in (*left.reduction(n).parts, *left.reduction(n).sealed) for n in part.ranks)
        assert reduction.ties == (() if sealed and first <= 0 else before.ties)


def test_a_rest_reads_as_written() -> None:
    """Two stages of two layers in two pipelines, and one dead: what 1/1 has kept goes out first, what 0/1 has kept is
    asked of nobody, and parts of a stage exchange what lies between them."""
    shape = tuple(Stage((2 * i, 2 * i + 2), 1, 1, 1, allreduce_s=2) for i in range(2))
    plan = Plan(
        BY_HAND,
        (Template("t", shape, (Link(0.5),)),),
        (Pipeline("t", 1), Pipeline("t", 1)),
        "synchronous",
        (Worker(0, 0, "F0 B0 F1.0 B1.0"), Worker(0, 1, "F0 B0"), Worker(1, 0, failed=True), Worker(1, 1, "F0 B0")),
    )
    rest = Rest(
        3,
        (
            Standing("0/0", (0, 2)),
            Standing("0/1", (2, 4), messages=(HeldMessages("activation", 2, (0,)),)),
            Standing("1/1", (2, 4), messages=(HeldMessages("activation", 1, (1,)),)),
        ),
        (
            RestWorker("0/0", "0/0", "F1.0:1-2 F0~ B1.0:1-2"),
            RestWorker("0/1", "0/1", "F0 B0:3-4"),
            RestWorker("1/1", "1/1", "F0 B0"),
        ),
        ((0, 1), (2, 3)),
        sends=(Resend("1/1", "0/0", "activation", 1, 1),),
    )
    first, second, third = lower_rest(plan, rest).instructions
    forward, backward = parse_order("F1.0 B1.0", 1)
    down, up = Message("activation", 1, 0, 2), Message("gradient", 1, 0, 2)
    assert third == (
        Send(Message("activation", 1, 0, 1), 0, 0.5, is_kept=True),
        Receive(down, 0),
        Compute(forward),
        Compute(backward),
        Send(up, 0, 0.5),
        AllReduce((GradientBucket((3, 4), (1, 2), 1),), (), (GradientBucket((2, 3), (1, 2), 1),)),
        Step(True, 0.0),
    )
    assert first == (
        Receive(Message("activation", 1, 0, 1), 2),
        Compute(forward, (1, 2)),
        Send(down, 2, 0.5),
        Compute(parse_order("F0", 0)[0], None, False),
        Receive(up, 2),
        Compute(backward, (1, 2)),
        AllReduce((GradientBucket((1, 2), (0,), 1),), (), (GradientBucket((0, 1), (0,), 1),)),
        Step(True, 0.0),
    )
    assert second[:2] == (Compute(parse_order("F0", 0)[0]), Compute(parse_order("B0", 0)[0], (3, 4)))
