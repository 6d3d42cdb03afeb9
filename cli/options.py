"""Reading the small languages of option values: `I=DURATION`, `k/i=FACTOR`, `SIZE[,SIZE…]`."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..planners.recovery.answers import PolicyName
from ..runners.log_writers import json_files
from ..runners.program import Sending
from ..runners.training import (
    BESIDE_SCRIPT,
    EVAL_EVERY,
    JobConfig,
    OptimizerName,
    Precision,
    RateSchedule,
    TrainingConfig,
    is_script_name,
)
from ..schemas.documents import digest, read_document
from ..schemas.errors import InvalidInputError, LimitReachedError, remark
from ..schemas.files import source_of
from ..schemas.quantities import (
    DURATION,
    SIZE,
    USUAL_TIME_LIMIT_S,
    parse_memory_limit,
    parse_number,
    parse_time_s,
    print_number,
    print_percent,
    print_time,
)
from .console import Common, Output, Seed, Writes, emit, quantity, working, wrote

if TYPE_CHECKING:
    from ..planners.scheduling.solve import Effort
    from ..schemas.conditions import LinkPlace
    from ..schemas.plan import Place, Plan, Prediction


@dataclass(frozen=True)
class EffortOptions:
    """How hard a planner shall try."""

    solver: Annotated[
        Literal["auto", "heuristic", "milp", "cp-sat"],
        typer.Option(
            "--solver",
            help="Exact solver; auto takes cp-sat if installed, else milp, if it has time. "
            "One that is named also proves by itself.",
        ),
    ] = "auto"
    time_limit: Annotated[
        float | None,
        quantity(
            DURATION,
            "--time-limit",
            f"Of exact solvers, in all. {USUAL_TIME_LIMIT_S:g} s if a solver or a proof is asked for, else 0.",
        ),
    ] = None
    require_optimal: Annotated[
        bool, typer.Option("--require-optimal", help="End with exit code 4 unless the plan is proven optimal.")
    ] = False
    seed: Seed = 0

    def effort(self) -> "Effort":
        """The planners' word for it.

        Raises:
            InvalidInputError: the time limit is not finite.
        """
        from ..planners.plain.verbs import effort_of

        return effort_of(self.solver, self.time_limit, self.seed, self.require_optimal)

    def given(self) -> dict[str, Any]:
        """What planners are called with."""
        effort = self.effort()
        return {"solver": effort.solver, "time_limit": effort.time_limit_s, "seed": effort.seed}


LinkDelays = Annotated[
    list[str] | None,
    typer.Option("--link-delay", metavar="[K/]I=DURATION", help="Delay of link I, in pipeline K only. Repeatable."),
]
Slow = Annotated[
    list[str] | None,
    typer.Option("--slow", metavar="k/i=FACTOR", help="Worker k/i takes FACTOR times as long. Repeatable."),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit", metavar="SIZE[,SIZE…]", help="For a worker's activations: one limit, or one a stage."
    ),
]


TIMELINE = Writes("an rtk.timeline")
PlanOutput = Annotated[Output, Writes("an rtk.plan")]

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="FILE|slurm|NxM",
        help="The machines: a YAML file; slurm: those of this SLURM job; NxM: N nodes of M GPUs. Its memory and "
        "network override the profile's. Worker k/i has GPU k * pp + i, or as many each as --tensor-parallel says; "
        "GPUs fill node after node.",
    ),
]
OverlayOption = Annotated[
    str | None,
    typer.Option("--overlay", metavar="FILE", help="What of the cluster has failed or is slow: a YAML file."),
]


def parse_link_delays(values: Sequence[str] | None) -> "dict[LinkPlace, float]":
    """`0=20ms` is link 0 of every pipeline, `1/0=20ms` that of pipeline 1; 0 or more."""
    delays: dict[LinkPlace, float] = {}
    for value in values or ():
        match = re.fullmatch(r"(?:(\d+)/)?(\d+)=(.+)", value)
        if match is None:
            raise _wrong("--link-delay", value, "write I=DURATION or K/I=DURATION, such as 0=20ms")
        pipeline, link, delay = match.groups()
        place = (None if pipeline is None else int(pipeline), int(link))
        if place in delays:
            raise _wrong("--link-delay", value, "give each link once")
        delays[place] = parse_time_s(delay, f"--link-delay {value}")
    return delays


def parse_slow_places(values: Sequence[str] | None) -> "dict[Place, float]":
    """`1/2=1.5`: worker 1/2, by its place, takes 1.5 times as long; factors above 0."""
    slow: dict[Place, float] = {}
    for value in values or ():
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})=(.+)", value)
        if match is None:
            raise _wrong("--slow", value, "write k/i=FACTOR, such as 1/2=1.5")
        place = int(match[1]), int(match[2])
        factor = parse_number("--slow", match[3], "a factor is a plain number: 1/2=1.5")
        if factor <= 0 or place in slow:
            raise _wrong("--slow", value, "a factor is above 0, and each worker is given once")
        slow[place] = factor
    return slow


def parse_places(values: Sequence[str] | None, option: str) -> "list[Place]":
    """`1/2` is worker 2 of pipeline 1."""
    from ..schemas.plan import parse_place

    return [parse_place(value, option) for value in values or ()]


def parse_block(value: str, option: str) -> tuple[int, int]:
    """`1x2`: one pipeline by two stages."""
    match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})", value)
    if match is None:
        raise _wrong(option, value, "write pipelines x stages, such as 1x2")
    return int(match[1]), int(match[2])


def _wrong(option: str, value: str, fix: str) -> InvalidInputError:
    return InvalidInputError(f"{value!r} cannot be read", where=option, fix=fix)


# Reading a plan that is about to be executed, and what is to happen to it: valid, and meant for each other.


ProfileOption = Annotated[
    str | None, typer.Option("--profile", help="Refuse the plan unless it was made from this profile.")
]


def read_valid_plan(path: str, profile: str | None = None) -> "Plan":
    """Read a plan and refuse it unless it is valid and, where a profile's path is given, made from that profile."""
    from ..schemas.check import require_valid
    from ..schemas.plan import Plan

    plan = read_document(path, Plan)
    check_profile(plan, profile)
    require_valid(plan, source_of(path))
    return plan


