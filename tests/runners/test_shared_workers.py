"""Plans of several GPUs a worker, executed: what is learned is what one process learns."""

import copy
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import Store

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import TENSOR_PARALLEL, gpt_layers, language_model_loss
from rtk.profilers.models.joint import ModelCuts
from rtk.profilers.models.load import load_model
from rtk.profilers.models.presets import GptConfig
from rtk.profilers.models.sharding import TensorParallelPlan
from rtk.runners.program import lower
from rtk.runners.torch.data.provider import Provider
from rtk.runners.torch.evaluation import HeldOut
from rtk.runners.torch.layer_shares import check_cuts, cut_ties
from rtk.runners.torch.layout import RankLayout
from rtk.runners.torch.recut import recut
from rtk.runners.torch.runner import PlanRunner, check_model
from rtk.runners.torch.ties import ties_of
from rtk.schemas.degrees import Degrees
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.orders import Schedule
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, ModelForm, Profile
from rtk.schemas.slices import CUT, TensorCut, pieces_for
from rtk.schemas.timeline import Timeline
from rtk.training import Training

from .ranks import run_made, run_ranks
from .test_rank_group import LLAMA, grouped_layers

LAYERS, MICROBATCHES, ITERATIONS = 4, 2, 2
CUTS = ModelCuts(TENSOR_PARALLEL)
Batch = list[tuple[torch.Tensor, torch.Tensor]]


def plan(degrees: Degrees, dp: int = 2, schedule: Schedule = "zero-bubble", delay_s: float = 0.0) -> Plan:
    """A plan of workers that are as many ranks, their link so slow."""
    costs = tuple(LayerCost(1.0, 1.0, 1.0, tensor_parallel=degree) for degree in (1, 2, 4))
    profile = Profile((Layer(costs, activation_bytes=2, weight_stash_bytes=1),) * LAYERS)
    return plan_pipeline(
        profile,
        Shape(2, dp, MICROBATCHES, link_delay_s={(None, 0): delay_s} if delay_s else None, tensor_parallel=degrees),
        schedule,
    )


def model(is_tied: bool = False) -> list[nn.Module]:
    """The same layers each time, in float64."""
    torch.manual_seed(1)
    layers = gpt_layers(GptConfig(blocks=LAYERS - 2, width=16, heads=4, vocabulary=30, positions=8))
    if is_tied:
        layers[-1].logits.weight = layers[0].token.weight  # type: ignore[union-attr]
    return [layer.double() for layer in layers]


CUT_BY_NAME = {f"{n}.{name}": one for n, layer in enumerate(model()) for name, one in CUTS.tensors(layer).items()}


def batch(iteration: int, total: int) -> Batch:
    """An iteration's micro-batches."""
    tokens = torch.randint(30, (total, 2, 9), generator=torch.Generator().manual_seed(iteration))
    return [(rows[:, :-1], rows[:, 1:]) for rows in tokens]


def alone(layers: Sequence[nn.Module], total: int, clip_norm: float | None) -> list[float]:
    """The losses of one process, which trains the layers in place."""
    whole, losses = nn.Sequential(*layers), []
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-2)
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        found = [language_model_loss(whole(inputs), targets) / total for inputs, targets in batch(iteration, total)]
        torch.autograd.backward(found)
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(whole.parameters(), clip_norm)
        optimizer.step()
        losses.append(sum(map(float, torch.stack(found).detach())))
    return losses


Trained = tuple[int, list[float | None], list[float | None], dict[str, torch.Tensor]]


def train(runner: PlanRunner) -> Trained:
    """Which of its worker's ranks it is, losses, norms, and the parameters by their names in the model."""
    total = runner.plan.total_microbatches()
    results = [runner.step(batch(number, total)) for number in range(ITERATIONS)]
    numbers = [number for own in runner.plan.layers_of(runner.worker) for number in range(*own)]
    named = {
        f"{number}.{name.replace(f'{CUT}.', '')}": parameter.detach()
        for number, layer in zip(numbers, runner.stage.layers, strict=True)
        for name, parameter in layer.named_parameters()
    }
    return runner.share, [one.loss for one in results], [one.grad_norm for one in results], named


