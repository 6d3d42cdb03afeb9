"""Types: 16 bits in layers, float32 in sums and masters; plain torch with the same recipe is the judge."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.utils.checkpoint import checkpoint

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.measuring import Measuring, measure_here
from rtk.runners.torch import loss_scale
from rtk.runners.torch.boundaries import Boundary, boundary_samples
from rtk.runners.torch.checkpoint import write_part
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.precision import Precision, convert
from rtk.runners.torch.stage import TorchStage
from rtk.runners.training import PRECISION_OF
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.profile import DataType, Layer, LayerCost, ModelForm, Profile
from rtk.training import PARAMETERS, Training, load_to_measure

from .pipes import adamw, cut, train

WIDTH = 8
BF16, FP16 = torch.bfloat16, torch.float16
SCALE = 1024.0  # of the loss in fp16; a power of 2 changes no bit where nothing vanishes


class Block(nn.Module):
    """A residual block with a norm, float32 frequencies that are no state, and recomputation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH, bias=False)
        self.register_buffer("frequencies", torch.rand(WIDTH), persistent=False)
        self.frequencies: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + checkpoint(self.inner, x, use_reentrant=False)
        return found

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        scaled = self.norm(x) * self.frequencies.to(x.dtype)
        found: torch.Tensor = self.down(F.gelu(self.up(scaled)))
        return found


def layers() -> list[nn.Module]:
    torch.manual_seed(5)
    return [nn.Linear(WIDTH, WIDTH), Block(), Block(), nn.Linear(WIDTH, WIDTH)]


def loss(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, int]:
    return F.mse_loss(output.float(), target, reduction="sum"), target.numel()


