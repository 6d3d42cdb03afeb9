"""What a template is judged by: the time of one iteration of a 1F1B pipeline, "Oobleck" section 4.1.2.

A pipeline of S stages has stage times t_i = F + I + W, and k is the last of its slowest stages. Equations 1 to 4 add up
the critical path of Figure 5 as T = T1 + T2 + T3:

    T1 = sum of all t_i                  every stage once, forward and backward
    T2 = (N_b - S + k - 1) t_k           the slowest stage in its steady phase
    T3 = sum of t_i from stage k on      what follows it

The paper does not know N_b, the micro-batches of the pipeline, when it plans, and takes N_b = 4 S. Templates of unlike
depth are then compared at unlike amounts of work, which favours few stages; where the number of micro-batches is known,
it may be given instead.

The paper's T can be less than any schedule takes, for by the formula the slowest stage idles, beside its N_b t_k, for
2 (sum of t_i after k) - (S - k - 1) t_k, which is below zero where the stages after it are shorter than t_k / 2 on
average. With N_b = 4 S that hardly matters, and we leave the paper's objective as it is. With a given N_b it does: the
fewer micro-batches there are to a stage, the more a long stage before many short ones seems to gain. (24 nodes of 8
GPUs, 96 unlike layers, 24 micro-batches: the least T is -3,328 s, of a mapping that takes 2,198 s, where 149 s are
possible.) So there we deviate where, and only where, the formula is no estimate:

* N_b >= S: the slowest stage idles for no less than no time, T >= sum of t_i before k + N_b t_k;
* N_b < S: there is no steady phase, and T = sum of all t_i + (N_b - 1) t_k: the first micro-batch goes through all
  stages, the others behind it through the slowest. For equal stages that is the paper's T, and it is never less.

Even so T is less than 1F1B takes, the more so the fewer micro-batches there are to a stage: by 2 % with 5.6 a stage, by
15 % with 1.3 (`benchmarks/oobleck_templates.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...schemas.templates import Objective as ObjectiveName


class Weights(NamedTuple):
    """T as a sum over stages, given tau = t_k: what a stage of time t adds, by its place.

    Before the last slowest stage t + `before` tau; after it `times` t + `after` tau, all these together at least
    nothing; and that stage itself `slowest` tau.
    """

    before: int
    times: int
    after: int
    slowest: int


@dataclass(frozen=True)
class Case:
    """A formula for T, and the most stages that it is T for; with more of them it is not to be used."""

    weights: Weights
    most_stages: int


@dataclass(frozen=True)
class Objective:
    """A pipeline of S stages has N_b = per_stage * S + fixed micro-batches; one of the two is zero."""

    per_stage: int
    fixed: int

    @property
    def name(self) -> ObjectiveName:
        """As templates call it."""
        return "four-per-stage" if self.per_stage else "microbatches"

    def microbatches(self, stages: int) -> int:
        """N_b of a pipeline of so many stages."""
        return self.per_stage * stages + self.fixed

    def in_flight(self, stages: int, stage: int) -> int:
        """Micro-batches whose activations a stage of a 1F1B pipeline holds at once, at most."""
        return min(stages - stage, self.microbatches(stages))

    def iteration_time_s(self, times_s: Sequence[float]) -> float:
        """T of a pipeline, in s.

        Args:
            times_s: t of each stage, in order.
        """
        count, slowest_s = len(times_s), max(times_s)
        if self.microbatches(count) < count:
            return sum(times_s) + (self.fixed - 1) * slowest_s
        last = max(i for i, time_s in enumerate(times_s) if time_s == slowest_s)
        idle_s = 2 * sum(times_s[last + 1 :]) - (count - last - 1) * slowest_s
        if not self.per_stage:
            idle_s = max(0.0, idle_s)
        return sum(times_s[:last]) + self.microbatches(count) * slowest_s + idle_s

    def cases(self, layers: int) -> list[Case]:
        """The formulas for pipelines of up to so many layers, and so stages; T is the least that any of them gives."""
        if self.per_stage:
            return [Case(Weights(self.per_stage, 2, self.per_stage - 1, self.per_stage), layers)]
        steady = Case(Weights(0, 2, -1, self.fixed), min(layers, self.fixed))
        short = Case(Weights(0, 1, 0, self.fixed), layers)
        return [steady] if self.fixed >= layers else [short, steady]


def objective_of(microbatches: int | None) -> Objective:
    """The paper's objective, or that of so many micro-batches."""
    return Objective(4, 0) if microbatches is None else Objective(0, microbatches)
