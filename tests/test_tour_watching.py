"""Walk 1 of docs/tour.md (tests/test_tour.py)."""

from pathlib import Path

import pytest

from .walking import take

pytestmark = pytest.mark.checkout


def test_watching_runs_as_the_tour_says(tmp_path: Path) -> None:
    """Watching: a slow rank of an unchanged program is found, and a slow stretch of a log."""
    take("1", tmp_path)
