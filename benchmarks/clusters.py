"""Computed iteration times against those of real clusters: errors, ranks, and the shape that would have been taken.

`python benchmarks/clusters.py [--only a100|v100|tables|picks] [--chart FILE.svg] [-o FILE]`, on `benchmarks/measured/`.
Every row is computed as a user would: a profile of the model's sizes, cut and planned as 1F1B. Of the A100:

* `before`: the program is taken to be rtk's own, the network one card a GPU. Nothing is fitted.
* `told`: the program and the cluster are as its owners describe them. Nothing is fitted.
* `fitted`: four constants are fitted on all rows: `matrix` (time of matrix products, over computed), `node` (what a
  node's network gives to sums of gradients, bytes/s), `gap` (between kernels, s), and `early` (days before 02-25, on
  other machines).
* `left_out`: each model (layers and width) is predicted by constants that were fitted on all other models.
* `memory`: what a GPU holds at most, over what was noted. Nothing is fitted.
* `picks`: what `rtk plan best` takes for the model with most rows, among all shapes, and what was measured of it.

Of tables that others published (`cluster_tables.py`): with nothing fitted to them, and with one number of other models.

Of the V100's logs: before, as told, and calibrated by the timers of the smallest job (`--calibrate`); DeepSpeed's also
by iterations of MT-NLG, whose pipeline was DeepSpeed's.

Errors are |predicted / measured - 1|. `rank` is Spearman's correlation among shapes on days alike, by time a sample
(some had batches of 2,016 samples, others of 2,048), `loss` what the shape with the shortest prediction took longer
than the fastest of them. Days are alike from 25 February on: repeated shapes then differ by 0.1 %, and what changed on
the 28th is told. `models` are shapes of the same layers, width and heads, `one_day` those of them that were measured on
one day, `widths` those of the same layers and width, whatever their heads: these are unlike models, of which nobody
chooses one for its time.
"""

import argparse
import csv
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from rtk.benchmarks.cluster_tables import TABLES, errors, gpt_form, one_pipeline, tables
from rtk.benchmarks.clusters_chart import write_chart
from rtk.benchmarks.common import write_result
from rtk.planners.gpu_memory import memory_of
from rtk.planners.pipeline import plan_pipeline, scheduled
from rtk.planners.scheduling.assemble import with_prediction
from rtk.planners.shape import Shape
from rtk.profilers.analytic.costs import DecoderShape, MicrobatchShape
from rtk.profilers.analytic.estimate import (
    UNCALIBRATED,
    Calibration,
    Correction,
    Corrections,
    Learned,
    analytic_profile,
    rates_of,
)
from rtk.profilers.analytic.megatron_log import read_megatron_log
from rtk.profilers.analytic.observed import ObservedRun, learn
from rtk.profilers.analytic.software import Software
from rtk.schemas.cluster import Cluster
from rtk.schemas.gpus import INTER_NODE, Gpu, gpu
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Connection, DataType, Network, NodeNetwork, Profile
from rtk.shaping import plan_best

DATA = Path(__file__).parent / "measured"
ALIKE_FROM = "02-25"  # BigScience's machines changed between 24 and 25 February
BFLOAT_FROM = "02-28"  # from then on bfloat16, gradients summed in 32 bits (inferred: memory and time grew at once)
OMNI_PATH = Connection(30e-6, 5.06e9)  # what a ring over four nodes reached in the cluster's own bench
# Jean Zay: what a ring over 16 nodes reached in its own bench; half of an A100's NVLink is assumed within a node.
JEAN_ZAY = Network(Connection(3.4e-6, 120e9), Connection(30e-6, 7e9), NodeNetwork(4, 7e9, "peers"))


