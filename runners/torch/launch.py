"""Starting one process per worker on this machine, and ending them together."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...schemas.errors import RtkError, RuntimeFailedError
from .c10d import TCPStore

# How long a worker may take to end by itself after another one has failed, before it is killed.
GRACE_S = 3.0
LAUNCHED = "RTK_LAUNCHED"


class WorkersEndedError(RtkError):
    """A worker has said what is wrong and ended with an exit code, which becomes ours."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"a worker ended with exit code {exit_code}")
        self.exit_code = exit_code


def launch(arguments: Sequence[str], workers: int) -> None:
    """Run `rtk ARGUMENTS` in one process per worker, with torchrun's environment variables, until all end.

    Standard output and error are the caller's. The ranks meet in a store that this process hosts on loopback. When one
    fails, the others are ended; when this process dies, they notice and end too.

    Args:
        arguments: the command line behind `rtk`.
        workers: how many processes.

    Raises:
        WorkersEndedError: a worker found something wrong and said so.
        RuntimeFailedError: a worker was killed.
    """
    with _loopback_store() as port:
        processes = [_start(arguments, rank, workers, port) for rank in range(workers)]
        try:
            _wait(processes)
        finally:
            _end(processes)


def die_with_launcher() -> None:
    """In a worker that `launch` started: end this process as soon as the launcher is gone; elsewhere do nothing."""
    if LAUNCHED not in os.environ:
        return

    def watch() -> None:
        # The launcher holds the other end of our standard input and never writes to it. Python's own stream object
        # would be locked by this read when the interpreter shuts down.
        os.read(0, 1)
        os._exit(RuntimeFailedError.exit_code)

    threading.Thread(target=watch, name="launcher watch", daemon=True).start()


@contextmanager
def _loopback_store() -> Iterator[int]:
    # Torch's store listens on every interface unless it is handed a socket.
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = TCPStore(
        "127.0.0.1", port, None, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    yield port
    del store


def _start(arguments: Sequence[str], rank: int, workers: int, port: int) -> "subprocess.Popen[bytes]":
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        LAUNCHED: "1",
    }
    command = [sys.executable, "-m", "rtk.cli.main", *arguments]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)


def _wait(processes: "list[subprocess.Popen[bytes]]") -> None:
    while True:
        codes = [process.poll() for process in processes]
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None:
            _fail(processes, failed)
        if all(code == 0 for code in codes):
            return
        time.sleep(0.02)


def _fail(processes: "list[subprocess.Popen[bytes]]", first: int) -> None:
    """Let the others say what they see, and raise for the one that knows best."""
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(0.02)
    codes = {rank: process.poll() for rank, process in enumerate(processes) if process.poll()}
    killed = {rank: -code for rank, code in codes.items() if code and code < 0}
    if killed:
        rank, signal = next(iter(killed.items()))
        raise RuntimeFailedError(f"worker process {rank} was ended by signal {signal}", fix="start the run again")
    # Invalid input on one rank shows on the others as a broken connection (5): the lower code is the cause.
    raise WorkersEndedError(min(code for code in codes.values() if code) if codes else first)


def _end(processes: "list[subprocess.Popen[bytes]]") -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
