"""Node specification, "Oobleck" section 4.1.1: the numbers of nodes that pipelines may have.

They are consecutive, from n_0, the fewest nodes that the model fits on, to N - f n_0, what is left of all N nodes when
f pipelines have n_0 each. Then any N' of (f + 1) n_0 to N nodes can be used up by f + 1 pipelines or more. The paper
rests this on a sufficient condition for the Frobenius problem, p > n_0 - 1 for p sizes. Up to N less will do: f
pipelines of n_0 nodes and one of N' - f n_0 are always there, whatever p is. The condition is worth stating all the
same, for it says more: with it, no number of nodes is too large either, and N may grow.

With a largest size L given, q pipelines of n_0 to L nodes use up exactly the numbers from q n_0 to q L. So N' nodes are
used up by f + 1 pipelines or more if and only if they are by the most pipelines that N' nodes allow, which is
N' // n_0: its range reaches furthest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.text import joined

MOST_NAMED = 8  # numbers in an error


@dataclass(frozen=True)
class NodeSpecification:
    """Sizes of pipelines, in nodes.

    Attributes:
        nodes: N.
        fault_tolerance: f.
        smallest: n_0.
        largest: of the consecutive sizes.
    """

    nodes: int
    fault_tolerance: int
    smallest: int
    largest: int

    @property
    def sizes(self) -> range:
        """All of them."""
        return range(self.smallest, self.largest + 1)

    @property
    def fewest_nodes(self) -> int:
        """(f + 1) n_0: with fewer nodes there are no f + 1 pipelines."""
        return (self.fault_tolerance + 1) * self.smallest

    @property
    def frobenius(self) -> bool:
        """Whether the paper's condition p > n_0 - 1 holds: numbers of nodes above N can be used up, too."""
        return len(self.sizes) > self.smallest - 1

    def uncovered(self) -> list[int]:
        """The numbers of nodes, from (f + 1) n_0 to N, that no f + 1 pipelines or more use up."""
        reach = ((nodes, nodes // self.smallest * self.largest) for nodes in range(self.fewest_nodes, self.nodes + 1))
        return [nodes for nodes, most in reach if most < nodes]

    def guarantee(self) -> dict[str, int | bool]:
        """What is promised, for a plan's options."""
        return {
            "from_nodes": self.fewest_nodes,
            "to_nodes": self.nodes,
            "pipelines": self.fault_tolerance + 1,
            "beyond": self.frobenius,
        }


def specify_nodes(
    nodes: int,
    fault_tolerance: int,
    fitting: Sequence[int],
    why_not: Callable[[int], str],
    largest: int | None = None,
    *,
    gaps: bool = False,
) -> NodeSpecification:
    """Choose the sizes of pipelines, and check that they use up what they promise.

    Args:
        nodes: N.
        fault_tolerance: f.
        fitting: the numbers of nodes, at least one and none above N, that the model can be mapped onto.
        why_not: says why it cannot be mapped onto another number.
        largest: nodes of the largest pipeline; N - f n_0 unless said.
        gaps: whether some numbers of nodes may be such that not all can be used.

    Raises:
        InvalidInputError: the largest size is below n_0 or above what f leaves.
        InfeasibleError: f cannot be met, a size does not fit, or some number of nodes could not be used up.
    """
    smallest, reach = fitting[0], last_of_run(fitting)
    if (fault_tolerance + 1) * smallest > nodes:
        raise InfeasibleError(
            f"{fault_tolerance + 1} pipelines of {_nodes(smallest)} each, the fewest the model fits on, need "
            f"{(fault_tolerance + 1) * smallest} nodes, there {'are' if nodes > 1 else 'is'} {nodes}",
            where="--fault-tolerance",
            fix=f"take --fault-tolerance {nodes // smallest - 1}, or --nodes {(fault_tolerance + 1) * smallest}",
        )
    most = nodes - fault_tolerance * smallest
    found = NodeSpecification(nodes, fault_tolerance, smallest, most if largest is None else largest)
    if not smallest <= found.largest <= most:
        raise InvalidInputError(
            f"the largest pipeline cannot have {_nodes(found.largest)}",
            where="--largest",
            fix=f"take {smallest} (the fewest the model fits on) to {most} (what the others leave)",
        )
    if found.largest > reach:
        raise InfeasibleError(
            why_not(reach + 1),
            where="--nodes" if largest is None else "--largest",
            fix=f"take {_ways_out(replace(found, largest=reach))}",
        )
    if not gaps and (left_out := found.uncovered()):
        raise InfeasibleError(
            f"{fault_tolerance + 1} or more pipelines of at most {_nodes(found.largest)} each cannot use up "
            f"{_listed(left_out)} nodes",
            where="--largest",
            fix=f"take --largest {_least_largest(found)} or more",
        )
    return found


def last_of_run(sizes: Sequence[int]) -> int:
    """The last of the consecutive sizes from the first on."""
    return next(size for size in sizes if size + 1 not in sizes)


def _ways_out(possible: NodeSpecification) -> str:
    """What to ask for instead, where pipelines may have only so many nodes."""
    nodes, smallest, largest = possible.nodes, possible.smallest, possible.largest
    ways = [f"--nodes {largest + possible.fault_tolerance * smallest}"]
    tolerance = -(-(nodes - largest) // smallest)
    if (tolerance + 1) * smallest <= nodes:
        ways.insert(0, f"--fault-tolerance {tolerance}")
    if not possible.uncovered():
        ways.insert(0, f"--largest {largest}")
    return joined(ways, "or")


def _least_largest(wanted: NodeSpecification) -> int:
    """The smallest largest size that leaves no number of nodes out."""
    reach = range(wanted.fewest_nodes, wanted.nodes + 1)
    return max(-(-nodes // (nodes // wanted.smallest)) for nodes in reach)


def _listed(numbers: Sequence[int]) -> str:
    more = f" and other numbers, to {numbers[-1]}, of" if len(numbers) > MOST_NAMED else ""
    return ", ".join(map(str, numbers[:MOST_NAMED])) + more


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count > 1 else ''}"
