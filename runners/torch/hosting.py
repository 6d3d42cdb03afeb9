"""Activations that wait for their backward pass on the host, where a plan wants more than the device holds.

Plans that adapt to slow links run more forwards ahead ("Adaptra" section 5.2 has "virtually no memory constraint" for
them, with activations in host memory). A forward whose activations have no room on the device runs under autograd's
hooks for saved tensors: what it saves is copied to the host, and back when its backward pass begins. So are the
operands of weight gradients that I puts off. Parameters stay, and so does a micro-batch's input, what flows over the
boundary of two stages, which autograd keeps whatever the hooks do.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from ...schemas.orders import Kind, Operation
from ...schemas.plan import Stage as PlannedStage
from .deferral import DeferredGradient
from .staging import HostStaging, Pending

ROUNDING = 1e-9  # sums of bytes may be float sums

Key = tuple[int, int, int | None]  # (pipeline, micro-batch, virtual stage where a worker has several)
StageAt = Callable[[Operation], PlannedStage]


def hosted(operations: Sequence[Operation], stage_at: StageAt, limit_bytes: float | None) -> frozenset[Key]:
    """The micro-batches whose activations a device has no room for.

    Memory is counted as docs/semantics.md does. Where not everything fits, room for one micro-batch, in the stage that
    takes most, is left free: that into which one is brought back for its backward pass.

    Args:
        operations: a worker's, in order.
        stage_at: the stage of the plan that an operation is of.
        limit_bytes: what the device holds; None where that is not known, and taken to be enough.

    Returns:
        Their (pipeline, micro-batch, virtual stage).
    """
    if limit_bytes is None:
        return frozenset()
    limit_bytes *= 1 + ROUNDING
    if not _without_room(operations, stage_at, limit_bytes):
        return frozenset()
    largest_bytes = max(stage_at(one).activation_bytes for one in operations)
    return _without_room(operations, stage_at, limit_bytes - largest_bytes)


def _without_room(operations: Iterable[Operation], stage_at: StageAt, limit_bytes: float) -> frozenset[Key]:
    used_bytes, found = 0.0, set[Key]()
    for one in operations:
        key, stage = one[1:], stage_at(one)
        if one.kind == "F" and used_bytes + stage.activation_bytes > limit_bytes:
            found.add(key)
        if key not in found:
            used_bytes += _more_bytes(one.kind, stage)
    return frozenset(found)


def _more_bytes(kind: Kind, stage: PlannedStage) -> float:
    """What a worker holds more of after an operation than before."""
    match kind:
        case "F":
            return stage.activation_bytes
        case "I":
            return stage.weight_stash_bytes - stage.activation_bytes
        case "W":
            return -stage.weight_stash_bytes
    return -stage.activation_bytes


class _Parked:
    """The memory of some tensors on the host; brought back once for all of them."""

    def __init__(self, memory: torch.UntypedStorage, staging: HostStaging) -> None:
        flat = torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory)
        self._staging = staging
        self._on_host = staging.to_host(flat if flat.is_cuda else flat.clone())
        self._on_device: Pending | None = None
        self.users = 0

    def bring(self) -> None:
        """Begin to copy it back."""
        if self._on_device is None:
            self._on_device = self._staging.to_device(self._on_host())

    def memory(self) -> torch.UntypedStorage:
        """It, for one of its tensors; the last one leaves no reference here."""
        self.bring()
        assert self._on_device is not None
        flat = self._on_device()
        self.users -= 1
        if self.users <= 0:
            self._on_device = None
        return flat.untyped_storage()


@dataclass(frozen=True, slots=True, eq=False)
class _Absent:
    """A tensor whose memory is parked."""

    parked: _Parked
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    strides: tuple[int, ...]

    def tensor(self) -> torch.Tensor:
        memory = self.parked.memory()
        empty = torch.empty(0, dtype=self.dtype, device=memory.device)
        return empty.set_(memory, self.offset, self.shape, self.strides)


class _Park:
    """Parks tensors; memory that several share, unchanged in between, goes once."""

    def __init__(self, staging: HostStaging, staying: frozenset[int] = frozenset()) -> None:
        self._staging, self._staying = staging, staying
        # A weak reference keeps the number of a memory that is freed meanwhile from being given to another.
        self._known: dict[tuple[int, int], tuple[StorageWeakRef, _Parked]] = {}

    @property
    def parked(self) -> list[_Parked]:
        """What is parked, in that order."""
        return [parked for _, parked in self._known.values()]

    def take(self, tensor: torch.Tensor) -> torch.Tensor | _Absent:
        """Park a tensor; itself where it stays."""
        if tensor.layout != torch.strided or number_of(tensor) in self._staying:
            return tensor
        memory = tensor.untyped_storage()
        key = number_of(tensor), tensor._version
        if key not in self._known:
            weak = StorageWeakRef(memory)  # type: ignore[no-untyped-call]
            self._known[key] = weak, _Parked(memory, self._staging)
        parked = self._known[key][1]
        parked.users += 1
        return _Absent(parked, tensor.dtype, int(tensor.storage_offset()), tensor.shape, tensor.stride())


@dataclass(frozen=True, slots=True, eq=False)
class ParkedGradient:
    """A weight gradient that is put off, its operands on the host."""

    module: nn.Linear
    inputs: torch.Tensor | _Absent | None
    gradient: torch.Tensor | _Absent

    def accumulate(self) -> None:
        """Bring the operands back, and add the gradients to those that are there."""
        inputs = None if self.inputs is None else _present(self.inputs)
        DeferredGradient(self.module, inputs, _present(self.gradient)).accumulate()


class Hosting:
    """Has some micro-batches of a stage wait on the host.

    Args:
        keys: which.
        staging: to the host and back.
        staying: tensors that are held on the device in any case: parameters and buffers.
    """

    def __init__(self, keys: Iterable[Hashable], staging: HostStaging, staying: Iterable[torch.Tensor]) -> None:
        self.keys = frozenset(keys)
        self._staging = staging
        self._staying = frozenset(map(number_of, staying))
        self._waiting: dict[Hashable, list[_Parked]] = {}

    @contextmanager
    def forward(self, key: Hashable, inputs: Iterable[torch.Tensor]) -> Iterator[None]:
        """Within the context the stage runs a forward; what autograd saves for one of `keys` goes to the host."""
        if key not in self.keys or not torch.is_grad_enabled():
            yield
            return
        park = _Park(self._staging, self._staying.union(map(number_of, inputs)))
        unpack: Callable[[torch.Tensor | _Absent], torch.Tensor] = _present
        with saved_tensors_hooks(park.take, unpack):
            yield
        self._waiting[key] = park.parked

    def begin_backward(self, key: Hashable) -> None:
        """Begin to bring back what a micro-batch saved, the last first, for that is needed first."""
        for parked in reversed(self._waiting.pop(key, [])):
            parked.bring()

    def put_off(self, key: Hashable, deferred: list[DeferredGradient]) -> Sequence[DeferredGradient | ParkedGradient]:
        """What a W is to do; its operands on the host if the micro-batch is one of `keys`."""
        if key not in self.keys:
            return deferred
        park = _Park(self._staging)
        return [
            ParkedGradient(one.module, None if one.inputs is None else park.take(one.inputs), park.take(one.gradient))
            for one in deferred
        ]

    def forget(self, key: Hashable) -> None:
        """Drop what waits of a micro-batch."""
        self._waiting.pop(key, None)


def number_of(tensor: torch.Tensor) -> int:
    """What tells a tensor's memory from all other memory, while it lives."""
    return int(tensor.untyped_storage()._cdata)


def _present(tensor: torch.Tensor | _Absent) -> torch.Tensor:
    return tensor.tensor() if isinstance(tensor, _Absent) else tensor
