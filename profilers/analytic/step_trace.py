"""What the steps of a training take, by part, out of a trace of torch's profiler (Kineto).

On a GPU what counts are its kernels and copies (categories `kernel`, `gpu_memcpy`, `gpu_memset`). A correlation leads
from each to the call that launched it, and that stands inside the operations (`cpu_op`) of its thread:

* below `autograd::engine::evaluate_function` is the backward pass, recomputation included; inside `Optimizer.…`, and
  what goes over all gradients before it (norms, scaling), is the optimizer step; all else is F;
* `aten::mm` and its kind are products; `aten::bmm`, softmax, and whatever names attention is attention. Where
  operations do not tell (Transformer Engine, compiled graphs), kernels' names do;
* NCCL's kernels are sums and messages: exposed is what of them runs beside no other kernel.

On a CPU an operation's time less that of those inside it counts, by the same rules. What lies between two kernels (or
outermost operations) of one pass, and beside no sum, is a gap. Where the trace has the shapes of operations
(`record_shapes=True`), products are also known one by one.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from ...schemas.errors import InvalidInputError
from ...schemas.gpus import gpu_of_device
from ...schemas.profile import DataType
from ..failslow.calls.comparison import finite, whole
from ..failslow.calls.formats import read_trace

Part = Literal["products", "attention", "rest", "sums"]
Pass = Literal["forward", "backward", "step"]
PASSES: tuple[Pass, ...] = ("forward", "backward", "step")
Thread = tuple[str, str]
NEARLY = 0.99  # of the time of products

_STEP, _OPTIMIZER, _BACKWARD = "ProfilerStep#", "Optimizer.", "autograd::engine::evaluate_function"
_PRODUCT = re.compile(r"aten::(?:mm|addmm|_scaled_mm|_addmm_activation)")
_ATTENTION = re.compile(r"attention|attn|sdpa|fmha|aten::_softmax|aten::baddbmm|aten::bmm", re.IGNORECASE)
_SUMS = re.compile(r"c10d::|gloo:|nccl:|record_param_comms")
_STEPPING = re.compile(r"aten::_foreach_(?:norm|mul_|div_)|aten::_amp_|aten::linalg_vector_norm|Optimizer\.")
_STEPPING_KERNEL = re.compile(r"multi_tensor_apply")
_PRODUCT_KERNEL = re.compile(r"gemm|nvjet|cutlass|cublas|xmma|wgmma|triton_tem\w*_mm", re.IGNORECASE)
_ATTENTION_KERNEL = re.compile(r"flash|fmha|attention|attn|masked_softmax", re.IGNORECASE)
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_NUMBERS: dict[str, DataType] = {"float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16"}


class TracedProduct(NamedTuple):
    """A matrix product, (rows, inputs) times (inputs, outputs), and its numbers."""

    rows: int
    inputs: int
    outputs: int
    dtype: DataType


@dataclass(slots=True)
class TracedPass:
    """What a pass took in a step, in s.

    Attributes:
        products_s, attention_s, rest_s: computing, by part.
        gaps_s: between kernels.
        shapes: of products, how often, and how long together; empty where the trace has no shapes.
    """

    products_s: float = 0.0
    attention_s: float = 0.0
    rest_s: float = 0.0
    gaps_s: float = 0.0
    shapes: dict[TracedProduct, tuple[int, float]] = field(default_factory=dict)

    @property
    def other_s(self) -> float:
        """All that is no product."""
        return self.attention_s + self.rest_s + self.gaps_s

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.products_s + self.other_s

    @property
    def flops(self) -> float:
        """Of its products, where their shapes are known."""
        return float(sum(2 * one.rows * one.inputs * one.outputs * count for one, (count, _) in self.shapes.items()))

    def add(self, part: Part, time_s: float, product: TracedProduct | None, is_new: bool) -> None:
        """Count a piece; of a product's several pieces one is new."""
        name = f"{part}_s"
        setattr(self, name, getattr(self, name) + time_s)
        if product is not None and part == "products":
            count, before_s = self.shapes.get(product, (0, 0.0))
            self.shapes[product] = count + is_new, before_s + time_s


