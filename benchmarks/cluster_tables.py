"""Tables that others have published of iterations on real clusters, beside what rtk computes: a part of clusters.py.

Each file of `benchmarks/measured/` that has a column `chunks` is such a table (its README says where it is from). Every
row is computed as a user would: a profile of the model's sizes and of the program that the table is of, cut and planned
as 1F1B, or as the best of forwards and backwards on a loop where workers have several chunks. Of each table:

* `told`: nothing is fitted. GPUs reach what rtk's catalogue says; networks are the machines' by name.
* `left_out`: one number, a factor of the whole, is fitted on the other models of the table (median).
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rtk.planners.pipeline import scheduled
from rtk.planners.placement.pipelines import with_placed_pipelines
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape, template_of
from rtk.profilers.analytic.costs import DecoderShape, MicrobatchShape, block_work
from rtk.profilers.analytic.estimate import analytic_profile, rates_of
from rtk.profilers.analytic.software import Software
from rtk.schemas.gpus import gpu
from rtk.schemas.machines import machine
from rtk.schemas.plan import Pipeline, Plan, Planner, Worker
from rtk.schemas.profile import DataType, Layer, Network, Profile

DATA = Path(__file__).parent / "measured"


@dataclass(frozen=True, slots=True)
class ToldRun:
    """A row of a table: what was run, and how long an iteration took."""

    model: str
    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    sequence_length: int
    vocabulary: int
    microbatch_size: int
    tensor_parallel: int
    pipeline_parallel: int
    chunks: int
    data_parallel: int
    global_batch: int
    recomputation: str
    sequence_parallel: str
    iteration_s: float

    @property
    def gpus(self) -> int:
        """Of the whole job."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def microbatches(self) -> int:
        """Of a pipeline."""
        return self.global_batch // self.microbatch_size // self.data_parallel

    def shape(self) -> Shape:
        """The job's."""
        return Shape(
            self.pipeline_parallel,
            self.data_parallel,
            self.microbatches,
            tensor_parallel=self.tensor_parallel,
            placement="loop" if self.chunks > 1 else "plain",
            chunks=self.chunks,
        )


def gpt_form(
    blocks: int, width: int, heads: int, key_value_heads: int, vocabulary: int, positions: int
) -> DecoderShape:
    """GPT-3's form: learned positions, biases, one matrix for embedding and head."""
    return DecoderShape(
        blocks=blocks,
        width=width,
        heads=heads,
        key_value_heads=key_value_heads,
        head_size=width // heads,
        inner=4 * width,
        vocabulary=vocabulary,
        positions=positions,
        position_rows=positions,
        is_fused=True,
        has_query_bias=True,
        has_output_bias=True,
        has_inner_bias=True,
        is_tied=True,
    )


def gpt(row: ToldRun) -> DecoderShape:
    """The GPT of a row."""
    return gpt_form(row.layers, row.hidden, row.heads, row.key_value_heads, row.vocabulary, row.sequence_length)


def nemotron(row: ToldRun) -> DecoderShape:
    """Nemotron-4's: rotary positions, squared ReLU, groups of queries, no biases, a head of its own."""
    return replace(
        gpt(row),
        position_rows=0,
        activation="relu",
        has_query_bias=False,
        has_output_bias=False,
        has_inner_bias=False,
        is_tied=False,
    )


def nemo(row: ToldRun) -> DecoderShape:
    """The form of each of NeMo's models."""
    return nemotron(row) if row.model.startswith("nemotron") else gpt(row)


@dataclass(frozen=True, slots=True)
class ToldTable:
    """A table, and what its source says of all rows.

    Attributes:
        file: of `benchmarks/measured/`.
        machine: the nodes, as `schemas/machines.py` calls them.
        dtype: of the training.
        software: the program.
        form: of the models.
        assumed: what the source does not say, and is assumed; None: nothing.
    """

    file: str
    machine: str
    dtype: DataType
    software: Software
    form: Callable[[ToldRun], DecoderShape]
    assumed: str | None = None

    @property
    def name(self) -> str:
        """Of the table."""
        return self.file.removesuffix(".csv")

    def rows(self) -> list[ToldRun]:
        """Of the file."""
        with (DATA / self.file).open() as file:
            return [_row(line) for line in csv.DictReader(file)]

    def network(self) -> Network:
        """Of the cluster: peers sit side by side, as Megatron-LM seats them."""
        kind = machine(self.machine, "a table's machine")
        return replace(kind.network("peers"), intra_node=gpu(kind.gpu).intra_node)


MEGATRON = Software(attention="unfused", dropout=True, gradients="fp32", sustained=True)
# Since 2022 sums of I run beside weight gradients, in NeMo too (`Software.hidden_sums`).
MEGATRON_2022 = replace(MEGATRON, hidden_sums=True)
# NeMo 24.09: fused attention, gradients of 16 bits, added by the products themselves.
NEMO = Software(sustained=True, hidden_sums=True)

