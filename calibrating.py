"""What computed times are corrected by: a measured profile, a log, or the time of an iteration.

It stands at the root because the profilers know what a layer takes, and the planners what an iteration of it does.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from .schemas.errors import InvalidInputError

if TYPE_CHECKING:
    from .profilers.analytic.estimate import Learned
    from .profilers.analytic.observed import ObservedRun
    from .profilers.analytic.software import Software
    from .schemas.cluster import Cluster
    from .schemas.plan import Plan
    from .schemas.profile import Profile

_HEAD = 1 << 16  # of a file, where what it is stands


def read_calibration(
    path: str, *, gpu: str, cluster: "Cluster | None" = None, software: "Software | None" = None
) -> "Profile | Learned":
    """Read what `profile_analytic` may be calibrated by.

    Args:
        path: a profile that was measured; the YAML file of a measured iteration (`.yaml`); or a log of Megatron-LM
            with its arguments. `.gz` is unpacked.
        gpu: that is computed for.
        cluster: the machines of the measured iteration: their network counts.
        software: how the program computed that ran it; a log says so itself.

    Raises:
        InvalidInputError: the file cannot be read, or does not say what it must.
    """
    from .profilers.analytic.megatron_log import read_megatron_log
    from .profilers.analytic.observed import learn
    from .profilers.analytic.observed_file import read_observed_run
    from .profilers.analytic.software import USUAL_SOFTWARE
    from .schemas.documents import read_document
    from .schemas.gpus import gpu as known_gpu
    from .schemas.profile import Profile

    plain = path.removesuffix(".gz")
    if plain.endswith((".json", "-")):
        _refuse_trace(path)
        return read_document(path, Profile)
    is_told = plain.endswith((".yaml", ".yml"))
    run = read_observed_run(path, software or USUAL_SOFTWARE) if is_told else read_megatron_log(path)
    return learn(run, known_gpu(gpu), lambda profile, of: _planned(profile, of, cluster))


def _planned(profile: "Profile", run: "ObservedRun", cluster: "Cluster | None") -> "Plan":
    """The run's 1F1B, which had the memory that it needed."""
    from .planners.pipeline import plan_pipeline
    from .planners.shape import Shape
    from .schemas.cluster import on_cluster

    placement = {"placement": "loop", "chunks": run.chunks} if run.chunks > 1 else {}
    shape = Shape(run.pp, run.dp, run.microbatches, tensor_parallel=run.tensor_parallel, **placement)  # type: ignore[arg-type]
    known = profile if cluster is None else on_cluster(profile, cluster)
    return plan_pipeline(replace(known, device=replace(known.device, memory_bytes=None)), shape, "1f1b")


def _refuse_trace(path: str) -> None:
    """Raise InvalidInputError for a trace of torch's profiler, which corrects a profile that is there."""
    from .schemas.files import STANDARD_STREAM, opened

    if path == STANDARD_STREAM:
        return
    with opened(path) as stream:
        head = stream.read(_HEAD)
    if b'"traceEvents"' in head or b'"schemaVersion"' in head:
        raise InvalidInputError(
            "a trace of torch's profiler does not say what model it is of",
            where=path,
            fix=f"compute the profile, then correct it: rtk profile refine P.json --timeline {path} -o P2.json",
        )
