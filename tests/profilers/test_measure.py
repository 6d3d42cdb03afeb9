"""Measured profiles, the loopback, and the command around them."""

import itertools
import json
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

from rtk.cli import profile as profile_command
from rtk.profilers import links
from rtk.profilers.analytic.costs import MicrobatchShape
from rtk.profilers.analytic.estimate import optimizer_bytes
from rtk.profilers.analytic.software import Software
from rtk.profilers.links import measure_loopback
from rtk.profilers.measure import FEWEST_ROUNDS, MOST_ROUNDS, measure_profile
from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.load import Model, load_model
from rtk.profilers.models.presets import GptConfig
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.stage import TorchStage
from rtk.runners.training import Precision
from rtk.schemas.documents import read_document
from rtk.schemas.errors import RuntimeFailedError
from rtk.schemas.profile import Connection, DataType, ModelForm, Profile

WIDTH, TOKENS = 8, 12


@pytest.fixture
def tiny() -> Model:
    """Two blocks, three sequences of four tokens."""
    torch.manual_seed(0)
    layers = gpt_layers(GptConfig(blocks=2, width=WIDTH, heads=2, vocabulary=11, positions=4))
    tokens = torch.randint(11, (3, 5))
    return Model("tiny", layers, language_model_loss, 3, 4, 11, lambda seed: (tokens[:, :-1], tokens[:, 1:]))


@pytest.fixture
def linear() -> Model:
    """Two linear layers without biases, the first one frozen."""
    layers: list[nn.Module] = [nn.Linear(6, 4, bias=False).requires_grad_(False), nn.Linear(4, 2, bias=False)]
    return Model(
        "linear", layers, nn.functional.mse_loss, 5, None, None, lambda seed: (torch.ones(5, 6), torch.ones(5, 2))
    )


def ticking(*durations_s: float) -> Callable[[], float]:
    """A clock whose readings lie the given durations apart, over and over."""
    return itertools.accumulate(itertools.cycle(durations_s)).__next__


def test_profile_is_valid(tiny: Model) -> None:
    """A measured profile has positive times, agrees with itself, and describes the model and the device."""
    profile = measure_profile(tiny, TorchStage, repeats=2, threads=1)
    profile.validate()
    assert [layer.name for layer in profile.layers] == ["0 Embedding", "1 Block", "2 Block", "3 Head"]
    assert all(layer.costs[0].forward_s > 0 and layer.costs[0].backward_input_s > 0 for layer in profile.layers)
    assert all(layer.costs[0].backward_weight_s > 0 and layer.costs[0].optimizer_s > 0 for layer in profile.layers)
    assert (profile.origin, profile.microbatch_size, profile.sequence_length) == ("measured", 3, 4)
    assert profile.device.name == "cpu, 1 thread"
    assert profile.model["name"] == "tiny"
    assert profile.model["vocabulary"] == 11


def test_times_are_read_off_the_clock(linear: Model) -> None:
    """F runs from the first layer to the last, I and W back, then the steps; all last from one reading to the next.
    After another F of all come full backward passes."""
    forward, backward_input, backward_weight, step = (1.0, 2.0), (3.0, 4.0), (5.0, 6.0), (7.0, 8.0)
    clock = ticking(0.0, *forward, *backward_input, *backward_weight, *step, 100.0, 100.0, 9.0, 10.0)
    first, last = (layer.costs[0] for layer in measure_profile(linear, TorchStage, repeats=3, clock=clock).layers)
    assert (first.forward_s, first.backward_input_s, first.backward_weight_s, first.optimizer_s) == (1, 4, 6, 7)
    assert (last.forward_s, last.backward_input_s, last.backward_weight_s, last.optimizer_s) == (2, 3, 5, 8)
    assert (first.backward_s, last.backward_s) == (10, 9)


