"""A worker of a resilient run: executes whatever plan the coordinator's present epoch gives it.

The worker keeps its stage's parameters and optimizer through all epochs. In an epoch it connects to the other live
workers, copies the layers that somebody lacks, and runs iterations: reduce, vote, and on the coordinator's commit step
the optimizer. When the epoch is superseded, the thread that hears the coordinator wakes it, it drops what was under
way, and enters the next epoch at the iteration after the last commit.

A plan may give it another stage, of which it holds all, some or no layers. It gives up the stage it had once the new
one is complete, so that a change that is broken off loses nothing; until then both need memory.

With a staggered optimizer ("SlipStream" (ReCycle) section 3.3) it steps as soon as its stage's gradients are reduced,
and validates afterwards. The paper rolls AdamW back arithmetically, which is not exact in floating point; we keep a
copy of the state before the step (HeldStage.keep says what memory it takes), so that a roll-back gives the same bits. A
stage begins no second step before the first is committed, so one copy is enough.
"""

import json
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import median

import torch
from torch import nn

from ...schemas.checkpoint import Checkpoint, missing_layers
from ...schemas.documents import digest, parse_document, type_adapter
from ...schemas.errors import RtkError, RuntimeFailedError
from ...schemas.plan import Plan, Worker
from ...schemas.protocols import Examined, Measured
from ...schemas.timeline import Span
from ...schemas.trace import TraceEvent
from ..checkpoint import discard, prune, publish
from ..program import Compute, Program, Send, lower
from ..resilience.link import CoordinatorLink
from ..resilience.protocol import (
    Commit,
    End,
    Epoch,
    FromCoordinator,
    Halt,
    Inquiry,
    Publish,
    Published,
    Ready,
    Saved,
    Saver,
    Spans,
    Suspect,
    Vote,
    Welcome,
    Whereabouts,
)
from ..virtual.cluster import COMPUTE_S, ROUNDS, Ranks, exchanges_of
from .activity import Activity, ActivityTimer, Interruption
from .checkpoint import read_state, take_over, write_part
from .faults import Injection
from .held_stage import HeldStage, SpareLayers
from .iteration import Iteration, Rank, Task, splits_backward
from .plane import Plane, reach, see_everybody
from .rendezvous import SupersededError, connect, in_thread
from .stage import boundary_samples, hosted
from .transport import EXAMINATION_TAG, LostTouchError, StalledError, Transport

CLOSING_S = 5.0  # how long a worker that is done waits for its connections to be closed


