"""What workers on the virtual clock measure, as real ones do (runners/torch): their pace, and messages under way."""

from collections.abc import Iterator, Sequence

from ..schemas.protocols import Measured
from .machines import Staging
from .program import Compute
from .sending import rank_pair
from .simulator import Execution


def measured(
    staging: Staging,
    execution: Execution,
    rank: int,
    names: Sequence[str],
    iteration: int,
    start_s: float,
) -> Measured:
    """What a worker can say once its gradients are reduced.

    A direct message is known to have arrived only if its receiver stood and waited for it; delegates always know, and
    where they have nothing to send, they send a probe at the beginning of the iteration.

    Args:
        staging: what was executed.
        execution: its execution.
        rank: the worker's.
        names: of the workers, by rank.
        iteration: its number.
        start_s: when it began.
    """
    reduced_s = execution.reduced_s[rank]
    ways = sorted((pair[pair[0] == rank], way_s) for pair, way_s in staging.probed.items() if rank in pair)
    probes = [(peer, -1 - iteration, way_s) for peer, way_s in ways]
    sent = [*_sent(staging, execution, rank), *((peer, number, 0.0) for peer, number, _ in probes)]
    arrived = [*_arrived(staging, execution, rank), *(one for one in probes if one[2] <= reduced_s)]
    peers = staging.program.peers(rank)
    return Measured(
        worker=names[rank],
        iteration=iteration,
        pace=_pace(staging, execution, rank),
        sent=tuple((names[to], number, start_s + at_s) for to, number, at_s in sent),
        arrived=tuple((names[source], number, start_s + at_s) for source, number, at_s in arrived),
        reduction_s=(start_s + execution.ready_s[rank], start_s + reduced_s) if peers else None,
        peers=tuple(names[peer] for peer in peers),
        iteration_s=reduced_s,
    )


Moments = Iterator[tuple[int, int, float]]  # the other worker, a message's number, when


def _sent(staging: Staging, execution: Execution, rank: int) -> Moments:
    for source, to, number, message in staging.sampled:
        if source == rank:
            yield to, number, execution.traffic.handed_s[message]


def _arrived(staging: Staging, execution: Execution, rank: int) -> Moments:
    for source, to, number, message in staging.sampled:
        is_known = message in execution.traffic.awaited or rank_pair(source, to) not in staging.direct
        if to == rank and is_known:
            yield source, number, execution.traffic.arrived_s[message]


def _pace(staging: Staging, execution: Execution, rank: int) -> float | None:
    """How many times as long as their stage's the worker's operations have taken; None where those take no time."""
    program = staging.program
    stage = program.plan.stage_of(program.workers[rank])
    kinds = [one.operation.kind for one in program.instructions[rank] if isinstance(one, Compute)]
    planned_s = sum(stage.duration_s(kind) for kind in kinds)
    took_s = sum(span.end_s - span.start_s for span in execution.spans[rank][: len(kinds)])
    return took_s / planned_s if planned_s else None
