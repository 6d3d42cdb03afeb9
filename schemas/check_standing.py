"""Whether a worker can have what it says it has of an iteration under way: a coordinator expels one that cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from .check import Violation
from .plan import Layers
from .resumption import Standing, layers_in


def check_standing(layers: int, microbatches: int, standing: Standing) -> str | None:
    """Why a worker cannot have what it says it has; None where it can.

    Args:
        layers: how many the model has.
        microbatches: how many the iteration has, of all pipelines.
        standing: what it says.
    """
    return next((fault.message for fault in faults_of(layers, microbatches, standing)), None)


def faults_of(layers: int, microbatches: int, standing: Standing) -> Iterator[Violation]:
    """All reasons why not, with JSON pointers into the standing; arguments as of `check_standing`."""
    held, holds = standing.layers, standing.holds
    if held is None:
        if not standing.is_empty or standing.further or any(tie.is_sealed for tie in standing.ties):
            yield Violation("/layers", "it holds no layers, and has something of the iteration")
    elif not all(0 <= first < stop <= layers for first, stop in holds):
        yield Violation("/layers", f"it holds the layers {print_ranges(holds)} of {layers}")
    elif any(one[1] >= other[0] for one, other in pairwise(holds)):
        yield Violation("/further", f"the layers held, {print_ranges(holds)}, are not ascending, neighbours joined")
    else:
        yield from _wrong_ledger(holds, microbatches, standing)
        yield from _wrong_seals(holds, layers, standing)
        yield from _wrong_stashes(holds, microbatches, standing)
        yield from _wrong_messages(layers, microbatches, standing)


def print_ranges(ranges: Iterable[Layers]) -> str:
    """Layers in ranges as documents have them, [first, stop), or `none`: `0-2, 5-6`."""
    return ", ".join(f"{first}-{stop}" for first, stop in ranges) or "none"


def _is_within(layers: Layers, holds: Iterable[Layers]) -> bool:
    """Whether there are layers in a range, and all of them are in one of those that are held."""
    return layers[0] < layers[1] and any(first <= layers[0] and layers[1] <= stop for first, stop in holds)


def _wrong_ledger(holds: tuple[Layers, ...], microbatches: int, standing: Standing) -> Iterator[Violation]:
    # The own part of a sum that has ended is kept until what the layer shares with others is summed, too.
    open_ties = {layer for tie in standing.ties if not tie.is_sealed for layer in tie.layers}
    known = set(layers_in(standing.sealed) - open_ties)
    for place, entry in enumerate(standing.ledger):
        first, stop = entry.layers
        if not _is_within(entry.layers, holds):
            what = f"there are gradients of the layers {first}-{stop} where {print_ranges(holds)} are held"
            yield Violation(f"/ledger/{place}/layers", what)
            continue
        again = known & set(range(first, stop))
        if again:
            yield Violation(f"/ledger/{place}/layers", f"layer {min(again)} is in the ledger twice, or sealed")
        known.update(range(first, stop))
        yield from _wrong_numbers(entry.microbatches, microbatches, f"/ledger/{place}")


def _wrong_seals(holds: tuple[Layers, ...], layers: int, standing: Standing) -> Iterator[Violation]:
    for first, stop in standing.sealed:
        if not _is_within((first, stop), holds):
            yield Violation("/sealed", f"the layers {first}-{stop} are sealed where {print_ranges(holds)} are held")
    if any(one[1] >= other[0] for one, other in pairwise(standing.sealed)):
        yield Violation("/sealed", "the sealed layers are not ascending, neighbours joined")
    held = layers_in(holds)
    for place, tie in enumerate(standing.ties):
        if len(tie.layers) < 2 or not _ascend(tie.layers) or tie.layers[-1] >= layers:
            yield Violation(f"/ties/{place}", f"{list(tie.layers)} are no layers that share parameters")
        elif tie.is_sealed and held.isdisjoint(tie.layers):
            yield Violation(f"/ties/{place}", "a sum has ended here of layers that are not held")


def _wrong_stashes(holds: tuple[Layers, ...], microbatches: int, standing: Standing) -> Iterator[Violation]:
    seen: set[tuple[int, int]] = set()
    for place, stash in enumerate(standing.stashes):
        where, layers = f"/stashes/{place}/microbatches", standing.stashed(stash)
        if (stash.layers is None and len(holds) > 1) or not _is_within(layers, holds):
            yield Violation(f"/stashes/{place}/layers", "something is under way in other layers than a stage's")
            continue
        yield from _wrong_numbers(stash.microbatches, microbatches, f"/stashes/{place}")
        own = {(layer, m) for layer in range(*layers) for m in stash.microbatches}
        if seen & own:
            yield Violation(where, f"micro-batch {min(m for _, m in seen & own)} is under way twice")
        seen |= own
        if stash.after == "I" and not standing.splits and stash.microbatches:
            yield Violation(f"/stashes/{place}/after", "there was an I at a worker that runs B")
        if stash.after == "I":
            inside = (entry for entry in standing.ledger if entry.layers[0] < layers[1] and layers[0] < entry.layers[1])
            done = {m for entry in inside for m in entry.microbatches}.intersection(stash.microbatches)
            if done:
                yield Violation(where, f"W of micro-batch {min(done)} is done, and still to do")


def _wrong_messages(layers: int, microbatches: int, standing: Standing) -> Iterator[Violation]:
    seen: set[tuple[str, int]] = set()
    for place, own in enumerate(standing.messages):
        if not 0 < own.boundary < layers:
            yield Violation(f"/messages/{place}/boundary", f"no message passes at the boundary {own.boundary}")
        if (own.kind, own.boundary) in seen:
            yield Violation(f"/messages/{place}", f"the {own.kind}s at the boundary {own.boundary} are listed twice")
        seen.add((own.kind, own.boundary))
        yield from _wrong_numbers(own.microbatches, microbatches, f"/messages/{place}")


def _wrong_numbers(numbers: tuple[int, ...], microbatches: int, where: str) -> Iterator[Violation]:
    if not _ascend(numbers):
        yield Violation(f"{where}/microbatches", "the micro-batches are not ascending, each once")
    elif numbers and numbers[-1] >= microbatches:
        yield Violation(f"{where}/microbatches", f"there is no micro-batch {numbers[-1]}, only {microbatches}")


def _ascend(numbers: Sequence[int]) -> bool:
    return list(numbers) == sorted(set(numbers))
