"""`rtk plan oobleck`: a plan of unlike pipelines, made from pipeline templates ("Oobleck" sections 4.2 and 3).

The pipelines are chosen by `instantiation.py`; each runs 1F1B, as in the paper. Layers are summed over all pipelines
with a ring all-reduce. The plan holds all templates, also those that no pipeline uses now, and in its options the rest
of the document, so that a running plan knows what it may change to (`recovery/oobleck.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from annotated_types import MinLen

from ... import __version__
from ...schemas.documents import digest, pointer, to_tree, type_adapter
from ...schemas.errors import InvalidInputError
from ...schemas.fields import STRICT, Count, Index, Seconds
from ...schemas.plan import Pipeline, Plan, Planner, Stage, Template, Worker
from ...schemas.profile import Network
from ...schemas.templates import LayerState, Objective, PipelineTemplate, Templates
from ..pipeline import one_forward_one_backward
from ..scheduling.assemble import bubble_ratio, checked, with_orders_and_prediction
from ..scheduling.lower_bound import lower_bound
from ..scheduling.problem import Orders, Problem, coded, home_problem, in_jobs
from .instantiation import instantiate, microbatches_of
from .pace import reduced_bytes, rings_of

if TYPE_CHECKING:
    from ..batch.distribute import Objective as BatchObjective
    from ..batch.distribute import Solver


KEPT_OPTIONS = ("model", "sequence_length")


def plan_oobleck(
    templates: Templates,
    nodes: int,
    global_batch: int,
    microbatch_size: int,
    multiple_of: int = 1,
    objective: BatchObjective = "min-max",
    solver: Solver = "exact",
) -> Plan:
    """Plan pipelines that use all nodes, and share a global batch so that an iteration ends first.

    Args:
        templates: of consecutive sizes.
        nodes: N', those that are there now.
        global_batch: B, samples of an iteration.
        microbatch_size: b, samples of a micro-batch: that of the profile which the templates were planned from.
        multiple_of: every pipeline gets a multiple of so many micro-batches.
        objective, solver: of batch distribution over the pipelines that were chosen.

    Returns:
        A checked plan with its prediction.

    Raises:
        InfeasibleError: too few nodes for f + 1 pipelines, more than the templates can use, or a batch that cannot be
            split; names the nearest number that would do.
        InvalidInputError: the templates are for another micro-batch size.
    """
    known = templates.planner.options.get("microbatch_size")
    if known is not None and known != microbatch_size:
        raise InvalidInputError(
            f"the templates are for micro-batches of {known}, not of {microbatch_size}",
            where="--microbatch-size",
            fix=f"take {known}, or profile the model with {microbatch_size}",
        )
    microbatches = microbatches_of(templates, nodes, global_batch, microbatch_size, multiple_of)
    found = instantiate(templates, nodes, microbatches, multiple_of, objective, solver, microbatch_size)
    told = {
        "microbatch_size": microbatch_size,
        "global_batch": global_batch,
        "multiple_of": multiple_of,
        "objective": objective,
        "solver": solver,
    }
    return plan_of(templates, found.sizes, found.microbatches, told)


def plan_of(
    templates: Templates,
    sizes: Sequence[int],
    microbatches: Sequence[int],
    told: Mapping[str, Any] | None = None,
) -> Plan:
    """A plan of given pipelines.

    Args:
        templates: that they are made from.
        sizes: nodes of each pipeline.
        microbatches: of each pipeline.
        told: further options, for the plan to name; `microbatch_size` is the profile's where they do not say it.

    Returns:
        A checked plan with its prediction.
    """
    options = {
        "nodes": sum(sizes),
        "microbatch_size": templates.planner.options.get("microbatch_size"),
        **{name: templates.planner.options.get(name) for name in KEPT_OPTIONS},
        **(told or {}),
        OPTION: rest_of(templates),
    }
    pipelines = [Pipeline(template_name(size), count) for size, count in zip(sizes, microbatches, strict=True)]
    shapes = tuple(dict.fromkeys(pipelines))
    one_of_each = Plan(
        planner=Planner("oobleck", __version__, options),
        inputs={"templates": digest(templates)},
        templates=tuple(template_among(templates, template, len(sizes)) for template in templates.templates),
        pipelines=shapes,
        optimizer="synchronous",
        workers=tuple(_workers(templates, shapes)),
    )
    problem = home_problem(one_of_each, split=False)
    bound_s = lower_bound(problem).value_s
    promised = with_orders_and_prediction(one_of_each, problem, _orders(one_of_each, problem), bound_s)
    # The plan of all pipelines, from one in which each kind of them stands once: alike ones do the same at the same
    # time, so that all promises hold but those that sum over workers.
    rows: dict[Pipeline, list[tuple[Worker, float]]] = {pipeline: [] for pipeline in promised.pipelines}
    for worker, peak_bytes in zip(promised.workers, promised.predicted.peak_memory_bytes, strict=True):
        rows[promised.pipelines[worker.pipeline]].append((worker, peak_bytes))
    workers = tuple(replace(worker, pipeline=k) for k, one in enumerate(pipelines) for worker, _ in rows[one])
    work_s = {pipeline: _work_s(promised, pipeline) for pipeline in rows}
    all_work_s = sum(work_s[one] for one in pipelines)
    prediction = replace(
        promised.predicted,
        bubble_ratio=bubble_ratio(all_work_s, len(workers), promised.predicted.iteration_time_s),
        peak_memory_bytes=tuple(peak_bytes for one in pipelines for _, peak_bytes in rows[one]),
    )
    return checked(replace(promised, pipelines=tuple(pipelines), workers=workers, prediction=prediction))


def ordered_of(templates: Templates, sizes: Sequence[int], microbatches: Sequence[int]) -> tuple[Problem, Orders]:
    """What `plan_of` orders, and the operation codes of each worker, without the plan."""
    pipelines = [Pipeline(template_name(size), count) for size, count in zip(sizes, microbatches, strict=True)]
    known = {template_name(one.nodes): one for one in templates.templates}
    used = dict.fromkeys(pipeline.template for pipeline in pipelines)
    bare = Plan(
        planner=Planner("oobleck", __version__, {}),
        templates=tuple(template_among(templates, known[name], len(sizes)) for name in used),
        pipelines=tuple(pipelines),
        optimizer="synchronous",
        workers=tuple(_workers(templates, pipelines)),
    )
    problem = home_problem(bare, split=False)
    return problem, _orders(bare, problem)


def template_among(templates: Templates, template: PipelineTemplate, peers: int) -> Template:
    """A template as a plan has it, its all-reduce between so many pipelines."""
    rings = rings_of(templates)

    def reduced(stage: Stage) -> Stage:
        return replace(stage, allreduce_s=rings.ring_s(reduced_bytes(templates.layers, stage), peers))

    return Template(template_name(template.nodes), tuple(map(reduced, template.stages)), template.links)


def _workers(templates: Templates, pipelines: Sequence[Pipeline]) -> Iterator[Worker]:
    """The workers, their orders still empty."""
    depth = {template_name(template.nodes): len(template.stages) for template in templates.templates}
    for k, pipeline in enumerate(pipelines):
        for i in range(depth[pipeline.template]):
            yield Worker(k, i, "")


def _orders(plan: Plan, problem: Problem) -> Orders:
    """1F1B of each pipeline, as operation codes."""
    found: list[Sequence[int]] = []
    known: dict[Pipeline, Orders] = {}
    for k, pipeline in enumerate(plan.pipelines):
        if pipeline not in known:
            template = plan.template_of(k)
            known[pipeline] = coded(one_forward_one_backward(template.stages, template.links, pipeline.microbatches))
        found += in_jobs(known[pipeline], np.flatnonzero(problem.origin == k).tolist())
    return found


def _work_s(plan: Plan, pipeline: Pipeline) -> float:
    """What all operations of a pipeline take together, in s."""
    stages = plan.template_by_name[pipeline.template].stages
    return pipeline.microbatches * sum(stage.duration_s(kind) for stage in stages for kind in "FB")


# What a plan made of templates says of them: enough to read them back, so that a running plan can be reconfigured.


OPTION = "templates"  # of the planner


@dataclass(frozen=True)
class TemplateMetadata:
    """What a plan's template does not say of itself."""

    nodes: Count
    iteration_time_s: Seconds
    microbatches: Count

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True)
class TemplatesHead:
    """A Templates document without stages and links, which stand in the plan."""

    planner: Planner
    objective: Objective
    fault_tolerance: Index
    nodes: Count
    gpus_per_node: Count
    sizes: Annotated[tuple[TemplateMetadata, ...], MinLen(1)]
    layers: Annotated[tuple[LayerState, ...], MinLen(1)]
    network: Network
    inputs: dict[str, str]

    __pydantic_config__: ClassVar[Any] = STRICT


