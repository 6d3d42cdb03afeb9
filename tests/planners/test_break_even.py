"""When copies have paid."""

from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.slipstream.replanner import break_even_iterations, pays_within


@given(st.integers(0, 1000), st.integers(1, 50), st.integers(1, 50))
def test_break_even_is_the_first_iteration_that_has_paid(copying_s: int, after_s: int, gain_s: int) -> None:
    """After so many iterations, and not after one less, what they gain is no less than what the copies took."""
    found = break_even_iterations(float(copying_s), float(after_s + gain_s), float(after_s))
    assert found is not None
    assert found * gain_s >= copying_s > (found - 1) * gain_s or found == copying_s == 0


@given(st.floats(0, 1e6), st.floats(0.001, 1e3), st.floats(0, 1e3))
def test_what_does_not_get_faster_never_pays(copying_s: float, before_s: float, worse_s: float) -> None:
    """There is no break-even where an iteration takes as long, or longer."""
    assert break_even_iterations(copying_s, before_s, before_s + worse_s) is None


def test_copies_of_unknown_length_never_pay() -> None:
    """Where nobody knows how long copies take, there is no break-even."""
    assert break_even_iterations(None, 2.0, 1.0) is None
    assert not pays_within(10**9, None, 2.0, 1.0)


def test_copies_pay_within_the_break_even_and_not_before() -> None:
    """Copies of 5 s that save 2 s an iteration have paid after 3 iterations, not after 2; with no gain never."""
    assert pays_within(3, 5.0, 4.0, 2.0)
    assert not pays_within(2, 5.0, 4.0, 2.0)
    assert not pays_within(10**9, 0.0, 4.0, 4.0)
