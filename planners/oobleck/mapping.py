"""GPU-stage mapping, "Oobleck" section 4.1.2: the layers and tensor-parallel degrees of each stage, at least time.

The paper divides layers and GPUs in two, again and again, and keeps the best mapping of each part. What is best for a
part is not always best for the whole: which stage is the slowest, and how many stages there are, is known only in the
end. We are exact. Once tau, the time of the slowest stage, is fixed, T is a sum over stages, and a shortest path over
(layers, GPUs) gives the least T (`mapping_kernels`). Over intervals of tau the same recursion gives a lower bound, so
we split the interval with the least bound until it is a single tau: branch and bound. (With one micro-batch T is the
sum of all t_i, whatever tau is, and nothing is split.) One recursion serves pipelines of all sizes, which share all
that they look at.

Stages lie within nodes and take the nodes' GPUs one after the other, each any number of them for which all layers have
a cost, in any order (the original halves nodes only).

Memory limits depend on how many stages follow. The recursion takes for each stage the fewest that may follow; where the
mapping it finds does not fit, a recursion that counts the stages does the same work again, and is exact.

T is the least up to rounding. Of several mappings with the same T, that is taken whose stages end first, one stage
after the other, and then that with the lowest degrees.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from .shortest_paths import Mapping, Recursion, Request, Tables


class Mapper:
    """Finds the best mapping for each number of nodes; the numbers share all recursions.

    Attributes:
        fitting: the numbers of nodes that there is a mapping for.
    """

    def __init__(self, request: Request) -> None:
        self._tables = Tables(request)
        self.fitting = [nodes for nodes in range(1, request.nodes + 1) if self._tables.fewest[nodes] < inf]

    def best(self, sizes: Sequence[int]) -> list[Mapping]:
        """The mappings of least T onto so many nodes each, all of them `fitting`."""
        search = _Search(self._tables, min(sizes))
        return [search.best(nodes) for nodes in sizes]


class _Search:
    """Branch and bound over tau."""

    def __init__(self, tables: Tables, smallest: int) -> None:
        self._tables = tables
        self._rough = Recursion(tables, smallest, counting=False)
        self._exact = Recursion(tables, smallest, counting=True)

    def best(self, nodes: int) -> Mapping:
        """The mapping of least T: that of the rough recursion if it has room for its stages, else the exact one's."""
        found = self._search(nodes, [self._rough])
        room = [self._tables.room[self._tables.index(stage)] for stage in found]
        fits = all(len(found) - i <= most for i, most in enumerate(room))
        return found if fits else self._search(nodes, [self._rough, self._exact])

    def _search(self, nodes: int, recursions: Sequence[Recursion]) -> Mapping:
        """Split intervals, the least bound first; an interval is bounded by one recursion after the other."""
        least_s, best = inf, list[Mapping]()
        waiting = [(-inf, 0, 0, len(self._tables.taus))]
        while waiting and waiting[0][0] <= least_s:
            bound_s, bounded, first, stop = heappop(waiting)
            if bounded < len(recursions):
                bound_s = recursions[bounded].bound_s(nodes, first, stop)
                if bound_s < inf:
                    heappush(waiting, (bound_s, bounded + 1, first, stop))
            elif stop - first > 1 and self._tables.knows_tau:
                middle = (first + stop) // 2
                heappush(waiting, (bound_s, 0, first, middle))
                heappush(waiting, (bound_s, 0, middle, stop))
            else:
                best = [*(best if bound_s == least_s else ()), recursions[-1].mapping(nodes, first, stop)]
                least_s = bound_s
        return min(best, key=_order)


def _order(mapping: Mapping) -> list[tuple[int, int]]:
    return [(stop, degree) for degree, _, stop in mapping]
