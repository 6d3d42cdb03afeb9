"""Real sockets over links that are as slow, or as broken, as a test or a benchmark wants them.

Every node is a network namespace of this machine; between them is a switch in user space (switch.py), since not every
kernel has `tc netem`. Needs root, TUN devices, and the commands `ip` and `nsenter`.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...schemas.errors import RuntimeFailedError
from . import switch

ENDING_S = 5.0


class SlowNetwork:
    """Nodes that reach each other over links whose delays can be set while they are used, as a context.

    A link has two directions, which are set each on its own; where there are several networks, for one of them or, with
    None, for all. When the context is left, or this process is killed, all that runs in the nodes is killed as well,
    and nothing is left behind.

    Args:
        nodes: names, of any kind.
        networks: the first three numbers of the nodes' addresses, for each interface that every node has.

    Raises:
        RuntimeFailedError: this machine does not allow it.
    """

    def __init__(self, nodes: Sequence[str], networks: Sequence[str] = ("10.88.0",)) -> None:
        self._number = {name: number for number, name in enumerate(nodes)}
        self._networks = tuple(networks)
        self._processes: list[subprocess.Popen[Any]] = []
        self._namespaces: list[str] = []
        self._switch: subprocess.Popen[str] | None = None

    def __enter__(self) -> "SlowNetwork":
        command = [sys.executable, "-I", "-S", str(Path(switch.__file__))]
        try:
            self._switch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            answer = self._tell("open", self._networks, len(self._number), os.getpid())
            self._namespaces = [f"/proc/{self._switch.pid}/fd/{number}" for number in answer["namespaces"]]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self, node: str, network: int = 0) -> str:
        """A node's address in a network."""
        return f"{self._networks[network]}.{self._number[node] + 1}"

    def delay(self, source: str, to: str, seconds: float, network: int | None = None) -> None:
        """Let packets from one node to another be so long on their way, from now on; none overtakes another."""
        self._tell("delay", self._number[source], self._number[to], network, seconds)

    def rate(self, source: str, to: str, bytes_per_s: float, network: int | None = None) -> None:
        """Let so many bytes a second set out from one node to another; 0: any number."""
        self._tell("rate", self._number[source], self._number[to], network, bytes_per_s)

    def cut(self, source: str, to: str, is_cut: bool = True, network: int | None = None) -> None:
        """Lose all packets from one node to another, or, with `is_cut` False, lose them no longer."""
        self._tell("cut", self._number[source], self._number[to], network, is_cut)

    def reset(self, one: str, other: str, network: int | None = None) -> None:
        """Break the TCP connections between two nodes, at both ends and at once; new ones can be made."""
        self._tell("reset", self._number[one], self._number[other], network)

    def namespace(self, node: str) -> str:
        """A file that stands for a node, for `enter` and other programs, as long as the context lasts."""
        return self._namespaces[self._number[node]]

    def run(
        self, node: str, command: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> "subprocess.Popen[Any]":
        """Start a program in a node.

        Args:
            node: where.
            command: the program and its arguments.
            env: its environment; this process's where None.
            options: more for `subprocess.Popen`.

        Returns:
            The program's own process, which can be waited for and killed.
        """
        started = subprocess.Popen(["nsenter", f"--net={self.namespace(node)}", "--", *command], env=env, **options)
        self._processes.append(started)
        return started

    def close(self) -> None:
        """Kill what runs in the nodes, and end the network; as often as you like."""
        if self._switch is not None:
            try:
                self._switch.communicate(timeout=ENDING_S)  # closes its input
            except subprocess.TimeoutExpired:  # a forked child of ours may hold it open
                self._switch.kill()
                self._switch.communicate()
            self._switch = None
        for process in self._processes:
            process.wait(ENDING_S)
        self._processes.clear()

    def _tell(self, *command: Any) -> dict[str, Any]:
        assert self._switch and self._switch.stdin and self._switch.stdout, "outside its context"
        try:
            self._switch.stdin.write(json.dumps(command) + "\n")
            self._switch.stdin.flush()
            answer: dict[str, Any] = json.loads(self._switch.stdout.readline() or '{"error": "the switch is gone"}')
        except (BrokenPipeError, ValueError) as error:
            answer = {"error": f"the switch is gone: {error}"}
        if "error" in answer:
            raise RuntimeFailedError(
                f"no network can be imitated here: {answer['error']}",
                fix="run it as root, with /dev/net/tun and the command `ip`",
            )
        return answer


def enter(namespace: str) -> None:
    """Move the calling thread into a node: sockets that it makes from now on are there.

    Args:
        namespace: `SlowNetwork.namespace` of the node.

    Raises:
        RuntimeFailedError: it is gone, or not allowed.
    """
    try:
        file = os.open(namespace, os.O_RDONLY)
    except OSError as error:
        raise RuntimeFailedError(f"cannot enter {namespace}: {error.strerror}") from None
    try:
        if ctypes.CDLL(None, use_errno=True).setns(file, switch.CLONE_NEWNET):
            raise RuntimeFailedError(f"cannot enter {namespace}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(file)


def is_usable() -> bool:
    """Whether this machine allows a SlowNetwork; it tries one."""
    try:
        with SlowNetwork(("probe",)) as network:
            return network.run("probe", ["true"]).wait(ENDING_S) == 0
    except (RuntimeFailedError, OSError, subprocess.TimeoutExpired):
        return False
