"""Timelines out of traces of torch's profiler."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rtk.profilers.annotations import read_annotations
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.timeline import Span, Timeline

from .kineto_steps import trace_zero_bubble

Event = dict[str, Any]
CPU, GPU = 100, 0  # processes of a trace


def annotation(name: str, start_us: float, dur_us: float, **rest: Any) -> Event:
    """`record_function(name)` on the CPU."""
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": name,
        "pid": CPU,
        "tid": CPU,
        "ts": start_us,
        "dur": dur_us,
        **rest,
    }


def operation(start_us: float, **rest: Any) -> Event:
    """An operation of torch on the CPU."""
    return annotation("aten::linear", start_us, 1.0, cat="cpu_op", **rest)


def kernel(launched_us: float, start_us: float, dur_us: float, name: str = "gemm", tid: int = CPU) -> list[Event]:
    """A kernel and the call that launches it, from some thread."""
    tie = {"args": {"correlation": round(start_us)}}
    launch = annotation("cudaLaunchKernel", launched_us, 1.0, cat="cuda_runtime", tid=tid, **tie)
    return [launch, annotation(name, start_us, dur_us, cat="kernel", pid=GPU, tid=7, **tie)]


def write(path: Path, events: Sequence[Event], rank: int | None = 0, **rest: Any) -> Path:
    """A trace, compressed if it is called so."""
    job = {} if rank is None else {"distributedInfo": {"rank": rank, **rest.pop("job", {})}}
    text = json.dumps({**job, **rest, "traceEvents": list(events)}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def durations_us(timeline: Timeline) -> dict[tuple[str, str, int], float]:
    """How long each span takes, by worker, operation and iteration."""
    return {(s.worker, s.op, s.iteration): round((s.end_s - s.start_s) * 1e6, 3) for s in timeline.spans}


def test_actions_of_torch(tmp_path: Path) -> None:
    """F, I, W and B with their stages; what only communicates does not count; the next time is the next iteration."""
    names = ("PP:0UNSHARD", "PP:0F0", "PP:0SEND_F0", "PP:0RECV_B0", "PP:0I0", "PP:0W0", "PP:0REDUCE_GRAD", "PP:2F1")
    others = ("PP:2B1", "PP:(0F1;2B0)OVERLAP_F_B", "PP:0F1xyz", "gloo:send", "Forward 0")
    events = [annotation(name, 100 * n, 10 + n) for n, name in enumerate((*names, *others, "PP:0F0"))]
    timeline = read_annotations([write(tmp_path / "rank0.json.gz", events)])
    assert timeline.source == "measured"
    assert durations_us(timeline) == {
        ("0/0", "F0", 0): 11,
        ("0/0", "I0", 0): 14,
        ("0/0", "W0", 0): 15,
        ("0/2", "F1", 0): 17,
        ("0/2", "B1", 0): 18,
        ("0/0", "F0", 1): 23,
    }
    assert timeline.options == {"clock": "cpu", "ranks": {"0/0": 0, "0/2": 0}, "processes": {"0/0": 0, "0/2": 0}}


def test_waiting_for_a_message_does_not_count_on_a_cpu(tmp_path: Path) -> None:
    """A span begins with the first operation on its thread; an annotation with none is dropped, so W is a B there."""
    events = [
        annotation("PP:1F0", 0, 100),
        operation(80),
        operation(90),
        operation(10, tid=5),  # of another thread
        annotation("PP:0I0", 200, 50),
        annotation("PP:0W0", 300, 50),
        operation(310),
    ]
    found = durations_us(read_annotations([write(tmp_path / "t.json", events)]))
    assert found == {("0/1", "F0", 0): 20, ("0/0", "B0", 0): 40}


def test_kernels_count_on_a_gpu(tmp_path: Path) -> None:
    """From the first to the last kernel launched in an annotation, by autograd's thread too; NCCL's are left out."""
    events = [
        annotation("PP:0F0", 0, 10),
        *kernel(1, 1000, 100),
        *kernel(2, 1150, 50),
        *kernel(3, 2000, 10_000, "ncclDevKernel_SendRecv"),
        annotation("PP:0B0", 20, 10),
        *kernel(21, 3000, 200, tid=CPU + 1),
        *kernel(22, 3300, 200, tid=CPU + 1),
        annotation("PP:0B0", 20, 5, cat="gpu_user_annotation", pid=GPU, tid=7),  # too short, as torch has it
        *kernel(50, 5000, 10),  # launched outside
        annotation("Optimizer.step#AdamW.step", 60, 5),
        *kernel(61, 6000, 40),
    ]
    timeline = read_annotations([write(tmp_path / "t.json", events, deviceProperties=[{"id": 0}])])
    assert durations_us(timeline) == {("0/0", "F0", 0): 200, ("0/0", "B0", 0): 500, ("0/0", "step", 0): 40}
    assert timeline.options["clock"] == "kernels"


def test_annotations_of_the_gpu_stand_in_for_kernels(tmp_path: Path) -> None:
    """Where no kernels can be told; of several streams the one that computes most, so that no span comes twice."""
    on_gpu = {"cat": "gpu_user_annotation", "pid": GPU}
    events = [
        annotation("PP:0F0", 0, 3),
        annotation("PP:0F0", 1000, 200, tid=7, **on_gpu),
        annotation("PP:0F0", 1000, 20, tid=9, **on_gpu),
    ]
    timeline = read_annotations([write(tmp_path / "t.json", events)])
    assert durations_us(timeline) == {("0/0", "F0", 0): 200}
    assert timeline.options["clock"] == "gpu annotations"


def test_launching_is_not_taken_for_computing(tmp_path: Path) -> None:
    """A trace of a GPU whose kernels cannot be told is refused, with kernels and without."""
    lonely = annotation("gemm", 1000, 5, cat="kernel", pid=GPU)
    for name, events, devices in (("a", [lonely], []), ("b", [], [{"id": 0}])):
        path = write(tmp_path / f"{name}.json", [annotation("PP:0F0", 0, 3), *events], deviceProperties=devices)
        with pytest.raises(InvalidInputError, match="which kernels belong to which annotation") as caught:
            read_annotations([path])
        assert caught.value.where == str(path)


def test_ranks_of_one_stage_are_peers(tmp_path: Path) -> None:
    """In the order of their ranks, whatever the order of their files; clocks have one origin."""
    events = [annotation("PP:1F0", 5, 10)]
    paths = [write(tmp_path / f"{rank}.json", events, rank, baseTimeNanoseconds=rank * 10**9) for rank in (3, 1)]
    timeline = read_annotations(paths)
    assert timeline.options["ranks"] == {"0/1": 1, "1/1": 3}
    assert [(span.worker, span.start_s) for span in timeline.spans] == [("0/1", 0.0), ("1/1", pytest.approx(2.0))]


def test_traces_of_one_rank_follow_one_another(tmp_path: Path) -> None:
    """The second file's iterations come after the first one's."""
    paths = [write(tmp_path / f"{n}.json", [annotation("PP:0F0", 0, n)], baseTimeNanoseconds=n) for n in (1, 2)]
    assert durations_us(read_annotations(paths)) == {("0/0", "F0", 0): 1, ("0/0", "F0", 1): 2}


def test_one_file_may_hold_all_ranks(tmp_path: Path) -> None:
    """Each process is a rank, by its name or else its number; a bare list of events is a trace as well."""
    named = {"ph": "M", "name": "process_name", "pid": 5, "args": {"name": "rank 8"}}
    events = [annotation(f"PP:{stage}F0", 0, 5, pid=pid, tid=1) for pid, stage in ((5, 1), (4, 0))]
    path = tmp_path / "merged.json"
    path.write_text(json.dumps([named, *events]))
    timeline = read_annotations([path])
    assert timeline.options["ranks"] == {"0/0": 4, "0/1": 8}


def test_steps_are_told_where_they_are_one_stages(tmp_path: Path) -> None:
    """Not where a rank holds two stages, nor where it does not step once an iteration."""
    passes, step = [annotation(f"PP:{stage}F0", stage, 1) for stage in (0, 1)], annotation("Optimizer.step#SGD", 9, 1)
    for name, events in (("two", [*passes, step]), ("often", [passes[0], step, {**step, "ts": 19}])):
        timeline = read_annotations([write(tmp_path / f"{name}.json", events)])
        assert "step" not in {span.op for span in timeline.spans}


def test_calls_of_megatron(tmp_path: Path) -> None:
    """With call stacks: the stage is the rank's place in the pipeline's group; micro-batches count by iteration."""

    def call(name: str, start_us: float) -> list[Event]:
        whole = f"/opt/megatron/core/pipeline_parallel/schedules.py(173): {name}"
        user = f"pretrain_gpt.py(80): {name}"
        return [annotation(one, start_us, 10, cat="python_function") for one in (whole, user)]

    events = [
        *(annotation(f"ProfilerStep#{n}", 1000 * n, 900) for n in (1, 2)),
        *(event for n in (1, 2) for j in (0, 1) for event in call("forward_step", 1000 * n + 50 * j)),
        *(event for n in (1, 2) for event in call("backward_step", 1000 * n + 200)),
    ]
    groups = [{"pg_desc": "default_pg", "ranks": [0, 1, 2, 3]}]
    with pytest.raises(InvalidInputError, match="which stage of Megatron's pipeline"):
        read_annotations([write(tmp_path / "t.json", events, 3, job={"pg_config": groups})])
    groups.append({"pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [1, 3]})
    found = durations_us(read_annotations([write(tmp_path / "t.json", events, 3, job={"pg_config": groups})]))
    assert set(found) == {("0/1", op, n) for op in ("F0", "F1", "B0") for n in (0, 1)}


def test_traces_without_a_pipeline_are_refused(tmp_path: Path) -> None:
    """The error names what to do; so does that for a damaged event."""
    path = write(tmp_path / "t.json", [annotation("Forward 0", 0, 1), annotation("Optimizer.step#SGD", 0, 1)])
    with pytest.raises(InvalidInputError, match="no operation of a pipeline is annotated") as caught:
        read_annotations([path])
    assert "record_function" in str(caught.value.fix)
    odd = annotation("PP:0F0", 0, 1)
    del odd["dur"]
    with pytest.raises(InvalidInputError, match="an event lacks 'dur'") as caught:
        read_annotations([write(tmp_path / "t.json", [annotation("x", 0, 1), odd])])
    assert caught.value.where == f"{path}, /traceEvents/1"


def test_torch_writes_what_is_read(tmp_path: Path) -> None:
    """A real trace of torch's pipelining, two stages in one process: its first stage has a B, the other I and W."""
    path = tmp_path / "trace.json"
    trace_zero_bubble(path, 8, 2, 2)
    timeline = read_annotations([path])
    expected = {("0/0", kind) for kind in "FB"} | {("0/1", kind) for kind in "FIW"}
    assert set(durations_us(timeline)) == {(w, f"{kind}{j}", n) for w, kind in expected for j in (0, 1) for n in (0, 1)}
    one = {"0/0": 0, "0/1": 0}
    assert timeline.options == {"clock": "cpu", "ranks": one, "processes": one, "world_size": 1}