def test_times_are_medians(linear: Model) -> None:
    """One slow round does not move a layer's times, the first one does not count, and a spread says how they lie."""
    rounds = [[0.0] + [factor] * 12 for factor in (9.0, 1.0, 2.0, 9.0, 1.0, 2.0)]
    profile = measure_profile(linear, TorchStage, repeats=5, clock=ticking(*itertools.chain(*rounds)))
    assert [layer.costs[0].forward_s for layer in profile.layers] == [2.0, 2.0]
    spread = profile.layers[0].costs[0].spread
    assert spread is not None
    assert spread.forward_s == (5.5 - 1.0) / 2, "between the quartiles of 1, 1, 2, 2, 9"


def test_few_readings_have_no_spread(linear: Model) -> None:
    """Of three readings nobody can tell how far they lie apart."""
    assert measure_profile(linear, TorchStage, repeats=3).layers[0].costs[0].spread is None


def test_like_layers_share_their_readings(tiny: Model) -> None:
    """The blocks of a GPT have one cost, the median of the readings of all; embedding and head have their own."""
    laps = [0.0, 1.0, 2.0, 4.0, 8.0] + [1.0] * 20
    costs = [layer.costs[0] for layer in measure_profile(tiny, TorchStage, repeats=1, clock=ticking(*laps)).layers]
    assert [cost.forward_s for cost in costs] == [1.0, 3.0, 3.0, 8.0]
    assert costs[1] == costs[2]


def test_bytes_of_linear_layers(linear: Model) -> None:
    """The bytes of linear layers are those that can be counted by hand."""
    frozen, last = measure_profile(linear, TorchStage, repeats=1).layers
    assert (frozen.parameter_bytes, frozen.state_bytes) == (4 * 24, 0)
    assert frozen.activation_bytes == 4 * 30, "the input is held by the stage"
    assert frozen.weight_stash_bytes == 0
    assert frozen.output_bytes == 4 * 20
    assert (last.parameter_bytes, last.state_bytes) == (4 * 8, 3 * 4 * 8)
    assert last.activation_bytes == 4 * (20 + 10 + 10), "input, output and target of the mean squared error"
    assert last.weight_stash_bytes == 4 * (20 + 10)
    assert last.output_bytes == 0


def test_bytes_of_a_block(tiny: Model) -> None:
    """A block stashes 16 widths a token, and holds as much and the statistics of its norms."""
    block = measure_profile(tiny, TorchStage, repeats=1).layers[1]
    assert block.weight_stash_bytes == 4 * 16 * WIDTH * TOKENS
    assert block.activation_bytes == pytest.approx(4 * 16 * WIDTH * TOKENS, rel=0.15)
    assert block.output_bytes == 4 * WIDTH * TOKENS


def test_activations_cover_the_stash() -> None:
    """A layer whose stash is larger than what autograd saved is given activations as large."""
    layers: list[nn.Module] = [nn.Linear(1, 50), nn.Linear(50, 1)]
    model = Model(
        "wide", layers, nn.functional.mse_loss, 2, None, None, lambda seed: (torch.ones(2, 1), torch.ones(2, 1))
    )
    first = measure_profile(model, TorchStage, repeats=1).layers[0]
    assert first.activation_bytes == first.weight_stash_bytes == 4 * 2 * 51


