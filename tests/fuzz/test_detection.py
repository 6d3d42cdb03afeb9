"""Logs of iteration times and of calls, dumps and tables, damaged."""

import pytest

from .slice import wrong_cases

pytestmark = pytest.mark.checkout


def test_damaged_files_are_answered_or_refused() -> None:
    """Never a traceback, a hang or a full memory, and nothing is written where something failed."""
    assert wrong_cases("detection") == []
