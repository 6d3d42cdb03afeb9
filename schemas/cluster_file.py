"""Clusters and overlays out of YAML files, and clusters out of the environment of a SLURM job."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

from .cluster import Cluster, Overlay, SlowPath, Spot
from .documents import pointer
from .errors import InvalidInputError
from .fields import MOST_NODES
from .files import read_bytes, source_of
from .profile import Connection, Network, NodeNetwork, SideBySide
from .quantities import parse_bytes, parse_speed, parse_time_s
from .text import did_you_mean, near

if TYPE_CHECKING:
    from yaml.nodes import Node


# Reading YAML files that people write: every value knows its place, so that errors can say file, line and key.
#
# Nothing is constructed: scalars stay the text that stands there, so `4:2` is not the number 242, nor `no` a falsehood.


@dataclass(frozen=True)
class YamlValue:
    """A value of a YAML file, and where it stands."""

    node: "Node"
    source: str
    keys: tuple[str | int, ...] = ()

    @property
    def where(self) -> str:
        """File, line and key path, for errors."""
        return f"{self.source}, line {self.node.start_mark.line + 1}, {pointer(self.keys)}"

    def wrong(self, what: str, fix: str) -> InvalidInputError:
        """An error at this place."""
        return InvalidInputError(what, where=self.where, fix=fix)

    def entries(self, known: Collection[str] | None = None) -> "dict[str, YamlValue]":
        """The values of a mapping by their keys, which must be among the known ones where these are given.

        Raises:
            InvalidInputError: it is no mapping, has a key twice, or one that is not known.
        """
        if self.node.id != "mapping":
            raise self.wrong("a mapping is needed here", "write `key: value`, a line each")
        found: dict[str, YamlValue] = {}
        for key_node, node in self.node.value:
            key = YamlValue(key_node, self.source, self.keys).text()
            value = YamlValue(node, self.source, (*self.keys, key))
            place = YamlValue(key_node, self.source, value.keys)
            if key in found:
                raise place.wrong(f"the key {key!r} stands twice", "write it once")
            if known is not None and key not in known:
                meant = near(key, known)
                raise place.wrong(
                    f"unknown key {key!r}",
                    f"did you mean {meant!r}?" if meant else f"there are {', '.join(sorted(known))}",
                )
            found[key] = value
        return found

    def items(self) -> "list[YamlValue]":
        """The values of a list.

        Raises:
            InvalidInputError: it is none.
        """
        if self.node.id != "sequence":
            raise self.wrong("a list is needed here", "write [one, other], or a line `- one` each")
        return [YamlValue(node, self.source, (*self.keys, number)) for number, node in enumerate(self.node.value)]

    def text(self) -> str:
        """What stands there.

        Raises:
            InvalidInputError: it is a list, a mapping, or nothing.
        """
        if self.node.id != "scalar" or not self.node.value.strip():
            raise self.wrong("a text or a number is needed here", "write one value")
        return str(self.node.value).strip()

    def count(self) -> int:
        """A whole number of 1 or more.

        Raises:
            InvalidInputError: it is none.
        """
        text = self.text()
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
            raise self.wrong(f"{text!r} is no whole number of 1 or more", "write one such as 8")
        return int(text)

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return bool(self.node.id == "sequence")


def invalid_yaml(error: Exception, source: str) -> InvalidInputError:
    """What a reader of YAML has met, with line and column."""
    mark = getattr(error, "problem_mark", None)
    where = f"{source}, line {mark.line + 1} column {mark.column + 1}" if mark else source
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "nested too deeply"
    return InvalidInputError(f"not valid YAML: {reason}", where=where, fix="write `key: value`, a line each")


def read_yaml(path: str) -> YamlValue:
    """Read one YAML document from a file; `-` is standard input.

    Raises:
        InvalidInputError: the file cannot be read, is empty, or is not YAML; says the line.
    """
    import yaml

    source = source_of(path)
    try:
        node = yaml.compose(read_bytes(path).decode(), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"the file is not UTF-8 text (byte {error.start})", where=source) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise invalid_yaml(error, source) from None
    if node is None:
        raise InvalidInputError("the file is empty", where=source, fix="write `key: value`, a line each")
    return YamlValue(node, source)


CLUSTER_KEYS = ("name", "nodes", "machine", "gpus_per_node", "gpu", "memory", "network")
NETWORK_KEYS = ("intra_node", "inter_node", "nics", "node_bandwidth", "side_by_side")
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
        if key not in entries and not (key == "gpus_per_node" and "machine" in entries):
            raise whole.wrong(f"the key {key!r} is missing", "add it: `nodes: node[001-016]`, `gpus_per_node: 8`")
    memory, network, gpu, name, kind = (entries.get(key) for key in ("memory", "network", "gpu", "name", "machine"))
    usual = None if kind is None else machine_cluster(1, kind.text(), kind.where)
    per_node = entries.get("gpus_per_node")
    gpus = usual.gpus_per_node if per_node is None and usual is not None else entries["gpus_per_node"].count()
    known = Network() if usual is None or gpus != usual.gpus_per_node else usual.network
    return Cluster(
        nodes=_nodes(entries["nodes"]),
        gpus_per_node=gpus,
        gpu=_known_gpu(gpu.text(), gpu.where) if gpu is not None else None if usual is None else usual.gpu,
        memory_bytes=None if memory is None else parse_bytes(memory.text(), memory.where),
        network=known if network is None else _network(network, known, gpus),
        name=None if name is None else name.text(),
    )


def read_overlay(path: str, cluster: Cluster) -> Overlay:
    """Read what is wrong with a cluster.

    Raises:
        InvalidInputError: the file is no overlay, or not one of this cluster; says file, line and key.
    """
    entries = read_yaml(path).entries(OVERLAY_KEYS)
    failed, slow, links = (entries.get(key) for key in OVERLAY_KEYS)
    dead = [] if failed is None else failed.items() if failed.is_list else [failed]
    return Overlay(
        failed=tuple(spot for one in dead for spot in _named_spots(one.text(), one, cluster)),
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


def machine_cluster(nodes: int, name: str, where: str) -> Cluster:
    """A cluster of so many machines of a known kind.

    Raises:
        InvalidInputError: nobody knows this kind, or there are more nodes than any cluster has.
    """
    from .machines import machine

    found = machine(name, where)
    return replace(counted_cluster(nodes, found.gpus, found.gpu, where), network=found.network())


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


def _nodes(value: YamlValue) -> tuple[str, ...]:
    """A count, a list of hosts, or a YAML list of those."""
    if not value.is_list and value.text().isdecimal():
        return counted_cluster(value.count(), 1, where=value.where).nodes
    listed = ",".join(one.text() for one in (value.items() if value.is_list else [value]))
    if not listed:
        raise value.wrong("there are no nodes", "name some, such as node[001-016], or say how many")
    return expand(listed, value.where)


def _known_gpu(name: str, where: str) -> str:
    """The name of a kind of GPU that is known; raises InvalidInputError with a suggestion for any other."""
    from .gpus import gpu

    try:
        return gpu(name).name
    except InvalidInputError as error:
        raise InvalidInputError(error.what, where=where, fix=error.fix) from None


def _network(value: YamlValue, known: Network, gpus: int) -> Network:
    """What a file says of the network of nodes with so many GPUs, beside what is known of their kind."""
    entries = value.entries(NETWORK_KEYS)
    inside, between, nics, whole, order = (entries.get(key) for key in NETWORK_KEYS)
    found = known
    if nics is not None:
        found = replace(found, **_of_cards(nics, gpus))
    if whole is not None:
        found = _narrowed(replace(found, node=NodeNetwork(gpus, parse_speed(whole.text(), whole.where))))
    if inside is not None:
        found = replace(found, intra_node=_connection(inside))
    if between is not None:
        found = replace(found, inter_node=_connection(between))
    return found if order is None else replace(found, node=_seated(order, found.node))


def _narrowed(network: Network) -> Network:
    """The same, a GPU's path no wider than all of its node has."""
    path, node = network.inter_node, network.node
    if node is None or path is None or path.bandwidth_bytes_per_s is None:
        return network
    width = min(path.bandwidth_bytes_per_s, node.bandwidth_bytes_per_s)
    return replace(network, inter_node=replace(path, bandwidth_bytes_per_s=width))