def test_parameters_keep_their_values(tiny: Model) -> None:
    """Measuring leaves the model's parameters and torch's random generator and threads as they were."""
    before = [parameter.clone() for layer in tiny.layers for parameter in layer.parameters()]
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    measure_profile(tiny, TorchStage, repeats=2, threads=threads + 1)
    assert all(map(torch.equal, before, (parameter for layer in tiny.layers for parameter in layer.parameters())))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_progress(linear: Model) -> None:
    """Progress counts the rounds that count."""
    seen: list[tuple[int, int]] = []
    measure_profile(linear, TorchStage, repeats=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize(("round_s", "rounds"), [(0.01, MOST_ROUNDS), (0.5, 16), (4.0, FEWEST_ROUNDS)])
def test_rounds_take_some_seconds(linear: Model, round_s: float, rounds: int) -> None:
    """Where nobody says how many rounds, as many are run as eight seconds hold, within bounds."""
    seen: list[int] = []
    clock = ticking(0.0, *[round_s / 8] * 8, *[0.0] * 4)
    measure_profile(linear, TorchStage, clock=clock, progress=lambda done, total: seen.append(total))
    assert seen[-1] == len(seen) == rounds


def test_an_output_is_counted_once() -> None:
    """What a layer saves of its output, as a ReLU does, is the next layer's input and counted there."""
    layers: list[nn.Module] = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)]
    model = Model(
        "relu", layers, nn.functional.mse_loss, 5, None, None, lambda seed: (torch.ones(5, 4), torch.ones(5, 2))
    )
    profile = measure_profile(model, TorchStage, repeats=1)
    assert profile.layers[1].activation_bytes == 4 * 5 * 6, "its input only"
    assert profile.layers[2].activation_bytes == 4 * 5 * (6 + 2 + 2), "the ReLU's output, the last one and the target"


def test_tied_layers_say_what_a_stage_saves() -> None:
    """A head that has the embedding's matrix names it; the model's parameters count the matrix once."""
    embedding, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    head.weight = embedding.weight
    tokens = torch.zeros(2, 3, dtype=torch.long)
    model = Model("tied", [embedding, head], language_model_loss, 2, 3, 7, lambda seed: (tokens, tokens))
    profile = measure_profile(model, TorchStage, repeats=1)
    assert (profile.layers[0].tied_to, profile.layers[1].tied_to) == (None, 0)
    assert (profile.layers[1].tied_bytes, profile.layers[1].tied_state_bytes) == (4 * 28, 3 * 4 * 28)
    assert profile.layers[1].parameter_bytes == 4 * 28
    assert profile.model["parameters"] == 28


def test_form_is_told() -> None:
    """A profile says in what form the model was measured; in bfloat16 all takes half the bytes."""
    usual, short = (
        measure_profile(load_model("gpt-tiny", 1, 16, 0, form), TorchStage, repeats=1)
        for form in (ModelForm(), ModelForm(dtype="bf16"))
    )
    assert "dtype" not in usual.model
    assert short.model["dtype"] == "bf16"
    assert short.layers[1].parameter_bytes == usual.layers[1].parameter_bytes / 2
    assert short.layers[1].activation_bytes == pytest.approx(usual.layers[1].activation_bytes / 2, rel=0.02)


def test_degrees_are_measured_like_the_layers() -> None:
    """Each degree has a cost of its own, a rank's share with its all-reduces; bytes stay those of the layer."""
    profile = measure_profile(
        load_model("gpt-tiny", 1, 16, 0), TorchStage, degrees=(2,), repeats=1, intra_node=Connection(latency_s=100.0)
    )
    profile.validate()
    block = profile.layers[1]
    assert [cost.tensor_parallel for cost in block.costs] == [1, 2]
    assert block.costs[0].forward_s < 100
    # A ring between two ranks sends twice, and a block sums twice in F and twice in I.
    assert 400 <= block.costs[1].forward_s < 500
    assert 400 <= block.costs[1].backward_input_s < 500
    assert block.costs[1].backward_weight_s < 100


def test_loopback() -> None:
    """Two processes of this machine reach each other in less than a second, with a positive bandwidth."""
    found = measure_loopback()
    assert 0 < found.latency_s < 1
    assert found.bandwidth_bytes_per_s is not None
    assert found.bandwidth_bytes_per_s > 0


