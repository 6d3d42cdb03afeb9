"""What runs' pipelines lost, beside what their schedules must lose: out of timelines with known bubbles, and traces."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rtk
from rtk.planners.pipeline import plan_from_orders, plan_pipeline
from rtk.planners.placement.published import PUBLISHED
from rtk.planners.scheduling.problem import WEIGHT
from rtk.planners.shape import Shape
from rtk.profilers.annotations import read_annotations
from rtk.runners.simulator import simulate
from rtk.schemas.bubble import BubbleReport
from rtk.schemas.documents import canonical, parse_document, write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.orders import Operation
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.quantities import print_percent
from rtk.schemas.timeline import Event, Span, Timeline
from rtk.schemas.timeline_file import read_columns
from rtk.viz.bubble import words_of_bubble

from .profilers.kineto_steps import trace_zero_bubble

EVEN = LayerCost(0.01, 0.01, 0.01)


def profile(*costs: LayerCost) -> Profile:
    return Profile(tuple(Layer((cost,)) for cost in costs))


def report_of(timeline: Timeline, folder: Path, plan: Plan | None = None) -> BubbleReport:
    """The report of a timeline that was written to a file."""
    path = folder / "timeline.json"
    write_document(str(path), timeline)
    return rtk.bubble(str(path), plan=plan)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize("placed", [{}, {"placement": "loop", "chunks": 2}, {"placement": "v", "chunks": 2}])
def test_a_simulations_bubble_is_found_exactly(schedule: Any, placed: Any, tmp_path: Path) -> None:
    """Bubble ratio and iteration time are the simulation's; parts add up; the orders take what they were planned to.

    Whatever the schedule, with links that take time, uneven stages, steps and two pipelines.
    """
    if schedule == "gpipe" and placed:
        pytest.skip("GPipe has one stage a worker")
    costs = [LayerCost(0.01 + 0.001 * (n % 3), 0.01, 0.008, optimizer_s=0.002) for n in range(6)]
    shape = Shape(3, 2, 5, link_delay_s={(None, 0): 0.004, (None, 1): 0.001}, **placed)
    plan = plan_pipeline(profile(*costs), shape, schedule)
    assert plan.prediction is not None
    simulated = simulate(plan)
    report = report_of(simulated.timeline, tmp_path, plan)
    assert report.iteration_time_s == pytest.approx(simulated.iteration_time_s, rel=1e-12)
    assert report.bubble_ratio == pytest.approx(simulated.bubble_ratio, abs=1e-12)
    assert report.planned_s == plan.prediction.iteration_time_s
    for one in report.stages:
        assert one.compute_s + one.step_s + one.idle_s == pytest.approx(report.iteration_time_s, rel=1e-12)
    bound = report.bound
    assert bound is not None
    assert bound.modelled_s == pytest.approx(simulated.iteration_time_s, rel=1e-9)
    assert bound.lower_bound_s <= bound.dependency_s * (1 + 1e-12) <= bound.modelled_s * (1 + 1e-9)
    assert all(0 < one.saved_s == bound.modelled_s - one.iteration_time_s for one in bound.changes)
    assert [one.saved_s for one in bound.changes] == sorted((one.saved_s for one in bound.changes), reverse=True)
    assert parse_document(canonical(report), BubbleReport, "it") == report


@settings(max_examples=25)
@given(stages=st.integers(2, 5), microbatches=st.integers(1, 9))
def test_even_1f1b_idles_as_megatron_counts_it(
    stages: int, microbatches: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Idle time over computing time of even stages whose messages take no time is (p - 1) / m."""
    plan = plan_pipeline(profile(*[EVEN] * stages), Shape(stages, 1, microbatches), "1f1b")
    report = report_of(simulate(plan).timeline, tmp_path_factory.getbasetemp())
    assert report.bound is not None
    assert report.idle_over_compute == pytest.approx((stages - 1) / microbatches)
    assert report.bound.even_ratio == (stages - 1) / microbatches
    assert report.imbalance == pytest.approx(0)


