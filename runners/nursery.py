"""Worker processes that know torch already: forked, on request, from one process that has loaded it once.

To load torch takes longer than everything else that a worker does before its first iteration, and each would load it
for itself. So a small process loads it while its launcher reads plan, model and data; it forks whoever is asked for, as
often as asked, and tells how each has ended. It never computes, starts no thread and touches no GPU: what is forked
from it is as if it were started anew. Where that does not hold, it is started anew.
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..schemas.errors import RuntimeFailedError

LENGTH = struct.Struct("!Q")  # of a request, which follows it
MOST_FILES = 32
UNKNOWN = -int(signal.SIGKILL)  # how a process has ended of which nobody can tell


# The launcher's side.


class Forked:
    """A process that a nursery has forked: `poll` and `send_signal` are as those of `subprocess.Popen`.

    Args:
        nursery: that has forked it.
        pid: of the process.
    """

    def __init__(self, nursery: "Nursery", pid: int) -> None:
        self._nursery, self.pid = nursery, pid

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._nursery.exit_code(self.pid)

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Nursery:
    """A process that loads modules, from now on, and forks others that know them.

    Args:
        preload: the modules; what cannot be loaded is left to whoever needs it.
        environment: that they are loaded in, beside ours.
    """

    def __init__(self, preload: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._lock = threading.Lock()
        self._heard = b""
        self._is_gone = False
        self._ended: dict[int, int] = {}
        self._connection, theirs = socket.socketpair()
        # It computes nothing, so it needs no threads to compute with.
        variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **(environment or {})}
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), *preload]
        nowhere = subprocess.DEVNULL  # whoever reads our output is not to wait for its end
        # Ctrl-C is for the launcher alone, also while the interpreter is only being started.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process = subprocess.Popen(
                command, env=variables, stdin=nowhere, stdout=nowhere, stderr=nowhere, pass_fds=[theirs.fileno()]
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def fork(
        self, target: str, arguments: Sequence[str], environment: Mapping[str, str], files: Mapping[int, int]
    ) -> Forked:
        """Have a process forked that calls a function with one list, and ends as that ends.

        Args:
            target: `module:function`; `python -m MODULE ARGUMENTS` does the same.
            arguments: what the function is given, and what stands behind the program's name.
            environment: all of it.
            files: its descriptors, each with ours that it is; it has no others.

        Raises:
            RuntimeFailedError: the nursery has died.
        """
        asked = {"target": target, "arguments": [*arguments], "environment": {**environment}, "files": [*files]}
        text = json.dumps(asked).encode()
        try:
            with self._lock:
                socket.send_fds(self._connection, [LENGTH.pack(len(text))], [*files.values()])
                self._connection.sendall(text)
                while (pid := self._hear(wait=True)) is None:
                    pass
        except OSError:
            raise RuntimeFailedError(
                "the process that starts the workers has ended", fix="see whether the machine has run out of memory"
            ) from None
        return Forked(self, pid)

    def exit_code(self, pid: int) -> int | None:
        """How a process has ended; None while it runs."""
        with self._lock, suppress(OSError):
            while not self._is_gone:
                self._hear(wait=False)
        if pid not in self._ended and self._is_gone and not _is_there(pid):
            self._ended[pid] = UNKNOWN
        return self._ended.get(pid)

    def _hear(self, wait: bool) -> int | None:
        """Take what has been said, and give the pid where somebody was forked; BlockingIOError: nothing was said."""
        while b"\n" not in self._heard:
            more = self._connection.recv(4096, 0 if wait else socket.MSG_DONTWAIT)
            if not more:
                self._is_gone = True
                raise BrokenPipeError
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        pid, *code = json.loads(line)
        self._ended.update((pid, one) for one in code)
        return None if code else pid

    def close(self) -> None:
        """It forks nobody any more; those whom it has forked go on, and nobody hears of their ends."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# The nursery's side.


