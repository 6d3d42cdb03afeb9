"""A Profile by measurement: every layer's F, I, W, optimizer step and B, timed as a runner executes them."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import nn

from ..schemas.errors import InvalidInputError
from ..schemas.profile import (
    FEWEST_FOR_A_SPREAD,
    Connection,
    Device,
    DoesNotFitError,
    Layer,
    LayerCost,
    Network,
    Profile,
    Spread,
    half_width,
)
from ..schemas.protocols import StageExecutor, StageFactory, StageStepper
from .models.model import Loss, Model, tied
from .models.sharding import check_share, reduction_s, shard_of, share_loss
from .models.skeleton import title_of

# Stopwatches: by a clock where operations end when their call returns, by events where a device runs behind.


Clock = Callable[[], float]

# Two rounds in a row that differ by less than this part find a device warm.
STEADY = 0.05


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How long a device works before its times count: until it is steady, but for so long at least and about at most.

    A GPU's clocks rise in its first second; a CPU's first round pays for memory that nobody has touched.
    """

    least_s: float
    enough_s: float

    def is_over(self, rounds_s: Sequence[float]) -> bool:
        """Whether rounds that took these times, in s, are enough."""
        if sum(rounds_s) >= self.enough_s:
            return True
        if len(rounds_s) < 2 or sum(rounds_s) < self.least_s:
            return False
        before_s, last_s = rounds_s[-2:]
        return abs(last_s - before_s) <= STEADY * before_s


CPU_WARM_UP, GPU_WARM_UP = WarmUp(0.0, 1.5), WarmUp(1.0, 10.0)


class Stopwatch(Protocol):
    """Tells how long lie between the moments that are marked."""

    def mark(self) -> None:
        """Here one lap ends and the next one begins."""
        ...

    def laps_s(self) -> list[float]:
        """The times between the marks since the last call, in s, which are forgotten."""
        ...


