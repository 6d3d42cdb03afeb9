"""What computed times are corrected by: a measured profile, a log, a trace, or the time of an iteration.

It stands at the root because the profilers know what a layer takes, and the planners what an iteration of it does.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

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
        path: a profile that was measured; a log of Megatron-LM with its arguments; a trace of torch's profiler, with
            the shapes of operations; or a YAML file (`.yaml`) with the settings of a job and the times of its
            iterations, its log, or a trace. `.gz` is unpacked.
        gpu: that is computed for.
        cluster: the machines of the measured iteration: their network counts.
        software: how the program computed that ran; a log says so itself.

    Returns:
        The measured profile, or what was learned; its `remarks` say what that is, and how sure.

    Raises:
        InvalidInputError: the file cannot be read, or does not say what it must.
    """
    from .profilers.analytic.megatron_log import read_megatron_log
    from .profilers.analytic.observed import learn
    from .profilers.analytic.observed_file import read_observed_run
    from .profilers.analytic.software import USUAL_SOFTWARE
    from .profilers.analytic.step_trace import read_step_trace
    from .profilers.analytic.traced import learn_from_trace, learn_products
    from .schemas.documents import read_document
    from .schemas.gpus import gpu as known_gpu
    from .schemas.profile import Profile

    device, plain, trace = known_gpu(gpu), path.removesuffix(".gz"), None
    software = software or USUAL_SOFTWARE
    if plain.endswith((".json", "-")):
        is_trace = _is_trace(path)
        return learn_products(read_step_trace(path), device, software) if is_trace else read_document(path, Profile)
    if plain.endswith((".yaml", ".yml")):
        run, trace = read_observed_run(path, software)
    else:
        run = read_megatron_log(path)

    def planned(profile: Profile, of: "ObservedRun") -> "Plan":
        return _planned(profile, of, cluster)

    return learn(run, device, planned) if trace is None else learn_from_trace(run, trace, device, planned)


def _planned(profile: "Profile", run: "ObservedRun", cluster: "Cluster | None") -> "Plan":
    """The run's 1F1B, which had the memory that it needed."""
    from .planners.pipeline import plan_pipeline
    from .planners.shape import Shape
    from .schemas.cluster import on_cluster

    placement = {"placement": "loop", "chunks": run.chunks} if run.chunks > 1 else {}
    shape = Shape(run.pp, run.dp, run.microbatches, tensor_parallel=run.tensor_parallel, **placement)  # type: ignore[arg-type]
    known = profile if cluster is None else on_cluster(profile, cluster)
    return plan_pipeline(replace(known, device=replace(known.device, memory_bytes=None)), shape, "1f1b")


def _is_trace(path: str) -> bool:
    """Whether a file is a trace of torch's profiler, by its beginning."""
    from .schemas.files import STANDARD_STREAM, opened

    if path == STANDARD_STREAM:
        return False
    with opened(path) as stream:
        head = stream.read(_HEAD)
    return b'"traceEvents"' in head or b'"schemaVersion"' in head or (head.lstrip()[:1] == b"[" and b'"ph"' in head)
