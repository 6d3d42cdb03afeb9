"""Alike pipelines whose workers hold several virtual stages, some of them dead; without orders."""

from collections.abc import Collection

from hypothesis import strategies as st

from rtk.schemas.plan import Link, Pipeline, Place, Placement, Plan, Planner, Stage, Template, Worker

from ..placed_plans import placements

BY_HAND = Planner("by hand", "1", {"technique": "decoupled"})


def placed_grid(
    placement: Placement,
    dp: int,
    microbatches: int,
    dead: Collection[Place] = (),
    limit: float | None = None,
    *,
    staggered: bool = True,
    times: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> Plan:
    """Virtual stages of one layer and one activation each, half of it stash; links take no time.

    Args:
        placement: of every pipeline.
        dp: pipelines.
        microbatches: of each.
        dead: places of dead workers.
        limit: of each worker, in activations of a virtual stage.
        staggered: whether the period counts.
        times: of F, I and W, in s.
    """
    count = sum(map(len, placement))
    stages = (Stage((v, v + 1), *times, activation_bytes=1.0, weight_stash_bytes=0.5) for v in range(count))
    limits = None if limit is None else (limit,) * len(placement)
    places = [(k, c) for k in range(dp) for c in range(len(placement))]
    return Plan(
        planner=BY_HAND,
        templates=(Template("t0", tuple(stages), (Link(),) * (count - 1), placement, limits),),
        pipelines=(Pipeline("t0", microbatches),) * dp,
        optimizer="staggered" if staggered else "synchronous",
        workers=tuple(Worker(*one, failed=True) if one in dead else Worker(*one, "") for one in places),
    )


@st.composite
def placed_grids(draw: st.DrawFn, max_microbatches: int = 4) -> Plan:
    """Up to three columns and pipelines, any placement, a live worker in each column, any limit that they can keep."""
    placement = draw(placements(3, 3))
    dp = draw(st.integers(2, 3))
    dead = {(k, c) for c in range(len(placement)) for k in draw(st.sets(st.integers(0, dp - 1), max_size=dp - 1))}
    most = max(map(len, placement))
    return placed_grid(
        placement,
        dp,
        draw(st.integers(1, max_microbatches)),
        dead,
        draw(st.one_of(st.none(), st.integers(most, 3 * most))),
        staggered=draw(st.booleans()),
        times=draw(st.tuples(*(st.sampled_from([0.0, 0.5, 1.0, 2.0]) for _ in range(3)))),
    )
