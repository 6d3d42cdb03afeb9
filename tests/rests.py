"""Hypothesis strategies: random plans with random standings, and what is left then, without a planner.

Standings are drawn cell by cell: who has which gradients, what is under way, which messages are kept, where sums have
ended. What follows is derived micro-batch by micro-batch, as docs/semantics.md says it, and put into a random
topological order.
"""

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

from hypothesis import assume
from hypothesis import strategies as st

from rtk.schemas.orders import Kind, Operation
from rtk.schemas.plan import Layers, Plan, Worker
from rtk.schemas.resumption import (
    Begun,
    LastDone,
    MessageKind,
    Resend,
    Rest,
    RestOperation,
    RestWorker,
    SeatLayers,
    SharedLayers,
    Standing,
    SumCopy,
    held_messages,
    layer_runs,
    layers_in,
    ledger_entries,
    nothing_of,
    print_rest_operation,
    seat_at,
    seats_in,
    stashes_within,
)

from .placed_plans import any_placed_plans
from .strategies import any_plans, limited

Message = tuple[MessageKind, int, int]  # kind, micro-batch, boundary
Node = tuple[int, int, RestOperation]  # a live worker, a micro-batch, and what the one runs of the other
Tie = tuple[int, ...]
ACTIVATION: MessageKind = "activation"
GRADIENT: MessageKind = "gradient"


@st.composite
def rests(draw: st.DrawFn, like: Callable[[Rest], bool] = bool) -> tuple[Plan, Rest]:
    """A random valid plan without memory limits, and a valid rest before it that is `like` so, without a prediction."""
    plan = limited(draw(st.one_of(any_plans(), any_placed_plans())), {})
    chance = random.Random(draw(st.integers(0, 2**32)))
    found = next((rest for rest in (_Draw(plan, chance).rest() for _ in range(20)) if like(rest)), None)
    assume(found is not None)
    assert found is not None
    return plan, found


@dataclass
class _Sitting:
    """What one live worker has, as it is drawn: stashes are those to go on with, spare ones those in vain."""

    worker: Worker
    before: tuple[Layers, ...] | None
    seats: SeatLayers
    splits: bool
    is_spoilt: bool
    done: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    sealed: set[int] = field(default_factory=set)
    ties: set[Tie] = field(default_factory=set)
    stashes: dict[Begun, LastDone] = field(default_factory=dict)
    spare: dict[Begun, LastDone] = field(default_factory=dict)
    messages: set[Message] = field(default_factory=set)

    @property
    def name(self) -> str:
        return f"w{self.worker.name}"

    def held(self) -> set[int]:
        return set(layers_in(self.before or ()))

    def holds(self) -> tuple[Layers, ...]:
        return layer_runs(layers_in(self.seats.values()))

    def stays(self) -> bool:
        return self.before == self.holds()

    def kept(self) -> set[int]:
        return self.held() & layers_in(self.holds())

    def standing(self, ties: list[Tie]) -> Standing:
        if self.before is None:
            return nothing_of(self.name, None)
        return replace(
            nothing_of(self.name, self.before),
            splits=self.splits,
            ledger=ledger_entries(self.done),
            sealed=layer_runs(self.sealed),
            stashes=stashes_within(self.before, self.stashes | self.spare),
            messages=held_messages((kind, boundary, m) for kind, m, boundary in self.messages),
            ties=tuple(SharedLayers(tie, tie in self.ties) for tie in ties),
        )


