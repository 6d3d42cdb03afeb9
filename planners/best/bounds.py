"""What no plan of a shape can beat, before there is one: of whole shapes, of cuts, and what memory makes impossible.

Three steps, each dearer and tighter than the one before. All are proven, so a shape whose bound lies above a plan that
was made is ruled out for good.

1. **A shape, not cut yet.** Workers of a pipeline share its layers, however they are cut and placed. Each has its own
   operations, then the sum of its gradients, then its step, one after the other; the longest of these is no shorter
   than their mean, which no cut changes. A layer is never cut: of any k layers somebody has k/S at least, rounded up,
   be they in one stage or in several (the argument for bin packing of Martello and Toth, 1990, with k layers that are
   no shorter than the least of them). And one micro-batch has to go all the way down and up.
2. **Memory, not cut yet.** Parameters, state and one micro-batch's activations are somewhere: the fullest worker holds
   no less than the mean. And a layer's activations are held while their micro-batch goes down and comes back through
   all layers behind it: bytes times seconds, over all layers and micro-batches, fit what all workers have together.
3. **A cut, without orders.** A worker begins when the first micro-batch has come to it through all stages before, has
   its work, its sum and its step. **Turns:** of micro-batches, no more than it has room for are between their F and the
   end of their I at once; each is there for as long as the way down and back takes, so those beyond wait for a turn of
   others. Workers of several stages have room for bytes times seconds, as above. After the last I its micro-batch goes
   up through all stages before. Under 1F1B, whose order is known, there are never more than the warm-up; and a stage
   waits for its first backward until that has come, which its forwards fill in part.

A pair of F and B side by side takes at least the profile's share of both, and no pass is shorter for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import ceil

from ...schemas.plan import Stage, Template
from ...schemas.profile import LayerCost, activations_held, summed_bytes
from ..gpu_memory import FRAGMENTS, FRAMEWORK_BYTES, GpuMemory
from ..scheduling.list_schedule import most_in_flight
from ..scheduling.problem import ROUNDING
from .forms import CostedForm, handed_out_bytes

SLACK = 1 - 1e-9  # sums of floats in another order differ by less


@dataclass(frozen=True)
class FormTotals:
    """What a whole model takes in one form at one tensor-parallel degree: what bounds are made of.

    Attributes:
        form: of training.
        degree: tensor-parallel.
    """

    form: CostedForm
    degree: int

    @cached_property
    def works_s(self) -> list[float]:
        """Of each layer, the least that its passes add to a stage for one micro-batch."""
        profile = self.form.profile
        return [profile.least_work_s(cost) for cost in self._costs]

    @cached_property
    def work_s(self) -> float:
        """Of all layers."""
        return sum(self.works_s)

    def busiest_s(self, pp: int) -> float:
        """Of the layers that the busiest of so many workers has at least, whichever way they are handed out."""
        if pp not in self._busiest_s:
            sums_s, taken = self._dearest_s, range(1, len(self.works_s) + 1)
            self._busiest_s[pp] = max(sums_s[k] - sums_s[k - ceil(k / pp)] for k in taken)
        return self._busiest_s[pp]

    @cached_property
    def _busiest_s(self) -> dict[int, float]:
        return {}

    @cached_property
    def _dearest_s(self) -> list[float]:
        """Of the first so many layers, from the dearest on."""
        return [0.0, *accumulate(sorted(self.works_s, reverse=True))]

    @cached_property
    def step_s(self) -> float:
        """The optimizer's step of all layers."""
        return sum(cost.optimizer_s for cost in self._costs)

    @cached_property
    def summed_bytes(self) -> float:
        """What the sum of all gradients sends, a tied matrix's once; of all GPUs of a worker together."""
        return summed_bytes(self.form.profile.layers, [(0, len(self.form.profile.layers))])

    @cached_property
    def _ways_s(self) -> list[float]:
        """From each layer on, what a micro-batch takes down to the last one and back at least: W is not on its way."""
        inner = self.form.profile.inner
        rounds_s = []
        for cost in self._costs:
            back_s = min(cost.backward_input_s - inner.backward_input_s, cost.full_s - inner.backward_s)
            rounds_s.append(cost.forward_s - inner.forward_s + back_s)
        return list(accumulate(reversed(rounds_s)))[::-1]

    @cached_property
    def held_byte_s(self) -> float:
        """Bytes times seconds for which activations of one micro-batch are held, of all layers, at least."""
        held = (activations_held([layer], self.degree) for layer in self.form.profile.layers)
        return sum(size * way_s for size, way_s in zip(held, self._ways_s, strict=True))

    def least_s(
        self, pp: int, microbatches: int, sum_s: float, shards: tuple[float, float], overlap: float = 1.0
    ) -> float:
        """No plan of so many stages takes less.

        Args:
            pp: workers of a pipeline.
            microbatches: of a pipeline.
            sum_s: what the sum of all parameters' gradients takes, if one worker had them all.
            shards: by what a worker's step is shorter than one of the whole state, and by what it holds less of it.
            overlap: what passes side by side take over the same one after the other.
        """
        mean_s = (overlap * microbatches * self.work_s + sum_s + self.step_s / shards[0]) / pp
        longest_s = overlap * microbatches * self.busiest_s(pp)
        return SLACK * max(mean_s, longest_s, self._ways_s[0], self._held_s(pp, microbatches, shards[1]))

    def _held_s(self, pp: int, microbatches: int, shards: float) -> float:
        """For how long activations fill what workers have for them, if they do from the start to the end."""
        memory_bytes = self.form.profile.device.memory_bytes
        if memory_bytes is None:
            return 0.0
        whole = self._whole
        own_bytes = self._split_bytes(shards) - whole.activations_bytes + pp * whole.buffers_bytes
        room_bytes = pp * (memory_bytes - FRAMEWORK_BYTES) / (1 + FRAGMENTS) - own_bytes
        return microbatches * self.held_byte_s / room_bytes if room_bytes > 0 else 0.0

    @cached_property
    def _whole(self) -> GpuMemory:
        return self.form.whole(self.degree)

    def _split_bytes(self, shards: float) -> float:
        """What all workers of a pipeline hold together beside buffers, with one micro-batch under way."""
        whole = self._whole
        return handed_out_bytes(whole) - whole.buffers_bytes - whole.optimizer_bytes * (1 - 1 / shards)

    def least_bytes(self, pp: int, shards: float) -> float:
        """The fullest GPU of a pipeline holds no less, with one micro-batch under way."""
        each = self._split_bytes(shards) / pp + self._whole.buffers_bytes
        return SLACK * (FRAMEWORK_BYTES + (1 + FRAGMENTS) * each)

    @cached_property
    def _costs(self) -> list[LayerCost]:
        return [
            next(cost for cost in layer.costs if cost.tensor_parallel == self.degree)
            for layer in self.form.profile.layers
        ]