@dataclass(slots=True)
class TracedStep:
    """One step of a rank.

    Attributes:
        time_s: from its beginning to its end; None where the profiler was not told of steps.
        passes: forward, backward, and the optimizer step.
        sums_s: of sums and messages, what runs beside no computing.
        gap_s: the median gap between two kernels.
    """

    time_s: float | None
    passes: dict[Pass, TracedPass] = field(default_factory=lambda: {one: TracedPass() for one in PASSES})
    sums_s: float = 0.0
    gap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepTrace:
    """Steps of one rank.

    Attributes:
        steps: those with both passes.
        device: as the trace calls it; "cpu" where it has no GPU.
        gpu: the same as rtk calls it; None where rtk does not know it.
        rank, world_size: in the job; None where the trace does not say.
        source: the file.
    """

    steps: tuple[TracedStep, ...]
    device: str
    gpu: str | None
    rank: int | None
    world_size: int | None
    source: str

    @property
    def has_shapes(self) -> bool:
        """Whether products are known one by one, some at least."""
        return all(step.passes["forward"].shapes for step in self.steps)

    @property
    def has_all_shapes(self) -> bool:
        """Whether that is so of all products of F: kernels of other libraries are launched by no operation of torch."""
        ahead = [step.passes["forward"] for step in self.steps]
        return all(sum(time_s for _, time_s in one.shapes.values()) > NEARLY * one.products_s for one in ahead)

    def usual(self, pass_: Pass, what: str) -> float:
        """The median over steps of what a pass took, or of its FLOPs."""
        return float(median(getattr(step.passes[pass_], what) for step in self.steps))


class _Context(NamedTuple):
    """In what an operation, or a launch, stands; `call` is when its product began, or the outermost, in µs."""

    part: Part = "rest"
    within: Pass = "forward"
    product: TracedProduct | None = None
    call: float = -1.0


class _Piece(NamedTuple):
    """A kernel, or what an operation does itself: when it was told to, and from when to when it ran, in µs."""

    told_us: float
    start_us: float
    end_us: float
    took_us: float
    context: _Context


class _Operation(NamedTuple):
    start_us: float
    end_us: float
    name: str
    product: TracedProduct | None


