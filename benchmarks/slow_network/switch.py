"""The switch of a SlowNetwork: a program of its own, which carries packets between TUN devices and lets them wait.

It makes one network namespace per node, with one TUN device per network in it, and keeps the devices' other ends. The
namespaces have no names: they are gone as soon as this program and all that run in them are.

Each line on standard input is a command, `[name, arguments…]` as JSON, answered by a line on standard output; the first
one is `open`. The end of standard input, which comes when the launcher dies, ends all processes in the namespaces, then
this one. It uses the standard library only, so it can be started as a
file, in some 20 ms.
"""

import ctypes
import fcntl
import heapq
import itertools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MTU_BYTES = 65000
BURST = 64  # packets taken from one device before the others have their turn
IPV4, TCP = 4, 6
SYN, RST, ACK = 0x02, 0x04, 0x10

Way = tuple[bytes, bytes]  # the addresses of source and destination


@dataclass
class Lane:
    """The way from one address to another.

    Attributes:
        delay_s: how long a packet is on its way.
        bytes_per_s: how many bytes can set out in a second; 0: any number.
        is_cut: whether packets are lost.
        free_s: when the next packet can set out, on the clock of `time.monotonic`.
        last_s: when the last one arrives; none overtakes it, though the delay may have become shorter.
    """

    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    is_cut: bool = False
    free_s: float = 0.0
    last_s: float = 0.0

    def arrival_s(self, now_s: float, size_bytes: int) -> float:
        """When a packet that comes now arrives; it takes its place on the way."""
        if self.bytes_per_s:
            self.free_s = max(now_s, self.free_s) + size_bytes / self.bytes_per_s
            now_s = self.free_s
        self.last_s = max(now_s + self.delay_s, self.last_s)
        return self.last_s


class Connections:
    """The TCP connections that the switch has seen, and those of them that it breaks.

    A reset is believed only with the very number that its receiver expects next (RFC 5961), which is what it has
    acknowledged last. Whatever else comes over a broken connection is therefore answered with another reset, and so is
    the receiver's challenge to a number that was not up to date.
    """

    def __init__(self) -> None:
        self._acknowledged: dict[bytes, bytes] = {}  # by addresses and ports: what the sender of these expects
        self._broken: set[bytes] = set()

    def sees(self, packet: bytes) -> bytes | None:
        """Note a packet; the reset to be sent back to its sender if its connection is broken, else None."""
        if packet[9] != TCP:
            return None
        start = (packet[0] & 15) * 4
        flow, flags = packet[12:20] + packet[start : start + 4], packet[start + 13]
        if flags & SYN:
            self._broken.discard(flow)
        if flags & ACK:
            self._acknowledged[flow] = packet[start + 8 : start + 12]
        if flags & RST:
            self._acknowledged.pop(flow, None)
        return self._reset(flow) if flow in self._broken else None

    def break_between(self, ways: Sequence[Way]) -> list[bytes]:
        """Break the connections that go these ways; gives the resets to be sent."""
        wanted = {source + destination for source, destination in ways}
        found = [flow for flow in self._acknowledged if flow[:8] in wanted]
        self._broken.update(found)
        return [self._reset(flow) for flow in found]

    def _reset(self, flow: bytes) -> bytes:
        """A packet that tells the sender of a flow that the other side has reset the connection."""
        source, destination, ports = flow[4:8], flow[:4], flow[10:12] + flow[8:10]
        number = self._acknowledged.get(flow, bytes(4))
        segment = ports + number + bytes(4) + bytes([5 << 4, RST]) + bytes(6)
        pseudo = source + destination + struct.pack("!BBH", 0, TCP, len(segment))
        segment = segment[:16] + _checksum(pseudo + segment) + segment[18:]
        header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0, 64, TCP, 0) + source + destination
        return header[:10] + _checksum(header) + header[12:] + segment