def assert_trains_alike(asked: Plan, is_tied: bool = False, clip_norm: float | None = None) -> None:
    """All ranks' losses and slices of parameters are those of one process after some steps, to 1e-12 or so."""
    layers, cuts = model(is_tied), CUT_BY_NAME
    ranks = run_ranks(asked, layers, language_model_loss, _adam, train, clip_norm=clip_norm, cuts=CUTS)
    losses = alone(layers, asked.total_microbatches(), clip_norm)
    whole = dict(nn.Sequential(*layers).named_parameters(remove_duplicate=False))
    degrees = [degree for worker in asked.live_workers() for degree in [asked.gpus_of(worker)] * asked.gpus_of(worker)]
    for degree, (share, found, norms, named) in zip(degrees, ranks, strict=True):
        if None not in found:
            assert found == pytest.approx(losses, rel=1e-12)
            assert norms == ranks[0][2]
        for name, own in named.items():
            wanted = whole[name].detach()
            if name in cuts and degree > 1:
                pieces = (one.taken for one in pieces_for(cuts[name], degree, share, 1))
                dimension = cuts[name].dimension
                wanted = torch.cat([wanted.narrow(dimension, first, stop - first) for first, stop in pieces], dimension)
            torch.testing.assert_close(own, wanted, rtol=1e-9, atol=1e-11)


def _adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_eight_ranks_learn_what_one_learns(schedule: Schedule) -> None:
    """Of two stages, two pipelines and two ranks a worker; gradients are clipped by a norm that counts all once."""
    assert_trains_alike(plan(2, schedule=schedule), clip_norm=0.5)


@pytest.mark.parametrize(("degrees", "delay_s"), [((1, 2), 0.0), ((4, 2), 0.0), ((2, 4), 0.001)])
def test_stages_may_be_of_unlike_degrees(degrees: Degrees, delay_s: float) -> None:
    """Messages are whole, so that each rank has them from any rank of the stage before; by delegates, if links are
    slow."""
    assert_trains_alike(plan(degrees, dp=1, delay_s=delay_s))


def test_tied_words_stay_equal_slice_by_slice() -> None:
    """An embedding and a head of the same words are cut alike, and each rank sums its slice's gradients of both."""
    assert_trains_alike(plan(2, dp=1), is_tied=True)


def test_a_staggered_optimizer_asks_nobody() -> None:
    """Without a common step each stage's ranks go on by themselves."""
    assert_trains_alike(replace(plan(2), optimizer="staggered"))


def test_evaluation_counts_each_micro_batch_once() -> None:
    """All ranks know the mean over held-out data, which the ranks of last stages have found several times."""
    layers, rows = model(), batch(9, 3)
    found = run_ranks(
        plan(2), layers, language_model_loss, _adam, lambda one: one.evaluate(HeldOut(rows, 3, 1)), cuts=CUTS
    )
    whole = nn.Sequential(*layers)
    losses = [float(language_model_loss(whole(inputs), targets).detach()) for inputs, targets in rows]
    assert len(found) == 8
    assert all(one == pytest.approx((sum(losses) / 3, 3.0), rel=1e-12) for one in found)


def test_another_loss_has_whole_logits() -> None:
    """A loss that is not cross entropy is given all words, and its gradient reaches each rank's."""
    layers = model()

    def squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        assert output.shape[-1] == 30
        return (output.log_softmax(-1).square().sum(-1) * target).mean()

    asked = plan(2, dp=1)
    ranks = run_ranks(asked, layers, squares, _adam, train, cuts=CUTS)
    whole = nn.Sequential(*layers)
    found = [squares(whole(inputs), targets) for inputs, targets in batch(0, MICROBATCHES)]
    mean = torch.stack(found).mean()
    norm = torch.nn.utils.get_total_norm(torch.autograd.grad(mean, list(whole.parameters())))
    assert ranks[0][1][0] == pytest.approx(mean.item(), rel=1e-12)
    assert ranks[0][2][0] == pytest.approx(float(norm), rel=1e-12)


