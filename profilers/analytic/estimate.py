"""A Profile by calculation: every layer's F, I, W and optimizer step from what it does and what a device can do.

FLOPs are counted as papers count them: two a multiply-add of matrix products and attention, causal attention in full
(Narayanan et al., 2021, appendix; torch's FlopCounterMode agrees). With checkpointing, blocks keep their input only. I
begins with F again, and computes the weight gradients as well: W takes no time, and nothing is kept for it, as in our
runner (models/skeleton.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ...schemas.cluster import Cluster, on_cluster
from ...schemas.errors import InvalidInputError
from ...schemas.gpus import INTER_NODE, MEMORY_SHARE, Gpu
from ...schemas.gpus import gpu as known_gpu
from ...schemas.profile import Connection, DataType, Device, Layer, LayerCost, ModelForm, Network, Profile, form_of
from .configuration import known_model
from .costs import (
    WORKS,
    DecoderShape,
    Kind,
    LayerWork,
    MicrobatchShape,
    StashBytes,
    Work,
    block_bytes,
    block_work,
    embedding_bytes,
    head_bytes,
    head_work,
    stream_bytes,
)
from .software import USUAL_SOFTWARE, Software, software_of

# How fast a device works: a roofline (Williams et al., 2009) whose parts do not overlap within a pass.
#
# A pass takes FLOPs / rate + bytes / bandwidth + kernels x overhead, matrix products included: in F and I they pay for
# what goes in and comes out, in W for their operands, while the gradient they add to is fetched meanwhile. So a product
# of intensity f (FLOPs a byte) reaches a share of the best rate of f / (f + r), where r is the best rate over the
# bandwidth: the kernel efficiency curve. Both ends are the classic roofline's; where its lines meet it is half as high.
# Measurements on a CPU core have this form (docs/benchmarks.md); on an A100 it gives an eighth of the matrices of a 22B
# model (8192 tokens, 6144 x 2304) 77 % of the peak.


# FlashAttention-2 on A100 reaches 50 to 73 % of the peak without a mask (Dao, 2023, figure 5), and less with one;
# torch's kernels on a CPU reach half of a matrix product's rate.
ATTENTION_SHARE = 0.5
# Of the fp32 peak, what attention's products reach where their heads fit no tensor core: set by hand on two of
# BigScience's iterations, of heads of 108, and not validated on others.
MISFIT_SHARE = 0.6
# A causal attention's kernel leaves out the half of the products that the mask would throw away.
CAUSAL = 0.5


@dataclass(frozen=True, slots=True)
class Correction:
    """What a calibration found: measured over computed, of matrix products and of everything else."""

    matrix: float = 1.0
    rest: float = 1.0


@dataclass(frozen=True, slots=True)
class Corrections:
    """One for each pass of a layer; sums over the tensor-parallel group stay as they are."""

    forward: Correction = Correction()
    backward_input: Correction = Correction()
    backward_weight: Correction = Correction()
    optimizer: Correction = Correction()


AS_COMPUTED = Corrections()


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device does in a second.

    Args:
        matrix_flops_per_s: of large matrix products.
        matrix_bytes_per_s: of their operands; None where products take the time of their FLOPs only.
        attention_flops_per_s: of attention's products, counted as if it were not causal.
        misfit_flops_per_s: of its products where heads fit no tensor core.
        bytes_per_s: of everything else.
        kernel_s: each kernel's overhead.
        is_blocking: whether the program waits for each kernel, so that none's overhead is hidden.
    """

    matrix_flops_per_s: float
    matrix_bytes_per_s: float | None
    attention_flops_per_s: float
    misfit_flops_per_s: float
    bytes_per_s: float
    kernel_s: float
    is_blocking: bool = False

    def matrix_s(self, work: Work) -> float:
        """Of a pass's matrix products."""
        computing_s = work.matrix_flops / self.matrix_flops_per_s
        if self.matrix_bytes_per_s is None:
            return computing_s
        return max(
            computing_s + work.streamed_bytes / self.matrix_bytes_per_s, work.matrix_bytes / self.matrix_bytes_per_s
        )

    def rest_s(self, work: Work) -> float:
        """Of everything else, sums over the group excepted."""
        return self.attention_s(work) + work.moved_bytes / self.bytes_per_s + self.gaps_s(work)

    def attention_s(self, work: Work) -> float:
        """Of attention: one kernel, or products and what goes through memory between them."""
        flash_s = work.attention_flops / self.attention_flops_per_s
        products_s = work.scores_flops / self.matrix_flops_per_s + work.misfit_flops / self.misfit_flops_per_s
        return flash_s + products_s + work.scores_bytes / self.bytes_per_s

    def gaps_s(self, work: Work) -> float:
        """Between kernels."""
        return (work.kernels + work.hidden_kernels * self.is_blocking) * self.kernel_s

    def pass_s(self, work: Work, correction: Correction, reduction_s: float) -> float:
        """A pass, with its sums over the group of `reduction_s` each."""
        computing_s = correction.matrix * self.matrix_s(work) + correction.rest * self.rest_s(work)
        return computing_s + work.reductions * reduction_s

    def layer_s(
        self, work: LayerWork, corrections: Corrections = AS_COMPUTED, reduction_s: float = 0.0
    ) -> tuple[float, float, float]:
        """F, I and W of a layer."""
        return (
            self.pass_s(work.forward, corrections.forward, reduction_s),
            self.pass_s(work.backward_input, corrections.backward_input, reduction_s),
            self.pass_s(work.backward_weight, corrections.backward_weight, reduction_s),
        )

    def hidden_s(
        self, work: LayerWork, share: float, reduction_s: float, corrections: Corrections = AS_COMPUTED
    ) -> float:
        """What of the sums in I runs beside weight gradients in a full backward pass: no longer than these take.

        Args:
            work: of the layer.
            share: of a sum, what can (`Software.hidden_share`).
            reduction_s: a sum.
            corrections: of the layer.
        """
        beside_s = (self.pass_s(one, corrections.backward_weight, 0.0) for one in work.summed)
        return sum(min(share * reduction_s, one_s) for one_s in beside_s)


