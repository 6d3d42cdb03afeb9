"""Clusters for SlipStream's figures: equal or unlike stages, made ready to plan for failures, and failures drawn."""

from collections.abc import Sequence
from random import Random

from rtk.benchmarks.instances import Times
from rtk.planners.scheduling.problem import Problem, home_problem
from rtk.planners.shape import Shape
from rtk.planners.slipstream.cluster import AtlasRequest, Technique, effort_of, opening, plan_with_failures
from rtk.planners.slipstream.replanner import Replanner, Units
from rtk.planners.slipstream.rerouting import ReroutedOrders, reroute_alike
from rtk.schemas.conditions import LinkPlace
from rtk.schemas.profile import Layer, LayerCost, Profile

TECHNIQUES: tuple[Technique, ...] = ("adaptive", "decoupled", "staggered")
STAGE_MS = (10.0, 10.0, 10.0)  # F, I and W
MS = 1e-3


def profile_of(times_ms: Sequence[Times], stash: float = 0.0) -> Profile:
    """A model of one layer a stage, each holding 1 byte a micro-batch, `stash` of it until W; times in ms."""
    return Profile(
        tuple(
            Layer(
                (LayerCost(f * MS, i * MS, w * MS),),
                parameter_bytes=1.0,
                activation_bytes=1.0,
                weight_stash_bytes=stash,
            )
            for f, i, w in times_ms
        )
    )


def unlike_ms(depth: int, seed: int) -> list[Times]:
    """Stages whose F, I and W take 8 to 12 ms each."""
    chance = Random(seed)
    return [(chance.uniform(8, 12), chance.uniform(8, 12), chance.uniform(8, 12)) for _ in range(depth)]


def replanner(
    pp: int,
    dp: int,
    microbatches: int,
    technique: Technique,
    *,
    most: int | None = None,
    times_ms: Sequence[Times] | None = None,
    delay_ms: float = 0.0,
    limit: float | Sequence[float] | None = None,
    stash: float = 0.0,
) -> Replanner:
    """A job made ready, its stages equal (10 ms an operation) unless said.

    Args:
        pp, dp, microbatches: its shape.
        technique: SlipStream's.
        most: failed workers to come; a quarter of all unless said.
        times_ms: F, I and W of each stage.
        delay_ms: of every link.
        limit: activations that a worker can hold, or a worker of each stage.
        stash: share of an activation held until W.
    """
    delays: dict[LinkPlace, float] = {(None, i): delay_ms * MS for i in range(pp - 1)} if delay_ms else {}
    limits = [limit] if isinstance(limit, float | int) else limit
    shape = Shape(pp, dp, microbatches, limits, delays)
    profile = profile_of([STAGE_MS] * pp if times_ms is None else times_ms, stash)
    return Replanner(opening(profile, AtlasRequest(shape, technique)), quarter(pp, dp) if most is None else most)


def quarter(pp: int, dp: int) -> int:
    """A quarter of all workers, at least one."""
    return max(1, pp * dp // 4)


def random_units(pp: int, dp: int, failures: int, seed: int) -> Units | None:
    """So many dead workers at random places; None where they leave a stage without a live worker."""
    places = Random(seed).sample([(k, i) for k in range(dp) for i in range(pp)], failures)
    most = max(sum(place[1] == i for place in places) for i in range(pp))
    return None if most == dp else frozenset(places)


def home_of(job: Replanner, units: Units) -> Problem:
    """The job's problem with dead workers, before anything is re-routed; units are single workers."""
    return home_problem(plan_with_failures(job.common, units), split=job.common.split)


def rerouted(job: Replanner, units: Units) -> ReroutedOrders:
    """What the planner makes of failures in place, without writing a plan out."""
    dead = job.grid.stage_failures(job.grid.column_failures(units))
    return reroute_alike(home_of(job, units), job.search, dead, effort_of(job.common))


def in_place_s(job: Replanner, units: Units) -> float:
    """What an iteration takes with failures in place, in s: by slots alone where these reach their bound."""
    found = job.search.look(job.grid.stage_failures(job.grid.column_failures(units)))
    return found.value_s if found.optimal else rerouted(job, units).value_s
