"""torchtitan's trainer over a plan of rtk: its `pipelining_fn`, and the schedule that one gives.

The trainer keeps its loop: data, clipping, optimizer, learning rates, checkpoints and logs are its own. In place of
torch's pipeline runtime stands rtk's, which runs the plan's orders and sums gradients over the plan's pipelines. A
worker that dies ends the job, as under torchtitan: to survive it, train with `rtk.train`, whose loop is rtk's.

Written against torchtitan 0.3.0, and tested with it (tests/runners/test_titan.py); nothing of it is imported before
its trainer calls.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import distributed, nn
from torch._C._distributed_c10d import PrefixStore

from ...schemas.check import require_valid
from ...schemas.documents import read_document
from ...schemas.errors import InvalidInputError
from ...schemas.placement import refuse_placed
from ...schemas.plan import Plan
from ..titan_files import torchtitan_parts
from .runner import PlanRunner

PipeliningFunction = Callable[..., tuple["TitanSchedule", list[nn.Module], bool, bool]]


def pipelining_fn(plan: Plan | str) -> PipeliningFunction:
    """The `pipelining_fn` of a torchtitan `ModelSpec` that runs a plan.

    The model is cut as the plan says: its layer 0 is the embedding, the last one norm and head, those between are the
    blocks. Pipeline k runs on the ranks whose place among the replicas is k. The `parallelize_fn` of the `ModelSpec` is
    not called, for all of torchtitan's end in `fully_shard`, under which a split backward pass computes wrong gradients
    and whose gradients cannot lie in rtk's buffers: activation checkpointing and compilation are applied here.

    Args:
        plan: the plan, or the path of its file.

    Returns:
        What torchtitan's trainer calls with the model and its settings. It raises InvalidInputError, the same on all
        ranks, where plan and settings do not go together: other numbers of stages, pipelines, micro-batches or layers;
        an order that reaches beyond its pipeline; tensor, context or expert parallelism, sharding, offloading; another
        type than float32, which torchtitan has from `fully_shard`.
    """

    def split(
        model: nn.Module,
        *,
        parallel_dims: Any,
        training: Any,
        parallelism: Any,
        compile_config: Any,
        ac_config: Any,
        dump_folder: str,
        device: torch.device,
        model_config: Any,
        loss_fn: Callable[..., Any],
        **_: Any,
    ) -> tuple[TitanSchedule, list[nn.Module], bool, bool]:
        """As torchtitan calls it, with the names of its arguments; what it returns is what its trainer runs."""
        read = read_document(plan, Plan) if isinstance(plan, str) else plan
        refuse_placed(read, "rtk.torchtitan")
        require_valid(read, "the plan")
        _require_fit(read, parallel_dims, training, parallelism, len(model_config.layers))

        from torchtitan.distributed.compile import apply_compile
        from torchtitan.distributed.pipeline_parallel import _split_module

        stage = parallel_dims.get_mesh("pp").get_local_rank()
        pipeline = parallel_dims.get_mesh("batch").get_local_rank() if len(read.pipelines) > 1 else 0
        part = _split_module(model, torchtitan_parts(read)[stage])
        if ac_config is not None:
            ac_config.build(dump_folder=dump_folder).apply(part)
        if compile_config.enable and "model" in compile_config.components:
            apply_compile(part, compile_config=compile_config, parallel_dims=parallel_dims)
        stages = len(read.template_of(0).stages)
        schedule = TitanSchedule(read, pipeline * stages + stage, part, loss_fn, device)
        return schedule, [part], stage == 0, stage == stages - 1

    return split


class TitanSchedule:
    """What torchtitan's trainer steps: one iteration of a plan but for the optimizer's step.

    Args:
        plan: the plan.
        rank: this process's number in it.
        part: the modules of its stage; their parameters need not have values before the first step.
        loss_fn: torchtitan's, which gives (loss, metrics).
        device: where to compute.
    """

    def __init__(
        self, plan: Plan, rank: int, part: nn.Module, loss_fn: Callable[..., Any], device: torch.device
    ) -> None:
        self.plan = _with_a_layer_a_stage(plan)
        self.rank = rank
        self.device = device
        worker = self.plan.live_workers()[rank]
        self._stage = worker.stage
        self._called = _Called(part, [one.microbatch for one in worker.operations() if one.kind == "F"])
        self._loss_fn = loss_fn
        self._loss_kwargs: dict[str, Any] = {}
        self._runner: PlanRunner | None = None

    def step(
        self,
        *,
        arg_mbs: Sequence[tuple[torch.Tensor]] | None,
        kwarg_mbs: Sequence[dict[str, Any]],
        target_mbs: Sequence[torch.Tensor] | None,
        losses: list[torch.Tensor] | None = None,
        loss_kwargs: dict[str, Any] | None = None,
        return_outputs: bool = False,
    ) -> None:
        """Run all micro-batches of one call, and add their gradients, summed over all pipelines, to `grad`.

        Args:
            arg_mbs: the model's input by micro-batch; a first stage's.
            kwarg_mbs: the keyword arguments of every stage's modules, by micro-batch.
            target_mbs: what the loss compares with, by micro-batch; a last stage's.
            losses: takes the loss of each micro-batch of this pipeline; a last stage's.
            loss_kwargs: keyword arguments of the loss; with `global_valid_tokens` it is a sum over tokens divided by
                those of all ranks, so that gradients are summed and never divided.
            return_outputs: must be off: rtk does not keep outputs.
        """
        if return_outputs:
            raise InvalidInputError("rtk's schedule keeps no outputs", fix="call step with return_outputs=False")
        self._loss_kwargs = loss_kwargs or {}
        self._called.expect(kwarg_mbs, is_cold=self._runner is None)
        if self._runner is None:
            self._runner = self._start()
        gradients = self._runner.gradients
        # `zero_grad` has taken the gradients away, unless this call adds to those of an earlier one.
        added = any(parameter.grad is not None for parameter in self._runner.stage.parameters())
        earlier = [buffer.clone() for buffer in gradients.buffers] if added else []
        gradients.attach()
        run = self._runner.reduce(_TitanBatch(arg_mbs, target_mbs))
        for buffer, before in zip(gradients.buffers, earlier, strict=bool(earlier)):
            buffer.add_(before)
        if losses is not None:
            losses.extend(torch.tensor(total, device=self.device) for total, _ in run.losses.values())

    def eval(self, **_: Any) -> None:
        """What torchtitan's validator calls, first after step 1.

        Raises:
            InvalidInputError: always.
        """
        raise InvalidInputError(
            "rtk's schedule does not validate", where="validator.enable", fix="switch it off, or train with rtk.train"
        )

    def _start(self) -> PlanRunner:
        """Connect; the trainer has made the parameters' values by now."""
        layers: list[nn.Module] = [nn.Identity() for _ in self.plan.template_of(0).stages]
        layers[self._stage] = self._called
        store = PrefixStore("rtk", distributed.distributed_c10d._get_default_store())
        return PlanRunner(
            self.plan,
            layers,
            self._loss,
            _TrainersOptimizer,
            rank=self.rank,
            world_size=len(self.plan.live_workers()),
            store=store,
            device=self.device,
        )

    def _loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss, _ = self._loss_fn(output, target, **self._loss_kwargs)
        found: torch.Tensor = loss
        return found


