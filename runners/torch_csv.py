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
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, cast

from ..schemas.errors import InvalidInputError
from ..schemas.orders import Kind, Operation, print_operation
from ..schemas.placement import refuse_placed
from ..schemas.plan import Placement, Plan, plain_placement

# Nine digits are more than any file counts to, and fit wherever the numbers go next.
_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_OPERATION = re.compile(rf"({_NUMBER})([FIWB])({_NUMBER})")
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
    _refuse_what_is_no_order(plan)
    return _written(_cells_of(order, own) for order, own in zip(_orders(plan), _pairs(plan), strict=True))


def to_torch_comms_csv(plan: Plan) -> str:
    """Write a plan's orders as a `compute_comms` CSV: with a SEND and a RECV for every message.

    A SEND stands behind the operation that made the message; between two stages of one rank, where the runtime hands
    it over, there is none. The RECV is announced at the same moment of a run at the plan's times, or before the
    operation that runs then. So any two ranks name the messages between them in one order, as NCCL wants, which would
    hang otherwise. Torch's own lowering does likewise, at one operation a rank and turn, whatever these last.

    Every row begins with UNSHARD and ends with RESHARD and REDUCE_GRAD, of all its stages. They are not for
    `fully_shard` alone: torch 2.13 divides the gradients by the micro-batches in REDUCE_GRAD, and without it trains
    wrongly and says nothing.

    Args:
        plan: a valid plan.

    Returns:
        One line a rank.

    Raises:
        InvalidInputError: as `to_torch_csv`.
    """
    _refuse_what_is_no_order(plan)
    orders, slowdowns = _orders(plan), [worker.slowdown or 1.0 for worker in plan.workers]
    template = plan.template_of(0)
    stages, rank_of = template.stages, template.column_of
    rows = [[f"{stage}UNSHARD" for stage in held] for held in template.columns]
    free_s = [0.0] * len(orders)
    arrived_s: dict[TorchToken, float] = {}  # by the operation that waits for it
    done = [0] * len(orders)

    def end_s(rank: int) -> float | None:
        """When a rank's next operation ends, or that it has none that can run."""
        if done[rank] == len(orders[rank]):
            return None
        one = orders[rank][done[rank]]
        ready_s = arrived_s.get(one, None if _waits(one, len(stages)) else 0.0)
        if ready_s is None:
            return None
        return max(free_s[rank], ready_s) + stages[one.stage].duration_s(one.kind) * slowdowns[rank]

    for _ in range(sum(map(len, orders))):
        ends_s = {rank: end for rank in range(len(orders)) if (end := end_s(rank)) is not None}
        rank = min(ends_s, key=lambda one: (ends_s[one], one))
        one = orders[rank][done[rank]]
        done[rank] += 1
        free_s[rank] = ends_s[rank]
        rows[rank].append(str(one))
        stage, kind, microbatch = one
        to, way, waiting = (stage + 1, "F", "F") if kind == "F" else (stage - 1, "B", "IB")
        if kind == "W" or not 0 <= to < len(stages):
            continue
        arrived_s |= {TorchToken(to, cast(Kind, other), microbatch): free_s[rank] for other in waiting}
        if rank_of[to] != rank:
            rows[rank].append(f"{stage}SEND_{way}{microbatch}")
            rows[rank_of[to]].append(f"{to}RECV_{way}{microbatch}")
    for row, held in zip(rows, template.columns, strict=True):
        row += [f"{stage}{last}" for stage in held for last in ("RESHARD", "REDUCE_GRAD")]
    return _written(rows)


