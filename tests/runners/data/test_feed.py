"""Micro-batches of rows: which rows, read when and by whom, and data that are refused."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.runners.program import lower
from rtk.runners.resilience.membership import stranger_to
from rtk.runners.resilience.protocol import DataPosition, Hello
from rtk.runners.torch.data.feed import RowFeed
from rtk.runners.torch.data.tokens import Tokens
from rtk.runners.torch.rank import reads_of
from rtk.runners.training import JobConfig
from rtk.running import controller_of
from rtk.schemas.checkpoint import Checkpoint, CheckpointFile, file_name
from rtk.schemas.documents import digest, write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.profile import Layer, LayerCost, Profile


class Numbers:
    """Rows that say their numbers; some may be unlike others."""

    def __init__(self, rows: int, unlike: dict[int, Any] | None = None) -> None:
        self.rows, self.unlike = rows, unlike or {}

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> Any:
        if row >= self.rows:
            raise IndexError("there is none")
        found = self.unlike.get(row, (torch.tensor([row, row]), torch.tensor(row)))
        if isinstance(found, Exception):
            raise found
        return found() if callable(found) else found


def rows_in(feed: RowFeed, iterations: Sequence[int]) -> list[int]:
    """The rows of whole iterations, in order."""
    return [int(row) for n in iterations for m in range(feed.microbatches) for row in feed.batch(n)[m][1]]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 4), st.integers(0, 99), st.booleans())
def test_every_row_comes_once_a_pass(rows: int, size: int, microbatches: int, seed: int, shuffle: bool) -> None:
    """Iterations cut one endless order into batches; each pass over the rows has every row once, in another order."""
    if rows < size * microbatches:
        with pytest.raises(InvalidInputError, match="fewer than one batch"):
            RowFeed(Numbers(rows), size, microbatches)
        return
    feed = RowFeed(Numbers(rows), size, microbatches, seed=seed, shuffle=shuffle)
    found = rows_in(feed, range(2 * rows // (size * microbatches) + 2))
    first, second = found[:rows], found[rows : 2 * rows]
    assert sorted(first) == sorted(second) == [*range(rows)]
    assert (first != [*range(rows)]) >= (shuffle and rows > 20)
    assert (first != second) >= (shuffle and rows > 20)
    again = RowFeed(Numbers(rows), size, microbatches, seed=seed, shuffle=shuffle)
    assert again.batch(3)[microbatches - 1][1].tolist() == feed.batch(3)[microbatches - 1][1].tolist()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_a_batch_of_another_size_goes_on_where_the_last_one_ended(stop: int, b: int, m: int, c: int, n: int) -> None:
    """No row is left out or comes twice where a job is resumed with other micro-batches."""
    before, after = RowFeed(Numbers(50), b, m), RowFeed(Numbers(50), c, n)
    after.go_on(stop, before.row_of(stop))
    found = rows_in(before, range(stop)) + rows_in(after, range(stop, stop + 60 // (c * n)))
    whole = rows_in(RowFeed(Numbers(50), 1, 1), range(len(found)))
    assert found == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_read_ahead_is_what_is_read_now(workers: int) -> None:
    """Read ahead, again after an interruption, or by somebody for whom it was not read: the same rows."""
    wanted = RowFeed(Numbers(40), 2, 3)
    feed = RowFeed(Numbers(40), 2, 3, loader_workers=workers)
    feed.start()
    try:
        for iteration in (0, 1, 1, 2, 7):
            for one in (iteration, iteration + 1):
                feed.prefetch(one, [2, 0])
            for number in (2, 0, 1):
                inputs, targets = feed.batch(iteration)[number]
                assert targets.tolist() == wanted.batch(iteration)[number][1].tolist()
                assert inputs.dtype == torch.int64
        assert len(feed._ahead._asked) == 2  # of iteration 8
    finally:
        feed.close()


def test_data_that_have_shrunk_since_a_checkpoint_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Fewer rows than were saved are refused; more are told, for their order is another."""
    caplog.set_level("INFO", logger="rtk")
    feed = RowFeed(Numbers(50), 2, 3)
    feed.go_on(4, 24, 50)
    assert (feed.row_of(4), feed.row_of(5), caplog.text) == (24, 30, "")
    with pytest.raises(InvalidInputError, match="have 50 rows, and had 51 when the checkpoint was saved"):
        feed.go_on(4, 24, 51)
    feed.go_on(4, 24, 49)
    assert "their order is another" in caplog.text


