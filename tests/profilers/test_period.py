"""The period of a sequence of calls."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.profilers.failslow.calls.iterations import FEWEST_PERIODS, period_of

BLOCKS = st.lists(st.integers(0, 5), min_size=1, max_size=24)


def primitive(block: list[int]) -> list[int]:
    """The shortest sequence of which it is a repetition."""
    return next(block[:size] for size in range(1, len(block) + 1) if block[:size] * (len(block) // size) == block)


@given(BLOCKS, st.integers(FEWEST_PERIODS + 2, 20))
def test_the_period_of_a_repeated_sequence_is_its_length(block: list[int], times: int) -> None:
    """Whatever is repeated, if it is no repetition by itself; two calls more than seven periods are always enough."""
    once = primitive(block)
    assert period_of(once * times) == len(once)


@given(BLOCKS, st.integers(FEWEST_PERIODS + 2, 12), st.permutations(range(6)), st.integers(0, 23))
def test_neither_numbers_nor_the_beginning_matter(block: list[int], times: int, names: list[int], begin: int) -> None:
    """Other numbers for the tokens, and a log that begins elsewhere, have the same period."""
    calls = primitive(block) * times
    assert period_of([names[token] for token in calls[begin % len(block) :] + calls[: begin % len(block)]]) == len(
        primitive(block)
    )


@settings(max_examples=50)
@given(st.integers(3, 12), st.integers(20, 40), st.floats(0, 0.04), st.integers(0, 1 << 30))
def test_a_few_strays_do_not_matter(layers: int, times: int, share: float, seed: int) -> None:
    """Up to 4 % of other calls in a sharded job's loop leave its period as it is."""
    random = Random(seed)
    loop = [0] * layers + [0, 1] * layers + [2]
    calls = []
    for token in loop * times:
        calls += [token, random.randint(3, 8)] if random.random() < share else [token]
    assert period_of(calls) == len(loop)


def test_evaluations_do_not_matter() -> None:
    """Forward passes, and a sum of their losses, between iterations now and then."""
    loop = [0] * 8 + [0, 1] * 8
    calls = ([3] * 20 + loop * 11 + [0] * 16 + [2] + loop * 13 + [0] * 8 + [2]) * 3
    assert period_of(calls) == len(loop)


@given(st.integers(0, 1 << 30))
def test_what_does_not_repeat_itself_has_no_period(seed: int) -> None:
    """Random calls have none."""
    random = Random(seed)
    assert period_of([random.randint(0, 6) for _ in range(400)]) is None


@pytest.mark.parametrize("calls", [[], [0], [0, 1], [0, 1] * 6])
def test_too_few_calls_have_no_period(calls: list[int]) -> None:
    """Seven periods must be there."""
    assert period_of(calls) is None or len(calls) >= FEWEST_PERIODS * 2


def test_the_papers_recipe_finds_clean_loops_only() -> None:
    """Of a clean log it tells the period, also after a start of other calls; of one with a few strays it does not."""
    loop = [0] * 8 + [0, 1] * 8 + [2]
    assert period_of(list(range(3, 30)) + loop * 20, "paper") == len(loop)
    random = Random(1)
    strayed = [token for call in loop * 20 for token in ([call, 9] if random.random() < 0.03 else [call])]
    assert period_of(strayed, "paper") != len(loop)
    assert period_of(strayed) == len(loop)
