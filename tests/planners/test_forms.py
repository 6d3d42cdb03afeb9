"""Plain Python or machine code, decided by all that was asked for so far."""

import numpy as np

from rtk.planners.scheduling.forms import Form, many_problems, pays


def test_many_small_problems_pay_for_machine_code_as_a_large_one_does() -> None:
    """Among many, once as many steps were asked for as plain Python does while machine code is loaded, it is loaded."""

    def never_compiled() -> None:
        """Of a module without kernels."""

    def asked() -> list[bool]:
        return [pays(never_compiled, steps=4, most_interpreted=10) for _ in range(4)]

    with many_problems():
        assert asked() == [False, False, True, True]
    assert asked() == [False] * 4  # who waits for one answer is not held up by those before


def test_kernels_are_given_arrays_of_one_type() -> None:
    """What may only be read, as a broadcast, is copied: numba would compile all that takes it a second time."""
    given = np.broadcast_to(np.arange(3.0), 3)
    formed = Form(True).floats(given)
    assert not given.flags.writeable
    assert formed.flags.writeable
    assert formed.tolist() == given.tolist()
    own = np.arange(3)
    assert Form(True).ints(own) is own
