"""Computed iteration times against those of real clusters: errors, ranks, and the shape that would have been taken.

`python benchmarks/clusters.py [--only NAME] [--chart FILE.svg] [-o FILE]`, on the data in `benchmarks/measured/`. Every
row is computed as a user would: a profile of the model's sizes, cut and planned as 1F1B.

* `before`: the program is taken to be rtk's own, the network one card a GPU. Nothing is fitted.
* `told`: the program and the cluster are as its owners describe them. Nothing is fitted.
* `fitted`: four constants are fitted on all rows: `matrix` (time of matrix products, over computed), `node` (what a
  node's network gives to sums of gradients, bytes/s), `gap` (between kernels, s), and `early` (days before 02-25, on
  other machines).
* `left_out`: each model (layers and width) is predicted by constants that were fitted on all other models.

Errors are |predicted / measured - 1|. `rank` is Spearman's correlation among shapes of one model on days alike, `loss`
what the shape with the shortest prediction took longer than the fastest of them.
"""

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from rtk.benchmarks.common import write_result
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.analytic.costs import DecoderShape, MicrobatchShape
from rtk.profilers.analytic.estimate import Correction, Corrections, analytic_profile, rates_of
from rtk.schemas.gpus import gpu
from rtk.schemas.profile import Connection, Network, NodeNetwork, Profile

DATA = Path(__file__).parent / "measured"
ALIKE_FROM = "02-25"  # BigScience's machines changed between 24 and 25 February


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
    sizes = [int(line[name]) for name in list(MeasuredShape.__dataclass_fields__)[:10]]
    memory = float(line["memory_gb"]) * 1e9 if line["memory_gb"] else None
    return MeasuredShape(*sizes, float(line["iteration_s"]), memory, line["date"])


def predicted_s(row: MeasuredShape, profile: Profile) -> float:
    """What rtk says that an iteration takes, planned as 1F1B; the time alone is asked, so memory sets no limit."""
    free = replace(profile, device=replace(profile.device, memory_bytes=None))
    shape = Shape(row.pipeline_parallel, row.data_parallel, row.microbatches, tensor_parallel=row.tensor_parallel)
    prediction = plan_pipeline(free, shape, "1f1b").prediction
    assert prediction is not None
    return prediction.iteration_time_s


def decoder(row: MeasuredShape) -> DecoderShape:
    """GPT's, with one matrix for embedding and head."""
    return DecoderShape(
        blocks=row.layers,
        width=row.hidden,
        heads=row.heads,
        key_value_heads=row.heads,
        head_size=row.hidden // row.heads,
        inner=4 * row.hidden,
        vocabulary=row.vocabulary,
        positions=row.sequence_length,
        position_rows=row.sequence_length,
        is_fused=True,
        has_query_bias=True,
        has_output_bias=True,
        has_inner_bias=True,
        is_tied=True,
    )


def before(row: MeasuredShape) -> float:
    """rtk's own program, and a network card for each GPU."""
    device, batch = gpu("a100-sxm"), MicrobatchShape(row.microbatch_size, row.sequence_length, "bf16")
    profile = analytic_profile(
        "measured",
        decoder(row),
        batch,
        device,
        rates_of(device, "bf16"),
        is_checkpointing=True,
        degrees=(row.tensor_parallel,),
    )
    return predicted_s(row, profile)


def told(row: MeasuredShape, constants: Constants) -> float:
    """Megatron's program, and the cluster's network; with the constants given."""
    device, batch = gpu("a100-sxm"), MicrobatchShape(row.microbatch_size, row.sequence_length, "bf16")
    products = Correction(constants.matrix, 1.0)
    same = Corrections(products, products, products)
    profile = analytic_profile(
        "measured",
        decoder(row),
        batch,
        replace(device, kernel_s=constants.gap),
        replace(rates_of(device, "bf16"), kernel_s=constants.gap),
        corrections={"embedding": same, "block": same, "head": same},
        is_checkpointing=True,
        degrees=(row.tensor_parallel,),
    )
    network = Network(device.intra_node, Connection(30e-6, 5.06e9), NodeNetwork(8, constants.node, "peers"))
    early = constants.early if row.date < ALIKE_FROM else 1.0
    return early * predicted_s(row, replace(profile, network=network))


# Fitting: the logarithm of an iteration's time is nearly linear in those of the constants.


Predict = Callable[[MeasuredShape, Constants], float]
STEP = 0.05


def slopes(rows: Sequence[MeasuredShape], predict: Predict, at: Constants) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of predictions at some constants, and their derivatives by those of the constants."""
    here = np.array([log(predict(row, at)) for row in rows])
    columns = []
    for name, value in asdict(at).items():
        moved = replace(at, **{name: value * exp(STEP)})
        columns.append((np.array([log(predict(row, moved)) for row in rows]) - here) / STEP)
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
    ratios = [mine / row.iteration_s for row, mine in zip(rows, predictions, strict=True)]
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    return {
        "rows": len(rows),
        "ratio": median(ratios),
        "median": median(errors),
        "nine_in_ten": errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        "worst": errors[-1],
        "models": list(ranks(rows, predictions)),
    }


def ranks(rows: Sequence[MeasuredShape], predictions: Sequence[float]) -> Iterable[dict[str, Any]]:
    """For each model with four shapes or more on days alike: rank correlation, and the loss of our choice."""
    groups: defaultdict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for row, mine in zip(rows, predictions, strict=True):
        if row.date >= ALIKE_FROM:
            groups[row.model].append((mine, row.iteration_s))
    for model, pairs in groups.items():
        if len(pairs) > 3:
            ours, theirs = np.array(pairs).T
            chosen = theirs[int(ours.argmin())]
            yield {
                "model": list(model),
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
        others = [other.model != row.model for other in rows]
        chosen = [one for one, keep in zip(rows, others, strict=True) if keep]
        left_out.append(told(row, _fit_of(tuple(chosen), here[others], slope[others], start)))
    return {
        "before": figures(rows, [before(row) for row in rows]),
        "told": figures(rows, [exp(one) for one in here]),
        "fitted": {"constants": asdict(constants), **figures(rows, [told(row, constants) for row in rows])},
        "left_out": figures(rows, left_out),
    }


def _fit_of(rows: Sequence[MeasuredShape], here: np.ndarray, slope: np.ndarray, start: Constants) -> Constants:
    return fitted(rows, here, slope, start)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute, compare, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["a100"], default="a100")
    parser.add_argument("-o", "--output", default="-")
    options = parser.parse_args(arguments)
    result = {"a100": a100()}
    for name, part in result["a100"].items():
        print(name, part, file=sys.stderr)
    write_result(result, options.output)


if __name__ == "__main__":
    main()
