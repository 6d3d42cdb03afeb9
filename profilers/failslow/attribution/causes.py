"""What a slow-down comes from: the remedies that help, the best one first, each on top of those before."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ....schemas.detection import Scope
from . import kinds
from .operations import Operation
from .shares import alike, computation_of, links_of, mean_of_link_s
from .table import Times
from .what_if import WhatIf

# Greyhound's threshold: what is less than this above its like is not slow, and what costs less is not worth telling.
NOTICEABLE = 1.1
# From here on forward and backward pass of a micro-batch are long together: it is the data (OSDI'25, section 5.3).
CORRELATED = 0.9
# Links that exceed what is usual by less than this part of the worst one's excess are not named with it.
WORTH_NAMING = 0.1
MOST_NAMED = 5
# A narrow remedy is preferred to wider ones if it helps at least this part as much as the best of them.
AS_GOOD = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class Cause:
    """Something that can be amended.

    Attributes:
        of: computation or communication.
        scope: who is slow; the kind `job` without names where it is nobody in particular.
        evidence: what speaks for it.
        amended_s: the operations' times if it were amended.
    """

    of: Literal["computation", "communication"]
    scope: Scope
    evidence: tuple[str, ...]
    amended_s: Times


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """A cause, and what it is worth.

    Attributes:
        cause: what is slow.
        before_s: what each step takes with it, once all earlier causes are amended.
        after_s: what each step takes without it as well.
    """

    cause: Cause
    before_s: Times
    after_s: Times

    @property
    def slowdown(self) -> float:
        """The factor that it costs."""
        return float(self.before_s.mean() / self.after_s.mean())


Remedy = Callable[[WhatIf, Times], Cause | None]


def causes_of(what_if: WhatIf) -> tuple[Effect, ...]:
    """Everything that slows a job down by more than `NOTICEABLE`, what costs most first.

    Each remedy is tried on what the job takes after those that were found before; of those that help about the same,
    the one with the narrowest scope is taken. The paper's shares fix the slowest 3 % of workers, however many are slow.
    Remedies are for all that are slow by comparison with their like: fixing one of two slow workers helps nobody.

    Args:
        what_if: the job.
    """
    busy_s, now_s = what_if.busy_s, what_if.steps_s(what_if.busy_s)
    found: list[Effect] = []
    left: list[Remedy] = [slow_links, slow_workers, uneven_stages, uneven_data, slow_communication]
    while left:
        tried = [(remedy, cause) for remedy in left if (cause := remedy(what_if, busy_s)) is not None]
        effects = [Effect(cause, now_s, what_if.steps_s(cause.amended_s)) for _, cause in tried]
        most = max((effect.slowdown for effect in effects), default=1.0)
        if most < NOTICEABLE:
            break
        chosen = next(n for n, effect in enumerate(effects) if effect.slowdown - 1 >= AS_GOOD * (most - 1))
        found.append(effects[chosen])
        left.remove(tried[chosen][0])
        busy_s, now_s = effects[chosen].cause.amended_s, effects[chosen].after_s
    return tuple(found)


def slow_links(what_if: WhatIf, busy_s: Times) -> Cause | None:
    """Links whose messages take longer than those of most; amended, they are as fast as these."""
    links = links_of(what_if)
    means_s = np.array([mean_of_link_s(busy_s, link) for link in links])
    usual_s = _middle(means_s) if links else 0.0
    slow = [n for n in np.argsort(-means_s, kind="stable") if means_s[n] > NOTICEABLE * usual_s]
    slow = [n for n in slow if means_s[n] - usual_s >= WORTH_NAMING * (means_s[slow[0]] - usual_s)]
    if not slow:
        return None
    amended_s = busy_s.copy()
    for n in slow:
        amended_s[list(links[n].messages), :, links[n].peer] *= usual_s / means_s[n]
    told = tuple(
        f"messages over {links[n].name} take {_ms(means_s[n])} on average, over most links {_ms(usual_s)}"
        for n in slow[:MOST_NAMED]
    )
    return Cause("communication", Scope("link", tuple(links[n].name for n in slow)), told, amended_s)


def slow_workers(what_if: WhatIf, busy_s: Times) -> Cause | None:
    """Workers that compute longer than their stage's peers; amended, they are as fast as these."""
    passes_s = _passes_s(what_if, busy_s)
    factors = {kind: _against_peers(times_s) for kind, times_s in passes_s.items()}
    slow = np.argwhere(_against_peers(sum(passes_s.values(), np.zeros((1, 1)))) > NOTICEABLE)
    if not len(slow):
        return None
    amended_s = busy_s.copy()
    for (stage, kind), places in computation_of(what_if).items():
        for peer in slow[slow[:, 0] == stage, 1]:
            amended_s[places, :, peer] /= factors[kind][stage, peer]
    ranks = what_if.job.ranks
    told = tuple(
        f"rank {ranks[stage][peer]} (stage {stage}) takes {_compared(factors, (stage, peer))} of its stage's peers"
        for stage, peer in slow[:MOST_NAMED]
    )
    return Cause("computation", Scope("worker", tuple(ranks[stage][peer] for stage, peer in slow)), told, amended_s)


