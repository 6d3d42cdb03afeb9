"""A training as its user declares it: the class `Training`, and the scripts that hold one.

It stands at the root because it hands the runners' workers the profilers' models.
"""

import copy
import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, get_args, runtime_checkable

from .runners.program import Sending
from .runners.ranks import degree_of
from .runners.training import (
    EVAL_EVERY,
    PRECISION_OF,
    Precision,
    SharedBuffers,
    TrainingConfig,
    asked_to_shard,
    fewest_holders,
    sizes_of,
)
from .schemas.errors import InvalidInputError, RtkError
from .schemas.plan import rank_of, worker_of
from .schemas.profile import DataType, ModelForm, form_of
from .schemas.text import with_article

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .profilers.measuring import Measuring
    from .profilers.models.joint import ModelCuts
    from .profilers.models.model import Model
    from .profilers.models.sharding import TensorParallelPlan
    from .runners.log_writers import LogWriter
    from .runners.torch.data.provider import Provider
    from .runners.torch.evaluation import HeldOut
    from .runners.torch.groups import Store
    from .runners.torch.held_stage import OptimizerFactory
    from .runners.torch.runner import PlanRunner
    from .runners.torch.stage import Loss
    from .runners.torch.task import Task
    from .schemas.plan import Plan

Listener = Callable[[dict[str, Any]], Any]
BYTES = 256  # words that a model of bytes must know

# What the parameters are made as for each; masters and casts are the stage's.
PARAMETERS: dict[Precision, DataType] = {
    "fp32": "fp32",
    "bf16": "bf16",
    "bf16-autocast": "fp32",
    "bf16-master": "bf16",
    "fp16-master": "fp16",
}


@runtime_checkable
class ModelSource(Protocol):
    """What makes a whole model, with a loss of its own."""

    def load(self, microbatch_size: int | None, sequence_length: int | None, seed: int, form: ModelForm) -> "Model":
        """The model, equal at every call, with values or with what fills it; arguments as of `load_model`."""
        ...

    def settings(self) -> dict[str, Any]:
        """What must be the same for all workers, by the names that a refusal tells."""
        ...


@dataclass(frozen=True)
class NamedModel:
    """A model by the name that `rtk run --model` takes.

    Attributes:
        name: a preset, `file.py:factory`, or a config.json.
        weights: of a Hugging Face model, as of `load_model`; None: those beside its config, if there are any.
        random_weights: begin with random ones, whatever there is.
    """

    name: str
    weights: str | None = None
    random_weights: bool = False

    def load(self, microbatch_size: int | None, sequence_length: int | None, seed: int, form: ModelForm) -> "Model":
        """As `load_model`."""
        from .profilers.models.load import load_model

        return load_model(
            self.name,
            microbatch_size,
            sequence_length,
            seed,
            form,
            weights=self.weights,
            random_weights=self.random_weights,
            filled=False,
        )

    def settings(self) -> dict[str, Any]:
        """The name, and what tells weights from others where there are some."""
        from .profilers.analytic.configuration import is_config
        from .profilers.models.weights import require_weights, weights_beside, weights_digest

        told = {"model": self.name}
        if self.random_weights or not is_config(self.name):
            return told
        found = weights_beside(Path(self.name)) if self.weights is None else require_weights(self.weights)
        return told if found is None else {**told, "weights": weights_digest(found)}


@dataclass(frozen=True)
class DataFiles:
    """What `rtk run --data` names: files of text or tokens, or a folder that `datasets` has written.

    Attributes:
        paths: of files of one kind, or of one folder; none: the text of Python's own modules.
        dtype: of the tokens in a `.bin` without an index.
        tokenizer: a folder with the tokenizer of text; None: text is bytes, and a byte is a token.
    """

    paths: Sequence[str] = ()
    dtype: str | None = None
    tokenizer: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """What a model is evaluated on while it is trained, and when: before iterations, and after the last.

    Attributes:
        data: as of `Training`; rows come in the order of their numbers, the same ones each time.
        every: iterations between two evaluations.
        microbatches: of an evaluation; None: as many as an iteration has.
        at_start: whether there is one before iteration 0.
    """

    data: Any
    every: int
    microbatches: int | None = None
    at_start: bool = False

    def __post_init__(self) -> None:
        for name, number in (("every", self.every), ("microbatches", self.microbatches)):
            if number is not None and not (isinstance(number, int) and number >= 1):
                raise InvalidInputError(
                    f"{number!r} is no number to evaluate by",
                    where=f"Evaluation({name}=…)",
                    fix="give a whole number from 1 on",
                )


