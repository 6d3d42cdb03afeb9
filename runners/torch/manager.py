"""torchft's verbs over rtk's coordinator: a training loop of one's own whose replicas may die, and come back.

The loop is the user's: data, forward and backward pass, optimizer. It asks a `Manager` for a quorum before a step, lets
it average gradients, and steps where all have voted for that (torchft 2026.10: manager.py, ddp.py, optim.py; the names
and what they return are its). Behind the verbs stand the worker's rules that drive every other run (resilience/
worker_rules.py), in a plan of one stage: a replica is a pipeline, `start_quorum` leads to the next iteration's
gradients, `should_commit` votes. There is no other protocol, and the coordinator knows no difference.

Where this is unlike torchft, for it is the coordinator's way:

* a quorum is there at once, for who is lost or comes is told when it happens: `use_async_quorum` changes nothing, and
  who heals has its state before its forward pass, so that it takes part in that very step;
* all replicas step, or none: an error that one of them reports takes the step from all;
* the plan says how many replicas there may be; the job begins when all are there, or as many as the coordinator asks
  for (`--min-workers`), and goes on while one is left.

Replicas hold the whole model (DDP). For pipelines, and for rows that are not lost with a replica, the loop has to be
rtk's (`rtk.train`).
"""

import atexit
import hashlib
import io
import math
import os
import sys
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, NoReturn

import torch
from torch import futures
from torch.distributed import ReduceOp, Work

from ...schemas.documents import read_document
from ...schemas.errors import InvalidInputError, RuntimeFailedError
from ...schemas.plan import Pipeline, Plan, Planner, Stage, Template, Worker
from ...schemas.resumption import nothing_of
from ..program import lower
from ..resilience.link import CoordinatorLink
from ..resilience.protocol import Copy, End, Epoch, FromCoordinator, Leaving, Ready, Regroup, Saved, Vote
from ..resilience.worker_rules import (
    Action,
    Connect,
    CopyState,
    EnterEpoch,
    FlushMessages,
    JointAction,
    LeaveGroups,
    Listen,
    ReduceGradients,
    Retire,
    SavePart,
    Say,
    TakeStep,
    TellStanding,
    WorkerRules,
    plan_of,
)
from ..training import COORDINATOR, SECRET
from .checkpoint import tag_of_copy
from .connections import Connections
from .faults import Injection
from .plane import Plane, expect, peer_lost, reach, see_everybody
from .rendezvous import MeetingPlace, connect, in_thread
from .task import Task
from .watch import Activity, ActivityTimer, Interruption
from .worker import end_at_once, hello_of, own_address

LAYER = (0, 1)  # all that a replica holds is one layer of the plan
CLOSING_S = 5.0
StateDict = Any  # of the user's; tensors, numbers and text in dicts, lists and tuples
Verb = Callable[[], StateDict]
# What torchft's Manager takes for its lighthouse, its stores and its copies of state, of which there are none here.
NOT_NEEDED = frozenset(
    {
        "quorum_timeout",
        "connect_timeout",
        "quorum_retries",
        "store_addr",
        "store_port",
        "port",
        "hostname",
        "heartbeat_interval",
        "checkpoint_transport",
    }
)


class WorldSizeMode(Enum):
    """How many replicas count in an average.

    DYNAMIC: all that are there. FIXED_WITH_SPARES: `min_replica_size`; others add nothing, and step alike.
    """

    DYNAMIC = 0
    FIXED_WITH_SPARES = 1


def plan_of_replicas(replicas: int) -> Plan:
    """The plan that `rtk coordinate` leads a job of torchft's verbs by: so many pipelines of one stage.

    What a step takes is not known: it counts as a second, and is measured.

    Raises:
        InvalidInputError: there are to be none.
    """
    if replicas < 1:
        raise InvalidInputError(f"{replicas} replicas are none", where="plan_of_replicas", fix="take one or more")
    stage = Stage(LAYER, 1.0 / 3, 1.0 / 3, 1.0 / 3)
    return Plan(
        planner=Planner("replicas", "1", {"replicas": replicas}),
        templates=(Template("t0", (stage,), ()),),
        pipelines=(Pipeline("t0", 1),) * replicas,
        optimizer="synchronous",
        workers=tuple(Worker(k, 0, "F0 B0") for k in range(replicas)),
    )


