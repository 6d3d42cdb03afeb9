"""NTP's figures, as reproduced: what is judged holds, and stands on the page as it is made."""

import pytest

from .making import made, require_on_page, require_truth

NAME = "ntp-figures-3-4-6-7"


def test_what_is_judged_holds() -> None:
    """Every row within what was asked for, by a policy that was asked and a trace that was replayed."""
    require_truth(NAME)
    assert made(NAME).reproduction.holds


@pytest.mark.checkout
def test_the_page_has_it() -> None:
    """The section and the line of the summary."""
    require_on_page(NAME)