class _Called(nn.Module):
    """Calls a stage's modules as torchtitan does: with the keyword arguments of the micro-batch.

    Args:
        part: the modules.
        order: the micro-batches in the order of the stage's F.
    """

    def __init__(self, part: nn.Module, order: Sequence[int]) -> None:
        super().__init__()
        self.part = part
        self._order = order
        self._arguments: Iterator[dict[str, Any]] = iter(())

    def expect(self, arguments: Sequence[dict[str, Any]], is_cold: bool) -> None:
        """Be told the arguments of all micro-batches; where the stage is cold, its first one comes twice."""
        warming = [arguments[0]] if is_cold else []
        self._arguments = iter(warming + [arguments[microbatch] for microbatch in self._order])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map a stage's input to its output."""
        output: torch.Tensor = self.part(inputs, **next(self._arguments))
        return output


class _TitanBatch:
    """The micro-batches of one call, of one pipeline, under their numbers in all pipelines."""

    def __init__(self, inputs: Sequence[tuple[Any, ...]] | None, targets: Sequence[torch.Tensor] | None) -> None:
        self._inputs, self._targets = inputs, targets

    def __getitem__(self, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Its inputs where this rank has them, and its targets where it has those."""
        nothing = torch.empty(0)
        inputs = self._inputs[microbatch % len(self._inputs)][0] if self._inputs else nothing
        return inputs, self._targets[microbatch % len(self._targets)] if self._targets else nothing


class _TrainersOptimizer(torch.optim.Optimizer):
    """Stands for the trainer's own optimizer, which steps the parameters of the stage."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing: the trainer steps."""


def _with_a_layer_a_stage(plan: Plan) -> Plan:
    """The plan of a model whose layers are the plan's stages, as torchtitan's parts are."""
    templates = tuple(
        replace(one, stages=tuple(replace(stage, layers=(i, i + 1)) for i, stage in enumerate(one.stages)))
        for one in plan.templates
    )
    return replace(plan, templates=templates)


def _require_fit(plan: Plan, dims: Any, training: Any, parallelism: Any, blocks: int) -> None:
    """Raise InvalidInputError unless a plan and torchtitan's settings go together."""
    stages, pipelines = len(plan.template_of(0).stages), len(plan.pipelines)
    microbatches = training.local_batch_size // parallelism.pipeline_parallel_microbatch_size
    planned = {pipeline.microbatches for pipeline in plan.pipelines}
    cut = plan.template_of(0).stages[-1].layers[1]
    abroad = next((w.name for w in plan.live_workers() if any(o.pipeline != w.pipeline for o in w.operations())), None)
    names = "tensor", "context", "expert", "data_parallel_shard"
    other = dict(zip(names, (dims.tp, dims.cp, dims.ep, dims.dp_shard), strict=True))
    wrong = next((name for name, degree in other.items() if degree > 1), None)
    problem: tuple[str, str, str] | None = None
    if dims.pp != stages or dims.dp_replicate != pipelines:
        problem = (
            f"the plan has {stages} stages and {pipelines} pipelines, the job {dims.pp} and {dims.dp_replicate}",
            "parallelism.pipeline_parallel_degree, data_parallel_replicate_degree",
            f"set them to {stages} and {pipelines}, and data_parallel_shard_degree to 1",
        )
    elif wrong is not None:
        field = wrong + ("_degree" if wrong.startswith("data") else "_parallel_degree")
        problem = (
            f"{field} is {other[wrong]}, and rtk's schedule knows pipelines and replicas only",
            f"parallelism.{field}",
            "set it to 1",
        )
    elif planned != {microbatches}:
        problem = (
            f"the plan's pipelines have {' or '.join(map(str, sorted(planned)))} micro-batches, "
            f"the job's {microbatches}",
            "training.local_batch_size, parallelism.pipeline_parallel_microbatch_size",
            f"set local_batch_size to {max(planned) * parallelism.pipeline_parallel_microbatch_size}"
            if len(planned) == 1
            else "plan pipelines of equal numbers of micro-batches",
        )
    elif cut != blocks + 2:
        problem = (
            f"the plan cuts {cut} layers, the model has {blocks + 2}: embedding, {blocks} blocks and head",
            "/templates/0/stages",
            "plan from a profile of this model",
        )
    elif abroad is not None or len(plan.live_workers()) < len(plan.workers) or len(plan.templates) > 1:
        problem = (
            f"worker {abroad} executes micro-batches of another pipeline, whose data torchtitan gives it not"
            if abroad
            else "the plan has failed workers, or pipelines of several templates",
            "/workers",
            "use a plan of whole pipelines of one template",
        )
    elif training.mixed_precision_param != "float32" or training.dtype != "float32":
        problem = (
            f"computation is in {training.mixed_precision_param} with parameters in {training.dtype}: mixed precision "
            "comes from fully_shard, without which this runs",
            "training.mixed_precision_param, training.dtype",
            'set both to "float32"',
        )
    elif training.enable_cpu_offload:
        problem = ("offloading comes from fully_shard", "training.enable_cpu_offload", "switch it off")
    if problem is not None:
        raise InvalidInputError(problem[0], where=problem[1], fix=problem[2])
