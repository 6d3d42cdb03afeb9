"""How fast a template is: the time of its 1F1B pipeline with every number of micro-batches.

Oobleck (section 4.2.2) distributes micro-batches by the time of one, and chooses templates by a formula (section 4.1.2)
that splits an iteration into filling, steady state and draining. Both differ from what the pipeline does: the formula
lies below the true time where stages behind the slowest are light, and knows no links. So we time the 1F1B orders,
links and memory limits included, as the simulator would, with 1, 2, 3, ... micro-batches.

One run serves for all numbers from the warm-up on: but for its last rounds the run with m + 1 micro-batches is that
with m, and what the last rounds add to the ends and the messages before them is the same for all m. (With fewer
micro-batches than that each is run, unless no iteration can end so soon.) Once a round has moved everything by the same
time, so do all others, and the rest is a straight line. Its slope is the mean time of the slowest cycle: a stage, or
neighbouring stages and the links between them (`slope_s`), so it is never below the slowest stage. Links can let
micro-batches through in bursts for ever, and where two cycles are nearly equally slow it takes long until one of them
rules; then as many numbers are timed as the batch has, up to `MOST_OPERATIONS`, and the line goes on from there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from ...schemas.network import Rings, rings_of_nodes
from ...schemas.plan import Link, Stage
from ...schemas.profile import Connection, HoldsBytes, summed_bytes
from ...schemas.templates import PipelineTemplate, Templates
from ..batch.exact import Pace
from ..scheduling.forms import Form, pays
from ..scheduling.list_schedule import most_in_flight

LONG = 6  # micro-batches a stage, at least, that are timed before a line is drawn
MOST_OPERATIONS = 1 << 16  # of a template, beyond that
SAME = 1e-12  # relative; what rounding makes of equal times
# Plain Python times so many operations while the machine code is loaded.
INTERPRETED_OPERATIONS = 1_000_000


def paces_of(templates: Sequence[PipelineTemplate], microbatches: int, nodes: int) -> list[Pace]:
    """The pace of each template; all-reduce and optimizer step are not in it.

    Times at which no iteration can end may be given too long: they say only that this is sooner than the iteration.

    Args:
        templates: that an iteration's pipelines are made from.
        microbatches: that they do together.
        nodes: that they have together, at most.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    depths = [len(template.stages) for template in templates]
    # So many micro-batches are timed at most: whole bursts.
    mosts = [n * max(LONG, min(-(-microbatches // n), MOST_OPERATIONS // n**2)) for n in depths]
    operations = sum(4 * most * depth for depth, most in zip(depths, mosts, strict=True))
    form = Form(pays(one_iteration_s, operations, INTERPRETED_OPERATIONS))
    least_s = min(map(_work_s, templates)) * microbatches / nodes
    return [_pace(form, one.stages, one.links, most, least_s) for one, most in zip(templates, mosts, strict=True)]


def _work_s(template: PipelineTemplate) -> float:
    """How long all GPUs of one node would work on a micro-batch, if they could share it, in s."""
    gpus = sum(stage.tensor_parallel for stage in template.stages)
    return template.nodes / gpus * sum(stage.work_s * stage.tensor_parallel for stage in template.stages)


def stage_ends_s(stages: Sequence[Stage], links: Sequence[Link], microbatches: int) -> tuple[float, ...]:
    """When each stage of a pipeline has done its micro-batches, all-reduce and optimizer step not counted, in s.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    operations = 2 * microbatches * len(stages)
    form = Form(pays(one_iteration_s, operations, INTERPRETED_OPERATIONS))
    warm_ups = [min(microbatches, most) for most in warm_ups_of(stages)]
    state = _space(form, len(warm_ups), warm_ups[0], 0)
    form.kernel(one_iteration_s)(_costs(form, stages, links, warm_ups), state, microbatches)
    return tuple(map(float, state.free_s))


def _pace(form: Form, stages: Sequence[Stage], links: Sequence[Link], most: int, least_s: float) -> Pace:
    warm_ups = warm_ups_of(stages)
    costs, each_s = _costs(form, stages, links, warm_ups), slope_s(stages, links, warm_ups)
    state = _space(form, len(stages), warm_ups[0], most)
    known = form.kernel(first_times_s)(costs, state, most, least_s, each_s)
    times_s = np.maximum.accumulate(
        np.asarray(state.times_s[:known])
    )  # sums of unlike order differ in their last digits
    fixed_s = float(times_s[-1]) - known * each_s
    beside = np.abs(fixed_s + np.arange(1, known + 1) * each_s - times_s) > SAME * times_s
    return Pace(fixed_s, each_s, tuple(times_s[: known - int(beside[::-1].argmax())].tolist()) if beside.any() else ())


def slope_s(stages: Sequence[Stage], links: Sequence[Link], warm_ups: Sequence[int]) -> float:
    """What one more micro-batch adds in the long run, in s: the mean time of the slowest cycle.

    Stages a to b make a cycle: when a is done with a backward, the next forward goes to b, b's next backward back to a.
    In one turn of it w_a - w_b + 1 micro-batches pass, w being the warm-ups. With a = b that is a stage's work.
    """
    work_s = np.array([stage.duration_s("F") + stage.duration_s("B") for stage in stages])
    there_s = np.array([0.0, *(2 * link.delay_s for link in links)]).cumsum()
    upto_s, passing = work_s.cumsum(), np.array(warm_ups)
    turns_s = (upto_s + there_s)[None, :] - (upto_s - work_s + there_s)[:, None]
    counts = passing[:, None] - passing[None, :] + 1
    first, last = np.triu_indices(len(stages))
    return float(max(work_s.max(), (turns_s[first, last] / counts[first, last]).max()))


def _costs(form: Form, stages: Sequence[Stage], links: Sequence[Link], warm_ups: Sequence[int]) -> PaceCosts:
    return PaceCosts(
        form.ints(warm_ups),
        form.floats([stage.duration_s("F") for stage in stages]),
        form.floats([stage.duration_s("B") for stage in stages]),
        form.floats([*(link.delay_s for link in links), 0.0]),
    )


def _space(form: Form, depth: int, ring: int, most: int) -> PaceState:
    free_s, back_s, was_s, rest_s = (form.float_space(depth) for _ in range(4))
    sent_s, next_s = (form.float_space(depth * ring) for _ in range(2))
    return PaceState(free_s, back_s, sent_s, was_s, rest_s, next_s, form.float_space(most), form.int_space(depth))


def warm_ups_of(stages: Sequence[Stage]) -> list[int]:
    """The forwards before each stage's first backward, in a 1F1B pipeline that is full.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    depth = len(stages)
    rooms = enumerate(most_in_flight(stages, depth))
    return list(accumulate((min(depth - i, room) for i, room in rooms), min))


class PaceCosts(NamedTuple):
    """A 1F1B pipeline.

    Attributes:
        warm_up: forwards before the first backward, of each stage; never more than at the stage before.
        forward_s, backward_s: of each stage.
        delay_s: of the link behind each stage; the last one counts for nothing.
    """

    warm_up: Ints
    forward_s: Floats
    backward_s: Floats
    delay_s: Floats


class PaceState(NamedTuple):
    """An iteration of it; zeros at first.

    Attributes:
        free_s, back_s: of each stage, the last operation's end, and the round's backward's end.
        sent_s: stages x the first warm-up: the ends of the forwards that are in flight.
        was_s: of each stage, `free_s` before the round.
        rest_s: what follows the end of each stage's round, which is the one with the first stage's last forward.
        next_s: what follows when a forward can begin, by stage and number; the first stage's last is number w_0 - 1.
        times_s: of iterations of 1, 2, ... micro-batches.
        shorter: work space of stages.
    """

    free_s: MutableFloats
    back_s: MutableFloats
    sent_s: MutableFloats
    was_s: MutableFloats
    rest_s: MutableFloats
    next_s: MutableFloats
    times_s: MutableFloats
    shorter: MutableInts


@kernel
def _round(costs: PaceCosts, state: PaceState, j: int, microbatches: int) -> None:
    """Round j of a 1F1B iteration: it ends with the backward of micro-batch j at every stage."""
    warm_up, delay_s, free_s, sent_s, back_s = costs.warm_up, costs.delay_s, state.free_s, state.sent_s, state.back_s
    forward_s, backward_s = costs.forward_s, costs.backward_s
    stages, ring = len(warm_up), warm_up[0]
    for i in range(stages):
        after = j + warm_up[i]
        for n in range(0 if j == 0 else after - 1, min(after, microbatches)):
            start_s, slot = free_s[i], i * ring + n % ring
            if i > 0:
                there_s = sent_s[slot - ring] + delay_s[i - 1]
                if there_s > start_s:  # interpreted, calls of max() would take a third of the time
                    start_s = there_s
            free_s[i] = sent_s[slot] = start_s + forward_s[i]
    for i in range(stages - 1, -1, -1):
        start_s = free_s[i]
        if i < stages - 1:
            there_s = back_s[i + 1] + delay_s[i]
            if there_s > start_s:
                start_s = there_s
        free_s[i] = back_s[i] = start_s + backward_s[i]


@kernel
def one_iteration_s(costs: PaceCosts, state: PaceState, microbatches: int) -> float:
    """The time of one 1F1B iteration of at least as many micro-batches as the first warm-up, in s."""
    for j in range(microbatches):
        _round(costs, state, j, microbatches)
    return state.free_s[0]


@kernel
def _drain(costs: PaceCosts, state: PaceState) -> None:
    """What follows the round with the first stage's last forward; walked from the end on."""
    warm_up, delay_s, rest_s, next_s, back_s = costs.warm_up, costs.delay_s, state.rest_s, state.next_s, state.back_s
    stages, ring = len(warm_up), warm_up[0]
    for i in range(stages):
        rest_s[i] = 0.0
    for j in range(ring - 1, 0, -1):
        for i in range(stages):
            if i > 0:
                rest_s[i] = max(rest_s[i], back_s[i - 1] + delay_s[i - 1])
            rest_s[i] += costs.backward_s[i]
            back_s[i] = rest_s[i]
        for i in range(stages - 1, -1, -1):
            n = j + warm_up[i] - 1
            if n < ring:
                if i < stages - 1:
                    rest_s[i] = max(rest_s[i], next_s[(i + 1) * ring + n] + delay_s[i])
                rest_s[i] += costs.forward_s[i]
                next_s[i * ring + n] = rest_s[i]


@kernel
def _whole_s(costs: PaceCosts, state: PaceState, j: int) -> float:
    """How long an iteration takes whose first stage has had its last forward in round j."""
    warm_up, sent_s, next_s = costs.warm_up, state.sent_s, state.next_s
    stages, ring = len(warm_up), warm_up[0]
    whole_s = 0.0
    for i in range(stages):
        end_s = state.free_s[i] + state.rest_s[i]
        if end_s > whole_s:
            whole_s = end_s
        for n in range(warm_up[min(i + 1, stages - 1)], warm_up[i]):  # sent, and not yet there
            end_s = sent_s[i * ring + (j + n) % ring] + costs.delay_s[i] + next_s[(i + 1) * ring + n]
            if end_s > whole_s:
                whole_s = end_s
    return whole_s


@kernel
def _is_steady(costs: PaceCosts, state: PaceState, j: int, each_s: float) -> bool:
    """Whether round j has moved all ends by `each_s`: then all later ones do."""
    warm_up, free_s, sent_s = costs.warm_up, state.free_s, state.sent_s
    stages, ring = len(warm_up), warm_up[0]
    for i in range(stages):
        if abs(free_s[i] - state.was_s[i] - each_s) > SAME * free_s[i]:
            return False
        for n in range(j + warm_up[min(i + 1, stages - 1)], j + warm_up[i]):
            moved_s = sent_s[i * ring + n % ring] - sent_s[i * ring + (n - 1) % ring]
            if abs(moved_s - each_s) > SAME * free_s[i]:
                return False
    return True


@kernel
def first_times_s(costs: PaceCosts, state: PaceState, most: int, least_s: float, each_s: float) -> int:
    """The times of 1F1B iterations of 1, 2, ... micro-batches, until one more adds `each_s`; returns how many they are.

    Args:
        costs, state: the pipeline; `times_s` has room for `most`.
        most: so many micro-batches at most, not fewer than the first warm-up.
        least_s: shorter times than this may be given too long, up to it.
        each_s: what one more adds in the long run.
    """
    warm_up, times_s = costs.warm_up, state.times_s
    stages, ring, known = len(warm_up), warm_up[0], most
    _drain(costs, state)
    for j in range(most - ring + 1):
        for i in range(stages):
            state.was_s[i] = state.free_s[i]
        _round(costs, state, j, j + ring)
        times_s[j + ring - 1] = _whole_s(costs, state, j)
        if j > 0 and _is_steady(costs, state, j, each_s):
            known = j + ring
            break
    shorter = PaceCosts(state.shorter, costs.forward_s, costs.backward_s, costs.delay_s)
    for count in range(1, ring):
        times_s[count - 1] = times_s[ring - 1]
        if times_s[ring - 1] >= least_s:
            for i in range(stages):
                state.shorter[i], state.free_s[i] = min(count, warm_up[i]), 0.0
            times_s[count - 1] = one_iteration_s(shorter, state, count)
    return known


# What follows the slowest pipeline: layers are summed between the pipelines, then the optimizer steps.
#
# The all-reduce grows with the number of pipelines and with the stages' parameters, which are most in small templates;
# so both belong to the choice of pipelines. An iteration lasts no longer than its slowest pipeline, the longest all-
# reduce and the longest step together (docs/semantics.md: a little less where a component that is ready early has that
# all-reduce).


@dataclass(frozen=True)
class Ending:
    """What templates of consecutive sizes add to an iteration.

    Attributes:
        smallest: nodes of the first.
        rings: that the all-reduce takes.
        reduced_bytes: of each template, the most that the GPUs of one stage sum up each.
        optimizer_s: of each template, the longest step.
    """

    smallest: int
    rings: Rings
    reduced_bytes: tuple[float, ...]
    optimizer_s: tuple[float, ...]

    def lasts_s(self, sizes: Collection[int]) -> float:
        """The longest all-reduce between pipelines of these sizes, and the longest optimizer step, in s."""
        used = {size - self.smallest for size in sizes}
        most_bytes, step_s = max(self.reduced_bytes[n] for n in used), max(self.optimizer_s[n] for n in used)
        return self.rings.ring_s(most_bytes, len(sizes)) + step_s


def ending_of(templates: Templates) -> Ending:
    """The ending of each of the templates."""
    return Ending(
        templates.smallest,
        rings_of(templates),
        tuple(max(reduced_bytes(templates.layers, stage) for stage in one.stages) for one in templates.templates),
        tuple(max(stage.optimizer_s for stage in one.stages) for one in templates.templates),
    )


def connection_of(templates: Templates) -> Connection:
    """The path between nodes; where nothing is known of it, one that costs nothing."""
    return templates.network.between_workers or Connection()


def rings_of(templates: Templates) -> Rings:
    """How gradients are summed: each pipeline has whole nodes."""
    return rings_of_nodes(templates.network, templates.gpus_per_node)


def reduced_bytes(layers: Sequence[HoldsBytes], stage: Stage) -> float:
    """What a GPU of a stage sums with others: its share of the gradients."""
    return summed_bytes(layers, [stage.layers]) / stage.tensor_parallel
