"""A failure trace on the virtual clock: the same story that `rtk run --inject` plays with real processes.

The coordinator is the real one, its rules (resilience/rules.py) and nothing else, and workers obey those of real ones
(resilience/worker_rules.py); only what they execute is simulated. So which plan follows, when a newcomer is let in, and
what is said and redone are written once. Each iteration is an execution of the epoch's program (simulator.py), begun
where the last one ends; with a staggered optimizer iterations overlap, and a stage begins the next one when its own
step is done, all stages of an iteration moved together as in `Simulation.repeated`.

Where workers are lost in the midst of an iteration and somebody plans what is left of it (`Resume`), everybody finishes
the operation that it is in and tells what it has (partial_work.py); an execution of what is left then follows. Else all
stop at once, and the iteration is done anew.

What happens when (as runners/torch/faults.py has it): a `fail` or `stop` of iteration n strikes when the worker is
about to begin the operation in the middle of its order, or when n goes on or is redone if it did not come to that; a
slow-down holds from the beginning of n; a `join` waits from the start and takes part from n on; a stopped process comes
back with the beginning of the iteration that its `recover` names. Events with `time_s` count from the start of the
first iteration; slow-downs then begin with the next iteration.

Links (lower_bound.py): a `slow_link` holds from the beginning of its iteration until `recover`; a `fail` of a link
breaks it when the first of its two workers is about to begin the operation in the middle of its order. What they then
have for each other is lost, both say so, and the rules have a third worker pass it on. A monitor, where there is one,
sees what workers measure (cluster.py), as it would in a real run, and tells the rules what it finds.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush

from ...schemas.documents import canonical, digest
from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.plan import Plan
from ...schemas.profile import Connection
from ...schemas.protocols import Monitor, Replan, Resume
from ...schemas.quantities import print_time
from ...schemas.rank_trace import by_worker
from ...schemas.resumption import Resumption, ledger_entries
from ...schemas.timeline import Event, Report, Timeline, memory_of_workers
from ...schemas.trace import DEADLY, Trace, TraceEvent, check_trace, joins, link_ends
from ..program import Program, RankPair, Sending, computed_in, rank_pair
from ..resilience.announcements import Announcement, Recovered, timeline_events
from ..resilience.events import (
    Announce,
    Arrived,
    Elapsed,
    Finish,
    Instruction,
    Lost,
    MakePlan,
    Noticed,
    PlanRest,
    Said,
    Tell,
    Wake,
    planned,
)
from ..resilience.events import Event as RulesEvent
from ..resilience.protocol import (
    Commit,
    End,
    Epoch,
    FromCoordinator,
    FromWorker,
    Hello,
    Job,
    LossesTold,
    Ready,
    Refused,
    Regroup,
    StandingTold,
    Suspect,
    Vote,
)
from ..resilience.regrouping import planned_rest
from ..resilience.rules import CoordinatorRules
from ..resilience.worker_rules import (
    Connect,
    CopyState,
    EnterEpoch,
    ExamineGroups,
    JointAction,
    Listen,
    ReduceGradients,
    Retire,
    Say,
    TellStanding,
    Turn,
    may_begin,
    plan_of,
)
from ..simulator import Cuts, Execution, Pauses, execute, is_computed, simulate
from .attempts import EpochState, IterationAttempt, first_start_s, half_way_s, losses_of, stages_of
from .cluster import (
    EpochConditions,
    Process,
    TimedProgram,
    VirtualMachines,
    broken_links,
    cast_of,
    has_come,
    measured,
    pause,
    slow_links,
)
from .partial_work import NOTHING, LogLimit

RETRY_S = 0.5  # until a worker that was refused for the time being says hello again

# What happens at one moment: first what workers say, then who is missed, then what begins.
_SAYS, _LOST, _BEGINS = range(3)


@dataclass(frozen=True)
class SwitchCosts:
    """What going over to another epoch takes.

    Attributes:
        detection_s: from a worker's death to its closed connection, in s.
        heartbeat_limit_s: silence after which a worker is lost, in s.
        regroup_s: from the new epoch to its first operation, without copies, in s; where all were told to regroup
            before, from the moment at which the last one had left what it was in, so that plans are made meanwhile.
        plan_s: what making a plan takes, in s, and planning what is left; plans made before are there at once.
        state_bytes: of each layer, what must be sent to who lacks it; none: nothing.
        gradient_bytes: of each layer, the sum over its gradients, which who lacks it is sent where it has ended.
        output_bytes: of each layer, the message that it sends on; none: nobody knows.
        bandwidth_bytes_per_s: at which it is sent; None: at once.
    """

    detection_s: float = 0.0
    heartbeat_limit_s: float = 2.0
    regroup_s: float = 0.05
    plan_s: float = 0.0
    state_bytes: tuple[float, ...] = ()
    gradient_bytes: tuple[float, ...] = ()
    output_bytes: tuple[float, ...] = ()
    bandwidth_bytes_per_s: float | None = None

    def copying_s(self, epoch: Epoch) -> float:
        """Seconds that an epoch's copies take: a worker sends, or receives, its own one after the other."""
        rank = {seat.place: number for number, seat in enumerate(epoch.seats)}
        states = ((one.source, one.target, sum(self.state_bytes[slice(*one.layers)])) for one in epoch.copies)
        sums = (
            (rank[one.source], rank[one.target], sum(self.gradient_bytes[slice(*one.layers)]))
            for one in (epoch.rest.copies if epoch.rest is not None else ())
        )
        return Connection(bandwidth_bytes_per_s=self.bandwidth_bytes_per_s).copying_s([*states, *sums]) or 0.0

    def noticed_s(self, event: TraceEvent, died_s: float) -> float:
        """When a death is noticed, in s."""
        return died_s + (self.heartbeat_limit_s if event.kind == "stop" else self.detection_s)


