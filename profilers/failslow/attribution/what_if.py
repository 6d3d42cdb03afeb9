"""What a job would take if some of its operations took what is usual of their kind.

After "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25), sections 3 and 4, with the
definitions of the published tool (github.com/ByteDance-Seed/StragglerAnalysis): computation's own time is its duration,
that of communication begins when its last member has started. Usual is the mean of a kind over all steps, stages and
peers for computation, the median for communication. Time between operations, in which no operation that it waits for
is at work, is left out of both sides.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ....schemas.detection import Attribution, FailSlow, FileFindings, Scope
from ....schemas.errors import InvalidInputError
from ....schemas.quantities import print_time
from . import table
from .operations import Dependencies, Operations, StageOperation, arrange, dependencies_of
from .table import Times, looks_like_one, read_table

T = TypeVar("T")
Mask = NDArray[np.bool_]  # by operation, step and peer; dimensions of length 1 stand for all

# The share of the workers that counts as the slowest ones (the paper's M_W).
SLOWEST = 0.03


def replay(job: Operations, dependencies: Dependencies, busy_s: Times, late_s: Times | None = None) -> Times:
    """When each operation is over, if they take these times.

    Args:
        job: whose operations.
        dependencies: what each waits for.
        busy_s: what each takes once it and all that start with it have started, by operation, step and peer.
        late_s: how much later than it could each starts; None: all at once.

    Returns:
        The ends in s since the beginning of the step, by operation, step and peer.
    """
    end_s = np.zeros_like(busy_s)
    for event in dependencies.events:
        begin_s = None
        for member in event.members:
            could_s = _latest(end_s, dependencies.before[member], job)
            own_s = could_s if late_s is None else could_s + late_s[member]
            begin_s = own_s if begin_s is None else np.maximum(begin_s, own_s)
        assert begin_s is not None
        if event.among_peers:
            begin_s = begin_s.max(axis=1, keepdims=True)
        for member in event.members:
            end_s[member] = begin_s + busy_s[member]
    return end_s


def _latest(end_s: Times, before: tuple[int, ...], job: Operations) -> Times:
    """The last end of some operations, by step and peer."""
    if not before:
        return np.zeros((job.steps, job.peers))
    latest_s: Times = end_s[before[0]]
    for one in before[1:]:
        latest_s = np.maximum(latest_s, end_s[one])
    return latest_s


@dataclass(frozen=True, slots=True, eq=False)
class WhatIfModel:
    """A job's measured operations, and what is usual.

    Attributes:
        job: the operations.
        dependencies: what each waits for.
        busy_s: what each took on its own, waiting left out, by operation, step and peer.
        late_s: how much later than it could each started.
        usual_s: what is usual, by operation; the other dimensions are 1.
    """

    job: Operations
    dependencies: Dependencies
    busy_s: Times
    late_s: Times
    usual_s: Times

    @classmethod
    def of(cls, job: Operations, where: str) -> "WhatIfModel":
        """Take a job's measurements apart.

        Args:
            job: the operations.
            where: the file, for errors.

        Raises:
            InvalidInputError: messages do not fit to the micro-batches, or nothing takes any time.
        """
        dependencies = dependencies_of(job, where)
        # What operations took from the last start of their event on.
        busy_s = job.duration_s.copy()
        for event in dependencies.events:
            if job.operations[event.members[0]].kind in table.WAITING:
                members = list(event.members)
                begin_s = job.start_s[members].max(axis=0)
                begin_s = begin_s.max(axis=1, keepdims=True) if event.among_peers else begin_s
                # A message may be on its way before its receiver asks for it: then it takes nothing.
                busy_s[members] = np.maximum(job.end_s[members] - begin_s, 0.0)
        late_s = np.stack([job.start_s[n] - _latest(job.end_s, b, job) for n, b in enumerate(dependencies.before)])
        if not busy_s.any():
            raise InvalidInputError("no operation takes any time", where=where, fix="give durations in seconds")
        of_kind = np.array([o.kind for o in job.operations])
        usual_s = np.empty((len(of_kind), 1, 1))
        for kind in np.unique(of_kind):
            middle = np.median if kind in table.COMMUNICATION else np.mean
            usual_s[of_kind == kind] = middle(busy_s[of_kind == kind])
        return cls(job, dependencies, busy_s, late_s, usual_s)

    def steps_s(self, busy_s: Times) -> Times:
        """What each step takes, if the operations take these times, without time between operations."""
        steps_s: Times = replay(self.job, self.dependencies, busy_s).max(axis=(0, 2))
        return steps_s

    def takes_s(self, busy_s: Times) -> float:
        """What a step takes on average."""
        return float(self.steps_s(busy_s).mean())

    def as_it_was_s(self) -> float:
        """What a step took on average, without time between operations."""
        return self.takes_s(self.busy_s)

    def ideal_s(self) -> float:
        """What a step takes if all operations of a kind take the same."""
        return self.takes_s(np.broadcast_to(self.usual_s, self.busy_s.shape))

    def without(self, mask: Mask) -> Times:
        """The operations' times, if these took what is usual."""
        return np.where(mask, self.usual_s, self.busy_s)

    def only(self, mask: Mask) -> Times:
        """The operations' times, if all but these took what is usual."""
        return np.where(mask, self.busy_s, self.usual_s)

    def on_stage(self, stage: int) -> Mask:
        """The operations of a stage."""
        return np.array([o.stage == stage for o in self.job.operations])[:, None, None]

    def of_peer(self, peer: int) -> Mask:
        """The operations of a data-parallel peer's whole pipeline."""
        mask: Mask = np.arange(self.job.peers) == peer
        return mask[None, None, :]