@dataclass(frozen=True, slots=True)
class MeasuredShape:
    """A row: what was run, and how long an iteration took."""

    layers: int
    hidden: int
    heads: int
    sequence_length: int
    vocabulary: int
    microbatch_size: int
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    global_batch: int
    iteration_s: float
    memory_bytes: float | None
    date: str

    @property
    def model(self) -> tuple[int, int]:
        """What is left out of a fit together."""
        return self.layers, self.hidden

    @property
    def microbatches(self) -> int:
        """Of a pipeline."""
        return self.global_batch // self.microbatch_size // self.data_parallel

    @property
    def is_plausible(self) -> bool:
        """Whether it can be right: that of batch 1568 took as long as one of 2048."""
        return self.global_batch != 1568


@dataclass(frozen=True, slots=True)
class Constants:
    """What is fitted."""

    matrix: float = 1.0
    node: float = 9.2e9
    gap: float = 47e-6
    early: float = 1.0


def read_rows(name: str) -> list[MeasuredShape]:
    """The rows of a file of `benchmarks/measured/` that can be right."""
    with (DATA / name).open() as file:
        rows = [_row(line) for line in csv.DictReader(file)]
    return [row for row in rows if row.is_plausible]


def _row(line: Mapping[str, str]) -> MeasuredShape:
    numbers = ("iteration_s", "memory_bytes", "date")
    sizes = {name: int(line[name]) for name in MeasuredShape.__dataclass_fields__ if name not in numbers}
    held = float(line["memory_gb"]) * 1e9 if line["memory_gb"] else None
    return MeasuredShape(**sizes, iteration_s=float(line["iteration_s"]), memory_bytes=held, date=line["date"])


@dataclass(frozen=True, slots=True)
class Computed:
    """What rtk says: an iteration's time, and the most that a GPU holds."""

    iteration_s: float
    memory_bytes: float


def computed(row: MeasuredShape, profile: Profile) -> Computed:
    """An iteration planned as 1F1B; the measured jobs had the memory that they needed, so it sets no limit."""
    free = replace(profile, device=replace(profile.device, memory_bytes=None))
    shape = Shape(row.pipeline_parallel, row.data_parallel, row.microbatches, tensor_parallel=row.tensor_parallel)
    plan = plan_pipeline(free, shape, "1f1b")
    assert plan.prediction is not None
    held = [one.total_bytes for one in memory_of(free, plan, shards=row.data_parallel) if one is not None]
    return Computed(plan.prediction.iteration_time_s, max(held))


def decoder(row: MeasuredShape) -> DecoderShape:
    """The GPT of a row."""
    return gpt_form(row.layers, row.hidden, row.heads, row.heads, row.vocabulary, row.sequence_length)


def before(row: MeasuredShape) -> Computed:
    """rtk's own program, and a network card for each GPU."""
    device, batch = gpu("a100-sxm"), MicrobatchShape(row.microbatch_size, row.sequence_length, "bf16")
    rates, degrees = rates_of(device, "bf16"), (row.tensor_parallel,)
    return computed(
        row, analytic_profile("row", decoder(row), batch, device, rates, is_checkpointing=True, degrees=degrees)
    )


def jean_zay_a100(node_bytes_per_s: float) -> Network:
    """BigScience's network, Megatron's seats."""
    node = NodeNetwork(8, node_bytes_per_s, "peers")
    return Network(gpu("a100-sxm").intra_node, OMNI_PATH, node)


def told(row: MeasuredShape, constants: Constants) -> Computed:
    """Megatron's program and the cluster's network as BigScience had them, with some constants."""
    dtype: DataType = "bf16" if row.date >= BFLOAT_FROM else "fp16"
    software = Software(
        attention="unfused",
        dropout=True,
        sequence_parallel=False,
        gradients="fp32" if dtype == "bf16" else "fp16",
        sustained=True,
        kernel_gap_s=constants.gap,
    )
    device = gpu("a100-sxm")
    batch = MicrobatchShape(row.microbatch_size, row.sequence_length, dtype, software)
    products = Correction(constants.matrix, 1.0)
    same = Corrections(products, products, products)
    profile = analytic_profile(
        "row",
        decoder(row),
        batch,
        device,
        rates_of(device, dtype, software=software),
        corrections={"embedding": same, "block": same, "head": same},
        is_checkpointing=True,
        degrees=(row.tensor_parallel,),
    )
    found = computed(row, replace(profile, network=jean_zay_a100(constants.node)))
    early = constants.early if row.date < ALIKE_FROM else 1.0
    return replace(found, iteration_s=early * found.iteration_s)