class Training:
    """What is trained, and how; `rtk run plan.json --script train.py` trains it and goes on when workers fail.

    Args:
        model: a function that returns the layers (an nn.Sequential or a list), or a module that `cut` cuts; or the
            layers or the module themselves, which every worker copies; or what loads a whole model (`ModelSource`).
            A function is called with torch's generator seeded.
        data: rows by number: `Tokens`, or any other map-style dataset; or `DataFiles`; or what has
            `batch(iteration)` and chooses by itself.
        loss: maps (output, target) of a micro-batch to its mean, a scalar, or to (sum, count); None: the model's own,
            or cross entropy where targets are whole numbers, else the mean squared error.
        microbatch_size: samples in a micro-batch; None: as in the profile behind the plan.
        sequence_length: tokens in a sample; None: as in that profile.
        optimizer: makes the optimizer of the parameters that it is given; None: AdamW with torch's defaults.
        schedule: maps the number of steps taken to the factor of the learning rates.
        clip_norm: the largest norm of the gradients of all parameters together; None: they are not clipped.
        precision: of parameters and computation; None: as in the profile behind the plan, which in 16 bits is one with
            float32 masters.
        evaluate: an `Evaluation`: on what the model is evaluated, and when; None: it is not.
        collate: makes (inputs, targets), or (inputs, targets, kwargs), of the rows of a micro-batch; None: rows are
            such pairs, and torch's default_collate stacks them.
        loader_workers: processes of each worker that read rows ahead; 0: a thread does.
        cut: names of the modules that are layers, such as `model.layers.*`.
        seed: of all randomness.
        buffers: which of the peers' buffers, such as BatchNorm's running means, are saved and handed on.
        tensor_parallel: how several GPUs share a layer's matrices, {name: "colwise" | "rowwise" | "vocabulary"}: for
            plans of several GPUs a worker, and `rtk profile --tp`; None: the model's own, where it says so.
        shard_optimizer: peers share the optimizer's state, each part of it on two of them; the optimizer must treat
            each number by itself, as AdamW does. None: where the plan counts on it, or it saves memory, which is with
            three peers or more, and the optimizer is such a one.

    Raises:
        InvalidInputError: an argument cannot be what it is.
    """

    def __init__(
        self,
        *,
        model: Any,
        data: Any,
        loss: "Loss | None" = None,
        microbatch_size: int | None = None,
        sequence_length: int | None = None,
        optimizer: "OptimizerFactory | None" = None,
        schedule: Callable[..., Any] | None = None,
        clip_norm: float | None = None,
        precision: Precision | None = None,
        evaluate: Evaluation | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        loader_workers: int = 0,
        cut: str | None = None,
        seed: int = 0,
        buffers: SharedBuffers = "lowest",
        tensor_parallel: "TensorParallelPlan | None" = None,
        shard_optimizer: bool | None = None,
    ) -> None:
        for name, function in (("loss", loss), ("optimizer", optimizer), ("schedule", schedule), ("collate", collate)):
            if function is not None and not callable(function):
                raise _wrong(name, f"{with_article(type(function).__name__)} cannot be called", "give a function")
        sizes = ("microbatch_size", microbatch_size, 1), ("sequence_length", sequence_length, 1)
        for name, size, least in (*sizes, ("loader_workers", loader_workers, 0)):
            if size is not None and not (isinstance(size, int) and size >= least):
                raise _wrong(name, f"{size!r} is no size", f"give a whole number from {least} on")
        if not isinstance(seed, int) or seed < 0:
            raise _wrong("seed", f"{seed!r} is no seed", "give a whole number from 0 on")
        is_norm = isinstance(clip_norm, int | float) and not isinstance(clip_norm, bool)
        if clip_norm is not None and not (is_norm and clip_norm > 0 and isfinite(clip_norm)):
            raise _wrong("clip_norm", f"{clip_norm!r} is no norm", "give a number above 0, or None for no clipping")
        if precision not in (None, *get_args(Precision)):
            raise _wrong("precision", f"{precision!r} is none", f"take one of {', '.join(get_args(Precision))}")
        if buffers not in get_args(SharedBuffers):
            raise _wrong("buffers", f"{buffers!r} is no rule", f"take one of {', '.join(get_args(SharedBuffers))}")
        if evaluate is not None and not isinstance(evaluate, Evaluation):
            raise _wrong("evaluate", f"{with_article(type(evaluate).__name__)} is no Evaluation", "give one")
        self.model, self.data, self.loss = model, data, loss
        self.microbatch_size, self.sequence_length = microbatch_size, sequence_length
        self.optimizer, self.schedule, self.clip_norm = optimizer, schedule, clip_norm
        self.precision, self.evaluate, self.collate = precision, evaluate, collate
        self.cut, self.seed, self.buffers, self.loader_workers = cut, seed, buffers, loader_workers
        self.tensor_parallel = _table(tensor_parallel)
        self.shard_optimizer = shard_optimizer
        self.listeners: list[tuple[tuple[str, ...], Listener]] = []
        self._alone: tuple[str, PlanRunner, Provider] | None = None
        self.script: str | None = None
        self._files: dict[str, str] = {}
        self._asked: TrainingConfig | None = None

    @classmethod
    def of(cls, asked: TrainingConfig) -> "Training":
        """The training that options ask for: that of a script, or of a named model.

        Raises:
            InvalidInputError: the script cannot be executed, or holds no training, or several.
        """
        from .runners.torch.named import schedule_of

        if asked.script is not None:
            return load_script(asked.script)

        training = cls(
            model=NamedModel(asked.model, asked.weights, asked.random_weights),
            data=DataFiles(tuple(asked.data or ()), asked.data_dtype, asked.tokenizer),
            microbatch_size=asked.microbatch_size,
            sequence_length=asked.sequence_length,
            schedule=schedule_of(asked),
            clip_norm=asked.clip_norm,
            precision=asked.precision,
            seed=asked.seed,
            evaluate=_evaluation_of(asked),
            shard_optimizer=asked.shard_optimizer,
        )
        training._asked = asked
        return training

    def on(self, *events: str) -> Callable[[Listener], Listener]:
        """Decorate a function that is told of events, as dicts with the fields of docs/events.md.

        It is called beside the coordinator, in a thread of its own: it may take its time, and what it raises is said
        once, and stops nothing.

        Args:
            events: their names, such as "iteration", "evaluation" or "failure"; none: all.

        Raises:
            InvalidInputError: there is no such event.
        """
        from .runners.resilience.listeners import require_events

        require_events(events)

        def listening(listener: Listener) -> Listener:
            self.listeners.append((events, listener))
            return listener

        return listening

    def logs(self) -> "list[LogWriter]":
        """What tells the listeners of `on`, beside a coordinator; nothing where there are none."""
        from .runners.resilience.listeners import Listeners

        return [Listeners(self.listeners)] if self.listeners else []

    def run(self) -> NoReturn:
        """At the end of a script, under `if __name__ == "__main__"`: be `rtk run --script` of it, in this process.

        The script's own arguments are those of `rtk run`; the plan may also come from RTK_PLAN, the coordinator from
        RTK_COORDINATOR and RTK_SECRET, the place from RTK_WORKER, RANK or SLURM_PROCID.

        Raises:
            InvalidInputError: it is called while rtk executes the script, or by what is no script.
        """
        if _executing:
            raise InvalidInputError(
                "the script calls run() when it is imported",
                fix='write `if __name__ == "__main__":` before it',
            )
        main = sys.modules["__main__"]
        script = getattr(main, "__file__", None)
        if script is None:
            raise InvalidInputError(
                "run() executes a script, and this is none",
                where="Training.run",
                fix="write it into a file; or train step by step: training.step(plan, iterations)",
            )
        if not any(one is self for one in vars(main).values()):
            raise InvalidInputError(
                "run() is for the training that the script itself holds",
                where=script,
                fix="name it at the script's top level: training = Training(…)",
            )
        sys.stdout.flush()
        sys.stderr.flush()
        command = [sys.executable, "-m", "rtk.cli.main", "run", "--script", script, *sys.argv[1:]]
        os.execv(sys.executable, command)

    def step(self, plan: "Plan | str", iterations: int = 1) -> list[float | None]:
        """Train in this process alone, as a debugger or a notebook wants it: all micro-batches, one after the other.

        Numbers are those of a run of the plan, but for the order in which floating-point sums are taken. Called again
        it goes on with the next iteration. Nothing is evaluated, saved, or told to listeners.

        Args:
            plan: or its file; of its stages and pipelines only the number of micro-batches counts.
            iterations: how many.

        Returns:
            The loss of each; None where it is not finite.

        Raises:
            InvalidInputError: as of `load`.
        """
        from .schemas.documents import digest, read_document
        from .schemas.plan import Plan

        whole = read_document(plan, Plan) if isinstance(plan, str) else plan
        if self._alone is None or self._alone[0] != digest(whole):
            self._alone = digest(whole), *self._runner_alone(whole)
        _, runner, data = self._alone
        return [runner.step(data.batch(runner.iteration)).loss for _ in range(iterations)]

    def _runner_alone(self, plan: "Plan") -> "tuple[PlanRunner, Provider]":
        """What executes a plan's micro-batches in one stage, and gives them."""
        from torch._C._distributed_c10d import HashStore

        from .planners.pipeline import plan_pipeline
        from .planners.shape import Shape
        from .schemas.profile import Layer, LayerCost, Profile

        size, length = sizes_of(plan)
        layers = (Layer((LayerCost(1.0, 1.0, 1.0),)),) * plan.templates[0].stages[-1].layers[1]
        form = form_of(plan.planner.options).options()
        profile = Profile(layers, model=form, microbatch_size=size, sequence_length=length)
        alone = plan_pipeline(profile, Shape(1, 1, plan.total_microbatches()), "gpipe")
        return self.runner(alone, rank=0, world_size=1, store=HashStore())

    def runner(
        self,
        plan: "Plan | str",
        *,
        rank: int | None = None,
        world_size: int | None = None,
        store: "Store | None" = None,
        device: "torch.device | str" = "cpu",
        paced: bool = False,
    ) -> "tuple[PlanRunner, Provider]":
        """What executes a plan in a torchrun script of yours, also one of several GPUs a worker, and gives the data.

        Nothing survives a failure there, as it does under `rtk run`. All else of the training is the same.

        Args:
            plan: or its file.
            rank, world_size, store, device, paced: as of `PlanRunner`.

        Returns:
            The runner, and the data: `runner.step(data.batch(runner.iteration))` is an iteration.

        Raises:
            InvalidInputError: as of `load_alone` and `PlanRunner`.
        """
        from .runners.torch.runner import PlanRunner
        from .schemas.documents import read_document
        from .schemas.plan import Plan

        whole = read_document(plan, Plan) if isinstance(plan, str) else plan
        size, length = sizes_of(whole)
        model, data = self.load_alone(size, length, self.form(whole), whole.total_microbatches())
        data.start()  # there are no sockets yet
        runner = PlanRunner(
            whole,
            model.layers,
            model.loss if self.loss is None else self.loss,
            self._optimizer_for(model.layers),
            rank=rank,
            world_size=world_size,
            store=store,
            device=device,
            paced=paced,
            seed=self.seed,
            clip_norm=self.clip_norm,
            precision=self.precision_like(form_of(whole.planner.options)),
            schedule=self.schedule,
            buffers=self.buffers,
            fill=model.fill,
            cuts=_cuts_of(model),
            shard_optimizer=asked_to_shard(whole, self.shard_optimizer),
        )
        return runner, data

    def settings(self) -> dict[str, Any]:
        """What must be the same for all workers: who differs is refused, and told in what."""
        if self._asked is not None:
            return {**self._asked.settings(), **self.model.settings()}
        own = ("microbatch_size", "sequence_length", "clip_norm", "precision", "cut", "seed", "buffers")
        told = {name: getattr(self, name) for name in own}
        if isinstance(self.model, ModelSource):
            told |= self.model.settings()
        return {**told, **self._files}

    def form(self, plan: "Plan") -> ModelForm:
        """In which form the layers are: as in the profile behind a plan, but for what the training says itself."""
        return self.form_like(form_of(plan.planner.options))

    def form_like(self, found: ModelForm) -> ModelForm:
        """A form that is asked for, but for what the training says itself."""
        dtype = found.dtype if self.precision is None else PARAMETERS[self.precision]
        return ModelForm(self.cut or found.cut, dtype, found.checkpointing)

    def precision_like(self, found: ModelForm) -> Precision:
        """The precision of layers of a form, but for what the training says itself."""
        return self.precision or PRECISION_OF[found.dtype]

    def load(self, plan: "Plan", provider: "Provider | None" = None) -> "tuple[Model, Provider]":
        """The model and the data, checked against a plan and each other.

        Args:
            plan: valid.
            provider: the data, where they are there already.

        Raises:
            InvalidInputError: they do not fit.
        """
        from .runners.torch.layer_shares import check_cuts
        from .runners.torch.runner import check_model

        degree = degree_of(plan)
        size, length = sizes_of(plan)
        model, data = self.load_alone(size, length, self.form(plan), plan.total_microbatches(), provider)
        check_model(plan, model.layers)
        if degree > 1:
            if model.tensor_parallel is None:
                raise _nothing_to_cut_by(self.model, degree)
            check_cuts(plan, model.layers, _cuts_of(model))
        return model, data

    def load_alone(
        self,
        microbatch_size: int | None,
        sequence_length: int | None,
        form: ModelForm,
        microbatches: int,
        provider: "Provider | None" = None,
    ) -> "tuple[Model, Provider]":
        """The model and the data without a plan.

        Args:
            microbatch_size, sequence_length: where the training does not say them.
            form: in which the layers are to be.
            microbatches: of an iteration.
            provider: the data, where they are there already.

        Raises:
            InvalidInputError: they do not work, or do not fit each other.
        """
        from .profilers.models.load import model_of, vocabulary_of
        from .profilers.models.model import DEFAULT_MICROBATCH_SIZE, DEFAULT_SEQUENCE_LENGTH, UserModel

        size = self.microbatch_size or microbatch_size
        length = self.sequence_length or getattr(self.data, "sequence_length", None) or sequence_length
        if isinstance(self.model, ModelSource):
            model = self.model.load(size, length, self.seed, form)
            model = model if self.tensor_parallel is None else replace(model, tensor_parallel=self.tensor_parallel)
            sizes = model.microbatch_size, microbatches, model.sequence_length
            data = provider or self._provider(*sizes, model.vocabulary)
            _require_length(data, model)
            return model, data
        name = f"{self.script or 'Training'}:{getattr(self.model, '__name__', 'model')}"
        modules = self._modules(name, form)
        vocabulary = vocabulary_of(modules)
        length = length or (DEFAULT_SEQUENCE_LENGTH if vocabulary is not None else None)
        size = size or DEFAULT_MICROBATCH_SIZE
        data = provider or self._provider(size, microbatches, length, vocabulary)

        def example(number: int) -> tuple[Any, ...]:
            return data.batch(number)[0]

        user = UserModel(modules, None, self.loss, self.tensor_parallel)
        return model_of(name, user, size, length, form, example), data

    def _provider(
        self, size: int, microbatches: int, length: int | None, vocabulary: int | None, held_out: Any = None
    ) -> "Provider":
        """What gives the micro-batches of training, or of held-out data."""
        from .runners.torch.data.feed import RowFeed
        from .runners.torch.data.opening import are_bytes, open_provider
        from .runners.torch.data.provider import HasBatches, OwnBatches, Provider

        data, is_trained = (self.data, True) if held_out is None else (held_out, False)
        if isinstance(data, Provider):
            return data
        if isinstance(data, HasBatches):
            return OwnBatches(data, size * (length or 0))
        if not isinstance(data, DataFiles):
            return RowFeed(
                data,
                size,
                microbatches,
                seed=self.seed,
                shuffle=is_trained,
                collate=self.collate,
                vocabulary=vocabulary,
                loader_workers=self.loader_workers if is_trained else 0,
            )
        words = vocabulary or (0 if isinstance(self.model, ModelSource) else BYTES)
        if are_bytes(data.paths, data.dtype, data.tokenizer) and words < BYTES:
            raise InvalidInputError(
                f"the model does not read bytes: its vocabulary must be {BYTES} or more",
                where="--model" if isinstance(self.model, NamedModel) else "Training(data=…)",
                fix="give tokens (--data of .bin, .npy or .idx), or --tokenizer with its text",
            )
        if length is None:
            raise InvalidInputError(
                "the model does not read tokens: its first layer is no embedding, and nothing says how many a sample "
                "has",
                where="Training(sequence_length=…)",
                fix="give a sequence length, or other data",
            )
        return open_provider(
            [*data.paths],
            size,
            microbatches,
            length,
            seed=self.seed,
            dtype=data.dtype,
            tokenizer=data.tokenizer,
            vocabulary=vocabulary,
            shuffle=is_trained,
        )

    def held_out(self, model: "Model", plan: "Plan") -> "tuple[HeldOut | None, dict[str, Any]]":
        """What is evaluated on, and what must be the same of it for all workers."""
        from .runners.torch.evaluation import HeldOut

        asked = self.evaluate
        if asked is None:
            return None, {}
        count = asked.microbatches or plan.total_microbatches()
        sizes = model.microbatch_size, count, model.sequence_length
        provider = self._provider(*sizes, model.vocabulary, asked.data)
        told = {f"evaluate: {name}": one for name, one in provider.fingerprint().items()}
        told |= {f"evaluate: {name}": getattr(asked, name) for name in ("every", "microbatches", "at_start")}
        return HeldOut(provider.batch(0), count, asked.every, asked.at_start), told

    def _modules(self, name: str, form: ModelForm) -> "list[nn.Module]":
        """What the user has made: the layers, or the module that is to be cut alone."""
        from torch import nn

        from .profilers.models.model import failed_in_file, layers_of, seeded

        made = self.model
        if isinstance(made, nn.Module) or not callable(made):
            made = copy.deepcopy(made)
        else:
            try:
                with seeded(self.seed):
                    made = made()
            except (Exception, SystemExit) as error:
                raise failed_in_file("the model cannot be made", error, self.script or "Training") from error
        if form.cut is not None and not isinstance(made, nn.Module):
            raise _wrong("cut", f"{with_article(type(made).__name__)} has no modules to cut", "leave cut away")
        return layers_of(made, name) if form.cut is None else [made]

    def explain(self, error: Exception) -> InvalidInputError | None:
        """What is wrong with the training where its own code has raised an error; None where that may be the machine.

        Args:
            error: that a worker has met.
        """
        import torch

        from .profilers.models.model import failed_in_file, line_in_file

        file = self.script or (self.model.name.rpartition(":")[0] if isinstance(self.model, NamedModel) else "")
        if isinstance(error, RtkError | OSError | MemoryError | torch.AcceleratorError | torch.OutOfMemoryError):
            return None
        if "backward through the graph a second time" in str(error):
            return InvalidInputError(
                "a layer or the loss calls backward(), and the passes backward are the plan's",
                where=line_in_file(error, file) or file,
                fix="return the loss, and leave backward(), step() and zero_grad() to rtk",
            )
        return failed_in_file("training fails", error, file) if file and line_in_file(error, file) else None

    def task(
        self,
        plan: "Plan",
        name: str,
        *,
        secret: bytes = b"",
        device: "torch.device | str" = "cpu",
        hostname: str = "127.0.0.1",
        others: Sequence[str] = (),
        paced: bool = False,
        transport: Sending = "auto",
        log_memory_bytes: float | None = None,
    ) -> "Task":
        """What a worker of a plan trains.

        Args:
            plan: valid.
            name: the worker's, `k/i`, or of one on several GPUs its rank's, `k/i:r`.
            secret, device, hostname, others, paced, transport, log_memory_bytes: as of `Task`.

        Raises:
            InvalidInputError: the model or the data do not fit the plan.
        """
        from .runners.torch.optimizers import shards_optimizer
        from .runners.torch.task import Task

        model, data = self.load(plan)
        evaluation, evaluated_on = self.held_out(model, plan)
        data.start()  # there are no sockets yet
        made = [model.layers]
        factory = self._optimizer_for(model.layers)
        asked = asked_to_shard(plan, self.shard_optimizer)
        is_sharded = shards_optimizer(asked, fewest_holders(plan), factory, model.layers)
        return Task(
            name=worker_of(name),
            share=rank_of(name),
            cuts=_cuts_of(model) if degree_of(plan) > 1 else None,
            plan=plan,
            make_layers=lambda: made.pop() if made else self.load(plan, data)[0].layers,
            loss=model.loss if self.loss is None else self.loss,
            optimizer=factory,
            batch=data,
            settings={
                **self.settings(),
                **({"shard_optimizer": True} if is_sharded else {}),
                "dataset": data.fingerprint(),
                **evaluated_on,
                "paced": paced,
                "transport": transport,
            },
            secret=secret,
            device=device,
            hostname=hostname,
            others=tuple(others),
            paced=paced,
            seed=self.seed,
            transport=transport,
            clip_norm=self.clip_norm,
            evaluation=evaluation,
            precision=self.precision_like(form_of(plan.planner.options)),
            schedule=self.schedule,
            buffers=self.buffers,
            fill=model.fill,
            names=model.names,
            log_memory_bytes=log_memory_bytes,
            shard_optimizer=is_sharded,
        )

    def _optimizer_for(self, layers: "Sequence[nn.Module]") -> "OptimizerFactory":
        import torch

        from .runners.torch.named import optimizer_of

        usual: OptimizerFactory = torch.optim.AdamW if self._asked is None else optimizer_of(self._asked, layers)
        return self.optimizer or usual


