"""Slow links and slow workers of a running job, out of what its workers measure in each iteration.

Adaptra, section 6, watches the transfers of a job that runs. What counts as slow is said in `Expected`, and when it is
reported and taken back in `job.py`; numbers are those of three iterations in a row.

* **Links of a pipeline.** A message's delay is when it was there less when it was handed over. A link's is the median
  of an iteration, in both directions; their mean, where both are known, does not depend on how far the clocks of two
  hosts are apart. It is slow when it is `least_s` more than usual: than what the job's first plan expects of it, or
  than the best that was seen, of the link itself or, if that is less, of the middle one of all links (of three or more,
  for a link may be slow from the start). What was seen counts up to `MARGIN` times `least_s` above the plan only, once
  a link has been measured `SETTLED` times: so links are found that are slow from the start, a lone one or all of them.
  Where operations take longer than planned, the plan is wrong for everything: then both count as many times as much.
* **Links of peers.** The sum of a group lasts from when its last worker began until its first one had it. In a group of
  two, what it lasts longer than usual is 2(n-1) = 2 delays of a ring. Larger groups do not tell which of their pairs it
  is: they are suspects (job.py) until they are examined (resilient.py). A link that is found so is well again
  when probes, or the group's sums, are. Two workers that move to another stage together bring their usual time along.
* **Workers.** How many times as long as planned its operations take, over the median of all workers, less what the
  first plan knows already; from three workers on.
* **Everybody**, where iterations take longer for no reason that is known (job.py).

A redone iteration counts as it was done last. An iteration is judged when all workers have told of it, or the next but
one has begun; what is told later of it is not looked at. Nothing is kept but some numbers for each pair of the job's
workers and two iterations' measurements, whatever comes.
"""

from collections.abc import Collection, Iterator, Mapping
from statistics import median
from typing import TypeVar

from ....schemas.conditions import HEALTHY, Conditions, Pair, SlowLink, SlowWorker, pair_of
from ....schemas.plan import Plan, delay_at_home_s
from ....schemas.protocols import Measured
from .job import (
    FEWEST,
    GOOD,
    GROUPS_KEPT,
    SLOW_PACE,
    Expected,
    Group,
    GroupSums,
    Hysteresis,
    WholeIterations,
    group_sums_s,
    judged,
)

SETTLED = 5  # measurements after which the best one is no chance of a beginning
# A message is late by this share of the shortest F and I of a stage, and at least by so many seconds.
LATE = 0.2
LATE_S = 0.003
MARGIN = 3  # of what makes a message late; by so much a plan may be wrong about all links
DIGITS_S = 6
DIGITS = 2

Reports = Mapping[str, Measured]
Known = TypeVar("Known")


