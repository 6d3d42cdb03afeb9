"""`rtk profile MODEL --analytic`: what a model would cost on a GPU that is not here."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..schemas.cluster import on_cluster
from ..schemas.documents import read_document
from ..schemas.errors import InvalidInputError
from ..schemas.form import DataType, form_of
from ..schemas.profile import Device, Network, Profile
from .cluster import read_cluster, with_gpu
from .console import remark

if TYPE_CHECKING:
    from ..profilers.analytic.estimate import Calibration
    from ..profilers.analytic.rates import Rates
    from ..schemas.gpus import Gpu


@dataclass(frozen=True, slots=True)
class Analysis:
    """What to compute.

    Attributes:
        name: of the model, or its config.json.
        microbatch_size, sequence_length: None: the model's own.
        cut: must be None.
        dtype: bf16 is mixed precision; None: that of the calibration, else bf16 where the GPU has it.
        checkpointing: blocks keep their inputs only.
        degrees: of tensor parallelism.
        gpu: its name.
        efficiency: share of the peak that matrix products reach; None: what their sizes allow.
        calibrate: a measured profile's file.
        cluster: the machines, which may say the GPU; what they say of memory and network counts.
    """

    name: str
    microbatch_size: int | None
    sequence_length: int | None
    cut: str | None
    dtype: DataType | None
    checkpointing: bool
    degrees: tuple[int, ...]
    gpu: str | None
    efficiency: float | None = None
    calibrate: str | None = None
    cluster: str | None = None


def is_analytic(analytic: bool, computing: Mapping[str, object], measuring: Mapping[str, object]) -> bool:
    """Whether a profile is to be computed.

    Args:
        analytic: what `--analytic` says.
        computing: the options that go with it, with their values; None: not given.
        measuring: those that go without it.

    Raises:
        InvalidInputError: one is given that does not go with what is asked for.
    """
    misplaced = [option for option, value in (measuring if analytic else computing).items() if value is not None]
    if misplaced:
        first = misplaced[0]
        raise InvalidInputError(
            f"{first} goes with{'out' if analytic else ''} --analytic",
            where=first,
            fix=f"leave {first} away" if analytic else f"add --analytic, or leave {first} away",
        )
    return analytic


def analyse(asked: Analysis) -> Profile:
    """Compute a profile, without torch.

    Raises:
        InvalidInputError: the model, the GPU or the calibration is not known, or they do not go together.
    """
    from ..profilers.analytic.catalogue import known_model
    from ..profilers.analytic.estimate import analytic_profile
    from ..profilers.analytic.rates import rates_of
    from ..profilers.analytic.shape import Batch
    from ..schemas.gpus import gpu

    cluster = None if asked.cluster is None else with_gpu(read_cluster(asked.cluster), asked.gpu, asked.cluster)
    asked = asked if cluster is None else replace(asked, gpu=cluster.gpu)
    _check(asked)
    device, known = gpu(asked.gpu or ""), known_model(asked.name)
    measured = None if asked.calibrate is None else _measured(asked.calibrate, asked.dtype)
    dtype = asked.dtype or _usual_dtype(device, measured)
    rates = rates_of(device, dtype, asked.efficiency)
    profile = analytic_profile(
        asked.name,
        known.shape,
        Batch(asked.microbatch_size or known.microbatch_size, asked.sequence_length or known.sequence_length, dtype),
        device,
        rates,
        corrections=_calibration(rates, measured),
        is_checkpointing=asked.checkpointing,
        degrees=asked.degrees,
    )
    computed = _with_sources(profile, asked, device, measured)
    return computed if cluster is None else on_cluster(computed, cluster)


def explain_analysis(profile: Profile) -> None:
    """Say on standard error what a computed profile leaves to its reader."""
    recomputed_bytes = profile.model.get("recomputed_bytes")
    if recomputed_bytes:
        remark(
            f"while a block is computed again it holds {recomputed_bytes / 1e9:.2f} GB more (with tensor parallelism, "
            "all its GPUs together): leave that free, with --memory-limit"
        )


def _check(asked: Analysis) -> None:
    if asked.gpu is None:
        raise InvalidInputError(
            "--analytic needs a GPU to compute for", where="--gpu", fix="write --gpu h100-sxm, say, or any other's name"
        )
    if asked.cut is not None:
        raise InvalidInputError(
            "an analytic profile has the layers of its model's shape",
            where="--cut",
            fix="leave --cut away: the layers are the embedding, the blocks and the head",
        )
    if asked.efficiency is not None and asked.calibrate is not None:
        raise InvalidInputError(
            "an efficiency and a calibration contradict each other", where="--efficiency, --calibrate", fix="give one"
        )


def _measured(path: str, dtype: DataType | None) -> Profile:
    measured = read_document(path, Profile)
    own = form_of(measured.model).dtype
    if dtype not in (None, own):
        raise InvalidInputError(
            f"the profile was measured in {own}, and says nothing of {dtype}",
            where=f"--calibrate {path}",
            fix=f"measure it with --dtype {dtype}",
        )
    return measured


def _usual_dtype(device: "Gpu", measured: Profile | None) -> DataType:
    if measured is not None:
        return form_of(measured.model).dtype
    return "bf16" if "bf16" in device.peaks else "fp32"


def _calibration(rates: "Rates", measured: Profile | None) -> "Calibration":
    from ..profilers.analytic.calibration import calibration_of
    from ..profilers.analytic.estimate import UNCALIBRATED

    return UNCALIBRATED if measured is None else calibration_of(rates, measured)


def _with_sources(profile: Profile, asked: Analysis, device: "Gpu", measured: Profile | None) -> Profile:
    """The profile, with what it was computed from; the device and the links are the measured ones where there are."""
    model = {**profile.model, "gpu": device.name}
    if asked.efficiency is not None:
        model["efficiency"] = asked.efficiency
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
