"""Profile: what a model costs on a machine, layer by layer, and in what form it is trained."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol, get_args

from annotated_types import MinLen

from .errors import InfeasibleError, InvalidInputError
from .fields import STRICT, Bytes, BytesPerSecond, Count, Index, Overlap, Seconds
from .quantities import print_apart, print_bytes, print_time

DataType = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class ModelForm:
    """What a profile, and a run of its plans, must have in common beside the model's name.

    Attributes:
        cut: names of the modules that are layers, such as `model.layers.*`; None: those the model is known to have.
        dtype: of parameters, gradients, the optimizer's state and activations.
        checkpointing: each layer keeps its input only, and computes the rest again before its backward pass.

    Raises:
        InvalidInputError: there is no such form.
    """

    cut: str | None = None
    dtype: DataType = "fp32"
    checkpointing: bool = False

    def __post_init__(self) -> None:
        known = get_args(DataType)
        if self.dtype not in known:
            raise InvalidInputError(f"{self.dtype!r} is no type", where="dtype", fix=f"take {' or '.join(known)}")
        if not isinstance(self.cut, str | None):
            raise InvalidInputError(f"{self.cut!r} is no name", where="cut", fix="write a name such as layers.*")
        if not isinstance(self.checkpointing, bool):
            raise InvalidInputError(f"{self.checkpointing!r} is not true or false", where="checkpointing")

    def options(self) -> dict[str, Any]:
        """What is not as by default, by name: for a profile's `model`, and a plan's options."""
        found = {"cut": self.cut, "dtype": self.dtype, "checkpointing": self.checkpointing}
        return {name: value for name, value in found.items() if value != getattr(AS_USUAL, name)}


AS_USUAL = ModelForm()


def form_of(options: Mapping[str, Any]) -> ModelForm:
    """The form that options say, those of a plan or a profile's `model`; what they do not say is as by default."""
    names = ModelForm.__dataclass_fields__
    return ModelForm(**{name: value for name, value in options.items() if name in names})


# What `LayerCost` and `Spread` call the time of each operation: of the passes of a micro-batch, and of all.
PASSES = {"F": "forward_s", "I": "backward_input_s", "W": "backward_weight_s"}
TIMES = {**PASSES, "step": "optimizer_s"}
ALL_PASSES = {**PASSES, "B": "backward_s"}  # with a full backward pass, which a cost need not say


# With fewer readings, a spread says nothing.
FEWEST_FOR_A_SPREAD = 4


def half_width(values: Sequence[float]) -> float:
    """Half the width of the middle half of two or more values; in their unit.

    Quartiles are those of what the values are a sample of (`exclusive`): within the values, the middle half of a few is
    narrower than that of many, and comparing.py would take noise for a difference.
    """
    from statistics import quantiles

    lower, _, upper = quantiles(values, n=4)
    return (upper - lower) / 2


def told_overlap(ratio: float) -> float:
    """What a profile says of pairs that were measured to take so much of their passes one after the other.

    A pair takes as long as the longer of its passes, which is half of both or more, and no more than both; what is
    measured may be a little beside.
    """
    return min(max(ratio, 0.501), 1.0)


