"""What it costs that gradients are divided late, their norm is known, and votes tell it: of an iteration of one stage.

`python -m rtk.benchmarks.step_terms [--quick] [-o RESULT.json]`

For stages of presets, in a process of one thread: an iteration's operations and its step (`iteration_s`), and beside
them, in turns, what was added to it:

* `norm_s`: the squared norms of all layers; before, one pass looked whether all gradients are finite (`finite_s`),
  which the norms tell as well.
* `division_s`: the gradients are multiplied once, by 1 / count and what clips them; before, each loss was.
* `messages_s`: votes and commit, made, written, read and counted by the coordinator, of all workers of a plan of 4
  stages and 4 pipelines, and what is announced; one process pays for all of them here.

`overhead` is their sum, less `finite_s`, over `iteration_s`. `agreement_us`: without a coordinator two ranks, which
are threads, agree in a sum of some dozen numbers; before they met in a sum of one (`meeting_us`).
"""

import argparse
import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Any

import torch
from torch import nn

from rtk.benchmarks.common import in_turns, write_result
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.load import load_model
from rtk.profilers.models.model import Model
from rtk.runners.resilience.announcements import IterationCommitted
from rtk.runners.resilience.membership import VoteCounter, live_places
from rtk.runners.resilience.protocol import Commit, StepTerms, Vote, encode, from_coordinator, from_worker
from rtk.runners.torch.gloo import GlooTransport
from rtk.runners.torch.groups import SILENCE
from rtk.runners.torch.held_stage import HeldStage
from rtk.schemas.profile import Layer, LayerCost, Profile

MICROBATCHES = 8
# (preset, layers [first, stop) or None for all, samples a micro-batch, tokens a sample)
STAGES = {
    "gpt-tiny": ("gpt-tiny", None, 4, 128),
    "gpt-tiny, last of 2 stages": ("gpt-tiny", (5, 10), 4, 128),
    "gpt-small, first of 4 stages": ("gpt-small", (0, 4), 1, 512),
    "gpt-small, second of 4 stages": ("gpt-small", (4, 7), 1, 512),
}


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("-o", "--output", default="-")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 1 if asked.quick else 3
    messages_s = _messages_s(rounds)
    result = {
        "stages": {name: _stage(*what, rounds, messages_s) for name, what in STAGES.items()},
        "agreement": _agreement(100 if asked.quick else 1000),
    }
    write_result(result, asked.output)


def _stage(
    preset: str, layers: tuple[int, int] | None, samples: int, tokens: int, rounds: int, messages_s: float
) -> dict[str, Any]:
    model = load_model(preset, samples, tokens, 0)
    held = _held(model, layers or (0, len(model.layers)))
    inputs, targets = model.example(0)
    first = held.layers_range[0]
    with torch.no_grad():
        given = nn.Sequential(*model.layers[:first])(inputs)
        like = given if held.is_last else torch.zeros_like(nn.Sequential(*held.stage.layers)(given))
    terms = StepTerms(float(MICROBATCHES), 1.0, 0)

    def iterate() -> None:
        held.begin()
        for number in range(MICROBATCHES):
            held.stage.forward(number, given, targets if held.is_last else None)
            held.stage.backward(number, None if held.is_last else like)
        held.step(terms)

    parts: dict[str, Callable[[], object]] = {
        "iteration_s": iterate,
        "norm_s": lambda: held.squared_norms(range(*held.layers_range)),
        # What was looked at before there were norms: the extremes, which are finite where all values are.
        "finite_s": lambda: [torch.stack(one.aminmax()).isfinite().all().item() for one in held.gradients.buffers],
        "division_s": lambda: held.gradients.scale(0.999),
    }
    sides = {name: _timed(do) for name, do in parts.items()}
    found = {name: min(one for turn in turns for one in turn) for name, turns in in_turns(sides, rounds, 3).items()}
    added_s = found["norm_s"] + found["division_s"] + messages_s - found["finite_s"]
    parameters = sum(one.numel() for one in held.stage.parameters())
    return {**found, "messages_s": messages_s, "parameters": parameters, "overhead": added_s / found["iteration_s"]}


def _held(model: Model, layers: tuple[int, int]) -> HeldStage:
    is_last = layers[1] == len(model.layers)
    return HeldStage(model.layers, layers, model.loss, torch.optim.AdamW, is_last=is_last, clip_norm=1.0)


def _timed(do: Callable[[], object]) -> Callable[[], float]:
    def measure() -> float:
        begun_s = time.perf_counter()
        do()
        return time.perf_counter() - begun_s

    return measure


def _messages_s(rounds: int) -> float:
    """Of an iteration of 16 workers, 12 layers and 32 micro-batches: what is told beside what was told before."""
    cost = LayerCost(1.0, 1.0, 1.0)
    plan = plan_pipeline(
        Profile((Layer((cost,), activation_bytes=1, weight_stash_bytes=1),) * 12), Shape(4, 4, 8), "1f1b"
    )

    def votes(is_new: bool) -> dict[tuple[int, int], Vote]:
        made = {}
        for pipeline, stage in live_places(plan):
            numbers = tuple(plan.microbatch_offset(pipeline) + n for n in range(8))
            losses: Any = tuple((n, 5.0 + n / 7, 1.0) if is_new else (n, 5.0 + n / 7) for n in numbers)
            norms = tuple((layer, 1.0 / (3 + layer)) for layer in range(3 * stage, 3 * stage + 3))
            told = losses if stage == 3 else ()
            known: dict[str, Any] = {"norms": norms if pipeline == 0 else (), "learning_rate": 1e-3} if is_new else {}
            made[pipeline, stage] = Vote(1, 0, True, numbers, told, **known)
        return made

    def tell(is_new: bool) -> None:
        tally = VoteCounter(plan)
        for place, vote in votes(is_new).items():
            found = from_worker(encode(vote))
            assert isinstance(found, Vote)
            tally.add(place, found)
        terms = tally.terms(0, 0) if is_new else None
        loss = tally.loss(0)
        line = encode(Commit(1, 0, last=9, terms=terms))
        for _ in range(len(live_places(plan))):
            from_coordinator(line)
        told: dict[str, Any] = asdict(terms) if terms is not None else {}
        json.dumps(
            IterationCommitted(
                loss=loss,
                iteration_time_s=1.0,
                live_workers=16,
                count=told.get("count"),
                grad_norm=told.get("norm"),
            ).as_json()
        )

    sides = {"new": _timed(lambda: tell(True)), "old": _timed(lambda: tell(False))}
    best = {name: min(one for turn in turns for one in turn) for name, turns in in_turns(sides, 5 * rounds, 10).items()}
    return best["new"] - best["old"]


def _agreement(times: int) -> dict[str, float]:
    """Two ranks over gloo sockets."""
    from torch._C._distributed_c10d import HashStore

    store, group = HashStore(), (0, 1)
    found: dict[str, float] = {}

    def work(rank: int) -> None:
        transport = GlooTransport(store, rank, 2, {group}, connect_limit=SILENCE)
        for name, size, dtype in (("meeting_us", 1, torch.float32), ("agreement_us", 2 * 32 + 12, torch.float64)):
            taken = []
            for _ in range(times):
                begun_s = time.perf_counter()
                transport.all_reduce(group, torch.zeros(size, dtype=dtype))
                taken.append(time.perf_counter() - begun_s)
            if rank == 0:
                found[name] = median(taken) * 1e6
        transport.all_reduce(group, torch.zeros(1))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in group]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


if __name__ == "__main__":
    main()