TABLES = (
    ToldTable("megatron-sc21.csv", "dgx-a100", "fp16", MEGATRON, gpt),
    ToldTable("megatron-recomputation.csv", "dgx-a100", "fp16", MEGATRON_2022, gpt),
    ToldTable("nemo-h100.csv", "dgx-h100", "bf16", NEMO, nemo),
    ToldTable("mt-nlg.csv", "dgx-a100", "bf16", MEGATRON, gpt, "micro-batches of one, 1F1B"),
    ToldTable(
        "megascale-megatron.csv", "nd-a100-v4", "bf16", MEGATRON_2022, gpt,
        "micro-batches of one, attention alone computed again, eight cards of 200 Gb/s a node",
    ),
)  # fmt: skip


def _row(line: Mapping[str, str]) -> ToldRun:
    words = {name: line[name] for name in ("model", "recomputation", "sequence_parallel")}
    others = (name for name in ToldRun.__dataclass_fields__ if name not in (*words, "iteration_s"))
    fields: dict[str, Any] = {**words, **{name: int(line[name]) for name in others}}
    return ToldRun(**fields, iteration_s=float(line["iteration_s"]))


def profile_of(table: ToldTable, row: ToldRun) -> Profile:
    """A row's profile; where attention alone was computed again, I of a block has its forward pass before it."""
    kind = machine(table.machine, "a table's machine")
    software = replace(table.software, sequence_parallel=row.sequence_parallel == "yes")
    device, batch = gpu(kind.gpu), MicrobatchShape(row.microbatch_size, row.sequence_length, table.dtype, software)
    form, rates = table.form(row), rates_of(device, table.dtype, software=software)
    profile = analytic_profile(
        row.model,
        form,
        batch,
        device,
        rates,
        is_checkpointing=row.recomputation == "full",
        degrees=(row.tensor_parallel,),
    )
    again_s = rates.attention_s(block_work(form, batch, row.tensor_parallel).forward)
    if row.recomputation == "selective":
        embedding, *blocks, head = profile.layers
        profile = replace(profile, layers=(embedding, *(_later(block, again_s) for block in blocks), head))
    return replace(profile, network=table.network(), device=replace(profile.device, memory_bytes=None))


def _later(block: Layer, more_s: float) -> Layer:
    """A block whose I takes longer."""
    (cost,) = block.costs
    full_s = None if cost.backward_s is None else cost.backward_s + more_s
    longer = replace(cost, backward_input_s=cost.backward_input_s + more_s, backward_s=full_s)
    return replace(block, costs=(longer,))


def one_pipeline(profile: Profile, shape: Shape) -> Plan:
    """A plan without orders of one pipeline of a shape, for all are alike; its sums are those of all."""
    template = template_of(profile, shape)
    workers = tuple(Worker(0, column, "") for column in range(len(template.columns)))
    pipeline = Pipeline(template.name, shape.microbatches)
    return Plan(Planner("pipeline", "", {}), (template,), (pipeline,), "synchronous", workers)


def predicted_s(table: ToldTable, row: ToldRun) -> float:
    """An iteration of a row."""
    one = one_pipeline(profile_of(table, row), row.shape())
    if row.chunks == 1:
        return evaluate(scheduled(one, "1f1b")).makespan_s
    plan = with_placed_pipelines(one, split=False, effort=Effort("heuristic"))
    assert plan.prediction is not None
    return plan.prediction.iteration_time_s


def of_table(table: ToldTable) -> dict[str, Any]:
    """The figures of a table."""
    told = [(row, predicted_s(table, row)) for row in table.rows()]
    left_out = [calibrated_s(mine_s, [one for one in told if one[0].model != row.model]) for row, mine_s in told]
    known = [(mine_s, row.iteration_s) for mine_s, (row, _) in zip(left_out, told, strict=True) if mine_s is not None]
    rows = [
        {
            "model": row.model,
            "gpus": row.gpus,
            "recomputation": row.recomputation,
            "measured_s": row.iteration_s,
            "told_s": mine_s,
            "left_out_s": other_s,
        }
        for (row, mine_s), other_s in zip(told, left_out, strict=True)
    ]
    return {
        "assumed": table.assumed,
        "told": errors([(mine_s, row.iteration_s) for row, mine_s in told]),
        "left_out": errors(known) if known else None,
        "rows": rows,
    }


def calibrated_s(mine_s: float, others: Sequence[tuple[ToldRun, float]]) -> float | None:
    """An iteration, times what others took over what was computed of them, in the median; None without any."""
    return mine_s * median(row.iteration_s / told_s for row, told_s in others) if others else None


def errors(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Of predicted and measured values: the median ratio, and errors."""
    ratios = [mine / theirs for mine, theirs in pairs]
    off = sorted(abs(ratio - 1) for ratio in ratios)
    return {
        "rows": len(ratios),
        "ratio": median(ratios),
        "median": median(off),
        "nine_in_ten": off[min(len(off) - 1, int(0.9 * len(off)))],
        "worst": off[-1],
    }


def tables() -> dict[str, Any]:
    """All tables."""
    return {table.name: of_table(table) for table in TABLES}
