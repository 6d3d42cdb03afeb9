"""Layers under measurement on a device: all together where they fit, else one after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from ..schemas.profile import LayerCost
from ..schemas.protocols import StageFactory
from .clocks import Clock, stopwatch_of, warm_up_of
from .models.model import Loss
from .readings import Likeness, Readings, likeness_of
from .rehearsal import Held, OperationName, OutOfMemory, Rehearsal, is_out_of_memory

Progress = Callable[[int, int], None]

# Where the number of rounds is not given: as many as this takes, in s, but so many at least and at most.
BUDGET_S = 8.0
FEWEST_ROUNDS, MOST_ROUNDS = 4, 60


@dataclass(frozen=True, slots=True, eq=False)
class Bench:
    """Where and how layers are measured.

    Args:
        make_stage: makes of one layer what a runner would execute.
        example: inputs of the first layer, targets of the loss.
        device: where.
        home: where layers belong, and are brought back to.
        repeats: rounds that count; None: as many as the budget allows.
        budget_s: for all rounds of one measurement.
        clock: seconds, on a CPU.
        progress: called with (rounds done, rounds in all).
    """

    make_stage: StageFactory
    example: tuple[torch.Tensor, torch.Tensor]
    device: torch.device
    home: torch.device
    repeats: int | None
    budget_s: float
    clock: Clock
    progress: Progress

    def rounds(self, round_s: float) -> int:
        """How many rounds count where one takes `round_s`."""
        if self.repeats is not None:
            return self.repeats
        return min(max(int(self.budget_s / max(round_s, 1e-9)), FEWEST_ROUNDS), MOST_ROUNDS)


@dataclass(slots=True)
class Found:
    """What was measured, by a layer's place; layers that found no memory are in `failed`, those never tried nowhere."""

    costs: dict[int, LayerCost] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    failed: dict[int, OperationName] = field(default_factory=dict)


def measure_layers(bench: Bench, layers: Sequence[nn.Module], loss: Loss) -> Found:
    """Measure consecutive layers of a model, from its first to its last one.

    All are on the device at once, as in training with one stage. Where they do not fit, each is brought there alone,
    with a random gradient from above; of layers that are alike one is measured. What lies behind a layer that cannot
    even run forwards is not measured, for nobody knows what it takes.
    """
    try:
        for place, layer in enumerate(layers):
            _move(layer, bench.device, place)
        costs, held = _measure(bench, layers, loss, bench.example[0])
    except OutOfMemory:
        pass  # and no longer within the handler, which holds the error and with it what is to be freed
    else:
        return Found(dict(enumerate(costs)), dict(enumerate(held)))
    finally:
        for layer in layers:
            _put_away(layer, bench.home)
    return _one_by_one(bench, layers, loss)


def _one_by_one(bench: Bench, layers: Sequence[nn.Module], loss: Loss) -> Found:
    found = Found()
    known: dict[Likeness, int] = {}
    value: torch.Tensor | None = bench.example[0]
    for place, layer in enumerate(layers):
        if value is None:
            break
        own = loss if place == len(layers) - 1 else None
        twin = known.setdefault(likeness_of(layer, (value.shape, value.dtype), own is not None), place)
        try:
            if twin == place:
                _move(layer, bench.device, place)
                (cost,), (held,) = _measure(bench, [layer], own, value)
                found.costs[place], found.held[place] = cost, held
        except OutOfMemory as error:
            found.failed[place] = error.operation
        _take_over(found, place, twin)
        value = _output(layer, value, bench.device)
        _put_away(layer, bench.home)
    return found


def _take_over(found: Found, place: int, twin: int) -> None:
    """A layer has what was found of the one that is like it."""
    if twin in found.failed:
        found.failed[place] = found.failed[twin]
    else:
        found.costs[place], found.held[place] = found.costs[twin], found.held[twin]


def _measure(
    bench: Bench, layers: Sequence[nn.Module], loss: Loss | None, inputs: torch.Tensor
) -> tuple[list[LayerCost], list[Held]]:
    """The costs of layers on the device, and what they hold."""
    target = None if loss is None else bench.example[1].to(bench.device)
    rehearsal = Rehearsal(layers, bench.make_stage, loss, inputs.to(bench.device), target)
    held = rehearsal.holdings()
    readings = Readings([likeness_of(layer, one.takes, one.is_last) for layer, one in zip(layers, held, strict=True)])
    watch = stopwatch_of(bench.device, bench.clock)
    warm_up, warm_s = warm_up_of(bench.device), [total_s(rehearsal.run(watch))]
    while not warm_up.is_over(warm_s):
        warm_s.append(total_s(rehearsal.run(watch)))
    rounds = bench.rounds(warm_s[-1])
    for number in range(rounds):
        readings.add(rehearsal.run(watch))
        bench.progress(number + 1, rounds)
    return readings.costs(), held


def total_s(round_: Sequence[Sequence[float]]) -> float:
    """What a round took, in s."""
    return sum(map(sum, round_))


def _move(layer: nn.Module, device: torch.device, place: int) -> None:
    try:
        layer.to(device)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise OutOfMemory(place, "move") from None
        raise


def _put_away(layer: nn.Module, home: torch.device) -> None:
    """Free the memory of its gradients, and what it takes of another device than its own."""
    layer.zero_grad(set_to_none=True)
    layer.to(home)


def _output(layer: nn.Module, value: torch.Tensor, device: torch.device) -> torch.Tensor | None:
    """What a layer makes of a value, on its device or else on the CPU; None where it finds no memory there either."""
    for where in dict.fromkeys((device, torch.device("cpu"))):
        try:
            with torch.no_grad():
                output: torch.Tensor = layer.to(where)(value.to(where))
                return output.cpu()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
    return None
