"""What a plan for slow workers and links says of who sits where, in words."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Predicate

from ...schemas.documents import typed
from ...schemas.fields import Count, Factor, Seconds
from ...schemas.plan import Place, Plan, place_of

NAME, AS_IT_IS = "topology", "as it is"
MOST_NAMED = 8  # of what moves, in words


def _is_worker(name: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}/[0-9]{1,9}", name) is not None


def _is_pair(name: str) -> bool:
    return name.count("-") == 1 and all(map(_is_worker, name.split("-")))


Name = Annotated[str, Predicate(_is_worker)]


@dataclass(frozen=True, slots=True)
class _TopologyOptions:
    """What a plan's options say of who sits where."""

    microbatches: Count
    slow: dict[Name, Factor]
    slow_links: dict[Annotated[str, Predicate(_is_pair)], Seconds]
    taken: str
    assignment: dict[Name, Name]
    iteration_time_s: dict[str, Seconds]

    __pydantic_config__: ClassVar[Any] = {"extra": "ignore", "strict": True}


def topology_words(plan: Plan) -> list[str]:
    """Who moves and what it is worth, in lines; none for plans of other planners."""
    if plan.planner.name != NAME:
        return []
    told: _TopologyOptions = typed(plan.planner.options, _TopologyOptions, "/planner/options")
    return [
        _worth(told),
        *_few(list(_moves(told.assignment))),
        *_few([_link(name, delay_s, told.assignment) for name, delay_s in told.slow_links.items()]),
        *_gathered(told),
        *_uneven(plan, told.microbatches),
    ]


def _worth(told: _TopologyOptions) -> str:
    """What each of the four answers takes."""
    times_s = told.iteration_time_s
    ordered = sorted(times_s, key=lambda name: (name != AS_IT_IS, len(name), name))
    times = ", ".join(f"{name} {times_s[name]:.6g} s" for name in ordered)
    return f"taken: {told.taken} ({times})"


def _few(lines: Sequence[str]) -> list[str]:
    more = len(lines) - MOST_NAMED
    return [*lines[:MOST_NAMED], f"… and {more} more"] if more > 0 else list(lines)


def _moves(assignment: Mapping[str, str]) -> Iterator[str]:
    for name, place in assignment.items():
        if assignment.get(place) != name:
            yield f"worker {name} goes to {place}"
        elif name < place:
            yield f"workers {name} and {place} change places"


def _link(pair: str, delay_s: float, assignment: Mapping[str, str]) -> str:
    """What a slow link carried, and what it carries now."""
    ends = pair.split("-")
    before, after = (_traffic(*map(place_of, names)) for names in (ends, [assignment.get(end, end) for end in ends]))
    kept = f"still carries {after}" if before == after else f"carries {after} instead of {before}"
    return f"slow link {pair} ({delay_s:g} s) {kept}"


def _traffic(here: Place, there: Place) -> str:
    """What the link between two places carries."""
    if here[1] == there[1]:
        return f"the sums of stage {here[1]}"
    if here[0] == there[0] and abs(here[1] - there[1]) == 1:
        return f"what stages {min(here[1], there[1])} and {max(here[1], there[1])} of pipeline {here[0]} send"
    return "nothing"


def _gathered(told: _TopologyOptions) -> Iterator[str]:
    """In how many pipelines and stages slow workers sit, where that has changed."""
    then, now = (
        [len(set(numbers)) for numbers in zip(*(place_of(name) for name in names), strict=True)]
        for names in (told.slow, [told.assignment.get(name, name) for name in told.slow])
    )
    if then != now:
        yield f"pipelines with slow workers: {now[0]} instead of {then[0]}; stages: {now[1]} instead of {then[1]}"


def _uneven(plan: Plan, usual: int) -> Iterator[str]:
    counts = [pipeline.microbatches for pipeline in plan.pipelines]
    fewer = [f"pipeline {k} {count}" for k, count in enumerate(counts) if count < usual]
    if fewer:
        yield f"micro-batches instead of {usual}: {', '.join(_few(fewer))}, others up to {max(counts)}"