def _require_length(data: "Provider", model: "Model") -> None:
    """Raise InvalidInputError where rows of tokens are of another length than that for which a model was made."""
    inputs = data.batch(0)[0][0]
    shape: tuple[int, ...] = tuple(getattr(inputs, "shape", ()))
    if model.vocabulary is not None and len(shape) == 2 and shape[1] != model.sequence_length:
        raise InvalidInputError(
            f"the data's rows have {shape[1]} tokens, the model is made for {model.sequence_length}",
            where="Training(sequence_length=…)",
            fix=f"give sequence_length={shape[1]}, or rows of {model.sequence_length}",
        )


def _evaluation_of(asked: TrainingConfig) -> Evaluation | None:
    """The evaluation that options ask for."""
    if not asked.eval_data:
        return None
    data = DataFiles(tuple(asked.eval_data), asked.data_dtype, asked.tokenizer)
    return Evaluation(data, asked.eval_every or EVAL_EVERY, asked.eval_microbatches)


def load_to_measure(asked: "Measuring") -> "Model":
    """The model of a script that is to be profiled, with all its values; its micro-batches are the data's.

    Args:
        asked: names the script; sizes and form are what the training leaves open.

    Raises:
        InvalidInputError: as of `load_script` and `Training.load_alone`.
    """
    import torch

    from .runners.torch.precision import parameter_type

    training = load_script(asked.name)
    form = training.form_like(asked.form)
    precision = training.precision_like(form)
    dtype = parameter_type(precision)
    model, data = training.load_alone(asked.microbatch_size, asked.sequence_length, form, 1)
    if model.fill is not None:
        model.fill(model.layers, (0, len(model.layers)))

    def example(seed: int) -> "tuple[torch.Tensor, torch.Tensor]":
        inputs, targets, *_ = data.batch(seed)[0]
        if dtype is not None and isinstance(inputs, torch.Tensor) and inputs.is_floating_point():
            inputs = inputs.to(dtype)  # as a run's first stage does
        return inputs, targets

    return replace(model, name=asked.name, example=example, precision=precision)


