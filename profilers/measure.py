"""A Profile by measurement: every layer's F, I, W and optimizer step, timed as a runner executes them."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from ..schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile
from ..schemas.protocols import StageFactory
from .bench import BUDGET_S, Bench, Found, Progress, measure_layers
from .clocks import Clock
from .fitting import DoesNotFitError
from .models.model import Model
from .models.tied import tied
from .models.titles import title_of
from .rehearsal import OPERATIONS, Held
from .sharding import check_share, reduction_s, shard_of, share_loss

# Beside each parameter: its gradient and AdamW's two moments.
STATES = 3


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

    Iterations of one micro-batch are rehearsed with all layers (rehearsal.py), and the time between any two layers is
    read: so each has the caches, the allocator and the neighbours that it has in training. A layer's time is the
    median over rounds, and over layers that are alike (readings.py). Where the device cannot hold all layers, each is
    measured alone (bench.py).

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
    with _threads(threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _check_shares(model, higher)
        budget_s = BUDGET_S / (1 + len(higher))
        bench = Bench(make_stage, model.example(seed), where, _device_of(model), repeats, budget_s, clock, progress)
        whole = measure_layers(bench, model.layers, model.loss)
        shares = [_measure_shares(bench, model, whole, degree, intra_node) for degree in higher]
    layers = _layers(model.layers, [whole, *shares])
    profile = Profile(
        layers=tuple(layers.values()),
        model=_description(model),
        origin="measured",
        device=_describe_device(where, threads),
        microbatch_size=model.microbatch_size,
        sequence_length=model.sequence_length,
        network=Network(intra_node=intra_node),
    )
    if len(layers) < len(model.layers):
        raise _does_not_fit(model.layers, [whole, *shares], _untied(profile) if layers else None)
    return profile


def _check_shares(model: Model, degrees: Sequence[int]) -> None:
    """Raise InvalidInputError if a layer has no share, before anything is measured."""
    for degree in degrees:
        for layer in model.layers:
            check_share(layer, degree, model.tensor_parallel)


def _measure_shares(bench: Bench, model: Model, whole: Found, degree: int, connection: Connection | None) -> Found:
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
            tensor_parallel=degree,
        )
    return found


def _layers(layers: Sequence[nn.Module], found: Sequence[Found]) -> dict[int, Layer]:
    """The profile's layers by place: those measured at all degrees."""
    ties = tied(layers)
    return {
        place: _layer(place, layer, [one.costs[place] for one in found], found[0].held[place], ties.get(place))
        for place, layer in enumerate(layers)
        if all(place in one.costs for one in found)
    }


def _layer(place: int, layer: nn.Module, costs: Sequence[LayerCost], held: Held, tie: tuple[int, int] | None) -> Layer:
    parameters = list(layer.parameters())
    state_bytes = sum(STATES * parameter.nbytes for parameter in parameters if parameter.requires_grad)
    return Layer(
        costs=tuple(costs),
        name=_name(place, layer),
        parameter_bytes=sum(parameter.nbytes for parameter in parameters),
        state_bytes=state_bytes,
        activation_bytes=held.activation_bytes,
        weight_stash_bytes=held.stash_bytes,
        output_bytes=held.output_bytes,
        tied_to=tie[0] if tie else None,
        tied_bytes=tie[1] if tie else None,
        tied_state_bytes=min(STATES * tie[1], state_bytes) if tie else None,
    )


def _does_not_fit(layers: Sequence[nn.Module], found: Sequence[Found], partial: Profile | None) -> DoesNotFitError:
    failed = {place: operation for one in reversed(found) for place, operation in one.failed.items()}
    words = "; ".join(f"{_name(place, layers[place])}, {OPERATIONS[failed[place]]}" for place in sorted(failed))
    error = DoesNotFitError(
        f"out of memory in {'layer' if len(failed) == 1 else 'layers'} {words}",
        fix="take a smaller --microbatch-size or --sequence-length, --dtype bf16 or --checkpointing",
    )
    error.partial = partial
    return error


def _untied(profile: Profile) -> Profile:
    """Without what layers say of one another, whose places have changed."""
    layers = (replace(one, tied_to=None, tied_bytes=None, tied_state_bytes=None) for one in profile.layers)
    return replace(profile, layers=tuple(layers))


def _name(place: int, layer: nn.Module) -> str:
    return f"{place} {title_of(layer)}"


def _description(model: Model) -> dict[str, object]:
    unique = {id(parameter): parameter.numel() for layer in model.layers for parameter in layer.parameters()}
    names = {"name": model.name, "parameters": sum(unique.values()), "vocabulary": model.vocabulary}
    return {**names, **model.form.options()}


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
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
