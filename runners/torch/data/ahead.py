"""Micro-batches that are read while others are computed.

Processes are those of concurrent.futures, forked before this one has sockets, groups or a GPU: a dataset need not be
pickled. They end when they find their parent gone. What they have read comes back through its pipes: from this
program's own children, never from outside.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, cast

import torch
from torch.utils._pytree import tree_map_only

from ....schemas.errors import remark
from .rows import Microbatch, RowReader

Key = tuple[int, int]  # iteration, micro-batch
ORPHANED_S = 0.5


class ReadAhead:
    """Reads micro-batches in other processes, or in one thread, and gives them when they are needed.

    Args:
        reader: reads rows. In a thread, it is never called twice at the same time.
        rows: gives the rows of a micro-batch.
        workers: processes, which `start` forks; 0: a thread.
    """

    def __init__(self, reader: RowReader, rows: Callable[[Key], Sequence[int]], workers: int) -> None:
        self._reader, self._rows = reader, rows
        self._workers, self._processes = workers, 0
        self._reading = threading.Lock()
        self._asked: dict[Key, Future[Any]] = {}
        self._executor: Executor | None = None
        self._end: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Fork the processes."""
        if self._workers and multiprocessing.current_process().daemon:
            remark("a daemonic process may have no others that read data ahead: a thread reads them")
        elif self._workers and self._executor is None:
            (self._executor, self._end), self._processes = _processes(self._reader, self._workers), self._workers

    def want(self, keys: Sequence[Key]) -> None:
        """Begin to read micro-batches; what was asked for of iterations but these and the one before is dropped."""
        wanted = {*keys}
        oldest = min((iteration for iteration, _ in keys), default=0) - 1
        for key in [key for key in self._asked if key not in wanted and key[0] != oldest]:
            self._asked.pop(key).cancel()
        for key in keys:
            if key not in self._asked:
                self._ask(key)

    def take(self, key: Key) -> Microbatch:
        """A micro-batch, once: as it was read ahead, else read now."""
        asked = self._asked.pop(key, None)
        if asked is not None and not asked.cancel():
            try:
                found = asked.result()
                return _unpacked(found) if self._processes else cast(Microbatch, found)
            except BrokenProcessPool:
                self._give_up()
        return self._read(key)

    def close(self) -> None:
        """Read nothing any more; what is being read is not waited for."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._end()

    def _ask(self, key: Key) -> None:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "reading ahead")
        if not self._processes:
            self._asked[key] = self._executor.submit(self._read, key)
            return
        try:
            self._asked[key] = self._executor.submit(_pack, self._rows(key))
        except BrokenProcessPool:
            self._give_up()
            self._ask(key)

    def _read(self, key: Key) -> Microbatch:
        with self._reading:
            return self._reader(self._rows(key))

    def _give_up(self) -> None:
        """Go on with a thread: a process has died, for want of memory or because somebody has ended it."""
        remark("a process that reads data ahead has died: this worker reads its data itself from now on")
        self.close()
        self._processes, self._asked, self._executor = 0, {}, None


_reader: RowReader | None = None  # of a process that reads


def _processes(reader: RowReader, workers: int) -> tuple[Executor, Callable[[], object]]:
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _begin, (reader, os.getpid()))
    before = {process.pid for process in multiprocessing.active_children()}
    pool.submit(os.getpid).result()  # all of them are there now
    made = [process for process in multiprocessing.active_children() if process.pid not in before]
    # However this process ends: multiprocessing would wait for them first.
    return pool, Finalize(None, _kill, (made,), exitpriority=100)


def _kill(processes: "list[BaseProcess]") -> None:
    """They only read: nothing is lost, and nothing is waited for."""
    for process in processes:
        process.kill()


def _begin(reader: RowReader, parent: int) -> None:
    """In a process that reads, at first."""
    global _reader
    _reader = reader
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher
    torch.set_num_threads(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHANED_S)
        os._exit(0)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


class SentTensor:
    """A tensor on its way between two processes, which are to share nothing: as numpy's bytes, whatever its type."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._dtype, self._shape = tensor.dtype, tensor.shape
        self._bytes = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()

    def tensor(self) -> torch.Tensor:
        """The tensor again."""
        return torch.from_numpy(self._bytes).view(self._dtype).reshape(self._shape)


def _pack(rows: Sequence[int]) -> Any:
    assert _reader is not None
    return tree_map_only(torch.Tensor, SentTensor, _reader(rows))


def _unpacked(packed: Any) -> Microbatch:
    return cast(Microbatch, tree_map_only(SentTensor, SentTensor.tensor, packed))
