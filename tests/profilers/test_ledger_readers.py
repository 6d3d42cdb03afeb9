"""What each reader of logs makes of lines that programs really wrote, and of lines that are damaged."""

import gzip
import json
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.profilers.failslow.readers.lines import number_text
from rtk.profilers.failslow.readers.stamps import LineClock, zone_of
from rtk.profilers.ledger.happenings import Happening, LogPlace
from rtk.profilers.ledger.ledger import ledger_of
from rtk.profilers.ledger.log_count import LogCount
from rtk.profilers.ledger.readers.blocks import AHEAD_BYTES, BLOCK_BYTES
from rtk.profilers.ledger.readers.reading import read_happenings
from rtk.schemas.errors import InvalidInputError

LOGS = Path(__file__).parent / "logs"


def told_by(*names: str, count: LogCount | None = None, **options: object) -> list[Happening]:
    """What real logs tell."""
    return list(read_happenings([str(LOGS / name) for name in names], count, **options))  # type: ignore[arg-type]


def told_in(folder: Path, text: str | bytes, count: LogCount | None = None, name: str = "job.log") -> list[Happening]:
    """What a log tells that a test has written."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return list(read_happenings([str(path)], count))


def megatron(iteration: int, clock: str = "2025-08-01 07:19:37", prefix: str = "", ms: str = "512.3") -> str:
    """A line as Megatron-LM writes it since 2024."""
    return (
        f"{prefix} [{clock}] iteration {iteration:8d}/    5000 | consumed samples: {128 * iteration:12d} | elapsed "
        f"time per iteration (ms): {ms} | learning rate: 6.9E-08 | global batch size:   128 | lm loss: 1.0E+01 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


SIZE = "using world size: 4, data-parallel size: 4\n"


def kinds(happenings: Iterable[Happening]) -> Counter[str]:
    """How often each kind was told."""
    return Counter(told.kind for told in happenings)


def iterations(happenings: Iterable[Happening]) -> list[int | None]:
    """The numbers of the iterations that were told, one by one or many at once."""
    return [one.iteration for told in happenings if told.kind == "iteration" for one in told.singles()]


def refusal(folder: Path, text: str | bytes) -> InvalidInputError:
    """The error that a log ends in."""
    with pytest.raises(InvalidInputError) as caught:
        told_in(folder, text)
    return caught.value


# Logs that programs have written.


def test_megatron_of_2021_tells_size_setup_iterations_and_its_end() -> None:
    """Iteration lines have no clock there; each stands for its interval, with the steps that fp16 skipped."""
    count = LogCount()
    told = told_by("megatron-2021.log", count=count)
    assert [one.gpus for one in told if one.kind == "start"] == [256]
    steps = [one for one in told if one.kind == "iteration"]
    assert [(one.iteration, one.steps, one.skipped) for one in steps] == [
        (10, 10, 10), (20, 10, 8), (30, 10, 1), (40, 10, 0), (50, 10, 0), (60, 10, 0)
    ]  # fmt: skip
    assert [one.took_s for one in steps] == pytest.approx([19.9324, 6.7075, 6.7465, 6.7364, 6.7153, 6.7037])
    assert {one.time_s for one in steps} == {None}
    assert [one.time_s for one in told if one.kind == "rendezvous"] == [1621849237.0]
    failures = [(one.cause, one.time_s) for one in told if one.kind == "failure"]
    assert failures == [("SIGTERM", None)] * 3 + [("CANCELLED due to time limit", 1621849834.0)] * 2
    assert count.formats == {str(LOGS / "megatron-2021.log"): "megatron"}
    assert (count.lines, count.garbled) == (40, 0)


def test_megatrons_evaluations_take_what_their_timer_says(tmp_path: Path) -> None:
    """It stands before the loss; iterations' timers stand still meanwhile, so that clocks agree with it."""
    evaluation = (
        "(min, max) time across ranks (ms):\n"
        "    evaluate .......................................: (3270.11, 3274.73)\n"
        "WARNING:megatron.core.rerun_state_machine:Setting RerunStateMachine mode RerunMode.DISABLED\n"
        f"{'-' * 94}\n validation loss at iteration 5 | lm loss value: 8.8E+00 | lm loss PPL: 7.2E+03 | \n{'-' * 94}\n"
    )
    lines = [megatron(n, f"2025-08-01 07:00:{8 * n + 3 * (n > 5):02d}", ms="8000.0") for n in range(1, 7)]
    told = told_in(tmp_path, SIZE + "".join([*lines[:5], evaluation, lines[5]]))
    assert [(one.iteration, one.took_s) for one in told if one.kind == "evaluation"] == [(5, 3.27473)]
    found = ledger_of(told)
    assert (found.evaluations, found.time.unknown_gpu_s, found.time.slow_gpu_s) == (1, 0.0, 0.0)
    assert found.evaluation_gpu_s == pytest.approx(4 * 3.27473)
    untimed = [replace(one, took_s=None) if one.kind == "evaluation" else one for one in told]
    assert ledger_of(untimed).evaluation_gpu_s == 4 * 3.0  # by the clocks


@pytest.mark.parametrize(
    "words", ["iteration 20 | lm loss value: 8.8", "the end of training for test data | lm loss: 1"]
)
def test_every_set_of_data_that_megatron_evaluates_is_one_evaluation(words: str, tmp_path: Path) -> None:
    """Without timers nobody knows how long; other lines with losses are none."""
    text = megatron(10) + megatron(20) + 2 * f" validation loss at {words}\n" + "the loss at the barrier\n"
    (told,) = [one for one in told_in(tmp_path, text) if one.kind == "evaluation"]
    assert (told.took_s, told.iteration) == (None, 20 if "20" in words else None)


def test_deepspeed_tells_steps_with_clocks_and_how_long_they_took() -> None:
    """The line of the pipeline engine belongs to the step before it."""
    told = told_by("deepspeed-2021.log", format_name="deepspeed")
    assert [(one.kind, one.iteration, one.time_s, one.took_s) for one in told] == [
        ("init", None, 1622144962.947, None),
        ("iteration", 1, 1622145115.061, 150.471),
        ("iteration", 2, 1622145260.386, 145.206),
    ]


def test_a_comma_in_deepspeeds_seconds_is_no_thousand(tmp_path: Path) -> None:
    """It always writes three digits behind the point, and no thousands."""
    line = "[2025-08-01 07:00:{:02d},000] [INFO] [x.py:1:x] [Rank 0] step={}, skipped=0, lr=[1e-4]\n"
    text = "".join(
        line.format(10 * n, n) + f"steps: {n} loss: 2,41 iter time (s): 10,000 samples\n" for n in range(1, 5)
    )
    assert {one.took_s for one in told_in(tmp_path, text) if one.kind == "iteration"} == {10.0}


