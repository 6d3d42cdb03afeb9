"""The torch runner: executes a plan's program on this rank, iteration by iteration.

Our own interpreter rather than torch.distributed.pipelining's, which ties one stage to one rank and every micro-batch
to every rank, so that neither a re-routed plan nor pipelines of unlike stages can be said. Receives are posted ahead of
need, sends are waited for only at the end of the iteration, and sums of losses are divided, late, by what all
micro-batches count, so that the sum over a layer's holders is the gradient of the mean whoever executed what.

Its data are chosen by (iteration, global micro-batch) and never by rank (data/).
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from math import fsum, isfinite

import torch
from torch import nn

from ...schemas.check import require_valid
from ...schemas.documents import digest
from ...schemas.errors import InvalidInputError
from ...schemas.plan import Plan, rank_name
from ...schemas.protocols import LayerCuts
from ...schemas.timeline import Span, Timeline, memory_of_workers
from ..program import Instruction, Program, Send, Sending, lower
from ..training import SharedBuffers
from .boundaries import read, written, zeros
from .data.provider import Batch as Batch
from .delegates import Delegates
from .evaluation import HeldOut, evaluate
from .faults import DelayedTransport, slowest_links
from .gathering import Gathering, fewest_peers, peers_of
from .gloo import GlooTransport
from .gradients import FlatGradients
from .groups import SILENCE, PrefixStore, Store, TCPStore
from .held_stage import OptimizerFactory as OptimizerFactory
from .iteration import Agreement, Iteration, first_of, groups_of, meet, splits_backward
from .layer_shares import LayerShares, check_cuts
from .layout import GroupedTransport, RankLayout, RankTuple
from .nccl import NcclTransport, channels, has_gpu_of_its_own
from .optimizers import shards_optimizer
from .plane import delegated_peers, stall_limit_s
from .precision import Precision
from .rank import Rank, reads_of
from .rank_group import RankGroup
from .recut import State, recut
from .refusals import Refusals
from .schedules import Schedule
from .slice_sums import SliceSums, cuts_in, slice_groups
from .stage import Loss, TorchStage
from .staging import HostStaging
from .task import Fill
from .ties import ties_of, trained_together
from .transport import Transport
from .trees import NOTHING, NamedInputs, Tree, on_tensors


@dataclass(frozen=True)
class StepResult:
    """One iteration.

    Attributes:
        iteration: its number.
        loss: the mean; None where it is not finite, and, where stages do not wait for each other (a staggered
            optimizer), except at last ones.
        start_s, end_s: when it began and ended.
        count: what the mean is taken over.
        grad_norm: of the gradients of the mean, before they are clipped; None as the loss.
        learning_rate: of the step, in the optimizer's first group; None where this rank has nothing to train.
        skipped: a gradient was not finite, and nobody has stepped.
    """

    iteration: int
    loss: float | None
    start_s: float
    end_s: float
    count: float
    grad_norm: float | None
    learning_rate: float | None
    skipped: bool = False


class PlanRunner:
    """Executes a plan on the ranks of a torchrun job: rank r is the plan's r-th live worker.

    Of a plan of several GPUs a worker, each worker is as many ranks, one after the other, which share its layers.

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
        seed: of dropout and the like in the layers, which depend on (seed, iteration, micro-batch, layer) only.
        transport: which links have delegates: with "auto" those of which the plan says a delay.
        clip_norm: the largest norm of the gradients of the whole model with which to step; None: they are not clipped.
        fill: gives the layers [first, stop) their values where their parameters are on the meta device; of this rank's
            stage only.
        precision, schedule, buffers: as of `HeldStage`.
        cuts: how the layers are shared by the ranks of a worker; for a plan of several GPUs a worker.
        shard_optimizer: whether each of the workers that hold a layer keeps the optimizer's state of some blocks of it
            only, each block being held by two; None: where three or more hold each layer, and the optimizer is
            elementwise.

    Attributes:
        share: which of its worker's ranks this is.

    Raises:
        InvalidInputError: the plan is not valid, or does not fit the model, its cuts or the number of ranks.
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
        transport: Sending = "auto",
        clip_norm: float | None = None,
        fill: Fill | None = None,
        precision: Precision = "fp32",
        schedule: Schedule | None = None,
        buffers: SharedBuffers = "lowest",
        cuts: LayerCuts | None = None,
        shard_optimizer: bool | None = None,
    ) -> None:
        require_valid(plan, "the plan")
        program = lower(plan, trained_together(ties := ties_of(layers)))
        layout = RankLayout.of(program)
        self.plan, self._program = plan, program
        self.rank = _rank_among(program, layout, rank, world_size)
        self._number, self.share = layout.seats[self.rank]
        self.worker = program.workers[self._number]
        self._group, self.device = RankGroup(layout.degrees[self._number], self.share), torch.device(device)
        self.paced, self.seed = paced, seed
        self.iteration, self._taken, self._origin_s = 0, 0, 0.0  # the next one's number, steps, when the clock began
        self.spans: list[Span] = []
        self._layout = layout if layout.size > len(program.workers) else None
        self._everyone = RankTuple(range(layout.size))
        self._store = environment_store() if store is None else store
        name = rank_name(self.worker.name, self.share, self._group.degree)
        self._refusals = Refusals(self._store, self.rank, layout.size, name)
        with self._refusals.telling():
            check_model(plan, layers)
            if self._layout is not None:
                check_cuts(plan, layers, cuts)
            self._named_inputs = NamedInputs(layers)
            is_sharded = _is_sharded(shard_optimizer, program, layout, optimizer, layers)
            if fill is not None:
                for own in plan.layers_of(self.worker):
                    fill(layers, own)
            self._shares = LayerShares(layers, cuts, self._group, ties)
            self._held = self._shares.stage(
                layers,
                plan,
                self.worker,
                loss,
                optimizer,
                self.device,
                is_split=splits_backward(program.instructions[self._number]),
                clip_norm=clip_norm,
                precision=precision,
                schedule=schedule,
                buffers=buffers,
                is_sharded=is_sharded,
            )
            blocks = self._held.blocks
            self._gathering = None if blocks is None else Gathering.dealt(blocks, program, self._number)
            self._refusals.meet()  # connecting waits for all, and hears of no refusal
        self._delegated = delegated_peers(transport, program, self._number)
        self._delegates: Delegates | None = None
        self._transport: Transport = self._connect(program.instructions[self._number])
        self._refusals.interrupt = self._transport.interrupt
        self._prepared: Rank | None = None

    @property
    def stage(self) -> TorchStage:
        """This rank's stage; `stage.layers` are its layers."""
        return self._held.stage

    @property
    def reads(self) -> tuple[int, ...]:
        """The micro-batches of which this rank needs something of the data, by global number, in the order of need."""
        return reads_of(self._program, self._number, bool(self._held.named_like))

    @property
    def gradients(self) -> FlatGradients:
        """The gradients of this rank's stage."""
        return self._held.gradients

    def step(self, batch: Batch) -> StepResult:
        """Run one iteration: all operations of this rank's order, the all-reduce, and the optimizer step.

        Args:
            batch: the iteration's micro-batches by global number: pipeline k's j-th is
                `plan.microbatch_offset(k) + j`. Inputs are asked for at first stages, targets at last ones.

        Returns:
            What the iteration gave.
        """
        start_s = self.now_s()
        agreed: list[Agreement] = []
        run = self._run(batch, lambda run: agreed.append(run.run()))
        (found,) = agreed
        self._taken += found.is_finite
        terms, is_skipped = found.terms, not found.is_finite
        known = (terms.count, terms.norm, self._held.learning_rate, is_skipped)
        return StepResult(run.number, found.loss, start_s, self.now_s(), *known)

    def evaluate(self, data: HeldOut) -> tuple[float | None, float]:
        """Evaluate the model as it is on held-out micro-batches; collective.

        Args:
            data: what to evaluate on; how often is the caller's to say.

        Returns:
            The mean loss, None where it is not finite, and what it is taken over.
        """
        with self._refusals.telling():
            self._prepared = self._prepared or self._prepare(data.batch)
            losses = evaluate(self._prepared, data, self.iteration)
        told = torch.zeros(2, data.microbatches, dtype=torch.float64)
        for number, loss in losses.items() if self.share == 0 else ():
            told[:, number] = torch.tensor(loss, dtype=torch.float64)
        self._transport.all_reduce(self._everyone, told)
        sums, counts = told.tolist()
        count = fsum(counts)
        return fsum(sums) / count if count > 0 and all(map(isfinite, sums)) else None, count

    def reduce(self, batch: Batch) -> Iteration:
        """Run one iteration but for the step, which the caller takes: its gradients are left in the parameters' `grad`.

        Args:
            batch: as for `step`.

        Returns:
            The iteration. Gradients are sums over all micro-batches, and not divided by what the loss counts.

        Raises:
            InvalidInputError: the precision has a loss scale, which only who steps can keep.
        """
        if self._held.waits_for_all:
            raise InvalidInputError(
                "gradients of a scaled loss are not left to others: only the runner knows the scale",
                where="precision",
                fix="call step(), or use the precision bf16-master",
            )

        def reduce(run: Iteration) -> None:
            run.reduce()
            self._held.commit_buffers()
            self._transport.flush()

        return self._run(batch, reduce)

    def _run(self, batch: Batch, how: Callable[[Iteration], None]) -> Iteration:
        with self._refusals.telling():
            self._prepared = self._prepared or self._prepare(batch)
            run = Iteration(self._prepared, self.iteration, batch, taken=self._taken)
            how(run)
        self.iteration += 1
        return run

    def state(self) -> dict[str, torch.Tensor]:
        """This rank's training state: parameters, buffers and the optimizer's state by their names in the model.

        References, of what the ranks of a worker share its slices; names are those of `HeldStage`. Of a sharded
        optimizer the blocks that this rank holds: those of all peers together, in one mapping, are the whole state.
        """
        self._held.prime_optimizer()
        return self._held.state()

    def load(self, sources: Sequence[State], iteration: int, taken: int | None = None) -> None:
        """Go on with the state of other ranks, between iterations.

        Args:
            sources: what `state` gave on all ranks of a worker, of this degree or another, in their order; of a sharded
                optimizer on it and its peers together. They must have this rank's layers, and may have more.
            iteration: that comes next.
            taken: steps taken before it; None: as many as iterations, for none was skipped.

        Raises:
            InvalidInputError: something is missing, of another shape or type, or cannot be cut (`recut`).
        """
        names = list(self.state())
        self._held.load(recut(sources, names, self._shares.tensors, self._group.degree, self.share))
        self.iteration, self._taken = iteration, iteration if taken is None else taken

    def timeline(self) -> Timeline | None:
        """The measured timeline of all ranks so far; collective, and returned on rank 0 (None elsewhere)."""
        packed = [(span.worker, span.op, span.start_s, span.end_s, span.iteration) for span in self.spans]
        self._store.set(f"rtk/spans/{self.rank}", json.dumps(packed))
        if self.rank:
            return None
        spans: list[Span] = []
        for rank in self._everyone if self._layout is None else self._layout.firsts:
            spans += (Span(*fields) for fields in json.loads(self._store.get(f"rtk/spans/{rank}")))
        first_s = min((span.start_s for span in spans), default=0.0)
        moved = (Span(s.worker, s.op, s.start_s - first_s, s.end_s - first_s, s.iteration) for s in spans)
        ordered = tuple(sorted(moved, key=lambda span: (span.start_s, span.worker)))
        return Timeline("measured", ordered, memory_of_workers(self.plan), plan=digest(self.plan), paced=self.paced)

    def close(self) -> None:
        """Leave together with all other ranks, so that nobody takes an early end for a failure; collective."""
        meet(self._transport, self._everyone)
        if self._delegates is not None:
            self._delegates.dismiss()  # connections stay: others may not have noticed yet that all are here

    def reports_loss(self) -> bool:
        """Whether this rank is the one, of those that know the loss, that should report it."""
        last = next(worker for worker in self._program.workers if self.plan.holds_last(worker))
        return self.worker.name == last.name and self.share == 0

    def _connect(self, instructions: tuple[Instruction, ...]) -> Transport:
        groups = groups_of(instructions)
        peers, pairs = self._delegated, channels(self._program)
        if self._gathering is not None:
            every = (peers_of(self._program, number) for number in range(len(self._program.workers)))
            pairs |= {pair for one in every for workers in one.values() for pair in permutations(workers, 2)}
        if self._layout is not None:
            own = self._layout.ranks_of(self._number)
            reduction = self._program.reduction(self._number)
            groups = slice_groups(self._layout, self.rank, reduction, partial(cuts_in, self._shares.tensors)) | {own}
            peers = self._layout.partners_of(self.rank, sorted(peers))
            pairs = self._layout.channels(pairs)
        groups.add(self._everyone)
        if self.device.type == "cuda" and has_gpu_of_its_own():
            nccl = NcclTransport(self._store, self.rank, groups, pairs, self.device)
            direct = self._behind_links(nccl)
            carrier = self._behind_links(self._gloo(set())) if peers else direct
        else:
            direct = carrier = self._behind_links(self._gloo(groups))
        if peers:
            stall_s = stall_limit_s(self._program)
            self._delegates = Delegates(direct, carrier, peers, staging=HostStaging.of(self.device), stall_s=stall_s)
            direct = self._delegates
        if self._layout is None:
            return direct
        inner = direct
        self._group.reduce = lambda tensor: inner.all_reduce(own, tensor)
        return GroupedTransport(inner, self._layout, self.rank)

    def _gloo(self, groups: set[tuple[int, ...]]) -> Transport:
        return GlooTransport(self._store, self.rank, len(self._everyone), groups, connect_limit=SILENCE)

    def _behind_links(self, transport: Transport) -> Transport:
        """A paced run's links are as slow as the plan says."""
        if not self.paced:
            return transport
        sends = [one for one in self._program.instructions[self._number] if isinstance(one, Send) and one.delay_s]
        delays_s = [
            (rank, one.delay_s)
            for one in sends
            for rank in ((one.to,) if self._layout is None else self._layout.targets_of(self.rank, one.to))
        ]
        return DelayedTransport(transport, slowest_links(delays_s))

    def _prepare(self, batch: Batch) -> Rank:
        """Learn the shapes of what this rank's stages take, warm everything up, and agree on a common clock.

        Each stage tells the next one the shape of its output through the store, under the number of the layer that it
        flows into, so that inputs are asked for at first stages only (`boundary_samples` would need one on every rank).
        """
        held, total = self._held, self.plan.total_layers()
        inputs: Tree = None
        target: Tree = None
        named = NOTHING
        if 0 in held.numbers or held.is_last or held.stage.named_inputs.may_take:
            given = first_of(batch)
            self._named_inputs.check(given[2])
            inputs, target, named = on_tensors(lambda one: one.to(self.device), (given[0], given[1], dict(given[2])))
        likes: dict[int, Tree] = {}
        for first, stop in (stage.layers for stage in self.plan.stages_of(self.worker)):
            if first > 0:
                inputs = zeros(read(self._refusals.get(f"rtk/shape/{first}").decode()), self.device)
            output = held.warm_up(inputs, target if stop == total else None, named, (first, stop))
            likes |= {first: inputs, stop: output}
            if stop < total:
                self._store.set(f"rtk/shape/{stop}", written(output))
            else:
                self._store.set("rtk/does_count", json.dumps(self.stage.does_count))
        # One origin for all ranks of a host, whose monotonic clock they share; else the moment of a common barrier.
        meet(self._transport, self._everyone)
        if self.rank == 0:
            self._store.set("rtk/origin", json.dumps([socket.gethostname(), time.perf_counter()]))
        host, origin_s = json.loads(self._store.get("rtk/origin"))
        self._origin_s = origin_s if host == socket.gethostname() else time.perf_counter()
        return Rank(
            self._program,
            self._number,
            self._held,
            self._transport,
            like_at=likes.__getitem__,
            now_s=self.now_s,
            record=self.spans.append,
            paced=self.paced,
            seed=self.seed,
            delegated=self._delegated,
            does_count=json.loads(self._store.get("rtk/does_count")),
            share=self.share,
            layout=self._layout,
            gathering=self._gathering,
            sums=None if self._layout is None else SliceSums(self._layout, self.rank, held.gradients),
        )

    def now_s(self) -> float:
        """The clock of its times, in s."""
        return time.perf_counter() - self._origin_s