class ResilientWorker:
    """One worker's process, from warm-up to the end of the job.

    Making one builds the stage that the worker has in the plan it was started with, and warms it up; `run` then takes
    it through the job.

    Args:
        task: what to train.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        layers = task.make_layers()
        self._boundaries = boundary_samples(layers, task.batch(0)[0][0])
        self._spare = SpareLayers(layers)
        self._held = self._build(layers, task.plan, task.worker())
        self._warm_up()
        self._interruption = Interruption()
        self._activity = Activity()
        self._watch = ActivityTimer(self._activity, self._interruption, task.name)
        self._closing: list[Future[None]] = []
        self._injection = Injection(())
        self._spans: list[Span] = []
        self._wants_spans = False
        self._clock_ahead_s = 0.0
        self._has_state = False
        self._epoch: Epoch | None = None
        self._place = ""
        self._kept_for: int | None = None  # the iteration whose step can be undone
        self._reduced: Iteration | None = None  # voted on, and not stepped yet
        self._examined: Examined | None = None  # before the iteration to come, and not told yet
        self._committed = -1  # the last one that this worker knows to be committed
        self._next: FromCoordinator | None = None  # heard, and not obeyed yet
        self._last = -1

    @property
    def held(self) -> HeldStage:
        """The stage that this worker holds at present."""
        return self._held

    # What the link to the coordinator needs to know

    def announce(self, message: FromCoordinator) -> None:
        """For the link, in its thread: an epoch, a halt or the end has been announced."""
        self._interruption.announce(message)

    def answer(self, inquiry: Inquiry) -> Whereabouts:
        """For the link, in its thread: where the training thread is."""
        return self._watch.answer(inquiry)

    def run(
        self,
        link: CoordinatorLink,
        welcome: Welcome,
        on_stuck: Callable[[int, str], None] = lambda exit_code, reason: None,
    ) -> End:
        """Do what the coordinator says until it says that the job, or this worker's part in it, is over.

        Args:
            link: connected.
            welcome: what it was greeted with.
            on_stuck: as of `ActivityTimer`, in whose thread it is called; should end this process.

        Returns:
            How it ended.

        Raises:
            RuntimeFailedError: the coordinator is gone and did not come back within the link's patience.
        """
        self._link = link
        self._wants_spans = welcome.spans
        self._clock_ahead_s = 0.0 if welcome.host == socket.gethostname() else welcome.now_s - time.perf_counter()
        events = type_adapter(tuple[TraceEvent, ...]).validate_json(json.dumps(welcome.inject))
        self._injection = Injection(events, self._task.name)
        self._watch.on_stuck = on_stuck
        self._watch.start()
        try:
            return self._obey()
        finally:  # whatever it ends by
            self._watch.close()
            wait(self._closing, CLOSING_S)
            self._interruption.wait(CLOSING_S)

    def _obey(self) -> End:
        """Do what is said, one thing after the other, until it is the end."""
        message = self._receive()
        while not isinstance(message, End):
            match message:
                case Epoch():
                    message = self._live_through(message)
                case Halt():
                    self._halt(message)
                    message = self._receive()
                case _:
                    self._note(message)
                    message = self._receive()
        self._send_spans()
        return message

    # An epoch

    def _live_through(self, epoch: Epoch) -> FromCoordinator:
        """Train until the epoch is over; gives the message that ends it."""
        self._activity.enter(epoch.epoch, [seat.worker for seat in epoch.seats])
        superseded = self._interruption.begin(epoch.epoch)
        self._settle(epoch.iteration, epoch.skipped)
        number = next((rank for rank, seat in enumerate(epoch.seats) if seat.worker == self._task.name), None)
        if number is None:  # there is no place for it at present
            self._has_state = False
            return self._next_turn()
        plane: Plane | None = None
        try:
            rank, plane = self._enter(epoch, number, superseded)
            return self._train(epoch, rank, plane)
        except SupersededError:
            pass
        except RuntimeFailedError as error:
            if not self._interruption.is_over:
                self._link.send(Suspect(epoch.epoch, error.what, self._lost(epoch, number, error, superseded)))
        finally:
            if plane is not None:
                self._close(plane)
            self._send_spans()
        return self._next_turn()

    def _lost(self, epoch: Epoch, number: int, error: RuntimeFailedError, superseded: "Future[None]") -> str | None:
        """With which worker communication broke, if the error knows, or it is found out before the epoch is over."""
        found: BaseException | None = error
        if not isinstance(error, LostTouchError) or isinstance(error, StalledError):
            self._activity.be("joining", "a look at the others")
            probing = in_thread(lambda: see_everybody(self._task, epoch, number), "probing")
            wait([probing, superseded], return_when=FIRST_COMPLETED)
            found = probing.exception() if probing.done() else None
        return epoch.seats[found.peer].worker if isinstance(found, LostTouchError) else None

    def _close(self, plane: Plane) -> None:
        """In a thread: it takes longer than to make the next one, which need not wait for it."""
        self._closing = [one for one in self._closing if not one.done()]
        self._closing.append(in_thread(plane.close, "closing"))

    def _next_turn(self) -> FromCoordinator:
        """Wait for what comes after this epoch; commits that were on their way still count."""
        while True:
            message = self._receive()
            if isinstance(message, Epoch | Halt | End):
                return message
            self._note(message)

    def _enter(self, epoch: Epoch, number: int, superseded: "Future[None]") -> tuple[Rank, Plane]:
        """Connect to the others, and hold the state of this worker's place."""
        program = _program(epoch.plan)
        self._epoch, self._place = epoch, epoch.seats[number].place
        self._committed, self._last = epoch.iteration - 1, epoch.last
        held = self._fitting(epoch, program, number)
        self._activity.be("joining", "connecting", range(len(epoch.seats)))
        plane = connect(
            lambda: reach(self._task, epoch, program, number, self._injection, self._now_s),
            superseded,
            lambda: see_everybody(self._task, epoch, number),
        )
        try:
            self._interruption.guard(plane.transport)
            self._take_state(epoch, number, plane.direct, held)
        except BaseException:
            self._close(plane)
            raise
        return self._rank(program, number, plane), plane

    def _fitting(self, epoch: Epoch, program: Program, rank: int) -> HeldStage:
        """The stage of a place: the one held, or another one, whose state is to come; made to serve this plan.

        What the device holds is the limit of the plan that the job began with: that of a later one may count on the
        host's memory.
        """
        plan, worker = program.plan, program.workers[rank]
        held = self._held
        if held.layers_range != plan.stage_of(worker).layers:
            # Values are made anew only where nobody has any.
            spare = None if epoch.nothing_committed else self._spare.of(plan.stage_of(worker).layers, "cpu")
            held = self._build(spare or self._task.make_layers(), plan, worker)
        limit_bytes = self._task.plan.stage_of(self._task.worker()).memory_limit_bytes
        waiting = hosted(tuple(worker.operations()), plan.stage_of(worker), limit_bytes)
        held.adapt(1 / plan.total_microbatches(), splits_backward(program.instructions[rank]), waiting)
        return held

    def _build(self, layers: Sequence[nn.Module], plan: Plan, worker: Worker) -> HeldStage:
        stages = plan.template_of(worker.pipeline).stages
        return HeldStage(
            layers,
            stages[worker.stage].layers,
            self._task.loss,
            self._task.optimizer,
            self._task.device,
            loss_scale=1 / plan.total_microbatches(),
            is_last=worker.stage == len(stages) - 1,
        )

    def _take_state(self, epoch: Epoch, rank: int, transport: Transport, held: HeldStage) -> None:
        """Have the state of the layers of `held`: as it is, made anew, from the stage held so far, or from others."""
        self._activity.be("preparing", "its state")
        before = self._held if self._has_state else None
        copied: set[int] = set()
        sources = {copy.source for copy in epoch.copies if copy.target == rank}
        if epoch.nothing_committed:
            if held is not before:
                self._start_from(epoch, held)
        else:
            copied = take_over(
                epoch.copies, rank, transport, before, held, lambda: self._activity.be("joining", "copies", sources)
            )
        self._activity.be("preparing", "checksums")
        sums: dict[int, str] = {}
        if copied:
            sums = held.checksums(copied) | (before.checksums(copied) if before not in (None, held) else {})
        if held is not before:
            self._held, self._has_state, self._kept_for = held, True, None
        self._link.send(Ready(epoch.epoch, held.layers_range, tuple(sorted(sums.items()))))

    def _start_from(self, epoch: Epoch, held: HeldStage) -> None:
        """The state before the first iteration: as the layers were made, or a checkpoint's."""
        if epoch.resume is not None:
            held.prime_optimizer()
            held.load(read_state(Path(epoch.resume), held.layers_range))

    def _rank(self, program: Program, number: int, plane: Plane) -> Rank:
        first, stop = self._held.layers_range
        return Rank(
            program,
            number,
            self._held,
            plane.transport,
            self._boundaries[first].like(self._held.device),
            self._boundaries[stop].like(self._held.device),
            self._now_s,
            self._spans.append,
            self._task.paced,
            self._task.seed,
            true_slowdown=self._task.worker().slowdown or 1.0,
            before=self._injection.before,
            executing=self._activity.execute,
            delegated=plane.delegated,
            transfers=plane.transfers,
        )

    # Iterations

    def _train(self, epoch: Epoch, rank: Rank, plane: Plane) -> FromCoordinator:
        run = self._run_staggered if rank.plan.optimizer == "staggered" else self._run_synchronous
        number = epoch.iteration
        self._examined = self._examine(epoch, rank, plane) if epoch.examine else None
        while number <= self._last:
            run(epoch, rank, plane, number)
            self._send_spans()
            number += 1
        while self._committed < self._last:
            self._hear_commit()
        self._activity.be("waiting", "messages sent")
        rank.transport.flush()
        return self._next_turn()

    def _examine(self, epoch: Epoch, rank: Rank, plane: Plane) -> Examined | None:
        """The pause before an epoch's first iteration in which suspicious groups are examined, with its faults."""
        self._begin_faults(rank, epoch.iteration)
        names = [seat.worker for seat in epoch.seats]
        others = {number for group in epoch.examine if rank.number in group for number in group}
        self._activity.be("waiting", "the examination", others)
        return examine(self._slowed(rank), epoch.examine, names, plane.direct)

    def _run_synchronous(self, epoch: Epoch, rank: Rank, plane: Plane, number: int) -> None:
        """Reduce, vote, and step once everybody has."""
        self._reduce(epoch, rank, plane, number)
        self._complete(self._hear_commit())
        self._activity.be("waiting", "messages sent")
        rank.transport.flush()  # everybody has received everything: nothing to wait for

    def _run_staggered(self, epoch: Epoch, rank: Rank, plane: Plane, number: int) -> None:
        """Reduce, vote, and step; but only once the step before is final, for one step can be undone."""
        self._reduce(epoch, rank, plane, number)
        if self._committed < number - 1:
            self._confirm(self._hear_commit())
        self._activity.be("waiting", "messages sent")
        # Those of the iteration before have been taken, or it would not be committed; this one's need not be yet.
        rank.transport.flush(but=sum(isinstance(one, Send) for one in rank.instructions))
        self._activity.be("computing", "step")
        if self._held.is_finite():
            self._held.keep()
            self._kept_for = number
            self._step()
        if number == self._last:
            self._confirm(self._hear_commit())

    def _reduce(self, epoch: Epoch, rank: Rank, plane: Plane, number: int) -> None:
        """Everything but the step, and the vote on it."""
        self._activity.be("computing", f"data of iteration {number}")
        self._begin_faults(rank, number)
        self._reduced = None
        plane.begin(number)
        iteration = Iteration(self._slowed(rank), number, self._task.batch(number))
        iteration.reduce()
        self._activity.be("computing", "vote")
        losses = tuple((n, loss if _is_number(loss) else None) for n, loss in sorted(iteration.losses.items()))
        is_finite = self._held.is_finite()
        self._reduced = iteration
        measured = self._measured(epoch, iteration, plane)
        self._link.send(Vote(epoch.epoch, number, is_finite, iteration.microbatches, losses, measured))

    def _begin_faults(self, rank: Rank, number: int) -> None:
        """Those of an iteration begin."""
        self._injection.begin(number, sum(isinstance(one, Compute) for one in rank.instructions))

    def _slowed(self, rank: Rank) -> Rank:
        """A rank as slow as faults make it now."""
        slowdown = self._injection.slowdown
        return rank if rank.slowdown == slowdown else replace(rank, slowdown=slowdown)

    def _measured(self, epoch: Epoch, iteration: Iteration, plane: Plane) -> Measured:
        """What the iteration, and the probes since the one before, have shown of workers and links."""
        sent, arrived = plane.samples()
        examined, self._examined = self._examined, None
        return Measured(
            self._task.name,
            iteration.number,
            iteration.pace,
            sent,
            arrived,
            iteration.reduction_s,
            tuple(epoch.seats[rank].worker for rank in iteration.rank.program.peers(iteration.rank.number)),
            examined,
            iteration.rank.now_s() - iteration.begun_s,
        )

    def _step(self) -> None:
        assert self._reduced is not None
        iteration, self._reduced = self._reduced, None
        iteration.step()

    def _hear_commit(self) -> Commit:
        """Wait for the next commit.

        Raises:
            SupersededError: another epoch, or the end, comes instead.
        """
        while True:
            message = self._receive()
            if isinstance(message, Epoch | Halt | End):
                self._next = message
                raise SupersededError
            if isinstance(message, Commit) and message.iteration > self._committed:
                self._heed(message)
                return message
            self._note(message)

    def _receive(self) -> FromCoordinator:
        """The coordinator's next message."""
        message, self._next = self._next, None
        self._activity.be("listening", "the coordinator")
        while message is None:
            message = self._link.receive()
        self._activity.be("computing", message.kind)
        return message

    def _heed(self, commit: Commit) -> None:
        self._committed, self._last = commit.iteration, commit.last

    def _complete(self, commit: Commit) -> None:
        """Have what was committed, no more and no less, and save it where it is due."""
        self._be_as_after(commit.iteration, commit.skip)
        self._save(commit.savers, commit.save, commit.iteration + 1)

    def _confirm(self, commit: Commit) -> None:
        """The staggered step before has become final; or it is undone, and another epoch follows."""
        self._complete(commit)
        if commit.skip:
            raise SupersededError

    def _note(self, message: FromCoordinator) -> None:
        """What may come at any time."""
        match message:
            case Commit() as commit if commit.iteration > self._committed:
                # The epoch was superseded before this worker could do its step; the step counts all the same.
                self._heed(commit)
                self._complete(commit)
            case Publish():
                self._activity.be("preparing", "a checkpoint")
                self._link.send(publish_whole(self._task, len(self._boundaries) - 1, message))

    def _settle(self, iteration: int, skipped: bool) -> None:
        """Be as before an iteration, whose predecessor is committed, and drop all that is under way."""
        self._be_as_after(iteration - 1, skipped)
        self._reduced = None
        self._held.reset()

    def _be_as_after(self, done: int, skipped: bool) -> None:
        """Have taken the step of the last committed iteration, unless it was skipped, and none after it.

        A step that is missing is one that this worker has voted on: it may hear of the commit late, or, from a
        coordinator that was restarted, not at all.
        """
        wanted = done - 1 if skipped else done
        if self._kept_for is not None and self._kept_for > wanted:
            self._held.restore()
            self._kept_for = None
        if self._reduced is not None and self._reduced.number == done:
            if skipped:
                self._reduced = None
            else:
                self._step()

    # Checkpoints and the end

    def _halt(self, halt: Halt) -> None:
        self._interruption.begin(2**31)
        self._settle(halt.iteration, halt.skipped)
        self._save(halt.savers, halt.save, halt.iteration)

    def _save(self, savers: Sequence[Saver], folder: str | None, iteration: int) -> None:
        self._activity.be("preparing", "its part of a checkpoint" if savers else "the next iteration")
        saved = save_share(self._task.name, self._held, savers, folder, iteration)
        if saved is not None:
            self._link.send(saved)

    # Small things

    def _warm_up(self) -> None:
        """Pay for first calls now: survivors would have to wait for them."""
        held = self._held
        inputs = self._boundaries[held.layers_range[0]].zeros(held.device)
        target = self._task.batch(0)[0][1].to(held.device) if held.is_last else None
        held.warm_up(inputs, target)
        parameter = nn.Parameter(torch.zeros(1, device=held.device))
        parameter.grad = torch.zeros_like(parameter)
        self._task.optimizer([parameter]).step()

    def _send_spans(self) -> None:
        if self._wants_spans and self._spans:
            packed = tuple((span.op, span.start_s, span.end_s, span.iteration) for span in self._spans)
            self._link.send(Spans(self._place, packed))
        self._spans.clear()

    def _now_s(self) -> float:
        return time.perf_counter() + self._clock_ahead_s


