"""What a GPU holds in training, by part: the one account that planners, `rtk explain` and benchmarks show.

Parameters, gradients and the optimizer's state are those of the profile's layers; activations are a plan's, at their
peak. Beside them are buffers, and what the framework takes. Two constants say the latter. Both are fitted to the memory
of 32 runs of models of 176 to 195 billion parameters on A100 (BigScience, 2022; Megatron-DeepSpeed); how far they hold
for models left out of the fit is in docs/profiles-method.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from ..schemas.errors import InvalidInputError
from ..schemas.plan import Layers, Plan, Worker
from ..schemas.profile import Profile, gradients_held, held_by
from ..schemas.resumption import holders_by_layer, layers_in
from ..schemas.sharded import OptimizerShare, TrainedBytes

# CUDA's context, NCCL's buffers for each group, cuBLAS's workspaces.
FRAMEWORK_BYTES = 3e9
# What torch's allocator keeps beside what it has handed out, as blocks that fit nothing, over what it has handed out.
FRAGMENTS = 0.17


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """What a GPU holds when it holds most, in bytes.

    Attributes:
        parameters_bytes: in the numbers that it computes with.
        gradients_bytes: sums of them in numbers of their own, where these are others, and those just made.
        optimizer_bytes: moments, and copies of parameters; of a sharded optimizer its share, and what it keeps aside.
        activations_bytes: of the micro-batches that are between their forward and their backward pass.
        buffers_bytes: what stages have sent on and keep until the gradient comes, and a block that is computed again.
        framework_bytes: `FRAMEWORK_BYTES`, and what the allocator cannot hand out.
    """

    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    buffers_bytes: float
    framework_bytes: float

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """The parts by what they are called."""
        return {one.name.removesuffix("_bytes"): getattr(self, one.name) for one in fields(self)}


def gpu_memory(
    profile: Profile,
    held: Sequence[Layers],
    activation_bytes: float,
    sent: Sequence[int],
    *,
    degree: int = 1,
    shards: float = 1,
    share: OptimizerShare | None = None,
) -> GpuMemory:
    """What each GPU of a worker holds.

    Args:
        profile: the model's costs.
        held: the layers of each of its virtual stages, tied weights on it once.
        activation_bytes: the most it holds of activations, of a GPU.
        sent: of each of these stages, how many micro-batches are between F and the end of I at most.
        degree: GPUs that share every layer.
        shards: by what it holds less of the optimizer's state, such as the peers that share it (ZeRO-1); 1: all.
        share: what it has where each part has two holders, and maybe a copy; counts instead of `shards`.
    """
    parameters_bytes, state_bytes = (size / degree for size in held_by(profile.layers, held))
    summed_bytes = min(gradients_held(profile.layers, held) / degree, state_bytes)
    # A pass makes them in the parameters' numbers: where sums have more digits, both are there.
    made_bytes = parameters_bytes if summed_bytes > parameters_bytes else 0.0
    optimizer_bytes = (state_bytes - summed_bytes) / shards
    if share is not None:
        optimizer_bytes = share.optimizer_bytes(TrainedBytes.of(profile.layers, held, degree))
    buffers_bytes = _buffers_bytes(profile, held, sent, degree)
    handed_out = parameters_bytes + summed_bytes + made_bytes + optimizer_bytes + activation_bytes + buffers_bytes
    return GpuMemory(
        parameters_bytes,
        summed_bytes + made_bytes,
        optimizer_bytes,
        activation_bytes,
        buffers_bytes,
        FRAMEWORK_BYTES + FRAGMENTS * handed_out,
    )


def memory_of(
    profile: Profile, plan: Plan, shards: int | None = None, *, after_losses: bool = False
) -> list[GpuMemory | None]:
    """What a GPU of each worker of a plan holds; None for dead workers.

    Args:
        profile: the plan's.
        plan: with orders and prediction.
        shards: peers among which the optimizer's state is divided; None: as the plan says.
        after_losses: of a plan whose peers share it: what each holds once one more of its peers is lost.

    Raises:
        InvalidInputError: the plan has no prediction.
    """
    if plan.prediction is None:
        raise InvalidInputError("the plan says nothing of activations: it has no prediction", fix="plan it with rtk")
    peaks = plan.prediction.peak_memory_bytes
    shares = _shares_of(plan) if shards is None and plan.shards_optimizer else {}
    found: list[GpuMemory | None] = []
    for worker, peak_bytes in zip(plan.workers, peaks, strict=True):
        if worker.failed:
            found.append(None)
            continue
        template = next(one for one in plan.templates if one.name == plan.pipelines[worker.pipeline].template)
        held = template.columns[worker.stage]
        degree = max(template.stages[stage].tensor_parallel for stage in held)
        ranges = [template.stages[stage].layers for stage in held]
        sent = most_between(worker, held)
        share = shares.get(worker.name)
        if share is not None and after_losses:
            share = share.after_losses
        found.append(gpu_memory(profile, ranges, peak_bytes, sent, degree=degree, shards=shards or 1, share=share))
    return found


def _shares_of(plan: Plan) -> dict[str, OptimizerShare]:
    """What each live worker has of the optimizer, by its name: of the layer that the fewest others hold."""
    holders = holders_by_layer(plan)
    is_kept = plan.optimizer == "staggered"
    return {
        worker.name: OptimizerShare(min(holders[layer] for layer in layers_in(plan.layers_of(worker))), is_kept)
        for worker in plan.live_workers()
    }


def fullest(found: Sequence[GpuMemory | None]) -> GpuMemory | None:
    """The one that holds most; None where nobody lives."""
    return max((one for one in found if one is not None), key=lambda one: one.total_bytes, default=None)


def _buffers_bytes(profile: Profile, held: Sequence[Layers], sent: Sequence[int], degree: int) -> float:
    """What stages have sent, for so many micro-batches each, and a block that is computed again."""
    layers = profile.layers
    outputs_bytes = 0.0
    for (_, stop), count in zip(held, sent, strict=True):
        last = layers[stop - 1]
        outputs_bytes += count * last.output_bytes / (degree if last.replicated_bytes is None else 1)
    again = profile.model.get("recomputed_bytes")
    return outputs_bytes + (again / degree if isinstance(again, int | float) else 0.0)


def most_between(worker: Worker, held: Sequence[int]) -> list[int]:
    """Of each virtual stage of a worker, how many micro-batches are between F and the end of I or B at most."""
    between, most = dict.fromkeys(held, 0), dict.fromkeys(held, 0)
    for operation in worker.operations():
        stage = held[0] if operation.stage is None else operation.stage
        between[stage] += {"F": 1, "W": 0}.get(operation.kind, -1)
        most[stage] = max(most[stage], between[stage])
    return list(most.values())
