"""Explanations of resumptions: who goes on with what, and what takes longest."""

from dataclasses import replace

from hypothesis import given, settings
from pytest import approx

from rtk.planners.explain.resumed import explain_resumption, words_of_resumption
from rtk.schemas.check_rest import timed_rest
from rtk.schemas.plan import Plan
from rtk.schemas.resumption import Rest, Resumption

from ..rests import rests
from ..resumptions import resumed
from ..strategies import BY_HAND


@settings(max_examples=40)
@given(rests())
def test_the_longest_path_is_one(drawn: tuple[Plan, Rest]) -> None:
    """It begins where nothing is waited for, its legs follow each other, and it ends with the last operation."""
    told = explain_resumption(Resumption(BY_HAND, *drawn))
    times = timed_rest(*drawn)
    ends_s = [run[-1].end_s for run in times if run]
    assert bool(told.legs) == bool(ends_s)
    if told.legs:
        assert told.legs[-1].end_s == max(ends_s)
        assert told.legs[0].waits in ("from the beginning", "after a kept message that was sent again")
        assert all(leg.waits.startswith("after ") for leg in told.legs[1:])
        assert all(a.end_s >= 0 and b.start_s >= a.start_s for a, b in zip(told.legs, told.legs[1:], strict=False))
    assert sum(one.left for one in told.workers) == told.left == sum(map(len, times))
    assert words_of_resumption(told).startswith(f"Iteration {drawn[1].iteration}: {told.left} operation")


def test_a_resumption_is_explained_in_words() -> None:
    """How long it takes and why, who has what, and what is sent again."""
    resumption = resumed()
    told = explain_resumption(resumption)
    prediction = resumption.rest.prediction
    assert prediction is not None and told.legs and told.sums_s is not None
    assert told.legs[-1].end_s + told.sums_s == approx(prediction.makespan_s)
    words = words_of_resumption(told)
    assert "operations left, which take 12 s" in words
    assert "3 activations of the boundary before layer 1: from 1/0 to 0/1" in words
    rest = replace(resumption.rest, prediction=None)
    assert words_of_resumption(explain_resumption(replace(resumption, rest=rest))).startswith("Iteration 1: ")