class Switch:
    """Carries packets between devices.

    Args:
        networks: the first three numbers of each network's addresses; node n is number n + 1 in each.
        nodes: how many.

    Raises:
        OSError: this machine does not allow namespaces or TUN devices.
    """

    def __init__(self, networks: Sequence[str], nodes: int) -> None:
        self._addresses = [[socket.inet_aton(f"{net}.{node + 1}") for net in networks] for node in range(nodes)]
        self._device: dict[bytes, int] = {}
        self._lanes: dict[Way, Lane] = {}
        self._connections = Connections()
        self._due: list[tuple[float, int, bytes]] = []
        self._number = itertools.count()
        self.namespaces = [self._open_node(node, networks) for node in range(nodes)]
        for net, _ in enumerate(networks):
            for one, other in itertools.permutations(range(nodes), 2):
                self._lanes[self._addresses[one][net], self._addresses[other][net]] = Lane()

    # Commands

    def delay(self, source: int, to: int, network: int | None, seconds: float) -> None:
        """Let packets that set out from now on be so long on their way."""
        for lane in self._lanes_of(source, to, network):
            lane.delay_s = seconds

    def rate(self, source: int, to: int, network: int | None, bytes_per_s: float) -> None:
        """Let so many bytes a second set out; 0: any number."""
        for lane in self._lanes_of(source, to, network):
            lane.bytes_per_s = bytes_per_s

    def cut(self, source: int, to: int, network: int | None, is_cut: bool) -> None:
        """Lose packets, or lose them no longer."""
        for lane in self._lanes_of(source, to, network):
            lane.is_cut = is_cut

    def reset(self, source: int, to: int, network: int | None) -> None:
        """Break the TCP connections of two nodes, at both ends and at once."""
        for packet in self._connections.break_between(
            self._ways(source, to, network) + self._ways(to, source, network)
        ):
            self._deliver(packet)

    # Packets

    def run(self, commands: int) -> None:
        """Carry packets and obey commands until there are no more of them."""
        inbox = [*self._device.values(), commands]
        lines = b""
        while True:
            wait_s = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            ready, _, _ = select.select(inbox, [], [], wait_s)
            for device in ready:
                if device != commands:
                    self._take(device)
            self._deliver_due()
            if commands in ready:
                data = os.read(commands, 65536)
                if not data:
                    return
                *complete, lines = (lines + data).split(b"\n")
                for line in complete:
                    name, *arguments = json.loads(line)
                    getattr(self, name)(*arguments)
                    _say({"done": name})

    def _take(self, device: int) -> None:
        with suppress(BlockingIOError):
            for _ in range(BURST):
                self._switch(os.read(device, MTU_BYTES + 100))

    def _switch(self, packet: bytes) -> None:
        """Send a packet on its way; what is not of our addresses (IPv6 looking for routers) goes nowhere."""
        lane = self._lanes.get((packet[12:16], packet[16:20])) if packet[0] >> 4 == IPV4 else None
        if lane is None:
            return
        answer = self._connections.sees(packet)
        if answer is not None:
            self._deliver(answer)
        elif not lane.is_cut:
            now_s = time.monotonic()
            arrival_s = lane.arrival_s(now_s, len(packet))
            if arrival_s <= now_s:
                self._deliver(packet)
            else:
                heapq.heappush(self._due, (arrival_s, next(self._number), packet))

    def _deliver_due(self) -> None:
        now_s = time.monotonic()
        while self._due and self._due[0][0] <= now_s:
            self._deliver(heapq.heappop(self._due)[2])

    def _deliver(self, packet: bytes) -> None:
        with suppress(OSError):  # full, as a wire may be
            os.write(self._device[packet[16:20]], packet)

    # Small things

    def _ways(self, source: int, to: int, network: int | None) -> list[Way]:
        ways = list(zip(self._addresses[source], self._addresses[to], strict=True))
        return ways if network is None else [ways[network]]

    def _lanes_of(self, source: int, to: int, network: int | None) -> list[Lane]:
        return [self._lanes[way] for way in self._ways(source, to, network)]

    def _open_node(self, node: int, networks: Sequence[str]) -> int:
        """Make a namespace with a device for each network; gives its descriptor."""
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, f"a network namespace: {os.strerror(number)}")
        orders = ["link set lo up"]
        for place, net in enumerate(networks):
            self._device[self._addresses[node][place]] = _open_tun(f"net{place}")
            orders += [f"addr add {net}.{node + 1}/24 dev net{place}", f"link set net{place} mtu {MTU_BYTES} up"]
        subprocess.run(["ip", "-batch", "-"], input="\n".join(orders).encode(), check=True, stdout=subprocess.DEVNULL)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _open_tun(name: str) -> int:
    """Make a TUN device in the present namespace; packets to it are read from the descriptor, and the other way."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


def _checksum(data: bytes) -> bytes:
    """The internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    """Open the network that the first line describes, and run it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started this, and ends it by closing our input
    _, networks, nodes, launcher = json.loads(_first_line())
    try:
        switch = Switch(networks, nodes)
    except (OSError, subprocess.CalledProcessError) as error:
        _say({"error": str(error)})
        return
    _say({"namespaces": switch.namespaces})
    switch.run(sys.stdin.fileno())
    for pid in _inhabitants(switch.namespaces) - {launcher, os.getpid()}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _inhabitants(namespaces: Sequence[int]) -> set[int]:
    """The processes in some network namespaces."""
    wanted, found = {os.fstat(namespace).st_ino for namespace in namespaces}, set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if (process / "ns" / "net").stat().st_ino in wanted:
                found.add(int(process.name))
    return found


def _first_line() -> bytes:
    """The first line, and nothing after it."""
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(sys.stdin.fileno(), 1) or b"\n"
    return line


if __name__ == "__main__":
    main()
