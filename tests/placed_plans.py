"""Hypothesis strategies: placements, and random valid plans with them.

As those of strategies.py, whose random orders they take: loops, Vs and odd placements of any number of virtual stages a
column, several pipelines whose dead workers' chunks go to different peers, pipelines of unlike placements side by side.
"""

import random

from hypothesis import strategies as st

from rtk.schemas.plan import Placement, Plan, Template, plain_placement

from .strategies import cut_templates, plans_of


def looped(columns: int, chunks: int) -> Placement:
    """The placement of interleaved schedules: column c holds c, S+c, 2S+c, …"""
    return tuple(tuple(range(column, columns * chunks, columns)) for column in range(columns))


def folded(columns: int, chunks: int) -> Placement:
    """The V, in zigzag for more than two chunks: even legs go down the columns, odd ones up."""
    legs = [range(columns) if leg % 2 == 0 else range(columns)[::-1] for leg in range(chunks)]
    where = [column for leg in legs for column in leg]
    return tuple(tuple(v for v, at in enumerate(where) if at == column) for column in range(columns))


@st.composite
def placements(draw: st.DrawFn, max_columns: int = 4, max_chunks: int = 3) -> Placement:
    """A loop, a V, or any other placement, but never the plain one."""
    columns = draw(st.integers(1, max_columns))
    chunks = draw(st.integers(2, max_chunks))
    kind = draw(st.sampled_from(["loop", "v", "odd"]))
    if kind != "odd":
        return looped(columns, chunks) if kind == "loop" else folded(columns, chunks)
    count = draw(st.integers(max(columns, 2), columns * max_chunks))
    where = [*range(columns), *(draw(st.integers(0, columns - 1)) for _ in range(count - columns))]
    where = draw(st.permutations(where))
    found = tuple(tuple(v for v, at in enumerate(where) if at == column) for column in range(columns))
    return found if found != plain_placement(count) else found[::-1]


@st.composite
def placed_templates(draw: st.DrawFn, placement: Placement, name: str = "t0", layers: int = 0) -> Template:
    """A template with this placement, its layers cut anywhere: as many as virtual stages, or more."""
    count = sum(map(len, placement))
    total = max(count, layers)
    inner = draw(st.permutations(range(1, total)))[: count - 1]
    return draw(cut_templates((0, *sorted(inner), total), name, placement))


@st.composite
def placed_plans(
    draw: st.DrawFn, max_columns: int = 4, max_chunks: int = 3, max_dp: int = 3, max_microbatches: int = 6
) -> Plan:
    """A random valid plan of pipelines with one placement and cut; its prediction knows no lower bound."""
    dp = draw(st.integers(1, max_dp))
    chance = random.Random(draw(st.integers(0, 2**32)))
    placement = draw(placements(max_columns, max_chunks))
    shared = draw(placed_templates(placement))
    shapes: tuple[Template, ...] = (shared,)
    if dp > 1 and draw(st.booleans()):  # the same cut, with costs and links of its own
        cuts = (0, *(stage.layers[1] for stage in shared.stages))
        shapes = (shared, draw(cut_templates(cuts, "t1", placement)))
    return draw(plans_of(shapes, dp, max_microbatches, chance))


@st.composite
def unlike_placed_plans(draw: st.DrawFn, max_dp: int = 3, max_microbatches: int = 4) -> Plan:
    """A random valid plan of pipelines with a placement each, one of which may be plain, and cuts of their own."""
    dp = draw(st.integers(2, max_dp))
    chance = random.Random(draw(st.integers(0, 2**32)))
    drawn = [draw(placements(3, 3)) for _ in range(2)]
    layers = max(sum(map(len, placement)) for placement in drawn) + draw(st.integers(0, 2))
    shapes = [draw(placed_templates(placement, f"t{n}", layers)) for n, placement in enumerate(drawn)]
    if draw(st.booleans()):
        cuts = sorted({0, layers, *draw(st.sets(st.integers(1, layers - 1), max_size=3))})
        shapes.append(draw(cut_templates(tuple(cuts), "plain")))
    return draw(plans_of(tuple(shapes), dp, max_microbatches, chance))


def any_placed_plans() -> st.SearchStrategy[Plan]:
    """A random valid plan with a placement, of pipelines alike or unlike."""
    return st.one_of(placed_plans(), unlike_placed_plans())