def rates_of(
    device: Gpu, dtype: DataType, efficiency: float | None = None, software: Software = USUAL_SOFTWARE
) -> Rates:
    """A GPU's rates.

    Args:
        device: the GPU.
        dtype: the numbers that matrix products and attention compute in.
        efficiency: of the peak, that all matrix products are to reach; None for what their size allows.
        software: whose launches run ahead or not, and whose products reach the best or the sustained share.

    Raises:
        InvalidInputError: the GPU has no such numbers, or the efficiency is no share.
    """
    if dtype not in device.peaks:
        raise InvalidInputError(
            f"{device.name} does not compute in {dtype}", where="--dtype", fix=f"it has {', '.join(device.peaks)}"
        )
    if efficiency is not None and not 0 < efficiency <= 1:
        raise InvalidInputError(
            f"{efficiency:g} is no share of the peak", where="--efficiency", fix="give a number above 0, at most 1"
        )
    reachable = device.peaks[dtype] * (device.sustained_share if software.sustained else device.matrix_share)
    bytes_per_s = MEMORY_SHARE * device.memory_bytes_per_s
    return Rates(
        matrix_flops_per_s=reachable if efficiency is None else device.peaks[dtype] * efficiency,
        matrix_bytes_per_s=bytes_per_s if efficiency is None else None,
        attention_flops_per_s=ATTENTION_SHARE * reachable / CAUSAL,
        misfit_flops_per_s=MISFIT_SHARE * device.peaks["fp32"],
        bytes_per_s=bytes_per_s,
        kernel_s=device.kernel_s if software.kernel_gap_s is None else software.kernel_gap_s,
        is_blocking=software.kernel_gap_s is not None,
    )


