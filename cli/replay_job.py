"""The job of a replay, put together from what options or a sweep's file say."""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING

from ..schemas.errors import InfeasibleError, InvalidInputError
from ..schemas.fields import MOST_NODES
from ..schemas.text import counted, did_you_mean
from .cluster import Site, read_site_or_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planners.policies.job import Job
    from ..schemas.cluster import Cluster
    from ..schemas.profile import Profile
    from ..schemas.replay import Costs


MOST = 1e15  # of a cost: `Seconds` of schemas/fields.py, and far above what anything costs


class Schedule(StrEnum):
    """Of pipelines whose policy has no schedule of its own."""

    ONE_F_ONE_B = "1f1b"
    ZERO_BUBBLE = "zero-bubble"


@dataclass(frozen=True)
class Asked:
    """A shape as it is asked for; without pipelines there are as many as the cluster holds."""

    pp: int
    microbatches: int
    dp: int | None = None
    tensor_parallel: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    memory_limit_bytes: "Sequence[float] | None" = None


def read_machines(cluster: str | None, nodes: int | None, tensor_parallel: int) -> Site:
    """The machines of a replay: of `--cluster`, or so many nodes that each hold one worker; of neither, none.

    Raises:
        InvalidInputError: the cluster cannot be read, or has another number of nodes.
    """
    if cluster is None and nodes is None:
        return Site()
    return read_site_or_count(cluster, nodes, tensor_parallel if cluster is None else None, None, None)


def nodes_at_start(site: Site) -> int | tuple[str, ...] | None:
    """The nodes of a cluster, for traces that do not say them: by name where somebody has named them, else how many."""
    from ..schemas.cluster_file import counted_cluster

    if site.cluster is None:
        return None
    names = site.cluster.nodes
    return len(names) if names == counted_cluster(len(names), 1).nodes else names


def job_of(profile: "Profile", site: Site, asked: Asked, costs: "Costs", seed: int) -> "Job":
    """What is trained, on which machines.

    Raises:
        InvalidInputError: nothing says how many pipelines there are, or nodes and pipelines do not go together.
        InfeasibleError: the machines are too few.
    """
    from ..planners.policies.job import Job
    from ..planners.shape import Shape

    dp, gpus_per_node = asked.dp, asked.tensor_parallel
    if site.cluster is not None:
        dp, gpus_per_node = _pipelines(site.cluster, asked), site.cluster.gpus_per_node
    if dp is None:
        raise InvalidInputError("how many pipelines are there?", where="--dp", fix="give --dp K, or --cluster NxM")
    gpus = asked.pp * dp * asked.tensor_parallel
    if gpus > MOST_NODES * gpus_per_node:
        raise InvalidInputError(
            f"{dp} pipelines take {gpus // gpus_per_node} nodes, which are too many",
            where="--dp",
            fix=f"take pipelines for up to {MOST_NODES} nodes",
        )
    shape = Shape(asked.pp, dp, asked.microbatches, asked.memory_limit_bytes, None, asked.tensor_parallel)
    return Job(site.adapted(profile), shape, gpus_per_node, costs, asked.schedule.value, seed)


def _pipelines(cluster: "Cluster", asked: Asked) -> int:
    gpus, each = cluster.size, asked.pp * asked.tensor_parallel
    most = gpus // each
    if most < (asked.dp or 1):
        raise InfeasibleError(
            f"there is no room for {counted(asked.dp or 1, 'pipeline')} of {counted(each, 'GPU')} "
            f"on {counted(gpus, 'GPU')}",
            where="--cluster",
            fix=f"take at most {most} pipelines, or a larger cluster" if most else "take fewer stages or more nodes",
        )
    return asked.dp or most


def parse_cost(name: str, text: str, where: str) -> float:
    """What one thing costs.

    Raises:
        InvalidInputError: there is no such cost, or it is no number of 0 or more.
    """
    from ..schemas.replay import Costs

    kinds = {one.name: one.type for one in fields(Costs)}
    if name not in kinds:
        fix = did_you_mean(name, kinds, f"costs are {', '.join(kinds)}")
        raise InvalidInputError(f"there is no cost {name!r}", where=where, fix=fix)
    is_whole, is_rate = kinds[name] is int, name.endswith("_bytes_per_s")
    most = float("inf") if is_rate else MOST
    try:
        number = int(text) if is_whole else float(text)
    except ValueError:
        number = -1
    if not 0 <= number < most or (is_rate and not number):
        kind = "above 0" if is_rate else f"from 0 to below {MOST:g}" if number >= MOST else "of 0 or more"
        what = f"{text!r} is no {'whole ' * is_whole}number {kind}"
        raise InvalidInputError(what, where=where, fix=f"write a plain number, such as 10: {name} says its unit")
    return number
