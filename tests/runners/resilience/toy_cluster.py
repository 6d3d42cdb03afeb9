"""A job of toy workers around the real rules, of both sides: every message in its order, everything else in any order.

A toy worker has two threads, as a real one: one reads what the coordinator says, the other trains, as its rules
(worker_rules.py) want it and when the test's random generator says so. It keeps no tensors but, for each of its layers,
the list of the optimizer's steps that it has taken, which all who hold a layer must agree on: of which iteration, by
how much (what the gradients were divided and multiplied by), and of which number. It executes an iteration operation by
operation (toy_progress.py), and a step of a sum in which a micro-batch is missing, twice, or of another state, fails.

Its training thread may hang while its process lives: then it says where it is when it is asked, or nothing at all. Who
waits in vain complains at times; whoever complains leaves its epoch, and others miss it.

A worker may have several ranks, each a process with a share of the same layers: rank r works with rank r of the others,
and all ranks of a worker execute each operation together. One that has lost ranks may go on with fewer: each of them
then works with all those whose number leaves its own over, divided by how many there are.
"""

import random
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any, Literal

from rtk.planners.resumption.plan import plan_rest
from rtk.runners.resilience.events import (
    Announce,
    Arrived,
    Drop,
    Elapsed,
    Event,
    Finish,
    Instruction,
    Lost,
    MakePlan,
    Noticed,
    PlanRest,
    Restarted,
    Said,
    StopAsked,
    Tell,
    Wake,
    decode_event,
    encode_event,
    planned,
)
from rtk.runners.resilience.membership import layers_at, live_places
from rtk.runners.resilience.protocol import (
    WHOLE,
    Copy,
    End,
    Epoch,
    FromWorker,
    Hello,
    Inquiry,
    Job,
    Leaving,
    LossesTold,
    MicrobatchLoss,
    Published,
    RankAssignment,
    Ready,
    Refused,
    Reshape,
    Reshaped,
    Returning,
    Saved,
    StateLost,
    StepTerms,
    Vote,
    Whereabouts,
)
from rtk.runners.resilience.regrouping import planned_rest
from rtk.runners.resilience.rules import CoordinatorRules
from rtk.runners.resilience.unit_gate import UnitGate
from rtk.runners.resilience.worker_rules import (
    Action,
    Connect,
    CopyState,
    EnterEpoch,
    EvaluateModel,
    ExamineGroups,
    JointAction,
    LeaveGroups,
    Listen,
    PublishWhole,
    ReduceGradients,
    Retire,
    SavePart,
    Say,
    TakeStep,
    TellStanding,
    Turn,
    Unanswered,
    UndoStep,
    WorkerRules,
    plan_of,
)
from rtk.schemas.checkpoint import CheckpointFile
from rtk.schemas.conditions import HEALTHY, Conditions
from rtk.schemas.documents import digest
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.plan import (
    Layers,
    Link,
    Pipeline,
    Place,
    Plan,
    Planner,
    Stage,
    Template,
    Worker,
    place_of,
    rank_name,
    rank_of,
    worker_of,
)
from rtk.schemas.protocols import Hand, Replan, Replanned, Resume
from rtk.schemas.resumption import LedgerEntry, Rest, Standing, layers_in, ledger_entries

from ...strategies import number_of
from .toy_progress import Kept, ToyOffice, ToyProgress, ToyRun, ToySum, is_exact, seats_in

# How a training thread hangs: in an operation, or in a wait that nothing wakes; or where nobody answers for it.
Hang = Literal["computing", "waiting", "mute"]
AGES_S = 1e6
# Of 100 times that something else can happen, how often a timer of the coordinator elapses, or a worker loses patience.
RARE = 2

# What the toy planner makes nothing of, and what it cannot plan for.
TOLERATED_S, HOPELESS = 1.0, 9.0


def toy_plan(stages: int, dp: int, microbatches: int, staggered: bool, splits: bool = False, ranks: int = 1) -> Plan:
    """GPipe orders: all forwards, then all backwards, which may be split; of workers of so many ranks."""
    cut = tuple(Stage((i, i + 1), 1.0, 1.0, 1.0, tensor_parallel=ranks) for i in range(stages))
    template = Template("toy", cut, tuple(Link() for _ in range(stages - 1)))
    order = " ".join(f"{kind}{j}" for kind in ("FIW" if splits else "FB") for j in range(microbatches))
    return Plan(
        planner=Planner("toy", "1", {}),
        templates=(template,),
        pipelines=tuple(Pipeline("toy", microbatches) for _ in range(dp)),
        optimizer="staggered" if staggered else "synchronous",
        workers=tuple(Worker(k, i, order) for k in range(dp) for i in range(stages)),
    )


def rerouted(plan: Plan, failed: frozenset[Place]) -> Plan:
    """Give all micro-batches of a failed worker to the first live one of its stage."""
    workers = []
    for worker in plan.workers:
        if (worker.pipeline, worker.stage) in failed:
            workers.append(Worker(worker.pipeline, worker.stage, failed=True))
            continue
        live = [k for k in range(len(plan.pipelines)) if (k, worker.stage) not in failed]
        mine = [worker.pipeline]
        if live[0] == worker.pipeline:
            mine += [k for k in range(len(plan.pipelines)) if (k, worker.stage) in failed]
        count = plan.pipelines[0].microbatches
        tokens = [
            f"{kind}{j}" if k == worker.pipeline else f"{kind}{k}.{j}"
            for kind in kinds_of(plan)
            for k in mine
            for j in range(count)
        ]
        workers.append(Worker(worker.pipeline, worker.stage, " ".join(tokens)))
    if {worker.stage for worker in workers if not worker.failed} != set(range(len(plan.templates[0].stages))):
        raise InfeasibleError("nobody left")
    return replace(plan, workers=tuple(workers))


