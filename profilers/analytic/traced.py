"""What traces of training steps say about computed times: products, everything else and the step, each with a number.

With the settings of the job the parts that a step took are compared with the same parts as computed, F and the backward
pass apart: one number for matrix products, and one for attention, what goes through memory, and the gaps between
kernels. Sums over tensor-parallel groups are not corrected. Without settings, or where the trace is of another model
than they say, its products are compared one by one with what their shapes are computed to take; of the rest nothing is
learned.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from ...schemas.errors import InvalidInputError
from ...schemas.gpus import Gpu
from ...schemas.gpus import gpu as known_gpu
from ...schemas.profile import DataType
from ...schemas.quantities import print_number, print_percent, print_time
from ...schemas.text import counted
from .costs import ELEMENT_BYTES, WORKS, Kind, LayerWork, Work, product
from .estimate import Calibration, Correction, Corrections, Learned, Rates, rates_of, step_work
from .observed import ObservedRun, PlanOf, about_gpus, compared, learned_of, sure
from .software import Software
from .step_trace import Pass, StepTrace

ALIKE = 0.02  # of a step's FLOPs, by which a trace may differ from its settings
PLAUSIBLE = 3.0  # times what is computed; beyond it something may be wrong


def learn_from_trace(run: ObservedRun, trace: StepTrace, device: Gpu, plan_of: PlanOf) -> Learned:
    """What a trace says, with the settings of the job that it was taken of.

    Args:
        run: the settings; its iterations are those of the trace.
        trace: of one of its ranks.
        device: that is computed for.
        plan_of: plans a profile's 1F1B in the run's shape, on its machines.

    Raises:
        InvalidInputError: the stage of the rank, or what blocks it has, is not known, or a part took no time.
    """
    run = replace(
        run,
        gpu=trace.gpu or run.gpu,
        iterations_s=tuple(step.time_s for step in trace.steps if step.time_s is not None),
    )
    measured_on = device if run.gpu is None else known_gpu(run.gpu)
    works = _works(run, _stage(run, trace))
    if (other := _at_odds(run, trace, works)) is not None:
        learned = learn_products(trace, device, run.batch.software)
        return replace(learned, remarks=(other, *learned.remarks))
    rates = rates_of(measured_on, run.batch.dtype, software=run.batch.software)
    corrections = _corrections(run, trace, rates, works)
    block = corrections["block"]
    step = f"the optimizer step {block.optimizer.matrix:.3f}" if _stepped_s(trace) else "no optimizer step is in it"
    remarks = [
        f"learned from {counted(len(trace.steps), 'step')} of {trace.source} ({run.words}): products take "
        f"{block.forward.matrix:.3f} of what is computed in F{_spread(trace, 'forward', 'products_s')}, "
        f"{block.backward_input.matrix:.3f} in the backward pass{_spread(trace, 'backward', 'products_s')}; "
        f"all else {block.forward.rest:.3f} and {block.backward_input.rest:.3f}; {step}",
        _shares(trace),
    ]
    if not trace.has_all_shapes:
        remarks += _doubts(block, "check that the trace is of these settings (record_shapes=True tells)")
    remarks += compared(run, measured_on, plan_of, corrections)
    return learned_of(run, device, corrections, remarks, trace.device)


def _at_odds(run: ObservedRun, trace: StepTrace, works: Sequence[tuple[Kind, LayerWork]]) -> str | None:
    """How the trace's products differ from those of the settings, for people; None where nothing says that they do."""
    if not trace.has_all_shapes:
        return None
    only = "it is of another model or job, and only its products are used"
    if (dtype := _numbers(trace)) != run.batch.dtype:
        return f"products of F are of {dtype} in the trace, and of {run.batch.dtype} by the settings: {only}"
    flops = run.microbatches * sum(work.forward.matrix_flops for _, work in works)
    traced = trace.usual("forward", "flops")
    if abs(traced / flops - 1) > ALIKE:
        return (
            f"products of F have {print_number(traced, 4)} FLOPs a step in the trace, and {print_number(flops, 4)} by "
            f"the settings: {only}"
        )
    return None


