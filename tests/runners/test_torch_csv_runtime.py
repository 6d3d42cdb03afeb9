"""Torch's own runtime executes the exported CSVs, of loops, V's and pairs too, and trains as one process does.

The file is also the program of one rank: it runs the schedules of CSV files one after the other and leaves its stages'
parameters and last gradients beside them.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, _schedule_visualizer
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.nn.functional import mse_loss

from rtk.planners.pipeline import plan_from_orders, plan_pipeline
from rtk.planners.placement.problem import PlacedProblem, placed_problem, with_placed_orders
from rtk.planners.placement.published import published_orders
from rtk.planners.scheduling.problem import BACKWARD, FORWARD, KINDS, WEIGHT
from rtk.planners.shape import Shape, plan_without_orders
from rtk.runners.torch_comms import to_torch_comms_csv
from rtk.runners.torch_csv import from_torch_csv, to_torch_csv
from rtk.schemas.orders import Schedule
from rtk.schemas.placement import loop_placement, v_placement
from rtk.schemas.plan import Placement, Plan, Planner, plain_placement
from rtk.schemas.profile import Layer, LayerCost, Profile

if __name__ != "worker":  # which knows no package of tests
    from ..warm import fork

RANKS, MICROBATCHES, WIDTH = 4, 8, 8
SCHEDULES: tuple[Schedule, ...] = ("1f1b", "zero-bubble", "gpipe")
# Published orders for two stages a rank, and one of nobody's: stage 3 and 4 are on one rank, though it is no V.
PLACEMENTS: dict[str, Placement] = {
    **{schedule: plain_placement(RANKS) for schedule in SCHEDULES},
    "ZB-V": v_placement(RANKS),
    "interleaved 1F1B": loop_placement(RANKS, 2),
    "odd": ((0, 5), (1, 7), (3, 4), (2, 6)),
    "DualPipeV": v_placement(RANKS),  # torch's own orders, with its pairs
    "1f1b, 2 ranks": plain_placement(2),
    "zero-bubble, 2 ranks": plain_placement(2),
    "interleaved 1F1B, 2 ranks": loop_placement(2, 2),
    "ZB-V, 2 ranks": v_placement(2),
    "DualPipeV, 2 ranks": v_placement(2),
}
FORMATS: dict[str, Callable[[Plan], str]] = {
    "compute_only": to_torch_csv,
    "compute_comms": to_torch_comms_csv,
    "just_in_time": partial(to_torch_comms_csv, ahead=0),
    "ahead": partial(to_torch_comms_csv, ahead=2),
}
RATE, STEPS = 0.5, 3
DEADLINE_S = 120.0


def make_profile(stages: int) -> Profile:
    """Unlike costs, so that the messages of a compute_comms file lie where no table of equal slots would have them."""
    return Profile(tuple(Layer((LayerCost(1.0 + layer, 1.0, 0.5 * layer),)) for layer in range(stages)))


class Stage(nn.Module):
    """A residual layer; its output is no view, which torch's split backward could not detach."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, 2 * WIDTH)
        self.outer = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, WIDTH) to the same."""
        out: torch.Tensor = x + self.outer(torch.tanh(self.inner(self.norm(x))))
        return out


def make_model(stages: int) -> list[Stage]:
    """The same stages in every process."""
    torch.manual_seed(0)
    return [Stage().double() for _ in range(stages)]


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """The same inputs and targets in every process, two rows a micro-batch."""
    torch.manual_seed(1)
    size = 2 * MICROBATCHES, WIDTH
    return torch.randn(size, dtype=torch.float64), torch.randn(size, dtype=torch.float64)


def make_plan(name: str) -> Plan:
    """One pipeline."""
    placement = PLACEMENTS[name]
    profile, shape = make_profile(_count(placement)), Shape(len(placement), 1, MICROBATCHES)
    kind = name.partition(",")[0]
    if kind in SCHEDULES:
        return plan_pipeline(profile, shape, kind)
    if kind == "DualPipeV":
        found = from_torch_csv(torchs_own("DualPipeV", len(placement)), "torch")
        profile, shape = replace(profile, overlap=0.8), replace(shape, overlap=True)
        return plan_from_orders(profile, found.orders, shape, "import", "torch", placement, found.pairs)
    empty = plan_without_orders(profile, shape, Planner("by hand", "1", {}), placement)
    problem = placed_problem(empty, split=kind != "interleaved 1F1B")
    orders = one_after_another(problem) if kind == "odd" else dict(published_orders(problem))[kind]
    return with_placed_orders(empty, problem, orders)


def one_after_another(problem: PlacedProblem) -> list[list[int]]:
    """Orders for any placement: all F, then all I, of stage after stage, and all W."""
    jobs, seats = range(problem.jobs), problem.seats
    return [
        [
            (job * problem.stages + stage) * KINDS + kind
            for kind, held in ((FORWARD, own), (BACKWARD, own[::-1]), (WEIGHT, own))
            for stage in held
            for job in jobs
        ]
        for own in seats
    ]


def values(stage: nn.Module) -> list[torch.Tensor]:
    """A stage's parameters and their gradients."""
    found = list(stage.parameters())
    assert all(parameter.grad is not None for parameter in found)
    return [value for parameter in found for value in (parameter.detach(), parameter.grad) if value is not None]


