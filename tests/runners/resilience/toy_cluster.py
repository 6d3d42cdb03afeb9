"""A job of toy workers around the real rules: every message in its order, everything else in any order.

Its training thread may hang while its process lives: then it says where it is when it is asked, or nothing at all. Who
waits in vain complains at times; whoever complains leaves its epoch, and others miss it.

A toy worker keeps no tensors but, for each of its layers, the list of iterations whose optimizer step it has taken,
which all who hold a layer must agree on. It obeys the protocol as the torch worker does, and moves when the test's
random generator says so.
"""

import random
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

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
    Restarted,
    Said,
    Tell,
    Wake,
    decode_event,
    encode_event,
    planned,
)
from rtk.runners.resilience.membership import layers_at
from rtk.runners.resilience.protocol import (
    Commit,
    Copy,
    End,
    Epoch,
    Halt,
    Hello,
    Inquiry,
    Job,
    Leaving,
    Publish,
    Published,
    RankAssignment,
    Ready,
    Refused,
    Returning,
    Saved,
    Saver,
    Suspect,
    Vote,
    Whereabouts,
)
from rtk.runners.resilience.rules import CoordinatorRules
from rtk.schemas.checkpoint import CheckpointFile
from rtk.schemas.conditions import HEALTHY, Conditions
from rtk.schemas.documents import digest, parse_document
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.plan import Layers, Link, Pipeline, Place, Plan, Planner, Stage, Template, Worker, place_of
from rtk.schemas.protocols import Hand, Replan, Replanned

# How a training thread hangs: in an operation, or in a wait that nothing wakes; or where nobody answers for it.
Hang = Literal["computing", "waiting", "mute"]
AGES_S = 1e6
# Of 100 times that something else can happen, how often a timer of the coordinator elapses, or a worker loses patience.
RARE = 2

# What the toy planner makes nothing of, and what it cannot plan for.
TOLERATED_S, HOPELESS = 1.0, 9.0


def toy_plan(stages: int, dp: int, microbatches: int, staggered: bool) -> Plan:
    """GPipe orders: all forwards, then all backwards."""
    cut = tuple(Stage((i, i + 1), 1.0, 1.0, 1.0) for i in range(stages))
    template = Template("toy", cut, tuple(Link() for _ in range(stages - 1)))
    order = " ".join([f"F{j}" for j in range(microbatches)] + [f"B{j}" for j in range(microbatches)])
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
            for kind in "FB"
            for k in mine
            for j in range(count)
        ]
        workers.append(Worker(worker.pipeline, worker.stage, " ".join(tokens)))
    if {worker.stage for worker in workers if not worker.failed} != set(range(len(plan.templates[0].stages))):
        raise InfeasibleError("nobody left")
    return replace(plan, workers=tuple(workers))


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
        found = unlike_plan(self.layers, sizes, self.microbatches, chance)
        places = [(worker.pipeline, worker.stage) for worker in found.workers]
        return Replanned(found, tuple(zip((hand.worker for hand in hands), places, strict=True)))

    def _is_whole(self, hands: list[Hand]) -> bool:
        held = {layer for hand in hands if hand.layers for layer in range(*hand.layers)}
        return held == set(range(self.layers))


def unlike_plan(layers: int, sizes: list[int], microbatches: int, chance: random.Random) -> Plan:
    """Pipelines of so many stages each, cut anywhere; GPipe orders."""
    templates, pipelines, workers = [], [], []
    for k, size in enumerate(sizes):
        cuts = [0, *sorted(chance.sample(range(1, layers), size - 1)), layers]
        stages = tuple(Stage(cut, 1.0, 1.0, 1.0) for cut in pairwise(cuts))
        templates.append(Template(f"t{k}", stages, tuple(Link() for _ in range(size - 1))))
        count = microbatches // len(sizes) + (k < microbatches % len(sizes))
        pipelines.append(Pipeline(f"t{k}", count))
        order = " ".join(f"{kind}{j}" for kind in "FB" for j in range(count))
        workers += [Worker(k, i, order) for i in range(size)]
    return Plan(Planner("toy", "1", {}), tuple(templates), tuple(pipelines), "synchronous", tuple(workers))


