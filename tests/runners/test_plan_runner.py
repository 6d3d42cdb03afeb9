"""The torch runner trains as a single process does, whatever the plan."""

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.presets import GptConfig
from rtk.runners.processes import main
from rtk.runners.torch.runner import PlanRunner
from rtk.runners.torch.stage import TorchStage
from rtk.schemas.check import check_timeline, require_valid
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.orders import Schedule
from rtk.schemas.plan import Optimizer, Pipeline, Plan, Planner, Template, Worker
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.timeline import Timeline

from .ranks import run_ranks

Batches = dict[int, list[tuple[torch.Tensor, torch.Tensor]]]

BLOCKS = 4


def profile(seconds: float = 1.0) -> Profile:
    cost = LayerCost(seconds, seconds, seconds)
    return Profile(tuple(Layer((cost,), activation_bytes=2, weight_stash_bytes=1) for _ in range(BLOCKS + 2)))


def model() -> list[nn.Module]:
    torch.manual_seed(1)
    return list(gpt_layers(GptConfig(blocks=BLOCKS, width=32, heads=2, vocabulary=64, positions=16)))


def batch(iteration: int, microbatches: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(iteration)
    tokens = torch.randint(0, 64, (microbatches, 2, 17), generator=generator)
    return [(rows[:, :-1], rows[:, 1:]) for rows in tokens]


def single_process(layers: list[nn.Module], iterations: int, microbatches: int, lr: float) -> list[float]:
    """The reference: all micro-batches one after the other through the whole model, then AdamW."""
    whole = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(whole.parameters(), lr=lr)
    losses = []
    for iteration in range(iterations):
        optimizer.zero_grad()
        total = 0.0
        for inputs, targets in batch(iteration, microbatches):
            loss = language_model_loss(whole(inputs), targets) / microbatches
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        losses.append(total)
        optimizer.step()
    return losses


def gradients(runner: PlanRunner) -> dict[str, torch.Tensor]:
    """A rank's gradients after one iteration, by the parameters' names in the whole model."""
    runner.step(batch(0, runner.plan.total_microbatches()))
    first = runner.plan.stage_of(runner.worker).layers[0]
    named = runner.stage.layers.named_parameters()
    found = {}
    for name, parameter in named:
        index, _, rest = name.partition(".")
        assert parameter.grad is not None
        found[f"{first + int(index)}.{rest}"] = parameter.grad.clone()
    return found


def assert_same_gradients(plan: Plan) -> None:
    layers = model()
    got = run_ranks(plan, layers, language_model_loss, lambda ps: torch.optim.SGD(ps, lr=0.0), gradients)
    single_process(layers, 1, plan.total_microbatches(), lr=0.0)
    wanted = {name: p.grad for name, p in nn.Sequential(*layers).named_parameters()}
    assert {name for part in got for name in part} == set(wanted)
    for part in got:
        for name, gradient in part.items():
            reference = wanted[name]
            assert reference is not None
            assert torch.allclose(gradient, reference, atol=1e-6, rtol=0), name


@pytest.mark.parametrize(
    ("schedule", "shape"),
    [
        (schedule, shape)
        for schedule in get_args(Schedule)
        for shape in ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (3, 2))
    ],
)
def test_gradients_equal_a_single_process(schedule: Schedule, shape: tuple[int, int]) -> None:
    """After one iteration the gradients equal single-process training to 1e-6, for every schedule and shape."""
    pp, dp = shape
    assert_same_gradients(plan_pipeline(profile(), Shape(pp, dp, 4), schedule))


def test_gradients_of_a_rerouted_plan_equal_a_single_process() -> None:
    """A dead worker's micro-batches run on its peer, and no gradient changes."""
    plan = plan_pipeline(profile(), Shape(2, 2, 2), "1f1b")
    workers = (
        Worker(0, 0, "F0 F1 B0 B1"),
        Worker(0, 1, "F0 B0 F1.0 B1.0 F1 B1 F1.1 B1.1"),
        Worker(1, 0, "F0 F1 B0 B1"),
        Worker(1, 1, failed=True),
    )
    rerouted = replace(plan, workers=workers, prediction=None, planner=Planner("by hand", "1", {}))
    require_valid(rerouted, "the plan")
    assert_same_gradients(rerouted)


