"""The job of a replay, put together from what options or a sweep's file say."""

from ...schemas.cluster import Cluster
from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.fields import MOST_NODES
from ...schemas.profile import Profile
from ...schemas.replay import AskedJob, Costs
from ...schemas.site import Site
from ...schemas.text import counted
from ..recovery.job import TrainingJob
from ..shape import Shape


def job_of(profile: Profile, site: Site, asked: AskedJob, costs: Costs, seed: int) -> TrainingJob:
    """What is trained, on which machines.

    Raises:
        InvalidInputError: nothing says how many pipelines there are, or nodes and pipelines do not go together.
        InfeasibleError: the machines are too few.
    """
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
    return TrainingJob(site.adapted(profile), shape, gpus_per_node, costs, asked.schedule, seed)


def _pipelines(cluster: Cluster, asked: AskedJob) -> int:
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
