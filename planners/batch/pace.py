"""How long a pipeline works on a number of micro-batches."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """The time of a pipeline: of few micro-batches as it was timed, of more by a straight line; in seconds.

    The paper (Oobleck, section 4.2) takes `microbatches * per_microbatch_s`; the fixed part is the filling and draining
    of the pipeline, which that leaves out. A pipeline that is not full, or whose links let micro-batches through in
    bursts, is on no line: `first_s` says so.

    Attributes:
        fixed_s, per_microbatch_s: the line.
        first_s: the times of 1, 2, ... micro-batches, rising, and none above the line's next; beyond them the line
            holds. None are given where it always holds.
    """

    fixed_s: float
    per_microbatch_s: float
    first_s: tuple[float, ...] = ()

    def time_s(self, microbatches: int) -> float:
        """The time of one iteration, in seconds, with this number of micro-batches (at least one)."""
        if microbatches <= len(self.first_s):
            return self.first_s[microbatches - 1]
        return self.fixed_s + microbatches * self.per_microbatch_s
