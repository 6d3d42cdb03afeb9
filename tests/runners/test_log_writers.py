"""Logs of a run: files of JSON lines, and TensorBoard's."""

import json
from pathlib import Path
from typing import Any

import pytest

from rtk.runners import log_writers as logs
from rtk.runners.log_writers import JsonLinesLog, TensorBoardLog, json_files
from rtk.schemas.errors import InvalidInputError

Told = tuple[dict[str, Any], str | None]

START: Told = {"event": "start", "iteration": 0, "unix_time_s": 100.0}, "2 workers"
FAILURE: Told = {"event": "failure", "worker": "1/1", "iteration": 2, "unix_time_s": 103.0}, "worker 1/1 failed"
EVALUATION: Told = {"event": "evaluation", "iteration": 2, "loss": 4.5, "count": 8.0, "unix_time_s": 103.5}, "loss 4.5"


def iteration(number: int, **more: Any) -> Told:
    told = {"loss": 5.0 - number, "grad_norm": 1.5, "iteration_time_s": 0.1, "tokens_per_s": 100.0, "live_workers": 4}
    return {"event": "iteration", "iteration": number, "unix_time_s": 101.0 + number, **told, **more}, "iteration"


def read(folder: Path) -> Any:
    """What TensorBoard itself finds in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    found.Reload()
    return found


def write(folder: Path, *told: Told) -> None:
    log = TensorBoardLog(folder)
    for said, words in told:
        log.write(said, words)
    log.close()
    log.close()


def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
    """Numbers of iterations and evaluations are charts, what is not known is left out, and failures are text."""
    folder = tmp_path / "a" / "logs"
    write(folder, START, iteration(0), iteration(1, grad_norm=None, loss=None), FAILURE, EVALUATION)
    found = read(folder)
    assert [(one.wall_time, one.step, one.value) for one in found.Scalars("training/loss")] == [(101.0, 0, 5.0)]
    assert [one.step for one in found.Scalars("training/grad_norm")] == [0]
    assert [one.value for one in found.Scalars("speed/live_workers")] == [4, 4]
    assert [(one.step, one.value) for one in found.Scalars("evaluation/loss")] == [(2, 4.5)]
    texts = found.Tensors("events/text_summary")
    assert [(one.step, one.tensor_proto.string_val[0]) for one in texts] == [
        (0, b"2 workers"),
        (2, b"worker 1/1 failed"),
    ]


def test_a_run_that_goes_on_hides_what_was_beyond_its_checkpoint(tmp_path: Path) -> None:
    """Of the iterations that an earlier run did after its last checkpoint, TensorBoard shows those of the later run."""
    write(tmp_path, START, *(iteration(number) for number in range(5)))
    write(tmp_path, ({**START[0], "iteration": 3}, "2 workers"), iteration(3, loss=9.0))
    assert [one.value for one in read(tmp_path).Scalars("training/loss")] == [5.0, 4.0, 3.0, 9.0]


def test_a_log_that_breaks_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its thread has met is one remark; nothing is raised, then or later."""
    remarks: list[str] = []
    monkeypatch.setattr(logs, "remark", remarks.append)
    log = TensorBoardLog(tmp_path)
    log.write(*START)

    def fail(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(log._writer, "add_scalar", fail)
    for number in range(3):
        log.write(*iteration(number))
    log.close()
    (told,) = remarks
    assert told.endswith("No space left on device; nothing more is written for TensorBoard, the training goes on")


@pytest.mark.parametrize("value", ["tensorboard", "jsonl:", "wandb:x", "", ":x", "events.jsonl"])
def test_what_names_no_log_is_refused(value: str) -> None:
    """The error says which kinds there are."""
    with pytest.raises(InvalidInputError, match="names no log") as caught:
        logs.log_writers([value])
    assert caught.value.fix == "write tensorboard:FOLDER, prometheus:HOST:PORT, otlp:URL or jsonl:FILE"


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """Such as one in the place of a file, before anything is run."""
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match="cannot be made") as caught:
        TensorBoardLog(tmp_path / "file")
    assert caught.value.where == f"--log-to {tmp_path}/file"


def test_without_its_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is imported for it, and no folder is made."""
    monkeypatch.setattr("rtk.schemas.errors.find_spec", lambda name: None)
    with pytest.raises(InvalidInputError, match="tensorboardX is not installed") as caught:
        logs.log_writers([f"tensorboard:{tmp_path}/new"])
    assert caught.value.fix == "pip install 'rtk-train[tensorboard]'"
    assert not (tmp_path / "new").exists()


def test_several_logs_are_of_their_kinds(tmp_path: Path) -> None:
    """In their order; the files among them are those that are guarded against being overwritten."""
    values = [f"jsonl:{tmp_path}/a.jsonl", f"tensorboard:{tmp_path}/b", f"jsonl:{tmp_path}/c:d.jsonl"]
    made = logs.log_writers(values)
    assert [type(one) for one in made] == [JsonLinesLog, TensorBoardLog, JsonLinesLog]
    made[2].write({"event": "start", "b": None, "a": 1}, "words")
    for one in made:
        one.close()
    assert json.loads((tmp_path / "c:d.jsonl").read_text()) == {"event": "start", "b": None, "a": 1}
    assert list(json_files(values)) == [f"{tmp_path}/a.jsonl", f"{tmp_path}/c:d.jsonl"]
    assert (logs.log_writers(None), list(json_files(None))) == ([], [])