class LiveMonitor:
    """Finds slow links and slow workers (a `Monitor`).

    Args:
        workers: the names of all workers that the job can have; nobody else is listened to.
        present: those with whom it begins.
        expected: what is usual.
        is_resumed: whether another monitor may have said something before; then this one says what it finds in any case
            once it has seen a few iterations.
    """

    def __init__(
        self, workers: Collection[str], present: Collection[str], expected: Expected, is_resumed: bool = False
    ) -> None:
        self._names, self._expected = frozenset(workers), expected
        self._present = set(present)
        self._judged = -1
        self._reports: dict[int, dict[str, Measured]] = {}
        self._links: dict[Pair, Hysteresis] = {}
        self._workers: dict[str, Hysteresis] = {}
        self._best_delay_s: dict[Pair, float] = {}
        self._seen: dict[Pair, int] = {}  # in how many iterations a delay was measured
        self._best_sum_s: dict[Pair, float] = {}
        self._sums = GroupSums(expected, GROUPS_KEPT * len(self._names))
        self._whole = WholeIterations()
        self._suspects: tuple[Group, ...] = ()
        self._count = 0
        self._said: Conditions | None = None if is_resumed else HEALTHY

    def note(self, measured: Measured) -> Conditions | None:
        """A worker has finished an iteration; gives what is slow from now on if that has changed, else None."""
        if measured.worker not in self._names:
            return None
        self._present.add(measured.worker)
        if measured.iteration <= self._judged:
            return None
        reports = self._reports.setdefault(measured.iteration, {})
        if measured.worker in reports:  # it is being redone
            reports.clear()
        reports[measured.worker] = measured
        there = self._present
        whole = [n for n, reports in self._reports.items() if len(there) <= len(reports) and there <= reports.keys()]
        last = max([*whole, max(self._reports) - 2])
        ripe = [number for number in sorted(self._reports) if number <= last]
        for iteration in ripe:
            self._judge(iteration, self._reports.pop(iteration))
        found = self._conditions()
        is_too_early = self._said is None and found == HEALTHY and self._count < GOOD
        if not ripe or found == self._said or is_too_early:
            return None
        self._said = found
        return found

    def forget(self, worker: str) -> None:
        """Whatever is known of a worker and its links holds no longer; the iteration under way is reported of again."""
        if worker in self._present:
            self._present.remove(worker)
            self._reports.clear()
        self._workers.pop(worker, None)
        self._sums.forget(worker)
        self._suspects = tuple(group for group in self._suspects if worker not in group)
        self._links = _without(worker, self._links)
        self._best_delay_s = _without(worker, self._best_delay_s)
        self._seen = _without(worker, self._seen)
        self._best_sum_s = _without(worker, self._best_sum_s)
        if self._said is not None:
            self._said = self._conditions()  # whoever is told of the worker's end forgets as much

    def _judge(self, iteration: int, reports: Reports) -> None:
        self._judged = iteration
        self._count += 1
        self._present = set(reports)  # others have no place any more
        sums_s = group_sums_s(reports)
        self._sums.note(iteration, sums_s)
        self._judge_links(iteration, reports, sums_s.keys())
        planned = self._expected.slowdown
        paces = {name: one.pace / planned.get(name, 1.0) for name, one in reports.items() if one.pace is not None}
        usual = median(paces.values()) if len(paces) >= FEWEST else 0.0
        for name in {*self._workers, *paces}:
            worker = self._workers.setdefault(name, Hysteresis())
            if usual and name in paces:
                worker.note(iteration, paces[name] / usual, 1.0, SLOW_PACE)
            else:
                worker.pass_by(iteration)
        for group in self._suspects:
            if all(name in reports and reports[name].examined is not None for name in group):
                self._judge_examined(iteration, group, reports)
        workers = (name for name, worker in self._workers.items() if worker.found is not None)
        self._whole.note(reports, frozenset([*self._slow_links(), *workers, *self._sums.slow]))
        groups = self._sums.suspects(iteration, self._slow_links(), sums_s)
        self._suspects = tuple(sorted({*groups, *self._whole.suspects(iteration)}))

    def _judge_links(self, iteration: int, reports: Reports, groups: Collection[Group]) -> None:
        delays_s, sums_s = dict(_delays_s(reports)), {}
        for name, one in reports.items():  # how long the sums of groups of two took
            other = reports.get(one.peers[0]) if len(one.peers) == 1 else None
            if other is None or other.peers != (name,) or not name < other.worker:
                continue
            if one.reduction_s is not None and other.reduction_s is not None:
                (began_s, ended_s), (also_began_s, also_ended_s) = one.reduction_s, other.reduction_s
                taken_s = min(ended_s, also_ended_s) - max(began_s, also_began_s)
                sums_s[name, other.worker] = max(0.0, taken_s)
        self._keep_best(self._best_delay_s, delays_s)
        self._keep_best(self._best_sum_s, sums_s)
        bests_s = self._best_delay_s.values()
        middle_s = median(bests_s) if len(bests_s) >= FEWEST else None
        pace = max(1.0, median([one.pace for one in reports.values() if one.pace is not None] or [1.0]))
        self._seen.update((pair, self._seen.get(pair, 0) + 1) for pair in delays_s)
        for pair in {*self._links, *delays_s, *sums_s}:
            link = self._links.setdefault(pair, Hysteresis())
            if pair in delays_s:
                # What is expected of a link, or what was seen.
                planned_s = self._expected.delay_s(*pair)
                known_s = [best_s for best_s in (self._best_delay_s.get(pair), middle_s) if best_s is not None]
                if known_s and self._seen.get(pair, 0) >= SETTLED:
                    known_s.append(pace * (planned_s + MARGIN * self._expected.least_s))
                link.note(iteration, delays_s[pair], max(planned_s, min(known_s, default=0.0)), self._expected.least_s)
            elif pair in sums_s:
                usual_s = max(self._expected.sum_s(*pair), self._best_sum_s.get(pair, 0.0))
                link.note(iteration, max(0.0, sums_s[pair] - usual_s) / 2, 0.0, self._expected.least_s)
            elif link.found is not None and (excess_s := self._sums.excess_s(pair, groups)) is not None:
                # The sum is as slow as the slowest link: one that is less slow cannot be told from it.
                link.note(iteration, min(link.found, excess_s), 0.0, self._expected.least_s)
            else:
                link.pass_by(iteration)

    def _keep_best(self, best_s: dict[Pair, float], measured_s: Mapping[Pair, float]) -> None:
        """Note the best values; what is first measured of a link that has been found slow is not usual for it."""
        for pair, value_s in measured_s.items():
            if pair in best_s:
                best_s[pair] = min(value_s, best_s[pair])
            elif pair not in self._links or self._links[pair].found is None:
                best_s[pair] = value_s

    def _judge_examined(self, iteration: int, group: Group, reports: Reports) -> None:
        """Of a link or worker that measures itself all the time, that has the last word in the iterations to come."""
        found = judged(
            {name: one.examined for name, one in reports.items() if name in group and one.examined}, self._expected
        )
        measured = dict(_delays_s(reports)).keys()
        # The pairs that have something to send to each other, or take part in a sum.
        used = set()
        for name, one in reports.items():
            others = {*one.peers, *(to for to, _, _ in one.sent), *(source for source, _, _ in one.arrived)}
            used |= {pair_of(name, other) for other in others & reports.keys() if other != name}
        for pair in found.tried & used:
            if pair in found.links or pair not in measured:
                self._links.setdefault(pair, Hysteresis()).settle(iteration, found.links.get(pair))
        for name, factor in found.workers.items():
            self._workers.setdefault(name, Hysteresis()).settle(iteration, factor)
        self._sums.examined(iteration, group)
        self._whole.examined(iteration, group)

    def _slow_links(self) -> list[Pair]:
        return [pair for pair, link in self._links.items() if link.found is not None]

    def _conditions(self) -> Conditions:
        links = ((pair, link.found) for pair, link in self._links.items() if link.found is not None)
        workers = ((name, worker.found) for name, worker in self._workers.items() if worker.found is not None)
        return Conditions(
            tuple(SlowLink(pair, round(delay_s, DIGITS_S)) for pair, delay_s in sorted(links)),
            tuple(SlowWorker(name, round(factor, DIGITS)) for name, factor in sorted(workers)),
            suspects=self._suspects,
        )


