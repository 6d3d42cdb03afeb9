"""The torch runner: executes a plan's program on this rank, iteration by iteration.

Our own interpreter rather than torch.distributed.pipelining's, which ties one stage to one rank and every micro-batch
to every rank, so that a re-routed plan cannot be said. Receives are posted ahead of need, sends are waited for only at
the end of the iteration, and the loss is divided by the global number of micro-batches, so that the sum over peers is
the gradient of the mean whoever executed what.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from ...schemas.check import require_valid
from ...schemas.documents import digest
from ...schemas.errors import InvalidInputError
from ...schemas.orders import Operation, print_operation
from ...schemas.plan import Plan
from ...schemas.timeline import Span, Timeline
from ..program import AllReduce, Compute, Instruction, Message, Program, Receive, Send, Step, lower, posting_order
from ..simulator import memory_of_workers
from .c10d import PrefixStore, Store, TCPStore
from .gradients import FlatGradients
from .nccl import NcclTransport, channels, has_gpu_of_its_own
from .stage import Loss, Stage
from .transport import GlooTransport, SlowLinks, Transport

# Receives announced ahead of the one that is needed: enough to let neighbours run ahead, few enough to hold buffers.
LOOK_AHEAD = 4

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Batch(Protocol):
    """The micro-batches of one iteration by global number; only those that this rank needs are asked for."""

    def __getitem__(self, microbatch: int, /) -> tuple[torch.Tensor, torch.Tensor]:
        """(inputs, targets) of one micro-batch."""
        ...


@dataclass(frozen=True)
class StepResult:
    """One iteration: its number, its mean loss (known on the last stage's workers, else None), its times in s."""

    iteration: int
    loss: float | None
    start_s: float
    end_s: float


class PlanRunner:
    """Executes a plan on the ranks of a torchrun job: rank r is the plan's r-th live worker.

    Args:
        plan: a valid plan.
        layers: all layers of the model, equal on every rank; only this rank's stage is kept, on `device`.
        loss: maps (output, target) of a micro-batch to its mean loss, a scalar.
        optimizer: makes the optimizer of the stage's parameters.
        rank: this process; RANK from the environment where not given.
        world_size: number of processes; WORLD_SIZE from the environment where not given.
        store: where the ranks meet; MASTER_ADDR and MASTER_PORT from the environment where not given.
        device: where to compute.
        paced: let every operation last what the plan says, sleeping out the rest, and links their delay.
        seed: of dropout and the like in the layers, which depend on (seed, iteration, micro-batch, stage) only.

    Raises:
        InvalidInputError: the plan is not valid, or does not fit the model or the number of ranks.
        RuntimeFailedError: (also from `step`) a connection to another rank broke.
    """

    def __init__(
        self,
        plan: Plan,
        layers: Sequence[nn.Module],
        loss: Loss,
        optimizer: OptimizerFactory,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        store: Store | None = None,
        device: torch.device | str = "cpu",
        paced: bool = False,
        seed: int = 0,
    ) -> None:
        require_valid(plan, "the plan")
        program = lower(plan)
        self.plan = plan
        self.rank = int(os.environ["RANK"]) if rank is None else rank
        _check_world(plan, int(os.environ["WORLD_SIZE"]) if world_size is None else world_size)
        check_model(plan, layers)
        self.worker = program.workers[self.rank]
        self.device = torch.device(device)
        self.paced = paced
        self.seed = seed
        self.iteration = 0
        self.spans: list[Span] = []
        self._everyone = tuple(range(len(program.workers)))
        self._instructions = program.instructions[self.rank]
        self._slowdown = self.worker.slowdown or 1.0
        self._held = plan.stage_of(self.worker)
        self._is_last = self.worker.stage == len(plan.template_of(self.worker.pipeline).stages) - 1
        self.stage = self._make_stage(layers, loss)
        self._gradients = FlatGradients(self.stage.parameters(), self.device)
        self._optimizer = optimizer(self.stage.parameters())
        self._store = _environment_store() if store is None else store
        self._transport: Transport = self._connect(program)
        self._tags = _Tags(plan)
        self._receives = posting_order(program, self.rank)
        self._sample: torch.Tensor | None = None
        self._output_sample: torch.Tensor | None = None
        self._origin_s = 0.0

    def step(self, batch: Batch) -> StepResult:
        """Run one iteration: all operations of this rank's order, the all-reduce, and the optimizer step.

        Args:
            batch: the iteration's micro-batches by global number: pipeline k's j-th is
                `plan.microbatch_offset(k) + j`. Inputs are asked for at first stages, targets at last ones.

        Returns:
            What the iteration gave.
        """
        if self._sample is None:
            self._prepare(batch)
        start_s = self._now_s()
        self._gradients.clear()
        run = _Iteration(self, batch)
        for instruction in self._instructions:
            run.execute(instruction)
        self._transport.flush()
        result = StepResult(self.iteration, run.loss, start_s, self._now_s())
        self.iteration += 1
        return result

    def timeline(self) -> Timeline | None:
        """The measured timeline of all ranks so far; collective, and returned on rank 0 (None elsewhere)."""
        self._store.set(f"rtk/spans/{self.rank}", json.dumps([_pack(span) for span in self.spans]))
        if self.rank:
            return None
        spans: list[Span] = []
        for rank in self._everyone:
            spans += (Span(*fields) for fields in json.loads(self._store.get(f"rtk/spans/{rank}")))
        first_s = min((span.start_s for span in spans), default=0.0)
        moved = (Span(s.worker, s.op, s.start_s - first_s, s.end_s - first_s, s.iteration) for s in spans)
        ordered = tuple(sorted(moved, key=lambda span: (span.start_s, span.worker)))
        return Timeline("measured", ordered, memory_of_workers(self.plan), plan=digest(self.plan), paced=self.paced)

    def close(self) -> None:
        """Leave together with all other ranks, so that nobody takes an early end for a failure; collective."""
        self._meet_everyone()

    def reports_loss(self) -> bool:
        """Whether this rank is the one, of those that know the loss, that should report it."""
        names = [w.name for w in self.plan.live_workers() if w.stage == self.worker.stage]
        return self._is_last and names[0] == self.worker.name

    def _make_stage(self, layers: Sequence[nn.Module], loss: Loss) -> Stage:
        first, stop = self._held.layers
        kept = [layer.to(self.device) for layer in layers[first:stop]]
        is_split = any(isinstance(one, Compute) and one.operation.kind == "I" for one in self._instructions)
        return Stage(kept, loss if self._is_last else None, 1 / self.plan.total_microbatches(), is_split)

    def _connect(self, program: Program) -> Transport:
        groups = {self._everyone, *(one.group for one in self._instructions if isinstance(one, AllReduce))}
        transport: Transport
        if self.device.type == "cuda" and has_gpu_of_its_own():
            transport = NcclTransport(self._store, self.rank, groups, channels(program), self.device)
        else:
            transport = GlooTransport(self._store, self.rank, len(self._everyone), groups)
        delayed = any(isinstance(one, Send) and one.delay_s for one in self._instructions)
        return SlowLinks(transport) if self.paced and delayed else transport

    def _prepare(self, batch: Batch) -> None:
        """Learn the shape of what this stage takes, warm everything up, and agree on a common clock.

        Each stage runs one micro-batch forward and backward and tells the next one the shape of its output through the
        store. Gradients are cleared and buffers restored afterwards, so the training does not see it.
        """
        buffers = [(buffer, buffer.clone()) for buffer in self.stage.layers.buffers()]
        inputs = self._sample_input(batch)
        target = batch[0][1].to(self.device) if self._is_last else None
        output = self.stage.forward("warm-up", inputs, target)
        if not self._is_last:
            shape = json.dumps([list(output.shape), str(output.dtype).removeprefix("torch.")])
            self._store.set(f"rtk/shape/{self.worker.stage + 1}", shape)
        self.stage.backward("warm-up", None if self._is_last else torch.zeros_like(output))
        self._sample = inputs
        self._output_sample = output
        for buffer, before in buffers:
            buffer.copy_(before)
        self._agree_on_clock()

    def _sample_input(self, batch: Batch) -> torch.Tensor:
        if self.worker.stage == 0:
            return batch[0][0].to(self.device)
        shape, dtype = json.loads(self._store.get(f"rtk/shape/{self.worker.stage}"))
        return torch.zeros(shape, dtype=getattr(torch, dtype), device=self.device)

    def _agree_on_clock(self) -> None:
        """One origin for all ranks of a host, whose monotonic clock they share; else the moment of a common barrier."""
        self._meet_everyone()
        if self.rank == 0:
            self._store.set("rtk/origin", json.dumps([socket.gethostname(), time.perf_counter()]))
        host, origin_s = json.loads(self._store.get("rtk/origin"))
        self._origin_s = origin_s if host == socket.gethostname() else time.perf_counter()

    def _meet_everyone(self) -> None:
        """Wait until all ranks are here."""
        self._transport.all_reduce(self._everyone, torch.zeros(1))

    def _now_s(self) -> float:
        return time.perf_counter() - self._origin_s


class _Iteration:
    """One iteration of one rank under way."""

    def __init__(self, runner: PlanRunner, batch: Batch) -> None:
        self.runner = runner
        self.batch = batch
        self.loss: float | None = None
        self._messages: dict[Message, torch.Tensor] = {}
        self._output: torch.Tensor | None = None
        self._posted: set[Message] = set()
        for _ in range(LOOK_AHEAD):
            self._post_next()

    def execute(self, instruction: Instruction) -> None:
        """Execute one instruction of the program."""
        match instruction:
            case Receive(message, source):
                while message not in self._posted:
                    self._post_next()
                tag = self.runner._tags.of(message, self.runner.iteration)
                self._messages[message] = self.runner._transport.receive(tag, source)
                self._post_next()
            case Compute(operation):
                with _Span(self, self._name(operation), self._duration_s(operation)):
                    self._output = self._compute(operation)
            case Send(message, to, delay_s):
                assert self._output is not None
                tag = self.runner._tags.of(message, self.runner.iteration)
                self.runner._transport.send(tag, to, self._output, delay_s)
            case AllReduce(group, duration_s):
                self._all_reduce(group, duration_s)
            case Step(everyone, duration_s):
                self._step(everyone, duration_s)

    def _compute(self, operation: Operation) -> torch.Tensor | None:
        runner, key = self.runner, operation[1:]
        if operation.kind == "F":
            return self._forward(operation)
        if operation.kind == "W":
            runner.stage.backward_weight(key)
            return None
        message = Message("gradient", operation.pipeline, operation.microbatch, runner.worker.stage)
        gradient = self._messages.pop(message, None)
        backward = runner.stage.backward_input if operation.kind == "I" else runner.stage.backward
        return backward(key, gradient)

    def _forward(self, operation: Operation) -> torch.Tensor:
        runner = self.runner
        number = runner.plan.microbatch_offset(operation.pipeline) + operation.microbatch
        message = Message("activation", operation.pipeline, operation.microbatch, runner.worker.stage - 1)
        received = self._messages.pop(message, None)
        inputs = self.batch[number][0].to(runner.device) if received is None else received
        target = self.batch[number][1].to(runner.device) if runner._is_last else None
        _seed_randomness(runner.device, runner.seed, runner.iteration, number, runner.worker.stage)
        output = runner.stage.forward(operation[1:], inputs, target)
        if runner._is_last:
            runner._gradients.add_loss(output)
        return output

    def _all_reduce(self, group: tuple[int, ...], duration_s: float) -> None:
        runner = self.runner
        if len(group) > 1:
            with _Span(self, "allreduce", duration_s):
                for buffer in runner._gradients.buffers:
                    runner._transport.all_reduce(group, buffer)
        if runner._is_last:
            self.loss = runner._gradients.loss()

    def _step(self, everyone: bool, duration_s: float) -> None:
        runner = self.runner
        if everyone:
            runner._meet_everyone()
        with _Span(self, "step", duration_s):
            runner._optimizer.step()

    def _post_next(self) -> None:
        runner = self.runner
        if len(self._posted) < len(runner._receives):
            receive = runner._receives[len(self._posted)]
            message, source = receive.message, receive.source
            like = runner._sample if message.kind == "activation" else runner._output_sample
            assert like is not None
            runner._transport.post_receive(runner._tags.of(message, runner.iteration), source, like)
            self._posted.add(message)

    def _name(self, operation: Operation) -> str:
        return print_operation(operation, self.runner.worker.pipeline)

    def _duration_s(self, operation: Operation) -> float:
        return self.runner._held.duration_s(operation.kind) * self.runner._slowdown


class _Span:
    """Times what runs inside it, and in a paced run sleeps until its duration is over."""

    def __init__(self, iteration: _Iteration, name: str, duration_s: float) -> None:
        self._runner, self._name, self._duration_s = iteration.runner, name, duration_s

    def __enter__(self) -> None:
        self._start_s = self._runner._now_s()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        runner = self._runner
        if runner.device.type == "cuda":
            torch.cuda.synchronize(runner.device)
        if runner.paced:
            time.sleep(max(0.0, self._start_s + self._duration_s - runner._now_s()))
        runner.spans.append(Span(runner.worker.name, self._name, self._start_s, runner._now_s(), runner.iteration))


class _Tags:
    """A number for every message, unlike in two neighbouring iterations."""

    def __init__(self, plan: Plan) -> None:
        self._links = max(len(template.links) for template in plan.templates)
        self._offsets = [plan.microbatch_offset(k) for k in range(len(plan.pipelines))]

    def of(self, message: Message, iteration: int) -> int:
        """The tag of a message in an iteration."""
        number = self._offsets[message.pipeline] + message.microbatch
        parts = 2 * (number * self._links + message.link) + (message.kind == "gradient")
        return 2 * parts + iteration % 2


def check_model(plan: Plan, layers: Sequence[nn.Module]) -> None:
    """Raise InvalidInputError unless the plan's stages cover the model, and share no parameter."""
    needed = max(template.stages[-1].layers[1] for template in plan.templates)
    if len(layers) != needed:
        raise InvalidInputError(
            f"the plan places {needed} layers, the model has {len(layers)}",
            where="/templates/0/stages",
            fix="plan from a profile of this model",
        )
    for template in plan.templates:
        owner: dict[int, int] = {}
        for index, stage in enumerate(template.stages):
            for parameter in {id(p) for layer in layers[slice(*stage.layers)] for p in layer.parameters()}:
                if owner.setdefault(parameter, index) != index:
                    raise InvalidInputError(
                        f"stages {owner[parameter]} and {index} share a parameter (tied weights)",
                        where="/templates/0/stages",
                        fix="untie the weights, or cut so that both layers are in one stage",
                    )


def _check_world(plan: Plan, world_size: int) -> None:
    live = len(plan.live_workers())
    if world_size != live:
        raise InvalidInputError(
            f"the plan has {live} live workers, this job has {world_size} processes",
            where="WORLD_SIZE",
            fix=f"start it with torchrun --nproc-per-node {live}, or without torchrun",
        )


def _environment_store() -> Store:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    hosts_store = os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = TCPStore(address, port, None, is_master=hosts_store, wait_for_workers=False)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"rtk/attempt/{attempt}", store)


def _seed_randomness(device: torch.device, seed: int, iteration: int, microbatch: int, stage: int) -> None:
    # A product of large odd numbers keeps neighbouring places apart; the generator itself mixes the bits.
    mixed = seed * 0x9E3779B97F4A7C15 + iteration * 0xBF58476D1CE4E5B9 + microbatch * 0x94D049BB133111EB + stage
    # torch.manual_seed looks at every kind of accelerator, which takes 100 times as long as seeding one generator.
    torch.default_generator.manual_seed(mixed % 2**63)
    if device.type == "cuda":
        torch.cuda.manual_seed(mixed % 2**63)


def _pack(span: Span) -> tuple[str, str, float, float, int]:
    return span.worker, span.op, span.start_s, span.end_s, span.iteration
