"""Weights that layers of different stages share are trained as the one parameter that they are."""

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rtk.planners.recovery.answers import PolicyName, answers_for
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape
from rtk.planners.slipstream.cluster import AtlasRequest, opening
from rtk.planners.slipstream.replanner import Replanner
from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.presets import GptConfig
from rtk.runners.checkpoint import publish
from rtk.runners.resilience.protocol import Job
from rtk.runners.torch.checkpoint import read_tied_state, write_part
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.runner import PlanRunner
from rtk.runners.torch.spare_layers import SpareLayers
from rtk.runners.torch.ties import Tie, fingerprint, ties_of, trained_together
from rtk.schemas.checkpoint import Checkpoint
from rtk.schemas.conditions import Conditions
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.protocols import Hand, Replan, Replanned

from . import scripted
from .ranks import run_ranks
from .scripted import ThreadJob, batches, plan_of
from .test_plan_runner import unlike

BLOCKS, LAST = scripted.BLOCKS, scripted.BLOCKS + 1


@cache
def made() -> list[nn.Module]:
    """GPT in float64 as GPT-2 is: the head has the embedding's matrix; and two blocks share a norm that is frozen."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        layers = list(gpt_layers(GptConfig(blocks=BLOCKS, width=32, heads=2, vocabulary=64, positions=16)))
    for layer in layers:
        layer.double()
    layers[LAST].get_submodule("logits").weight = layers[0].get_submodule("token").weight
    frozen = next(layers[1].parameters())
    frozen.requires_grad = False
    layers[3].register_parameter("unused", frozen)
    return layers


@pytest.fixture(autouse=True)
def tied_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of this file train it."""
    monkeypatch.setattr(scripted, "_made", made)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    # Keys' biases have no gradient but rounding errors, which a smaller eps would make as large as anything.
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.3, eps=1e-4)


def one_process(iterations: int, microbatches: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses, and the state of every layer in the end, of plain torch."""
    layers = scripted.layers()
    whole = nn.Sequential(*layers)
    stepping, losses = optimizer(whole.parameters()), []
    for iteration in range(iterations):
        stepping.zero_grad()
        parts = []
        for inputs, targets in batches(microbatches)(iteration):
            loss = language_model_loss(whole(inputs), targets) / microbatches
            loss.backward()  # type: ignore[no-untyped-call]
            parts.append(loss.item())
        losses.append(sum(parts))
        stepping.step()
    named = whole.named_parameters(remove_duplicate=False)
    return losses, {name: value.detach() for name, value in named if not name.endswith("unused")}


def assert_equal(got: Iterable[dict[str, torch.Tensor]], wanted: dict[str, torch.Tensor]) -> None:
    """Every worker's parameters are those of one process, and all copies of the tied one have the same bits."""
    copies: list[dict[str, torch.Tensor]] = []
    for state in got:
        for name, value in state.items():
            if "/" not in name and not name.endswith("unused"):
                assert torch.allclose(value, wanted[name], atol=1e-12, rtol=0), name
        for name in ("0.token.weight", f"{LAST}.logits.weight"):
            own = {key.removeprefix(name): value for key, value in state.items() if key.startswith(name)}
            copies += [own] if own else []
    assert len(copies) >= 2
    assert {"", "/exp_avg", "/exp_avg_sq", "/step"} <= copies[0].keys()
    assert all(one.keys() == copies[0].keys() for one in copies)
    assert all(torch.equal(one[key], copies[0][key]) for one in copies for key in one)


def rerouted() -> Plan:
    """Both stages have lost a worker, in different pipelines."""
    request = AtlasRequest(Shape(2, 3, 2), "adaptive", effort=Effort("heuristic"))
    return Replanner(opening(scripted.profile(), request), 2).in_place(frozenset({(0, 0), (1, 1)}))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: plan_of(1, 2, 2), id="one stage"),
        pytest.param(lambda: plan_of(2, 1, 4), id="two stages"),
        pytest.param(lambda: plan_of(3, 2, 2, "zero-bubble"), id="zero-bubble"),
        pytest.param(lambda: plan_of(3, 2, 2, staggered=True), id="staggered"),
        pytest.param(lambda: unlike((3, 2), (1, 1), (2, 1)), id="unlike pipelines"),
        pytest.param(rerouted, id="re-routed"),
    ],
)
def test_copies_are_trained_as_one_parameter(make: Callable[[], Plan]) -> None:
    """Losses and parameters are those of one process to 1e-12, whatever the cut, the orders and the optimizer."""
    plan = make()
    microbatches = plan.total_microbatches()

    def train(runner: PlanRunner) -> tuple[list[float | None], dict[str, torch.Tensor]]:
        losses = [runner.step(batches(microbatches)(n)).loss for n in range(5)]
        return losses, runner._held.state()

    ranks = run_ranks(plan, scripted.layers(), language_model_loss, optimizer, train)
    losses, parameters = one_process(5, microbatches)
    for told, _ in ranks:
        assert told[0] is None or told == pytest.approx(losses, abs=1e-12)
    assert_equal([state for _, state in ranks], parameters)


