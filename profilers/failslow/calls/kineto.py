"""Traces of PyTorch's profiler (Kineto), which are Chrome traces: `.json`, `.json.gz`, one file a rank.

Calls are, in this order, whatever there is: NCCL's kernels (their arguments say what they do), gloo's own annotations
(`gloo:all_reduce`; what gloo is doing, in its thread), calls of `record_param_comms` or of `c10d::…` on the CPU. Where
the training loop has said `profiler.step()` with a schedule, `ProfilerStep#N` are the iterations, and no period is
needed.

Of a file of any size only the calls are kept: the events are read one after the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from .call import LINK, Call, CallLog
from .sources import ODD, odd, read_trace
from .words import bytes_of, finite, group_name, plain_op, ranks_of, size_bytes, whole

KIND = "kineto trace"
STEP = "ProfilerStep#"
COMMS = "record_param_comms"


@dataclass
class _Seen:
    """The events of a trace that matter: those of NCCL's kernels, of gloo, of the CPU's calls, and iterations."""

    kernels: list[dict[str, Any]] = field(default_factory=list)
    gloo: list[dict[str, Any]] = field(default_factory=list)
    comms: list[dict[str, Any]] = field(default_factory=list)
    c10d: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)

    def note(self, event: dict[str, Any]) -> None:
        """An event of the trace."""
        if event.get("ph") != "X" or "ts" not in event:
            return
        name, category = str(event.get("name", "")), event.get("cat")
        if category == "kernel" and "nccl" in name.lower():
            self.kernels.append(event)
        elif category == "user_annotation" and name.startswith(STEP):
            self.steps[whole(name.removeprefix(STEP))] = (finite(event["ts"]) / 1e6, finite(event["dur"]) / 1e6)
        elif category == "user_annotation" and name.startswith("gloo:"):
            self.gloo.append(event)
        elif category == "cpu_op" and name == COMMS:
            self.comms.append(event)
        elif category == "cpu_op" and name.startswith("c10d::"):
            self.c10d.append(event)


def read_kineto(path: Path) -> CallLog:
    """The calls of a trace.

    Raises:
        InvalidInputError: the file is damaged or no trace, or an event lacks what its kind has.
    """
    seen = _Seen()
    rest = read_trace(path, seen.note)
    job = rest["distributedInfo"]
    rank = job.get("rank")
    rank = rank if isinstance(rank, int) else -1
    groups = dict(_groups(job))
    try:
        base_s = finite(rest.get("baseTimeNanoseconds") or 0) / 1e9
        found = sorted(_calls(seen, rank, base_s, groups), key=lambda one: one[0].t_s)
    except ODD as error:
        raise odd(f"an event lacks {error}", str(path)) from error
    members = {call.group: ranks for call, ranks in found if ranks}
    steps = tuple((base_s + begin_s, time_s) for _, (begin_s, time_s) in sorted(seen.steps.items()))
    return CallLog(str(path), KIND, rank, tuple(call for call, _ in found), members, steps)


def _groups(job: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The ranks of each group, by its name."""
    for one in job.get("pg_config") or []:
        if isinstance(one, dict):
            yield str(one.get("pg_name")), ranks_of(one.get("ranks"))


Found: TypeAlias = tuple[Call, tuple[int, ...]]  # a call, and its group's ranks


def _calls(seen: _Seen, rank: int, base_s: float, groups: dict[str, tuple[int, ...]]) -> Iterator[Found]:
    for event in seen.kernels or seen.gloo or seen.comms or seen.c10d:
        arguments = event.get("args") or {}
        at_s = base_s + finite(event["ts"]) / 1e6
        if event.get("cat") == "kernel" or event["name"] == COMMS:
            took_s = finite(event["dur"]) / 1e6 if event.get("cat") == "kernel" else None
            yield _of_nccl(event["name"], arguments, rank, at_s, took_s, groups)
        else:
            took_s = finite(event["dur"]) / 1e6 if event.get("cat") == "user_annotation" else None
            yield _of_tensors(event["name"], arguments, rank, at_s, took_s)


def _of_nccl(
    name: str,
    arguments: dict[str, Any],
    rank: int,
    at_s: float,
    took_s: float | None,
    groups: dict[str, tuple[int, ...]],
) -> Found:
    """A call with the arguments that torch gives to NCCL's kernels; those of older versions have none."""
    op = plain_op(str(arguments.get("Collective name") or _op_of_kernel(name)))
    group, dtype = str(arguments.get("Process Group Name", "")), str(arguments.get("dtype", ""))
    ranks = groups.get(group) or ranks_of(arguments.get("Process Group Ranks"))
    ends = None
    if "Dst Rank" in arguments:
        ends = (rank, whole(arguments["Dst Rank"]))
    elif "Src Rank" in arguments:
        ends = (whole(arguments["Src Rank"]), rank)
    size = max(whole(arguments.get("In msg nelems") or 0), 0) * size_bytes(dtype)
    title = LINK.join(map(str, ends)) if ends else group_name(group, ranks)
    return Call(at_s, rank, op, title, size, dtype, took_s, whole(arguments.get("Seq", -1))), ends or ranks


def _op_of_kernel(name: str) -> str:
    """`ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)` is an AllReduce."""
    return name.removeprefix("ncclDevKernel_").removeprefix("ncclKernel_").partition("_")[0].partition("(")[0]


def _of_tensors(name: str, arguments: dict[str, Any], rank: int, at_s: float, took_s: float | None) -> Found:
    """A call of which only the tensors are known."""
    sizes: list[list[int]] = []
    dtypes: list[str] = []
    for size, dtype in zip(arguments.get("Input Dims") or [], arguments.get("Input type") or [], strict=False):
        tensors = size if size and isinstance(size[0], list) else [size] if size else []
        sizes += tensors
        dtypes += [dtype if dtype != "TensorList" else ""] * len(tensors)
    known = next((dtype for dtype in dtypes if dtype), "")
    return Call(at_s, rank, plain_op(name), "", bytes_of(sizes, dtypes), known, took_s), ()
