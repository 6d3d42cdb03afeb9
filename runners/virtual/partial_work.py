"""What a worker on the virtual clock has of an iteration under way, by what it has executed of it."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from ...schemas.plan import Layers, Plan
from ...schemas.resumption import HeldMessages, LedgerEntry, MessageKind, Rest, Standing, Stash
from ..program import Compute, Program
from ..simulator import Execution

Held = tuple[MessageKind, int, int]  # kind, boundary and global micro-batch


@dataclass(frozen=True)
class PartialWork:
    """What a worker has of an iteration.

    Attributes:
        layers: [first, stop) that it holds; None: it has no state.
        splits: whether its F are followed by I and W; None: it has run none.
        ledger: by layer, the micro-batches in its own part of the sum.
        sealed: layers whose sums have ended here.
        stashes: by micro-batch that is under way, what was done last.
        messages: that it has sent or taken, in this order.
        losses: micro-batches whose losses it knows, as the last layer's gradients are, or were, in its own part.
    """

    layers: Layers | None = None
    splits: bool | None = None
    ledger: Mapping[int, frozenset[int]] = field(default_factory=dict)
    sealed: frozenset[int] = frozenset()
    stashes: Mapping[int, Literal["F", "I"]] = field(default_factory=dict)
    messages: tuple[Held, ...] = ()
    losses: frozenset[int] = frozenset()

    def after(self, program: Program, execution: Execution, rank: int, until_s: float) -> "PartialWork":
        """What it has once it has executed so much more.

        Args:
            program: of the iteration, or of what was left of it.
            execution: of the program.
            rank: the worker's.
            until_s: until when, from the execution's beginning; what ends then counts.
        """
        return _Progress(self, program.plan, rank).after(program, execution, until_s)

    def resumed(self, rest: Rest, plan: Plan, rank: int) -> "PartialWork":
        """What it has at the beginning of what is left, sums copied.

        Args:
            rest: what is left.
            plan: that follows.
            rank: its own there.
        """
        layers = plan.stage_of(plan.live_workers()[rank]).layers
        sealed = frozenset(_numbers(rest.sealed)) & frozenset(range(*layers))
        dropped = {*_numbers(rest.workers[rank].given_up), *sealed}
        return replace(
            self,
            layers=layers,
            ledger={layer: own for layer, own in self.ledger.items() if layer in range(*layers) and layer not in dropped},
            sealed=sealed,
            stashes=self.stashes if layers == self.layers else {},
        )

    def standing(self, worker: str, splits: bool) -> Standing:
        """It as the worker tells it.

        Args:
            worker: its name.
            splits: whether its F were followed by I and W if it ran some.
        """
        kinds = ("F", "I")
        stashes = ((kind, [number for number, after in self.stashes.items() if after == kind]) for kind in kinds)
        held: dict[tuple[MessageKind, int], set[int]] = {}
        for kind, boundary, number in self.messages:
            held.setdefault((kind, boundary), set()).add(number)
        return Standing(
            worker=worker,
            layers=self.layers,
            splits=splits if self.splits is None else self.splits,
            ledger=self.entries(),
            sealed=_runs(self.sealed),
            stashes=tuple(Stash(kind, tuple(sorted(own))) for kind, own in stashes if own),  # type: ignore[arg-type]
            messages=tuple(HeldMessages(*way, tuple(sorted(own))) for way, own in sorted(held.items())),
        )

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Its ledger; neighbouring layers with the same micro-batches stand together."""
        layers = sorted(layer for layer, own in self.ledger.items() if own)
        cuts = [n for n, (one, two) in enumerate(pairwise(layers), 1) if two != one + 1 or self.ledger[one] != self.ledger[two]]
        runs = (layers[first:stop] for first, stop in pairwise([0, *cuts, len(layers)]) if stop > first)
        return tuple(LedgerEntry((run[0], run[-1] + 1), tuple(sorted(self.ledger[run[0]]))) for run in runs)


class _Progress:
    """A worker's part of an iteration as it goes on."""

    def __init__(self, before: PartialWork, plan: Plan, rank: int) -> None:
        self._before, self._plan, self._rank = before, plan, rank
        self._own = plan.stage_of(plan.live_workers()[rank]).layers
        self._last = plan.templates[0].stages[-1].layers[1]
        self._ledger = {layer: set(own) for layer, own in before.ledger.items()}
        self._stashes = dict(before.stashes)
        self._messages = dict.fromkeys(before.messages)
        self._losses = set(before.losses)

    def after(self, program: Program, execution: Execution, until_s: float) -> PartialWork:
        computes = [one for one in program.instructions[self._rank] if isinstance(one, Compute)]
        # Operations come before all sums.
        done = [
            one for one, span in zip(computes, execution.spans[self._rank], strict=False) if span.end_s <= until_s
        ]
        for one in done:
            self._run(one)
        ended = {*_numbers(layers for layers, end_s in execution.sums_s[self._rank] if end_s <= until_s)}
        return PartialWork(
            layers=self._own,
            splits=any(one.operation.kind in "IW" for one in computes) if computes else None,
            ledger={layer: frozenset(own) for layer, own in self._ledger.items() if layer not in ended},
            sealed=self._before.sealed | ended,
            stashes=self._stashes,
            messages=tuple(self._messages),
            losses=frozenset(self._losses),
        )

    def _run(self, one: Compute) -> None:
        kind, pipeline, microbatch = one.operation
        number = self._plan.microbatch_offset(pipeline) + microbatch
        first, stop = one.layers or self._own
        is_whole = one.accumulates and (first, stop) == self._own
        ...


def _numbers(runs: Iterable[Layers]) -> Iterator[int]:
    return (layer for run in runs for layer in range(*run))


def _runs(layers: Collection[int]) -> tuple[Layers, ...]:
    """Layers, ascending, with neighbours joined."""
