"""Ports that nobody else is given meanwhile."""

import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port of the loopback interface that nobody listens on.

    It is none of those that the kernel hands out, which other tests on this machine get all the time.
    """
    first = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32_768
    while True:
        port = random.SystemRandom().randrange(10_000, max(first, 20_000))
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