def least_of_cut(template: Template, microbatches: int, *, in_order: bool) -> float:
    """No orders of a pipeline of this template take less, in s.

    Args:
        template: of the pipeline.
        microbatches: of it.
        in_order: whether the order is that of 1F1B, of one stage a worker.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    rooms = most_in_flight(template.stages, microbatches)
    ways = StageWays(template, in_order)
    longest_s = 0.0
    depth = microbatches
    for column, held in enumerate(template.columns):
        first = held[0]
        begins_s, ends_s = ways.heads_s[first], ways.ends_s[first]
        work_s = microbatches * sum(ways.works_s[stage] for stage in held)
        if in_order:
            depth = min(depth, len(template.stages) - column, rooms[column])
            stage = template.stages[first]
            waits_s = ways.turns_s[first] - ways.works_s[first] - (depth - 1) * stage.forward_s
            longest_s = max(longest_s, begins_s + work_s + max(0.0, waits_s) + ends_s)
            turns_s = ceil(microbatches / depth) * ways.turns_s[first]
        else:
            longest_s = max(longest_s, begins_s + work_s + ways.after_s[column])
            turns_s = _turns_s(template, column, microbatches, ways.turns_s)
        longest_s = max(longest_s, begins_s + turns_s + ends_s)
    return SLACK * longest_s


def _turns_s(template: Template, column: int, microbatches: int, turns_s: Sequence[float]) -> float:
    """How long a worker's room for activations is in use at least, in s; 0 without a limit."""
    limit_bytes = template.limit_bytes(column)
    held = template.columns[column]
    byte_s = sum(template.stages[stage].activation_bytes * turns_s[stage] for stage in held)
    if limit_bytes is None or not byte_s:
        return max(turns_s[stage] for stage in held)
    room_bytes = limit_bytes * (1 + ROUNDING)
    if len(held) > 1:
        return max(microbatches * byte_s / room_bytes, *(turns_s[stage] for stage in held))
    most = max(1, int(room_bytes // template.stages[held[0]].activation_bytes))
    return ceil(microbatches / most) * turns_s[held[0]]


class StageWays:
    """What comes before and behind the passes of each stage, in s, whatever the orders.

    Args:
        template: of the pipeline.
        in_order: whether backward passes are full ones, in the order of 1F1B.

    Attributes:
        works_s: of each stage, what a micro-batch keeps its worker busy for.
        heads_s: before when its first forward cannot start.
        turns_s: from a micro-batch's F to the end of its I, or B.
        after_s: of each column, its sums and its step.
        ends_s: of each stage, from the end of its last I, or B, to the end.
    """

    def __init__(self, template: Template, in_order: bool) -> None:
        stages, hops_s = template.stages, [link.delay_s for link in template.links]
        overlap = 1.0 if template.overlap is None else template.overlap
        fulls_s = [stage.duration_s("B") for stage in stages]
        inputs_s = [min(stage.backward_input_s, full_s) for stage, full_s in zip(stages, fulls_s, strict=True)]
        backs_s = fulls_s if in_order else inputs_s
        weights_s = [0.0 if in_order else min(stage.backward_weight_s, _after_input_s(stage)) for stage in stages]
        self.works_s = [_least_work_s(stage, overlap, in_order) for stage in stages]
        rounds_s = [stage.forward_s + back_s for stage, back_s in zip(stages, backs_s, strict=True)]
        self.heads_s = [0.0]
        for stage, hop_s in zip(stages, hops_s, strict=False):
            self.heads_s.append(self.heads_s[-1] + stage.forward_s + hop_s)
        self.turns_s = [rounds_s[-1]]
        for round_s, hop_s in zip(rounds_s[-2::-1], hops_s[::-1], strict=True):
            self.turns_s.insert(0, round_s + 2 * hop_s + self.turns_s[0])
        self.after_s = [sum(stages[v].allreduce_s + stages[v].optimizer_s for v in held) for held in template.columns]
        self.ends_s: list[float] = []
        for v, column in enumerate(template.column_of):
            up_s = hops_s[v - 1] + backs_s[v - 1] + self.ends_s[-1] if v else 0.0
            self.ends_s.append(max(weights_s[v] + self.after_s[column], up_s))


def _after_input_s(stage: Stage) -> float:
    """What of a full backward lies behind where I would end, as `StageWays` counts I."""
    return stage.duration_s("B") - min(stage.backward_input_s, stage.duration_s("B"))


def _least_work_s(stage: Stage, overlap: float, in_order: bool) -> float:
    full_s, halves_s = stage.duration_s("B"), stage.backward_input_s + stage.backward_weight_s
    return overlap * stage.forward_s + (full_s if in_order else min(overlap * full_s, halves_s))
