"""Torch's form of an order: the CSV files of torch.distributed.pipelining, in their `compute_only` form.

Row i is rank i, which holds stage i; its cells are operations `<stage><OP><micro-batch>`, such as `2F0`, in order of
execution; an empty cell is a bubble; there is no header. Torch's runtime adds the communication itself when it loads
one (`_PipelineScheduleRuntime._load_csv`), and torchtitan takes one as `pipeline_parallel_schedule_csv`.

Such a file belongs to the ranks of one pipeline and holds orders, nothing else. A plan whose meaning lies in more than
one order a stage cannot be written; what merely describes the orders (times, limits, predictions) is left out, and
`not_carried` names it.

Torch's own parser reads `0F1xyz` as `0F1`; this one refuses it.
"""

import re
from collections.abc import Iterator
from typing import cast

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
    rows = [worker.operations() for worker in plan.workers if worker.pipeline == 0]
    return "".join(",".join(f"{stage}{op.kind}{op.microbatch}" for op in row) + "\n" for stage, row in enumerate(rows))


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