@dataclass(frozen=True, slots=True)
class OptimizerBytes:
    """AdamW's bytes for each parameter.

    Args:
        state: gradient, moments, and in mixed precision an fp32 copy of the parameter.
        moved: by a step: all of them read, all but the gradient written, and the gradient zeroed.
    """

    state: float
    moved: float


OPTIMIZER_KERNELS = 10


def optimizer_bytes(batch: MicrobatchShape) -> OptimizerBytes:
    """Of AdamW in a model's numbers.

    16 bits are mixed precision: parameter and gradient in 16 bits; copy and two moments in fp32 (Rajbhandari et al.,
    2020: 16 bytes a parameter in all). Gradients in fp32 are two bytes more, read and zeroed.
    """
    copies = 8 if batch.dtype == "fp32" else 12
    kept, gradient = (0 if batch.dtype == "fp32" else 2), batch.gradient_bytes
    masters = copies if batch.dtype != "fp32" else copies + 4
    return OptimizerBytes(copies + gradient, 2 * masters + 2 * gradient + kept)


BEST_TYPES: tuple[DataType, ...] = ("bf16", "fp16", "fp32")  # the first that a GPU has is what it is computed in

Calibration = Mapping[Kind, Corrections]
UNCALIBRATED: Calibration = {}


@dataclass(frozen=True, slots=True)
class Learned:
    """What a measured run says (observed.py, traced.py).

    Attributes:
        corrections: of what is computed.
        dtype: the numbers in which it was measured.
        parameters: of the model that ran; None where nobody says.
        tokens: of its micro-batches; None where nobody says.
        words: whence it is known, for the profile.
        remarks: what was learned, and how sure it is.
    """

    corrections: Calibration
    dtype: DataType
    parameters: int | None
    tokens: int | None
    words: str
    remarks: tuple[str, ...]

    def carried(self, profile: Profile) -> str | None:
        """What it is used for beside the model that ran; None where that is the same, or not known."""
        tokens = (profile.microbatch_size or 0) * (profile.sequence_length or 0)
        if self.parameters is None or (self.parameters, self.tokens) == (profile.model["parameters"], tokens):
            return None
        theirs = f"{self.parameters / 1e9:.3g} billion parameters in micro-batches of {self.tokens} tokens"
        ours = f"{profile.model['parameters'] / 1e9:.3g} billion in micro-batches of {tokens}"
        return (
            f"a model of {theirs} ran, and this one has {ours}: what large products take carries over, of smaller or "
            "other kernels little is known"
        )


def numbers_of(calibrate: Profile | Learned) -> DataType:
    """The numbers in which a calibration was measured."""
    return calibrate.dtype if isinstance(calibrate, Learned) else form_of(calibrate.model).dtype


