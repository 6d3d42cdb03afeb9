"""Clusters and overlays out of YAML files, and clusters out of the environment of a SLURM job."""

import math
import re
from collections.abc import Mapping

from ..schemas.cluster import Cluster, Overlay, SlowPath, Spot
from ..schemas.errors import InvalidInputError
from ..schemas.fields import MOST_NODES
from ..schemas.profile import Connection, Network
from ..schemas.text import did_you_mean
from .hostlists import expand, fold
from .quantities import parse_bytes, parse_speed, parse_time_s
from .yaml_values import Value, read_yaml

CLUSTER_KEYS = ("name", "nodes", "gpus_per_node", "gpu", "memory", "network")
OVERLAY_KEYS = ("failed", "slow", "slow_links")
# Of the variables that say how many GPUs a node has, the first that is set counts.
SLURM_GPUS = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_JOB_GPUS")


def read_cluster_file(path: str) -> Cluster:
    """Read a cluster.

    Raises:
        InvalidInputError: the file is no cluster; says file, line and key.
    """
    whole = read_yaml(path)
    entries = whole.entries(CLUSTER_KEYS)
    for key in ("nodes", "gpus_per_node"):
        if key not in entries:
            raise whole.wrong(f"the key {key!r} is missing", "add it: `nodes: node[001-016]`, `gpus_per_node: 8`")
    memory, network, gpu, name = (entries.get(key) for key in ("memory", "network", "gpu", "name"))
    return Cluster(
        nodes=_nodes(entries["nodes"]),
        gpus_per_node=entries["gpus_per_node"].count(),
        gpu=None if gpu is None else _known_gpu(gpu.text(), gpu.where),
        memory_bytes=None if memory is None else parse_bytes(memory.text(), memory.where),
        network=Network() if network is None else _network(network),
        name=None if name is None else name.text(),
    )


def read_overlay(path: str, cluster: Cluster) -> Overlay:
    """Read what is wrong with a cluster.

    Raises:
        InvalidInputError: the file is no overlay, or not one of this cluster; says file, line and key.
    """
    entries = read_yaml(path).entries(OVERLAY_KEYS)
    failed, slow, links = (entries.get(key) for key in OVERLAY_KEYS)
    return Overlay(
        failed=() if failed is None else tuple(_spots(failed, cluster)),
        slow=() if slow is None else tuple(_slow(slow, cluster)),
        slow_links=() if links is None else tuple(_slow_path(*one, cluster) for one in links.entries().items()),
    )


def counted_cluster(nodes: int, gpus_per_node: int, gpu: str | None = None, where: str = "--gpu") -> Cluster:
    """A cluster of so many nodes, which are called node0, node1 and so on.

    Raises:
        InvalidInputError: nobody knows this kind of GPU, or there are more nodes than any cluster has.
    """
    if nodes > MOST_NODES:
        raise InvalidInputError(f"{nodes} nodes are more than {MOST_NODES}", where=where, fix="write a smaller number")
    kind = None if gpu is None else _known_gpu(gpu, where)
    return Cluster(tuple(f"node{number}" for number in range(nodes)), gpus_per_node, kind)


def slurm_cluster(environment: Mapping[str, str]) -> Cluster:
    """The cluster that SLURM has given to the job in whose environment this runs.

    Raises:
        InvalidInputError: it is no such job, or one without GPUs.
    """
    nodes = environment.get("SLURM_JOB_NODELIST")
    if nodes is None:
        raise InvalidInputError(
            "this is no SLURM job: SLURM_JOB_NODELIST is not set",
            where="--cluster slurm",
            fix="run it inside of sbatch, salloc or srun, or name a file",
        )
    name = next((name for name in SLURM_GPUS if environment.get(name)), None)
    if name is None:
        raise InvalidInputError(
            f"the job has no GPUs: none of {', '.join(SLURM_GPUS)} is set",
            where="--cluster slurm",
            fix="ask for them (sbatch --gpus-per-node), or write nodes and gpus_per_node into a file",
        )
    return Cluster(expand(nodes, "SLURM_JOB_NODELIST"), _slurm_gpus(environment[name], name))


def _slurm_gpus(text: str, name: str) -> int:
    """`8`, `h100:8`, `a100:4,h100:4` as counts; SLURM_JOB_GPUS names the GPUs instead: `0-3` or `0,1,2,3`."""
    is_list = name == "SLURM_JOB_GPUS"
    try:
        if is_list:
            count = len(expand(f"[{text}]", name))
        else:
            count = sum(int(part.rpartition(":")[2]) for part in text.split(","))
    except (ValueError, InvalidInputError):
        count = 0
    if count < 1:
        raise InvalidInputError(
            f"{text!r} does not say how many GPUs a node has",
            where=name,
            fix="write nodes and gpus_per_node into a file",
        )
    return count