KEPT = tuple(field.name for field in fields(TemplatesHead) if field.name != "sizes")  # as Templates has them


def template_name(nodes: int) -> str:
    """What a plan calls the template of so many nodes."""
    return f"n{nodes}"


def rest_of(templates: Templates) -> dict[str, Any]:
    """What a plan's options must hold, beside its templates, for `templates_of`."""
    sizes = tuple(TemplateMetadata(one.nodes, one.iteration_time_s, one.microbatches) for one in templates.templates)
    tree: dict[str, Any] = to_tree(TemplatesHead(**{name: getattr(templates, name) for name in KEPT}, sizes=sizes))
    return tree


def templates_of(plan: Plan) -> Templates:
    """The Templates that a plan was made of.

    Raises:
        InvalidInputError: it was not made by `rtk plan oobleck`, or what it says of them was changed.
    """
    rest = _read(plan.planner.options.get(OPTION))
    kept = {name: getattr(rest, name) for name in KEPT}
    templates = Templates(**kept, templates=tuple(_template(plan, size) for size in rest.sizes))
    try:
        templates.validate()
    except InvalidInputError as error:
        raise _foreign(error.what, "/planner/options/templates") from None
    return templates


def _read(said: Any) -> TemplatesHead:
    from pydantic import ValidationError

    try:
        rest: TemplatesHead = type_adapter(TemplatesHead).validate_json(json.dumps(said))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = "the plan does not say which templates it was made of" if said is None else first["msg"]
        raise _foreign(what, f"/planner/options/{OPTION}{pointer(first['loc']) if first['loc'] else ''}") from None
    return rest


def _template(plan: Plan, size: TemplateMetadata) -> PipelineTemplate:
    found: Template | None = plan.template_by_name.get(template_name(size.nodes))
    if found is None:
        raise _foreign(f"there is no template {template_name(size.nodes)}", f"/planner/options/{OPTION}/sizes")
    stages = tuple(replace(stage, allreduce_s=0.0) for stage in found.stages)
    return PipelineTemplate(size.nodes, size.iteration_time_s, size.microbatches, stages, found.links)


def _foreign(what: str, where: str) -> InvalidInputError:
    return InvalidInputError(what, where=where, fix="plan with `rtk plan oobleck`")
