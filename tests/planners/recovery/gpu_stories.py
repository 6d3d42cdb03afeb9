"""Stories in which single GPUs of nodes die and are repaired, and jobs that have several a worker."""

from collections import defaultdict

from hypothesis import strategies as st

from rtk.planners.recovery.job import TrainingJob
from rtk.planners.shape import Shape
from rtk.schemas.profile import Device, Layer, LayerCost, Profile
from rtk.schemas.replay import Costs, Fleet, Moment

from .stories import NETWORK, Story

TIMES = {1: 3.0, 2: 1.75, 4: 1.0}  # what an operation takes on so many GPUs


def shared_layer() -> Layer:
    """A layer with costs at degrees 1, 2 and 4; 400 bytes of parameters and state, 20 of activations."""
    costs = tuple(LayerCost(time_s, time_s, time_s, 0.5, degree) for degree, time_s in TIMES.items())
    return Layer(costs, "layer", parameter_bytes=100.0, state_bytes=300.0, activation_bytes=20.0,
                 weight_stash_bytes=8.0, output_bytes=10.0)  # fmt: skip


def shared_job(pp: int, dp: int, microbatches: int, workers: int = 1, memory_bytes: float | None = None) -> TrainingJob:
    """Stages of a layer each on four GPUs, so many workers a node."""
    layers = Profile(
        tuple(shared_layer() for _ in range(pp)), network=NETWORK, device=Device(memory_bytes=memory_bytes)
    )
    shape = Shape(pp, dp, microbatches, tensor_parallel=4)
    return TrainingJob(layers, shape, workers * 4, Costs(mean_time_between_failures_s=1e5))


@st.composite
def shared_jobs(draw: st.DrawFn) -> TrainingJob:
    """Up to 2 x 3 workers of four GPUs, one or two a node; memory for anything, or for what the degree 2 holds."""
    pp, dp = draw(st.sampled_from([(1, 2), (2, 2), (2, 3), (1, 3)]))
    workers = draw(st.sampled_from([1, 2])) if (pp * dp) % 2 == 0 and pp == 2 else 1
    return shared_job(pp, dp, draw(st.integers(1, 4)), workers, draw(st.sampled_from([None, 240.0])))


@st.composite
def gpu_stories(draw: st.DrawFn, job: TrainingJob, most_moments: int = 5) -> Story:
    """Nodes and single GPUs that are lost and come back, several at once, while other nodes become slow, or well."""
    names = [f"n{number}" for number in range(job.nodes + draw(st.integers(0, 1)))]
    here, dead = dict.fromkeys(names), defaultdict[str, set[int]](set)
    began, moments, failures = Fleet(tuple(names)), [], 0
    for number in range(draw(st.integers(1, most_moments))):
        lost: list[str] = []
        came: list[str] = []
        lost_gpus: list[tuple[str, int]] = []
        came_gpus: list[tuple[str, int]] = []
        for node in draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True)):
            gpu = draw(st.integers(0, job.gpus_per_node - 1))
            if node not in here:
                here[node] = None
                came.append(node)
            elif draw(st.integers(0, 5)) == 0:
                del here[node]
                dead.pop(node, None)
                lost.append(node)
            else:
                (came_gpus if gpu in dead[node] else lost_gpus).append((node, gpu))
                dead[node] ^= {gpu}
        failures += bool(lost or lost_gpus)
        lacking = {node: tuple(sorted(gpus)) for node, gpus in dead.items() if gpus}
        slow = {node: 2.0 for node in draw(st.lists(st.sampled_from(names), max_size=1)) if node in here}
        fleet = Fleet(tuple(here), slow, dead_gpus=lacking)
        moments.append(Moment(1000.0 * (number + 1), fleet, tuple(lost), tuple(came), failures,
                              lost_gpus=tuple(lost_gpus), came_gpus=tuple(came_gpus)))  # fmt: skip
    return Story(began, tuple(moments))