def _table(given: "TensorParallelPlan | None") -> "TensorParallelPlan | None":
    """A table of cuts; raises InvalidInputError unless it is one."""
    if given is None or (isinstance(given, dict) and {*given.values()} <= {"colwise", "rowwise", "vocabulary"}):
        return given
    ways = 'write {name: "colwise", "rowwise" or "vocabulary"}'
    raise _wrong("tensor_parallel", f"{given!r} is no tensor-parallel plan", ways)


def _cuts_of(model: "Model") -> "ModelCuts | None":
    """How a model's layers are cut; None where nobody has said."""
    from .profilers.models.joint import ModelCuts

    return None if model.tensor_parallel is None else ModelCuts(model.tensor_parallel)


def _nothing_to_cut_by(model: Any, degree: int) -> InvalidInputError:
    """The refusal of a plan of several GPUs a worker for a model of which nobody says how it is shared by them."""
    is_named = isinstance(model, NamedModel)
    table = 'tensor_parallel = {name: "colwise", "rowwise" or "vocabulary"}'
    return InvalidInputError(
        f"a worker of the plan is {degree} GPUs, and nothing says how they share the model's layers",
        where=f"--model {model.name}" if isinstance(model, NamedModel) else "Training(tensor_parallel=…)",
        fix=f"write {table} into the model's file, or plan with --tensor-parallel 1"
        if is_named
        else f"give {table.replace(' = ', '=')}, or plan with --tensor-parallel 1",
    )