@dataclass(frozen=True)
class Birth:
    """What a forked process is to be: as in `Nursery.fork`, with the descriptors that have been received for it."""

    target: str
    arguments: list[str]
    environment: dict[str, str]
    files: dict[int, int]


def main(number: str, *preload: str) -> None:
    """Load modules and fork whoever is asked for, until the launcher is gone; or be one that was forked.

    Args:
        number: the descriptor of the connection to the launcher.
        preload: the modules.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher alone: those who are forked keep this
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    for module in preload:
        with suppress(Exception):  # it may be broken in any way
            importlib.import_module(module)
    gc.freeze()  # a collection would write to every object, and so to memory that all share
    tasks = Path("/proc/self/task")  # those of libraries are there, too
    threads = len([*tasks.iterdir()]) if tasks.exists() else threading.active_count()
    with socket.socket(fileno=int(number)) as connection:
        birth = _serve(connection)
    if birth is not None:
        _be(birth, is_alone=threads == 1)


def _serve(connection: socket.socket) -> Birth | None:
    """Fork whoever is asked for.

    Returns:
        In each process that was forked what that is to be; None in this one, once nobody can ask any more.
    """
    hears, wakes = os.pipe()
    for end in (hears, wakes):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(hears, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if hears in ready:
                os.read(hears, 4096)
                _tell_of_ends(connection)
            if connection in ready:
                birth = _asked(connection)
                if birth is None:
                    return None
                pid = os.fork()
                if pid == 0:
                    break
                _tell(connection, pid)
                for file in birth.files.values():
                    os.close(file)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.close(hears)
    os.close(wakes)
    return birth


def _asked(connection: socket.socket) -> Birth | None:
    """The next request; None where there will be none."""
    length, files, _, _ = socket.recv_fds(connection, LENGTH.size, MOST_FILES)
    text = b""
    while length and len(text) < LENGTH.unpack(length)[0]:
        more = connection.recv(LENGTH.unpack(length)[0] - len(text))
        if not more:
            return None
        text += more
    if not length:
        return None
    asked = json.loads(text)
    return Birth(**{**asked, "files": dict(zip(asked["files"], files, strict=True))})


def _tell_of_ends(connection: socket.socket) -> None:
    """Say how those have ended who have."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _tell(connection, ended[0], os.waitstatus_to_exitcode(ended[1]))


def _tell(connection: socket.socket, *words: int) -> None:
    with suppress(OSError):  # the launcher is gone, which the next look at it will show
        connection.sendall(json.dumps(words).encode() + b"\n")


# The side of those who are forked.


def _be(birth: Birth, is_alone: bool) -> None:
    """Be what was asked for.

    Where the nursery had threads, which a fork loses, or has used a GPU, which a fork cannot, the program is started
    anew.
    """
    module, _, function = birth.target.partition(":")
    _take(birth.files)
    set_title = _title_setter()
    os.environ.clear()
    os.environ.update(birth.environment)
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if not is_alone or (cuda is not None and cuda._is_in_bad_fork()):
        os.execv(sys.executable, [sys.executable, "-m", module, *birth.arguments])
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = [module, *birth.arguments]
    set_title(" ".join([sys.executable, "-m", *sys.argv]))
    loaded: Any = importlib.import_module(module)
    getattr(loaded, function)(birth.arguments)


def _title_setter() -> Callable[[str], None]:
    """Sets what `ps` shows of this process; it finds its place beside the environment as the process began with it."""
    try:
        from setproctitle import getproctitle, setproctitle
    except ImportError:  # `ps` shows how it was forked
        return lambda title: None
    getproctitle()
    return setproctitle


def _take(files: Mapping[int, int]) -> None:
    """Have descriptors under the numbers that they are to have."""
    import fcntl

    least = max(files, default=0) + 1
    moved = {number: fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, least) for number, file in files.items()}
    for file in files.values():
        os.close(file)
    for number, file in moved.items():
        os.dup2(file, number)
        os.close(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
