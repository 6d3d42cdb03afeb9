"""Plain Python or machine code, decided by all that was asked for so far."""

from rtk.planners.scheduling.forms import pays


def test_many_small_problems_pay_for_machine_code_as_a_large_one_does() -> None:
    """Once as many steps were asked for as plain Python does while machine code is loaded, it is loaded."""

    def never_compiled() -> None:
        """Of a module without kernels."""

    assert [pays(never_compiled, steps=4, most_interpreted=10) for _ in range(4)] == [False, False, True, True]