@cache
def published_plan(name: str) -> Plan:
    """A published order, on even stages."""
    form = next(form for form in PUBLISHED if form.name == name)
    kinds = ("F", "I" if form.split else "B", "W")
    rows = [
        [
            Operation(kinds[one.kind], 0, one.microbatch, one.stage)  # type: ignore[arg-type]
            for one in row
            if form.split or one.kind != WEIGHT
        ]
        for row in form.orders(4, 2, 8)
    ]
    shape = Shape(4, 1, 8, placement=form.placement, chunks=2)
    return plan_from_orders(profile(*[EVEN] * 8), rows, shape, "test", name)


@pytest.mark.parametrize("name", [form.name for form in PUBLISHED])
def test_published_orders_are_recognised(name: str, tmp_path: Path) -> None:
    """By the order of operations alone, each by its own name."""
    bound = report_of(simulate(published_plan(name)).timeline, tmp_path).bound
    assert bound is not None and bound.schedule == name


@pytest.mark.parametrize(("schedule", "name"), [("gpipe", "GPipe"), ("1f1b", "1F1B")])
def test_plain_orders_are_recognised(schedule: Any, name: str, tmp_path: Path) -> None:
    """GPipe and 1F1B; 1F1B with I and W apart is ZB-H1's; with two micro-batches changed none is known."""
    plan = plan_pipeline(profile(*[EVEN] * 3), Shape(3, 1, 6), schedule)
    timeline = simulate(plan).timeline
    bound = report_of(timeline, tmp_path).bound
    assert bound is not None and bound.schedule == name
    split: list[Span] = []
    for span in timeline.spans:
        middle_s = (span.start_s + span.end_s) / 2
        rest = (span.op.replace("B", "I"), span.start_s, middle_s), (span.op.replace("B", "W"), middle_s, span.end_s)
        split += [Span(span.worker, *one) for one in rest] if span.op.startswith("B") else [span]
    apart = report_of(replace(timeline, spans=tuple(split)), tmp_path).bound
    assert apart is not None
    assert apart.schedule == ("zero bubble (ZB-H1)" if name == "1F1B" else "GPipe, its backward in two")
    swapped = {"F4": "F5", "F5": "F4", "B4": "B5", "B5": "B4"}
    other = tuple(replace(span, op=swapped.get(span.op, span.op)) for span in timeline.spans)
    own = report_of(replace(timeline, spans=other), tmp_path).bound
    assert own is not None and own.schedule == "an order of its own"


def helped(report: BubbleReport) -> dict[str, str]:
    assert report.bound is not None
    return {one.kind: one.what for one in report.bound.changes}


def test_what_would_help_is_what_was_wrong(tmp_path: Path) -> None:
    """A slow link, an uneven cut, a slow worker and long sums each come first where they cost most."""
    shape = Shape(3, 2, 12)
    even = plan_pipeline(profile(*[EVEN] * 3), shape, "zero-bubble")
    slow_link = plan_pipeline(profile(*[EVEN] * 3), replace(shape, link_delay_s={(None, 1): 0.2}), "zero-bubble")
    uneven = plan_pipeline(profile(EVEN, EVEN, LayerCost(0.03, 0.03, 0.03)), shape, "zero-bubble")
    late = [replace(one, slowdown=3.0) if one.name == "1/1" else one for one in even.workers]
    slow_worker = replace(even, workers=tuple(late), prediction=None)
    summed = replace(
        even,
        prediction=None,
        templates=tuple(
            replace(one, stages=tuple(replace(stage, allreduce_s=0.3) for stage in one.stages))
            for one in even.templates
        ),
    )
    found = {
        name: report_of(simulate(plan).timeline, tmp_path)
        for name, plan in {"link": slow_link, "cut": uneven, "slow": slow_worker, "sum": summed}.items()
    }
    for name, report in found.items():
        assert next(iter(helped(report))) == name, (name, report.bound)
    assert "between columns" in helped(found["link"])["link"] or "link 1" in helped(found["link"])["link"]
    assert "worker 1/1" in helped(found["slow"])["slow"]
    sums = found["sum"]
    assert sums.bound is not None and sums.bound.changes[0].saved_s == pytest.approx(0.3)
    assert [one.exposed_communication_s for one in sums.stages] == [pytest.approx(0.3)] * 3
    assert found["cut"].imbalance == pytest.approx(0.09 / (0.15 / 3) - 1)


