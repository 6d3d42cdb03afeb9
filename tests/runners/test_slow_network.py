"""Real sockets over links that are slow, or broken, as wanted."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rtk.benchmarks.slow_network import switch
from rtk.benchmarks.slow_network.network import SlowNetwork, enter, is_usable
from rtk.schemas.errors import RuntimeFailedError

pytestmark = pytest.mark.skipif(not is_usable(), reason="needs root, TUN devices and network namespaces")

SOON_S = 60.0  # on the busiest machine
DELAY_S = 0.06


def within(network: SlowNetwork, node: str, make: Callable[[], Any]) -> Any:
    """What a call in a node gives."""
    made: list[Any] = []

    def work() -> None:
        enter(network.namespace(node))
        made.append(make())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(SOON_S)
    return made[0]


def connected(network: SlowNetwork, one: str, other: str, net: int = 0) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection that `one` makes to `other`."""
    listener = within(network, other, lambda: socket.create_server((network.address(other, net), 0)))
    outgoing = within(network, one, lambda: socket.create_connection(listener.getsockname(), SOON_S))
    incoming, _ = listener.accept()
    listener.close()
    for end in (outgoing, incoming):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.settimeout(SOON_S)
    return outgoing, incoming


def seconds(source: socket.socket, to: socket.socket, size_bytes: int = 1) -> float:
    """How long some bytes are on their way."""
    start_s = time.monotonic()
    source.sendall(bytes(size_bytes))
    while size_bytes:
        size_bytes -= len(to.recv(size_bytes))
    return time.monotonic() - start_s


def is_quick(source: socket.socket, to: socket.socket) -> bool:
    """Whether a byte can be there sooner than over a link of DELAY_S; a busy machine has some tries."""
    return any(seconds(source, to) < DELAY_S for _ in range(20))


@pytest.fixture(scope="module")
def network() -> Iterator[SlowNetwork]:
    """Three nodes with two addresses each."""
    with SlowNetwork(("a", "b", "c"), ("10.88.0", "10.89.0")) as made:
        yield made


def test_every_direction_of_every_pair_has_its_own_delay(network: SlowNetwork) -> None:
    """A delay from a to b holds up neither the way back nor what c sends, and can be changed while it is used."""
    there, back = connected(network, "a", "b")
    other = connected(network, "c", "b")
    network.delay("a", "b", DELAY_S)
    assert seconds(there, back) >= DELAY_S
    assert is_quick(*other)
    network.delay("a", "b", DELAY_S / 2)
    assert seconds(there, back) >= DELAY_S / 2
    network.delay("a", "b", 0.0)
    assert is_quick(there, back)
    network.delay("b", "a", DELAY_S)
    assert seconds(back, there) >= DELAY_S
    network.delay("b", "a", 0.0)
    assert is_quick(back, there)


def test_each_network_has_links_of_its_own(network: SlowNetwork) -> None:
    """What is slow and broken in one network is as ever in the other."""
    first, second = connected(network, "a", "b"), connected(network, "a", "b", 1)
    assert second[0].getpeername()[0] == network.address("b", 1) == "10.89.0.2"
    network.delay("a", "b", DELAY_S, network=0)
    assert seconds(*first) >= DELAY_S
    assert is_quick(*second)
    network.delay("a", "b", 0.0)
    network.reset("a", "b", network=0)
    with pytest.raises(ConnectionError):
        first[0].recv(1)
    seconds(*second)


def test_a_rate_lets_so_many_bytes_a_second_set_out(network: SlowNetwork) -> None:
    """Two hundred thousand bytes at two million a second take a tenth of a second."""
    ends = connected(network, "a", "b")
    network.rate("a", "b", 2e6)
    assert seconds(*ends, 200_000) >= 0.06  # the last segment has only to set out
    network.rate("a", "b", 0)


def test_a_cut_link_loses_what_is_sent_and_a_joined_one_does_not(network: SlowNetwork) -> None:
    """Bytes that were lost arrive when TCP sends them again; the way back was there all the time."""
    there, back = connected(network, "a", "b")
    network.cut("a", "b")
    back.sendall(b"1")
    assert there.recv(1) == b"1"
    there.sendall(b"2")
    back.settimeout(0.1)
    with pytest.raises(TimeoutError):
        back.recv(1)
    network.cut("a", "b", False)
    back.settimeout(SOON_S)
    assert back.recv(1) == b"2"


