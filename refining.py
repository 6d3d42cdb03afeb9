"""A profile corrected by what a run measured: `rtk profile refine`.

It stands at the root because the planners say how stages are cut where no plan says it, and the profilers correct.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .schemas.documents import digest, read_document
from .schemas.errors import InvalidInputError
from .schemas.files import STANDARD_STREAM, source_of

if TYPE_CHECKING:
    from .profilers.refine import MeasuredRun, Refinement, WorkerHolding
    from .schemas.plan import Plan
    from .schemas.profile import Profile
    from .schemas.timeline import Timeline


def profile_refine(
    profile: "Profile", timelines: Sequence[str], plans: "Sequence[Plan]" = ()
) -> "tuple[Refinement, list[MeasuredRun]]":
    """Correct a profile's times by what runs measured, stage by stage.

    Args:
        profile: to be corrected.
        timelines: files: timelines of `rtk run`, traces of torch's profiler, or folders of such traces; single traces
            are the ranks of one job.
        plans: that were run; for others stages are cut as planners cut them.

    Returns:
        The refinement, with the `profile` as it is now, and what the timelines say.

    Raises:
        InvalidInputError: a file cannot be read, or is of no such job.
    """
    from .profilers.refine import refine

    runs = [run_of(given, profile, plans) for given in given_timelines(timelines)]
    return refine(profile, runs), runs


SNIFFED_BYTES = 256 << 10
TRACES = (".json", ".json.gz")


@dataclass(frozen=True)
class Given:
    """A timeline as it was given: its name for messages, and what it says."""

    name: str
    timeline: "Timeline"


def given_timelines(paths: Sequence[str]) -> Iterator[Given]:
    """The timelines: documents, folders of traces, and all single traces as one job, last."""
    from .profilers.annotations import read_annotations
    from .profilers.failslow.calls.formats import beginning_of
    from .schemas.timeline import Timeline

    traces = []
    for path in paths:
        if path != STANDARD_STREAM and Path(path).is_dir():
            inside = sorted(one for one in Path(path).rglob("*") if one.name.endswith(TRACES))
            if not inside:
                raise InvalidInputError("the folder holds no traces", where=path, fix="give .json or .json.gz files")
            yield Given(path, read_annotations(inside))
            continue
        # Traces begin otherwise than documents.
        head = b"" if path == STANDARD_STREAM else beginning_of(Path(path), SNIFFED_BYTES).lstrip()
        if head.startswith(b"[") or b'"traceEvents"' in head or b'"distributedInfo"' in head:
            traces.append(Path(path))
        else:
            yield Given(source_of(path), read_document(path, Timeline))
    if traces:
        yield Given(", ".join(map(str, traces)), read_annotations(traces))


def run_of(given: Given, profile: "Profile", plans: "Sequence[Plan]") -> "MeasuredRun":
    """A timeline with what its workers held: by the plan that it is of, or by how its stages would be cut."""
    from .profilers.refine import MeasuredRun, WorkerHolding

    plan = _plan_of(given, plans)
    if plan is not None and given.timeline.plan is not None:
        staged = [(worker, plan.stage_of(worker)) for worker in plan.workers]
        held = {
            worker.name: WorkerHolding(stage.layers, stage.tensor_parallel, worker.slowdown or 1.0)
            for worker, stage in staged
        }
        return MeasuredRun(given.name, given.timeline, held)
    stages = _stages_by_plan(plan, given) if plan else _stages_by_cut(profile, given)
    workers = {span.worker: int(span.worker.partition("/")[2]) for span in given.timeline.spans}
    beyond = max(workers.values(), default=0)
    if beyond >= len(stages):
        raise InvalidInputError(
            f"the timeline has a stage {beyond}, the plan {len(stages)} stages",
            where=given.name,
            fix="give the plan that was run",
        )
    everywhere = {f"0/{index}": held for index, held in enumerate(stages)}
    held = everywhere | {name: stages[stage] for name, stage in workers.items()}
    return MeasuredRun(given.name, given.timeline, held)


def _plan_of(given: Given, plans: "Sequence[Plan]") -> "Plan | None":
    """The plan that a timeline is of, by its digest; without one the only plan with as many stages."""
    named = given.timeline.plan
    if not plans:
        return None
    if named is not None:
        found = [plan for plan in plans if digest(plan) == named]
        if not found:
            raise InvalidInputError(
                f"the timeline is of another plan (sha256 {named[:12]}…)",
                where=f"{given.name}, /plan",
                fix="give the plan that was run: --plan",
            )
        return found[0]
    count = _stage_count(given)
    fitting = [plan for plan in plans if len(plan.template_of(0).stages) == count] if len(plans) > 1 else plans
    if len(fitting) != 1:
        raise InvalidInputError(
            f"{len(fitting)} of the plans have the timeline's {count} stages, and it does not say whose it is",
            where=given.name,
            fix="refine by one timeline and its plan after the other",
        )
    return fitting[0]


def _stages_by_plan(plan: "Plan", given: Given) -> "list[WorkerHolding]":
    """The stages of a plan whose pipelines are all alike: a trace does not say which pipeline a rank belongs to."""
    from .profilers.refine import WorkerHolding

    cuts = {
        tuple((stage.layers, stage.tensor_parallel) for stage in plan.template_of(k).stages)
        for k in range(len(plan.pipelines))
    }
    if len(cuts) > 1:
        raise InvalidInputError(
            "the plan's pipelines have unlike stages, and the timeline does not say whose they are",
            where=given.name,
            fix="give a timeline of rtk run",
        )
    return [WorkerHolding(layers, degree) for layers, degree in cuts.pop()]


def _stages_by_cut(profile: "Profile", given: Given) -> "list[WorkerHolding]":
    """The stages that `rtk plan` would cut."""
    from .planners.shape import cut_stages
    from .profilers.refine import WorkerHolding
    from .schemas.profile import Device

    count = _stage_count(given)
    if count > len(profile.layers):
        raise InvalidInputError(
            f"the timeline has {count} stages, the profile {len(profile.layers)} layers",
            where=given.name,
            fix="give the profile of the model that was run",
        )
    cut = cut_stages(replace(profile, device=Device()), count, peers=1)
    return [WorkerHolding(stage.layers) for stage in cut.stages]


def _stage_count(given: Given) -> int:
    """How many stages a timeline has; each must have computed."""
    stages = {int(span.worker.partition("/")[2]) for span in given.timeline.spans}
    missing = set(range(max(stages, default=0) + 1)) - stages
    if missing:
        raise InvalidInputError(
            f"stage {min(missing)} computes nothing",
            where=given.name,
            fix="give traces of all ranks, or the plan that was run (--plan)",
        )
    return len(stages)
