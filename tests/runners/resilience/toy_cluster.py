"""A job of toy workers around the real rules: every message in its order, everything else in any order.

A toy worker keeps no tensors but the list of iterations whose optimizer step it has taken, which two workers of a stage
must agree on. It obeys the protocol as the torch worker does, and moves when the test's random generator says so.
"""

import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

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
    Planned,
    Restarted,
    Said,
    Tell,
    Wake,
    decode_event,
    encode_event,
)
from rtk.runners.resilience.messages import (
    Commit,
    End,
    Epoch,
    Halt,
    Hello,
    Leaving,
    Publish,
    Published,
    Ready,
    Refused,
    Returning,
    Saved,
    Seat,
    Vote,
)
from rtk.runners.resilience.rules import Job, Rules
from rtk.schemas.checkpoint import CheckpointFile
from rtk.schemas.documents import canonical, digest, parse_document
from rtk.schemas.plan import Link, Pipeline, Plan, Planner, Stage, Template, Worker


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


def toy_replan(plan: Plan, failed: frozenset[tuple[int, int]]) -> Plan | None:
    """Give all micro-batches of a failed worker to the first live one of its stage; None where there is none."""
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
    stages = {worker.stage for worker in workers if not worker.failed}
    if stages != set(range(len(plan.templates[0].stages))):
        return None
    return replace(plan, workers=tuple(workers))


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
    place: tuple[int, int] | None = None
    rank: int = -1
    state: list[int] | None = None
    applied: int = -1
    kept: list[int] | None = None
    committed: int = -1
    is_ready: bool = False
    in_iteration: int = -1
    voted: int = -1
    last: int = 0
    ended: End | None = None
    refused: bool = False
    wants_to_leave: bool = False

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
    ) -> None:
        self.job, self.rng, self.not_finite = job, rng, not_finite
        self.timers_are_slow = timers_are_slow
        self.rules = Rules(job)
        self.log: list[bytes] = []
        self.workers: list[ToyWorker] = []
        self.to_coordinator: deque[Event] = deque()  # plans and timers
        self.announced: list[dict[str, Any]] = []
        self.finished: Finish | None = None
        self.connections = 0
        self.now_s = 0.0
        self.is_down = False
        self.copied: dict[tuple[int, int], tuple[int, list[int]]] = {}
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

    def restart_coordinator(self) -> None:
        """The coordinator dies and comes back from its log; messages on the wires are gone."""
        self.rules = Rules(self.job)
        for line in self.log:
            self.rules.handle(decode_event(line))
        self.to_coordinator.clear()
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
            worker.outbox.append(Ready(worker.epoch.epoch))
        if worker.epoch:  # with a staggered optimizer two votes may have been on the wire
            first = max(worker.epoch.iteration, worker.committed + 1)
            worker.outbox.extend(self._vote(worker, n) for n in range(first, worker.voted + 1))
        if worker.wants_to_leave:
            worker.outbox.append(Leaving())

    def live(self) -> list[ToyWorker]:
        return [w for w in self.workers if w.is_alive and w.ended is None and not w.refused]

    def step(self) -> bool:
        """One random thing that can happen now happens; False when nothing can."""
        actions: list[tuple[Any, ...]] = [("hear", w) for w in self.workers if w.outbox]
        actions += [("tell", w) for w in self.workers if w.inbox and w.is_alive]
        actions += [("work", w) for w in self.live() if self._can_work(w)]
        is_timer = bool(self.to_coordinator) and isinstance(self.to_coordinator[0], Elapsed)
        if self.to_coordinator and not (is_timer and self.timers_are_slow and actions):
            actions.append(("event",))
        if not actions or self.finished is not None:
            return False
        kind, *rest = self.rng.choice(actions)
        if kind == "hear":
            self._hear(rest[0])
        elif kind == "tell":
            self._obey(rest[0], rest[0].inbox.popleft())
        elif kind == "work":
            self._work(rest[0])
        else:
            event = self.to_coordinator.popleft()
            self._feed(replace(event, now_s=self._tick()))
        return True

    # The wires

    def _hello(self, worker: ToyWorker, not_before: int, returning: Returning | None) -> Hello:
        return Hello("", worker.name, "store:1", digest(self.job.plan), {}, not_before=not_before, returning=returning)

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
            case MakePlan(failed, may_move):
                places = frozenset((int(n.split("/")[0]), int(n.split("/")[1])) for n in failed)
                plan = toy_replan(self.job.plan, places)
                text = canonical(plan).decode() if plan else None
                self.to_coordinator.append(Planned(0.0, failed, may_move, text, reason="" if plan else "nobody left"))
            case Wake(_, timer):
                self.to_coordinator.append(Elapsed(0.0, timer))
            case Announce(fields):
                self.announced.append(fields)
            case Finish():
                self.finished = instruction
            case Drop():
                pass

    def _tick(self) -> float:
        self.now_s += 1.0
        return self.now_s

    # What a worker does

    def _obey(self, worker: ToyWorker, message: Any) -> None:
        match message:
            case Epoch():
                self._enter(worker, message)
            case Commit():
                self._committed(worker, message)
            case Halt():
                self._roll_back(worker, message.iteration, message.skipped)
                if worker.name in message.savers:
                    self._save(worker, message.iteration)
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
        worker.plan = parse_document(epoch.plan.encode(), Plan, "epoch")
        worker.rank = next(r for r, seat in enumerate(epoch.seats) if seat.worker == worker.name)
        old_place, place = worker.place, epoch.seats[worker.rank].place.split("/")
        worker.place = (int(place[0]), int(place[1]))
        live = [(w.pipeline, w.stage) for w in worker.plan.live_workers()]
        assert worker.place == live[worker.rank]
        worker.is_ready = False
        worker.in_iteration, worker.voted = epoch.iteration - 1, epoch.iteration - 1
        if epoch.nothing_committed:
            worker.state, worker.applied = [], epoch.iteration - 1
        is_target = any(copy.target == worker.rank for copy in epoch.copies)
        if is_target:
            worker.state = None
        else:
            assert worker.state is not None, "nobody gives it a state"
            assert epoch.nothing_committed or (old_place is not None and old_place[1] == worker.place[1])

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

    def _seated(self, seat: Seat, epoch: Epoch) -> ToyWorker | None:
        found = [
            w for w in self.live() if w.name == seat.worker and w.epoch is not None and w.epoch.epoch == epoch.epoch
        ]
        return found[0] if found else None

    def _can_work(self, worker: ToyWorker) -> bool:
        if worker.epoch is None or (worker.inbox and isinstance(worker.inbox[-1], Epoch | Halt | End)):
            return False
        if not worker.is_ready:
            return self._peers_entered(worker) and self._source_is_there(worker)
        if worker.voted > worker.in_iteration:
            raise AssertionError("voted ahead of work")
        if worker.voted == worker.in_iteration:  # the next iteration may start
            done = worker.applied == worker.in_iteration
            return done and worker.in_iteration + 1 <= worker.last and self._peers_entered(worker)
        return self._everybody_is_in(worker)

    def _source_is_there(self, worker: ToyWorker) -> bool:
        assert worker.epoch is not None
        for copy in worker.epoch.copies:
            if copy.target == worker.rank:
                source = self._seated(worker.epoch.seats[copy.source], worker.epoch)
                return source is not None and source.state is not None
        return True

    def _everybody_is_in(self, worker: ToyWorker) -> bool:
        """Gradients are reduced only when every live worker has come as far as this iteration."""
        assert worker.epoch is not None
        others = [self._seated(seat, worker.epoch) for seat in worker.epoch.seats]
        return all(other is not None and other.in_iteration >= worker.in_iteration for other in others)

    def _work(self, worker: ToyWorker) -> None:
        assert worker.epoch is not None
        if not worker.is_ready:
            for copy in worker.epoch.copies:
                if copy.target == worker.rank:
                    source = self._seated(worker.epoch.seats[copy.source], worker.epoch)
                    assert source is not None and source.state is not None
                    assert source.applied == worker.epoch.iteration - 1, "the source has gone on"
                    worker.state, worker.applied = list(source.state), source.applied
                    worker.kept = None
                    worker.committed = worker.applied
            worker.is_ready = True
            worker.outbox.append(Ready(worker.epoch.epoch))
        elif worker.voted == worker.in_iteration:
            worker.in_iteration += 1
        else:
            worker.voted = worker.in_iteration
            worker.outbox.append(self._vote(worker, worker.voted))
            self._step_alone(worker)

    def _vote(self, worker: ToyWorker, iteration: int) -> Vote:
        assert worker.epoch is not None and worker.plan is not None and worker.place is not None
        plan = worker.plan
        mine = next(w for w in plan.workers if (w.pipeline, w.stage) == worker.place)
        numbers = [plan.microbatch_offset(op.pipeline) + op.microbatch for op in mine.operations() if op.kind == "B"]
        is_last = worker.place[1] == len(plan.templates[0].stages) - 1
        losses = tuple((n, 0.5) for n in numbers) if is_last else ()
        finite = not (iteration in self.not_finite and is_last)
        return Vote(worker.epoch.epoch, iteration, finite, tuple(numbers), losses)

    def _step_alone(self, worker: ToyWorker) -> None:
        """With a staggered optimizer: step at once if the iteration before is known to be committed."""
        if not worker.is_staggered or worker.voted != worker.applied + 1 or worker.committed < worker.voted - 1:
            return
        assert worker.state is not None and worker.place is not None and worker.plan is not None
        worker.kept = list(worker.state)
        is_last = worker.place[1] == len(worker.plan.templates[0].stages) - 1
        if not (is_last and worker.voted in self.not_finite):  # it sees that itself
            worker.state.append(worker.voted)
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
                worker.state.append(commit.iteration)
            worker.applied = worker.committed = commit.iteration
        if worker.name in commit.savers:
            self._save(worker, commit.iteration + 1)

    def _save(self, worker: ToyWorker, iteration: int) -> None:
        assert worker.epoch is not None and worker.place is not None
        part = CheckpointFile(f"layers-{worker.place[1]}", (worker.place[1], worker.place[1] + 1), "0", 1.0)
        worker.outbox.append(Saved(iteration, part))