class Rows:
    """Rows of tokens by number."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(30, (9,), generator=torch.Generator().manual_seed(number))
        return tokens[:-1], tokens[1:]


def training(**more: Any) -> Training:
    """A training of the small model, whose layers are its own and the same each time."""
    return Training(
        model=nn.Sequential(*model()), data=Rows(), loss=language_model_loss, microbatch_size=2, optimizer=_adam, **more
    )


def test_a_declared_training_is_run_by_several_ranks_a_worker() -> None:
    """A `Training` with a table of cuts gives a runner that trains as it does by itself, on the same rows."""
    asked = plan(2, dp=1)
    told = training(tensor_parallel=dict(TENSOR_PARALLEL), clip_norm=0.5)

    def make(rank: int, store: Store) -> PlanRunner:
        runner, data = copy.copy(told).runner(asked, rank=rank, world_size=4, store=store)
        rows[rank] = data
        return runner

    def losses(runner: PlanRunner) -> list[float | None]:
        return [runner.step(rows[runner.rank].batch(runner.iteration)).loss for _ in range(3)]

    rows: dict[int, Provider] = {}
    found = run_made(4, make, losses)
    assert all(one == pytest.approx(told.step(asked, 3), rel=1e-12) for one in found[:1])
    assert found == found[:1] * 4
    with pytest.raises(InvalidInputError, match="is no tensor-parallel plan"):
        training(tensor_parallel={"qkv": "sideways"})


FAMILIES: dict[str, dict[str, object]] = {
    "llama": {"num_key_value_heads": 4, "intermediate_size": 48},
    "qwen3": {"num_key_value_heads": 1, "intermediate_size": 48, "head_dim": 8},
    "gpt2": {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
}


@pytest.mark.parametrize("family", list(FAMILIES))
def test_transformers_models_are_trained(family: str, tmp_path: Path) -> None:
    """Two ranks a worker train models of a config.json, also checkpointed, as one does up to float32's rounding: with
    grouped heads, one for all, norms of heads, and a fused and a tied matrix."""
    pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_attention_heads": 8, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, **FAMILIES[family], **sizes}))
    found = load_model(str(tmp_path), 2, 7, form=ModelForm(checkpointing=family == "llama"))
    rows = [found.example(number)[:2] for number in range(MICROBATCHES)]

    def losses(runner: PlanRunner) -> list[float | None]:
        return [runner.step(rows).loss for _ in range(3)]

    cuts = ModelCuts(found.tensor_parallel)
    two, one = (
        run_ranks(plan(degree, dp=1), found.layers, found.loss, partial(torch.optim.SGD, lr=0.1), losses, cuts=cuts)[0]
        for degree in (2, 1)
    )
    assert two == pytest.approx(one, rel=1e-6)
    assert two[2] < two[0]  # type: ignore[operator]


@pytest.mark.parametrize("degrees", [(4, 2), (2, 4), (2, 1), (1, 4)])
def test_training_goes_on_at_another_degree(degrees: tuple[int, int]) -> None:
    """What ranks of one degree have learned, optimizer included, goes on at another as if nothing had been."""
    layers, (before, after) = model(), degrees

    def first(runner: PlanRunner) -> dict[str, torch.Tensor]:
        runner.step(batch(0, MICROBATCHES))
        return {name: value.clone() for name, value in runner.state().items()}

    def second(runner: PlanRunner) -> Trained:
        workers = [states[worker * before : (worker + 1) * before] for worker in range(2)]
        runner.load(workers[runner.worker.stage], 1)
        found = runner.step(batch(1, MICROBATCHES))
        return runner.share, [found.loss], [found.grad_norm], runner.state()

    states = run_ranks(plan(before, dp=1), layers, language_model_loss, _adam, first, cuts=CUTS)
    ranks = run_ranks(plan(after, dp=1), layers, language_model_loss, _adam, second, cuts=CUTS)
    losses = alone(layers, MICROBATCHES, None)
    assert all(found == [pytest.approx(losses[1], rel=1e-12)] for _, found, *_ in ranks)
    whole = dict(nn.Sequential(*layers).named_parameters())
    joined = {
        name: recut([one[3] for one in ranks[rank : rank + after]], [name], CUT_BY_NAME, 1, 0)[name]
        for rank in (0, after)
        for name in ranks[rank][3]
        if name in whole
    }
    assert joined.keys() == whole.keys()
    for name, value in joined.items():
        torch.testing.assert_close(value, whole[name].detach(), rtol=1e-9, atol=1e-11)


def test_state_that_cannot_be_cut_again_is_refused() -> None:
    """A rank that lacks a layer, and an optimizer's state of another shape than the parameter's, are said by name."""
    cuts, matrix = {"0.w": TensorCut(0, 4)}, torch.zeros(2, 3)
    with pytest.raises(InvalidInputError, match=r"the state of rank 1 lacks 0\.w"):
        recut([{"0.w": matrix}, {}], ["0.w"], cuts, 1, 0)
    state = {"0.w": matrix, "0.w/row": torch.zeros(2)}
    with pytest.raises(InvalidInputError, match=r"what the optimizer keeps as 0\.w/row is of shape"):
        recut([state, state], ["0.w/row"], cuts, 1, 0)
    assert recut([state, state], ["0.w/row"], cuts, 2, 1) == {"0.w/row": state["0.w/row"]}


def test_a_timeline_tells_each_worker_once() -> None:
    """What the ranks of a worker do in step stands in the timeline once, by the worker's name."""

    def body(runner: PlanRunner) -> Timeline | None:
        runner.step(batch(0, runner.plan.total_microbatches()))
        return runner.timeline()

    timeline, *others = run_ranks(plan(2), model(), language_model_loss, _adam, body, cuts=CUTS)
    assert timeline is not None
    assert others == [None] * 7
    operations = [(span.worker, span.op) for span in timeline.spans]
    assert len(operations) == len(set(operations))
    assert {worker for worker, _ in operations} == {"0/0", "0/1", "1/0", "1/1"}