# Fitting: the logarithm of an iteration's time is nearly linear in those of the constants.


Predict = Callable[[MeasuredShape, Constants], Computed]
STEP = 0.05


def slopes(rows: Sequence[MeasuredShape], predict: Predict, at: Constants) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of predictions at some constants, and their derivatives by those of the constants."""
    here = np.array([log(predict(row, at).iteration_s) for row in rows])
    columns = []
    for name, value in asdict(at).items():
        moved = replace(at, **{name: value * exp(STEP)})
        columns.append((np.array([log(predict(row, moved).iteration_s) for row in rows]) - here) / STEP)
    return here, np.column_stack(columns)


def fitted(rows: Sequence[MeasuredShape], here: np.ndarray, slope: np.ndarray, at: Constants) -> Constants:
    """The constants with the least sum of absolute errors of logarithms, by reweighted least squares."""
    wanted = np.log([row.iteration_s for row in rows]) - here
    step, weights = np.zeros(slope.shape[1]), np.ones(len(rows))
    # A little is paid for leaving the start, so that a constant that no row depends on stays where it is.
    stay = 0.02 * np.eye(slope.shape[1])
    for _ in range(50):
        scaled = slope * weights[:, None]
        step = np.linalg.solve(slope.T @ scaled + stay, scaled.T @ wanted)
        weights = 1 / np.maximum(np.abs(wanted - slope @ step), 1e-3)
        weights /= weights.mean()
    return Constants(*(float(value * exp(one)) for value, one in zip(astuple(at), step, strict=True)))


# Figures.


def figures(rows: Sequence[MeasuredShape], predictions: Sequence[float]) -> dict[str, Any]:
    """Errors, ranks among shapes of one model, and what the shape with the shortest prediction loses."""
    return {
        **errors([(mine, row.iteration_s) for row, mine in zip(rows, predictions, strict=True)]),
        "models": list(ranks(rows, predictions, lambda row: (*row.model, row.heads))),
        "one_day": list(ranks(rows, predictions, lambda row: (*row.model, row.heads, row.date))),
        "widths": list(ranks(rows, predictions, lambda row: row.model)),
    }


def ranks(
    rows: Sequence[MeasuredShape], predictions: Sequence[float], group_of: Callable[[MeasuredShape], tuple[Any, ...]]
) -> Iterable[dict[str, Any]]:
    """For each group with four shapes or more on days alike: rank correlation, and the loss of our choice."""
    groups: defaultdict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    for row, mine in zip(rows, predictions, strict=True):
        if row.date >= ALIKE_FROM:
            groups[group_of(row)].append((mine / row.global_batch, row.iteration_s / row.global_batch))
    for group, pairs in groups.items():
        if len(pairs) > 3:
            ours, theirs = np.array(pairs).T
            chosen = theirs[int(ours.argmin())]
            yield {
                "group": list(group),
                "rows": len(pairs),
                "rank": float(np.corrcoef(ranked(ours), ranked(theirs))[0, 1]),
                "loss": float(chosen / theirs.min() - 1),
            }


def ranked(values: np.ndarray) -> np.ndarray:
    """Ranks; those of equal ones are their mean."""
    return np.array([(values < one).sum() + ((values == one).sum() - 1) / 2 for one in values])


def a100() -> dict[str, Any]:
    """BigScience's 384 A100."""
    rows = read_rows("megatron-a100.csv")
    start = Constants()
    here, slope = slopes(rows, told, start)
    constants = fitted(rows, here, slope, start)
    left_out = []
    for row in rows:
        kept = [place for place, other in enumerate(rows) if other.model != row.model]
        left_out.append(told(row, fitted([rows[place] for place in kept], here[kept], slope[kept], start)))
    first = [before(row) for row in rows]
    with_all = [told(row, constants) for row in rows]
    return {
        "before": times(rows, first),
        "told": figures(rows, [exp(one) for one in here]),
        "fitted": {"constants": asdict(constants), **times(rows, with_all)},
        "left_out": times(rows, left_out),
        "memory": memory(rows, with_all),
        "rows": [
            {"measured_s": row.iteration_s, "before_s": one.iteration_s, "left_out_s": other.iteration_s}
            for row, one, other in zip(rows, first, left_out, strict=True)
        ],
    }


