"""Torch's form of an order: the CSV files of torch.distributed.pipelining.

Row i is rank i, which holds stage i; its cells are operations `<stage><OP><micro-batch>`, such as `2F0`, in order of
execution; an empty cell is a bubble; there is no header. A `compute_only` file holds operations, and torch's runtime
adds the communication itself when it loads one (`_PipelineScheduleRuntime._load_csv`); torchtitan takes one as
`pipeline_parallel_schedule_csv`. A `compute_comms` file says the communication as well.

Such a file belongs to the ranks of one pipeline and holds orders, nothing else. A plan whose meaning lies in more than
one order a stage cannot be written; what merely describes the orders (times, limits, predictions) is left out, and
`not_carried` names it.

Torch's own parser reads `0F1xyz` as `0F1`; this one refuses it.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, cast

from ..schemas.errors import InvalidInputError
from ..schemas.orders import Kind, print_operation
from ..schemas.plan import Plan

# Nine digits are more than any file counts to, and fit wherever the numbers go next.
_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_OPERATION = re.compile(rf"({_NUMBER})([FIWB])({_NUMBER})")
# What torch knows beside the four operations.
_FOREIGN = re.compile(r"[0-9]+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)[0-9]*|\(.*\)(OVERLAP_F_B)")


def to_torch_csv(plan: Plan) -> str:
    """Write a plan's orders as a `compute_only` CSV.

    Torch runs every pipeline of a data-parallel job from the same file, so pipelines with equal orders are written
    once, whatever their number. Stage 0 runs differently in torch than in the plan: its runtime treats I as nothing
    there and computes the whole backward in W, unless the stage is given a `dw_builder`.

    Args:
        plan: a valid plan (schemas/check.py).

    Returns:
        One line a stage.

    Raises:
        InvalidInputError: a worker has failed, a micro-batch is executed outside its pipeline, pipelines differ in
            their orders, or the optimizer is staggered: a CSV cannot say so.
    """
    _refuse_what_is_no_order(plan)
    return _written(
        [f"{stage}{kind}{microbatch}" for kind, microbatch in order] for stage, order in enumerate(_orders(plan))
    )


def to_torch_comms_csv(plan: Plan) -> str:
    """Write a plan's orders as a `compute_comms` CSV: with a SEND and a RECV for every message.

    A SEND stands behind the operation that made the message. The RECV is announced at the same moment of a run at the
    plan's times, or before the operation that runs then. So any two ranks name the messages between them in one order,
    as NCCL wants, which would hang otherwise. Torch's own lowering does likewise, at one operation a rank and turn,
    whatever these last.

    Every row begins with UNSHARD and ends with RESHARD and REDUCE_GRAD. They are not for `fully_shard` alone: torch
    2.13 divides the gradients by the micro-batches in REDUCE_GRAD, and without it trains wrongly and says nothing.

    Args:
        plan: a valid plan.

    Returns:
        One line a stage.

    Raises:
        InvalidInputError: as `to_torch_csv`.
    """
    _refuse_what_is_no_order(plan)
    orders, slowdowns = _orders(plan), [worker.slowdown or 1.0 for worker in plan.workers]
    stages = plan.template_of(0).stages
    rows = [[f"{stage}UNSHARD"] for stage in range(len(orders))]
    free_s = [0.0] * len(orders)
    arrived_s: dict[tuple[str, int, int], float] = {}  # kind of the operation that waits for it, stage, micro-batch
    done = [0] * len(orders)

    def end_s(stage: int) -> float | None:
        """When a stage's next operation ends, or that it has none that can run."""
        if done[stage] == len(orders[stage]):
            return None
        kind, microbatch = orders[stage][done[stage]]
        ready_s = arrived_s.get((kind, stage, microbatch), None if _waits(kind, stage, len(orders)) else 0.0)
        if ready_s is None:
            return None
        return max(free_s[stage], ready_s) + stages[stage].duration_s(kind) * slowdowns[stage]

    for _ in range(sum(map(len, orders))):
        ends_s = {stage: end for stage in range(len(orders)) if (end := end_s(stage)) is not None}
        stage = min(ends_s, key=lambda one: (ends_s[one], one))
        kind, microbatch = orders[stage][done[stage]]
        done[stage] += 1
        free_s[stage] = ends_s[stage]
        rows[stage].append(f"{stage}{kind}{microbatch}")
        to, way, waiting = (stage + 1, "F", "F") if kind == "F" else (stage - 1, "B", "IB")
        if kind != "W" and 0 <= to < len(orders):
            rows[stage].append(f"{stage}SEND_{way}{microbatch}")
            rows[to].append(f"{to}RECV_{way}{microbatch}")
            arrived_s |= {(one, to, microbatch): free_s[stage] for one in waiting}
    return _written([*row, f"{stage}RESHARD", f"{stage}REDUCE_GRAD"] for stage, row in enumerate(rows))


