"""Traces of training steps as torch's profiler writes them: a GPU's, made up by kernels, and real ones of a CPU."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]
MAIN, AUTOGRAD, GPU, COMPUTING, SUMMING = 100, 101, 0, 7, 20  # threads of the program, streams of the GPU
BACKWARD = "autograd::engine::evaluate_function: "
STEP = "Optimizer.step#AdamW.step"


@dataclass(frozen=True)
class Kernel:
    """A kernel, and the operations around its launch, the outermost first; what it is launched by is last.

    Attributes:
        within: the operations' names.
        time_us: how long it runs.
        gap_us: after the kernel before.
        name: its own.
        dims: shapes of the innermost operation's inputs, where they are recorded.
        beside: it runs on a stream of its own, from where the one before began.
    """

    within: Sequence[str]
    time_us: float
    gap_us: float = 0.0
    name: str = "some_kernel"
    dims: Sequence[Sequence[int]] | None = None
    beside: bool = False


def product_kernel(rows: int, inputs: int, outputs: int, time_us: float, *around: str, gap_us: float = 0.0) -> Kernel:
    """A matrix product."""
    return Kernel((*around, "aten::mm"), time_us, gap_us, "nvjet_tst_128x256", [[rows, inputs], [inputs, outputs]])


def steps_of(kernels: Sequence[Kernel], count: int = 1, numbers: str = "c10::BFloat16") -> list[Event]:
    """The events of some equal steps."""
    events: list[Event] = []
    cpu_us, gpu_us, began_us = 1000.0, 2000.0, 2000.0
    for number in range(count):
        begin_us, first_us = cpu_us, gpu_us
        for kernel in kernels:
            thread = AUTOGRAD if kernel.within and kernel.within[0].startswith(BACKWARD) else MAIN
            for depth, name in enumerate(kernel.within):
                events.append(_event(name, thread, cpu_us + depth, 40 - 2 * depth, _category(name), dims=None))
            if kernel.dims is not None:
                told = {"Input Dims": [*kernel.dims, []], "Input type": [*[numbers] * len(kernel.dims), ""]}
                events[-1]["args"] = told
            correlation = len(events)
            events.append(_event("cudaLaunchKernel", thread, cpu_us + 20, 5, "cuda_runtime", correlation=correlation))
            start_us = began_us if kernel.beside else gpu_us + kernel.gap_us
            began_us, gpu_us = start_us, max(gpu_us, start_us + kernel.time_us) if not kernel.beside else gpu_us
            stream = SUMMING if kernel.beside else COMPUTING
            events.append(_event(kernel.name, stream, start_us, kernel.time_us, "kernel", correlation=correlation))
            events[-1]["pid"] = GPU
            cpu_us += 50
        lasted_us = max(gpu_us - first_us, cpu_us - begin_us)
        events.append(_event(f"ProfilerStep#{number}", MAIN, begin_us, lasted_us, "user_annotation"))
        cpu_us = begin_us + lasted_us
    return events


def write_trace(path: Path, events: Sequence[Event], device: str = "NVIDIA A100-SXM4-80GB", **job: int) -> Path:
    """A file of them, of a rank of a job where it says which."""
    rest = {"distributedInfo": job} if job else {}
    devices = [{"id": 0, "name": device}]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": devices, **rest, "traceEvents": [*events]}))
    return path


def _category(name: str) -> str:
    return "user_annotation" if name == STEP else "cpu_op"


def _event(name: str, thread: int, start_us: float, lasts_us: float, category: str, **told: Any) -> Event:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start_us,
        "dur": lasts_us,
        "args": told,
    }


def trace_zero_bubble(path: Path, width: int, microbatches: int, iterations: int) -> None:
    """Write a real trace of torch's own zero-bubble schedule, two stages in one process, micro-batches of two rows."""
    import torch
    from torch import nn
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble

    distributed: Any = torch.distributed  # torch's stubs do not export all of it
    cpu = torch.device("cpu")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        stages: list[Any] = [PipelineStage(nn.Linear(width, width), stage, 2, cpu) for stage in (0, 1)]
        schedule = ScheduleInterleavedZeroBubble(stages, microbatches, loss_fn=nn.functional.mse_loss)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for _ in range(iterations):
                rows = 2 * microbatches
                schedule.step(torch.randn(rows, width), target=torch.randn(rows, width), losses=[])
        profiler.export_chrome_trace(str(path))
    finally:
        distributed.destroy_process_group()