def test_a_reset_breaks_the_connections_of_a_pair_though_both_live(network: SlowNetwork) -> None:
    """Both ends learn it at once, even over a link that is cut or busy; connections to others and new ones are well."""
    idle, other = connected(network, "a", "b"), connected(network, "c", "b")
    busy = connected(network, "b", "a")
    busy[0].setblocking(False)
    network.delay("b", "a", 0.02)
    assert busy[0].send(bytes(10_000_000)) > 0
    network.cut("a", "b")
    network.reset("b", "a")
    network.cut("a", "b", False)
    network.delay("b", "a", 0.0)
    busy[0].settimeout(SOON_S)
    for end in (*idle, *busy):
        with pytest.raises(ConnectionError):
            while end.recv(1_000_000):
                pass
    seconds(*other)
    seconds(*connected(network, "a", "b"))


def test_programs_run_in_a_node() -> None:
    """A program sees its node's addresses only; what it started dies with the network, also after an error."""
    script = "import socket,subprocess,sys,time; subprocess.Popen(['sleep','99']); print(1, flush=True); time.sleep(99)"
    started: list[Any] = []
    with pytest.raises(ZeroDivisionError), SlowNetwork(("a",)) as made:
        shown = made.run("a", ["ip", "-br", "addr"], stdout=subprocess.PIPE, text=True).communicate()[0]
        assert "10.88.0.1/24" in shown and "eth0" not in shown
        running = made.run("a", [sys.executable, "-S", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
        started += [running, made.namespace("a")]
        assert running.stdout is not None and running.stdout.readline()
        assert made.run("a", ["sh", "-c", "exit $X"], env={**os.environ, "X": "7"}).wait(SOON_S) == 7
        raise ZeroDivisionError
    assert started[0].wait(0) == -signal.SIGKILL
    assert started[0].stdout.read() == b""  # nobody has the other end any more
    assert not Path(started[1]).exists()
    with pytest.raises(RuntimeFailedError, match="cannot enter"):
        enter(started[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_launcher_that_is_killed(number: signal.Signals) -> None:
    """The switch ends with whoever started it, and the namespaces, which have no names, and all in them with it."""
    script = (
        "from rtk.benchmarks.slow_network.network import SlowNetwork\n"
        "with SlowNetwork(('a', 'b')) as network:\n"
        "    print(network.namespace('a'), flush=True)\n"
        "    network.run('a', ['sh', '-c', 'echo up; exec sleep 99'], start_new_session=True).wait()\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert launcher.stdout is not None
    namespace = Path(launcher.stdout.readline().strip())
    assert namespace.exists()
    assert launcher.stdout.readline() == "up\n"
    launcher.send_signal(number)
    launcher.wait(SOON_S)
    deadline_s = time.monotonic() + SOON_S
    while namespace.exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not namespace.exists()
    assert launcher.stdout.read() == ""  # nor has the sleeper, which had it too, outlived it
    assert time.monotonic() < deadline_s


def test_a_machine_that_does_not_allow_it_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the right to make namespaces, or without `ip`, the error says what is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not is_usable()
    with pytest.raises(RuntimeFailedError, match="No such file") as caught, SlowNetwork(("a",)):
        pass
    assert "root" in str(caught.value)


def test_packets_keep_their_order_when_a_delay_becomes_shorter() -> None:
    """None overtakes another; and at a rate they set out one after the other."""
    lane = switch.Lane(delay_s=1.0)
    assert lane.arrival_s(10.0, 100) == 11.0
    lane.delay_s = 0.0
    assert lane.arrival_s(10.5, 100) == 11.0
    assert lane.arrival_s(12.0, 100) == 12.0
    lane.bytes_per_s = 100.0
    assert [lane.arrival_s(20.0, 100), lane.arrival_s(20.0, 50)] == [21.0, 21.5]
