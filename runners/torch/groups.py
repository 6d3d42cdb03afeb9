"""Process groups alike for all transports: sums over groups of ranks, waking who waits in them, and peers' errors."""

import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import (
    AllreduceOptions,
    BroadcastOptions,
    GatherOptions,
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)

from ...schemas.errors import RuntimeFailedError

# A peer that dies closes its connections, which shows at once; this only ends a wait for one that is silent.
SILENCE = timedelta(minutes=10)

# Nobody sends with this tag, and no message of a program has it.
POISON_TAG = 0x7FFFFFF0
# How long `Gate.wait_until_empty` waits for operations that have been woken and only need to leave.
LEAVING_S = 5.0

# What few numbers cost is messages, of which gloo's ring has some 4 n (n - 1) over n ranks; up to so many bytes they go
# through the first rank, with 2 (n - 1) messages.
SMALL_BYTES = 4096

GroupFactory = Callable[[Store, int, int], Any]  # (store, rank in the group, size) to a process group
StoreAt = Callable[[int], Store]  # the store that a rank hosts


def meeting_of(store: Store | StoreAt, group: tuple[int, ...]) -> Store:
    """Where the ranks of a group meet: in the one store of all, or, where each has one, in that of the lowest."""
    return store(group[0]) if callable(store) else store


class PeerGroups:
    """The groups of ranks that a rank sums over.

    Args:
        make_group: makes a process group.
        store: where the ranks meet (see `meeting_of`).
        rank: this process.
        groups: the groups this rank is in; nothing is made for one that it is alone in.
        device: where the process groups take tensors.
    """

    def __init__(
        self,
        make_group: GroupFactory,
        store: Store | StoreAt,
        rank: int,
        groups: Iterable[tuple[int, ...]],
        device: torch.device,
    ) -> None:
        self._rank, self._device = rank, device
        self._groups = {
            group: make_group(
                PrefixStore(f"rtk/group/{group}", meeting_of(store, group)), group.index(rank), len(group)
            )
            for group in sorted(groups)
            if len(group) > 1
        }
        # A group's thread lets go of a sum's tensor only some time after its waiter goes on. If the interpreter is
        # ending by then, it kills the thread, and C++ aborts the process. So all groups end, with their threads,
        # before the interpreter does.
        weakref.finalize(self, self._groups.clear)

    @property
    def groups(self) -> list[Any]:
        """The process groups."""
        return list(self._groups.values())

    def drop(self) -> None:
        """Let go of all process groups; there are no sums after it."""
        self._groups.clear()

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Sum in place, by way of the groups' device; nothing to do in a group of one."""
        if len(group) > 1 and self._device.type == "cpu" and tensor.nbytes <= SMALL_BYTES:
            self._sum_at_first(group, tensor)
        else:
            self.begin(group, tensor)()

    def _sum_at_first(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Sum through the first rank, in the order of ranks: 2 messages for each other one."""
        data = tensor.to(self._device)
        if group[0] == self._rank:
            parts = [torch.empty_like(data) for _ in group]
            with peer_errors():
                self._groups[group].gather([parts], [data], _patient(GatherOptions())).wait()
            torch.sum(torch.stack(parts), 0, dtype=data.dtype, out=data)
        else:
            with peer_errors():
                self._groups[group].gather([], [data], _patient(GatherOptions())).wait()
        with peer_errors():
            self._groups[group].broadcast([data], _patient(BroadcastOptions())).wait()
        if data is not tensor:
            tensor.copy_(data)

    def begin(self, group: tuple[int, ...], tensor: torch.Tensor) -> Callable[[], None]:
        """Begin a sum as of `all_reduce`; gives what waits until it is there, and raises what has kept it from that."""
        if len(group) == 1:
            return lambda: None
        data = tensor.to(self._device)
        with peer_errors():
            work = [self._groups[group].allreduce([data], _patient(AllreduceOptions()))]

        def end() -> None:
            with peer_errors():
                work.pop().wait()  # an error's traceback would keep what has a name, and it the connections
            if data is not tensor:
                tensor.copy_(data)

        return end


def _patient(options: Any) -> Any:
    """Options of a collective that waits for a silent peer, for the group's own limit is that for connecting."""
    options.timeout = SILENCE
    return options


class Gate:
    """Lets operations in, as a context, until it is shut, and knows when the last of them has left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # which is taken for every message; a condition's takes twice as long
        self._left = threading.Condition(self._lock)
        self._inside = 0
        self._shut = False

    def __enter__(self) -> None:
        with self._lock:
            if self._shut:
                raise RuntimeFailedError(
                    "the connections to the other workers have been interrupted",
                    fix="look at the error of the worker that failed; start the run again",
                )
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._shut:
                self._left.notify_all()

    def shut(self) -> None:
        """Let nobody in any more: entering raises RuntimeFailedError."""
        with self._lock:
            self._shut = True

    def wait_until_empty(self) -> None:
        """Once it is shut, wait until those inside have left, for at most LEAVING_S seconds."""
        with self._left:
            self._left.wait_for(lambda: self._inside == 0, LEAVING_S)


def poison(group: Any) -> None:
    """Wake everybody who waits in a gloo group, here and in its other ranks, and make it useless; never raises.

    Gloo's `abort` and `shutdown` do nothing, but a wait that expires closes the connections to all ranks of the group,
    in their order, each in a turn of the loop of gloo's device (`gloo.LoopTurner`), whichever thread asks. A receive
    from a rank that is gone fails without expiring, therefore every rank is tried; once all connections are closed a
    try takes microseconds.
    """
    for other in range(group.size()):
        if other != group.rank():
            with suppress(RuntimeError):
                group.recv([torch.zeros(1)], other, POISON_TAG).wait(timedelta(milliseconds=1))


def abort(group: Any) -> None:
    """Wake everybody who waits in an NCCL group, and make it useless; never raises."""
    with suppress(RuntimeError):
        group.abort()


def wake_all(wake: Callable[[Any], None], groups: Iterable[Any]) -> None:
    """Wake those who wait in several groups, at the same time, since waking takes its time in each."""
    threads = [threading.Thread(target=wake, args=(group,), name="waking", daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _PeerErrors:
    """As of `peer_errors`; not made of a generator, for it is entered for every message."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError):
            raise RuntimeFailedError(
                f"the connection to another worker broke: {str(error).splitlines()[0]}",
                fix="look at that worker's own error; start the run again",
            ) from error


_PEER_ERRORS = _PeerErrors()


def peer_errors() -> AbstractContextManager[None]:
    """Turn errors about peers, which torch raises as RuntimeError, into ours."""
    return _PEER_ERRORS


# The parts of torch.distributed that we build on, under names that the type checker knows.


# Torch's stubs leave out most of what process groups made directly, without global state, can do.
ProcessGroupGloo: Any = distributed.ProcessGroupGloo  # type: ignore[attr-defined,unused-ignore]
# A CPU build of torch has no NCCL.
ProcessGroupNCCL: Any = getattr(distributed, "ProcessGroupNCCL", None)

__all__ = ["HashStore", "PrefixStore", "ProcessGroupGloo", "ProcessGroupNCCL", "Store", "TCPStore"]
