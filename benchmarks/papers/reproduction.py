"""What a reproduction is: rows of the paper's number beside ours, and what had to be assumed."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Basis(StrEnum):
    """How a number of ours came about."""

    PLANNED = "planned"  # one of rtk's planners says it, from stated inputs
    SIMULATED = "simulated"  # rtk's simulator executed a plan, or its replay a trace under a policy that plans
    DETECTED = "detected"  # rtk's detectors found it in series that were generated as stated
    COMPUTED = "computed"  # arithmetic beside rtk's planners: a closed form, or a policy of which only stalls are known
    MEASURED = "measured"  # taken here once and recorded (`measured.json`): times depend on the machine
    QUOTED = "quoted"  # the paper's own figure, or its authors' log, put in


FITTED = "fitted"
KINDS = (*Basis, FITTED)  # in which a summary counts: fitted ones are taken out of the others
Sense = Literal["near", "at most", "at least"]


@dataclass(frozen=True, slots=True)
class Row:
    """One number of a paper, and ours.

    Attributes:
        what: which, such as `Medium, 6 h, SlipStream`.
        paper: their number; None where they print none.
        ours: ours; for a range its ends, the lower one first.
        basis: how ours came about.
        fitted: the names of the numbers that were fitted to this one, alone or with others; equal names are one number.
        borrowed: the names of numbers that ours rests on and that were fitted to others of the papers' numbers.
        tolerance: the relative difference that was asked for; None: the difference is disclosed, not judged.
        absolute: the tolerance is a plain difference instead (Table 1's residuals).
        sense: near to the paper's on both sides, or no more than it, or no less.
        note: of this row alone.
    """

    what: str
    paper: float | None
    ours: float | tuple[float, float]
    basis: Basis
    tolerance: float | None = None
    fitted: tuple[str, ...] = ()
    borrowed: tuple[str, ...] = ()
    absolute: bool = False
    sense: Sense = "near"
    note: str = ""

    @property
    def kind(self) -> str:
        """What a summary counts it as."""
        return FITTED if self.fitted else self.basis

    @property
    def difference(self) -> float | None:
        """Ours over theirs, less 1, or ours less theirs; for a range, from its nearer end, 0 inside it.

        Where ours is to be at most theirs, or at least, that of the end which could be beyond.
        """
        if self.paper is None:
            return None
        low, high = self.ours if isinstance(self.ours, tuple) else (self.ours, self.ours)
        nearest = {"near": min(max(self.paper, low), high), "at most": high, "at least": low}[self.sense]
        return nearest - self.paper if self.absolute else nearest / self.paper - 1

    @property
    def off(self) -> float:
        """How far beyond the paper's it is in the direction that counts; below 0 on the right side of it."""
        difference = self.difference or 0.0
        return {"near": abs(difference), "at most": difference, "at least": -difference}[self.sense]

    @property
    def holds(self) -> bool | None:
        """Whether it is within its tolerance; None where it is not judged."""
        if self.tolerance is None or self.difference is None:
            return None
        return self.off <= self.tolerance + 1e-12


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
        planners: folders of `planners/` whose code makes its rows or claims; none: no planner is asked.
        rows: numbers.
        claims: what else must hold.
        method: how ours came about, in a few sentences.
        unsaid: what the paper leaves unsaid or says twice, and what was assumed instead, a sentence each.
    """

    name: str
    title: str
    planners: tuple[str, ...]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...] = ()
    method: str = ""
    unsaid: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether all that is judged holds."""
        return all(row.holds is not False for row in self.rows) and all(claim.holds for claim in self.claims)