def slowest(slowness: Mapping[T, float]) -> list[T]:
    """The slowest `SLOWEST` of some, at least one, the slowest first; of equals, the first."""
    ordered = sorted(slowness, key=lambda one: -slowness[one])
    return ordered[: math.ceil(SLOWEST * len(ordered) - 1e-9)]


# What a slow-down comes from: the remedies that help, the best one first, each on top of those before.


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
class CauseEffect:
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


Remedy = Callable[[WhatIfModel, Times], Cause | None]


def causes_of(what_if: WhatIfModel) -> tuple[CauseEffect, ...]:
    """Everything that slows a job down by more than `NOTICEABLE`, what costs most first.

    Each remedy is tried on what the job takes after those that were found before; of those that help about the same,
    the one with the narrowest scope is taken. The paper's shares fix the slowest 3 % of workers, however many are slow.
    Remedies are for all that are slow by comparison with their like: fixing one of two slow workers helps nobody.

    Args:
        what_if: the job.
    """
    busy_s, now_s = what_if.busy_s, what_if.steps_s(what_if.busy_s)
    found: list[CauseEffect] = []
    left: list[Remedy] = [slow_links, slow_workers, uneven_stages, uneven_data, slow_communication]
    while left:
        tried = [(remedy, cause) for remedy in left if (cause := remedy(what_if, busy_s)) is not None]
        effects = [CauseEffect(cause, now_s, what_if.steps_s(cause.amended_s)) for _, cause in tried]
        most = max((effect.slowdown for effect in effects), default=1.0)
        if most < NOTICEABLE:
            break
        chosen = next(n for n, effect in enumerate(effects) if effect.slowdown - 1 >= AS_GOOD * (most - 1))
        found.append(effects[chosen])
        left.remove(tried[chosen][0])
        busy_s, now_s = effects[chosen].cause.amended_s, effects[chosen].after_s
    return tuple(found)


def slow_links(what_if: WhatIfModel, busy_s: Times) -> Cause | None:
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
        f"messages over {links[n].name} take {print_time(means_s[n])} on average, over most links {print_time(usual_s)}"
        for n in slow[:MOST_NAMED]
    )
    return Cause("communication", Scope("link", tuple(links[n].name for n in slow)), told, amended_s)


def slow_workers(what_if: WhatIfModel, busy_s: Times) -> Cause | None:
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


def uneven_stages(what_if: WhatIfModel, busy_s: Times) -> Cause | None:
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


def uneven_data(what_if: WhatIfModel, busy_s: Times) -> Cause | None:
    """Micro-batches of unlike length, or pauses that meet now this one, now that; amended, a worker's are all alike."""
    correlation = _correlation(what_if, busy_s)
    if correlation >= CORRELATED:
        told = "passes differ by the micro-batch, so by its data (sequences of unlike length, say), on all workers"
    else:
        told = "passes differ from one to the next, and not by the micro-batch: pauses, or others on the same machines"
    evidence = (told, f"forward and backward passes of a micro-batch have a correlation of {correlation:.2f}")
    return Cause("computation", Scope(), evidence, alike(what_if, busy_s))


def _correlation(what_if: WhatIfModel, busy_s: Times) -> float:
    """That of forward and backward passes of the same micro-batch on the same worker: the median of all workers."""
    backward_of = {(o.stage, o.model_chunk, o.microbatch): n for n, o in _of_kind(what_if, table.BACKWARD)}
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for place, o in _of_kind(what_if, table.FORWARD):
        if (backward := backward_of.get((o.stage, o.model_chunk, o.microbatch))) is not None:
            pairs[o.stage, o.model_chunk].append((place, backward))
    found: list[float] = []
    for places in pairs.values():
        times_s = [busy_s[list(side)] for side in zip(*places, strict=True)]
        forward_s, backward_s = (side_s - side_s.mean(axis=(0, 1)) for side_s in times_s)
        spread = np.sqrt((forward_s**2).sum(axis=(0, 1)) * (backward_s**2).sum(axis=(0, 1)))
        is_spread = spread > 0
        found.extend((forward_s * backward_s).sum(axis=(0, 1))[is_spread] / spread[is_spread])
    return float(np.median(found)) if found else 0.0


