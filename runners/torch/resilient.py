"""A worker of a resilient run: executes whatever plan the coordinator's present epoch gives it.

What it does when are its rules (resilience/worker_rules.py); here is how it does that with torch. It keeps its stage's
parameters and optimizer through all epochs. The thread that hears the coordinator wakes it when its epoch is over.

A plan may give it another stage, of which it holds all, some or no layers. It gives up the stage it had once the new
one is complete, so that a change that is broken off loses nothing; until then both need memory.

With a staggered optimizer ("SlipStream" (ReCycle) section 3.3) it steps as soon as its stage's gradients are reduced,
and validates afterwards. The paper rolls AdamW back arithmetically, which is not exact in floating point; we keep a
copy of the state before the step (HeldStage.keep says what memory it takes), so that a roll-back gives the same bits. A
stage begins no second step before the first is committed, so one copy is enough.

When somebody is lost it ends the operation under way, and keeps what it has of the iteration (progress.py) until the
next epoch says what is left of it: its first iteration then has a program of its own, and the next one the plan's.

Its training thread is inside torch most of the time, where nothing reaches it: watch.py says who wakes it, and who
ends the process where nothing does.

A worker may be several ranks, each of them such a process, which hold slices of the same layers (layer_shares.py) and
stop together (team.py).
"""

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...schemas.documents import type_adapter
from ...schemas.errors import RuntimeFailedError
from ...schemas.plan import Layers, Plan, Worker, rank_name
from ...schemas.protocols import Examined, Measured
from ...schemas.resumption import Rest, Standing, layers_in, nothing_of
from ...schemas.timeline import Span
from ...schemas.trace import TraceEvent
from ..program import (
    Instruction,
    Program,
    Send,
    computed_in,
    lower,
    lower_rest,
)
from ..resilience.conditions import cores_here
from ..resilience.link import CoordinatorLink
from ..resilience.protocol import (
    Copy,
    End,
    Epoch,
    FromCoordinator,
    Inquiry,
    LossesTold,
    MicrobatchLoss,
    Published,
    Ready,
    Regroup,
    Reshape,
    Saved,
    Spans,
    StageLosses,
    StateLost,
    Vote,
    Welcome,
    Whereabouts,
)
from ..resilience.worker_rules import (
    Action,
    Connect,
    CopyState,
    EnterEpoch,
    Evaluated,
    EvaluateModel,
    ExamineGroups,
    FlushMessages,
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
    UndoStep,
    WorkerRules,
    plan_of,
)
from .boundaries import Boundary, boundary_samples, like, zeros
from .checkpoint import tag_of_copy, take_over
from .connections import Connections
from .data.provider import Provider
from .evaluation import evaluate
from .examination import examine
from .faults import Injection
from .held_stage import HeldStage
from .hosting import hosted
from .iteration import Iteration, first_of, splits_backward
from .layer_shares import LayerShares, smaller_degrees
from .layout import GroupedTransport
from .plane import Plane, expect, peer_lost, reach, see_everybody
from .precision import convert
from .progress import IterationProgress
from .rank import Rank
from .rank_group import RankGroup
from .rendezvous import SupersededError, connect, in_thread
from .resharding import Shards
from .resume import SumTaker
from .saving import BlockHoldings, load_saved, publish_whole, save_part
from .slice_copies import SliceCopies, whole_checksums
from .slice_sums import SliceSums
from .spare_layers import LayersToFill, SpareLayers
from .task import Task
from .team import takes_all
from .ties import ties_of, trained_together
from .trees import Tree, on_tensors
from .watch import Activity, ActivityTimer, Interruption

CLOSING_S = 5.0  # how long a worker that is done waits for its connections to be closed


