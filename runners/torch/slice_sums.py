"""Sums of gradients between ranks that hold unlike slices: workers of unlike degrees, and heads that ranks repeat.

Where all workers that sum something are of one degree, each rank sums all that it has with the ranks of its own number.
Else a tensor is summed in the pieces in which these workers have it together (`shared_slices`): of four and two ranks
each of the four sums its own slice, and each of the two sums with two of the four, one after the other. Nothing is sent
but what two have in common. What is whole is summed by itself, over as many groups as there are ranks of the largest
degree, alike in each, so that all of them get the same bits; a rank that is in several takes it once.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ...schemas.plan import Layers
from ...schemas.slices import Seat, TensorCut, place_of, shared_slices
from ..program import AllReduce
from .gradients import FlatGradients, Segment
from .held_stage import layer_of
from .layout import RankLayout, RankTuple

Seats = tuple[Seat, ...]
SumOver = Callable[[RankTuple, torch.Tensor], None]  # sums a tensor over ranks, or begins to
Finish = Callable[[torch.Tensor], None]  # puts what was summed into a vector, once all sums are there


@dataclass(frozen=True, slots=True)
class _SlicePart:
    """A part of a tensor in a flat vector: `length` indices along a dimension, from `first`."""

    segment: Segment
    dimension: int
    first: int
    length: int

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """It as a view."""
        return self.segment.of(flat).narrow(self.dimension, self.first, self.length)


class SlicedVector:
    """How a rank's flat vector is summed, in messages each of which several ranks have in common.

    Args:
        segments: what the vector is made of.
        degrees: of the workers that sum, in their order.
        own: which of these this rank is of, and which rank.
        ranks_at: the ranks at these places.
    """

    def __init__(
        self, segments: Sequence[Segment], degrees: Sequence[int], own: Seat, ranks_at: Callable[[Seats], RankTuple]
    ) -> None:
        found: dict[tuple[bool, Seats], list[_SlicePart]] = {}
        for segment in segments:
            whole, dimension = segment.cut is None, 0 if segment.cut is None else segment.cut.dimension
            for holders, first, length in _holders(segment.cut, degrees, own):
                piece = _SlicePart(segment, dimension, first, segment.size if whole else length)
                found.setdefault((whole, holders), []).append(piece)
        # All ranks sum in this order, so none wait for each other.
        self._messages = [(ranks_at(seats), found[whole, seats]) for whole, seats in sorted(found)]

    @property
    def groups(self) -> list[RankTuple]:
        """The ranks that sum each message, this one among them."""
        return [ranks for ranks, _ in self._messages]

    def messages(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """What is summed, copied out of the vector."""
        return [torch.cat([piece.of(flat).reshape(-1) for piece in pieces]) for _, pieces in self._messages]

    def begin(self, flat: torch.Tensor, sum_over: SumOver) -> Finish:
        """Begin to sum; the vector stays as it is until that has ended."""
        messages = self.messages(flat)
        for ranks, message in zip(self.groups, messages, strict=True):
            sum_over(ranks, message)

        def finish(into: torch.Tensor) -> None:
            for (_, pieces), message in zip(self._messages, messages, strict=True):
                parts = [piece.of(into) for piece in pieces]
                for part, value in zip(parts, torch.split(message, [one.numel() for one in parts]), strict=True):
                    part.copy_(value.view(part.shape))

        return finish


def _holders(cut: TensorCut | None, degrees: Sequence[int], own: Seat) -> Iterator[tuple[Seats, int, int]]:
    """Who sums each part of a tensor that a rank has, where it begins there along the cut, and how long it is."""
    if cut is None:
        most = max(degrees)
        for share in range(most):
            holders = tuple((worker, share * degree // most) for worker, degree in enumerate(degrees))
            if own in holders:
                yield holders, 0, 0
        return
    for one in shared_slices(cut, degrees):
        if own in one.holders:
            first, stop = one.span
            yield one.holders, place_of(cut, degrees[own[0]], own[1], first), stop - first


def slice_groups(
    layout: RankLayout, rank: int, reduction: AllReduce, cuts: Callable[[Iterable[int]], Collection[TensorCut]]
) -> set[tuple[int, ...]]:
    """The ranks with which a rank sums gradients, by groups; some may not be needed.

    Args:
        layout: the ranks of all workers.
        rank: this one.
        reduction: of its worker.
        cuts: of what is cut in some of the model's layers.
    """
    sums = [(part.ranks, cuts(range(*part.layers))) for part in reduction.parts]
    sums += [(tie.ranks, cuts(tie.layers)) for tie in reduction.ties]
    found: set[tuple[int, ...]] = set()
    for workers, divided in sums:
        degrees, own = _degrees(layout, rank, workers)
        if _are_alike(degrees, divided):
            found.add(layout.group_of(rank, workers))
        else:
            for cut in {None, *divided}:
                found.update(_ranks_at(layout, workers, holders) for holders, _, _ in _holders(cut, degrees, own))
    return found


def cuts_in(tensors: Mapping[str, TensorCut], layers: Iterable[int]) -> set[TensorCut]:
    """Of what is cut by name in a state, those in some of the model's layers."""
    wanted = set(layers)
    return {cut for name, cut in tensors.items() if layer_of(name) in wanted}