class DoneWork(Work):
    """A sum that has ended, well or not; `wait` says which."""

    def __init__(self, tensor: torch.Tensor, is_well: bool) -> None:
        super().__init__()
        self._is_well = is_well
        self._future: futures.Future[torch.Tensor] = futures.Future()
        self._future.set_result(tensor)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Whether the tensor is the average."""
        return self._is_well

    def get_future(self) -> Any:
        """Done, with the tensor."""
        return self._future


class Manager:
    """What a loop of torchft's asks: who is there, an average, and whether the step counts.

    Args:
        pg: as torchft's loop gives it; rtk makes its own groups, for each membership others.
        load_state_dict: takes the state of another replica, in the thread that calls `start_quorum`.
        state_dict: gives this replica's: what a later replica needs to go on.
        min_replica_size: with fewer replicas steps do not count.
        use_async_quorum: as torchft's loop gives it; quorums are there at once.
        timeout: how long to look for a lost coordinator.
        lighthouse_addr: the coordinator, host:port, or several with commas; None: RTK_COORDINATOR.
        replica_id: ends in the number of this replica, from 0; None: REPLICA_GROUP_ID.
        init_sync: let all begin with the state of the first one; else all have made the same.
        max_retries: steps in a row that do not count, after which `should_commit` raises an error.
        rank, world_size: of a replica group; None: 0 and WORLD_SIZE, if set. More than one process is refused.
        world_size_mode: how many replicas count in an average.
        plan: that the coordinator leads, or its file; None: RTK_PLAN.
        secret: the job's; None: RTK_SECRET.
        others: as torchft's loop gives them, those of `NOT_NEEDED`, which change nothing.

    Raises:
        TypeError: an argument that torchft does not have either.
        InvalidInputError: the plan is of several stages or has no such replica, or the coordinator refuses it.
        RuntimeFailedError: no coordinator is found.
    """

    def __init__(
        self,
        pg: Any = None,
        load_state_dict: Callable[[StateDict], Any] | None = None,
        state_dict: Verb | None = None,
        min_replica_size: int = 1,
        use_async_quorum: bool = True,
        timeout: timedelta = timedelta(seconds=60),
        *,
        lighthouse_addr: str | None = None,
        replica_id: str | None = None,
        init_sync: bool = True,
        max_retries: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        world_size_mode: WorldSizeMode = WorldSizeMode.DYNAMIC,
        plan: Plan | str | None = None,
        secret: str | None = None,
        **others: Any,
    ) -> None:
        if unknown := sorted(others.keys() - NOT_NEEDED):
            raise TypeError(f"Manager has no argument {unknown[0]!r}")
        processes = os.environ.get("WORLD_SIZE", "1") if world_size is None else str(world_size)
        if processes != "1" or rank:
            raise InvalidInputError(
                f"process {rank or 0} of a replica of {processes}",
                where="WORLD_SIZE" if world_size is None and not rank else "rank, world_size",
                fix="take one process a replica (DDP), each started by itself with a REPLICA_GROUP_ID of its own",
            )
        if min_replica_size < 1:
            raise InvalidInputError(
                f"{min_replica_size} replicas take no step", where="min_replica_size", fix="take one or more"
            )
        self._states: dict[str, tuple[Callable[[StateDict], Any], Verb]] = {}
        if load_state_dict is not None and state_dict is not None:
            self.register_state_dict_fn("default", load_state_dict, state_dict)
        self._fewest, self._init_sync, self._most_retries = min_replica_size, init_sync, max_retries
        self._has_spares = world_size_mode is WorldSizeMode.FIXED_WITH_SPARES
        self._retries = 0
        self._loss: float | None = None  # of this replica's rows in this step, where the loop tells it
        self._step = self._begun_with = self._batches = 0
        self._errored: Exception | None = None
        self._broken: RuntimeFailedError | None = None
        self._is_stepping = False  # the loop takes the step that the rules want
        self._plane: Plane | None = None
        self._closing: list[Future[None]] = []
        self._superseded: Future[None] = Future()
        address = lighthouse_addr or _from_environment(COORDINATOR, "lighthouse_addr")
        self._task = _task_of(address, replica_id, plan, secret)
        self._rules = WorkerRules(self._task.name)
        self._interruption = Interruption(self._task.name)
        self._activity = Activity()
        self._watch = ActivityTimer(self._activity, self._interruption, self._task.name, may_compute=True)
        self._connections = Connections(self._task.secret, self._task.hostname)
        self._meeting = MeetingPlace(self._task.secret, self._task.hostname)
        self._link = CoordinatorLink(
            address.split(","),
            self._task.secret,
            hello_of(self._task, self._meeting.address, ()),
            patience_s=timeout.total_seconds(),
            on_interrupt=self._announce,
            on_inquiry=self._watch.answer,
        )
        self._is_started = self._is_over = False
        atexit.register(_leave_at_exit, weakref.ref(self))

    # State

    def register_state_dict_fn(self, key: str, load_state_dict: Callable[[StateDict], Any], state_dict: Verb) -> None:
        """Add a part of the state that a replica needs to go on.

        Raises:
            InvalidInputError: there is a part of this name.
        """
        if key in self._states:
            raise InvalidInputError(f"two parts of the state are called {key!r}", where="register_state_dict_fn")
        self._states[key] = load_state_dict, state_dict

    def set_state_dict_fns(self, load_state_dict: Callable[[StateDict], Any], state_dict: Verb) -> None:
        """As `register_state_dict_fn`, under a name of torchft's."""
        self.register_state_dict_fn("set_state_dict_fns", load_state_dict, state_dict)

    def state_dict(self) -> dict[str, int]:
        """The steps and batches so far, for a checkpoint of the loop's own."""
        return {"step": self._step, "batches_committed": self._batches}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Begin with the steps and batches of a checkpoint; all replicas do, before the first step."""
        self._begun_with = self._step = state_dict["step"]
        self._batches = state_dict["batches_committed"]

    # Who is there

    def current_step(self) -> int:
        """Steps that count."""
        return self._step

    def batches_committed(self) -> int:
        """Batches that are in the steps that count: of each step as many as replicas took part."""
        return self._batches

    def num_participants(self) -> int:
        """Replicas that take part in this step; what spares have does not count."""
        return min(self._present, self._fewest) if self._has_spares else self._present

    @property
    def _present(self) -> int:
        """Replicas that are there in this step, spares among them."""
        epoch = self._rules.epoch
        return 0 if epoch is None else len(epoch.seats)

    def participating_rank(self) -> int | None:
        """This one's number among those that take part; None where it does not."""
        rank = self._rules.rank
        return None if rank is None or (self._has_spares and rank >= self._fewest) else rank

    def is_participating(self) -> bool:
        """Whether this replica takes part in this step."""
        return self.participating_rank() is not None

    # Errors

    def report_error(self, e: Exception) -> None:
        """Something went wrong in this step: it will count for nobody."""
        self._errored = self._errored or e

    def errored(self) -> Exception | None:
        """What went wrong in this step."""
        return self._errored or self._broken

    def report_loss(self, loss: float | torch.Tensor) -> None:
        """Tell the coordinator what this step's loss is here: it announces the mean over all replicas that tell theirs.

        torchft has no such verb. Without it the coordinator's output, metrics and pages have no losses.
        """
        self._loss = float(loss.detach() if isinstance(loss, torch.Tensor) else loss)

    def wrap_future(self, fut: Any, default: Any, timeout: timedelta | None = None) -> Any:
        """A future that never fails: an error is reported, and `default` is the value then.

        Args:
            fut, default: of torch, and of the same kind as its value.
            timeout: as torchft's loop gives it; the coordinator finds out who hangs.
        """

        def end(done: Any) -> Any:
            try:
                return done.value()
            except Exception as error:
                self.report_error(error)
                return default

        return fut.then(end)

    # A step

    def start_quorum(
        self, allow_heal: bool = True, shrink_only: bool = False, timeout: timedelta | None = None
    ) -> None:
        """Have this step's replicas, and the state of all before it; the loop has stepped if it was to.

        Waits where the membership changes, at a job's start until all are there; else it returns at once.

        Args:
            allow_heal, shrink_only, timeout: as torchft's loop gives them; who comes always heals, and joins.

        Raises:
            InvalidInputError: the coordinator refuses this replica.
            RuntimeFailedError: the job is over, or the coordinator gone.
        """
        if self._is_over:
            raise RuntimeFailedError("this replica has left the job", fix="make another Manager")
        if not self._is_started:
            self._link.start()
            self._watch.start()
            self._watch.on_stuck = partial(end_at_once, self._link)
            self._is_started = True
        self._errored = self._broken = self._loss = None
        if self._is_stepping:  # which the loop has done by now
            self._is_stepping = False
            self._rules.go_on()
        while not isinstance(action := self._rules.action, ReduceGradients):
            if isinstance(action, Retire):
                self._over(action)
            self._obey()
        self._activity.be("computing", f"step {self._step}")

    def wait_quorum(self) -> None:
        """Return: `start_quorum` has waited."""

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False, reduce_op: Any = ReduceOp.AVG) -> DoneWork:
        """Average a tensor over the replicas, in place; an error is reported, and takes the step from all.

        Args:
            tensor: of the same shape and type everywhere.
            should_quantize: as torchft's loop gives it; nothing is quantized.
            reduce_op: AVG or SUM.

        Raises:
            InvalidInputError: another operation, whole numbers to average, or no step was begun.
        """
        if reduce_op not in (ReduceOp.AVG, ReduceOp.SUM):
            raise InvalidInputError("only averages and sums are taken", where="allreduce", fix="give AVG or SUM")
        if reduce_op == ReduceOp.AVG and not (tensor.is_floating_point() or tensor.is_complex()):
            raise InvalidInputError(f"no average is of type {tensor.dtype}", where="allreduce", fix="take the SUM")
        count = self._present
        if count == 0 or self._is_over:
            raise InvalidInputError("no step has been begun", where="allreduce", fix="call start_quorum first")
        if not self.is_participating():
            tensor.detach().zero_()
        if self._broken is None and count > 1:
            assert self._plane is not None
            before = self._activity.stay
            try:
                self._activity.be("waiting", "all-reduce", range(count))
                data = tensor.detach().to("cpu").contiguous()
                self._plane.direct.all_reduce(tuple(range(count)), data)
                tensor.detach().copy_(data)
            except RuntimeFailedError as error:
                self._broken = error
            finally:
                self._activity.stay = before
        if reduce_op == ReduceOp.AVG and self._broken is None:
            tensor.detach().div_(self.num_participants())
        return DoneWork(tensor, self._broken is None)

    def should_commit(self, timeout: timedelta | None = None) -> bool:
        """Vote, and hear whether the step counts; if so, the loop has to step its optimizer.

        Raises:
            InvalidInputError: no step was begun.
            RuntimeFailedError: the job failed, the coordinator is gone, or `max_retries` steps did not count.
        """
        action = self._rules.action
        if not isinstance(action, ReduceGradients) or self._is_stepping or self._is_over:
            raise InvalidInputError("no step has been begun", where="should_commit", fix="call start_quorum first")
        if self._broken is not None:
            self._break_off(self._broken)
        else:
            self._rules.go_on(self._vote(action.iteration))
        while not isinstance(self._rules.action, TakeStep | ReduceGradients | EnterEpoch | Retire):
            self._obey()
        heard = self._rules.action
        if isinstance(heard, Retire) and not (isinstance(heard.end, End) and heard.end.exit_code == 0):
            self._over(heard)
        if isinstance(heard, TakeStep):
            self._is_stepping = True
            self._batches += self.num_participants()
            self._step, self._retries = self._begun_with + heard.terms.taken + 1, 0
        else:
            self._retries += 1
            if self._most_retries is not None and self._retries > self._most_retries:
                raise RuntimeFailedError(f"{self._retries} steps in a row did not count", fix="see what failed in them")
        # That may take long: it evaluates, and saves.
        self._activity.be("preparing", f"what the loop does after step {self._step}")
        return self._is_stepping

    def shutdown(self, wait: bool = True) -> None:
        """Leave the job, and let go of everything; again does nothing.

        Where no error is on its way the coordinator hears that this replica is at its end, and does not count it as
        lost; so at the end of the process, if nobody has called this, unless that comes amid a step. The job has ended
        well once all are.

        Args:
            wait: as torchft's loop gives it; it always waits, for CLOSING_S at most.
        """
        raised = sys.exc_info()[1]
        self._shut_down(is_well=raised is None or (isinstance(raised, SystemExit) and not raised.code))

    def _shut_down(self, is_well: bool) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._leave_groups()
        if self._is_started:
            if is_well and self._interruption.end is None:
                self._link.send(Leaving(at_once=True))
            self._link.close()
            self._watch.close()
        self._connections.close()
        self._meeting.close()
        wait_for(self._closing, CLOSING_S)
        self._interruption.wait(CLOSING_S)

    def _vote(self, iteration: int) -> Vote:
        """On a step that this replica could do its part of; what it has lost of it is lost, as in torchft."""
        epoch, rank = self._rules.epoch, self._rules.rank
        assert epoch is not None and rank is not None
        worker = lower(plan_of(epoch.plan)).workers[rank]
        is_well = self._errored is None and self.num_participants() >= self._fewest
        plan = plan_of(epoch.plan)
        done = (one for one in worker.operations() if one.kind in "BI")
        numbers = sorted(plan.microbatch_offset(one.pipeline) + one.microbatch for one in done)
        loss = None if self._loss is None or not math.isfinite(self._loss) else self._loss
        tells = self._loss is not None and self.is_participating()
        told = tuple((number, loss, 1.0) for number in numbers[:tells])  # one mean, of all its rows
        return Vote(epoch.epoch, iteration, is_well, tuple(numbers), told)

    def _over(self, retired: Retire) -> NoReturn:
        self.shutdown()
        end = retired.end
        assert isinstance(end, End), "a replica of one process has no other degree to go on at"
        fix = None if end.exit_code else "give `rtk coordinate` more --iterations, or end the loop by current_step()"
        raise RuntimeFailedError(f"the job is over: {end.reason}", fix=fix)

    # What the rules want

    def _announce(self, message: FromCoordinator) -> None:
        """In the link's thread: wake whoever waits in groups that are over."""
        if isinstance(message, Regroup):
            expect(self._connections, self._task, message)
        self._interruption.announce(message)

    def _obey(self) -> None:
        """Do what the rules want, and tell them what came of it."""
        action = self._rules.action
        self._activity.be(action.doing, action.what)
        try:
            result = self._do(action)
        except RuntimeFailedError as error:
            if not isinstance(action, JointAction):
                raise
            self._break_off(error)
        else:
            self._rules.go_on(result)

    def _break_off(self, error: RuntimeFailedError) -> None:
        """Tell the rules that what others take part in does not come to its end, and with whom touch was lost."""
        epoch, rank = self._rules.epoch, self._rules.rank
        assert epoch is not None and rank is not None
        over = self._interruption
        self._activity.be("joining", "a look at the others")
        peer = None if over.is_over else peer_lost(error, self._task, epoch, rank, self._superseded)
        if over.is_over:
            self._rules.supersede()
        else:
            self._rules.lose_touch(error.what, peer)

    def _do(self, action: Action) -> Any:
        match action:
            case Listen():
                return self._link.receive()
            case Say(message):
                self._link.send(message)
            case TellStanding():
                return nothing_of(self._task.name, self._rules.holds)
            case SavePart(_, iteration):
                return Saved(iteration, None, "with torchft's verbs the loop saves its own checkpoints")
            case EnterEpoch(epoch):
                self._activity.enter(epoch.epoch, [seat.worker for seat in epoch.seats])
                self._superseded = self._interruption.begin(epoch.epoch)
            case Connect(epoch, rank):
                self._plane = self._connected(epoch, rank)
                self._interruption.guard(self._plane.transport)
            case CopyState(epoch, rank):
                return self._copy_state(epoch, rank)
            case FlushMessages() if self._plane is not None:
                self._plane.transport.flush()
            case LeaveGroups():
                self._leave_groups()
        return None

    def _connected(self, epoch: Epoch, rank: int) -> Plane:
        program, faults = lower(plan_of(epoch.plan)), Injection((), self._task.name)
        self._activity.be("joining", "connecting", range(len(epoch.seats)))
        return connect(
            lambda: reach(self._connections, self._task, epoch, program, rank, faults, time.perf_counter),
            self._superseded,
            lambda: see_everybody(self._task, epoch, rank),
        )

    def _leave_groups(self) -> None:
        """In a thread: to close connections takes longer than to make the next ones, which need not wait for it."""
        if self._plane is not None:
            self._closing = [one for one in self._closing if not one.done()]
            self._closing.append(in_thread(self._plane.close, "closing"))
        self._plane = None

    # Copies of the state

    def _copy_state(self, epoch: Epoch, rank: int) -> Ready:
        """Send this replica's state to those who lack it, or have another's; before the first step, the first one's."""
        copies = [copy for copy in epoch.copies if rank in (copy.source, copy.target)]
        if epoch.nothing_committed:
            others = range(1, len(epoch.seats)) if self._init_sync else range(0)
            copies = [Copy(0, other, LAYER) for other in others if rank in (0, other)]
        digests = [self._give(copies)] if copies and copies[0].source == rank else [*map(self._take, copies)]
        return Ready(epoch.epoch, LAYER, tuple((0, digest) for digest in digests))

    def _give(self, copies: list[Copy]) -> str:
        assert self._plane is not None
        buffer = io.BytesIO()
        user = {key: get() for key, (_, get) in self._states.items()}
        torch.save({"user": user, "counts": (self._begun_with, self._step, self._batches)}, buffer)
        state = torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)
        for copy in copies:
            self._plane.direct.send(tag_of_copy(LAYER, 0), copy.target, torch.tensor([len(state)]))
            self._plane.direct.send(tag_of_copy(LAYER, 1), copy.target, state)
        self._plane.direct.flush()
        return hashlib.sha256(buffer.getbuffer()).hexdigest()

    def _take(self, copy: Copy) -> str:
        assert self._plane is not None
        transport = self._plane.direct
        self._activity.be("joining", "copies", (copy.source,))
        size = torch.zeros(1, dtype=torch.int64)
        for number in range(2):
            tag = tag_of_copy(LAYER, number)
            transport.post_receive(tag, copy.source, torch.empty(int(size), dtype=torch.uint8) if number else size)
            found = transport.receive(tag, copy.source)
            size = found if number == 0 else size
        data = found.numpy().tobytes()
        read = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)  # not on the other's GPU
        for key, (load, _) in self._states.items():
            load(read["user"][key])
        self._begun_with, self._step, self._batches = read["counts"]
        return hashlib.sha256(data).hexdigest()


