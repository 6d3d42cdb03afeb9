"""The table of snags, before and after: people's own models on real workers beside plain torch in one process.

`python benchmarks/snags.py [--only CASE …] [-o FILE]`; with peft installed, LoRA is peft's.

Each case of `snag_cases.py` is a script that two workers train in two stages (four, where it needs peers), with a
coordinator, all of them processes; checkpoints hold what they end with. In each either losses and parameters are those
of plain torch, or all workers end at once with what is wrong.
"""

import argparse
import os
import re
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rtk.benchmarks.common import write_result
from rtk.benchmarks.snag_cases import CASES, SLOW_S, Case, WithAux, has_peft
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.runners.torch.checkpoint import read_state
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.tests.runners.processes import ProcessJob

STAGES, LAYERS, MOST_S = 2, 4, 2.0
KEPT, IN_FLOAT32 = "torch, gradients zeroed and not dropped", "torch, sums in float32"
STEPS, STEPS_OF_KILLED = 4, 8
SCRIPT = "from rtk.benchmarks.snag_cases import CASES\n\ntraining = CASES[{name!r}].training()\n"

SAID = Path(tempfile.gettempdir(), f"snags-{os.getpid()}.err")  # what workers print on stderr

State = dict[str, torch.Tensor]


def plan_of(case: Case, microbatches: int) -> Plan:
    """Four layers in two stages, and `microbatches` in each pipeline."""
    profile = Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),) * LAYERS)
    return plan_pipeline(profile, Shape(STAGES, case.peers, microbatches), case.schedule)


def plainly(case: Case, plan: Plan, steps: int) -> tuple[list[float], State]:
    """Losses, and parameters and buffers in the end, of one process of plain torch.

    Buffers are those of whoever sees the micro-batches of the first pipeline only, as its workers do.
    """
    model, data = case.training().load(plan)
    layers = [getattr(layer, "_orig_mod", layer) for layer in model.layers]
    whole, losses = nn.ModuleList(layers), list[float]()
    if case.more.get("precision") == "bf16":
        whole.bfloat16()
    ones = [one for one in whole.parameters() if one.requires_grad]
    optimizer, seen = case.optimizer(ones), State()
    for iteration in range(steps):
        if case.reference == KEPT:
            for one in ones:
                one.grad = torch.zeros_like(one)
        batch, parts = data.batch(iteration), list[tuple[float, float]]()
        sums = [torch.zeros_like(one, dtype=torch.promote_types(one.dtype, torch.float32)) for one in ones]
        for number in range(plan.total_microbatches()):
            if number == plan.total_microbatches() // case.peers:
                seen = {name: value.clone() for name, value in whole.named_buffers()}
            parts.append(backward(case, layers, batch[number]))
            if case.reference == IN_FLOAT32:
                move_gradients(ones, sums)
        for name, value in whole.named_buffers():
            value.copy_(seen.get(name, value))
        count = sum(count for _, count in parts)
        divide(ones, sums if case.reference == IN_FLOAT32 else [one.grad for one in ones], count)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(loss for loss, _ in parts) / count)
    return losses, {
        f"{place}.{name}": value.detach()
        for place, layer in enumerate(layers)
        for name, value in (*layer.named_parameters(remove_duplicate=False), *layer.named_buffers())
    }


def backward(case: Case, layers: list[nn.Module], row: Any) -> tuple[float, float]:
    """The passes of one micro-batch in plain torch, whose gradients are added up; its loss's sum and count."""
    value, target, *named = row
    if isinstance(value, torch.Tensor):  # a copy, for layers that write into it
        value = value.to(torch.bfloat16) if case.more.get("precision") == "bf16" else value.clone()
    for layer in layers:
        value = layer(value, **(named[0] if named else {}))
    told = case.loss(value, target)
    loss, count = told if isinstance(told, tuple) else (told, 1)
    for layer in layers:
        if isinstance(layer, WithAux) and not layer.returns:
            loss = loss + layer.last
    torch.autograd.backward(loss)
    return loss.item(), float(count)


def move_gradients(ones: list[nn.Parameter], sums: list[torch.Tensor]) -> None:
    """Add the gradients of a micro-batch to sums in float32."""
    for one, total in zip(ones, sums, strict=True):
        if one.grad is not None:
            total += one.grad
            one.grad = None


def divide(ones: list[nn.Parameter], sums: Sequence[torch.Tensor | None], count: float) -> None:
    """Have the sums, divided, as gradients."""
    for one, total in zip(ones, sums, strict=True):
        one.grad = None if total is None else (total / count).to(one.dtype)


def alone(case: Case, plan: Plan, steps: int) -> tuple[list[float], State]:
    """Losses of the same training in one process."""
    losses = case.training().step(plan, steps)
    return [one for one in losses if one is not None], {}


