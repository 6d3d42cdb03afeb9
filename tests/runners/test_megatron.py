"""Plans as Megatron-LM's flags and back; megatron-core, as released, reads the layouts and gives the same orders."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.pipeline import plan_from_orders, plan_pipeline
from rtk.planners.plain.slipstream import plan_slipstream
from rtk.planners.shape import Shape
from rtk.runners.megatron import from_megatron, megatron_orders, parse_layout, runs_megatrons_orders, to_megatron
from rtk.schemas.documents import read_document, write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.placement import loop_placement
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

from ..cli.shell import rtk

FLAGS = """--tensor-model-parallel-size 1
--pipeline-model-parallel-size 2
--pipeline-model-parallel-layout Ett|tt|tt|L
--num-layers 6
--micro-batch-size 2
--global-batch-size 16
"""


def make_profile(layers: int, degrees: tuple[int, ...] = (1,)) -> Profile:
    """A decoder, all layers alike."""
    costs = tuple(LayerCost(1.0, 1.0, 1.0, tensor_parallel=degree) for degree in degrees)
    return Profile(tuple(Layer(costs) for _ in range(layers)), microbatch_size=2)


def make_plan(layers: int, columns: int, chunks: int, microbatches: int, dp: int = 1) -> Plan:
    """A plan with Megatron's own orders."""
    placement = loop_placement(columns, chunks) if chunks > 1 else None
    orders = megatron_orders(columns, chunks, microbatches)
    return plan_from_orders(make_profile(layers), orders, Shape(columns, dp, microbatches), "by hand", "x", placement)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Layers, ranks, stages a rank, micro-batches: such as Megatron runs."""
    columns, chunks = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    chunks = chunks if columns > 1 else 1
    microbatches = columns * draw(st.integers(1, 3)) if chunks > 1 else draw(st.integers(1, 9))
    return draw(st.integers(max(3, columns * chunks), 16)), columns, chunks, microbatches


@given(shapes(), st.integers(1, 3))
def test_a_plan_comes_back_as_it_was(shape: tuple[int, int, int, int], dp: int) -> None:
    """Flags carry cut, placement, degrees and batch; the orders are Megatron's on both sides."""
    layers, columns, chunks, microbatches = shape
    plan = make_plan(layers, columns, chunks, microbatches, dp)
    assert runs_megatrons_orders(plan)
    found = from_megatron(to_megatron(plan, 2), "x", dp)
    assert (found.chunks, found.tensor_parallel) == (chunks, 1)
    assert found.cut == tuple(stage.layers for stage in plan.templates[0].stages)
    assert found.orders == tuple(worker.operations() for worker in plan.workers[:columns])


@settings(max_examples=40)
@given(shapes())
def test_megatron_reads_the_layout(shape: tuple[int, int, int, int]) -> None:
    """Its TransformerConfig takes the layout, and puts as many blocks on each rank and chunk as the plan does."""
    config, layers_of = megatron()
    layers, columns, chunks, microbatches = shape
    plan = make_plan(layers, columns, chunks, microbatches)
    flags = dict(line.split() for line in to_megatron(plan).splitlines())
    theirs = config(
        num_layers=int(flags["--num-layers"]),
        hidden_size=8,
        num_attention_heads=2,
        pipeline_model_parallel_size=int(flags["--pipeline-model-parallel-size"]),
        pipeline_dtype="float32",
        pipeline_model_parallel_layout=flags["--pipeline-model-parallel-layout"],
    )
    if columns > 1:
        read = theirs.pipeline_model_parallel_layout
        assert (theirs.virtual_pipeline_model_parallel_size or 1) == chunks
        stages = plan.templates[0].stages
        for rank, held in enumerate(plan.templates[0].columns):
            for chunk, stage in enumerate(held):
                first, stop = stages[stage].layers
                inner = range(max(first, 1), min(stop, layers - 1))
                assert layers_of(read, rank, chunk) == [one - 1 for one in inner]


def megatron() -> Any:
    """megatron-core's configuration, and what its layout says of a rank and chunk: the numbers of its blocks."""
    pytest.importorskip("megatron.core")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells that neither apex nor Transformer Engine is there
        from megatron.core import parallel_state
        from megatron.core.transformer.transformer_config import TransformerConfig

    def layers_of(layout: Any, rank: int, chunk: int) -> list[int]:
        parallel_state.set_virtual_pipeline_model_parallel_world_size(layout.virtual_pipeline_model_parallel_size)
        found: list[int] = layout.get_layer_id_list(vp_stage=chunk, pp_rank=rank)
        return found

    return TransformerConfig, layers_of


