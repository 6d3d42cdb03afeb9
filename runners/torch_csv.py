"""Torch's form of an order: the CSV files of torch.distributed.pipelining.

Row i is rank i, which holds stage i, or several stages, of which the rows say which; its cells are operations
`<stage><OP><micro-batch>`, such as `2F0`, in order of execution; an empty cell is a bubble; there is no header. Pairs
that torch overlaps, `(5F7;2B3)OVERLAP_F_B`, are those of plans, where they are a forward and a full backward. A
`compute_only` file holds operations, and torch's runtime adds the communication itself when it loads one
(`_PipelineScheduleRuntime._load_csv`); torchtitan takes one as `pipeline_parallel_schedule_csv`. A `compute_comms` file
says the communication as well; here it has the operations of a pair one after the other.

Such a file belongs to the ranks of one pipeline and holds orders, nothing else. A plan whose meaning lies in more than
one order a column cannot be written; what merely describes the orders (times, limits, predictions) is left out, and
`not_carried` names it.

Torch's own parser reads `0F1xyz` as `0F1`; this one refuses it.
"""

import re
import reprlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from ..schemas.errors import InvalidInputError
from ..schemas.files import read_bytes, source_of
from ..schemas.orders import Kind, Operation, print_operation
from ..schemas.plan import Placement, Plan, plain_placement

# Nine digits are more than any file counts to, and fit wherever the numbers go next.
NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_OPERATION = re.compile(rf"({NUMBER})([FIWB])({NUMBER})")
_PAIR = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
# What torch knows beside operations.
_FOREIGN = re.compile(r"[0-9]+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)[0-9]*")


class TorchToken(NamedTuple):
    """An operation as torch writes it: of a stage, and of a micro-batch of the file's one pipeline."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        """Torch's token."""
        return f"{self.stage}{self.kind}{self.microbatch}"


@dataclass(frozen=True)
class TorchOrders:
    """What a `compute_only` file says.

    Attributes:
        orders: of each rank, as a worker of pipeline 0 has them.
        placement: the stages of each rank; None where rank i holds stage i alone.
        pairs: of each rank, the places of the operations that are to overlap with the one behind them.
    """

    orders: tuple[tuple[Operation, ...], ...]
    placement: Placement | None
    pairs: tuple[frozenset[int], ...]

    @property
    def may_be_kept(self) -> bool:
        """Whether each pair is a forward, and behind it a full backward: others a plan has one after the other."""
        ranks = zip(self.orders, self.pairs, strict=True)
        return all(order[at].kind == "F" and order[at + 1].kind == "B" for order, own in ranks for at in own)


def to_torch_csv(plan: Plan) -> str:
    """Write a plan's orders as a `compute_only` CSV.

    Torch runs every pipeline of a data-parallel job from the same file, so pipelines with equal orders are written
    once, whatever their number. Stage 0 runs differently in torch than in the plan: its runtime treats I as nothing
    there and computes the whole backward in W, unless the stage is given a `dw_builder`.

    Args:
        plan: a valid plan (schemas/check.py).

    Returns:
        One line a rank, which is a column.

    Raises:
        InvalidInputError: a worker has failed, a micro-batch is executed outside its pipeline, pipelines differ in
            their orders, or the optimizer is staggered: a CSV cannot say so.
    """
    refuse_what_is_no_order(plan)
    return as_rows(_cells_of(order, own) for order, own in zip(orders_of(plan), _pairs(plan), strict=True))


def splits_backward(plan: Plan) -> bool:
    """Whether an exported order has I and W, which `fully_shard` does not go well with (`FULLY_SHARD`)."""
    return any(one.kind == "I" for order in orders_of(plan) for one in order)


# Seen with torch 2.13 and torchtitan 0.3.0, eight micro-batches of its debug Llama: a grad norm of 0.8640 for 0.8681,
# and no message. Not in every job: benchmarks/titan_equal.py has one that is right to the last bit.
FULLY_SHARD = (
    "these orders split the backward pass (I, W), and torch has been seen to compute wrong gradients for them under "
    "fully_shard, silently: run them without it, which torchtitan's own parallelize functions always apply "
    "(rtk.torchtitan.pipelining_fn does without), or export a plan of --schedule 1f1b"
)


def not_carried(plan: Plan) -> list[str]:
    """What a plan says beside its orders, in words: `to_torch_csv` leaves it out."""
    links = [link for template in plan.templates for link in template.links]
    links += [link for pipeline in plan.pipelines for link in pipeline.links or ()]
    stages = [stage for template in plan.templates for stage in template.stages]
    said = {
        "the cut into layers": True,
        "costs": True,
        "link delays": any(link.delay_s for link in links),
        "tensor parallelism": any(stage.tensor_parallel > 1 for stage in stages),
        "the sharded optimizer": plan.shards_optimizer,
        "memory limits": any(stage.memory_limit_bytes is not None for stage in stages)
        or any(template.memory_limits_bytes is not None for template in plan.templates),
        "slowdowns": any(worker.slowdown is not None for worker in plan.workers),
        "the number of pipelines": len(plan.pipelines) > 1,
        "the prediction": plan.prediction is not None,
        "what pairs of passes take": plan.may_pair,
    }
    return [name for name, is_said in said.items() if is_said]


def text_of_file(path: str) -> str:
    """The text of a file in another program's form; `-` is standard input.

    Raises:
        InvalidInputError: it cannot be read, or is not UTF-8.
    """
    data = read_bytes(path)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"the file is not UTF-8 text (byte {error.start})", where=source_of(path)) from error


