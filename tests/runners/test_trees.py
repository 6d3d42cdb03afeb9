"""Layers that give and take tuples and dicts, and tensors by name, are trained over stages as by one process."""

import copy
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.recovery.answers import PolicyName, answers_for
from rtk.planners.shape import Shape
from rtk.profilers.measure import measure_profile
from rtk.runners.resilience.protocol import Job
from rtk.runners.torch.boundaries import Boundary, boundary_samples, read, written, zeros
from rtk.runners.torch.runner import PlanRunner
from rtk.runners.torch.stage import TorchStage
from rtk.runners.torch.trees import (
    NamedInputs,
    floating,
    gradient_in,
    is_alike,
    kind_of,
    message_like,
    message_of,
    own_tensors,
    tree_in,
    zero_gradient,
)
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.training import load_script

from . import scripted
from .ranks import run_ranks
from .scripted import ThreadJob, plan_of

WIDTH, TOKENS, ROWS = 6, 5, 2


class Embed(nn.Module):
    """Tokens to a dict of vectors, a mask of numbers that is learned, and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.bias = nn.Embedding(9, WIDTH), nn.Parameter(torch.randn(TOKENS))

    def forward(self, tokens: torch.Tensor) -> dict[str, Any]:
        positions = torch.arange(TOKENS).expand(ROWS, TOKENS)
        return {"hidden": self.token(tokens), "bias": self.bias.expand(ROWS, TOKENS), "where": [positions, None]}


class Flatten(nn.Module):
    """The dict to a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, given: dict[str, Any], keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = self.linear(given["hidden"]) * keep.unsqueeze(-1)
        return hidden, given["bias"], given["where"][0]


class Mix(nn.Module):
    """A tuple to a tuple; the positions choose a row, the bias weighs, `scale` comes by name, where it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.place = nn.Linear(WIDTH, WIDTH), nn.Embedding(TOKENS, WIDTH)

    def forward(
        self, given: tuple[torch.Tensor, ...], scale: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden, bias, positions = given
        hidden = torch.tanh(self.linear(hidden) + self.place(positions)) * bias.softmax(-1).unsqueeze(-1)
        return hidden if scale is None else hidden * scale, bias, positions


class Head(nn.Module):
    """A tuple to logits and their squares' mean."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 9)

    def forward(self, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.linear(given[0])
        return logits, logits.square().mean()


def loss(output: tuple[torch.Tensor, torch.Tensor], target: dict[str, torch.Tensor]) -> torch.Tensor:
    logits, extra = output
    return F.cross_entropy(logits.flatten(0, 1), target["labels"].flatten()) + 0.1 * extra


@cache
def made() -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        found = [Embed(), Flatten(), Mix(), Mix(), Mix(), Head()]
    return [layer.double() for layer in found]


def layers() -> list[nn.Module]:
    return copy.deepcopy(made())


def batches(count: int) -> Callable[[int], Sequence[Any]]:
    """Tokens, targets as a dict, and two tensors by name, of `count` micro-batches."""

    def batch(iteration: int) -> list[Any]:
        generator = torch.Generator().manual_seed(iteration)
        tokens = torch.randint(0, 9, (count, ROWS, TOKENS + 1), generator=generator)
        keep = torch.randint(0, 2, (count, ROWS, TOKENS), generator=generator)
        scale = torch.rand(count, 1, generator=generator, dtype=torch.float64)
        return [
            (rows[:, :-1], {"labels": rows[:, 1:]}, {"keep": keep[n], "scale": scale[n]})
            for n, rows in enumerate(tokens)
        ]

    return batch


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-4)