def check_profile(plan: "Plan", path: str | None) -> None:
    """Raise InvalidInputError if a profile's path is given and the plan was made from another profile."""
    if path is None:
        return
    from ..schemas.profile import Profile

    made_from = plan.inputs.get("profile")
    found = digest(read_document(path, Profile))
    if made_from != found:
        said = f"sha256 {made_from[:12]}…" if made_from else "no profile that it names"
        raise InvalidInputError(
            f"the plan was made from {said}, not from this profile (sha256 {found[:12]}…)",
            where=f"{path}, against /inputs/profile of the plan",
            fix="make the plan again from this profile",
        )


# What the plan commands share: the options that give a shape, and what is said of a plan.


ProfileFile = Annotated[str, typer.Argument(help="The profile; `-` is standard input.")]
Stages = Annotated[int, typer.Option("--pp", min=1, help="Stages of a pipeline.")]
Microbatches = Annotated[int, typer.Option("--microbatches", min=1, help="Micro-batches of each pipeline.")]


def planning(pp: int, dp: int, microbatches: int) -> AbstractContextManager[None]:
    """Show what is planned, if it takes long."""
    operations = 3 * pp * dp * microbatches
    return working(f"planning {pp * dp:,} workers, {microbatches:,} micro-batches each, {operations:,} operations")


TensorParallelOption = Annotated[
    str | None,
    typer.Option(
        "--tensor-parallel",
        metavar="T|T,T…|auto",
        help="GPUs of a worker: a degree of the profile, one a stage, or the best of them. Its least if not given.",
        show_default=False,
    ),
]


ShardOptimizerOption = Annotated[
    bool,
    typer.Option(
        "--shard-optimizer",
        help="Peers share the optimizer's state, each part on two of them; memory also suffices once one is lost.",
    ),
]