class ClockStopwatch:
    """By a clock, for a CPU: an operation has ended when its call returns."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._moments_s: list[float] = []

    def mark(self) -> None:
        """Read the clock."""
        self._moments_s.append(self._clock())

    def laps_s(self) -> list[float]:
        """The differences of the readings."""
        moments_s, self._moments_s = self._moments_s, []
        return [end_s - start_s for start_s, end_s in pairwise(moments_s)]


class EventStopwatch:
    """By events in a GPU's stream, which nobody waits for until the laps are asked for.

    So the host runs ahead as in training, and an operation's time is what the device took for it.

    Args:
        new_event: makes an event that knows its time, with `record()`, `synchronize()` and `elapsed_time(later)` in ms.
    """

    def __init__(self, new_event: Callable[[], Any]) -> None:
        self._new_event = new_event
        self._events: list[Any] = []

    def mark(self) -> None:
        """Put an event behind everything that was asked of the device so far."""
        event = self._new_event()
        event.record()
        self._events.append(event)

    def laps_s(self) -> list[float]:
        """Wait for the last event; the times between them."""
        events, self._events = self._events, []
        if events:
            events[-1].synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairwise(events)]


def stopwatch_of(device: torch.device, clock: Clock = time.perf_counter) -> Stopwatch:
    """The stopwatch for a device; the clock counts on a CPU only."""
    if device.type == "cuda":
        return EventStopwatch(partial(torch.cuda.Event, enable_timing=True))
    return ClockStopwatch(clock)


def warm_up_of(device: torch.device) -> WarmUp:
    """How long a device is warmed up."""
    return GPU_WARM_UP if device.type == "cuda" else CPU_WARM_UP


# An iteration rehearsed: every layer as a stage of its own, one after the other, with a mark between any two.


OperationName = Literal["move", "F", "I", "W", "step", "B"]
OPERATIONS: dict[OperationName, str] = {
    "move": "its parameters",
    "F": "forward",
    "I": "backward-input",
    "W": "backward-weight",
    "step": "the optimizer's step",
    "B": "backward",
}
Times = tuple[float, float, float, float, float]  # of F, I, W, step and B
NO_WATCH: Stopwatch = ClockStopwatch(lambda: 0.0)


class Held(NamedTuple):
    """What a layer holds for one micro-batch, in bytes, and between what it stands.

    Attributes:
        activation_bytes: from F's start to I's end.
        stash_bytes: of these, until W's end.
        output_bytes: what it passes on; 0 where the loss takes it.
        takes: shape and type of its input.
        is_last: whether the loss follows.
        gradient_bytes: whatever the micro-batch: the sums of its gradients.
        state_bytes: these, and what the optimizer keeps.
    """

    activation_bytes: int
    stash_bytes: int
    output_bytes: int
    takes: tuple[torch.Size, torch.dtype]
    is_last: bool
    gradient_bytes: int = 0
    state_bytes: int = 0

    @property
    def stream_bytes(self) -> int:
        """What flows between layers here: the output, at the end of the model the input."""
        shape, dtype = self.takes
        return shape.numel() * dtype.itemsize if self.is_last else self.output_bytes


class OutOfMemory(Exception):  # noqa: N818  # an answer, caught by who asked
    """The device had no more memory when a layer ran an operation."""

    def __init__(self, layer: int, operation: OperationName) -> None:
        super().__init__(layer, operation)
        self.layer, self.operation = layer, operation


@dataclass(slots=True, eq=False)
class _Part:
    """One layer of a rehearsal: the layer, a stage of its own, and what steps it, where it learns."""

    layer: nn.Module
    stage: StageExecutor
    stepper: StageStepper | None


class Rehearsal:
    """Runs a micro-batch through layers as a training process does: F of all, I and W of all backwards, the steps.

    Then another one with full backward passes, whose times are not those of I and W together.

    Each layer takes what the one before it has just made, and the gradient that the one after it has just made, while
    all others hold their activations: caches and the allocator are as in an iteration. Gradients are added to those
    that are there, in the numbers in which a runner sums them. The optimizer is AdamW with a learning rate of 0, which
    leaves parameters as they are and takes as long as any other; with masters, where the runner's stages have some.

    Args:
        layers: on one device, each fed with the output of the one before it.
        make_stage: makes of one layer what a runner would execute.
        loss: of the last layer; None: the model goes on behind it.
        inputs: of the first layer, on the device.
        target: of the loss, on the device.

    Raises:
        OutOfMemory: at which layer there was no room for gradients or masters.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        make_stage: StageFactory,
        loss: Loss | None,
        inputs: torch.Tensor,
        target: torch.Tensor | None,
    ) -> None:
        self._loss, self._inputs, self._target = loss, inputs, target
        losses = [None] * (len(layers) - 1) + [loss]
        self._parts = list[_Part]()
        self._value = inputs
        self._gradient: torch.Tensor | None = None
        self._at: tuple[int, OperationName] = (0, "F")
        with self._naming():
            for place, (layer, own) in enumerate(zip(layers, losses, strict=True)):
                self._at, stage = (place, "step"), make_stage([layer], own)
                self._parts.append(_Part(layer, stage, stage.stepper(partial(torch.optim.AdamW, lr=0.0))))

    def run(self, watch: Stopwatch) -> list[Times]:
        """One round: for each layer the times of F, I, W, step, with the zeroing of its gradients, and B, in s.

        Raises:
            OutOfMemory: at which layer and operation.
        """
        with self._naming():
            watch.mark()
            self._forward(watch)
            if self._loss is None and self._gradient is None:
                self._gradient = torch.randn_like(self._value)
            self._backward_input(watch)
            self._backward_weight(watch)
            for place, part in enumerate(self._parts):
                self._at = place, "step"
                if part.stepper is not None:
                    part.stepper.step()
                watch.mark()
            self._forward(watch)
            self._backward(watch)
            laps_s = watch.laps_s()
        count = len(self._parts)
        forward_s, input_s, weight_s, step_s, _, full_s = (laps_s[n * count : (n + 1) * count] for n in range(6))
        return list(zip(forward_s, *map(reversed, (input_s, weight_s)), step_s, reversed(full_s), strict=True))

    def holdings(self) -> list[Held]:
        """What each layer holds, from one F, I and W.

        Activations are the storages that autograd saves in F, parameters and buffers excepted, and the layer's input.
        An output that a layer saves is left to the next one, whose input it is: a stage holds it once. The stash also
        holds gradients that did not exist when F ended: where it comes to more than the activations, these are given
        as equal to it, so that a plan never promises too much room.

        Raises:
            OutOfMemory: as `run`.
        """
        with self._naming():
            self._value = self._inputs
            held = [self._saved(place) for place in range(len(self._parts))]
            # Runs I and W of all layers; the bytes held in between.
            if self._loss is None:
                self._gradient = torch.randn_like(self._value)
            self._backward_input(NO_WATCH)
            stashes = [part.stage.stash_bytes(0) for part in self._parts]
            self._backward_weight(NO_WATCH)
        return [
            one._replace(activation_bytes=max(one.activation_bytes, stash_bytes), stash_bytes=stash_bytes)
            for one, stash_bytes in zip(held, stashes, strict=True)
        ]

    def with_state(self, held: Sequence[Held]) -> list[Held]:
        """Holdings, with what gradients and optimizers hold after a round."""
        steppers = [part.stepper for part in self._parts]
        return [
            one
            if stepper is None
            else one._replace(gradient_bytes=stepper.gradient_bytes(), state_bytes=stepper.state_bytes())
            for one, stepper in zip(held, steppers, strict=True)
        ]

    def _forward(self, watch: Stopwatch) -> None:
        self._value = self._inputs
        for place in range(len(self._parts)):
            self._run_forward(place)
            watch.mark()

    def _run_forward(self, place: int) -> None:
        self._at = place, "F"
        is_last = place == len(self._parts) - 1
        self._value = self._parts[place].stage.forward(0, self._value, self._target if is_last else None)

    def _saved(self, place: int) -> Held:
        """Runs a layer's F; what it holds then."""
        layer, inputs = self._parts[place].layer, self._value
        storages = {_address(inputs): _size(inputs)}

        def remember(tensor: torch.Tensor) -> torch.Tensor:
            storages[_address(tensor)] = _size(tensor)
            return tensor.detach()  # a tensor that the graph both makes and keeps would keep the graph

        with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
            self._run_forward(place)
        is_last = self._loss is not None and place == len(self._parts) - 1
        elsewhere = {_address(tensor) for tensor in (*layer.parameters(), *layer.buffers())}
        if not is_last:
            elsewhere.add(_address(self._value))
        activation_bytes = sum(size for address, size in storages.items() if address not in elsewhere)
        return Held(activation_bytes, 0, 0 if is_last else self._value.nbytes, (inputs.shape, inputs.dtype), is_last)

    def _backward_input(self, watch: Stopwatch) -> None:
        gradient = self._gradient
        for place in reversed(range(len(self._parts))):
            self._at = place, "I"
            gradient = self._parts[place].stage.backward_input(0, gradient)
            watch.mark()

    def _backward_weight(self, watch: Stopwatch) -> None:
        for place in reversed(range(len(self._parts))):
            self._at = place, "W"
            self._parts[place].stage.backward_weight(0)
            watch.mark()

    def _backward(self, watch: Stopwatch) -> None:
        gradient = self._gradient
        for place in reversed(range(len(self._parts))):
            self._at = place, "B"
            gradient = self._parts[place].stage.backward(0, gradient)
            watch.mark()

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Says at which layer the memory ended, if it does."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise OutOfMemory(*self._at) from None  # the traceback would hold what is to be freed
            raise


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python found no memory."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _size(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


