"""Walk 7 of docs/tour.md (tests/test_tour.py)."""

from pathlib import Path

import pytest

from .walking import take

pytestmark = pytest.mark.checkout


def test_training_runs_as_the_tour_says(tmp_path: Path) -> None:
    """Training: a killed worker is survived, a checkpoint resumed, and other ways to start a job taken."""
    take("7", tmp_path)