def test_ranks_of_a_worker_stand_together() -> None:
    """Ranks are counted worker by worker; each has its messages from one rank, and none twice."""
    layout = RankLayout.of(lower(plan((4, 2), dp=1)))
    assert layout.seats == ((0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1))
    assert [layout.source_of(rank, 0) for rank in (4, 5)] == [0, 1]
    assert [layout.targets_of(rank, 0) for rank in (4, 5)] == [(0, 2), (1, 3)]
    assert [layout.source_of(rank, 1) for rank in range(4)] == [4, 5, 4, 5]
    assert [layout.targets_of(rank, 1) for rank in range(4)] == [(4,), (5,), (), ()]
    assert layout.channels({(0, 1), (1, 0)}) == {(0, 4), (1, 5), (4, 0), (4, 2), (5, 1), (5, 3)}
    assert (layout.firsts, layout.group_of(5, (0, 1))) == ((0, 4), (1, 5))


def test_what_cannot_be_shared_is_refused_before_anybody_connects() -> None:
    """No cuts, a degree that divides no heads, words for some ranks only, weights tied to a whole one, and numbers of
    processes that the plan does not have are said in words."""
    two, layers = plan(2, dp=1), model()
    with pytest.raises(InvalidInputError, match="is on 2 GPUs, and nothing says how its layers are cut"):
        check_cuts(two, layers, None)
    layers[1].heads = 3  # type: ignore[assignment]
    with pytest.raises(InvalidInputError, match="degree 2 does not divide the 3 heads"):
        check_cuts(two, layers, CUTS)
    few = gpt_layers(GptConfig(blocks=2, width=16, heads=4, vocabulary=5, positions=8))
    head = ModelCuts({name: cut for name, cut in TENSOR_PARALLEL.items() if name != "token"})
    for cuts, where in ((CUTS, "layer 0, token"), (head, "layer 3, logits")):
        with pytest.raises(
            InvalidInputError, match=f"a vocabulary of 5 leaves nothing to the last of 4 ranks\nat: {where}"
        ):
            check_cuts(plan(4, dp=1), few, cuts)
    half = ModelCuts({name: cut for name, cut in TENSOR_PARALLEL.items() if name != "logits"})
    with pytest.raises(InvalidInputError, match="cut in one of them and whole in another"):
        cut_ties(ties_of(model(is_tied=True)), model(), half)
    with pytest.raises(InvalidInputError, match="the plan has 2 live workers on 4 GPUs, this job has 2 processes"):
        PlanRunner(two, model(), language_model_loss, _adam, rank=0, world_size=2, cuts=CUTS)


