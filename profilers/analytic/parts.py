"""What a computed profile's times are made of, told from what the profile says of itself."""

from dataclasses import dataclass, fields, replace
from math import isclose

from ...schemas.errors import InvalidInputError
from ...schemas.gpus import gpu
from ...schemas.plan import Layers
from ...schemas.profile import LayerCost, Profile, form_of
from ...schemas.quantities import print_percent
from .configuration import known_model
from .costs import WORKS, Kind, MicrobatchShape, Work, stream_bytes
from .estimate import Rates, rates_of
from .software import software_of


@dataclass(frozen=True, slots=True)
class TimeParts:
    """What passes of a micro-batch are made of, in s.

    Attributes:
        products_s: matrix products, attention's excepted.
        attention_s: its products, and what it moves between them.
        memory_s: everything else that goes through memory.
        gaps_s: between kernels.
        sums_s: of the stream over the tensor-parallel group, those excepted that run beside weight gradients.
    """

    products_s: float = 0.0
    attention_s: float = 0.0
    memory_s: float = 0.0
    gaps_s: float = 0.0
    sums_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All of them."""
        return self.products_s + self.attention_s + self.memory_s + self.gaps_s + self.sums_s

    def by_name(self) -> dict[str, float]:
        """The parts, in s, by what people call them."""
        return {words: getattr(self, name) for name, words in WORDS.items()}

    def __add__(self, other: "TimeParts") -> "TimeParts":
        return TimeParts(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def __mul__(self, factor: float) -> "TimeParts":
        return TimeParts(*(factor * getattr(self, one.name) for one in fields(self)))

    def beside(self, hidden_s: float) -> "TimeParts":
        """The same where so much of the sums runs beside the rest."""
        return replace(self, sums_s=self.sums_s - hidden_s)

    def lasting(self, time_s: float) -> "TimeParts":
        """The same where they take so long together: sums are never corrected, the rest makes up the difference."""
        computing_s = self.total_s - self.sums_s
        if isclose(self.total_s, time_s, rel_tol=ROUNDING):
            return self
        if computing_s > 0 and time_s >= self.sums_s:
            return replace(self * ((time_s - self.sums_s) / computing_s), sums_s=self.sums_s)
        return self * (time_s / self.total_s) if self.total_s else self


WORDS = {
    "products_s": "matrix products",
    "attention_s": "attention",
    "memory_s": "memory-bound work",
    "gaps_s": "gaps between kernels",
    "sums_s": "tensor-parallel sums",
}
ROUNDING = 1e-9  # of a time: two sums of the same parts differ by less


@dataclass(frozen=True, slots=True)
class PassParts:
    """What one pass is made of, and how long it computes again what it had not kept (activation checkpointing)."""

    parts: TimeParts
    again_s: float = 0.0

    def by_name(self) -> dict[str, float]:
        """The parts, in s, by what people call them."""
        return self.parts.by_name()


@dataclass(frozen=True, slots=True)
class LayerParts:
    """What one rank does of a layer for one micro-batch, as computed: F, F again, I without that, and W.

    F again, and all of W, are part of I where the layer keeps its input only. Else sums of I that run beside W where
    both are one pass take `hidden_s`.
    """

    forward: TimeParts
    again: TimeParts
    backward_input: TimeParts
    backward_weight: TimeParts
    hidden_s: float = 0.0

    @property
    def backward(self) -> TimeParts:
        """A full backward pass, with F again."""
        return (self.again + self.backward_input + self.backward_weight).beside(self.hidden_s)

    @property
    def whole(self) -> TimeParts:
        """F and a full backward pass."""
        passes = self.forward + self.again + self.backward_input + self.backward_weight
        return passes.beside(self.hidden_s)

    def of_pass(self, cost: LayerCost, kind: str) -> PassParts:
        """A pass, F, I, W or B, as long as the profile says that it takes."""
        backward_input = self.again + self.backward_input
        computed, again, time_s = {
            "F": (self.forward, TimeParts(), cost.forward_s),
            "I": (backward_input, self.again, cost.backward_input_s),
            "W": (self.backward_weight, TimeParts(), cost.backward_weight_s),
            "B": (self.backward, self.again, cost.full_s),
        }[kind]
        found = computed.lasting(time_s)
        return PassParts(found, found.total_s * again.total_s / computed.total_s if computed.total_s else 0.0)


class ComputedParts:
    """What the times of a computed profile are made of, computed again as they were.

    Args:
        profile: of `rtk profile --analytic`.

    Raises:
        InvalidInputError: the profile was not computed, or its model or GPU is not known (any more).
    """

    def __init__(self, profile: Profile) -> None:
        told = profile.model
        if profile.origin != "analytic" or profile.microbatch_size is None or profile.sequence_length is None:
            raise InvalidInputError(
                "the profile was not computed: what its times are made of is not known",
                fix="explain a plan, or a profile of `rtk profile --analytic`",
            )
        device, form = gpu(str(told.get("gpu"))), form_of(told)
        self._shape = known_model(str(told.get("name"))).shape
        if len(profile.layers) != self._shape.blocks + 2:
            raise InvalidInputError(
                f"the profile has {len(profile.layers)} layers, and {told.get('name')} an embedding, "
                f"{self._shape.blocks} blocks, a head",
                fix="compute it anew",
            )
        self._profile = profile
        self._batch = MicrobatchShape(profile.microbatch_size, profile.sequence_length, form.dtype, software_of(told))
        self._rates = rates_of(device, form.dtype, told.get("efficiency"), self._batch.software)
        self._group = profile.network.intra_node or device.intra_node
        self._is_checkpointing = form.checkpointing

    def of_kind(self, kind: Kind, degree: int) -> LayerParts:
        """A layer of a kind, at a tensor-parallel degree, as computed."""
        reduction_s = self._group.ring_s(stream_bytes(self._shape, self._batch), degree)
        work = WORKS[kind](self._shape, self._batch, degree)
        forward, backward_input, backward_weight = (
            _of(self._rates, one, reduction_s) for one in (work.forward, work.backward_input, work.backward_weight)
        )
        hidden_s = self._rates.hidden_s(work, self._batch.software.hidden_share, reduction_s)
        if self._is_checkpointing and kind == "block":
            return LayerParts(forward, forward, (backward_input + backward_weight).beside(hidden_s), TimeParts())
        return LayerParts(forward, TimeParts(), backward_input, backward_weight, hidden_s)

    def of_stage(self, layers: Layers, degree: int, kind: str) -> PassParts:
        """F, I, W or B of a micro-batch through consecutive layers, as the profile has it, calibrated and refined."""
        computed: dict[Kind, LayerParts] = {}
        parts, again_s = TimeParts(), 0.0
        for index in range(*layers):
            what: Kind = "embedding" if index == 0 else "head" if index == len(self._profile.layers) - 1 else "block"
            if what not in computed:
                computed[what] = self.of_kind(what, degree)
            cost = next(one for one in self._profile.layers[index].costs if one.tensor_parallel == degree)
            found = computed[what].of_pass(cost, kind)
            parts, again_s = parts + found.parts, again_s + found.again_s
        return PassParts(parts, again_s)


@dataclass(frozen=True, slots=True)
class KindParts:
    """F and the backward pass of all layers of a kind, at one tensor-parallel degree, for one micro-batch.

    Attributes:
        kind: embedding, block or head; "all" is the model.
        layers: how many.
        tensor_parallel: the degree.
        parts: of all of them together, as computed, recomputation included.
        profile_s: what the profile says; it differs where a calibration or a run has corrected it.
    """

    kind: str
    layers: int
    tensor_parallel: int
    parts: TimeParts
    profile_s: float


def parts_of(profile: Profile) -> tuple[KindParts, ...]:
    """What the times of a computed profile are made of: by degree, each kind of layer and the whole model.

    Raises:
        InvalidInputError: the profile was not computed, or its model or GPU is not known (any more).
    """
    computed = ComputedParts(profile)
    layers: dict[Kind, slice] = {"embedding": slice(0, 1), "block": slice(1, -1), "head": slice(-1, None)}
    found: list[KindParts] = []
    for degree in [cost.tensor_parallel for cost in profile.layers[0].costs]:
        of_degree = []
        for kind, where in layers.items():
            alike = profile.layers[where]
            parts = computed.of_kind(kind, degree).whole * len(alike)
            costs = [cost for layer in alike for cost in layer.costs if cost.tensor_parallel == degree]
            profile_s = sum(cost.forward_s + cost.full_s for cost in costs)
            of_degree.append(KindParts(kind, len(alike), degree, parts, profile_s))
        whole = sum((one.parts for one in of_degree), TimeParts())
        found += of_degree
        found.append(KindParts("all", len(profile.layers), degree, whole, sum(one.profile_s for one in of_degree)))
    return tuple(found)


def _of(rates: Rates, work: Work, reduction_s: float) -> TimeParts:
    moved_s = work.moved_bytes / rates.bytes_per_s
    return TimeParts(
        rates.matrix_s(work), rates.attention_s(work), moved_s, rates.gaps_s(work), work.reductions * reduction_s
    )


def words_of_parts(found: tuple[KindParts, ...]) -> str:
    """A table in Markdown: ms of F and the backward pass of a micro-batch, and what of it is what."""
    titles = [one.name.removesuffix("_s") for one in fields(TimeParts)]
    head = f"| layers | TP | ms | {' | '.join(titles)} |\n|---|{'---|' * (2 + len(titles))}"
    rows = []
    for row in found:
        shares = (getattr(row.parts, one.name) / row.parts.total_s for one in fields(TimeParts))
        told = " | ".join(print_percent(share) for share in shares)
        rows.append(f"| {row.kind} x{row.layers} | {row.tensor_parallel} | {row.profile_s * 1e3:.2f} | {told} |")
    corrected = any(abs(row.profile_s - row.parts.total_s) > 1e-6 * row.profile_s for row in found)
    note = (
        "\n\nThe times have been corrected since (a calibration or a run); the shares are as computed."
        if corrected
        else ""
    )
    what = "F and the backward pass of one micro-batch, and what takes it:"
    return f"{what}\n\n{head}\n" + "\n".join(rows) + note