@dataclass(frozen=True)
class ShapeOptions:
    """What is planned."""

    pp: Stages
    microbatches: Microbatches
    dp: Annotated[int, typer.Option("--dp", min=1, help="Pipelines (data-parallel degree).")] = 1
    memory_limit: MemoryLimit = None
    tensor_parallel: TensorParallelOption = None
    shard_optimizer: ShardOptimizerOption = False

    def given(self) -> dict[str, Any]:
        """What planners are called with."""
        return {**vars(self), "memory_limit": parse_memory_limit(self.memory_limit)}

    def planning(self) -> AbstractContextManager[None]:
        """Show what is planned, if it takes long."""
        return planning(self.pp, self.dp, self.microbatches)


@dataclass(frozen=True)
class ConditionOptions(ShapeOptions):
    """What is planned, and for which links and machines."""

    link_delay: LinkDelays = None
    cluster: ClusterOption = None
    overlay: OverlayOption = None

    def given(self) -> dict[str, Any]:
        """What planners are called with."""
        from ..schemas.site import read_cluster

        cluster = None if self.cluster is None else read_cluster(self.cluster)
        return {**super().given(), "link_delay": parse_link_delays(self.link_delay), "cluster": cluster}


PlacementOption = Annotated[
    str,
    typer.Option(
        "--placement",
        metavar="plain|loop|v|best[:C]",
        help="plain: one stage a worker; loop (interleaved) or v: several; best: compared, with up to C on each.",
    ),
]
ChunksOption = Annotated[
    int | None,
    typer.Option(
        "--chunks", min=1, help="Virtual stages of each worker; 2 if not given, and 1 for plain.", show_default=False
    ),
]


@dataclass(frozen=True)
class PlacedOptions(ConditionOptions):
    """What is planned, for which links and machines, and how many stages each worker holds."""

    placement: PlacementOption = "plain"
    chunks: ChunksOption = None
    transport: Annotated[
        Sending,
        typer.Option(
            "--transport", help="How messages will be sent: for best it counts that a direct send holds its worker."
        ),
    ] = "auto"


TechniqueOption = Annotated[
    Literal["adaptive", "decoupled", "staggered"],
    typer.Option("--technique", help="Re-routing; with backwards split where it helps; and staggered optimizers."),
]

ABSURD_DELAY = 100.0  # of a link, as a multiple of a micro-batch's work in all stages
SCOPES = {None: "", "routing": " for the routing taken", "all-routings": " over all routings"}


def demand_proof(prediction: "Prediction | None", of: str = "") -> None:
    """Raise LimitReachedError unless a prediction is proven optimal; `of` says whose it is, for messages."""
    assert prediction is not None
    if prediction.proof != "optimal":
        raise LimitReachedError(
            f"{of}{print_time(prediction.iteration_time_s)} is not proven optimal: "
            f"the bound is {print_time(prediction.lower_bound_s)}",
            where="--require-optimal",
            fix="the plan is written all the same; for a proof raise --time-limit, or name another --solver",
        )


def present(
    made: "Plan",
    output: str,
    common: Common,
    lines: Iterable[str] = (),
    require_optimal: bool = False,
) -> None:
    """Write a plan, and say what it promises, what its solver has proven, and these lines.

    Args:
        made: the plan.
        output: where it goes.
        common: the common options.
        lines: more of what there is to say.
        require_optimal: whether a proof is required.

    Raises:
        LimitReachedError: a proof is required, and there is none.
    """
    from ..planners.degrees import degree_comparison
    from ..planners.scheduling.solve import OPTION

    emit(made, output, common.as_json)
    for line in (summary(made), *own_proof(made), *absurd_delays(made), *degree_comparison(made), *lines):
        remark(line)
    wrote(output, f"rtk simulate {output}")
    own = made.planner.options.get(OPTION)
    if require_optimal:
        demand_proof(made.prediction)
    if require_optimal and own is not None and own["proof"] != "optimal":
        raise LimitReachedError(
            f"{own['solver']} has not proven the plan optimal itself",
            where="--require-optimal",
            fix="the plan is written all the same; raise --time-limit, or leave --solver out: any proof will do then",
        )


