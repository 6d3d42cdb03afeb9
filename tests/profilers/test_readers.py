"""Logs of iteration times: what each format tells, as a series, and what is refused."""

import gzip
import io
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.profilers.failslow.monitor.series import CallSeries, Series
from rtk.profilers.failslow.monitor.watch import LogMonitor
from rtk.profilers.failslow.readers.formats import READERS
from rtk.profilers.failslow.readers.reading import (
    LONGEST_LINE_BYTES,
    MOST_OPEN,
    IterationSample,
    growing_lines,
    lines_of,
)
from rtk.profilers.failslow.tracker import track
from rtk.schemas.errors import InvalidInputError

# Whole tenths of milliseconds, so that every format can say them.
TIMES_S = st.lists(st.integers(2_000, 800_000).map(lambda tenths: tenths / 10_000), min_size=1, max_size=40)


def samples_of(lines: Iterable[str | bytes], name: str | None = None) -> list[IterationSample]:
    """All samples of a log."""
    series = Series("log", name)
    samples = [
        sample for line in lines for sample in series.read(line if isinstance(line, bytes) else f"{line}\n".encode())
    ]
    return samples + series.finish()


def times_of(lines: Iterable[str | bytes], name: str | None = None) -> list[float]:
    """The times of all samples of a log, in s."""
    return [sample.time_s for sample in samples_of(lines, name)]


def refusal(lines: Iterable[str | bytes], name: str | None = None) -> InvalidInputError:
    """The error that a log ends in."""
    with pytest.raises(InvalidInputError) as caught:
        samples_of(lines, name)
    return caught.value


def megatron(times_s: Iterable[float]) -> Iterator[str]:
    yield "using world size: 64, data-parallel size: 4"
    for i, time_s in enumerate(times_s, start=1):
        yield (
            f" [2025-08-01 07:19:37] iteration {i:8d}/    5000 | consumed samples: {128 * i:12d} | elapsed time per "
            f"iteration (ms): {1000 * time_s:.1f} | learning rate: 6.9E-08 | global batch size:   128 | loss: 1.0E+01 |"
        )
        yield "(min, max) time across ranks (ms): forward-backward: (1.0, 2.0)"


def torchtitan(times_s: Iterable[float]) -> Iterator[str]:
    yield "[rank0]:[titan] 2025-06-20 19:13:39,663 - root - INFO - Training starts at step 1."
    stamp = 0.0
    for step, time_s in enumerate([99.0, *times_s], start=1):
        stamp += time_s
        clock = (datetime(2025, 6, 20) + timedelta(seconds=stamp)).isoformat(" ", "milliseconds").replace(".", ",")
        yield (
            f"[rank0]:[titan] {clock} - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  5.9866  "
            f"\x1b[38;2;180;60;0mgrad_norm:  0.5402  \x1b[36mmemory: 63.36GiB(45.35%)  \x1b[34mtps: "
            f"{round(1e7 / time_s):,}  \x1b[36mtflops: 23.15  \x1b[35mmfu: 2.34%\x1b[39m"
        )


def nanogpt(times_s: Iterable[float]) -> Iterator[str]:
    yield "number of parameters: 123.59M"
    for i, time_s in enumerate(times_s):
        yield f"iter {i}: loss 3.1416, time {1000 * time_s:.2f}ms, mfu 30.00%"


def mlperf(times_s: Iterable[float]) -> Iterator[str]:
    yield '0: :::MLLOG {"namespace": "", "key": "run_start", "value": null, "metadata": {}}'
    for i, time_s in enumerate(times_s):
        value = {"train_step_time": time_s, "reduced_train_loss": 2.0}
        yield "0: :::MLLOG " + json.dumps({"key": "tracked_stats", "value": value, "metadata": {"samples_count": i}})


def dllogger(times_s: Iterable[float]) -> Iterator[str]:
    for i, time_s in enumerate(times_s):
        yield f"DLL 2024-10-01 12:00:00.1 - Iteration {i} | train_loss : 0.5 | iteration_time : {1000 * time_s:.1f} ms"


def csv(times_s: Iterable[float]) -> Iterator[str]:
    yield "iter;iter_ms"
    for i, time_s in enumerate(times_s):
        yield f"{i};{1000 * time_s:.1f}"


def jsonl(times_s: Iterable[float]) -> Iterator[str]:
    for i, time_s in enumerate(times_s):
        yield json.dumps({"iter": i, "iter_s": time_s, "tag": "train"})


