"""Placements by name: plain, loops and V's, in words, and the refusal of those who take none.

A loop is the placement of interleaved 1F1B (Narayanan et al., Efficient large-scale language model training on GPU
clusters, 2021); a V that of ZB-V and its kin (Qi et al., Pipeline parallelism with controllable memory, 2024).
"""

from itertools import pairwise

from .errors import InvalidInputError
from .plan import Placement, Plan, Template, plain_placement
from .text import counted


def loop_placement(columns: int, chunks: int) -> Placement:
    """Column c holds the virtual stages c, S + c, 2S + c and so on.

    Args:
        columns: S, how many there are.
        chunks: virtual stages of each.
    """
    return tuple(tuple(leg * columns + column for leg in range(chunks)) for column in range(columns))


def v_placement(columns: int, chunks: int = 2) -> Placement:
    """Even legs go down the columns and odd ones up: of two chunks column c holds c and 2S - 1 - c.

    Args:
        columns: S, how many there are.
        chunks: virtual stages of each.
    """
    return tuple(
        tuple(leg * columns + (columns - 1 - column if leg % 2 else column) for leg in range(chunks))
        for column in range(columns)
    )


def links_crossed(template: Template) -> list[int]:
    """For each hop from virtual stage v to v + 1, the link between columns that it takes; -1 inside a column.

    Link i lies between columns i and i + 1, whichever way; the way between the first and the last of more than two
    columns, which is a loop's way back, has the number behind them.
    """
    if template.placement is None:
        return list(range(len(template.links)))
    columns = len(template.columns)
    pairs = [sorted(pair) for pair in pairwise(template.column_of)]
    return [-1 if one == other else one if other == one + 1 else columns - 1 for one, other in pairs]


def linked_columns(placement: Placement) -> set[tuple[int, int]]:
    """The pairs of columns, ascending, between which messages go: a virtual stage of the one follows one of the other.

    Args:
        placement: of a template, its `columns`.
    """
    column_of = {stage: column for column, held in enumerate(placement) for stage in held}
    ways = pairwise(column_of[stage] for stage in range(len(column_of)))
    return {(min(ends), max(ends)) for ends in ways if ends[0] != ends[1]}


def placement_words(placement: Placement) -> str:
    """`plain`, `loop, 2 chunks a worker`, `V, 2 chunks a worker`, or the virtual stages of each column: `0,5/1,3/2,4`.

    Args:
        placement: of a template, its `columns`.
    """
    columns, chunks = len(placement), len(placement[0])
    if placement == plain_placement(columns):
        return "plain"
    for name, made in (("loop", loop_placement), ("V", v_placement)):
        if placement == made(columns, chunks):
            return f"{name}, {counted(chunks, 'chunk')} a worker"
    return "/".join(",".join(map(str, held)) for held in placement)


def placements_of(plan: Plan) -> tuple[str, ...]:
    """The placements of a plan's pipelines in words, each once; empty where each worker holds one stage."""
    if not plan.is_placed:
        return ()
    used = (plan.template_of(pipeline).columns for pipeline in range(len(plan.pipelines)))
    return tuple(dict.fromkeys(map(placement_words, used)))


def refuse_placed(plan: Plan, command: str) -> None:
    """Raise InvalidInputError for a plan with a placement, which a command does not take.

    Args:
        plan: that was given to it.
        command: its name, such as `rtk plan reconfigure`.
    """
    for number, template in enumerate(plan.templates):
        if template.placement is not None:
            raise InvalidInputError(
                f"{command} takes no plan whose workers hold several virtual stages "
                f"({placement_words(template.placement)})",
                where=f"/templates/{number}/placement",
                fix="give a plan made with --placement plain",
            )