def splits_backward(plan: Plan) -> bool:
    """Whether an exported order has I and W, which `fully_shard` does not go well with (`FULLY_SHARD`)."""
    return any(kind == "I" for order in _orders(plan) for kind, _ in order)


# Seen with torch 2.13 and torchtitan 0.3.0, eight micro-batches of its debug Llama: a grad norm of 0.8640 for 0.8681,
# and no message. Not in every job: benchmarks/titan_equal.py has one that is right to the last bit.
FULLY_SHARD = (
    "these orders split the backward pass (I, W), and torch has been seen to compute wrong gradients for them under "
    "fully_shard, silently: run them without it, which torchtitan's own parallelize functions always apply "
    "(rtk.torchtitan.pipelining_fn does without), or export a plan of --schedule 1f1b"
)


def torchtitan_parts(plan: Plan) -> list[list[str]]:
    """What of a torchtitan decoder each stage holds, as its `module_fqns_per_model_part` says it.

    Args:
        plan: of a model whose first layer is the embedding, whose last one is the head, and the rest blocks.

    Returns:
        The modules' names, by stage.

    Raises:
        InvalidInputError: there are no blocks.
    """
    stages = plan.template_of(0).stages
    blocks = stages[-1].layers[1] - 2
    if blocks < 1:
        raise InvalidInputError(
            f"a model of {blocks + 2} layers has no block between an embedding and a head",
            where="/templates/0/stages",
            fix="plan from a profile of an embedding, blocks and a head, as `rtk profile` makes them",
        )
    names = [["tok_embeddings"], *([f"layers.{block}"] for block in range(blocks)), ["norm", "lm_head"]]
    return [list(chain.from_iterable(names[slice(*stage.layers)])) for stage in stages]


def torchtitan_parallelism(plan: Plan, csv_file: str) -> dict[str, Any]:
    """What torchtitan's `ParallelismConfig` is to be given for a plan, by its names.

    Args:
        plan: a plan that `to_torch_csv` takes.
        csv_file: where its orders will be.

    Returns:
        Keyword arguments of `ParallelismConfig`.
    """
    return {
        "pipeline_parallel_degree": len(plan.template_of(0).stages),
        "data_parallel_replicate_degree": len(plan.pipelines),
        "data_parallel_shard_degree": 1,
        "pipeline_parallel_schedule": "1F1B",  # only says that a rank holds one stage
        "pipeline_parallel_schedule_csv": csv_file,
        "module_fqns_per_model_part": torchtitan_parts(plan),
    }


def not_carried(plan: Plan) -> list[str]:
    """What a plan says beside its orders, in words: `to_torch_csv` leaves it out."""
    links = [link for template in plan.templates for link in template.links]
    links += [link for pipeline in plan.pipelines for link in pipeline.links or ()]
    stages = [stage for template in plan.templates for stage in template.stages]
    said = {
        "the cut into layers": True,
        "costs": True,
        "link delays": any(link.delay_s for link in links),
        "memory limits": any(stage.memory_limit_bytes is not None for stage in stages),
        "slowdowns": any(worker.slowdown is not None for worker in plan.workers),
        "the number of pipelines": len(plan.pipelines) > 1,
        "the prediction": plan.prediction is not None,
    }
    return [name for name, is_said in said.items() if is_said]


