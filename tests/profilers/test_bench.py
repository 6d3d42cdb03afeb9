"""Layers that do not fit, GPUs' clocks, and which layers are alike; the GPU is made up."""

from collections.abc import Callable, Sequence
from itertools import accumulate, cycle
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from rtk.cli import profile as profile_verb
from rtk.profilers import links, measuring
from rtk.profilers.measure import GPU_WARM_UP, EventStopwatch, WarmUp, likeness_of, measure_profile
from rtk.profilers.models.load import Model
from rtk.runners.torch.stage import TorchStage
from rtk.schemas.documents import read_document
from rtk.schemas.errors import InvalidInputError, RuntimeFailedError
from rtk.schemas.profile import Connection, DoesNotFitError, Profile

TAKES = torch.Size([2, 4]), torch.float32


class Crowded(nn.Linear):
    """A layer that finds memory only while fewer than `room` layers have run their F at the same time."""

    under_way = 0

    def __init__(self, room: int, error: Exception) -> None:
        super().__init__(4, 4)
        self.room, self.error = room, error

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Fails in a crowd."""
        if torch.is_grad_enabled():
            if Crowded.under_way >= self.room:
                raise self.error
            Crowded.under_way += 1
            inputs.register_hook(self._leave)  # type: ignore[no-untyped-call]
        return super().forward(inputs)

    @staticmethod
    def _leave(gradient: torch.Tensor) -> None:
        Crowded.under_way -= 1


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
    MemoryError(),
]


def crowd(rooms: Sequence[int], error: Exception = OUT_OF_MEMORY[0]) -> Model:
    """A model of such layers."""
    Crowded.under_way = 0
    layers: list[nn.Module] = [Crowded(room, error) for room in rooms]
    example = torch.ones(2, 4), torch.ones(2, 4)
    return Model("crowd", layers, nn.functional.mse_loss, 2, None, None, lambda seed: example)


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_what_does_not_fit_together_is_measured_alone(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Where the memory is too small for all layers at once, each is measured alone, whatever ran out says so."""
    model = crowd([1, 1, 1], error)
    leave_when_measured_anew(monkeypatch)
    profile = measure_profile(model, TorchStage, repeats=1)
    assert len(profile.layers) == 3
    assert all(layer.costs[0].forward_s > 0 and layer.parameter_bytes == 80 for layer in profile.layers)
    assert all(parameter.grad is None for layer in model.layers for parameter in layer.parameters())


def test_a_layer_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that finds no memory alone is named with its operation; those that fit are in a profile of their own."""
    leave_when_measured_anew(monkeypatch)
    with pytest.raises(DoesNotFitError, match="in layer 1 Crowded, forward") as caught:
        measure_profile(crowd([9, 0, 9]), TorchStage, repeats=1)
    assert caught.value.partial is not None
    caught.value.partial.validate()
    assert [layer.name for layer in caught.value.partial.layers] == ["0 Crowded", "2 Crowded"]


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    """An error of another kind ends the measurement as it is."""
    with pytest.raises(RuntimeError, match="shapes"):
        measure_profile(crowd([9, 0], RuntimeError("shapes do not match")), TorchStage, repeats=1)


def leave_when_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that ran when another one failed give their memory back when the next measurement begins."""
    from rtk.profilers import measure

    put_away = measure._put_away

    def leave(layer: nn.Module, home: torch.device) -> None:
        Crowded.under_way = 0
        put_away(layer, home)

    monkeypatch.setattr(measure, "_put_away", leave)


def test_command_keeps_what_fits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`rtk profile -o p.json` writes the layers that fit to p.partial.json, and says so in its error."""
    leave_when_measured_anew(monkeypatch)
    monkeypatch.setattr(links, "measure_loopback", lambda: Connection(1e-4, 1e9))
    monkeypatch.setattr(measuring, "load", lambda asked: crowd([0, 9]))
    result = CliRunner().invoke(profile_verb.app, ["gpt-tiny", "-o", str(tmp_path / "p.json"), "--repeats", "1"])
    assert isinstance(result.exception, DoesNotFitError)
    kept = tmp_path / "p.partial.json"
    assert str(kept) in str(result.exception)
    assert [layer.name for layer in read_document(str(kept), Profile).layers] == ["1 Crowded"]
    assert not (tmp_path / "p.json").exists()


@pytest.mark.parametrize("text", ["0", "1,x", "", "2,,4", "-1"])
def test_degrees_are_whole_numbers(text: str) -> None:
    """`--tp` takes degrees of at least 1, and names what is none."""
    result = CliRunner().invoke(profile_verb.app, ["gpt-tiny", f"--tp={text}"])
    assert isinstance(result.exception, InvalidInputError)
    assert result.exception.where == "--tp"


def test_gpu_times_are_those_between_events() -> None:
    """Events are put into the stream one after the other, and only the last one is waited for."""
    stream = Stream(1.0, 2.0, 4.0)
    watch = EventStopwatch(stream.event)
    for _ in range(3):
        watch.mark()
    assert stream.waited == []
    assert watch.laps_s() == [2e-3, 4e-3]
    assert stream.waited == [7.0], "ms since the beginning"
    assert watch.laps_s() == []


class Stream:
    """A GPU's stream in which so many ms lie before each event, over and over."""

    def __init__(self, *gaps_ms: float) -> None:
        self.moments_ms = accumulate(cycle(gaps_ms))
        self.waited: list[float] = []

    def event(self) -> "Event":
        """A new event."""
        return Event(self)


