"""Cluster: the machines that a plan is for; what of them has failed or is slow; and which worker sits where.

Worker k/i of a plan sits where torchrun puts rank after rank of `rtk run`: workers take GPUs in (pipeline, stage)
order, one each, or as many as their tensor-parallel degree says, and GPUs fill node after node. So with p stages of one
GPU each, worker k/i sits on GPU number k * p + i of the cluster; what lies beyond the last worker is idle. Where the
network says that peers sit side by side, as Megatron-LM seats them, they take GPUs in (stage, pipeline) order instead.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from .conditions import LinkPlace
from .degrees import Degrees, by_column, print_degrees
from .documents import canonical_json, to_tree
from .errors import InfeasibleError
from .plan import Place, Plan
from .profile import Network, Profile

Spot = tuple[str, int | None]  # a node, or one GPU of it
Gpu = tuple[str, int]  # a node and which GPU of it, counted from 0
Seats = Mapping[Place, tuple[Gpu, ...]]  # by workers, the GPUs of each


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes with equally many GPUs of one kind.

    Attributes:
        nodes: their names, in the order in which they are filled.
        gpus_per_node: M.
        gpu: the kind, such as "h100-sxm"; None where nobody says.
        memory_bytes: of a GPU, where it is said.
        network: the paths inside a node and between nodes, where they are said.
        name: of the cluster.
    """

    nodes: tuple[str, ...]
    gpus_per_node: int
    gpu: str | None = None
    memory_bytes: float | None = None
    network: Network = field(default_factory=Network)
    name: str | None = None

    @property
    def size(self) -> int:
        """How many GPUs it has."""
        return len(self.nodes) * self.gpus_per_node

    def gpus(self) -> Iterator[Gpu]:
        """All GPUs, node after node."""
        return ((node, number) for node in self.nodes for number in range(self.gpus_per_node))


@dataclass(frozen=True, slots=True)
class SlowPath:
    """Messages between two spots take `delay_s`, in all; a node named twice stands for the paths inside it."""

    ends: tuple[Spot, Spot]
    delay_s: float

    def joins(self, here: Iterable[Gpu], there: Iterable[Gpu]) -> bool:
        """Whether it lies between two workers, given by their GPUs."""
        here, there, (one, other) = tuple(here), tuple(there), self.ends
        return (_meet(one, here) and _meet(other, there)) or (_meet(other, here) and _meet(one, there))


@dataclass(frozen=True, slots=True)
class Overlay:
    """What is wrong with a cluster: nodes or GPUs that have failed, slow ones with their factors, and slow paths."""

    failed: tuple[Spot, ...] = ()
    slow: tuple[tuple[Spot, float], ...] = ()
    slow_links: tuple[SlowPath, ...] = ()


@dataclass(frozen=True, slots=True)
class OverlayConditions:
    """What an overlay means for the workers of a plan.

    Attributes:
        failed: the dead workers, in order.
        slow: factors of live workers.
        link_delay_s: delays between neighbouring stages of one pipeline, by (pipeline, link).
        unused: slow paths that join no neighbouring stages of one pipeline.
    """

    failed: tuple[Place, ...] = ()
    slow: Mapping[Place, float] = field(default_factory=dict)
    link_delay_s: Mapping[LinkPlace, float] = field(default_factory=dict)
    unused: tuple[SlowPath, ...] = ()


def seats_of_shape(cluster: Cluster, pp: int, dp: int, degrees: Degrees = 1) -> Seats:
    """Where `dp` pipelines of `pp` stages sit.

    Args:
        cluster: the machines.
        pp, dp: the shape.
        degrees: GPUs of a worker, of all stages or of each.

    Raises:
        InfeasibleError: there are fewer GPUs than that, or those of a worker lie in two nodes: a tensor-parallel group
            is planned for the paths inside a node.
    """
    each = by_column(degrees, pp)
    _require_room(cluster, pp * dp, sum(each) * dp)  # before they are named: thousands of millions may be asked for
    seats = _seats(cluster, {(k, i): each[i] for k in range(dp) for i in range(pp)})
    for (k, i), gpus in seats.items() if max(each) > 1 else ():
        if gpus[0][0] != gpus[-1][0]:
            raise InfeasibleError(
                f"the {len(gpus)} GPUs of worker {k}/{i} would lie in two nodes, {gpus[0][0]} and {gpus[-1][0]}",
                where=f"--tensor-parallel {print_degrees(degrees)}",
                fix=f"take degrees that fill nodes of {cluster.gpus_per_node} GPUs",
            )
    return seats


