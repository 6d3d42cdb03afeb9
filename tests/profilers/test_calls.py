"""Iteration times out of calls, and files of calls."""

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.profilers.failslow.calls import comparison, iterations
from rtk.profilers.failslow.calls.comparison import CommunicationCall, plain_op
from rtk.profilers.failslow.calls.formats import findings_of, is_call_file
from rtk.profilers.failslow.calls.iterations import LoggedIteration, Periods
from rtk.schemas.errors import InvalidInputError

LOOP = ("all_gather",) * 4 + ("all_gather", "reduce_scatter") * 4


def written(times_s: Iterable[float], loop: Sequence[str] = LOOP, begin_s: float = 0.0) -> list[CommunicationCall]:
    """The calls of iterations that take so long: half of it in even steps, then the optimizer."""
    calls = []
    for time_s in times_s:
        calls += [
            CommunicationCall(begin_s + time_s / 2 * place / len(loop), 0, op, "0", 4096)
            for place, op in enumerate(loop, start=1)
        ]
        begin_s += time_s
    return calls


def told(periods: Periods, calls: Iterable[CommunicationCall]) -> list[LoggedIteration]:
    """All that is told of some calls, to the end."""
    return [one for call in calls for one in periods.note(call)] + list(periods.finish())


TIMES_S = st.lists(st.floats(0.9, 1.1), min_size=10, max_size=40)


@given(TIMES_S, st.sampled_from([1e-3, 1.0, 1e4]))
def test_times_are_those_between_the_ends_of_iterations(times_s: list[float], unit_s: float) -> None:
    """On whatever scale, and all of them: their sum is the time that has passed from the first to the last."""
    times_s = [time_s * unit_s for time_s in times_s]
    calls = written(times_s)
    periods = Periods(first=len(calls))
    found = told(periods, calls)
    assert periods.period == len(LOOP)
    ends_s = [call.t_s for call in calls[len(LOOP) - 1 :: len(LOOP)]][:-1]  # the next calls would show the last one
    assert [one.begin_s for one in found] == pytest.approx(ends_s[:-1])
    assert [one.time_s for one in found] == pytest.approx([after - before for before, after in pairwise(ends_s)])


@settings(max_examples=30)
@given(st.lists(st.floats(0.9, 1.1), min_size=30, max_size=80), st.integers(100, 400))
def test_live_and_afterwards_are_the_same(times_s: list[float], first: int) -> None:
    """When the period is looked for does not change what is told in the end."""
    calls = written(times_s)
    live, afterwards = Periods(first=first), Periods(first=len(calls))
    found = [one for one in told(live, calls) if one.phase == live.phase]
    assert [(one.begin_s, one.time_s) for one in found] == [
        (one.begin_s, one.time_s) for one in told(afterwards, calls)
    ]


def test_an_evaluation_is_no_iteration() -> None:
    """What lasts across one is left out, and the next iteration is told again."""
    before = written([1.0] * 20)
    forward = written([0.5] * 3, LOOP[:4], begin_s=20.0)
    after = written([1.0] * 20, begin_s=21.5)
    found = told(Periods(), before + forward + after)
    assert [round(one.time_s, 9) for one in found] == [1.0] * 37
    assert {one.phase for one in found} == {0}


def test_a_loss_that_is_printed_now_and_then_is_no_end_of_an_iteration() -> None:
    """Its sum takes no time, so the loop without it is the iteration."""
    buckets = ("all_reduce", "broadcast")
    calls = [call for place in range(20) for call in printed(written([1.0] * 10, buckets, 10.0 * place))]
    periods = Periods(first=len(calls))
    assert {round(one.time_s, 9) for one in told(periods, calls)} == {1.0}
    assert periods.period == len(buckets)


def test_a_norm_at_the_end_of_many_alike_parts_is_one() -> None:
    """For the optimizer's step comes with it: the parts before are no iterations."""
    batches = ("all_reduce", "broadcast") * 10
    calls = [call for place in range(20) for call in printed(written([1.0], batches, float(place)))]
    periods = Periods(first=len(calls))
    assert {round(one.time_s, 9) for one in told(periods, calls)} == {1.0}
    assert periods.period == len(batches) + 1


def printed(calls: list[CommunicationCall]) -> list[CommunicationCall]:
    """The calls and, right behind them, one more."""
    return [*calls, replace(calls[-1], t_s=calls[-1].t_s + 1e-4, op="reduce")]


