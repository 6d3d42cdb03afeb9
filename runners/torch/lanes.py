"""Two passes side by side on one device: the forward pass of a micro-batch and the full backward pass of another.

On a GPU each has a stream of its own, and the device computes whatever of both it has room for. One thread launches
all of the forward pass and then all of the backward pass, so that random numbers are drawn, and hooks run, in the order
of a worker that runs one after the other: what comes out is the same to the bit. A CPU runs one after the other. Two
threads would share torch's one generator, from which dropout draws, and gradients would depend on who is quicker.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .staging import CudaStreams, Streams


class Lanes:
    """The streams for the passes of one stage; lane 0 is the thread's own, lane 1 the one beside it.

    Torch runs a backward pass in the stream of its forward pass. So a forward pass that runs beside a backward pass
    goes into the other lane than that one's forward pass did, and whoever calls remembers which it was.

    Args:
        streams_of: makes the streams of a GPU; replaced in tests.

    Attributes:
        now: the lane in which a forward pass would run now.
    """

    def __init__(self, streams_of: Callable[[torch.device], Streams] = CudaStreams) -> None:
        self.now = 0
        self._streams_of = streams_of
        self._streams: Streams | None = None

    def run(
        self, device: torch.device, forward: Callable[[], Any], backward: Callable[[], Any], lane: int
    ) -> tuple[Any, Any]:
        """Run two passes side by side; what the thread's stream does afterwards waits for both.

        Args:
            device: where.
            forward: the one.
            backward: the other, whose memory nobody else uses meanwhile.
            lane: in which the forward pass of that micro-batch ran.

        Returns:
            What they return.
        """
        if device.type != "cuda":
            return forward(), backward()
        if self._streams is None:
            self._streams = self._streams_of(device)
            # A parameter's gradient belongs to the stream of the first forward pass; torch makes the other one wait.
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        own, beside = self._streams.current(), self._streams.side()
        beside.wait_stream(own)  # what both take is there
        with self._in(1 - lane, beside):
            made = forward()
        with self._in(lane, beside):
            gradient = backward()
        own.wait_stream(beside)
        return made, gradient

    @contextmanager
    def _in(self, lane: int, beside: Any) -> Iterator[None]:
        if lane == 0:
            yield
            return
        assert self._streams is not None
        self.now = lane
        try:
            with self._streams.on(beside):
                yield
        finally:
            self.now = 0