@lru_cache(maxsize=8)
def _program(plan: str) -> Program:
    return lower(parse_document(plan.encode(), Plan, "the coordinator's plan"))


def _is_number(loss: float) -> bool:
    return loss - loss == 0


# A worker's part in the job's checkpoints, of which resilience/membership.py is the coordinator's.


CHECKPOINTS_KEPT = 3


def save_share(
    worker: str, held: HeldStage, savers: Sequence[Saver], folder: str | None, iteration: int
) -> Saved | None:
    """Write a part of a checkpoint, where that falls to this worker; gives what the coordinator is to hear of it.

    Args:
        worker: this one's name.
        held: its stage.
        savers: who writes which layers.
        folder: where; None: no checkpoint is due.
        iteration: how many iterations are done.
    """
    mine = next((saver.layers for saver in savers if saver.worker == worker), None)
    if folder is None or mine is None:
        return None
    try:
        return Saved(iteration, write_part(Path(folder), iteration, mine, held.state_of(mine)))
    except RtkError as error:
        return Saved(iteration, None, error.what)


def publish_whole(task: Task, layers: int, message: Publish) -> Published:
    """Make a checkpoint visible whose parts are all written, or discard it; gives what the coordinator is to hear.

    Args:
        task: what is trained.
        layers: how many the model has.
        message: the coordinator's; without parts there is nothing to make visible.
    """
    folder = Path(message.folder)
    if not message.parts:
        discard(folder, message.iteration)
        return Published(message.iteration, None)
    try:
        path = publish(folder, _manifest(task, layers, message))
        prune(folder, CHECKPOINTS_KEPT)
    except RtkError as error:
        return Published(message.iteration, None, error.what)
    return Published(message.iteration, str(path))