def kinds_of(plan: Plan) -> str:
    """The kinds of a plan's operations."""
    return "FIW" if any("W" in (worker.order or "") for worker in plan.workers) else "FB"


class Rerouting:
    """Workers stay where they are, newcomers take vacant places; the peers of the dead do their work."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __call__(self, plan: Plan, crew: tuple[Hand, ...], conditions: Conditions = HEALTHY) -> Replanned:
        seats = {hand.place: hand.worker for hand in crew if hand.place is not None}
        places = [(worker.pipeline, worker.stage) for worker in self.plan.workers]
        vacant = [place for place in places if place not in seats]
        newcomers = [hand.worker for hand in crew if hand.place is None]
        seats |= dict(zip(vacant, newcomers, strict=False))
        found = rerouted(self.plan, frozenset(place for place in places if place not in seats))
        return Replanned(self.adapted(found, len(seats), conditions), tuple((n, place) for place, n in seats.items()))

    def adapted(self, found: Plan, seated: int, conditions: Conditions) -> Plan:
        """Another plan for everything that is slow, but for what is tolerated; sometimes there is none."""
        if any(one.factor == HOPELESS for one in conditions.slow_workers) and seated == len(self.plan.workers):
            raise InfeasibleError("too slow")
        slow = [link for link in conditions.slow_links if link.delay_s > TOLERATED_S]
        return replace(found, planner=Planner("toy", "1", {"slow": repr(slow)})) if slow else found


class Regrouping:
    """Unlike pipelines of whoever is there, cut anywhere and dealt out at random; sometimes somebody has no place."""

    def __init__(self, plan: Plan) -> None:
        self.layers = plan.templates[0].stages[-1].layers[1]
        self.microbatches = plan.total_microbatches()
        self.ranks = plan.gpus_of(plan.workers[0])

    def __call__(self, plan: Plan, crew: tuple[Hand, ...], conditions: Conditions = HEALTHY) -> Replanned:
        chance = random.Random(repr(crew))
        hands = list(crew)
        chance.shuffle(hands)
        if chance.random() < 0.3 and self._is_whole(hands[1:]):
            del hands[0]
        sizes: list[int] = []
        while (left := len(hands) - sum(sizes)) > 0:
            sizes.append(min(left, chance.randint(1, self.layers)))
        if not hands or len(sizes) > self.microbatches:
            raise InfeasibleError("too many pipelines")
        found = unlike_plan(self.layers, sizes, self.microbatches, chance, kinds_of(plan), self.ranks)
        places = [(worker.pipeline, worker.stage) for worker in found.workers]
        return Replanned(found, tuple(zip((hand.worker for hand in hands), places, strict=True)))

    def _is_whole(self, hands: list[Hand]) -> bool:
        held = layers_in(chain.from_iterable(hand.layers or () for hand in hands))
        return held == set(range(self.layers))


def unlike_plan(
    layers: int, sizes: list[int], microbatches: int, chance: random.Random, kinds: str, ranks: int = 1
) -> Plan:
    """Pipelines of so many stages each, cut anywhere; GPipe orders."""
    templates, pipelines, workers = [], [], []
    for k, size in enumerate(sizes):
        cuts = [0, *sorted(chance.sample(range(1, layers), size - 1)), layers]
        stages = tuple(Stage(cut, 1.0, 1.0, 1.0, tensor_parallel=ranks) for cut in pairwise(cuts))
        templates.append(Template(f"t{k}", stages, tuple(Link() for _ in range(size - 1))))
        count = microbatches // len(sizes) + (k < microbatches % len(sizes))
        pipelines.append(Pipeline(f"t{k}", count))
        order = " ".join(f"{kind}{j}" for kind in kinds for j in range(count))
        workers += [Worker(k, i, order) for i in range(size)]
    return Plan(Planner("toy", "1", {}), tuple(templates), tuple(pipelines), "synchronous", tuple(workers))


@dataclass(frozen=True)
class ToyStep:
    """One that is taken.

    Attributes:
        iteration: whose gradients they are.
        number: how many were taken before it.
        count: what the gradients are divided by.
        scale: what they are multiplied by, so that they are clipped.
    """

    iteration: int
    number: int
    count: float
    scale: float


State = dict[int, list[ToyStep]]  # the steps of each layer


@dataclass(frozen=True)
class ToyTraining:
    """What is trained.

    Attributes:
        counts: what the loss of each micro-batch counts, by iteration; in others, 1.
        norms: of the divided gradients, by iteration; in others, small.
        clip_norm: to which they are clipped.
        evaluates: before which iterations there is an evaluation.
        evaluates_last: whether there is one after the last.
        forgets: of 100 messages of an iteration, how many are not kept.
        regroups: whether workers tell what they have of an iteration.
        is_sharded: whether peers share the optimizer's state; who holds what of it shows elsewhere.
        degrees: smaller numbers of ranks that can share a worker's layers.
    """

    counts: Mapping[int, float] = field(default_factory=dict)
    norms: Mapping[int, float] = field(default_factory=dict)
    clip_norm: float | None = None
    evaluates: frozenset[int] = frozenset()
    evaluates_last: bool = False
    forgets: int = 0
    regroups: bool = True
    is_sharded: bool = False
    degrees: tuple[int, ...] = ()


SMALL_NORM = 0.125
BREATHES = 0.2  # how often a worker that could go on lets something else happen first


@dataclass
class ToyWorker:
    """One process.

    Attributes:
        pid: its number.
        share: which of its worker's ranks it is now.
        ranks: how many the worker has, as far as it knows.
        becomes: what it was told to be instead, and is not yet.
    """

    name: str
    connection: int
    pid: int = 0
    share: int = 0
    ranks: int = 1
    is_alive: bool = True
    inbox: deque[Any] = field(default_factory=deque)  # on the wire
    heard: deque[Any] = field(default_factory=deque)  # read from it, and not yet taken by the training thread
    outbox: deque[Any] = field(default_factory=deque)
    unanswered: Unanswered = field(default_factory=Unanswered)
    training: ToyTraining = ToyTraining()
    state: State | None = None
    progress: ToyProgress | None = None
    run: ToyRun | None = None  # of the iteration that it executes
    kept: tuple[State, ToyProgress] | None = None  # before the last step
    groups: Epoch | None = None  # the epoch whose groups it is in, or forms
    ended: End | None = None
    refused: bool = False
    hangs: Hang | None = None
    lies: bool = False
    becomes: Reshape | None = None

    def __post_init__(self) -> None:
        self.called, self.home = rank_name(self.name, self.share, self.ranks), (self.share, self.ranks)
        self._begin()

    def _begin(self) -> None:
        self.rules = WorkerRules(self.name, self.training.clip_norm, self.training.evaluates.__contains__)

    def reshape(self) -> Reshaped:
        """Be what it was told to be; nothing is left of what it was."""
        assert self.becomes is not None
        self.share, self.ranks, self.becomes = self.becomes.rank, self.becomes.ranks, None
        self.state = self.progress = self.run = self.kept = self.groups = None
        self._begin()
        return Reshaped(self.share, self.ranks)

    @property
    def received(self) -> list[Copy]:
        """The copies of its epoch that it takes part of the state from."""
        assert self.epoch is not None
        copies = [copy for copy in self.epoch.copies if copy.target == self.rules.rank]
        return [copy for copy in copies if copy.ranks is None or self.share in copy.ranks]

    @property
    def epoch(self) -> Epoch | None:
        """That its training thread is in, or was in last."""
        return self.rules.epoch

    @property
    def plan(self) -> Plan:
        """That of its epoch."""
        assert self.epoch is not None
        return plan_of(self.epoch.plan)

    @property
    def place(self) -> Place | None:
        """Its place in that plan, where it has one."""
        rank = self.rules.rank
        if self.epoch is None or rank is None or rank >= len(self.epoch.seats):
            return None
        return place_of(self.epoch.seats[rank].place)

    @property
    def in_iteration(self) -> int:
        """Which one it executes, or has voted on last."""
        action = self.rules.action
        return action.iteration if isinstance(action, ReduceGradients | EvaluateModel) else self.rules.voted

    @property
    def is_called_away(self) -> bool:
        """Whether something waits to be heard that ends its epoch."""
        return any(isinstance(message, Turn) for message in self.heard)


class ToyCluster:
    """The coordinator's rules, its workers, the wires between them, and the disk."""

    def __init__(
        self,
        job: Job,
        rng: random.Random,
        not_finite: frozenset[int] = frozenset(),
        timers_are_slow: bool = False,
        regroups: bool = False,
        networks: int = 0,
        training: ToyTraining = ToyTraining(),
        resume: Resume | None = plan_rest,
    ) -> None:
        self.job, self.rng, self.not_finite, self.training = job, rng, not_finite, training
        self.timers_are_slow = timers_are_slow
        self.others = tuple(f"store:{number}" for number in range(networks))  # of every worker
        self.rules = CoordinatorRules(job)
        self.gate = UnitGate(self.rules)
        self.ranks = job.plan.gpus_of(job.plan.workers[0])
        self.log: list[bytes] = []
        self.workers: list[ToyWorker] = []
        self.named: defaultdict[str, list[ToyWorker]] = defaultdict(list)  # the same, by whose processes they are
        self.to_coordinator: deque[Event] = deque()  # plans and timers
        self.watch: tuple[float, str] | None = None  # when the coordinator looks whether anything happens
        self.patience: list[str] = []  # timers by which it waits no longer for what others have
        self.announced: list[dict[str, Any]] = []
        self.finished: Finish | None = None
        self.connections = 0
        self.now_s = 0.0
        self.is_down = False
        self.replan: Replan = Regrouping(job.plan) if regroups else Rerouting(job.plan)
        self.resume = resume
        self.offices = [ToyOffice() for _ in range(self.ranks)]  # between ranks of the same number
        self.examined: list[tuple[int, str]] = []  # in which epoch, who
        self.mail: dict[tuple[int, Copy, int], State] = {}
        self.made: dict[str, str] = {}  # by name, what is not as all others make it at a job's start
        for worker in job.plan.live_workers():
            for rank in range(self.ranks):
                self.start(rank_name(worker.name, rank, self.ranks))

    # What a test does

    def start(self, called: str, not_before: int = 0) -> ToyWorker:
        """A new process, by what it is called, says hello."""
        self.connections += 1
        share, pid = rank_of(called), len(self.workers) + 1
        worker = ToyWorker(worker_of(called), self.connections, pid, share, self.ranks, training=self.training)
        worker.outbox.append(self._hello(worker, not_before, None))
        self.workers.append(worker)
        self.named[worker.name].append(worker)
        return worker

    def kill(self, worker: ToyWorker) -> None:
        """SIGKILL: what it has said already may still arrive."""
        worker.is_alive = False
        worker.outbox.append(None)

    def leave(self, worker: ToyWorker) -> None:
        """It is asked to go."""
        self._say(worker, Leaving())

    def hang(self, worker: ToyWorker, how: Hang) -> None:
        """Its training thread does nothing any more, and its process lives."""
        worker.hangs = how

    def lose_patience(self, timer: str) -> None:
        """The coordinator waits no longer for what others have."""
        self.patience.remove(timer)
        self._feed(Elapsed(self._tick(), timer))

    def go_on(self, worker: ToyWorker) -> None:
        """A training thread that hung does what it was told."""
        worker.hangs = None

    def cut_off(self, worker: ToyWorker) -> None:
        """It was silent for too long, as a process that was stopped; now it is back, and what it was told is lost."""
        self._feed(Lost(self._tick(), worker.connection, "silent"))
        self._reconnect(worker)

    def complain(self, worker: ToyWorker, peer: str | None) -> None:
        """It has waited in vain, or lost touch with somebody who has left; it leaves its epoch."""
        worker.rules.lose_touch("connection closed", peer)
        self._carry_on(worker)

    def notice(self, conditions: Conditions) -> None:
        """A monitor has found out what is slow."""
        self._feed(Noticed(self._tick(), conditions))

    def ask_to_stop(self) -> None:
        """Somebody presses Ctrl-C."""
        if self.finished is None:
            self._feed(StopAsked(self._tick()))

    def restart_coordinator(self) -> None:
        """The coordinator dies and comes back from its log; messages on the wires are gone."""
        self.rules = CoordinatorRules(self.job)
        self.gate = UnitGate(self.rules)
        for line in self.log:
            self.gate.handle(decode_event(line))
        self.to_coordinator.clear()
        self.patience.clear()
        self.watch = None
        for worker in self.workers:
            worker.inbox.clear()
            worker.outbox.clear()
        if self.finished is not None:
            return
        self._feed(Restarted(self._tick()))
        for worker in self.live():
            self._reconnect(worker)

    def _reconnect(self, worker: ToyWorker) -> None:
        self.connections += 1
        worker.connection = self.connections
        worker.inbox.clear()
        worker.outbox.clear()
        worker.outbox.append(self._hello(worker, 0, worker.unanswered.returning))
        worker.outbox.extend(worker.unanswered.messages)

    def has_place(self, worker: ToyWorker) -> bool:
        """Whether a process is one of a worker that has a place, as far as it has heard."""
        if self.ranks == 1:
            return worker.connection in {member.connection for member in self.rules.members.values()}
        is_there = worker.rules.rank is not None and worker.name in self.rules.members
        return is_there and worker.epoch is not None and worker.epoch.epoch == self.rules.epoch

    def live(self, name: str | None = None) -> list[ToyWorker]:
        """The processes that live, of one worker or of all."""
        return [w for w in (self.named[name] if name else self.workers) if w.is_alive and not (w.ended or w.refused)]

    def step(self) -> bool:
        """One random thing that can happen now happens; False when nothing can."""
        actions = self._actions()
        if self.finished is None and (not actions or self.rng.randrange(100) < RARE):
            actions = [*actions, *self._rare_actions(is_idle=not actions)]
        if not actions:
            return False
        kind, *rest = self.rng.choice(actions)
        if kind == "hear":
            self._hear(rest[0])
        elif kind == "tell":
            self._read(rest[0], rest[0].inbox.popleft())
        elif kind == "work":
            self._work(rest[0])
        elif kind == "come out":
            rest[0].rules.supersede()
            self._carry_on(rest[0])
        elif kind == "lose patience":
            self.lose_patience(rest[0])
        elif kind == "complain":
            self.complain(*rest)
        elif kind == "watch":
            assert self.watch is not None
            (due_s, timer), self.watch = self.watch, None
            self.now_s = max(self.now_s, due_s)
            self._feed(Elapsed(self._tick(), timer))
        else:
            event = self.to_coordinator.popleft()
            self._feed(replace(event, now_s=self._tick()))
        return True

    def _actions(self) -> list[tuple[Any, ...]]:
        """What can happen now; timers, where they are slow, after everything else; at the end all hear of it."""
        actions: list[tuple[Any, ...]] = [("tell", w) for w in self.live() if w.inbox]
        actions += [("work", w) for w in self.live() if self._can_work(w)]
        actions += [("come out", w) for w in self.live() if self._can_come_out(w)]
        if self.finished is not None:
            return actions
        actions += [("hear", w) for w in self.workers if w.outbox]
        is_timer = bool(self.to_coordinator) and isinstance(self.to_coordinator[0], Elapsed)
        if self.to_coordinator and not (is_timer and self.timers_are_slow and actions):
            actions.append(("event",))
        return actions

    def _rare_actions(self, is_idle: bool) -> list[tuple[Any, ...]]:
        """What takes so long that mostly nothing else can happen: somebody loses patience, or touch, or looks."""
        actions: list[tuple[Any, ...]] = [("watch",)] if self.watch is not None else []
        if is_idle or not self.timers_are_slow:
            actions += [("lose patience", timer) for timer in self.patience]
        for worker in self.live() if any(worker.hangs for worker in self.live()) else ():
            if self._is_waiting(worker) and not worker.hangs:
                actions.append(("complain", worker, None))
                left = (w for w in self.live() if w is not worker and w.epoch == worker.epoch and w.groups is None)
                actions += [("complain", worker, peer.name) for peer in left]
        return actions

    @property
    def is_quiet(self) -> bool:
        """Whether nothing happens, but that somebody is asked and answers."""
        asked = (Inquiry, Whereabouts)
        workers = [w for w in self.workers if w.is_alive]
        said = [message for w in workers for message in (*w.outbox, *w.inbox) if not isinstance(message, asked)]
        moves = any(self._can_work(w) or self._can_come_out(w) for w in self.live())
        return not said and not self.to_coordinator and not moves

    # The wires

    def _hello(self, worker: ToyWorker, not_before: int, returning: Returning | None) -> Hello:
        plan = digest(self.job.plan)
        evaluates = self.training.evaluates_last
        return Hello(
            "",
            worker.name,
            "store:1",
            plan,
            {"shard_optimizer": True} if self.training.is_sharded else {},
            worker.pid,
            not_before,
            returning,
            self.others,
            None,
            evaluates,
            self.training.regroups,
            *worker.home,
            degrees=self.training.degrees,
            shape=None if (now := (worker.share, worker.ranks)) == worker.home else now,
        )

    def _hear(self, worker: ToyWorker) -> None:
        message = worker.outbox.popleft()
        if message is None:
            self._feed(Lost(self._tick(), worker.connection, "connection closed"))
        elif isinstance(message, Hello):
            self._feed(Arrived(self._tick(), worker.connection, message))
        else:
            self._feed(Said(self._tick(), worker.connection, message))

    def _feed(self, event: Event) -> None:
        self.log.append(encode_event(event))
        for instruction in self.gate.handle(event):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Tell(connection, message):
                for worker in self.workers:
                    if worker.connection == connection:
                        worker.inbox.append(message)
            case MakePlan() | PlanRest():
                self.to_coordinator.append(self._answer(instruction))
            case Wake():
                self._set_timer(instruction)
            case Announce(what):
                self.announced.append(what.as_json())
            case Finish():
                self.finished = instruction
            case Drop():
                pass

    def _answer(self, question: MakePlan | PlanRest) -> Event:
        if isinstance(question, PlanRest):
            return planned_rest(question, self.resume)
        try:
            found = self.replan(question.plan, question.crew, question.conditions)
            if self.job.lower is not None and found.iteration_time_s is None:
                found = replace(found, iteration_time_s=random.Random(repr(question.crew)).random())
            return planned(question.number, found)
        except InfeasibleError as error:
            return planned(question.number, None, error.what)

    def _set_timer(self, wake: Wake) -> None:
        if wake.timer.startswith("stall"):
            self.watch = (self.now_s + wake.after_s, wake.timer)
        elif wake.timer.startswith("standings"):
            self.patience.append(wake.timer)
        else:
            self.to_coordinator.append(Elapsed(0.0, wake.timer))

    def _tick(self) -> float:
        self.now_s += 0.5  # of an iteration it hears some two times from each worker
        return self.now_s

    # What a worker does: the thread that reads

    def _read(self, worker: ToyWorker, message: Any) -> None:
        worker.unanswered.hear(message)
        match message:
            case Inquiry():
                if worker.hangs != "mute":
                    worker.outbox.append(self._whereabouts(worker, message))
            case Refused():
                worker.refused = True
            case End() if worker.hangs is not None:
                worker.ended = End(message.exit_code, "its training thread does not let go")
            case _:
                worker.heard.append(message)

    def _whereabouts(self, worker: ToyWorker, inquiry: Inquiry) -> Whereabouts:
        """What a thread beside the training thread says."""
        doing, is_joining = worker.rules.action.doing, isinstance(worker.rules.action, Connect | CopyState)
        if worker.hangs == "computing":
            doing = "computing"
        elif worker.hangs or self._is_waiting(worker):
            doing = "joining" if is_joining else "waiting"
        idle_s = AGES_S if worker.hangs or (self.is_quiet and not is_joining) else 0.0
        return Whereabouts(inquiry.number, worker.epoch.epoch if worker.epoch else 0, doing, "toys", idle_s, ())

    # The thread that trains

    def _is_waiting(self, worker: ToyWorker) -> bool:
        """Whether it waits for other workers, and not for the coordinator."""
        return isinstance(worker.rules.action, JointAction) and not self._can_work(worker)

    def _can_come_out(self, worker: ToyWorker) -> bool:
        """Whether it takes part in something, and has been called away from it."""
        return isinstance(worker.rules.action, JointAction) and worker.is_called_away and not worker.hangs

    def _can_work(self, worker: ToyWorker) -> bool:
        """Whether what it is to do next can be done."""
        if worker.hangs or worker.becomes:
            return not worker.hangs
        match worker.rules.action:
            case Listen():
                return bool(worker.heard)
            case Connect(epoch):  # groups form while every seat's process lives and enters the same epoch
                return all(self._seated(*seat, epoch) is not None for seat in seats_in(epoch.present))
            case CopyState(epoch, rank) if rank >= len(epoch.seats):
                return True  # who holds what of a sharded optimizer shows elsewhere
            case CopyState(epoch, rank):  # not where the coordinator did not know that it had gone over to other layers
                received = worker.received
                there = {*(worker.state or ()), *(layer for copy in received for layer in range(*copy.layers))}
                is_complete = epoch.nothing_committed or there >= set(range(*self._layers(worker)))
                sums = [copy for copy in rest_of(epoch).copies if copy.target == epoch.seats[rank].place]
                is_summed = all((epoch.epoch, copy) in self._office(worker).sums for copy in sums)
                has_all = all((epoch.epoch, copy, worker.share) in self.mail for copy in received)
                return is_complete and is_summed and has_all
            case ExamineGroups(epoch, rank):
                suspects = {one for group in epoch.examine if rank in group for one in group}
                return all(self._is_ready(epoch.seats[one], epoch, worker.share) for one in suspects)
            case ReduceGradients():
                return self._running(worker).is_done or self._can_all_go_on(worker)
            case EvaluateModel(iteration):  # all come as far
                assert worker.groups is not None
                others = (self._seated(*seat, worker.groups) for seat in seats_in(worker.groups.seats))
                return all(other is not None and other.in_iteration >= iteration for other in others)
        return True

    def _seated(self, seat: RankAssignment, share: int, epoch: Epoch) -> ToyWorker | None:
        return next((w for w in self.live(seat.worker) if w.share == share and w.groups == epoch), None)

    def _office(self, worker: ToyWorker) -> ToyOffice:
        return self.offices[worker.share]

    def _others_offices(self, worker: ToyWorker) -> list[ToyOffice]:
        """Those of other numbers that a worker serves that has fewer ranks."""
        return self.offices[worker.share :: worker.ranks][1:]

    def _partners(self, worker: ToyWorker) -> list[ToyWorker | None]:
        """All ranks of a worker that execute its iteration with it, itself included; None: one that does not."""
        assert worker.groups is not None and worker.rules.rank is not None
        seat = worker.groups.seats[worker.rules.rank]
        there = [worker if n == worker.share else self._seated(seat, n, worker.groups) for n in range(worker.ranks)]
        return [one if one and one.rules.action == worker.rules.action and not one.hangs else None for one in there]

    def _can_all_go_on(self, worker: ToyWorker) -> bool:
        """Whether all ranks of a worker can do what comes next."""
        return all(one is not None and self._running(one).can_go_on() for one in self._partners(worker))

    def _is_ready(self, seat: RankAssignment, epoch: Epoch, share: int) -> bool:
        """Whether a worker has come so far in an epoch that it can be examined."""
        other = self._seated(seat, share % (1 + len(seat.further)), epoch)
        return other is not None and not isinstance(other.rules.action, Connect | CopyState)

    def _layers(self, worker: ToyWorker) -> Layers:
        assert worker.place is not None
        (layers,) = layers_at(worker.plan, worker.place)
        return layers

    def _work(self, worker: ToyWorker) -> None:
        """Do what comes next, and what follows from it at once."""
        if worker.becomes:
            self._say(worker, worker.reshape())
            return
        match worker.rules.action:
            case Listen():
                worker.rules.go_on(worker.heard.popleft())
            case CopyState(epoch, rank) if rank >= len(epoch.seats):
                worker.rules.go_on()
            case CopyState(epoch):
                worker.rules.go_on(self._state_taken(worker, epoch))
            case ExamineGroups(epoch, rank):
                if any(rank in group for group in epoch.examine):
                    self.examined.append((epoch.epoch, worker.name))
                worker.rules.go_on()
            case ReduceGradients(iteration):
                if self._execute(worker):
                    worker.rules.go_on(self._reduced(worker, iteration))
            case EvaluateModel(iteration):
                worker.rules.go_on((self._evaluated(worker, iteration), 0.25))
            case _:
                worker.rules.go_on()
        self._carry_on(worker)

    def _carry_on(self, worker: ToyWorker) -> None:
        """Do all that waits for nobody."""
        rules = worker.rules
        while not isinstance(rules.action, JointAction | Listen | Retire):
            rules.go_on(self._do_at_once(worker, rules.action))
        if isinstance(rules.action, CopyState):
            self._send_copies(worker, rules.action)
        elif isinstance(rules.action, Retire):
            end = rules.action.end
            worker.ended, worker.becomes = (None, end) if isinstance(end, Reshape) else (end, None)

    def _do_at_once(self, worker: ToyWorker, action: Action) -> Saved | Published | Standing | None:
        match action:
            case Say(message):
                self._say(worker, message)
            case EnterEpoch(epoch, keeps):
                assert worker.epoch is None or epoch.epoch > worker.epoch.epoch
                worker.groups = epoch
                worker.run, worker.progress = None, worker.progress if keeps else None
            case LeaveGroups():
                worker.groups = None
            case TellStanding(regroup):
                return self._standing(worker, regroup.iteration)
            case UndoStep():
                assert worker.kept is not None
                worker.state, worker.progress = worker.kept
                worker.run = None
            case TakeStep():
                self._step(worker, action)
            case SavePart(_, iteration, layers, together):
                is_held = worker.state is not None and set(range(*layers)) <= set(worker.state)
                own = (together.index(worker.name), len(together)) if together else None
                part = CheckpointFile(f"layers-{layers[0]}", layers, "0", 1.0, part=own)
                return Saved(iteration, part if is_held else None, None if is_held else "not held")
            case PublishWhole(publish):
                path = f"step-{publish.iteration}" if publish.parts else None
                return Published(publish.iteration, path, None if path else "discarded")
        return None

    def _step(self, worker: ToyWorker, step: TakeStep) -> None:
        assert worker.state is not None and worker.progress is not None
        self._check_sums(worker, step.iteration)
        if step.can_be_undone:
            worker.kept = copy_of(worker.state), worker.progress
        worker.run = worker.progress = None
        for steps in worker.state.values():
            steps.append(step_of(step.iteration, step.terms, self.training.clip_norm))

    def _say(self, worker: ToyWorker, message: FromWorker) -> None:
        worker.unanswered.say(message)
        worker.outbox.append(message)

    def _send_copies(self, worker: ToyWorker, action: CopyState) -> None:
        for copy in action.epoch.copies:
            # One that has gone over to another stage already, and could not yet say so, has nothing to send.
            held = worker.state or {}
            if copy.source == action.rank and set(range(*copy.layers)) <= set(held):
                sent = {layer: held[layer] for layer in range(*copy.layers)}
                for share in range(worker.share, self.ranks, worker.ranks):
                    self.mail[action.epoch.epoch, copy, share] = copy_of(sent)
        for one in rest_of(action.epoch).copies:
            if one.source == action.epoch.present[action.rank].place:
                assert worker.progress is not None, "who sends a sum has told that it has it"
                sums = {layer: worker.progress.sums[layer] for layer in range(*one.layers)}
                self._office(worker).sums[action.epoch.epoch, one] = sums

    def _state_taken(self, worker: ToyWorker, epoch: Epoch) -> Ready | StateLost:
        """What it has of its layers, and the rest from the mail."""
        wanted = self._layers(worker)
        own = (worker.state if worker.rules.holds is not None else None) or {}
        if epoch.nothing_committed:
            own = {layer: [] for layer in range(*wanted)}
        for copy in worker.received:
            own |= copy_of(self.mail[epoch.epoch, copy, worker.share])
        worker.state = {layer: own[layer] for layer in range(*wanted)}
        sums = self._sums_taken(worker, epoch) if epoch.rest is not None else {}
        made = self.made.get(worker.name, "as all others") if epoch.nothing_committed else None
        whole = WHOLE if len({len(seat.further) for seat in epoch.seats}) > 1 else ""
        said = tuple((layer, whole + made) for layer in range(*wanted) if made is not None)
        return Ready(epoch.epoch, wanted, said, tuple((layer, repr(one)) for layer, one in sorted(sums.items())))

    def _sums_taken(self, worker: ToyWorker, epoch: Epoch) -> dict[int, ToySum]:
        """Have what it is to have of an iteration of which a rest is left; gives the sums that it sends, or is sent."""
        assert epoch.rest is not None and worker.rules.rank is not None
        worker.progress = worker.progress or ToyProgress(epoch.iteration)
        place = epoch.seats[worker.rules.rank].place
        moved = [
            (one, self._office(worker).sums[epoch.epoch, one])
            for one in epoch.rest.copies
            if place in (one.source, one.target)
        ]
        taken = {layer: one for copy, sums in moved if copy.target == place for layer, one in sums.items()}
        worker.progress.take_over(epoch.rest, worker.plan, worker.rules.rank, layers_held(worker.rules.holds), taken)
        return {layer: one for _, sums in moved for layer, one in sums.items()}

    def _standing(self, worker: ToyWorker, iteration: int) -> Standing:
        """What it says to have of an iteration."""
        if worker.progress is None or worker.progress.iteration != iteration:
            worker.progress = None
        layers = layers_held(worker.rules.holds)
        if worker.progress is None or layers is None:
            return Standing(worker.name, layers)

        def keeps(message: Kept) -> bool:
            return self.rng.randrange(100) >= self.training.forgets

        splits = kinds_of(self.job.plan) == "FIW"
        told = worker.progress.standing(worker.name, layers, splits, keeps)
        return self._embellished(told) if worker.lies else told

    def _embellished(self, told: Standing) -> Standing:
        """A standing with what it has not done, which may be impossible, or not."""
        assert told.layers is not None
        sealed = {layer for layers in told.sealed for layer in range(*layers)}
        layer = self.rng.randrange(*told.layers)
        done = {n: {*entry.microbatches} for entry in told.ledger for n in range(*entry.layers)}
        if layer not in sealed:
            done.setdefault(layer, set()).add(self.rng.randrange(self.job.plan.total_microbatches() + 1))
        wrong = [replace(told, ledger=ledger_entries(done))]
        wrong += [replace(told, ledger=(*told.ledger, LedgerEntry((told.layers[0], told.layers[1] + 1), (0,))))]
        wrong += [replace(told, worker="9/9"), replace(told, layers=(told.layers[0], told.layers[1] + 1))]
        return self.rng.choice(wrong)

    def _check_sums(self, worker: ToyWorker, iteration: int) -> None:
        """What it is about to step by is what one process alone would."""
        progress, state = worker.progress, worker.state
        assert progress is not None and state is not None and progress.iteration == iteration
        assert progress.sums.keys() == state.keys()
        microbatches = self.job.plan.total_microbatches()
        wrong = [n for n, one in progress.sums.items() if not is_exact(one, iteration, len(state[n]), microbatches)]
        if wrong and any(one.lies for one in self.workers):
            state[wrong[0]].append(ToyStep(iteration, -1, 0.0, 0.0))  # which must be undone
        else:
            assert not wrong, f"{worker.name} steps by {[progress.sums[layer] for layer in wrong]}"

    def _running(self, worker: ToyWorker) -> ToyRun:
        """The iteration that it executes."""
        assert isinstance(worker.rules.action, ReduceGradients) and worker.rules.rank is not None
        assert worker.groups is not None and worker.state is not None
        iteration = worker.rules.action.iteration
        if worker.run is None or worker.run.progress.iteration != iteration or worker.run.epoch is not worker.groups:
            if worker.progress is None or worker.progress.iteration != iteration:
                worker.progress = ToyProgress(iteration)
            steps = {layer: len(taken) for layer, taken in worker.state.items()}
            offices = self._office(worker), self._others_offices(worker)
            worker.run = ToyRun(worker.groups, worker.rules.rank, worker.progress, *offices, steps)
        return worker.run

    def _execute(self, worker: ToyWorker) -> bool:
        """Go on with the iteration for a while, all ranks together; gives whether it is done."""
        run = self._running(worker)
        while not run.is_done and self._can_all_go_on(worker):
            for one in self._partners(worker):
                assert one is not None
                self._go_on_with(one, self._running(one))
            if self.rng.random() < BREATHES:
                break
        return run.is_done

    def _go_on_with(self, worker: ToyWorker, run: ToyRun) -> None:
        if run.is_about_to_sum:
            self._say(worker, self._losses_told(worker, run))
        run.go_on()

    def _losses(self, iteration: int, numbers: Iterable[int]) -> tuple[MicrobatchLoss, ...]:
        each = self.training.counts.get(iteration, 1.0)
        return tuple((number, 0.5 * each, each) for number in sorted(numbers))

    def _losses_told(self, worker: ToyWorker, run: ToyRun) -> LossesTold:
        last = self.job.plan.templates[0].stages[-1].layers[1] - 1
        iteration = run.progress.iteration
        return LossesTold(run.epoch.epoch, iteration, self._losses(iteration, run.ledger().get(last, ())))

    def _reduced(self, worker: ToyWorker, iteration: int) -> Vote:
        run = self._running(worker)
        ledger = run.ledger()
        last = self.job.plan.templates[0].stages[-1].layers[1] - 1
        losses = self._losses(iteration, ledger.get(last, ()))
        is_last = worker.share == worker.ranks - 1 and run.layers[1] == last + 1
        is_finite = not (iteration in self.not_finite and is_last)
        norms = tuple((layer, self._square(worker, iteration) / worker.ranks) for layer in self._first_held(worker))
        told = None if run.program.rest is None else ledger_entries(ledger)
        return Vote(run.epoch.epoch, iteration, is_finite, tuple(run.done), losses, norms=norms, ledger=told)

    def _first_held(self, worker: ToyWorker) -> Iterator[int]:
        """Its layers that no worker of a lower rank holds."""
        places = live_places(worker.plan)
        assert worker.place is not None
        below = chain.from_iterable(layers_at(worker.plan, place) for place in places[: places.index(worker.place)])
        return iter(sorted(layers_in(layers_at(worker.plan, worker.place)) - layers_in(below)))

    def _square(self, worker: ToyWorker, iteration: int) -> float:
        """One layer's share of what the norm is to be."""
        layers = worker.plan.templates[0].stages[-1].layers[1]
        count = self.training.counts.get(iteration, 1.0) * worker.plan.total_microbatches()
        return (self.training.norms.get(iteration, SMALL_NORM) * count) ** 2 / layers

    def _evaluated(self, worker: ToyWorker, iteration: int) -> tuple[MicrobatchLoss, ...]:
        """At a last stage, of its micro-batches: how many steps the state has seen."""
        plan, place = worker.plan, worker.place
        assert place is not None and worker.state is not None
        last = len(plan.template_of(place[0]).stages) - 1
        mine = next(w for w in plan.workers if (w.pipeline, w.stage) == place)
        numbers = [number_of(plan, op) for op in mine.operations() if op.kind == "F"]
        steps = float(len(next(iter(worker.state.values()))))
        return tuple((n, steps, 1.0) for n in numbers) if place[1] == last else ()


def layers_held(holds: Sequence[Layers] | None) -> Layers | None:
    """What a worker holds, which is one stage here."""
    return None if holds is None else holds[0]


def rest_of(epoch: Epoch) -> Rest:
    """What is left of an epoch's first iteration; where all is left, nothing is there yet."""
    return epoch.rest or Rest(epoch.iteration, (), ())


def copy_of(state: State) -> State:
    """A state of its own."""
    return {layer: list(steps) for layer, steps in state.items()}


def step_of(iteration: int, terms: StepTerms, clip_norm: float | None) -> ToyStep:
    """The step of an iteration's gradients by these terms, as an optimizer takes it."""
    scale = 1.0 if clip_norm is None or terms.norm is None else min(1.0, clip_norm / terms.norm)
    return ToyStep(iteration, terms.taken, terms.count, round(scale, 9))