def learn_products(trace: StepTrace, device: Gpu, software: Software) -> Learned:
    """What the products of a trace say, of which no settings are known.

    Args:
        trace: of one rank.
        device: that is computed for.
        software: the program for which products are computed, here and where the calibration is used.

    Raises:
        InvalidInputError: it has no shapes, or numbers that the GPU does not compute in.
    """
    if not trace.has_shapes:
        raise InvalidInputError(
            "the trace says neither what model it is of nor the shapes of its products",
            where=trace.source,
            fix="record with record_shapes=True, or give its settings in a YAML file: model, pp, global_batch, and "
            "trace: FILE (docs/profiles.md)",
        )
    measured_on = device if trace.gpu is None else known_gpu(trace.gpu)
    dtype = _numbers(trace)
    rates = rates_of(measured_on, dtype, software=software)
    forward, backward = (_of_shapes(trace, one, rates, dtype) for one in ("forward", "backward"))
    ahead, back = Correction(matrix=forward), Correction(matrix=backward)
    count = sum(count for count, _ in trace.steps[0].passes["forward"].shapes.values())
    remarks = [
        f"learned from {counted(len(trace.steps), 'step')} of {trace.source}, with {counted(count, 'product')} in F: "
        f"products take {forward:.3f} of what is computed in F{_spread(trace, 'forward', 'products_s')}, "
        f"{backward:.3f} in the backward pass{_spread(trace, 'backward', 'products_s')}",
        _shares(trace),
        "the trace does not say of what model it is: all that is no product stays as computed (a YAML file with model, "
        "pp, global_batch and trace says it)",
        *_doubts(Corrections(ahead, back, back), "its products may be too small to tell of large ones"),
        *about_gpus(trace.gpu, device, trace.source, trace.device),
    ]
    corrections: Calibration = {kind: Corrections(ahead, back, back) for kind in WORKS}
    return Learned(corrections, dtype, None, None, f"{trace.source}: products", tuple(remarks))


def _doubts(found: Corrections, what: str) -> list[str]:
    both = found.forward.matrix, found.backward_input.matrix
    return [] if all(1 / PLAUSIBLE < one < PLAUSIBLE for one in both) else [f"that is far from 1: {what}"]


def _stage(run: ObservedRun, trace: StepTrace) -> int:
    """Which stage the trace's rank holds: ranks are counted stage after stage, in Megatron-LM as in torchtitan."""
    if run.pp == 1:
        return 0
    if run.shape.blocks % run.pp:
        raise InvalidInputError(
            f"{run.shape.blocks} blocks are not as many for each of {run.pp} stages, and nobody says which have more",
            where=run.source,
            fix="give the trace by itself, recorded with record_shapes=True, or the time of an iteration in its place",
        )
    if trace.rank is None or not trace.world_size or trace.world_size % run.pp or trace.rank >= trace.world_size:
        raise InvalidInputError(
            "the trace does not say which rank it is of, so not which stage",
            where=trace.source,
            fix="record it in the job itself, with torch.distributed initialized",
        )
    return trace.rank * run.pp // trace.world_size