def _of_kind(what_if: WhatIfModel, kind: str) -> list[tuple[int, StageOperation]]:
    return [(place, o) for place, o in enumerate(what_if.job.operations) if o.kind == kind]


def slow_communication(what_if: WhatIfModel, busy_s: Times) -> Cause | None:
    """Messages and collectives that take longer than is usual, wherever; amended, they take what is usual."""
    is_one = np.array([o.kind in table.COMMUNICATION for o in what_if.job.operations])[:, None, None]
    amended_s = np.where(is_one, np.minimum(busy_s, what_if.usual_s), busy_s)
    excess_s = {
        kind: sum(float((busy_s - amended_s)[n].sum()) for n, o in enumerate(what_if.job.operations) if o.kind == kind)
        for kind in table.COMMUNICATION
    }
    worst = max(excess_s, key=lambda kind: excess_s[kind])
    told = f"communication beyond its median, most of it in {worst}, and not on single links"
    return Cause("communication", Scope(), (told,), amended_s)


def _passes_s(what_if: WhatIfModel, busy_s: Times) -> dict[str, Times]:
    """What a forward and a backward pass takes on average, by stage and peer."""
    passes_s = {kind: np.zeros((len(what_if.job.ranks), what_if.job.peers)) for kind in table.COMPUTE}
    for (stage, kind), places in computation_of(what_if).items():
        passes_s[kind][stage] = busy_s[places].mean(axis=(0, 1))
    return passes_s