@dataclass(frozen=True, slots=True)
class Spread:
    """How far the readings behind measured times lie apart: half the width of their middle half, for each time."""

    forward_s: Seconds
    backward_input_s: Seconds
    backward_weight_s: Seconds
    optimizer_s: Seconds = 0.0

    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def work_s(self) -> float:
        """F, I and W together."""
        return self.forward_s + self.backward_input_s + self.backward_weight_s


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Times of one layer at one tensor-parallel degree, for one micro-batch; `spread` where they were measured.

    `backward_s` is what a full backward pass takes; None: as long as its two halves one after the other.
    """

    forward_s: Seconds
    backward_input_s: Seconds
    backward_weight_s: Seconds
    optimizer_s: Seconds = 0.0
    tensor_parallel: Count = 1
    spread: Spread | None = None
    backward_s: Seconds | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"spread", "backward_s"})
    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def full_s(self) -> float:
        """A full backward pass."""
        return self.backward_input_s + self.backward_weight_s if self.backward_s is None else self.backward_s

    @property
    def work_s(self) -> float:
        """F, I and W together."""
        return self.forward_s + self.backward_input_s + self.backward_weight_s


@dataclass(frozen=True, slots=True)
class BoundaryCost:
    """What the boundary of a stage takes of each pass of a micro-batch, at any tensor-parallel degree.

    The input becomes a leaf of a graph of the stage's own, torch's engine starts anew for the backward pass, and so on.
    Each layer's times contain one, for a layer is measured as a stage of its own; so a stage of n layers takes n - 1
    less than their sum, and where workers hold several chunks, the same layers take longer together.
    """

    forward_s: Seconds = 0.0
    backward_input_s: Seconds = 0.0
    backward_weight_s: Seconds = 0.0
    backward_s: Seconds = 0.0

    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def work_s(self) -> float:
        """F, I and W together."""
        return self.forward_s + self.backward_input_s + self.backward_weight_s

    def within(self, costs: "Sequence[LayerCost]") -> "BoundaryCost":
        """The most of it that is no more than any of these layers take, such as one that has no W."""
        least = {name: min((getattr(cost, own) for cost in costs), default=0.0) for name, own in _BOUNDED.items()}
        return BoundaryCost(**{name: min(getattr(self, name), most_s) for name, most_s in least.items()})


NO_BOUNDARY = BoundaryCost()
# What of a layer's cost contains each time of a boundary.
_BOUNDED = {**{name: name for name in PASSES.values()}, "backward_s": "full_s"}


def joined_cost(costs: "Sequence[LayerCost]", boundary: BoundaryCost = NO_BOUNDARY) -> LayerCost:
    """What consecutive layers take as one stage; `backward_s` is None where neither they nor a boundary say so.

    Args:
        costs: of one or more layers, at one tensor-parallel degree.
        boundary: what each of them contains and the stage has once.
    """
    inner = len(costs) - 1
    told = boundary != NO_BOUNDARY or any(cost.backward_s is not None for cost in costs)
    return LayerCost(
        forward_s=sum(cost.forward_s for cost in costs) - inner * boundary.forward_s,
        backward_input_s=sum(cost.backward_input_s for cost in costs) - inner * boundary.backward_input_s,
        backward_weight_s=sum(cost.backward_weight_s for cost in costs) - inner * boundary.backward_weight_s,
        optimizer_s=sum(cost.optimizer_s for cost in costs),
        tensor_parallel=costs[0].tensor_parallel,
        backward_s=sum(cost.full_s for cost in costs) - inner * boundary.backward_s if told else None,
    )


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: its times, and the bytes it holds.

    `activation_bytes` are held from F's start to I's end, of which `weight_stash_bytes` stay until W's end, for one
    micro-batch; `state_bytes` are gradients and optimizer state; `output_bytes` go to the next layer. A layer whose
    matrix is that of an earlier one (tied weights) names it in `tied_to`: `parameter_bytes` and `state_bytes` count the
    matrix in both, for each of two stages holds a copy; `tied_bytes` and `tied_state_bytes` are what a stage that holds
    both saves. With tensor parallelism a rank holds 1/t of everything but `replicated_bytes`, the part of
    `activation_bytes` that each has whole. `gradient_bytes` is the part of `state_bytes` that is gradients, where they
    are not in the numbers of the parameters.
    """

    costs: Annotated[tuple[LayerCost, ...], MinLen(1)]
    name: str | None = None
    parameter_bytes: Bytes = 0.0
    state_bytes: Bytes = 0.0
    activation_bytes: Bytes = 0.0
    weight_stash_bytes: Bytes = 0.0
    output_bytes: Bytes = 0.0
    tied_to: Index | None = None
    tied_bytes: Bytes | None = None
    tied_state_bytes: Bytes | None = None
    replicated_bytes: Bytes | None = None
    gradient_bytes: Bytes | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset(
        {"tied_to", "tied_bytes", "tied_state_bytes", "replicated_bytes", "gradient_bytes"}
    )
    __pydantic_config__: ClassVar[Any] = STRICT