@dataclass(frozen=True)
class SimulatedRun:
    """What came of a trace.

    Attributes:
        timeline: spans by places of the plans, and the events.
        announced: (time in s, what the coordinator announced then).
        committed_s: when each iteration was committed.
        total_s: to the last operation, or to the end of a job that could not go on.
        lost_s: what failures and changes have cost, as the coordinator reckons it.
        exit_code: 0, or 5 where the job could not go on.
        reason: why it ended.
        plans: of the epochs, in order.
        resumptions: what was left of iterations in which workers were lost, in the order of the epochs.
        rest_peaks_bytes: the most that places held in what was left of iterations, with what they had begun before.
    """

    timeline: Timeline
    announced: tuple[tuple[float, Announcement], ...]
    committed_s: tuple[float, ...]
    total_s: float
    lost_s: float
    exit_code: int
    reason: str
    plans: tuple[Plan, ...]
    resumptions: tuple[Resumption, ...] = ()
    rest_peaks_bytes: Mapping[str, float] = field(default_factory=dict)

    @property
    def iteration_time_s(self) -> float:
        """The mean over the story, what was lost included."""
        return self.total_s / max(1, len(self.committed_s))

    def report(self, lower_bound_s: float) -> Report:
        """The story's worth, beside a proven lower bound of its plans' iteration times."""
        first = simulate(self.plans[0])
        peaks: dict[str, float] = {}
        for plan in self.plans:
            for worker, peak_bytes in zip(plan.workers, simulate(plan).peak_memory_bytes, strict=True):
                peaks[worker.name] = max(peak_bytes, peaks.get(worker.name, 0.0))
        for place, peak_bytes in self.rest_peaks_bytes.items():
            peaks[place] = max(peak_bytes, peaks.get(place, 0.0))
        computed_s = sum(s.end_s - s.start_s for s in self.timeline.spans if is_computed(s))
        room_s = len(self.plans[0].live_workers()) * self.total_s
        done = len(self.committed_s) * self.plans[0].total_microbatches()
        return Report(
            source="simulated",
            iteration_time_s=self.iteration_time_s,
            makespan_s=first.makespan_s,
            period_s=first.period_s,
            lower_bound_s=min(lower_bound_s, self.iteration_time_s),
            bubble_ratio=max(0.0, 1 - computed_s / room_s) if room_s else 0.0,
            peak_memory_bytes=tuple(peaks[worker.name] for worker in self.plans[0].workers),
            microbatches_per_s=done / self.total_s if self.total_s else 0.0,
            plan=self.timeline.plan,
        )