def lowered(asked: Plan, degrees: Sequence[int]) -> Plan:
    """The same plan with each pipeline's workers as so many ranks, which last as long."""
    (template,) = asked.templates
    templates = {
        degree: replace(
            template,
            name=f"of {degree}",
            stages=tuple(replace(stage, tensor_parallel=degree) for stage in template.stages),
        )
        for degree in degrees
    }
    pipelines = (replace(one, template=f"of {degree}") for one, degree in zip(asked.pipelines, degrees, strict=True))
    return replace(asked, templates=tuple(templates.values()), pipelines=tuple(pipelines))


def assert_sums_are_whole(
    asked: Plan, layers: Sequence[nn.Module], plan_of_cuts: TensorParallelPlan = TENSOR_PARALLEL
) -> None:
    """The summed gradients of each worker, put together, are those of one process, and equal bit for bit where workers
    have the same layers."""
    total, model_cuts = asked.total_microbatches(), ModelCuts(plan_of_cuts)
    cuts = {f"{n}.{name}": one for n, layer in enumerate(layers) for name, one in model_cuts.tensors(layer).items()}

    def gradients(runner: PlanRunner) -> dict[str, torch.Tensor]:
        runner.reduce(batch(0, total))
        numbers = [number for own in runner.plan.layers_of(runner.worker) for number in range(*own)]
        return {
            f"{number}.{name.replace(f'{CUT}.', '')}": one.grad.clone()
            for number, layer in zip(numbers, runner.stage.layers, strict=True)
            for name, one in layer.named_parameters()
            if one.grad is not None
        }

    ranks = iter(run_ranks(asked, layers, language_model_loss, _adam, gradients, cuts=model_cuts))
    whole = nn.Sequential(*layers)
    sum(language_model_loss(whole(inputs), targets) for inputs, targets in batch(0, total)).backward()  # type: ignore[union-attr]
    wanted = {name: one.grad for name, one in whole.named_parameters(remove_duplicate=False)}
    first: dict[str, torch.Tensor] = {}
    for worker in asked.live_workers():
        states = [next(ranks) for _ in range(asked.gpus_of(worker))]
        for state in states:
            for name in state.keys() - cuts.keys():
                assert torch.equal(state[name], states[0][name]), name
        for name, value in recut(states, list(states[0]), cuts, 1, 0).items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-12, atol=1e-14)
            assert torch.equal(first.setdefault(name, value), value), name