def _nodes(value: Value) -> tuple[str, ...]:
    """A count, a list of hosts, or a YAML list of those."""
    if not value.is_list and value.text().isdecimal():
        return counted_cluster(value.count(), 1, where=value.where).nodes
    listed = ",".join(one.text() for one in (value.items() if value.is_list else [value]))
    if not listed:
        raise value.wrong("there are no nodes", "name some, such as node[001-016], or say how many")
    return expand(listed, value.where)


def _known_gpu(name: str, where: str) -> str:
    """The name of a kind of GPU that is known; raises InvalidInputError with a suggestion for any other."""
    from ..profilers.analytic.gpus import gpu

    try:
        return gpu(name).name
    except InvalidInputError as error:
        raise InvalidInputError(error.what, where=where, fix=error.fix) from None


def _network(value: Value) -> Network:
    paths = value.entries(("intra_node", "inter_node"))
    inside, between = (paths.get(key) for key in ("intra_node", "inter_node"))
    return Network(None if inside is None else _connection(inside), None if between is None else _connection(between))


def _connection(value: Value) -> Connection:
    """Latency and bandwidth, at least one of the two."""
    entries = value.entries(("latency", "bandwidth"))
    latency, bandwidth = entries.get("latency"), entries.get("bandwidth")
    if latency is None and bandwidth is None:
        raise value.wrong("the path says nothing", "give it a latency such as 5us and a bandwidth such as 400Gbit/s")
    return Connection(
        0.0 if latency is None else parse_time_s(latency.text(), latency.where),
        None if bandwidth is None else parse_speed(bandwidth.text(), bandwidth.where),
    )


def _spots(value: Value, cluster: Cluster) -> list[Spot]:
    """Nodes, lists of hosts and GPUs, in a YAML list or alone."""
    return [
        spot for one in (value.items() if value.is_list else [value]) for spot in _named_spots(one.text(), one, cluster)
    ]


def _slow(value: Value, cluster: Cluster) -> list[tuple[Spot, float]]:
    found = []
    for key, one in value.entries().items():
        try:
            factor = float(one.text())
        except ValueError:
            factor = math.nan
        if not 0 < factor < 1e9:
            raise one.wrong(f"{one.text()!r} is no factor", "a factor is a plain number above 0, such as 1.5")
        found += [(spot, factor) for spot in _named_spots(key, one, cluster)]
    return found


def _slow_path(key: str, value: Value, cluster: Cluster) -> SlowPath:
    """`node001-node002: 20ms`; names may have hyphens, so the one is taken that has a spot on either side."""
    splits = [(key[:at], key[at + 1 :]) for at, letter in enumerate(key) if letter == "-"]
    found = [(one, other) for one, other in splits if _is_spot(one, cluster) and _is_spot(other, cluster)]
    if len(found) != 1:
        what = "no link between two nodes or GPUs of the cluster" if not found else "a link in more than one way"
        raise value.wrong(f"{key!r} is {what}", "write node001-node002, or node001:0-node002:3 for two GPUs")
    one, other = (_spot(name) for name in found[0])
    if one == other and one[1] is not None:
        raise value.wrong(f"{key!r} has the same GPU at both ends", "name two")
    return SlowPath((one, other), parse_time_s(value.text(), value.where))


def _named_spots(text: str, value: Value, cluster: Cluster) -> list[Spot]:
    """What `node003`, `node004:2` or `node[005-007]` names."""
    hosts, colon, number = text.partition(":")
    if colon and not re.fullmatch(r"\d{1,6}", number):
        raise value.wrong(f"{text!r} names no GPU", "write node004:2 for the third GPU of node004")
    for node in expand(hosts, value.where):
        if node not in cluster.nodes:
            fix = did_you_mean(node, cluster.nodes, f"its nodes are {fold(cluster.nodes)}")
            raise value.wrong(f"the cluster has no node {node}", fix)
        if colon and int(number) >= cluster.gpus_per_node:
            raise value.wrong(
                f"node {node} has no GPU {number}", f"GPUs of a node are 0 to {cluster.gpus_per_node - 1}"
            )
    return [(node, int(number) if colon else None) for node in expand(hosts, value.where)]


def _is_spot(text: str, cluster: Cluster) -> bool:
    node, number = text.partition(":")[::2]
    return node in cluster.nodes and (
        ":" not in text or (bool(re.fullmatch(r"\d{1,6}", number)) and int(number) < cluster.gpus_per_node)
    )


def _spot(text: str) -> Spot:
    node, colon, number = text.partition(":")
    return node, int(number) if colon else None