def unlike(*pipelines: tuple[int, int], schedule: Schedule = "1f1b") -> Plan:
    """A plan of pipelines of so many stages and micro-batches each, whatever cut that makes."""
    parts = [plan_pipeline(profile(), Shape(pp, 1, count), schedule) for pp, count in pipelines]
    templates = {pp: replace(part.templates[0], name=f"n{pp}") for (pp, _), part in zip(pipelines, parts, strict=True)}
    plan = Plan(
        Planner("by hand", "1", {}),
        tuple(templates.values()),
        tuple(Pipeline(f"n{pp}", count) for pp, count in pipelines),
        "synchronous",
        tuple(replace(worker, pipeline=k) for k, part in enumerate(parts) for worker in part.workers),
    )
    plan.validate()
    require_valid(plan, "the plan")
    return plan


def losses_of(plan: Plan, layers: list[nn.Module], iterations: int) -> list[float]:
    """The losses, which all workers know, and one of the model's last layer tells."""

    def train(runner: PlanRunner) -> tuple[bool, list[float | None]]:
        rows = [batch(n, plan.total_microbatches()) for n in range(iterations)]
        return runner.reports_loss(), [runner.step(row).loss for row in rows]

    ranks = run_ranks(plan, layers, language_model_loss, lambda ps: torch.optim.AdamW(ps, lr=1e-3), train)
    assert [reports for reports, _ in ranks].count(True) == 1
    assert all(losses == ranks[0][1] for _, losses in ranks)
    return [loss for loss in ranks[0][1] if loss is not None]


def double(layers: list[nn.Module]) -> list[nn.Module]:
    return [layer.double() for layer in layers]


@pytest.mark.parametrize(
    "plan", [unlike((3, 5), (2, 3)), unlike((2, 1), (3, 4), (1, 3), schedule="zero-bubble")], ids=["3+2", "2+3+1"]
)
def test_pipelines_of_unlike_cuts_train_as_a_single_process_does(plan: Plan) -> None:
    """Pipelines that cut the layers elsewhere, with unequal numbers of micro-batches, take the very same steps."""
    found = losses_of(plan, double(model()), 4)
    assert found == pytest.approx(single_process(double(model()), 4, 8, lr=1e-3), abs=1e-12)


@pytest.mark.parametrize("optimizer", ["synchronous", "staggered"])
def test_gradients_of_unlike_cuts_equal_a_single_process(optimizer: Optimizer) -> None:
    """Every holder of a layer has the gradient of the mean over all micro-batches, also with a staggered optimizer."""
    assert_same_gradients(replace(unlike((3, 5), (2, 3)), optimizer=optimizer))


def test_a_last_layer_without_parameters_tells_the_loss() -> None:
    """Where the model's last layer has no gradients for the loss to go with, it is summed all the same."""
    layers = [*double(model()), nn.Identity()]
    plan = unlike((3, 1), (2, 2))
    cuts = ((0, 2, 4, 7), (0, 5, 7))
    templates = tuple(_cut_at(template, cut) for template, cut in zip(plan.templates, cuts, strict=True))
    found = losses_of(replace(plan, templates=templates), layers, 2)
    assert found == pytest.approx(single_process([*double(model()), nn.Identity()], 2, 3, lr=1e-3), abs=1e-12)


def _cut_at(template: Template, cut: tuple[int, ...]) -> Template:
    stages = zip(template.stages, pairwise(cut), strict=True)
    return replace(template, stages=tuple(replace(stage, layers=layers) for stage, layers in stages))


