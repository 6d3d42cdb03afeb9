"""Random single pipelines for the scheduling figures: the shapes and slow parts of the papers' studies."""

from random import Random

from rtk.planners.scheduling.problem import Problem, home_problem
from rtk.schemas.plan import Link, Pipeline, Plan, Planner, Stage, Template, Worker

Times = tuple[float, float, float]  # F, I and W in ms


def pipeline(
    times: list[Times],
    microbatches: int,
    *,
    delays: list[float] | None = None,
    limits: list[float] | None = None,
    stash: float = 0.0,
    dp: int = 1,
) -> Plan:
    """A plan without orders: stages that hold 1 byte a micro-batch, `stash` of it until W; times and delays in ms."""
    stages = tuple(
        Stage(
            (i, i + 1),
            row[0] / 1000,
            row[1] / 1000,
            row[2] / 1000,
            activation_bytes=1.0,
            weight_stash_bytes=stash,
            memory_limit_bytes=limits[i] if limits else None,
        )
        for i, row in enumerate(times)
    )
    links = tuple(Link(delay / 1000) for delay in delays or [0.0] * (len(times) - 1))
    return Plan(
        Planner("benchmark", "1", {}),
        (Template("t0", stages, links),),
        tuple(Pipeline("t0", microbatches) for _ in range(dp)),
        "synchronous",
        tuple(Worker(k, i, "") for k in range(dp) for i in range(len(times))),
    )


def random_pipeline(chance: Random, depths: tuple[int, int], counts: tuple[int, int], *, capped: bool) -> Plan:
    """A pipeline of equal, random, straggling or head-heavy stages, up to two slow links, and limits if `capped`.

    Args:
        chance: the source of randomness.
        depths, counts: least and greatest number of stages and of micro-batches.
        capped: whether every stage has a memory limit: S activations, 1.5 S, or as 1F1B needs them, or one more.
    """
    depth, microbatches = chance.randint(*depths), chance.randint(*counts)
    delays = [0.0] * (depth - 1)
    times = _times(chance, depth)
    for _ in range(chance.choice([0, 1, 2])):
        delays[chance.randrange(depth - 1)] = float(chance.randint(10, 60))
    stash = chance.choice([0.0, 0.5, 1.0])
    limits = chance.choice(
        [
            [1.0 * depth] * depth,
            [1.5 * depth] * depth,
            [1.0 * (depth - i) for i in range(depth)],
            [1.0 * (depth - i + 1) for i in range(depth)],
        ]
    )
    return pipeline(times, microbatches, delays=delays, limits=limits if capped else None, stash=stash)


def split(plan: Plan) -> Problem:
    """The problem of a plan without orders, its backwards split."""
    return home_problem(plan, split=True)


def head_ms(depth: int, seed: int) -> list[Times]:
    """Stages of about 10 ms an operation, the first one lighter, the last 1.3 to 1.8 times as heavy, as with a head."""
    chance = Random(seed)
    weights = [0.8, *[1.0] * (depth - 2), chance.uniform(1.3, 1.8)]

    def each_ms(weight: float) -> float:
        return 10 * weight * chance.uniform(0.97, 1.03)

    return [(each_ms(weight), each_ms(weight), each_ms(weight)) for weight in weights]


def stepped_ms(depth: int, seed: int) -> list[Times]:
    """Stages whose F, I and W take 8, 10 or 12 ms each."""
    chance = Random(seed)
    steps = (8.0, 10.0, 12.0)
    return [(chance.choice(steps), chance.choice(steps), chance.choice(steps)) for _ in range(depth)]


def _times(chance: Random, depth: int) -> list[Times]:
    kind = chance.choice(["equal", "random", "straggler", "head"])
    if kind == "random":
        return [
            (float(chance.randint(5, 20)), float(chance.randint(5, 20)), float(chance.randint(5, 20)))
            for _ in range(depth)
        ]
    times: list[Times] = [(10.0, 10.0, 10.0)] * depth
    if kind == "straggler":
        times[chance.randrange(depth)] = (15.0, 15.0, 15.0)
    elif kind == "head":
        times[-1] = (13.0, 16.0, 16.0)
    return times