@dataclass(frozen=True, slots=True)
class _Estimate:
    """What all layers of a profile have in common."""

    shape: DecoderShape
    batch: MicrobatchShape
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
    batch: MicrobatchShape,
    device: Gpu,
    rates: Rates,
    *,
    corrections: Calibration = UNCALIBRATED,
    is_checkpointing: bool = False,
    degrees: Sequence[int] = (1,),
    group: Connection | None = None,
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
        group: the path between their ranks; None: the device's within a node.

    Returns:
        The profile, with `origin` "analytic": the embedding, the blocks, the head with the loss. `model["flops"]` are
        those of one micro-batch's forward pass, `model["recomputed_bytes"]` what a checkpointed block holds from the
        second F to the end of I, beside what the format counts.

    Raises:
        InvalidInputError: a degree does not divide the model's heads, or the sequence is longer than its positions.
    """
    _check(shape, batch, degrees)
    form = ModelForm(dtype=batch.dtype, checkpointing=is_checkpointing)
    estimate = _Estimate(shape, batch, form, rates, corrections, degrees, group or device.intra_node)
    held = block_bytes(shape, batch)
    if is_checkpointing:
        held = StashBytes(activation=held.input, weight_stash=0, input=held.input, replicated=held.input)
    block = _layer("block", "Block", estimate, held, shape.block_parameters)
    blocks = (replace(block, name=f"{index} {block.name}") for index in range(1, shape.blocks + 1))
    embedding = _layer("embedding", "0 Embedding", estimate, embedding_bytes(shape, batch), shape.embedding_parameters)
    recomputed = {"recomputed_bytes": block_bytes(shape, batch).activation} if is_checkpointing else {}
    return Profile(
        layers=(embedding, *blocks, _head(estimate)),
        model={
            "name": name,
            "parameters": shape.parameters,
            "vocabulary": shape.vocabulary,
            "flops": sum(forward_flops(shape, batch)),
            **recomputed,
            **form.options(),
            **batch.software.options(),
        },
        origin="analytic",
        device=Device(f"{device.name} (analytic)", device.memory_bytes),
        microbatch_size=batch.microbatch_size,
        sequence_length=batch.sequence_length,
        network=Network(intra_node=device.intra_node, inter_node=INTER_NODE),
    )


def forward_flops(shape: DecoderShape, batch: MicrobatchShape) -> tuple[float, float]:
    """FLOPs of a forward pass of one micro-batch: of all blocks, and of the head."""
    return shape.blocks * block_work(shape, batch, 1).forward.flops, head_work(shape, batch, 1).forward.flops


def step_work(parameters: float, batch: MicrobatchShape) -> Work:
    """An AdamW step."""
    return Work(moved_bytes=optimizer_bytes(batch).moved * parameters, kernels=OPTIMIZER_KERNELS)


def _check(shape: DecoderShape, batch: MicrobatchShape, degrees: Sequence[int]) -> None:
    if batch.sequence_length > shape.positions:
        raise InvalidInputError(
            f"the model has {shape.positions} positions, fewer than a sequence of {batch.sequence_length}",
            where="--sequence-length",
            fix=f"give at most {shape.positions}",
        )
    if batch.software.gradients not in (None, "fp32", batch.dtype):
        raise InvalidInputError(
            f"gradients of {batch.dtype} parameters are not kept in {batch.software.gradients}",
            where="--gradients",
            fix=f"take fp32 or {batch.dtype}" if batch.dtype != "fp32" else "take fp32",
        )
    for degree in degrees:
        if degree < 1 or shape.heads % degree:
            raise InvalidInputError(
                f"{degree} tensor-parallel ranks cannot share {shape.heads} heads evenly",
                where="--tp",
                fix="give divisors of the number of heads",
            )


def _head(estimate: _Estimate) -> Layer:
    shape, batch = estimate.shape, estimate.batch
    layer = _layer("head", f"{shape.blocks + 1} Head", estimate, head_bytes(shape, batch), shape.head_parameters)
    layer = replace(layer, output_bytes=0.0)
    if not shape.is_tied:
        return layer
    tied_bytes, tied_state_bytes = _parameter_bytes(shape.vocabulary * shape.width, batch)
    return replace(layer, tied_to=0, tied_bytes=tied_bytes, tied_state_bytes=tied_state_bytes)


def _layer(kind: Kind, name: str, estimate: _Estimate, held: StashBytes, parameters: int) -> Layer:
    rates, batch, costs = estimate.rates, estimate.batch, []
    corrections = estimate.corrections.get(kind, AS_COMPUTED)
    for degree in estimate.degrees:
        work = WORKS[kind](estimate.shape, batch, degree)
        reduction_s = estimate.reduction_s(degree)
        forward_s, input_s, weight_s = rates.layer_s(work, corrections, reduction_s)
        hidden_s = rates.hidden_s(work, batch.software.hidden_share, reduction_s, corrections)
        full_s = input_s + weight_s - hidden_s if hidden_s else None
        if kind == "block" and estimate.form.checkpointing:  # I is a full backward pass
            input_s, weight_s, full_s = input_s + forward_s + weight_s - hidden_s, 0.0, None
        step_s = rates.pass_s(step_work(work.parameters, batch), corrections.optimizer, 0.0)
        costs.append(LayerCost(forward_s, input_s, weight_s, step_s, tensor_parallel=degree, backward_s=full_s))
    parameter_bytes, state_bytes = _parameter_bytes(parameters, batch)
    return Layer(
        costs=tuple(costs),
        name=name,
        parameter_bytes=parameter_bytes,
        state_bytes=state_bytes,
        activation_bytes=held.activation,
        weight_stash_bytes=held.weight_stash,
        output_bytes=stream_bytes(estimate.shape, estimate.batch),
        replicated_bytes=None if batch.software.sequence_parallel else min(held.replicated, held.activation),
        gradient_bytes=None if batch.software.gradients is None else float(parameters * batch.gradient_bytes),
    )


def _parameter_bytes(parameters: int, batch: MicrobatchShape) -> tuple[float, float]:
    return float(parameters * batch.element_bytes), float(parameters * optimizer_bytes(batch).state)


# What a measured profile says about a device: by how much F, I, W and step differ from what was computed.
#
# One layer of each kind is enough, of a model small enough to be measured. W is nearly all matrix products, so measured
# over computed W corrects these, in F and I as well. What F and I then take longer or shorter is put down to everything
# else: attention, norms, activations, overheads. The optimizer step is a correction of its own.
#
# So a model that does not fit is predicted from one that does, on the same device in the same numbers: the size of the
# matrices and the length of sequences may differ, the kernels should not.


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
    times_s = []
    for index, layer in enumerate(measured.layers):
        cost = next((cost for cost in layer.costs if cost.tensor_parallel == 1), None)
        if cost is None:
            raise _unsuitable(f"layer {index} has no cost at tensor_parallel 1")
        times_s.append((cost.forward_s, cost.backward_input_s, cost.backward_weight_s, cost.optimizer_s))
    of_kinds = {"embedding": times_s[:1], "block": times_s[1:-1], "head": times_s[-1:]}
    usual = {kind: LayerCost(*map(median, zip(*of_kinds[kind], strict=True))) for kind in WORKS}
    return {kind: corrections_of(rates, work(shape, batch, 1), batch, usual[kind]) for kind, work in WORKS.items()}


def corrections_of(rates: Rates, work: LayerWork, batch: MicrobatchShape, measured: LayerCost) -> Corrections:
    """What one measured layer says about rates that were computed."""
    _, _, computed_s = rates.layer_s(work)
    matrix = measured.backward_weight_s / computed_s if computed_s else 1.0
    step = measured.optimizer_s / rates.pass_s(step_work(work.parameters, batch), Correction(), 0.0)
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


def _described(measured: Profile) -> tuple[DecoderShape, MicrobatchShape]:
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
    batch = MicrobatchShape(measured.microbatch_size, measured.sequence_length, dtype, software_of(measured.model))
    return shape, batch


def _unsuitable(why: str) -> InvalidInputError:
    return InvalidInputError(
        f"the profile cannot calibrate: {why}",
        where="--calibrate",
        fix="measure a smaller model of the kind: rtk profile gpt-small -o P",
    )


def profile_analytic(
    model: str,
    *,
    gpu: str | None = None,
    microbatch_size: int | None = None,
    sequence_length: int | None = None,
    dtype: DataType | None = None,
    checkpointing: bool = False,
    tp: Sequence[int] = (1,),
    efficiency: float | None = None,
    calibrate: Profile | Learned | None = None,
    cluster: Cluster | None = None,
    software: Software = USUAL_SOFTWARE,
) -> Profile:
    """Compute what a model costs on a GPU that need not be here, without torch.

    Args:
        model: a preset such as "gpt3-6.7b" or "llama3-70b", or the path of a Hugging Face config.json.
        gpu: its name, such as "h100-sxm"; None: the cluster says it.
        microbatch_size: samples of a micro-batch; None: the model's own.
        sequence_length: tokens of a sample; None: the model's own.
        dtype: "bf16" and "fp16" are mixed precision; None: that of the calibration, else bf16 where the GPU has it,
            else fp16 where it has that.
        checkpointing: blocks keep their inputs only, and compute the rest again.
        tp: degrees of tensor parallelism.
        efficiency: share of the peak that matrix products reach; None: what their sizes allow.
        calibrate: a smaller model's profile, measured on that GPU, or what `read_calibration` learned from a run;
            instead of `efficiency`.
        cluster: the machines; what they say of memory and network counts.
        software: how the training program computes.

    Raises:
        InvalidInputError: the model or the GPU is not known, or the arguments do not go together.
    """
    gpu = gpu or (cluster.gpu if cluster else None)
    if gpu is None:
        raise InvalidInputError("there is no GPU to compute for", where="--gpu", fix="give gpu='h100-sxm', say")
    if efficiency is not None and calibrate is not None:
        raise InvalidInputError(
            "an efficiency and a calibration contradict each other", where="--efficiency, --calibrate", fix="give one"
        )
    if calibrate is not None and dtype not in (None, numbers_of(calibrate)):
        raise InvalidInputError(
            f"it was measured in {numbers_of(calibrate)}, and says nothing of {dtype}",
            where="--calibrate",
            fix=f"measure it with --dtype {dtype}",
        )
    device, known = known_gpu(gpu), known_model(model)
    suits: DataType = next(one for one in BEST_TYPES if one in device.peaks)
    dtype = dtype or (suits if calibrate is None else numbers_of(calibrate))
    rates = rates_of(device, dtype, efficiency, software)
    profile = analytic_profile(
        model,
        known.shape,
        MicrobatchShape(
            microbatch_size or known.microbatch_size, sequence_length or known.sequence_length, dtype, software
        ),
        device,
        rates,
        # A measured profile is of our runner's, whose launches run ahead.
        corrections=_corrections(rates_of(device, dtype, efficiency, replace(software, kernel_gap_s=None)), calibrate),
        is_checkpointing=checkpointing,
        degrees=tuple(tp),
        group=None if cluster is None else cluster.network.intra_node,
    )
    computed = _with_sources(profile, efficiency, device, calibrate)
    return computed if cluster is None else on_cluster(computed, cluster)


def _corrections(rates: Rates, calibrate: Profile | Learned | None) -> Calibration:
    if calibrate is None:
        return UNCALIBRATED
    return calibrate.corrections if isinstance(calibrate, Learned) else calibration_of(rates, calibrate)


def _with_sources(
    profile: Profile, efficiency: float | None, device: Gpu, measured: Profile | Learned | None
) -> Profile:
    """The profile, with what it was computed from; the device and the links are the measured ones where there are."""
    model = {**profile.model, "gpu": device.name}
    if efficiency is not None:
        model["efficiency"] = efficiency
    if measured is None:
        return replace(profile, model=model)
    if isinstance(measured, Learned):
        called = Device(f"{device.name} (analytic, calibrated)", device.memory_bytes)
        return replace(profile, model={**model, "calibration": measured.words}, device=called)
    calibration = f"{measured.model.get('name')}, {measured.microbatch_size} x {measured.sequence_length} tokens"
    return replace(
        profile,
        model={**model, "calibration": calibration},
        device=Device(
            f"{measured.device.name or device.name} (analytic, calibrated)",
            measured.device.memory_bytes or device.memory_bytes,
        ),
        network=Network(
            measured.network.intra_node or profile.network.intra_node,
            measured.network.inter_node or profile.network.inter_node,
            measured.network.node or profile.network.node,
        ),
    )
