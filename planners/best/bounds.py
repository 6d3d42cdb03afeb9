"""What no plan of a shape can beat, before there is one: of whole shapes, of cuts, and what memory makes impossible.

Three steps, each dearer and tighter than the one before. All are proven, so a shape whose bound lies above a plan that
was made is ruled out for good.

1. **A shape, not cut yet.** Workers of a pipeline share its layers, however they are cut and placed. Each has its own
   operations, then the sum of its gradients, then its step, one after the other; the longest of these is no shorter
   than their mean, which no cut changes. A layer is never cut, so somebody does all of the dearest one. And one
   micro-batch has to go all the way down and up.
2. **Memory, not cut yet.** Parameters, state and one micro-batch's activations are somewhere: the fullest worker holds
   no less than the mean.
3. **A cut, without orders.** A stage begins when the first micro-batch has come to it through all stages before, has
   its work, its sum and its step. Under 1F1B, whose order is known, more is: a stage with warm-up k waits for its first
   backward until that has gone down and come back, and k - 1 of its forwards at most fill that time; and its last
   backward goes up through all stages before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ...schemas.plan import Stage, Template
from ...schemas.profile import LayerCost, summed_bytes
from ..gpu_memory import FRAGMENTS, FRAMEWORK_BYTES, GpuMemory
from ..scheduling.list_schedule import most_in_flight
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
        return [profile.least_work_s(self._cost(number)) for number in range(len(profile.layers))]

    @cached_property
    def work_s(self) -> float:
        """Of all layers."""
        return sum(self.works_s)

    @cached_property
    def longest_s(self) -> float:
        """Of the dearest layer."""
        return max(self.works_s)

    @cached_property
    def step_s(self) -> float:
        """The optimizer's step of all layers."""
        return sum(self._cost(number).optimizer_s for number in range(len(self.form.profile.layers)))

    @cached_property
    def summed_bytes(self) -> float:
        """What the sum of all gradients sends, a tied matrix's once; of all GPUs of a worker together."""
        return summed_bytes(self.form.profile.layers, [(0, len(self.form.profile.layers))])

    def least_s(self, pp: int, microbatches: int, sum_s: float, shards: int) -> float:
        """No plan of so many stages takes less.

        Args:
            pp: workers of a pipeline.
            microbatches: of a pipeline.
            sum_s: what the sum of all parameters' gradients takes, if one worker had them all.
            shards: pipelines that share the optimizer's state; 1: none does.
        """
        mean_s = (microbatches * self.work_s + sum_s + self.step_s / shards) / pp
        return SLACK * max(mean_s, microbatches * self.longest_s, self.work_s)

    @cached_property
    def _whole(self) -> GpuMemory:
        return self.form.whole(self.degree)

    def least_bytes(self, pp: int, shards: int) -> float:
        """The fullest GPU of a pipeline holds no less, with one micro-batch under way."""
        whole = self._whole
        split = handed_out_bytes(whole) - whole.buffers_bytes - whole.optimizer_bytes * (1 - 1 / shards)
        return SLACK * (FRAMEWORK_BYTES + (1 + FRAGMENTS) * (split / pp + whole.buffers_bytes))

    def _cost(self, number: int) -> LayerCost:
        layer = self.form.profile.layers[number]
        return next(cost for cost in layer.costs if cost.tensor_parallel == self.degree)


def least_of_cut(template: Template, microbatches: int, *, in_order: bool) -> float:
    """No orders of a pipeline of this template take less, in s.

    Args:
        template: of one stage a worker.
        microbatches: of the pipeline.
        in_order: whether the order is that of 1F1B.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    stages, hops = template.stages, [0.0, *(link.delay_s for link in template.links)]
    rooms = most_in_flight(stages, microbatches)
    arrives_s = list(accumulate(stage.forward_s for stage in stages))
    ways_s = list(accumulate(hops))
    heads_s = [a - stage.forward_s + way for a, stage, way in zip(arrives_s, stages, ways_s, strict=True)]
    if in_order:
        return SLACK * _of_1f1b(stages, rooms, heads_s, ways_s, microbatches)
    after_s = [stage.allreduce_s + stage.optimizer_s for stage in stages]
    ends_s = zip(heads_s, stages, after_s, strict=True)
    return SLACK * max(head_s + microbatches * _least_work_s(stage) + end_s for head_s, stage, end_s in ends_s)


def _least_work_s(stage: Stage) -> float:
    halves_s = stage.backward_input_s + stage.backward_weight_s
    return stage.forward_s + (halves_s if stage.backward_s is None else min(halves_s, stage.backward_s))


def _of_1f1b(
    stages: Sequence[Stage], rooms: Sequence[int], heads_s: Sequence[float], ways_s: Sequence[float], count: int
) -> float:
    """The same under 1F1B; `heads_s` are when stages can begin, `ways_s` what the links before them take."""
    fulls_s = [stage.duration_s("B") for stage in stages]
    rounds_s = [0.0, *accumulate(stage.forward_s + full_s for stage, full_s in zip(stages, fulls_s, strict=True))]
    # After a stage's last operation its backward goes up: the end is that of the stage before which ends last.
    ends_s: list[float] = []
    for index, stage in enumerate(stages):
        own_s = stage.allreduce_s + stage.optimizer_s
        hop_s = ways_s[index] - ways_s[index - 1] if index else 0.0
        before_s = hop_s + fulls_s[index - 1] + ends_s[-1] if index else 0.0
        ends_s.append(max(own_s, before_s))
    depth, longest_s = count, 0.0
    for index, stage in enumerate(stages):
        depth = min(depth, len(stages) - index, rooms[index])
        down_and_up_s = rounds_s[-1] - rounds_s[index + 1] + 2 * (ways_s[-1] - ways_s[index])
        waits_s = max(0.0, down_and_up_s - (depth - 1) * stage.forward_s)
        working_s = count * (stage.forward_s + fulls_s[index]) + waits_s
        longest_s = max(longest_s, heads_s[index] + working_s + ends_s[index])
    return longest_s