def check_model(plan: Plan, layers: Sequence[nn.Module]) -> None:
    """Raise InvalidInputError unless every template's stages cover the model, whose parameters are plain tensors."""
    for number, template in enumerate(plan.templates):
        needed = template.stages[-1].layers[1]
        if len(layers) != needed:
            raise InvalidInputError(
                f"the plan places {needed} layers, the model has {len(layers)}",
                where=f"/templates/{number}/stages",
                fix="plan from a profile of this model",
            )
    _refuse_distributed(layers)


def _refuse_distributed(layers: Sequence[nn.Module]) -> None:
    """Raise InvalidInputError for a layer with DTensors: their sums would wait for ranks that have died."""
    known = sys.modules.get("torch.distributed.tensor")  # whoever has made one has loaded it
    if known is None:
        return
    for number, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            if isinstance(parameter, known.DTensor):
                raise InvalidInputError(
                    f"its {name} is a DTensor, whose sums with other ranks are not rtk's: no rank of them survives "
                    "another's death",
                    where=f"layer {number}",
                    fix="give whole layers, without parallelize_module or distribute_tensor, and say how several GPUs "
                    'share them: tensor_parallel={name: "colwise", "rowwise" or "vocabulary"}',
                )


def _is_sharded(
    asked: bool | None, program: Program, layout: RankLayout, optimizer: OptimizerFactory, layers: Sequence[nn.Module]
) -> bool:
    """Whether peers share the optimizer's state; nobody can where those who hold a layer have unlike slices of it.

    Raises:
        InvalidInputError: it is asked for all the same, or of an optimizer that cannot be shared.
    """
    holders = {workers for number in range(len(program.workers)) for workers in peers_of(program, number).values()}
    if all(len({layout.degrees[worker] for worker in workers}) == 1 for workers in holders):
        return shards_optimizer(asked, fewest_peers(program), optimizer, layers)
    if asked:
        raise InvalidInputError(
            "workers of unlike tensor-parallel degrees hold the same layers: they have no blocks of an optimizer's "
            "state in common",
            where="--shard-optimizer",
            fix="plan with one --tensor-parallel for all pipelines, or leave --shard-optimizer out",
        )
    return False