def numbers(times_s: Iterable[float]) -> Iterator[str]:
    yield "# seconds"
    for time_s in times_s:
        yield f"{time_s:.4f}"


def rtk_run(times_s: Iterable[float]) -> Iterator[str]:
    yield json.dumps({"event": "start", "live_workers": 4, "tokens": 4096, "unix_time_s": 1.0})
    for i, time_s in enumerate(times_s):
        yield json.dumps({"event": "iteration", "iteration": i, "iteration_time_s": time_s, "loss": 2.0})
    yield json.dumps({"event": "end", "iterations": 7})


WRITERS: dict[str, Callable[[Iterable[float]], Iterator[str]]] = {
    one.__name__: one for one in (megatron, torchtitan, nanogpt, mlperf, dllogger, csv, jsonl, numbers, rtk_run)
}


# Each format


@pytest.mark.parametrize("name", WRITERS)
@given(times_s=TIMES_S)
@settings(max_examples=15)
def test_every_format_is_recognised_and_says_what_was_written(name: str, times_s: list[float]) -> None:
    """A series written in a format is read back, recognised or told; torchtitan's within its clock's millisecond."""
    lines = list(WRITERS[name](times_s))
    near = 0.006 if name == "torchtitan" else 1e-9
    assert times_of(lines) == pytest.approx(times_s, rel=near)
    assert times_of(lines, "jsonl" if name == "rtk_run" else name) == pytest.approx(times_s, rel=near)


def test_every_format_has_a_round_trip() -> None:
    """No reader is left out above."""
    assert READERS.keys() <= WRITERS.keys()


@given(lines=st.lists(st.one_of(st.binary(max_size=80), st.text(max_size=80).map(str.encode)), max_size=12))
@settings(max_examples=60)
def test_arbitrary_bytes_are_findings_or_an_error(lines: list[bytes]) -> None:
    """Whatever stands in a file, it ends in times above 0 or in an InvalidInputError, in any format."""
    for name in (None, *READERS):
        with suppress(InvalidInputError):
            assert all(time_s > 0 for time_s in times_of(lines, name))


@given(data=st.data(), name=st.sampled_from(sorted(WRITERS)))
@settings(max_examples=60)
def test_damaged_lines_are_findings_or_an_error(data: st.DataObject, name: str) -> None:
    """A line that is cut off, or has other bytes in it, does no harm either."""
    lines = [line.encode() for line in WRITERS[name]([0.5] * 4)]
    at = data.draw(st.integers(0, len(lines) - 1))
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(lines[at]))] * 2)))
    lines[at] = lines[at][:first] + data.draw(st.binary(max_size=6)) + lines[at][last:]
    try:
        assert all(time_s > 0 for time_s in times_of(lines))
    except InvalidInputError as error:
        assert error.where is not None and error.where.startswith("log")


def test_units_stand_in_names() -> None:
    """Rows of one file may say s, ms, µs or ns, each by its name; two of them in a row must agree."""
    rows = [{"iter_s": 0.5}, {"step_ms": 500}, {"iteration_time_us": 5e5}, {"iter_ns": 5e8, "iter_s": 0.5}]
    assert times_of(map(json.dumps, rows)) == pytest.approx([0.5] * 4)
    assert "contradict" in refusal(['{"iter_s": 0.5, "iter_ms": 0.5}']).what


def test_names_may_be_written_in_many_ways() -> None:
    """Capitals, spaces and brackets do not matter; a vague name counts only where no other says more."""
    assert times_of(["Iteration, Step Time (ms)", "0, 500", "Iteration, Step Time (ms)", "1, 600"]) == [0.5, 0.6]
    assert times_of(["time_s", "0.5"]) == [0.5]
    assert times_of(["time_s,iter_s", "100,0.5", "101,", "102,0.6"]) == [0.5, 0.6]
    assert times_of([",iter_s,", "0,0.5,x"]) == [0.5]


def test_times_are_divided_by_what_was_computed() -> None:
    """An iteration of twice the tokens, or of twice the batch, that takes twice as long is as usual."""
    rows = [{"iter_s": 0.5, "tokens": 1000}, {"iter_s": 1.0, "tokens": 2000}, {"iter_s": 0.25, "tokens": 500}]
    assert times_of(map(json.dumps, rows)) == pytest.approx([0.5] * 3)
    first, second = [line for line in megatron([0.5, 1.0]) if "elapsed" in line]
    assert times_of([first, second.replace("  128 |", "  256 |")]) == pytest.approx([0.5, 0.5])