def _of_cards(value: YamlValue, gpus: int) -> dict[str, Any]:
    """`4x100Gbit/s`: a GPU's path between nodes, and what the node has."""
    from .machines import cards

    count, times, rate = (part.strip() for part in value.text().partition("x"))
    if not (times and re.fullmatch(r"[1-9]\d{0,3}", count)):
        raise value.wrong(f"{value.text()!r} says no network cards", "write how many and their rate, as 4x100Gbit/s")
    path, bandwidth_bytes_per_s = cards(int(count), parse_speed(rate, value.where), gpus)
    return {"inter_node": path, "node": NodeNetwork(gpus, bandwidth_bytes_per_s)}


def _seated(value: YamlValue, node: NodeNetwork | None) -> NodeNetwork:
    """A node whose GPUs are seated so."""
    order = next((known for known in get_args(SideBySide) if known == value.text()), None)
    if order is None:
        raise value.wrong(f"{value.text()!r} cannot sit side by side", f"{' or '.join(get_args(SideBySide))}")
    if node is None:
        raise value.wrong(
            "nothing says what those who sit in a node share",
            "write `nics: 4x100Gbit/s` or `node_bandwidth: 40GB/s` as well, or `machine: dgx-a100` above",
        )
    return replace(node, side_by_side=order)


