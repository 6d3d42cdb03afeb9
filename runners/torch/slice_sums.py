"""Sums of gradients between ranks that hold unlike slices: workers of unlike degrees, and heads that ranks repeat.

Where all workers that sum something are of one degree, each rank sums all that it has with the ranks of its own number.
Else a tensor is summed in the pieces in which these workers have it together (`shared_slices`): of four and two ranks
each of the four sums its own slice, and each of the two sums with two of the four, one after the other. Nothing is sent
but what two have in common. What is whole is summed by itself, over as many groups as there are ranks of the largest
degree, alike in each, so that all of them get the same bits; a rank that is in several takes it once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ...schemas.plan import Layers
from ...schemas.slices import Seat, place_of, shared_slices
from ..program import AllReduce
from .gradients import FlatGradients, Segment
from .layout import RankLayout, Ranks

Seats = tuple[Seat, ...]
SumOver = Callable[[Ranks, torch.Tensor], None]  # sums a tensor over ranks, or begins to
Finish = Callable[[torch.Tensor], None]  # puts what was summed into a vector, once all sums are there


@dataclass(frozen=True, slots=True)
class _Piece:
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
        self, segments: Sequence[Segment], degrees: Sequence[int], own: Seat, ranks_at: Callable[[Seats], Ranks]
    ) -> None:
        found: dict[tuple[bool, Seats], list[_Piece]] = {}
        for segment in segments:
            for holders, first, length in _holders(segment, degrees, own):
                dimension = 0 if segment.cut is None else segment.cut.dimension
                found.setdefault((segment.cut is None, holders), []).append(_Piece(segment, dimension, first, length))
        # All ranks sum in this order, so none wait for each other.
        self._messages = [(ranks_at(seats), found[whole, seats]) for whole, seats in sorted(found)]

    @property
    def groups(self) -> list[Ranks]:
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


def _holders(segment: Segment, degrees: Sequence[int], own: Seat) -> Iterator[tuple[Seats, int, int]]:
    """Who sums each part of a tensor that a rank has, where it begins there along the cut, and how long it is."""
    if segment.cut is None:
        most = max(degrees)
        for share in range(most):
            holders = tuple((worker, share * degree // most) for worker, degree in enumerate(degrees))
            if own in holders:
                yield holders, 0, segment.size
        return
    for one in shared_slices(segment.cut, degrees):
        if own in one.holders:
            first, stop = one.span
            yield one.holders, place_of(segment.cut, degrees[own[0]], own[1], first), stop - first


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

    def groups(self, reduction: AllReduce) -> set[tuple[int, ...]]:
        """The ranks with which this one sums, by groups."""
        sums = [(self.of_layers(part.layers, part.ranks), part.ranks) for part in reduction.parts]
        sums += [(self.of_tie(tie.layers, tie.ranks), tie.ranks) for tie in reduction.ties]
        found: set[tuple[int, ...]] = set()
        for sliced, workers in sums:
            alike = [self._layout.group_of(self._rank, workers)] if sliced is None else []
            found.update(alike, *(vector.groups for vector in sliced or ()))
        return found

    def _sliced(
        self, key: tuple[object, ...], workers: tuple[int, ...], segments: Callable[[], Iterable[Sequence[Segment]]]
    ) -> list[SlicedVector] | None:
        if (key, workers) not in self._known:
            self._known[key, workers] = self._made(workers, list(segments()))
        return self._known[key, workers]

    def _made(self, workers: tuple[int, ...], views: Sequence[Sequence[Segment]]) -> list[SlicedVector] | None:
        degrees = [self._layout.degrees[worker] for worker in workers]
        cuts = (one.cut for segments in views for one in segments if one.cut is not None)
        if len(set(degrees)) == 1 and all(cut.copies(degrees[0]) == 1 for cut in cuts):
            return None

        def ranks_at(seats: Seats) -> Ranks:
            return Ranks(self._layout.ranks_of(workers[place])[share] for place, share in seats)

        worker, share = self._layout.seats[self._rank]
        return [SlicedVector(segments, degrees, (workers.index(worker), share), ranks_at) for segments in views]