def one_process(iterations: int, microbatches: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses, and the parameters in the end, of plain torch."""
    whole = layers()
    stepping, losses = optimizer(nn.ModuleList(whole).parameters()), []
    for iteration in range(iterations):
        stepping.zero_grad()
        parts = []
        for tokens, target, named in batches(microbatches)(iteration):
            value = whole[1](whole[0](tokens), named["keep"])
            for layer in whole[2:5]:
                value = layer(value, scale=named["scale"])
            part = loss(whole[5](value), target) / microbatches
            part.backward()  # type: ignore[no-untyped-call]
            parts.append(part.item())
        losses.append(sum(parts))
        stepping.step()
    return losses, {name: value.detach() for name, value in nn.ModuleList(whole).named_parameters()}


def assert_close(state: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    for name, value in state.items():
        if "/" not in name:
            assert torch.allclose(value, wanted[name], atol=1e-12, rtol=0), name


@pytest.mark.parametrize(
    ("pp", "dp", "schedule"), [(1, 1, "1f1b"), (2, 2, "1f1b"), (3, 1, "zero-bubble"), (6, 1, "zero-bubble")]
)
def test_stages_pass_trees_on(pp: int, dp: int, schedule: Any) -> None:
    """Every boundary in turn is one of stages: losses and parameters are those of one process to 1e-12."""
    cost = LayerCost(1.0, 1.0, 1.0)
    plan = plan_pipeline(Profile((Layer((cost,)),) * 6), Shape(pp, dp, 4 // dp), schedule)

    def train(runner: PlanRunner) -> tuple[list[float | None], dict[str, torch.Tensor]]:
        told = [runner.step(batches(4)(n)).loss for n in range(4)]
        return told, runner._held.state()

    losses, parameters = one_process(4, 4)
    for told, state in run_ranks(plan, layers(), loss, optimizer, train):
        assert told[0] is None or told == pytest.approx(losses, abs=1e-12)
        assert_close(state, parameters)


def test_trees_survive_deaths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Re-routed micro-batches bring their tensors by name along; losses stay those of one process."""
    monkeypatch.setattr(scripted, "batches", batches)
    made()  # before threads share the generator
    plan = plan_of(3, 2, 2)
    job = ThreadJob(
        plan,
        Job(plan, 9),
        answers_for(plan, PolicyName.SLIPSTREAM, None, 0),
        {("1/1", 3), ("0/2", 5)},
        loss,
        changes={"optimizer": optimizer, "make_layers": layers},
    )
    assert job.run().exit_code == 0
    losses, parameters = one_process(9, 4)
    assert job.losses() == pytest.approx(losses, abs=1e-12)
    for worker in job.workers.values():
        assert_close(worker.held.state(), parameters)


def test_a_stage_that_needs_no_names_asks_for_no_data() -> None:
    """Stages in the middle read the data only for what their layers take by name."""
    plan = plan_of(3, 1, 2)
    asked: dict[int, int] = {}

    class Counting(list[Any]):
        def __getitem__(self, number: Any) -> Any:
            asked[self.rank] += 1
            return super().__getitem__(number)

        rank = 0

    def train(runner: PlanRunner) -> None:
        rows = Counting((torch.randn(2, 3), torch.randn(2, 3)) for _ in range(2))
        rows.rank = runner.rank
        asked[runner.rank] = 0
        runner.step(rows)

    run_ranks(plan, [nn.Linear(3, 3) for _ in range(6)], F.mse_loss, optimizer, train)
    assert asked[1] == 0
    assert asked[0] and asked[2]


def test_names_that_nobody_takes_are_refused() -> None:
    """A name that no layer's forward has is most likely misspelt: every rank that reads it says so."""
    with pytest.raises(InvalidInputError, match="no layer's forward takes 'kep'"):
        boundary_samples(layers(), torch.zeros(ROWS, TOKENS, dtype=torch.int64), {"kep": torch.zeros(1)})


@pytest.mark.parametrize("place", [0, 1, 2])
def test_micro_batches_that_differ_are_refused(place: int) -> None:
    """Inputs, targets and named inputs of other shapes than the first ones' end the run on all ranks with one error."""
    plan = plan_of(2, 1, 2)

    def train(runner: PlanRunner) -> str:
        rows = list(batches(2)(0))
        inputs, _, named = rows[1]
        other = (inputs[:, :3], {"labels": inputs[:, :3]}, {"keep": named["keep"]})[place]
        rows[1] = (*rows[1][:place], other, *rows[1][place + 1 :])
        with pytest.raises(InvalidInputError) as refused:
            runner.step(rows)
        runner.close = lambda: None  # type: ignore[method-assign]
        return str(refused.value)

    said = run_ranks(plan, layers(), loss, optimizer, train)
    assert len(set(said)) == 1
    assert f"the {('inputs', 'targets', 'named inputs')[place]} of micro-batch 1 are" in said[0]


# One message for several tensors

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8)
TENSORS = st.builds(
    lambda dtype, shape: (torch.rand(shape) * 3).to(dtype),
    st.sampled_from(TYPES),
    st.lists(st.integers(0, 3), max_size=3),
)
TREES = st.recursive(
    st.one_of(TENSORS, st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    ),
    max_leaves=6,
)


def equal(tree: Any, other: Any) -> bool:
    """The same containers around the same bits."""
    pairs = zip(own_tensors(tree), own_tensors(other), strict=True)
    return is_alike(tree, other) and all(torch.equal(one, two) for one, two in pairs)


