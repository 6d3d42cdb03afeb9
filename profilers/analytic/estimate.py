"""A Profile by calculation: every layer's F, I, W and optimizer step from what it does and what a device can do.

FLOPs are counted as papers count them: two a multiply-add of matrix products and attention, causal attention in full
(Narayanan et al., 2021, appendix; torch's FlopCounterMode agrees). With checkpointing, blocks keep their input only. I
begins with F again, and computes the weight gradients as well: W takes no time, and nothing is kept for it, as in our
runner (models/checkpointed.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...schemas.errors import InvalidInputError
from ...schemas.form import DataType, ModelForm
from ...schemas.gpus import INTER_NODE, Gpu
from ...schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile
from .layers import WORKS, Kind, block_work, head_work
from .memory import LayerBytes, block_bytes, embedding_bytes, head_bytes, stream_bytes
from .rates import AS_COMPUTED, Corrections, Rates
from .shape import ELEMENT_BYTES, Batch, DecoderShape
from .work import Work


@dataclass(frozen=True, slots=True)
class OptimizerBytes:
    """AdamW's bytes for each parameter.

    Args:
        state: gradient, moments, and in mixed precision an fp32 copy of the parameter.
        moved: by a step: all of them read, all but the gradient written, and the gradient zeroed.
    """

    state: float
    moved: float


# bf16 is mixed precision: parameter and gradient in bf16; copy and two moments in fp32 (Rajbhandari et al., 2020: 16
# bytes a parameter in all).
OPTIMIZER: dict[DataType, OptimizerBytes] = {"bf16": OptimizerBytes(14, 30), "fp32": OptimizerBytes(12, 32)}
OPTIMIZER_KERNELS = 10

Calibration = Mapping[Kind, Corrections]
UNCALIBRATED: Calibration = {}


@dataclass(frozen=True, slots=True)
class _Estimate:
    """What all layers of a profile have in common."""

    shape: DecoderShape
    batch: Batch
    form: ModelForm
    rates: Rates
    corrections: Calibration
    degrees: Sequence[int]
    group: Connection

    def reduction_s(self, degree: int) -> float:
        """Of the stream over a tensor-parallel group."""
        return self.group.ring_s(stream_bytes(self.shape, self.batch), degree)


def analytic_profile(
    name: str,
    shape: DecoderShape,
    batch: Batch,
    device: Gpu,
    rates: Rates,
    *,
    corrections: Calibration = UNCALIBRATED,
    is_checkpointing: bool = False,
    degrees: Sequence[int] = (1,),
) -> Profile:
    """Compute a model's profile on a device.

    Args:
        name: of the model, for the profile.
        shape: the model.
        batch: one micro-batch.
        device: whose memory and links count.
        rates: the device's.
        corrections: of these, for each kind of layer; from a calibration.
        is_checkpointing: blocks keep their inputs only.
        degrees: tensor-parallel degrees, each with a cost of its own.

    Returns:
        The profile, with `origin` "analytic": the embedding, the blocks, the head with the loss. `model["flops"]` are
        those of one micro-batch's forward pass, `model["recomputed_bytes"]` what a checkpointed block holds from the
        second F to the end of I, beside what the format counts.

    Raises:
        InvalidInputError: a degree does not divide the model's heads, or the sequence is longer than its positions.
    """
    _check(shape, batch, degrees)
    form = ModelForm(dtype=batch.dtype, checkpointing=is_checkpointing)
    estimate = _Estimate(shape, batch, form, rates, corrections, degrees, device.intra_node)
    block = _block(estimate)
    blocks = (replace(block, name=f"{index} {block.name}") for index in range(1, shape.blocks + 1))
    return Profile(
        layers=(_embedding(estimate), *blocks, _head(estimate)),
        model=_description(name, estimate),
        origin="analytic",
        device=Device(f"{device.name} (analytic)", device.memory_bytes),
        microbatch_size=batch.microbatch_size,
        sequence_length=batch.sequence_length,
        network=Network(intra_node=device.intra_node, inter_node=INTER_NODE),
    )


def forward_flops(shape: DecoderShape, batch: Batch) -> tuple[float, float]:
    """FLOPs of a forward pass of one micro-batch: of all blocks, and of the head."""
    return shape.blocks * block_work(shape, batch, 1).forward.flops, head_work(shape, batch, 1).forward.flops


def step_work(parameters: float, dtype: DataType) -> Work:
    """An AdamW step."""
    return Work(moved_bytes=OPTIMIZER[dtype].moved * parameters, kernels=OPTIMIZER_KERNELS)


def _check(shape: DecoderShape, batch: Batch, degrees: Sequence[int]) -> None:
    if batch.sequence_length > shape.positions:
        raise InvalidInputError(
            f"the model has {shape.positions} positions, fewer than a sequence of {batch.sequence_length}",
            where="--sequence-length",
            fix=f"give at most {shape.positions}",
        )
    for degree in degrees:
        if degree < 1 or shape.heads % degree:
            raise InvalidInputError(
                f"{degree} tensor-parallel ranks cannot share {shape.heads} heads evenly",
                where="--tp",
                fix="give divisors of the number of heads",
            )


def _embedding(estimate: _Estimate) -> Layer:
    held = embedding_bytes(estimate.shape, estimate.batch)
    return _layer("embedding", "0 Embedding", estimate, held, estimate.shape.embedding_parameters)


def _block(estimate: _Estimate) -> Layer:
    held = block_bytes(estimate.shape, estimate.batch)
    if estimate.form.checkpointing:
        held = LayerBytes(activation=held.input, weight_stash=0, input=held.input)
    return _layer("block", "Block", estimate, held, estimate.shape.block_parameters)


def _head(estimate: _Estimate) -> Layer:
    shape, batch = estimate.shape, estimate.batch
    layer = _layer("head", f"{shape.blocks + 1} Head", estimate, head_bytes(shape, batch), shape.head_parameters)
    layer = replace(layer, output_bytes=0.0)
    if not shape.is_tied:
        return layer
    tied_bytes, tied_state_bytes = _parameter_bytes(shape.vocabulary * shape.width, batch)
    return replace(layer, tied_to=0, tied_bytes=tied_bytes, tied_state_bytes=tied_state_bytes)


def _layer(kind: Kind, name: str, estimate: _Estimate, held: LayerBytes, parameters: int) -> Layer:
    parameter_bytes, state_bytes = _parameter_bytes(parameters, estimate.batch)
    return Layer(
        costs=tuple(_cost(kind, estimate, degree) for degree in estimate.degrees),
        name=name,
        parameter_bytes=parameter_bytes,
        state_bytes=state_bytes,
        activation_bytes=held.activation,
        weight_stash_bytes=held.weight_stash,
        output_bytes=stream_bytes(estimate.shape, estimate.batch),
    )


def _cost(kind: Kind, estimate: _Estimate, degree: int) -> LayerCost:
    rates, batch = estimate.rates, estimate.batch
    work = WORKS[kind](estimate.shape, batch, degree)
    corrections = estimate.corrections.get(kind, AS_COMPUTED)
    forward_s, input_s, weight_s = rates.layer_s(work, corrections, estimate.reduction_s(degree))
    if kind == "block" and estimate.form.checkpointing:
        input_s, weight_s = input_s + forward_s + weight_s, 0.0
    step_s = rates.pass_s(step_work(work.parameters, batch.dtype), corrections.optimizer, 0.0)
    return LayerCost(forward_s, input_s, weight_s, step_s, tensor_parallel=degree)


def _parameter_bytes(parameters: int, batch: Batch) -> tuple[float, float]:
    return float(parameters * ELEMENT_BYTES[batch.dtype]), float(parameters * OPTIMIZER[batch.dtype].state)


def _description(name: str, estimate: _Estimate) -> dict[str, object]:
    shape, batch = estimate.shape, estimate.batch
    recomputed = {"recomputed_bytes": block_bytes(shape, batch).activation} if estimate.form.checkpointing else {}
    return {
        "name": name,
        "parameters": shape.parameters,
        "vocabulary": shape.vocabulary,
        "flops": sum(forward_flops(shape, batch)),
        **recomputed,
        **estimate.form.options(),
    }