def splits_backward(plan: Plan) -> bool:
    """Whether an exported order has I and W, which `fully_shard` does not go well with (`FULLY_SHARD`)."""
    return any(one.kind == "I" for order in _orders(plan) for one in order)


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
        InvalidInputError: there are no blocks, or workers hold several virtual stages.
    """
    refuse_placed(plan, "rtk's export for torchtitan")
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
        "memory limits": any(stage.memory_limit_bytes is not None for stage in stages)
        or any(template.memory_limits_bytes is not None for template in plan.templates),
        "slowdowns": any(worker.slowdown is not None for worker in plan.workers),
        "the number of pipelines": len(plan.pipelines) > 1,
        "the prediction": plan.prediction is not None,
        "what pairs of passes take": plan.may_pair,
    }
    return [name for name, is_said in said.items() if is_said]


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
        for cell, column in _cells(line):
            where = f"{source}, line {rank + 1} column {column}"
            found = _parse_cell(cell, where)
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
    orders = (_as_operations(row, several=len(held) > 1) for row, held in zip(rows, placement, strict=True))
    return TorchOrders(tuple(orders), None if is_plain else placement, tuple(map(frozenset, pairs)))


def _as_operations(row: Sequence[TorchToken], several: bool) -> tuple[Operation, ...]:
    return tuple(Operation(kind, 0, microbatch, stage if several else None) for stage, kind, microbatch in row)


def _orders(plan: Plan, pipeline: int = 0) -> list[list[TorchToken]]:
    """The order of each rank of a pipeline."""
    return [
        [TorchToken(plan.virtual_stage(worker, one), one.kind, one.microbatch) for one in worker.operations()]
        for worker in plan.workers
        if worker.pipeline == pipeline
    ]


def _pairs(plan: Plan, pipeline: int = 0) -> list[frozenset[int]]:
    """The pairs in each rank's order."""
    return [worker.pairs() for worker in plan.workers if worker.pipeline == pipeline]


def _waits(one: TorchToken, stages: int) -> bool:
    """Whether an operation takes what another stage has made."""
    return one.stage > 0 if one.kind == "F" else one.kind != "W" and one.stage < stages - 1


def _cells_of(order: Sequence[TorchToken], pairs: Collection[int]) -> Iterator[str]:
    """The cells of an order, two operations in one for each pair."""
    for place, one in enumerate(order):
        if place in pairs:
            yield f"({one};{order[place + 1]})OVERLAP_F_B"
        elif place - 1 not in pairs:
            yield str(one)


def _written(rows: Iterable[Iterable[str]]) -> str:
    return "".join(",".join(row) + "\n" for row in rows)


def _refuse_what_is_no_order(plan: Plan) -> None:
    if plan.optimizer == "staggered":
        raise _cannot_carry("a staggered optimizer", "/optimizer")
    for number, worker in enumerate(plan.workers):
        if worker.failed:
            raise _cannot_carry(f"a failed worker ({worker.name})", f"/workers/{number}/failed")
        rerouted = next((op for op in worker.operations() if op.pipeline != worker.pipeline), None)
        if rerouted is not None:
            what = f"a re-routed micro-batch ({print_operation(rerouted, worker.pipeline)} on worker {worker.name})"
            raise _cannot_carry(what, f"/workers/{number}/order")
    first = _orders(plan), _pairs(plan)
    for k in range(1, len(plan.pipelines)):
        if (_orders(plan, k), _pairs(plan, k)) != first:
            raise _cannot_carry(f"pipelines whose orders differ ({k} from 0)", f"/pipelines/{k}")


def _cannot_carry(what: str, where: str) -> InvalidInputError:
    return InvalidInputError(
        f"a torch CSV cannot carry {what}", where=where, fix="export a plan of equal pipelines without failures"
    )


def _cells(line: str) -> Iterator[tuple[str, int]]:
    """The cells of a line that are not empty, with their columns counted from 1."""
    column = 1
    for cell in line.split(","):
        text = cell.strip()
        if text:
            yield text, column + cell.index(text)
        column += len(cell) + 1


def _parse_cell(cell: str, where: str) -> list[TorchToken]:
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
            fix="give a file of torch's compute_only format, with the operations F, I, W and B",
        )
    fix = "write the stage, F, I, W or B, and the micro-batch: 2F0"
    raise InvalidInputError(f"{cell!r} is not an operation", where=where, fix=fix)
