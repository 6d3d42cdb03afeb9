"""Times, sizes and speeds with their units."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.errors import InvalidInputError
from rtk.schemas.quantities import SIZES, SPEEDS, TIMES, parse_bytes, parse_speed, parse_time_s


@given(st.integers(1, 10**6), st.integers(0, 999), st.sampled_from(sorted(TIMES)), st.sampled_from(["", " "]))
def test_a_number_times_its_unit(whole: int, thousandths: int, unit: str, space: str) -> None:
    """The value is the nearest float to the number times the unit, not one that rounding on the way has moved."""
    text = f"{whole}.{thousandths:03d}{space}{unit}"
    exact = (whole * 1000 + thousandths) * TIMES[unit] / 1000
    assert parse_time_s(text, "here") == float(exact)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_time_s, "5us", 5e-6),
        (parse_time_s, "3µs", 3e-6),
        (parse_time_s, "1.5ms", 1.5e-3),
        (parse_time_s, "0s", 0.0),
        (parse_bytes, "80GiB", 80 * 2**30),
        (parse_bytes, "80 GB", 80e9),
        (parse_bytes, "64KB", 64e3),
        (parse_speed, "50GB/s", 50e9),
        (parse_speed, "400Gbit/s", 50e9),
        (parse_speed, "1GiB/s", 2**30),
    ],
)
def test_what_people_write(parse: Callable[[str, str], float], text: str, value: float) -> None:
    """Binary prefixes count in 1024, others in 1000, and eight bits are a byte."""
    assert parse(text, "here") == value


@pytest.mark.parametrize(
    ("parse", "text", "says", "fix"),
    [
        (parse_time_s, "5", "'5' has no unit", "5us"),
        (parse_bytes, "80e9", "no number with a unit", "80GiB"),
        (parse_speed, "50", "has no unit", "50GB/s"),
        (parse_speed, "50GB", "'GB' in '50GB' is no unit here", "50GB/s"),
        (parse_speed, "400Gb/s", "'Gb/s' in '400Gb/s' is no unit here", "Gbit/s"),
        (parse_bytes, "80gib", "is no unit here", "did you mean GiB? write 80GiB"),
        (parse_bytes, "0GB", "is nothing", "more than 0"),
        (parse_time_s, "-5us", "no number with a unit", "5us"),
        (parse_time_s, "fast", "no number with a unit", "5us"),
        (parse_time_s, "", "no number with a unit", "5us"),
        (parse_time_s, "9" * 400 + "s", "no number with a unit", "5us"),
    ],
)
def test_what_is_refused(parse: Callable[[str, str], float], text: str, says: str, fix: str) -> None:
    """Bare numbers and units of something else, each with its place and what to write."""
    with pytest.raises(InvalidInputError) as caught:
        parse(text, "c.yaml, line 4, /memory")
    assert says in caught.value.what
    assert caught.value.where == "c.yaml, line 4, /memory"
    assert fix in str(caught.value.fix)


def test_every_unit_is_read() -> None:
    """All units that the messages name are read."""
    for units, parse in ((TIMES, parse_time_s), (SIZES, parse_bytes), (SPEEDS, parse_speed)):
        assert [parse(f"8{unit}", "here") for unit in units] == [float(8 * units[unit]) for unit in units]