def seats_of_plan(cluster: Cluster, plan: Plan) -> Seats:
    """Where a plan's workers sit, the failed ones included: a worker on as many GPUs as its stages are split over.

    Raises:
        InfeasibleError: there are fewer GPUs than that.
    """
    needed = {worker.place: plan.gpus_of(worker) for worker in plan.workers}
    _require_room(cluster, len(needed), sum(needed.values()))
    return _seats(cluster, needed)


def troubles(seats: Seats, overlay: Overlay) -> OverlayConditions:
    """What an overlay means for workers: one of whose GPUs has failed is dead, one of whose GPUs is slow is slow.

    Where several entries meet in a worker or between two, the largest factor or delay counts.
    """
    failed = tuple(place for place, gpus in seats.items() if any(_meet(spot, gpus) for spot in overlay.failed))
    dead = set(failed)
    slow = _slow({place: gpus for place, gpus in seats.items() if place not in dead}, overlay)
    delays_s: dict[LinkPlace, float] = {}
    used = set()
    for (k, i), gpus in seats.items():
        found = [path for path in overlay.slow_links if path.joins(gpus, seats.get((k, i + 1), ()))]
        if found:
            delays_s[k, i] = max(path.delay_s for path in found)
            used |= set(found)
    return OverlayConditions(failed, slow, delays_s, tuple(path for path in overlay.slow_links if path not in used))


def whole_nodes(cluster: Cluster, overlay: Overlay) -> tuple[str, ...]:
    """The nodes all of whose GPUs live."""
    struck = {node for node, _ in overlay.failed}
    return tuple(node for node in cluster.nodes if node not in struck)


def on_cluster(profile: Profile, cluster: Cluster) -> Profile:
    """A profile with the memory and the network that a cluster says, instead of its own.

    Of a single node, whose inside is known, there are no paths between nodes.
    """
    inside = cluster.network.intra_node or profile.network.intra_node
    between = cluster.network.inter_node or profile.network.inter_node
    single = bool(inside) and len(cluster.nodes) == 1
    node = cluster.network.node or profile.network.node
    network = Network(inside, None if single else between, None if single else node)
    memory_bytes = profile.device.memory_bytes if cluster.memory_bytes is None else cluster.memory_bytes
    return replace(profile, device=replace(profile.device, memory_bytes=memory_bytes), network=network)


def digest_of(value: Cluster | Overlay) -> str:
    """The sha256 of a cluster or an overlay, however it was written, in hexadecimal."""
    return hashlib.sha256(canonical_json(to_tree(value))).hexdigest()


def _slow(seats: Seats, overlay: Overlay) -> dict[Place, float]:
    """The factors of workers that are slow."""
    met = {place: [factor for spot, factor in overlay.slow if _meet(spot, gpus)] for place, gpus in seats.items()}
    return {place: max(factors) for place, factors in met.items() if factors}


def _require_room(cluster: Cluster, workers: int, total: int) -> None:
    if total > cluster.size:
        raise InfeasibleError(
            f"{workers} workers need {total} GPUs, the cluster has {cluster.size}: "
            f"{len(cluster.nodes)} nodes of {cluster.gpus_per_node}",
            where="--cluster",
            fix=f"take {total - cluster.size} GPUs more, or fewer stages or pipelines",
        )


def _seats(cluster: Cluster, needed: Mapping[Place, int]) -> Seats:
    """Each worker's GPUs, of which it needs so many; in (pipeline, stage) order whoever sits side by side."""
    node, gpus = cluster.network.node, cluster.gpus()
    peers_first = node is not None and node.side_by_side == "peers"
    places = sorted(needed, key=lambda place: place[::-1]) if peers_first else list(needed)
    seats = {place: tuple(next(gpus) for _ in range(needed[place])) for place in places}
    return {place: seats[place] for place in needed}


def _meet(spot: Spot, gpus: Iterable[Gpu]) -> bool:
    """Whether one of the GPUs is at a spot."""
    node, number = spot
    return any(node == name and number in (None, own) for name, own in gpus)
