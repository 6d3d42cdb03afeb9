"""How long something lasts, drawn at random: times between failures, repairs, episodes."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ...schemas.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.random import Generator

Distribution = Literal["exponential", "weibull", "lognormal", "fixed"]
LEAST_S = 1e-3  # of a mean: traces count whole milliseconds, and in less of them time stands still
# Beyond these nearly all draws are nothing, a few are longer than any trace, and time stands still.
SHAPES = {"weibull": (0.1, 100.0), "lognormal": (0.0, 5.0)}


@dataclass(frozen=True)
class Lasting:
    """A distribution of times.

    Attributes:
        mean_s: its mean.
        distribution: `exponential`; `weibull`; `lognormal`; or `fixed`, always the mean.
        shape: of a Weibull distribution k (below 1 what has just begun ends soonest, as with early failures; 1 is
            exponential; above 1 it wears out); of a lognormal one sigma, the standard deviation of the logarithm.

    Raises:
        InvalidInputError: the mean is below a millisecond, or the shape not one of `SHAPES`.
    """

    mean_s: float
    distribution: Distribution = "exponential"
    shape: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean_s) and self.mean_s >= LEAST_S):
            what = f"the mean {self.mean_s:g} of a distribution is not a millisecond or more"
            raise InvalidInputError(what, fix="give at least 1ms")
        least, most = SHAPES.get(self.distribution, (-math.inf, math.inf))
        if not least <= self.shape <= most:
            raise InvalidInputError(
                f"a {self.distribution} distribution cannot have the shape {self.shape:g}",
                fix=f"give one from {least:g} to {most:g}",
            )

    def draw_s(self, generator: "Generator") -> float:
        """A time, 0 or more."""
        match self.distribution:
            case "fixed":
                return self.mean_s
            case "exponential":
                return self.mean_s * generator.standard_exponential()
            case "weibull":
                return self.mean_s * float(generator.weibull(self.shape)) / math.gamma(1 + 1 / self.shape)
            case "lognormal":
                return self.mean_s * float(generator.lognormal(-(self.shape**2) / 2, self.shape))