@dataclass
class ToyWorker:
    """One process."""

    name: str
    connection: int
    is_alive: bool = True
    inbox: deque[Any] = field(default_factory=deque)
    outbox: deque[Any] = field(default_factory=deque)
    epoch: Epoch | None = None
    plan: Plan | None = None
    place: Place | None = None
    rank: int = -1
    layers: Layers = (0, 0)
    state: dict[int, list[int]] | None = None
    applied: int = -1
    kept: dict[int, list[int]] | None = None
    committed: int = -1
    is_ready: bool = False
    is_examined: bool = False
    in_iteration: int = -1
    voted: int = -1
    last: int = 0
    ended: End | None = None
    refused: bool = False
    wants_to_leave: bool = False
    hangs: Hang | None = None
    unread: list[Any] = field(default_factory=list)  # what the training thread was told while it hung
    has_complained: bool = False  # of others in its epoch, which it has left

    @property
    def suspects(self) -> list[str]:
        """With whom, itself included, it is to be examined before the epoch's first iteration; nobody once it was."""
        if self.epoch is None or self.is_examined:
            return []
        own = {rank for group in self.epoch.examine if self.rank in group for rank in group}
        return [self.epoch.seats[rank].worker for rank in sorted(own)]

    @property
    def is_staggered(self) -> bool:
        return self.plan is not None and self.plan.optimizer == "staggered"


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
    ) -> None:
        self.job, self.rng, self.not_finite = job, rng, not_finite
        self.timers_are_slow = timers_are_slow
        self.others = tuple(f"store:{number}" for number in range(networks))  # of every worker
        self.rules = CoordinatorRules(job)
        self.log: list[bytes] = []
        self.workers: list[ToyWorker] = []
        self.to_coordinator: deque[Event] = deque()  # plans and timers
        self.watch: tuple[float, str] | None = None  # when the coordinator looks whether anything happens
        self.announced: list[dict[str, Any]] = []
        self.finished: Finish | None = None
        self.connections = 0
        self.now_s = 0.0
        self.is_down = False
        self.replan: Replan = Regrouping(job.plan) if regroups else Rerouting(job.plan)
        self.examined: list[tuple[int, str]] = []  # in which epoch, who
        self.mail: dict[tuple[int, Copy], dict[int, list[int]]] = {}
        for worker in job.plan.live_workers():
            self.start(worker.name)

    # What a test does

    def start(self, name: str, not_before: int = 0) -> ToyWorker:
        """A new process says hello."""
        self.connections += 1
        worker = ToyWorker(name, self.connections)
        worker.outbox.append(self._hello(worker, not_before, None))
        self.workers.append(worker)
        return worker

    def kill(self, worker: ToyWorker) -> None:
        """SIGKILL: what it has said already may still arrive."""
        worker.is_alive = False
        worker.outbox.append(None)

    def hang(self, worker: ToyWorker, how: Hang) -> None:
        """Its training thread does nothing any more, and its process lives."""
        worker.hangs = how

    def go_on(self, worker: ToyWorker) -> None:
        """A training thread that hung does what it was told."""
        worker.hangs = None
        worker.inbox.extendleft(reversed(worker.unread))
        worker.unread.clear()

    def cut_off(self, worker: ToyWorker) -> None:
        """It was silent for too long, as a process that was stopped; now it is back, and what it was told is lost."""
        self._feed(Lost(self._tick(), worker.connection, "silent"))
        worker.inbox.clear()
        worker.outbox.clear()
        self.connections += 1
        worker.connection = self.connections
        returning = Returning(worker.epoch.epoch, worker.committed) if worker.epoch else None
        worker.outbox.append(self._hello(worker, 0, returning))

    def complain(self, worker: ToyWorker, peer: str | None) -> None:
        """It has waited in vain, or lost touch with somebody who has left; it leaves its epoch."""
        assert worker.epoch is not None
        worker.has_complained = True
        worker.outbox.append(Suspect(worker.epoch.epoch, "connection closed", peer))

    def notice(self, conditions: Conditions) -> None:
        """A monitor has found out what is slow."""
        self._feed(Noticed(self._tick(), conditions))

    def restart_coordinator(self) -> None:
        """The coordinator dies and comes back from its log; messages on the wires are gone."""
        self.rules = CoordinatorRules(self.job)
        for line in self.log:
            self.rules.handle(decode_event(line))
        self.to_coordinator.clear()
        self.watch = None
        for worker in self.workers:
            worker.inbox.clear()
            worker.outbox.clear()
        if self.finished is not None:
            return
        self._feed(Restarted(self._tick()))
        for worker in self.workers:
            if worker.is_alive and worker.ended is None and not worker.refused:
                self._reconnect(worker)

    def _reconnect(self, worker: ToyWorker) -> None:
        self.connections += 1
        worker.connection = self.connections
        returning = Returning(worker.epoch.epoch, worker.committed) if worker.epoch else None
        worker.outbox.append(self._hello(worker, 0, returning))
        if worker.epoch and worker.is_ready:
            worker.outbox.append(Ready(worker.epoch.epoch, worker.layers))
        if worker.epoch:  # with a staggered optimizer two votes may have been on the wire
            first = max(worker.epoch.iteration, worker.committed + 1)
            worker.outbox.extend(self._vote(worker, n) for n in range(first, worker.voted + 1))
        if worker.wants_to_leave:
            worker.outbox.append(Leaving())

    def live(self) -> list[ToyWorker]:
        return [w for w in self.workers if w.is_alive and w.ended is None and not w.refused]

    def step(self) -> bool:
        """One random thing that can happen now happens; False when nothing can."""
        if self.finished is not None:
            return False
        actions = self._actions()
        if not actions or self.rng.randrange(100) < RARE:
            actions = [*actions, *self._rare_actions()]
        if not actions:
            return False
        kind, *rest = self.rng.choice(actions)
        if kind == "hear":
            self._hear(rest[0])
        elif kind == "tell":
            self._obey(rest[0], rest[0].inbox.popleft())
        elif kind == "work":
            self._work(rest[0])
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
        """What can happen now; timers, where they are slow, after everything else."""
        actions: list[tuple[Any, ...]] = [("hear", w) for w in self.workers if w.outbox]
        actions += [("tell", w) for w in self.workers if w.inbox and w.is_alive]
        actions += [("work", w) for w in self.live() if self._can_work(w)]
        is_timer = bool(self.to_coordinator) and isinstance(self.to_coordinator[0], Elapsed)
        if self.to_coordinator and not (is_timer and self.timers_are_slow and actions):
            actions.append(("event",))
        return actions

    def _rare_actions(self) -> list[tuple[Any, ...]]:
        """What takes so long that mostly nothing else can happen: somebody loses patience, or touch, or looks."""
        actions: list[tuple[Any, ...]] = [("watch",)] if self.watch is not None else []
        for worker in self.live() if any(worker.hangs for worker in self.live()) else ():
            if self._is_waiting(worker):
                actions.append(("complain", worker, None))
                actions += [("complain", worker, peer.name) for peer in self._peers(worker) if peer.has_complained]
        return actions

    @property
    def is_quiet(self) -> bool:
        """Whether nothing happens, but that somebody is asked and answers."""
        asked = (Inquiry, Whereabouts)
        workers = [w for w in self.workers if w.is_alive]
        said = [message for w in workers for message in (*w.outbox, *w.inbox) if not isinstance(message, asked)]
        return not said and not self.to_coordinator and not any(self._can_work(w) for w in self.live())

    # The wires

    def _hello(self, worker: ToyWorker, not_before: int, returning: Returning | None) -> Hello:
        plan = digest(self.job.plan)
        return Hello("", worker.name, "store:1", plan, {}, 0, not_before, returning, self.others)

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
        for instruction in self.rules.handle(event):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Tell(connection, message):
                for worker in self.workers:
                    if worker.connection == connection:
                        worker.inbox.append(message)
            case MakePlan(number, plan, crew, conditions):
                try:
                    self.to_coordinator.append(planned(number, self.replan(plan, crew, conditions)))
                except InfeasibleError as error:
                    self.to_coordinator.append(planned(number, None, error.what))
            case Wake():
                self._set_timer(instruction)
            case Announce(what):
                self.announced.append(what.as_json())
            case Finish():
                self.finished = instruction
            case Drop():
                pass

    def _set_timer(self, wake: Wake) -> None:
        if wake.timer.startswith("stall"):
            self.watch = (self.now_s + wake.after_s, wake.timer)
        else:
            self.to_coordinator.append(Elapsed(0.0, wake.timer))

    def _tick(self) -> float:
        self.now_s += 1.0
        return self.now_s

    # What a worker does

    def _obey(self, worker: ToyWorker, message: Any) -> None:
        if worker.hangs is not None and not isinstance(message, Inquiry | End):
            worker.unread.append(message)
            return
        match message:
            case Inquiry() if worker.hangs != "mute":
                worker.outbox.append(self._whereabouts(worker, message))
            case Epoch():
                self._enter(worker, message)
            case Commit():
                self._committed(worker, message)
            case Halt():
                self._roll_back(worker, message.iteration, message.skipped)
                self._save(worker, message.savers, message.iteration)
            case Publish():
                path = f"step-{message.iteration}" if message.parts else None
                worker.outbox.append(Published(message.iteration, path, None if path else "discarded"))
            case End():
                worker.ended = message
            case Refused():
                worker.refused = True

    def _enter(self, worker: ToyWorker, epoch: Epoch) -> None:
        assert worker.epoch is None or epoch.epoch > worker.epoch.epoch or epoch == worker.epoch
        self._roll_back(worker, epoch.iteration, epoch.skipped)
        worker.epoch, worker.last = epoch, epoch.last
        worker.is_ready = worker.is_examined = worker.has_complained = False
        worker.in_iteration, worker.voted = epoch.iteration - 1, epoch.iteration - 1
        worker.rank = next((r for r, seat in enumerate(epoch.seats) if seat.worker == worker.name), -1)
        if worker.rank < 0:  # there is no place for it at present
            worker.plan = worker.place = worker.state = None
            return
        worker.plan = parse_document(epoch.plan.encode(), Plan, "epoch")
        worker.place = place_of(epoch.seats[worker.rank].place)
        live = [(w.pipeline, w.stage) for w in worker.plan.live_workers()]
        assert worker.place == live[worker.rank]
        for copy in epoch.copies:
            # One that has gone over to another stage already, and could not yet say so, has nothing to send.
            if (
                copy.source == worker.rank
                and worker.state is not None
                and set(range(*copy.layers)) <= set(worker.state)
            ):
                assert worker.applied == epoch.iteration - 1, "the source has gone on"
                self.mail[epoch.epoch, copy] = {layer: list(worker.state[layer]) for layer in range(*copy.layers)}

    def _whereabouts(self, worker: ToyWorker, inquiry: Inquiry) -> Whereabouts:
        """What a thread beside the training thread says."""
        epoch = worker.epoch.epoch if worker.epoch else 0
        idle_s = AGES_S if worker.hangs or self.is_quiet else 0.0
        if worker.hangs == "waiting" or self._is_waiting(worker):
            doing = "waiting" if worker.is_ready else "joining"
            idle_s = idle_s if worker.is_ready or worker.hangs else 0.0
        elif worker.hangs == "computing":
            doing = "computing"
        else:
            doing = "computing" if self._can_work(worker) else "listening"
        return Whereabouts(inquiry.number, epoch, doing, "toys", idle_s, ())  # type: ignore[arg-type]

    def _is_waiting(self, worker: ToyWorker) -> bool:
        """Whether it waits for other workers, and not for the coordinator."""
        if worker.epoch is None or worker.place is None or worker.has_complained or worker.hangs:
            return False
        is_at_rest = worker.is_ready and worker.voted == worker.in_iteration and worker.applied != worker.in_iteration
        return not is_at_rest and worker.in_iteration < worker.last and not self._can_work(worker)

    def _peers(self, worker: ToyWorker) -> list[ToyWorker]:
        """The others that are in its epoch, or have been."""
        return [w for w in self.live() if w is not worker and w.epoch == worker.epoch]

    def _roll_back(self, worker: ToyWorker, iteration: int, skipped: bool) -> None:
        """Be as after iteration - 1; a step taken on its own is undone."""
        if worker.state is None:
            return
        goal = iteration - 1
        if worker.applied > goal or (skipped and worker.applied == goal and worker.kept is not None):
            assert worker.kept is not None
            worker.state, worker.kept = worker.kept, None
        worker.applied = goal
        worker.committed = goal

    def _peers_entered(self, worker: ToyWorker) -> bool:
        """Groups can only form while every seat's process lives and enters the same epoch."""
        assert worker.epoch is not None
        return all(self._seated(seat, worker.epoch) is not None for seat in worker.epoch.seats)

    def _seated(self, seat: RankAssignment, epoch: Epoch) -> ToyWorker | None:
        found = [
            w
            for w in self.live()
            if w.name == seat.worker and w.epoch is not None and w.epoch.epoch == epoch.epoch and not w.has_complained
        ]
        return found[0] if found else None

    def _can_work(self, worker: ToyWorker) -> bool:
        if worker.place is None or worker.hangs or worker.has_complained:
            return False
        if worker.inbox and isinstance(worker.inbox[-1], Epoch | Halt | End):
            return False
        if not worker.is_ready:
            return self._peers_entered(worker) and self._can_take_state(worker)
        if worker.suspects:
            return all(self._is_ready(name, worker.epoch) for name in worker.suspects)
        if worker.voted > worker.in_iteration:
            raise AssertionError("voted ahead of work")
        if worker.voted == worker.in_iteration:  # the next iteration may start
            done = worker.applied == worker.in_iteration
            return done and worker.in_iteration + 1 <= worker.last and self._peers_entered(worker)
        return self._everybody_is_in(worker)

    def _is_ready(self, name: str, epoch: Epoch | None) -> bool:
        """Whether a worker lives and has come so far in an epoch that it can be examined."""
        return any(w.name == name and w.is_ready and w.epoch == epoch for w in self.live())

    def _can_take_state(self, worker: ToyWorker) -> bool:
        """Not where the coordinator does not know yet that it has gone over to other layers."""
        epoch = worker.epoch
        assert epoch is not None and worker.plan is not None and worker.place is not None
        received = [copy for copy in epoch.copies if copy.target == worker.rank]
        there = {*(worker.state or ()), *(layer for copy in received for layer in range(*copy.layers))}
        is_complete = epoch.nothing_committed or there >= set(range(*layers_at(worker.plan, worker.place)))
        return is_complete and all((epoch.epoch, copy) in self.mail for copy in received)

    def _everybody_is_in(self, worker: ToyWorker) -> bool:
        """Gradients are reduced only when every live worker has come as far as this iteration."""
        assert worker.epoch is not None
        others = [self._seated(seat, worker.epoch) for seat in worker.epoch.seats]
        return all(other is not None and other.in_iteration >= worker.in_iteration for other in others)

    def _work(self, worker: ToyWorker) -> None:
        assert worker.epoch is not None
        if not worker.is_ready:
            self._take_state(worker, worker.epoch)
            worker.is_ready = True
            worker.outbox.append(Ready(worker.epoch.epoch, worker.layers))
        elif worker.suspects:
            self.examined.append((worker.epoch.epoch, worker.name))
            worker.is_examined = True
        elif worker.voted == worker.in_iteration:
            worker.in_iteration += 1
        else:
            worker.voted = worker.in_iteration
            worker.outbox.append(self._vote(worker, worker.voted))
            self._step_alone(worker)

    def _take_state(self, worker: ToyWorker, epoch: Epoch) -> None:
        """What it has of its layers, and the rest from the mail."""
        assert worker.plan is not None and worker.place is not None
        wanted = layers_at(worker.plan, worker.place)
        own = worker.state or {}
        if epoch.nothing_committed:
            own = {layer: [] for layer in range(*wanted)}
        for copy in epoch.copies:
            if copy.target == worker.rank:
                own |= self.mail[epoch.epoch, copy]
        if set(own) != set(range(*wanted)):
            worker.kept = None
        worker.layers, worker.state = wanted, {layer: own[layer] for layer in range(*wanted)}
        worker.applied = worker.committed = epoch.iteration - 1

    def _vote(self, worker: ToyWorker, iteration: int) -> Vote:
        assert worker.epoch is not None and worker.plan is not None and worker.place is not None
        plan = worker.plan
        mine = next(w for w in plan.workers if (w.pipeline, w.stage) == worker.place)
        numbers = [plan.microbatch_offset(op.pipeline) + op.microbatch for op in mine.operations() if op.kind == "B"]
        is_last = worker.place[1] == len(plan.template_of(worker.place[0]).stages) - 1
        losses = tuple((n, 0.5) for n in numbers) if is_last else ()
        finite = not (iteration in self.not_finite and is_last)
        return Vote(worker.epoch.epoch, iteration, finite, tuple(numbers), losses)

    def _step_alone(self, worker: ToyWorker) -> None:
        """With a staggered optimizer: step at once if the iteration before is known to be committed."""
        if not worker.is_staggered or worker.voted != worker.applied + 1 or worker.committed < worker.voted - 1:
            return
        assert worker.state is not None and worker.place is not None and worker.plan is not None
        worker.kept = {layer: list(steps) for layer, steps in worker.state.items()}
        is_last = worker.place[1] == len(worker.plan.templates[0].stages) - 1
        if not (is_last and worker.voted in self.not_finite):  # it sees that itself
            _step(worker.state, worker.voted)
        worker.applied = worker.voted

    def _committed(self, worker: ToyWorker, commit: Commit) -> None:
        if worker.epoch is None or commit.epoch != worker.epoch.epoch:
            return
        worker.last = commit.last
        assert worker.state is not None
        if worker.is_staggered:
            worker.committed = max(worker.committed, commit.iteration)
            if not commit.skip:
                self._step_alone(worker)
        elif worker.applied < commit.iteration:
            assert commit.iteration == worker.voted == worker.applied + 1
            if not commit.skip:
                _step(worker.state, commit.iteration)
            worker.applied = worker.committed = commit.iteration
        self._save(worker, commit.savers, commit.iteration + 1)

    def _save(self, worker: ToyWorker, savers: tuple[Saver, ...], iteration: int) -> None:
        for saver in savers:
            if saver.worker == worker.name:
                is_held = worker.state is not None and set(range(*saver.layers)) <= set(worker.state)
                part = CheckpointFile(f"layers-{saver.layers[0]}", saver.layers, "0", 1.0)
                worker.outbox.append(Saved(iteration, part if is_held else None, None if is_held else "not held"))


def _step(state: dict[int, list[int]], iteration: int) -> None:
    for steps in state.values():
        steps.append(iteration)