class Dropping(nn.Module):
    """A layer with dropout before and behind it, computed anew for its backward pass."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Dropout(0.2), layer, nn.Dropout(0.3))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = checkpoint(self.layers, value, use_reentrant=False)
        return found


def dropping() -> list[nn.Module]:
    first, *blocks, last = double(model())
    return [first, *map(Dropping, blocks), last]


def test_dropout_is_the_same_however_the_layers_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout, recomputed in the backward pass, pipelines of three stages, of two and of both kinds lose alike."""
    # Ranks are threads here that share a random generator; processes have one each.
    alone = threading.RLock()

    def locked(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            with alone:
                return method(*arguments, **named)

        return run

    for name in ("forward", "backward"):
        monkeypatch.setattr(TorchStage, name, locked(getattr(TorchStage, name)))
    plans = (unlike((3, 4)), unlike((2, 4)), unlike((3, 1), (2, 3)))
    three, two, both = (losses_of(plan, dropping(), 3) for plan in plans)
    assert three == pytest.approx(two, abs=1e-12)
    assert three == pytest.approx(both, abs=1e-12)
    assert three != pytest.approx(single_process(double(model()), 3, 4, lr=1e-3), abs=1e-3)


@pytest.mark.parametrize(
    ("schedule", "dp", "iterations"), [("1f1b", 1, 20), ("1f1b", 2, 20), ("zero-bubble", 1, 20), ("zero-bubble", 2, 50)]
)
def test_iterations_lose_as_a_single_process_does(schedule: Schedule, dp: int, iterations: int) -> None:
    """Over 20 iterations of AdamW, and over 50, every loss is within 1e-5 of single-process training."""
    plan = plan_pipeline(profile(), Shape(2, dp, 4), schedule)

    def train(runner: PlanRunner) -> list[float | None]:
        return [runner.step(batch(n, plan.total_microbatches())).loss for n in range(iterations)]

    ranks = run_ranks(plan, model(), language_model_loss, lambda ps: torch.optim.AdamW(ps, lr=1e-3), train)
    wanted = single_process(model(), iterations, plan.total_microbatches(), lr=1e-3)
    for losses in ranks:
        assert losses == pytest.approx(wanted, abs=1e-5)
    assert wanted[-1] < wanted[0]


def test_staggered_optimizer_trains_the_same() -> None:
    """Without waiting for other stages before its step, every stage still takes the same steps."""
    plan = replace(plan_pipeline(profile(), Shape(2, 2, 2), "zero-bubble"), optimizer="staggered", prediction=None)

    def train(runner: PlanRunner) -> list[float | None]:
        return [runner.step(batch(n, plan.total_microbatches())).loss for n in range(5)]

    ranks = run_ranks(plan, model(), language_model_loss, lambda ps: torch.optim.AdamW(ps, lr=1e-3), train)
    assert ranks[1] == pytest.approx(single_process(model(), 5, plan.total_microbatches(), lr=1e-3), abs=1e-5)


def test_the_measured_timeline_keeps_the_plan() -> None:
    """The independent checker finds every operation in order, none overlapping, none before its input."""
    plan = plan_pipeline(profile(), Shape(2, 2, 3), "zero-bubble")

    def train(runner: PlanRunner) -> Timeline | None:
        for n in range(3):
            runner.step(batch(n, plan.total_microbatches()))
        return runner.timeline()

    first, *others = run_ranks(plan, model(), language_model_loss, torch.optim.AdamW, train)
    assert others == [None] * 3
    assert first is not None
    assert first.source == "measured"
    assert check_timeline(plan, first) == []
    assert {span.iteration for span in first.spans} == {0, 1, 2}


def test_a_paced_run_lasts_what_the_plan_says() -> None:
    """No operation of a paced run is shorter than planned, and messages take at least their links' delays."""
    plan = plan_pipeline(profile(0.005), Shape(2, 1, 2, link_delay_s={(None, 0): 0.02}), "1f1b")

    def train(runner: PlanRunner) -> Timeline | None:
        runner.step(batch(0, 2))
        return runner.timeline()

    timeline = run_ranks(plan, model(), language_model_loss, torch.optim.AdamW, train, paced=True)[0]
    assert timeline is not None
    assert timeline.paced
    spans = {(span.worker, span.op): span for span in timeline.spans}
    for worker in plan.workers:
        for token in (worker.order or "").split():
            span = spans[worker.name, token]
            assert span.end_s - span.start_s >= plan.stage_of(worker).duration_s(token[0])
    assert spans["0/1", "F0"].start_s - spans["0/0", "F0"].end_s >= 0.02
    assert spans["0/0", "B0"].start_s - spans["0/1", "B0"].end_s >= 0.02


def test_a_wrong_world_size_is_refused() -> None:
    """A job of more or fewer processes than the plan has live workers is refused, saying both numbers."""
    plan = plan_pipeline(profile(), Shape(2, 1, 2), "1f1b")
    with pytest.raises(InvalidInputError, match="2 live workers, this job has 3 processes"):
        PlanRunner(plan, model(), language_model_loss, torch.optim.AdamW, rank=0, world_size=3)


def test_outside_torchrun_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bare KeyError: which command starts the script, with how many processes."""
    monkeypatch.delenv("RANK", raising=False)
    plan = plan_pipeline(profile(), Shape(2, 1, 2), "1f1b")
    with pytest.raises(InvalidInputError, match="no rank of a job: RANK is not set") as refused:
        PlanRunner(plan, model(), language_model_loss, torch.optim.AdamW)
    assert "torchrun --nproc-per-node 2" in str(refused.value.fix)


@pytest.mark.parametrize(("rank", "is_said"), [("0", True), ("1", False)])
def test_a_script_ends_with_one_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rank: str, is_said: bool
) -> None:
    """What is wrong for all ranks is said by the first one; each ends with the error's exit code."""
    monkeypatch.setenv("RANK", rank)
    plan = plan_pipeline(profile(), Shape(2, 1, 2), "1f1b")
    with pytest.raises(SystemExit) as end:
        main(lambda: PlanRunner(plan, model(), language_model_loss, torch.optim.AdamW, world_size=3))
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: the plan has 2 live workers") == is_said


@pytest.mark.parametrize(("part", "microbatch"), [(0, 1), (1, 3), (0, 2)])
@pytest.mark.parametrize(
    "change", [lambda tensor: tensor[:1], lambda tensor: tensor.repeat(2, 1), lambda tensor: tensor.int()]
)
def test_a_micro_batch_of_another_shape_is_refused_by_all_ranks(
    part: int, microbatch: int, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """A smaller last one, say, or one of another type: all ranks raise the same error, though only some of them see it;
    nobody hangs."""
    plan = plan_pipeline(profile(), Shape(2, 2, 2), "1f1b")

    def train(runner: PlanRunner) -> str:
        runner.step(batch(0, 4))
        given = batch(1, 4)
        pair = list(given[microbatch])
        pair[part] = change(pair[part])
        given[microbatch] = (pair[0], pair[1])
        with pytest.raises(InvalidInputError) as refused:
            runner.step(given)
        runner.close = lambda: None  # type: ignore[method-assign]
        return str(refused.value)

    said = run_ranks(plan, model(), language_model_loss, lambda ps: torch.optim.SGD(ps, lr=0.0), train)
    assert len(set(said)) == 1
    assert f"the {('inputs', 'targets')[part]} of micro-batch {microbatch} are [" in said[0]
    assert "of the first one [2, 16] of int64" in said[0]


def test_a_model_of_another_depth_is_refused() -> None:
    """A plan for 6 layers does not run a model of 5."""
    plan = plan_pipeline(profile(), Shape(2, 1, 2), "1f1b")
    with pytest.raises(InvalidInputError, match="places 6 layers, the model has 5"):
        run_ranks(plan, model()[:-1], language_model_loss, torch.optim.AdamW, lambda runner: None)