def test_only_iterations_after_the_last_change_count_and_not_the_first(tmp_path: Path) -> None:
    """An iteration that warms up, and those before another plan took over, are not in the means."""
    plan = plan_pipeline(profile(*[EVEN] * 2), Shape(2, 1, 4), "1f1b")
    one = simulate(plan).timeline
    length_s = max(span.end_s for span in one.spans)

    def at(number: int, begin_s: float, factor: float) -> list[Span]:
        times = [(span, begin_s + span.start_s * factor, begin_s + span.end_s * factor) for span in one.spans]
        return [Span(span.worker, span.op, start_s, end_s, number) for span, start_s, end_s in times]

    spans = [*at(0, 0.0, 3.0), *at(1, 10.0, 2.0), *at(2, 10.0 + 2 * length_s, 1.0), *at(3, 10.0 + 3 * length_s, 1.0)]
    run = replace(one, source="measured", spans=tuple(spans), events=(Event(9.0, "epoch"),))
    report = report_of(run, tmp_path)
    assert (report.iterations, report.source) == (2, "measured")
    assert report.iteration_time_s == pytest.approx(length_s)


def test_a_last_iteration_with_nothing_but_a_step_is_told_and_no_bug(tmp_path: Path) -> None:
    """Of operations the first iteration counts, where it is the only one in which anything was computed."""
    spans = (Span("0/0", "F0", 0, 1, 0), Span("0/0", "B0", 1, 3, 0), Span("0/0", "step", 4, 5, 1))
    found = report_of(Timeline("measured", spans), tmp_path)
    assert found.stages[0].step_s == 1.0 and any("micro-batch 0.0 at stage 0" in one for one in found.remarks)


def test_iterations_that_overlap_are_each_workers_own(tmp_path: Path) -> None:
    """With a staggered optimizer the windows are the workers': their mean is the period."""
    plan = replace(plan_pipeline(profile(*[EVEN] * 3), Shape(3, 1, 6), "1f1b"), optimizer="staggered", prediction=None)
    from rtk.runners.undisturbed import columns_of_plan
    from rtk.schemas.columns import timeline_from

    timeline = timeline_from(columns_of_plan(plan))
    report = report_of(timeline, tmp_path)
    simulated = simulate(plan)
    assert report.iteration_time_s == pytest.approx(simulated.period_s)
    assert report.bubble_ratio == pytest.approx(simulated.bubble_ratio)


def test_rerouted_micro_batches_are_told_without_a_bound(tmp_path: Path) -> None:
    """The parts are told, and where to ask what would help."""
    spans = [Span("0/0", "F0", 0.0, 1.0), Span("0/0", "F1.0", 1.0, 2.0), Span("0/0", "B0", 2.0, 3.0)]
    report = report_of(Timeline("measured", (*spans, Span("0/0", "B1.0", 3.0, 4.0))), tmp_path)
    assert report.bound is None and "rtk explain" in report.remarks[0]
    assert report.stages[0].compute_s == 4.0


def test_a_timeline_in_another_form_gives_the_same_report(tmp_path: Path) -> None:
    """What is read straight into columns says what is read span by span: of two stages a worker, and steps."""
    costs = [LayerCost(0.01 + 0.001 * (n % 3), 0.01, 0.008, optimizer_s=0.002) for n in range(4)]
    plan = plan_pipeline(profile(*costs), Shape(2, 2, 4, placement="v", chunks=2), "zero-bubble")
    path = tmp_path / "timeline.json"
    write_document(str(path), simulate(plan).timeline)
    known = rtk.bubble(str(path))
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert read_columns(str(path)) is None and rtk.bubble(str(path)) == known


def test_an_operation_of_no_stage_is_refused_where_there_are_several(tmp_path: Path) -> None:
    """Nobody can say which of its worker's stages it is of."""
    spans = (Span("0/0", "0F0", 0.0, 1.0), Span("0/0", "1F0", 1.0, 2.0), Span("0/0", "B0", 2.0, 3.0))
    with pytest.raises(InvalidInputError, match="B0 of worker 0/0, which holds several stages, names none"):
        report_of(Timeline("measured", spans), tmp_path)