class _Draw:
    """A random rest before a plan."""

    def __init__(self, plan: Plan, chance: random.Random) -> None:
        self.plan, self.chance = plan, chance
        self.layers = plan.templates[0].stages[-1].layers[1]
        self.ties: list[Tie] = [(0, self.layers - 1)] if self.layers > 1 and chance.random() < 0.3 else []
        self.crew = [self._sit_down(worker) for worker in plan.live_workers()]
        self.sealed = self._seal()
        self.homes = [k for k, pipeline in enumerate(plan.pipelines) for _ in range(pipeline.microbatches)]

    def rest(self) -> Rest:
        todo = [self._draw_progress(microbatch) for microbatch in range(len(self.homes))]
        for one in self.crew:
            kinds = set(one.worker.order or "") & {"I", "B"}
            is_new = one.before is None or one.standing(self.ties).is_empty
            one.splits = "I" in kinds if is_new and len(kinds) == 1 else one.splits
        nodes = [node for microbatch, own in enumerate(todo) for node in self._operations(microbatch, own)]
        sends, makers = self._wire(nodes)
        orders = self._shuffled(nodes, makers)
        workers = []
        for one, order in zip(self.crew, orders, strict=True):
            text = " ".join(
                print_rest_operation(each, one.worker.pipeline, one.seats[each.operation.stage]) for each in order
            )
            lost = layer_runs(one.kept() - self.sealed) if one.is_spoilt else ()
            workers.append(RestWorker(one.worker.name, one.name, text, lost))
        return Rest(
            iteration=self.chance.randrange(5),
            standings=tuple(one.standing(self.ties) for one in self.crew),
            workers=tuple(workers),
            sealed=layer_runs(self.sealed),
            copies=tuple(self._copies()),
            sends=tuple(sends),
        )

    def _sit_down(self, worker: Worker) -> _Sitting:
        chance, seats = self.chance, seats_in(self.plan, worker)
        holds = layer_runs(layers_in(seats.values()))
        before: tuple[Layers, ...] | None = holds
        if chance.random() < 0.2:
            first = chance.randrange(self.layers)
            before = chance.choice([None, ((first, chance.randint(first + 1, self.layers)),)])
        splits = before is None or chance.random() < 0.7
        is_spoilt = before not in (None, holds) and splits and chance.random() < 0.5
        # What layers share has one gradient, which cannot be kept of one of them.
        is_torn = before != holds and any(layers_in(before or ()).issuperset(tie) for tie in self.ties)
        return _Sitting(worker, before, seats, splits or is_torn, is_spoilt or is_torn)

    def _seal(self) -> set[int]:
        chance = self.chance
        share = chance.choice([0.0, 0.2, 0.9])
        ended = {layer for layer in range(self.layers) if chance.random() < share}
        for one in self.crew:
            one.sealed = {layer for layer in ended & one.held() if chance.random() < 0.7}
            one.ties = {tie for tie in self.ties if one.held() & set(tie) and chance.random() < 0.5}
        found = {layer for one in self.crew for layer in one.sealed}
        for tie in self.ties:  # one at most, so that no fixpoint is needed
            if not (found.issuperset(tie) and any(tie in one.ties for one in self.crew)):
                found -= set(tie)
        return found

    def _draw_progress(self, microbatch: int) -> set[int]:
        """What everybody has of a micro-batch; the layers that are still to do."""
        chance = self.chance
        amount = chance.choice([0.0, 0.5, 0.9])
        todo = set(range(self.layers)) - self.sealed
        for one in chance.sample(self.crew, len(self.crew)):
            for layers in one.seats.values() if one.stays() else one.before or ():
                self._draw_cell(one, microbatch, layers, todo, amount)
            for kind_, boundary in [(k, b) for k in (ACTIVATION, GRADIENT) for b in range(1, self.layers)]:
                if one.before and chance.random() < 0.3:
                    one.messages.add((kind_, microbatch, boundary))
        return todo

    def _draw_cell(self, one: _Sitting, microbatch: int, layers: Layers, todo: set[int], amount: float) -> None:
        """What somebody has of a micro-batch in some layers; what is done of them, or under way, is not to do."""
        chance, held = self.chance, set(range(*layers))
        kind, can_go_on = chance.random(), one.stays() and held <= todo
        if one.is_spoilt and (kind < 0.3 or microbatch == 0):
            one.spare[microbatch, layers] = "I"
        elif kind < 0.3 and can_go_on:
            one.stashes[microbatch, layers] = "I" if one.splits and chance.random() < 0.5 else "F"
            todo -= held
        elif 0.3 <= kind < 0.4 and not can_go_on:
            one.spare[microbatch, layers] = "F"
        else:
            elsewhere = held - layers_in(one.holds())
            mine = (todo | self.sealed | elsewhere) & held if not one.is_spoilt else held
            mine = {layer for layer in mine - one.sealed if chance.random() < amount}
            for layer in mine:
                one.done[layer].add(microbatch)
            todo -= set() if one.is_spoilt else mine & one.kept()

    def _operations(self, microbatch: int, todo: set[int]) -> list[Node]:
        """What is to be run of a micro-batch of which some layers are to do."""
        layers, executor, stash = range(self.layers), self._route(microbatch), dict[int, str]()
        for number, one in enumerate(self.crew):
            for (own, begun), last in one.stashes.items():
                for layer in range(*begun) if own == microbatch else ():
                    stash[layer], executor[layer] = last, number
        forward, backward = self._stretch(microbatch, todo, stash)
        nodes: list[Node] = []
        for summed in (True, False):
            marks = []
            for layer in layers:
                if summed:
                    kinds = {"F": "IW", "I": "W"}.get(stash.get(layer, ""), "FIW" if layer in todo else "")
                else:
                    is_once = layer in todo and layer not in stash
                    kinds = "F" if layer in forward and not is_once else ""
                    kinds += "I" if layer in backward and not is_once and stash.get(layer) != "F" else ""
                seat = seat_at(self.crew[executor[layer]].seats, (layer, layer + 1))
                marks.append((executor[layer], seat, kinds))
            for (number, seat, kinds), group in groupby(layers, key=lambda layer, marks=marks: marks[layer]):  # type: ignore[misc]
                run = list(group)
                kinds = kinds if self.crew[number].splits else kinds.replace("IW", "B").replace("I", "B")
                for kind in kinds:
                    own = RestOperation(self._named(kind, microbatch, seat), (run[0], run[-1] + 1), summed)
                    nodes.append((number, microbatch, own))
        return nodes

    def _route(self, microbatch: int) -> dict[int, int]:
        """Who may run each layer: somebody that holds the stage of the home pipeline, not always one for all of it."""
        route: dict[int, int] = {}
        for stage in self.plan.template_of(self.homes[microbatch]).stages:
            holders = [number for number, one in enumerate(self.crew) if stage.layers in one.seats.values()]
            chosen = self.chance.choice(holders)
            for layer in range(*stage.layers):
                chosen = chosen if self.chance.random() < 0.8 else self.chance.choice(holders)
                route[layer] = chosen
        return route

    def _stretch(self, microbatch: int, todo: set[int], stash: dict[int, str]) -> tuple[set[int], set[int]]:
        """Layers that need F, and those that need I or B, until every message is there."""
        kept = {(kind, b) for one in self.crew for kind, m, b in one.messages if m == microbatch}
        forward, backward = todo - set(stash), todo | {layer for layer, after in stash.items() if after == "F"}
        before = -1
        while before != len(forward) + len(backward):
            before = len(forward) + len(backward)
            above = {layer + 1 for layer in backward if (GRADIENT, layer + 1) not in kept}
            backward |= above & set(range(self.layers))
            forward |= {layer for layer in backward if stash.get(layer) != "F"}
            forward |= {layer - 1 for layer in forward if layer and (ACTIVATION, layer) not in kept}
        return forward, backward

    def _named(self, kind: str, microbatch: int, seat: int | None) -> Operation:
        kinds: dict[str, Kind] = {"F": "F", "I": "I", "W": "W", "B": "B"}
        home = self.homes[microbatch]
        return Operation(kinds[kind], home, microbatch - self.plan.microbatch_offset(home), seat)

    def _wire(self, nodes: list[Node]) -> tuple[list[Resend], dict[Node, Node]]:
        """Kept messages that are to be sent, and who makes the others."""
        makers = {_makes(node): node for node in nodes}
        sends: list[Resend] = []
        needs: dict[Node, Node] = {}
        for node in nodes:
            message = _takes(node)
            if message is None or message[2] in (0, self.layers) or message in self.crew[node[0]].messages:
                continue
            holders = [one for one in self.crew if message in one.messages]
            if holders:
                source = self.chance.choice(holders).worker.name
                kind, microbatch, boundary = message
                sends.append(Resend(source, self.crew[node[0]].worker.name, kind, microbatch, boundary))
            else:
                needs[node] = makers[message]
        return sends, needs

    def _shuffled(self, nodes: list[Node], makers: dict[Node, Node]) -> list[list[RestOperation]]:
        """All operations in a random topological order, by worker."""
        orders: list[list[RestOperation]] = [[] for _ in self.crew]
        before: dict[Node, set[Node]] = {node: set() for node in nodes}
        for earlier, later in pairwise(nodes):
            same = earlier[:2] == later[:2] and earlier[2][1:] == later[2][1:]
            before[later] |= {earlier} if same else set()
        for node, maker in makers.items():
            before[node].add(maker)
        left = list(nodes)
        while left:
            node = self.chance.choice([node for node in left if before[node].isdisjoint(left)])
            left.remove(node)
            orders[node[0]].append(node[2])
        return orders

    def _copies(self) -> list[SumCopy]:
        copies = []
        for target in self.crew:
            for first, stop in layer_runs((layers_in(target.holds()) & self.sealed) - target.sealed):
                for layer in range(first, stop):
                    source = self.chance.choice([one for one in self.crew if layer in one.sealed])
                    copies.append(SumCopy(source.worker.name, target.worker.name, (layer, layer + 1)))
            for tie in self.ties:
                at = layers_in(target.holds()) & self.sealed & set(tie)
                if at and self.sealed.issuperset(tie) and tie not in target.ties:
                    source = self.chance.choice([one for one in self.crew if tie in one.ties])
                    nothing = min(at), min(at)
                    copies.append(SumCopy(source.worker.name, target.worker.name, nothing, (tie,)))
        return copies


def _takes(node: Node) -> Message | None:
    _, microbatch, own = node
    if own.kind == "F":
        return ACTIVATION, microbatch, own.layers[0]
    return None if own.kind == "W" else (GRADIENT, microbatch, own.layers[1])


def _makes(node: Node) -> Message | None:
    _, microbatch, own = node
    if own.kind == "F":
        return ACTIVATION, microbatch, own.layers[1]
    return None if own.kind == "W" else (GRADIENT, microbatch, own.layers[0])
