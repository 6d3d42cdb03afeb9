"""Walk 2 of docs/tour.md (tests/test_tour.py)."""

from pathlib import Path

import pytest

from .walking import take

pytestmark = pytest.mark.checkout


def test_profiling_runs_as_the_tour_says(tmp_path: Path) -> None:
    """Profiling: layers, a Hugging Face model and links are measured, others computed."""
    take("2", tmp_path)
