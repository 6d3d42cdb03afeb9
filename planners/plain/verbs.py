"""The planners with plain arguments: what `rtk plan …` calls once files and options are read, and what Python calls.

The arguments bear the names of the options. A worker is `"1/2"` or `(1, 2)`, a link `0` (of every pipeline), `"1/0"` or
`(1, 0)` (link 0 of pipeline 1); delays and times are in seconds, sizes in bytes.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from ...schemas.blocks import HOLDERS
from ...schemas.conditions import LinkPlace, Pair, pair_of, under_conditions
from ...schemas.degrees import AUTO, AskedDegrees, Degrees, parse_degrees, print_degrees
from ...schemas.errors import InfeasibleError, InvalidInputError, remark
from ...schemas.orders import LeanSchedule, Schedule
from ...schemas.placement import refuse_placed
from ...schemas.plan import Place, Plan, name_of, parse_place
from ...schemas.profile import Profile
from ...schemas.quantities import USUAL_TIME_LIMIT_S, print_percent
from ...schemas.sharded import OptimizerShare
from ...schemas.site import Site, site_of, site_or_count
from ...schemas.text import known
from ..adaptra.plan import Technique as WarmUps
from ..adaptra.plan import plan_adaptra as adaptra_of
from ..batch.distribute import Distribution, distribute
from ..batch.distribute import Objective as BatchObjective
from ..batch.distribute import Solver as BatchSolver
from ..batch.exact import Pace
from ..choosing import SAME, Transport, parse_placement, plan_chosen
from ..degrees import choose_degrees, degrees_within, no_degree, plan_at_degrees, usual_degree
from ..greyhound.mitigate import Switching, plan_switches
from ..greyhound.mitigate import plan_topology as topology_of
from ..joint.plan import plan_joint as joint_of
from ..oobleck.reconfiguration import Reconfiguration, Reconfigurer, crew_after
from ..oobleck.templates import plan_templates as templates_of
from ..pipeline import plan_pipeline as pipeline_of
from ..placement.own_proof import ask_any_solver
from ..scheduling.solve import Effort, SolverName, with_own_proof
from ..shape import Shape
from ..slipstream.cluster import Technique, optimizer_of

if TYPE_CHECKING:
    from ...schemas.cluster import Cluster
    from ...schemas.templates import Templates


from ...schemas.cluster import Cluster
from ...schemas.fields import MOST_NODES
from ...schemas.replay import AskedJob, Costs, Fleet
from ...schemas.text import counted
from ..recovery.fault_free import FaultFree
from ..recovery.job import TrainingJob


def job_of(profile: Profile, site: Site, asked: AskedJob, costs: Costs, seed: int) -> TrainingJob:
    """What is trained, on which machines.

    Raises:
        InvalidInputError: nothing says how many pipelines there are, or nodes and pipelines do not go together.
        InfeasibleError: the machines are too few.
    """
    dp, gpus_per_node = asked.dp, asked.tensor_parallel
    if site.cluster is not None:
        dp, gpus_per_node = _pipelines(site.cluster, asked), site.cluster.gpus_per_node
    if dp is None:
        raise InvalidInputError("how many pipelines are there?", where="--dp", fix="give --dp K, or --cluster NxM")
    gpus = asked.pp * dp * asked.tensor_parallel
    if gpus > MOST_NODES * gpus_per_node:
        raise InvalidInputError(
            f"{dp} pipelines take {gpus // gpus_per_node} nodes, which are too many",
            where="--dp",
            fix=f"take pipelines for up to {MOST_NODES} nodes",
        )
    shape = Shape(asked.pp, dp, asked.microbatches, asked.memory_limit_bytes, None, asked.tensor_parallel)
    return TrainingJob(site.adapted(profile), shape, gpus_per_node, costs, asked.schedule, seed)


def degree_of_job(profile: Profile, cluster: Cluster | None, asked: AskedJob, degrees: AskedDegrees) -> int:
    """The GPUs of a worker that a job is asked for with, in a replay: equally many of each, for nodes are alike.

    Under "auto" the one at which the job trains the most micro-batches a second while nothing fails; without a cluster,
    on each of its GPUs.

    Args:
        profile: the model's costs.
        cluster: the machines; None: a node is one worker.
        asked: all else that is asked for.
        degrees: as for `plan_pipeline`.

    Raises:
        InvalidInputError: there is no such degree, or one a stage is asked for.
        InfeasibleError: under "auto", no degree can train the job.
    """
    wanted = parse_degrees(degrees)
    if wanted is None:
        return usual_degree(profile)
    if isinstance(wanted, tuple):
        raise InvalidInputError(
            "in a replay all workers have equally many GPUs",
            where=f"--tensor-parallel {print_degrees(wanted)}",
            fix="give one degree",
        )
    if wanted != AUTO:
        return wanted
    rates: dict[int, float] = {}
    shape = Shape(asked.pp, asked.dp or 1, asked.microbatches)
    for degree in degrees_within(profile, shape, cluster):
        job = job_of(profile, Site(cluster), replace(asked, tensor_parallel=degree), Costs(), 0)
        try:
            iteration_s = FaultFree(job).begin(Fleet(())).iteration_time_s
        except InfeasibleError as error:
            remark(f"tensor parallelism {degree}: {error.what}")
            continue
        assert iteration_s is not None
        rates[degree] = job.microbatches / iteration_s / (1 if cluster else job.shape.gpus)
    if not rates:
        raise no_degree(profile, shape, cluster)
    best = next(degree for degree, rate in rates.items() if rate >= max(rates.values()) * (1 - SAME))
    compared = ", ".join(f"{degree}: {print_percent(rate / rates[best])}" for degree, rate in rates.items())
    remark(f"tensor parallelism {best}; micro-batches a second, as a share of its own: {compared}")
    return best


def _pipelines(cluster: Cluster, asked: AskedJob) -> int:
    gpus, each = cluster.size, asked.pp * asked.tensor_parallel
    most = gpus // each
    if most < (asked.dp or 1):
        raise InfeasibleError(
            f"there is no room for {counted(asked.dp or 1, 'pipeline')} of {counted(each, 'GPU')} "
            f"on {counted(gpus, 'GPU')}",
            where="--cluster",
            fix=f"take at most {most} pipelines, or a larger cluster" if most else "take fewer stages or more nodes",
        )
    return asked.dp or most


WorkerName = str | Place
LinkName = int | str | LinkPlace
# The keys of a Mapping are invariant: each form by itself, and mixed.
Factors = Mapping[str, float] | Mapping[Place, float] | Mapping[WorkerName, float]
Delays = Mapping[int, float] | Mapping[str, float] | Mapping[LinkPlace, float] | Mapping[LinkName, float]
PairDelays = Mapping[Pair, float] | Mapping[tuple[Place, Place], float] | Mapping[tuple[WorkerName, WorkerName], float]


def effort_of(solver: SolverName, time_limit: float | None, seed: int, require_optimal: bool = False) -> Effort:
    """How hard a planner shall try; without a time limit an exact solver runs only where it or a proof is asked for.

    Raises:
        InvalidInputError: the time limit is not finite, or there is no such solver.
    """
    known(solver, get_args(SolverName), "--solver")
    if time_limit is None:
        time_limit = USUAL_TIME_LIMIT_S if require_optimal or solver in ("milp", "cp-sat") else 0.0
    if not math.isfinite(time_limit):
        raise InvalidInputError(
            f"'{time_limit}' cannot be read", where="--time-limit", fix="give a finite number of seconds"
        )
    return Effort(solver, time_limit, seed)


def places(workers: Iterable[WorkerName], option: str = "--failed") -> list[Place]:
    """Workers as places.

    Raises:
        InvalidInputError: a name is not of the form k/i.
    """
    return [place(worker, option) for worker in workers]


def place(worker: WorkerName, option: str) -> Place:
    """A worker as a place; raises InvalidInputError where its name is not of the form k/i."""
    return parse_place(worker, option) if isinstance(worker, str) else worker


def link_delays(delays: Delays | None) -> dict[LinkPlace, float]:
    """Delays by link, None being all pipelines.

    Raises:
        InvalidInputError: a link is not of the form I or K/I, or a delay is negative or not finite.
    """
    found: dict[LinkPlace, float] = {}
    for link, delay_s in (delays or {}).items():
        if not (math.isfinite(delay_s) and delay_s >= 0):
            raise InvalidInputError(f"{delay_s!r} is no delay", where="--link-delay", fix="a delay is 0 or more, in s")
        found[_link(link)] = delay_s
    return found


def _link(link: LinkName) -> LinkPlace:
    if isinstance(link, int):
        return None, link
    if not isinstance(link, str):
        return link
    return (None, int(link)) if link.isdecimal() else place(link, "--link-delay")


def factors(slow: Factors | None) -> dict[Place, float]:
    """Factors of slow workers by their places.

    Raises:
        InvalidInputError: a name is not of the form k/i, or a factor is not above 0.
    """
    for factor in (slow or {}).values():
        if not 0 < factor < math.inf:
            raise InvalidInputError(f"{factor!r} is no factor", where="--slow", fix="a factor is finite and above 0")
    return {place(worker, "--slow"): factor for worker, factor in (slow or {}).items()}


def conditioned(
    plan: Plan, slow: Factors | None, link_delay: Delays | None, site: Site
) -> tuple[Plan, tuple[Place, ...]]:
    """A valid plan as it is under slow workers and links, those of the machines included, and who has failed there.

    Raises:
        InvalidInputError: the plan has no such worker or link.
        InfeasibleError: the machines are too few.
    """
    there = site.troubles_of(plan)
    slowed = {name_of(place): factor for place, factor in {**there.slow, **factors(slow)}.items()}
    return under_conditions(plan, slowed, {**there.link_delay_s, **link_delays(link_delay)}), there.failed


def limits_of(memory_limit: float | Sequence[float] | None) -> Sequence[float] | None:
    """Memory limits in bytes, one for all stages or one a stage; raises InvalidInputError where one is negative."""
    limits = [memory_limit] if isinstance(memory_limit, int | float) else memory_limit
    if any(limit < 0 or not math.isfinite(limit) for limit in limits or ()):
        raise InvalidInputError(f"{memory_limit!r} is no limit", where="--memory-limit", fix="give 0 or more bytes")
    return limits


def sharing(
    shard_optimizer: bool, dp: int, technique: Technique = "adaptive", failed: Iterable[Place] = ()
) -> OptimizerShare | None:
    """What a worker is to have of its stage's optimizer; None: all of it.

    Says so where the peers are too few to gain by sharing.

    Args:
        shard_optimizer: whether they are asked to share.
        dp: pipelines.
        technique: of the plan, by which a step is undone or not.
        failed: dead workers; where none are, one of a stage may still be lost.
    """
    if not shard_optimizer:
        return None
    lost = max(Counter(stage for _, stage in failed).values(), default=1)
    if 1 < dp < HOLDERS + lost + 1:
        remark(
            f"each part of the optimizer's state has {HOLDERS} holders, so with {counted(dp - lost, 'worker')} left of "
            f"{dp} each holds all of it: memory limits gain from {HOLDERS + lost + 1} pipelines on"
        )
    return OptimizerShare(dp, is_kept=optimizer_of(technique) == "staggered", lost=lost)


def plan_pipeline(
    profile: Profile,
    *,
    pp: int,
    microbatches: int,
    schedule: Schedule = "1f1b",
    dp: int = 1,
    memory_limit: float | Sequence[float] | None = None,
    link_delay: Delays | None = None,
    cluster: "str | Cluster | None" = None,
    overlay: str | None = None,
    placement: str = "plain",
    chunks: int | None = None,
    transport: Transport = "auto",
    tensor_parallel: AskedDegrees = None,
    overlap: bool = False,
    shard_optimizer: bool = False,
) -> Plan:
    """Plan a classic schedule: GPipe, 1F1B, or zero-bubble with the backward split in I and W.

    Args:
        profile: the model's costs.
        pp: stages of a pipeline.
        microbatches: of each pipeline.
        schedule: "gpipe", "1f1b" or "zero-bubble".
        dp: pipelines.
        memory_limit: activation bytes of a worker: one, or one a stage; None: what the profile's device leaves.
        link_delay: delays of links in s; others have what the profile's network takes.
        cluster: the machines, as `read_cluster` gives or takes them; what they say of memory and network counts.
        overlay: the YAML file of what has failed or is slow there.
        placement: "plain", one stage a worker; "loop" or "v", several; "best" of these, or "best:4" with up to 4.
        chunks: virtual stages of each worker, 2 if None; under "best" at most so many.
        transport: how messages will be sent: under "best" it counts that a "direct" one holds its worker.
        tensor_parallel: GPUs of a worker: one degree, one a stage, or "auto", the profile's best; None: its least.
        overlap: whether workers may run a forward and a full backward side by side, as fast as the profile says; they
            do where that makes the iteration shorter.
        shard_optimizer: whether peers share the optimizer's state, each part on two of them: each steps its share, and
            limits are what that leaves once a peer is lost.

    Raises:
        InvalidInputError: a link, limit or degree that the shape or the profile does not have, or the machines cannot
            be read; here also: a worker has failed or is slow there, the schedule is not for the placement, or the
            profile does not say what passes side by side take.
        InfeasibleError: there are fewer layers than stages, or a memory limit admits no such schedule.
    """
    known(schedule, get_args(Schedule), "--schedule")
    known(transport, get_args(Transport), "--transport")
    choice, site = parse_placement(placement, chunks), site_of(cluster, overlay)
    shape, adapted = (
        Shape(
            pp,
            dp,
            microbatches,
            limits_of(memory_limit),
            overlap=overlap or None,
            share=sharing(shard_optimizer, dp),
        ),
        site.adapted(profile),
    )
    delays = link_delays(link_delay)

    def made(degrees: Degrees) -> Plan:
        there = site.delays_alone(pp, dp, degrees).link_delay_s
        own = replace(shape, link_delay_s={**there, **delays}, tensor_parallel=degrees)
        return plan_chosen(own, choice, lambda one: pipeline_of(adapted, one, schedule), transport)

    degrees = choose_degrees(adapted, choice.shapes(shape)[0], tensor_parallel, site.cluster)
    return site.signed(plan_at_degrees(degrees, made), profile)


def plan_adaptra(
    profile: Profile,
    *,
    pp: int,
    microbatches: int,
    technique: WarmUps = "best",
    dp: int = 1,
    memory_limit: float | Sequence[float] | None = None,
    link_delay: Delays | None = None,
    solver: SolverName = "auto",
    time_limit: float | None = None,
    seed: int = 0,
    cluster: "str | Cluster | None" = None,
    overlay: str | None = None,
    placement: str = "plain",
    chunks: int | None = None,
    transport: Transport = "auto",
    tensor_parallel: AskedDegrees = None,
    shard_optimizer: bool = False,
) -> Plan:
    """Plan warm-ups that absorb slow links (Adaptra).

    Args:
        profile, pp, microbatches, dp, memory_limit, link_delay, cluster, overlay: as for `plan_pipeline`.
        placement, chunks, transport, tensor_parallel, shard_optimizer: as for `plan_pipeline`; placements other than
            plain are for technique "best".
        technique: "initial" orders, made before the delays; "adapted" to them; or the "best" found for them.
        solver: "auto", "heuristic", "milp" or "cp-sat"; one that is named also proves by itself.
        time_limit: seconds of exact solvers; None: 60 if one is named, else 0.
        seed: of every random choice.

    Returns:
        A checked plan; its options say which delay each link tolerates before its bubbles cascade, if it is plain.

    Raises:
        InvalidInputError: a link or limit that the shape does not have, or the technique takes no solver or placement.
        InfeasibleError: a memory limit does not admit a single micro-batch, or there are fewer layers than stages.
    """
    known(technique, get_args(WarmUps), "--technique")
    known(transport, get_args(Transport), "--transport")
    if technique != "best" and solver in ("milp", "cp-sat"):
        raise InvalidInputError(f"--technique {technique} takes no solver", where="--solver", fix="take best")
    effort, site = effort_of(solver, time_limit, seed), site_of(cluster, overlay)
    choice, delays, adapted = parse_placement(placement, chunks), link_delays(link_delay), site.adapted(profile)
    shape = Shape(pp, dp, microbatches, limits_of(memory_limit), share=sharing(shard_optimizer, dp))
    degrees = choose_degrees(adapted, choice.shapes(shape)[0], tensor_parallel, site.cluster)
    share = replace(effort, time_limit_s=effort.time_limit_s / len(degrees.tried) / len(choice.shapes(shape)))

    def made(each: Degrees) -> Plan:
        there = site.delays_alone(pp, dp, each).link_delay_s
        own = replace(shape, link_delay_s={**there, **delays}, tensor_parallel=each)
        return plan_chosen(own, choice, lambda one: adaptra_of(adapted, one, technique, share), transport)

    return site.signed(with_own_proof(lambda: plan_at_degrees(degrees, made), effort, ask_any_solver), profile)


def plan_joint(
    profile: Profile,
    *,
    pp: int,
    microbatches: int,
    dp: int = 1,
    failed: Iterable[WorkerName] = (),
    technique: Technique = "staggered",
    slow: Factors | None = None,
    link_delay: Delays | None = None,
    memory_limit: float | Sequence[float] | None = None,
    solver: SolverName = "auto",
    time_limit: float | None = None,
    seed: int = 0,
    cluster: "str | Cluster | None" = None,
    overlay: str | None = None,
    placement: str = "plain",
    chunks: int | None = None,
    tensor_parallel: AskedDegrees = None,
    shard_optimizer: bool = False,
) -> Plan:
    """Plan for dead workers, slow workers and slow links at once.

    Args:
        profile, pp, microbatches, dp, memory_limit, link_delay, cluster, overlay: as for `plan_pipeline`.
        failed: dead workers, beside those of the overlay.
        technique: SlipStream's: "adaptive", "decoupled" or "staggered".
        placement, chunks, tensor_parallel, shard_optimizer: as for `plan_pipeline`.
        slow: how many times as long slow workers take.
        solver, time_limit, seed: as for `plan_adaptra`.

    Returns:
        A checked plan whose bound holds for every routing; its options say what was decided.

    Raises:
        InvalidInputError: a worker, link or limit that the shape does not have, or a worker named dead twice.
        InfeasibleError: a stage has no live worker, a memory limit does not admit a single micro-batch, or there are
            fewer layers than stages.
    """
    known(technique, get_args(Technique), "--technique")
    effort, site = effort_of(solver, time_limit, seed), site_of(cluster, overlay)
    delays, factor, named = link_delays(link_delay), factors(slow), places(failed)
    choice, adapted = parse_placement(placement, chunks), site.adapted(profile)
    share_of_stage = sharing(shard_optimizer, dp, technique, named)
    shape = Shape(pp, dp, microbatches, limits_of(memory_limit), share=share_of_stage)
    degrees = choose_degrees(adapted, choice.shapes(shape)[0], tensor_parallel, site.cluster)
    share = replace(effort, time_limit_s=effort.time_limit_s / len(degrees.tried) / len(choice.shapes(shape)))

    def made(each: Degrees) -> Plan:
        there = site.troubles(pp, dp, each)
        own = replace(shape, link_delay_s={**there.link_delay_s, **delays}, tensor_parallel=each)
        dead = [*named, *(place for place in there.failed if place not in named)]
        slowed = {**there.slow, **factor}
        return plan_chosen(own, choice, lambda one: joint_of(adapted, one, dead, slowed, share, technique))

    return site.signed(with_own_proof(lambda: plan_at_degrees(degrees, made), effort, ask_any_solver), profile)


def plan_topology(
    profile: Profile,
    *,
    pp: int,
    microbatches: int,
    dp: int = 1,
    slow: Factors | None = None,
    slow_link: PairDelays | None = None,
    schedule: LeanSchedule = "1f1b",
    memory_limit: float | Sequence[float] | None = None,
    seed: int = 0,
    tensor_parallel: AskedDegrees = None,
    shard_optimizer: bool = False,
) -> Plan:
    """Plan who takes which place when workers or links are slow, and uneven pipelines where these help (Greyhound).

    Args:
        profile, pp, microbatches, dp, memory_limit, tensor_parallel, shard_optimizer: as for `plan_pipeline`.
        slow: how many times as long slow workers take, wherever they sit.
        slow_link: seconds that a message between two workers takes, wherever they sit.
        schedule: "1f1b" or "zero-bubble".
        seed: of every random choice.

    Returns:
        The fastest of four plans: as it is, uneven micro-batches (S2), other places (S3), both; `assignment` in its
        options says who moves.

    Raises:
        InvalidInputError: a worker or limit that the shape does not have.
        InfeasibleError: there are fewer layers than stages, or a memory limit admits no such schedule.
    """
    known(schedule, get_args(LeanSchedule), "--schedule")
    named = {name_of(worker): factor for worker, factor in factors(slow).items()}
    links: dict[Pair, float] = {}
    for ends, delay_s in (slow_link or {}).items():
        one, other = (name_of(end) for end in places(ends, "--slow-link"))
        links[pair_of(one, other)] = delay_s
    shape = Shape(pp, dp, microbatches, limits_of(memory_limit), share=sharing(shard_optimizer, dp))

    def made(degrees: Degrees) -> Plan:
        own = replace(shape, tensor_parallel=degrees)
        own.require_one_degree("workers may change places")
        return topology_of(profile, own, named, links, schedule, seed)

    return plan_at_degrees(choose_degrees(profile, shape, tensor_parallel), made)


def plan_templates(
    profile: Profile,
    *,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    fault_tolerance: int = 1,
    microbatches: int | None = None,
    largest: int | None = None,
    memory_limit: float | None = None,
    gpu: str | None = None,
    cluster: "str | Cluster | None" = None,
    overlay: str | None = None,
) -> "Templates":
    """Plan pipeline templates: for each number of nodes a pipeline may have, the fastest stages (Oobleck).

    Args:
        profile: the model's costs, at all tensor-parallel degrees that are to be used.
        nodes: that are there at the start, N; None: those of the cluster.
        gpus_per_node: of each, M; None: those of the cluster, else 1.
        fault_tolerance: f: there are f + 1 pipelines or more at all times.
        microbatches: of each pipeline; four a stage if None.
        largest: nodes of the largest pipeline; what f of the smallest leave if None.
        memory_limit: bytes of a GPU, for parameters and state, too; the profile's device has it if None.
        gpu: the kind of GPU, whose memory counts where the profile has none.
        cluster, overlay: as for `plan_pipeline`; nodes with failed GPUs are taken off.

    Raises:
        InvalidInputError: numbers that contradict each other, nothing says how many nodes there are, or something is
            slow there.
        InfeasibleError: the model does not fit on so many nodes.
    """
    site = site_or_count(cluster, nodes, gpus_per_node, gpu, overlay)
    count, gpus = site.live_nodes()
    adapted = site.adapted(profile)
    made = templates_of(adapted, count, gpus, fault_tolerance, microbatches, largest, memory_limit)
    return site.signed(made, profile)


def plan_reconfigure(
    plan: Plan, *, failed: Iterable[WorkerName] = (), join: int = 0, pays_within: int = 100
) -> Reconfiguration:
    """Plan for the nodes that are left or join: pipelines shrink, borrow nodes or merge, and least is copied (Oobleck).

    Args:
        plan: the running one, valid, made by `plan_oobleck`.
        failed: dead workers; the whole node of each is gone.
        join: so many nodes come.
        pays_within: take new pipelines if their copies pay within so many iterations; 0: change no more than must be.

    Returns:
        The next plan, what was done to the pipelines, and who copies which layers from whom.

    Raises:
        InvalidInputError: nothing has changed, or the plan has no such worker.
        InfeasibleError: the nodes that are left are too few.
    """
    lost = places(failed)
    if not lost and not join:
        raise InvalidInputError("nothing has changed", where="--failed or --join", fix="name who is lost, or who comes")
    refuse_placed(plan, "rtk plan reconfigure")
    reconfigurer, crew = Reconfigurer(plan), crew_after(plan, lost, join)
    reconfigurer.require_joining(len(crew), join)
    return reconfigurer.next_of(plan, crew, pays_within)


def plan_batch(
    times: Sequence[float],
    *,
    microbatches: int,
    multiple_of: int = 1,
    objective: BatchObjective = "min-max",
    solver: BatchSolver = "exact",
    at_least: int | Sequence[int] | None = None,
    at_most: int | Sequence[int] | None = None,
    time_limit: float = USUAL_TIME_LIMIT_S,
) -> Distribution:
    """Distribute micro-batches over pipelines of unlike speed; each gets at least one.

    Args:
        times: seconds that a micro-batch takes, of each pipeline.
        microbatches: of all pipelines.
        multiple_of: each pipeline gets a multiple of it; for 1F1B its stages.
        objective: "min-max", least time of the slowest, or "variance", least variance of all times.
        solver: "exact", or "pyomo" (HiGHS, and SCIP for the variance), which also takes bounds.
        at_least, at_most: micro-batches: one number, or one a pipeline.
        time_limit: seconds of pyomo's solvers.

    Raises:
        InvalidInputError: a time or bound that makes no sense.
        InfeasibleError: no distribution keeps the bounds.
    """
    paces = [Pace(0.0, time_s) for time_s in times]
    low, high = ([bound] * len(paces) if isinstance(bound, int) else bound for bound in (at_least, at_most))
    return distribute(paces, microbatches, multiple_of, objective, solver, low, high, time_limit_s=time_limit)


def plan_mitigate(
    costs: Mapping[str, float], *, left: Mapping[str, float] | None = None, revert_cost: float = 0.0
) -> Switching:
    """Plan when to switch from doing nothing (S1) to micro-batches (S2), places (S3) and a restart (S4) (Greyhound).

    Args:
        costs: seconds that strategies take: `{"S2": 5, "S3": 60, "S4": 1200}`, or some of these.
        left: share of the slow-down left under each, as far as it is known.
        revert_cost: seconds to undo S3 on relief, added to its cost.

    Raises:
        InvalidInputError: an unknown strategy, or a number that makes no sense.
    """
    return plan_switches(costs, left, revert_cost)