def _works(run: ObservedRun, stage: int) -> list[tuple[Kind, LayerWork]]:
    """What the rank does for a micro-batch, layer by layer."""
    kinds: list[Kind] = ["block"] * (run.shape.blocks // run.pp)
    if stage == 0:
        kinds.insert(0, "embedding")
    if stage == run.pp - 1:
        kinds.append("head")
    return [(kind, WORKS[kind](run.shape, run.batch, run.tensor_parallel)) for kind in kinds]


def _corrections(
    run: ObservedRun, trace: StepTrace, rates: Rates, works: Sequence[tuple[Kind, LayerWork]]
) -> Calibration:
    """Measured over computed, the same for all layers; what is computed again is as F."""

    def computed_s(of: Callable[[Work], float], *passes: Work) -> float:
        return run.microbatches * sum(of(work) for work in passes)

    def ratio(pass_: Pass, what: str, computed_s: float, less_s: float = 0.0) -> float:
        took_s = trace.usual(pass_, what)
        if took_s <= less_s:
            called = {"products_s": "products take", "other_s": "all but products takes"}[what]
            again = f", no longer than F again, {print_time(less_s)}" if less_s else ""
            raise InvalidInputError(
                f"{called} {print_time(took_s)} of a step's {pass_} pass in the trace{again}",
                where=trace.source,
                fix="check the settings (model, checkpointing) that go with the trace, or give the trace by itself",
            )
        return (took_s - less_s) / computed_s

    ahead = [work.forward for _, work in works]
    again = [work.forward for kind, work in works if kind == "block" and run.is_checkpointing]
    back = [one for _, work in works for one in (work.backward_input, work.backward_weight)]
    forward = Correction(
        ratio("forward", "products_s", computed_s(rates.matrix_s, *ahead)),
        ratio("forward", "other_s", computed_s(rates.rest_s, *ahead)),
    )
    backward = Correction(
        ratio(
            "backward",
            "products_s",
            computed_s(rates.matrix_s, *back),
            forward.matrix * computed_s(rates.matrix_s, *again),
        ),
        ratio("backward", "other_s", computed_s(rates.rest_s, *back), forward.rest * computed_s(rates.rest_s, *again)),
    )
    stepped_s = _stepped_s(trace)
    ranks = run.dp if run.shards_optimizer else 1
    steps_s = sum(rates.pass_s(step_work(work.parameters, run.batch), Correction(), 0.0) for _, work in works) / ranks
    step = Correction(stepped_s / steps_s, stepped_s / steps_s) if stepped_s else Correction()
    return {kind: Corrections(forward, backward, backward, step) for kind in WORKS}


def _stepped_s(trace: StepTrace) -> float:
    return trace.usual("step", "total_s")


def _numbers(trace: StepTrace) -> DataType:
    """The numbers in which products took most of the time."""
    times_s: dict[DataType, float] = {}
    for step in trace.steps:
        for one, (_, time_s) in step.passes["forward"].shapes.items():
            times_s[one.dtype] = times_s.get(one.dtype, 0.0) + time_s
    return max(times_s, key=lambda one: times_s[one])


def _of_shapes(trace: StepTrace, pass_: Pass, rates: Rates, dtype: DataType) -> float:
    """What the products of a pass took, over what each is computed to take by its shape."""
    measured_s = computed_s = 0.0
    for step in trace.steps:
        for one, (count, time_s) in step.passes[pass_].shapes.items():
            if one.dtype == dtype:
                work = product(one.rows, one.inputs, one.outputs, ELEMENT_BYTES[dtype])
                measured_s, computed_s = measured_s + time_s, computed_s + count * rates.matrix_s(work)
    if not (measured_s and computed_s):
        raise InvalidInputError(
            f"the trace has no products of {dtype} in its {pass_} pass", where=trace.source, fix="record whole steps"
        )
    return measured_s / computed_s


def _spread(trace: StepTrace, pass_: Pass, what: str) -> str:
    return sure([getattr(step.passes[pass_], what) for step in trace.steps])


def _shares(trace: StepTrace) -> str:
    """What a step's time went into, for people."""
    both: tuple[Pass, Pass] = ("forward", "backward")
    parts = {
        name: sum(trace.usual(one, what) for one in both)
        for name, what in (("products", "products_s"), ("attention", "attention_s"), ("the rest", "rest_s"))
    }
    parts["gaps between kernels"] = sum(trace.usual(one, "gaps_s") for one in both)
    parts["the optimizer step"] = _stepped_s(trace)
    parts["exposed sums and messages"] = median(step.sums_s for step in trace.steps)
    whole_s = sum(parts.values())
    told = ", ".join(f"{name} {print_percent(part_s / whole_s)}" for name, part_s in parts.items())
    gap = print_time(median(step.gap_s for step in trace.steps))
    return f"a step's {print_time(whole_s)} on {trace.device}: {told}; the median gap is {gap}"
