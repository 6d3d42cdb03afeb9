"""How long a pipeline works on a number of micro-batches."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """The time of a pipeline as a straight line: a fixed part and a part for every micro-batch, in seconds.

    The paper (Oobleck, section 4.2) takes `microbatches * per_microbatch_s`; the fixed part is the filling and draining
    of the pipeline, which that leaves out.
    """

    fixed_s: float
    per_microbatch_s: float

    def time_s(self, microbatches: int) -> float:
        """The time of one iteration, in seconds, with this number of micro-batches (at least one)."""
        return self.fixed_s + microbatches * self.per_microbatch_s