def test_an_optimizer_that_parts_the_copies_is_refused() -> None:
    """Where it goes by a parameter's place in its stage, every rank says before the third step that copies differ."""

    def by_place(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        first, *others = parameters
        groups: list[dict[str, Any]] = [{"params": [first], "lr": 0.5}, {"params": others}]
        return torch.optim.SGD(groups, lr=0.1)

    def train(runner: PlanRunner) -> str:
        runner.step(batches(2)(0))
        with pytest.raises(InvalidInputError) as refused:
            runner.step(batches(2)(1))
        runner.close = lambda: None  # type: ignore[method-assign]
        return str(refused.value)

    said = run_ranks(plan_of(3, 1, 2), scripted.layers(), language_model_loss, by_place, train)
    assert len(set(said)) == 1
    assert f"layers 0, {LAST} share (tied weights) are no longer the same" in said[0]


# Through failures


def job_of(
    plan: Plan, iterations: int, *deaths: tuple[str, int], replan: Replan | None = None, **more: Any
) -> ThreadJob:
    replan = replan or answers_for(plan, PolicyName.SLIPSTREAM, None, 0)
    return ThreadJob(plan, Job(plan, iterations, **more), replan, set(deaths), changes={"optimizer": optimizer})


def states(job: ThreadJob) -> list[dict[str, torch.Tensor]]:
    assert all(len(found) == 1 for found in job.checksums().values())
    return [worker.held.state() for worker in job.workers.values()]


@pytest.mark.parametrize("technique", ["adaptive", "staggered"])
def test_deaths_part_no_copies(technique: str) -> None:
    """Workers of both ends die, one comes back: losses and parameters stay those of one process to 1e-12."""
    request = AtlasRequest(Shape(2, 3, 2), technique, effort=Effort("heuristic"))  # type: ignore[arg-type]
    plan = Replanner(opening(scripted.profile(), request), 0).in_place(frozenset())
    job = job_of(plan, 12, ("1/0", 3), ("0/1", 5), ("2/0", 5))
    job.start("1/0", not_before=7)
    assert job.run().exit_code == 0
    assert len(job.events("failure")) == 3
    losses, parameters = one_process(12, 6)
    assert job.losses() == pytest.approx(losses, abs=1e-12)
    assert_equal(states(job), parameters)


def test_a_worker_that_comes_to_hold_both_layers_has_one_parameter() -> None:
    """One that had the first stage is given the whole model when the last stage's holder dies, and trains on."""
    plan, then = unlike((2, 2), (2, 2)), unlike((2, 2), (1, 2))

    def shrink(plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
        places = {"0/0": (0, 0), "0/1": (0, 1), "1/0": (1, 0)}
        if {hand.worker for hand in crew} != set(places):
            raise InfeasibleError("that is not planned for")
        return Replanned(then, tuple(places.items()))

    job = job_of(plan, 8, ("1/1", 4), replan=shrink)
    assert job.run().exit_code == 0
    losses, parameters = one_process(8, 4)
    assert job.losses() == pytest.approx(losses, abs=1e-12)
    assert_equal(states(job), parameters)
    assert job.workers["1/0"].held.layers_range == (0, LAST + 1)
    own = job.workers["1/0"].held.stage.layers
    assert own[0].get_parameter("token.weight") is own[LAST].get_parameter("logits.weight")


def test_checkpoints_resume_in_other_cuts(tmp_path: Path) -> None:
    """What three stages saved, stages that have the layers together or apart read."""
    first = job_of(plan_of(3, 2, 2), 6, ("0/0", 4), checkpoint=str(tmp_path), checkpoint_every=3)
    assert first.run().exit_code == 0
    saved = first.events("checkpoint")[-1]["path"]
    losses, parameters = one_process(9, 4)
    for pp, dp, microbatches in ((1, 2, 2), (2, 1, 4)):
        second = job_of(plan_of(pp, dp, microbatches), 9, first_iteration=6, resume=saved)
        assert second.run().exit_code == 0
        assert first.losses() + second.losses() == pytest.approx(losses, abs=1e-12)
        assert_equal(states(second), parameters)


# The state of a stage


def held(
    first: int, stop: int, layers: list[nn.Module] | None = None, ties: tuple[Tie, ...] | None = None
) -> HeldStage:
    return HeldStage(layers or scripted.layers(), (first, stop), F.mse_loss, optimizer, ties=ties)


def test_a_layer_has_one_state_whatever_the_stage_around_it() -> None:
    """Names and checksums of a layer are the same in a stage that has both tied layers, and in one that has one."""
    whole, head, body = held(0, LAST + 1), held(LAST, LAST + 1), held(0, LAST)
    for one in (whole, head, body):
        one.prime_optimizer()
    assert whole.checksums() == body.checksums() | head.checksums()
    assert whole.state().keys() == body.state().keys() | head.state().keys()


def test_an_optimizer_that_had_not_stepped_is_restored() -> None:
    """What layers of one stage share has one state in its optimizer, which goes away with the step that made it."""
    whole = held(0, LAST + 1)
    before = whole.checksums()
    whole.keep()
    whole.prime_optimizer()
    assert whole.checksums() != before
    whole.restore()
    assert whole.checksums() == before
    assert not whole.optimizer.state


def test_a_stage_that_comes_to_hold_both_has_one_parameter() -> None:
    """Layers that were made one by one share again what they share in the model; within one layer too."""
    ties = ties_of(scripted.layers())
    assert trained_together(ties) == ((0, LAST),)
    room = SpareLayers(scripted.layers()).of([(0, LAST + 1)], "cpu")
    assert room is not None
    assert room[0].get_parameter("token.weight") is not room[LAST].get_parameter("logits.weight")
    stage = held(0, LAST + 1, room, ties)
    assert room[0].get_parameter("token.weight") is room[LAST].get_parameter("logits.weight")
    assert stage.state().keys() == held(0, LAST + 1).state().keys()
    pair = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    pair[1].weight = pair[0].weight
    spare = SpareLayers([pair]).of([(0, 1)], "cpu")
    assert spare is not None
    assert len(list(held(0, 1, spare, ties_of([pair])).stage.parameters())) == 1


def test_checkpoints_of_before_are_read(tmp_path: Path) -> None:
    """Those that have what layers share with the first of them only resume in stages of any cut."""
    stage = held(0, LAST + 1)
    stage.prime_optimizer()
    whole = stage.state()
    old = {name: value for name, value in whole.items() if not name.startswith(f"{LAST}.logits.weight")}
    assert len(old) == len(whole) - 4
    part = write_part(tmp_path, 3, (0, LAST + 1), old)
    path = publish(tmp_path, Checkpoint(3, LAST + 1, "0" * 64, 0, 2, (part,)))
    for layers in ((0, LAST + 1), (LAST, LAST + 1), (2, LAST + 1), (0, 2)):
        read = read_tied_state(path, layers, ties_of(scripted.layers()))
        other = held(*layers)
        other.prime_optimizer()
        other.load(read)
        assert other.checksums() == stage.checksums(range(*layers))


@given(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]), st.integers(0, 3), st.data())
def test_a_fingerprint_sees_each_bit(dtype: torch.dtype, place: int, data: st.DataObject) -> None:
    """One bit of one number makes another fingerprint, be it the sign's or the last one's."""
    values = torch.linspace(1.0, 2.0, 4, dtype=dtype)
    bits = 8 * values.element_size()
    bit = data.draw(st.integers(0, bits - 1))
    changed = values.clone()
    changed.view({16: torch.int16, 32: torch.int32, 64: torch.int64}[bits])[place] ^= (
        1 << bit if bit < bits - 1 else -(1 << bit)
    )
    assert fingerprint([changed]) != fingerprint([values])
    assert fingerprint([changed, values]) == fingerprint([values, changed])
