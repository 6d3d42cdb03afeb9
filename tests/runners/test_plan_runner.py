"""The torch runner trains as a single process does, whatever the plan."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from rtk.planners.pipeline.plan import Schedule, plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import GptConfig, gpt_layers, language_model_loss
from rtk.runners.torch.runner import PlanRunner
from rtk.schemas.check import check_timeline, require_valid
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan, Planner, Worker
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
        for schedule in ("gpipe", "1f1b", "zero-bubble")
        for shape in ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (3, 2))
    ],
)
def test_gradients_equal_a_single_process(schedule: Schedule, shape: tuple[int, int]) -> None:
    """After one iteration the gradients equal single-process training to 1e-6, for every schedule and shape."""
    pp, dp = shape
    assert_same_gradients(plan_pipeline(profile(), schedule, Shape(pp, dp, 4)))


def test_gradients_of_a_rerouted_plan_equal_a_single_process() -> None:
    """A dead worker's micro-batches run on its peer, and no gradient changes."""
    plan = plan_pipeline(profile(), "1f1b", Shape(2, 2, 2))
    workers = (
        Worker(0, 0, "F0 F1 B0 B1"),
        Worker(0, 1, "F0 B0 F1.0 B1.0 F1 B1 F1.1 B1.1"),
        Worker(1, 0, "F0 F1 B0 B1"),
        Worker(1, 1, failed=True),
    )
    rerouted = replace(plan, workers=workers, prediction=None, planner=Planner("by hand", "1", {}))
    require_valid(rerouted, "the plan")
    assert_same_gradients(rerouted)


@pytest.mark.parametrize(("schedule", "dp"), [("1f1b", 1), ("1f1b", 2), ("zero-bubble", 1), ("zero-bubble", 2)])
def test_fifty_iterations_lose_as_a_single_process_does(schedule: Schedule, dp: int) -> None:
    """Over 50 iterations of AdamW every loss is within 1e-5 of single-process training."""
    plan = plan_pipeline(profile(), schedule, Shape(2, dp, 4))

    def train(runner: PlanRunner) -> list[float | None]:
        return [runner.step(batch(n, plan.total_microbatches())).loss for n in range(50)]

    ranks = run_ranks(plan, model(), language_model_loss, lambda ps: torch.optim.AdamW(ps, lr=1e-3), train)
    wanted = single_process(model(), 50, plan.total_microbatches(), lr=1e-3)
    for worker, losses in zip(plan.workers, ranks, strict=True):
        if worker.stage == 1:
            assert losses == pytest.approx(wanted, abs=1e-5)
        else:
            assert set(losses) == {None}
    assert wanted[-1] < wanted[0]


def test_staggered_optimizer_trains_the_same() -> None:
    """Without waiting for other stages before its step, every stage still takes the same steps."""
    plan = replace(plan_pipeline(profile(), "zero-bubble", Shape(2, 2, 2)), optimizer="staggered", prediction=None)

    def train(runner: PlanRunner) -> list[float | None]:
        return [runner.step(batch(n, plan.total_microbatches())).loss for n in range(5)]

    ranks = run_ranks(plan, model(), language_model_loss, lambda ps: torch.optim.AdamW(ps, lr=1e-3), train)
    assert ranks[1] == pytest.approx(single_process(model(), 5, plan.total_microbatches(), lr=1e-3), abs=1e-5)


def test_the_measured_timeline_keeps_the_plan() -> None:
    """The independent checker finds every operation in order, none overlapping, none before its input."""
    plan = plan_pipeline(profile(), "zero-bubble", Shape(2, 2, 3))

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
    plan = plan_pipeline(profile(0.005), "1f1b", Shape(2, 1, 2, link_delay_s={(None, 0): 0.02}))

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
    plan = plan_pipeline(profile(), "1f1b", Shape(2, 1, 2))
    with pytest.raises(InvalidInputError, match="2 live workers, this job has 3 processes"):
        PlanRunner(plan, model(), language_model_loss, torch.optim.AdamW, rank=0, world_size=3)


def test_a_model_of_another_depth_is_refused() -> None:
    """A plan for 6 layers does not run a model of 5."""
    plan = plan_pipeline(profile(), "1f1b", Shape(2, 1, 2))
    with pytest.raises(InvalidInputError, match="places 6 layers, the model has 5"):
        PlanRunner(plan, model()[:-1], language_model_loss, torch.optim.AdamW, rank=0, world_size=2)


def test_weights_tied_across_stages_are_refused() -> None:
    """A parameter in two stages would get two different gradients; within one stage it is fine."""
    layers = model()
    layers[5].get_submodule("logits").weight = layers[0].get_submodule("token").weight
    plan = plan_pipeline(profile(), "1f1b", Shape(2, 1, 2))
    with pytest.raises(InvalidInputError, match="share a parameter"):
        PlanRunner(plan, layers, language_model_loss, torch.optim.AdamW, rank=0, world_size=2)