@given(shapes())
def test_the_orders_are_those_that_megatron_runs(shape: tuple[int, int, int, int]) -> None:
    """Its own functions say with how many forwards each rank begins, and which micro-batch and chunk comes when."""
    megatron()
    from megatron.core.pipeline_parallel.schedules import get_pp_rank_microbatches, get_schedule_table

    _, columns, chunks, microbatches = shape
    table = get_schedule_table(microbatches, chunks, columns)
    for rank, order in enumerate(megatron_orders(columns, chunks, microbatches)):
        group = SimpleNamespace(size=lambda: columns, rank=lambda rank=rank: rank)
        virtual = chunks if chunks > 1 else None
        place = SimpleNamespace(pp_group=group, virtual_pipeline_model_parallel_size=virtual)
        total, _, warm, _ = get_pp_rank_microbatches(microbatches, chunks, columns, p2p_communicator=place)
        kinds = "".join(one.kind for one in order)
        assert kinds == "F" * warm + "FB" * (total - warm) + "B" * warm
        chunk_of = [None if chunks == 1 else chunk * columns + rank for chunk in range(chunks)]
        forwards = [(one.microbatch, one.stage) for one in order if one.kind == "F"]
        assert forwards == [(microbatch, chunk_of[chunk]) for microbatch, chunk in table]
        backwards = [(one.microbatch, one.stage) for one in order if one.kind == "B"]
        assert backwards == [(microbatch, chunk_of[chunks - 1 - chunk]) for microbatch, chunk in table]


@given(st.text("EtLm|*()23,x ", max_size=24))
def test_a_layout_is_read_as_megatron_reads_it(layout: str) -> None:
    """What is taken has the stages that Megatron's parser finds; what is refused says where."""
    try:
        ours = parse_layout(layout, "x")
    except InvalidInputError as error:
        assert error.where == "x"
        return
    pytest.importorskip("megatron.core")
    megatron()
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    letters = {"embedding": "E", "decoder": "t", "loss": "L"}
    theirs = PipelineParallelLayerLayout.parse_str_to_list(layout.replace(" ", ""))
    assert ["".join(letters[one.name] for one in stage) for stage in theirs] == ours