def test_a_resumed_job_knows_where_its_data_go_on(tmp_path: Path) -> None:
    """A checkpoint's row reaches workers with their welcome, whatever the new plan's batch is; old ones say none."""
    layer = Layer((LayerCost(1.0, 1.0, 1.0),))
    plan = plan_pipeline(Profile((layer,) * 2), Shape(1, 1, 3), "1f1b")
    folder = tmp_path / "step-00000004"
    folder.mkdir()
    part = CheckpointFile(file_name((0, 2)), (0, 2), "0" * 64, 8)
    old = Checkpoint(4, 2, "0" * 64, 0, 8, (part,), {"dataset": {"rows": 50}})
    for saved, wanted in ((replace(old, row=24), DataPosition(4, 24, 50)), (old, None)):
        write_document(str(folder / "checkpoint.json"), saved)
        controller = controller_of(plan, JobConfig(iterations=9, resume=str(tmp_path)))
        hello = Hello(proof="", worker="0/0", store="s", plan=digest(plan), job={})
        assert controller._welcome(hello).data == wanted


def test_a_worker_with_other_data_is_told_in_what_they_differ() -> None:
    """By names within names."""
    ours = {"lr": 1, "dataset": {"rows": 9, "t.bin": {"dtype": "uint16", "tokens": 10}}}
    theirs = {"lr": 1, "dataset": {"rows": 8, "t.bin": {"dtype": "uint16", "tokens": 9}, "u.bin": {}}}
    hello = Hello(proof="", worker="0/0", store="s", plan="p", job=theirs)
    told = stranger_to(hello, "p", ours, ["0/0"], (0, 0))
    assert told == "its settings are not this job's: dataset/rows, dataset/t.bin/tokens, dataset/u.bin"


def test_a_rank_reads_ahead_what_it_will_ask_for() -> None:
    """First stages need inputs, last ones targets, and those between nothing, unless layers take inputs by name; in the
    order of the rank's F."""
    layer = Layer((LayerCost(1.0, 1.0, 1.0),))
    program = lower(plan_pipeline(Profile((layer,) * 6), Shape(3, 2, 3), "zero-bubble"))
    read = {(worker.name, named): reads_of(program, number, named)
            for number, worker in enumerate(program.workers) for named in (False, True)}  # fmt: skip
    assert [read[f"1/{stage}", False] for stage in range(3)] == [(3, 4, 5), (), (3, 4, 5)]
    assert {read[f"0/{stage}", True] for stage in range(3)} == {(0, 1, 2)}


def test_reading_waits_for_no_reader_that_was_killed(caplog: pytest.LogCaptureFixture) -> None:
    """A process that reads ahead is killed: its worker reads the same rows itself."""
    caplog.set_level("INFO", logger="rtk")
    feed = RowFeed(Numbers(40), 2, 3, loader_workers=2)
    feed.start()
    pool: Any = feed._ahead._executor
    for process in [*pool._processes.values()]:
        process.kill()
    while not pool._broken:
        time.sleep(0.01)
    feed.prefetch(0, range(3))
    assert rows_in(feed, [0]) == rows_in(RowFeed(Numbers(40), 2, 3), [0])
    assert "reads its data itself" in caplog.text
    feed.close()