def test_passes_of_a_real_gpu_count_by_their_kernels() -> None:
    """On an H200 a forward pass and a W take what Kineto's own annotation of the GPU says; of I, whose kernels
    autograd's thread launches, Kineto tells nothing, and the kernels do."""
    path = Path(__file__).parent / "traces" / "h200-passes.json.gz"
    told_us: dict[str, float] = {}
    kernels_us = 0.0
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if event.get("cat") == "gpu_user_annotation":
            told_us[event["name"]] = told_us.get(event["name"], 0.0) + event["dur"]
        kernels_us += event["dur"] if event.get("cat") == "kernel" else 0.0
    timeline = read_annotations([path])
    assert timeline.options["clock"] == "kernels"
    found_us = {_annotation(span): (span.end_s - span.start_s) * 1e6 for span in timeline.spans}
    assert len(found_us) == 4 * len("FIW") * 2
    for name, time_us in found_us.items():
        if "I" in name:
            assert told_us.get(name, 0.0) < 2 < 8000 < time_us
        else:
            assert time_us == pytest.approx(told_us[name], abs=1)
    assert kernels_us < sum(found_us.values()) < 1.4 * kernels_us


def _annotation(span: Span) -> str:
    return f"PP:{span.worker.split('/')[1]}{span.op}"