def simulate_story(
    plan: Plan,
    trace: Trace,
    iterations: int,
    replan: Replan,
    costs: SwitchCosts | None = None,
    jitter: float = 0.0,
    seed: int = 0,
    monitor: Monitor | None = None,
    transport: Sending = "auto",
    resume: Resume | None = None,
    log_memory_bytes: float | None = None,
) -> SimulatedRun:
    """Let a failure trace happen to a job on the virtual clock.

    Args:
        plan: valid; with its slow workers and links in it.
        trace: what happens to whom.
        iterations: how many the job has.
        replan: plans for who is left, and for what is slow.
        costs: of a change.
        jitter: sigma of the log-normal factor on every operation's duration; 0 for none.
        seed: of the jitter; every iteration has jitter of its own.
        monitor: finds out what is slow; None: nobody does, and nothing follows from it.
        transport: how messages are sent; auto: by delegates where the running plan knows of a delay, or the
            coordinator of a slow link, else directly.
        resume: plans what is left of an iteration in which workers were lost; None: it is done anew.
        log_memory_bytes: for messages of an iteration that each worker keeps; None: all of them.

    Raises:
        InvalidInputError: the trace does not fit the plan, or leaves the job waiting for a worker that is gone; or the
            messages' sizes, which the costs say, are not known, and are limited.
    """
    check_trace(plan, trace)
    trace = by_worker(plan, trace)
    costs = costs or SwitchCosts()
    if log_memory_bytes is not None and resume is not None and not costs.output_bytes:
        raise InvalidInputError(
            "nobody knows how large the messages are", where="--log-memory", fix="give the --profile, or 0 to keep none"
        )
    # Where nobody plans what is left it does not matter what is kept, and sizes need not be known.
    log = LogLimit() if resume is None else LogLimit(log_memory_bytes, costs.output_bytes)
    machines = VirtualMachines(plan, transport)
    world = _World(plan, trace, iterations, replan, resume, log, costs, jitter, seed, monitor, machines)
    world.play()
    return world.story()


