"""What stands between a coordinator's rules and processes: it makes of all ranks of a worker one member.

The rules (rules.py) know workers. A worker of one rank passes through as it is. Of a worker of several ranks (tensor
parallelism) the processes `k/i:0`, `k/i:1`, … are gathered here: once all are there, on one machine, the rules hear of
*one* arrival, on a connection with a negative number. What the rules tell that connection goes to all its ranks; what
the ranks say is merged (rank_merging.py) and heard once all have said it.

Where a rank is lost, the rules lose the worker. Its other ranks are orphans: they keep their processes, hear of the
epoch that begins without them, and wait. When another process of the missing rank is there, the worker arrives anew;
if one waited before (a standby), in the same moment, and then orphans still have their state as of the last commit:
they are left out of the copies (`Copy.ranks`), so that only the part of the lost rank is sent.

Where the job allows it (`Job.lower`) and it is predicted to be faster (lowering.py), orphans do not wait: as many as a
smaller degree takes become its ranks (`Reshape`), and the worker arrives anew, as a slow one. Once there is a process
for each rank of the plan's degree, it leaves at a commit, if it can be spared, and all of them become what they were
started as.

Pure and deterministic, as the rules are: the coordinator's log (journal.py) has the events of processes, and replaying
it through the gate leads to the same rules.

NTP ("Nonuniform-Tensor-Parallelism", 2025) names the problem: one lost GPU costs a whole tensor-parallel group.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...schemas.documents import digest
from .announcements import (
    Announcement,
    DegreeRaised,
    RanksOrphaned,
    RanksReplaced,
    WorkerFailed,
    WorkerLeft,
    WorkerRefused,
)
from .events import Announce, Arrived, Drop, Event, Finish, Instruction, Lost, MakePlan, Planned, Restarted, Said, Tell
from .lowering import DegreeChooser, shapes_for
from .membership import stranger_to
from .progress import FAILED, HUNG
from .protocol import (
    Copy,
    End,
    Epoch,
    FromCoordinator,
    Halt,
    Hello,
    Inquiry,
    Leaving,
    LossesTold,
    Publish,
    Published,
    Ready,
    Refused,
    Regroup,
    Reshape,
    Reshaped,
    Returning,
    Saved,
    StandingTold,
    StateLost,
    Suspect,
    Vote,
    Whereabouts,
)
from .rank_merging import (
    has_all,
    known_by_all,
    unlike_votes,
    worker_hello,
    worker_ready,
    worker_standing,
    worker_vote,
)
from .rank_units import AwaitedUnit, RankProcess, Shape, WorkerUnit
from .rules import CoordinatorRules


class UnitGate:
    """The rules of a coordinator, for processes.

    Args:
        rules: of the job, which know workers.
    """

    def __init__(self, rules: CoordinatorRules) -> None:
        job = rules.job
        self._rules, self._job = rules, job
        self._degrees = {worker.name: job.plan.gpus_of(worker) for worker in job.plan.workers}
        self._digest = digest(job.plan)
        self._settings: dict[str, Any] | None = None
        self._processes: dict[int, RankProcess] = {}
        self._ranks = defaultdict[str, list[RankProcess]](list)  # the same by worker, in the order of their arrival
        self._stirred: dict[str, None] = {}  # workers that may be whole by now
        self._units: dict[int, WorkerUnit] = {}
        self._awaited: dict[str, AwaitedUnit] = {}
        self._dismissed: list[RankProcess] = []  # who has been told to end, and is forgotten in a moment
        self._chooser = None if job.lower is None else DegreeChooser(job.lower)
        self._short: dict[str, None] = {}  # workers that may lack ranks, or work at a smaller degree
        self._raising: set[str] = set()  # those of the latter that are to leave, to be whole again
        self._count = 0  # of units so far
        self._epoch: tuple[Epoch, Epoch] | None = None  # the last one, as the rules and as the ranks know it
        self._announced: Epoch | Regroup | Halt | None = None  # what orphans have heard last
        self._seen = rules.committed  # the last commit by which somebody's time has come
        self._now_s = 0.0
        self._out: list[Instruction] = []
        self._notes: list[Instruction] = []

    def handle(self, event: Event) -> list[Instruction]:
        """What to do now that this has happened; arguments and results are of processes."""
        self._now_s, self._out = event.now_s, []
        match event:
            case Arrived():
                self._arrive(event)
            case Lost():
                self._lose(event)
            case Said():
                self._hear(event)
            case Restarted():
                self._restart(event)
            case Planned() if self._chooser is not None and self._chooser.note(event):
                pass
            case _:
                self._pass(event)
        self._let_those_come_whose_time_has_come()
        while arrived := self._made_whole():  # also of who is left without those whom the rules have given up
            self._pass(*arrived)
        if self._chooser is not None and self._rules.phase == "running":
            for worker in list(self._short):
                self._mend(worker, self._chooser)
        notes, self._notes = self._notes, []
        return self._out + notes

    # Who is there

    def _arrive(self, event: Arrived) -> None:
        hello = event.hello
        refusal = self._refusal(hello)
        if refusal is not None:
            self._out += [Tell(event.connection, refusal), Drop(event.connection)]
            self._announce(WorkerRefused(worker=hello.process, reason=refusal.reason))
        elif hello.ranks == 1:
            self._pass(event)
        else:
            self._settings = hello.job
            process = RankProcess(event.connection, hello)
            if hello.returning is not None:
                process.was_seated = True
                process.entered = process.dropped = hello.returning.epoch
            self._processes[event.connection] = process
            self._ranks[hello.worker].append(process)
            self._stir(hello.worker)
            if self._is_awaited(process):
                self._take_back(process)

    def _stir(self, worker: str) -> None:
        """Something has changed by which a worker may be whole now, or not any more."""
        self._stirred[worker] = self._short[worker] = None

    def _refusal(self, hello: Hello) -> Refused | None:
        """Why a process may not come in; the rules see to workers of one rank, and to names that the plan lacks."""
        degree = self._degrees.get(hello.worker, hello.ranks)
        if hello.ranks != degree:
            ranks = "a single GPU" if hello.ranks == 1 else f"one of {hello.ranks} ranks"
            return Refused(f"it is {ranks}, and the plan has {degree} of worker {hello.worker}")
        if degree == 1:
            return None
        if hello.rank >= degree:
            return Refused(f"there is no rank {hello.rank} among the {degree} of worker {hello.worker}")
        if self._rules.phase in ("halting", "ended"):
            return Refused("the job is over")
        progress = (self._rules.epoch, self._rules.committed)
        reason = stranger_to(hello, self._digest, self._settings, self._degrees, progress)
        return self._double(hello) if reason is None else Refused(reason)

    def _double(self, hello: Hello) -> Refused | None:
        """Refuse a second process that waits for the same thing, and one on another machine than its partners."""
        newcomer = RankProcess(-1, hello)
        if self._is_awaited(newcomer):
            return None
        waiting = [one for one in self._waiting(hello.worker) if not self._is_awaited(one)]
        if any((one.hello.rank, one.hello.not_before) == (hello.rank, hello.not_before) for one in waiting):
            return Refused(f"rank {hello.rank} of worker {hello.worker} is there already", retry=True)
        apart = [one for one in waiting if not one.was_seated and not self._is_near(one, newcomer)]
        if not apart:
            return None
        return Refused(
            f"it is on another machine than {apart[0].hello.process}: all ranks of a worker are on one, unless the job "
            "is started with --tp-across"
        )

    def _is_near(self, one: RankProcess, other: RankProcess) -> bool:
        return self._job.tp_across or None in (one.machine, other.machine) or one.machine == other.machine

    def _waiting(self, worker: str) -> list[RankProcess]:
        """A worker's processes that are ranks of no whole worker, in the order of their arrival."""
        return [one for one in self._ranks[worker] if one.unit is None]

    def _remove(self, process: RankProcess) -> None:
        worker = process.hello.worker
        del self._processes[process.connection]
        self._ranks[worker].remove(process)
        awaited = self._awaited.get(worker)
        if awaited is not None and awaited.back.get(process.rank) is process:
            del awaited.back[process.rank]

    def _is_seated(self, unit: WorkerUnit) -> bool:
        member = self._rules.members.get(unit.worker)
        return member is not None and member.connection == unit.number

    def _made_whole(self) -> list[Arrived]:
        """Workers of whom all ranks are there now, and were not before."""
        phase = self._rules.phase
        if phase in ("halting", "ended") or (phase == "gathering" and not self._is_complete):
            return []
        workers, self._stirred = self._stirred, {}
        return [arrived for worker in workers for arrived in self._whole_of(worker)]

    @property
    def _is_complete(self) -> bool:
        """Whether all processes of workers of several ranks are there that the job has to have before it starts."""
        degrees = [self._degrees[worker.name] for worker in self._job.plan.live_workers()]
        live = sum(degree for degree in degrees if degree > 1)
        return not self._job.spare_ranks or len(self._processes) >= live + self._job.spare_ranks

    def _whole_of(self, worker: str) -> Iterator[Arrived]:
        if worker in self._awaited:
            return
        chosen = self._chosen(worker)
        if chosen is None:
            return
        unit = self._unit(chosen)
        yield Arrived(self._now_s, unit.number, self._hello_of(unit))

    def _hello_of(self, unit: WorkerUnit, returning: Returning | None = None) -> Hello:
        """What the rules hear of a worker all of whose ranks are there."""
        is_whole = self._is_whole(unit)
        slowdown = 1.0
        if self._chooser is not None and not is_whole:
            slowdown = self._chooser.factor(unit.worker, len(unit.processes))
        hellos = [one.hello for one in unit.processes]
        return worker_hello(hellos, returning, slowdown=slowdown, is_whole=is_whole)

    def _forget_degree(self, unit: WorkerUnit) -> None:
        """A worker that was at a smaller degree is so no more."""
        if self._chooser is not None and not self._is_whole(unit):
            self._chooser.degrees.pop(unit.worker, None)
            self._raising.discard(unit.worker)

    def _is_whole(self, unit: WorkerUnit) -> bool:
        """Whether a worker is at the plan's degree."""
        return len(unit.processes) == self._degrees[unit.worker]

    def _chosen(self, worker: str) -> tuple[RankProcess, ...] | None:
        """A process for each rank of a worker, all near each other; None where there are none, or no use for them."""
        waiting = self._waiting(worker)
        units = [unit for unit in self._units.values() if unit.worker == worker]
        if any(self._is_seated(unit) or unit.not_before <= self._rules.committed + 1 for unit in units):
            # Whoever waits is a standby; but a whole worker may be appointed to take the place of this one.
            appointed = {one.hello.not_before for one in waiting if one.hello.not_before > self._rules.committed + 1}
            sets = [[one for one in waiting if one.hello.not_before == at] for at in sorted(appointed)]
            taken = {unit.not_before for unit in units}
            sets = [found for found in sets if found[0].hello.not_before not in taken]
        elif self._chooser is not None:
            sets = [[one for one in waiting if self._has_come(one)]]  # until others come it may work without them
        else:
            sets = [waiting]
        degree = (
            self._degrees[worker] if self._chooser is None else self._chooser.degrees.get(worker, self._degrees[worker])
        )
        for found in sets:
            for near in ([one for one in found if self._is_near(one, first)] for first in found):
                chosen = tuple(self._best(near, rank, degree) for rank in range(degree))
                if None not in chosen:
                    return tuple(one for one in chosen if one is not None)
        return None

    def _has_come(self, process: RankProcess) -> bool:
        """Whether the first iteration that a process wants to take part in is there."""
        return process.hello.not_before <= self._rules.committed + 1

    def _let_those_come_whose_time_has_come(self) -> None:
        """Who waits for its iteration counts once that is there."""
        if self._chooser is not None and self._rules.committed != self._seen:
            self._seen = self._rules.committed
            for one in self._processes.values():
                if one.unit is None and one.hello.not_before == self._seen + 1:
                    self._stir(one.hello.worker)

    def _best(self, processes: Iterable[RankProcess], rank: int, degree: int) -> RankProcess | None:
        """The one to be a rank of so many: who has state, who was one, who comes first."""

        def order(one: RankProcess) -> tuple[bool, bool, int, int]:
            has_state = one.has_state(self._rules.committed)
            return not has_state, not one.was_seated, one.hello.not_before, one.connection

        fitting = (one for one in processes if one.shape == (rank, degree) and one.becomes is None)
        return min(fitting, key=order, default=None)

    def _unit(self, processes: Sequence[RankProcess]) -> WorkerUnit:
        self._count += 1
        unit = WorkerUnit(-self._count, tuple(processes))
        self._units[unit.number] = unit
        for one in processes:
            one.unit = unit
        return unit

    def _dissolve(self, unit: WorkerUnit, had_seat: bool) -> None:
        """A worker is whole no more; its ranks wait, with their state as of the last commit, or leave as asked."""
        del self._units[unit.number]
        self._stir(unit.worker)
        self._forget_degree(unit)
        for one in unit.processes:
            one.unit = None
            if had_seat and one.as_of is None:
                one.as_of = self._rules.committed
        self._let_leavers_go(unit.processes)

    # Who is lost

    def _lose(self, event: Lost) -> None:
        process = self._processes.get(event.connection)
        if process is None:
            self._pass(event)
            return
        self._remove(process)
        name, unit = process.hello.process, process.unit
        if unit is None:
            if self._rules.phase == "running":
                self._announce(WorkerFailed(worker=name, reason=f"{event.reason} while waiting"))
        else:
            self._lose_unit(unit, f"rank {process.hello.rank}: {event.reason}")

    def _lose_unit(self, unit: WorkerUnit, reason: str) -> None:
        """A worker is whole no more, but it is again at once where somebody waits who can take the place."""
        is_seated = self._is_seated(unit)
        self._dissolve(unit, is_seated)
        arrived = self._made_whole()
        self._pass(Lost(self._now_s, unit.number, reason), *arrived)
        if is_seated and not any(one.hello.worker == unit.worker for one in arrived):
            self._tell_of_orphans(unit)

    def _tell_of_orphans(self, unit: WorkerUnit) -> None:
        left = {one.hello.rank for one in self._waiting(unit.worker)}
        missing = tuple(rank for rank in range(self._degrees[unit.worker]) if rank not in left)
        if left and missing and self._rules.phase == "running":
            self._announce(RanksOrphaned(worker=unit.worker, missing=missing, waiting=tuple(sorted(left))))

    def _expel(self, unit: WorkerUnit, reason: str) -> None:
        """All its ranks are given up."""
        for one in unit.processes:
            self._out += [Tell(one.connection, End(FAILED, reason)), Drop(one.connection)]
            self._remove(one)
        self._lose_unit(unit, reason)

    def _tear(self, unit: WorkerUnit) -> None:
        """Its ranks have no whole state together: it begins anew, as one that has none."""
        for one in unit.processes:
            one.holds = None
        self._lose_unit(unit, "its ranks hold other layers than each other")

    # Other degrees

    def _mend(self, worker: str, chooser: DegreeChooser) -> None:
        """See to it that a worker that lacks ranks goes on at a smaller degree, and one that lacks none is whole."""
        if worker in self._awaited or self._degrees[worker] == 1:
            return
        there = [one for one in self._ranks[worker] if self._has_come(one) and not one.is_leaving]
        units = {one.unit for one in there if one.unit is not None}
        if any(map(self._is_whole, units)):
            del self._short[worker]
            chooser.whole_again(worker)
        elif (everyone := self._complete(worker, there)) is not None:
            self._raise(worker, next(iter(units), None), everyone, chooser)
        elif not units:
            self._lower(worker, there, chooser)

    def _complete(self, worker: str, processes: Sequence[RankProcess]) -> tuple[RankProcess, ...] | None:
        """A process for each rank that a worker has by the plan, as they were started; None where one is missing."""
        for near in ([one for one in processes if self._is_near(one, first)] for first in processes):
            homes = {
                one.hello.rank: one for one in sorted(near, key=lambda one: (one.unit is None, one.connection))[::-1]
            }
            if len(homes) == self._degrees[worker]:
                return tuple(homes[rank] for rank in sorted(homes))
        return None

    def _raise(
        self, worker: str, unit: WorkerUnit | None, everyone: Sequence[RankProcess], chooser: DegreeChooser
    ) -> None:
        """There is a process for each rank again: let a worker be whole, once it can be spared for that."""
        if unit is not None and worker not in self._raising:
            self._raising.add(worker)
            self._pass(Said(self._now_s, unit.number, Leaving(if_spared=True)))
            unit = None if unit.number not in self._units else unit
        if unit is None:
            chooser.degrees.pop(worker, None)
            self._reshape({one: (one.hello.rank, one.hello.ranks) for one in everyone})

    def _is_raised(self, worker: str) -> bool:
        """Whether a worker leaves only to be whole again, and not because a rank was asked to go."""
        if worker not in self._raising or self._rules.phase != "running":
            return False
        return not any(one.is_leaving and one.unit is not None for one in self._ranks[worker])

    def _may_go_on(self, unit: WorkerUnit, end: End) -> bool:
        """Whether the end of a worker is that of its smaller degree only."""
        return end.exit_code == 0 and self._is_raised(unit.worker)

    def _free(self, unit: WorkerUnit) -> None:
        """A worker has left to be whole again; what is told of that stands in place of its leaving."""
        raised = DegreeRaised(worker=unit.worker, degree=len(unit.processes), of=self._degrees[unit.worker])
        self._out.append(Announce(self._dated(raised)))
        self._dissolve(unit, had_seat=False)

    def _lower(self, worker: str, there: Sequence[RankProcess], chooser: DegreeChooser) -> None:
        """Nobody is there for some rank: let those who are share the worker's layers, if that is a gain."""
        groups = [[one for one in there if self._is_near(one, first)] for first in there]
        group = max(groups, key=chooser.possible, default=[])
        degree, of = chooser.possible(group), self._degrees[worker]
        if not group or self._rules.must_change or worker in self._rules.members:
            return
        if not degree:
            if (refusal := chooser.refuse(worker, of, self._why_none(group))) is not None:
                self._announce(refusal)
            return
        if chooser.degrees.get(worker) != degree:
            for one in chooser.choose(worker, degree, of, self._rules):
                if isinstance(one, MakePlan):
                    self._out.append(one)
                else:
                    self._announce(one)
        if chooser.degrees.get(worker) == degree:
            slowdown = chooser.factor(worker, degree)
            self._reshape(shapes_for(degree, group), slowdown)

    def _why_none(self, group: Sequence[RankProcess]) -> str:
        """Why these of a worker's processes do not go on without the others."""
        gpus = f"{len(group)} GPU{'s' if len(group) > 1 else ''}"
        if (self._settings or {}).get("shard_optimizer"):
            return "its peers and it share the optimizer's state"
        if any(min(one.hello.degrees, default=len(group) + 1) > len(group) for one in group):
            return f"{gpus} cannot share its layers"
        return f"{gpus} have no room for its stage"

    def _reshape(self, shapes: Mapping[RankProcess, Shape], slowdown: float = 1.0) -> None:
        """Tell processes what they are to be, unless they are that, or are becoming something."""
        for one, shape in shapes.items():
            if one.becomes is None and one.shape != shape:
                one.becomes = shape
                one.holds, one.was_seated, one.as_of, one.dropped = None, False, None, self._rules.epoch
                self._tell_process(one, Reshape(*shape, slowdown))

    # A coordinator that was restarted

    def _restart(self, event: Restarted) -> None:
        """Connections are gone; processes that are alive will be back, and are known again."""
        seated = [unit for unit in self._units.values() if self._is_seated(unit)]
        known = {one.worker: {rank: own.identity for rank, own in enumerate(one.processes)} for one in seated}
        before = {worker: awaited.identities for worker, awaited in self._awaited.items()}
        self._awaited = {worker: AwaitedUnit(identities) for worker, identities in {**before, **known}.items()}
        for gone in (self._processes, self._ranks, self._units, self._stirred):
            gone.clear()
        if self._chooser is not None:
            self._chooser.restart()
        self._announced = None
        self._pass(event)

    def _is_awaited(self, process: RankProcess) -> bool:
        awaited = self._awaited.get(process.hello.worker)
        return awaited is not None and awaited.identities.get(process.rank) == process.identity

    def _take_back(self, process: RankProcess) -> None:
        """A rank is back; with the last one, its worker is, and what they have said again by then is heard."""
        worker = process.hello.worker
        awaited = self._awaited[worker]
        awaited.back[process.rank] = process
        if len(awaited.back) < len(awaited.identities):
            return
        processes = [awaited.back[rank] for rank in sorted(awaited.back)]
        member = self._rules.members[worker]
        for one in processes:
            one.holds, one.dropped = member.holds, 0
        del self._awaited[worker]
        unit = self._unit(processes)
        returning = known_by_all(one.hello for one in processes)
        self._pass(Arrived(self._now_s, unit.number, self._hello_of(unit, returning)))
        for event in awaited.heard:
            self._hear(replace(event, now_s=self._now_s))

    def _wait_no_longer(self) -> None:
        """Workers whom the rules do not expect back any more are not awaited here either."""
        for worker in list(self._awaited):
            member = self._rules.members.get(worker)
            if member is None or member.connection is not None:
                awaited = self._awaited.pop(worker)
                self._raising.discard(worker)
                self._stir(worker)
                self._let_leavers_go(awaited.back.values())

    # What ranks say

    def _hear(self, event: Said) -> None:
        process, message = self._processes.get(event.connection), event.message
        if process is None:
            self._pass(event)
            return
        unit = process.unit
        if isinstance(message, Ready) and message.epoch > process.dropped:
            process.holds = message.holds
        process.is_leaving = process.is_leaving or isinstance(message, Leaving)
        if isinstance(message, Reshaped):
            process.shape, process.becomes = (message.rank, message.ranks), None
            self._stir(process.hello.worker)
        elif unit is None:
            if self._is_awaited(process):
                self._awaited[process.hello.worker].heard.append(event)
            elif process.is_leaving:
                self._let_go(process)
        elif isinstance(message, Leaving) or self._is_seated(unit):
            self._hear_rank(unit, process.rank, message)

    def _hear_rank(self, unit: WorkerUnit, rank: int, message: Any) -> None:
        """A rank of a whole worker has said something."""
        if not isinstance(message, Leaving) and self._has_torn(unit, rank, message):
            self._tear(unit)
            return
        for found in self._merged(unit, rank, message):
            self._pass(Said(self._now_s, unit.number, found))

    def _let_leavers_go(self, processes: Iterable[RankProcess]) -> None:
        """Part with those that were asked to go; with their worker the rules have forgotten that."""
        for one in list(processes):
            if one.is_leaving and one.connection in self._processes:
                self._let_go(one)

    def _let_go(self, process: RankProcess) -> None:
        self._remove(process)
        self._out += [
            Tell(process.connection, End(0, "left as asked, while it had no place")),
            Drop(process.connection),
        ]

    def _merged(self, unit: WorkerUnit, rank: int, message: Any) -> list[Any]:
        """What the rules are to hear now that a rank has said something."""
        told: list[Any] | None = None
        match message:
            case Published() | LossesTold():
                return [message] if rank == 0 else []
            case StateLost():
                return [message]  # of its own slices
            case Leaving():
                return [message] if sum(one.is_leaving for one in unit.processes) == 1 else []
            case Suspect(epoch=epoch):
                return unit.complaint(rank, epoch, message)
            case Whereabouts():
                return unit.whereabouts(rank, message)
            case Saved():
                return unit.saved(rank, message)
            case Ready(epoch=epoch):
                told = unit.all_said(rank, epoch, message)
                late = unit.complaint(rank, epoch)
                return [*(self._joined(unit, told) if told else []), *late]
            case StandingTold(epoch=epoch):
                told = unit.all_said(rank, epoch, message)
            case Vote():
                told = unit.all_said(rank, (message.epoch, message.iteration), message)
        return self._joined(unit, told) if told else []

    def _joined(self, unit: WorkerUnit, told: list[Any]) -> list[Any]:
        """What all ranks have said, as one; nothing where that is the end of the worker as it is."""
        if isinstance(told[0], Vote):
            wrong = unlike_votes(told)
            if wrong is None:
                return [worker_vote(told)]
            self._expel(unit, wrong)
            return []
        known = self._rules.members[unit.worker].holds
        found = worker_ready(told) if isinstance(told[0], Ready) else worker_standing(told, known)
        if found is None:
            self._tear(unit)
        return [] if found is None else [found]

    def _has_torn(self, unit: WorkerUnit, rank: int, message: Any) -> bool:
        """Whether some ranks have gone over to other layers in an epoch, and this one, as it shows now, never will."""
        now, known = getattr(message, "epoch", 0), self._rules.members[unit.worker].holds
        skipped = [key for key in unit.said if key[0] is Ready and key[1] < now and rank not in unit.said[key]]
        told = [ready for key in skipped for ready in unit.said.pop(key).values()]
        return not all(has_all(ready.holds, known) for ready in told)

    # What the rules say

    def _pass(self, *events: Event) -> None:
        """Let the rules have it, and say what they want to those whom it concerns."""
        for instruction in self._rules.handle(*events):
            match instruction:
                case Tell():
                    self._tell(instruction)
                case Drop(connection) if connection < 0:
                    self._drop(connection)
                case Announce(WorkerLeft(worker=worker)) if self._is_raised(worker):
                    pass  # its end follows, which is only that of its smaller degree (`_free`)
                case Finish():
                    for one in self._processes.values():  # also those who wait
                        if not one.is_dismissed:
                            self._tell_process(one, End(instruction.exit_code, instruction.reason))
                    self._out.append(instruction)
                case _:
                    self._out.append(instruction)
        self._forget_dismissed()
        self._wait_no_longer()

    def _tell(self, tell: Tell) -> None:
        message = tell.message
        if isinstance(message, Epoch):
            message = self._as_told(message)
        unit = self._units.get(tell.connection)
        if tell.connection >= 0:
            self._out.append(Tell(tell.connection, message))
        elif unit is not None and isinstance(message, End) and self._may_go_on(unit, message):
            self._free(unit)
        elif unit is not None:
            if isinstance(message, Epoch):
                self._tell_of_replaced(unit)
            for one in self._addressed(unit, message):
                self._tell_process(one, message)
        if isinstance(message, Epoch | Regroup | Halt):
            self._tell_orphans(message)

    def _tell_of_replaced(self, unit: WorkerUnit) -> None:
        """Before a worker hears of an epoch: where it is the first one of some of its ranks only, it is whole again."""
        replaced = tuple(one.hello.rank for one in unit.processes if not one.entered)
        if self._is_seated(unit) and self._is_whole(unit) and 0 < len(replaced) < len(unit.processes):
            lacking = tuple(one.hello.rank for one in unit.processes if not one.has_state(self._rules.committed))
            self._announce(RanksReplaced(worker=unit.worker, ranks=replaced, lacking=lacking))

    def _addressed(self, unit: WorkerUnit, message: FromCoordinator) -> Sequence[RankProcess]:
        """Whom of a worker's ranks a message is for."""
        match message:
            case Publish():
                return unit.processes[:1]
            case End(exit_code=code) if code == HUNG:
                return unit.culprits()
            case Inquiry(number):
                unit.inquiry = number
                unit.answers.clear()
            case Epoch(number):
                unit.begin_epoch(number)
        return unit.processes

    def _tell_process(self, process: RankProcess, message: FromCoordinator) -> None:
        if isinstance(message, Epoch):
            if message.epoch <= process.entered:
                return  # it came back to a restarted coordinator, and had heard it before
            process.entered = message.epoch
            self._note_seat(process, message)
        if isinstance(message, End | Refused):
            process.is_dismissed = True
            self._dismissed.append(process)
        self._out.append(Tell(process.connection, message))

    def _note_seat(self, process: RankProcess, epoch: Epoch) -> None:
        unit = process.unit
        if unit is not None and self._is_seated(unit):
            holds = process.holds if process.has_state(epoch.iteration - 1) else None
            process.holds, process.as_of, process.was_seated = holds, None, True
        else:
            process.holds, process.was_seated, process.dropped = None, False, epoch.epoch

    def _tell_orphans(self, message: Epoch | Regroup | Halt) -> None:
        """Who was a rank of a worker that is lost is in its epoch until it hears of the next one."""
        if self._announced is message:
            return
        self._announced = message
        seats = message.seats if isinstance(message, Epoch) else message.members if isinstance(message, Regroup) else ()
        seated = {seat.worker for seat in seats}
        for one in list(self._processes.values()):
            is_there = one.unit is not None and self._is_seated(one.unit)
            if one.was_seated and not is_there and one.hello.worker not in seated:
                self._tell_process(one, message)

    def _as_told(self, message: Epoch) -> Epoch:
        """An epoch with copies for those ranks only that lack the state."""
        if self._epoch is None or self._epoch[0] is not message:
            units = {unit.worker: unit for unit in self._units.values() if self._is_seated(unit)}
            targets = [units.get(message.seats[copy.target].worker) for copy in message.copies]
            copies = tuple(map(partial(_copy_for_ranks, message.iteration - 1), message.copies, targets))
            self._epoch = message, message if copies == message.copies else replace(message, copies=copies)
        return self._epoch[1]

    def _drop(self, number: int) -> None:
        """Part with those of a worker that were told to end; the others wait."""
        unit = self._units.get(number)
        if unit is None:
            return
        gone = [one for one in unit.processes if one.is_dismissed]
        for one in gone:
            self._out.append(Drop(one.connection))
            self._remove(one)
        self._dissolve(unit, had_seat=True)
        self._tell_of_orphans(unit)

    def _forget_dismissed(self) -> None:
        for one in self._dismissed:
            if one.connection in self._processes:
                self._remove(one)
            if one.unit is not None and self._units.get(one.unit.number) is one.unit:
                del self._units[one.unit.number]
                self._forget_degree(one.unit)
                self._stir(one.hello.worker)
        self._dismissed.clear()

    def _announce(self, what: Announcement) -> None:
        """For people, after what the rules have to say of it."""
        self._notes.append(Announce(self._dated(what)))

    def _dated(self, what: Announcement) -> Announcement:
        return replace(what, epoch=self._rules.epoch, iteration=self._rules.committed + 1)


def _copy_for_ranks(committed: int, copy: Copy, target: WorkerUnit | None) -> Copy:
    """A copy for those ranks of its target alone that lack the state as of a commit."""
    if target is None:
        return copy
    lacking = tuple(one.rank for one in target.processes if not one.has(copy.layers, committed))
    return copy if len(lacking) == len(target.processes) else replace(copy, ranks=lacking)
