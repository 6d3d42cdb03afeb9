"""Torch's compute_comms files and torchtitan's folders are read back, and refused where something is amiss in them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rtk as library
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.runners.foreign import export_plan
from rtk.runners.titan_files import from_torchtitan
from rtk.runners.torch_comms import from_torch_comms_csv, to_torch_comms_csv
from rtk.runners.torch_csv import from_torch_csv, to_torch_csv
from rtk.schemas.documents import read_document, write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.placement import placement_words
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

from ..cli.shell import rtk
from ..paired_plans import paired_plans
from ..placed_plans import placed_plans

PROFILE = Profile(tuple(Layer((LayerCost(1.0, 1.0, 1.0), LayerCost(0.5, 0.5, 0.5, 0.0, 2))) for _ in range(8)))
TWO_RANKS = (
    "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0RESHARD,0REDUCE_GRAD\n"
    "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1RESHARD,1REDUCE_GRAD\n"
)


@settings(max_examples=50)
@given(st.one_of(placed_plans(max_dp=1), paired_plans(max_dp=1)), st.none() | st.integers(0, 5))
def test_what_is_written_with_messages_is_read_back(plan: Plan, ahead: int | None) -> None:
    """The orders of a compute_comms file are those of the compute_only one, wherever its receives stand."""
    plan = replace(plan, optimizer="synchronous")
    found = from_torch_comms_csv(to_torch_comms_csv(plan, ahead), "x.csv")
    bare = from_torch_csv(to_torch_csv(plan.without_pairs()), "x.csv")
    assert (found.orders, found.placement) == (bare.orders, bare.placement)


def test_receives_stand_ahead_by_so_many_operations() -> None:
    """Just in time is right before the operation; two ahead is before the second last one before it."""
    plan = plan_pipeline(PROFILE, Shape(2, 1, 3), "1f1b")
    last = [to_torch_comms_csv(plan, ahead).splitlines()[1] for ahead in (0, 2)]
    assert "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F2,1F2" in last[0]
    assert "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1RECV_F2,1F1,1B1,1SEND_B1,1F2" in last[1]


def test_a_receive_is_never_ahead_of_what_the_same_rank_sends_first() -> None:
    """Torch tells messages by their order only: who needs the second one first receives the first one before it."""
    plan = plan_pipeline(PROFILE, Shape(2, 1, 2), "gpipe")
    turned = [replace(plan.workers[0], order="F0 F1 B1 B0"), replace(plan.workers[1], order="F1 F0 B1 B0")]
    row = to_torch_comms_csv(replace(plan, workers=tuple(turned)), 0).splitlines()[1]
    assert row.startswith("1UNSHARD,1RECV_F0,1RECV_F1,1F1,1F0,")


@pytest.mark.parametrize(
    ("old", "new", "words", "where"),
    [
        ("1RECV_F1,", "", "1RECV_F1 is missing", "x, line 2 column 36"),
        ("0SEND_F1,", "", "0SEND_F1 is missing", "x, line 1 column 23"),
        ("0SEND_F1,", "0SEND_F1,0SEND_F1,", "0SEND_F1 stands here once more", "x, line 1 column 36"),
        ("0SEND_F1,", "0SEND_F1,0SEND_F2,", "0SEND_F2 is of no message between", "x, line 1 column 36"),
        ("0SEND_F1,", "0SEND_F1,0SEND_B1,", "0SEND_B1 is of no message between", "x, line 1 column 36"),
        ("0SEND_F1,", "0SEND_F1,1SEND_B1,", "1SEND_B1 is of no message between", "x, line 1 column 36"),
        ("0F0,0SEND_F0", "0SEND_F0,0F0", "0SEND_F0 stands before 0F0", "x, line 1 column 10"),
        ("1RECV_F0,1F0", "1F0,1RECV_F0", "1RECV_F0 stands behind 1F0", "x, line 2 column 14"),
        (
            "1RECV_F0,1F0,1RECV_F1",
            "1RECV_F1,1RECV_F0,1F0",
            "1RECV_F1 stands where the other rank sends 0SEND_F0",
            "x, line 2 column 10",
        ),
        ("0B1", "0X1", "'0X1' is not an operation", "x, line 1 column 58"),
        ("0B1", "0SEND_X1", "'0SEND_X1' is not an operation", "x, line 1 column 58"),
    ],
)
def test_messages_that_torch_would_wait_for_or_mix_up_are_refused(old: str, new: str, words: str, where: str) -> None:
    """Each with its line and column, and what to do."""
    text = TWO_RANKS.replace(old, new)
    assert text != TWO_RANKS
    with pytest.raises(InvalidInputError) as caught:
        from_torch_comms_csv(text, "x")
    assert words in caught.value.what
    assert caught.value.where == where
    assert caught.value.fix


def test_a_file_that_torch_would_train_wrongly_by_is_told(tmp_path: Path) -> None:
    """Without REDUCE_GRAD torch does not divide by the micro-batches: the import says so, and takes the orders."""
    profile, csv = str(tmp_path / "profile.json"), tmp_path / "orders.csv"
    write_document(profile, PROFILE)
    for text, is_told in ((TWO_RANKS, False), (TWO_RANKS.replace(",1REDUCE_GRAD", ""), True)):
        csv.write_text(text)
        done = rtk("import", str(csv), "--from", "torch-comms", "--profile", profile, "-o", str(tmp_path / "plan.json"))
        assert done.returncode == 0
        assert ("no REDUCE_GRAD of stage 1" in done.stderr) == is_told


SHAPES = {
    "plain": Shape(2, 3, 4),
    "of two GPUs": Shape(2, 1, 4, tensor_parallel=2),
    "loop": Shape(2, 1, 4, placement="loop", chunks=2),
    "loop of three": Shape(2, 1, 4, placement="loop", chunks=3),
    "V": Shape(2, 1, 4, placement="v", chunks=2),
}
NAMES = {"loop": "Interleaved1F1B", "loop of three": "Interleaved1F1B", "V": "ZBVZeroBubble"}


@pytest.mark.parametrize("name", SHAPES)
def test_a_folder_for_torchtitan_comes_back_as_the_plan(name: str, tmp_path: Path) -> None:
    """Orders, cut, placement, pipelines and degree; by the JSON, and without it by the TOML."""
    profile, folder = str(tmp_path / "profile.json"), tmp_path / "titan"
    plan = plan_pipeline(PROFILE, SHAPES[name], "1f1b")
    made = export_plan(plan, "torchtitan", folder=str(folder))
    made.write(str(folder))
    settings_file = folder / "parallelism.json"
    assert json.loads(settings_file.read_text())["pipeline_parallel_schedule"] == NAMES.get(name, "1F1B")
    write_document(profile, PROFILE)
    for _ in ("by the JSON", "by the TOML"):
        back = library.import_plan(str(folder), PROFILE, form="torchtitan")
        assert (back.templates, back.pipelines, back.workers) == (plan.templates, plan.pipelines, plan.workers)
        settings_file.unlink(missing_ok=True)


def test_a_cut_of_ones_own_is_kept(tmp_path: Path) -> None:
    """The module names say which layers a stage has, not the profile's best cut."""
    folder = tmp_path / "titan"
    export_plan(plan_pipeline(PROFILE, Shape(2, 1, 4), "1f1b"), "torchtitan", folder=str(folder)).write(str(folder))
    change(folder, module_fqns_per_model_part=[
        ["tok_embeddings", "layers.0"], [*(f"layers.{block}" for block in range(1, 6)), "norm", "lm_head"],
    ])  # fmt: skip
    made = library.import_plan(str(folder), PROFILE, form="torchtitan")
    assert [stage.layers for stage in made.templates[0].stages] == [(0, 2), (2, 8)]
    assert [stage.forward_s for stage in made.templates[0].stages] == [2.0, 6.0]
    with pytest.raises(InvalidInputError, match="the settings have 1 pipeline, not 2"):
        library.import_plan(str(folder), PROFILE, form="torchtitan", dp=2)
    with pytest.raises(InvalidInputError, match="the stages have 8 layers, the profile 7"):
        library.import_plan(str(folder), replace(PROFILE, layers=PROFILE.layers[1:]), form="torchtitan")