def test_the_plan_must_be_the_runs(tmp_path: Path) -> None:
    """Another plan's digest is refused, with the place."""
    plan = plan_pipeline(profile(*[EVEN] * 2), Shape(2, 1, 4), "1f1b")
    other = plan_pipeline(profile(*[EVEN] * 2), Shape(2, 1, 6), "1f1b")
    with pytest.raises(InvalidInputError, match="another plan") as caught:
        report_of(simulate(plan).timeline, tmp_path, other)
    assert str(caught.value.where).endswith("timeline.json, /plan")


# Traces.


def trace(path: Path, rank: int, ops: Sequence[tuple[str, float, float]], world_size: int = 2) -> Path:
    """A rank's trace in torch's form: annotated passes in µs, each with a product in it."""
    events: list[dict[str, Any]] = []
    for name, start_us, end_us in ops:
        common = {"ph": "X", "pid": 9, "tid": 9, "ts": start_us, "dur": end_us - start_us}
        events.append({**common, "cat": "user_annotation", "name": name})
        events.append({**common, "cat": "cpu_op", "name": "aten::mm"})
    job = {"rank": rank, "world_size": world_size, "backend": "gloo"}
    data = json.dumps({"schemaVersion": 1, "distributedInfo": job, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def annotated(timeline: Timeline, stage: int) -> list[tuple[str, float, float]]:
    own = [span for span in timeline.spans if span.worker == f"0/{stage}"]
    return [(f"PP:{stage}{span.op}", span.start_s * 1e6, span.end_s * 1e6) for span in own]


def test_traces_of_ranks_say_what_their_timeline_says(tmp_path: Path) -> None:
    """A folder of Kineto traces, packed or not, has the bubble of the timeline they were made from."""
    plan = plan_pipeline(profile(*[EVEN] * 3), Shape(3, 1, 5, link_delay_s={(None, 0): 0.005}), "1f1b")
    timeline = simulate(plan).timeline
    folder = tmp_path / "traces"
    folder.mkdir()
    for stage in range(3):
        trace(folder / f"rank{stage}.json{'.gz' if stage else ''}", stage, annotated(timeline, stage), 3)
    told, known = rtk.bubble(str(folder)), report_of(timeline, tmp_path)
    assert (told.clock, told.microbatches, told.pipelines) == ("cpu", 5, 1)
    assert told.bubble_ratio == pytest.approx(known.bubble_ratio)
    assert told.bound is not None and known.bound is not None
    assert told.bound.schedule == "1F1B" and told.bound.modelled_s == pytest.approx(known.bound.modelled_s)
    assert "no training step" in told.remarks[0]  # these have no backward pass of autograd
    assert any("no optimizer's step" in remark for remark in told.remarks)


def test_a_process_without_a_rank_is_one_worker_too() -> None:
    """Four stages on one H200, as a script without a process group writes them: hardly any bubble, and no links.

    Iterations of one micro-batch leave nothing to overlap; that the GPU waits for launches is told beside it.
    """
    path = Path(__file__).parent / "profilers" / "traces" / "h200-passes.json.gz"
    report = rtk.bubble(str(path))
    assert (report.clock, report.pipelines, report.virtual_stages, len(report.stages)) == ("kernels", 1, 4, 1)
    assert report.bubble_ratio < 0.05
    spent_us, until_us = 0.0, 0.0
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    for kernel in sorted(kernels, key=lambda event: event["ts"]):
        end_us = kernel["ts"] + kernel["dur"]
        spent_us, until_us = spent_us + max(end_us - max(kernel["ts"], until_us), 0.0), max(until_us, end_us)
    passes_s = sum(span.end_s - span.start_s for span in read_annotations([path]).spans)
    assert f"kernels run in {print_percent(spent_us / 1e6 / passes_s)} of the time" in " ".join(report.remarks)


def test_a_rank_with_two_stages_is_one_worker(tmp_path: Path) -> None:
    """Its operations are those of one worker: of a V two ranks, not four."""
    plan = plan_pipeline(profile(*[EVEN] * 4), Shape(2, 1, 4, placement="v", chunks=2), "zero-bubble")
    simulated = simulate(plan)
    paths = []
    for column in range(2):
        own = [span for span in simulated.timeline.spans if span.worker == f"0/{column}"]
        ops = [(f"PP:{span.op}", span.start_s * 1e6, span.end_s * 1e6) for span in own]
        paths.append(str(trace(tmp_path / f"r{column}.json", column, ops)))
    report = rtk.bubble(*paths)
    assert report.bound is not None
    assert (report.virtual_stages, len(report.stages)) == (2, 2)
    assert report.bubble_ratio == pytest.approx(simulated.bubble_ratio)
    assert report.bound.modelled_s == pytest.approx(simulated.iteration_time_s)


def test_exposed_communication_of_a_gpu_is_told(tmp_path: Path) -> None:
    """NCCL's kernels beside no other one: here 30 of 50 µs."""
    from .profilers.test_annotations import annotation, kernel

    events = [annotation("ProfilerStep#1", 0, 2000), annotation("PP:0F0", 1, 20), annotation("PP:0B0", 40, 20)]
    events += [annotation("aten::mm", 2, 8, cat="cpu_op"), *kernel(3, 100, 100)]
    backward = annotation("autograd::engine::evaluate_function: MmBackward0", 41, 18, cat="cpu_op")
    events += [backward, annotation("aten::mm", 42, 8, cat="cpu_op"), *kernel(43, 250, 100)]
    events += [annotation("c10d::allreduce_", 70, 4, cat="cpu_op"), *kernel(71, 330, 50, "ncclDevKernel_AllReduce")]
    job = {"rank": 0, "world_size": 1}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"distributedInfo": job, "deviceProperties": [{"id": 0}], "traceEvents": events}))
    (stage,) = rtk.bubble(str(path)).stages
    assert stage.exposed_communication_s == pytest.approx(30e-6)
    assert stage.compute_s == pytest.approx(200e-6)