def absurd_delays(made: "Plan") -> Iterator[str]:
    """Links whose delay is so long against all work of a micro-batch that a unit may have been forgotten, in a line."""
    for template in made.templates:
        work_s = sum(stage.duration_s(code) for stage in template.stages for code in "FB")
        links = [*template.links, *(link for each in made.pipelines for link in each.links or ())]
        worst_s = max((link.delay_s for link in links), default=0.0)
        if work_s and worst_s > ABSURD_DELAY * work_s:
            times = f"{print_number(worst_s / work_s)} times as long as all stages compute for a micro-batch"
            yield f"warning: a link's delay is {print_time(worst_s)}, {times}: was another unit meant, such as ms?"
            return


def summary(made: "Plan") -> str:
    """A plan's promise, in a line."""
    prediction, live = made.predicted, made.live_workers()
    gpus = sum(map(made.gpus_of, live))
    return (
        f"iteration {print_time(prediction.iteration_time_s)} ({quality(prediction)}), "
        f"bubbles {print_percent(prediction.bubble_ratio)}, {len(live)} workers"
        f"{'' if gpus == len(live) else f' on {gpus} GPUs'}"
    )


def quality(prediction: "Prediction") -> str:
    """How good a plan is proven to be."""
    return prediction.quality + SCOPES[prediction.proof_scope]


def own_proof(made: "Plan") -> Iterator[str]:
    """What the solver that was asked for by name has proven itself, in a line; nothing where none was."""
    from ..planners.scheduling.solve import OPTION

    own = made.planner.options.get(OPTION)
    if own is None:
        return
    if not own["is_asked"]:
        why = "no time is left, or it takes no problem of so many"
        yield f"{own['solver']} was not asked for a proof of its own: {own['operations']} operations, {why}"
    elif own["proof"] == "optimal":
        yield f"{own['solver']} proves it itself: no orders of this routing take less"
    else:
        proven = f"no more than {print_time(own['lower_bound_s'])}" if own["proof"] == "bound" else "nothing"
        bound = f"the bound is the planner's, {print_time(made.predicted.lower_bound_s)}"
        yield f"{own['solver']} itself proves {proven}; {bound}"


# A job that survives: what is trained, and how it is led. Each command offers some fields of its configuration.