def _against_peers(passes_s: Times) -> Times:
    """Each worker's time over that of its stage's peers."""
    usual_s = np.array([[_middle(of_stage)] for of_stage in passes_s])
    return np.where(usual_s > 0, passes_s / np.where(usual_s > 0, usual_s, 1.0), 1.0)


def uneven_stages(what_if: WhatIf, busy_s: Times) -> Cause | None:
    """Stages that compute longer than others on all peers; amended, all stages take the mean of all."""
    passes_s = {kind: times_s.mean(axis=1) for kind, times_s in _passes_s(what_if, busy_s).items()}
    total_s = sum(passes_s.values(), np.zeros(1))
    slow = np.flatnonzero(total_s > NOTICEABLE * total_s.mean())
    if not len(slow):
        return None
    amended_s = busy_s.copy()
    for (stage, kind), places in computation_of(what_if).items():
        if passes_s[kind][stage] > 0:
            amended_s[places] *= passes_s[kind].mean() / passes_s[kind][stage]
    factors = {kind: times_s / (_middle(times_s) or 1.0) for kind, times_s in passes_s.items()}
    told = tuple(f"stage {stage} takes {_compared(factors, stage)} of all stages" for stage in slow[:MOST_NAMED])
    return Cause("computation", Scope("stage", tuple(str(stage) for stage in slow)), told, amended_s)


def uneven_data(what_if: WhatIf, busy_s: Times) -> Cause | None:
    """Micro-batches of unlike length, or pauses that meet now this one, now that; amended, a worker's are all alike."""
    correlation = _correlation(what_if, busy_s)
    if correlation >= CORRELATED:
        told = "passes differ by the micro-batch, so by its data (sequences of unlike length, say), on all workers"
    else:
        told = "passes differ from one to the next, and not by the micro-batch: pauses, or others on the same machines"
    evidence = (told, f"forward and backward passes of a micro-batch have a correlation of {correlation:.2f}")
    return Cause("computation", Scope(), evidence, alike(what_if, busy_s))


def _correlation(what_if: WhatIf, busy_s: Times) -> float:
    """That of forward and backward passes of the same micro-batch on the same worker: the median of all workers."""
    backward_of = {(o.stage, o.model_chunk, o.microbatch): n for n, o in _of_kind(what_if, kinds.BACKWARD)}
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for place, o in _of_kind(what_if, kinds.FORWARD):
        if (backward := backward_of.get((o.stage, o.model_chunk, o.microbatch))) is not None:
            pairs[o.stage, o.model_chunk].append((place, backward))
    found: list[float] = []
    for places in pairs.values():
        forward_s, backward_s = (_centred(busy_s[list(side)]) for side in zip(*places, strict=True))
        spread = np.sqrt((forward_s**2).sum(axis=(0, 1)) * (backward_s**2).sum(axis=(0, 1)))
        is_spread = spread > 0
        found.extend((forward_s * backward_s).sum(axis=(0, 1))[is_spread] / spread[is_spread])
    return float(np.median(found)) if found else 0.0


def _of_kind(what_if: WhatIf, kind: str) -> list[tuple[int, Operation]]:
    return [(place, o) for place, o in enumerate(what_if.job.operations) if o.kind == kind]


def _centred(times_s: Times) -> Times:
    centred_s: Times = times_s - times_s.mean(axis=(0, 1))
    return centred_s


def slow_communication(what_if: WhatIf, busy_s: Times) -> Cause | None:
    """Messages and collectives that take longer than is usual, wherever; amended, they take what is usual."""
    is_one = np.array([o.kind in kinds.COMMUNICATION for o in what_if.job.operations])[:, None, None]
    amended_s = np.where(is_one, np.minimum(busy_s, what_if.usual_s), busy_s)
    excess_s = {
        kind: sum(float((busy_s - amended_s)[n].sum()) for n, o in enumerate(what_if.job.operations) if o.kind == kind)
        for kind in kinds.COMMUNICATION
    }
    worst = max(excess_s, key=lambda kind: excess_s[kind])
    told = f"communication beyond its median, most of it in {worst}, and not on single links"
    return Cause("communication", Scope(), (told,), amended_s)


def _passes_s(what_if: WhatIf, busy_s: Times) -> dict[str, Times]:
    """What a forward and a backward pass takes on average, by stage and peer."""
    passes_s = {kind: np.zeros((len(what_if.job.ranks), what_if.job.peers)) for kind in kinds.COMPUTE}
    for (stage, kind), places in computation_of(what_if).items():
        passes_s[kind][stage] = busy_s[places].mean(axis=(0, 1))
    return passes_s


def _middle(times_s: Times) -> float:
    """The median; of two middle ones the lower, for one of two that are compared may be slow."""
    return float(np.sort(times_s)[(len(times_s) - 1) // 2])


def _compared(factors: Mapping[str, Times], place: int | tuple[int, int]) -> str:
    told = " and ".join(f"{factors[kind][place]:.2f} times in {kind}" for kind in kinds.COMPUTE)
    return f"{told} what is the median"


def _ms(time_s: float) -> str:
    return f"{1e3 * time_s:.3g} ms"