def test_nanogpts_evaluations_are_in_the_time_of_the_iteration_after_them(tmp_path: Path) -> None:
    """Every 50 iterations of 0.2 s it evaluates for 5 s."""
    text = ""
    for number in range(101):
        text += f"step {number}: train loss 3.1, val loss 3.2\n" if number % 50 == 0 else ""
        text += f"iter {number}: loss 3.14, time {5200 if number % 50 == 0 else 200}.00ms, mfu 1.00%\n"
    found = ledger_of(told_in(tmp_path, text), gpus=1)
    assert (found.iterations, found.evaluation_gpu_s, found.time.load_gpu_s, found.time.slow_gpu_s) == (
        101,
        10.0,
        5.0,
        0.0,
    )


def test_megatron_deepspeed_is_heard_once_with_deepspeeds_clock() -> None:
    """Both programs tell of each iteration; Megatron's lines count, and borrow the clock."""
    told = [one for one in told_by("deepspeed-2021.log") if one.kind == "iteration"]
    assert [(one.iteration, one.time_s) for one in told] == [(1, 1622145115.061), (2, 1622145260.386)]
    assert [one.took_s for one in told] == pytest.approx([150.4713, 145.207])


def test_steps_of_deepspeeds_engines_without_pipeline_have_clocks_only(tmp_path: Path) -> None:
    """In GPT-NeoX the step's clock comes in the line of the rates."""
    line = "[2022-03-11 02:{:02d}:00,500] [INFO] [logging.py:69:log_dist] [Rank 0] step={}, skipped={}, lr=[5e-05]\n"
    count = LogCount()
    told = told_in(tmp_path, "".join(line.format(n, 10 * n, n) for n in (1, 2, 3)), count)
    assert [(one.iteration, one.steps, one.skipped) for one in told] == [(10, 1, 1), (20, 10, 1), (30, 10, 1)]
    assert count.telling == 3
    neox = (
        "[2022-03-11 02:07:00,000] [INFO] [timer.py:215:stop] epoch=0/micro_step=7/global_step=7, CurrSamplesPerSec=8\n"
    )
    (told_once,) = told_in(tmp_path, neox + megatron(7).replace("[2025-08-01 07:19:37] ", ""))
    assert told_once.time_s == 1646964420.0


def test_torchtitan_fails_and_resumes() -> None:
    """Two files of one job: steps, saves with their step, the error, and the step from which it goes on."""
    told = told_by("torchtitan-resumes.log", "torchtitan-fails.log")
    assert iterations(told) == [1, 2, 4, 6, 8, 10, 10, 12]
    assert [one.steps for one in told if one.kind == "iteration"] == [1, 1, 2, 2, 2, 2, 2, 2]
    assert [(one.iteration, one.took_s) for one in told if one.kind == "save"] == [(4, 0.68), (8, 0.77), (12, 0.23)]
    (load,) = [one for one in told if one.kind == "load"]
    assert (load.iteration, load.took_s) == (8, 1.1)
    (failure,) = [one for one in told if one.kind == "failure"]
    assert (failure.cause, failure.ranks) == ("RuntimeError: CUDA error: unspecified launch failure", ("0",))
    assert kinds(told)["end"] == 1
    assert {one.gpus for one in told if one.kind == "rendezvous"} == {1}


def test_what_saves_take_is_not_part_of_torchtitans_iterations() -> None:
    """Text and structured log agree on iterations between which a checkpoint was saved, within the text's rounding."""
    text = {one.iteration: one for one in told_by("torchtitan-fails.log") if one.kind == "iteration"}
    exact = {one.iteration: one for one in told_by("torchtitan.jsonl") if one.kind == "iteration"}
    for last in (6, 10):
        pair = [exact[number].took_s or 0.0 for number in (last - 1, last)]
        assert text[last].took_s == pytest.approx(sum(pair) / 2, rel=0.05)


@pytest.mark.parametrize("words", ["", " (or staging if async is enabled)", " (or staging if async is enabled) "])
def test_torchtitans_of_any_year_tell_of_checkpoints(words: str, tmp_path: Path) -> None:
    """0.2 wrote no blank before `in`."""
    between = words or " "
    head = "[rank0]:[titan] 2025-04-01 00:25:59,616 - root - INFO - "
    told = told_in(
        tmp_path,
        f"{head}step:  1  loss:  6.2116  memory: 87.04GiB(93.48%)  tps: 500  tflops: 1.0  mfu: 1.0%\n"
        f"{head}Finished saving the checkpoint{between}in 5.53 seconds.\n",
    )
    assert [(one.kind, one.iteration, one.took_s) for one in told if one.kind == "save"] == [("save", 1, 5.53)]


def test_torchtitans_validations_are_evaluations(tmp_path: Path) -> None:
    """Its line comes when they are over, and the next one's tokens a second are counted from there."""
    line = "[titan] 2025-04-01 00:25:{:06.3f} - root - INFO - {}step: {:2}  loss:  6.2  memory: 1GiB(2%)  tps: {}\n"
    text = line.format(0, "", 1, 5) + line.format(10, "", 11, 100) + line.format(25, "validate ", 11, 9)
    found = ledger_of(told_in(tmp_path, (text + line.format(35, "", 21, 100)).replace(".", ",")), gpus=1)
    assert (found.evaluations, found.evaluation_gpu_s, found.time.useful_gpu_s) == (1, 15.0, 35.0)


def test_torchtitans_structured_log_tells_spans() -> None:
    """Set-up, ten steps, two saves, and the step that broke and is none."""
    told = told_by("torchtitan.jsonl")
    assert kinds(told) == {
        "start": 1, "rendezvous": 1, "init": 2, "iteration": 10, "save": 2, "failure": 1
    }  # fmt: skip
    assert iterations(told) == list(range(1, 11))
    assert told[-1].cause == "RuntimeError: CUDA error: unspecified launch failure"


def test_nemo_tells_global_steps_and_the_checkpoint_it_goes_on_from() -> None:
    """`global_step` counts from 0, and lines come each second step."""
    told = told_by("nemo.log")
    assert iterations(told) == [1, 3, 5, 7, 9, 11]
    assert [one.steps for one in told if one.kind == "iteration"] == [1, 2, 2, 2, 2, 2]
    assert told[-1].kind == "end"
    resumed = told_by("nemo-resumes.log")
    assert [(one.kind, one.iteration, one.steps) for one in resumed[:2]] == [("load", 5, 1), ("iteration", 7, 2)]


