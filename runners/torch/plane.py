"""A worker's way to the others in one epoch: who is reached directly, who by delegates, and what is measured of it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch

from ...schemas.errors import RuntimeFailedError
from ...schemas.plan import delay_at_home_s
from ...schemas.slices import TensorCut
from ..program import Program, RankPair, Receive, Send, Sending, delegated_pairs, sends_of
from ..resilience.protocol import Epoch, RankAssignment, Regroup
from .connections import Connections
from .delegates import STALL_S, Delegates
from .detours import Detours
from .faults import DelayedTransport, Injection
from .gloo import Sidestep
from .layout import GroupedTransport, RankLayout, points_of
from .probe import Probes
from .rendezvous import all_answer, in_thread, meet
from .slice_sums import cuts_in, slice_groups
from .staging import HostStaging
from .task import Task
from .team import Team
from .transport import LostTouchError, Sample, StalledError, Transfers, Transport

# A needed message that takes so many iterations to come is held for lost, though never before STALL_S.
STALL_ITERATIONS = 50


@dataclass(frozen=True, eq=False)
class Plane:
    """What carries an epoch's messages.

    Attributes:
        transport: what iterations use.
        direct: the same ranks without delegates, for what is no iteration's.
        delegated: the ranks that iterations reach by delegates.
        transfers: the samples that an iteration takes; None: this rank executes none.
        probes: of delegated links that the plan does not use.
        team: the ranks of this worker, where it has several.
        layout: of all ranks, where workers have several.
    """

    transport: Transport
    direct: Transport
    delegated: frozenset[int]
    transfers: Transfers | None
    probes: Probes | None = None
    team: Team | None = None
    layout: RankLayout | None = None

    @classmethod
    def over(
        cls,
        direct: Transport,
        program: Program,
        rank: int,
        names: Sequence[str],
        delegated: frozenset[int],
        now_s: Callable[[], float],
        *,
        staging: HostStaging | None = None,
        probed: Collection[int] = (),
        layout: RankLayout | None = None,
        own: int = 0,
        team: Team | None = None,
    ) -> "Plane":
        """Delegates, where there are any to be, and measuring, on top of a transport.

        Args:
            direct: reaches everybody.
            program: what is executed.
            rank: this one.
            names: of the workers, by rank.
            delegated: the ranks to reach by delegates.
            now_s: the workers' clock.
            staging: between host memory and the device.
            probed: the ranks to send probes to, where no messages go.
            layout: where workers have several ranks: `direct` goes by the numbers of this, all else by workers'.
            own: this process's number in it.
            team: the ranks of this worker, where it has several.
        """
        transfers = Transfers(program, rank, names, delegated, now_s)
        transport, peers = direct, delegated
        arrived: Callable[[int, int], None] = transfers.fetched
        if layout is not None:
            peers, arrived = layout.partners_of(own, sorted(delegated)), _by_worker(layout, transfers.fetched)
        if peers:
            stall_s = stall_limit_s(program)
            transport = Delegates(direct, direct, peers, staging=staging, arrived=arrived, stall_s=stall_s)
        if layout is not None:
            transport, direct = (GroupedTransport(one, layout, own) for one in (transport, direct))
        probes = Probes(direct, probed, names, now_s) if probed else None
        return cls(transport, direct, delegated, transfers, probes, team, layout)

    def begin(self, iteration: int) -> None:
        """An iteration begins."""
        if self.probes is not None:
            self.probes.begin(iteration)

    def samples(self) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
        """What was sent and what has arrived: of the iteration's messages, and of probes since this was asked last."""
        assert self.transfers is not None
        sent, arrived = self.probes.taken() if self.probes is not None else ((), ())
        return (*self.transfers.sent, *sent), (*self.transfers.arrived, *arrived)

    def close(self) -> None:
        """Interrupt, and let go of all connections and threads."""
        self.transport.interrupt()
        if self.team is not None:
            self.team.close()
        if self.probes is not None:
            self.probes.close()
        self.transport.close()


