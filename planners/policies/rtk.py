"""rtk's own policy: at each change whatever is cheapest, of all that the others could do.

There are several ways to hold the job (`ways.py`): Oobleck's unlike pipelines with zero-bubble orders, and SlipStream's
re-routing in grids of fewer or more stages. At every change the way in force answers, and is weighed against
each other way: what would be committed until the next failure is to be expected (`outlook.py`) with the time that the
answer takes. To go over from one way to another nobody has to stop: while training goes on in the old one, state is
copied to the hosts of those that need it in the new one, and at an iteration's end all form new groups, while GPUs load
what their hosts have. Where a failure has stopped all anyway, it can be copied there and then. That copying is the
price, and is reckoned high: each GPU gets all that it will hold anew.

What is slow is weighed in the same way, once it has been found (`found.py`): go on with it, give fewer micro-batches to
who is slow, do without slow nodes as if they had failed, though without their haste, or hold the job in another way.

Checkpoints are there for a failure that takes all nodes which hold some layer, and for nothing else: all others leave
the state with peers. So Young's formula is taken with the rate of those, as far as it is sure to be low. Where three
nodes or more hold each layer, failures that have been seen count, divided by the number of other nodes: as if each took
along a second node, any with like odds, and that one were the only other one with its layers. Where two do, nothing is
taken off what all policies reckon with. Where one does, all failures count that have been seen; and a formation is
judged by what the next of them will cost. While groups form, GPUs save their state to their hosts, so that fewer
checkpoints stop them for that alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import cast

from ...schemas.plan import Place, Plan
from ...schemas.replay import Checkpointing, Fleet, Moment, Pause, StateChange, TrainingState
from .checkpoints import loading_s
from .copies import copying_s
from .found import NOTHING, DetectionState
from .job import TrainingJob
from .outlook import until_next_failure_s
from .pauses import failing_over, regrouping, total_s
from .restart import restart
from .unheeding import paced
from .ways import Way, ways_of

# Of throughput, for which a grid with empty seats is asked at all: to plan for it takes long, and is rarely worth more.
LEAST_GAIN = 0.02
ALIKE = 1e-3  # ways whose throughputs differ by less: the first one is taken
FEW_HOLDERS = 2  # nodes that hold a layer: so many can fail at once
MOST_SPARED = 3  # sets of slow nodes that it is weighed to do without


@dataclass(frozen=True)
class RtkLayout:
    """How the job is held.

    Attributes:
        way: which.
        held: the standing as that way sees it.
        spared: slow nodes that it does without.
        found: what is slow, as far as that is known.
    """

    way: int
    held: TrainingState
    spared: frozenset[str] = frozenset()
    found: DetectionState = NOTHING


@dataclass(frozen=True)
class _Question:
    """What is to be answered.

    Attributes:
        moment: the change.
        believed: the fleet as far as it is known what is slow.
        found: what is known.
        left_s: until the next failure, in s.
    """

    moment: Moment
    believed: Fleet
    found: DetectionState
    left_s: float


class Rtk:
    """A `Policy`.

    Args:
        job: what it trains; its shape is one of the ways.

    Raises:
        InfeasibleError: no way fits the GPUs.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._ways = ways_of(job)

    def begin(self, fleet: Fleet) -> TrainingState:
        """In the fastest way; what is slow already has to be found."""
        healthy, left_s = Fleet(fleet.nodes), self._job.costs.mean_time_between_failures_s
        question = _Question(Moment(0.0, fleet), healthy, NOTHING, left_s)
        begun = [
            self._marked(way.begin(fleet, healthy), number, frozenset(), question)
            for number, way in enumerate(self._ways)
        ]
        least_per_s = max(map(_throughput, begun)) * (1 - ALIKE)
        first = next(standing for standing in begun if standing.microbatches_per_s >= least_per_s)
        found = NOTHING.by(fleet, 0.0, self._finding_s(first))
        return replace(first, formation=replace(_formation(first), found=found))

    def answer(self, standing: TrainingState, moment: Moment) -> tuple[StateChange, ...]:
        """What commits most until the next failure; and what will, once more has been found."""
        left_s = until_next_failure_s(self._job.costs, moment)
        found = self._found(standing, moment, left_s)
        steps = self._best(standing, _Question(moment, found.believed(moment.fleet), found, left_s))
        last, due_s = steps[-1].standing if steps else standing, found.due_s
        if due_s is not None and last.iteration_time_s is not None:
            after_s = max(due_s - moment.time_s, sum(total_s(step.pauses) for step in steps))
            still = replace(moment, lost=(), came=())
            later = self._best(last, _Question(still, moment.fleet, found.all(), left_s))
            steps = (*steps, *(replace(step, after_s=step.after_s + after_s) for step in later))
        return tuple(map(_saving, steps))

    def plan(self, standing: TrainingState) -> Plan | None:
        """Of the way in force."""
        return self._way(standing).policy.plan(_formation(standing).held)

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """Of the way in force."""
        return self._way(standing).policy.seats(_formation(standing).held)

    def _found(self, standing: TrainingState, moment: Moment, left_s: float) -> DetectionState:
        """What is known of the fleet; what has changed just now is told from iterations as they are from now on."""
        before, time_s = _formation(standing).found, moment.time_s
        found = before.by(moment.fleet, time_s, float("inf"))
        if found.due_s != float("inf"):
            return found
        urgent = _urgent(self._stays(standing, _Question(moment, found.believed(moment.fleet), found, left_s)))
        return before.by(moment.fleet, time_s, self._finding_s(urgent[-1].standing if urgent else standing))

    def _finding_s(self, standing: TrainingState) -> float:
        """How long it takes to find what is slow, or well again, in s."""
        return self._job.costs.slow_detection_iterations * (standing.iteration_time_s or 0.0)

    def _best(self, standing: TrainingState, question: _Question) -> tuple[StateChange, ...]:
        """Of all answers, that which commits most; the first one of several."""
        stays = self._stays(standing, question)
        found = [stays, _urgent(stays), *self._adapts(standing, stays, question)]
        found += self._spares(standing, question)
        found += self._changes(standing, stays, question)
        return max(found, key=lambda steps: self._expected(standing, steps, question.left_s))

    def _expected(self, standing: TrainingState, steps: tuple[StateChange, ...], left_s: float) -> float:
        """Micro-batches committed by the next failure, less those that it costs if it takes the state along."""
        last = steps[-1].standing if steps else standing
        if last.iteration_time_s is None or self._way(last).holders(_formation(last).held) > 1:
            return _committed(standing, steps, left_s)
        saved = last.checkpointing
        lost_s = self._job.costs.restart_s + (min(left_s, saved.every_s) / 2 if saved else left_s)
        return _committed(standing, steps, left_s) - lost_s * last.microbatches_per_s

    def _stays(self, standing: TrainingState, question: _Question) -> tuple[StateChange, ...]:
        """What the way in force does; slow nodes that it does without stay out as long as they are slow."""
        formation, moment = _formation(standing), question.moment
        spared = formation.spared.intersection(question.believed.slow)
        back = tuple(node for node in moment.fleet.nodes if node in formation.spared - spared)
        lost = tuple(node for node in moment.lost if node not in formation.spared)
        asked = replace(moment, fleet=_without(moment.fleet, spared), lost=lost, came=(*moment.came, *back))
        steps = self._asked(formation, asked, spared, question)
        same = self._marked(formation.held, formation.way, formation.spared, question)
        if (not steps or steps[0].after_s > 0) and _formation(same) != formation:
            return (paced(same), *steps)
        return steps

    def _adapts(
        self, standing: TrainingState, stays: tuple[StateChange, ...], question: _Question
    ) -> Iterator[tuple[StateChange, ...]]:
        """All stay where they are, with a plan for what is slow."""
        urgent = _urgent(stays)
        now = urgent[-1].standing if urgent else standing
        if now.iteration_time_s is None:
            return
        formation = _formation(now)
        adapted = self._adapted(formation.way, formation.held, formation.spared, question)
        if adapted != formation.held:
            costs = self._job.costs
            pauses = (Pause("planning", costs.planning_s),) if costs.planning_s else ()
            after_s = sum(total_s(step.pauses) for step in urgent)
            adapted = self._marked(adapted, formation.way, formation.spared, question)
            yield (*urgent, StateChange(adapted, "adapt", pauses, after_s))

    def _spares(self, standing: TrainingState, question: _Question) -> Iterator[tuple[StateChange, ...]]:
        """The way in force without other slow nodes than those that it does without."""
        formation, moment = _formation(standing), question.moment
        if moment.lost or standing.iteration_time_s is None:
            return
        for spared in _sets(question.believed):
            as_lost = tuple(node for node in moment.fleet.nodes if node in spared - formation.spared)
            back = tuple(node for node in moment.fleet.nodes if node in formation.spared - spared)
            if as_lost or back:
                fleet = _without(moment.fleet, spared)
                asked = replace(moment, fleet=fleet, lost=as_lost, came=(*moment.came, *back))
                steps = self._asked(formation, asked, spared, question)
                if steps and not any(step.rolls_back for step in steps):
                    yield tuple(map(_unhurried, steps))

    def _changes(
        self, standing: TrainingState, stays: tuple[StateChange, ...], question: _Question
    ) -> Iterator[tuple[StateChange, ...]]:
        """Over to each other formation, with all nodes or without slow ones."""
        urgent = _urgent(stays)
        now = urgent[-1].standing if urgent else standing
        rolls_back = any(step.rolls_back for step in urgent)
        for target in self._targets(now, question):
            if standing.iteration_time_s is None or rolls_back:
                yield self._restarts(target, lost=standing.iteration_time_s is not None)
            else:
                yield from self._goes_over(urgent, target)

    def _targets(self, now: TrainingState, question: _Question) -> Iterator[TrainingState]:
        """Other formations that are faster; most are left out by what they can give at most."""
        believed, fleet, least_per_s = question.believed, question.moment.fleet, now.microbatches_per_s
        waits = now.iteration_time_s is None
        for spared in _sets(believed):
            there, known = _without(fleet, spared), _without(believed, spared)
            for number, way in enumerate(self._ways):
                if not waits and (way.is_last or (number == _formation(now).way and not known.slow)):
                    continue
                nodes, asked_per_s = len(there.nodes), least_per_s * (1 + LEAST_GAIN * (way.grid is not None))
                if not way.may_give(nodes, asked_per_s):
                    continue
                target = self._marked(way.begin(there, known), number, spared, question)
                if target.microbatches_per_s > asked_per_s:
                    yield target

    def _goes_over(self, urgent: tuple[StateChange, ...], target: TrainingState) -> Iterator[tuple[StateChange, ...]]:
        """To another formation with the state that there is: in the pause of a failure, or beside training."""
        costs = self._job.costs
        lasts_s = copying_s(self._job, [((0, 0), (0, 1), target.peak_memory_bytes)])
        if any(step.interrupts for step in urgent):
            pauses = failing_over(costs, planning_s=costs.planning_s, copying_s=lasts_s)
            yield (StateChange(target, "re-shape", pauses, interrupts=True),)
        if urgent and urgent[-1].standing.iteration_time_s is None:
            return
        ready_s = sum(total_s(step.pauses) for step in urgent) + lasts_s
        rest_s = max(0.0, target.peak_memory_bytes / costs.snapshot_bytes_per_s - costs.regrouping_s)
        pauses = regrouping(costs, planning_s=costs.planning_s, copying_s=rest_s)
        yield (*urgent, StateChange(target, "re-shape", pauses, ready_s))

    def _restarts(self, target: TrainingState, *, lost: bool) -> tuple[StateChange, ...]:
        """In another formation, from the last checkpoint."""
        node_bytes = target.peak_memory_bytes * self._job.gpus_per_node
        return restart(self._job.costs, target, loading_s(self._job, [node_bytes]), lost=lost)

    def _asked(
        self, formation: RtkLayout, moment: Moment, spared: frozenset[str], question: _Question
    ) -> tuple[StateChange, ...]:
        """A way's answer, as this policy's; pipelines that are made anew heed what is slow from the first on."""
        found = []
        for step in self._ways[formation.way].policy.answer(formation.held, moment):
            held, pauses = step.standing, step.pauses
            if pauses:
                held = self._adapted(formation.way, held, spared, question)
                if held != step.standing and self._job.costs.planning_s:
                    pauses = (*pauses, Pause("planning", self._job.costs.planning_s))
            marked = self._marked(held, formation.way, spared, question)
            found.append(replace(step, standing=marked, pauses=pauses))
        return tuple(found)

    def _adapted(self, number: int, held: TrainingState, spared: frozenset[str], question: _Question) -> TrainingState:
        believed, fleet = _without(question.believed, spared), _without(question.moment.fleet, spared)
        return self._ways[number].adapted(held, believed, fleet)

    def _marked(self, held: TrainingState, number: int, spared: frozenset[str], question: _Question) -> TrainingState:
        """A way's standing, as this policy's."""
        formation = RtkLayout(number, held, spared, question.found)
        return replace(held, formation=formation, checkpointing=self._checkpointing(held, number, question.left_s))

    def _checkpointing(self, held: TrainingState, number: int, between_failures_s: float) -> Checkpointing | None:
        """Young's formula by failures that take all nodes that hold some layer."""
        usual, holders = held.checkpointing, self._ways[number].holders(held)
        if usual is None or self._job.costs.checkpoint_every_s is not None or holders == FEW_HOLDERS:
            return usual
        others = held.nodes - 1 if holders > FEW_HOLDERS else 1
        return replace(usual, every_s=sqrt(2 * usual.pause_s * between_failures_s * others))

    def _way(self, standing: TrainingState) -> Way:
        return self._ways[_formation(standing).way]


