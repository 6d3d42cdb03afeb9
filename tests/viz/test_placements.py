"""Pictures of plans whose workers hold several virtual stages: tints, names, memory and messages, in every medium."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling.evaluate import evaluate
from rtk.runners.undisturbed import columns_of_plan
from rtk.schemas.columns import Selection, columns_of, select, timeline_from
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.placement import loop_placement, placement_words, placements_of, refuse_placed, v_placement
from rtk.schemas.plan import Placement, Plan, Prediction, plain_placement
from rtk.schemas.timeline import Timeline
from rtk.viz.chrome import trace_pieces
from rtk.viz.diff import diff_plans
from rtk.viz.diff_verdict import headline
from rtk.viz.facts import facts_of_all, placement_of, title_of
from rtk.viz.figure import figure_of
from rtk.viz.memory import memory_curves, peak_bytes
from rtk.viz.scene import lay_out
from rtk.viz.style import LOOKS, tint
from rtk.viz.terminal import terminal_gantt
from rtk.viz.timeline import comparison_picture, timelines_picture

from ..placed_plans import any_placed_plans, folded, looped, placed_plans, placements
from ..strategies import hand_plan, plans
from .pictures import texts

V2 = ((0, 3), (1, 2))
ORDERS = {
    "0/0": "0F0 0F1 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 0I1 0W1",
    "0/1": "1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1",
}


def small_v(limit_bytes: float | None = 4.0) -> Plan:
    """A V of two workers by hand, with two micro-batches."""
    return hand_plan(dict(ORDERS), 2, limit_bytes=limit_bytes, placement=V2)


@given(st.integers(1, 6), st.integers(2, 4))
def test_placements_have_names(columns: int, chunks: int) -> None:
    """Loops and Vs are those that the tests write down by themselves, and are called so; plain is plain."""
    loop, v = loop_placement(columns, chunks), v_placement(columns, chunks)
    assert (loop, v) == (looped(columns, chunks), folded(columns, chunks))
    assert placement_words(loop) == f"loop, {chunks} chunks a worker"
    assert placement_words(v) == f"{'V' if columns > 1 else 'loop'}, {chunks} chunks a worker"
    assert placement_words(plain_placement(columns)) == "plain"


@given(placements())
def test_other_placements_are_written_out(placement: Placement) -> None:
    """What has no name is told by the virtual stages of its columns, from which it can be read back."""
    words = placement_words(placement)
    if words[0].isdigit():
        assert tuple(tuple(map(int, held.split(","))) for held in words.split("/")) == placement


@settings(max_examples=40)
@given(any_placed_plans())
def test_memory_is_counted_seat_by_seat(plan: Plan) -> None:
    """The largest value of each worker's curve is the evaluator's peak, from columns as from a file's timeline."""
    peaks = dict(zip((worker.name for worker in plan.workers), evaluate(plan).peak_memory_bytes, strict=True))
    columns = columns_of_plan(plan)
    if plan.optimizer == "staggered":  # two iterations, which may be under way at once
        columns = columns.taken(columns.iteration == 0)
    written = parse_document(canonical(timeline_from(columns)), Timeline, "a file")
    for timeline in (columns, written):
        for worker, points in memory_curves(timeline).items():
            assert peak_bytes(points) == pytest.approx(peaks[worker])
            assert points[-1][1] == 0


@settings(max_examples=40)
@given(any_placed_plans())
def test_tints_are_those_of_the_legend(plan: Plan) -> None:
    """Each operation has the tint of its kind and chunk, and the legend names as many chunks as a worker has."""
    columns = columns_of_plan(plan)
    scene = lay_out([("simulated", columns)], "")
    most = max(map(len, columns.seats.values()), default=1)  # pipelines may all be of the plain template
    assert len(scene.chunks) == (most if most > 1 else 0)
    for bar in scene.bars:
        seats = columns.seats.get(bar.row.worker, (0,))
        chunk = 0 if bar.stage is None else seats.index(bar.stage)
        assert bar.colour == tint(LOOKS[bar.kind].colour, chunk, most)
        assert bar.colour in scene.colours(bar.kind)
        assert bar.label == ("" if bar.kind in ("allreduce", "step") else bar.span.op.lstrip("0123456789")[1:])


