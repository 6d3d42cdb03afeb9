"""What a run trains: the options that all its workers share, and the model and data they name."""

import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.errors import InvalidInputError
from ..schemas.form import AS_USUAL, ModelForm, form_of

if TYPE_CHECKING:
    from ..profilers.models.load import Model
    from ..runners.sending import Sending
    from ..runners.torch.corpus import ByteCorpus
    from ..schemas.plan import Plan


class Transport(StrEnum):
    """How messages are sent."""

    AUTO = "auto"
    DIRECT = "direct"
    DELEGATED = "delegated"


ModelOption = Annotated[str, typer.Option("--model", help="A preset, file.py:factory, or a config.json.")]
DataOption = Annotated[
    list[str] | None, typer.Option("--data", help="A text file; Python's own library where none. Repeatable.")
]
LearningRate = Annotated[float, typer.Option("--lr", min=0, help="Learning rate of AdamW.")]
MicrobatchSize = Annotated[
    int | None, typer.Option("--microbatch-size", min=1, help="Samples a micro-batch; the profile's by default.")
]
SequenceLength = Annotated[
    int | None, typer.Option("--sequence-length", min=1, help="Tokens a sample; the profile's by default.")
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Torch threads of each worker.")]
Paced = Annotated[
    bool, typer.Option("--paced", help="Let every operation last what the plan says: more workers than cores.")
]
TransportOption = Annotated[
    Transport,
    typer.Option(
        "--transport",
        help="direct: sending holds a worker for the link's delay; delegated: other threads send and fetch; auto: "
        "delegated on links of which the plan says a delay, or which are found to be slow.",
    ),
]


@dataclass(frozen=True)
class Training:
    """What is trained how; the same for all workers but for `threads`. All workers read the form out of the plan."""

    model: str
    data: tuple[str, ...]
    learning_rate: float
    microbatch_size: int | None
    sequence_length: int | None
    threads: int
    paced: bool
    seed: int
    transport: "Sending" = "auto"
    form: ModelForm = AS_USUAL

    def arguments(self) -> list[str]:
        """The options by which another process trains the same."""
        pairs: list[tuple[str, object]] = [
            ("--model", self.model),
            *(("--data", file) for file in self.data),
            ("--lr", self.learning_rate),
            ("--microbatch-size", self.microbatch_size),
            ("--sequence-length", self.sequence_length),
            ("--threads", self.threads),
            ("--seed", self.seed),
            ("--transport", self.transport),
        ]
        given = [text for option, value in pairs if value is not None for text in (option, str(value))]
        return [*given, *(["--paced"] if self.paced else [])]

    def settings(self) -> dict[str, Any]:
        """What the coordinator compares between workers."""
        told = {name: value for name, value in asdict(self).items() if name not in ("threads", "form")}
        return told | {"data": list(self.data)} | self.form.options()


def training_of(
    plan: "Plan",
    model: str,
    data: list[str] | None,
    learning_rate: float,
    microbatch_size: int | None,
    sequence_length: int | None,
    threads: int,
    paced: bool,
    seed: int,
    transport: Transport = Transport.AUTO,
) -> Training:
    """The training that options ask for; sizes that they leave open, and the form, are of the profile behind the plan.

    Raises:
        InvalidInputError: the plan's options ask for a form that there is not.
    """
    size, length = sizes_of(plan)
    return Training(
        model=model,
        data=tuple(data or ()),
        learning_rate=learning_rate,
        microbatch_size=microbatch_size or size,
        sequence_length=sequence_length or length,
        threads=threads,
        paced=paced,
        seed=seed,
        transport=transport.value,
        form=form_of(plan.planner.options),
    )


def sizes_of(plan: "Plan") -> tuple[int | None, int | None]:
    """Samples a micro-batch and tokens a sample of the profile behind a plan; None where the plan does not say."""
    told = (plan.planner.options.get(name) for name in ("microbatch_size", "sequence_length"))
    size, length = (value if isinstance(value, int) else None for value in told)
    return size, length


def load_training(plan: "Plan", training: Training) -> "tuple[Model, ByteCorpus]":
    """The model and the data, checked against the plan and each other.

    Raises:
        InvalidInputError: they do not fit.
    """
    from ..profilers.models.load import load_model
    from ..runners.torch.corpus import ByteCorpus
    from ..runners.torch.runner import check_model

    _require_one_device_a_stage(plan)
    model = load_model(training.model, training.microbatch_size, training.sequence_length, training.seed, training.form)
    check_model(plan, model.layers)
    if model.vocabulary is None or model.vocabulary < 256 or model.sequence_length is None:
        raise InvalidInputError(
            "the model does not read bytes: its vocabulary must be 256 or more",
            where="--model",
            fix="for other data, use PlanRunner in a script of your own (docs/library.md)",
        )
    return model, ByteCorpus(training.data, model.microbatch_size, model.sequence_length, training.seed)


def _require_one_device_a_stage(plan: "Plan") -> None:
    for t, template in enumerate(plan.templates):
        for i, stage in enumerate(template.stages):
            if stage.tensor_parallel > 1:
                raise InvalidInputError(
                    f"a stage of template {template.name} is on {stage.tensor_parallel} GPUs; a worker computes on one",
                    where=f"/templates/{t}/stages/{i}/tensor_parallel",
                    fix="plan from a profile with costs at tensor_parallel 1 only",
                )


def tokens_of(plan: "Plan", corpus: "ByteCorpus") -> int:
    """Tokens of one iteration."""
    return plan.total_microbatches() * corpus.microbatch_size * corpus.sequence_length


def available_cores() -> int:
    """The cores that this process, and so the workers it starts, may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device() -> str:
    """Where this worker computes: its GPU, of those that there are, else the CPU."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