# Layers under measurement on a device: all together where they fit, else one after the other.


Progress = Callable[[int, int], None]

# Where the number of rounds is not given: as many as this takes, in s, but so many at least and at most.
BUDGET_S = 8.0
FEWEST_ROUNDS, MOST_ROUNDS = 4, 60


@dataclass(frozen=True, slots=True, eq=False)
class MeasurementHarness:
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
class LayerMeasurements:
    """What was measured, by a layer's place; layers that found no memory are in `failed`, those never tried nowhere."""

    costs: dict[int, LayerCost] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    failed: dict[int, OperationName] = field(default_factory=dict)


def measure_layers(bench: MeasurementHarness, layers: Sequence[nn.Module], loss: Loss) -> LayerMeasurements:
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
        return LayerMeasurements(dict(enumerate(costs)), dict(enumerate(held)))
    finally:
        for layer in layers:
            _put_away(layer, bench.home)
    return _one_by_one(bench, layers, loss)


def _one_by_one(bench: MeasurementHarness, layers: Sequence[nn.Module], loss: Loss) -> LayerMeasurements:
    found = LayerMeasurements()
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
        if twin in found.failed:
            found.failed[place] = found.failed[twin]
        else:
            found.costs[place], found.held[place] = found.costs[twin], found.held[twin]
        value = _output(layer, value, bench.device)
        _put_away(layer, bench.home)
    return found


