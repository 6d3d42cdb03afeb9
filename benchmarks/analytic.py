"""Computed profiles against papers, and against this machine's CPU after measuring one layer of each kind.

`python benchmarks/analytic.py [--rounds N] [--quick] [-o FILE]`. Two parts:

* `papers`: parameters and FLOPs of the sizes of GPT-3, Megatron-LM and Llama-3, beside what their authors print.
* `calibration`: models of two families (GPT-2, Llama) with two blocks each, of several widths, sequence lengths and
  micro-batches, are measured in turns; the computed times of the CPU are corrected by one of them (512 wide, 2 x 256
  tokens), and compared with all others. Errors are computed / measured - 1. A layer's measured time is the least of its
  medians over the rounds, in seconds of the process, what an idle machine would show: on a shared host whose cores
  change their speed by half from second to second, only the fast state can be compared with itself. A figure is given
  for F, I and W each, for their sum, and for a whole iteration of the model; the optimizer step is not in them.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.profilers.analytic.configuration import MODELS, known_model
from rtk.profilers.analytic.costs import MicrobatchShape
from rtk.profilers.analytic.estimate import analytic_profile, calibration_of, forward_flops, rates_of
from rtk.profilers.measure import measure_profile
from rtk.profilers.models.load import load_model
from rtk.runners.torch.stage import TorchStage
from rtk.schemas.gpus import gpu
from rtk.schemas.profile import PASSES, TIMES, LayerCost, Profile

KINDS = ("embedding", "block", "head")
VOCABULARY, BLOCKS, POSITIONS = 8192, 2, 1024

# Billions of parameters, to the digits that are printed: Narayanan et al., 2021, table 1; Brown et al., 2020, table
# D.1; the model cards of Llama 3.
PRINTED = {
    "megatron-1.7b": 1.7,
    "megatron-3.6b": 3.6,
    "megatron-7.5b": 7.5,
    "megatron-18.4b": 18.4,
    "megatron-39.1b": 39.1,
    "megatron-76.1b": 76.1,
    "megatron-145.6b": 145.6,
    "megatron-310b": 310.1,
    "megatron-530b": 529.6,
    "megatron-1t": 1008.0,
    "gpt3-2.7b": 2.65,
    "gpt3-6.7b": 6.66,
    "gpt3-13b": 12.85,
    "gpt3-175b": 174.6,
    "llama3-8b": 8.03,
    "llama3-70b": 70.55,
    "llama3-405b": 405.85,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A model to measure: its family and width, and the micro-batch."""

    family: str
    width: int
    microbatch_size: int
    sequence_length: int

    def config(self) -> dict[str, Any]:
        """Its config.json, with heads of 64."""
        heads = self.width // 64
        if self.family == "gpt2":
            sizes = {"n_embd": self.width, "n_head": heads, "n_layer": BLOCKS, "n_positions": POSITIONS}
            still = dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), 0.0)
            return {"model_type": "gpt2", "vocab_size": VOCABULARY, "tie_word_embeddings": False, **sizes, **still}
        return {
            "model_type": self.family,
            "hidden_size": self.width,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 2,
            "intermediate_size": self.width * 11 // 4,
            "num_hidden_layers": BLOCKS,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": POSITIONS,
        }


# The first of each family calibrates the others.
SIZES = ((512, 2, 256), (256, 4, 128), (512, 1, 1024), (512, 4, 64), (768, 4, 128), (768, 1, 512), (1024, 1, 256))
FAMILIES = ("gpt2", "llama")


def papers() -> list[dict[str, Any]]:
    """Parameters and FLOPs of published sizes: ours, those printed, and the error to the last printed digit."""
    return [paper(name, billions) for name, billions in PRINTED.items()]


def paper(name: str, billions: float) -> dict[str, Any]:
    """One size. FLOPs are of an iteration of one sequence of 2048; Megatron-LM's include recomputation."""
    shape = MODELS[name].shape
    shape = replace(shape, is_tied=shape.is_tied or name.startswith("gpt3"))  # as the paper's; our presets' are not
    digits = len(f"{billions}".partition(".")[2])
    of_blocks, of_head = forward_flops(shape, MicrobatchShape(1, 2048, "bf16"))
    row = {
        "model": name,
        "parameters": shape.parameters,
        "printed_billions": billions,
        "is_exact": round(shape.parameters / 1e9, digits) == billions,
        "flops": 3 * (of_blocks + of_head),
    }
    if name.startswith("megatron"):
        h, blocks = shape.width, shape.blocks
        formula = 96 * 2048 * blocks * h**2 * (1 + 2048 / (6 * h) + 51200 / (16 * blocks * h))
        row |= {"flops_recomputing": 4 * of_blocks + 3 * of_head, "formula": formula}
    return row


