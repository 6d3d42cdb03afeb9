"""A computed profile from plain arguments: what `rtk profile MODEL --analytic` calls, and what Python calls."""

from collections.abc import Sequence
from dataclasses import replace

from ...schemas.cluster import Cluster, on_cluster
from ...schemas.errors import InvalidInputError
from ...schemas.form import DataType, form_of
from ...schemas.gpus import Gpu
from ...schemas.gpus import gpu as known_gpu
from ...schemas.profile import Device, Network, Profile
from .configuration import known_model
from .costs import MicrobatchShape
from .estimate import UNCALIBRATED, analytic_profile, calibration_of, rates_of


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
    calibrate: Profile | None = None,
    cluster: Cluster | None = None,
) -> Profile:
    """Compute what a model costs on a GPU that need not be here, without torch.

    Args:
        model: a preset such as "gpt3-6.7b" or "llama3-70b", or the path of a Hugging Face config.json.
        gpu: its name, such as "h100-sxm"; None: the cluster says it.
        microbatch_size: samples of a micro-batch; None: the model's own.
        sequence_length: tokens of a sample; None: the model's own.
        dtype: "bf16" is mixed precision; None: that of the calibration, else bf16 where the GPU has it.
        checkpointing: blocks keep their inputs only, and compute the rest again.
        tp: degrees of tensor parallelism.
        efficiency: share of the peak that matrix products reach; None: what their sizes allow.
        calibrate: a smaller model's profile, measured on that GPU, instead of `efficiency`.
        cluster: the machines; what they say of memory and network counts.

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
    device, known = known_gpu(gpu), known_model(model)
    dtype = dtype or (
        form_of(calibrate.model).dtype if calibrate is not None else "bf16" if "bf16" in device.peaks else "fp32"
    )
    rates = rates_of(device, dtype, efficiency)
    profile = analytic_profile(
        model,
        known.shape,
        MicrobatchShape(microbatch_size or known.microbatch_size, sequence_length or known.sequence_length, dtype),
        device,
        rates,
        corrections=UNCALIBRATED if calibrate is None else calibration_of(rates, calibrate),
        is_checkpointing=checkpointing,
        degrees=tuple(tp),
    )
    computed = _with_sources(profile, efficiency, device, calibrate)
    return computed if cluster is None else on_cluster(computed, cluster)


def _with_sources(profile: Profile, efficiency: float | None, device: Gpu, measured: Profile | None) -> Profile:
    """The profile, with what it was computed from; the device and the links are the measured ones where there are."""
    model = {**profile.model, "gpu": device.name}
    if efficiency is not None:
        model["efficiency"] = efficiency
    if measured is None:
        return replace(profile, model=model)
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
        ),
    )