@dataclass(frozen=True)
class TrainingOptions(TrainingConfig):
    """What is trained."""

    model: Annotated[
        str, typer.Option("--model", show_default=False, help="A preset, file.py:factory, or a config.json.")
    ] = ""
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            help="Text, tokens (.bin, .npy, Megatron's .idx), or a folder of `datasets`; Python's own library where "
            "none. Repeatable.",
        ),
    ] = None
    learning_rate: Annotated[float, typer.Option("--lr", min=0, help="Learning rate, after the warm-up.")] = 1e-3
    microbatch_size: Annotated[
        int | None, typer.Option("--microbatch-size", min=1, help="Samples a micro-batch; the profile's by default.")
    ] = None
    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", min=1, help="Tokens a sample; the profile's by default.")
    ] = None
    threads: Annotated[int, typer.Option("--threads", min=1, help="Torch threads of each worker.")] = 1
    paced: Annotated[
        bool,
        typer.Option(
            "--paced/--no-paced", help="Let every operation last what the plan says: more workers than cores."
        ),
    ] = False
    transport: Annotated[
        Sending,
        typer.Option(
            "--transport",
            help="direct: sending holds a worker for the link's delay; delegated: other threads send and fetch; auto: "
            "delegated on links of which the plan says a delay, or which are found to be slow.",
        ),
    ] = "auto"
    log_memory: Annotated[
        float | None,
        quantity(
            SIZE,
            "--log-memory",
            "For messages of an iteration that each worker keeps, lest they be computed again when others die; all of "
            "them by default; 0: nothing is kept, and the iteration is done again.",
        ),
    ] = None
    seed: Seed = 0
    data_dtype: Annotated[
        str | None, typer.Option("--data-dtype", help="Type of a .bin file's tokens, such as uint16 or int32.")
    ] = None
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer", help="Makes tokens of text: a folder or tokenizer.json of Hugging Face's; bytes where none."
        ),
    ] = None
    eval_data: Annotated[
        list[str] | None, typer.Option("--eval-data", help="Evaluate on this, given as --data. Repeatable.")
    ] = None
    eval_every: Annotated[
        int | None,
        typer.Option(
            "--eval-every", min=1, help=f"Evaluate every N iterations, and at the end. {EVAL_EVERY} by default."
        ),
    ] = None
    eval_microbatches: Annotated[
        int | None,
        typer.Option(
            "--eval-microbatches", min=1, help="Micro-batches of an evaluation; as many as an iteration has by default."
        ),
    ] = None
    optimizer: Annotated[
        OptimizerName,
        typer.Option("--optimizer", help="muon: for matrices; AdamW for embeddings, the output layer and vectors."),
    ] = "adamw"
    betas: Annotated[str | None, typer.Option("--betas", metavar="B1,B2", help="Of AdamW; 0.9,0.999 by default.")] = (
        None
    )
    weight_decay: Annotated[
        float | None,
        typer.Option(
            "--weight-decay",
            min=0,
            help="None of it on parameters of one dimension. Default: what torch has for the optimizer, on all.",
        ),
    ] = None
    decay_all: Annotated[
        bool, typer.Option("--decay-all/--no-decay-all", help="Weight decay on parameters of one dimension, too.")
    ] = False
    clip_norm: Annotated[
        float | None,
        typer.Option("--clip-norm", help="Scale gradients down where their norm, of the whole model, is above this."),
    ] = None
    lr_schedule: Annotated[
        RateSchedule,
        typer.Option(
            "--lr-schedule",
            help="The learning rate after the warm-up: wsd stays, and falls over the last fifth of the iterations.",
        ),
    ] = "constant"
    lr_steps: Annotated[
        int | None,
        typer.Option("--lr-steps", min=1, help="Iterations over which the schedule goes; --iterations by default."),
    ] = None
    warmup: Annotated[
        int, typer.Option("--warmup", min=0, help="Iterations in which the learning rate rises from 0.")
    ] = 0
    min_lr_ratio: Annotated[
        float, typer.Option("--min-lr-ratio", help="What the learning rate falls to, as a share of --lr.")
    ] = 0.0
    precision: Annotated[
        Precision | None,
        typer.Option(
            "--precision",
            help="bf16-autocast: float32 parameters, computed with in bf16; bf16-master, fp16-master: parameters in 16 "
            "bits, and the optimizer's in float32. By default as in the profile.",
        ),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option("--weights", help="Begin with these safetensors; by default with those beside config.json."),
    ] = None
    random_weights: Annotated[
        bool,
        typer.Option("--random-weights/--no-random-weights", help="Begin with random weights, whatever there is."),
    ] = False
    shard_optimizer: Annotated[
        bool | None,
        typer.Option(
            "--shard-optimizer/--no-shard-optimizer",
            show_default=False,
            help="Peers share the optimizer's state, each part of it on two of them, which saves memory with three "
            "peers or more (not with muon). By default where it does so, or the plan counts on it.",
        ),
    ] = None
    script: Annotated[
        str | None,
        typer.Option(
            "--script",
            metavar="FILE",
            help="A Python file of your own that holds a Training (rtk.train): model, data, optimizer and all.",
        ),
    ] = None

    def settled(self) -> TrainingConfig:
        """What is asked for: a model, or a script that says everything; a model's name may be a script's.

        Raises:
            InvalidInputError: neither is given, or something beside a script that stands there.
        """
        is_script = self.script is None and is_script_name(self.model)
        asked = replace(self, model="", script=self.model) if is_script else self
        usual = TrainingConfig()
        given = [name for name, value in vars(asked).items() if value not in (getattr(usual, name), [])]
        beside = [name for name in given if name != "script" and name not in BESIDE_SCRIPT]
        if asked.script is None and not asked.model:
            raise InvalidInputError(
                "--model is missing, and no script says what is trained",
                where="--model",
                fix="add --model MODEL, or --script train.py",
            )
        if asked.script is not None and beside:
            option = {"learning_rate": "--lr"}.get(beside[0], "--" + beside[0].replace("_", "-"))
            raise InvalidInputError(
                f"the script says what is trained, and so does {option}",
                where=option,
                fix=f"leave {option} away and say it in {asked.script}, or leave --script away",
            )
        return asked


