"""The sizes of the next pipelines: the paper's three steps.

"Oobleck: Resilient Distributed Training of Large Models Using Pipeline Templates", section 5.1 and Appendix B. A
pipeline that lost nodes takes the template of its new size (*simple*); if it is too small for any, it *borrows* nodes
from the largest; if nobody can yield one, pipelines *merge*. Nodes that *join* are ours to place.

What the paper leaves open, or its implementation got wrong:

* Only sizes are decided here. Which node goes where is another question (assignment.py), for a node's worth lies in the
  layers that it holds, not in the pipeline that it is in.
* What a merge brings beyond the smallest size is lent at once to others that are too small, so that three pipelines of
  3, 3 and 2 nodes become two of 4 and not one of 8.
* A merged pipeline can exceed the largest template where few templates were made; the rest goes to the smallest others.
* A pipeline that lost all its nodes is *dropped*, unless that leaves fewer than f + 1: then it borrows all of them.
* Nodes that join fill up pipelines that are too small, then form new ones; a rest too small for that makes the smallest
  pipelines larger, and where all are as large as can be, it borrows what it lacks.

Merging ends with n // n_0 pipelines for n nodes: while it goes on all others have n_0 nodes, and the merged ones have
fewer than 2 n_0 together. So from (f + 1) n_0 nodes on, f + 1 pipelines remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...schemas.errors import InfeasibleError

Step = Literal["drop", "simple", "borrow", "merge", "join", "new set"]
STEPS: tuple[Step, ...] = ("drop", "simple", "borrow", "merge", "join")


@dataclass(frozen=True)
class Sizes:
    """What pipelines may look like.

    Attributes:
        smallest, largest: nodes of each.
        fewest: pipelines that there must be.
        most: pipelines that the batch can be split for, `fewest` or more; None where that does not limit them. The
            steps do not heed it.
    """

    smallest: int
    largest: int
    fewest: int
    most: int | None = None

    @property
    def least(self) -> int:
        """The fewest nodes that there must be."""
        return self.fewest * self.smallest

    def require(self, nodes: int) -> None:
        """Raise InfeasibleError unless pipelines can use exactly so many nodes."""
        if nodes < self.least:
            raise InfeasibleError(
                f"{nodes} nodes cannot hold {self.fewest} pipelines of {self.smallest} nodes or more",
                where="the nodes that are left",
                fix=f"at least {self.least} nodes are needed: go on from a checkpoint once there are so many",
            )
        usable = self.usable(nodes)
        if nodes > usable:
            raise InfeasibleError(
                self.cannot_use(nodes),
                where="the nodes that are left",
                fix=f"let {nodes - usable} wait: {usable} can be used",
            )

    def usable(self, nodes: int) -> int:
        """How many of so many nodes pipelines can use; more than the job began with may leave some over."""
        pipelines = nodes // self.smallest
        return min(nodes, (pipelines if self.most is None else min(pipelines, self.most)) * self.largest)

    def cannot_use(self, nodes: int) -> str:
        """What is wrong with a number of nodes that pipelines cannot use all of."""
        sizes = f"pipelines of {self.smallest} to {self.largest} nodes cannot use {nodes} nodes"
        if self.most is None or nodes // self.smallest <= self.most:
            return sizes
        return f"{self.most} {sizes}, and the batch is too small for more"

    def around(self, nodes: int) -> list[int]:
        """The numbers next to this one of which pipelines can use all; just this one, where they can."""
        below, above = self.usable(nodes), (nodes // self.smallest + 1) * self.smallest  # enough for another pipeline
        return [below, above] if below < nodes and self.usable(above) == above else [below]


@dataclass(frozen=True)
class Pipelines:
    """The next pipelines.

    Attributes:
        sizes: nodes of each.
        origins: the present pipeline that each replaces, None for a new one.
        steps: what was done.
    """

    sizes: tuple[int, ...]
    origins: tuple[int | None, ...]
    steps: tuple[Step, ...]


@dataclass
class _Group:
    origin: int | None
    nodes: int
    held_bytes: float


def reinstantiate(
    before: Sequence[int], left: Sequence[int], held_bytes: Sequence[float], joining: int, allowed: Sizes
) -> Pipelines:
    """The next pipelines.

    Args:
        before: nodes of each present pipeline.
        left: those that survive.
        held_bytes: what these hold: of pipelines that merge, the one that holds most goes on.
        joining: nodes that join.
        allowed: the sizes there are.

    Raises:
        InfeasibleError: no pipelines of these sizes use these nodes, or fewer than must be.
    """
    allowed.require(sum(left) + joining)
    steps: set[Step] = set()
    if any(allowed.smallest <= now < was for now, was in zip(left, before, strict=True)):
        steps.add("simple")
    if joining:
        steps.add("join")
    groups = _standing(left, held_bytes, allowed.fewest)
    if len(groups) < len(before):
        steps.add("drop")
    spare = _fill(groups, joining, allowed.smallest)
    steps |= _complete(groups, allowed)
    steps |= _place(groups, spare, allowed)
    groups.sort(key=lambda group: (group.origin is None, group.origin))
    return Pipelines(
        tuple(group.nodes for group in groups),
        tuple(group.origin for group in groups),
        tuple(step for step in STEPS if step in steps),
    )


def _standing(left: Sequence[int], held_bytes: Sequence[float], fewest: int) -> list[_Group]:
    """The pipelines that have nodes, and as many empty ones as are needed beside them."""
    groups = [_Group(k, nodes, held) for k, (nodes, held) in enumerate(zip(left, held_bytes, strict=True))]
    living = sum(nodes > 0 for nodes in left)
    empty = [group for group in groups if not group.nodes][: max(0, fewest - living)]
    missing = fewest - living - len(empty)
    new = [_Group(None, 0, 0.0) for _ in range(missing)]
    return [group for group in groups if group.nodes] + empty + new


def _fill(groups: list[_Group], joining: int, smallest: int) -> int:
    """Give joining nodes to pipelines that are too small, least missing first; what is left of them."""
    for group in sorted(groups, key=lambda group: -group.nodes):
        given = min(joining, max(0, smallest - group.nodes))
        group.nodes += given
        joining -= given
    return joining


def _complete(groups: list[_Group], allowed: Sizes) -> set[Step]:
    """Borrow, and where nobody can yield, merge, until no pipeline is too small."""
    steps: set[Step] = set()
    while True:
        small = sorted((g for g in groups if g.nodes < allowed.smallest), key=lambda g: g.nodes)
        if not small:
            return steps
        largest = max(reversed(groups), key=lambda g: g.nodes)  # of equal ones the last, as upstream has it
        if largest.nodes > allowed.smallest:
            largest.nodes -= 1
            small[-1].nodes += 1
            steps.add("borrow")
        else:
            steps |= {"merge"} if small[0].nodes else set()
            _merge(groups, small, allowed)


def _merge(groups: list[_Group], small: list[_Group], allowed: Sizes) -> None:
    """Merge the two smallest pipelines; what is too much for one goes to the smallest others."""
    one = small[0]
    other = small[1] if len(small) > 1 else min((g for g in groups if g is not one), key=lambda g: g.nodes)
    kept, given = sorted((one, other), key=lambda g: -g.held_bytes)
    kept.nodes += given.nodes
    kept.held_bytes += given.held_bytes
    groups[:] = [g for g in groups if g is not given]
    excess = max(0, kept.nodes - allowed.largest)
    kept.nodes -= excess
    _spread(groups, excess, allowed.largest)


def _place(groups: list[_Group], spare: int, allowed: Sizes) -> set[Step]:
    """Use nodes that joined and that no pipeline lacks."""
    while spare >= allowed.smallest:
        groups.append(_Group(None, allowed.smallest, 0.0))
        spare -= allowed.smallest
    spare = _spread(groups, spare, allowed.largest)
    if not spare:
        return set()
    groups.append(_Group(None, spare, 0.0))
    return _complete(groups, allowed)


def _spread(groups: list[_Group], nodes: int, largest: int) -> int:
    """Give nodes one by one to the smallest pipelines; what remains when all are as large as can be."""
    while nodes:
        smallest = min(groups, key=lambda g: g.nodes)
        if smallest.nodes >= largest:
            return nodes
        smallest.nodes += 1
        nodes -= 1
    return 0
