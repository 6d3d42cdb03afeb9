"""A worker's way to the others in one epoch: who is reached directly, who by delegates, and what is measured of it."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from ..program import Program, Receive, Send
from ..sending import RankPair, Sending, delegated_pairs, sends_of
from .delegates import STALL_S, Delegates
from .probes import Probes
from .staging import Staging
from .transfers import Sample, Transfers
from .transport import Transport

# A needed message that takes so many iterations to come is held for lost, though never before STALL_S.
STALL_ITERATIONS = 50


@dataclass(frozen=True, eq=False)
class Plane:
    """What carries an epoch's messages.

    Attributes:
        transport: what iterations use.
        direct: the same ranks without delegates, for what is no iteration's.
        delegated: the ranks that iterations reach by delegates.
        transfers: the samples that an iteration takes.
        probes: of delegated links that the plan does not use.
    """

    transport: Transport
    direct: Transport
    delegated: frozenset[int]
    transfers: Transfers
    probes: Probes | None = None

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
        staging: Staging | None = None,
        probed: Collection[int] = (),
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
        """
        transfers = Transfers(program, rank, names, delegated, now_s)
        transport = direct
        if delegated:
            stall_s = stall_limit_s(program)
            transport = Delegates(
                direct, direct, delegated, staging=staging, arrived=transfers.fetched, stall_s=stall_s
            )
        probes = Probes(direct, probed, names, now_s) if probed else None
        return cls(transport, direct, delegated, transfers, probes)

    def begin(self, iteration: int) -> None:
        """An iteration begins."""
        if self.probes is not None:
            self.probes.begin(iteration)

    def samples(self) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
        """What was sent and what has arrived: of the iteration's messages, and of probes since this was asked last."""
        sent, arrived = self.probes.taken() if self.probes is not None else ((), ())
        return (*self.transfers.sent, *sent), (*self.transfers.arrived, *arrived)

    def close(self) -> None:
        """Interrupt, and let go of all connections and threads."""
        self.transport.interrupt()
        if self.probes is not None:
            self.probes.close()
        self.transport.close()


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
    chosen = delegated_pairs(transport, sends_of(program, [rank]), found, detoured)
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