def _degrees(layout: RankLayout, rank: int, workers: Sequence[int]) -> tuple[list[int], Seat]:
    """Of workers that sum, and which of them, and of its ranks, this one is."""
    worker, share = layout.seats[rank]
    return [layout.degrees[one] for one in workers], (workers.index(worker), share)


def _are_alike(degrees: Sequence[int], cuts: Iterable[TensorCut]) -> bool:
    """Whether ranks of one number hold the same of everything, and no others do."""
    return len(set(degrees)) == 1 and all(cut.copies(degrees[0]) == 1 for cut in cuts)


def _ranks_at(layout: RankLayout, workers: Sequence[int], seats: Seats) -> RankTuple:
    return RankTuple(layout.ranks_of(workers[place])[share] for place, share in seats)


class SliceSums:
    """How the gradients of a rank are summed with workers of whatever degree.

    Args:
        layout: the ranks of all workers.
        rank: this one.
        gradients: of its stages.
    """

    def __init__(self, layout: RankLayout, rank: int, gradients: FlatGradients) -> None:
        self._layout, self._rank, self._gradients = layout, rank, gradients
        self._known: dict[tuple[tuple[object, ...], tuple[int, ...]], list[SlicedVector] | None] = {}

    def of_layers(self, layers: Layers, workers: tuple[int, ...]) -> list[SlicedVector] | None:
        """How each flat view of layers [first, stop) is summed over workers; None: as it is, by ranks of one number."""
        return self._sliced(layers, workers, lambda: self._gradients.segments(layers))

    def of_tie(self, layers: tuple[int, ...], workers: tuple[int, ...]) -> list[SlicedVector] | None:
        """The same of what layers share."""
        return self._sliced(("tie", *layers), workers, lambda: self._gradients.segments_of_tie(layers))

    def _sliced(
        self, key: tuple[object, ...], workers: tuple[int, ...], segments: Callable[[], Iterable[Sequence[Segment]]]
    ) -> list[SlicedVector] | None:
        if (key, workers) not in self._known:
            self._known[key, workers] = self._made(workers, list(segments()))
        return self._known[key, workers]

    def _made(self, workers: tuple[int, ...], views: Sequence[Sequence[Segment]]) -> list[SlicedVector] | None:
        degrees, own = _degrees(self._layout, self._rank, workers)
        if _are_alike(degrees, (one.cut for segments in views for one in segments if one.cut is not None)):
            return None
        at = partial(_ranks_at, self._layout, workers)
        return [SlicedVector(segments, degrees, own, at) for segments in views]
