"""What a computed profile's times are made of, told from what the profile says of itself."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from ...schemas.errors import InvalidInputError
from ...schemas.gpus import gpu
from ...schemas.profile import Profile, form_of
from ...schemas.quantities import print_percent
from .configuration import known_model
from .costs import WORKS, Kind, MicrobatchShape, Work, stream_bytes
from .estimate import Rates, rates_of
from .software import software_of


@dataclass(frozen=True, slots=True)
class TimeParts:
    """What passes of a micro-batch are made of, in s, recomputation included.

    Attributes:
        products_s: matrix products, attention's excepted.
        attention_s: its products, and what it moves between them.
        memory_s: everything else that goes through memory.
        gaps_s: between kernels.
        sums_s: of the stream over the tensor-parallel group.
    """

    products_s: float
    attention_s: float
    memory_s: float
    gaps_s: float
    sums_s: float

    @property
    def total_s(self) -> float:
        """All of them."""
        return self.products_s + self.attention_s + self.memory_s + self.gaps_s + self.sums_s


@dataclass(frozen=True, slots=True)
class KindParts:
    """F and the backward pass of all layers of a kind, at one tensor-parallel degree, for one micro-batch.

    Attributes:
        kind: embedding, block or head; "all" is the model.
        layers: how many.
        tensor_parallel: the degree.
        parts: of all of them together, as computed.
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
    told = profile.model
    if profile.origin != "analytic" or profile.microbatch_size is None or profile.sequence_length is None:
        raise InvalidInputError(
            "the profile was not computed: what its times are made of is not known",
            fix="explain a plan, or a profile of `rtk profile --analytic`",
        )
    device, known, form = gpu(str(told.get("gpu"))), known_model(str(told.get("name"))), form_of(told)
    batch = MicrobatchShape(profile.microbatch_size, profile.sequence_length, form.dtype, software_of(told))
    rates = rates_of(device, form.dtype, told.get("efficiency"), batch.software)
    group = profile.network.intra_node or device.intra_node
    layers: dict[Kind, slice] = {"embedding": slice(0, 1), "block": slice(1, -1), "head": slice(-1, None)}
    found: list[KindParts] = []
    for degree in [cost.tensor_parallel for cost in profile.layers[0].costs]:
        reduction_s, of_degree = group.ring_s(stream_bytes(known.shape, batch), degree), []
        for kind, where in layers.items():
            alike = profile.layers[where]
            work = WORKS[kind](known.shape, batch, degree)
            again = work.forward if kind == "block" and form.checkpointing else Work()
            passes = (work.forward, again, work.backward_input, work.backward_weight)
            parts = _sum(len(alike), (_of(rates, one, reduction_s) for one in passes))
            costs = [cost for layer in alike for cost in layer.costs if cost.tensor_parallel == degree]
            of_degree.append(KindParts(kind, len(alike), degree, parts, sum(cost.work_s for cost in costs)))
        whole = _sum(1, (one.parts for one in of_degree))
        found += of_degree
        found.append(KindParts("all", len(profile.layers), degree, whole, sum(one.profile_s for one in of_degree)))
    return tuple(found)


def _of(rates: Rates, work: Work, reduction_s: float) -> TimeParts:
    moved_s = work.moved_bytes / rates.bytes_per_s
    return TimeParts(
        rates.matrix_s(work), rates.attention_s(work), moved_s, rates.gaps_s(work), work.reductions * reduction_s
    )


def _sum(times: int, parts: Iterator[TimeParts]) -> TimeParts:
    total = TimeParts(0.0, 0.0, 0.0, 0.0, 0.0)
    for part in parts:
        total = replace(total, **{one.name: getattr(total, one.name) + getattr(part, one.name) for one in fields(part)})
    return TimeParts(*(times * getattr(total, one.name) for one in fields(total)))


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