def test_nemos_validations_are_evaluations(tmp_path: Path) -> None:
    """However often their lines and bars are drawn; the check before training is none. Only bars say how long."""
    line = "Training epoch 0, iteration {}/99 | lr: 0.001 | global_step: {} | train_step_timing in s: 1.2\n"
    checks = "Sanity checking Validation: iteration 1/2\nSanity checking Validation: iteration 2/2\n"
    lines = "".join(f"Validation: iteration {number}/8\n" for number in range(1, 9))
    told = told_in(tmp_path, checks + line.format(9, 9) + lines + line.format(19, 19) + lines)
    assert [(one.kind, one.iteration, one.took_s) for one in told] == [
        ("iteration", 10, 1.2), ("evaluation", 10, None), ("iteration", 20, 1.2), ("evaluation", 20, None)
    ]  # fmt: skip
    bar = "Epoch 0:  10%|#  | 10/99 [00:12<01:48,  1.20s/it, v_num=, global_step=9.000, train_step_timing in s=1.200]"
    bars = [f"Validation DataLoader 0: 50%|#  | {n}/8 [00:{2 * n:02d}<00:02,  0.50it/s]" for n in range(1, 9)]
    told = told_in(tmp_path, "\r".join(["Sanity Checking DataLoader 0: 50%|# | 1/2 [00:01<00:01]", bar, *bars]) + "\n")
    assert [(one.kind, one.iteration, one.took_s) for one in told] == [("iteration", 10, 1.2), ("evaluation", 10, 16.0)]


def test_a_progress_bar_is_one_line_of_many_iterations() -> None:
    """Each step once, however often the bar was drawn."""
    told = told_by("nemo-bar.log")
    numbers = [number for number in iterations(told) if number is not None]
    assert numbers == list(range(numbers[0], 13))
    assert len({one.where.line for one in told}) < len(numbers)


ODD_PARTS = (
    ("global_step=8", "global_step=8,"), (".0, lr", ", lr"), (".0, lr", ".5, lr"), (".0, lr", "e+1, lr"),
    ("s=1.360", "s=1,5"), ("s=1.360", "s=0.000"), ("s=1.360", "s=1e-3"), (", train_step_timing in s=1.360", ""),
    ("v_num=2", "val_global_step=3.0"), ("v_num=2", "VRAM=3"), ("v_num=2", "a=1,5"),
    ("v_num=2", "at=2025-08-01 07:00:00"), ("v_num=2", "Validation_loss=2"),
    ("lr=0.001", "other_train_step_timing in s=7.0"), ("lr=0.001", "x"), ("Epoch", "[default3]:Epoch"),
    ("Epoch", "2025-08-01 07:19:37 Epoch"), ("Epoch", "\x1b[32mEpoch"), ("Epoch", " Epoch"), ("Epoch", "E"),
    ("Epoch", "Validation DataLoader 0: 5%|# | 1/8 [00:02<00:02, 2it/s]\rEpoch"), ("Epoch", "text\r\rEpoch"),
)  # fmt: skip


def bar_of(steps: Iterable[int], odd: Iterable[tuple[int, tuple[str, str]]]) -> str:
    """A progress bar as NeMo draws it, with odd parts; parts end in carriage returns."""
    parts = [
        f"Epoch {step // 500}:   1%|#####| {step % 500}/500 [07:58<01:48, 1.36s/it, v_num=2, global_step={step}.0, "
        "lr=0.001, train_step_timing in s=1.360]"
        for step in steps
    ]
    for place, change in odd:
        parts[place] = parts[place].replace(*change)
    return "\r".join(parts)


def assert_told_as_lines(bar: str) -> None:
    """A bar tells what its parts would tell if each were a line."""
    told, counts = list[list[Happening]](), list[int]()
    for end in ("\r", "\n"):
        with tempfile.TemporaryDirectory() as folder:
            path, count = Path(folder) / "job.log", LogCount()
            path.write_bytes(bar.replace("\r", end).encode() + b"\n" + megatron(7).encode())
            happenings = read_happenings([str(path)], count, format_name="nemo")
            told.append([])
            with suppress(InvalidInputError):
                for happening in happenings:
                    told[-1] += [replace(one, where=LogPlace("", 0)) for one in happening.singles()]
            counts.append(count.garbled)
    assert told[0] == told[1]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("odd", ODD_PARTS)
def test_an_odd_part_of_a_bar_tells_what_it_would_as_a_line(odd: tuple[str, str]) -> None:
    """In the midst of ordinary ones, which are taken at once."""
    bar = bar_of([8000, 8000, 8001, 8002, 8003, 8004, 8004, 8005], [(4, odd)])
    assert bar != bar_of([8000, 8000, 8001, 8002, 8003, 8004, 8004, 8005], [])
    assert_told_as_lines(bar)


@given(
    st.lists(st.sampled_from([1, 1, 1, 0, 2, -3]), min_size=4, max_size=12),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(ODD_PARTS)), max_size=2),
)
def test_a_bar_tells_what_its_parts_tell_as_lines(more: list[int], odd: list[tuple[int, tuple[str, str]]]) -> None:
    """However many steps are taken at once, also where steps are left out, or done again."""
    assert_told_as_lines(bar_of(accumulate(more, initial=8000), odd))


def test_a_checkpoint_is_told_though_the_line_after_it_is_garbled(tmp_path: Path) -> None:
    """It was saved before."""
    saved = "  successfully saved checkpoint from iteration      7 to /ckpt\n"
    told = told_in(tmp_path, megatron(7) + saved + megatron(8, ms="nonsense") + megatron(9))
    assert [(one.kind, one.iteration) for one in told] == [("iteration", 7), ("save", 7), ("iteration", 9)]


