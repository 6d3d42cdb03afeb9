"""What changed from one plan to another, in words: for people, pull requests and scripts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..schemas.documents import pointer
from ..schemas.plan import Plan, Prediction
from .change import Change, becomes, changed, unit_of
from .diff_orders import order_changes, reroutings, worker_changes
from .diff_shape import pipeline_changes, template_changes

NO_DIFFERENCE = "no difference"
MOST_LISTED = 8  # entries of an option that is a list

_PREDICTION_WORDS = {
    "iteration_time_s": "iteration time",
    "makespan_s": "makespan",
    "period_s": "period",
    "lower_bound_s": "lower bound of the iteration time",
}
_RATIO_WORDS = {"gap": "gap to the lower bound", "bubble_ratio": "bubbles"}


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The differences of two plans, what they promise first."""

    changes: tuple[Change, ...]

    def __bool__(self) -> bool:
        """Whether there is a difference."""
        return bool(self.changes)


def diff_plans(a: Plan, b: Plan) -> PlanDiff:
    """Compare two plans by their meaning.

    A slowdown of 1 and none, links that repeat their template's and none, and another order of the templates are no
    differences.

    Args:
        a: the plan before.
        b: the plan after.
    """
    return PlanDiff(
        (
            *_prediction(a, b),
            *_planner(a, b),
            *changed("/optimizer", "optimizer", "optimizer", a.optimizer, b.optimizer),
            *template_changes(a, b),
            *pipeline_changes(a, b),
            *worker_changes(a, b),
            *reroutings(a, b),
            *order_changes(a, b),
        )
    )


def as_words(diff: PlanDiff) -> str:
    """The differences as indented lines under the parts of the plan they belong to."""
    if not diff:
        return NO_DIFFERENCE
    lines: list[str] = []
    part = ""
    for change in diff.changes:
        if change.kind != part:
            lines.append(change.kind)
            part = change.kind
        lines.append(f"  {change.words}")
    return "\n".join(lines)


def as_markdown(diff: PlanDiff) -> str:
    """The differences as a table for a pull request."""
    if not diff:
        return NO_DIFFERENCE
    rows = [f"| {change.kind} | {_cell(change.words)} | `{_cell(change.path)}` |" for change in diff.changes]
    return "\n".join(["| part | change | where |", "| --- | --- | --- |", *rows])


def as_tree(diff: PlanDiff) -> dict[str, Any]:
    """The differences as JSON values: `equal`, and `changes` with path, kind, before, after and words."""
    names = ("path", "kind", "before", "after", "words")
    changes = [{name: getattr(change, name) for name in names} for change in diff.changes]
    return {"equal": not diff, "changes": changes}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _planner(a: Plan, b: Plan) -> Iterator[Change]:
    """Who made the plan, with which options, from what."""
    for name in ("name", "version", "seed"):
        words = "planner" if name == "name" else f"planner's {name}"
        yield from changed(f"/planner/{name}", "planner", words, getattr(a.planner, name), getattr(b.planner, name))
    yield from _options((), a.planner.options, b.planner.options)
    for name in sorted({**a.inputs, **b.inputs}):
        before, after = a.inputs.get(name), b.inputs.get(name)
        if before != after:
            words = f"made from another {name}: {becomes(_short(before), _short(after))}"
            yield Change(pointer(("inputs", name)), "inputs", before, after, words)


def _options(place: tuple[str, ...], a: dict[str, Any], b: dict[str, Any]) -> Iterator[Change]:
    """What differs in a planner's options, and in options within options."""
    for name in sorted({**a, **b}):
        before, after, inner = a.get(name), b.get(name), (*place, name)
        if all(isinstance(option, dict | None) for option in (before, after)) and (before or after):
            yield from _options(inner, before or {}, after or {})
            continue
        if before != after:
            path = pointer(("planner", "options", *inner))
            old, new = _brief(before), _brief(after)
            becoming = f"{new}, but others" if old == new else becomes(old, new, unit_of(path))
            yield Change(path, "planner", before, after, f"option {' '.join(inner)}: {becoming}")


def _brief(option: Any) -> Any:
    """An option as a value that a line can hold."""
    if not isinstance(option, list):
        return option
    if len(option) > MOST_LISTED or any(isinstance(item, dict | list) for item in option):
        return "1 entry" if len(option) == 1 else f"{len(option)} entries"
    return ", ".join(map(str, option)) or "nothing"


def _short(digest: str | None) -> str | None:
    return digest and (digest if len(digest) <= 12 else digest[:12] + "…")


def _prediction(a: Plan, b: Plan) -> Iterator[Change]:
    """What the plans promise."""
    if a.prediction is None or b.prediction is None:
        if a.prediction is not b.prediction:
            words = "the prediction is gone" if b.prediction is None else "a prediction came"
            before, after = (plan.prediction and plan.prediction.iteration_time_s for plan in (a, b))
            yield Change("/prediction", "prediction", before, after, words)
        return
    for name, words in _PREDICTION_WORDS.items():
        before, after = getattr(a.prediction, name), getattr(b.prediction, name)
        yield from changed(f"/prediction/{name}", "prediction", words, before, after)
    for name, words in _RATIO_WORDS.items():
        before, after = getattr(a.prediction, name), getattr(b.prediction, name)
        if before != after:
            change = f"{words}: {becomes(before, after, 'ratio')}"
            yield Change(f"/prediction/{name}", "prediction", before, after, change)
    yield from changed("/prediction/proof", "prediction", "proof", a.prediction.proof, b.prediction.proof)
    scopes = a.prediction.proof_scope, b.prediction.proof_scope
    yield from changed("/prediction/proof_scope", "prediction", "scope of the proof", *scopes)
    yield from _peak_memory((a, a.prediction), (b, b.prediction))


def _peak_memory(a: tuple[Plan, Prediction], b: tuple[Plan, Prediction]) -> Iterator[Change]:
    path = "/prediction/peak_memory_bytes"
    largest = [max(prediction.peak_memory_bytes, default=0.0) for _, prediction in (a, b)]
    yield from changed(path, "prediction", "largest peak memory of a worker", *largest)
    before = dict(zip((worker.name for worker in a[0].workers), a[1].peak_memory_bytes, strict=True))
    for index, (worker, after) in enumerate(zip(b[0].workers, b[1].peak_memory_bytes, strict=True)):
        if worker.name in before and not worker.failed:
            words = f"peak memory of worker {worker.name}"
            yield from changed(f"{path}/{index}", "prediction", words, before[worker.name], after)