def _middle(times_s: Times) -> float:
    """The median; of two middle ones the lower, for one of two that are compared may be slow."""
    return float(np.sort(times_s)[(len(times_s) - 1) // 2])


def _compared(factors: Mapping[str, Times], place: int | tuple[int, int]) -> str:
    told = " and ".join(f"{factors[kind][place]:.2f} times in {kind}" for kind in table.COMPUTE)
    return f"{told} what is the median"


# The published figures of an attribution: slow-down, and the shares of workers, of the last stage, links and data.


# Below this part of an ideal step there is nothing to share out: shares would be noise.
LEAST = 1e-3


@dataclass(frozen=True, slots=True)
class NeighbourLink:
    """The way between two neighbouring workers.

    Attributes:
        name: `a-b`, by their ranks.
        peer: the data-parallel peer.
        messages: their places in `Operations.operations`, of both directions and at both ends.
    """

    name: str
    peer: int
    messages: tuple[int, ...]


def attribution_of(what_if: WhatIfModel) -> Attribution:
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
    job = what_if.job
    stages = [what_if.takes_s(what_if.only(what_if.on_stage(s))) / ideal_s for s in range(len(job.ranks))]
    peers = [what_if.takes_s(what_if.only(what_if.of_peer(p))) / ideal_s for p in range(job.peers)]
    both = {(s, p): min(of_stage, of_peer) for s, of_stage in enumerate(stages) for p, of_peer in enumerate(peers)}
    mask = _none(what_if)
    for stage, peer in slowest(both):
        mask |= what_if.on_stage(stage) & what_if.of_peer(peer)
    return Attribution(
        slowdown=was_s / ideal_s,
        worker_share=share(what_if.without(mask)),
        stage_share=share(what_if.without(what_if.on_stage(len(what_if.job.ranks) - 1))),
        link_share=share(what_if.without(any_link(what_if, slow_links))),
        data_share=share(alike(what_if, what_if.busy_s)),
    )


def links_of(what_if: WhatIfModel) -> tuple[NeighbourLink, ...]:
    """All links over which there were messages, in the order of stages, then peers."""
    operations, ranks = what_if.job.operations, what_if.job.ranks
    messages: dict[tuple[int, int], list[int]] = defaultdict(list)
    for event in what_if.dependencies.events:
        if len(event.members) == 2 and operations[event.members[0]].kind in table.MESSAGES:
            one, other = sorted(operations[member].stage for member in event.members)
            messages[one, other] += event.members
    return tuple(
        NeighbourLink(f"{ranks[one][peer]}-{ranks[other][peer]}", peer, tuple(sorted(messages[one, other])))
        for one, other in sorted(messages)
        for peer in range(what_if.job.peers)
    )


def mean_of_link_s(busy_s: Times, link: NeighbourLink) -> float:
    """What a link's messages take on average."""
    return float(busy_s[list(link.messages), :, link.peer].mean())


def any_link(what_if: WhatIfModel, links: Iterable[NeighbourLink]) -> Mask:
    """The messages of some links, by operation, step and peer."""
    mask = _none(what_if)
    for link in links:
        mask[list(link.messages), :, link.peer] = True
    return mask


def _none(what_if: WhatIfModel) -> Mask:
    return np.zeros((len(what_if.job.operations), 1, what_if.job.peers), dtype=bool)


def alike(what_if: WhatIfModel, busy_s: Times) -> Times:
    """The operations' times, if each worker's micro-batches took the same: what they take on average, by kind."""
    evened_s = busy_s.copy()
    for places in computation_of(what_if).values():
        evened_s[places] = busy_s[places].mean(axis=(0, 1))
    return evened_s


def computation_of(what_if: WhatIfModel) -> dict[tuple[int, str], list[int]]:
    """The forward and backward passes of each stage, as places in `Operations.operations`."""
    passes: dict[tuple[int, str], list[int]] = defaultdict(list)
    for place, operation in enumerate(what_if.job.operations):
        if operation.kind in table.COMPUTE:
            passes[operation.stage, operation.kind].append(place)
    return dict(passes)


# What a table of single operations tells: the door of this folder for `rtk detect`.


KIND = "operations"


def is_operation_table(path: Path) -> bool:
    """Whether a file is a table of single operations: a Parquet file, or CSV (or .gz of it) with a column `optype`.

    Args:
        path: the file; what cannot be read is none.
    """
    try:
        return looks_like_one(path)
    except OSError:
        return False


def findings_of(path: Path) -> FileFindings:
    """Who is to blame for a job's slow-down, from the times of its operations.

    After "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25), which published the
    format: one row an operation, with the columns of `table.COLUMNS`. Samples are the table's steps, which need not be
    consecutive. An event's severity is what the step takes over what it would take without it, once all earlier events
    are amended; it lasts from the first to the last step in which it costs more than 10 %.

    Args:
        path: a Parquet file, CSV, or gzipped CSV.

    Raises:
        InvalidInputError: the table is damaged or empty, lacks a column, has a value that cannot be, or is not one of
            whole steps; or it is Parquet and pyarrow is not installed.
    """
    where = str(path)
    job = arrange(read_table(path), where)
    what_if = WhatIfModel.of(job, where)
    attribution = attribution_of(what_if)
    effects = causes_of(what_if)
    notes = _notes(what_if)
    events = tuple(_event(effect, notes if not n else ()) for n, effect in enumerate(effects))
    if not events and attribution.slowdown >= NOTICEABLE:
        told = f"a step takes {attribution.slowdown:.2f} times what it would with all operations of a kind alike"
        evidence = (told, "no link, worker or stage, nor the data, costs 10 % by itself", *notes)
        events = (FailSlow(0, None, job.steps - 1, None, attribution.slowdown, "unknown", evidence=evidence),)
    events = tuple(sorted(events, key=lambda event: event.onset))
    return FileFindings(where, KIND, job.steps, what_if.ideal_s(), events, attribution)


def _event(effect: CauseEffect, notes: tuple[str, ...]) -> FailSlow:
    """A cause as an event, over the steps that it slows."""
    slow = np.flatnonzero(effect.before_s > NOTICEABLE * effect.after_s)
    first, last = (int(slow[0]), int(slow[-1])) if len(slow) else (0, len(effect.before_s) - 1)
    cost = f"without that, a step takes {_mean(effect.after_s)} instead of {_mean(effect.before_s)}"
    return FailSlow(
        onset=first,
        provisional=None,
        confirmed=last,
        relief=last + 1 if last + 1 < len(effect.before_s) else None,
        severity=effect.slowdown,
        cause=effect.cause.of,
        scope=effect.cause.scope,
        evidence=(*effect.cause.evidence, cost, *notes),
    )


def _mean(times_s: Times) -> str:
    return print_time(float(times_s.mean()))


def _notes(what_if: WhatIfModel) -> tuple[str, ...]:
    """What limits how far the findings can be trusted."""
    job, was_s = what_if.job, what_if.as_it_was_s()
    measured_s = float(job.end_s.max(axis=(0, 2)).mean())
    notes = []
    if measured_s > NOTICEABLE * was_s:
        notes.append(f"of a step's {print_time(measured_s)}, {print_time(measured_s - was_s)} pass between operations")
    if job.left_out:
        notes.append(f"{job.left_out} steps with other operations than most were left out")
    return tuple(notes)
