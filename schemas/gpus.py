"""GPUs that need not be there: what their data sheets promise, and how much of it programs get.

Peaks are dense (no sparsity). bf16 and fp16 are on tensor cores, accumulating in fp32; fp32 is on ordinary cores, for
torch leaves TF32 off by default. Memory is the data sheet's in units of 1e9 bytes; the driver, NCCL and cuBLAS want
what is more.

What programs get of it: `matrix_share` is what large matrix products were seen to reach of the bf16 peak, from "Maximum
Achievable Matmul FLOPS" (S. Bekman, Machine Learning Engineering, compute/accelerator, 2024-2026). GPUs that are not
there have the share of those of their generation.

`sustained_share` is what is left of it in a training of hours: 0.80 on an A100, fitted on iterations of BigScience
(0.78 to 0.82 fit as well), 0.70 on a V100, by the timers of its Megatron-LM logs. The others are taken to lose as
much of their share as the A100.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import InvalidInputError
from .profile import Connection, DataType
from .text import near

# Copies and sums of large tensors reach 80 to 90 % of a memory's bandwidth (BabelStream on A100 and H100: 85 to 93 %).
MEMORY_SHARE = 0.8
# Ring all-reduces of nccl-tests on 8 GPUs: 235 of an A100's 300 GB/s, 365 of an H100's 450 GB/s, each way.
LINK_SHARE = 0.8
# Latencies of a step of NCCL's ring, protocol Simple, in its own cost model (src/include/tuning.h, 2.8).
NVLINK_LATENCY_S, PCIE_LATENCY_S, NETWORK_LATENCY_S = 3.4e-6, 5.7e-6, 14e-6
# From the end of one kernel to the start of the next; a CPU pays for torch's dispatcher and autograd as well.
KERNEL_S, CPU_KERNEL_S = 4e-6, 40e-6
# Nodes: a 400 Gb/s network card for each GPU, of which NCCL reaches 90 %.
INTER_NODE = Connection(NETWORK_LATENCY_S, 0.9 * 50e9)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A kind of GPU.

    Args:
        name: as users write it.
        memory_bytes: None where it sets no limit.
        peaks: dense FLOPs a second, by the numbers they are done with.
        memory_bytes_per_s: bandwidth of its memory.
        intra_node: the path between two GPUs of a node, as NCCL gets it.
        matrix_share: of the peak, what large matrix products reach.
        sustained_share: of the peak, what they reach in a long training.
        kernel_s: what each kernel costs beside its work.
    """

    name: str
    memory_bytes: float | None
    peaks: Mapping[DataType, float]
    memory_bytes_per_s: float
    intra_node: Connection
    matrix_share: float
    sustained_share: float
    kernel_s: float = KERNEL_S


def gpu(name: str) -> Gpu:
    """A GPU by its name, whatever its case and separators.

    Raises:
        InvalidInputError: it is not known; the nearest is suggested.
    """
    wanted = _plain(name)
    known = {_plain(one): found for one, found in GPUS.items()}
    if wanted in known:
        return known[wanted]
    alike = [one for one in GPUS if wanted and _plain(one).startswith(wanted)]
    if not alike and (nearest := near(wanted, known, least=0.5)) is not None:
        alike = [known[nearest].name]
    known_names = f"known are {', '.join(GPUS)}"
    suggestion = f"did you mean {' or '.join(alike)}? " if alike else ""
    raise InvalidInputError(f"there is no GPU {name!r}", where="--gpu", fix=f"{suggestion}{known_names}")


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum()).removeprefix("nvidia").removeprefix("amd")


# What the A100 keeps of its best share: 0.80 of 0.859.
SUSTAINED = 0.93


def _gpu(
    name: str,
    gigabytes: float,
    short: float,
    fp32: float,
    bandwidth: float,
    link: Connection,
    share: float,
    sustained: float | None = None,
    has_bf16: bool = True,
) -> Gpu:
    """A row of the table: GB, TFLOP/s in 16 bits, TFLOP/s in 32, GB/s."""
    peaks: dict[DataType, float] = {"fp32": fp32 * 1e12, **({"bf16": short * 1e12} if has_bf16 else {})}
    peaks["fp16"] = short * 1e12
    return Gpu(name, gigabytes * 1e9, peaks, bandwidth * 1e9, link, share, sustained or round(SUSTAINED * share, 3))


def _nvlink(gigabytes_per_s: float) -> Connection:
    """NVLink (or Infinity Fabric) by the data sheet's figure, which counts both ways."""
    return Connection(NVLINK_LATENCY_S, LINK_SHARE * gigabytes_per_s * 1e9 / 2)