def from_torch_csv(text: str, source: str) -> list[list[tuple[Kind, int]]]:
    """Read a `compute_only` CSV.

    What the orders mean (completeness, deadlocks) is the checker's to judge.

    Args:
        text: the file's text; cells may have spaces around them.
        source: the file's name, for errors.

    Returns:
        The order of each stage: pairs of kind and micro-batch.

    Raises:
        InvalidInputError: a cell is no operation, or is one that a `compute_only` file does not hold, or is of another
            stage than its row; says the line and column. Or a row holds no operation at all.
    """
    lines = text.rstrip().split("\n")
    return [_parse_row(line, stage, source) for stage, line in enumerate(lines)]


def _orders(plan: Plan) -> list[list[tuple[Kind, int]]]:
    """The order of each stage of pipeline 0."""
    return [[(op.kind, op.microbatch) for op in one.operations()] for one in plan.workers if one.pipeline == 0]


def _waits(kind: Kind, stage: int, stages: int) -> bool:
    """Whether an operation takes a message from another stage."""
    return stage > 0 if kind == "F" else kind != "W" and stage < stages - 1


def _written(rows: Iterable[Iterable[str]]) -> str:
    return "".join(",".join(row) + "\n" for row in rows)


def _refuse_what_is_no_order(plan: Plan) -> None:
    if plan.optimizer == "staggered":
        raise _cannot_carry("a staggered optimizer", "/optimizer")
    orders: list[list[list[tuple[Kind, int]]]] = [[] for _ in plan.pipelines]
    for number, worker in enumerate(plan.workers):
        if worker.failed:
            raise _cannot_carry(f"a failed worker ({worker.name})", f"/workers/{number}/failed")
        operations = worker.operations()
        rerouted = next((op for op in operations if op.pipeline != worker.pipeline), None)
        if rerouted is not None:
            what = f"a re-routed micro-batch ({print_operation(rerouted, worker.pipeline)} on worker {worker.name})"
            raise _cannot_carry(what, f"/workers/{number}/order")
        orders[worker.pipeline].append([(op.kind, op.microbatch) for op in operations])
    for k, found in enumerate(orders):
        if found != orders[0]:
            raise _cannot_carry(f"pipelines whose orders differ ({k} from 0)", f"/pipelines/{k}")


def _cannot_carry(what: str, where: str) -> InvalidInputError:
    return InvalidInputError(
        f"a torch CSV cannot carry {what}", where=where, fix="export a plan of equal pipelines without failures"
    )


def _parse_row(line: str, stage: int, source: str) -> list[tuple[Kind, int]]:
    order = []
    for cell, column in _cells(line):
        where = f"{source}, line {stage + 1} column {column}"
        found, kind, microbatch = _parse_cell(cell, where)
        if found != stage:
            raise InvalidInputError(
                f"{cell!r} is of stage {found}, in the row of rank {stage}",
                where=where,
                fix="rank i holds stage i alone; schedules with several stages a rank are not read yet",
            )
        order.append((kind, microbatch))
    if not order:
        raise InvalidInputError(
            f"rank {stage} has no operation", where=f"{source}, line {stage + 1}", fix="give every rank its order"
        )
    return order


def _cells(line: str) -> Iterator[tuple[str, int]]:
    """The cells of a line that are not empty, with their columns counted from 1."""
    column = 1
    for cell in line.split(","):
        text = cell.strip()
        if text:
            yield text, column + cell.index(text)
        column += len(cell) + 1


def _parse_cell(cell: str, where: str) -> tuple[int, Kind, int]:
    """(stage, kind, micro-batch) of a cell that is not empty."""
    match = _OPERATION.fullmatch(cell)
    if match is not None:
        stage, kind, microbatch = match.groups()
        return int(stage), cast(Kind, kind), int(microbatch)
    foreign = _FOREIGN.fullmatch(cell)
    if foreign is not None:
        raise InvalidInputError(
            f"{cell!r} is of the kind {foreign[1] or foreign[2]}, which a plan does not hold",
            where=where,
            fix="give a file of torch's compute_only format, with the operations F, I, W and B",
        )
    fix = "write the stage, F, I, W or B, and the micro-batch: 2F0"
    raise InvalidInputError(f"{cell!r} is not an operation", where=where, fix=fix)