def test_loopback_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the other process never comes, the measurement ends in time, with an error that says what failed."""
    monkeypatch.setattr(links, "TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr(links, "_echo", lambda port: nullcontext())
    with pytest.raises(RuntimeFailedError, match="loopback"):
        measure_loopback()


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """The command alone, with a loopback that needs no second process."""
    monkeypatch.setattr(links, "measure_loopback", lambda: Connection(1e-4, 1e9))
    return profile_command.app


def test_command_writes_a_profile(app: typer.Typer, tmp_path: Path) -> None:
    """`rtk profile` writes a profile that reads back, and shows the layers on standard error."""
    path = str(tmp_path / "p.json")
    result = CliRunner().invoke(app, ["gpt-tiny", "-o", path, "--repeats", "1", "--microbatch-size", "1"])
    assert result.exit_code == 0
    profile = read_document(path, Profile)
    assert len(profile.layers) == 10
    assert profile.microbatch_size == 1
    assert profile.network.intra_node == Connection(1e-4, 1e9)
    assert result.stdout == ""
    assert "1-8 Block x8" in result.stderr


@pytest.mark.parametrize("options", [[], ["--json"], ["--json", "-o", "FILE"]])
def test_command_prints_one_document(app: typer.Typer, tmp_path: Path, options: list[str]) -> None:
    """The profile goes to standard output by default and with --json, exactly once."""
    options = [str(tmp_path / "p.json") if option == "FILE" else option for option in options]
    arguments = ["gpt-tiny", "--repeats", "1", "--microbatch-size", "1", "--sequence-length", "8", "--quiet"]
    result = CliRunner().invoke(app, [*arguments, *options])
    assert json.loads(result.stdout)["format"] == "rtk.profile"
    assert result.stderr == ""


def test_preset_is_measured_as_it_runs() -> None:
    """gpt-tiny's blocks hold as much as one another, which is what lets it be cut evenly, and everything takes time."""
    profile = measure_profile(load_model("gpt-tiny", 1, 32, 0), TorchStage, repeats=1)
    blocks = profile.layers[1:-1]
    assert len({(block.parameter_bytes, block.state_bytes, block.activation_bytes) for block in blocks}) == 1
    assert all(min(layer.costs[0].forward_s, layer.costs[0].backward_weight_s) > 0 for layer in profile.layers)


@pytest.mark.parametrize(("precision", "dtype", "gradients", "state"), [
    ("fp32", "fp32", None, 12),
    ("bf16", "bf16", 4, 8),
    ("bf16-master", "bf16", 4, 16),
    ("fp16-master", "fp16", 4, 16),
])  # fmt: skip
def test_a_parameter_costs_what_it_costs_in_a_run(
    precision: Precision, dtype: DataType, gradients: int | None, state: int
) -> None:
    """Bytes a parameter are those that a run's stage holds, in the profile as counted there, whatever the precision;
    and with masters those that computed profiles count."""
    form = ModelForm(dtype=dtype)
    make_stage = partial(TorchStage, precision=precision)
    profile = measure_profile(load_model("gpt-tiny", 1, 8, 0, form), make_stage, repeats=1)
    layers = load_model("gpt-tiny", 1, 8, 0, form).layers
    held = HeldStage(layers, (1, 2), language_model_loss, torch.optim.AdamW, precision=precision)
    held.prime_optimizer()
    block, (layer,) = profile.layers[1], held.stage.layers
    count = sum(one.numel() for one in layer.parameters())
    sums = sum(one.grad.nbytes for one in layer.parameters() if one.grad is not None)
    kept = sum(one.nbytes for name, one in held.state().items() if "weight/" in name or "bias/" in name if one.ndim)
    assert block.parameter_bytes == sum(one.nbytes for one in layer.parameters())
    assert (block.state_bytes, block.gradient_bytes) == (sums + kept, gradients and sums)
    assert (block.state_bytes, block.gradient_bytes) == (state * count, gradients and gradients * count)
    assert profile.model.get("gradients") == (gradients and "fp32")
    if precision != "bf16":
        software = Software(gradients="fp32")
        assert optimizer_bytes(MicrobatchShape(1, 8, dtype, software)).state == state