def _wrong(name: str, what: str, fix: str) -> InvalidInputError:
    return InvalidInputError(what, where=f"Training({name}=…)", fix=fix)


# A script that holds a training.


_executing: list[str] = []  # the script under way


def load_script(path: str) -> Training:
    """The training that a script declares.

    The script is executed under its own name, not as `__main__`, with its folder first where modules are looked for and
    an empty command line, and with torch's generator seeded, so that layers made outside of a function are equal for
    all workers. Relative paths in it are from the current folder, as when Python runs it.

    Args:
        path: of the script.

    Returns:
        The training, which knows the digests of the script and of the modules beside it that were imported.

    Raises:
        InvalidInputError: there is no such script, it cannot be executed, or it holds no training, or several.
    """
    file = Path(path)
    try:
        source = file.read_bytes()
    except OSError as error:
        raise InvalidInputError(
            f"the script cannot be read: {error.strerror}", where=path, fix="check the path"
        ) from None
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = _execute(file, source)
    found = {id(one): (name, one) for name, one in vars(module).items() if isinstance(one, Training)}
    if len(found) != 1:
        names = ", ".join(name for name, _ in found.values())
        raise InvalidInputError(
            f"the script holds {f'{len(found)} trainings: {names}' if found else 'no Training'}",
            where=path,
            fix="have one `training = Training(…)` at its top level" if not found else "leave one of them",
        )
    (_, training), *_ = found.values()
    training.script = path
    training._files = {file.name: hashlib.sha256(source).hexdigest(), **_digests_beside(folder, module)}
    return training


