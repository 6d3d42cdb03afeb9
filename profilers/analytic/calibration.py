"""What a measured profile says about a device: by how much F, I, W and step differ from what was computed.

One layer of each kind is enough, of a model small enough to be measured. W is nearly all matrix products, so measured
over computed W corrects these, in F and I as well. What F and I then take longer or shorter is put down to everything
else: attention, norms, activations, overheads. The optimizer step is a correction of its own.

So a model that does not fit is predicted from one that does, on the same device in the same numbers: the size of the
matrices and the length of sequences may differ, the kernels should not.
"""

from statistics import median

from ...schemas.errors import InvalidInputError
from ...schemas.profile import LayerCost, Profile
from .catalogue import known_model
from .estimate import Calibration, step_work
from .layers import WORKS
from .rates import Correction, Corrections, Rates
from .shape import Batch, DecoderShape
from .work import LayerWork, Work


def calibration_of(rates: Rates, measured: Profile) -> Calibration:
    """What a profile that was measured on a device says about its computed rates.

    Args:
        rates: computed ones.
        measured: of a model whose shape is known (its `model` has the name), at tensor-parallel degree 1, without
            checkpointing; of its blocks the median counts.

    Raises:
        InvalidInputError: the profile was not measured, or of another model, or in another way.
    """
    shape, batch = _described(measured)
    costs = [_single(measured, index) for index in range(len(measured.layers))]
    of_kinds = {"embedding": costs[:1], "block": costs[1:-1], "head": costs[-1:]}
    works = {kind: work(shape, batch, 1) for kind, work in WORKS.items()}
    return {kind: corrections_of(rates, work, batch, _median(of_kinds[kind])) for kind, work in works.items()}


def corrections_of(rates: Rates, work: LayerWork, batch: Batch, measured: LayerCost) -> Corrections:
    """What one measured layer says about rates that were computed."""
    _, _, computed_s = rates.layer_s(work)
    matrix = measured.backward_weight_s / computed_s if computed_s else 1.0
    step = measured.optimizer_s / rates.pass_s(step_work(work.parameters, batch.dtype), Correction(), 0.0)
    return Corrections(
        forward=_with_rest(rates, work.forward, matrix, measured.forward_s),
        backward_input=_with_rest(rates, work.backward_input, matrix, measured.backward_input_s),
        backward_weight=Correction(matrix, matrix),
        optimizer=Correction(step, step),
    )


def _with_rest(rates: Rates, work: Work, matrix: float, measured_s: float) -> Correction:
    """What is not matrix products makes up the difference; where nothing is left for it, all is corrected alike."""
    rest = (measured_s - matrix * rates.matrix_s(work)) / rates.rest_s(work)
    if rest > 0:
        return Correction(matrix, rest)
    alike = measured_s / (rates.matrix_s(work) + rates.rest_s(work))
    return Correction(alike, alike)


def _described(measured: Profile) -> tuple[DecoderShape, Batch]:
    name, dtype = measured.model.get("name"), measured.model.get("dtype", "fp32")
    if measured.origin != "measured" or measured.model.get("checkpointing"):
        raise _unsuitable("it was not measured, or with checkpointing")
    if not isinstance(name, str) or measured.microbatch_size is None or measured.sequence_length is None:
        raise _unsuitable("it does not say of which model, at what micro-batch size and sequence length")
    shape = known_model(name).shape
    if len(measured.layers) != shape.blocks + 2:
        raise _unsuitable(
            f"it has {len(measured.layers)} layers, and {name} an embedding, {shape.blocks} blocks, a head"
        )
    return shape, Batch(measured.microbatch_size, measured.sequence_length, dtype)


def _single(measured: Profile, index: int) -> LayerCost:
    for cost in measured.layers[index].costs:
        if cost.tensor_parallel == 1:
            return cost
    raise _unsuitable(f"layer {index} has no cost at tensor_parallel 1")


def _median(costs: list[LayerCost]) -> LayerCost:
    times = ((cost.forward_s, cost.backward_input_s, cost.backward_weight_s, cost.optimizer_s) for cost in costs)
    return LayerCost(*map(median, zip(*times, strict=True)))


def _unsuitable(why: str) -> InvalidInputError:
    return InvalidInputError(
        f"the profile cannot calibrate: {why}",
        where="--calibrate",
        fix="measure a smaller model of the kind: rtk profile gpt-small -o P",
    )