@dataclass(frozen=True)
class AnswerOptions(JobConfig):
    """How a running job answers failures, newcomers and slow parts; planners/recovery/ has the answers."""

    policy: Annotated[
        PolicyName | None,
        typer.Option(
            "--policy",
            help="How failures are answered: slipstream re-routes a dead worker's micro-batches to its peers, joint "
            "does so too and adapts the plan to slow links and workers, oobleck makes pipelines of all nodes that are "
            "left and adapts to nothing else. Default: oobleck for its own plans, joint for others.",
        ),
    ] = None
    atlas: Annotated[
        str | None,
        typer.Option("--atlas", help="A folder of plans made ahead; else failures are planned on the spot."),
    ] = None
    normalize_within: Annotated[
        int,
        typer.Option(
            "--normalize-within",
            min=0,
            help="Move workers, or form other pipelines, if that pays off within N iterations; 0: never.",
        ),
    ] = 100
    host_memory: Annotated[
        float,
        quantity(
            SIZE,
            "--host-memory",
            "Activations that a worker may hold beyond its memory limit, on the host, under an adapted plan.",
        ),
    ] = 0.0
    mitigate: Annotated[
        str | None,
        typer.Option(
            "--mitigate",
            metavar="S3=DURATION,S4=DURATION",
            help="What costly remedies for slow workers and links cost, each taken once being slow has cost as much: "
            "S3, workers change places (by default the copies' time, there and back); S4, the job is saved and starts "
            "again on other workers (never, unless given).",
        ),
    ] = None


@dataclass(frozen=True)
class LeadOptions(AnswerOptions):
    """How a job is led."""

    iterations: Annotated[
        int, typer.Option("--iterations", min=1, help="How many, those before --resume included.")
    ] = 10
    checkpoint: Annotated[str | None, typer.Option("--checkpoint", help="Save checkpoints in this folder.")] = None
    checkpoint_every: Annotated[
        str,
        typer.Option(
            "--checkpoint-every",
            metavar="DURATION|ITERATIONS",
            help="Save so often: 10min, or a number of iterations; 0: only at the end.",
        ),
    ] = "10min"
    resume: Annotated[
        str | None, typer.Option("--resume", help="Go on from this checkpoint, or the newest one in this folder.")
    ] = None
    heartbeat_limit_s: Annotated[
        float, quantity(DURATION, "--heartbeat-limit", "Silence after which a worker is lost.", least=0.1)
    ] = 2.0
    stall_limit_s: Annotated[
        float | None,
        quantity(
            DURATION,
            "--stall-limit",
            "Time without a commit after which all are asked who holds them up; else 5 iterations, at least 10 s.",
            least=0.5,
        ),
    ] = None
    timeline: Annotated[str | None, typer.Option("--timeline", help="Write the measured timeline here."), TIMELINE] = (
        None
    )
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="Append what happens to this JSON-lines file."), Writes("JSON lines")
    ] = None
    log_to: Annotated[
        list[str] | None,
        typer.Option(
            "--log-to",
            metavar="KIND:TARGET",
            help="tensorboard:FOLDER; prometheus:[HOST:]PORT or prometheus:FILE.prom; otlp:URL; "
            "jsonl:FILE, as --metrics. Repeatable.",
        ),
        Writes("JSON lines", files=json_files),
    ] = None
    page: Annotated[
        str | None,
        typer.Option(
            "--page",
            metavar="[HOST:]PORT",
            help="Serve a live page of the job here: on loopback unless a host is named, to whoever has its token.",
        ),
    ] = None
    tp_across: Annotated[
        bool,
        typer.Option(
            "--tp-across/--no-tp-across",
            help="Take workers whose GPUs are on several machines; each layer's sums then go over the network.",
        ),
    ] = False
    lower_degree: Annotated[
        bool,
        typer.Option(
            "--lower-degree/--no-lower-degree",
            help="A worker of several GPUs that loses one goes on with fewer, as a slow worker, where iterations are "
            "predicted to be shorter than without it; --profile says how slow, else the numbers of GPUs.",
        ),
    ] = False


@dataclass(frozen=True)
class InjectOptions(LeadOptions):
    """The same, with faults that are injected."""

    inject: Annotated[
        str | None, typer.Option("--inject", help="A trace of faults to inject, with `iteration` and `worker`.")
    ] = None