def test_another_phase_is_noticed_and_the_former_recognised() -> None:
    """Half as many layers are another phase; when the first one goes on, it has its number again."""
    other = LOOP[:2] + LOOP[4:8]
    calls = written([1.0] * 40) + written([0.6] * 60, other, 40.0) + written([1.0] * 60, begin_s=76.0)
    periods = Periods()
    phases = [one.phase for one in told(periods, calls)]
    assert [phase for phase, _ in groupby(phases)] == [0, 1, 0]
    assert len(phases) > 150
    assert periods.period == len(LOOP)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls and tokens that were long ago are forgotten."""
    monkeypatch.setattr(iterations, "MOST", 500)
    monkeypatch.setattr(iterations, "MOST_TOKENS", 1000)
    periods = Periods()
    for number in range(5000):
        periods.note(CommunicationCall(number / 1e3, 0, "all_reduce", "0", number))
    assert len(periods._numbers) <= 1000
    assert len(periods._remembered) == 500


def rows(calls: Iterable[CommunicationCall], factor: float = 1.0) -> list[dict[str, Any]]:
    """The lines of a call log."""
    return [
        {"t": call.t_s * factor, "rank": call.rank, "op": call.op, "group": call.group, "bytes": call.bytes}
        for call in calls
    ]


def write(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


SLOW = [1.0] * 60 + [1.6] * 40 + [1.0] * 60


@pytest.mark.parametrize("factor", [1.0, 1e9])
def test_a_fail_slow_in_a_call_log(tmp_path: Path, factor: float) -> None:
    """Its place and severity are found, whether times are in s or in ns."""
    path = write(tmp_path / "calls.jsonl", rows(written(SLOW, begin_s=1.7e9), factor))
    assert is_call_file(path)
    (findings,) = findings_of([path])
    assert findings.file == str(path)
    assert findings.kind == "call log"
    assert findings.samples == 158
    assert findings.usual_s == pytest.approx(1.0, abs=1e-3)
    (event,) = findings.events
    assert event.onset == pytest.approx(60, abs=1)
    assert event.relief == pytest.approx(100, abs=1)
    assert event.severity == pytest.approx(1.6, abs=0.01)
    assert event.cause == "unknown"


def test_gzip_and_unsorted_times(tmp_path: Path) -> None:
    """A compressed log whose lines are not in the order of time says the same."""
    lines = rows(written(SLOW))
    swapped = [line for pair in zip(lines[1::2], lines[::2], strict=True) for line in pair]
    path = tmp_path / "calls.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, swapped)).encode()))
    assert is_call_file(path)
    plain = write(tmp_path / "plain.jsonl", lines)
    assert findings_of([path])[0].events == findings_of([plain])[0].events


def test_several_ranks_in_one_file(tmp_path: Path) -> None:
    """Each has findings of its own, with its name."""
    calls = written(SLOW)
    lines = [{**row, "rank": rank} for row in rows(calls) for rank in (0, 1)]
    path = write(tmp_path / "calls.jsonl", lines)
    assert [one.file for one in findings_of([path])] == [f"{path}, rank 0", f"{path}, rank 1"]


LINES: list[tuple[Callable[[list[dict[str, Any]]], list[dict[str, Any]]], str]] = [
    (lambda lines: [*lines[:50], {**lines[50], "t": 1.7e18}, *lines[51:]], "another unit"),
    (lambda lines: [*lines[:50], {**lines[50], "t": "now"}, *lines[51:]], "'t' is 'now' instead of a number"),
    (lambda lines: [*lines[:50], {**lines[50], "op": 3}, *lines[51:]], "no operation"),
    (lambda lines: [*lines[:50], {**lines[50], "group": [0]}, *lines[51:]], "a group that is no name"),
    (lambda lines: [*lines[:50], cast(Any, [7]), *lines[51:]], "no JSON object"),
    (lambda lines: lines[:80], "no period found in 80 calls"),
    (lambda lines: [{**line, "bytes": place} for place, line in enumerate(lines)], "no period found"),
]


@pytest.mark.parametrize(("change", "words"), LINES, ids=[words for _, words in LINES])
def test_bad_call_logs(
    tmp_path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], words: str
) -> None:
    """They are refused, with what is wrong."""
    path = write(tmp_path / "calls.jsonl", change(rows(written(SLOW))))
    with pytest.raises(InvalidInputError, match=words) as refused:
        findings_of([path])
    assert refused.value.where is not None
    assert str(path) in refused.value.where


def test_what_is_not_said_of_calls_is_not_missed(tmp_path: Path) -> None:
    """Empty lines, and fields that are null, change nothing."""
    lines = rows(written(SLOW))
    plain, path = write(tmp_path / "plain.jsonl", lines), tmp_path / "calls.jsonl"
    path.write_text("\n\n".join(json.dumps({**line, "dur_us": None}) for line in lines) + "\n")
    expected = findings_of([write(plain, [{**line, "dur_us": -1.0} for line in lines])])
    assert findings_of([path])[0].events == expected[0].events


def test_damaged_call_logs(tmp_path: Path) -> None:
    """A last line that is cut off is left out; a damaged one before is refused, and so is gzip that ends too early."""
    whole = write(tmp_path / "calls.jsonl", rows(written(SLOW)))
    data = whole.read_bytes()
    whole.write_bytes(data[:-20])
    assert findings_of([whole])[0].samples >= 158
    whole.write_bytes(data[:5000] + b"}\n" + data[5000:])
    with pytest.raises(InvalidInputError, match="no JSON object"):
        findings_of([whole])
    whole.write_bytes(gzip.compress(data)[:-200])
    with pytest.raises(InvalidInputError, match="damaged or cut short"):
        findings_of([whole])


def test_a_log_of_too_many_lines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before memory is full."""
    monkeypatch.setattr(comparison, "MOST_LINES", 100)
    with pytest.raises(InvalidInputError, match="more than 100 lines"):
        findings_of([write(tmp_path / "calls.jsonl", rows(written(SLOW)))])