@given(TREES)
def test_a_message_holds_a_whole_tree(tree: Any) -> None:
    """What arrives is what was sent, bit for bit; a single tensor travels as it is; nothing is sent as nothing."""
    tensors = own_tensors(tree)
    message, like = message_of(tensors), message_like(tensors)
    assert (message.shape, message.dtype) == (like.shape, like.dtype)
    assert message.numel() > 0 or len(tensors) == 1
    assert len(tensors) != 1 or message is tensors[0]
    assert equal(tree_in(message, tree), tree)
    gradient = zero_gradient(tree)
    parts = gradient if isinstance(gradient, tuple) else (gradient,)
    arrived = gradient_in(message_of(parts), tree)
    assert isinstance(arrived, tuple) == isinstance(gradient, tuple)
    assert [part.shape for part in parts] == [one.shape for one in floating(tree)]


@given(TREES)
def test_a_tree_is_described(tree: Any) -> None:
    """The next stage makes a tree of the same kind out of a description."""
    assert is_alike(zeros(read(written(tree))), tree)
    assert kind_of(tree) == kind_of(zeros(read(written(tree))))


def test_other_containers_are_told_of() -> None:
    """A container of one's own cannot be described to another process."""

    class Own(NamedTuple):
        hidden: torch.Tensor

    with pytest.raises(InvalidInputError, match="return a plain tuple"):
        written(Own(torch.zeros(1)))


def test_boundaries_are_trees() -> None:
    """Shapes and types of everything that flows are known beforehand, also of what comes by name."""
    named = batches(1)(0)[0][2]
    found = boundary_samples(layers(), torch.zeros(ROWS, TOKENS, dtype=torch.int64), named)
    hidden, bias = Boundary((ROWS, TOKENS, WIDTH), torch.float64), Boundary((ROWS, TOKENS), torch.float64)
    where = Boundary((ROWS, TOKENS), torch.int64)
    assert found[1] == {"hidden": hidden, "bias": bias, "where": [where, None]}
    assert found[2] == found[5] == (hidden, bias, where)
    assert found[6] == (Boundary((ROWS, TOKENS, 9), torch.float64), Boundary((), torch.float64))


@pytest.mark.parametrize(
    ("given_by_layer", "words"), [(3, "is an int"), ((3.0, torch.zeros(1)), "holds a float"), ((), "holds no tensor")]
)
def test_what_is_no_tensor_is_refused(given_by_layer: Any, words: str) -> None:
    """A layer that gives numbers is told of, with its place."""

    class Odd(nn.Module):
        def forward(self, value: torch.Tensor) -> Any:
            return given_by_layer

    stage = TorchStage([nn.Identity(), Odd()])
    with pytest.raises(InvalidInputError, match=words) as refused:
        stage.forward(0, torch.zeros(1))
    assert refused.value.where == "layer 1 of the stage, Odd"


def test_layers_get_what_they_name() -> None:
    """A parameter beside the first takes its name's tensor; ** takes all; a plain layer none."""

    class Wrapper(nn.Module):
        def forward(self, value: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
            return value

    takers = NamedInputs([nn.Linear(1, 1), Mix(), Wrapper(), nn.Sequential(), nn.Identity()])
    named = {"scale": torch.zeros(1), "value": torch.zeros(1)}
    assert [set(takers.of(place, named)) for place in range(5)] == [set(), {"scale"}, {"scale", "value"}, set(), set()]
    assert takers.may_take
    assert not NamedInputs([nn.Linear(1, 1), nn.ReLU(), nn.Sequential()]).may_take


SCRIPT = """
import torch
from torch import nn
from rtk.train import Training

class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, value, scale):
        return self.linear(value) * scale, value > 0

class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, given):
        return self.linear(given[0]).masked_fill(given[1], 0.0)

def collate(rows):
    value = torch.stack(rows)
    return value, -value, {"scale": value.abs().sum()}

training = Training(
    model=lambda: [First(), Last()],
    loss=nn.functional.mse_loss,
    data=[torch.full((4,), float(n % 7)) for n in range(64)],
    collate=collate,
    microbatch_size=2,
    optimizer=torch.optim.SGD,
)
"""


def test_a_users_training_may_have_all_this(tmp_path: Path) -> None:
    """A script whose layers take tuples and named tensors is checked on an example, and has its task; it cannot be
    profiled, and is told so."""
    (tmp_path / "train.py").write_text(SCRIPT)
    plan = plan_pipeline(Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),) * 2), Shape(2, 1, 2), "1f1b")
    trained, _ = load_script(str(tmp_path / "train.py")).load(plan)
    inputs, _, named = trained.example(0)
    boundaries = boundary_samples(trained.layers, inputs, named)
    assert boundaries[1] == (Boundary((2, 4), torch.float32), Boundary((2, 4), torch.bool))
    with pytest.raises(InvalidInputError, match="several tensors cannot be measured"):
        measure_profile(trained, TorchStage)