class HoldsBytes(Protocol):
    """What of a layer says how much a stage that has it holds; a `Layer`, or what a Templates document keeps of one."""

    @property
    def parameter_bytes(self) -> float:
        """Of its parameters."""
        ...

    @property
    def state_bytes(self) -> float:
        """Of gradients and optimizer state."""
        ...

    @property
    def tied_to(self) -> int | None:
        """The earlier layer whose matrix it uses."""
        ...

    @property
    def tied_bytes(self) -> float | None:
        """What of its parameters is that matrix."""
        ...

    @property
    def tied_state_bytes(self) -> float | None:
        """What of its state is that matrix's."""
        ...

    @property
    def gradient_bytes(self) -> float | None:
        """What of its state is gradients, in numbers of their own; None: in those of the parameters."""
        ...


def added_bytes(layer: HoldsBytes, first: int) -> tuple[float, float]:
    """The parameters and the state that a layer adds to a stage from layer `first` on, in bytes.

    Without its tied matrix where the stage has that already.
    """
    if layer.tied_to is None or layer.tied_to < first:
        return layer.parameter_bytes, layer.state_bytes
    return layer.parameter_bytes - (layer.tied_bytes or 0.0), layer.state_bytes - (layer.tied_state_bytes or 0.0)


def held_bytes(layers: "Sequence[HoldsBytes]", first: int, stop: int) -> tuple[float, float]:
    """The parameters and the state of a stage of layers [first, stop) of a model, in bytes."""
    added = [added_bytes(layer, first) for layer in layers[first:stop]]
    return sum(parameter_bytes for parameter_bytes, _ in added), sum(state_bytes for _, state_bytes in added)


def held_by(
    layers: "Sequence[HoldsBytes]", ranges: Iterable[tuple[int, int]], beside: Iterable[tuple[int, int]] = ()
) -> tuple[float, float]:
    """The parameters and the state that ranges [first, stop) of layers add to a worker, in bytes.

    Args:
        layers: of the model.
        ranges: of the layers that count.
        beside: those that the worker holds anyway; a tied matrix that it has already does not count again.
    """
    added = [bytes_ for _, bytes_ in _added_by(layers, ranges, beside)]
    return sum(parameter_bytes for parameter_bytes, _ in added), sum(state_bytes for _, state_bytes in added)


def gradients_held(
    layers: "Sequence[HoldsBytes]", ranges: Iterable[tuple[int, int]], beside: Iterable[tuple[int, int]] = ()
) -> float:
    """The gradients among what `held_by` counts, in bytes: as many as of the parameters, or as the layers say."""
    return sum(own * gradient_share(layer) for layer, (own, _) in _added_by(layers, ranges, beside))


def summed_bytes(
    layers: "Sequence[HoldsBytes]", ranges: Iterable[tuple[int, int]], beside: Iterable[tuple[int, int]] = ()
) -> float:
    """What an all-reduce of the gradients among what `held_by` counts sums up, in bytes.

    A reduce-scatter of the gradients and an all-gather of the parameters each send half of what an all-reduce sends; so
    where the two are in unlike numbers, it is their mean that counts.
    """
    added = _added_by(layers, ranges, beside)
    return sum(
        own if layer.gradient_bytes is None else own * (1 + gradient_share(layer)) / 2 for layer, (own, _) in added
    )


def activations_held(layers: "Sequence[Layer]", degree: int) -> float:
    """The activations of a micro-batch that each GPU of a stage of these layers holds, in bytes."""
    replicated_bytes = sum(layer.replicated_bytes or 0.0 for layer in layers)
    return replicated_bytes + (sum(layer.activation_bytes for layer in layers) - replicated_bytes) / degree


def gradient_share(layer: HoldsBytes) -> float:
    """Bytes of gradients over those of parameters."""
    return layer.gradient_bytes / layer.parameter_bytes if layer.gradient_bytes and layer.parameter_bytes else 1.0


def _added_by(
    layers: "Sequence[HoldsBytes]", ranges: Iterable[tuple[int, int]], beside: Iterable[tuple[int, int]]
) -> list[tuple[HoldsBytes, tuple[float, float]]]:
    """Each layer of the ranges, with the parameters and the state that it adds to a worker."""
    counted = [number for first, stop in ranges for number in range(first, stop)]
    held = {*counted, *(number for first, stop in beside for number in range(first, stop))}
    return [
        (layers[number], added_bytes(layers[number], 0 if layers[number].tied_to in held else number))
        for number in counted
    ]