def batch(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(number)
    return [(x, y) for x, y in torch.randn(4, 2, 6, WIDTH, generator=generator)]


def plain_model(precision: Precision) -> nn.Sequential:
    """What is no state stays float32."""
    whole = nn.Sequential(*layers())
    if precision == "bf16-autocast":
        return whole
    frequencies = [one.frequencies for one in whole.modules() if isinstance(one, Block)]
    whole.to(FP16 if precision == "fp16-master" else BF16)
    for one, values in zip([one for one in whole.modules() if isinstance(one, Block)], frequencies, strict=True):
        one.frequencies = values
    return whole


def plain_sums(whole: nn.Sequential, number: int, is_autocast: bool) -> tuple[list[torch.Tensor], float, int]:
    """Gradients of all micro-batches, summed in float32, in fp16 of a multiple of the loss; the loss, its count."""
    sums, total, count = [torch.zeros(one.shape) for one in whole.parameters()], 0.0, 0
    for inputs, target in batch(number):
        with torch.autocast("cpu", BF16, enabled=is_autocast):
            dtype = next(whole.parameters()).dtype
            part, counted = loss(whole(inputs if is_autocast else inputs.to(dtype)), target)
        scale = SCALE if dtype == FP16 else 1.0
        for one, gradient in zip(sums, torch.autograd.grad(part * scale, list(whole.parameters())), strict=True):
            one += gradient / scale
        total, count = total + part.item(), count + counted
    return sums, total, count


def plain_steps(precision: Precision, steps: int) -> tuple[list[float], Sequence[torch.Tensor]]:
    """Torch's recipe with the same precision: float32 gradients, clipped, stepped in the types of the precision."""
    whole = plain_model(precision)
    parameters = list(whole.parameters())
    has_masters = precision in ("bf16-master", "fp16-master")
    stepped = [nn.Parameter(one.detach().clone().float()) for one in parameters] if has_masters else parameters
    optimizer = adamw(stepped)
    losses = []
    for number in range(steps):
        sums, total, count = plain_sums(whole, number, precision == "bf16-autocast")
        losses.append(total / count)
        norm = math.sqrt(sum(float(one.double().square().sum()) for one in sums)) / count
        for one, parameter in zip(sums, stepped, strict=True):
            parameter.grad = (one / count * min(1.0, 0.5 / (norm + 1e-6))).to(parameter.dtype)
        optimizer.step()
        for parameter, master in zip(parameters, stepped, strict=True):
            parameter.detach().copy_(master.detach())
    return losses, [one.detach() for one in stepped]


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("precision", ["bf16", "bf16-autocast", "bf16-master", "fp16-master"])
def test_stages_train_as_torch_with_the_same_recipe(
    precision: Precision, is_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five iterations in three stages, clipped, split and unsplit, with recomputation: torch's losses and values."""
    monkeypatch.setattr(loss_scale, "FIRST_SCALE", SCALE)
    wanted, values = plain_steps(precision, 5)
    stages = cut(layers(), (1, 3), loss, precision=precision, clip_norm=0.5)
    losses = [train(stages, batch(number), number, is_split) for number in range(5)]
    assert losses == pytest.approx(wanted, rel=1e-3 if precision == "bf16" else 1e-4)
    state = {name: value for stage in stages for name, value in stage.state().items()}
    suffix = "/master" if precision.endswith("-master") else ""
    found = [state[f"{name}{suffix}"] for name, _ in nn.Sequential(*layers()).named_parameters()]
    for one, other in zip(found, values, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(
            one, other, rtol=2e-2 if precision == "bf16" else 1e-4, atol=1e-3 if precision == "bf16" else 2e-5
        )


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-autocast", "bf16-master", "fp16-master"])
def test_types(precision: Precision) -> None:
    """Of parameters, gradients, messages, optimizer's state and what is not converted."""
    (held,) = cut(layers(), (), loss, precision=precision)
    held.prime_optimizer()
    parameter = torch.float32 if precision in ("fp32", "bf16-autocast") else FP16 if precision[0] == "f" else BF16
    assert {one.dtype for one in held.stage.parameters()} == {parameter}
    assert {one.grad.dtype for one in held.stage.parameters() if one.grad is not None} == {torch.float32}
    moments = {value.dtype for name, value in held.state().items() if name.endswith(("exp_avg", "master"))}
    assert moments == {BF16 if precision == "bf16" else torch.float32}
    assert {one.dtype for one in held.stage.layers.buffers()} == {torch.float32}
    first, last = cut(layers(), (2,), loss, precision=precision)
    message = first.stage.forward(0, torch.randn(6, WIDTH))
    # The blocks' sums are of what autocast gives and of what the first layer does.
    assert message.dtype == (parameter if precision != "bf16-autocast" else BF16)
    assert last.stage.forward(0, message, torch.randn(6, WIDTH)).dtype == torch.float64


@pytest.mark.parametrize("is_split", [False, True])
def test_small_gradients_are_not_lost_in_a_sum(is_split: bool) -> None:
    """A hundred gradients of 1/256 of the first: in bfloat16 each would round away."""
    (held,) = cut([nn.Linear(1, 1, bias=False)], (), lambda output, target: output.float().sum(), precision="bf16")
    held.adapt(is_split)
    held.begin()
    for number in range(101):
        held.stage.forward(number, torch.full((1, 1), 1.0 if number == 0 else 1 / 512), torch.zeros(1))
        if is_split:
            held.stage.backward_input(number)
            held.stage.backward_weight(number)
        else:
            held.stage.backward(number)
    assert held.gradients.buffers[0][0].item() == 1 + 100 / 512


@pytest.mark.parametrize("precision", ["bf16-master", "fp16-master"])
def test_masters_are_state(tmp_path: Any, precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept and restored, copied to another stage and saved; both go on with equal bits."""
    monkeypatch.setattr(loss_scale, "FIRST_SCALE", SCALE)
    (held,), (other,) = (cut(layers(), (), loss, precision=precision) for _ in range(2))
    train([held], batch(0), 0)
    held.keep()
    before = held.checksums()
    train([held], batch(1), 1)
    held.restore()
    held.reset()
    assert held.checksums() == before
    other.prime_optimizer()
    other.load({name: value.clone() for name, value in held.state().items()})
    assert other.checksums() == before
    assert train([held], batch(1), 1) == train([other], batch(1), 1)
    assert held.checksums() == other.checksums() != before
    assert write_part(tmp_path, 1, (0, 4), held.state()).size_bytes > 0
    assert "0.weight/master" in held.state()


class Masterly(torch.optim.SGD):
    """Keeps masters itself."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for one in group["params"]:
                self.state[one]["master_param"] = one.detach().clone()
        return super().step(closure)


def test_masters_of_masters_are_refused() -> None:
    """An optimizer that keeps masters goes with bf16, not with bf16-master."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        return Masterly(parameters, lr=0.1)

    cut(layers(), (), loss, precision="bf16", optimizer=make)
    with pytest.raises(InvalidInputError, match="Masterly keeps masters itself"):
        cut(layers(), (), loss, precision="bf16-master", optimizer=make)
    with pytest.raises(InvalidInputError, match="'fp16' is no precision"):
        cut(layers(), (), loss, precision="fp16")


def test_ties_stay_ties() -> None:
    """Shared matrices are one in bfloat16 as well, with one master."""
    first, last = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
    last.weight = first.weight
    held = HeldStage([first, last], (0, 2), loss, adamw, is_last=True, precision="bf16-master")
    train([held], batch(0), 0)
    assert first.weight is last.weight and first.weight.dtype == BF16
    assert torch.equal(held.state()["0.weight/master"].to(BF16), first.weight)


def test_a_precision_is_equal_to_itself() -> None:
    """The same seed gives the same bits."""
    pair = [cut(layers(), (2,), loss, precision="bf16-master") for _ in range(2)]
    for number in range(2):
        assert train(pair[0], batch(number), number) == train(pair[1], batch(number), number)
    assert [one.checksums() for one in pair[0]] == [one.checksums() for one in pair[1]]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-autocast", "bf16-master", "fp16-master"])
def test_types_between_layers_are_known_beforehand(precision: Precision) -> None:
    """What is said of boundaries, without computing, is what F gives, in shape and type."""
    made = [*layers(), nn.BatchNorm1d(6), nn.Softmax(-1)]
    convert(made, precision)
    inputs = torch.randn(2, 6, WIDTH)
    said = boundary_samples(made, inputs, precision=precision)
    value: Any = inputs
    for number, layer in enumerate(made):
        value = TorchStage([layer], None, True, precision, is_first=number == 0).forward(0, value)
        assert Boundary.of(value) == said[number + 1]


@pytest.mark.parametrize("precision", ["bf16-master", "fp16-master"])
def test_what_is_profiled_steps_on_masters(precision: Precision) -> None:
    """The step that a profiler times is that of a run: by float32 sums, on masters, then rounded to parameters."""
    layer = nn.Linear(1, 1, bias=False)
    convert([layer], precision)
    nn.init.ones_(layer.weight)
    stage = TorchStage([layer], lambda output, target: output.float().sum(), precision=precision)
    stepper = stage.stepper(lambda parameters: torch.optim.SGD(parameters, lr=2.0**-9))
    assert stepper is not None
    seen = []
    for number in range(4):
        stage.forward(number, torch.ones(1, 1, dtype=layer.weight.dtype), torch.zeros(1))
        stage.backward_input(number)
        stage.backward_weight(number)
        assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32
        stepper.step()
        assert layer.weight.grad.item() == 0
        seen.append(layer.weight.item())
    # Half the gradient each time, 2^-10: bfloat16 has steps of 2^-8 there, so only a master adds them up.
    assert seen[-1] == 1 - 4 * 2.0**-10 and (precision == "fp16-master" or seen[0] == 1.0)
    frozen = TorchStage([nn.Linear(1, 1).requires_grad_(False)], precision=precision)
    assert frozen.stepper(torch.optim.AdamW) is None


@pytest.mark.parametrize(("dtype", "wanted"), [("fp32", "fp32"), ("bf16", "bf16-master"), ("fp16", "fp16-master")])
def test_plans_are_trained_as_their_profiles_count(dtype: DataType, wanted: Precision) -> None:
    """Where nobody says a precision it is that of the profile behind the plan, in 16 bits with masters."""
    form = ModelForm(dtype=dtype)
    assert Training(model=None, data=None).precision_like(form) == wanted
    for precision, made in PARAMETERS.items():
        training = Training(model=None, data=None, precision=precision)
        assert training.precision_like(form) == precision
        assert training.form_like(form).dtype == made


@pytest.mark.parametrize(("dtype", "masters"), [("fp32", 0), ("bf16", 2), ("fp16", 2)])
def test_a_training_by_itself_has_the_precision_of_its_jobs(dtype: DataType, masters: int) -> None:
    """What `Training.runner` gives trains a plan in the precision in which `rtk run` does, masters included."""
    rows = [(torch.ones(4), torch.ones(4))] * 4
    training = Training(
        model=nn.Sequential(nn.Linear(4, 4)), data=rows, loss=lambda *given: F.mse_loss(*given), microbatch_size=2
    )
    profile = Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),), model=ModelForm(dtype=dtype).options(), microbatch_size=2)
    plan = plan_pipeline(profile, Shape(1, 1, 2), "gpipe")
    runner, _ = training.runner(plan, rank=0, world_size=1, store=HashStore())
    assert sum(name.endswith("/master") for name in runner.state()) == masters
    assert training.task(plan, "0/0").precision == PRECISION_OF[dtype]


def test_names_of_wrappers_are_left_out_whole() -> None:
    """A module of the user's whose name ends as a wrapper's has it in the state, as in checkpoints of before."""
    layer = nn.Module()
    layer.add_module("low_cut", nn.Linear(1, 1))
    layer.forward = lambda x: layer.get_submodule("low_cut")(x)
    (held,) = cut([layer], (), loss)
    assert list(held.state())[:2] == ["0.low_cut.weight", "0.low_cut.bias"]


def test_a_script_is_measured_in_its_precision(tmp_path: Path) -> None:
    """What a training says of its precision, and not the form that is asked for, is what its profile is of."""
    script = tmp_path / "trained.py"
    script.write_text(
        "import torch\nfrom rtk.train import Training\n"
        "rows = [(torch.ones(4), torch.ones(4))] * 4\n"
        "training = Training(model=lambda: torch.nn.Sequential(torch.nn.Linear(4, 4)), data=rows,\n"
        "    loss=torch.nn.functional.mse_loss, microbatch_size=2, precision='fp16-master')\n"
    )
    model = load_to_measure(Measuring(str(script)))
    profile = measure_here(Measuring(str(script), repeats=1), model, TorchStage, None, lambda done, of: None)
    assert (model.precision, profile.model["dtype"]) == ("fp16-master", "fp16")
    assert profile.layers[0].state_bytes == 16 * 20
