"""Dumps of PyTorch's Flight Recorder."""

import gzip
import importlib
import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.profilers.failslow.calls.formats import findings_of, is_call_file, read_flight_recorder, unpickled
from rtk.schemas.errors import InvalidInputError

ITERATIONS = 12


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where a real job of one gloo rank, here and now, has left its dumps and its trace."""
    torch = pytest.importorskip("torch")
    c10d = importlib.import_module("torch._C._distributed_c10d")
    folder, dist = tmp_path_factory.mktemp("recorded"), torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        large, small = torch.ones(1000), torch.ones(50, dtype=torch.bfloat16)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
            for _ in range(ITERATIONS):
                dist.all_reduce(large)
                dist.all_reduce(large)
                dist.broadcast(small, 0)
                time.sleep(0.002)
        profiler.export_chrome_trace(str(folder / "trace.json"))
        (folder / "pickle0").write_bytes(c10d._dump_fr_trace(True))
        (folder / "json0").write_bytes(c10d._dump_fr_trace_json(True))
    finally:
        dist.destroy_process_group()
    return folder


@pytest.mark.parametrize("name", ["pickle0", "json0"])
def test_a_real_dump(recorded: Path, name: str) -> None:
    """Torch's own pickle and JSON have the calls of all iterations last, with their bytes and types."""
    assert is_call_file(recorded / name)
    log = read_flight_recorder(recorded / name)
    assert (log.kind, log.rank) == ("flight recorder", 0)
    calls = [(call.op, call.bytes, call.dtype) for call in log.calls[-3 * ITERATIONS :]]
    loop = [("all_reduce", 4000, "Float"), ("all_reduce", 4000, "Float"), ("broadcast", 100, "BFloat16")]
    assert calls == loop * ITERATIONS


def test_a_real_trace(recorded: Path) -> None:
    """So has the profiler's trace, as gloo's annotations."""
    path = recorded / "trace.json"
    assert is_call_file(path)
    (findings,) = findings_of([path])
    assert findings.kind == "kineto trace"
    assert findings.samples == ITERATIONS - 1


def entry(number: int, time_s: float, title: str = "nccl:all_reduce", took_ms: float | None = 2.0) -> dict[str, Any]:
    """An entry as NCCL's dumps have it."""
    is_p2p = "->" in title or "<-" in title
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("1", "dp"),
        "collective_seq_id": 0 if is_p2p else number,
        "p2p_seq_id": number if is_p2p else 0,
        "op_id": number,
        "profiling_name": title,
        "time_created_ns": 1_700_000_000_000_000_000 + int(time_s * 1e9),
        "input_sizes": [[10, 10]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[10, 10]],
        "output_dtypes": ["BFloat16"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": is_p2p,
        **({"duration_ms": took_ms} if took_ms is not None else {}),
    }