def test_a_reader_ends_with_its_parent() -> None:
    """SIGKILL of a worker leaves no process behind that reads its data."""
    script = (
        "import sys, time; from rtk.runners.torch.data.feed import RowFeed\n"
        "class Rows(list): pass\n"
        "import torch\n"
        "feed = RowFeed(Rows([(torch.zeros(1), torch.zeros(1))] * 9), 1, 1, loader_workers=2); feed.start()\n"
        "print(*feed._ahead._executor._processes, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    children = [int(one) for one in parent.stdout.readline().split()]
    assert len(children) == 2
    assert all(map(_runs, children))
    parent.kill()
    parent.wait()
    deadline_s = time.monotonic() + 10
    while any(map(_runs, children)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not any(map(_runs, children))
    parent.stdout.close()


def _runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


class InTurn(IterableDataset[int]):
    """Rows without numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


REFUSED: list[tuple[Any, dict[str, Any], str, str]] = [
    (InTurn(), {}, "only be read in turn", "save_to_disk"),
    (iter([1]), {}, "only be read in turn", "save_to_disk"),
    (Numbers(0), {}, "the data are empty", "a row at least"),
    (Numbers(5), {}, "5 rows, fewer than one batch: 3 micro-batches of 2", "more data"),
    (Numbers(9, {0: lambda: (torch.rand(1), torch.rand(1))}), {}, "row 0 of the data is another one", "generator"),
    (Numbers(9, {8: lambda: (np.random.rand(1), 0)}), {}, "row 8 of the data is another one", "generator"),
    (Numbers(9, {0: ValueError("torn")}), {}, "row 0 of the data cannot be read: ValueError: torn", "mend"),
    (Numbers(9, {0: torch.tensor(3)}), {}, r"is \[1\], not \(inputs, targets\)", "be (inputs, targets)"),
    (Numbers(9, {0: {"ids": torch.tensor([3])}}), {}, r"is {ids: \[1, 1\]}, not", "be (inputs, targets)"),
    (Numbers(9), {"collate": lambda rows: 1 / 0}, "rows 0 do not make a micro-batch: ZeroDivisionError", "collate="),
    (
        Numbers(9, {0: (torch.tensor([3, 700]), torch.tensor(0))}),
        {"vocabulary": 99},
        "token 700 is not of",
        "tokenizer",
    ),
    (Numbers(9, {0: (torch.tensor([3, -1]), torch.tensor(0))}), {"vocabulary": 99}, "token -1 is not of", "tokenizer"),
]


@pytest.mark.parametrize(("data", "options", "said", "fix"), REFUSED)
def test_data_that_cannot_be_trained_on_are_refused_at_once(data: Any, options: Any, said: str, fix: str) -> None:
    """Before training starts, with what is wrong, where, and what helps."""
    with pytest.raises(InvalidInputError, match=said) as raised:
        RowFeed(data, 2, 3, **options)
    assert raised.value.where
    assert raised.value.fix is not None
    assert fix in raised.value.fix
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (OSError("the disk is gone"), "row 4 of the data cannot be read: OSError: the disk is gone"),
        ((torch.zeros(3), torch.tensor(4)), r"rows \d and \d do not fit together"),
        ((torch.tensor([5, 99]), torch.tensor(4)), "token 99 is not of the model's vocabulary of 50"),
    ],
)
def test_a_row_that_is_wrong_is_named_when_it_is_read(wrong: Any, said: str, workers: int) -> None:
    """Also where another process has read it."""
    feed = RowFeed(Numbers(9, {4: wrong}), 3, 3, vocabulary=50, loader_workers=workers)
    feed.start()
    feed.prefetch(0, range(3))
    with pytest.raises(InvalidInputError, match=said) as raised:
        rows_in(feed, [0])
    assert raised.value.where and raised.value.fix
    feed.close()


def test_a_dataset_that_shrinks_is_told() -> None:
    """A row that was there when training began, and is there no more."""
    data = Numbers(9)
    feed = RowFeed(data, 3, 3)
    data.rows = 5
    with pytest.raises(InvalidInputError, match=r"row [5-8] of the data cannot be read: IndexError"):
        rows_in(feed, [0])


def test_a_wrong_token_is_named_by_its_file(tmp_path: Path) -> None:
    """The place of a token in its file, also where it is only a target."""
    for place, said in ((25, 25), (40, 40)):  # the last token of all is never an input
        tokens = np.zeros(41, dtype="u2")
        tokens[place] = 300
        tokens.tofile(tmp_path / "t.bin")
        with pytest.raises(InvalidInputError, match="token 300 is not of the model's vocabulary of 256") as raised:
            feed = RowFeed(Tokens(tmp_path / "t.bin", "uint16", sequence_length=8), 1, 5, vocabulary=256)
            _ = [feed.batch(0)[number] for number in range(5)]
        assert raised.value.where == f"{tmp_path / 't.bin'}, token {said}"


def test_collate_makes_what_rows_are_not() -> None:
    """Rows of other lengths are padded, and keyword arguments go along."""

    def pad(rows: list[Any]) -> Any:
        longest = max(len(row) for row in rows)
        inputs = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        return inputs, inputs, {"mask": inputs != 0}

    feed = RowFeed([[1] * (row % 3 + 1) for row in range(9)], 3, 3, collate=pad, loader_workers=1)
    feed.start()
    feed.prefetch(0, [0, 1])
    for number in range(3):
        inputs, _, kwargs = feed.batch(0)[number]
        assert kwargs["mask"].sum() == inputs.sum()
    feed.close()


def test_a_fingerprint_tells_data_apart() -> None:
    """Numbers of rows, and the first and last of them; equal data have equal ones."""
    first = RowFeed(Numbers(9), 1, 1).fingerprint()
    assert first == RowFeed(Numbers(9), 3, 2).fingerprint()
    for other in (Numbers(10), Numbers(9, {0: (torch.tensor([0, 1]), torch.tensor(0))}), Numbers(9, {8: (1, 2)})):
        assert RowFeed(other, 1, 1).fingerprint() != first
