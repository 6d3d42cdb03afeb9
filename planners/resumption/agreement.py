"""Which sums over gradients have ended, so that nothing of their layers is done again, and who copies them from whom.

A layer is sealed once its sum has ended at somebody who is there. What it shares with other layers (ties) has a sum of
its own, which includes all of them: it is of use only if it has ended, too, and if all layers in it are sealed; else
the others would be summed anew, and what they share twice (notes/midway.md, sections 2.4 and 3: `agree`, which knows
no ties).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...schemas.errors import InvalidInputError
from ...schemas.plan import Layers
from ...schemas.resumption import SumCopy, layer_runs, layers_in
from .crew import Crew

Tie = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AgreedSums:
    """Layers that are sealed, neighbours joined; and the copies of their sums to holders that lack them."""

    sealed: tuple[Layers, ...]
    copies: tuple[SumCopy, ...]


def agree(crew: Crew) -> AgreedSums:
    """What everybody takes for sealed.

    Raises:
        InvalidInputError: the workers know of other ties.
    """
    if not any(standing.sealed for standing in crew.standings):
        return AgreedSums((), ())
    ties = ties_of(crew)
    holder: dict[int, int] = {}  # of each layer's sum, the first one
    tie_holder: dict[Tie, int] = {}
    for number, standing in enumerate(crew.standings):
        for layer in layers_in(standing.sealed):
            holder.setdefault(layer, number)
        for tie in standing.ties:
            if tie.is_sealed:
                tie_holder.setdefault(tie.layers, number)
    sealed = sealed_with_ties(set(holder), ties, set(tie_holder))
    return AgreedSums(layer_runs(sealed), tuple(_copies(crew, sealed, ties, holder, tie_holder)))


def ties_of(crew: Crew) -> tuple[Tie, ...]:
    """The sets of layers that share parameters; those who have no layers yet need not know of them.

    Raises:
        InvalidInputError: two workers know of different ones.
    """
    known = {tuple(tie.layers for tie in one.ties) for one in crew.standings if one.layers is not None}
    if len(known) > 1:
        raise InvalidInputError("workers know of unlike ties between layers", where="/standings")
    return known.pop() if known else ()


def sealed_with_ties(ended: set[int], ties: tuple[Tie, ...], ended_ties: set[Tie]) -> set[int]:
    """Of layers whose own sums have ended, those whose ties have ended with all their layers."""
    sealed, before = set(ended), -1
    while len(sealed) != before:
        before = len(sealed)
        for tie in ties:
            if tie not in ended_ties or not sealed.issuperset(tie):
                sealed.difference_update(tie)
    return sealed


def _copies(
    crew: Crew, sealed: set[int], ties: tuple[Tie, ...], holder: dict[int, int], tie_holder: dict[Tie, int]
) -> list[SumCopy]:
    """What each worker lacks of the sealed layers that it holds from now on, by who has it."""
    found = []
    for number, (holds, standing) in enumerate(zip(crew.holds, crew.standings, strict=True)):
        held = sealed.intersection(layers_in(holds))
        if not held:
            continue
        lacking: dict[int, tuple[list[int], list[Tie]]] = {}
        for layer in sorted(held.difference(layers_in(standing.sealed))):
            lacking.setdefault(holder[layer], ([], []))[0].append(layer)
        has = {tie.layers for tie in standing.ties if tie.is_sealed}
        for tie in ties:
            if tie not in has and held.intersection(tie):
                lacking.setdefault(tie_holder[tie], ([], []))[1].append(tie)
        for source, (layers, lacking_ties) in sorted(lacking.items()):
            # Ties go with the first of the ranges; of nothing but ties the range is empty.
            ranges = layer_runs(layers) or ((min(held), min(held)),)
            for at, one in enumerate(ranges):
                with_it = tuple(lacking_ties) if at == 0 else ()
                found.append(SumCopy(crew.names[source], crew.names[number], one, with_it))
    return found
