"""Running plans of alike pipelines, as `rtk plan pipeline`, `adaptra` and `slipstream` make them, and who dies next."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import strategies as st

from rtk.planners.adaptra.plan import plan_adaptra
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.scheduling import solve as scheduling_solve
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape
from rtk.planners.slipstream import slot_search
from rtk.planners.slipstream.cluster import AtlasRequest, opening
from rtk.planners.slipstream.replanner import Replanner
from rtk.schemas.plan import Place, Plan
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, Profile

from .equal_pipelines import WHOLE_S

Times = tuple[float, float, float]
SLIPSTREAM = ("adaptive", "decoupled", "staggered")
MAKERS = ("gpipe", "1f1b", "zero-bubble", "initial", "adapted", *SLIPSTREAM)


@contextmanager
def short_search() -> Iterator[None]:
    """What is searched where slots leave a gap ends soon: for what must hold whether it is found or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduling_solve, "BUDGET_OPERATIONS", 1_000)
        patch.setattr(slot_search, "BUDGET_OPERATIONS", 1_000)
        yield


def profile(times: list[Times], bandwidth_bytes_per_s: float | None = 1.0) -> Profile:
    """Layers of 1 byte a micro-batch, half of it stash, and of 2 bytes of state; no all-reduce."""
    layers = (
        Layer((LayerCost(*row),), parameter_bytes=1.0, state_bytes=1.0, activation_bytes=1.0, weight_stash_bytes=0.5)
        for row in times
    )
    return Profile(tuple(layers), network=Network(inter_node=Connection(0.0, bandwidth_bytes_per_s)))


def made_by(maker: str, costs: Profile, shape: Shape, failed: frozenset[Place] = frozenset(), **more: object) -> Plan:
    """A plan by a schedule of `rtk plan pipeline`, or a technique of Adaptra or SlipStream.

    Args:
        maker: one of MAKERS.
        costs: the model's.
        shape: of the pipelines.
        failed: dead workers, under SlipStream's techniques only.
        more: of SlipStream's request.
    """
    if maker in SLIPSTREAM:
        asked = AtlasRequest(shape, maker, effort=Effort("heuristic"), **more)  # type: ignore[arg-type]
        return Replanner(opening(costs, asked), len(failed)).in_place(failed)
    if maker in ("initial", "adapted"):
        return plan_adaptra(costs, shape, maker, Effort("heuristic"))  # type: ignore[arg-type]
    return plan_pipeline(costs, shape, maker)  # type: ignore[arg-type]


@st.composite
def running_plans(draw: st.DrawFn, *, makers: tuple[str, ...] = MAKERS, unlike: bool = True) -> Plan:
    """Plans of 2-4 stages x 1-3 pipelines: by any maker, sometimes with limits, dead and slow workers, slow links."""
    pp, dp = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    times = draw(st.lists(st.tuples(WHOLE_S, WHOLE_S, WHOLE_S), min_size=pp, max_size=pp))
    maker = draw(st.sampled_from(makers))
    links = st.tuples(st.integers(0, dp - 1), st.integers(0, pp - 2))
    delays = draw(st.dictionaries(links, WHOLE_S, max_size=2)) if unlike and draw(st.booleans()) else {}
    microbatches = draw(st.integers(1, 4))
    limits = draw(st.sampled_from([None, None, [float(microbatches)]]))
    shape = Shape(pp, dp, microbatches, limits, {(k, i): delay_s for (k, i), delay_s in delays.items()})
    if maker not in SLIPSTREAM:
        return made_by(maker, profile(times), shape)
    places = st.tuples(st.integers(0, dp - 1), st.integers(0, pp - 1))
    slow = draw(st.dictionaries(places, st.sampled_from([1.0, 1.5, 3.0]), max_size=2)) if unlike else {}
    dead = frozenset(draw(st.sets(places, max_size=2)))
    dead = dead if bearable(dead, pp, dp) else frozenset()
    return made_by(maker, profile(times), shape, dead, slowdown=slow)


def bearable(failed: frozenset[Place], pp: int, dp: int) -> bool:
    """Whether each of `pp` stages keeps one of its `dp` workers."""
    return all(sum(stage == i for _, stage in failed) < dp for i in range(pp))


def dead_places(plan: Plan) -> frozenset[Place]:
    """Where a plan has no worker."""
    return frozenset((worker.pipeline, worker.stage) for worker in plan.workers if worker.failed)
