"""Torch's own runtime executes the exported CSVs, and trains as one process does.

The file is also the program of one rank: it runs the schedules of CSV files one after the other and leaves the stage's
parameters beside them.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, _schedule_visualizer
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.nn.functional import mse_loss

from rtk.planners.pipeline import plan_from_orders, plan_pipeline
from rtk.planners.shape import Shape
from rtk.runners.torch_csv import from_torch_csv, to_torch_comms_csv, to_torch_csv
from rtk.schemas.orders import Schedule
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

if __name__ != "worker":  # which knows no package of tests
    from ..warm import fork

STAGES, MICROBATCHES, WIDTH = 4, 8, 8
# Unlike costs, so that the messages of a compute_comms file lie where no table of equal slots would have them.
PROFILE = Profile(tuple(Layer((LayerCost(1.0 + layer, 1.0, 0.5 * layer),)) for layer in range(STAGES)))
EVEN = Profile(tuple(Layer((LayerCost(1.0, 1.0, 1.0),)) for _ in range(STAGES)))
SHAPE = Shape(STAGES, 1, MICROBATCHES)
SCHEDULES: tuple[Schedule, ...] = ("1f1b", "zero-bubble", "gpipe")
FORMATS = {"compute_only": to_torch_csv, "compute_comms": to_torch_comms_csv}
RATE, STEPS = 0.5, 3
DEADLINE_S = 60.0


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


def make_model() -> list[Stage]:
    """The same stages in every process."""
    torch.manual_seed(0)
    return [Stage() for _ in range(STAGES)]


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """The same inputs and targets in every process, two rows a micro-batch."""
    torch.manual_seed(1)
    return torch.randn(2 * MICROBATCHES, WIDTH), torch.randn(2 * MICROBATCHES, WIDTH)


def make_plan(schedule: Schedule, profile: Profile = PROFILE) -> Plan:
    """One pipeline of four stages."""
    return plan_pipeline(profile, SHAPE, schedule)


def parameters(stage: nn.Module) -> list[torch.Tensor]:
    """The values of a stage's parameters."""
    return [parameter.detach() for parameter in stage.parameters()]


def run_rank(rank: int, folder: Path, csv_files: Sequence[str]) -> None:
    """Train under every schedule on this rank, in torch's runtime, from fresh parameters."""
    torch.set_num_threads(1)
    meeting = f"file://{folder / 'store'}"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=STAGES)
    inputs, targets = make_batch()
    for csv_file in csv_files:
        module = make_model()[rank]
        stage = PipelineStage(module, rank, STAGES, torch.device("cpu"))
        runtime = _PipelineScheduleRuntime([stage], MICROBATCHES, loss_fn=mse_loss)  # type: ignore[no-untyped-call]
        runtime._load_csv(csv_file, format=Path(csv_file).suffix[1:])  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
        for _ in range(STEPS):
            optimizer.zero_grad()
            runtime.step(*([inputs] if rank == 0 else []), target=targets if rank == STAGES - 1 else None)
            optimizer.step()
        torch.save(parameters(module), f"{csv_file}.{rank}")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[torch.Tensor]]]:
    """The parameters of each stage, by file, as torch's runtime trained them on one process a stage."""
    folder = tmp_path_factory.mktemp("torch")
    csv_files = [folder / f"{schedule}.{form}" for schedule in SCHEDULES for form in FORMATS]
    for file in csv_files:
        file.write_text(FORMATS[file.suffix[1:]](make_plan(file.stem)))  # type: ignore[arg-type]
    ranks = [fork(__file__, rank, folder, list(map(str, csv_files))) for rank in range(STAGES)]
    try:
        deadline = time.monotonic() + DEADLINE_S
        for rank in ranks:
            rank.join(max(0.0, deadline - time.monotonic()))
        assert [rank.exitcode for rank in ranks] == [0] * STAGES
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    return {file.name: [torch.load(f"{file}.{rank}") for rank in range(STAGES)] for file in csv_files}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_torch_trains_as_one_process(
    trained: dict[str, list[list[torch.Tensor]]], schedule: Schedule, form: str
) -> None:
    """4 stages, 8 micro-batches, one process a stage, 3 steps of SGD: every parameter to 1e-6."""
    model = make_model()
    inputs, targets = make_batch()
    optimizer = torch.optim.SGD(nn.Sequential(*model).parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        mse_loss(nn.Sequential(*model)(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for stage, before, found in zip(model, make_model(), trained[f"{schedule}.{form}"], strict=True):
        moved = [(b - a).abs().max() for a, b in zip(parameters(before), parameters(stage), strict=True)]
        assert float(max(moved)) > 1e-3
        for expected, parameter in zip(parameters(stage), found, strict=True):
            torch.testing.assert_close(parameter, expected, atol=1e-6, rtol=0)


def test_torchs_own_gpipe_is_ours() -> None:
    """What torch generates is imported as a valid plan with the orders of our own planner."""
    # Its 1F1B will not do: torch 2.13 numbers the last rank's forwards from 1, in the table though not in execution.
    actions: Any = _schedule_visualizer.get_schedule_ops("GPipe", STAGES, MICROBATCHES)
    # Its tables end in the sum over data-parallel ranks, which its own compute_only loader refuses.
    rows = [["" if cell is None else str(cell) for cell in row if "REDUCE_GRAD" not in str(cell)] for row in actions]
    orders = from_torch_csv("\n".join(map(",".join, rows)), "torch")
    assert plan_from_orders(EVEN, orders, SHAPE, "import", "torch").workers == make_plan("gpipe", EVEN).workers


if __name__ == "worker":
    run_rank(*globals()["ARGUMENTS"])
