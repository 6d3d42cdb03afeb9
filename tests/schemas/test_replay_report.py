"""Reports of replays: what is written is what is read."""

import json
from typing import Any

import pytest
from hypothesis import given, settings

from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.replay import ReplayReport

from ..viz.replays import policy, report, reports


@given(reports)
@settings(max_examples=25, deadline=None)
def test_it_reads_back_as_it_was_written(written: ReplayReport) -> None:
    """The canonical bytes give the same report, whose canonical bytes are the same."""
    data = canonical(written)
    read = parse_document(data, ReplayReport, "r.json")
    assert read == written
    assert canonical(read) == data


def test_a_year_of_a_large_cluster_can_be_read() -> None:
    """Thousands of millions of micro-batches are a number like others."""
    large = report(policy("slipstream", 0.9, count=5 * 10**9))
    assert parse_document(canonical(large), ReplayReport, "r.json") == large


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("policies",), []),
        (("policies", 0, "policy"), ""),
        (("policies", 0, "microbatches"), -1),
        (("policies", 0, "time", "working_s"), -1.0),
        (("policies", 0, "stretches", 0, "nodes"), 1.5),
        (("policies", 0, "answers", "restart"), -3),
        (("policies", 0, "surprise"), 1),
    ],
)
def test_contradictions_are_named(where: tuple[Any, ...], value: Any) -> None:
    """No policies, counts and times below zero, halves of nodes and unknown keys: an error says where."""
    tree = json.loads(canonical(report(policy("slipstream", 0.9))))
    part = tree
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    with pytest.raises(InvalidInputError, match="/".join(map(str, where))):
        parse_document(json.dumps(tree).encode(), ReplayReport, "r.json")