@dataclass
class _StepEvents:
    """The events of a trace that matter here."""

    operations: dict[Thread, list[_Operation]] = field(default_factory=lambda: defaultdict(list))
    launches: dict[Thread, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    kernels: list[tuple[float, float, str, int]] = field(default_factory=list)
    steps: list[tuple[float, float]] = field(default_factory=list)

    def note(self, event: dict[str, Any]) -> None:
        """An event of the trace."""
        if event.get("ph") != "X" or "ts" not in event:
            return
        category, name = str(event.get("cat", "")), str(event.get("name", ""))
        arguments = event.get("args") or {}
        thread = str(event.get("pid", 0)), str(event.get("tid", 0))
        start_us = finite(event["ts"])
        end_us = start_us + finite(event.get("dur", 0))
        if category == "cpu_op":
            product = _product_of(arguments) if _PRODUCT.fullmatch(name) else None
            self.operations[thread].append(_Operation(start_us, end_us, name, product))
        elif category in _ON_GPU:
            self.kernels.append((start_us, end_us, name, whole(arguments.get("correlation", -1))))
        elif category.endswith(("_runtime", "_driver")) and "correlation" in arguments:
            self.launches[thread].append((start_us, whole(arguments["correlation"])))
        elif category == "user_annotation" and name.startswith(_OPTIMIZER):
            self.operations[thread].append(_Operation(start_us, end_us, name, None))
        elif category == "user_annotation" and name.startswith(_STEP):
            self.steps.append((start_us, end_us))


def _product_of(arguments: dict[str, Any]) -> TracedProduct | None:
    """The product of an operation's two matrices, where their shapes are told."""
    shapes, numbers = arguments.get("Input Dims") or [], arguments.get("Input type") or []
    matrices = [(shape, of) for shape, of in zip(shapes, numbers, strict=False) if len(shape) == 2]
    dtype = _NUMBERS.get(str(matrices[0][1])) if matrices else None
    if len(matrices) < 2 or dtype is None:
        return None
    (rows, inputs), (_, outputs) = matrices[-2][0], matrices[-1][0]
    return TracedProduct(whole(rows), whole(inputs), whole(outputs), dtype)


def read_step_trace(path: str) -> StepTrace:
    """Read a trace of one rank; `.gz` is unpacked.

    Raises:
        InvalidInputError: it is damaged, of a GPU without the calls that launch its kernels, or has no training step.
    """
    seen = _StepEvents()
    rest = read_trace(Path(path), seen.note)
    pieces, busy = (_on_gpu if seen.kernels else _on_cpu)(seen)
    computing = [piece for piece in pieces if piece.context.part != "sums"]
    if seen.kernels and not any(piece.context.call >= 0 for piece in computing):
        raise InvalidInputError(
            "the trace does not say which operation launched which kernel",
            where=path,
            fix="record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    found = _steps(seen.steps, pieces, busy)
    steps = [one for one in found if all(one.passes[kind].products_s > 0 for kind in PASSES[:2])]
    if not steps:
        raise InvalidInputError(
            "the trace holds no training step: none has a forward and a backward pass with matrix products",
            where=path,
            fix="record whole steps (schedule(wait=1, warmup=1, active=3), and prof.step() after each)",
        )
    devices, job = rest.get("deviceProperties"), rest["distributedInfo"]
    known = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    device = str(known.get("name", "a GPU")) if seen.kernels else "cpu"
    rank, world_size = ((one if isinstance(one, int) else None) for one in (job.get("rank"), job.get("world_size")))
    return StepTrace(tuple(steps), device, gpu_of_device(device), rank, world_size, path)


def _below(context: _Context, operation: _Operation) -> _Context:
    """The context of what stands inside an operation."""
    within, part, name = context.within, context.part, operation.name
    if within == "forward":
        within = "step" if _STEPPING.match(name) else "backward" if name.startswith(_BACKWARD) else "forward"
    if part == "rest":
        part = _part_of(name)
    call = operation.start_us if operation.product or context.call < 0 else context.call
    return _Context(part, within, operation.product or context.product, call)


def _part_of(name: str) -> Part:
    if _PRODUCT.fullmatch(name):
        return "products"
    if _ATTENTION.search(name):
        return "attention"
    return "sums" if _SUMS.match(name) else "rest"


def _on_gpu(seen: _StepEvents) -> tuple[list[_Piece], list[_Piece]]:
    """The kernels, each with what launched it; they are what is busy as well."""
    told: dict[int, tuple[float, _Context]] = {}
    for thread, launches in seen.launches.items():
        # What is open where a launch begins: operations before it, the outer ones first.
        marks = [_Operation(at_us, at_us, "", None) for at_us, _ in launches]
        contexts = {
            mark.start_us: context for mark, context, _ in _nested([*seen.operations[thread], *marks]) if not mark.name
        }
        told.update((number, (at_us, contexts[at_us])) for at_us, number in launches)
    pieces = []
    for start_us, end_us, name, number in seen.kernels:
        told_us, context = told.get(number, (start_us, _Context()))
        part, within = context.part, context.within
        if within == "forward" and _STEPPING_KERNEL.search(name):
            within = "step"
        if "nccl" in name.lower():
            part = "sums"
        elif part == "rest" and _ATTENTION_KERNEL.search(name):
            part = "attention"
        elif part == "rest" and _PRODUCT_KERNEL.search(name):
            part = "products"
        pieces.append(_Piece(told_us, start_us, end_us, end_us - start_us, context._replace(part=part, within=within)))
    return pieces, pieces


def _on_cpu(seen: _StepEvents) -> tuple[list[_Piece], list[_Piece]]:
    """What operations do themselves; busy is from the beginning to the end of the outermost."""
    pieces, outermost = [], []
    for operations in seen.operations.values():
        own = _nested(operations)
        for (start_us, end_us, _, _), context, inside_us in own:
            pieces.append(_Piece(start_us, start_us, end_us, end_us - start_us - inside_us, context))
        end_us = float("-inf")
        for operation, context, _ in own:
            if operation.start_us >= end_us:
                end_us = operation.end_us
                outermost.append(_Piece(operation.start_us, operation.start_us, end_us, 0.0, context))
    return pieces, outermost


def _nested(operations: Sequence[_Operation]) -> list[tuple[_Operation, _Context, float]]:
    """Operations of a thread in their order, each with its context, and what those right inside it take, in µs."""
    ordered = sorted(operations, key=lambda one: (one.start_us, -one.end_us))
    contexts, inside_us = [_Context()] * len(ordered), [0.0] * len(ordered)
    open_: list[int] = []
    for place, operation in enumerate(ordered):
        while open_ and ordered[open_[-1]].end_us <= operation.start_us:
            open_.pop()
        around = contexts[open_[-1]] if open_ else _Context()
        contexts[place] = _below(around, operation) if operation.name else around
        if open_:
            inside_us[open_[-1]] += operation.end_us - operation.start_us
        open_.append(place)
    return [*zip(ordered, contexts, inside_us, strict=True)]


def _steps(
    windows: Sequence[tuple[float, float]], pieces: Sequence[_Piece], busy: Sequence[_Piece]
) -> list[TracedStep]:
    """What each of the profiler's steps took; the trace is one step where the profiler was told of none."""
    windows = sorted(windows)
    found = [TracedStep((end_us - start_us) / 1e6) for start_us, end_us in windows] or [TracedStep(None)]

    def place_of(piece: _Piece) -> int:
        if not windows:
            return 0
        place = bisect_right(windows, (piece.told_us, float("inf"))) - 1
        return place if place >= 0 and piece.told_us < windows[place][1] else -1

    known: set[tuple[int, float]] = set()
    for piece in pieces:
        place = place_of(piece)
        if place >= 0 and piece.context.part != "sums":
            call = place, piece.context.call
            one = found[place].passes[piece.context.within]
            one.add(piece.context.part, piece.took_us / 1e6, piece.context.product, call not in known)
            known.add(call)
    apart: dict[int, list[_Piece]] = defaultdict(list)
    for piece in busy:
        apart[place_of(piece)].append(piece)
    for place, step in enumerate(found):
        _note_gaps(step, apart[place])
    return found


def _note_gaps(step: TracedStep, busy: Iterable[_Piece]) -> None:
    """What lies between computing of one pass, beside sums; and of sums what lies beside no computing."""
    ordered = sorted(busy, key=lambda one: one.start_us)
    sums = [*_joined((one.start_us, one.end_us) for one in ordered if one.context.part == "sums")]
    computing = [one for one in ordered if one.context.part != "sums"]
    gaps_us = []
    end_us, within = float("inf"), None
    for piece in computing:
        if piece.start_us > end_us and piece.context.within == within:
            gap_us = piece.start_us - end_us - _overlap_us(sums, end_us, piece.start_us)
            step.passes[piece.context.within].gaps_s += gap_us / 1e6
            gaps_us.append(gap_us)
        end_us = piece.end_us if end_us == float("inf") else max(end_us, piece.end_us)
        within = piece.context.within
    covered = _joined((one.start_us, one.end_us) for one in computing)
    hidden_us = sum(_overlap_us(sums, start_us, end_us) for start_us, end_us in covered)
    step.sums_s = (sum(end_us - start_us for start_us, end_us in sums) - hidden_us) / 1e6
    step.gap_s = median(gaps_us) / 1e6 if gaps_us else 0.0


def _joined(stretches: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Sorted stretches without overlaps."""
    begin_us, last_us = 0.0, float("-inf")
    for start_us, end_us in stretches:
        if start_us > last_us:
            if last_us > begin_us:
                yield begin_us, last_us
            begin_us = start_us
        last_us = max(last_us, end_us)
    if last_us > begin_us:
        yield begin_us, last_us


def _overlap_us(stretches: Sequence[tuple[float, float]], start_us: float, end_us: float) -> float:
    """How much of a time is in sorted stretches that do not overlap."""
    place = max(bisect_right(stretches, (start_us, float("inf"))) - 1, 0)
    covered_us = 0.0
    while place < len(stretches) and stretches[place][0] < end_us:
        covered_us += max(min(end_us, stretches[place][1]) - max(start_us, stretches[place][0]), 0.0)
        place += 1
    return covered_us
