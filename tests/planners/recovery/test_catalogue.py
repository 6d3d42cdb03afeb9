"""The policies by name."""

import pytest

from rtk.planners.recovery.catalogue import policy
from rtk.planners.recovery.detecting import Unheeding
from rtk.planners.recovery.greyhound import Greyhound
from rtk.planners.recovery.interruption import Resuming
from rtk.schemas.errors import InvalidInputError

from .stories import job


def test_a_name_makes_its_policy() -> None:
    """Who does not heed what is slow is made to feel it all the same; who can run goes on with iterations."""
    assert isinstance(policy("greyhound", job(2, 2, 2)), Greyhound)
    assert isinstance(policy("varuna", job(2, 2, 2)), Unheeding)
    assert isinstance(policy("slipstream", job(2, 2, 2)), Resuming)


def test_an_unknown_name_gets_the_nearest() -> None:
    """A typo is answered with what was meant, nonsense with all names."""
    with pytest.raises(InvalidInputError) as typo:
        policy("slip-stream", job(2, 2, 2))
    assert typo.value.fix == "did you mean slipstream?"
    with pytest.raises(InvalidInputError) as nonsense:
        policy("xyz", job(2, 2, 2))
    assert "varuna" in str(nonsense.value.fix)