def _measure(
    bench: MeasurementHarness, layers: Sequence[nn.Module], loss: Loss | None, inputs: torch.Tensor
) -> tuple[list[LayerCost], list[Held]]:
    """The costs of layers on the device, and what they hold."""
    target = None if loss is None else bench.example[1].to(bench.device)
    rehearsal = Rehearsal(layers, bench.make_stage, loss, inputs.to(bench.device), target)
    held = rehearsal.holdings()
    readings = LayerSamples(
        [likeness_of(layer, one.takes, one.is_last) for layer, one in zip(layers, held, strict=True)]
    )
    watch = stopwatch_of(bench.device, bench.clock)
    warm_up, warm_s = warm_up_of(bench.device), [total_s(rehearsal.run(watch))]
    while not warm_up.is_over(warm_s):
        warm_s.append(total_s(rehearsal.run(watch)))
    rounds = bench.rounds(warm_s[-1])
    for number in range(rounds):
        readings.add(rehearsal.run(watch))
        bench.progress(number + 1, rounds)
    return readings.costs(), rehearsal.with_state(held)


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


def _several(where: str) -> InvalidInputError:
    return InvalidInputError(
        "layers that take or give several tensors cannot be measured",
        where=where,
        fix='write their times into a profile yourself ("origin": "given"; docs/profiles.md has the format)',
    )


def _output(layer: nn.Module, value: torch.Tensor, device: torch.device) -> torch.Tensor | None:
    """What a layer makes of a value, on its device or else on the CPU; None where it finds no memory there either."""
    for where in dict.fromkeys((device, torch.device("cpu"))):
        try:
            with torch.no_grad():
                output: object = layer.to(where)(value.to(where))
                if not isinstance(output, torch.Tensor):
                    raise _several(f"a layer, {title_of(layer)}")
                return output.cpu()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
    return None


