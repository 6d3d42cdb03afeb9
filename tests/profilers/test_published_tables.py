"""Iterations that others have published, beside computed ones: with nothing fitted to them."""

import pytest


def test_megatrons_table_of_2021_is_met_within_a_twentieth() -> None:
    """Of its models of 1.7 to 39 billion parameters on 32 to 512 A100, each told as its authors ran it."""
    from rtk.benchmarks.cluster_tables import TABLES, predicted_s

    (table,) = (one for one in TABLES if one.name == "megatron-sc21")
    rows = [row for row in table.rows() if row.pipeline_parallel <= 2]
    assert [row.gpus for row in rows] == [32, 64, 128, 256, 512]
    for row in rows:
        assert predicted_s(table, row) == pytest.approx(row.iteration_s, rel=0.05)


def test_a_table_row_says_what_its_source_says() -> None:
    """GPUs of a row are those of its pipelines, and a batch is shared evenly among them, in every table."""
    from rtk.benchmarks.cluster_tables import TABLES

    for table in TABLES:
        for row in table.rows():
            shape = row.shape()
            assert row.global_batch == shape.microbatches * shape.dp * row.microbatch_size, (table.name, row.model)
            assert row.layers % (row.pipeline_parallel * row.chunks) == 0


def test_one_of_many_pipelines_takes_what_all_take() -> None:
    """A row is computed from one pipeline: a plan of all of them, with their sums, takes as long."""
    from rtk.benchmarks.cluster_tables import TABLES, predicted_s, profile_of
    from rtk.planners.pipeline import plan_pipeline

    table = TABLES[0]
    (row,) = (one for one in table.rows() if one.pipeline_parallel == 2)
    plan = plan_pipeline(profile_of(table, row), row.shape(), "1f1b")
    assert plan.prediction is not None
    assert plan.prediction.iteration_time_s == pytest.approx(predicted_s(table, row), rel=1e-12)
