"""The iteration time of a run: one definition for terminals, pages and metrics (rtk/schemas/timeline.py)."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.timeline import Event, IterationTime, Span, Timeline, iteration_time_s, iteration_times

TIMES = st.lists(st.integers(1, 1000), min_size=1, max_size=12)


def timeline(times: list[int], changed_before: set[int], pause: int = 500) -> Timeline:
    """Iterations one after the other; before some there is a pause, at whose end the workers change.

    In the pause the iteration had been begun, which is done again.
    """
    spans, events, now = [], [], 0
    for number, takes in enumerate(times):
        if number in changed_before:
            spans.append(Span("0/0", "F0", now, now + pause // 2, number))
            now += pause
            events.append(Event(now, "epoch"))
        half = now + takes / 2
        spans += [Span("0/0", "F0", now, half, number), Span("0/0", "step", half, now + takes, number)]
        now += takes
    return Timeline("measured", tuple(spans), events=tuple(events))


@given(TIMES, st.sets(st.integers(1, 11)))
def test_every_iteration_takes_what_it_took(times: list[int], changed_before: set[int]) -> None:
    """Pauses and what was done in vain are not in it; the first one, and those after a change, are marked."""
    found = iteration_times(timeline(times, changed_before))
    assert [one.seconds for one in found] == pytest.approx(times)
    assert {one.iteration for one in found if one.is_first} == {0, *(n for n in changed_before if n < len(times))}


@given(TIMES, st.sets(st.integers(1, 11)))
def test_the_iteration_time_is_the_median_without_first_ones(times: list[int], changed_before: set[int]) -> None:
    """However slow these are; where there are no others they count."""
    usual = [takes for n, takes in enumerate(times) if n > 0 and n not in changed_before]
    slow = [takes * 50 if n == 0 or n in changed_before else takes for n, takes in enumerate(times)]
    expected = median(usual) if usual else median(slow)
    assert iteration_time_s(iteration_times(timeline(slow, changed_before))) == pytest.approx(expected)


def test_iterations_that_overlap_take_a_period() -> None:
    """With a staggered optimizer an iteration begins before the last one ends: it takes from end to end."""
    spans = [Span("0/0", "F0", 3.0 * n, 3.0 * n + 5.0, n) for n in range(4)]
    found = iteration_times(Timeline("simulated", tuple(spans)))
    assert found == (IterationTime(0, 5.0, is_first=True), *(IterationTime(n, 3.0) for n in (1, 2, 3)))
    assert iteration_time_s(found) == 3.0
    assert iteration_time_s([]) is None
