"""Measured profiles, the loopback, and the command around them."""

import itertools
import json
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

from rtk.cli import profile as profile_command
from rtk.profilers import links
from rtk.profilers.links import measure_loopback
from rtk.profilers.measure import measure_profile
from rtk.profilers.models.gpt import GptConfig, gpt_layers, language_model_loss
from rtk.profilers.models.load import Model, load_model
from rtk.runners.torch.stage import Stage
from rtk.schemas.documents import read_document
from rtk.schemas.errors import InvalidInputError, RuntimeFailedError
from rtk.schemas.profile import Connection, Profile

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
    profile = measure_profile(tiny, Stage, repeats=2, warmup=1, threads=1)
    profile.validate()
    assert [layer.name for layer in profile.layers] == ["0 Embedding", "1 Block", "2 Block", "3 Head"]
    assert all(layer.costs[0].forward_s > 0 and layer.costs[0].backward_input_s > 0 for layer in profile.layers)
    assert all(layer.costs[0].backward_weight_s > 0 and layer.costs[0].optimizer_s > 0 for layer in profile.layers)
    assert (profile.origin, profile.microbatch_size, profile.sequence_length) == ("measured", 3, 4)
    assert profile.device.name == "cpu, 1 thread"
    assert profile.model["name"] == "tiny"
    assert profile.model["vocabulary"] == 11


def test_times_are_read_off_the_clock(linear: Model) -> None:
    """F, I, W and the optimizer step are the four differences of five clock readings."""
    profile = measure_profile(linear, Stage, repeats=3, warmup=0, clock=ticking(100.0, 1.0, 2.0, 3.0, 4.0))
    cost = profile.layers[1].costs[0]
    assert (cost.forward_s, cost.backward_input_s, cost.backward_weight_s, cost.optimizer_s) == (1.0, 2.0, 3.0, 4.0)


def test_times_are_medians(linear: Model) -> None:
    """One slow round does not move a layer's times, and warm-up rounds do not count."""
    two_layers = [100.0, 1.0, 1.0, 1.0, 1.0] * 2
    slow = [100.0, 9.0, 9.0, 9.0, 9.0] * 2
    clock = ticking(*slow, *slow, *two_layers, *slow, *two_layers)
    profile = measure_profile(linear, Stage, repeats=3, warmup=2, clock=clock)
    assert [layer.costs[0].forward_s for layer in profile.layers] == [1.0, 1.0]


def test_bytes_of_linear_layers(linear: Model) -> None:
    """The bytes of linear layers are those that can be counted by hand."""
    frozen, last = measure_profile(linear, Stage, repeats=1).layers
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
    block = measure_profile(tiny, Stage, repeats=1).layers[1]
    assert block.weight_stash_bytes == 4 * 16 * WIDTH * TOKENS
    assert block.activation_bytes == pytest.approx(4 * 16 * WIDTH * TOKENS, rel=0.15)
    assert block.output_bytes == 4 * WIDTH * TOKENS


def test_activations_cover_the_stash() -> None:
    """A layer whose stash is larger than what autograd saved is given activations as large."""
    layers: list[nn.Module] = [nn.Linear(1, 50), nn.Linear(50, 1)]
    model = Model(
        "wide", layers, nn.functional.mse_loss, 2, None, None, lambda seed: (torch.ones(2, 1), torch.ones(2, 1))
    )
    first = measure_profile(model, Stage, repeats=1).layers[0]
    assert first.activation_bytes == first.weight_stash_bytes == 4 * 2 * 51


def test_parameters_keep_their_values(tiny: Model) -> None:
    """Measuring leaves the model's parameters and torch's random generator and threads as they were."""
    before = [parameter.clone() for layer in tiny.layers for parameter in layer.parameters()]
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    measure_profile(tiny, Stage, repeats=2, threads=threads + 1)
    assert all(map(torch.equal, before, (parameter for layer in tiny.layers for parameter in layer.parameters())))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_progress(linear: Model) -> None:
    """Progress counts the rounds, warm-up included."""
    seen: list[tuple[int, int]] = []
    measure_profile(linear, Stage, repeats=2, warmup=1, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


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
    assert "8 Block" in result.stderr


@pytest.mark.parametrize("options", [[], ["--json"], ["--json", "-o", "FILE"]])
def test_command_prints_one_document(app: typer.Typer, tmp_path: Path, options: list[str]) -> None:
    """The profile goes to standard output by default and with --json, exactly once."""
    options = [str(tmp_path / "p.json") if option == "FILE" else option for option in options]
    arguments = ["gpt-tiny", "--repeats", "1", "--microbatch-size", "1", "--sequence-length", "8", "--quiet"]
    result = CliRunner().invoke(app, [*arguments, *options])
    assert json.loads(result.stdout)["format"] == "rtk.profile"
    assert result.stderr == ""


def test_command_without_torch(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is not installed the error says what to install."""
    monkeypatch.setattr(profile_command, "find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["gpt-tiny"])
    assert isinstance(result.exception, InvalidInputError)
    assert "rtk[torch]" in str(result.exception)


def test_preset_is_measured_as_it_runs() -> None:
    """gpt-tiny's blocks hold as much as one another, which is what lets it be cut evenly, and everything takes time."""
    profile = measure_profile(load_model("gpt-tiny", 1, 32, 0), Stage, repeats=1)
    blocks = profile.layers[1:-1]
    assert len({(block.parameter_bytes, block.state_bytes, block.activation_bytes) for block in blocks}) == 1
    assert all(min(layer.costs[0].forward_s, layer.costs[0].backward_weight_s) > 0 for layer in profile.layers)