def measured(cases: Sequence[Case], rounds: int, repeats: int, folder: Path) -> dict[Case, Profile]:
    """All cases in turns; of each layer's pass the least of its medians."""
    found: dict[Case, list[Profile]] = {case: [] for case in cases}
    for number in range(rounds):
        for case in cases:
            path = folder / f"{case.family}-{case.width}.json"
            path.write_text(json.dumps(case.config()))
            model = load_model(str(path), case.microbatch_size, case.sequence_length)
            found[case].append(measure_profile(model, TorchStage, repeats=repeats, clock=time.process_time))
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return {case: quietest(profiles) for case, profiles in found.items()}


def quietest(profiles: Sequence[Profile]) -> Profile:
    """One profile of several of the same model, each time the least."""
    layers = []
    for same in zip(*(profile.layers for profile in profiles), strict=True):
        costs = [layer.costs[0] for layer in same]
        names = TIMES.values()
        layers.append(
            replace(same[0], costs=(LayerCost(*(min(getattr(one, name) for one in costs) for name in names)),))
        )
    return replace(profiles[0], layers=tuple(layers))


def predicted(case: Case, calibrating: Profile | None, folder: Path) -> Profile:
    """What is computed for the CPU, corrected by a measured profile."""
    path = str(folder / f"{case.family}-{case.width}.json")
    device = gpu("cpu")
    rates = rates_of(device, "fp32")
    corrections = {} if calibrating is None else calibration_of(rates, calibrating)
    batch = MicrobatchShape(case.microbatch_size, case.sequence_length, "fp32")
    return analytic_profile(path, known_model(path).shape, batch, device, rates, corrections=corrections)


def compared(case: Case, ours: Profile, theirs: Profile) -> Iterator[dict[str, Any]]:
    """A row for each kind of layer, and one for the model."""
    for kind, index in zip(KINDS, (0, 1, -1), strict=True):
        yield row(case, kind, *(times_s(profile, [index]) for profile in (ours, theirs)))
    everything = range(len(ours.layers))
    yield row(case, "model", times_s(ours, everything), times_s(theirs, everything))


def times_s(profile: Profile, places: Sequence[int]) -> list[float]:
    """F, I and W of some layers together."""
    costs = [profile.layers[place].costs[0] for place in places]
    return [sum(getattr(cost, name) for cost in costs) for name in PASSES.values()]


def row(case: Case, kind: str, ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Times in s and errors."""
    errors = {
        f"{name.removesuffix('_s')}_error": one / other - 1
        for name, one, other in zip(PASSES.values(), ours, theirs, strict=True)
        if one
    }
    words = {"family": case.family, "width": case.width, "tokens": [case.microbatch_size, case.sequence_length]}
    return (
        {**words, "layer": kind, "computed_s": ours, "measured_s": theirs}
        | errors
        | {"error": sum(ours) / sum(theirs) - 1}
    )


def calibration(rounds: int, repeats: int) -> dict[str, Any]:
    """All cases against what is computed from the first of their family, and without any."""
    sizes = [Case(family, *one) for one in SIZES for family in FAMILIES]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = measured(sizes, rounds, repeats, folder)
        first = {family: Case(family, *SIZES[0]) for family in FAMILIES}
        others = [case for case in sizes if case not in first.values()]
        corrected = [
            line
            for case in others
            for line in compared(case, predicted(case, found[first[case.family]], folder), found[case])
        ]
        plain = [line for case in sizes for line in compared(case, predicted(case, None, folder), found[case])]
    return {
        "rows": corrected,
        "figures": {kind: figures(corrected, kind) for kind in (*KINDS, "model")},
        "uncalibrated": {kind: figures(plain, kind) for kind in (*KINDS, "model")},
    }


def figures(rows: Sequence[dict[str, Any]], kind: str) -> dict[str, float]:
    """Median and worst |error| of single passes, and of F, I and W together."""
    same = [line for line in rows if line["layer"] == kind]
    single = [abs(value) for line in same for name, value in line.items() if name.endswith("_error")]
    together = [abs(line["error"]) for line in same]
    return {
        "passes": len(single),
        "median": median(single),
        "worst": max(single),
        "median_of_sums": median(together),
        "worst_of_sums": max(together),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="the papers only: nothing is measured")
    parser.add_argument("-o", "--output", default="-")
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {"papers": papers()}
    if not options.quick:
        result["calibration"] = calibration(options.rounds, options.repeats)
        print(json.dumps(result["calibration"]["figures"], indent=1), file=sys.stderr)
    write_result(result, options.output)


if __name__ == "__main__":
    main()