def test_a_real_trace_of_torch(tmp_path: Path) -> None:
    """Two stages of torch's own zero-bubble schedule in one process: one worker, whose parts add up."""
    path = tmp_path / "trace.json.gz"
    trace_zero_bubble(path, 64, 4, 3)
    report = rtk.bubble(str(path))
    assert (report.iterations, report.microbatches, report.virtual_stages, report.clock) == (2, 4, 2, "cpu")
    (stage,) = report.stages
    assert stage.compute_s + stage.idle_s == pytest.approx(report.iteration_time_s)
    assert report.bound is not None and 0 < report.bound.lower_bound_s <= report.bound.modelled_s
    assert report.bound.modelled_s <= report.iteration_time_s * 1.5  # medians of operations, without what is between


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("no pipeline", "no operation of a pipeline is annotated"),
        ("other jobs", "different jobs: one of 2 ranks, one of 4"),
        ("one of eight", "1 of the job's 8 ranks"),
        ("other micro-batches", "stage 1 computes 2 micro-batches of pipeline 0, stage 0 1"),
        ("cut short", "damaged or cut short"),
        ("two runs", "these are 2 runs"),
        ("empty timeline", "no F, I, W or B"),
    ],
)
def test_bad_input_is_told_with_its_place(case: str, words: str, tmp_path: Path) -> None:
    """Each is one error that names the file, and says what to do."""
    ops = [[(f"PP:{stage}{kind}0", 10.0 * n, 10.0 * n + 9) for n, kind in enumerate("FB")] for stage in (0, 1)]
    first = trace(tmp_path / "a.json", 0, ops[0])
    given: list[Path] = [first]
    match case:
        case "no pipeline":
            given = [trace(tmp_path / "b.json", 0, [("Forward", 0.0, 1.0)])]
        case "other jobs":
            given.append(trace(tmp_path / "b.json", 1, ops[1], 4))
        case "one of eight":
            given = [trace(tmp_path / "a.json", 0, ops[0], 8)]
        case "other micro-batches":
            more = [(f"PP:1{kind}1", 40.0 + 10 * n, 49.0 + 10 * n) for n, kind in enumerate("FB")]
            given.append(trace(tmp_path / "b.json", 1, [*ops[1], *more]))
        case "cut short":
            packed = trace(tmp_path / "b.json.gz", 1, ops[1] * 50)
            packed.write_bytes(packed.read_bytes()[:-20])
            given.append(packed)
        case "two runs":
            write_document(str(tmp_path / "t.json"), Timeline("measured", (Span("0/0", "F0", 0.0, 1.0),)))
            given.append(tmp_path / "t.json")
        case _:
            write_document(str(tmp_path / "t.json"), Timeline("measured", (Span("0/0", "step", 0.0, 1.0),)))
            given = [tmp_path / "t.json"]
    with pytest.raises(InvalidInputError, match=words) as caught:
        rtk.bubble(*map(str, given))
    assert str(tmp_path) in str(caught.value.where) and caught.value.fix