def test_a_clock_alone_tells_times() -> None:
    """From `t` come differences, over several iterations where the numbers say so; none across an evaluation."""
    rows = ["iter,t,tag", "0,10,train", "1,11,train", "3,13,train", ",20,eval", "4,21,train"]
    assert times_of(rows) == pytest.approx([1.0, 1.0, 1.0])
    assert "not forward" in refusal(["t", "10", "11", "10.5"]).what


def test_what_is_no_training_iteration_is_skipped() -> None:
    """Rows of another tag, empty cells and other events tell nothing."""
    assert times_of(["iter_s,tag", "0.5,train", "9,eval", "9,ckpt", ",train", "0.6,"]) == [0.5, 0.6]
    assert times_of(['{"event": "epoch", "iteration_time_s": 9}', '{"event": "iteration", "iteration_time_s": 1}']) == [
        1
    ]


def test_torchtitan_windows_begin_after_start_and_evaluation() -> None:
    """The first line of each start has the start-up in it; an evaluation ends a window, and its own rate is skipped."""
    head = "[rank0]:[titan] 2025-06-20 19:13:{:02d},000 - root - INFO - "
    lines = [
        head.format(0) + "step:  1  loss:  9.0  memory:  1.00GiB(1.00%)  tps: 10  tflops: 1.00  mfu: 1.00%",
        head.format(10) + "step: 10  loss:  9.0  memory:  1.00GiB(1.00%)  tps: 900  tflops: 1.00  mfu: 1.00%",
        head.format(30) + "validate step: 10  loss:  9.0  memory:  1.00GiB(1.00%)  tps: 5",
        head.format(40) + "step: 20  loss:  9.0  memory:  1.00GiB(1.00%)  tps: 1,800  tflops: 1.00  mfu: 1.00%",
        head.format(41) + "Training starts at step 21",
        head.format(50) + "step: 30  loss:  9.0  memory:  1.00GiB(1.00%)  tps: 1  tflops: 1.00  mfu: 1.00%",
    ]
    assert times_of(lines) == pytest.approx([10 / 9, 5 / 9])


def test_torchtitan_without_a_clock_tells_times_of_tokens() -> None:
    """Where lines carry no time of day, times are those of a token, and the series says so."""
    series = Series("log")
    lines = [f"step: {step}  loss:  9.0  tps: 1,000  mfu: 1%\n".encode() for step in (1, 2)]
    assert [sample.time_s for line in lines for sample in series.read(line)] == [0.001]
    assert (series.per, series.kind) == ("token", "torchtitan, times of a token")


def test_nanogpt_leaves_out_the_iteration_with_an_evaluation_in_it() -> None:
    """The iteration after `step N: train loss` took as long as the evaluation, too."""
    lines = ["iter 0: loss 3.0, time 500.00ms", "step 1: train loss 3.0, val loss 3.1"]
    assert times_of([*lines, "iter 1: loss 3.0, time 9000.00ms", "iter 2: loss 3.0, time 500.00ms"]) == [0.5, 0.5]


def test_mlperf_throughput_is_a_time_of_samples() -> None:
    """Where there is only throughput, its inverse is followed; lines of another kind are not mixed in."""
    stats = [{"train_epoch_timing": 9.0}, {"throughput": 4.0}, {"train_step_time": 9.0}, {"throughput": 2.0}]
    lines = [":::MLLOG " + json.dumps({"key": "tracked_stats", "value": value}) for value in stats]
    assert times_of(lines) == [0.25, 0.5]


# The series


@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 30), st.integers(0, 6))
@settings(max_examples=25)
def test_an_iteration_takes_as_long_as_its_slowest_rank(seed: int, ranks: int, count: int, apart: int) -> None:
    """However ranks are interleaved, up to some iterations apart, the series is that of the maxima, and their ranks."""
    draw = random.Random(seed)
    times = {(i, r): draw.randint(1, 9) + r / 10 for i in range(count) for r in range(ranks)}
    written: dict[tuple[int, int], int] = {}
    for i, r in times:  # when: late by a little, but after the rank's own rows before
        written[i, r] = max(i + draw.randint(0, apart), written.get((i - 1, r), 0))
    rows = sorted(times, key=lambda row: (written[row], row))
    samples = samples_of(json.dumps({"iter": i, "rank": r, "iter_s": times[i, r]}) for i, r in rows)
    assert [sample.iteration for sample in samples] == list(range(count))
    assert [sample.time_s for sample in samples] == [max(times[i, r] for r in range(ranks)) for i in range(count)]
    assert all(times[i, int(one.slowest or 0)] == one.time_s for i, one in enumerate(samples))