def from_torch_csv(text: str, source: str) -> TorchOrders:
    """Read a `compute_only` CSV.

    What the orders mean (completeness, deadlocks) is the checker's to judge.

    Args:
        text: the file's text; cells may have spaces around them.
        source: the file's name, for errors.

    Raises:
        InvalidInputError: a cell is no operation, or is one that a `compute_only` file does not hold, or a stage is on
            two ranks, or on none; says the line and column. Or a row holds no operation at all.
    """
    rank_of: dict[int, int] = {}
    first_at: dict[int, str] = {}  # where each stage stands first
    rows: list[list[TorchToken]] = []
    pairs: list[set[int]] = []
    for rank, line in enumerate(text.rstrip().split("\n")):
        rows.append([])
        pairs.append(set())
        for cell, column in cells_with_columns(line):
            where = f"{source}, line {rank + 1} column {column}"
            found = parse_cell(cell, where)
            if len(found) > 1:
                pairs[-1].add(len(rows[-1]))
            for one in found:
                if rank_of.setdefault(one.stage, rank) != rank:
                    raise InvalidInputError(
                        f"{cell!r} is of stage {one.stage}, in the row of rank {rank}, but rank {rank_of[one.stage]} "
                        "has it",
                        where=where,
                        fix="let each stage be on one rank",
                    )
                first_at.setdefault(one.stage, where)
            rows[-1] += found
        if not rows[-1]:
            raise InvalidInputError(
                f"rank {rank} has no operation", where=f"{source}, line {rank + 1}", fix="give every rank its order"
            )
    missing = next((stage for stage in range(len(rank_of)) if stage not in rank_of), None)
    if missing is not None:
        last = max(rank_of)
        what = f"there is an operation of stage {last}, and none of stage {missing} on any rank"
        raise InvalidInputError(what, where=first_at[last], fix="number the stages from 0, each on one rank")
    placement = tuple(tuple(sorted({one.stage for one in row})) for row in rows)
    is_plain = placement == plain_placement(len(rows))
    orders = (
        tuple(Operation(kind, 0, microbatch, stage if (len(held) > 1) else None) for stage, kind, microbatch in row)
        for row, held in zip(rows, placement, strict=True)
    )
    return TorchOrders(tuple(orders), None if is_plain else placement, tuple(map(frozenset, pairs)))


def orders_of(plan: Plan, pipeline: int = 0) -> list[list[TorchToken]]:
    """The order of each rank of a pipeline."""
    return [
        [TorchToken(plan.virtual_stage(worker, one), one.kind, one.microbatch) for one in worker.operations()]
        for worker in plan.workers
        if worker.pipeline == pipeline
    ]


def _pairs(plan: Plan, pipeline: int = 0) -> list[frozenset[int]]:
    """The pairs in each rank's order."""
    return [worker.pairs() for worker in plan.workers if worker.pipeline == pipeline]


def _cells_of(order: Sequence[TorchToken], pairs: Collection[int]) -> Iterator[str]:
    """The cells of an order, two operations in one for each pair."""
    for place, one in enumerate(order):
        if place in pairs:
            yield f"({one};{order[place + 1]})OVERLAP_F_B"
        elif place - 1 not in pairs:
            yield str(one)


def as_rows(rows: Iterable[Iterable[str]]) -> str:
    """A file's text, of the cells of each rank."""
    return "".join(",".join(row) + "\n" for row in rows)


def refuse_what_is_no_order(plan: Plan) -> None:
    """Raise InvalidInputError for what a plan means beyond one order a column, as of `to_torch_csv`."""
    if plan.optimizer == "staggered":
        raise _cannot_carry("a staggered optimizer", "/optimizer")
    for number, worker in enumerate(plan.workers):
        if worker.failed:
            raise _cannot_carry(f"a failed worker ({worker.name})", f"/workers/{number}/failed")
        rerouted = next((op for op in worker.operations() if op.pipeline != worker.pipeline), None)
        if rerouted is not None:
            what = f"a re-routed micro-batch ({print_operation(rerouted, worker.pipeline)} on worker {worker.name})"
            raise _cannot_carry(what, f"/workers/{number}/order")
    first = orders_of(plan), _pairs(plan)
    for k in range(1, len(plan.pipelines)):
        if (orders_of(plan, k), _pairs(plan, k)) != first:
            raise _cannot_carry(f"pipelines whose orders differ ({k} from 0)", f"/pipelines/{k}")


def _cannot_carry(what: str, where: str) -> InvalidInputError:
    return InvalidInputError(
        f"a torch CSV cannot carry {what}", where=where, fix="export a plan of equal pipelines without failures"
    )


def cells_with_columns(line: str) -> Iterator[tuple[str, int]]:
    """The cells of a line that are not empty, with their columns counted from 1."""
    column = 1
    for cell in line.split(","):
        text = cell.strip()
        if text:
            yield text, column + cell.index(text)
        column += len(cell) + 1


def parse_cell(cell: str, where: str) -> list[TorchToken]:
    """The operation of a cell that is not empty, or the two of a pair."""
    pair = _PAIR.fullmatch(cell)
    matches = [_OPERATION.fullmatch(one.strip()) for one in (pair[1].split(";") if pair else [cell])]
    found = [TorchToken(int(m[1]), cast(Kind, m[2]), int(m[3])) for m in matches if m is not None]
    if len(found) == len(matches):
        return found
    foreign = _FOREIGN.fullmatch(cell)
    if foreign is not None:
        raise InvalidInputError(
            f"{cell!r} is of the kind {foreign[1]}, which a plan does not hold",
            where=where,
            fix="give torch's compute_only format, with the operations F, I, W and B, or say --from torch-comms",
        )
    fix = "write the stage, F, I, W or B, and the micro-batch: 2F0"
    raise InvalidInputError(f"{reprlib.repr(cell)} is not an operation", where=where, fix=fix)
