"""Latency and bandwidth between two processes of this machine, over gloo as the runner uses it."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from statistics import median
from typing import Any

import torch
from torch import distributed

from ..schemas.errors import RuntimeFailedError
from ..schemas.profile import Connection

HOST = "127.0.0.1"
TIMEOUT = timedelta(seconds=60)
SMALL_BYTES, LARGE_BYTES = 4, 4 * 2**20
ROUNDS = {SMALL_BYTES: 200, LARGE_BYTES: 20}


def measure_loopback(clock: Callable[[], float] = time.perf_counter) -> Connection:
    """Measure the path between this process and one started for it, which echoes messages.

    Latency is half the median round trip of a 4-byte message; bandwidth is that of a 4 MiB message less the latency.

    Args:
        clock: seconds; replaced in tests.

    Returns:
        The path, to stand as a profile's `network.intra_node`.

    Raises:
        RuntimeFailedError: the two processes do not reach each other within a minute.
    """
    with _failures():
        store = _store(0, is_master=True)
        with _echo(store.port):
            group = _group(store, rank=0)
            small_s, large_s = (_one_way_s(group, size, clock) for size in (SMALL_BYTES, LARGE_BYTES))
    transfer_s = max(large_s - small_s, 1e-9)  # a disturbed measurement may not make it negative
    return Connection(latency_s=small_s, bandwidth_bytes_per_s=LARGE_BYTES / transfer_s)


@contextmanager
def _echo(port: int) -> Iterator[None]:
    command = [sys.executable, "-m", __name__, str(port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise RuntimeFailedError(
            f"the loopback could not be measured: {str(error).splitlines()[0]}",
            where=f"two processes over {HOST}",
            fix="check that this machine lets processes connect to each other over its loopback device",
        ) from error


def _one_way_s(group: Any, size: int, clock: Callable[[], float]) -> float:
    buffer = torch.zeros(size, dtype=torch.uint8)
    times_s = []
    for _ in range(ROUNDS[size]):
        start_s = clock()
        group.send([buffer], 1, 0).wait()
        group.recv([buffer], 1, 0).wait()
        times_s.append((clock() - start_s) / 2)
    return median(times_s)


def _store(port: int, is_master: bool) -> Any:
    tcp: Any = distributed.TCPStore  # type: ignore[attr-defined]  # torch's stubs do not export it
    return tcp(HOST, port, is_master=is_master, wait_for_workers=False, timeout=TIMEOUT)


def _group(store: Any, rank: int) -> Any:
    gloo: Any = distributed.ProcessGroupGloo
    options = gloo._Options()
    options._threads = 1
    options._timeout = TIMEOUT
    options._devices = [gloo.create_device(hostname=HOST)]
    return gloo(store, rank, 2, options)


def _serve(port: int) -> None:
    """The other process: send back what comes, then end."""
    group = _group(_store(port, is_master=False), rank=1)
    for size, rounds in ROUNDS.items():
        buffer = torch.zeros(size, dtype=torch.uint8)
        for _ in range(rounds):
            group.recv([buffer], 0, 0).wait()
            group.send([buffer], 0, 0).wait()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