@given(st.sampled_from(sorted(LOOKS)), st.integers(2, 6))
def test_tints_become_lighter(kind: str, chunks: int) -> None:
    """The first chunk has its kind's colour, and each later one is lighter, so that words can be read on all."""
    found = [tint(LOOKS[kind].colour, chunk, chunks) for chunk in range(chunks)]
    assert found[0] == LOOKS[kind].colour
    light = [sum(bytes.fromhex(colour[1:])) for colour in found]
    assert all(a < b for a, b in pairwise(light))


@settings(max_examples=30)
@given(plans())
def test_plain_plans_have_no_chunks(plan: Plan) -> None:
    """Of plans in which each worker holds one stage nothing is said of chunks and placements."""
    columns = columns_of_plan(plan)
    assert columns.seats == {}
    assert lay_out([("s", columns)], "").chunks == ()
    assert "plain" not in title_of([("s", columns)])
    assert placements_of(plan) == ()


@settings(max_examples=40)
@given(any_placed_plans())
def test_traces_name_virtual_stages_and_messages(plan: Plan) -> None:
    """Operations have their tokens' names; an arrow leads to each operation whose input another worker has made."""
    columns = columns_of_plan(plan)
    if plan.optimizer == "staggered":
        columns = columns.taken(columns.iteration == 0)
    trace = json.loads("".join(trace_pieces([("simulated", columns)])))["traceEvents"]
    operations = [record for record in trace if record["ph"] == "X" and "microbatch" in record["args"]]
    spans = [span for span in timeline_from(columns).spans if span.op not in ("allreduce", "step")]
    assert sorted(record["name"] for record in operations) == sorted(span.op for span in spans)
    for record in operations:
        assert record["name"].startswith(str(record["args"].get("stage", "")))
    executor = {
        (operation.pipeline, operation.microbatch, plan.virtual_stage(worker, operation)): worker.name
        for worker in plan.live_workers()
        for operation in worker.operations()
    }
    hops = [name != executor.get((k, j, v + 1), name) for (k, j, v), name in executor.items()]
    assert sum(record["ph"] == "s" for record in trace) == 2 * sum(hops)


def test_a_cut_part_keeps_its_tints() -> None:
    """What is cut out of a timeline is drawn as in the whole: chunks are counted among all that the worker holds."""
    columns = columns_of_plan(small_v())
    part = select(columns, Selection(workers=frozenset({"0/0"}), from_s=4.2, until_s=4.8))
    (bar,) = lay_out([("s", part)], "").bars
    assert (bar.span.op, bar.colour) == ("3I0", tint(LOOKS["I"].colour, 1, 2))
    assert part.seats["0/0"] == (0, 3)


def test_facts_say_placement_peak_and_proof() -> None:
    """Title and facts name the placement; beside a placed plan a plain one says the same of itself."""
    prediction = Prediction(24.0, 24.0, 24.0, 24.0, 0.0, "optimal", 0.1, (4.0, 3.5))
    v = columns_of_plan(replace(small_v(), prediction=prediction))
    plain = columns_of_plan(hand_plan({"0/0": "F0 B0", "0/1": "F0 B0"}, 1))
    (fact,) = facts_of_all([("v", v)])
    assert fact.endswith("V, 2 chunks a worker · peak memory 4 B · optimal")
    assert placement_of(columns_of(timeline_from(v))) == "V, 2 chunks a worker"
    both = facts_of_all([("plain", plain), ("v", v)])
    assert both[0].endswith("· plain")
    assert title_of([("v", v)]) == "1 pipeline of 2 workers · 2 micro-batches · V, 2 chunks a worker".replace(
        "1 p", "by hand · 1 p"
    )
    assert facts_of_all([("plain", plain)]) == (both[0].removesuffix(" · plain"),)