def dump(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """A dump of them."""
    config = {"1": {"name": "1", "desc": "dp", "ranks": "[4, 5]"}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}


def test_an_nccl_dump(tmp_path: Path) -> None:
    """Durations, groups with their ranks, and messages with both ends, by their ranks in the job."""
    path = tmp_path / "nccl_trace_rank_5"
    entries = [entry(1, 0.0), entry(2, 0.1, "nccl:recv 1<-0"), entry(3, 0.2, "nccl:send 1->0")]
    path.write_bytes(pickle.dumps(dump(entries)))
    log = read_flight_recorder(path)
    assert log.rank == 5
    assert [(call.op, call.group, call.bytes, call.duration_s, call.number) for call in log.calls] == [
        ("all_reduce", "1[4,5]", 200, 0.002, 1),
        ("recv", "4->5", 200, 0.002, 2),
        ("send", "5->4", 200, 0.002, 3),
    ]
    assert log.members["1[4,5]"] == (4, 5)


def job(tmp_path: Path, in_call: Callable[[int, bool], float]) -> list[Path]:
    """The dumps of two ranks: iterations of 1 s, from the 60th on of 1.5 s, and what a call takes of them, in s."""
    paths = []
    for rank in (4, 5):
        begins_s = [float(number) if number < 60 else 60 + 1.5 * (number - 60) for number in range(100)]
        entries = [entry(n + 1, at_s, took_ms=1e3 * in_call(rank, n >= 60)) for n, at_s in enumerate(begins_s)]
        paths.append(tmp_path / f"dump_{rank}")
        paths[-1].write_bytes(pickle.dumps(dump(entries)))
    return paths


def test_a_rank_that_computes_longer_is_named(tmp_path: Path) -> None:
    """The other one waits for it in its calls."""
    found = findings_of(job(tmp_path, lambda rank, is_slow: 0.7 if is_slow and rank == 4 else 0.2))
    for findings in found:
        (event,) = findings.events
        assert event.onset == pytest.approx(60, abs=1)
        assert (event.cause, event.scope.kind, event.scope.names) == ("computation", "worker", ("rank 5",))
        assert any("1 other ranks wait" in sentence for sentence in event.evidence)


def test_a_slow_link_is_named(tmp_path: Path) -> None:
    """All ranks are longer in the transfer."""
    found = findings_of(job(tmp_path, lambda rank, is_slow: 0.7 if is_slow else 0.2))
    for findings in found:
        (event,) = findings.events
        assert (event.cause, event.scope.kind, event.scope.names) == ("communication", "link", ("4-5",))


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_with_a_class_is_refused(tmp_path: Path, protocol: int) -> None:
    """And nothing of it is executed, whatever it is hidden in."""
    witness, path = tmp_path / "executed", tmp_path / "dump0"
    path.write_bytes(pickle.dumps(dump([{**entry(1, 0.0), "frames": Evil(witness)}]), protocol))
    with pytest.raises(InvalidInputError, match="nothing of it was executed"):
        read_flight_recorder(path) if protocol > 1 else unpickled(path.read_bytes(), "dump0")
    assert not witness.exists()
    pickle.loads(path.read_bytes())
    assert witness.exists()  # it would have been


@given(st.binary(max_size=60))
def test_no_bytes_make_the_unpickler_do_anything_else(data: bytes) -> None:
    """Whatever they are, they are plain data or refused."""
    try:
        value = unpickled(b"\x80\x04" + data + b".", "dump")
    except InvalidInputError:
        return
    assert isinstance(value, int | float | str | bytes | list | tuple | dict | None)


PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(PLAIN, st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_plain_data_come_back(value: Any, protocol: int) -> None:
    """Every protocol's."""
    assert unpickled(pickle.dumps(value, protocol), "dump") == value


def nested(depth: int, inner: Callable[[Any], Any]) -> Any:
    """A text in something, which is in something, and so on."""
    value: Any = "x"
    for _ in range(depth):
        value = inner(value)
    return value


def itself() -> list[Any]:
    """A list that holds itself."""
    one: list[Any] = ["x"]
    one.append({"it": one})
    return one


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (nested(40, lambda inner: [inner, inner]), "once it is unfolded"),
        (nested(40, lambda inner: {"one": inner, "other": (inner,)}), "once it is unfolded"),
        (nested(400, lambda inner: [inner]), "once it is unfolded"),
        ([[nested(3, lambda inner: [inner] * 10_000)]] * 2, "once it is unfolded"),
        (itself(), "holds itself"),
        ({nested(24, lambda inner: (inner, inner)): 1}, "a key is a list, a tuple"),
    ],
)
def test_a_pickle_that_unfolds_without_end_is_refused_at_once(value: Any, what: str) -> None:
    """One list in many places, and that in many others, fill no memory: what goes through it never sees it."""
    with pytest.raises(InvalidInputError, match=what):
        unpickled(pickle.dumps(value), "dump")


def test_a_pickle_may_have_a_list_in_many_places() -> None:
    """As often in several places as data may be, and no more is unfolded than is there."""
    many = [["x"] * 100_000] * 500
    assert unpickled(pickle.dumps(many), "dump") == many


DAMAGES: list[tuple[bytes, str]] = [
    (pickle.dumps(dump([entry(1, 0.0)]))[:-40], "damaged or cut short"),
    (json.dumps(dump([entry(1, 0.0)])).encode()[:-40], "damaged or cut short"),
    (gzip.compress(pickle.dumps(dump([entry(1, 0.0)])))[:-30], "damaged or cut short"),
    (pickle.dumps([1, 2]), "no dictionary"),
    (pickle.dumps(dump([{"pg_id": 0}])), "lacks 'process_group'"),
    (pickle.dumps(dump([])), "no communication calls"),
    (pickle.dumps(dump([entry(number, number) for number in range(5)])), "no period found in 5 calls"),
]


@pytest.mark.parametrize(("data", "words"), DAMAGES, ids=[str(place) for place in range(len(DAMAGES))])
def test_damaged_dumps(tmp_path: Path, data: bytes, words: str) -> None:
    """They are refused, with what is wrong and where."""
    path = tmp_path / "dump0"
    path.write_bytes(data)
    with pytest.raises(InvalidInputError, match=words) as refused:
        findings_of([path])
    assert str(path) in str(refused.value.where)