def test_a_rank_that_is_gone_is_not_waited_for() -> None:
    """When a rank says no more, the others go on without it."""
    rows = [
        f'{{"iter": {i}, "rank": {r}, "iter_s": {1 + r}}}' for i in range(300) for r in range(2) if r == 0 or i < 100
    ]
    assert times_of(rows) == [2.0] * 100 + [1.0] * 200


def test_ranks_one_after_the_other_are_refused() -> None:
    """A log with all rows of one rank, then all of the next, cannot be put together in bounded memory: it says so."""
    rows = [f'{{"iter": {i}, "rank": {r}, "iter_s": 1}}' for r in range(2) for i in range(2 * MOST_OPEN)]
    assert "sort the rows by iteration" in str(refusal(rows))


def test_a_job_that_starts_again_goes_back_and_on() -> None:
    """Iterations done again count again, with one rank and with several."""
    numbers = [*range(20), *range(12, 30), *range(25, 40)]
    assert len(times_of(f'{{"iter": {i}, "iter_s": 1}}' for i in numbers)) == len(numbers)
    rows = [f'{{"iter": {i}, "rank": {r}, "iter_s": 1}}' for i in numbers for r in range(3)]
    assert [sample.iteration for sample in samples_of(rows)] == numbers


@pytest.mark.parametrize("order", ["by name", "newest first", "shuffled"])
def test_unsorted_iterations_are_refused(order: str) -> None:
    """Sorted by name, backwards or not at all: an error that names the line and says what to do."""
    numbers = list(range(60))
    if order == "shuffled":
        random.Random(1).shuffle(numbers)
    elif order == "by name":
        numbers.sort(key=str)
    else:
        numbers.reverse()
    error = refusal(f'{{"iter": {i}, "iter_s": 1}}' for i in numbers)
    assert "not in order" in error.what and "line" in str(error.where) and "sort" in str(error.fix)


@pytest.mark.parametrize("factor", [1000, 0.001])
def test_a_change_of_unit_is_refused_and_a_pause_is_not(factor: float) -> None:
    """Times that stay a thousand times as long or short are another unit; a single one, or a slow start, is none."""
    assert "milliseconds" in refusal([*["0.5"] * 20, *[str(0.5 * factor)] * 20]).what
    assert "milliseconds" in refusal([*["0.5"] * 20, *[str(0.5 * factor)] * 4]).what
    assert "milliseconds" in refusal(["0.5", str(0.5 * factor)] * 20).what
    assert len(times_of([*["0.5"] * 20, "500", *["0.5"] * 20])) == 41
    assert len(times_of(["500", *["0.5"] * 20])) == 21


@pytest.mark.parametrize(
    ("text", "what"),
    [("nan", "not a number"), ("-0.5", "negative"), ("0", "zero"), ("inf", "too large"), ("0.5 s", "not a number")],
)
def test_impossible_times_name_their_line(text: str, what: str) -> None:
    """NaN, negative, zero, infinite: an error with the line, in rows and in logs."""
    error = refusal(["0.5", "0.5", text])
    assert what in error.what and error.where == "log, line 3" and error.fix
    if text != "0.5 s":
        assert what in refusal(["iter_s,rank", f"{text},0"]).what
        assert what in refusal([f"iteration 1/ 5 | elapsed time per iteration (ms): {text} |"]).what


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([], "empty"),
        (["hello", "world"], "any known format"),
        (["iter_s"], "no iteration time"),
        (["iter,iter_s", "1,2,3"], "3 cells under 2 names"),
        (["iter_s,iter_s", "1,2"], "any known format"),
        (['{"iter_s": 1}', "oops"], "not valid JSON"),
        (['{"iter_s": [1]}'], "no number"),
        (['{"iter_s": 1, "iter": 1.5}'], "no whole number"),
        (['{"iter_s": 1, "tokens": 0}'], "tokens"),
        (['{"iter_s": 1, "iter_s": 2}'], "twice"),
        (["iter_s", "1;5"], "no number"),
        (['{"t": 1, "op": "all_reduce", "rank": 0, "bytes": 4096}'], "communication calls"),
    ],
)
def test_what_makes_no_sense_is_one_clear_error(lines: list[str], what: str) -> None:
    """Each flaw has its sentence, and says where."""
    error = refusal(lines)
    assert what in error.what and error.where is not None and error.fix


