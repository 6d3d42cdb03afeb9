"""Between a device and the host memory that messages leave from and arrive in.

On a GPU, messages that gloo carries are copied by streams of their own, from and to pinned memory, and events say when
a copy is done: whoever computes launches kernels and never waits for a copy, and a kernel waits for one only where it
needs what is copied (Adaptra section 5.2, figures 11 and 12; its signals in shared memory are events here, since our
delegates are threads). Torch's allocator of pinned memory is the pool of buffers: it gives none again before the copies
that use it are done. On a CPU tensors are handed through as they are.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

Pending = Callable[[], torch.Tensor]  # gives a tensor, once it is there


class Streams(Protocol):
    """What is needed of a GPU's streams; the seam at which tests put their own."""

    def current(self) -> Any:
        """The stream of the calling thread."""
        ...

    def side(self) -> Any:
        """A stream beside it for the calling thread's copies."""
        ...

    def on(self, stream: Any) -> AbstractContextManager[object]:
        """Launch on this stream."""
        ...

    def event(self) -> Any:
        """An event to record, wait for and synchronize."""
        ...

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on the GPU, unlike the count of an optimizer's steps."""
        ...

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """Give a tensor's memory to nobody else before what this stream has to do with it is done."""
        ...

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        """Pinned host memory of this shape and type."""
        ...

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """Memory of the device of this shape and type, of the current stream's."""
        ...


class CudaStreams:
    """The streams of a GPU: one for copies to the host, one for those from it.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def current(self) -> Any:
        """The stream of the calling thread."""
        return torch.cuda.current_stream(self._device)

    def side(self) -> Any:
        """The stream for copies."""
        return self._side

    def on(self, stream: Any) -> AbstractContextManager[object]:
        """Launch on this stream."""
        return torch.cuda.stream(stream)

    def event(self) -> Any:
        """An event without a time."""
        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on the GPU."""
        return tensor.is_cuda

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """Tell the allocator that this stream uses a tensor as well."""
        tensor.record_stream(stream)

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        """Pinned host memory, from torch's pool."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """Memory of the GPU."""
        return torch.empty(like.shape, dtype=like.dtype, device=self._device)


class HostStaging:
    """Takes tensors from a device to host memory and back.

    Args:
        out: the streams of the device for copies to the host; None where it is the host.
        back: those for copies from it.
    """

    def __init__(self, out: Streams | None = None, back: Streams | None = None) -> None:
        self._out, self._back = out, back
        self._likes: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}

    @classmethod
    def of(cls, device: torch.device) -> "HostStaging":
        """The staging of a device."""
        return cls(CudaStreams(device), CudaStreams(device)) if device.type == "cuda" else cls()

    def host_like(self, like: torch.Tensor) -> torch.Tensor:
        """A tensor of the same shape and type in such host memory as messages are to arrive in; the very one, where it
        lies on the host."""
        if self._out is None or not self._out.holds(like):
            return like
        key = like.shape, like.dtype
        if key not in self._likes:
            self._likes[key] = self._out.pinned(like)
        return self._likes[key]

    def to_host(self, tensor: torch.Tensor) -> Pending:
        """Begin to copy a tensor, once all launched before is done; another thread may wait for it.

        Returns:
            What waits for the copy and gives it; the tensor itself where it lies on the host.
        """
        streams, data = self._out, tensor.detach()
        if streams is None or not streams.holds(data):
            return lambda: data
        data = data.contiguous()
        side, event = streams.side(), streams.event()
        side.wait_stream(streams.current())
        buffer = streams.pinned(data)
        with streams.on(side):
            buffer.copy_(data, non_blocking=True)
            event.record(side)
        streams.keep(data, side)

        def copied() -> torch.Tensor:
            event.synchronize()
            return buffer

        return copied

    def to_device(self, host: torch.Tensor) -> Pending:
        """Begin to copy a tensor from pinned host memory to the device.

        Returns:
            What lets the current stream wait for the copy, but not its thread, and gives it; the tensor itself on a
            CPU.
        """
        streams = self._back
        if streams is None:
            return lambda: host
        side, event = streams.side(), streams.event()
        with streams.on(side):
            data = streams.empty(host)
            data.copy_(host, non_blocking=True)
            event.record(side)

        def there() -> torch.Tensor:
            current = streams.current()
            current.wait_event(event)
            streams.keep(data, current)
            return data

        return there
