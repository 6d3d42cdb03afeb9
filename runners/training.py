"""What a job of real processes is asked to be: what is trained, and how the job is led."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from ..schemas.errors import InvalidInputError
from ..schemas.plan import Plan
from ..schemas.profile import AS_USUAL, DataType, ModelForm, form_of
from ..schemas.quantities import DURATION, parse_number
from ..schemas.resumption import holders_by_layer
from .processes import arguments_of
from .program import Sending
from .ranks import degree_of, has_unlike_degrees

# What a worker finds in its environment: the addresses of coordinators, the job's secret, and its first iteration.
COORDINATOR, SECRET, NOT_BEFORE = "RTK_COORDINATOR", "RTK_SECRET", "RTK_NOT_BEFORE"


OptimizerName = Literal["adamw", "sgd", "muon"]
EVAL_EVERY = 100
WSD_FALL = 0.2  # the share of all iterations over which it falls at the end
RateSchedule = Literal["constant", "linear", "cosine", "wsd"]
Precision = Literal["fp32", "bf16", "bf16-autocast", "bf16-master", "fp16-master"]
# What is trained where nobody says it, by the numbers of the profile behind the plan: in 16 bits, with masters, as
# profiles count them.
PRECISION_OF: dict[DataType, Precision] = {"fp32": "fp32", "bf16": "bf16-master", "fp16": "fp16-master"}
# What peers see differently: the lowest live peer's values are taken, or the mean over all of them.
SharedBuffers = Literal["lowest", "mean"]

# What is always said of a training when workers are compared; the rest only where it is not as usual, so that the
# workers, logs and checkpoints of earlier versions, which did not know it, are those of the same job.
ALWAYS_COMPARED = frozenset(
    {"model", "data", "learning_rate", "microbatch_size", "sequence_length", "paced", "transport", "seed"}
)
# What is each worker's own affair, or compared by itself.
NEVER_COMPARED = frozenset({"threads", "log_memory", "form", "script", "shard_optimizer"})

# What a script does not say: how the workers of a machine go about it.
BESIDE_SCRIPT = frozenset({"threads", "paced", "transport", "log_memory"})


@dataclass(frozen=True)
class TrainingConfig:
    """What is trained how; the same for all workers but for `threads` and `log_memory`.

    All workers read the form out of the plan.

    Attributes:
        model: a preset, "file.py:factory", or a config.json; empty where a script says what is trained.
        data: files of text or of tokens, or a folder that `datasets` has saved; none: Python's own library.
        learning_rate: of the optimizer.
        microbatch_size: samples a micro-batch; None: the profile's.
        sequence_length: tokens a sample; None: the profile's.
        threads: of torch, in each worker.
        paced: every operation lasts what the plan says: more workers than cores.
        transport: how messages are sent.
        log_memory: bytes of an iteration's messages that a worker keeps, lest they be computed again when others die;
            None: of all; 0: it keeps nothing of an iteration, which is then done again.
        seed: of all randomness.
        form: of the model behind the plan.
        data_dtype: of the tokens of a raw file, such as "uint16"; None: the file says it.
        tokenizer: makes tokens of text: a folder or file of Hugging Face's; None: the bytes are the tokens.
        eval_data: as `data`, for evaluations; None: there are none.
        eval_every: evaluate before each iteration that is a multiple of this, and at the end; None: `EVAL_EVERY`.
        eval_microbatches: of an evaluation; None: as many as an iteration has.
        optimizer: which.
        betas: of AdamW, such as "0.9,0.95"; None: torch's.
        weight_decay: of parameters of two dimensions and more; None: torch's, of all parameters.
        decay_all: the weight decay is of all parameters.
        clip_norm: the norm of all gradients together is no greater; None: as it is.
        lr_schedule: how the learning rate goes after the warm-up.
        lr_steps: iterations over which it goes, the warm-up included; None: not known, and only a constant one asks
            for nothing more.
        warmup: iterations in which it rises from 0.
        min_lr_ratio: what it ends at, as a share of `learning_rate`.
        precision: of parameters and computing; None: as the plan's profile has it.
        weights: a file or folder of safetensors to begin with; None: those beside the model, if there are any.
        random_weights: begin with random ones, whatever there is.
        shard_optimizer: peers share the optimizer's state; None: where the plan counts on it, or it is worth while.
        script: a Python file that holds a `Training` (training.py); then all but `BESIDE_SCRIPT` stands there.
    """

    model: str = ""
    data: Sequence[str] | None = None
    learning_rate: float = 1e-3
    microbatch_size: int | None = None
    sequence_length: int | None = None
    threads: int = 1
    paced: bool = False
    transport: Sending = "auto"
    log_memory: float | None = None
    seed: int = 0
    form: ModelForm = AS_USUAL
    data_dtype: str | None = None
    tokenizer: str | None = None
    eval_data: Sequence[str] | None = None
    eval_every: int | None = None
    eval_microbatches: int | None = None
    optimizer: OptimizerName = "adamw"
    betas: str | None = None
    weight_decay: float | None = None
    decay_all: bool = False
    clip_norm: float | None = None
    lr_schedule: RateSchedule = "constant"
    lr_steps: int | None = None
    warmup: int = 0
    min_lr_ratio: float = 0.0
    precision: Precision | None = None
    weights: str | None = None
    random_weights: bool = False
    shard_optimizer: bool | None = None
    script: str | None = None

    @property
    def is_scheduled(self) -> bool:
        """Whether the learning rate is not always the same."""
        return self.lr_schedule != "constant" or self.warmup > 0

    @property
    def lr_fall(self) -> int:
        """The iterations at the end over which the learning rate of wsd falls."""
        return max(1, round(WSD_FALL * (self.lr_steps or 0)))

    def arguments(self) -> list[str]:
        """The options by which another process trains the same."""
        how = {
            "--threads": self.threads,
            "--transport": self.transport,
            "--log-memory": self.log_memory,
            "--paced": self.paced,
        }
        if self.script is not None:
            return arguments_of({"--script": self.script, **how})
        return arguments_of(
            {
                "--model": self.model,
                "--data": tuple(self.data or ()),
                "--data-dtype": self.data_dtype,
                "--tokenizer": self.tokenizer,
                "--eval-data": tuple(self.eval_data or ()),
                "--eval-every": self.eval_every,
                "--eval-microbatches": self.eval_microbatches,
                "--optimizer": self.optimizer,
                "--lr": self.learning_rate,
                "--betas": self.betas,
                "--weight-decay": self.weight_decay,
                "--decay-all": self.decay_all,
                "--clip-norm": self.clip_norm,
                "--lr-schedule": self.lr_schedule,
                "--lr-steps": self.lr_steps,
                "--warmup": self.warmup,
                "--min-lr-ratio": self.min_lr_ratio,
                "--precision": self.precision,
                "--weights": self.weights,
                "--random-weights": self.random_weights,
                "--shard-optimizer": self.shard_optimizer,
                "--no-shard-optimizer": self.shard_optimizer is False,
                "--microbatch-size": self.microbatch_size,
                "--sequence-length": self.sequence_length,
                "--seed": self.seed,
                **how,
            }
        )

    def settings(self) -> dict[str, Any]:
        """What the coordinator compares between workers, where no script says what is trained."""
        usual = {one.name: one.default for one in fields(self)}
        told = {
            name: value
            for name, value in asdict(self).items()
            if name not in NEVER_COMPARED and (name in ALWAYS_COMPARED or value != usual[name])
        }
        evaluated = {"eval_data": list(self.eval_data)} if self.eval_data else {}
        return told | {"data": list(self.data or ())} | evaluated | self.form.options()

    def check(self) -> None:
        """Refuse what does not go together.

        Raises:
            InvalidInputError: with the option that is wrong.
        """
        self._check_numbers()
        self._check_schedule()
        for name, value in (("--eval-every", self.eval_every), ("--eval-microbatches", self.eval_microbatches)):
            if value is not None and not self.eval_data:
                raise InvalidInputError(
                    "there is nothing to evaluate on", where=name, fix="give --eval-data as well, or leave it out"
                )
        if self.betas is not None and self.optimizer == "sgd":
            raise InvalidInputError("sgd has no betas", where="--betas", fix="leave it out, or take --optimizer adamw")
        if self.decay_all and self.weight_decay is None:
            raise InvalidInputError(
                "nothing says how much", where="--decay-all", fix="give --weight-decay as well, or leave it out"
            )
        if self.random_weights and self.weights is not None:
            raise InvalidInputError(
                f"weights of {self.weights} and random ones are both asked for",
                where="--random-weights",
                fix="leave one of the two out",
            )

    def _check_numbers(self) -> None:
        for name, value in (("--lr", self.learning_rate), ("--weight-decay", self.weight_decay)):
            if value is not None and not 0 <= value < math.inf:
                raise InvalidInputError(f"{value:g} is no such number", where=name, fix="take one of 0 or more")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise InvalidInputError(
                f"gradients cannot be clipped to a norm of {self.clip_norm:g}",
                where="--clip-norm",
                fix="take a number above 0, usually 1; for no clipping leave it out",
            )
        if self.betas is not None:
            parse_betas(self.betas)
        if not 0 <= self.min_lr_ratio <= 1:
            raise InvalidInputError(
                f"{self.min_lr_ratio:g} is no share",
                where="--min-lr-ratio",
                fix="take a number from 0 to 1, such as 0.1",
            )

    def _check_schedule(self) -> None:
        if self.lr_schedule == "constant" and self.min_lr_ratio:
            raise InvalidInputError(
                "a constant learning rate does not end at another one",
                where="--min-lr-ratio",
                fix="take --lr-schedule cosine, linear or wsd, or leave it out",
            )
        if self.lr_schedule != "constant" and self.lr_steps is None:
            raise InvalidInputError(
                f"nothing says over how many iterations the learning rate is {self.lr_schedule}",
                where="--lr-schedule",
                fix="give --lr-steps N, the same to all workers: the coordinator's --iterations, usually",
            )
        falls = self.lr_fall if self.lr_schedule == "wsd" else 0
        if self.lr_steps is not None and self.warmup and self.warmup >= self.lr_steps - falls:
            raise InvalidInputError(
                f"a warm-up of {self.warmup} iterations is not over "
                + (f"before the last {falls} of {self.lr_steps}" if falls else f"after all {self.lr_steps}"),
                where="--warmup",
                fix="take fewer, usually 1 to 10 % of them",
            )


def parse_betas(text: str) -> tuple[float, float]:
    """`0.9,0.95`: how much of the moments before a step AdamW keeps.

    Raises:
        InvalidInputError: they are not two numbers from 0 to below 1.
    """
    fix = "take two numbers from 0 to below 1, such as 0.9,0.95"
    found = [parse_number("--betas", one, fix) for one in text.split(",")]
    if len(found) != 2 or not all(0 <= one < 1 for one in found):
        raise InvalidInputError(f"{text!r} are no betas", where="--betas", fix=fix)
    return found[0], found[1]


def training_of(plan: Plan, asked: TrainingConfig, iterations: int | None = None) -> TrainingConfig:
    """The training that is asked for; sizes that it leaves open, and the form, are of the profile behind the plan.

    Args:
        plan: valid.
        asked: what is asked for.
        iterations: of the job; None: its coordinator knows.

    Raises:
        InvalidInputError: the plan's options ask for a form that there is not, or options do not go together, or the
            stages of one worker are on unlike numbers of GPUs.
    """
    size, length = sizes_of(plan)
    degree_of(plan)  # refused before anything is loaded
    training = replace(
        asked,
        data=tuple(asked.data or ()),
        microbatch_size=asked.microbatch_size or size,
        sequence_length=asked.sequence_length or length,
        lr_steps=iterations if asked.lr_steps is None and asked.is_scheduled else asked.lr_steps,
        form=form_of(plan.planner.options),
    )
    training.check()
    asked_to_shard(plan, training.shard_optimizer)
    return training


def asked_to_shard(plan: Plan, asked: bool | None) -> bool | None:
    """Whether peers are to share the optimizer's state; None: nobody says it, and `shards_optimizer` chooses.

    Args:
        plan: valid.
        asked: by whoever trains; None: not at all.

    Raises:
        InvalidInputError: it is refused, and the plan counts on it; or workers are on unlike numbers of GPUs, whose
            blocks are not the same.
    """
    if has_unlike_degrees(plan):
        if asked or plan.shards_optimizer:
            raise InvalidInputError(
                "workers on unlike numbers of GPUs have no blocks of the optimizer's state in common",
                where="--shard-optimizer",
                fix="plan with one --tensor-parallel for all workers, or leave --shard-optimizer out",
            )
        return False
    if asked is False and plan.shards_optimizer:
        raise InvalidInputError(
            "the plan counts on peers that share the optimizer's state, and memory may not hold all of it",
            where="--no-shard-optimizer",
            fix="leave it out, or plan without --shard-optimizer",
        )
    return True if plan.shards_optimizer else asked


def fewest_holders(plan: Plan) -> int:
    """Of all layers the least number of live workers that hold one."""
    return min(holders_by_layer(plan).values())


def is_script_name(model: str) -> bool:
    """Whether what is given as a model's name is a script that holds a training: a file without a factory's name."""
    return model.endswith(".py") and ":" not in model


def require_script(path: str) -> None:
    """Raise InvalidInputError unless there is a script of that path; asked before torch is imported."""
    if not Path(path).is_file():
        raise InvalidInputError("there is no such script", where=path, fix="check the path")
    if path.endswith(".json"):
        raise InvalidInputError(
            "this is a file of JSON, and a script of Python is needed here",
            where=path,
            fix="give the plan first: rtk run plan.json --script train.py",
        )


def sizes_of(plan: Plan) -> tuple[int | None, int | None]:
    """Samples a micro-batch and tokens a sample of the profile behind a plan; None where the plan does not say."""
    told = (plan.planner.options.get(name) for name in ("microbatch_size", "sequence_length"))
    size, length = (value if isinstance(value, int) else None for value in told)
    return size, length


@dataclass(frozen=True)
class JobConfig:
    """How a job is led: the options that only its coordinator has, as `rtk coordinate --help` tells of them.

    `policy` is the name of one that a running job obeys; None: Oobleck's where it has made the plan, else jointly.
    `checkpoint_every` is a duration with its unit, such as `10min`, or a number of iterations; 0: only at the end.
    `page` is the port, or `host:port`, of a live page. Names that end in `_s` are in s, `host_memory` is in bytes.
    `tp_across` lets the GPUs of a worker be on several machines; `lower_degree` lets a worker go on with the GPUs that
    are left to it, at times that the `profile` behind the plan tells, a file.
    """

    iterations: int = 10
    policy: str | None = None
    atlas: str | None = None
    normalize_within: int = 100
    host_memory: float = 0.0
    mitigate: str | None = None
    checkpoint: str | None = None
    checkpoint_every: int | str = "10min"
    resume: str | None = None
    inject: str | None = None
    heartbeat_limit_s: float = 2.0
    stall_limit_s: float | None = None
    timeline: str | None = None
    metrics: str | None = None
    log_to: Sequence[str] | None = None
    page: str | None = None
    tp_across: bool = False
    lower_degree: bool = False
    profile: str | None = None
    min_workers: int | None = None
    join_wait_s: float = 10.0


def checkpoints_due(every: int | str) -> tuple[int, float | None]:
    """After how many iterations, and after how many s, the next checkpoint is due; 0 and None: not for that.

    Raises:
        InvalidInputError: it is neither a number of iterations nor a duration.
    """
    text = str(every).strip()
    if text.isdecimal():
        return int(text), None
    return 0, DURATION.parse_above_zero(text, "--checkpoint-every")


def first_beyond(usual: JobConfig, how: JobConfig) -> str | None:
    """The first option by which a job would be led otherwise than usual."""
    unlike = (name for name, value in vars(how).items() if value != getattr(usual, name))
    return next(("--" + name.removesuffix("_s").replace("_", "-") for name in unlike), None)
