"""Pairs that have lost each other and meet on another network.

In a process of its own this file is one worker in a node of a SlowNetwork (`work`).
"""

import time
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._C._distributed_c10d import HashStore  # noqa: E402

from rtk.benchmarks.slow_network.network import SlowNetwork, enter, is_usable  # noqa: E402
from rtk.runners.torch.gloo import (  # noqa: E402
    GlooTransport,
    Sidestep,
)
from rtk.runners.torch.rendezvous import MeetingPlace, meet  # noqa: E402
from rtk.runners.torch.transport import LostTouchError  # noqa: E402
from rtk.runners.training import JobConfig, TrainingConfig  # noqa: E402
from rtk.running import work as be_worker  # noqa: E402
from rtk.schemas.documents import canonical, parse_document  # noqa: E402
from rtk.schemas.errors import RuntimeFailedError  # noqa: E402
from rtk.schemas.plan import Plan  # noqa: E402

if __name__ != "worker":  # which knows no package of tests
    from ..warm import fork
    from .processes import ProcessJob, single_process
    from .test_detours import LIMIT, SECRET, world
    from .test_slow_network import within
    from .test_survival import FOREVER, TRAINING, plan_of
    from .test_transport_epochs import SOON_S, assert_back_to, close_all, held, in_background


def connections_of(host: str) -> int:
    """How many ends of this process's connections have an IPv4 address at either end."""
    number = "".join(f"{int(part):02X}" for part in reversed(host.split(".")))
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            own.add(str(descriptor.readlink()))
    ends = [row[1:3] for row in rows if row[3] == "01" and f"socket:[{row[9]}]" in own]
    return sum(any(end.startswith(f"{number}:") for end in both) for both in ends)


def test_only_the_pair_meets_on_the_other_network() -> None:
    """Both ends of one connection have the other address, and messages go over it; all else is as before."""
    before = connections_of("127.0.0.2")
    transports = world(3, (), [(0, 1), (0, 1, 2)], [(0, 1)])
    assert connections_of("127.0.0.2") == before + 2
    for tag in range(5):
        transports[1].post_receive(tag, 0, torch.zeros(3))
        transports[0].send(tag, 1, torch.full((3,), float(tag)))
    assert [transports[1].receive(tag, 0).tolist() for tag in range(5)] == [[tag] * 3 for tag in range(5)]
    close_all(transports)


def test_5_epochs_with_sidesteps_leave_nothing_behind() -> None:
    """Who waits for a message on the other network is woken, and threads and sockets end with the transport."""
    close_all(world(3, (), (), [(0, 1), (1, 2)]))
    before = held()
    for _ in range(5):
        transports = world(3, (), (), [(0, 1), (1, 2)])
        transports[0].post_receive(1, 1, torch.zeros(2))
        blocked = in_background(lambda one=transports[0]: one.receive(1, 1))  # type: ignore[misc]
        time.sleep(0.02)
        transports[0].interrupt()
        assert isinstance(blocked.exception(SOON_S), RuntimeFailedError)
        close_all(transports)
    del transports, blocked
    assert_back_to(before)


@pytest.mark.parametrize("hostname", ["127.0.0.2", "192.0.2.1"])
def test_a_network_that_is_broken_too_is_told_at_once(hostname: str) -> None:
    """Nobody answers at the other place, or this machine has no such address: touch is lost with that rank."""
    place = MeetingPlace(SECRET, "127.0.0.2")
    place.close()
    aside = {0: Sidestep(hostname, lambda: meet(place.address, SECRET, 1))}
    building: Future[Any] = in_background(
        lambda: GlooTransport(HashStore(), 1, 2, [], connect_limit=LIMIT, apart=[(0, 1)], sidesteps=aside)
    )
    error = building.exception(SOON_S)
    assert isinstance(error, LostTouchError) and error.peer == 0


# ---- Real networks that are cut --------------------------------------------------------------------------------------

NETWORKS = ("10.88.0", "10.89.0")
COORDINATOR = "coordinator"


def work(
    namespace: str, other: str, plan: bytes, training: TrainingConfig, name: str, addresses: list[str], secret: bytes
) -> None:
    """A worker in its node, as `rtk run --coordinator … --interface …`."""
    enter(namespace)
    be_worker(parse_document(plan, Plan, "the plan"), training, name, addresses, secret, 60.0, [other])


if __name__ != "worker":

    class NetworkJob(ProcessJob):
        """A job in the nodes of a network."""

        def __init__(self, network: SlowNetwork, plan: Plan, how: JobConfig) -> None:
            self.network = network
            super().__init__(plan, how, TRAINING, network.address(COORDINATOR), is_watchful=False)

        def start(self, name: str, not_before: int = 0) -> None:
            place = self.network.namespace(name), self.network.address(name, 1)
            arguments = (canonical(self.plan), self.training, name, self.addresses, self.secret)
            self.processes[name] = fork(__file__, *place, *arguments)

        def lose(self, one: str, other: str, network: int) -> dict[str, Any]:
            """Cut a link in the midst of training; gives the epoch in which the next iteration is committed."""
            since = len(self.said)
            for source, to in ((one, other), (other, one)):
                self.network.cut(source, to, network=network)
            self.network.reset(one, other, network=network)
            since = self.wait_for(lambda said: said["event"] == "broken_link", since=since)
            since = self.wait_for(lambda said: said["event"] == "iteration", since=since)
            return next(said for said in reversed(self.said[:since]) if said["event"] == "epoch")


@pytest.mark.skipif(__name__ == "worker" or not is_usable(), reason="needs root, TUN devices and network namespaces")
def test_a_link_that_is_cut_is_left_for_another_network_and_then_for_a_detour() -> None:
    """A pair whose one network is cut in the midst of training goes on by the other; cut off there too, by a third."""
    plan, names = plan_of(3, 1), ["0/0", "0/1", "0/2"]
    how = JobConfig(iterations=FOREVER, heartbeat_limit_s=1.0)
    with ExitStack() as stack:
        network = stack.enter_context(SlowNetwork([COORDINATOR, *names], NETWORKS))
        job = stack.enter_context(within(network, COORDINATOR, lambda: NetworkJob(network, plan, how)))
        job.wait_for_iteration(1)
        epoch = job.lose("0/0", "0/1", 0)
        assert (epoch["sidesteps"], epoch["detours"], epoch["live_workers"]) == ({"0/0-0/1": 1}, {}, 3)
        epoch = job.lose("0/0", "0/1", 1)
        assert (epoch["sidesteps"], epoch["detours"], epoch["live_workers"]) == ({}, {"0/0-0/1": "0/2"}, 3)
        job.server.finish(0, "enough")
        assert job.result().exit_code == 0
    assert [one["event"] for one in job.said if one["event"] in ("failure", "broken_link")] == ["broken_link"] * 2
    losses = job.losses()
    assert losses == pytest.approx(single_process(plan, TRAINING, len(losses)), abs=1e-5)


if __name__ == "worker":
    work(*globals()["ARGUMENTS"])
