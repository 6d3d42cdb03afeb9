"""Numbers for people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.quantities import print_bytes, print_time, ticks


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (90, "90 s"),
        (1.23456, "1.235 s"),
        (0.0123, "12.3 ms"),
        (4.2e-5, "42 µs"),
        (12345.6, "3.429 h"),
        (150, "2.5 min"),
    ],
)
def test_times_choose_their_unit(seconds: float, text: str) -> None:
    """A time is printed in the largest unit in which it is at least one, with four digits."""
    assert print_time(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (80 * 2**30, "80 GiB"), (2.0**60, "1048576 TiB")]
)
def test_sizes_choose_their_unit(size: float, text: str) -> None:
    """A size is printed in the largest binary unit in which it is at least one."""
    assert print_bytes(size) == text


@given(end=st.floats(1e-9, 1e9), count=st.integers(1, 20))
def test_ticks_are_few_and_inside(end: float, count: int) -> None:
    """Ticks begin at 0, stay inside the axis, and are at most one more than asked for."""
    places = ticks(end, count)
    assert places[0] == 0
    assert places[-1] <= end * (1 + 1e-6)
    assert len(places) <= count + 1