@pytest.mark.parametrize(
    "text", ["", "1.5\n1.6\n", '{"iter_s": 1.5}\n', "iteration 5\n", "{", "[1, 2]", '{"a": [', "[" * 9000]
)
def test_other_files_are_none_of_calls(tmp_path: Path, text: str) -> None:
    """Logs of iteration times and whatever else there is are left to others; asked all the same, we refuse."""
    path = tmp_path / "other"
    path.write_text(text)
    assert not is_call_file(path)
    with pytest.raises(InvalidInputError, match="none of communication calls"):
        findings_of([path])


def test_a_missing_file(tmp_path: Path) -> None:
    """It is no call file, and cannot be read."""
    assert not is_call_file(tmp_path / "missing")
    with pytest.raises(InvalidInputError, match="cannot read"):
        findings_of([tmp_path / "missing"])


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("nccl:_all_gather_base", "all_gather"),
        ("AllReduce", "all_reduce"),
        ("c10d::allreduce_", "all_reduce"),
        ("_reduce_scatter_base_", "reduce_scatter"),
        ("alltoall_base_", "all_to_all"),
        ("nccl:send 0->1", "send"),
        ("gloo:recvAnySource", "recv_any_source"),
        ("barrier", "barrier"),
    ],
)
def test_names_of_operations(name: str, op: str) -> None:
    """Torch, NCCL and gloo have many names for one thing."""
    assert plain_op(name) == op


def inspected(rank: int, comm: str, number: int, took_us: float, at_us: float | None = None) -> dict[str, Any]:
    """A line of NCCL Inspector."""
    done = {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 1 << 20, "coll_exec_time_us": took_us}
    if at_us is not None:
        done["event_trace_ts"] = {"coll_start_ts": at_us}
    header = {"id": comm, "rank": rank, "n_ranks": 4, "nnodes": 1}
    return {"header": header, "metadata": {"dump_timestamp_us": 1_748_030_377_748_202}, "coll_perf": done}


def test_nccl_inspector_without_times_compares_groups(tmp_path: Path) -> None:
    """One communicator of four takes longer than the three like it; there are no iterations."""
    took_us = {"0xa": 100.0, "0xb": 101.0, "0xc": 150.0, "0xd": 99.0}
    paths = [
        write(tmp_path / f"{comm}.log", [inspected(0, comm, number, one) for number in range(20)])
        for comm, one in took_us.items()
    ]
    assert all(map(is_call_file, paths))
    findings = findings_of(paths)
    assert [one.samples for one in findings] == [0] * 4
    assert [len(one.events) for one in findings] == [0, 0, 1, 0]
    (event,) = findings[2].events
    assert event.cause == "communication"
    assert (event.scope.kind, event.scope.names) == ("group", ("0xc",))
    assert event.severity == pytest.approx(1.5)


def test_nccl_inspector_with_times_has_iterations(tmp_path: Path) -> None:
    """A header that comes first holds for the lines behind it."""
    lines = []
    for number in range(60):
        line = inspected(2, "0xa", number, 100.0, 1e6 * number)
        lines += [line if number == 0 else {"coll_perf": line["coll_perf"]}]
    (findings,) = findings_of([write(tmp_path / "inspector.jsonl", lines)])
    assert findings.kind == "nccl inspector"
    assert findings.samples == 59
    assert findings.usual_s == pytest.approx(1.0)