def reference(case: Case, plan: Plan, steps: int) -> tuple[list[float], State]:
    """What the job is compared with."""
    torch.manual_seed(0)
    return (alone if case.reference == "itself" else plainly)(case, plan, steps)


def on_workers(case: Case, name: str, plan: Plan, steps: int, folder: Path) -> dict[str, Any]:
    """What becomes of it on real workers."""
    SAID.write_text("")
    script = folder / "train_snag.py"
    script.write_text(SCRIPT.format(name=name))
    how = JobConfig(steps, policy="slipstream", normalize_within=0, checkpoint=str(folder / "saved"))
    killed: str | None = None
    with ProcessJob(plan, how, TrainingConfig(script=str(script))) as job:
        begun_s = time.monotonic()
        if case.kill is not None:
            killed = "1/1"
            job.wait_for_iteration(case.kill, 60)
            time.sleep(4 * SLOW_S)
            job.signal(killed, signal.SIGKILL)
        ended_s: dict[str, float] = {}
        while len(ended_s) < len(job.processes) and time.monotonic() < begun_s + 60:
            for worker, process in job.processes.items():
                if worker not in ended_s and process.exitcode is not None:
                    ended_s[worker] = time.monotonic()
            time.sleep(0.005)
        took_s = time.monotonic() - begun_s
        said = ""
        if any(process.exitcode for worker, process in job.processes.items() if worker != killed):
            job.server.finish(2, "the workers have ended")
            said = SAID.read_text()
        finished = job.result(10)
        codes = {worker: process.exitcode for worker, process in sorted(job.processes.items())}
    alive = [second for worker, second in ended_s.items() if worker != killed]
    return {
        "seconds": took_s,
        "seconds_from_first_end_to_last": max(alive) - min(alive) if alive else None,
        "exit_codes": codes,
        "reason": f"{finished.reason}\n{said}",
        "losses": job.losses(),
        "failures": sum(one["event"] == "failure" for one in job.said),
    }


def difference(ours: Any, theirs: Any) -> float:
    """The largest of two tensors, which are of one shape."""
    return float((ours.double() - theirs.double()).abs().max()) if ours.numel() else 0.0


def tried(name: str, case: Case) -> dict[str, Any]:
    """A row of the table."""
    steps = STEPS if case.kill is None else STEPS_OF_KILLED
    made = len(case.data().batch(0)) if hasattr(case.data(), "batch") else 4
    plan = plan_of(case, made // case.peers)
    row: dict[str, Any] = {"before": case.before, "reference": case.reference}
    with tempfile.TemporaryDirectory() as folder:
        found = on_workers(case, name, plan, steps, Path(folder))
        losses, reason = found.pop("losses"), found.pop("reason")
        row |= found
        good = not any(code for worker, code in found["exit_codes"].items() if (case.kill is None or worker != "1/1"))
        if not good:
            words = case.refused or "nothing was to be refused"
            at_once = (found["seconds_from_first_end_to_last"] or 0.0) <= MOST_S
            is_right = words in reason and at_once and set(found["exit_codes"].values()) == {2}
            return {**row, "now": "refused" if is_right else "wrong", "message": reason}
        path = Path(folder, "saved", f"step-{steps:08}")
        state = {
            re.sub(r"_orig_mod\.|_checkpoint_wrapped_module\.", "", key): value
            for key, value in read_state(path, (0, LAYERS)).items()
            if "/" not in key
        }
    expected, parameters = reference(case, plan, steps)
    row["steps"] = len(losses)
    row["loss_difference"] = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    if parameters:
        row["parameter_difference"] = max(difference(state[key], value) for key, value in parameters.items())
    largest = max(row["loss_difference"], row.get("parameter_difference", 0.0))
    is_equal = largest <= case.tolerance and case.refused is None
    return {**row, "tolerance": case.tolerance, "now": "equal" if is_equal else "wrong"}


def main() -> None:
    """Try all cases, or those that are named, and write what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("-o", "--output", default="-")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with SAID.open("ab") as said:
        os.dup2(said.fileno(), 2)  # of the processes that are forked from now on, too
    rows = {}
    for name in given.only:
        try:
            rows[name] = tried(name, CASES[name])
        except Exception as error:
            rows[name] = {"before": CASES[name].before, "now": "wrong", "message": f"{type(error).__name__}: {error}"}
        told = {key: value for key, value in rows[name].items() if key not in ("before", "now")}
        print(f"{rows[name]['now']:8} {name}: {told}", flush=True)
    count = {kind: sum(row["now"] == kind for row in rows.values()) for kind in ("equal", "refused", "wrong")}
    print(count, flush=True)
    SAID.unlink()
    write_result({"rows": rows, "count": count, "peft": has_peft()}, given.output)


if __name__ == "__main__":
    main()
