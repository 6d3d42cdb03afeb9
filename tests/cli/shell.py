"""Running `rtk` as a user does: in this process, which is quick; in one of its own that is forked from one that knows
torch, which is quick as well; or in one that is started anew, which is the real thing."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from unittest import mock

from rtk.cli.console import SETTINGS
from rtk.cli.main import main

from ..warm import Warm

RTK = [sys.executable, "-m", "rtk.cli.main"]

Done = subprocess.CompletedProcess[str]


def rtk(
    *arguments: str, stdin: str | None = None, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Done:
    """Run a command in this process and give its exit code and output, a traceback included, as a process would.

    Not for commands that start processes or set up this one for good: those want `rtk_forked`.
    """
    out, err = _Stream(), _Stream()
    with redirect_stdout(out), redirect_stderr(err), _surroundings(stdin, cwd, environment):
        code = _exit_code(list(arguments))
    return subprocess.CompletedProcess(arguments, code, out.text(), err.text())


def rtk_process(
    *arguments: str, stdin: str | None = None, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Done:
    """Run a command in a process of its own that is started anew, and give its exit code and output."""
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


def rtk_forked(
    *arguments: str, stdin: str | None = None, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Done:
    """Run a command in a process of its own that knows torch already, and give its exit code and output."""
    with TemporaryFile("w+") as given, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        given.write(stdin or "")
        given.seek(0)
        variables = {**_clean_environment(), **(environment or {})}
        code = Warm("rtk.cli.main", arguments, cwd or Path.cwd(), variables, (given, out, err)).wait(170)
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


ENDINGS = """
import os, sys
from pathlib import Path
{load}
codes = []
for number, script in enumerate(sys.argv[2:]):
    if (pid := os.fork()) == 0:
        with Path(f"{{number}}.err").open("wb") as errors:
            os.dup2(int(sys.argv[1]), 1)
            os.dup2(errors.fileno(), 2)
        exec(script)
        break
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
else:
    print(*codes)
"""


def endings(
    load: str, scripts: Sequence[str], output: int, folder: Path, environment: Mapping[str, str] | None = None
) -> list[tuple[int, str]]:
    """Run scripts one after the other, each in a process of its own, and give its exit code and errors.

    One interpreter is started anew, with `load`, and forked for each of them; what becomes of a script's process at its
    end is up to the interpreter, as in one that was started for it alone.

    Args:
        load: what all scripts need, executed once.
        scripts: in Python.
        output: the descriptor that is their standard output.
        folder: where they run, and where their errors are kept.
        environment: beside ours.
    """
    done = subprocess.run(
        [sys.executable, "-c", ENDINGS.format(load=load), str(output), *scripts],
        cwd=folder,
        env={**_clean_environment(), **(environment or {})},
        pass_fds=[output],
        capture_output=True,
        text=True,
        timeout=170,
        check=True,
    )
    codes = [int(code) for code in done.stdout.split()]
    assert len(codes) == len(scripts), done.stderr
    return [(code, (folder / f"{number}.err").read_text()) for number, code in enumerate(codes)]


class Command:
    """A program that runs beside the test in a process that knows torch already, with its output in files."""

    def __init__(
        self,
        folder: Path,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cores: Collection[int] = (),
    ) -> None:
        self._said, self._errors = folder / f"{name}.out", folder / f"{name}.err"
        variables = {**_clean_environment(), **environment}
        with Path(os.devnull).open() as nothing, self._said.open("w") as out, self._errors.open("w") as err:
            self.process = Warm(module, arguments, folder, variables, (nothing, out, err), cores)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def errors(self) -> str:
        """What it has said on standard error."""
        return self._errors.read_text()

    @property
    def output(self) -> str:
        """What it has said on standard output."""
        return self._said.read_text()

    def events(self) -> list[dict[str, Any]]:
        """What it has said on standard output, as JSON lines; the last one may be under way."""
        return [json.loads(line) for line in self.output.splitlines(True) if line.endswith("\n")]

    def named(self, event: str) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [one for one in self.events() if one["event"] == event]

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def ended(self, timeout_s: float = 60.0) -> int:
        """Wait for its end, and give its exit code."""
        return self.process.wait(timeout_s)


class Shell:
    """Starts commands in a folder, each in a session of its own; at its end those that are left are killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._commands: list[Command] = []

    def __enter__(self) -> "Shell":
        return self

    def __exit__(self, *_: object) -> None:
        for command in self._commands:
            with suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
            command.process.wait()

    def rtk(self, name: str, *arguments: str, **environment: str) -> Command:
        """Start `rtk`."""
        return self.program(name, "rtk.cli.main", *arguments, **environment)

    def rtk_on(self, cores: Collection[int], name: str, *arguments: str) -> Command:
        """Start `rtk` on these cores only."""
        return self._begun(Command(self.folder, name, "rtk.cli.main", arguments, {}, cores))

    def torchrun(self, name: str, *arguments: str, **environment: str) -> Command:
        """Start an agent of torchrun."""
        return self.program(name, "torch.distributed.run", *arguments, **environment)

    def program(self, name: str, module: str, *arguments: str, **environment: str) -> Command:
        """Start any module, or a script."""
        return self._begun(Command(self.folder, name, module, arguments, environment))

    def _begun(self, command: Command) -> Command:
        self._commands.append(command)
        return command


def wait_for(look: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """What is seen once it is true."""
    deadline_s = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)
    return seen


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def workers_of(pid: int) -> list[int]:
    """The workers of an `rtk run`, which its nursery has forked, in the order of their start."""
    return sorted(worker for nursery in children(pid) for worker in children(nursery))


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