def _urgent(steps: tuple[StateChange, ...]) -> tuple[StateChange, ...]:
    """What cannot wait: where nodes are lost, or the pace has changed."""
    return tuple(step for step in steps if step.interrupts or (step.after_s == 0 and not step.pauses))


def _unhurried(step: StateChange) -> StateChange:
    """Of the answer to a failure that is none: nobody has to notice it, and no iteration is lost."""
    pauses = tuple(pause for pause in step.pauses if pause.kind != "detecting")
    return replace(step, answer="leave out", pauses=pauses, interrupts=False)


def _saving(step: StateChange) -> StateChange:
    """While groups form, GPUs have nothing to do but to send their state to their hosts."""
    every, pauses = step.standing.checkpointing, list(step.pauses)
    if every is None or step.rolls_back or not every.pause_s:
        return step
    for number, pause in enumerate(pauses):
        if pause.kind == "restarting" and pause.lasts_s >= every.pause_s:
            pauses[number : number + 1] = [
                Pause("restarting", pause.lasts_s - every.pause_s),
                Pause("checkpointing", every.pause_s),
            ]
            return replace(step, pauses=tuple(pauses))
    return step


def _sets(believed: Fleet) -> list[frozenset[str]]:
    """Slow nodes to do without: none, and those that are at least so slow, the slowest first."""
    limits = sorted(set(believed.slow.values()), reverse=True)[:MOST_SPARED]
    slow = believed.slow.items()
    return [frozenset(), *(frozenset(node for node, factor in slow if factor >= limit) for limit in limits)]


def _committed(standing: TrainingState, steps: Iterable[StateChange], left_s: float) -> float:
    """Micro-batches that are expected until the next failure, which is so many seconds away."""
    now_s, found = 0.0, 0.0
    for step in steps:
        due_s = min(max(now_s, step.after_s), left_s)
        found += (due_s - now_s) * standing.microbatches_per_s
        if step.interrupts:
            found -= standing.microbatches / 2
        now_s, standing = min(left_s, due_s + total_s(step.pauses)), step.standing
    return found + (left_s - now_s) * standing.microbatches_per_s


def _throughput(standing: TrainingState) -> float:
    return standing.microbatches_per_s


def _without(fleet: Fleet, spared: frozenset[str]) -> Fleet:
    """The fleet without some nodes."""
    if not spared:
        return fleet
    return Fleet(
        tuple(node for node in fleet.nodes if node not in spared),
        {node: factor for node, factor in fleet.slow.items() if node not in spared},
        {pair: delay_s for pair, delay_s in fleet.slow_links.items() if not spared & {*pair}},
    )


def _formation(standing: TrainingState) -> RtkLayout:
    return cast("RtkLayout", standing.formation)
