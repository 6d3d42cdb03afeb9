"""A value beside a bound that is proven: how both are compared."""

# Sums of the same times in another order differ by less than this, relatively.
ROUNDING = 1e-9


class Proven:
    """What is known of a value: the bound that nothing undercuts. Both in s."""

    value_s: float
    bound_s: float

    @property
    def goal_s(self) -> float:
        """A value this low, in s, differs from the bound by rounding only."""
        return self.bound_s * (1 + ROUNDING)

    @property
    def optimal(self) -> bool:
        """Whether the value reaches its bound, up to rounding."""
        return self.value_s <= self.goal_s