def ring_steps(ranks: int) -> int:
    """How many messages follow one another in a ring all-reduce of so many ranks, in each of which 1/n of all is sent.

    At each of 2 (n - 1) steps everybody sends a part to the next one: n - 1 until each part is summed somewhere, n - 1
    until everybody has it (Thakur, Rabenseifner and Gropp, 2005). A step is as slow as its slowest link, so where a
    message over that takes d s longer, the sum takes `ring_steps(n) * d` s longer. Fewer than two send nothing.
    """
    return 2 * max(0, ranks - 1)


@dataclass(frozen=True, slots=True)
class Connection:
    """A network path: a message of b bytes takes latency_s + b / bandwidth_bytes_per_s."""

    latency_s: Seconds = 0.0
    bandwidth_bytes_per_s: BytesPerSecond | None = None

    __pydantic_config__: ClassVar[Any] = STRICT

    def transfer_s(self, size_bytes: float) -> float:
        """The time of one message, in s; without a bandwidth, its latency."""
        return self.latency_s + size_bytes / (self.bandwidth_bytes_per_s or float("inf"))

    def ring_s(self, size_bytes: float, ranks: int) -> float:
        """The time of a ring all-reduce between n ranks, in s: each step sends 1/n of the bytes."""
        return ring_steps(ranks) * self.transfer_s(size_bytes / ranks) if size_bytes else 0.0

    def copying_s(self, copies: "Iterable[tuple[Hashable, Hashable, float]]") -> float | None:
        """How long copies take, in s; None where there is something to copy and the bandwidth is not known.

        Everybody sends one copy at a time, and receives one at a time, and does both at once. The busiest one's time is
        the whole time: copies that may be interrupted can be ordered so (Gonzalez and Sahni, open shops).

        Args:
            copies: who sends, who receives, and how many bytes.
        """
        sends_s: defaultdict[Hashable, float] = defaultdict(float)
        receives_s: defaultdict[Hashable, float] = defaultdict(float)
        copied_bytes = 0.0
        for sender, receiver, size_bytes in copies:
            lasts_s = self.transfer_s(size_bytes)
            sends_s[sender] += lasts_s
            receives_s[receiver] += lasts_s
            copied_bytes += size_bytes
        if not copied_bytes:
            return 0.0
        if self.bandwidth_bytes_per_s is None:
            return None
        return max(*sends_s.values(), *receives_s.values())


SideBySide = Literal["stages", "peers"]


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """What a whole node has of the network between nodes, and who sits in it.

    Attributes:
        gpus: M, of a node.
        bandwidth_bytes_per_s: of all its network cards together, each way: what leaves the node at once shares it.
        side_by_side: whose GPUs are neighbours: the "stages" of a pipeline, as `rtk run` and torchrun seat them (worker
            k/i on number k * pp + i), or the "peers" of a stage, as Megatron-LM and torchtitan do (ranks are counted
            by tensor-parallel rank first, then by pipeline, then by stage).
    """

    gpus: Count
    bandwidth_bytes_per_s: BytesPerSecond
    side_by_side: SideBySide = "stages"

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Network:
    """The paths between workers of one node and between nodes, each as one pair of GPUs has it that is alone.

    `node` says what the GPUs of a node share between nodes; None: nothing, each pair has its path to itself.
    """

    intra_node: Connection | None = None
    inter_node: Connection | None = None
    node: NodeNetwork | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"node"})
    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def between_workers(self) -> Connection | None:
        """The path between workers wherever they sit: that between nodes; where it is not known, that within them."""
        return self.inter_node or self.intra_node


