"""What a run says while it goes on: JSON lines, lines for people, or a live view; and JSON lines into a file."""

import json
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..schemas.errors import InvalidInputError
from .console import remark
from .run_story import RunFacts, RunStory, printable

if TYPE_CHECKING:
    from ..runners.resilience.announcements import Announcement
    from .live_view import LiveView


class RunReport:
    """Takes announcements one by one, and says them; use it as a context, so that the terminal is left in order.

    All calls are to come from one thread at a time. Only `metrics` forgives an error of writing; a closed standard
    output raises BrokenPipeError, as everywhere in rtk.

    Args:
        facts: what is known of the run beforehand.
        as_json: JSON lines on standard output, else text.
        quiet: no text.
        metrics: append the JSON lines to this file too, each as soon as it is said.
        live: whether text is a live view; by default on a terminal, and not in CI.
        now: seconds since 1970.

    Raises:
        InvalidInputError: the metrics file cannot be opened.
    """

    def __init__(
        self,
        facts: RunFacts,
        *,
        as_json: bool = False,
        quiet: bool = False,
        metrics: str | Path | None = None,
        live: bool | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._story = RunStory(facts)
        self._as_json, self._quiet = as_json, quiet
        self._metrics = _Metrics(Path(metrics)) if metrics is not None else None
        self._now = now
        is_live = (wants_live_view() if live is None else live) and not as_json and not quiet
        self._view = self._live_view() if is_live else None

    def report(self, what: "Announcement") -> None:
        """Say one announcement; at the run's end the live view stays, with its last state."""
        now_s = self._now()
        said, words = self._story.tell(what, now_s)
        line = ""
        if self._as_json or self._metrics is not None:
            line = json.dumps({**said, "unix_time_s": now_s}, sort_keys=True, allow_nan=False)
        if self._metrics is not None:
            self._metrics.write(line)
        if self._as_json:
            print(line, flush=True)
        elif self._view is not None and said["event"] != "end":
            self._view.update(is_urgent=said["event"] != "iteration")
        elif words is not None and not self._quiet:
            self._stop_view()
            _print_lines(words)

    def _live_view(self) -> "LiveView":
        from .live_view import LiveView

        return LiveView(self._story)

    def close(self) -> None:
        """Give the terminal back and close the file; again does nothing."""
        self._stop_view()
        if self._metrics is not None:
            self._metrics.close()

    def _stop_view(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def wants_live_view() -> bool:
    """Whether somebody is there to look at one: a terminal that can move its cursor and draw bars, and not in CI."""
    is_able = os.environ.get("TERM") != "dumb" and (sys.stdout.encoding or "").lower().startswith("utf")
    return sys.stdout.isatty() and is_able and not os.environ.get("CI")


def _print_lines(words: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    for line in words.split("\n"):
        # A terminal that cannot show a character is no reason to end a training.
        print(printable(line).encode(encoding, "replace").decode(encoding), flush=True)


class _Metrics:
    """A file that lines are appended to; once it cannot be written, it is left alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._before = "\n" if _ends_amid_a_line(path) else ""
        except OSError as error:
            raise InvalidInputError(
                f"cannot write the file: {error.strerror}", where=str(path), fix="check the path and its permissions"
            ) from error

    def write(self, line: str) -> None:
        """Append a line, without a buffer: whoever reads along has it at once, and nothing is left to fail later."""
        if self._file is None:
            return
        rest = f"{self._before}{line}\n".encode()
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
