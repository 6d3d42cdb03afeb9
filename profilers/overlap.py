"""What passes side by side are worth: F and B of two micro-batches together, over one after the other.

As a runner executes them: the whole model is one stage, F of one micro-batch runs beside a full backward pass of the
one before it, and whoever runs them waits for the device after every operation, and after every pair. So where the host
takes longer to launch the work than the device to do it, nothing is gained, and the number says so.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

from ..schemas.errors import InfeasibleError
from ..schemas.profile import half_width, told_overlap
from ..schemas.protocols import StageExecutor, StageFactory
from .measure import Clock, OutOfMemory, is_out_of_memory, warm_up_of
from .models.model import Model

BUDGET_S = 4.0
FEWEST_ROUNDS, MOST_ROUNDS = 8, 60
# What is gained counts if it is more than this, and than so many times half the width of the readings' middle half.
NOISE, WIDTH = 0.01, 2.5


def measure_overlap(
    model: Model,
    make_stage: StageFactory,
    *,
    device: torch.device,
    repeats: int | None = None,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> float:
    """Measure what F and B take side by side, over what they take one after the other; parameters keep their values.

    Args:
        model: what to measure; where it does not fit with two micro-batches, its first half, or the half of that.
        make_stage: makes of layers what a runner would execute.
        device: where; layers are moved there, and back.
        repeats: rounds that count, 8 at least; None: as many as 4 s take, 8 to 60.
        seed: of the example and of random gradients.
        clock: seconds; replaced in tests.

    Returns:
        More than 0.5 and at most 1; 1 where nothing is gained beyond the noise.

    Raises:
        InfeasibleError: not even the first layer fits with two micro-batches.
    """
    count = len(model.layers)
    while count:
        try:
            return _ratio_of(_readings(model, count, make_stage, device, repeats, seed, clock))
        except OutOfMemory:
            pass  # and no longer within the handler, which holds the error and with it what is to be freed
        count //= 2
    raise InfeasibleError(
        "no layer fits into the memory with two micro-batches, so that a pair cannot be measured",
        where="--overlap",
        fix='take a smaller --microbatch-size, or write "overlap" into the profile yourself (docs/profiles.md)',
    )


def _ratio_of(readings: Sequence[float]) -> float:
    """The median of readings, where it is below 1 by more than their noise."""
    ratio = median(readings)
    noise = max(NOISE, WIDTH * half_width(readings)) if len(readings) > 1 else NOISE
    return told_overlap(ratio) if ratio < 1 - noise else 1.0


def _readings(
    model: Model,
    count: int,
    make_stage: StageFactory,
    device: torch.device,
    repeats: int | None,
    seed: int,
    clock: Clock,
) -> list[float]:
    """What a pair took in each round, over F and B of the same round.

    Raises:
        OutOfMemory: the device cannot hold so many layers.
    """
    layers, homes = model.layers[:count], [_device_of(layer) for layer in model.layers[:count]]
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for layer in layers:
                layer.to(device)
            is_whole = count == len(model.layers)
            stage = make_stage(layers, model.loss if is_whole else None)
            inputs, target = (one.to(device) for one in model.example(seed))
            passes = _Passes(stage, inputs, target if is_whole else None, device, clock)
            rounds_s, warm_up, found = [passes.round()[0]], warm_up_of(device), list[float]()
            while not warm_up.is_over(rounds_s):
                rounds_s.append(passes.round()[0])
            rounds = min(max(int(BUDGET_S / max(rounds_s[-1], 1e-9)), FEWEST_ROUNDS), MOST_ROUNDS)
            for _ in range(rounds if repeats is None else max(repeats, FEWEST_ROUNDS)):
                apart_s, together_s = passes.round()
                found.append(together_s / max(apart_s, 1e-9))
            passes.end()
            return found
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise OutOfMemory(0, "F") from None
        raise
    finally:
        for layer, home in zip(layers, homes, strict=True):
            layer.zero_grad(set_to_none=True)
            layer.to(home)


def _device_of(layer: torch.nn.Module) -> torch.device:
    return next((parameter.device for parameter in layer.parameters()), torch.device("cpu"))


class _Passes:
    """Runs F and B of one stage, apart and side by side."""

    def __init__(
        self,
        stage: StageExecutor,
        inputs: torch.Tensor,
        target: torch.Tensor | None,
        device: torch.device,
        clock: Clock,
    ) -> None:
        self._stage, self._inputs, self._target = stage, inputs, target
        self._device, self._clock = device, clock
        self._gradient: torch.Tensor | None = None
        self._forward(0)

    def round(self) -> tuple[float, float]:
        """What F and B took apart, and what they took together, in s.

        Both times as in the midst of 1F1B: another micro-batch is under way, whose B follows the F.
        """
        apart_s = self._timed(lambda: self._forward(1)) + self._timed(lambda: self._backward(0))
        together_s = self._timed(
            lambda: self._stage.side_by_side(lambda: self._forward(0), lambda: self._backward(1), 1)
        )
        return apart_s, together_s

    def end(self) -> None:
        """Leave nothing under way."""
        self._backward(0)

    def _forward(self, key: int) -> None:
        made = self._stage.forward(key, self._inputs, self._target)
        if self._target is None and self._gradient is None:
            self._gradient = torch.randn_like(made)

    def _backward(self, key: int) -> None:
        self._stage.backward(key, self._gradient)

    def _timed(self, work: Callable[[], object]) -> float:
        self._wait()
        start_s = self._clock()
        work()
        self._wait()
        return self._clock() - start_s

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