@dataclass(frozen=True, slots=True)
class Device:
    """What a worker runs on; `memory_bytes` is null where it sets no limit."""

    name: str | None = None
    memory_bytes: Bytes | None = None

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Profile:
    """A model's costs, layer by layer, on one device at one micro-batch size.

    `boundary` is what each layer's times contain because it was measured as a stage of its own; None: nothing, as far
    as is known.
    """

    layers: Annotated[tuple[Layer, ...], MinLen(1)]
    model: dict[str, Any] = field(default_factory=dict)
    origin: Literal["measured", "analytic", "given"] = "given"
    device: Device = Device()
    microbatch_size: Count | None = None
    sequence_length: Count | None = None
    network: Network = Network()
    boundary: BoundaryCost | None = None
    overlap: Overlap | None = None

    FORMAT: ClassVar[str] = "rtk.profile"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"boundary", "overlap"})
    __pydantic_config__: ClassVar[Any] = STRICT

    def validate(self) -> None:
        """Raise InvalidInputError where the parts contradict each other."""
        for index, layer in enumerate(self.layers):
            if layer.weight_stash_bytes > layer.activation_bytes:
                stash, held = print_apart(layer.weight_stash_bytes, layer.activation_bytes, print_bytes)
                raise InvalidInputError(
                    f"weight_stash_bytes, {stash}, is more than the activation_bytes, {held}, that it is a part of",
                    where=f"/layers/{index}/weight_stash_bytes",
                    fix="activation_bytes counts all that is held from F on, the stash included",
                )
            for part, whole in (("replicated_bytes", "activation_bytes"), ("gradient_bytes", "state_bytes")):
                if (getattr(layer, part) or 0.0) > getattr(layer, whole):
                    less, more = print_apart(getattr(layer, part), getattr(layer, whole), print_bytes)
                    raise InvalidInputError(
                        f"{part}, {less}, are more than the {whole}, {more}, that they are a part of",
                        where=f"/layers/{index}/{part}",
                        fix=f"{whole} count them, too",
                    )
            if layer.tied_to is not None and layer.tied_to >= index:
                raise InvalidInputError(
                    f"layer {index} is tied to layer {layer.tied_to}, which does not come before it",
                    where=f"/layers/{index}/tied_to",
                    fix="say it at the later one of the two",
                )
            for name, tied in (("parameter_bytes", layer.tied_bytes), ("state_bytes", layer.tied_state_bytes)):
                if (tied or 0.0) > getattr(layer, name):
                    raise InvalidInputError(
                        f"{print_bytes(tied or 0.0)} of tied weights are more than the layer's {name}",
                        where=f"/layers/{index}",
                        fix="a layer's own bytes count its tied matrix",
                    )
            degrees = [cost.tensor_parallel for cost in layer.costs]
            if len(set(degrees)) < len(degrees):
                raise InvalidInputError(
                    "one tensor-parallel degree has two costs",
                    where=f"/layers/{index}/costs",
                    fix="give each degree once",
                )
            for cost in layer.costs:
                self._check_boundary(cost, index)

    @property
    def degrees(self) -> tuple[int, ...]:
        """The tensor-parallel degrees that all layers have costs at, ascending."""
        return tuple(sorted(set.intersection(*({cost.tensor_parallel for cost in one.costs} for one in self.layers))))

    @property
    def inner(self) -> BoundaryCost:
        """What a stage saves for each pair of neighbours in it."""
        return self.boundary or NO_BOUNDARY

    def own_work_s(self, cost: LayerCost) -> float:
        """F, I and W of a layer together, without a boundary: what it adds to a stage, in s."""
        return cost.work_s - self.inner.work_s

    def least_work_s(self, cost: LayerCost) -> float:
        """The same where the backward pass may also be a full one, if that takes less."""
        full_s = cost.forward_s + cost.full_s - self.inner.forward_s - self.inner.backward_s
        return min(self.own_work_s(cost), full_s)

    def _check_boundary(self, cost: LayerCost, layer: int) -> None:
        """Raise InvalidInputError where the boundary takes more than a layer that contains it."""
        for name, whole in _BOUNDED.items():
            if getattr(self.inner, name) > getattr(cost, whole):
                part, all_ = print_apart(getattr(self.inner, name), getattr(cost, whole), print_time)
                raise InvalidInputError(
                    f"{name} of a boundary, {part}, is more than the {all_} of layer {layer}, of which it is a part",
                    where=f"/boundary/{name}",
                    fix="a layer's times are those of a stage of its own, its boundary included",
                )


class DoesNotFitError(InfeasibleError):
    """Layers found no memory, each measured alone; the others were measured.

    Attributes:
        partial: the profile of those; None where there are none.
    """

    partial: Profile | None = None