@pytest.mark.parametrize(
    ("degrees", "schedule", "is_tied"),
    [
        ((2, 1), "1f1b", True),
        ((2, 1), "zero-bubble", False),
        ((4, 2), "1f1b", False),
        ((4, 2), "zero-bubble", True),
        ((1, 4, 2), "1f1b", True),
    ],
)
def test_workers_of_unlike_degrees_sum_slice_by_slice(
    degrees: Sequence[int], schedule: Schedule, is_tied: bool
) -> None:
    """Peers of any degrees have the gradients of one process to 1e-12, by F and B as by F, I and W: also of words that
    no degree divides and that two stages share, and of what is whole, which counts once."""
    assert_sums_are_whole(lowered(plan(2, dp=len(degrees), schedule=schedule), degrees), model(is_tied))


def test_chunks_of_unlike_degrees_are_summed_early() -> None:
    """Where a worker has several stages, sums of slices are begun while it still computes."""
    costs = tuple(LayerCost(1.0, 1.0, 1.0, tensor_parallel=degree) for degree in (1, 2))
    profile = Profile((Layer(costs, activation_bytes=2, weight_stash_bytes=1),) * LAYERS)
    placed = plan_pipeline(
        profile, Shape(2, 2, MICROBATCHES, placement="v", chunks=2, tensor_parallel=2), "zero-bubble"
    )
    assert_sums_are_whole(lowered(placed, (2, 1)), model())
    (template,) = placed.templates
    first, *others = template.stages
    unlike = replace(template, stages=(replace(first, tensor_parallel=1), *others))
    with pytest.raises(InvalidInputError, match="the stages of worker 0/0 are on 1 and 2 GPUs"):
        RankLayout.of(lower(replace(placed, templates=(unlike,))))


@pytest.mark.parametrize(("degrees", "schedule"), [((4,), "zero-bubble"), ((4, 1), "1f1b")])
def test_key_value_heads_may_be_fewer_than_ranks(degrees: Sequence[int], schedule: Schedule) -> None:
    """Ranks that repeat a head sum its gradients, each of its own queries, with each other and with the worker that has
    it once; what is learned stays equal on all of them, and norms count it once."""
    torch.manual_seed(2)
    layers = [layer.double() for layer in grouped_layers(groups=2)]
    asked = lowered(plan(4, dp=len(degrees), schedule=schedule), degrees)
    assert_sums_are_whole(asked, layers, LLAMA)
    total, cuts = asked.total_microbatches(), ModelCuts(LLAMA)
    whole = nn.Sequential(*copy.deepcopy(layers))
    mean = torch.stack([language_model_loss(whole(one), targets) for one, targets in batch(0, total)]).mean()
    norm = torch.nn.utils.get_total_norm(torch.autograd.grad(mean, list(whole.parameters())))
    for _, _, norms, _ in run_ranks(asked, layers, language_model_loss, _adam, train, clip_norm=0.1, cuts=cuts):
        assert norms[0] == pytest.approx(float(norm), rel=1e-12)


def test_a_lowered_worker_steps_as_all_others() -> None:
    """Norms, by which gradients are clipped, count all once where one pipeline has four ranks a worker and one two."""
    assert_trains_alike(lowered(plan(2, dp=2), (4, 2)), clip_norm=0.5)


def test_parameters_that_other_ranks_share_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DTensor's sums are torch's own, in which the others would wait for a rank that dies: it is named, and why."""

    class Spread(nn.Parameter):
        """Stands for a DTensor, which only a process group of torch's own can make."""

    monkeypatch.setitem(sys.modules, "torch.distributed.tensor", SimpleNamespace(DTensor=Spread))
    layers = model()
    check_model(plan(2), layers)
    norm: Any = layers[-1].get_submodule("norm") if hasattr(layers[-1], "norm") else layers[-1]
    name, parameter = next(iter(norm.named_parameters(recurse=False)))
    setattr(norm, name, Spread(parameter.detach()))
    with pytest.raises(InvalidInputError, match=f"{name} is a DTensor") as caught:
        check_model(plan(2), layers)
    assert caught.value.where == f"layer {LAYERS - 1}"
    assert "tensor_parallel=" in (caught.value.fix or "")