@pytest.mark.parametrize(
    ("layout", "stages"),
    [
        ("Ettt|(tt|)*3,tL", ["Ettt", "tt", "tt", "tt", "tL"]),
        ("E|t*3|L", ["E", "ttt", "L"]),
        ("Et(tt|tt)*2L", ["Ettt", "tttt", "ttL"]),
    ],
)
def test_products_are_written_out(layout: str, stages: list[str]) -> None:
    """As in Megatron's documentation: of parentheses first, then of letters; commas are for the eye."""
    assert parse_layout(layout, "x") == stages


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Ett|tt|tt|L", "Ett|xt|tt|L", "the layout holds 'x'"),
        ("Ett|tt|tt|L", "Ett|tt|tt|mL", "multi-token prediction"),
        ("Ett|tt|tt|L", "Ett|tt|tt||L", "stage 3 of the layout has no layer"),
        ("Ett|tt|tt|L", "tEt|tt|tt|L", "is not an embedding (E), blocks (t) and a head (L) in this order"),
        ("Ett|tt|tt|L", "E(t)*999999999|L", "longer than any model"),
        ("Ett|tt|tt|L", "Ett|tt|ttL", "the layout has 3 stages, which do not go on 2 ranks"),
        ("--num-layers 6", "--num-virtual-stages-per-pipeline-rank 4", "do not go on 2 ranks of 4 virtual stages"),
        ("--num-layers 6", "--num-layers 8", "the layout has 6 blocks (t), --num-layers is 8"),
        ("--num-layers 6", "--num-layers six", "'six' is no positive number"),
        ("--global-batch-size 16", "--global-batch-size 18", "18 is no multiple of 2 pipelines of micro-batches of 2"),
        (
            "--global-batch-size 16",
            "--global-batch-size 12",
            "interleaves micro-batches in groups of 2, and there are 3",
        ),
        ("--global-batch-size 16", "", "there is no --global-batch-size"),
        ("--micro-batch-size 2", "", "there is no --micro-batch-size"),
        ("--num-layers 6", "--num-layers $LAYERS", "'$LAYERS' is no positive number"),
        ("--num-layers 6", "--num-layers '6", "the flags cannot be read"),
        (FLAGS, "", "there is no --pipeline-model-parallel-layout"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(old: str, new: str, words: str) -> None:
    """One error that names the file and the flag, and says what to do."""
    with pytest.raises(InvalidInputError) as caught:
        from_megatron(FLAGS.replace(old, new), "job.sh", 2)
    assert words in caught.value.what
    assert str(caught.value.where).startswith("job.sh")
    assert caught.value.fix


@pytest.mark.parametrize(
    ("flags", "cut"),
    [
        ("--num-layers 8", ((0, 5), (5, 10))),
        ("--num-layers 8 --num-virtual-stages-per-pipeline-rank 2", ((0, 3), (3, 5), (5, 7), (7, 10))),
        ("--num-layers 8 --num-layers-per-virtual-pipeline-stage 2", ((0, 3), (3, 5), (5, 7), (7, 10))),
        ("--num-layers 7", None),
        ("--num-layers 8 --num-layers-per-virtual-pipeline-stage 3", None),
        ("--num-layers 8 --num-layers-per-virtual-pipeline-stage 9", None),
    ],
)
def test_without_a_layout_stages_are_equal(flags: str, cut: tuple[tuple[int, int], ...] | None) -> None:
    """As many blocks each, with the embedding before and the head behind; numbers that do not go so are refused."""
    script = f"--pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 4 {flags}"
    if cut is not None:
        assert from_megatron(script, "job.sh", 1).cut == cut
        return
    with pytest.raises(InvalidInputError, match="do not go on") as caught:
        from_megatron(script, "job.sh", 1)
    assert caught.value.where == "job.sh, --num-layers" and caught.value.fix


def test_variables_of_a_script_are_filled_in() -> None:
    """Of numbers, of layouts, with defaults, and of other variables, as Megatron's own examples have them."""
    variables = 'PP=2\nGBS=${GBS:-16}\nLAYOUT="Ett|tt|tt|L"\nARGS=(\n --pipeline-model-parallel-layout "$LAYOUT"\n'
    sizes = " --pipeline-model-parallel-size ${PP}\n --global-batch-size $GBS --micro-batch-size 2\n)"
    assert from_megatron(f"#!/bin/bash\n{variables}{sizes}\ntorchrun x", "job.sh", 2).chunks == 2


def test_flags_are_found_in_a_script() -> None:
    """Other flags, comments, quotes, `=`, and lines that go on do not matter; the last of two counts."""
    script = "#!/bin/bash\n# the job\ntorchrun pretrain_gpt.py --bf16 --num-layers 4 \\\n" + FLAGS.replace(
        "--pipeline-model-parallel-layout Ett|tt|tt|L", '--pipeline-model-parallel-layout="Ett|tt|tt|L"'
    ).replace("\n", " \\\n")
    assert from_megatron(script, "job.sh", 2) == from_megatron(FLAGS, "job.sh", 2)


def refused(plan: Plan) -> InvalidInputError:
    """Why a plan is not exported."""
    with pytest.raises(InvalidInputError) as caught:
        to_megatron(plan)
    return caught.value


def test_what_megatron_has_no_flag_for_is_refused() -> None:
    """Failed workers, re-routing, staggered steps, unlike pipelines and degrees, V's, groups that do not come out."""
    profile = make_profile(8, (1, 2))
    plan = plan_pipeline(profile, Shape(2, 2, 4), "1f1b")
    dead = plan_slipstream(make_profile(8), pp=2, dp=2, microbatches=4, failed=["1/1"], technique="adaptive")
    assert refused(dead).where == "/workers/3/failed"
    rerouted = replace(plan.workers[0], order=f"{plan.workers[0].order} F1.0 B1.0")
    assert "re-routed micro-batches" in refused(replace(plan, workers=(rerouted, *plan.workers[1:]))).what
    assert refused(replace(plan, optimizer="staggered")).where == "/optimizer"
    fewer = replace(plan, pipelines=(plan.pipelines[0], replace(plan.pipelines[1], microbatches=3)))
    assert "pipelines of 3 and 4 micro-batches" in refused(fewer).what
    unlike = plan_pipeline(profile, Shape(2, 1, 4, tensor_parallel=(1, 2)), "1f1b")
    assert "unlike tensor-parallel degrees (1, 2)" in refused(unlike).what
    v = plan_pipeline(profile, Shape(2, 1, 4, placement="v", chunks=2), "zero-bubble")
    assert "the placement V, 2 chunks a worker" in refused(v).what
    loop = plan_pipeline(profile, Shape(2, 1, 3, placement="loop", chunks=2), "1f1b")
    assert "in groups of 2, and there are 3" in refused(loop).what
    assert "no block" in refused(plan_pipeline(make_profile(2), Shape(2, 1, 4), "1f1b")).what


@pytest.mark.wheel("export")
def test_the_commands(tmp_path: Path) -> None:
    """Out as flags, in again: the cut, the degree and the orders that Megatron runs; other orders are told as lost."""
    profile, plan_file, flags, back = (str(tmp_path / name) for name in ("profile.json", "plan.json", "args", "back"))
    write_document(profile, make_profile(8, (1, 2)))
    plan = plan_pipeline(read_document(profile, Profile), Shape(2, 3, 4, tensor_parallel=2), "1f1b")
    write_document(plan_file, plan)
    done = rtk("export", plan_file, "--to", "megatron", "-o", flags)
    assert done.returncode == 0
    assert "the orders" not in done.stderr
    assert Path(flags).read_text().splitlines()[-2:] == ["--micro-batch-size 2", "--global-batch-size 24"]
    rtk("import", flags, "--from", "megatron", "--profile", profile, "--dp", "3", "-o", back)
    made = read_document(back, Plan)
    assert (made.templates, made.pipelines, made.workers) == (plan.templates, plan.pipelines, plan.workers)
    write_document(plan_file, plan_pipeline(make_profile(8), Shape(2, 1, 4), "zero-bubble"))
    answer = json.loads(rtk("export", plan_file, "--to", "megatron", "--microbatch-size", "5", "--json").stdout)
    assert answer["lost"][0] == "the orders (Megatron runs its own)"
    assert "--global-batch-size 20" in answer["flags"]
    write_document(profile, make_profile(7, (1, 2)))
    failed = rtk("import", flags, "--from", "megatron", "--profile", profile, "--dp", "3", "-o", back)
    assert failed.returncode == 2
    assert "the stages have 8 layers, the profile 7" in failed.stderr