class _World:
    """The clock, the processes and the coordinator's rules."""

    def __init__(
        self,
        plan: Plan,
        trace: Trace,
        iterations: int,
        replan: Replan,
        resume: Resume | None,
        log: LogLimit,
        costs: SwitchCosts,
        jitter: float,
        seed: int,
        monitor: Monitor | None,
        machines: VirtualMachines,
    ) -> None:
        self.plan, self.trace, self.replan, self.costs = plan, trace, replan, costs
        self.resume, self.log = resume, log
        self.jitter, self.seed = jitter, seed
        self.monitor, self.machines = monitor, machines
        job = Job(plan, iterations, heartbeat_limit_s=costs.heartbeat_limit_s, newcomers=joins(trace))
        self.rules = CoordinatorRules(job)
        self.now_s = 0.0
        self.moments: list[tuple[float, int, int, Callable[[], None]]] = []
        self.counted = 0
        self.cast = cast_of(plan, trace, costs.heartbeat_limit_s)
        self.by_connection = {process.connection: process for process in self.cast}
        self.act: EpochState | None = None
        self.acts: list[EpochState] = []
        self.regrouping: Regroup | None = None  # the last one
        self.announced: list[tuple[float, Announcement]] = []
        self.played: list[Event] = []
        self.marked: set[int] = set()
        self.snapped: set[int] = set()  # events by which a link has broken in the midst of an iteration
        self.committed_s: list[float] = []
        self.end: Finish | None = None
        self._made: set[str | None] = {canonical(plan).decode()}
        self._steady: dict[TimedProgram, Execution] = {}

    def play(self) -> None:
        """Let everything happen."""
        for process in self.cast:
            if math.isfinite(process.arrives_s):
                self._at(process.arrives_s, _SAYS, partial(self._say_hello, process))
            if process.dies_by is not None:
                self._expect_death(process)
        while self.moments and self.end is None:
            self.now_s, _, _, happen = heappop(self.moments)
            happen()
        if self.end is None:
            raise InvalidInputError(
                "the job waits forever for a worker that is gone",
                where=f"after iteration {len(self.committed_s) - 1}" if self.committed_s else "before iteration 0",
                fix="let a worker that joins live until it has a place",
            )

    def story(self) -> SimulatedRun:
        """What came of it."""
        assert self.end is not None
        spans = [span for act in self.acts for run in act.runs for span in run.spans()]
        total_s = max((span.end_s for span in spans), default=0.0)
        total_s = total_s if self.end.exit_code == 0 else self.now_s
        events = sorted([*timeline_events(self.announced), *self.played], key=lambda event: event.time_s)
        timeline = Timeline(
            "simulated",
            tuple(sorted(spans, key=lambda span: span.start_s)),
            memory_of_workers(*(act.plan for act in self.acts), *(() if self.acts else (self.plan,))),
            tuple(events),
            plan=digest(self.plan),
            options={"jitter": self.jitter, "seed": self.seed},
        )
        return SimulatedRun(
            timeline=timeline,
            announced=tuple(self.announced),
            committed_s=tuple(self.committed_s),
            total_s=total_s,
            lost_s=sum(one.lost_s for _, one in self.announced if isinstance(one, Recovered)),
            exit_code=self.end.exit_code,
            reason=self.end.reason,
            plans=tuple(act.plan for act in self.acts) or (self.plan,),
            resumptions=tuple(
                Resumption(act.plan.planner, act.plan, act.message.rest)
                for act in self.acts
                if act.message.rest is not None
            ),
            rest_peaks_bytes=self._rest_peaks_bytes(),
        )

    def _rest_peaks_bytes(self) -> dict[str, float]:
        peaks: dict[str, float] = {}
        for run in (run for act in self.acts for run in act.runs if run.program.rest is not None):
            for worker, peak_bytes in zip(run.program.workers, run.execution.peak_bytes, strict=True):
                peaks[worker.name] = max(peak_bytes, peaks.get(worker.name, 0.0))
        return peaks

    # The clock

    def _at(self, time_s: float, turn: int, happen: Callable[[], None]) -> None:
        self.counted += 1
        heappush(self.moments, (max(time_s, self.now_s), turn, self.counted, happen))

    def _expect_death(self, process: Process) -> None:
        died_s, event = process.died_s, process.dies_by
        assert event is not None

        def be_missed() -> None:
            if process.died_s == died_s:
                limit = f"silent for {print_time(self.costs.heartbeat_limit_s)}"
                reason = limit if event.kind == "stop" else "connection closed"
                if self.monitor is not None:
                    self.monitor.forget(process.name)
                self._feed(Lost(self.now_s, process.connection, reason))

        def stop() -> None:
            if process.died_s == died_s:
                self._mark(event, process)

        if event.kind == "stop":  # a `fail` is announced at the same moment, or nearly so
            self._at(died_s, _SAYS, stop)
        self._at(self.costs.noticed_s(event, died_s), _LOST, be_missed)

    # The coordinator

    def _feed(self, event: RulesEvent) -> None:
        for instruction in self.rules.handle(event):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Tell(connection, message):
                self._tell(self.by_connection[connection], message)
            case MakePlan(number, plan, crew, conditions):
                try:
                    answer = planned(number, self.replan(plan, crew, conditions))
                except InfeasibleError as error:
                    answer = planned(number, None, error.what)
                takes_s = 0.0 if answer.plan in self._made else self.costs.plan_s
                self._made.add(answer.plan)
                self._at(self.now_s + takes_s, _SAYS, lambda: self._feed(replace(answer, now_s=self.now_s)))
            case PlanRest():
                found = planned_rest(instruction, self.resume)
                later_s = self.now_s + self.costs.plan_s
                self._at(later_s, _SAYS, lambda: self._feed(replace(found, now_s=self.now_s)))
            case Wake(after_s, timer) if not timer.startswith("stall"):  # nobody hangs in a story
                self._at(self.now_s + after_s, _LOST, lambda: self._feed(Elapsed(self.now_s, timer)))
            case Announce(what):
                self.announced.append((self.now_s, what))
            case Finish():
                self.end = instruction
                self._break_off()

    def _tell(self, process: Process, message: FromCoordinator) -> None:
        match message:
            case Refused(retry=True):
                self._at(self.now_s + RETRY_S, _SAYS, lambda: self._say_hello(process))
            case Epoch() if self.act is None or message.epoch > self.act.message.epoch:
                self._enter(message)
            case Regroup() if message != self.regrouping:
                self.regrouping = message
                self._break_off()
            case Commit() if message.iteration == len(self.committed_s):
                self._commit(message)
            case End() if self.monitor is not None and self.rules.phase == "running":
                self.monitor.forget(process.name)
        if isinstance(message, Turn | Commit):
            process.heard.append(message)
            if isinstance(message, Turn) and isinstance(process.rules.action, JointAction):
                process.rules.supersede()
            self._carry_on(process)

    def _carry_on(self, process: Process) -> None:
        """Let a worker do what comes next, but for what takes it time: that is done when its time has come."""
        rules = process.rules
        while not isinstance(rules.action, Connect | CopyState | ExamineGroups | ReduceGradients | Retire):
            action = rules.action
            if isinstance(action, TellStanding):
                self._leave(process, action)
                return
            if isinstance(action, Listen):
                if not process.heard:
                    return
                rules.go_on(process.heard.popleft())
                continue
            rules.go_on()
            if isinstance(action, EnterEpoch) and not action.keeps:
                process.work = NOTHING
            if isinstance(action, Say):
                self._hear(process, action.message)

    def _hear(self, process: Process, message: FromWorker) -> None:
        """A worker says something; what it has measured the monitor sees, too, and what that finds is an event."""
        assert isinstance(message, Ready | Vote | StandingTold | Suspect)
        self._feed(Said(self.now_s, process.connection, message))
        if self.monitor is not None and isinstance(message, Vote) and message.measured is not None:
            found = self.monitor.note(message.measured)
            if found is not None and self.end is None:
                self._feed(Noticed(self.now_s, found))

    def _commit(self, commit: Commit) -> None:
        assert self.act is not None
        self.committed_s.append(self.now_s)
        self.act.last = commit.last
        if self.act.held_up is not None:
            iteration, could_begin_s = self.act.held_up
            self.act.held_up = None
            self._plan_begin(self.act, iteration, could_begin_s)

    # The workers

    def _say_hello(self, process: Process) -> None:
        if process.died_s >= self.now_s and self.end is None:
            regroups = self.resume is not None
            plan = digest(self.plan)
            hello = Hello("", process.name, "-", plan, {}, not_before=process.not_before, regroups=regroups)
            self._feed(Arrived(self.now_s, process.connection, hello))

    def _enter(self, epoch: Epoch) -> None:
        """All leave what is under way, and make ready for the new epoch."""
        self._break_off()
        members = [self.rules.members[seat.worker].connection for seat in epoch.seats]
        actors = tuple(self.by_connection[member] for member in members if member is not None)
        free_s = self.now_s
        if self.act is not None:  # the steps after a commit are made in any case
            free_s = max([free_s, *(run.end_s() for run in self.act.runs if math.inf in run.cuts_s)])
        act, former = EpochState(epoch, plan_of(epoch.plan), actors, epoch.last), self.act
        self.act = act
        self.acts.append(act)
        for process in self.cast:
            if process not in actors:
                process.work = NOTHING
        if epoch.epoch > 1:
            left_s = max(former.left_s.values()) if former is not None and former.left_s else free_s
            meeting_s = left_s + self.costs.regroup_s
            free_s = max(free_s, meeting_s) + self.costs.copying_s(epoch)
        self._at(free_s, _BEGINS, lambda: self._be_ready(act))

    def _leave(self, process: Process, asked: TellStanding) -> None:
        """A worker that is told to regroup finishes the operation that it is in, and says what it has then."""
        act, told_s = self.act, self.now_s
        if act is not None and process in act.actors:
            rank, iteration = act.actors.index(process), asked.regroup.iteration
            self._stop(act, rank)
            told_s = max(told_s, act.left_s[rank])
            run = next((run for run in act.runs if run.iteration == iteration), None)
            if run is not None:
                work = run.work(rank, act.left_s[rank], act.called_s[rank])
                told_s = max(told_s, run.run_weights(rank, work))
                process.work = work.finished(act.plan)
            elif act.message.iteration != iteration:
                process.work = NOTHING
        self._at(told_s, _SAYS, partial(self._tell_standing, process, asked))

    def _stop(self, act: EpochState, rank: int) -> None:
        """A rank leaves what is under way, once it has finished what it is in: an operation, a final step, a nap."""
        if rank in act.left_s:
            return
        actor = act.actors[rank]
        ends_s = [self.now_s, *(stop_s for start_s, stop_s in actor.naps_s if start_s <= self.now_s)]
        for run in act.runs:
            is_final = run.iteration < len(self.committed_s)
            ends_s.append(run.stepped_s(rank) if is_final else run.under_way_s(rank, self.now_s))
        act.called_s[rank], act.left_s[rank] = self.now_s, min(max(ends_s), actor.died_s)
        for run in act.runs:
            if run.iteration >= len(self.committed_s):
                run.cuts_s[rank] = act.left_s[rank]

    def _tell_standing(self, process: Process, asked: TellStanding) -> None:
        if process.died_s > self.now_s and self.end is None and process.rules.action == asked:
            process.rules.go_on(process.work.standing(process.name, process.rules.holds, self._splits(process)))
            self._carry_on(process)

    def _splits(self, process: Process) -> bool:
        """Whether a worker that has run nothing of an iteration would run I and W in it."""
        if self.act is None or process not in self.act.actors:
            return True
        worker = self.act.plan.live_workers()[self.act.actors.index(process)]
        return any(one.kind in "IW" for one in worker.operations())

    def _break_off(self) -> None:
        """Iterations that are not committed end here, and with them the deaths that lay ahead in them."""
        if self.act is None:
            return
        for run in self.act.runs:
            if run.iteration >= len(self.committed_s):
                run.cuts_s = [self.now_s if math.isinf(cut_s) else cut_s for cut_s in run.cuts_s]
        for actor in self.act.actors:
            if actor.died_s > self.now_s and actor.dies_by is not None and actor.dies_by.iteration is not None:
                actor.lives_on()

    def _be_ready(self, act: EpochState) -> None:
        if act is not self.act or any(actor.died_s <= self.now_s for actor in act.actors):
            return  # the death of a member is about to be noticed
        waits_s = max(
            (stop_s for a in act.actors for start_s, stop_s in a.naps_s if start_s <= self.now_s), default=0.0
        )
        if waits_s > self.now_s:
            self._at(waits_s, _BEGINS, lambda: self._be_ready(act))
            return
        rest = act.message.rest
        for rank, (actor, worker) in enumerate(zip(act.actors, act.plan.live_workers(), strict=True)):
            if rest is not None:
                actor.work = actor.work.resumed(rest, act.plan, rank)
            actor.rules.go_on()
            first, *further = act.plan.layers_of(worker)
            actor.rules.go_on(Ready(act.message.epoch, first, further=tuple(further)))
            self._carry_on(actor)
        if act.message.examine:
            # The epoch's first iteration begins when all who are under suspicion have been examined.
            staging = self._staging(act, act.message.iteration)
            found = pause(staging, act.message.examine, [actor.name for actor in act.actors])
            for rank, actor in enumerate(act.actors):
                actor.rules.go_on(found.found.get(rank))
            self._plan_begin(act, act.message.iteration, self.now_s + found.lasts_s)
        else:
            self._begin(act, act.message.iteration)

    # Iterations

    def _plan_begin(self, act: EpochState, iteration: int, at_s: float) -> None:
        self._at(at_s, _BEGINS, lambda: self._begin(act, iteration))

    def _begin(self, act: EpochState, iteration: int) -> None:
        """Execute an iteration; its votes come in due course, and the next one begins when its stages are free."""
        if act is not self.act or self.end is not None or iteration > act.last:
            return
        # Losses are not computed, so that whoever may step ahead does.
        if not may_begin(iteration, len(self.committed_s) - 1, act.plan.optimizer == "staggered"):
            act.held_up = (iteration, self.now_s)
            return
        self._mark_beginning(act, iteration)
        if act is not self.act:  # one who came back has changed the epoch
            return
        run = self._run(act, iteration)
        act.runs.append(run)
        self._expect_words(act, run)
        next_s = self._free_s(act, run)
        if next_s is not None:
            self._plan_begin(act, iteration + 1, next_s)

    def _expect_words(self, act: EpochState, run: IterationAttempt) -> None:
        """What workers are to say of an iteration while it is executed."""
        for rank, ready_s in enumerate(run.execution.ready_s):
            if self.resume is not None and run.has_losses(rank) and math.isfinite(ready_s):
                self._at(run.start_s + ready_s, _SAYS, partial(self._tell_losses, act, run, rank))
        for rank, reduced_s in enumerate(run.execution.reduced_s):
            if math.isfinite(reduced_s):
                self._at(run.start_s + reduced_s, _SAYS, partial(self._vote, act, run, rank))
        for pair, lost_s in run.execution.traffic.lost_s.items():
            link = run.staging.broken_hop(pair, run.broken_s)
            for rank, peer in (link, link[::-1]) if link is not None else ():
                missed_s = run.start_s + lost_s + self.costs.detection_s
                self._at(missed_s, _SAYS, partial(self._suspect, act, rank, peer))

    def _vote(self, act: EpochState, run: IterationAttempt, rank: int) -> None:
        process = run.actors[rank]
        if act is self.act and process.rules.action == ReduceGradients(run.iteration):
            numbers = dict.fromkeys(
                act.plan.microbatch_offset(one.operation.pipeline) + one.operation.microbatch
                for one in computed_in(run.program.instructions[rank])
                if one.operation.kind in ("B", "W") and one.accumulates
            )
            seen = None
            if self.monitor is not None:
                names = [actor.name for actor in run.actors]
                seen = measured(run.staging, run.execution, rank, names, run.iteration, run.start_s)
            vote = Vote(act.message.epoch, run.iteration, True, tuple(numbers), measured=seen)
            is_rest = run.program.rest is not None
            if act.plan.is_placed:  # a worker may have run a micro-batch at one of its stages only
                vote = replace(vote, ledger=ledger_entries(run.work(rank).ledger))
            if self.resume is not None and (is_rest or run.has_losses(rank)):
                work = run.work(rank)
                ledger = ledger_entries(work.ledger) if is_rest else vote.ledger
                vote = replace(vote, losses=losses_of(work), ledger=ledger)
            process.rules.go_on(vote)
            self._carry_on(process)

    def _tell_losses(self, act: EpochState, run: IterationAttempt, rank: int) -> None:
        process = run.actors[rank]
        if act is self.act and self.end is None and process.rules.action == ReduceGradients(run.iteration):
            losses = losses_of(run.work(rank, self.now_s))
            if losses:
                told = LossesTold(act.message.epoch, run.iteration, losses)
                self._feed(Said(self.now_s, process.connection, told))

    def _suspect(self, act: EpochState, rank: int, peer: int) -> None:
        """A worker has found out that it does not reach another one."""
        process = act.actors[rank]
        is_there = act is self.act and self.end is None and process.died_s > self.now_s
        if is_there and isinstance(process.rules.action, JointAction):
            process.rules.lose_touch("nothing comes through", act.actors[peer].name)
            if self.resume is not None:
                self._stop(act, rank)
            self._carry_on(process)

    def _run(self, act: EpochState, iteration: int) -> IterationAttempt:
        staging = self._staging(act, iteration)
        still_s = {rank: actor.stands_still_s(self.now_s) for rank, actor in enumerate(act.actors)}
        pauses = {rank: (one[0] - self.now_s, one[1] - self.now_s) for rank, one in still_s.items() if one is not None}
        broken_s = dict.fromkeys(staging.broken, 0.0)
        execution = self._execute(staging, pauses, broken_s, iteration)
        breaks = list(self._breaks(act, staging, execution, iteration))
        for number, link, at_s in breaks:
            broken_s[link] = min(at_s, broken_s.get(link, math.inf))
            self._expect_break(act, number, self.now_s + at_s)
        if breaks:
            execution = self._execute(staging, pauses, broken_s, iteration)
        while (struck := self._next_strike(act, staging.program, execution, iteration)) is not None:
            at_s, rank, event = struck
            act.actors[rank].die(self.now_s + at_s, event)
            self._expect_death(act.actors[rank])
            pauses[rank] = (at_s, math.inf)
            execution = self._execute(staging, pauses, broken_s, iteration)
        is_first = iteration == act.message.iteration
        before = tuple(actor.work if is_first else NOTHING for actor in act.actors)
        return IterationAttempt(iteration, self.now_s, staging, act.actors, execution, broken_s, before, self.log)

    def _staging(self, act: EpochState, iteration: int) -> TimedProgram:
        """The epoch's program with what is slow, or broken, from the beginning of this iteration on."""
        events = [
            event
            for number, event in enumerate(self.trace.events)
            if has_come(event, iteration, self.now_s) and not self._breaks_in(number, iteration)
        ]
        standing = EpochConditions(
            names=tuple(actor.name for actor in act.actors),
            slow=tuple(actor.slowdown(iteration, self.now_s) for actor in act.actors),
            links=slow_links(events),
            broken=broken_links(events),
            delegated=act.message.delegated,
            detours=act.message.detours,
        )
        rest = act.message.rest if iteration == act.message.iteration else None
        return self.machines.staged(act.message.plan, standing, rest)

    def _breaks_in(self, number: int, iteration: int) -> bool:
        """Whether a link breaks by this event in the midst of an iteration, and has not done so in an earlier try."""
        event = self.trace.events[number]
        is_break = event.kind == "fail" and event.link is not None and number not in self.snapped
        return is_break and event.iteration == iteration

    def _breaks(
        self, act: EpochState, staging: TimedProgram, execution: Execution, iteration: int
    ) -> Iterator[tuple[int, RankPair, float]]:
        """Which links break in the midst of an iteration, by which event, and when, counted from its beginning."""
        ranks = {actor.name: rank for rank, actor in enumerate(act.actors)}
        for number, event in enumerate(self.trace.events):
            if event.kind == "fail" and event.link is not None and ranks.keys() >= {*link_ends(event.link)}:
                ends = [ranks[name] for name in link_ends(event.link)]
                if event.time_s is not None and event.time_s > self.now_s:
                    yield number, rank_pair(*ends), event.time_s - self.now_s
                elif self._breaks_in(number, iteration):
                    starts_s = (half_way_s(staging.program, execution, rank) for rank in ends)
                    yield number, rank_pair(*ends), min((at_s for at_s in starts_s if at_s is not None), default=0.0)

    def _expect_break(self, act: EpochState, number: int, at_s: float) -> None:
        def snap() -> None:
            event = self.trace.events[number]
            if (event.time_s is not None or act is self.act) and number not in self.snapped:
                self.snapped.add(number)
                self._mark(event, None)

        self._at(at_s, _SAYS, snap)

    def _execute(self, staging: TimedProgram, pauses: Pauses, broken_s: Cuts, iteration: int) -> Execution:
        is_steady = not pauses and not self.jitter and broken_s == dict.fromkeys(staging.broken, 0.0)
        if is_steady and staging in self._steady:
            return self._steady[staging]
        # Iteration 0 has the jitter that `simulate` gives the same seed.
        seed = self.seed + iteration * 1_000_003
        cuts = staging.cuts(broken_s)
        execution = execute(staging.program, pauses, self.jitter, seed, staging.direct, cuts)
        if is_steady:
            self._steady[staging] = execution
        return execution

    def _next_strike(
        self, act: EpochState, program: Program, execution: Execution, iteration: int
    ) -> tuple[float, int, TraceEvent] | None:
        """Whom the trace strikes first in this iteration, of those who still live, when, and by which event."""
        strikes = []
        for rank, actor in enumerate(act.actors):
            event = actor.strike_in(iteration)
            if event is None or actor.dies_by is not None:
                continue
            middle_s = half_way_s(program, execution, rank)
            if middle_s is not None:
                strikes.append((middle_s, rank, event))
        return min(strikes, key=lambda strike: strike[:2], default=None)

    def _free_s(self, act: EpochState, run: IterationAttempt) -> float | None:
        """When the next iteration begins, if no stage is blocked."""
        done_s = run.execution.done_s
        alive = [rank for rank, actor in enumerate(act.actors) if done_s[rank] < math.inf or actor.dies_by is None]
        stages = stages_of(run.program, alive)
        everywhere = len(stages_of(run.program, range(len(act.actors))))
        if any(math.isinf(done_s[rank]) for rank in alive) or len(stages) < everywhere:
            return None
        if act.plan.optimizer == "synchronous":
            return run.end_s()
        staging = self._staging(act, run.iteration + 1)
        following = self._execute(staging, {}, dict.fromkeys(staging.broken, 0.0), run.iteration + 1)
        waits_s = [
            run.done_s(act.plan, ranks) - first_s
            for ranks in stages
            if (first_s := first_start_s(following, ranks)) is not None
        ]
        return run.start_s + max(waits_s, default=0.0)

    # What the trace does, for the timeline

    def _mark_beginning(self, act: EpochState, iteration: int) -> None:
        """Note what is slow from now on, and let those come back who were stopped."""
        for number, event in enumerate(self.trace.events):
            if event.kind not in ("join", *DEADLY) and number not in self.marked:
                if not has_come(event, iteration, self.now_s):
                    continue
                self.marked.add(number)
                present = next((actor for actor in act.actors if actor.name == event.worker), None)
                if event.link is not None or present is not None:
                    self._mark(event, present)
        for process in self.cast:
            if process.returns is not None and process.returns[1] == iteration:
                former = process.returns[0]
                if former.died_s <= self.now_s and process.arrives_s == math.inf:
                    process.arrives_s = self.now_s
                    self._say_hello(process)

    def _mark(self, event: TraceEvent, process: Process | None) -> None:
        place = None
        if process is not None and self.act is not None and process in self.act.actors:
            place = self.act.message.seats[self.act.actors.index(process)].place
        much = [f"link {event.link}"] if event.link else []
        much += [f"factor {event.factor:g}"] if event.factor is not None else []
        much += [f"{print_time(event.delay_s)} more"] if event.delay_s is not None else []
        self.played.append(Event(self.now_s, event.kind, place, ", ".join(much)))