def change(folder: Path, **settings: Any) -> None:
    """Change the settings of a folder."""
    file = folder / "parallelism.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


PARTS = [["tok_embeddings", "layers.0"], ["layers.1", "norm", "lm_head"]]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"module_fqns_per_model_part": None}, "no list of module names a stage"),
        ({"module_fqns_per_model_part": [["tok_embeddings"], []]}, "no list of module names a stage"),
        ({"module_fqns_per_model_part": [PARTS[0], ["layers.2", "norm", "lm_head"]]}, "'layers.2' stands where"),
        ({"module_fqns_per_model_part": [PARTS[1], PARTS[0]]}, "'layers.1' stands where 'tok_embeddings' would be"),
        ({"module_fqns_per_model_part": [PARTS[0], ["layers.1", "norm", "head"]]}, "'head' stands where 'lm_head'"),
        ({"module_fqns_per_model_part": [[*PARTS[0], "layers.1", "norm"], ["lm_head"]]}, "norm and head are on two"),
        ({"module_fqns_per_model_part": [[*PARTS[0], *PARTS[1]]]}, "the settings have 1 stages, schedule.csv has 2"),
        ({"pipeline_parallel_degree": 4}, "the settings have 4 ranks, schedule.csv has 2"),
        ({"data_parallel_replicate_degree": 0}, "degrees of 0 replicas"),
        ({"tensor_parallel_degree": "two"}, "'two' GPUs"),
    ],
)
def test_settings_that_do_not_go_with_the_orders_are_refused(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """One error that names the file, and nothing else is done."""
    export_plan(plan_pipeline(PROFILE, Shape(2, 1, 4), "1f1b"), "torchtitan", folder=str(tmp_path)).write(str(tmp_path))
    change(tmp_path, **settings)
    with pytest.raises(InvalidInputError) as caught:
        from_torchtitan(str(tmp_path))
    assert words in caught.value.what
    assert str(caught.value.where).startswith(f"{tmp_path}/parallelism.json")


@pytest.mark.parametrize("text", ["[1]", "{", "[training]"])
def test_settings_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    """No JSON, no object, a TOML without parallelism, or no settings at all."""
    export_plan(plan_pipeline(PROFILE, Shape(2, 1, 4), "1f1b"), "torchtitan", folder=str(tmp_path)).write(str(tmp_path))
    name = "parallelism.toml" if "training" in text else "parallelism.json"
    (tmp_path / "parallelism.json").unlink()
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        from_torchtitan(str(tmp_path))
    assert caught.value.where == str(tmp_path / name)
    (tmp_path / "parallelism.json").unlink(missing_ok=True)
    (tmp_path / "parallelism.toml").unlink()
    with pytest.raises(InvalidInputError, match=r"neither parallelism\.json nor"):
        from_torchtitan(str(tmp_path))


def test_what_torchtitan_cannot_run_is_refused(tmp_path: Path) -> None:
    """Split backward passes, unless their user says that nothing is sharded; other placements; unlike degrees."""
    split = plan_pipeline(PROFILE, Shape(2, 1, 4), "zero-bubble")
    with pytest.raises(InvalidInputError, match="wrong gradients") as caught:
        export_plan(split, "torchtitan")
    assert "--yes-unsharded" in str(caught.value.fix)
    assert export_plan(split, "torchtitan", yes_unsharded=True).warnings
    v = plan_pipeline(PROFILE, Shape(2, 1, 4, placement="v", chunks=3), "1f1b")
    with pytest.raises(InvalidInputError, match="torchtitan has loops, and V's of two stages a rank"):
        export_plan(v, "torchtitan", yes_unsharded=True)
    assert placement_words(v.templates[0].columns) == "V, 3 chunks a worker"
    unlike = plan_pipeline(PROFILE, Shape(2, 1, 4, tensor_parallel=(1, 2)), "1f1b")
    with pytest.raises(InvalidInputError, match="torchtitan has one for all"):
        export_plan(unlike, "torchtitan")
    whole = plan_pipeline(PROFILE, Shape(2, 2, 4), "1f1b")
    (cut,) = whole.templates
    stages = tuple(replace(one, layers=ends) for one, ends in zip(cut.stages, ((0, 3), (3, 8)), strict=True))
    two = replace(whole, templates=(cut, replace(cut, name="other", stages=stages)), prediction=None)
    two = replace(two, pipelines=(two.pipelines[0], replace(two.pipelines[1], template="other")))
    with pytest.raises(InvalidInputError, match="torchtitan has one cut for all") as caught:
        export_plan(two, "torchtitan")
    assert caught.value.where == "/pipelines/1/template"


def test_the_command_refuses_before_it_writes(tmp_path: Path) -> None:
    """--ahead where nothing is received; a split backward pass for torchtitan; and then no folder is there."""
    plan, folder = str(tmp_path / "plan.json"), tmp_path / "titan"
    write_document(plan, plan_pipeline(PROFILE, Shape(2, 1, 4), "zero-bubble"))
    refused = rtk("export", plan, "--to", "torchtitan", "-o", str(folder))
    assert (refused.returncode, folder.exists()) == (2, False)
    assert rtk("export", plan, "--to", "torch-csv", "--ahead", "1").returncode == 2
    done = rtk("export", plan, "--to", "torchtitan", "--ahead", "1", "--yes-unsharded", "-o", str(folder), "--json")
    assert json.loads(done.stdout)["lost"] == ["costs", "the prediction"]
    assert "for gloo: NCCL may hang" in done.stderr
    assert read_document(plan, Plan).workers == library.import_plan(str(folder), PROFILE, form="torchtitan").workers


def test_a_folder_of_somebody_elses_files_is_left_alone(tmp_path: Path) -> None:
    """A file of the user's own that has the name of one of torchtitan's is not overwritten, nor anything written beside
    it; an earlier export is, and anything with --force."""
    plan, folder = str(tmp_path / "plan.json"), tmp_path / "mine"
    write_document(plan, plan_pipeline(PROFILE, Shape(2, 1, 4), "1f1b"))
    asked = ("export", plan, "--to", "torchtitan", "-o", str(folder))
    folder.write_text("a file")
    assert "this is a file" in (done := rtk(*asked)).stderr and done.returncode == 2
    folder.unlink()
    folder.mkdir()
    (folder / "pipelining.py").write_text("mine")
    done = rtk(*asked)
    assert done.returncode == 2 and "has pipelining.py already" in done.stderr and f"at: {folder}" in done.stderr
    assert [one.name for one in folder.iterdir()] == ["pipelining.py"]
    assert (folder / "pipelining.py").read_text() == "mine"
    for more in (["--force"], []):
        assert rtk(*asked, *more).returncode == 0
    assert len(list(folder.iterdir())) == 5