def test_a_long_bar_is_read_once_and_its_lines_are_counted_as_lines(tmp_path: Path) -> None:
    """Also where what is read at a time ends within it."""
    bar = "Epoch {epoch}: 1%|#####| 1/500 [07:58<01:48, 1.36s/it, loss=3.0, global_step={step}.0, {more}]"
    text = "".join(
        bar.format(epoch=step // 500, step=step, more="train_step_timing in s=1.360, v_num=" + "x" * 80)
        + ("\n" if step % 500 == 499 else "\r")
        for step in range(2000)
    )
    count = LogCount()
    assert len(text) > 2 * AHEAD_BYTES
    assert iterations(told_in(tmp_path, text, count)) == list(range(1, 2001))
    assert (count.lines, count.telling) == (4, 4)


def test_lightnings_csv_tells_steps_and_times() -> None:
    """The file is an attempt; rows come each second step."""
    told = told_by("lightning-metrics.csv")
    assert told[0].kind == "start"
    assert iterations(told) == [2, 4, 6, 8, 10, 12]
    assert all(0.05 < (one.took_s or 0.0) < 0.07 for one in told if one.kind == "iteration")


def test_lightnings_rows_of_validations_are_evaluations(tmp_path: Path) -> None:
    """Such a row has a loss of the validation, and none of training."""
    head = "step,epoch,timestamp,train_loss,val_loss\n"
    text = head + "9,0,1000,2.0,\n19,0,1010,1.9,\n19,0,1014,,2.5\n29,0,1024,1.8,\n"
    told = told_in(tmp_path, text, name="metrics.csv")
    assert [(one.kind, one.iteration) for one in told[1:]] == [
        ("iteration", 10), ("iteration", 20), ("evaluation", 20), ("iteration", 30)
    ]  # fmt: skip
    assert ledger_of(told, gpus=1).evaluation_gpu_s == 4.0


def test_each_of_lightnings_versions_is_an_attempt(tmp_path: Path) -> None:
    """In the order of their clocks, and each beginning with its first iteration."""
    paths = []
    for version, begin in enumerate((2000.0, 1000.0)):
        (tmp_path / f"version_{version}").mkdir()
        path = tmp_path / f"version_{version}" / "metrics.csv"
        rows = [f"{begin + 10 * step},0,{step},3.5,0.1" for step in (0, 1)]
        path.write_text("\n".join(["timestamp,epoch,step,train_step_timing in s,loss", *rows]))
        paths.append(str(path))
    told = list(read_happenings(paths))
    assert [(one.kind, one.time_s, one.iteration) for one in told] == [
        ("start", None, None), ("iteration", 1000.0, 1), ("iteration", 1010.0, 2),
        ("start", None, None), ("iteration", 2000.0, 1), ("iteration", 2010.0, 2),
    ]  # fmt: skip


def test_nvrx_tells_cycles_beside_the_programs_own_lines() -> None:
    """Three attempts: an error, a kill, and a clean end; rendezvous with how long it took."""
    told = told_by("nvrx.log")
    assert kinds(told)["rendezvous"] == 3
    detected = [one for one in told if one.kind == "detected" and one.ranks == ("localhost",)]
    assert [one.time_s for one in detected] == [1795793035.286, 1795793042.933]
    causes = [one.cause for one in told if one.kind == "failure"]
    assert causes == [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "exit code 1",
        "SIGKILL (exit code -9)",
    ]
    assert kinds(told)["end"] == 1
    assert all((one.took_s or 0.0) < 1.0 for one in told if one.kind == "rendezvous")
    found = ledger_of(told)  # workers that start after their rendezvous are no other attempt
    assert [one.ended for one in found.attempts] == ["failed", "failed", "clean"]
    assert [one.cause for one in found.failures] == [causes[0], causes[2]]


def test_torchruns_lines_and_tracebacks_of_single_ranks() -> None:
    """A traceback's cause is its last line, found behind the prefixes of its rank; glog's stamps have no year."""
    count = LogCount()
    told = told_by("torchrun.log", count=count)
    failures = [(one.cause, one.ranks) for one in told if one.kind == "failure"]
    assert failures[0] == ("RuntimeError: CUDA error: an illegal memory access was encountered", ("1",))
    assert failures[1] == ("exit code 1", ("local 1",))
    assert str(failures[2][0]).startswith("RuntimeError: Gloo connectFullMesh failed")
    first, second = (one.time_s for one in told if one.cause == "exit code 1")
    assert first is not None and second is not None and second - first == pytest.approx(4.792)
    assert any("no year" in words for words in count.words())
    found = ledger_of(told)  # rank 0 goes on for a moment after the error of rank 1
    assert [one.cause for one in found.failures][:1] == [failures[0][0]]
    assert any("no iteration has a clock" in words for words in found.warnings)


# Lines in the forms of these threads: pytorch#118369, LlamaFactory#7396 (NCCL's watchdog), torchtitan#2389 (every rank
# prints), #1287 (checkpoints), DeepSpeed#1825 and #3742, NeMo-Framework-Launcher#55 (bars of NeMo 1).


def test_a_collective_that_timed_out_says_since_when_it_hung(tmp_path: Path) -> None:
    """Its month and day are read with the year of the lines before."""
    told = told_in(
        tmp_path,
        megatron(10)
        + "[rank3]:[E801 07:30:07.408271257 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600060 "
        "milliseconds before timing out.\n",
    )
    watched = told[-1]
    assert (watched.kind, watched.cause, watched.ranks) == ("detected", "NCCL time-out (ALLREDUCE)", ("3",))
    assert watched.took_s == 600.06
    assert watched.time_s == pytest.approx((told[0].time_s or 0.0) + 630.408271257)


def test_megatrons_checkpoints_take_what_timers_or_clocks_say(tmp_path: Path) -> None:
    """A timer counts where there is one, and the slowest rank's; loads tell where the count goes on."""
    told = told_in(
        tmp_path,
        "using world size: 8, data-parallel size: 8\n"
        "  log_interval .................................... 5\n"
        " loading checkpoint from /c at iteration 100\n"
        "  successfully loaded checkpoint from /c [ t 0, p 0 ] at iteration 100\n"
        "(min, max) time across ranks (ms):\n"
        "    load-checkpoint ................................: (1234.50, 1240.10)\n"
        + megatron(105)
        + "saving checkpoint at iteration     105 to /c in torch_dist format\n"
        "  successfully saved checkpoint from iteration     105 to /c [ t 1/1, p 1/1 ]\n"
        "time (ms) | save-checkpoint: 2500.25\n"
        "[2025-08-01 07:20:00] saving checkpoint at iteration     106 to /c in torch_dist format\n"
        "[2025-08-01 07:20:07] successfully saved checkpoint from iteration     106 to /c\n"
        + megatron(110, clock="2025-08-01 07:21:00")
        + "[after training is done] datetime: 2025-08-01 07:22:00 \n",
    )
    found = [(one.kind, one.iteration, one.took_s) for one in told if one.kind in ("load", "save")]
    assert found == [("load", 100, 1.2401), ("save", 105, 2.50025), ("save", 106, 7.0)]
    assert [one.steps for one in told if one.kind == "iteration"] == [5, 5]
    assert (told[0].gpus, told[-1].kind) == (8, "end")


def test_stages_of_megatron_are_read_behind_what_launchers_put_before_a_line(tmp_path: Path) -> None:
    """torchrun's rank, or a stamp, stands in brackets too."""
    line = "[after megatron is initialized] datetime: 2025-08-01 07:19:00 \n"
    for prefix in ("", "[default0]:", "[rank0]: ", "[2025-08-01 07:19:01] "):
        assert [one.kind for one in told_in(tmp_path, prefix + line + megatron(1))] == ["rendezvous", "iteration"]


def test_a_checkpoint_in_which_the_clock_was_put_back_took_nobody_knows_how_long(tmp_path: Path) -> None:
    """It has no negative time, and none is invented for it."""
    text = megatron(1) + (
        "[2025-08-01 03:00:00] saving checkpoint at iteration 1 to /c\n"
        "[2025-08-01 02:00:30]   successfully saved checkpoint at iteration 1 to /c\n"
    )
    assert [one.took_s for one in told_in(tmp_path, text) if one.kind == "save"] == [None]


def test_bars_of_nemo_1_tell_steps_and_seconds(tmp_path: Path) -> None:
    """Where no timing is shown the rate is."""
    bar = "Epoch 0:   1%| | {}/77225 [9:07:58<878:01:48, 41.36s/it, loss=3.1, v_num=, global_step={}, consumed=1.6e+6]"
    told = told_in(tmp_path, "\r".join(bar.format(n, f"{n - 1:.1f}") for n in (795, 795, 796)))
    assert [(one.iteration, one.took_s) for one in told] == [(795, 41.36), (796, 41.36)]
    rounded = "Epoch 0:   6%|#   | 32040/500150 [6:28:43<94:39:17,  2.00it/s, loss=2.6, global_step=3.2e+4]"
    assert [(one.iteration, one.took_s) for one in told_in(tmp_path, rounded)] == [(32040, 0.5)]


def test_every_rank_says_the_same_and_is_heard_once(tmp_path: Path) -> None:
    """With prefixes of torchrun and srun, and without any."""
    for prefixes in (["[default0]:", "[default1]:"], ["0: ", "12: "], ["[rank3]:", "[rank0]:"], ["", "", ""]):
        lines = [
            megatron(number, f"2025-08-01 07:19:{number:02d}", prefix) for number in range(1, 5) for prefix in prefixes
        ]
        told = told_in(tmp_path, "".join(lines))
        assert iterations(told) == [1, 2, 3, 4], prefixes


def test_ranks_apart_by_some_iterations_are_heard_once(tmp_path: Path) -> None:
    """A rank that is behind tells nothing new."""
    lines = [megatron(number, f"2025-08-01 07:19:{number:02d}", "[rank0]:") for number in range(1, 9)]
    late = [megatron(number, f"2025-08-01 07:19:{number:02d}", "[rank1]:") for number in range(1, 9)]
    mixed = [line for pair in zip(lines[3:], late, strict=False) for line in pair]
    assert iterations(told_in(tmp_path, "".join(lines[:3] + mixed))) == list(range(1, 9))


def test_a_checkpoint_that_was_loaded_without_a_word_has_the_iterations_before(tmp_path: Path) -> None:
    """The first line after the start is no line for all of them."""
    size = "using world size: 16, data-parallel size: 4\n[after megatron is initialized] datetime: 2025-08-01 07:{} \n"
    first = "".join(megatron(n, f"2025-08-01 07:00:{n:02d}", ms="1000.0") for n in range(1, 41))
    again = "".join(megatron(n, f"2025-08-01 07:01:{n:02d}", ms="1000.0") for n in range(21, 51))
    found = ledger_of(told_in(tmp_path, size.format("00:00") + first + size.format("01:10") + again))
    assert (found.iterations, found.iterations_lost, found.span_s) == (50, 20, 110.0)
    alone = ledger_of(told_in(tmp_path, size.format("01:10") + again))
    assert (alone.iterations, alone.span_s) == (29 + 12, 40.0)  # of the 21 of its first line, 12 had the time


@pytest.mark.parametrize("late_lines_s", [20, 2])
def test_a_start_that_a_rank_tells_late_is_none(tmp_path: Path, late_lines_s: int) -> None:
    """Four ranks, a file each, on two hosts: their starts are 20 s apart, and their lines as much, or hardly."""
    paths = []
    for rank in range(4):
        late_s = 20 * (rank // 2)
        text = SIZE + f"[after megatron is initialized] datetime: 2025-08-01 07:00:{late_s:02d} \n"
        for number in range(1, 31):
            minute, second = divmod(10 * number + min(late_s, late_lines_s), 60)
            text += megatron(number, f"2025-08-01 07:{minute:02d}:{second:02d}", ms="10000.0")
        (tmp_path / f"rank{rank}.log").write_text(text)
        paths.append(str(tmp_path / f"rank{rank}.log"))
    found = ledger_of(read_happenings(paths))
    assert (len(found.attempts), len(found.failures), found.iterations, found.time.useful_gpu_s) == (1, 0, 30, 1200.0)


def test_attempts_that_never_come_to_an_iteration_are_attempts(tmp_path: Path) -> None:
    """Each forms its group anew; torchrun's own word of the start and of the group is of the same attempt."""
    start = (
        "using world size: 4, data-parallel size: 4\n[after megatron is initialized] datetime: 2025-08-01 07:{}:00 \n"
    )
    agent = "I0801 07:{}:00.000000 140 torch/x.py:870] [default] "
    torchrun = f"{agent}starting workers for entrypoint: python3\n{agent}Rendezvous complete for workers. Result:\n"
    crash = 'Traceback (most recent call last):\n  File "x"\nRuntimeError: boo\n'
    text = "".join(torchrun.format(n, n) + start.format(n + 3) + crash for n in (10, 20))
    found = ledger_of(
        told_in(tmp_path, text + torchrun.format(30, 30) + start.format(33) + megatron(1, "2025-08-01 07:34:00"))
    )
    assert [one.ended for one in found.attempts] == ["failed", "failed", "open"]


def test_iterations_that_are_done_again_are_told_again(tmp_path: Path) -> None:
    """After a load, and after a restart of which no line tells."""
    first = "".join(megatron(number, f"2025-08-01 07:19:{number:02d}") for number in (1, 2, 3, 4))
    loaded = "[2025-08-01 07:25:00] successfully loaded checkpoint from /c at iteration 2\n"
    again = "".join(megatron(number, f"2025-08-01 07:30:{number:02d}") for number in (3, 4, 5))
    assert iterations(told_in(tmp_path, first + loaded + again)) == [1, 2, 3, 4, 3, 4, 5]
    assert iterations(told_in(tmp_path, first + again)) == [1, 2, 3, 4, 3, 4, 5]


# Damaged and odd input.


def test_pieces_of_a_log_are_read_in_order(tmp_path: Path) -> None:
    """By number and by clock; compressed or not; given in any order."""
    pieces = {"job.log.2.gz": (1, 2), "job.log.1": (3, 4), "job.log": (5, 6)}
    paths = []
    for name, numbers in pieces.items():
        text = "".join(megatron(number, f"2025-08-01 07:{2 * number:02d}:00") for number in numbers).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        paths.append(str(tmp_path / name))
    assert iterations(read_happenings(sorted(paths))) == [1, 2, 3, 4, 5, 6]
    count = LogCount()
    list(read_happenings([paths[0], paths[2]], count))
    assert count.words() == [f"a piece of a log that was rotated is not given ({tmp_path / 'job.log.1'})"]
    for name, numbers in pieces.items():
        text = "".join(f"iter {number}: loss 1.0, time 20.0ms\n" for number in numbers).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert iterations(read_happenings(sorted(paths))) == [2, 3, 4, 5, 6, 7]


def test_logs_of_a_jobs_attempts_are_read_by_their_clocks(tmp_path: Path) -> None:
    """Whatever their names."""
    for name, hour in (("z", 1), ("a", 2), ("k", 3)):
        lines = [megatron(number, f"2025-08-01 {hour:02d}:00:{number:02d}") for number in (1, 2)]
        (tmp_path / f"{name}.out").write_text("".join(lines))
    told = list(read_happenings([str(tmp_path / f"{name}.out") for name in "akz"]))
    assert [one.where.file[-5:] for one in told] == ["z.out"] * 2 + ["a.out"] * 2 + ["k.out"] * 2


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1"])
def test_any_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    """What is no ASCII stands in other lines only."""
    text = "Gerät für Läufe\r\n" + megatron(1) + "é\r\n" + megatron(2, "2025-08-01 07:19:38")
    assert iterations(told_in(tmp_path, text.encode(encoding))) == [1, 2]


def test_lines_that_containers_wrap_are_read(tmp_path: Path) -> None:
    """Docker's JSON, whose stamp is at the end, and the stamps that containerd and kubectl put before lines."""
    bare = megatron(7).replace("[2025-08-01 07:19:37] ", "")
    docker = json.dumps({"log": bare, "stream": "stdout", "time": "2025-08-01T07:19:37.500Z"}) + "\n"
    for text in (docker, "2025-08-01T07:19:37.500000001Z stdout F" + bare):
        (told,) = told_in(tmp_path, text)
        assert told.iteration == 7
        assert told.time_s == pytest.approx(1754032777.5)


def test_json_rows_tell_of_iterations(tmp_path: Path) -> None:
    """Those of `rtk run --json` among them."""
    rows = [{"event": "start", "tokens": 4096}, {"event": "iteration", "iteration": 3, "iteration_time_s": 0.25}]
    told = told_in(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
    assert [(one.iteration, one.took_s) for one in told] == [(3, 0.25)]


def test_colours_and_other_countries_numbers_are_read(tmp_path: Path) -> None:
    """A comma for the decimals, points for the thousands, and a coloured word in between."""
    told = told_in(tmp_path, megatron(1, ms="1.234,5") + megatron(2, "2025-08-01 07:19:39", ms="\x1b[31m987,6\x1b[39m"))
    assert [one.took_s for one in told] == pytest.approx([1.2345, 0.9876])
    # As `grep --color=always iteration` has it.
    found = "\x1b[01;31m\x1b[Kiteration\x1b[m\x1b[K"
    assert iterations(told_in(tmp_path, (megatron(1) + megatron(2)).replace("iteration", found))) == [1, 2]


@given(st.integers(0, 10**9), st.integers(0, 999))
def test_numbers_are_the_same_in_any_country(whole: int, thousandths: int) -> None:
    """With points or commas for either."""
    english = f"{whole:,}.{thousandths:03d}"
    german = english.translate(str.maketrans(".,", ",."))
    expected = whole + thousandths / 1000
    assert float(number_text(english.encode())) == pytest.approx(expected)
    if "." in german:  # else 1,000 is taken for a thousand
        assert float(number_text(german.encode())) == pytest.approx(expected)


def test_lines_that_cannot_be_read_are_counted_and_said(tmp_path: Path) -> None:
    """Cut off, written over by another rank, or with a number that is none."""
    count = LogCount()
    told = told_in(
        tmp_path,
        megatron(1)
        + " iteration        2/    5000 | elapsed time per iteration (ms): iterat\n"
        + megatron(3, ms="nan")
        + megatron(4, ms="-3.0")
        + "nothing\n"
        + megatron(5, "2025-08-01 07:19:41")[:150],
        count,
    )
    assert iterations(told) == [1, 5]
    assert (count.lines, count.telling, count.garbled, count.silent) == (6, 2, 3, 1)
    assert all(words.startswith("not understood") for words in count.words())
    told_in(tmp_path, megatron(1) + megatron(2)[:60], count := LogCount())
    assert (count.garbled, count.words()) == (1, [f"the last line is cut off ({tmp_path / 'job.log'}:2)"])


def test_holes_of_zero_bytes_are_left_out_and_said(tmp_path: Path) -> None:
    """As copytruncate leaves them at the beginning, and a crash in the middle."""
    count = LogCount()
    told = told_in(
        tmp_path, b"\0" * 9000 + megatron(1).encode() + b"\0" * 50 + megatron(2, "2025-08-01 07:19:38").encode(), count
    )
    assert iterations(told) == [1, 2]
    assert any("zero bytes" in words for words in count.words())


def test_a_compressed_log_that_is_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    """And it is said."""
    lines = [megatron(number, f"2025-08-01 07:{number // 60:02d}:{number % 60:02d}") for number in range(1, 2000)]
    whole = gzip.compress("".join(lines).encode())
    count = LogCount()
    told = told_in(tmp_path, whole[: len(whole) // 2], count, "job.log.gz")
    assert 100 < len(iterations(told)) < 1999
    assert any("cut off or damaged" in words for words in count.words())


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    """Binary files, empty ones, and logs without a single iteration: each with its own words."""
    assert refusal(tmp_path, bytes(range(1, 256)) * 40).what == "the file is binary"
    assert "0 lines were read" in refusal(tmp_path, b"").what
    silent = refusal(tmp_path, "Traceback (most recent call last):\n  File x\nKeyError: 'a'\nnothing\n" * 3)
    assert silent.what == "no line tells of an iteration: 12 lines were read, 3 told of something else"
    assert "--pattern" in (silent.fix or "")
    cut = refusal(tmp_path, " iteration        2/    5000 | elapsed time per iteration (ms): iterat\n")
    assert "1 begin to tell and cannot be read" in cut.what


def test_a_damaged_gzip_without_a_byte_is_refused(tmp_path: Path) -> None:
    """There is nothing to go on with."""
    path = tmp_path / "job.log.gz"
    path.write_bytes(gzip.compress(b"x" * 1000)[:6])
    with pytest.raises(InvalidInputError, match="damaged or cut short"):
        list(read_happenings([str(path)]))


def test_blocks_hide_nothing(tmp_path: Path) -> None:
    """A log of several blocks tells each iteration, with its line's number, and a traceback across their border."""
    filler = "r7i3n0:38601 NCCL INFO Channel 00 : 0[1a000] -> 1[1a000] via NET/IB/3\n"
    text, lines = "", 0
    expected: list[tuple[int, int]] = []
    while len(text) < 2.5 * BLOCK_BYTES:
        number = len(expected) + 1
        text += filler * 997 + megatron(number, f"2025-08-01 07:{number // 60:02d}:{number % 60:02d}")
        lines += 998
        expected.append((number, lines))
        text += "Traceback (most recent call last):\n" + "  File a\n" * 40 + f"ValueError: {number}\n"
        lines += 42
    count = LogCount()
    told = told_in(tmp_path, text, count)
    assert [(one.iteration, one.where.line) for one in told if one.kind == "iteration"] == expected
    assert [one.cause for one in told if one.kind == "failure"] == [f"ValueError: {number}" for number, _ in expected]
    assert count.lines == lines
    assert AHEAD_BYTES < BLOCK_BYTES


@given(st.binary(max_size=300), st.sampled_from(sorted(LOGS.glob("*.[lcj]*"))), st.integers(0, 2000))
def test_whatever_stands_in_a_log_it_is_told_or_refused(noise: bytes, real: Path, at: int) -> None:
    """Noise in the midst of real lines raises nothing else than an error with words, and lines are counted right."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.log"
        whole = real.read_bytes()
        path.write_bytes(whole[:at] + noise + whole[at:])
        count = LogCount()
        with suppress(InvalidInputError):
            list(read_happenings([str(path)], count))
        assert count.lines >= count.telling + count.garbled or "\r" in path.read_bytes().decode("latin-1")


# Clocks.


def test_the_hour_that_comes_twice_is_told_apart() -> None:
    """In a zone where clocks are put back, time goes on."""
    clock = LineClock(ZoneInfo("Europe/Berlin"))
    stamps = [b"2025-10-26 01:50:00", b"2025-10-26 02:50:00", b"2025-10-26 02:05:00", b"2025-10-26 03:05:00"]
    times = [clock.of(stamp) or 0.0 for stamp in stamps]
    assert [later - before for before, later in pairwise(times)] == [3600.0, 900.0, 3600.0]


def test_stamps_with_a_zone_are_of_it() -> None:
    """Containers' logs have one."""
    clock = LineClock(ZoneInfo("Asia/Tokyo"))
    same = [b"2025-06-20T10:13:39.5Z x", b"2025-06-20T12:13:39.500+02:00 x", b"[2025-06-20 19:13:39,500] x"]
    assert len({clock.of(line) for line in same}) == 1


def test_numbers_behind_a_stamp_are_no_zone_and_no_day_has_a_25th_hour() -> None:
    """`-2024 items`, or the end of a range of times."""
    whole = LineClock().of(b"2025-01-01 10:00:00 work")
    for line in (b"2025-01-01 10:00:00 -2024 items", b"2025-01-01 10:00:00-11:00:00 work"):
        assert LineClock().of(line) == whole
    assert LineClock().of(b"2025-01-01 25:00:00 work") is None


def test_a_zone_that_is_none_is_refused() -> None:
    """With the option's name."""
    with pytest.raises(InvalidInputError, match="no time zone is named Europe/Bonn"):
        zone_of("Europe/Bonn")
    assert LineClock(zone_of("UTC")).of(b"1970-01-02 00:00:00") == 86400.0


# A user's own expressions.


def test_a_users_expressions_tell_of_any_log(tmp_path: Path) -> None:
    """Groups say what a line is, and what of it is what."""
    path = tmp_path / "odd.log"
    path.write_text(
        "t=1700000000.5 batch 7 fini en 1.250,0 ms\n2025-08-01 07:00:00 ckpt@7 ecrit 3,5 s\n!! noeud n4 perdu: ECC\n"
    )
    told = list(
        read_happenings(
            [str(path)],
            patterns=[
                r"t=(?P<time>\S+) batch (?P<step>\d+) fini en (?P<took_ms>\S+)",
                r"ckpt@(?P<save>\d+) ecrit (?P<took_s>\S+)",
                r"noeud (?P<rank>\S+) perdu: (?P<failure>.*)",
            ],
        )
    )
    assert [(one.kind, one.iteration, one.took_s, one.ranks, one.cause) for one in told] == [
        ("iteration", 8, 1.25, (), None),
        ("save", 7, 3.5, (), None),
        ("failure", None, None, ("n4",), "ECC"),
    ]
    assert [one.time_s for one in told] == [1700000000.5, 1754031600.0, None]


@pytest.mark.parametrize("wrong", ["nan", "inf", "-5", "1e400", "x"])
def test_what_is_no_quantity_is_counted_and_left_out(wrong: str, tmp_path: Path) -> None:
    """Such lines are among those that were not understood, and give no time."""
    (tmp_path / "job.log").write_text(f"iter 1 took 10\niter 2 took {wrong}\niter 3 took 10\n")
    count = LogCount()
    expression = r"iter (?P<iteration>\d+) took (?P<took_s>\S+)"
    told = list(read_happenings([str(tmp_path / "job.log")], count, patterns=[expression]))
    assert (iterations(told), count.garbled) == ([1, 3], 1)


def test_expressions_without_iterations_are_heard_beside_the_logs_format() -> None:
    """What a program says of its own, in a log that is known."""
    told = told_by("nemo.log", patterns=[r"(?P<init>TPU available)"])
    assert kinds(told) == {"init": 1, "iteration": 6, "end": 1}


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("(", "no regular expression"), (r"step \d+", "it says no kind"), (r"(?P<save>a)(?P<load>b)", "several kinds"),
     (r"(?P<iteration>\d+)(?P<loss>\d)", "a group is named loss")],
)  # fmt: skip
def test_expressions_that_say_nothing_are_refused(tmp_path: Path, pattern: str, words: str) -> None:
    """With the groups that there are."""
    with pytest.raises(InvalidInputError, match=words):
        list(read_happenings([str(LOGS / "nemo.log")], patterns=[pattern]))


# Schedulers.

SACCT = """JobID|State|Start|End|ExitCode|AllocTRES|NodeList
77|NODE_FAIL|2025-08-01T06:00:00|2025-08-01T07:30:00|0:0|billing=64,gres/gpu:h100=64,node=8|n[1-8]
77.batch|CANCELLED|2025-08-01T06:00:00|2025-08-01T07:30:00|0:15||n1
77|TIMEOUT|2025-08-01T07:40:00|2025-08-01T09:00:00|0:0|gres/gpu=64|n[1-8]
77|CANCELLED by 1001|Unknown|Unknown|0:0||None assigned
78|COMPLETED|2025-08-01T10:00:00|2025-08-01T11:00:00|0:0|gres/gpu=32|n[1-4]
79|RUNNING|2025-08-01T12:00:00|Unknown|0:0|gres/gpu=32|n[1-4]
"""


def test_sacct_tells_when_a_job_ran_and_how_it_ended(tmp_path: Path) -> None:
    """Merged with the log by its clock; steps and what never ran are left out."""
    (tmp_path / "acct.txt").write_text(SACCT)
    (tmp_path / "job.log").write_text(megatron(1))
    told = list(read_happenings([str(tmp_path / "job.log"), str(tmp_path / "acct.txt")]))
    assert [(one.kind, one.gpus, one.cause) for one in told] == [
        ("start", 64, "Slurm"),
        ("iteration", None, None),
        ("failure", None, "NODE_FAIL"),
        ("start", 64, "Slurm"),
        ("failure", None, "TIMEOUT"),
        ("start", 32, "Slurm"),
        ("end", None, None),
        ("start", 32, "Slurm"),
    ]


def test_a_failure_that_sacct_tells_too_is_one(tmp_path: Path) -> None:
    """A start without a clock comes when its log goes on, and not when the attempt before has ended."""
    crash = 'Traceback (most recent call last):\n  File "x"\nRuntimeError: boo\n'
    again = "using world size: 64, data-parallel size: 8\n" + megatron(2, clock="2025-08-01 07:45:00")
    (tmp_path / "acct.txt").write_text(SACCT)
    (tmp_path / "job.log").write_text(megatron(1, clock="2025-08-01 07:19:37") + crash + again)
    told = list(read_happenings([str(tmp_path / "job.log")], sacct=str(tmp_path / "acct.txt")))
    kinds_told = [one.kind for one in told]
    assert kinds_told[:6] == ["start", "iteration", "failure", "failure", "start", "iteration"]
    assert [one.cause for one in ledger_of(told).failures] == ["RuntimeError: boo", "TIMEOUT"]


def test_saccts_json_says_the_same_as_its_text(tmp_path: Path) -> None:
    """In the forms of several versions, whose numbers are wrapped or not."""
    wrapped = {"set": True, "infinite": False, "number": 1}
    jobs = [
        {
            "job_id": 77,
            "state": {"current": ["FAILED"], "reason": "NonZeroExitCode"},
            "time": {"start": 1754028000, "end": 1754033400},
            "exit_code": {"status": ["ERROR"], "return_code": wrapped, "signal": {"id": {"set": False, "number": 0}}},
            "tres": {"allocated": [{"type": "gres", "name": name, "count": 64} for name in ("gpu", "gpu:h100")]},
            "nodes": "n[1-8]",
        },
        {"job_id": 78, "state": {"current": "PENDING"}, "time": {"start": 0, "end": 0}, "nodes": "None assigned"},
    ]  # fmt: skip
    (tmp_path / "acct.json").write_text(json.dumps({"jobs": jobs, "meta": {}}))
    (tmp_path / "job.log").write_text(megatron(1))
    told = list(read_happenings([str(tmp_path / "job.log")], sacct=str(tmp_path / "acct.json")))
    assert [(one.kind, one.gpus, one.cause) for one in told] == [
        ("start", 64, "Slurm"), ("iteration", None, None), ("failure", None, "FAILED (exit code 1)")
    ]  # fmt: skip


def test_an_empty_file_of_a_scheduler_is_refused_and_a_row_cut_off_is_no_job(tmp_path: Path) -> None:
    """Nothing that sacct or kubectl prints is empty; a table may have been cut as it was copied."""
    (tmp_path / "job.log").write_text(megatron(1))
    (tmp_path / "empty").write_text("")
    log, empty = str(tmp_path / "job.log"), str(tmp_path / "empty")
    with pytest.raises(InvalidInputError, match="empty"):
        list(read_happenings([log], sacct=empty))
    with pytest.raises(InvalidInputError, match="empty"):
        list(read_happenings([log], kubernetes=empty))
    (tmp_path / "cut").write_text(SACCT.splitlines()[0] + "\n3|FAILED\n")
    told = read_happenings([log], sacct=str(tmp_path / "cut"))
    assert [one.kind for one in told] == ["iteration"]


def test_a_sacct_table_without_times_is_refused(tmp_path: Path) -> None:
    """With the command that prints them."""
    (tmp_path / "acct.txt").write_text("JobID|JobName|State|ExitCode\n1|a|FAILED|1:0\n")
    with pytest.raises(InvalidInputError, match="no column Start, End"):
        list(read_happenings([str(LOGS / "nemo.log"), str(tmp_path / "acct.txt")]))


def test_kubernetes_events_tell_of_pods(tmp_path: Path) -> None:
    """By when they were last seen; those that say only how long ago it was are refused."""

    def event(reason: str, stamp: str, name: str, message: str) -> dict[str, object]:
        return {
            "reason": reason,
            "lastTimestamp": stamp,
            "message": message,
            "involvedObject": {"kind": "Pod", "name": name},
        }

    items = [
        event("Evicted", "2025-08-01T08:00:00Z", "train-3", "The node was low on resource: memory."),
        event("Started", "2025-08-01T07:00:00Z", "train-3", "Started container"),
        event("Pulled", "2025-08-01T06:59:00Z", "train-3", "pulled"),
        {"reason": "BackOff", "lastTimestamp": None, "eventTime": "2025-08-01T08:01:00.5Z", "note": "back-off"},
    ]
    (tmp_path / "events.json").write_text(json.dumps({"apiVersion": "v1", "items": items, "kind": "List"}, indent=4))
    (tmp_path / "job.log").write_text(megatron(1))
    told = list(read_happenings([str(tmp_path / "job.log"), str(tmp_path / "events.json")]))
    assert [(one.kind, one.ranks, one.cause) for one in told] == [
        ("start", ("train-3",), "Kubernetes"),
        ("iteration", (), None),
        ("failure", ("train-3",), "Evicted: The node was low on resource: memory."),
        ("detected", (), "BackOff: back-off"),
    ]
    (tmp_path / "events.txt").write_text(
        "LAST SEEN   TYPE     REASON    OBJECT   MESSAGE\n5m   Normal   Started   pod/a   x\n"
    )
    with pytest.raises(InvalidInputError, match="how long ago"):
        list(read_happenings([str(tmp_path / "job.log"), str(tmp_path / "events.txt")]))
