"""How a worker reaches the others of an epoch: directly, over a third one, or on another network; and who answers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from ..machines import delay_at_home_s
from ..program import Program
from ..resilience.messages import Epoch
from ..sending import RankPair
from .detours import Detours
from .gloo import GlooTransport
from .injection import Injection
from .iteration import groups_of
from .meeting import all_answer, meet, meetings
from .pairs import Sidestep
from .plane import Plane, delegated_peers, probed_peers
from .slow_links import SlowLinks
from .staging import Staging
from .task import Task
from .transport import Transport


def reach(
    task: Task, epoch: Epoch, program: Program, rank: int, faults: Injection, now_s: Callable[[], float]
) -> Plane:
    """Meet the other ranks, and get ready to send to each, some of them over a third one.

    Args:
        task: what is trained, and by whom.
        epoch: who is there, and which links are broken or slow.
        program: of the epoch's plan.
        rank: this worker's.
        faults: which links a trace slows down.
        now_s: the workers' clock.

    Raises:
        RuntimeFailedError: a rank is not reached.
    """
    names = [seat.worker for seat in epoch.seats]
    detoured, aside = ([(one, other) for one, other, _ in ways] for ways in (epoch.detours, epoch.sidesteps))
    inner = _gloo(task, epoch, groups_of(program.instructions[rank]), rank, [*detoured, *aside])
    direct = _behind_links(task, inner, names, faults)
    return Plane.over(
        Detours(direct, epoch.detours, rank, aside) if detoured or aside else direct,
        program,
        rank,
        names,
        delegated_peers(task.transport, program, rank, epoch.delegated, detoured),
        now_s,
        staging=Staging.of(torch.device(task.device)),
        probed=probed_peers(task.transport, program, rank, epoch.delegated, detoured),
    )


def see_everybody(task: Task, epoch: Epoch, rank: int) -> None:
    """Raise LostTouchError with the first worker that ought to be reached directly and is not."""
    apart = {other for one, two, _ in epoch.detours if rank in (one, two) for other in (one, two)} - {rank}
    aside = _networks(epoch, rank)
    places = [seat.others[aside[i] - 1] if i in aside else seat.store for i, seat in enumerate(epoch.seats)]
    all_answer(places, task.secret, apart)


def _gloo(task: Task, epoch: Epoch, groups: set[tuple[int, ...]], rank: int, apart: Sequence[RankPair]) -> Transport:
    """All meet at the meeting place of the first rank, or where some do not reach it, each group at its first's."""
    addresses = [seat.store for seat in epoch.seats]
    store = meetings(addresses, task.secret, epoch.epoch) if apart else meet(addresses[0], task.secret, epoch.epoch)
    sidesteps = {other: _sidestep(task, epoch, rank, other, at) for other, at in _networks(epoch, rank).items()}
    return GlooTransport(store, rank, len(addresses), groups, hostname=task.hostname, apart=apart, sidesteps=sidesteps)


def _sidestep(task: Task, epoch: Epoch, rank: int, other: int, network: int) -> Sidestep:
    """The way to a rank on another network, where the two meet at the lower one's meeting place."""
    place = epoch.seats[min(rank, other)].others[network - 1]
    return Sidestep(task.others[network - 1], partial(meet, place, task.secret, epoch.epoch))


def _networks(epoch: Epoch, rank: int) -> Mapping[int, int]:
    """The ranks that a rank reaches on another network, and the network's number."""
    own = ((one, other, number) for one, other, number in epoch.sidesteps if rank in (one, other))
    return {other if rank == one else one: number for one, other, number in own}


def _behind_links(task: Task, transport: Transport, names: Sequence[str], faults: Injection) -> Transport:
    """Links are as slow as a paced run is to imitate, and as a trace makes them.

    A delay belongs to two workers and not to their present places: it is that between their places in the plan that
    the job began with, whatever the running one reckons with.
    """
    if not (task.paced or faults.has_links):
        return transport
    home_s = [delay_at_home_s(task.plan, task.name, name) if task.paced else 0.0 for name in names]
    return SlowLinks(
        transport,
        lambda other: faults.link_delay_s(names[other], home_s[other]),
        lambda other: faults.link_delay_s(names[other], 0.0),
    )
