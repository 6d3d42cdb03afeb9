"""What a job of real processes is asked to be: what is trained, and how the job is led."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..schemas.errors import InvalidInputError
from ..schemas.plan import Plan
from ..schemas.profile import AS_USUAL, ModelForm, form_of
from ..schemas.quantities import DURATION
from .processes import arguments_of
from .program import Sending

# What a worker finds in its environment: the addresses of coordinators, the job's secret, and its first iteration.
COORDINATOR, SECRET, NOT_BEFORE = "RTK_COORDINATOR", "RTK_SECRET", "RTK_NOT_BEFORE"


@dataclass(frozen=True)
class TrainingConfig:
    """What is trained how; the same for all workers but for `threads`. All workers read the form out of the plan.

    Attributes:
        model: a preset, "file.py:factory", or a config.json; empty where a script says what is trained.
        data: text files; none: Python's own library.
        learning_rate: of AdamW.
        microbatch_size: samples a micro-batch; None: the profile's.
        sequence_length: tokens a sample; None: the profile's.
        threads: of torch, in each worker.
        paced: every operation lasts what the plan says: more workers than cores.
        transport: how messages are sent.
        seed: of all randomness.
        form: of the model behind the plan.
        script: a Python file that holds a `Training` (training.py); then all but `threads`, `paced` and `transport`
            stands there.
    """

    model: str = ""
    data: Sequence[str] | None = None
    learning_rate: float = 1e-3
    microbatch_size: int | None = None
    sequence_length: int | None = None
    threads: int = 1
    paced: bool = False
    transport: Sending = "auto"
    seed: int = 0
    form: ModelForm = AS_USUAL
    script: str | None = None

    def arguments(self) -> list[str]:
        """The options by which another process trains the same."""
        how = {"--threads": self.threads, "--transport": self.transport, "--paced": self.paced}
        if self.script is not None:
            return arguments_of({"--script": self.script, **how})
        return arguments_of(
            {
                "--model": self.model,
                "--data": tuple(self.data or ()),
                "--lr": self.learning_rate,
                "--microbatch-size": self.microbatch_size,
                "--sequence-length": self.sequence_length,
                "--seed": self.seed,
                **how,
            }
        )

    def settings(self) -> dict[str, Any]:
        """What the coordinator compares between workers, where no script says what is trained."""
        told = {name: value for name, value in asdict(self).items() if name not in ("threads", "form", "script")}
        return told | {"data": list(self.data or ())} | self.form.options()


def training_of(plan: Plan, asked: TrainingConfig) -> TrainingConfig:
    """The training that is asked for; sizes that it leaves open, and the form, are of the profile behind the plan.

    Raises:
        InvalidInputError: the plan's options ask for a form that there is not.
    """
    size, length = sizes_of(plan)
    return replace(
        asked,
        data=tuple(asked.data or ()),
        microbatch_size=asked.microbatch_size or size,
        sequence_length=asked.sequence_length or length,
        form=form_of(plan.planner.options),
    )


def require_script(path: str) -> None:
    """Raise InvalidInputError unless there is a script of that path; asked before torch is imported."""
    if not Path(path).is_file():
        raise InvalidInputError("there is no such script", where=path, fix="check the path")


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
    Names that end in `_s` are in s, `host_memory` is in bytes.
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


def name_of_rank(plan: Plan, worker: str | None) -> str:
    """The name of this worker: as given, else that of the plan's live worker number RANK, or SLURM_PROCID.

    Raises:
        InvalidInputError: there is neither, or the plan has no such worker.
    """
    names = [one.name for one in plan.workers]
    if worker is not None:
        if worker not in names:
            raise InvalidInputError(f"the plan has no worker {worker}", where="--worker", fix="name one as k/i")
        return worker
    live, rank = plan.live_workers(), os.environ.get("RANK", os.environ.get("SLURM_PROCID"))
    if rank is None or not rank.isdecimal() or int(rank) >= len(live):
        raise InvalidInputError(
            f"this is process {rank} of a job, the plan has {len(live)} live workers"
            if rank
            else "nothing says which worker this is",
            where="RANK",
            fix=f"give --worker k/i, or start {len(live)} workers with torchrun",
        )
    return live[int(rank)].name