def _by_worker(layout: RankLayout, arrived: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """What is told of a message from a rank, told of its worker."""
    return lambda source, tag: arrived(layout.seats[source][0], tag)


def partners(program: Program, rank: int) -> frozenset[int]:
    """The ranks that a rank exchanges messages with."""
    instructions = program.instructions[rank]
    sources = {one.source for one in instructions if isinstance(one, Receive)}
    return frozenset(sources | {one.to for one in instructions if isinstance(one, Send)})


def delegated_peers(
    transport: Sending, program: Program, rank: int, found: Iterable[RankPair] = (), detoured: Iterable[RankPair] = ()
) -> frozenset[int]:
    """The ranks that a rank exchanges messages with by delegates; each is told the same of it.

    Args:
        transport, found, detoured: as `delegated_pairs`.
        program: what is executed.
        rank: this one.
    """
    # By a plan two workers send to each other or not at all; what is left of an iteration may go one way only.
    sends = sends_of(program, [rank] if program.rest is None else None)
    chosen = delegated_pairs(transport, sends, found, detoured)
    return partners(program, rank) & _others_of(chosen, rank)


def probed_peers(
    transport: Sending, program: Program, rank: int, found: Iterable[RankPair], detoured: Iterable[RankPair]
) -> frozenset[int]:
    """The other ends of slow links over which a program sends nothing; arguments as `delegated_peers`."""
    if transport == "direct":
        return frozenset()
    return frozenset(_others_of(set(found) - set(detoured), rank)) - partners(program, rank)


def stall_limit_s(program: Program) -> float:
    """How long a needed message of a program may take to come."""
    prediction = program.plan.prediction
    return max(STALL_S, STALL_ITERATIONS * (prediction.iteration_time_s if prediction else 0.0))


def _others_of(pairs: Iterable[RankPair], rank: int) -> set[int]:
    return {one if rank == other else other for one, other in pairs if rank in (one, other)}


# How a worker reaches the others of an epoch: directly, over a third one, or on another network; and who answers.


def expect(connections: Connections, task: Task, regroup: Regroup) -> None:
    """Begin to meet those who are left, before there is a plan for them; returns at once.

    Args:
        connections: this worker's.
        task: what is trained, and by whom.
        regroup: who is left; newcomers, and the other ranks of a worker that has lost one, are met in the epoch.
    """
    worker = seat_of(task.name, regroup.members)
    if worker is not None:
        rank = RankLayout.of_seats(regroup.members).ranks_of(worker)[task.share]
        connections.expect(regroup.epoch, [point.store for point in points_of(regroup.members)], rank)


def seat_of(worker: str, seats: Sequence[RankAssignment]) -> int | None:
    """The number of a worker's seat; None where it has none."""
    return next((number for number, seat in enumerate(seats) if seat.worker == worker), None)


def reach(
    connections: Connections,
    task: Task,
    epoch: Epoch,
    program: Program,
    rank: int,
    faults: Injection,
    now_s: Callable[[], float],
    rest: Program | None = None,
    tensors: Mapping[str, TensorCut] = MappingProxyType({}),
) -> Plane:
    """Meet the other ranks, and get ready to send to each, some of them over a third one.

    Args:
        connections: this worker's.
        task: what is trained, and by whom.
        epoch: who is there, and which links are broken or slow.
        program: of the epoch's plan.
        rank: this worker's; one without a seat only gives others what it holds, and needs nothing but to reach them.
        faults: which links a trace slows down.
        now_s: the workers' clock.
        rest: what is left of the epoch's first iteration; None: it is done by the plan.
        tensors: how what the ranks of a worker share is cut, by names in the state, of all layers.

    Raises:
        RuntimeFailedError: a rank is not reached.
    """
    layout, names = RankLayout.of_seats(epoch.present), [seat.worker for seat in epoch.present]
    own, is_shared = layout.ranks_of(rank)[task.share], layout.size > len(epoch.present)
    points, is_seated = [point.store for point in points_of(epoch.present)], rank < len(epoch.seats)
    team = _team(connections, epoch, layout.ranks_of(rank), points, task.share) if is_seated else None
    try:
        detoured, aside = ([(one, other) for one, other, _ in ways] for ways in (epoch.detours, epoch.sidesteps))
        groups = slice_groups(layout, own, program.reduction(rank), partial(cuts_in, tensors)) if is_seated else ()
        apart = layout.pairs([*detoured, *aside])
        inner = connections.transport(epoch.epoch, points, own, groups, apart, _sidesteps(task, epoch, layout, own))
        direct = _behind_links(task, inner, [names[worker] for worker, _ in layout.seats], faults)
        if not is_seated:
            alone = GroupedTransport(direct, layout, own) if is_shared else direct
            return Plane(alone, alone, frozenset(), None, layout=layout if is_shared else None)
        delegated = delegated_peers(task.transport, program, rank, epoch.delegated, detoured)
        if rest is not None:
            delegated |= delegated_peers(task.transport, rest, rank, epoch.delegated, detoured)
        ways = layout.detours(epoch.detours)
        probed = probed_peers(task.transport, program, rank, epoch.delegated, detoured)
        return Plane.over(
            Detours(direct, ways, own, layout.pairs(aside)) if apart else direct,
            program,
            rank,
            names,
            delegated,
            now_s,
            staging=HostStaging.of(torch.device(task.device)),
            probed=probed if task.share == 0 else (),  # what it shows of links is told by the first rank
            layout=layout if is_shared else None,
            own=own,
            team=team,
        )
    except BaseException:
        if team is not None:
            team.close()
        raise


def _team(
    connections: Connections, epoch: Epoch, ranks: Sequence[int], points: Sequence[str], share: int
) -> Team | None:
    """The ranks of this worker, where it has several; they meet while all else is made ready."""
    if len(ranks) == 1:
        return None
    return Team(connections.team(epoch.epoch, [points[one] for one in ranks], share), len(ranks))


def see_everybody(task: Task, epoch: Epoch, rank: int) -> None:
    """Raise LostTouchError with the first rank that ought to be reached directly and is not.

    Args:
        task: what is trained, and by whom.
        epoch: who is there.
        rank: this worker's.
    """
    layout = RankLayout.of_seats(epoch.present)
    own = layout.ranks_of(rank)[task.share]
    apart = {other for one, two, _ in layout.detours(epoch.detours) if own in (one, two) for other in (one, two)}
    aside = _networks(epoch, layout, own)
    points = enumerate(points_of(epoch.present))
    places = [point.others[aside[i] - 1] if i in aside else point.store for i, point in points]
    all_answer(places, task.secret, apart - {own})


def peer_lost(error: RuntimeFailedError, task: Task, epoch: Epoch, rank: int, superseded: "Future[None]") -> str | None:
    """With which worker communication broke, if the error knows, or it is found out before the epoch is over.

    Args:
        error: with which it broke.
        task: what is trained, and by whom.
        epoch: who is there.
        rank: this worker's.
        superseded: done as soon as the epoch is over.
    """
    found: BaseException | None = error
    if not isinstance(error, LostTouchError) or isinstance(error, StalledError):
        probing = in_thread(lambda: see_everybody(task, epoch, rank), "probing")
        wait([probing, superseded], return_when=FIRST_COMPLETED)
        found = probing.exception() if probing.done() else None
    if not isinstance(found, LostTouchError):
        return None
    worker, _ = RankLayout.of_seats(epoch.present).seats[found.peer]
    return None if worker == rank else epoch.present[worker].worker  # of its own ranks one is gone, or soon lost


def _sidesteps(task: Task, epoch: Epoch, layout: RankLayout, own: int) -> Mapping[int, Sidestep]:
    """How a rank reaches others on another network: the two meet at the lower one's meeting place."""
    found = {}
    points = points_of(epoch.present)
    for other, network in _networks(epoch, layout, own).items():
        place = points[min(own, other)].others[network - 1]
        found[other] = Sidestep(task.others[network - 1], partial(meet, place, task.secret, epoch.epoch))
    return found


def _networks(epoch: Epoch, layout: RankLayout, own: int) -> Mapping[int, int]:
    """The ranks that a rank reaches on another network, and the network's number."""
    return {
        other if own == one else one: number
        for first, second, number in epoch.sidesteps
        for one, other in layout.pairs([(first, second)])
        if own in (one, other)
    }


def _behind_links(task: Task, transport: Transport, names: Sequence[str], faults: Injection) -> Transport:
    """Links are as slow as a paced run is to imitate, and as a trace makes them.

    A delay belongs to two workers and not to their present places: it is that between their places in the plan that
    the job began with, whatever the running one reckons with.
    """
    if not (task.paced or faults.has_links):
        return transport
    home_s = [delay_at_home_s(task.plan, task.name, name) if task.paced else 0.0 for name in names]
    return DelayedTransport(
        transport,
        lambda other: faults.link_delay_s(names[other], home_s[other]),
        lambda other: faults.link_delay_s(names[other], 0.0),
    )
