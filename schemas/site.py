"""The machines that planners plan for, and what becomes of them in plans: what `--cluster` and `--overlay` say."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .errors import InfeasibleError, InvalidInputError, remark
from .text import listed

if TYPE_CHECKING:
    from .atlas import Atlas
    from .cluster import Cluster, Overlay, OverlayConditions
    from .degrees import Degrees
    from .plan import Place, Plan
    from .profile import Profile
    from .templates import Templates

    Made = TypeVar("Made", Plan, Atlas, Templates)

SLURM = "slurm"
ASSUMED_NETWORK = (
    "nothing says what network joins the nodes: assumed are 45 GB/s and 14 us for each GPU, all at once (a 400 Gb/s "
    "card each). Name the machine (--cluster 16xdgx-h100), or write `network: {nics: 4x100Gbit/s}` into its file"
)


@dataclass(frozen=True)
class Site:
    """A cluster, what is wrong with it, and the file that says so; without a cluster nothing changes anywhere."""

    cluster: "Cluster | None" = None
    overlay: "Overlay | None" = None
    overlay_path: str = "--overlay"

    def adapted(self, profile: "Profile") -> "Profile":
        """A profile with the cluster's memory and network; of what neither says, that of the cluster's kind of GPU."""
        from .cluster import on_cluster

        return profile if self.cluster is None else _with_usual(on_cluster(profile, self.cluster), self.cluster)

    def troubles(self, pp: int, dp: int, degrees: "Degrees" = 1) -> "OverlayConditions":
        """What the overlay means for pipelines of a shape, said in a line.

        Args:
            pp, dp: the shape.
            degrees: GPUs of a worker, of all stages or of each.

        Raises:
            InfeasibleError: the cluster has fewer GPUs than the workers, or a worker's would lie in two nodes.
        """
        from .cluster import OverlayConditions, seats_of_shape, troubles

        if self.cluster is None:
            return OverlayConditions()
        seats = seats_of_shape(self.cluster, pp, dp, degrees)
        return OverlayConditions() if self.overlay is None else _told(troubles(seats, self.overlay))

    def troubles_of(self, plan: "Plan") -> "OverlayConditions":
        """The same for the workers of a plan; those that have failed there already are left out."""
        from .cluster import OverlayConditions, seats_of_plan, troubles

        if self.cluster is None:
            return OverlayConditions()
        seats = seats_of_plan(self.cluster, plan)
        if self.overlay is None:
            return OverlayConditions()
        gone = {(worker.pipeline, worker.stage) for worker in plan.workers if worker.failed}
        found = _told(troubles(seats, self.overlay))
        return replace(
            found,
            failed=tuple(place for place in found.failed if place not in gone),
            slow={place: factor for place, factor in found.slow.items() if place not in gone},
        )

    def delays_alone(self, pp: int, dp: int, degrees: "Degrees" = 1) -> "OverlayConditions":
        """The same, for planners that know slow links only.

        Raises:
            InvalidInputError: a worker has failed or is slow.
        """
        from .plan import name_of

        found = self.troubles(pp, dp, degrees)
        for places, word in ((found.failed, "has failed"), (tuple(found.slow), "is slow")):
            if places:
                raise InvalidInputError(
                    f"worker {name_of(places[0])} {word} on this cluster, and this method plans for healthy workers",
                    where=self.overlay_path,
                    fix="plan with `rtk plan joint`, or leave it out and see what it does: `rtk simulate --overlay`",
                )
        return found

    def failed_alone(self, pp: int, dp: int, degrees: "Degrees" = 1) -> "tuple[Place, ...]":
        """The dead workers, for plans made before, when nothing was slow.

        Raises:
            InvalidInputError: something is slow now.
        """
        found = self.troubles(pp, dp, degrees)
        if found.slow or found.link_delay_s:
            raise InvalidInputError(
                "workers or links are slow on this cluster, and the atlas was made for healthy ones",
                where=self.overlay_path,
                fix="plan from the profile, without --from",
            )
        return found.failed

    def live_nodes(self) -> tuple[int, int]:
        """How many nodes are whole, said in a line where some are not, and the GPUs of each.

        Raises:
            InvalidInputError: something is slow, for which templates have no word.
            InfeasibleError: no node is whole.
        """
        from .cluster import whole_nodes
        from .cluster_file import fold

        assert self.cluster is not None
        if self.overlay is None:
            return len(self.cluster.nodes), self.cluster.gpus_per_node
        if self.overlay.slow or self.overlay.slow_links:
            raise InvalidInputError(
                "templates are for nodes that are all alike, and some are slow here",
                where=self.overlay_path,
                fix="call slow ones failed, or plan with `rtk plan joint`",
            )
        whole = set(whole_nodes(self.cluster, self.overlay))
        lost = [node for node in self.cluster.nodes if node not in whole]
        if not whole:
            raise InfeasibleError("every node has failed GPUs", where=self.overlay_path)
        if lost:
            remark(f"nodes taken off, with all their GPUs: {fold(lost)}")
        return len(whole), self.cluster.gpus_per_node

    def nodes_at_start(self) -> int | tuple[str, ...] | None:
        """The nodes, for traces that do not say them: by name where somebody has named them, else how many."""
        from .cluster_file import counted_cluster

        if self.cluster is None:
            return None
        names = self.cluster.nodes
        return len(names) if names == counted_cluster(len(names), 1).nodes else names

    def signed(self, made: "Made", profile: "Profile") -> "Made":
        """A result that names what it was made from: the profile as it was read, the cluster and the overlay.

        A cluster of which only the number of GPUs counted is not named: the result's own options say it.
        """
        from .cluster import digest_of
        from .documents import digest

        if self.cluster is None or (self.overlay is None and self.adapted(profile) == profile):
            return made
        names = {"profile": digest(profile), "cluster": digest_of(self.cluster)}
        if self.overlay is not None:
            names["overlay"] = digest_of(self.overlay)
        return replace(made, inputs={**made.inputs, **names})


def site_of(cluster: "str | Cluster | None", overlay: str | None) -> Site:
    """What `--cluster` and `--overlay` say.

    Args:
        cluster: or its text, as for `read_cluster`; None: nobody says which machines there are.
        overlay: the file of what is wrong with it; None: nothing.

    Raises:
        InvalidInputError: one of them cannot be read, or there is an overlay without a cluster.
    """
    return _with_overlay(read_cluster(cluster) if isinstance(cluster, str) else cluster, overlay)


def site_or_count(
    cluster: "str | Cluster | None", nodes: int | None, gpus_per_node: int | None, gpu: str | None, overlay: str | None
) -> Site:
    """The same where `--nodes`, `--gpus-per-node` and `--gpu` may say it instead of `--cluster`, or the same as it.

    Raises:
        InvalidInputError: nothing says how many nodes there are, or the two ways contradict each other.
    """
    from .cluster_file import counted_cluster

    if cluster is None:
        if nodes is None:
            raise InvalidInputError("how many nodes are there?", where="--nodes", fix="give --nodes N, or --cluster")
        return _with_overlay(counted_cluster(nodes, gpus_per_node or 1, gpu), overlay)
    read, source = (read_cluster(cluster), cluster) if isinstance(cluster, str) else (cluster, "cluster")
    _require_same(len(read.nodes), nodes, "--nodes", source)
    _require_same(read.gpus_per_node, gpus_per_node, "--gpus-per-node", source)
    return _with_overlay(with_gpu(read, gpu, source), overlay)


def machines_of(cluster: "str | Cluster | None", nodes: int | None, tensor_parallel: int) -> Site:
    """The machines of a replay: of `--cluster`, or so many nodes that each hold one worker; of neither, none.

    Raises:
        InvalidInputError: the cluster cannot be read, or has another number of nodes.
    """
    if cluster is None and nodes is None:
        return Site()
    return site_or_count(cluster, nodes, tensor_parallel if cluster is None else None, None, None)


def read_cluster(text: str) -> "Cluster":
    """A cluster by the value of `--cluster`: `slurm`, `16x8`, `16xdgx-a100`, or a YAML file.

    Raises:
        InvalidInputError: there is no such cluster, or its file is wrong; says where.
    """
    from .cluster_file import counted_cluster, machine_cluster, read_cluster_file, slurm_cluster
    from .fields import MOST_NODES

    if text == SLURM:
        return slurm_cluster(os.environ)
    machines = re.fullmatch(r"([1-9]\d{0,5})x([A-Za-z][\w-]*)", text)
    if machines is not None and not Path(text).exists():
        return machine_cluster(int(machines[1]), machines[2], "--cluster")
    counts = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", text)
    if counts is None:
        return read_cluster_file(text)
    if int(counts[1]) > MOST_NODES:
        raise InvalidInputError(f"{counts[1]} nodes are too many", where="--cluster", fix=f"up to {MOST_NODES}")
    return counted_cluster(int(counts[1]), int(counts[2]))


def with_gpu(cluster: "Cluster", gpu: str | None, source: str) -> "Cluster":
    """A cluster of a kind of GPU, which it may leave open, but not contradict.

    Args:
        cluster: as it was read.
        gpu: the value of `--gpu`; None: whatever the cluster says.
        source: where the cluster comes from, for errors.

    Raises:
        InvalidInputError: the cluster says another kind.
    """
    if gpu is None:
        return cluster
    from .cluster_file import counted_cluster

    kind = counted_cluster(1, 1, gpu).gpu
    if cluster.gpu is not None:
        _require_same(cluster.gpu, kind, "--gpu", source)
    return replace(cluster, gpu=kind)


def _with_overlay(cluster: "Cluster | None", path: str | None) -> Site:
    from .cluster_file import read_overlay

    if path is None:
        return Site(cluster)
    if cluster is None:
        raise InvalidInputError(
            "nobody says which machines these are", where="--overlay", fix="give --cluster as well, such as 16x8"
        )
    return Site(cluster, read_overlay(path, cluster), path)


def _with_usual(profile: "Profile", cluster: "Cluster") -> "Profile":
    """A profile with what is known of the cluster's kind of GPU, where nobody has said it: its memory and its paths."""
    if cluster.gpu is None:
        return profile
    from .gpus import INTER_NODE, gpu

    usual, network, device = gpu(cluster.gpu), profile.network, profile.device
    if network.inter_node is None and len(cluster.nodes) > 1:
        network = replace(network, inter_node=INTER_NODE)
        remark(ASSUMED_NETWORK)
    if network.intra_node is None:
        network = replace(network, intra_node=usual.intra_node)
    if device.memory_bytes is None:
        device = replace(device, memory_bytes=usual.memory_bytes)
    return replace(profile, device=device, network=network)


def _told(found: "OverlayConditions") -> "OverlayConditions":
    """The same troubles, after a line on each kind of them."""
    from .plan import name_of

    hops = (f"{k}/{i}" for k, i in found.link_delay_s)
    for names, words in ((map(name_of, found.failed), "dead workers"), (map(name_of, found.slow), "slow workers"),
                         (hops, "slow links")):  # fmt: skip
        told = listed(names)
        if told:
            remark(f"{words} on this cluster: {told}")
    for path in found.unused:
        ends = "-".join(node if number is None else f"{node}:{number}" for node, number in path.ends)
        remark(f"the slow link {ends} joins no neighbouring stages of one pipeline: it is not counted")
    return found


def _require_same(said: object, flag: object, option: str, source: str) -> None:
    if flag is not None and flag != said:
        raise InvalidInputError(
            f"{option} says {flag}, the cluster {said}", where=f"{option} and {source}", fix=f"leave {option} out"
        )