def times(rows: Sequence[MeasuredShape], found: Sequence[Computed]) -> dict[str, Any]:
    """The figures of computed iterations."""
    return figures(rows, [one.iteration_s for one in found])


def memory(rows: Sequence[MeasuredShape], found: Sequence[Computed]) -> dict[str, Any]:
    """Errors of the most that a GPU holds, where it was noted."""
    noted = [(one.memory_bytes, row.memory_bytes) for row, one in zip(rows, found, strict=True) if row.memory_bytes]
    return {name: one for name, one in errors(noted).items() if name != "nine_in_ten"}


# The shape that is taken.


PICKED = (72, 14336, 64)  # the model of which most shapes were measured, on days alike
LISTED = 40  # shapes, from the fastest on


def picks() -> dict[str, Any]:
    """The shapes that `rtk plan best` takes for a model, beside those of them that were measured."""
    rows = [
        row
        for row in read_rows("megatron-a100.csv")
        if (row.layers, row.hidden, row.heads) == PICKED and ALIKE_FROM <= row.date < BFLOAT_FROM
    ]
    measured_s = {
        (row.tensor_parallel, row.pipeline_parallel, row.data_parallel, row.microbatch_size): row.iteration_s
        * 2048 / row.global_batch
        for row in rows
    }  # fmt: skip
    least_s, start = min(measured_s.values()), Constants()
    nodes = tuple(f"node{number}" for number in range(48))
    cluster = Cluster(nodes, 8, "a100-sxm", gpu("a100-sxm").memory_bytes, jean_zay_a100(start.node))
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.json")
        config.write_text(_config(rows[0]))
        found = plan_best(
            str(config), cluster=cluster, batch=2048, microbatch_size=(1, 2, 4, 8), recompute=True,
            schedule="1f1b", first=LISTED, dtype="fp16", attention="unfused", dropout=True, sequence_parallel=False,
            gradients="fp16", sustained=True, kernel_gap_s=start.gap,
        )  # fmt: skip
    listed = []
    for place, one in enumerate(found.shapes, 1):
        shape = one.shape
        key = (shape.tensor_parallel, shape.pp, shape.dp, shape.form.microbatch_size)
        took_s = measured_s.get(key)
        loss = None if took_s is None else took_s / least_s - 1
        listed.append(
            {"place": place, "shape": key, "told_s": one.iteration_time_s, "measured_s": took_s, "loss": loss}
        )
    known = [one for one in listed if one["measured_s"] is not None]
    return {"model": list(PICKED), "shapes": found.ruled_out, "best": listed[0], "measured": known}


def _config(row: MeasuredShape) -> str:
    """A configuration of the model, as JSON."""
    sizes = {"n_layer": row.layers, "n_embd": row.hidden, "n_head": row.heads, "n_positions": row.sequence_length}
    return json.dumps({"model_type": "gpt2", "vocab_size": row.vocabulary, "activation_function": "gelu", **sizes})


# Logs of V100.