def _execute(file: Path, source: bytes) -> ModuleType:
    """Execute a script as a module, which is found under its name, as what is unpickled needs it."""
    from .profilers.models.model import failed_in_file, line_in_file, seeded

    known = sys.modules.get(file.stem)
    is_free = known is None or getattr(known, "__file__", None) == str(file.resolve())
    is_name = file.stem.isidentifier() and file.stem not in sys.stdlib_module_names
    name = file.stem if is_free and is_name else f"rtk_script_{file.stem}"
    spec = importlib.util.spec_from_loader(name, loader=None, origin=str(file.resolve()))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(file.resolve())
    sys.modules[name] = module
    line, sys.argv = sys.argv, [str(file)]
    _executing.append(str(file))
    try:
        with seeded(0), without_groups():
            exec(compile(source, str(file), "exec"), vars(module))
    except RtkError as error:
        error.where = ", ".join(filter(None, (line_in_file(error, str(file)), error.where)))
        raise
    except (Exception, SystemExit) as error:
        raise failed_in_file("the script cannot be executed", error, str(file)) from error
    finally:
        _executing.pop()
        sys.argv = line
    return module


def _digests_beside(folder: str, script: ModuleType) -> dict[str, str]:
    """The digests of modules beside a script that are imported, by their paths there."""
    found = {}
    for name in sorted({*sys.modules} - {script.__name__}):
        if name.partition(".")[0] == __package__.partition(".")[0]:  # a script may lie beside rtk itself
            continue
        place = Path(folder, *name.split("."))
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if getattr(sys.modules[name], "__file__", None) == str(path):
                found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@contextmanager
def without_groups() -> Iterator[None]:
    """In here `torch.distributed.init_process_group` is refused: it would wait for ever for workers that fail."""
    import torch.distributed

    def refuse(*_: Any, **__: Any) -> None:
        raise InvalidInputError(
            "the script calls torch.distributed.init_process_group, and rtk connects the workers itself",
            fix="leave it away: who trains what is the plan's, and groups change when workers fail",
        )

    usual = torch.distributed.init_process_group
    torch.distributed.init_process_group = refuse
    try:
        yield
    finally:
        torch.distributed.init_process_group = usual