class ResilientWorker:
    """One worker's process, from warm-up to the end of the job.

    Making one builds the stage that the worker has in the plan it was started with, and warms it up; `run` then takes
    it through the job.

    Args:
        task: what to train.

    Attributes:
        smaller_degrees: the numbers of ranks below the plan's that could share the worker's layers, ascending.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        layers = task.make_layers()
        convert(layers, task.precision)
        inputs, target, self._named = first_of(task.batch(0))
        self._boundaries = boundary_samples(layers, inputs, self._named, task.precision)
        self._boundaries[0] = on_tensors(Boundary.of, inputs)  # as data come, in whatever type the stage takes them
        self._ties = ties_of(layers)
        self._group = RankGroup(task.degree, task.share)
        self._shares = LayerShares(layers, task.cuts, self._group, self._ties)
        self.smaller_degrees = smaller_degrees(task, layers)
        self._spare = SpareLayers(layers)
        self._to_fill = LayersToFill(layers, task.fill) if task.fill is not None else None
        if self._to_fill is not None:
            layers = self._to_fill.of(task.plan.layers_of(task.worker()), filled=True)
        self._held = self._build(layers, task.plan, task.worker())
        self._warm_up(target)  # alone, whatever ranks there are
        self._group.reduce = self._sum_with_team
        evaluation = task.evaluation
        is_due = (lambda iteration: False) if evaluation is None else evaluation.is_due_before
        self._rules = WorkerRules(task.name, task.clip_norm, is_due)
        self._interruption = Interruption(task.name)
        self._superseded: Future[None] = Future()  # the running epoch
        others = [share for share in range(task.degree) if share != task.share]
        self._activity = Activity(tuple(rank_name(task.name, share, task.degree) for share in others))
        self._watch = ActivityTimer(self._activity, self._interruption, task.name)
        self._closing: list[Future[None]] = []
        self._injection = Injection(())
        self._spans: list[Span] = []
        self._wants_spans = False
        self._clock_ahead_s = 0.0
        self._shards = Shards(cores_here().machine) if task.shard_optimizer else None
        self._fitting = self._held  # the stage of the epoch's place, whose state may be still to come
        self._connections = Connections(task.secret, task.hostname)
        self._plane: Plane | None = None
        self._progress: dict[int, IterationProgress] = {}  # of the iterations that are not known to be committed
        self._iteration: Iteration | None = None  # the last one whose gradients are reduced
        self._evaluated: int | None = None  # the iteration before which something was evaluated last

    @property
    def held(self) -> HeldStage:
        """The stage that this worker holds at present."""
        return self._held

    # What the link to the coordinator needs to know

    def announce(self, message: FromCoordinator) -> None:
        """For the link, in its thread: an epoch, that there will be one, a halt or the end has been announced."""
        if isinstance(message, Regroup):
            expect(self._connections, self._task, message)
        self._interruption.announce(message)

    def answer(self, inquiry: Inquiry) -> Whereabouts:
        """For the link, in its thread: where the training thread is."""
        return self._watch.answer(inquiry)

    def run(
        self,
        link: CoordinatorLink,
        welcome: Welcome,
        on_stuck: Callable[[int, str], None] = lambda exit_code, reason: None,
    ) -> End | Reshape:
        """Do what the coordinator says until it says that the job, or this worker's part in it, is over.

        Args:
            link: connected.
            welcome: what it was greeted with.
            on_stuck: as of `ActivityTimer`, in whose thread it is called; should end this process.

        Returns:
            How it ended; or what this process is to become, in another `ResilientWorker`, for it goes on otherwise.

        Raises:
            InvalidInputError: the data have shrunk since the checkpoint was saved that the job began with.
            RuntimeFailedError: the coordinator is gone and did not come back within the link's patience.
        """
        self._link = link
        self._wants_spans = welcome.spans
        if welcome.data is not None and isinstance(self._task.batch, Provider):
            self._task.batch.go_on(welcome.data.iteration, welcome.data.row, welcome.data.rows)
        self._clock_ahead_s = 0.0 if welcome.host == socket.gethostname() else welcome.now_s - time.perf_counter()
        events = type_adapter(tuple[TraceEvent, ...]).validate_json(json.dumps(welcome.inject))
        self._injection = Injection(events, self._task.name)
        self._watch.on_stuck = on_stuck
        self._watch.start()
        try:
            while not isinstance(action := self._rules.action, Retire):
                self._obey(action)
            return action.end
        finally:  # whatever it ends by
            self._leave_groups()
            self._connections.close()
            self._watch.close()
            wait(self._closing, CLOSING_S)
            self._interruption.wait(CLOSING_S)

    def _obey(self, action: Action) -> None:
        """Do what the rules want, and tell them what came of it."""
        self._activity.be(action.doing, action.what)
        try:
            result = self._do(action)
        except RuntimeFailedError as error:
            if not isinstance(action, JointAction):
                raise
            peer = None if self._interruption.is_over else self._lost(error)
            if self._interruption.is_over:
                self._rules.supersede()
            else:
                self._rules.lose_touch(error.what, peer)
        else:
            self._rules.go_on(result)

    def _do(self, action: Action) -> Any:
        """Give what the action's class says."""
        match action:
            case Listen():
                return self._link.receive()
            case Say(message):
                self._link.send(message)
            case Connect(epoch, rank):
                self._connect(epoch, rank)
            case CopyState(epoch, rank):
                return self._copy_state(epoch, rank) if rank < len(epoch.seats) else self._give(epoch, rank)
            case ExamineGroups(epoch, rank):
                return self._examine(epoch, rank)
            case EvaluateModel(iteration) | ReduceGradients(iteration):
                return self._evaluate(iteration) if isinstance(action, EvaluateModel) else self._reduce(iteration)
            case FlushMessages(but_last):
                self._flush(but_last)
            case LeaveGroups():
                self._leave_groups()
            case _:
                return self._change(action)
        return None

    def _change(self, action: Action) -> Saved | Published | Standing | None:
        """Do what concerns this worker's own state."""
        match action:
            case TellStanding(regroup):
                return self._standing(regroup)
            case EnterEpoch(epoch, keeps):
                self._activity.enter(epoch.epoch, [seat.worker for seat in epoch.present])
                self._superseded = self._interruption.begin(epoch.epoch)
                self._iteration = None
                self._drop_progress(keeps=epoch.iteration if keeps else None)
            case TakeStep(_, can_be_undone, terms):
                iteration, self._iteration = self._iteration, None
                assert iteration is not None
                if can_be_undone:
                    self._held.keep(with_sums=self._task.log_memory_bytes != 0)
                iteration.step(terms)
            case UndoStep():
                self._held.restore()
            case SavePart() as part:
                return save_part(self._task, self._held, self._shares.tensors, part, self._block_holdings())
            case PublishWhole(message):
                return publish_whole(self._task, len(self._boundaries) - 1, message)
        return None

    # An epoch

    def _connect(self, epoch: Epoch, rank: int) -> None:
        """Have the stage of this worker's place, if it has one, and meet the others."""
        self._activity.be("preparing", "its stage")
        program, rest = self._program(epoch.plan), self._program_of_rest(epoch)
        if rank < len(epoch.seats):
            self._fitting = self._stage_for(epoch, rank, program, rest)
        self._activity.be("joining", "connecting", range(len(epoch.present)))
        self._plane = connect(
            lambda: reach(
                self._connections,
                self._task,
                epoch,
                program,
                rank,
                self._injection,
                self._now_s,
                rest,
                self._shares.tensors,
            ),
            self._superseded,
            lambda: see_everybody(self._task, epoch, rank),
        )
        self._interruption.guard(self._plane.transport, self._plane.team)

    def _stage_for(self, epoch: Epoch, rank: int, program: Program, rest: Program | None) -> HeldStage:
        """The stage of a place, be it without its state yet, ready for what is executed first."""
        plan, worker, held = program.plan, program.workers[rank], self._held
        if held.holds != plan.layers_of(worker):
            held = self._build(self._layers_for(plan.layers_of(worker), epoch), plan, worker)
        if rest is None:
            self._adapt(held, program, rank)
        elif held is not self._held or epoch.iteration not in self._progress:
            held.adapt(splits_backward(rest.instructions[rank]))
        # else what is under way in it goes on as it has begun
        return held

    def _adapt(self, held: HeldStage, program: Program, rank: int) -> None:
        """Let a stage serve a plan."""
        # What the device holds is the limit of the plan that the job began with: that of a later one may count on the
        # host's memory.
        limit_bytes = self._task.plan.limit_bytes(self._task.worker())
        plan, worker = program.plan, program.workers[rank]
        waiting = hosted(tuple(worker.operations()), partial(plan.stage_at, worker), limit_bytes)
        stages = plan.template_of(worker.pipeline).stages
        held.adapt(
            splits_backward(program.instructions[rank]),
            {
                number if stage is None else (number, stages[stage].layers)
                for number, stage in ((plan.microbatch_offset(origin) + own, stage) for origin, own, stage in waiting)
            },
        )

    def _layers_for(self, held: tuple[Layers, ...], epoch: Epoch) -> Sequence[nn.Module]:
        """The layers with room for a worker's; values are made anew only where nobody has any."""
        if self._to_fill is not None:
            return self._to_fill.of(held, filled=epoch.nothing_committed and epoch.resume is None)
        spare = None if epoch.nothing_committed else self._spare.of(held, "cpu")
        return spare or self._task.make_layers()

    def _build(self, layers: Sequence[nn.Module], plan: Plan, worker: Worker) -> HeldStage:
        task = self._task
        held = self._shares.stage(
            layers,
            plan,
            worker,
            task.loss,
            task.optimizer,
            task.device,
            clip_norm=task.clip_norm,
            precision=task.precision,
            schedule=task.schedule,
            buffers=task.buffers,
            is_sharded=task.shard_optimizer,
        )
        held.expect(self._named)
        return held

    def _program(self, plan: str) -> Program:
        return _program(plan, trained_together(self._ties))

    def _program_of_rest(self, epoch: Epoch) -> Program | None:
        """What is left of the epoch's first iteration; None: it is done as the plan says."""
        if epoch.rest is None:
            return None
        return _program_of_rest(epoch.plan, epoch.rest, trained_together(self._ties))

    def _copy_state(self, epoch: Epoch, rank: int) -> Ready | StateLost:
        """Have the state of the place's layers: as it is, made anew, from the stage held so far, or from others."""
        assert self._plane is not None
        held, before = self._fitting, self._held if self._rules.holds is not None else None
        copied: set[int] = set()
        if lost := self._meet_shards(epoch, rank, before, held):
            return StateLost(epoch.epoch, lost)
        unlike = self._slice_copies(rank, self._plane)
        if not epoch.nothing_committed:
            copies = [one for one in epoch.copies if self._takes_part(one, rank, unlike)]
            sources = {copy.source for copy in copies if copy.target == rank}
            waits = partial(self._activity.be, "joining", "copies", sources)
            copied = take_over(copies, rank, self._plane.direct, before, held, waits, unlike)
            if self._shards is not None:
                self._shards.begin(before, held)
                if self._shards.ends_at_once:
                    self._shards.end(held, waits)
        elif epoch.resume is not None and (held is not before or self._shards is not None):
            # Else as the layers were made, or as loaded before; blocks may be others now.
            task, cuts = self._task, self._shares.tensors
            load_saved(held, Path(epoch.resume), self._ties, cuts, task.degree, task.share)
        self._activity.be("preparing", "checksums")
        sums: dict[int, str] = {}
        if unlike is not None:
            sums = self._whole_checksums(epoch, rank, before, held)
        elif epoch.nothing_committed:
            sums = held.checksums()
        elif copied:
            sums = held.checksums(copied) | (before.checksums(copied) if before not in (None, held) else {})
        ended = self._take_sums(epoch, rank, held) if epoch.rest is not None else {}
        self._held = held
        self._rank = self._by_plan = self._rank_in(self._program(epoch.plan), rank, self._plane)
        if (rest := self._program_of_rest(epoch)) is not None:
            self._rank = replace(self._rank_in(rest, rank, self._plane), transfers=None)
        first, *further = held.holds
        checksums, of_sums = (tuple(sorted(found.items())) for found in (sums, ended))
        return Ready(epoch.epoch, first, checksums, of_sums, tuple(further))

    def _give(self, epoch: Epoch, rank: int) -> None:
        """Send what others lack of a sharded optimizer's state, as one that has no place any more."""
        assert self._shards is not None
        if not self._meet_shards(epoch, rank, self._held, None):
            self._shards.give(self._held)

    def _meet_shards(
        self, epoch: Epoch, rank: int, before: HeldStage | None, held: HeldStage | None
    ) -> tuple[int, ...]:
        """Share what there is of a sharded optimizer; gives the layers of which something is nowhere."""
        if self._shards is None or self._plane is None:
            return ()
        waits = partial(self._activity.be, "joining", "what others have", range(len(epoch.present)))
        program = self._program(epoch.plan)
        wanted = [program.plan.layers_of(worker) for worker in program.workers]
        wanted += [()] * len(epoch.givers)
        return self._shards.meet(epoch, rank, wanted, self._plane.direct, before, held, waits)

    def _block_holdings(self) -> BlockHoldings | None:
        """Who has what of a sharded optimizer's state."""
        return None if self._shards is None else BlockHoldings(self._shards.ready(self._held), self._shards.holders)

    def _takes_part(self, copy: Copy, rank: int, unlike: SliceCopies | None) -> bool:
        """Whether a copy concerns this rank, if its worker is in it: ranks of one number copy by themselves."""
        is_any = unlike is not None and unlike.concerns(copy) and copy.source == rank
        return copy.ranks is None or self._task.share in copy.ranks or is_any

    def _slice_copies(self, rank: int, plane: Plane) -> SliceCopies | None:
        """What copies between workers of unlike degrees; None where there are no such workers."""
        layout, direct = plane.layout, plane.direct
        if layout is None or len(set(layout.degrees)) == 1:
            return None
        assert isinstance(direct, GroupedTransport)
        own = layout.ranks_of(rank)[self._task.share]
        return SliceCopies(layout, own, direct.by_ranks, self._shares.tensors, tag_of_copy)

    def _whole_checksums(self, epoch: Epoch, rank: int, before: HeldStage | None, held: HeldStage) -> dict[int, str]:
        """Of layers that are made or copied in an epoch, as they are whole, whatever this worker's degree."""
        copied = [copy.layers for copy in epoch.copies if rank in (copy.source, copy.target)]
        layers = held.numbers if epoch.nothing_committed else sorted(layers_in(copied))
        stages = {layer: held if layer in held.numbers else before for layer in layers}
        states = {layer: stage.state_of((layer, layer + 1)) for layer, stage in stages.items() if stage is not None}
        return whole_checksums(states, self._shares.tensors, self._group)

    def _take_sums(self, epoch: Epoch, rank: int, held: HeldStage) -> dict[int, str]:
        """Have what the place's layers are to have of the iteration under way; gives the checksums of sums copied."""
        assert epoch.rest is not None and self._plane is not None
        progress = self._progress_of(epoch.iteration)
        places = {seat.place: number for number, seat in enumerate(epoch.seats)}
        sources = {places[one.source] for one in epoch.rest.copies if places[one.target] == rank}
        waits = partial(self._activity.be, "joining", "copies", sources)
        return SumTaker(epoch.rest, rank, self._plane.direct, waits).take(progress, held)

    def _rank_in(self, program: Program, number: int, plane: Plane) -> Rank:
        layout, sums = plane.layout, None
        if layout is not None:
            sums = SliceSums(layout, layout.ranks_of(number)[self._task.share], self._held.gradients)
        return Rank(
            program,
            number,
            self._held,
            plane.transport,
            lambda boundary: like(self._boundaries[boundary], self._held.device),
            self._now_s,
            self._spans.append,
            self._task.paced,
            self._task.seed,
            true_slowdown=(self._task.worker().slowdown or 1.0) * self._task.slowed,
            before=self._injection.before,
            executing=self._execute,
            before_sums=self._tell_losses,
            delegated=plane.delegated,
            transfers=plane.transfers,
            share=self._task.share,
            layout=layout,
            sums=sums,
        )

    def _flush(self, but_last: bool) -> None:
        """Wait until others have what was sent, and have the parameters that they have stepped meanwhile."""
        assert self._plane is not None
        if but_last:
            self._rank.transport.flush(sum(isinstance(one, Send) for one in self._rank.instructions))
        if self._shards is not None:
            self._end_copies()
            taken = self._rules.taken
            if not self._shards.is_whole(taken):
                self._activity.be("waiting", "parameters", self._rank.program.peers(self._rank.number))
                self._shards.gather(self._held, taken, self._plane.direct)
        if not but_last:
            self._rank.transport.flush()
        self._send_spans()

    def _end_copies(self) -> None:
        """Have the optimizer's state that was on its way since the epoch began."""
        assert self._shards is not None
        self._shards.end(self._held, partial(self._activity.be, "joining", "copies", self._shards.sources))

    def _go_by_plan(self) -> None:
        """What was left of an iteration is done, if there was such a one: from now on the plan says what to do."""
        if self._rank is not self._by_plan:
            self._rank = self._by_plan
            self._adapt(self._held, self._rank.program, self._rank.number)

    def _execute(self, instruction: Instruction) -> None:
        """Before an instruction: none is begun in an epoch that is over; of several ranks all stop before the same."""
        assert self._plane is not None
        if (team := self._plane.team) is not None:
            self._activity.wait_for_team()
            team.begin(instruction, goes_on=not self._interruption.is_over)
        elif self._interruption.is_over:
            raise SupersededError
        self._activity.execute(instruction)

    def _sum_with_team(self, tensor: torch.Tensor) -> None:
        """A sum of what the ranks of this worker compute, within an operation."""
        assert self._plane is not None and self._plane.team is not None
        before = self._activity.wait_for_team()
        self._plane.team.sum(tensor)
        self._activity.stay = before

    @contextmanager
    def _in_step(self, go_on_alone: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Where something fails inside, the other ranks of this worker stop at the same place."""
        team = self._plane.team if self._plane is not None else None
        try:
            yield
        except RuntimeFailedError:
            if team is not None:
                self._activity.wait_for_team()
                if not team.stop(partial(self._go_on_alone, go_on_alone)):
                    self._drop_progress()
            raise

    def _go_on_alone(self, compute: Callable[[], None]) -> None:
        """Compute what comes before the others are told to stop, without being taken for one that waits and hangs."""
        self._activity.be("computing", "what needs no other rank")
        compute()
        self._activity.wait_for_team()

    # An iteration

    def _standing(self, regroup: Regroup) -> Standing:
        """What there is of an iteration under way; what is not told of is dropped."""
        holds, progress = self._rules.holds, self._progress.get(regroup.iteration)
        if progress is None or holds is None or self._task.log_memory_bytes == 0:
            self._drop_progress()
            return nothing_of(self._task.name, holds)
        return progress.standing(self._task.name, self._held, trained_together(self._ties))

    def _progress_of(self, iteration: int) -> IterationProgress:
        """What there is of an iteration, be it nothing."""
        return self._progress.setdefault(iteration, IterationProgress(self._task.log_memory_bytes))

    def _drop_progress(self, keeps: int | None = None) -> None:
        """Drop all that is under way, but for an iteration that is kept, if there is something of it."""
        self._progress = {number: one for number, one in self._progress.items() if number == keeps}
        if not self._progress:
            self._held.reset()

    def _tell_losses(self, iteration: Iteration) -> None:
        """Before sums: what is in them outlives this worker, and so shall the losses."""
        epoch = self._rules.epoch
        assert epoch is not None
        losses, stages = losses_of(iteration)
        if (losses or stages) and self._task.share == 0:
            self._link.send(LossesTold(epoch.epoch, iteration.number, losses, stages))

    def _examine(self, epoch: Epoch, rank: int) -> Examined | None:
        """The pause before an epoch's first iteration in which suspicious groups are examined, with its faults."""
        assert self._plane is not None
        others = {number for group in epoch.examine if rank in group for number in group}
        self._activity.be("waiting", "the examination", others)
        names = [seat.worker for seat in epoch.seats]
        return examine(self._faulty_rank(epoch.iteration), epoch.examine, names, self._plane.direct)

    def _evaluate(self, number: int) -> Evaluated:
        """The losses of held-out micro-batches before an iteration, and how long that took."""
        assert self._task.evaluation is not None
        begun_s = self._now_s()
        with self._in_step():
            losses = evaluate(self._by_plan, self._task.evaluation, number)
        self._evaluated = number
        return told(losses), self._now_s() - begun_s

    def _reduce(self, number: int) -> Vote:
        """Everything of an iteration but the step."""
        epoch, plane = self._rules.epoch, self._plane
        assert epoch is not None and plane is not None
        self._activity.be("computing", f"data of iteration {number}")
        is_rest = epoch.rest is not None and number == epoch.rest.iteration
        if not is_rest:
            self._go_by_plan()
        rank = self._faulty_rank(number)
        plane.begin(number)
        batch = self._task.batch
        if isinstance(batch, Provider):
            batch.prefetch(number, rank.reads)  # of the first iteration of a plan nothing has been read
            batch.prefetch(number + 1, self._by_plan.reads)
        # Of iterations that are committed nothing is kept.
        self._progress = {at: one for at, one in self._progress.items() if at > self._rules.committed}
        is_noted = is_rest or self._task.log_memory_bytes != 0
        progress = self._progress_of(number) if is_noted else None
        iteration = Iteration(rank, number, batch(number), progress, self._rules.taken)
        with self._in_step(partial(iteration.go_on_alone, takes_all)):
            iteration.reduce()
        if self._shards is not None:
            self._end_copies()
        self._activity.be("computing", "vote")
        (losses, stages), squares = losses_of(iteration), self._held.squared_norms(self._by_plan.first_held)
        norms = tuple((layer, square if isfinite(square) else None) for layer, square in sorted(squares.items()))
        # Of layers that others hold as well they tell it, and a step of what is not finite can be undone.
        of_stages = chain.from_iterable(own for _, own in stages)
        is_finite = None not in [value for _, value, *_ in (*losses, *of_stages, *norms)]
        self._iteration = iteration
        measured = self._measured(epoch, iteration, plane)
        learning_rate = self._held.learning_rate_after(self._rules.taken)
        return Vote(
            *(epoch.epoch, number, is_finite, iteration.microbatches, losses, measured, norms, learning_rate),
            ledger=iteration.ledger,
            stages=stages,
        )

    def _measured(self, epoch: Epoch, iteration: Iteration, plane: Plane) -> Measured:
        """What the iteration, and the probes since the one before, have shown of workers and links."""
        sent, arrived = plane.samples()
        rank = iteration.rank
        if self._evaluated == iteration.number or rank.program.rest is not None:
            # Some began while others still evaluated, or had more left to do, so that what they waited for says nothing
            # of links and peers.
            return Measured(self._task.name, iteration.number, iteration.pace)
        return Measured(
            self._task.name,
            iteration.number,
            iteration.pace,
            sent,
            arrived,
            iteration.reduction_s,
            tuple(epoch.seats[peer].worker for peer in rank.program.peers(rank.number)),
            iteration_s=rank.now_s() - iteration.begun_s,
        )

    def _faulty_rank(self, iteration: int) -> Rank:
        """This worker's, as slow as the faults of an iteration, which begin now, make it."""
        self._injection.begin(iteration, sum(1 for _ in computed_in(self._rank.instructions)))
        slowdown = self._injection.slowdown
        return self._rank if self._rank.slowdown == slowdown else replace(self._rank, slowdown=slowdown)

    def _lost(self, error: RuntimeFailedError) -> str | None:
        """With which worker communication broke, if the error knows, or it is found out before the epoch is over."""
        epoch, rank = self._rules.epoch, self._rules.rank
        assert epoch is not None and rank is not None
        self._activity.be("joining", "a look at the others")
        return peer_lost(error, self._task, epoch, rank, self._superseded)

    def _leave_groups(self) -> None:
        """In a thread: to close connections takes longer than to make the next ones, which need not wait for it."""
        if self._plane is not None:
            self._closing = [one for one in self._closing if not one.done()]
            self._closing.append(in_thread(self._plane.close, "closing"))
        self._plane, self._fitting = None, self._held
        self._send_spans()

    # Small things

    def _warm_up(self, target: Tree) -> None:
        """Pay for first calls now: survivors would have to wait for them."""
        held, last = self._held, len(self._boundaries) - 1
        target, named = on_tensors(lambda one: one.to(held.device), (target, dict(self._named)))
        for layers in held.holds:
            inputs = zeros(self._boundaries[layers[0]], held.device)
            held.warm_up(inputs, target if layers[1] == last else None, named, layers)
        # Its optimizer has stepped once, on a trial.

    def _send_spans(self) -> None:
        if self._wants_spans and self._spans and self._task.share == 0:
            packed = tuple((span.op, span.start_s, span.end_s, span.iteration) for span in self._spans)
            self._link.send(Spans(self._rank.worker.name, packed))
        self._spans.clear()

    def _now_s(self) -> float:
        return time.perf_counter() + self._clock_ahead_s


def losses_of(iteration: Iteration) -> tuple[tuple[MicrobatchLoss, ...], tuple[StageLosses, ...]]:
    """The losses that a worker tells: those of its stage, or where progress is kept in several stages those of each."""
    stages = iteration.stage_losses
    return (
        (told(iteration.losses), ())
        if stages is None
        else ((), tuple((layers, told(stages[layers])) for layers in sorted(stages)))
    )


def told(losses: Mapping[int, tuple[float, float]]) -> tuple[MicrobatchLoss, ...]:
    """Losses as a vote has them, in the order of their numbers."""
    return tuple(
        (number, total if isfinite(total) else None, count) for number, (total, count) in sorted(losses.items())
    )


@lru_cache(maxsize=8)
def _program(plan: str, ties: tuple[tuple[int, ...], ...]) -> Program:
    return lower(plan_of(plan), ties)


@lru_cache(maxsize=2)
def _program_of_rest(plan: str, rest: Rest, ties: tuple[tuple[int, ...], ...]) -> Program:
    return lower_rest(plan_of(plan), rest, ties)
