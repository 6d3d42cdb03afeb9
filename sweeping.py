"""`rtk sweep`: lists of what is to be replayed with what, whose cross product is hundreds of questions for `replaying`.

It stands at the root as that does: its questions are of the planners' jobs and the runners' traces.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from .planners.plain.verbs import degree_of_job, job_of
from .planners.recovery.catalogue import NAMES, require_name
from .replaying import ReplayRequest, digest_of, placement_of, replays
from .runners.replay.sweep import Combination, run_sweep
from .runners.traces.formats import Leaving, TraceFormat
from .runners.traces.read import reading_of
from .runners.traces.verbs import recipe_of
from .schemas.degrees import AUTO
from .schemas.profile import Profile
from .schemas.replay import AskedJob
from .schemas.site import Site
from .schemas.sweep_file import SweepChoice, SweepWords, SweptTrace, placed, read_sweep_file

if TYPE_CHECKING:
    from .planners.recovery.job import TrainingJob
    from .runners.traces.read import TraceOptions
    from .runners.traces.verbs import FaultScenario


def sweep(
    spec: str,
    output: str,
    jobs: int = 1,
    executor: str = "process",
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """Replay every combination of models, jobs, clusters, traces and costs: `rtk sweep`.

    Args:
        spec: the YAML file of lists, as `rtk sweep --help` tells; `-` is standard input.
        output: the folder of a report a combination; those that are there already, of the same inputs, are not made
            again.
        jobs: processes, which share the combinations.
        executor: who replays: "process", "dask:ADDRESS", "ray" or "ray:ADDRESS".
        tell: hears how many replays are finished, and of how many.

    Returns:
        What all have in common, as `summary.json` in the folder says it: see `summary_of` (runners/replay/sweep.py).

    Raises:
        InvalidInputError: a value of the file is not what it should be, the folder cannot be made, or there is no such
            executor.
        InfeasibleError: a cluster is too small for a job.
        RuntimeFailedError: a cluster's scheduler does not answer, or a process has ended by itself.
    """
    return run_sweep(read_sweep(spec), replays, output, jobs, executor, tell)


def read_sweep(path: str) -> list[Combination[ReplayRequest]]:
    """Read a sweep: every combination of one of each list, in their order, equal ones once.

    Args:
        path: the file; paths in it begin at its folder. `-` is standard input, and the folder is this one.

    Raises:
        InvalidInputError: a value is not what it should be; says file, line and key.
        InfeasibleError: a cluster is too small for a job.
    """
    spec = read_sweep_file(path, SweepWords(tuple(TraceFormat), get_args(Leaving), NAMES, require_name))
    found: dict[str, Combination[ReplayRequest]] = {}
    degrees = _BestDegrees()
    for profile, cluster, job, trace, costs in spec.combinations():
        with placed(job.place):
            asked = degrees.asked(profile, cluster, job)
            made = job_of(profile.value, cluster.value, asked, costs.value, trace.seed)
            placement = placement_of(asked)
        source, reading = _source(trace, made, cluster.value)
        question = ReplayRequest(made, source, reading, spec.policies, spec.until_s, trace.name, placement)
        axes = {**profile.axes, **cluster.axes, **job.axes, **trace.axes, **costs.axes}
        one = Combination(axes, question, digest_of(question), f"{made.shape.dp}x{made.shape.pp}")
        found[one.digest] = one
    return list(found.values())


class _BestDegrees:
    """The degrees of jobs that ask for `auto`: each chosen once for all traces and costs."""

    def __init__(self) -> None:
        self._chosen: dict[tuple[int, int, AskedJob], int] = {}

    def asked(self, profile: SweepChoice[Profile], cluster: SweepChoice[Site], job: SweepChoice[AskedJob]) -> AskedJob:
        """The job, with the degree that is best for it on these machines where the file says `auto`."""
        if job.axes.get("tensor_parallel") != AUTO:
            return job.value
        key = id(profile), id(cluster), job.value
        if key not in self._chosen:
            self._chosen[key] = degree_of_job(profile.value, cluster.value.cluster, job.value, AUTO)
        return replace(job.value, tensor_parallel=self._chosen[key])


def _source(trace: SweptTrace, job: "TrainingJob", site: Site) -> "tuple[str | FaultScenario, TraceOptions]":
    """The file or recipe, and how it is read, for a job and its machines: their nodes count where the trace does not
    say its own."""
    given = dict(trace.settings)
    if trace.file is not None:
        leaving, slow_faults = given.get("leaving", "random"), given.get("slow_faults", False)
        nodes = given.get("nodes", site.nodes_at_start())
        return trace.file, reading_of(given.get("format"), nodes, leaving, slow_faults, trace.seed)
    nodes = given.pop("nodes", None) or (job.nodes if site.cluster is None else len(site.cluster.nodes))
    settings = {"repairs" if key == "repair_distribution" else key: one for key, one in given.items()}
    with placed(trace.place):
        recipe = recipe_of(nodes, settings.pop("duration"), trace.seed, **settings)
    return recipe, reading_of(None, nodes, "random", False, trace.seed)
