"""Who plays which place of a plan, who copies whose state, and who saves it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...schemas.plan import Layers, Place, Plan, name_of
from .messages import Copy, Hello, Saver, Seat

Seats = dict[Place, str]  # the workers' names by their places


@dataclass
class Member:
    """A worker with a place.

    Attributes:
        name: `k/i`, by which it was started; its place may have become another.
        connection: where it is reached; None while it is expected back after a restart of the coordinator.
        store: host:port of its meeting place.
        place: what it plays in the present epoch.
        holds: the layers [first, stop) whose state, as of the last commit, it has: until it says that it is ready,
            those from before the epoch.
        is_leaving: it will go at the next commit.
        others: host:port of its meeting places on other networks.
    """

    name: str
    connection: int | None
    store: str
    place: Place
    holds: Layers | None = None
    is_leaving: bool = False
    others: tuple[str, ...] = ()

    def seat(self) -> Seat:
        """Where it sits, as an epoch says it."""
        return Seat(name_of(self.place), self.name, self.store, self.others)


@dataclass(frozen=True)
class Newcomer:
    """A worker that waits for a place; `not_before`: the first iteration that it wants to take part in."""

    name: str
    store: str
    not_before: int
    since_s: float
    others: tuple[str, ...] = ()

    @classmethod
    def of(cls, hello: Hello, now_s: float) -> "Newcomer":
        """Who has said hello."""
        return cls(hello.worker, hello.store, hello.not_before, now_s, hello.others)


def coming(newcomers: Mapping[int, Newcomer], iteration: int) -> dict[str, int]:
    """The connections of newcomers whose time has come before an iteration, by name, in the order of their arrival."""
    found: dict[str, int] = {}
    for connection, newcomer in newcomers.items():
        if newcomer.not_before <= iteration:
            found.setdefault(newcomer.name, connection)
    return found


def live_places(plan: Plan) -> tuple[Place, ...]:
    """The places of a plan by rank."""
    return tuple((worker.pipeline, worker.stage) for worker in plan.live_workers())


def layers_at(plan: Plan, place: Place) -> Layers:
    """The layers [first, stop) of a place."""
    return plan.template_of(place[0]).stages[place[1]].layers


def copies(wanted: Sequence[Layers], holds: Sequence[Layers | None]) -> tuple[Copy, ...]:
    """Who sends whom which layers, so that everybody gets what it lacks and no source sends much more than others.

    Args:
        wanted: by rank, the layers that each is to hold.
        holds: by rank, the layers whose state each has until now.

    Raises:
        LookupError: nobody has a layer; the error's argument is its number.
    """
    sent = [0] * len(wanted)
    found = []
    for target, (first, stop) in enumerate(wanted):
        layer = first
        while layer < stop:
            own = holds[target]
            if own is not None and own[0] <= layer < own[1]:
                layer = own[1]
                continue
            source = _source(layer, holds, sent)
            until = min(stop, _stop(holds[source]))
            if own is not None and own[0] > layer:
                until = min(until, own[0])
            found.append(Copy(source, target, (layer, until)))
            sent[source] += until - layer
            layer = until
    return tuple(found)


def savers(layers: int, holdings: Iterable[tuple[str, Layers | None]]) -> tuple[Saver, ...]:
    """Who saves which layers: each layer once, as far as anybody holds it, in the order of the layers.

    Args:
        layers: how many the model has.
        holdings: workers and what they hold, those that should rather save first.
    """
    held = [(worker, own) for worker, own in holdings if own is not None]
    found, layer = [], 0
    while layer < layers:
        holder = next(((worker, own) for worker, own in held if own[0] <= layer < own[1]), None)
        if holder is None:
            layer += 1
            continue
        found.append(Saver(holder[0], (layer, holder[1][1])))
        layer = holder[1][1]
    return tuple(found)


def _source(layer: int, holds: Sequence[Layers | None], sent: Sequence[int]) -> int:
    """The rank that holds a layer and has sent least."""
    sources = [rank for rank, own in enumerate(holds) if own is not None and own[0] <= layer < own[1]]
    if not sources:
        raise LookupError(layer)
    return min(sources, key=lambda rank: (sent[rank], rank))


def _stop(held: Layers | None) -> int:
    assert held is not None
    return held[1]
