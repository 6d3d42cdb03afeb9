"""Tensors between a device and the host: what is launched where, and what waits for what."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from rtk.runners.torch.staging import HostStaging

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


class FakeStreams:
    """A GPU's streams on a CPU, where all is done at once; says what was asked of them. Integers lie on the host.

    Args:
        said: where it says so.
    """

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def current(self) -> Any:
        return FakeStream("current", self._said)

    def side(self) -> Any:
        return FakeStream("side", self._said)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        self._said.append(f"on {stream.name}")
        yield
        self._said.append(f"off {stream.name}")

    def event(self) -> Any:
        return FakeEvent(self._said)

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.dtype != torch.int64

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        self._said.append(f"keep for {stream.name}")

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        self._said.append("pinned")
        return torch.empty(like.shape, dtype=like.dtype)

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        self._said.append("device memory")
        return torch.empty(like.shape, dtype=like.dtype)


class FakeStream:
    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self._said = name, said

    def wait_stream(self, other: "FakeStream") -> None:
        self._said.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: "FakeEvent") -> None:
        self._said.append(f"{self.name} waits for the event")


class FakeEvent:
    def __init__(self, said: list[str]) -> None:
        self._said = said

    def record(self, stream: FakeStream) -> None:
        self._said.append(f"record on {stream.name}")

    def synchronize(self) -> None:
        self._said.append("synchronize")


def test_a_cpu_hands_tensors_through() -> None:
    """Without a GPU nothing is copied, to the host or back, and messages are announced as they are."""
    tensor, staging = torch.ones(3, requires_grad=True), HostStaging.of(torch.device("cpu"))
    host = staging.to_host(tensor)()
    assert host.data_ptr() == tensor.data_ptr()
    assert not host.requires_grad
    assert staging.to_device(host)() is host
    assert staging.host_like(tensor) is tensor


def test_who_computes_waits_for_no_copy_to_the_host() -> None:
    """The copy runs beside, after all that was launched before it; only who sends waits, for its event."""
    said: list[str] = []
    pending = HostStaging(FakeStreams(said), FakeStreams([])).to_host(torch.ones(3))
    launched = ["side waits for current", "pinned", "on side", "record on side", "off side", "keep for side"]
    assert said == launched
    assert torch.equal(pending(), torch.ones(3))
    assert said == [*launched, "synchronize"]


def test_a_kernel_waits_for_the_copy_that_it_needs() -> None:
    """The copy to the device is launched by who received; who computes lets its stream, not its thread, wait for it."""
    said: list[str] = []
    pending = HostStaging(FakeStreams([]), FakeStreams(said)).to_device(torch.ones(3))
    launched = ["on side", "device memory", "record on side", "off side"]
    assert said == launched
    assert torch.equal(pending(), torch.ones(3))
    assert said == [*launched, "current waits for the event", "keep for current"]


def test_messages_arrive_in_pinned_memory() -> None:
    """Those of one shape and type are announced with one and the same tensor."""
    said: list[str] = []
    staging = HostStaging(FakeStreams(said), FakeStreams([]))
    first, second = staging.host_like(torch.ones(2, 3)), staging.host_like(torch.zeros(2, 3))
    assert first is second
    assert staging.host_like(torch.ones(2, 3, dtype=torch.float64)) is not first
    assert said == ["pinned", "pinned"]


def test_what_lies_on_the_host_is_handed_through() -> None:
    """An optimizer's count of steps is on the host though its parameters are on a GPU: no stream has to do with it."""
    said: list[str] = []
    staging, count = HostStaging(FakeStreams(said), FakeStreams([])), torch.ones((), dtype=torch.int64)
    assert staging.to_host(count)().data_ptr() == count.data_ptr()
    assert staging.host_like(count) is count
    assert said == []


@needs_gpu
def test_counts_of_steps_stay_on_the_host() -> None:
    """On a GPU, too, where AdamW keeps them on the host."""
    parameter = torch.nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.AdamW([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    staging = HostStaging.of(torch.device("cuda"))
    pending = [staging.to_host(value) for value in optimizer.state[parameter].values()]
    assert [one().device.type for one in pending] == ["cpu"] * 3


@needs_gpu
def test_tensors_travel_to_the_host_and_back() -> None:
    """On a GPU a tensor is the same after both copies, whatever is done to the device's memory meanwhile."""
    device = torch.device("cuda")
    staging = HostStaging.of(device)
    tensor = torch.randn(1 << 20, device=device)
    wanted = tensor.cpu()
    pending = staging.to_host(tensor * 1)
    torch.randn(1 << 20, device=device)
    host = pending()
    assert host.is_pinned()
    assert torch.equal(host, wanted)
    assert torch.equal(staging.to_device(host)().cpu(), wanted)
