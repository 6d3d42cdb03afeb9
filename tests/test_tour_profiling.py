"""Walks 2 and 9 of docs/tour.md (tests/test_tour.py)."""

from pathlib import Path

import pytest

from .walking import take

pytestmark = pytest.mark.checkout


def test_profiling_runs_as_the_tour_says(tmp_path: Path) -> None:
    """Profiling: layers, a Hugging Face model and links are measured, others computed."""
    take("2", tmp_path)


def test_a_jobs_file_is_enough(tmp_path: Path) -> None:
    """The job's file: written without questions, it says all that measuring, planning and simulating need."""
    take("9", tmp_path)