def test_a_last_line_that_is_cut_off_is_no_error() -> None:
    """A file may be read while somebody writes it; a cut line amidst it is an error."""
    series = Series("log")
    series.read(b'{"iter_s": 1}\n')
    assert series.read(b'{"iter_s": 0.', is_cut=True) == []
    assert "JSON" in refusal(['{"iter_s": 1}', '{"iter_s": 0.', '{"iter_s": 1}']).what


def test_evidence_names_iterations_and_the_slow_rank() -> None:
    """What is found says how many samples were slow, which iterations they are, and which rank stands out."""
    watch = LogMonitor("log")
    noise = random.Random(0)
    for i in range(200):
        for rank in range(4):
            slow = 1.5 if rank == 2 and 100 <= i < 150 else 1.0
            row = {"iter": 1000 + i, "rank": rank, "iter_s": slow * noise.gauss(1, 0.01)}
            for sample in watch.read(json.dumps(row).encode()):
                watch.note(sample)
    for sample in watch.series.finish():
        watch.note(sample)
    watch.finish()
    (event,) = watch.findings("log").events
    assert (event.scope.kind, event.scope.names) == ("worker", ("2",))
    assert (event.onset, event.relief) == (100, 150)
    assert "50 of 50 samples above 1.10 x" in event.evidence[0]
    assert event.evidence[1] == "from iteration 1100 to 1149"
    assert event.evidence[2].startswith("rank 2 is the slowest in 50 of 50 samples, 1.5")


def calls(durations_s: Iterable[float]) -> Iterator[str]:
    """Two ranks that make six calls an iteration."""
    t_s = 1000.0
    for duration_s in durations_s:
        for number in range(6):
            row = {"t": t_s + duration_s * number / 6, "op": "all_reduce", "group": "dp", "bytes": 100 * (number + 1)}
            yield from (json.dumps({**row, "rank": rank}) for rank in range(2))
        t_s += duration_s


def test_calls_are_followed_by_their_period() -> None:
    """A call log that comes line by line is a series of iterations, and its fail-slow is found."""
    noise, watch = random.Random(0), LogMonitor("log")
    for line in calls(noise.gauss(1, 0.01) * (1.5 if 100 <= i < 150 else 1) for i in range(300)):
        for sample in watch.read(f"{line}\n".encode()):
            watch.note(sample)
    for sample in watch.series.finish():
        watch.note(sample)
    watch.finish()
    found = watch.findings("log")
    (event,) = found.events
    assert found.kind == "call log" and 297 <= found.samples <= 300
    assert abs(event.onset - 100) <= 1 and abs((event.relief or 0) - 150) <= 1


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 40)), min_size=1, max_size=8))
@settings(max_examples=30)
def test_phases_are_series_of_their_own_in_one_numbering(stretches: list[tuple[int, int]]) -> None:
    """What is found in a phase is what its samples alone would show, at the places where these stand in the log."""
    noise, watch = random.Random(len(stretches)), LogMonitor("log")
    places: dict[int, list[int]] = {0: [], 1: []}
    times: dict[int, list[float]] = {0: [], 1: []}
    for phase, count in [(0, 60), *stretches]:
        for _ in range(count):
            slow = 2.0 if len(times[phase]) >= 100 else 1.0
            places[phase].append(watch.samples)
            times[phase].append((1 + 9 * phase) * slow * noise.gauss(1, 0.01))
            watch.note(IterationSample(times[phase][-1], phase=phase))
    watch.finish()
    expected = sorted(places[p][one.onset] for p in (0, 1) for one in track(times[p]) if one.confirmed is not None)
    assert [event.onset for event in watch.findings("log").events] == expected


# Lines