def _pcie(gigabytes_per_s: float) -> Connection:
    """A PCIe slot of 16 lanes by the data sheet's figure, which counts both ways."""
    return Connection(PCIE_LATENCY_S, LINK_SHARE * gigabytes_per_s * 1e9 / 2)


_TABLE = (
    # NVIDIA V100 data sheet (SXM2, 32 GB). No bf16.
    _gpu("v100-sxm", 32, 125, 15.7, 900, _nvlink(300), 0.8, 0.70, has_bf16=False),
    # NVIDIA T4 data sheet. No bf16.
    _gpu("t4", 16, 65, 8.1, 320, _pcie(32), 0.8, has_bf16=False),
    # NVIDIA A100 data sheet; shares measured: 267.9 of 312 (SXM), 256.4 (PCIe).
    _gpu("a100-sxm", 80, 312, 19.5, 2039, _nvlink(600), 0.859, 0.80),
    _gpu("a100-sxm-40gb", 40, 312, 19.5, 1555, _nvlink(600), 0.859, 0.80),
    _gpu("a100-pcie", 80, 312, 19.5, 1935, _pcie(64), 0.822),
    # NVIDIA A40 data sheet.
    _gpu("a40", 48, 149.7, 37.4, 696, _pcie(64), 0.82),
    # NVIDIA A10G: AWS's table of its G5 instances.
    _gpu("a10g", 24, 70, 31.5, 600, _pcie(64), 0.82),
    # NVIDIA L4, L40S data sheets; Ada white paper for the RTX 4090 (bf16 accumulating in fp32).
    _gpu("l4", 24, 121, 30.3, 300, _pcie(64), 0.8),
    _gpu("l40s", 48, 362, 91.6, 864, _pcie(64), 0.8),
    _gpu("rtx-4090", 24, 165.2, 82.6, 1008, _pcie(64), 0.8),
    # NVIDIA H100 data sheet; share measured: 794.5 of 989.
    _gpu("h100-sxm", 80, 989, 67, 3350, _nvlink(900), 0.803),
    _gpu("h100-pcie", 80, 756, 51, 2000, _pcie(128), 0.803),
    # An H100 SXM whose NVLink is cut to 400 GB/s.
    _gpu("h800-sxm", 80, 989, 67, 3350, _nvlink(400), 0.803),
    # NVIDIA H200 data sheet; share as the H100's.
    _gpu("h200-sxm", 141, 989, 67, 4800, _nvlink(900), 0.803),
    # NVIDIA HGX B200 and GB200 NVL72 data sheets; share measured: 1745 of 2250 (B200).
    _gpu("b200", 180, 2250, 75, 7700, _nvlink(1800), 0.776),
    _gpu("gb200", 186, 2500, 80, 8000, _nvlink(1800), 0.776),
    # AMD MI300X data sheet; share measured: 781.9 of 1300. Seven links of 128 GB/s to the other GPUs of a node.
    _gpu("mi300x", 192, 1307.4, 163.4, 5300, _nvlink(896), 0.601),
    # One core of the server rtk was developed on (docs/benchmarks.md): to be calibrated on any other.
    Gpu("cpu", None, {"fp32": 100e9}, 15e9, Connection(50e-6, 2e9), 0.95, 0.95, CPU_KERNEL_S),
)
GPUS: Mapping[str, Gpu] = {one.name: one for one in _TABLE}


# What the driver calls them, as in traces; the first that fits, each a part of the name in small letters and digits.
_DEVICES = (
    ("a100sxm480gb", "a100-sxm"), ("a100sxm440gb", "a100-sxm-40gb"), ("a10080gbpcie", "a100-pcie"),
    ("h100pcie", "h100-pcie"), ("h10080gbhbm3", "h100-sxm"), ("h100sxm", "h100-sxm"), ("h800", "h800-sxm"),
    ("nvidiah200", "h200-sxm"), ("gb200", "gb200"), ("b200", "b200"), ("v100sxm2", "v100-sxm"),
    ("v100sxm3", "v100-sxm"), ("teslat4", "t4"), ("a10g", "a10g"), ("l40s", "l40s"), ("rtx4090", "rtx-4090"),
    ("mi300x", "mi300x"),
)  # fmt: skip


def gpu_of_device(name: str) -> str | None:
    """Which GPU of the table a driver's name means, such as `NVIDIA A100-SXM4-80GB`; None: none of them.

    Args:
        name: as `torch.cuda.get_device_name` and traces of torch's profiler have it; or one of the table's own.
    """
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    own = next((one for one in GPUS if _plain(one) == _plain(name)), None)
    return own or next((known for part, known in _DEVICES if part in plain), None)
