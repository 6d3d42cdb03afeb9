"""The verdict on two plans: the headline, what is too small to count, and what is too much."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from ..schemas.errors import InvalidInputError
from ..schemas.plan import Plan
from ..schemas.quantities import print_bytes, print_percent
from ..schemas.text import counted, did_you_mean, joined
from .diff import Difference, PlanDiff, print_points, unit_of

Measure = Literal["slower", "memory", "bubbles"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
MOST_NAMED = 3  # workers in a headline


@dataclass(frozen=True, slots=True)
class Threshold:
    """What a plan may be worse by than the one before, as a share: of its iteration time, of the largest peak memory
    of a worker, or, for bubbles, of one."""

    measure: Measure
    most: float

    def failure(self, a: Plan, b: Plan) -> str | None:
        """What is too much, in words; None where all is well or a plan promises nothing."""
        grown = _grown(self.measure, a, b)
        if grown is None or grown <= self.most:
            return None
        return f"{_worse(self.measure, grown)}, {_allowed(self.measure, self.most)} are allowed"


def parse_share(text: str, option: str) -> float:
    """`5%`, or `0.05`.

    Raises:
        InvalidInputError: it is no share, or below 0.
    """
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(%?)\s*", text)
    if match is None:
        raise InvalidInputError(f"{option} takes a share, not {text!r}", where=option, fix="write it as 5% or 0.05")
    return float(match[1]) / (100 if match[2] else 1)


def parse_threshold(text: str) -> Threshold:
    """`slower:3%`, `memory:5%`, `bubbles:2%`; without a number nothing worse is allowed.

    Raises:
        InvalidInputError: it is none of these.
    """
    name, colon, share = text.partition(":")
    if name not in MEASURES:
        known = f"write {joined((f'{one}:3%' for one in MEASURES), 'or')}"
        fix = did_you_mean(name, MEASURES, known)
        raise InvalidInputError(f"--fail-if knows no {name!r}", where=f"--fail-if {text}", fix=fix)
    return Threshold(name, parse_share(share, "--fail-if") if colon else 0.0)


def headline(a: Plan, b: Plan, diff: PlanDiff) -> str:
    """The differences that matter in a line: `43 % slower; 8 micro-batches re-routed; +33 MiB on 0/1`."""
    return "; ".join(_parts(a, b, diff)) if diff else "no difference"


def beyond(diff: PlanDiff, tolerance: float) -> PlanDiff:
    """The differences without numbers that differ by no more than a share, of ratios by no more than it.

    What a plan was made from, and with which version, is no difference either: it always differs where a profile was
    measured again.
    """
    return replace(diff, changes=tuple(one for one in diff.changes if not _is_small(one, tolerance)))


def _is_small(change: Difference, tolerance: float) -> bool:
    if change.kind == "inputs" or change.path == "/planner/version":
        return True
    before, after = change.before, change.after
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in (before, after)):
        return False
    if change.path in ("/prediction/bubble_ratio", "/prediction/gap"):
        return bool(abs(after - before) <= tolerance)
    return bool(unit_of(change.path)) and bool(abs(after - before) <= tolerance * abs(before))


def _parts(a: Plan, b: Plan, diff: PlanDiff) -> Iterator[str]:
    yield from (one.words for one in diff.changes if one.kind == "placement" and one.path.endswith("/placement"))
    slower = _grown("slower", a, b)
    yield _worse("slower", slower) if slower else "as fast" if slower == 0 else "no prediction to compare"
    if len(a.workers) != len(b.workers):
        yield f"{counted(len(b.workers), 'worker')} instead of {len(a.workers)}"
    states = [change for change in diff.changes if change.kind == "worker" and change.path.endswith("/failed")]
    if len(states) > MOST_NAMED:
        failed = sum(bool(one.after) for one in states)
        yield f"{counted(failed, 'worker')} failed, {len(states) - failed} are back"
    else:
        yield from (one.words for one in states)
    if moved := _moved(diff.changes):
        yield f"{counted(len(moved), 'micro-batch', 'es')} re-routed"
    yield from _memory(diff.changes)


def _moved(changes: Sequence[Difference]) -> set[tuple[str, str]]:
    """The re-routed micro-batches of each worker, once though several of its virtual stages are."""
    return {
        (one.before, microbatch)
        for one in changes
        if one.kind == "re-routing"
        for share in one.after.values()
        for microbatch in share
    }


def _memory(changes: Sequence[Difference]) -> Iterator[str]:
    """The change of the worker whose peak changes most."""
    peaks = [change for change in changes if change.path.startswith("/prediction/peak_memory_bytes/")]
    if peaks:
        most = max(peaks, key=lambda one: float(abs(one.after - one.before)))
        worker = most.words.partition(":")[0].rpartition(" ")[2]
        sign = "+" if most.after > most.before else "-"
        yield f"{sign}{print_bytes(abs(most.after - most.before))} on {worker}"


def _grown(measure: Measure, a: Plan, b: Plan) -> float | None:
    """By what share the second plan is worse; below 0 it is better."""
    if a.prediction is None or b.prediction is None:
        return None
    if measure == "bubbles":
        return b.prediction.bubble_ratio - a.prediction.bubble_ratio
    if measure == "slower":
        before, after = a.prediction.iteration_time_s, b.prediction.iteration_time_s
    else:
        before, after = (max(one.prediction.peak_memory_bytes, default=0.0) for one in (a, b) if one.prediction)
    return after / before - 1 if before else None


def _worse(measure: Measure, grown: float) -> str:
    size = print_percent(abs(grown))
    if measure == "bubbles":
        return f"bubbles {print_points(grown)}"
    if measure == "memory":
        return f"{size} {'more' if grown > 0 else 'less'} memory"
    return f"{size} {'slower' if grown > 0 else 'faster'}"


def _allowed(measure: Measure, most: float) -> str:
    return print_points(most).removeprefix("+") if measure == "bubbles" else print_percent(most)