def test_still_pictures_and_figures_say_which_chunk_is_which() -> None:
    """The legend of a still picture and of a figure names the virtual stages of each chunk."""
    columns = columns_of_plan(small_v())
    words = {"first chunk: virtual stages 0, 1", "second chunk: virtual stages 3, 2"}
    assert words <= set(texts(timelines_picture([("v", columns)], "A V")))
    both = [("plain", columns_of_plan(hand_plan({"0/0": "F0 B0"}, 1))), ("V", columns)]
    assert {"plain", "V", "F: forward"} <= set(texts(comparison_picture(both, "Two")))
    figure = figure_of([("v", columns)])
    assert words <= {trace.name for trace in figure.data}
    (forward,) = [trace for trace in figure.data if trace.name == "F: forward"]
    assert set(forward.marker.color) == {tint(LOOKS["F"].colour, chunk, 2) for chunk in range(2)}


def test_terminals_say_virtual_stages_of_all_or_of_none() -> None:
    """Where there is room each operation begins with its stage; where there is not, none does, lest F27 be read."""
    columns = columns_of_plan(small_v())
    wide, narrow = (terminal_gantt(columns, width).plain for width in (160, 40))
    assert "0F0" in wide and "3I1" in wide and "5F2: forward" in wide
    assert "0F0" not in narrow and "F0" in narrow
    assert "second chunk: virtual stages 3, 2" in narrow


@settings(max_examples=30)
@given(any_placed_plans())
def test_a_plan_does_not_differ_from_itself(plan: Plan) -> None:
    """Nothing is found between a plan and itself."""
    assert not diff_plans(plan, plan)


@settings(max_examples=30)
@given(placed_plans(max_dp=2), placed_plans(max_dp=2))
def test_another_placement_comes_first(a: Plan, b: Plan) -> None:
    """Plans of unlike placements say so before all else, in the headline too; of alike ones nothing is said."""
    changes = diff_plans(a, b).changes
    unlike = a.template_of(0).columns != b.template_of(0).columns
    assert any(one.kind == "placement" for one in changes) == unlike
    if unlike:
        assert changes[0].kind == "placement"
        assert headline(a, b, diff_plans(a, b)).startswith("placement")
        assert not [one for one in changes if one.kind == "re-routing"]


def test_a_moved_chunk_and_limits_of_columns_are_told() -> None:
    """A chunk at another worker, and another limit of a column, are differences by their numbers."""
    before = small_v()
    template = replace(before.templates[0], placement=((0, 2), (1, 3)))
    orders = [worker.order or "" for worker in before.workers]
    swapped = [order.replace(str(own), "x").replace(str(own), "x") for own, order in zip((3, 2), orders, strict=True)]
    workers = tuple(
        replace(worker, order=order.replace("xF", f"{new}F").replace("xI", f"{new}I").replace("xW", f"{new}W"))
        for worker, order, new in zip(before.workers, swapped, (2, 3), strict=True)
    )
    moved = replace(before, templates=(template,), workers=workers)
    words = [one.words for one in diff_plans(before, moved).changes if one.kind == "placement"]
    assert words == [
        "placement: V, 2 chunks a worker → loop, 2 chunks a worker",
        "virtual stage 2 moved from column 1 to column 0",
        "virtual stage 3 moved from column 0 to column 1",
    ]
    (first, second) = diff_plans(before, small_v(limit_bytes=2048.0)).changes
    assert first.words.startswith("memory limit of column 0 of template t0: 4 B → 2 KiB")
    assert second.path == "/templates/0/memory_limits_bytes/1"


def test_commands_without_placements_refuse_by_name() -> None:
    """The refusal names the command, the placement and its place; a plain plan passes."""
    with pytest.raises(InvalidInputError) as found:
        refuse_placed(small_v(), "rtk plan reconfigure")
    assert found.value.what.startswith("rtk plan reconfigure takes no plan") and "V, 2 chunks" in found.value.what
    assert found.value.where == "/templates/0/placement"
    refuse_placed(hand_plan({"0/0": "F0 B0"}, 1), "rtk plan reconfigure")
