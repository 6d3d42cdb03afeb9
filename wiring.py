"""What ties wings together: the verbs of the library that need more than one of them.

`rtk/__init__.py` is the library's face; a verb that one wing can do alone stands in that wing.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .schemas.errors import InvalidInputError
from .schemas.text import listed

if TYPE_CHECKING:
    from .planners.plain.verbs import Delays, Factors
    from .planners.recovery.escalation import RemedyCosts
    from .runners.program import Sending
    from .runners.simulator import Simulation
    from .runners.traces.formats import Leaving
    from .runners.virtual.job import SimulatedRun, SwitchCosts
    from .schemas.documents import Document
    from .schemas.form import DataType
    from .schemas.plan import Plan
    from .schemas.profile import Profile
    from .schemas.protocols import Monitor
    from .schemas.replay import Costs
    from .schemas.replay_report import ReplayReport
    from .schemas.timeline import Timeline
    from .schemas.trace import Trace
    from .viz.drawing import Drawing

D = TypeVar("D", bound="Document")

# A message is late by this share of the shortest F and I of a stage, and at least by so many seconds.
LATE = 0.2
LATE_S = 0.003


def monitor_of(plan: "Plan", is_resumed: bool = False) -> "Monitor":
    """What finds the slow links and workers of a job.

    A message is late by a share (`LATE`) of the shortest F and I of a stage, for that is what it delays, or by
    `LATE_S`, which a scheduler or the measurement itself may take.

    Args:
        plan: that the job starts with.
        is_resumed: whether the job may have begun under another coordinator.
    """
    from .profilers.failslow.monitor.job import Expected
    from .profilers.failslow.monitor.ring import LiveMonitor
    from .runners.virtual.cluster import delay_at_home_s

    stages = [plan.stage_of(worker) for worker in plan.workers]
    shortest_s = min(stage.forward_s + stage.backward_input_s for stage in stages)
    sum_s = {worker.name: stage.allreduce_s for worker, stage in zip(plan.workers, stages, strict=True)}
    expected = Expected(
        least_s=max(LATE_S, LATE * shortest_s),
        delay_s=lambda one, other: delay_at_home_s(plan, one, other),
        sum_s=lambda one, other: max(sum_s[one], sum_s[other]),
        slowdown={worker.name: worker.slowdown for worker in plan.workers if worker.slowdown is not None},
    )
    present = [worker.name for worker in plan.live_workers()]
    return LiveMonitor(list(sum_s), present, expected, is_resumed)


@overload
def read(path: str | PathLike[str]) -> Any:
    """Read what the file says that it is."""


@overload
def read(path: str | PathLike[str], kind: type[D]) -> D:
    """Read a document of a kind."""


def read(path: str | PathLike[str], kind: type[Any] | None = None) -> Any:
    """Read a document: a profile, plan, timeline, report, templates, a trace, or an atlas's folder.

    Args:
        path: of the file; `.gz` is unpacked, `-` is standard input.
        kind: its class, such as `rtk.Plan`; None: what the file says that it is, else a trace.

    Raises:
        InvalidInputError: the file cannot be read, or is not valid; says where.
    """
    from .planners.slipstream.atlas_folder import read_atlas
    from .schemas.atlas import Atlas
    from .schemas.documents import parse_document, sniff_format
    from .schemas.files import read_bytes, source_of
    from .schemas.jsonschema import document_kinds
    from .schemas.trace import Trace, read_trace

    name = str(path)
    if kind is Trace or (kind is None and name.removesuffix(".gz").endswith((".csv", ".jsonl"))):
        return read_trace(name)
    if kind is Atlas or Path(name).is_dir():
        return read_atlas(name)
    data = read_bytes(name)
    if kind is None:
        found = sniff_format(data, source_of(name))
        kinds = {one.FORMAT: one for one in document_kinds().values()}
        if found not in kinds:
            raise InvalidInputError(
                f"the file names {f'the format {found!r}' if found else 'no format'}, which is not known",
                where=source_of(name),
                fix="say what it is, such as rtk.read(path, rtk.Trace)",
            )
        kind = kinds[found]
    return parse_document(data, kind, source_of(name))


def write(path: str | PathLike[str], document: "Document") -> None:
    """Write a document; a trace as JSON lines.

    Args:
        path: of the file; one that ends in `.gz` is packed, `-` is standard output.
        document: a profile, plan, timeline, report, templates or a trace; an atlas is a folder that `rtk plan` writes.
    """
    from .schemas.documents import write_document
    from .schemas.files import write_bytes
    from .schemas.trace import Trace, print_trace

    if isinstance(document, Trace):
        write_bytes(str(path), print_trace(document))
    else:
        write_document(str(path), document)


def profile_measured(
    model: str,
    *,
    microbatch_size: int | None = None,
    sequence_length: int | None = None,
    cut: str | None = None,
    dtype: "DataType | None" = None,
    checkpointing: bool = False,
    tp: Sequence[int] = (1,),
    repeats: int | None = None,
    threads: int = 1,
    seed: int = 0,
) -> "Profile":
    """Measure F, I, W and the optimizer step of a model's layers in this process, and the memory they hold.

    Needs torch; on the current GPU where there is one, else on the CPU. `rtk profile` measures all GPUs at once.

    Args:
        model: a preset such as "gpt-tiny"; "file.py:factory"; or the path of a Hugging Face config.json.
        microbatch_size: samples of a micro-batch; None: the model's own.
        sequence_length: tokens of a sample; None: the model's own.
        cut: names of the modules that are layers, such as "model.layers.*".
        dtype: of parameters, gradients and activations; None: fp32.
        checkpointing: blocks keep their input only, and compute the rest again.
        tp: degrees of tensor parallelism to measure.
        repeats: timed rounds; None: 8 s of them.
        threads: torch threads on a CPU.
        seed: of all randomness.

    Raises:
        InvalidInputError: the model, its sizes or the degrees do not go together.
        InfeasibleError: the model, or a layer of it, does not fit into the memory.
    """
    import torch

    from .profilers.links import measure_loopback
    from .profilers.measure import measure_profile
    from .profilers.models.load import load_model
    from .runners.torch.stage import TorchStage
    from .schemas.form import AS_USUAL, ModelForm

    form = ModelForm(cut, dtype or AS_USUAL.dtype, checkpointing)
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    return measure_profile(
        load_model(model, microbatch_size, sequence_length, seed, form),
        TorchStage,
        degrees=tuple(tp),
        device=device,
        repeats=repeats,
        threads=threads,
        seed=seed,
        intra_node=measure_loopback(),
    )


def conditioned(plan: "Plan", slow: "Factors | None", link_delay: "Delays | None") -> "Plan":
    """A plan as it is under slow workers and links; raises InvalidInputError where it is not valid or has no such."""
    from .planners.plain.verbs import factors, link_delays
    from .schemas.check import require_valid
    from .schemas.conditions import under_conditions
    from .schemas.plan import name_of

    require_valid(plan, "the plan")
    slowed = {name_of(worker): factor for worker, factor in factors(slow).items()}
    return under_conditions(plan, slowed, link_delays(link_delay))


def simulate(
    plan: "Plan",
    *,
    slow: "Factors | None" = None,
    link_delay: "Delays | None" = None,
    jitter: float = 0.0,
    seed: int = 0,
    transport: "Sending" = "auto",
) -> "Simulation":
    """Execute one iteration of a plan on a virtual clock, its orders as they are, under slow workers and links.

    Args:
        plan: the plan.
        slow: how many times as long workers take: `{"1/2": 1.5}`.
        link_delay: delays of links in s: `{0: 0.02}` of every pipeline, `{"1/0": 0.02}` of pipeline 1.
        jitter: sigma of the log-normal factor on every operation's duration.
        seed: of the jitter.
        transport: "direct": sending holds a worker for the link's delay; "delegated" and "auto": it takes no time.

    Returns:
        `timeline`, `iteration_time_s`, `makespan_s`, `period_s`, `bubble_ratio` and `peak_memory_bytes`.

    Raises:
        InvalidInputError: the plan is not valid, or has no such worker or link.
    """
    from .runners import simulator

    return simulator.simulate(conditioned(plan, slow, link_delay), jitter, seed, transport)


def inject(
    plan: "Plan",
    trace: "Trace",
    *,
    iterations: int,
    policy: str | None = None,
    atlas: str | None = None,
    mitigate: str | None = None,
    normalize_within: int = 100,
    slow: "Factors | None" = None,
    link_delay: "Delays | None" = None,
    costs: "SwitchCosts | None" = None,
    jitter: float = 0.0,
    seed: int = 0,
    transport: "Sending" = "auto",
) -> "SimulatedRun":
    """Let a trace of failures and slow-downs happen to a plan on a virtual clock: `rtk simulate --inject`.

    The monitor of `rtk run` finds out what is slow, and its coordinator decides what follows.

    Args:
        plan: that the job starts with.
        trace: what happens.
        iterations: how many to commit.
        policy: "joint", "slipstream" or "oobleck"; None: Oobleck's where it has made the plan, else jointly.
        atlas: a folder of plans made ahead.
        mitigate: which costly remedies are to be taken, as `--mitigate` says it.
        normalize_within: iterations within which moves must have paid for their copies.
        slow, link_delay, jitter, seed, transport: as for `simulate`.
        costs: what going over to another epoch takes; None: a lost worker is noticed at once, and all else is free.

    Returns:
        Its timeline, the committed iterations, what the coordinator announced, and why it ended.

    Raises:
        InvalidInputError: the plan is not valid, or the trace cannot happen to its workers.
    """
    from .planners.plain.verbs import known
    from .planners.recovery.answers import PolicyName, answers_for, remedies_of
    from .runners.virtual.cluster import check_trace

    if policy is not None:
        known(policy, [one.value for one in PolicyName], "--policy")
    chosen, under = None if policy is None else PolicyName(policy), conditioned(plan, slow, link_delay)
    check_trace(under, trace)
    answers, remedies = answers_for(under, chosen, atlas, normalize_within), remedies_of(mitigate, plan, chosen)
    return story_of(under, trace, iterations, answers, remedies, costs, jitter, seed, transport)


def story_of(
    plan: "Plan",
    trace: "Trace",
    iterations: int,
    answers: Any,
    remedies: "RemedyCosts",
    costs: "SwitchCosts | None",
    jitter: float,
    seed: int,
    transport: "Sending",
) -> "SimulatedRun":
    """Let a trace happen to a plan, watched by the monitor and answered by the planners of `rtk run`."""
    from .planners.recovery.escalation import escalating
    from .runners.virtual.job import simulate_story

    monitor = escalating(monitor_of(plan), plan, remedies, lambda: answers)
    return simulate_story(plan, trace, iterations, answers, costs, jitter, seed, monitor, transport)


def replay(
    profile: "Profile",
    trace: str,
    *,
    pp: int,
    dp: int,
    microbatches: int,
    policies: Sequence[str] | None = None,
    gpus_per_node: int | None = None,
    nodes: int | None = None,
    tensor_parallel: int = 1,
    schedule: str = "1f1b",
    memory_limit: float | Sequence[float] | None = None,
    cost: "Costs | Mapping[str, float] | None" = None,
    until_s: float | None = None,
    trace_format: str | None = None,
    leaving: "Leaving" = "random",
    seed: int = 0,
) -> "ReplayReport":
    """Replay a failure trace under each policy: goodput, and where the time went.

    Args:
        profile: the model's costs.
        trace: the file of the failures: rtk's own traces, spot logs, counts, fault lists.
        pp, dp, microbatches: the shape of the job, as for `plan_slipstream`.
        policies: names; None: all.
        gpus_per_node: of every node; None: one worker's.
        nodes: that are there at the start, where the trace does not say; None: those that the job takes.
        tensor_parallel: GPUs of a worker.
        schedule: "1f1b" or "zero-bubble", of pipelines whose policy has none of its own.
        memory_limit: activation bytes of a worker: one, or one a stage.
        cost: what changes cost, such as `{"restart_s": 600}`.
        until_s: end there; None: with the last event.
        trace_format: None: it is recognised.
        leaving: who leaves when a count drops.
        seed: of whatever draws.

    Raises:
        InvalidInputError: the trace cannot be read, or there is no such policy or cost.
        InfeasibleError: not even a cluster that never fails can train the job.
    """
    from dataclasses import fields

    from .planners.plain.verbs import known, limits_of
    from .planners.policies.catalogue import NAMES, require_name
    from .planners.policies.job import TrainingJob
    from .planners.shape import Shape
    from .replaying import ReplayRequest, ask
    from .runners.traces.read import TraceOptions
    from .schemas.replay import Costs

    names = tuple(NAMES) if policies is None else tuple(policies)
    for name in names:
        require_name(name)
    known(schedule, ("1f1b", "zero-bubble"), "--schedule")
    if not isinstance(cost, Costs):
        for name in cost or {}:
            known(name, [field.name for field in fields(Costs)], "--cost")
        cost = Costs(**dict(cost or {}))  # type: ignore[arg-type]
    shape = Shape(pp, dp, microbatches, limits_of(memory_limit), None, tensor_parallel)
    job = TrainingJob(profile, shape, gpus_per_node or tensor_parallel, cost, schedule, seed)  # type: ignore[arg-type]
    reading = TraceOptions(format=trace_format, nodes=nodes, seed=seed, leaving=leaving)
    return ask(ReplayRequest(job, trace, reading, names, until_s, Path(trace).name))


def timeline_of(plan: "Plan") -> "Timeline":
    """A valid plan, simulated: two iterations if its optimizers are staggered, for they overlap."""
    from .runners.simulator import simulate

    simulation = simulate(plan)
    return simulation.repeated(2) if plan.optimizer == "staggered" else simulation.timeline


def drawing_of(document: Any, names: Sequence[str] | None = None) -> "Drawing":
    """What a document shows, or several of them together, in each of its forms.

    Args:
        document: a plan, which is simulated; a timeline; a simulation; pipeline templates; a report of a replay. Or a
            list: plans and timelines are laid over each other, reports are compared.
        names: of the documents of a list, for its labels.

    Raises:
        InvalidInputError: it cannot be drawn, or a plan is not valid.
    """
    from .runners.simulator import Simulation
    from .schemas.check import require_valid
    from .schemas.plan import Plan
    from .schemas.replay_report import ReplayReport
    from .schemas.templates import Templates
    from .schemas.timeline import Timeline
    from .viz.drawing import ReplaysDrawing, TemplatesDrawing, TimelinesDrawing, labelled, numbered

    documents: list[Any] = list(document) if isinstance(document, list | tuple) else [document]
    names = list(names) if names is not None else [str(number) for number, _ in enumerate(documents, start=1)]
    kinds = {type(one) for one in documents}
    if kinds == {ReplayReport}:
        return ReplaysDrawing(list(zip(numbered(names), documents, strict=True)))
    if kinds == {Templates} and len(documents) == 1:
        return TemplatesDrawing(documents[0])
    if not kinds or not kinds <= {Plan, Timeline, Simulation}:
        raise InvalidInputError(
            f"{listed(sorted(kind.__name__ for kind in kinds)) or 'nothing'} cannot be drawn",
            fix="draw plans, timelines or simulations, reports of replays, or templates, each kind by itself",
        )
    timelines = []
    for one in documents:
        if isinstance(one, Plan):
            require_valid(one, "the plan")
        timelines.append(timeline_of(one) if isinstance(one, Plan) else getattr(one, "timeline", one))
    return TimelinesDrawing(labelled(timelines, names))


def draw(document: Any, path: str, *, title: str | None = None) -> None:
    """Draw a document, or several together, into a file.

    Args:
        document: see `drawing_of`.
        path: of the picture: .html, .svg, .png or .pdf; or .json, a Chrome trace; each also with .gz.
        title: of the picture; None: the file's name.

    Raises:
        InvalidInputError: the document cannot be drawn, or the path's ending names no picture.
    """
    from .planners.plain.verbs import known
    from .schemas.files import write_bytes
    from .viz.drawing import drawn
    from .viz.style import PICTURE_ENDINGS

    bare = Path(path.removesuffix(".gz"))
    known(bare.suffix, (*PICTURE_ENDINGS, ".json"), "--output")
    write_bytes(path, drawn(drawing_of(document), bare.stem if title is None else title, bare.suffix))


def svg_of(document: Any) -> str:
    """A document as an SVG image, which notebooks show."""
    return drawing_of(document).picture(type(document).__name__).svg()
