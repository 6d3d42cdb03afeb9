"""Running `rtk` as a user does: in this process, which is quick, or in one of its own, which is the real thing."""

import io
import os
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from rtk.cli.console import SETTINGS
from rtk.cli.main import main

RTK = [sys.executable, "-m", "rtk.cli.main"]

Done = subprocess.CompletedProcess[str]


def rtk(
    *arguments: str, stdin: str | None = None, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Done:
    """Run a command in this process and give its exit code and output, a traceback included, as a process would.

    Not for commands that start processes or set up this one for good: those want `rtk_process`.
    """
    out, err = _Stream(), _Stream()
    with redirect_stdout(out), redirect_stderr(err), _surroundings(stdin, cwd, environment):
        code = _exit_code(list(arguments))
    return subprocess.CompletedProcess(arguments, code, out.text(), err.text())


def rtk_process(
    *arguments: str, stdin: str | None = None, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Done:
    """Run a command in a process of its own and give its exit code and output."""
    return subprocess.run(
        [*RTK, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**_clean_environment(), **(environment or {})},
        timeout=170,
        check=False,
    )


class _Stream(io.TextIOWrapper):
    """A standard stream that is no terminal, and keeps what is written to it, as text or as bytes."""

    def __init__(self, data: str = "") -> None:
        super().__init__(io.BytesIO(data.encode()), encoding="utf-8", write_through=True)

    def text(self) -> str:
        """All of it."""
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


@contextmanager
def _surroundings(stdin: str | None, cwd: Path | None, environment: Mapping[str, str] | None) -> Iterator[None]:
    """Input, folder, environment, settings and warnings of a process; threads that it leaves are waited for."""
    before = set(threading.enumerate())
    variables = mock.patch.dict(os.environ, {**_clean_environment(), **(environment or {})}, clear=True)
    settings = mock.patch.multiple(SETTINGS, quiet=False, debug=False, trains=False)
    with mock.patch.object(sys, "stdin", _Stream(stdin or "")), variables, settings, warnings.catch_warnings():
        with chdir(cwd or Path.cwd()):
            yield
        for thread in set(threading.enumerate()) - before:
            thread.join(20)


def _exit_code(arguments: list[str]) -> int:
    try:
        main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