def _connection(value: YamlValue) -> Connection:
    """Latency and bandwidth, at least one of the two."""
    entries = value.entries(("latency", "bandwidth"))
    latency, bandwidth = entries.get("latency"), entries.get("bandwidth")
    if latency is None and bandwidth is None:
        raise value.wrong("the path says nothing", "give it a latency such as 5us and a bandwidth such as 400Gbit/s")
    return Connection(
        0.0 if latency is None else parse_time_s(latency.text(), latency.where),
        None if bandwidth is None else parse_speed(bandwidth.text(), bandwidth.where),
    )


def _slow(value: YamlValue, cluster: Cluster) -> list[tuple[Spot, float]]:
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


def _slow_path(key: str, value: YamlValue, cluster: Cluster) -> SlowPath:
    """`node001-node002: 20ms`; names may have hyphens, so the one is taken that has a spot on either side."""
    splits = [(key[:at], key[at + 1 :]) for at, letter in enumerate(key) if letter == "-"]
    found = [(one, other) for one, other in splits if _is_spot(one, cluster) and _is_spot(other, cluster)]
    if len(found) != 1:
        what = "no link between two nodes or GPUs of the cluster" if not found else "a link in more than one way"
        raise value.wrong(f"{key!r} is {what}", "write node001-node002, or node001:0-node002:3 for two GPUs")
    ends = (name.partition(":") for name in found[0])
    one, other = ((node, int(number) if colon else None) for node, colon, number in ends)
    if one == other and one[1] is not None:
        raise value.wrong(f"{key!r} has the same GPU at both ends", "name two")
    return SlowPath((one, other), parse_time_s(value.text(), value.where))


def _named_spots(text: str, value: YamlValue, cluster: Cluster) -> list[Spot]:
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


# SLURM's lists of hosts: `node[001-016,020]` stands for 17 names, in that order.
#
# Not ClusterShell's NodeSet, with which the tests compare it: that one sorts the names, though ranks follow the list's
# order, looks for four configuration files when it is imported, and takes `!`, `&`, `^`, `@` and `*` for operators.