def _delays_s(reports: Reports) -> Iterator[tuple[Pair, float]]:
    """The delay of each pair of workers of which a message is known at both ends."""
    found: dict[Pair, list[float]] = {}
    for name, there in reports.items():
        since_s = {
            sender: {number: at_s for to, number, at_s in reports[sender].sent if to == name}
            for sender in {sender for sender, _, _ in there.arrived}
            if sender in reports and sender != name
        }
        for sender, sent_s in since_s.items():
            taken_s = [at_s - sent_s[n] for one, n, at_s in there.arrived if one == sender and n in sent_s]
            if taken_s:
                found.setdefault(pair_of(name, sender), []).append(median(taken_s))
    return ((pair, max(0.0, sum(ways) / len(ways))) for pair, ways in found.items())


def _without(worker: str, known: Mapping[Pair, Known]) -> dict[Pair, Known]:
    return {pair: value for pair, value in known.items() if worker not in pair}


def monitor_of(plan: Plan, is_resumed: bool = False) -> LiveMonitor:
    """What finds the slow links and workers of a job.

    A message is late by a share (`LATE`) of the shortest F and I of a stage, for that is what it delays, or by
    `LATE_S`, which a scheduler or the measurement itself may take.

    Args:
        plan: that the job starts with.
        is_resumed: whether the job may have begun under another coordinator.
    """
    stages = {worker.name: plan.stages_of(worker) for worker in plan.workers}
    shortest_s = min(stage.forward_s + stage.backward_input_s for held in stages.values() for stage in held)
    sum_s = {name: sum(stage.allreduce_s for stage in held) for name, held in stages.items()}
    expected = Expected(
        least_s=max(LATE_S, LATE * shortest_s),
        delay_s=lambda one, other: delay_at_home_s(plan, one, other),
        sum_s=lambda one, other: max(sum_s[one], sum_s[other]),
        slowdown={worker.name: worker.slowdown for worker in plan.workers if worker.slowdown is not None},
    )
    present = [worker.name for worker in plan.live_workers()]
    return LiveMonitor(list(sum_s), present, expected, is_resumed)