def _leave_at_exit(manager: "weakref.ref[Manager]") -> None:
    """A loop that ends its process, as torchft's example does, has shut nothing down; well, unless by an error.

    Python does not tell here with which exit code the process ends, but no loop is at its end amid a step.
    """
    found = manager()
    if found is not None:
        is_amid_step = found._activity.stay.doing == "computing"  # since `start_quorum`, until `should_commit`
        found._shut_down(is_well=getattr(sys, "last_value", None) is None and not is_amid_step)


def _from_environment(variable: str, argument: str) -> str:
    found = os.environ.get(variable)
    if not found:
        raise InvalidInputError(f"{argument} is not given", where="Manager", fix=f"give it, or set {variable}")
    return found


def _task_of(address: str, replica_id: str | None, plan: Plan | str | None, secret: str | None) -> Task:
    """Who this replica is among the others; what it trains is the loop's."""
    given = plan if plan is not None else _from_environment("RTK_PLAN", "plan")
    read = given if isinstance(given, Plan) else read_document(given, Plan)
    named = replica_id if replica_id is not None else _from_environment("REPLICA_GROUP_ID", "replica_id")
    digits = named[len(named.rstrip("0123456789")) :]
    name = f"{int(digits or 0)}/0"
    if read.total_layers() != 1 or name not in {worker.name for worker in read.live_workers()}:
        what = "has several layers" if read.total_layers() != 1 else f"has no replica {int(digits or 0)}"
        raise InvalidInputError(
            f"the plan {what}",
            where="plan",
            fix="make it with rtk.manager.plan_of_replicas(N), and count replicas from 0",
        )

    def never(*_: Any) -> Any:
        raise AssertionError("the loop computes, and not rtk")

    return Task(
        name=name,
        plan=read,
        make_layers=never,
        loss=never,
        optimizer=never,
        batch=never,
        settings={"loop": "torchft's verbs"},
        secret=(secret if secret is not None else _from_environment(SECRET, "secret")).encode(),
        hostname=own_address(address.split(",")[0]),
    )