_FIX = "write names such as node1, or lists such as node[001-016,020]"
_NAME = r"[A-Za-z0-9._-]+"
_BRACKETS = r"\[[^\[\]]*\]"
_WORD = re.compile(rf"(?:{_NAME}|{_BRACKETS})+")
_PARTS = re.compile(rf"{_NAME}|{_BRACKETS}")
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")
_LAST_NUMBER = re.compile(r"(.*?)(\d{1,12})(\D*)")


def expand(text: str, where: str) -> tuple[str, ...]:
    """The names that a list stands for, in its order.

    Args:
        text: names and lists, separated by commas; of several brackets in a name the last one counts fastest.
        where: names the place of the text in errors.

    Raises:
        InvalidInputError: it is no such list, or names a node twice, or more than `MOST_NODES`.
    """
    names: list[str] = []
    for word in re.split(r",(?![^\[]*\])", text.strip()):  # by commas outside of brackets
        if not _WORD.fullmatch(word.strip()):
            raise InvalidInputError(f"{word!r} is no list of nodes", where=where, fix=_FIX)
        choices = [_choices(part, where) for part in _PARTS.findall(word)]
        _require_few(len(names), choices, where)
        names += ["".join(parts) for parts in product(*choices)]
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInputError(f"node {name} is named twice", where=where, fix="name each node once")
        seen.add(name)
    return tuple(names)


def fold(names: Sequence[str]) -> str:
    """The list that stands for names, each run of consecutive numbers in brackets; `expand` gives the names back."""
    groups: list[tuple[str, str, list[tuple[str, str]]]] = []  # before the number, behind it, ranges of it
    for name in names:
        match = _LAST_NUMBER.fullmatch(name)
        head, number, tail = match.groups() if match else (name, "", "")
        if not (groups and number and groups[-1][2] and groups[-1][:2] == (head, tail)):
            groups.append((head, tail, [(number, number)] if number else []))
            continue
        ranges = groups[-1][2]
        first, last = ranges[-1]
        if number == f"{int(last) + 1:0{len(last)}d}" and (len(number) == len(first) or not _is_padded(first)):
            ranges[-1] = (first, number)
        else:
            ranges.append((number, number))
    return ",".join(head + _brackets(ranges) + tail for head, tail, ranges in groups)


def _choices(part: str, where: str) -> Sequence[str]:
    """What stands for one part of a name: itself, or the numbers in its brackets."""
    if not part.startswith("["):
        return [part]
    ranges = [_range(one, part, where) for one in part[1:-1].split(",")]
    _require_few(sum(len(numbers) for numbers, _ in ranges), [], where)
    return [f"{number:0{width}d}" for numbers, width in ranges for number in numbers]


def _range(text: str, part: str, where: str) -> tuple[range, int]:
    """The numbers of `001-016`, and how many digits they have at least."""
    match = _RANGE.fullmatch(text.strip())
    first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
    padded = _is_padded(first) or _is_padded(last)
    if int(first) > int(last) or (padded and len(first) != len(last)):
        raise InvalidInputError(f"{text!r} in {part} is no range of numbers", where=where, fix=_FIX)
    return range(int(first), int(last) + 1), len(first)


def _require_few(already: int, choices: Sequence[Sequence[str]], where: str) -> None:
    """Raise InvalidInputError before too many names are made."""
    count = 1
    for one in choices:
        count *= len(one)
    if already + count > MOST_NODES:
        raise InvalidInputError(f"the list stands for more than {MOST_NODES} nodes", where=where, fix=_FIX)


def _is_padded(number: str) -> bool:
    return number.startswith("0") and len(number) > 1


def _brackets(ranges: Sequence[tuple[str, str]]) -> str:
    if not ranges or (len(ranges) == 1 and ranges[0][0] == ranges[0][1]):
        return ranges[0][0] if ranges else ""
    return "[" + ",".join(first if first == last else f"{first}-{last}" for first, last in ranges) + "]"