def _manifest(task: Task, layers: int, message: Publish) -> Checkpoint:
    return Checkpoint(
        iteration=message.iteration,
        layers=layers,
        plan=digest(task.plan),
        seed=task.seed,
        total_microbatches=task.plan.total_microbatches(),
        files=message.parts,
        job=task.settings,
        missing=missing_layers(layers, (part.layers for part in message.parts)),
    )


# A worker's part in the examination of suspicious groups, between two iterations (cluster.py has the whole).


SIZE, PRODUCTS = 256, 5  # of matrices so large, so many: some 10 ms on a slow core
MESSAGE = 16384  # numbers of 4 bytes


def examine(rank: Rank, groups: Sequence[Ranks], names: Sequence[str], transport: Transport) -> Examined | None:
    """Multiply matrices, and exchange messages with the others of this rank's groups.

    Args:
        rank: who does it, as slow as it is.
        groups: all groups that are examined, in ranks, in the same order for all.
        names: of the workers, by rank.
        transport: reaches the others, with nothing but this under way.

    Returns:
        What was measured; None for a rank in none of the groups.

    Raises:
        RuntimeFailedError: a connection broke, or was interrupted.
    """
    own = [pair for group in groups if rank.number in group for pair in exchanges_of(group) if rank.number in pair]
    if not own:
        return None
    compute_s = _compute_s(rank)
    exchanges: list[tuple[str, float]] = []
    for first, second in own:
        if rank.number == second:
            _answer(transport, first)
        else:
            exchanges.append((names[second], _exchange(rank, transport, second)))
    return Examined(compute_s, tuple(exchanges))


