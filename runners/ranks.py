"""The processes of a job: one for each GPU of each live worker, and what they are called."""

import os

from ..schemas.errors import InvalidInputError
from ..schemas.plan import Plan, rank_name, worker_of


def degree_of(plan: Plan) -> int:
    """On how many GPUs the workers of a job are: the most, where pipelines or stages are on unlike numbers.

    Raises:
        InvalidInputError: a worker has several stages, not all of them on as many.
    """
    for worker in plan.workers:
        degrees = sorted({stage.tensor_parallel for stage in plan.stages_of(worker)})
        if len(degrees) > 1:
            raise InvalidInputError(
                f"the stages of worker {worker.name} are on {' and '.join(map(str, degrees))} GPUs; it is one group of "
                "processes",
                where=f"/templates/{plan.pipelines[worker.pipeline].template}/stages",
                fix=f"plan with one degree for the stages of a worker, such as --tensor-parallel {degrees[0]}",
            )
    return max(map(plan.gpus_of, plan.workers))


def has_unlike_degrees(plan: Plan) -> bool:
    """Whether some workers are on more GPUs than others."""
    return len(set(map(plan.gpus_of, plan.workers))) > 1


def processes_of(plan: Plan) -> tuple[str, ...]:
    """The names of a job's processes, `k/i`, or `k/i:r` where a worker is on several GPUs: that of rank 0 first."""
    return tuple(rank_name(worker.name, rank, plan.gpus_of(worker)) for worker, rank in plan.live_ranks())


def name_of_rank(plan: Plan, worker: str | None) -> str:
    """The name of this process: as given, else that of number RANK, or SLURM_PROCID, of the plan's live ones.

    Raises:
        InvalidInputError: there is neither, or the plan has no such worker, or rank of it.
    """
    if worker is not None:
        require_process(plan, worker)
        return worker
    live, rank = processes_of(plan), os.environ.get("RANK", os.environ.get("SLURM_PROCID"))
    if rank is None or not rank.isdecimal() or int(rank) >= len(live):
        workers = counted_processes(plan)
        raise InvalidInputError(
            f"this is process {rank} of a job, the plan has {workers}" if rank else "nothing says which worker this is",
            where="RANK",
            fix=f"give --worker {_kind_of_name(degree_of(plan))}, or start {len(live)} "
            f"{'workers' if degree_of(plan) == 1 else 'processes'} with torchrun",
        )
    return live[int(rank)]


def counted_processes(plan: Plan) -> str:
    """How many processes a job of a plan has, in words: `4 live workers`, or `4 live workers on 2 GPUs each`."""
    workers, degree = len(plan.live_workers()), degree_of(plan)
    if has_unlike_degrees(plan):
        return f"{workers} live workers on {len(plan.live_ranks())} GPUs"
    each = f" on {degree} GPUs {'each' if workers > 1 else ''}".rstrip() if degree > 1 else ""
    return f"{workers} live workers{each}"


def require_process(plan: Plan, name: str) -> None:
    """Raise InvalidInputError unless a plan has a process of that name; a dead worker's is one, too."""
    found = next((one for one in plan.workers if one.name == worker_of(name)), None)
    if found is None:
        kind = _kind_of_name(degree_of(plan))
        raise InvalidInputError(
            f"the plan has no worker {worker_of(name)}", where="--worker", fix=f"name one as {kind}"
        )
    ranks = plan.gpus_of(found)
    if ranks == 1 and name != found.name:
        raise InvalidInputError(
            f"worker {found.name} is on 1 GPU, and {name} is not the name of its process",
            where="--worker",
            fix=f"name it as {_kind_of_name(ranks)}: {found.name}",
        )
    names = [rank_name(found.name, rank, ranks) for rank in range(ranks)]
    if name not in names:
        raise InvalidInputError(
            f"worker {found.name} is {ranks} processes, one on each of its GPUs, and {name} is none of them",
            where="--worker",
            fix=f"name one as {_kind_of_name(ranks)}, from {names[0]} to {names[-1]}",
        )


def _kind_of_name(degree: int) -> str:
    return "k/i" if degree == 1 else "k/i:r"
