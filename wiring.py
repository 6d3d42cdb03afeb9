"""What ties wings together: the verbs of the library that need more than one of them.

`rtk/__init__.py` is the library's face; a verb that one wing can do alone stands in that wing. Verbs that are subjects
of their own tie wings beside this file: `running`, `replaying`, `sweeping`, `probing`, `calibrating`, `whole_flow`.
Nothing else imports two wings but `cli/`, which calls these.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .runners.training import PRECISION_OF, is_script_name, require_script
from .schemas.errors import InvalidInputError, remark, require_package
from .schemas.text import counted, joined, known, listed

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from .planners.plain.verbs import Delays, Factors
    from .planners.recovery.escalation import RemedyCosts
    from .profilers.refine import MeasuredRun, Refinement
    from .runners.foreign import ForeignFormat
    from .runners.program import Sending
    from .runners.simulator import Simulation
    from .runners.virtual.job import SimulatedRun, SwitchCosts
    from .schemas.cluster import Cluster
    from .schemas.columns import Selection
    from .schemas.documents import Document
    from .schemas.plan import Layers, Plan
    from .schemas.profile import DataType, Profile
    from .schemas.trace import Trace
    from .viz.drawing import Drawing

D = TypeVar("D", bound="Document")


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
    from .schemas.documents import document_kinds, parse_document, sniff_format
    from .schemas.files import read_bytes, source_of
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
    at_once: int | None = None,
    repeats: int | None = None,
    threads: int = 1,
    overlap: bool = False,
    seed: int = 0,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> "Profile":
    """Measure F, I, W and the optimizer step of a model's layers on this machine, and the memory they hold.

    Needs torch; on GPUs where there are any, else on the CPU.

    Args:
        model: a preset such as "gpt-tiny"; "file.py:factory"; the path of a Hugging Face config.json; or a script that
            holds a `Training`, which says itself what it does not leave open.
        microbatch_size: samples of a micro-batch; None: the model's own.
        sequence_length: tokens of a sample; None: the model's own.
        cut: names of the modules that are layers, such as "model.layers.*".
        dtype: of parameters and activations; None: fp32. In 16 bits gradients are summed in fp32, and the optimizer
            steps on fp32 masters, as `rtk run` trains the plans of such a profile.
        checkpointing: blocks keep their input only, and compute the rest again.
        tp: degrees of tensor parallelism to measure.
        at_once: processes that measure together; None: one a GPU. One alone is this process.
        repeats: timed rounds; None: 8 s of them.
        threads: torch threads on a CPU.
        overlap: also measure what F and B of two micro-batches take side by side on the device.
        seed: of all randomness.
        tell: hears how many rounds are done, and of how many.

    Raises:
        InvalidInputError: the model, its sizes or the degrees do not go together.
        InfeasibleError: the model, or a layer of it, does not fit into the memory.
        RuntimeFailedError: a process failed, or the loopback.
    """
    from .profilers.models.names import require_model

    is_script = is_script_name(model)
    (require_script if is_script else require_model)(model)  # before torch is imported, which takes seconds
    require_package("torch")
    from .profilers.measuring import Measuring, load, measure
    from .runners.torch.stage import TorchStage
    from .schemas.profile import AS_USUAL, ModelForm
    from .training import load_to_measure

    form = ModelForm(cut, dtype or AS_USUAL.dtype, checkpointing)
    make_stage = partial(TorchStage, precision=PRECISION_OF[form.dtype])  # a script's says itself what it is trained in
    asked = Measuring(
        model, microbatch_size, sequence_length, form, tuple(tp), repeats, threads, seed, at_once, overlap
    )
    return measure(asked, make_stage, tell, load_to_measure if is_script else load)


def profile_refine(
    profile: "Profile", timelines: Sequence[str], plans: "Sequence[Plan]" = ()
) -> "tuple[Refinement, list[MeasuredRun]]":
    """Correct a profile's times by what runs measured, stage by stage.

    Args:
        profile: to be corrected.
        timelines: files: timelines of `rtk run`, traces of torch's profiler, or folders of such traces; single traces
            are the ranks of one job.
        plans: that were run; for others stages are cut as planners cut them.

    Returns:
        The refinement, with the `profile` as it is now, and what the timelines say.

    Raises:
        InvalidInputError: a file cannot be read, or is of no such job.
    """
    from .planners.shape import cut_stages
    from .profilers.refine import given_timelines, refine, run_of

    def cut(of: "Profile", count: int) -> "list[Layers]":
        return [stage.layers for stage in cut_stages(of, count, peers=1).stages]

    runs = [run_of(given, profile, plans, cut) for given in given_timelines(timelines)]
    return refine(profile, runs), runs


def import_plan(
    schedule: str, profile: "Profile", *, form: "ForeignFormat" = "torch-csv", dp: int | None = None
) -> "Plan":
    """Make a plan of what another program wrote or is told: `rtk import`.

    Args:
        schedule: the file of one pipeline's orders, torchtitan's folder, or a file of Megatron's flags.
        profile: gives costs and stages: its layers are cut into as many stages as the file has, unless that says how.
        form: "torch-csv", "torch-comms", "torchtitan" or "megatron".
        dp: pipelines, all with these orders; None: as many as the folder says, else one.

    Raises:
        InvalidInputError: the file cannot be read, or does not go with the profile or the number of pipelines.
    """
    import hashlib

    from .planners.pipeline import plan_from_orders
    from .planners.shape import Shape
    from .runners.foreign import read_foreign

    read = read_foreign(schedule, form, dp or 1)
    found, source = read.orders, read.source
    if dp is not None and read.pipelines not in (None, dp):
        what = f"the settings have {counted(read.pipelines, 'pipeline')}, not {dp}"
        raise InvalidInputError(what, where=schedule, fix="leave --dp out")
    stages = len(found.orders) if found.placement is None else sum(map(len, found.placement))
    if stages > len(profile.layers):
        raise InvalidInputError(
            f"{stages} stages need as many layers, the profile has {len(profile.layers)}",
            where=source,
            fix="give the profile of a model with more layers",
        )
    pairs = found.pairs if profile.overlap is not None and found.may_be_kept else ()
    if any(found.pairs) and not pairs:
        count = counted(sum(map(len, found.pairs)), "pair")
        why = "the profile does not say what they take" if found.may_be_kept else "they are not all of F and then B"
        remark(f"warning: {count} of OVERLAP_F_B stand one operation after the other: {why}")
    microbatches = len({one.microbatch for order in found.orders for one in order})
    pipelines = read.pipelines or dp or 1
    shape = Shape(len(found.orders), pipelines, microbatches, tensor_parallel=read.tensor_parallel, overlap=any(pairs))
    made = plan_from_orders(profile, found.orders, shape, "import", source, found.placement, pairs, read.cut)
    return replace(made, inputs={**made.inputs, "schedule": hashlib.sha256(read.text.encode()).hexdigest()})


def simulate(
    plan: "Plan",
    *,
    slow: "Factors | None" = None,
    link_delay: "Delays | None" = None,
    jitter: float = 0.0,
    seed: int = 0,
    transport: "Sending" = "auto",
    cluster: "str | Cluster | None" = None,
    overlay: str | None = None,
) -> "Simulation":
    """Execute one iteration of a plan on a virtual clock, its orders as they are, under slow workers and links.

    Args:
        plan: the plan.
        slow: how many times as long workers take: `{"1/2": 1.5}`.
        link_delay: delays of links in s: `{0: 0.02}` of every pipeline, `{"1/0": 0.02}` of pipeline 1.
        jitter: sigma of the log-normal factor on every operation's duration.
        seed: of the jitter.
        transport: "direct": sending holds a worker for the link's delay; "delegated" and "auto": it takes no time.
        cluster, overlay: the machines, and what is slow there, as for `plan_pipeline`.

    Returns:
        `timeline`, `iteration_time_s`, `makespan_s`, `period_s`, `bubble_ratio` and `peak_memory_bytes`.

    Raises:
        InvalidInputError: the plan is not valid, has no such worker or link, or workers have failed on these machines.
    """
    from .planners.plain.verbs import conditioned
    from .runners import simulator
    from .schemas.check import require_valid
    from .schemas.site import site_of

    require_valid(plan, "the plan")
    under, failed = conditioned(plan, slow, link_delay, site_of(cluster, overlay))
    if failed:
        raise InvalidInputError(
            "workers have failed on this cluster", where="--overlay", fix="let it happen: rtk.inject, without a trace"
        )
    return simulator.simulate(under, jitter, seed, transport)


def inject(
    plan: "Plan",
    trace: "Trace | None" = None,
    *,
    iterations: int,
    policy: str | None = None,
    atlas: str | None = None,
    mitigate: str | None = None,
    normalize_within: int = 100,
    host_memory: float = 0.0,
    slow: "Factors | None" = None,
    link_delay: "Delays | None" = None,
    costs: "SwitchCosts | None" = None,
    jitter: float = 0.0,
    seed: int = 0,
    transport: "Sending" = "auto",
    log_memory: float | None = None,
    cluster: "str | Cluster | None" = None,
    overlay: str | None = None,
) -> "SimulatedRun":
    """Let a trace of failures and slow-downs happen to a plan on a virtual clock: `rtk simulate --inject`.

    The monitor of `rtk run` finds out what is slow, and its coordinator decides what follows.

    Args:
        plan: that the job starts with.
        trace: what happens, beside what the overlay calls failed, which fails at the start.
        iterations: how many to commit.
        policy: "joint", "slipstream" or "oobleck"; None: Oobleck's where it has made the plan, else jointly.
        atlas: a folder of plans made ahead.
        mitigate: which costly remedies are to be taken, as `--mitigate` says it.
        normalize_within: iterations within which moves must have paid for their copies.
        host_memory: bytes of activations that a worker may hold beyond its limit, under an adapted plan.
        slow, link_delay, jitter, seed, transport, cluster, overlay: as for `simulate`.
        costs: what going over to another epoch takes; None: a lost worker is noticed at once, and all else is free.
        log_memory: bytes of an iteration's messages that each worker keeps, lest they be computed again when others
            die, of sizes that `costs` say; None: all of them; 0: nothing is kept, and the iteration is done again.

    Returns:
        Its timeline, the committed iterations, what the coordinator announced, and why it ended.

    Raises:
        InvalidInputError: the plan is not valid, or the trace cannot happen to its workers.
    """
    from .planners.plain.verbs import conditioned
    from .planners.recovery.answers import PolicyName, answers_for, remedies_of
    from .schemas.check import require_valid
    from .schemas.site import site_of
    from .schemas.trace import check_trace, failing

    if policy is not None:
        known(policy, [one.value for one in PolicyName], "--policy")
    require_valid(plan, "the plan")
    chosen = None if policy is None else PolicyName(policy)
    under, failed = conditioned(plan, slow, link_delay, site_of(cluster, overlay))
    happens = failing(under, failed, lambda left: trace)
    check_trace(under, happens)
    answers = answers_for(under, chosen, atlas, normalize_within, host_memory)
    remedies = remedies_of(mitigate, plan, chosen)
    return story_of(under, happens, iterations, answers, remedies, costs, jitter, seed, transport, log_memory)


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
    log_memory_bytes: float | None = None,
) -> "SimulatedRun":
    """Let a trace happen to a plan, watched by the monitor and answered by the planners of `rtk run`."""
    from .planners.recovery.escalation import escalating
    from .planners.resumption.plan import plan_rest
    from .profilers.failslow.monitor.ring import monitor_of
    from .runners.virtual.job import simulate_story

    monitor = escalating(monitor_of(plan), plan, remedies, lambda: answers)
    resume = None if log_memory_bytes == 0 else plan_rest
    return simulate_story(
        plan, trace, iterations, answers, costs, jitter, seed, monitor, transport, resume, log_memory_bytes
    )


def drawing_of(document: Any, names: Sequence[str] | None = None, part: "Selection | None" = None) -> "Drawing":
    """What a document shows, or several of them together, in each of its forms.

    Args:
        document: a plan or a resumption, which is simulated; a timeline; a simulation; pipeline templates; a report of
            a replay. Or a list: plans, resumptions and timelines are laid over each other, reports are compared.
        names: of the documents of a list, for its labels.
        part: what of plans and timelines is drawn; None: all.

    Raises:
        InvalidInputError: it cannot be drawn, a plan is not valid, or nothing happens in that part.
    """
    from .runners.simulator import Simulation
    from .schemas.columns import ALL, TimelineColumns, select
    from .schemas.plan import Plan
    from .schemas.resumption import Resumption
    from .schemas.timeline import Timeline
    from .viz.drawing import PAINTERS

    documents: list[Any] = list(document) if isinstance(document, list | tuple) else [document]
    names = list(names) if names is not None else [str(number) for number, _ in enumerate(documents, start=1)]
    kinds = {type(one) for one in documents}
    shown = {Timeline if kind in (Plan, Resumption, Simulation, TimelineColumns) else kind for kind in kinds}
    painter = PAINTERS.get(next(iter(shown))) if len(shown) == 1 else None
    if painter is None or (painter.alone and len(documents) > 1):
        raise InvalidInputError(
            f"{listed(sorted(kind.__name__ for kind in kinds)) or 'nothing'} cannot be drawn",
            fix="draw plans, timelines or simulations, reports of replays, or templates, each kind by itself",
        )
    whole = [_as_shown(one) for one in documents]
    if part is None or part == ALL:
        return painter.drawing_of(whole, names)
    if shown != {Timeline}:
        raise InvalidInputError(
            "only of plans and timelines a part can be drawn",
            where="--pipelines, --workers, --from, --until, --iterations",
            fix="leave them out",
        )
    title = painter.drawing_of(whole, names).title
    return replace(painter.drawing_of([select(one, part) for one in whole], names), title=title)


def _as_shown(document: Any, source: str | None = None) -> Any:
    """A plan or a resumption, of which `source` is the file, as the timeline of its simulation, a simulation as its
    own; anything else as it is."""
    from .runners.simulator import Simulation
    from .runners.undisturbed import columns_of_plan
    from .schemas.check import require_valid
    from .schemas.plan import Plan
    from .schemas.resumption import Resumption

    if isinstance(document, Plan):
        require_valid(document, source or "the plan")
        return columns_of_plan(document)
    if isinstance(document, Resumption):
        from .runners.resumed import columns_of_resumption
        from .schemas.check_rest import require_valid_resumption

        require_valid_resumption(document, source or "the resumption")
        return columns_of_resumption(document)
    return document.timeline if isinstance(document, Simulation) else document


def drawing_of_files(files: Sequence[str], names: Sequence[str], part: "Selection | None" = None) -> "Drawing":
    """What files show, as `drawing_of` has it; plans and resumptions are simulated.

    Args:
        files: plans, resumptions and timelines, or reports of replays, or one of templates.
        names: of the files, for labels.
        part: what of plans and timelines is drawn; None: all.

    Raises:
        InvalidInputError: a file cannot be read, is of no such kind, or of one that is not drawn with the others; or
            nothing of it is in that part.
    """
    from .schemas.documents import parse_document, sniff_format
    from .schemas.files import read_bytes, source_of
    from .schemas.plan import Plan
    from .schemas.resumption import Resumption
    from .schemas.timeline import Timeline
    from .schemas.timeline_file import read_columns
    from .viz.drawing import PAINTERS

    for file in files:
        _refuse_folder(file)
    drawable: list[Any] = [Plan, Resumption, *PAINTERS]
    kinds: dict[str | None, Any] = {one.FORMAT: one for one in drawable}
    laid_over = {Plan.FORMAT, Resumption.FORMAT, Timeline.FORMAT}
    data = [(source_of(file), read_columns(file) or read_bytes(file)) for file in files]
    formats = [sniff_format(one, source) if isinstance(one, bytes) else Timeline.FORMAT for source, one in data]
    for kind, painter in PAINTERS.items():
        if painter.alone and kind.FORMAT in formats and len(files) > 1:
            raise InvalidInputError(
                f"{len(files)} files, with {painter.alone} among them",
                where="FILE",
                fix=f"only plans and timelines are laid over each other: draw {painter.noun} by themselves",
            )
    documents = []
    for (source, one), found in zip(data, formats, strict=True):
        if found not in kinds or (found not in laid_over and set(formats) != {found}):
            nouns = joined(("plans", "resumptions", *(painter.noun for painter in PAINTERS.values())))
            raise InvalidInputError(
                f"only {nouns} can be drawn, and replays not together with others; "
                f"this is {found or 'a file that names no format'}",
                where=f"{source}, /format",
                fix="rtk plan makes plans and templates; rtk simulate and rtk run write timelines; rtk replay its "
                "reports",
            )
        whole = parse_document(one, kinds[found], source) if isinstance(one, bytes) else one
        documents.append(_as_shown(whole, source))
    return drawing_of(documents, names, part)


def _refuse_folder(path: str) -> None:
    """Raise InvalidInputError for a folder: of an atlas one plan can be drawn."""
    from .planners.slipstream.atlas_folder import ATLAS, PLANS

    if not Path(path).is_dir():
        return
    if not Path(path, ATLAS).exists():
        raise InvalidInputError(
            "this is a folder", where=path, fix="give files: plans, timelines, templates or replays"
        )
    plans = sorted(str(one) for one in Path(path, PLANS).glob("*.json.gz"))
    raise InvalidInputError(
        "this is an atlas, a folder of plans",
        where=path,
        fix=f"draw one of its plans: rtk viz {plans[0]}"
        if plans
        else f"take a plan out of it and draw that: rtk plan slipstream --from {path} --failed K/I -o plan.json",
    )


def figure(document: Any) -> "Figure":
    """A plan or a timeline as a plotly figure, which notebooks show and let you change.

    Args:
        document: a plan, which is simulated; a timeline; a simulation; or a list, which are laid over each other.

    Raises:
        InvalidInputError: it is none of these, or a plan is not valid.
    """
    from .schemas.columns import TimelineColumns
    from .schemas.timeline import Timeline
    from .viz.drawing import labelled
    from .viz.facts import title_of
    from .viz.figure import figure_of

    shown = [_as_shown(one) for one in (document if isinstance(document, list | tuple) else [document])]
    if not all(isinstance(one, Timeline | TimelineColumns) for one in shown):
        raise InvalidInputError("only plans and timelines are figures", fix="draw other documents: rtk.draw")
    timelines = labelled(shown, [str(number) for number, _ in enumerate(shown, start=1)])
    return figure_of(timelines, title_of(timelines))


def draw(document: Any, path: str, *, title: str | None = None, part: "Selection | None" = None) -> None:
    """Draw a document, or several together, into a file.

    Args:
        document: see `drawing_of`.
        path: of the picture: .html, .svg, .png or .pdf; .json, a Chrome trace; or .perfetto-trace or .pftrace, a
            Perfetto trace; each also with .gz. One that ends in `/` is a folder, for a Chrome trace a rank.
        title: of the picture; None: what the document is, or else the file's name.
        part: what of plans and timelines is drawn (schemas/columns.py); None: all.

    Raises:
        InvalidInputError: the document cannot be drawn, or the path's ending names no picture.
    """
    from .schemas.files import written
    from .viz.drawing import drawn, write_ranks
    from .viz.style import PICTURE_ENDINGS, TRACE_ENDINGS

    if path.endswith("/"):
        write_ranks(drawing_of(document, part=part), path)
        return
    bare = Path(path.removesuffix(".gz"))
    known(bare.suffix, (*PICTURE_ENDINGS, *TRACE_ENDINGS), "--output")
    drawing = drawing_of(document, part=part)
    pieces = drawn(drawing, title or drawing.title or bare.stem, bare.suffix)
    with written(path) as stream:
        stream.writelines(pieces)


def svg_of(document: Any) -> str:
    """A document as an SVG image, which notebooks show."""
    return drawing_of(document).picture(type(document).__name__).svg()
