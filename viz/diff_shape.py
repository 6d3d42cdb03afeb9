"""How the shapes of two plans differ: their templates with stages and links, and their pipelines."""

from collections.abc import Iterator, Sequence

from ..schemas.plan import Link, Pipeline, Plan, Stage, Template
from .change import Change, becomes, changed

_STAGE_WORDS = {
    "tensor_parallel": "tensor-parallel degree",
    "forward_s": "forward time",
    "backward_input_s": "backward time for inputs",
    "backward_weight_s": "backward time for weights",
    "optimizer_s": "optimizer time",
    "allreduce_s": "all-reduce time",
    "activation_bytes": "activations of a micro-batch",
    "weight_stash_bytes": "stash of a micro-batch for W",
    "memory_limit_bytes": "memory limit",
}
MOST_NAMED = 4  # templates that no pipeline uses


def template_changes(a: Plan, b: Plan) -> Iterator[Change]:
    """Templates that came, went or changed, by name; of those that no pipeline uses, how many did."""
    before = {template.name: index for index, template in enumerate(a.templates)}
    after = {template.name: index for index, template in enumerate(b.templates)}
    used = {pipeline.template for plan in (a, b) for pipeline in plan.pipelines}
    for name, index in before.items():
        if name not in after and name in used:
            stages = len(a.templates[index].stages)
            words = f"template {name} ({stages} stages) is gone"
            yield Change(f"/templates/{index}", "template", name, None, words)
    for name, index in after.items():
        template = b.templates[index]
        if name not in used:
            continue
        if name in before:
            yield from _template(a.templates[before[name]], template, f"/templates/{index}")
        else:
            words = f"template {name} ({len(template.stages)} stages) is new"
            yield Change(f"/templates/{index}", "template", None, name, words)
    yield from _unused(a, b, used)


def _unused(a: Plan, b: Plan, used: set[str]) -> Iterator[Change]:
    """What became of the templates that no pipeline uses, in a line."""
    before, after = ({t.name: t for t in plan.templates if t.name not in used} for plan in (a, b))
    gone = [name for name in before if name not in after]
    new = [name for name in after if name not in before]
    other = [name for name in after if name in before and after[name] != before[name]]
    counts = ((gone, "gone"), (new, "new"), (other, "changed"))
    if any(names for names, _ in counts):
        words = ", ".join(f"{_few(names)} {what}" for names, what in counts if names)
        yield Change("/templates", "template", list(before), list(after), f"templates that no pipeline uses: {words}")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} ({names[0]} to {names[-1]})"


def _template(a: Template, b: Template, path: str) -> Iterator[Change]:
    if len(a.stages) != len(b.stages):
        words = f"template {b.name} has {len(b.stages)} stages instead of {len(a.stages)}"
        yield Change(f"{path}/stages", "template", len(a.stages), len(b.stages), words)
        return  # stage i of the one is no stage i of the other
    for index, (before, after) in enumerate(zip(a.stages, b.stages, strict=True)):
        yield from _stage(before, after, f"{path}/stages/{index}", f"stage {index} of template {b.name}")
    yield from _links(a.links, b.links, f"{path}/links", "template", f"template {b.name}")


def _stage(a: Stage, b: Stage, path: str, name: str) -> Iterator[Change]:
    if a.layers != b.layers:
        words = f"{name} holds {print_layers(b)} instead of {print_layers(a)}"
        yield Change(f"{path}/layers", "template", list(a.layers), list(b.layers), words)
    for field, what in _STAGE_WORDS.items():
        yield from changed(f"{path}/{field}", "template", f"{what} of {name}", getattr(a, field), getattr(b, field))


def print_layers(stage: Stage) -> str:
    """The layers of a stage in words."""
    first, last = stage.layers[0], stage.layers[1] - 1
    return f"layer {first}" if first == last else f"layers {first}–{last}"  # noqa: RUF001


def _links(a: Sequence[Link], b: Sequence[Link], path: str, kind: str, name: str) -> Iterator[Change]:
    for index, (before, after) in enumerate(zip(a, b, strict=False)):
        words = f"delay of link {index} of {name}"
        yield from changed(f"{path}/{index}/delay_s", kind, words, before.delay_s, after.delay_s)


def pipeline_changes(a: Plan, b: Plan) -> Iterator[Change]:
    """Pipelines that came, went, or got another template, other micro-batches or other links."""
    common = min(len(a.pipelines), len(b.pipelines))
    for k in range(common):
        path, name = f"/pipelines/{k}", f"pipeline {k}"
        before, after = a.pipelines[k], b.pipelines[k]
        if before.template != after.template:
            yield _other_template(a, b, k)
        if before.microbatches != after.microbatches:
            words = f"micro-batches of {name}: {becomes(before.microbatches, after.microbatches, 'count')}"
            yield Change(f"{path}/microbatches", "pipeline", before.microbatches, after.microbatches, words)
        if _has_own_links(a, k) or _has_own_links(b, k):
            yield from _links(_effective_links(a, k), _effective_links(b, k), f"{path}/links", "pipeline", name)
    for k, gone in enumerate(a.pipelines[common:], start=common):
        yield Change(f"/pipelines/{k}", "pipeline", gone.template, None, f"pipeline {k} is gone: {_describe(gone)}")
    for k, new in enumerate(b.pipelines[common:], start=common):
        yield Change(f"/pipelines/{k}", "pipeline", None, new.template, f"pipeline {k} is new: {_describe(new)}")


def _other_template(a: Plan, b: Plan, k: int) -> Change:
    before, after = a.pipelines[k].template, b.pipelines[k].template
    stages = [len(plan.template_of(k).stages) for plan in (a, b)]
    words = f"template of pipeline {k}: {becomes(before, after)}"
    if stages[0] != stages[1]:
        words += f" ({stages[1]} stages instead of {stages[0]})"
    return Change(f"/pipelines/{k}/template", "pipeline", before, after, words)


def _describe(pipeline: Pipeline) -> str:
    return f"template {pipeline.template}, {pipeline.microbatches} micro-batches"


def _effective_links(plan: Plan, pipeline: int) -> Sequence[Link]:
    own = plan.pipelines[pipeline].links
    return plan.template_of(pipeline).links if own is None else own


def _has_own_links(plan: Plan, pipeline: int) -> bool:
    return _effective_links(plan, pipeline) != plan.template_of(pipeline).links
