"""What a reproduction is: rows of the paper's number beside ours, and what had to be assumed."""

from dataclasses import dataclass
from typing import Literal

# exact: the same arithmetic; model: a stated model, whose constants have other sources than this number; fitted: a
# parameter was fitted to this number, alone or with others; one-sided and range: what the paper leaves open admits no
# more.
Basis = Literal["exact", "model", "fitted", "one-sided", "range"]


@dataclass(frozen=True, slots=True)
class Row:
    """One number of a paper, and ours.

    Attributes:
        what: which, such as `Medium, 6 h, SlipStream`.
        paper: their number; None where they print none.
        ours: ours; for a range its ends, the lower one first.
        basis: what ours stands on.
        tolerance: the relative difference that was asked for; None: the difference is disclosed, not judged.
        absolute: the tolerance is a plain difference instead (Table 1's residuals).
        note: of this row alone.
    """

    what: str
    paper: float | None
    ours: float | tuple[float, float]
    basis: Basis = "model"
    tolerance: float | None = None
    absolute: bool = False
    note: str = ""

    @property
    def difference(self) -> float | None:
        """Ours over theirs, less 1, or ours less theirs; for a range, from its nearer end, 0 inside it."""
        if self.paper is None:
            return None
        low, high = self.ours if isinstance(self.ours, tuple) else (self.ours, self.ours)
        nearest = min(max(self.paper, low), high)
        return nearest - self.paper if self.absolute else nearest / self.paper - 1

    @property
    def holds(self) -> bool | None:
        """Whether it is within its tolerance; None where it is not judged."""
        if self.tolerance is None or self.difference is None:
            return None
        return abs(self.difference) <= self.tolerance + 1e-12


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that must hold besides single numbers, such as an order of systems."""

    what: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A table or a figure.

    Attributes:
        name: by which `rtk reproduce` knows it, such as `slipstream-table-1`.
        title: what it is, with paper, section, and what is counted in which unit.
        rows: numbers.
        claims: what else must hold.
        method: how ours came about, in a few sentences.
        unsaid: what the paper leaves unsaid or says twice, and what was assumed instead, a sentence each.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...] = ()
    method: str = ""
    unsaid: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether all that is judged holds."""
        return all(row.holds is not False for row in self.rows) and all(claim.holds for claim in self.claims)
