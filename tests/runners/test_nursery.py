"""Processes that are forked from one that has loaded what they need (rtk/runners/nursery.py)."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TypeVar

import pytest

from rtk.runners.nursery import UNKNOWN, Forked, Nursery
from rtk.schemas.errors import RuntimeFailedError

PROGRAM = """
import os, signal, sys, time
LOADED_BY = os.getpid()
def main(arguments):
    what, *more = arguments
    if what == "tell":
        found = [os.getpid() == LOADED_BY, sys.argv, os.environ.get("COLOUR"), sys.stdin.read(), sorted(os.environ)]
        print(found, sorted(int(one) for one in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{one}")))
    elif what == "end":
        sys.exit(int(more[0]))
    elif what == "raise":
        raise KeyError("lost")
    elif what == "sleep":
        print("here", flush=True)
        while True:
            time.sleep(60)
if __name__ == "__main__":
    main(sys.argv[1:])
"""
THREADED = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
SECONDS = 20.0
Seen = TypeVar("Seen")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs are."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "threaded.py").write_text(THREADED)
    (folder / "broken.py").write_text("raise OSError('no such library')")
    return folder


@pytest.fixture(scope="module")
def nursery(folder: Path) -> Iterator[Nursery]:
    """One that knows the program."""
    with closing(Nursery(["program", "broken", "there_is_none"], {"PYTHONPATH": str(folder)})) as nursery:
        yield nursery


def _start(nursery: Nursery, *arguments: str, out: IO[str] | None = None, **environment: str) -> Forked:
    variables = {"PATH": os.environ["PATH"], **environment}
    with Path(os.devnull).open() as nothing:
        files = {0: nothing.fileno()} | ({} if out is None else {1: out.fileno(), 2: out.fileno()})
        return nursery.fork("program:main", arguments, variables, files)


def _ended(process: Forked) -> int:
    return _seen(lambda: None if (code := process.poll()) is None else (code,))[0]


def _seen(look: Callable[[], Seen | None]) -> Seen:
    deadline_s = time.monotonic() + SECONDS
    while (seen := look()) is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return seen


def _said(process: Forked, out: IO[str]) -> str:
    _ended(process)
    out.seek(0)
    return out.read()


def test_a_forked_process_is_as_if_started_anew(nursery: Nursery) -> None:
    """It has its arguments, its environment and no other, its standard streams and no other descriptor; the module was
    loaded before."""
    with TemporaryFile("w+") as out:
        said = _said(_start(nursery, "tell", "more", out=out, COLOUR="blue"), out)
    assert said == "[False, ['program', 'tell', 'more'], 'blue', '', ['COLOUR', 'PATH']] [0, 1, 2]\n"


def test_descriptors_come_under_the_numbers_asked_for(nursery: Nursery) -> None:
    """Also where numbers change places."""
    with TemporaryFile("w+") as first, TemporaryFile("w+") as second, Path(os.devnull).open() as nothing:
        above = max(first.fileno(), second.fileno()) + 1
        files = {0: nothing.fileno(), 1: first.fileno(), 2: 2, first.fileno(): 1, above: second.fileno()}
        process = nursery.fork("program:main", ["tell"], {}, files)
        assert f"[0, 1, 2, {first.fileno()}, {above}]" in _said(process, first)


@pytest.mark.parametrize(("arguments", "code"), [("end 0", 0), ("end 7", 7), ("raise", 1)])
def test_a_forked_process_ends_with_its_own_code(nursery: Nursery, arguments: str, code: int) -> None:
    """The launcher hears it, though it is not the parent; what is said of an error is said as always."""
    with TemporaryFile("w+") as out:
        process = _start(nursery, *arguments.split(), out=out)
        assert ("KeyError: 'lost'" in _said(process, out)) == (arguments == "raise")
        assert process.poll() == code


def test_signals_reach_the_process(nursery: Nursery) -> None:
    """Ctrl-C is for the launcher alone; what kills it is its exit code, with a minus; the dead are sent nothing."""
    with TemporaryFile("w+") as out:
        process = _start(nursery, "sleep", out=out)
        _seen(lambda: os.fstat(out.fileno()).st_size or None)
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert _ended(process) == -signal.SIGTERM
        process.send_signal(signal.SIGKILL)


def test_a_forked_process_is_shown_as_what_it_is(nursery: Nursery) -> None:
    """`ps` and `pkill -f` find it by its own command line, also where its environment is another one."""
    pytest.importorskip("setproctitle")
    with TemporaryFile("w+") as out:
        process = _start(nursery, "sleep", "--worker", "1/1", out=out, COLOUR="blue")
        _seen(lambda: os.fstat(out.fileno()).st_size or None)
        shown = Path(f"/proc/{process.pid}/cmdline").read_text()
        process.send_signal(signal.SIGKILL)
        _ended(process)
    assert "program sleep --worker 1/1" in shown


def test_many_live_and_die_side_by_side(nursery: Nursery) -> None:
    """Each is asked about by itself, in any order."""
    processes = [_start(nursery, "end", str(code)) for code in range(12)]
    assert [_ended(process) for process in reversed(processes)] == [*reversed(range(12))]


def test_whoever_was_forked_outlives_the_nursery(folder: Path) -> None:
    """The nursery is killed: its processes go on, and the end of each is seen, if not its code; nobody is forked."""
    with closing(Nursery([], {"PYTHONPATH": str(folder)})) as nursery, TemporaryFile("w+") as out:
        process = _start(nursery, "sleep", out=out)
        _seen(lambda: os.fstat(out.fileno()).st_size or None)
        nursery._process.kill()
        nursery._process.wait()
        with pytest.raises(RuntimeFailedError, match="the process that starts the workers has ended"):
            _start(nursery, "end", "0")
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        assert _ended(process) == UNKNOWN


def test_where_threads_would_be_lost_the_program_is_started_anew(folder: Path) -> None:
    """A module that is loaded starts a thread: no process is forked without it, but executes the program itself."""
    with closing(Nursery(["program", "threaded"], {"PYTHONPATH": str(folder)})) as nursery, TemporaryFile("w+") as out:
        said = _said(_start(nursery, "tell", out=out, PYTHONPATH=str(folder)), out)
    assert said.startswith("[True, ")  # by itself
    assert "'tell'], None, ''" in said


def test_a_nursery_ends_with_its_launcher(folder: Path) -> None:
    """Also when that is killed; what the launcher's reader reads ends with the launcher."""
    script = "import os, signal\nfrom rtk.runners.nursery import Nursery\nn = Nursery([])\nprint(n._process.pid)"
    for end in ("", "\nimport sys; sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)"):
        done = subprocess.run([sys.executable, "-c", script + end], capture_output=True, text=True, timeout=SECONDS)
        pid = int(done.stdout)
        _seen(partial(_has_ended, pid))


def _has_ended(pid: int) -> bool | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z" or None
    except FileNotFoundError:
        return True
