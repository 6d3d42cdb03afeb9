"""What a cluster's network leaves to each of those who use it at once: rings of gradients, and hops between stages.

Peers sum gradients in rings, one for each GPU of a worker. Rings that leave a node at the same time share its network
cards, so which GPUs sit in a node decides what a ring gets (`NodeNetwork.side_by_side`). A message between two stages
has a GPU's own path: at one moment few of a node's GPUs send one. Measured on 384 A100 (docs/profiles-method.md):
sums fit with the node's bandwidth divided by the rings, and hops with that of a pair.
"""

from dataclasses import dataclass, replace

from .degrees import Degrees
from .profile import Connection, Network, SideBySide


def seated_in(network: Network, side_by_side: SideBySide) -> Network:
    """A network with the GPUs of its nodes seated in this order; where nothing says what nodes share, as it is."""
    if network.node is None or network.node.side_by_side == side_by_side:
        return network
    return replace(network, node=replace(network.node, side_by_side=side_by_side))


@dataclass(frozen=True, slots=True)
class Rings:
    """The rings of the peers of a stage.

    Attributes:
        network: of the cluster.
        apart: how many GPUs lie from each to the next one of its ring, 1 where they are neighbours.
        groups: how many such rings sit one behind the other in the job.
    """

    network: Network
    apart: int
    groups: int = 1

    def path(self, ranks: int) -> Connection:
        """What a ring of n ranks goes over, at its narrowest place, while all the others of the node run as well."""
        network, node = self.network, self.network.node
        if node is None:
            return network.between_workers or Connection()
        span = self.apart * ranks
        if span * self.groups <= node.gpus or node.gpus % span == 0:
            return network.intra_node or network.between_workers or Connection()
        # A node may hold the end of some rings and the start of the next ones.
        ends = 1 if self.groups == 1 or span % node.gpus == 0 else 2
        share = node.bandwidth_bytes_per_s / min(ends * self.apart, node.gpus)
        inside = network.intra_node
        if 2 * self.apart <= node.gpus and inside is not None and inside.bandwidth_bytes_per_s is not None:
            share = min(share, inside.bandwidth_bytes_per_s)  # such a ring also passes from GPU to GPU of the node
        return Connection((network.inter_node or Connection()).latency_s, share)

    def ring_s(self, size_bytes: float, ranks: int) -> float:
        """The time of an all-reduce between n ranks, in s, as a reduce-scatter and an all-gather take it together."""
        return self.path(ranks).ring_s(size_bytes, ranks)


def rings_of_nodes(network: Network, gpus_per_node: int) -> Rings:
    """The rings of pipelines that each have nodes of their own: every GPU of a node is in another one."""
    return Rings(network, gpus_per_node)


@dataclass(frozen=True, slots=True)
class PipelineSeats:
    """How many workers there are, and of how many GPUs, for what lies between two of them.

    Attributes:
        workers: of a pipeline.
        pipelines: alike.
        degree: GPUs of a worker, of all stages or of each.
    """

    workers: int
    pipelines: int
    degree: Degrees = 1

    def gpus_of(self, worker: int) -> int:
        """How many GPUs a worker of a pipeline has."""
        return self.degree if isinstance(self.degree, int) else self.degree[worker]

    def gpus_before(self, worker: int) -> int:
        """How many the workers of a pipeline before it have."""
        return worker * self.degree if isinstance(self.degree, int) else sum(self.degree[:worker])

    def rings(self, network: Network, worker: int) -> Rings:
        """The rings in which the peers of a worker sum its gradients, one for each of its GPUs."""
        own, all_gpus = self.gpus_of(worker), self.gpus_before(self.workers)
        if network.node is not None and network.node.side_by_side == "peers":
            return Rings(network, own, groups=-(-all_gpus // own))
        return Rings(network, all_gpus)

    def crosses(self, network: Network, here: int, there: int) -> bool:
        """Whether the way from worker k/here to k/there leaves a node in any pipeline k; if nothing says, it does."""
        node = network.node
        if node is None:
            return True
        if node.side_by_side == "peers":
            if abs(self.gpus_before(there) - self.gpus_before(here)) * self.pipelines >= node.gpus:
                return True
            own = [(self.gpus_before(i) * self.pipelines, self.gpus_of(i)) for i in (here, there)]
            seats = ((before + k * each for before, each in own) for k in range(self.pipelines))
        else:  # after as many pipelines as a node has GPUs, they sit again as the first ones
            rows = range(min(self.pipelines, node.gpus))
            gpus, own_starts = self.gpus_before(self.workers), [self.gpus_before(i) for i in (here, there)]
            seats = ((k * gpus + start for start in own_starts) for k in rows)
        return any(one // node.gpus != other // node.gpus for one, other in seats)

    def hop_s(self, network: Network, size_bytes: float, here: int, there: int) -> float:
        """What a message from stage `here` to stage `there` takes, in s; the receiver waits for all of it.

        Where nodes are known, each GPU of a worker sends its share, and the receiving ones tell each other (Narayanan
        et al., 2021, section 4.1: scatter/gather). Else one sends all of it over the path between workers.
        """
        between = network.between_workers or Connection()
        if network.node is None:
            return between.transfer_s(size_bytes)
        inside = network.intra_node or between
        path = between if self.crosses(network, here, there) else inside
        sending, receiving = self.gpus_of(here), self.gpus_of(there)
        told_s = (receiving - 1) * inside.transfer_s(size_bytes / receiving)
        return path.transfer_s(size_bytes / min(sending, receiving)) + told_s