def measure_profile(
    model: Model,
    make_stage: StageFactory,
    *,
    degrees: Sequence[int] = (1,),
    device: torch.device | None = None,
    repeats: int | None = None,
    threads: int = 1,
    seed: int = 0,
    clock: Clock = time.perf_counter,
    intra_node: Connection | None = None,
    progress: Progress = lambda done, total: None,
) -> Profile:
    """Measure a model layer by layer; the parameters keep their values.

    Iterations of one micro-batch are rehearsed with all layers (measure.py), and the time between any two layers is
    read: so each has the caches, the allocator and the neighbours that it has in training. A layer's time is the
    median over rounds, and over layers that are alike (measure.py). Where the device cannot hold all layers, each is
    measured alone (measure.py).

    Args:
        model: what to measure.
        make_stage: makes of one layer what a runner would execute.
        degrees: of tensor parallelism; 1 is always measured. Others are measured on one rank's share of each layer, and
            all-reduces over `intra_node` are added. Bytes are those of the whole layer.
        device: where; layers are moved there. None: where the model's parameters are.
        repeats: rounds that count; None: as many as 8 s take, 4 to 60.
        threads: torch threads, on a CPU.
        seed: of the example and of random gradients.
        clock: seconds, on a CPU; replaced in tests.
        intra_node: goes into the profile, such as what `measure_loopback` found.
        progress: called with (rounds done, rounds in all).

    Returns:
        The profile, with `origin` "measured".

    Raises:
        InvalidInputError: a degree does not divide the model.
        DoesNotFitError: the memory is too small for some layers, each alone.
    """
    where = device or _device_of(model)
    higher = sorted({*degrees} - {1})
    with working_threads(threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for degree in higher:
            for layer in model.layers:
                check_share(layer, degree, model.tensor_parallel)
        budget_s = BUDGET_S / (1 + len(higher))
        example = model.example(seed)
        if len(example) != 2 or not isinstance(example[0], torch.Tensor):
            raise _several("the data")
        bench = MeasurementHarness(
            make_stage, (example[0], example[1]), where, _device_of(model), repeats, budget_s, clock, progress
        )
        whole = measure_layers(bench, model.layers, model.loss)
        shares = [_measure_shares(bench, model, whole, degree, intra_node) for degree in higher]
    layers = list(_measured_layers(model.layers, [whole, *shares]))
    profile = _profile_of(model, layers, _describe_device(where, threads), Network(intra_node=intra_node))
    if len(layers) < len(model.layers):
        raise _does_not_fit(model.layers, [whole, *shares], profile)
    return profile


def _profile_of(model: Model, layers: Sequence[Layer], device: Device, network: Network) -> Profile:
    """A profile of those layers of a model that were measured."""
    unique = {id(parameter): parameter.numel() for layer in model.layers for parameter in layer.parameters()}
    names = {"name": model.name, "parameters": sum(unique.values()), "vocabulary": model.vocabulary}
    # In which numbers gradients are kept, where these are others than the parameters', as computed profiles say it.
    gradients = {"gradients": "fp32"} if any(layer.gradient_bytes is not None for layer in layers) else {}
    return Profile(
        layers=tuple(layers),
        model={**names, **model.form.options(), **gradients},
        origin="measured",
        device=device,
        microbatch_size=model.microbatch_size,
        sequence_length=model.sequence_length,
        network=network,
    )


def _measure_shares(
    bench: MeasurementHarness, model: Model, whole: LayerMeasurements, degree: int, connection: Connection | None
) -> LayerMeasurements:
    """What one rank of a tensor-parallel group finds, with the all-reduces of its group where their path is known."""
    shares = [shard_of(layer, degree, model.tensor_parallel) for layer in model.layers]
    found = measure_layers(bench, shares, share_loss(model.loss))
    for place, cost in found.costs.items():
        forward_s = input_s = 0.0
        if connection is not None and place in whole.held:
            stream_bytes = whole.held[place].stream_bytes
            layer, plan = model.layers[place], model.tensor_parallel
            forward_s, input_s = reduction_s(layer, plan, stream_bytes, degree, connection)
        found.costs[place] = replace(
            cost,
            forward_s=cost.forward_s + forward_s,
            backward_input_s=cost.backward_input_s + input_s,
            backward_s=cost.full_s + input_s,
            tensor_parallel=degree,
        )
    return found


def _measured_layers(layers: Sequence[nn.Module], found: Sequence[LayerMeasurements]) -> Iterator[Layer]:
    """The profile's layers: those measured at all degrees."""
    ties = tied(layers)
    for place, layer in enumerate(layers):
        if all(place in one.costs for one in found):
            held, tie, parameters = found[0].held[place], ties.get(place), list(layer.parameters())
            trained_bytes = sum(parameter.nbytes for parameter in parameters if parameter.requires_grad)
            yield Layer(
                costs=tuple(one.costs[place] for one in found),
                name=_name(place, layer),
                parameter_bytes=sum(parameter.nbytes for parameter in parameters),
                state_bytes=held.state_bytes,
                activation_bytes=held.activation_bytes,
                weight_stash_bytes=held.stash_bytes,
                output_bytes=held.output_bytes,
                tied_to=tie[0] if tie else None,
                tied_bytes=tie[1] if tie else None,
                tied_state_bytes=_state_of(tie[1], trained_bytes, held.state_bytes) if tie else None,
                gradient_bytes=held.gradient_bytes if held.gradient_bytes != trained_bytes else None,
            )


def _state_of(tied_bytes: int, trained_bytes: int, state_bytes: int) -> float:
    """What of a layer's state belongs to the matrix that it shares; a frozen one has no state."""
    return min(tied_bytes * state_bytes / trained_bytes, state_bytes) if trained_bytes else 0.0


def _does_not_fit(layers: Sequence[nn.Module], found: Sequence[LayerMeasurements], partial: Profile) -> DoesNotFitError:
    failed = {place: operation for one in reversed(found) for place, operation in one.failed.items()}
    words = "; ".join(f"{_name(place, layers[place])}, {OPERATIONS[failed[place]]}" for place in sorted(failed))
    error = DoesNotFitError(
        f"out of memory in {'layer' if len(failed) == 1 else 'layers'} {words}",
        fix="take a smaller --microbatch-size or --sequence-length, --dtype bf16 or --checkpointing",
    )
    # Without what layers say of one another, whose places have changed.
    untied = (replace(one, tied_to=None, tied_bytes=None, tied_state_bytes=None) for one in partial.layers)
    error.partial = replace(partial, layers=tuple(untied)) if partial.layers else None
    return error


def _name(place: int, layer: nn.Module) -> str:
    return f"{place} {title_of(layer)}"


def _device_of(model: Model) -> torch.device:
    parameters = (parameter for layer in model.layers for parameter in layer.parameters())
    first = next(parameters, None)
    return torch.device("cpu") if first is None else first.device


def _describe_device(device: torch.device, threads: int) -> Device:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Device(name=properties.name, memory_bytes=properties.total_memory)
    return Device(name=f"cpu, {threads} thread{'s' if threads > 1 else ''}")


@contextmanager
def working_threads(count: int) -> Iterator[None]:
    """Within the context torch computes with so many threads on a CPU."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Samples of layers' times: which layers are alike and share theirs, medians, and how far readings lie apart.


# Attributes by which a layer knows its own place, as those of transformers do.
OWN_PLACE = frozenset({"layer_idx", "layer_id", "layer_number", "layer_index"})

Likeness = tuple[object, ...]


@dataclass(slots=True)
class LayerSamples:
    """The times of layers over rounds; those of layers that are alike are readings of one thing.

    Like layers do the same arithmetic on the same shapes, and each is measured at its own place, right after its
    neighbour and with all others in memory. So their readings differ by chance only, and one median of them all is
    steadier than one each.

    Attributes:
        likenesses: one a layer; equal ones pool.
    """

    likenesses: Sequence[Likeness]
    _times_s: dict[Likeness, list[Times]] = field(default_factory=dict)

    def add(self, round_: Iterable[Times]) -> None:
        """One round: F, I, W, step and B of each layer, in s."""
        for likeness, times_s in zip(self.likenesses, round_, strict=True):
            self._times_s.setdefault(likeness, []).append(times_s)

    def costs(self, degree: int = 1) -> list[LayerCost]:
        """Each layer's medians at a tensor-parallel degree, with their spread."""
        found = {}
        for likeness, times_s in self._times_s.items():
            columns = list(zip(*times_s, strict=True))
            is_enough = len(times_s) >= FEWEST_FOR_A_SPREAD
            spread = Spread(*(half_width(column) for column in columns[:4])) if is_enough else None
            forward_s, input_s, weight_s, step_s, full_s = map(median, columns)
            found[likeness] = LayerCost(forward_s, input_s, weight_s, step_s, degree, spread, full_s)
        return [found[likeness] for likeness in self.likenesses]


def likeness_of(layer: nn.Module, takes: tuple[torch.Size, torch.dtype], is_last: bool) -> Likeness:
    """What layers that do the same work have in common.

    Args:
        layer: any module: the classes and settings in it and the shapes of its parameters count, their values do not.
        takes: shape and type of its input.
        is_last: whether the loss follows.
    """
    modules = tuple((name, type(module), _settings(module)) for name, module in layer.named_modules())
    tensors = (*layer.named_parameters(), *layer.named_buffers())
    shapes = tuple((name, tuple(one.shape), one.dtype, one.requires_grad) for name, one in tensors)
    return takes, is_last, modules, shapes


def _settings(module: nn.Module) -> Likeness:
    """The numbers and words among a module's attributes, such as the width of a sliding window."""
    return tuple(
        (name, value)
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str | None) and not name.startswith("_") and name not in OWN_PLACE
    )


# How far the readings behind a time lie apart, reckoned alike wherever a profile says a `spread`.
