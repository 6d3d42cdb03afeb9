"""What a template is judged by: the time of one iteration of a 1F1B pipeline, "Oobleck" section 4.1.2.

A pipeline of S stages has stage times t_i = F + I + W, and k is the last of its slowest stages. Equations 1 to 4 add up
the critical path of Figure 5 as T = T1 + T2 + T3:

    T1 = sum of all t_i                  every stage once, forward and backward
    T2 = (N_b - S + k - 1) t_k           the slowest stage in its steady phase
    T3 = sum of t_i from stage k on      what follows it

The paper does not know N_b, the micro-batches of the pipeline, when it plans, and takes N_b = 4 S (`four-per-stage`).
Templates of unlike depth are then compared at unlike amounts of work, which favours few stages. Where n micro-batches
are given (`microbatches`), we deviate from the paper:

    T = sum of all t_i + (n - 1) t_k     the first micro-batch in every stage, the others behind it in the slowest

This is the time of n jobs, in order, through a flow shop. Where F is the same share of every stage's t, and links and
memory cost nothing, 1F1B takes no longer, and less by no more than the sum of t_i after k (tests, benchmark).

The paper's T with N_b = n is no such estimate. Where the stages after k are light, it is less than stage k works, plus
what that waits for: n t_k + sum of t_i before k; with n near or below S it may be negative. Its templates pay for that.
What the template for 24 nodes of 8 GPUs and 96 unlike layers takes under 1F1B, in s, chosen by

    n                                          24      96     192
    four-per-stage                          149.1   394.5   721.9
    the paper's T, N_b = n, kept above that 199.1   356.8   546.7
    microbatches                            150.0   325.4   542.5

(`benchmarks/oobleck_templates.py` makes the first and last line.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...schemas.templates import Objective as ObjectiveName

PER_STAGE = 4  # N_b / S in the paper


class Weights(NamedTuple):
    """T as a sum over stages, given tau = t_k: what a stage of time t adds, by its place.

    Before the last slowest stage t + `before` tau; after it `times` t + `after` tau; that stage itself `slowest` tau.
    """

    before: int
    times: int
    after: int
    slowest: int


FLAT = Weights(before=0, times=1, after=0, slowest=1)  # the sum of all t_i, which knows no tau


@dataclass(frozen=True)
class Objective:
    """T, with so many micro-batches in each pipeline; with None, four a stage."""

    given: int | None

    @property
    def name(self) -> ObjectiveName:
        """As templates call it."""
        return "four-per-stage" if self.given is None else "microbatches"

    @property
    def weights(self) -> Weights:
        """T as a sum."""
        if self.given is None:
            return Weights(before=PER_STAGE, times=2, after=PER_STAGE - 1, slowest=PER_STAGE)
        return Weights(before=0, times=1, after=0, slowest=self.given)

    def microbatches(self, stages: int) -> int:
        """N_b of a pipeline of so many stages."""
        return PER_STAGE * stages if self.given is None else self.given

    def in_flight(self, stages: int, stage: int) -> int:
        """Micro-batches whose activations a stage of a 1F1B pipeline holds at once, at most."""
        return min(stages - stage, self.microbatches(stages))

    def iteration_time_s(self, times_s: Sequence[float]) -> float:
        """T of a pipeline, in s.

        Args:
            times_s: t of each stage, in order.
        """
        stages, slowest_s = len(times_s), max(times_s)
        if self.given is not None:
            return sum(times_s) + (self.given - 1) * slowest_s
        last = max(i for i, time_s in enumerate(times_s) if time_s == slowest_s)
        steady_s = (self.microbatches(stages) - stages + last - 1) * slowest_s
        return sum(times_s) + steady_s + sum(times_s[last:])
