"""What a plan made of templates says of them: enough to read them back, so that a running plan can be reconfigured."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar

from annotated_types import MinLen

from ...schemas.documents import pointer, to_tree, type_adapter
from ...schemas.errors import InvalidInputError
from ...schemas.fields import STRICT, Count, Index, Seconds
from ...schemas.plan import Plan, Planner, Template
from ...schemas.profile import Network
from ...schemas.templates import LayerState, Objective, PipelineTemplate, Templates

OPTION = "templates"  # of the planner


@dataclass(frozen=True)
class Size:
    """What a plan's template does not say of itself."""

    nodes: Count
    iteration_time_s: Seconds
    microbatches: Count

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True)
class Rest:
    """A Templates document without stages and links, which stand in the plan."""

    planner: Planner
    objective: Objective
    fault_tolerance: Index
    nodes: Count
    gpus_per_node: Count
    sizes: Annotated[tuple[Size, ...], MinLen(1)]
    layers: Annotated[tuple[LayerState, ...], MinLen(1)]
    network: Network
    inputs: dict[str, str]

    __pydantic_config__: ClassVar[Any] = STRICT


KEPT = tuple(field.name for field in fields(Rest) if field.name != "sizes")  # as Templates has them


def template_name(nodes: int) -> str:
    """What a plan calls the template of so many nodes."""
    return f"n{nodes}"


def rest_of(templates: Templates) -> dict[str, Any]:
    """What a plan's options must hold, beside its templates, for `templates_of`."""
    sizes = tuple(Size(one.nodes, one.iteration_time_s, one.microbatches) for one in templates.templates)
    tree: dict[str, Any] = to_tree(Rest(**{name: getattr(templates, name) for name in KEPT}, sizes=sizes))
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


def _read(said: Any) -> Rest:
    from pydantic import ValidationError

    try:
        rest: Rest = type_adapter(Rest).validate_json(json.dumps(said))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = "the plan does not say which templates it was made of" if said is None else first["msg"]
        raise _foreign(what, f"/planner/options/{OPTION}{pointer(first['loc']) if first['loc'] else ''}") from None
    return rest


def _template(plan: Plan, size: Size) -> PipelineTemplate:
    found: Template | None = plan.template_by_name.get(template_name(size.nodes))
    if found is None:
        raise _foreign(f"there is no template {template_name(size.nodes)}", f"/planner/options/{OPTION}/sizes")
    stages = tuple(replace(stage, allreduce_s=0.0) for stage in found.stages)
    return PipelineTemplate(size.nodes, size.iteration_time_s, size.microbatches, stages, found.links)


def _foreign(what: str, where: str) -> InvalidInputError:
    return InvalidInputError(what, where=where, fix="plan with `rtk plan oobleck`")
