"""How a run keeps up with its plan: what was planned and measured, and what the difference is due to."""

from dataclasses import dataclass

from .quantities import print_percent

FAR = 0.1  # measured times this far beyond the planned ones are explained


@dataclass(frozen=True, slots=True)
class PaceCause:
    """One reason why iterations take longer than planned.

    Attributes:
        words: what is slow, and how much, such as `stage 1 computes 1.3 x slower`.
        costs_s: by how much it makes an iteration longer.
    """

    words: str
    costs_s: float


@dataclass(frozen=True, slots=True)
class PaceReport:
    """A run beside its plan.

    Attributes:
        planned_s: an iteration, by the plan.
        measured_s: an iteration (schemas/timeline.py: `iteration_time_s`).
        causes: what the difference is due to, the costliest first; together they need not give all of it.
    """

    planned_s: float
    measured_s: float
    causes: tuple[PaceCause, ...] = ()

    @property
    def beyond(self) -> float:
        """By how much longer it takes than planned: 0.1 is 10 %; negative where it is quicker."""
        return self.measured_s / self.planned_s - 1 if self.planned_s else 0.0

    @property
    def why(self) -> str:
        """The causes, and what each adds to an iteration; empty where there are none."""
        return ", ".join(f"{one.words} (+{print_percent(one.costs_s / self.planned_s)})" for one in self.causes)

    @property
    def sentence(self) -> str:
        """For people, in one line."""
        return beyond_in_words(self.beyond, self.why)


def beyond_in_words(beyond: float, why: str) -> str:
    """`12 % slower than planned`, and why.

    Args:
        beyond: by how much longer an iteration takes: 0.12.
        why: empty where that is not known.
    """
    share = round(beyond, 3)
    how = f"{print_percent(abs(share))} {'slower' if share > 0 else 'faster'} than planned" if share else "as planned"
    return f"{how}: {why}" if why else how
