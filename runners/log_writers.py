"""Where the events of a run are kept beside what is printed: JSON lines, TensorBoard, Prometheus, OpenTelemetry.

A log that cannot be written any more is left alone after one remark: it is no reason to end a training.
"""

import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from ..schemas.errors import InvalidInputError, remark, require_package
from ..schemas.text import joined
from .otlp_log import OtlpLog
from .prometheus_log import PrometheusLog

OPTION = "--log-to"
KINDS = {
    "tensorboard": "tensorboard:FOLDER",
    "prometheus": "prometheus:HOST:PORT",
    "otlp": "otlp:URL",
    "jsonl": "jsonl:FILE",
}
FLUSH_S = 10  # who looks at TensorBoard sees what is not older, and that much is lost with this process

# The numbers of events that TensorBoard draws, and what they are called there; one chart each, under three headings.
SCALARS: dict[str, dict[str, str]] = {
    "iteration": {
        "loss": "training/loss",
        "grad_norm": "training/grad_norm",
        "learning_rate": "training/learning_rate",
        "count": "training/count",
        "iteration_time_s": "speed/iteration_time_s",
        "tokens_per_s": "speed/tokens_per_s",
        "live_workers": "speed/live_workers",
    },
    "evaluation": {"loss": "evaluation/loss"},
}
HAPPENINGS = "events"  # the heading of what has happened, in words


class LogWriter(Protocol):
    """Something that keeps events."""

    def write(self, said: Mapping[str, Any], words: str | None) -> None:
        """Keep one event.

        Args:
            said: its fields, valid as JSON, with `event` and `unix_time_s`.
            words: for people, where there are any.
        """
        ...

    def close(self) -> None:
        """Write what is left, and close; again does nothing."""
        ...


def log_writers(values: Iterable[str] | None) -> list[LogWriter]:
    """What keeps events, by texts such as `tensorboard:logs` and `jsonl:events.jsonl`.

    Raises:
        InvalidInputError: there is no such kind, it cannot be written, or its package is not installed.
    """
    opened: list[LogWriter] = []
    try:
        for kind, target in map(_parsed, values or ()):
            opened.append(_opened(kind, target))
    except InvalidInputError:
        for one in opened:
            one.close()
        raise
    return opened


def _opened(kind: str, target: str) -> LogWriter:
    match kind:
        case "tensorboard":
            return TensorBoardLog(Path(target))
        case "prometheus":
            return PrometheusLog(target, OPTION)
        case "otlp":
            return OtlpLog(target, OPTION)
        case _:
            return JsonLinesLog(Path(target))


def json_files(values: Iterable[str] | None) -> Iterator[str]:
    """The files of JSON lines among them; raises as `log_writers`, where there is no such kind."""
    return (path for kind, path in map(_parsed, values or ()) if kind == "jsonl")


def _parsed(value: str) -> tuple[str, str]:
    kind, _, path = value.partition(":")
    if kind not in KINDS or not path:
        raise InvalidInputError(
            f"{value!r} names no log",
            where=OPTION,
            fix=f"write {joined(KINDS.values(), 'or')}",
        )
    return kind, path


def json_line(said: Mapping[str, Any]) -> str:
    """An event as a line of JSON, without its end."""
    return json.dumps(said, sort_keys=True, allow_nan=False)


class JsonLinesLog:
    """A file that events are appended to, a line each, as soon as they are said.

    Args:
        path: of the file; made where there is none.

    Raises:
        InvalidInputError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._before = "\n" if _ends_amid_a_line(path) else ""
        except OSError as error:
            raise InvalidInputError(
                f"cannot write the file: {error.strerror}", where=str(path), fix="check the path and its permissions"
            ) from error

    def write(self, said: Mapping[str, Any], words: str | None = None) -> None:
        """Append a line, without a buffer: whoever reads along has it at once, and nothing is left to fail later."""
        if self._file is None:
            return
        rest = f"{self._before}{json_line(said)}\n".encode()
        self._before = ""
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            remark(f"{self._path}: {error.strerror}; no more metrics are written, the training goes on")
            self.close()

    def close(self) -> None:
        """Close the file; again does nothing."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _ends_amid_a_line(path: Path) -> bool:
    """Whether the one who wrote the file before died in the middle of a line."""
    if not stat.S_ISREG(path.stat().st_mode) or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


class TensorBoardLog:
    """A folder for TensorBoard: the numbers of iterations and evaluations as charts, what happens otherwise as text.

    Each run adds a file; where it goes on from a checkpoint, TensorBoard hides what an earlier one did beyond that.

    Args:
        folder: made where there is none.

    Raises:
        InvalidInputError: tensorboardX is not installed, or the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        require_package("tensorboardX", OPTION)
        self._folder = folder
        self._writer: Any = None
        self._is_open = True
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInputError(
                f"the folder cannot be made: {error.strerror}", where=f"{OPTION} {folder}", fix="name another folder"
            ) from None
        if not os.access(folder, os.W_OK):
            raise InvalidInputError(
                "nothing can be written into the folder", where=f"{OPTION} {folder}", fix="check its permissions"
            )

    def write(self, said: Mapping[str, Any], words: str | None) -> None:
        """Hand an event to the thread that writes."""
        if not self._is_open:
            return
        event, step, at_s = said["event"], said.get("iteration"), said["unix_time_s"]
        try:
            if self._writer is None:
                self._writer = self._opened(step if event == "start" and step else None)
            for name, tag in SCALARS.get(event, {}).items():
                if said.get(name) is not None:
                    self._writer.add_scalar(tag, said[name], step, walltime=at_s)
            if words and event not in SCALARS:
                self._writer.add_text(HAPPENINGS, words.replace("\n", "  \n"), step, walltime=at_s)
        except Exception as error:  # whatever its thread has met, a full disk say, comes up here
            self._is_open = False
            remark(f"{self._folder}: {error}; nothing more is written for TensorBoard, the training goes on")

    def _opened(self, purge_step: int | None) -> Any:
        from tensorboardX import SummaryWriter

        # Names of files count seconds, in which two short runs may begin.
        suffix = f".{time.time_ns()}"
        return SummaryWriter(str(self._folder), purge_step=purge_step, flush_secs=FLUSH_S, filename_suffix=suffix)

    def close(self) -> None:
        """Wait for the thread, and close; again does nothing."""
        writer, self._writer, self._is_open = self._writer, None, False
        if writer is not None:
            try:
                writer.close()
            except Exception as error:  # as in `write`
                remark(f"{self._folder}: {error}; the end of the run is missing for TensorBoard")
