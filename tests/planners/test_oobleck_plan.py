"""Plans of unlike pipelines: what they promise, and the templates that can be read back (about two seconds in all)."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.oobleck.plan import plan_of, plan_oobleck, templates_of
from rtk.planners.scheduling.assemble import with_prediction
from rtk.schemas.check import check_plan
from rtk.schemas.documents import canonical, digest, parse_document, read_document, write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Connection, Network
from rtk.schemas.templates import Templates

from ..cli.shell import rtk
from .oobleck_examples import even_templates, random_templates


@settings(max_examples=40, deadline=None)
@given(random_templates(), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=4))
def test_plans_are_valid_and_hold_their_templates(templates: Templates, asked: list[tuple[int, int]]) -> None:
    """Any pipelines make a valid plan, whose file gives the templates back as they were."""
    sizes = [templates.smallest + more % len(templates.templates) for more, _ in asked]
    plan = plan_of(templates, sizes, [count for _, count in asked])
    assert check_plan(plan) == []
    assert templates_of(plan) == templates
    again = parse_document(canonical(plan), Plan, "the plan")
    assert canonical(templates_of(again)) == canonical(templates)
    assert plan.inputs == {"templates": digest(templates)}


@settings(max_examples=20, deadline=None)
@given(random_templates(), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=4))
def test_the_promise_is_the_evaluators(templates: Templates, asked: list[tuple[int, int]]) -> None:
    """The plan, timed by operation codes, promises what the evaluator says of its orders."""
    sizes = [templates.smallest + more % len(templates.templates) for more, _ in asked]
    plan = plan_of(templates, sizes, [count for _, count in asked])
    found, expected = plan.prediction, with_prediction(plan).prediction
    assert found is not None
    assert expected is not None
    for name in ("iteration_time_s", "period_s", "lower_bound_s", "bubble_ratio"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=1e-9)
    assert found.peak_memory_bytes == pytest.approx(expected.peak_memory_bytes)


def test_the_paper_uses_all_of_13_nodes() -> None:
    """13 of 16 nodes with f = 2 are all used (section 3), and the plan says how it was made."""
    plan = plan_oobleck(even_templates(12, 2, 7, 2), 13, 128, 4)
    assert sum(int(pipeline.template[1:]) for pipeline in plan.pipelines) == 13
    assert len(plan.pipelines) >= 3
    assert plan.total_microbatches() == 32
    assert [template.name for template in plan.templates] == ["n2", "n3", "n4", "n5", "n6", "n7"]
    told = plan.planner.options
    assert (told["nodes"], told["global_batch"], told["microbatch_size"]) == (13, 128, 4)
    assert (told["multiple_of"], told["objective"], told["model"]) == (1, "min-max", "toy")


def test_all_reduce_is_between_the_pipelines_there_are() -> None:
    """Three pipelines sum the parameters of a stage, 8 bytes a layer, in a ring over the path between nodes."""
    network = Network(intra_node=Connection(0.0, 100.0), inter_node=Connection(0.25, 4.0))
    plan = plan_of(even_templates(4, 1, 2, network=network), [2, 1, 1], [4, 2, 2])
    halves, whole = plan.template_by_name["n2"].stages, plan.template_by_name["n1"].stages
    assert [stage.allreduce_s for stage in halves] == [Connection(0.25, 4.0).ring_s(16.0, 3)] * 2
    assert [stage.allreduce_s for stage in whole] == [4 * (0.25 + 32 / 3 / 4)]


def test_variance_gives_equal_pipelines_equal_numbers() -> None:
    """With Oobleck's objective pipelines of one template get equal numbers of micro-batches."""
    plan = plan_oobleck(even_templates(12, 2, 7, 2), 14, 84 * 4, 4, objective="variance")
    assert len({(pipeline.template, pipeline.microbatches) for pipeline in plan.pipelines}) == len(
        {pipeline.template for pipeline in plan.pipelines}
    )


def test_another_microbatch_size_is_refused() -> None:
    """The templates' times are for one size of micro-batch; the error names it."""
    with pytest.raises(InvalidInputError) as found:
        plan_oobleck(even_templates(4, 1, 2), 4, 64, 8)
    assert found.value.fix == "take 4, or profile the model with 8"


def test_other_plans_hold_no_templates() -> None:
    """A plan that was not made of templates, or whose options were changed, is refused with the place."""
    plan = plan_of(even_templates(4, 1, 2), [2, 1], [4, 2])

    def refused(options: dict[str, object]) -> InvalidInputError:
        with pytest.raises(InvalidInputError) as found:
            templates_of(replace(plan, planner=replace(plan.planner, options=options)))
        return found.value

    none = refused({})
    assert (none.where, none.fix) == ("/planner/options/templates", "plan with `rtk plan oobleck`")
    said = plan.planner.options["templates"]
    assert refused({"templates": {**said, "nodes": 0}}).where == "/planner/options/templates/nodes"
    sizes = [{**said["sizes"][0], "nodes": 7}]
    assert refused({"templates": {**said, "sizes": sizes}}).what == "there is no template n7"


def test_the_command(tmp_path: Path) -> None:
    """`rtk plan oobleck` writes the plan, names its pipelines, and ends with 3 where a batch cannot be split."""
    templates, output = even_templates(12, 2, 7, 2), str(tmp_path / "plan.json")
    write_document(str(tmp_path / "templates.json"), templates)
    asked = ["plan", "oobleck", str(tmp_path / "templates.json"), "--nodes", "13", "--microbatch-size", "4"]
    done = rtk(*asked, "--global-batch", "128", "-o", output)
    plan = plan_oobleck(templates, 13, 128, 4)
    assert read_document(output, Plan) == plan
    counts = ", ".join(str(pipeline.microbatches) for pipeline in plan.pipelines)
    assert done.stderr.splitlines()[-2] == f"6 pipelines of 3, 2, 2, 2, 2, 2 nodes with {counts} micro-batches"
    refused = rtk(*asked, "--global-batch", "130")
    assert refused.returncode == 3
    assert "take 128 or 132" in refused.stderr
