"""A Profile by measurement: every layer's F, I, W and optimizer step, timed as a runner executes them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import torch
from torch import nn

from ..schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile
from ..schemas.protocols import StageExecutor, StageFactory
from .models.load import Model

Clock = Callable[[], float]
Progress = Callable[[int, int], None]


@dataclass(slots=True, eq=False)
class _Bench:
    """One layer under measurement: the layer as a stage of its own, what it is fed with, and the times seen."""

    name: str
    layer: nn.Module
    stage: StageExecutor
    inputs: torch.Tensor
    target: torch.Tensor | None
    gradient: torch.Tensor | None
    optimizer: torch.optim.Optimizer | None
    output_bytes: int
    times_s: list[tuple[float, float, float, float]] = field(default_factory=list)


def measure_profile(
    model: Model,
    make_stage: StageFactory,
    *,
    repeats: int = 20,
    warmup: int = 3,
    threads: int = 1,
    seed: int = 0,
    clock: Clock = time.perf_counter,
    intra_node: Connection | None = None,
    progress: Progress = lambda done, total: None,
) -> Profile:
    """Measure a model layer by layer on the device its parameters are on; the parameters keep their values.

    Each round runs F, I, W and an AdamW step of every layer, so that a drift of the machine's speed spreads evenly; a
    layer's time is the median over the rounds. A layer is fed with the output of the one before it. Activations are the
    storages that autograd saves in F, parameters and buffers excepted, and the layer's input; the stash is what the
    stage holds between I and W. The stash also holds gradients that did not exist when F ended: where it comes to more
    than the activations, the activations are given as equal to it, so that a plan never promises too much room.

    Args:
        model: what to measure.
        make_stage: makes of one layer what a runner would execute.
        repeats: rounds that count, at least 1.
        warmup: rounds ahead of them that do not.
        threads: torch threads, on a CPU.
        seed: of the example and of the gradients fed into I.
        clock: seconds; replaced in tests.
        intra_node: goes into the profile, such as what `measure_loopback` found.
        progress: called with (rounds done, rounds in all).

    Returns:
        The profile, with `origin` "measured".
    """
    device = _device_of(model)
    with _threads(threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        benches = _set_up(model, make_stage, device, seed)
        sizes = [_measure_bytes(bench) for bench in benches]
        for number in range(warmup + repeats):
            for bench in benches:
                times_s = _time_once(bench, _synchronized(clock, device))
                if number >= warmup:
                    bench.times_s.append(times_s)
            progress(number + 1, warmup + repeats)
    layers = tuple(_layer(bench, *size) for bench, size in zip(benches, sizes, strict=True))
    return Profile(
        layers=layers,
        model=_description(model),
        origin="measured",
        device=_describe_device(device, threads),
        microbatch_size=model.microbatch_size,
        sequence_length=model.sequence_length,
        network=Network(intra_node=intra_node),
    )


def _set_up(model: Model, make_stage: StageFactory, device: torch.device, seed: int) -> list[_Bench]:
    value, target = (tensor.to(device) for tensor in model.example(seed))
    benches = []
    for index, layer in enumerate(model.layers):
        is_last = index == len(model.layers) - 1
        with torch.no_grad():
            output = layer(value)
        bench = _Bench(
            name=f"{index} {type(layer).__name__}",
            layer=layer,
            stage=make_stage([layer], model.loss if is_last else None),
            inputs=value,
            target=target if is_last else None,
            gradient=None if is_last else torch.randn_like(output),
            optimizer=_optimizer(layer),
            output_bytes=0 if is_last else output.nbytes,
        )
        benches.append(bench)
        value = output
    return benches


def _optimizer(layer: nn.Module) -> torch.optim.Optimizer | None:
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    # A learning rate of 0 leaves the parameters as they are, and takes as long as any other.
    return torch.optim.AdamW(trained, lr=0.0) if trained else None


def _time_once(bench: _Bench, clock: Clock) -> tuple[float, float, float, float]:
    moments_s = [clock()]
    bench.stage.forward(0, bench.inputs, bench.target)
    moments_s.append(clock())
    bench.stage.backward_input(0, bench.gradient)
    moments_s.append(clock())
    bench.stage.backward_weight(0)
    moments_s.append(clock())
    if bench.optimizer is not None:
        bench.optimizer.step()
        bench.optimizer.zero_grad(set_to_none=False)  # as a runner does, whose gradients live in one buffer
    moments_s.append(clock())
    forward_s, input_s, weight_s, optimizer_s = (end_s - start_s for start_s, end_s in pairwise(moments_s))
    return forward_s, input_s, weight_s, optimizer_s


def _measure_bytes(bench: _Bench) -> tuple[int, int]:
    """A layer's activation and stash bytes, from one F, I and W."""
    saved = [bench.inputs]

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.detach())
        return saved[-1]

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        bench.stage.forward(0, bench.inputs, bench.target)
    owned = {_address(tensor) for tensor in (*bench.layer.parameters(), *bench.layer.buffers())}
    storages = {_address(tensor): tensor.untyped_storage().nbytes() for tensor in saved}
    activation_bytes = sum(size for address, size in storages.items() if address not in owned)
    saved.clear()
    bench.stage.backward_input(0, bench.gradient)
    stash_bytes = bench.stage.stash_bytes(0)
    bench.stage.backward_weight(0)
    return max(activation_bytes, stash_bytes), stash_bytes


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _layer(bench: _Bench, activation_bytes: int, stash_bytes: int) -> Layer:
    forward_s, input_s, weight_s, optimizer_s = (median(times) for times in zip(*bench.times_s, strict=True))
    parameters = list(bench.layer.parameters())
    return Layer(
        costs=(LayerCost(forward_s, input_s, weight_s, optimizer_s),),
        name=bench.name,
        parameter_bytes=sum(parameter.nbytes for parameter in parameters),
        state_bytes=sum(3 * parameter.nbytes for parameter in parameters if parameter.requires_grad),
        activation_bytes=activation_bytes,
        weight_stash_bytes=stash_bytes,
        output_bytes=bench.output_bytes,
    )


def _description(model: Model) -> dict[str, object]:
    unique = {id(parameter): parameter.numel() for layer in model.layers for parameter in layer.parameters()}
    return {"name": model.name, "parameters": sum(unique.values()), "vocabulary": model.vocabulary}


def _device_of(model: Model) -> torch.device:
    parameters = (parameter for layer in model.layers for parameter in layer.parameters())
    first = next(parameters, None)
    return torch.device("cpu") if first is None else first.device


def _describe_device(device: torch.device, threads: int) -> Device:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Device(name=properties.name, memory_bytes=properties.total_memory)
    return Device(name=f"cpu, {threads} thread{'s' if threads > 1 else ''}")


def _synchronized(clock: Clock, device: torch.device) -> Clock:
    if device.type != "cuda":
        return clock

    def after_synchronizing() -> float:
        torch.cuda.synchronize(device)
        return clock()

    return after_synchronizing


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
