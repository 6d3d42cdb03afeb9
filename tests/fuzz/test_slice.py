"""What the suite's few cases reach."""

import pytest

from .cases import chosen
from .samples import TARGETS
from .slice import CASES


@pytest.mark.checkout
@pytest.mark.parametrize("group", sorted({target.group for target in TARGETS}))
def test_every_file_is_damaged_and_nearly_every_command_reads_one(group: str) -> None:
    """Drawn at random, as many cases left out two logs of `detection`, and 20 of its 47 commands."""
    targets = [target for target in TARGETS if target.group == group]
    cases = [chosen(targets, number) for number in range(CASES)]
    assert {target.file for target, _ in cases} == {target.file for target in targets}
    every = [(target.file, command) for target in targets for command in target.commands]
    assert len({(target.file, command) for target, command in cases}) >= 0.8 * len(every)