def _rank_among(program: Program, layout: RankLayout, rank: int | None, world_size: int | None) -> int:
    """This process's rank, in a job of as many processes as live workers have ranks."""
    found = _environment("RANK", layout.size) if rank is None else rank
    processes = _environment("WORLD_SIZE", layout.size) if world_size is None else world_size
    if processes != layout.size:
        workers = len(program.workers)
        gpus = "" if layout.size == workers else f" on {layout.size} GPUs"
        raise InvalidInputError(
            f"the plan has {workers} live workers{gpus}, this job has {processes} processes",
            where="WORLD_SIZE",
            fix=f"start it with torchrun --nproc-per-node {layout.size}, or without torchrun",
        )
    return found


def _environment(name: str, workers: int) -> int:
    """RANK or WORLD_SIZE, which torchrun sets."""
    if name not in os.environ:
        raise InvalidInputError(
            f"this process is no rank of a job: {name} is not set",
            where=name,
            fix=f"start the script with torchrun --nproc-per-node {workers} SCRIPT.py, one process a live worker",
        )
    return int(os.environ[name])


def environment_store() -> Store:
    """The store of a torchrun job, for this attempt of it; rank 0 hosts it where torchrun's agent does not."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    hosts_store = os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = TCPStore(address, port, None, is_master=hosts_store, wait_for_workers=False)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"rtk/attempt/{attempt}", store)