def run_rank(rank: int, ranks: int, folder: Path, files: Mapping[str, tuple[tuple[int, ...], int]]) -> None:
    """Train under every schedule on this rank, in torch's runtime, from fresh parameters.

    Args:
        rank: this one's.
        ranks: how many there are.
        folder: where ranks meet.
        files: which stages this rank has of how many, by the schedule's file.
    """
    torch.set_num_threads(1)
    meeting = f"file://{folder / f'store-{ranks}'}"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    inputs, targets = make_batch()
    for csv_file, (held, count) in files.items():
        modules = {stage: make_model(count)[stage] for stage in held}
        stages = [PipelineStage(module, stage, count, torch.device("cpu")) for stage, module in modules.items()]
        runtime = _PipelineScheduleRuntime(stages, MICROBATCHES, loss_fn=mse_loss)  # type: ignore[no-untyped-call]
        is_bare = csv_file.endswith("compute_only")
        runtime._load_csv(csv_file, format="compute_only" if is_bare else "compute_comms")
        optimizer = torch.optim.SGD(nn.ModuleList(modules.values()).parameters(), lr=RATE)
        for _ in range(STEPS):
            optimizer.zero_grad()
            runtime.step(*([inputs] if 0 in held else []), target=targets if count - 1 in held else None)
            optimizer.step()
        for stage, module in modules.items():
            torch.save(values(module), f"{csv_file}.{stage}")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[torch.Tensor]]]:
    """Parameters and gradients of each stage, by file, as torch's runtime trained them on a process a rank."""
    folder = tmp_path_factory.mktemp("torch")
    files = {folder / f"{name}.{form}": placement for name, placement in PLACEMENTS.items() for form in FORMATS}
    for file in files:
        file.write_text(FORMATS[file.suffix[1:]](make_plan(file.stem)))
    counts = {file: _count(placement) for file, placement in files.items()}
    ranks = [
        fork(__file__, rank, world, folder, {str(file): (held[rank], counts[file]) for file, held in own.items()})
        for world in (2, RANKS)
        for own in ({file: held for file, held in files.items() if len(held) == world},)
        for rank in range(world)
    ]
    try:
        deadline = time.monotonic() + DEADLINE_S
        for rank in ranks:
            rank.join(max(0.0, deadline - time.monotonic()))
        assert {rank.exitcode for rank in ranks} == {0}
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    return {file.name: [torch.load(f"{file}.{stage}") for stage in range(count)] for file, count in counts.items()}


def _count(placement: Placement) -> int:
    return sum(map(len, placement))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", PLACEMENTS)
def test_torch_trains_as_one_process(trained: dict[str, list[list[torch.Tensor]]], name: str, form: str) -> None:
    """2 and 4 ranks of one or two stages, 8 micro-batches, 3 steps of SGD: every parameter and gradient to 1e-12."""
    count = _count(PLACEMENTS[name])
    model = make_model(count)
    inputs, targets = make_batch()
    optimizer = torch.optim.SGD(nn.Sequential(*model).parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        mse_loss(nn.Sequential(*model)(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for stage, before, found in zip(model, make_model(count), trained[f"{name}.{form}"], strict=True):
        moved = [
            float((b - a).detach().abs().max()) for a, b in zip(before.parameters(), stage.parameters(), strict=True)
        ]
        assert max(moved) > 1e-3
        for expected, value in zip(values(stage), found, strict=True):
            torch.testing.assert_close(value, expected, atol=1e-12, rtol=0)


def test_torchs_own_gpipe_is_ours() -> None:
    """What torch generates is imported as a valid plan with the orders of our own planner."""
    # Its 1F1B will not do: torch 2.13 numbers the last rank's forwards from 1, in the table though not in execution.
    text = written(_schedule_visualizer.get_schedule_ops("GPipe", RANKS, MICROBATCHES))
    even, shape = Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),) * RANKS), Shape(RANKS, 1, MICROBATCHES)
    made = plan_from_orders(even, from_torch_csv(text, "torch").orders, shape, "import", "torch")
    assert made.workers == plan_pipeline(even, shape, "gpipe").workers


@pytest.mark.parametrize(
    ("schedule", "placement"),
    [
        ("ZBVZeroBubble", v_placement(RANKS)),
        ("DualPipeV", v_placement(RANKS)),
        ("Interleaved1F1B", loop_placement(RANKS, 2)),
        ("InterleavedZeroBubble", loop_placement(RANKS, 2)),
    ],
)
def test_torchs_own_schedules_of_several_stages_are_imported(schedule: str, placement: Placement) -> None:
    """What torch generates for two stages a rank is a valid plan with that placement, and is written back as it was:
    DualPipeV's pairs too, where a profile says what they take, else one after the other."""
    text, plain = torchs_own(schedule, RANKS), Shape(RANKS, 1, MICROBATCHES)
    found = from_torch_csv(text, "torch")
    assert found.placement == placement
    assert any(found.pairs) == (schedule == "DualPipeV")
    made = plan_from_orders(make_profile(2 * RANKS), found.orders, plain, "import", "torch", found.placement)
    assert made.templates[0].placement == placement
    assert re.findall(r"\d+[FIWB]\d+", to_torch_csv(made)) == re.findall(r"\d+[FIWB]\d+", text)
    profile, shape = replace(make_profile(2 * RANKS), overlap=0.8), replace(plain, overlap=any(found.pairs))
    kept = plan_from_orders(profile, found.orders, shape, "import", "torch", found.placement, found.pairs)
    assert from_torch_csv(to_torch_csv(kept), "again") == found


def torchs_own(schedule: str, ranks: int) -> str:
    """The orders that torch generates for two stages a rank, as a compute_only file."""
    return written(_schedule_visualizer.get_schedule_ops(schedule, ranks, MICROBATCHES, num_stages_per_rank=2))


def written(actions: Iterable[Iterable[Any]]) -> str:
    """A table of torch's as a compute_only file; it ends in the sums over data-parallel ranks, which that has not."""
    rows = [["" if cell is None else str(cell) for cell in row if "REDUCE_GRAD" not in str(cell)] for row in actions]
    return "\n".join(map(",".join, rows))


if __name__ == "worker":
    run_rank(*globals()["ARGUMENTS"])
