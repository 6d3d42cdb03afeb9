"""What is on record of the group "planning": see `recording.py`."""

from pathlib import Path

import pytest

from .commands import GROUPS
from .recording import check, recorded


@pytest.mark.parametrize("line", GROUPS["planning"])
def test_a_command_does_what_is_on_record(line: str, tmp_path: Path) -> None:
    """Exit code, standard streams and all files are as they were."""
    check("planning", line, tmp_path)


def test_the_record_is_of_these_commands() -> None:
    """None is missing, and none is left from before."""
    assert set(recorded("planning")) == set(GROUPS["planning"])