def test_gzip_is_unpacked_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its first bytes, in a file and on standard input; damaged data are an error that says how far it got."""
    packed = gzip.compress(b"0.5\n" * 3000 + bytes(random.Random(0).choices(b"0123456789\n", k=3000)))
    for name in ("log.gz", "log"):
        (tmp_path / name).write_bytes(packed)
        assert next(iter(lines_of(str(tmp_path / name)))).data == b"0.5\n"
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(packed)))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert next(iter(lines_of("-"))).data == b"0.5\n"
    (tmp_path / "cut.gz").write_bytes(packed[:-400])
    with pytest.raises(InvalidInputError, match="damaged or cut short") as caught:
        list(lines_of(str(tmp_path / "cut.gz")))
    assert " bytes (" in caught.value.what


@pytest.mark.parametrize(
    ("data", "what"), [(b"1\n\0\n", "binary"), (b"1\n" + b"x" * (LONGEST_LINE_BYTES + 1), "longer than 4 MiB")]
)
def test_what_has_no_lines_is_refused(tmp_path: Path, data: bytes, what: str) -> None:
    """Binary files, and files without ends of lines, are refused before they fill the memory."""
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(InvalidInputError, match=what) as caught:
        list(lines_of(str(tmp_path / "log")))
    assert caught.value.where == f"{tmp_path / 'log'}, line 2"


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A missing file, a folder, gzip that is none, and a compressed file that is to be followed."""
    (tmp_path / "no.gz").write_bytes(b"0.5\n")
    for path, what in ((tmp_path / "no", "No such file"), (tmp_path, "Is a directory"), (tmp_path / "no.gz", "gzip")):
        with pytest.raises(InvalidInputError, match=what):
            list(lines_of(str(path)))
    with pytest.raises(InvalidInputError, match="cannot be followed"):
        list(growing_lines(str(tmp_path / "no.gz"), lambda: False, print))


def followed(path: Path, *steps: Callable[[], object]) -> tuple[list[bytes], list[str]]:
    """The lines of a file to which something happens whenever there is nothing to read, and what was said."""
    left, said = list(steps), list[str]()

    def wait() -> bool:
        if left:
            left.pop(0)()
            return True
        return False

    return [line.data for line in growing_lines(str(path), wait, said.append)], said


def append(path: Path, data: bytes) -> Callable[[], object]:
    def step() -> None:
        with path.open("ab") as stream:
            stream.write(data)

    return step


def test_a_growing_file_is_followed_from_before_it_is_there(tmp_path: Path) -> None:
    """Lines come whole, however they are written; the last one may stay without an end."""
    path = tmp_path / "log"
    lines, said = followed(path, append(path, b"1\n2"), append(path, b"3\n"), append(path, b"4\n5"))
    assert lines == [b"1\n", b"23\n", b"4\n", b"5"]
    assert len(said) == 1 and "waiting for it" in said[0]


def test_a_rotated_file_is_read_to_its_end_and_the_new_one_from_its_beginning(tmp_path: Path) -> None:
    """Renamed and begun anew, or cut to nothing: no line is lost, none comes twice."""
    path = tmp_path / "log"
    path.write_bytes(b"1\n")

    def rotate() -> None:
        append(path, b"2\n")()
        path.rename(tmp_path / "log.1")
        path.write_bytes(b"3\n")

    lines, said = followed(
        path, rotate, append(path, b"4\n5\n6\n"), lambda: path.write_bytes(b"7\n"), append(path, b"8\n")
    )
    assert lines == [b"1\n", b"2\n", b"3\n", b"4\n", b"5\n", b"6\n", b"7\n", b"8\n"]
    assert ["replaced" in one for one in said] == [True, False]


def test_growing_log_of_calls_follows_its_first_rank() -> None:
    """Iterations of the rank that comes first; empty lines, other ranks, and a last line without end say nothing."""
    series = CallSeries("calls")
    samples = []
    for number in range(90):
        for rank in (1, 0):
            row = {"t": float(number), "op": "all_reduce", "bytes": 8 * (number % 3), "rank": rank}
            samples += series.read(json.dumps(row).encode())
        samples += series.read(b"\n")
    assert series.read(b'{"t": 7', is_cut=True) == []
    samples += series.finish()
    assert {one.time_s for one in samples} == {3.0}
    assert len(samples) == 29


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("{", "JSON"),
        ('{"t": 1}', "the call has no operation"),
        ('{"t": 1e999, "op": "send"}', "the clock t is inf"),
        ('{"t": 1, "op": "send", "rank": 0.5}', "rank is no whole number: 0.5"),
    ],
)
def test_line_of_a_growing_log_that_is_no_call_is_refused(row: str, what: str) -> None:
    """With its place, and what is wrong with it."""
    series = CallSeries("calls")
    series.read(b'{"t": 0, "op": "send"}')
    with pytest.raises(InvalidInputError, match=what) as caught:
        series.read(row.encode())
    assert caught.value.where == "calls, line 2"
