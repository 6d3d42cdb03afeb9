"""The published figures of an attribution: slow-down, and the shares of workers, of the last stage, links and data."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ....schemas.detection import Attribution
from . import kinds
from .table import Times
from .what_if import Mask, WhatIf, slowest

# Below this part of an ideal step there is nothing to share out: shares would be noise.
LEAST = 1e-3


@dataclass(frozen=True, slots=True)
class Link:
    """The way between two neighbouring workers.

    Attributes:
        name: `a-b`, by their ranks.
        peer: the data-parallel peer.
        messages: their places in `Operations.operations`, of both directions and at both ends.
    """

    name: str
    peer: int
    messages: tuple[int, ...]


def attribution_of(what_if: WhatIf) -> Attribution:
    """Share out a job's slow-down, as the paper does (equations 1 to 5, and section 5.2).

    `worker_share` (M_W) is what goes away with the slowest 3 % of workers; a worker's slow-down is the smaller one of
    its stage's and its peer's, each found by leaving only their operations as they were. `stage_share` (M_S) is what
    goes away with that of the last stage; it is above 1 where this leaves less to do than the mean of all stages.
    `link_share` and `data_share` are ours: the slowest 3 % of links, and all micro-batches of a worker alike.
    """
    was_s, ideal_s = what_if.as_it_was_s(), what_if.ideal_s()

    def share(busy_s: Times) -> float:
        if abs(was_s - ideal_s) < LEAST * ideal_s:
            return 0.0
        return (was_s - what_if.takes_s(busy_s)) / (was_s - ideal_s)

    slow_links = slowest({link: mean_of_link_s(what_if.busy_s, link) for link in links_of(what_if)})
    return Attribution(
        slowdown=was_s / ideal_s,
        worker_share=share(what_if.without(_slowest_workers(what_if, ideal_s))),
        stage_share=share(what_if.without(what_if.on_stage(len(what_if.job.ranks) - 1))),
        link_share=share(what_if.without(any_link(what_if, slow_links))),
        data_share=share(alike(what_if, what_if.busy_s)),
    )


def _slowest_workers(what_if: WhatIf, ideal_s: float) -> Mask:
    job = what_if.job
    stages = [what_if.takes_s(what_if.only(what_if.on_stage(s))) / ideal_s for s in range(len(job.ranks))]
    peers = [what_if.takes_s(what_if.only(what_if.of_peer(p))) / ideal_s for p in range(job.peers)]
    both = {(s, p): min(of_stage, of_peer) for s, of_stage in enumerate(stages) for p, of_peer in enumerate(peers)}
    mask = _none(what_if)
    for stage, peer in slowest(both):
        mask |= what_if.on_stage(stage) & what_if.of_peer(peer)
    return mask


def links_of(what_if: WhatIf) -> tuple[Link, ...]:
    """All links over which there were messages, in the order of stages, then peers."""
    operations, ranks = what_if.job.operations, what_if.job.ranks
    messages: dict[tuple[int, int], list[int]] = defaultdict(list)
    for event in what_if.dependencies.events:
        if len(event.members) == 2 and operations[event.members[0]].kind in kinds.MESSAGES:
            one, other = sorted(operations[member].stage for member in event.members)
            messages[one, other] += event.members
    return tuple(
        Link(f"{ranks[one][peer]}-{ranks[other][peer]}", peer, tuple(sorted(messages[one, other])))
        for one, other in sorted(messages)
        for peer in range(what_if.job.peers)
    )


def mean_of_link_s(busy_s: Times, link: Link) -> float:
    """What a link's messages take on average."""
    return float(busy_s[list(link.messages), :, link.peer].mean())


def any_link(what_if: WhatIf, links: Iterable[Link]) -> Mask:
    """The messages of some links, by operation, step and peer."""
    mask = _none(what_if)
    for link in links:
        mask[list(link.messages), :, link.peer] = True
    return mask


def _none(what_if: WhatIf) -> Mask:
    return np.zeros((len(what_if.job.operations), 1, what_if.job.peers), dtype=bool)


def alike(what_if: WhatIf, busy_s: Times) -> Times:
    """The operations' times, if each worker's micro-batches took the same: what they take on average, by kind."""
    evened_s = busy_s.copy()
    for places in computation_of(what_if).values():
        evened_s[places] = busy_s[places].mean(axis=(0, 1))
    return evened_s


def computation_of(what_if: WhatIf) -> dict[tuple[int, str], list[int]]:
    """The forward and backward passes of each stage, as places in `Operations.operations`."""
    passes: dict[tuple[int, str], list[int]] = defaultdict(list)
    for place, operation in enumerate(what_if.job.operations):
        if operation.kind in kinds.COMPUTE:
            passes[operation.stage, operation.kind].append(place)
    return dict(passes)
