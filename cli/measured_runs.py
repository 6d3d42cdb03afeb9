"""Measured timelines as commands are given them, and what their workers held."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..schemas.documents import digest, read_document
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM, source_of

if TYPE_CHECKING:
    from ..profilers.stage_readings import Run, Seat
    from ..schemas.plan import Plan
    from ..schemas.profile import Profile
    from ..schemas.timeline import Timeline

SNIFFED_BYTES = 256 << 10
TRACES = (".json", ".json.gz")


@dataclass(frozen=True)
class Given:
    """A timeline as it was given: its name for messages, and what it says."""

    name: str
    timeline: "Timeline"


def given_timelines(paths: Sequence[str]) -> Iterator[Given]:
    """The timelines: documents, folders of traces, and all single traces as one job, last."""
    from ..profilers.annotations import read_annotations
    from ..schemas.timeline import Timeline

    traces = []
    for path in paths:
        if path != STANDARD_STREAM and Path(path).is_dir():
            inside = sorted(one for one in Path(path).rglob("*") if one.name.endswith(TRACES))
            if not inside:
                raise InvalidInputError("the folder holds no traces", where=path, fix="give .json or .json.gz files")
            yield Given(path, read_annotations(inside))
        elif path != STANDARD_STREAM and _is_trace(path):
            traces.append(Path(path))
        else:
            yield Given(source_of(path), read_document(path, Timeline))
    if traces:
        yield Given(", ".join(map(str, traces)), read_annotations(traces))


def _is_trace(path: str) -> bool:
    from ..profilers.failslow.calls.sources import beginning_of

    head = beginning_of(Path(path), SNIFFED_BYTES).lstrip()
    return head.startswith(b"[") or b'"traceEvents"' in head or b'"distributedInfo"' in head


def run_of(given: Given, profile: "Profile", plans: "Sequence[Plan]") -> "Run":
    """A timeline with what its workers held: by the plan that it is of, or by how its stages would be cut."""
    from ..profilers.stage_readings import Run

    plan = _plan_of(given, plans)
    if plan is not None and given.timeline.plan is not None:
        return Run(
            given.name, given.timeline, {worker.name: _seat(plan, place) for place, worker in enumerate(plan.workers)}
        )
    stages = _stages_by_plan(plan, given) if plan else _stages_by_cut(profile, given)
    workers = {span.worker: int(span.worker.partition("/")[2]) for span in given.timeline.spans}
    beyond = max(workers.values(), default=0)
    if beyond >= len(stages):
        raise InvalidInputError(
            f"the timeline has a stage {beyond}, the plan {len(stages)} stages",
            where=given.name,
            fix="give the plan that was run",
        )
    return Run(
        given.name, given.timeline, {**_everywhere(stages), **{name: stages[stage] for name, stage in workers.items()}}
    )


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


def _seat(plan: "Plan", place: int) -> "Seat":
    from ..profilers.stage_readings import Seat

    worker = plan.workers[place]
    stage = plan.stage_of(worker)
    return Seat(stage.layers, stage.tensor_parallel, worker.slowdown or 1.0)


def _stages_by_plan(plan: "Plan", given: Given) -> "list[Seat]":
    """The stages of a plan whose pipelines are all alike: a trace does not say which pipeline a rank belongs to."""
    from ..profilers.stage_readings import Seat

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
    return [Seat(layers, degree) for layers, degree in cuts.pop()]


def _stages_by_cut(profile: "Profile", given: Given) -> "list[Seat]":
    """The stages that `rtk plan` would cut."""
    from ..planners.partition import cut_stages
    from ..profilers.stage_readings import Seat
    from ..schemas.profile import Device

    count = _stage_count(given)
    if count > len(profile.layers):
        raise InvalidInputError(
            f"the timeline has {count} stages, the profile {len(profile.layers)} layers",
            where=given.name,
            fix="give the profile of the model that was run",
        )
    cut = cut_stages(replace(profile, device=Device()), count, peers=1)
    return [Seat(stage.layers) for stage in cut.stages]


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


def _everywhere(stages: "Sequence[Seat]") -> "dict[str, Seat]":
    return {f"0/{index}": seat for index, seat in enumerate(stages)}