def _compute_s(rank: Rank) -> float:
    """What the products take, slowed down as operations are; in a paced run what they are to take."""
    begun_s = time.perf_counter()
    factor = torch.rand(SIZE, SIZE, device=rank.held.device)
    took_s = PRODUCTS * median(_product_s(factor) for _ in range(PRODUCTS))
    if rank.paced:
        took_s = max(took_s, COMPUTE_S * rank.own_slowdown)
    took_s *= rank.slowdown
    time.sleep(max(0.0, begun_s + took_s - time.perf_counter()))
    return took_s


def _product_s(factor: torch.Tensor) -> float:
    begun_s = time.perf_counter()
    torch.mm(factor, factor)
    if factor.is_cuda:
        torch.cuda.synchronize(factor.device)
    return time.perf_counter() - begun_s


def _exchange(rank: Rank, transport: Transport, second: int) -> float:
    """Seconds from a message to its answer, at best."""
    message = torch.zeros(MESSAGE)
    transport.post_receive(EXAMINATION_TAG, second, message)
    transport.receive(EXAMINATION_TAG, second)  # it is there
    took_s = []
    for _ in range(ROUNDS):
        transport.post_receive(EXAMINATION_TAG, second, message)
        begun_s = rank.now_s()
        transport.deliver(EXAMINATION_TAG, second, message)
        transport.receive(EXAMINATION_TAG, second)
        took_s.append(rank.now_s() - begun_s)
    return min(took_s)


def _answer(transport: Transport, first: int) -> None:
    message = torch.zeros(MESSAGE)
    for _ in range(ROUNDS):
        transport.post_receive(EXAMINATION_TAG, first, message)
        transport.deliver(EXAMINATION_TAG, first, message)  # at first: that it is there
        transport.receive(EXAMINATION_TAG, first)
    transport.deliver(EXAMINATION_TAG, first, message)