# Logs of Megatron-LM.

SETTINGS = {
    "num_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "micro_batch_size": 1,
    "global_batch_size": 16, "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 4,
    "data_parallel_size": 2, "padded_vocab_size": 100,
}  # fmt: skip


def megatron_log(path: Path, timers: Sequence[str], iteration_ms: float = 100.0, **more: int) -> str:
    """A log as Megatron prints it: arguments, then an iteration and its timers, twice."""
    settings = SETTINGS | more
    lines = ["------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * 20} {value}" for name, value in settings.items()]
    lines += ["-------------------- end of arguments ---------------------"]
    for number in (1, 2):
        lines.append(
            f" iteration {number}/ 9 | consumed samples: 16 | elapsed time per iteration (ms): {iteration_ms} | "
            "learning rate: 1E-4 | lm loss: 9.0E+00 |"
        )
        lines += timers
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def ranks(name: str, times_ms: Sequence[float]) -> list[str]:
    return [f"  {name}:", *(f"     rank {rank:2d}: {time_ms}" for rank, time_ms in enumerate(times_ms))]


def test_timers_of_every_rank_tell_each_stage(tmp_path: Path) -> None:
    """Computing, bubble and imbalance of each stage; the schedule is Megatron's, and its bound is told."""
    ahead, back = [8, 8, 8, 8, 8, 8, 16, 16], [16, 16, 16, 16, 16, 16, 32, 32]
    timers = ["(min, max) time across ranks (ms):".replace("(min, max) time", "times")]
    timers += [*ranks("forward-compute", ahead), *ranks("backward-compute", back)]
    report = rtk.bubble(megatron_log(tmp_path / "train.log", timers))
    assert [one.compute_s for one in report.stages] == [pytest.approx(time_s) for time_s in (0.024,) * 3 + (0.048,)]
    assert report.bubble_ratio == pytest.approx(1 - (3 * 0.024 + 0.048) / 4 / 0.1)
    assert report.imbalance == pytest.approx(0.048 / 0.03 - 1)
    assert report.bound is not None
    assert (report.bound.schedule, report.bound.even_ratio, report.clock) == ("1F1B", 3 / 8, "timers")
    assert report.bound.modelled_s < report.iteration_time_s


def test_timers_of_the_least_and_the_most_tell_the_imbalance(tmp_path: Path) -> None:
    """Each stage is the middle of the two, and the remark says so; interleaved where there are virtual stages."""
    timers = ["(min, max) time across ranks (ms):", "    forward-compute ................................: (8.0, 16.0)"]
    timers += ["    backward-compute ...............................: (16.0, 32.0)"]
    log = megatron_log(tmp_path / "train.log", timers, num_layers_per_virtual_pipeline_stage=1)
    report = rtk.bubble(log)
    assert report.imbalance == pytest.approx(48 / 36 - 1)
    assert any("the least and the most" in one for one in report.remarks)
    assert report.bound is not None and report.bound.schedule == "interleaved 1F1B"


def test_a_log_without_timers_is_refused(tmp_path: Path) -> None:
    """With what to train with."""
    with pytest.raises(InvalidInputError, match="no timers") as caught:
        rtk.bubble(megatron_log(tmp_path / "train.log", []))
    assert "--timing-log-level 2" in str(caught.value.fix)


def test_the_words_say_what_the_report_says(tmp_path: Path) -> None:
    """Ratios, the table, the bound and the changes; pictures of it are drawn."""
    plan = plan_pipeline(profile(*[EVEN] * 3), Shape(3, 1, 4), "1f1b")
    report = report_of(simulate(plan).timeline, tmp_path, plan)
    words = words_of_bubble(report)
    assert "computes nothing for 33.3 % of it" in words and "It ran 1F1B" in words and "  1. " in words
    for ending in (".svg", ".html"):
        rtk.draw(report, str(tmp_path / f"it{ending}"))
        assert "stage 2" in (tmp_path / f"it{ending}").read_text()