def v100() -> dict[str, Any]:
    """Each log as computed, and as computed with what the timers of the smallest job say."""
    runs = {
        path.name: replace(read_megatron_log(str(path)), source=path.name) for path in sorted(DATA.glob("meg_*.gz"))
    }
    least = min(runs.values(), key=lambda run: run.pp)
    device = gpu("v100-sxm")
    learned = learn(least, device, lambda profile, run: _planned(profile, run))
    of_deepspeed, rows = deepspeed(device), []
    for name, run in runs.items():
        usual = replace(run.batch, dtype="fp32", software=Software())
        rows.append(
            {
                "log": name,
                "measured_s": median(run.iterations_s),
                "before_s": _log_s(replace(run, batch=usual), UNCALIBRATED, Network(device.intra_node, INTER_NODE)),
                "told_s": _log_s(run, UNCALIBRATED, JEAN_ZAY),
                "calibrated_s": None if run is least else _log_s(run, learned.corrections, JEAN_ZAY),
                "deepspeed_s": _log_s(run, of_deepspeed.corrections, JEAN_ZAY) if "_ds_" in name else None,
            }
        )
    return {"learned": list(learned.remarks), "of_deepspeed": list(of_deepspeed.remarks), "rows": rows}


def deepspeed(device: Gpu) -> Learned:
    """What MT-NLG's iterations, of other machines, another model and another year, say about DeepSpeed's pipeline.

    Each says one number, by which all computing takes longer than is computed; the middle one of the three counts.
    """
    table = next(one for one in TABLES if one.name == "mt-nlg")
    found = []
    for row in table.rows():
        run = ObservedRun(
            shape=table.form(row),
            batch=MicrobatchShape(
                row.microbatch_size, row.sequence_length, table.dtype, replace(table.software, sequence_parallel=False)
            ),
            is_checkpointing=True,
            tensor_parallel=row.tensor_parallel,
            pp=row.pipeline_parallel,
            dp=row.data_parallel,
            microbatches=row.microbatches,
            iterations_s=(row.iteration_s,),
            gpu="a100-sxm",
            source=f"MT-NLG's iteration of {row.iteration_s} s",
        )
        found.append(learn(run, device, lambda profile, run: _planned(profile, run, table.network())))
    return sorted(found, key=lambda one: one.corrections["block"].forward.matrix)[len(found) // 2]


def _log_s(run: ObservedRun, corrections: Calibration, network: Network) -> float:
    device = gpu("v100-sxm")
    rates = rates_of(device, run.batch.dtype, software=run.batch.software)
    profile = analytic_profile(
        "log", run.shape, run.batch, device, rates,
        corrections=corrections, is_checkpointing=run.is_checkpointing, degrees=(run.tensor_parallel,),
        group=network.intra_node,
    )  # fmt: skip
    prediction = _planned(profile, run, network).prediction
    assert prediction is not None
    return prediction.iteration_time_s


def _planned(profile: Profile, run: ObservedRun, network: Network = JEAN_ZAY) -> Plan:
    free = replace(profile, device=replace(profile.device, memory_bytes=None), network=network)
    shape = Shape(run.pp, run.dp, run.microbatches, tensor_parallel=run.tensor_parallel)
    return with_prediction(scheduled(one_pipeline(free, shape), "1f1b"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute, compare, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["a100", "v100", "tables", "picks"])
    parser.add_argument("--chart", type=Path)
    parser.add_argument("-o", "--output", default="-")
    options = parser.parse_args(arguments)
    parts: dict[str, Callable[[], dict[str, Any]]] = {"a100": a100, "v100": v100, "tables": tables, "picks": picks}
    result = {name: make() for name, make in parts.items() if options.only in (None, name)}
    for part in result.values():
        for name, found in part.items():
            if name != "rows" or part is result.get("v100"):
                shown = {key: one for key, one in found.items() if key != "rows"} if isinstance(found, dict) else found
                print(name, json.dumps(shown), file=sys.stderr)
    if options.chart:
        write_chart(result, options.chart)
    write_result(result, options.output)


if __name__ == "__main__":
    main()
