"""Traces of PyTorch's profiler."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rtk.profilers.failslow.calls import formats
from rtk.profilers.failslow.calls.comparison import CommunicationCall
from rtk.profilers.failslow.calls.formats import findings_of, is_call_file, read_kineto
from rtk.schemas.errors import InvalidInputError


def kernel(at_s: float, collective: str = "allreduce", **arguments: Any) -> dict[str, Any]:
    """A kernel of NCCL with the arguments that torch gives it."""
    known = {"Collective name": collective, "In msg nelems": 100, "dtype": "BFloat16", "Process Group Name": "1"}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "ncclDevKernel_Something(ncclDevKernelArgsStorage<4096ul>)",
        "ts": at_s * 1e6,
        "dur": 10_000,
        "args": {**known, "Process Group Ranks": "[0, 1]", "Group size": 2, "Seq": 7, **arguments},
    }


def trace(events: list[dict[str, Any]], **rest: Any) -> dict[str, Any]:
    """A trace of them."""
    job = {
        "backend": "nccl",
        "rank": 1,
        "world_size": 2,
        "pg_config": [{"pg_name": "1", "pg_desc": "dp", "ranks": [0, 1]}],
    }
    others = [{"ph": "M", "name": "process_name"}, {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2}]
    return {"schemaVersion": 1, "distributedInfo": job, "traceEvents": [*others, *events], **rest}


def write(path: Path, document: Any) -> Path:
    """Write JSON."""
    path.write_text(json.dumps(document))
    return path


def test_kernels_of_nccl(tmp_path: Path) -> None:
    """What they do, among whom, how much and how long; messages have both ends."""
    events = [kernel(2.0, "recv", **{"Src Rank": 0}), kernel(1.0), kernel(3.0, "send", **{"Dst Rank": 0})]
    path = write(tmp_path / "trace.json", trace(events, baseTimeNanoseconds=10**18))
    assert is_call_file(path)
    log = read_kineto(path)
    assert log.rank == 1
    assert log.calls == (
        CommunicationCall(1e9 + 1, 1, "all_reduce", "1[0,1]", 200, "BFloat16", 0.01, 7),
        CommunicationCall(1e9 + 2, 1, "recv", "0->1", 200, "BFloat16", 0.01, 7),
        CommunicationCall(1e9 + 3, 1, "send", "1->0", 200, "BFloat16", 0.01, 7),
    )
    assert log.members == {"1[0,1]": (0, 1), "0->1": (0, 1), "1->0": (1, 0)}


def test_kernels_of_older_versions(tmp_path: Path) -> None:
    """Without arguments the kernel's name says what it does."""
    event = {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllGather_RING_LL_Sum_int8_t()", "ts": 1.0, "dur": 2.0}
    (call,) = read_kineto(write(tmp_path / "trace.json", [event])).calls
    assert (call.op, call.group, call.bytes) == ("all_gather", "", 0)


def test_calls_on_the_cpu(tmp_path: Path) -> None:
    """Where there are no kernels, the calls that torch notes on the CPU; they have no durations."""
    event = {**kernel(1.0), "cat": "cpu_op", "name": "record_param_comms"}
    (call,) = read_kineto(write(tmp_path / "trace.json", trace([event]))).calls
    assert (call.op, call.bytes, call.duration_s) == ("all_reduce", 200, None)
    tensors = {"Input Dims": [[[1000]], []], "Input type": ["TensorList", ""]}
    event = {"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "ts": 1.0, "dur": 2.0, "args": tensors}
    (call,) = read_kineto(write(tmp_path / "trace.json", trace([event]))).calls
    assert (call.op, call.bytes, call.duration_s) == ("all_reduce", 1000, None)


def test_the_profilers_own_steps(tmp_path: Path) -> None:
    """Where the training loop tells its iterations, those count; they stand in the order of their numbers."""
    times_s = [1.0] * 60 + [1.5] * 40
    begins_s = [sum(times_s[:place]) for place in range(len(times_s))]
    steps = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": at_s * 1e6, "dur": times_s[n] * 1e6}
        for n, at_s in enumerate(begins_s)
    ]
    events = [*reversed(steps), *(kernel(at_s + 0.1) for at_s in begins_s)]
    (findings,) = findings_of([write(tmp_path / "trace.json", trace(events))])
    assert findings.samples == 100
    (event,) = findings.events
    assert event.onset == 60
    assert event.severity == pytest.approx(1.5)
    assert (event.cause, event.scope.names) == ("computation", ("rank 1",))  # the calls take no longer


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (json.dumps(trace([kernel(1.0)]))[:-60], "cut short"),
        ('{"traceEvents": ', "cut short"),
        ('{"traceEvents": [{"ph": "X"} {"ph": "X"}]}', "a comma is missing"),
        ('{"traceEvents": [nonsense]}', "no JSON"),
        ('{"traceEvents": [3]}', "another form"),
        ('{"traceEvents": []}', "no communication calls"),
        ('{"traceEvents": [' + "[" * 100_000, "no JSON"),
        (json.dumps(trace([kernel(n) for n in range(5)])), "no period found in 5 calls"),
        (json.dumps(trace([kernel(1.0, **{"In msg nelems": "many"})])), "another form"),
    ],
)
def test_damaged_traces(tmp_path: Path, text: str, words: str) -> None:
    """They are refused, with what is wrong and where."""
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=words) as refused:
        findings_of([path])
    assert str(path) in str(refused.value.where)


def test_gzip(tmp_path: Path) -> None:
    """Compressed traces say the same; those that are cut short are refused."""
    data = gzip.compress(json.dumps(trace([kernel(n) for n in range(300)])).encode())
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data)
    assert findings_of([path])[0].samples > 290
    path.write_bytes(data[:-50])
    with pytest.raises(InvalidInputError, match="damaged or cut short"):
        findings_of([path])


def test_a_value_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before memory is full."""
    monkeypatch.setattr(formats, "MOST_BYTES", 1000)
    monkeypatch.setattr(formats, "CHUNK_BYTES", 100)
    path = write(tmp_path / "trace.json", trace([kernel(1.0, **{"In split size": "x" * 3000})]))
    with pytest.raises(InvalidInputError, match="one value is larger"):
        read_kineto(path)