class Event:
    """As much of torch.cuda.Event as is used."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def record(self) -> None:
        """Stand in the stream."""
        self.at_ms = next(self.stream.moments_ms)

    def synchronize(self) -> None:
        """Wait."""
        self.stream.waited.append(self.at_ms)

    def elapsed_time(self, later: "Event") -> float:
        """From this event to a later one, in ms."""
        return later.at_ms - self.at_ms


@pytest.mark.parametrize(
    ("rounds_s", "is_over"),
    [
        ([0.5], False),
        ([0.5, 0.51], True),
        ([0.1, 0.1], False),
        ([0.5, 0.4, 0.3], False),
        ([0.5, 0.4, 0.3, 0.31], True),
        ([1.0, 4.0, 6.0], True),
    ],
)
def test_warm_up(rounds_s: list[float], is_over: bool) -> None:
    """A device is warm when it has worked for a second and two rounds agree, or at last when it has for ten."""
    assert GPU_WARM_UP.is_over(rounds_s) is is_over
    assert WarmUp(0.0, 1.0).is_over([2.0]), "a slow round is enough"


@pytest.mark.parametrize(
    ("make", "is_like"),
    [
        (lambda: nn.Linear(4, 4), True),
        (lambda: nn.Linear(4, 4, bias=False), False),
        (lambda: nn.Linear(4, 4).requires_grad_(False), False),
        (lambda: nn.Linear(4, 4).bfloat16(), False),
        (lambda: nn.Bilinear(4, 4, 4), False),
    ],
)
def test_like_layers(make: Callable[[], nn.Module], is_like: bool) -> None:
    """Layers are alike if class, shapes and types are; the values of their parameters do not matter."""
    assert (likeness_of(make(), TAKES, False) == likeness_of(nn.Linear(4, 4), TAKES, False)) is is_like


def test_settings_tell_layers_apart() -> None:
    """Layers of one class with other settings, such as a window's width, are unlike; a layer's own number is none."""
    first, second, third = nn.Identity(), nn.Identity(), nn.Identity()
    first.window, second.window, third.window = 4, 8, 4  # type: ignore[assignment]
    first.layer_idx, third.layer_idx = 0, 2  # type: ignore[assignment]
    assert likeness_of(first, TAKES, False) == likeness_of(third, TAKES, False)
    assert likeness_of(first, TAKES, False) != likeness_of(second, TAKES, False)
    assert likeness_of(first, TAKES, False) != likeness_of(first, TAKES, True), "the last one has the loss"


def test_measured_in_a_process_of_its_own() -> None:
    """A process measures when it is told to, says how far it is, and hands its profile over."""
    seen: list[tuple[int, int]] = []
    asked = measuring.Measuring("gpt-tiny", 1, 8, repeats=2)
    (profile,) = measuring.measure_at_once(
        asked, 1, TorchStage, Connection(1e-4, 1e9), lambda done, total: seen.append((done, total))
    )
    assert seen == [(1, 2), (2, 2)]
    assert len(profile.layers) == 10
    assert profile.network.intra_node == Connection(1e-4, 1e9)


def test_a_process_hands_its_error_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a measuring process meets comes out of the command in the same words, with what was measured."""
    leave_when_measured_anew(monkeypatch)
    ours, theirs = Pipe()
    ours.send("go")
    asked = measuring.Measuring("x", repeats=1)
    measuring._measure_one(asked, 0, TorchStage, None, theirs, lambda asked: crowd([9, 0]))
    assert measuring._hear(ours, 0) == ("ready", None)
    with pytest.raises(DoesNotFitError, match="1 Crowded") as caught:
        while True:
            measuring._hear(ours, 0)
    assert caught.value.partial is not None
    assert len(caught.value.partial.layers) == 1
    assert caught.value.fix is not None


def test_a_process_that_dies_is_named() -> None:
    """A measuring process that ends without a word is named in the error."""
    ours, theirs = Pipe()
    theirs.close()
    with pytest.raises(RuntimeFailedError, match="process 3"):
        measuring._hear(ours, 3)


def test_a_slow_device_shows(capsys: pytest.CaptureFixture[str], linear_profile: Callable[[float], Profile]) -> None:
    """The profile of the device in the middle is taken; one that takes over 10 % more than it is named."""
    profiles = [linear_profile(time_s) for time_s in (1.0, 1.3, 0.9, 1.05)]
    assert measuring.in_the_middle(profiles) is profiles[0]
    assert capsys.readouterr().err == "device 1 is slow: its layers take 30 % longer than the median\n"


@pytest.fixture
def linear_profile() -> Callable[[float], Profile]:
    """Makes a profile of one layer whose F takes so long."""
    from rtk.schemas.profile import Layer, LayerCost

    return lambda time_s: Profile((Layer((LayerCost(time_s, 0.0, 0.0),)),))
