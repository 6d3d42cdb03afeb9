"""Who plays which place of a plan: vacancies filled, moves made, and who copies whose state."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...schemas.plan import Plan
from ...schemas.protocols import Place
from .messages import Copy, Hello

Seats = dict[Place, str]  # the workers' names by their places


@dataclass
class Member:
    """A worker with a place.

    Attributes:
        name: `k/i`, by which it was started; its place may have become another.
        connection: where it is reached; None while it is expected back after a restart of the coordinator.
        store: host:port of its meeting place.
        place: what it plays in the present epoch.
        holds: the stage whose state, as of the last commit, it has.
        is_leaving: it will go at the next commit.
    """

    name: str
    connection: int | None
    store: str
    place: Place
    holds: int | None = None
    is_leaving: bool = False


def place_of(name: str) -> Place:
    """A place from its name `k/i`.

    Raises:
        ValueError: the text names none.
    """
    pipeline, stage = name.split("/")
    return int(pipeline), int(stage)


def name_of(place: Place) -> str:
    """The name `k/i` of a place."""
    return f"{place[0]}/{place[1]}"


def places_of(plan: Plan) -> tuple[Place, ...]:
    """All places of a plan, of dead workers too, in order."""
    return tuple((worker.pipeline, worker.stage) for worker in plan.workers)


def live_places(plan: Plan) -> tuple[Place, ...]:
    """The places of a plan by rank."""
    return tuple((worker.pipeline, worker.stage) for worker in plan.live_workers())


def with_newcomers(seats: Seats, newcomers: Iterable[str], places: Sequence[Place]) -> Seats:
    """Give every newcomer a vacant place: the one it is named after, where that is free, else the first.

    Args:
        seats: who stays.
        newcomers: names, in the order of their arrival.
        places: all places.
    """
    filled = dict(seats)
    names = list(newcomers)
    for name in [name for name in names if place_of(name) in places and place_of(name) not in seats]:
        filled[place_of(name)] = name
        names.remove(name)
    vacant = [place for place in places if place not in filled]
    return filled | dict(zip(vacant, names, strict=False))


def moved(seats: Seats, moves: Mapping[Place, Place]) -> Seats:
    """The seats after some workers have taken over the places of others."""
    return {moves.get(place, place): name for place, name in seats.items()}


def copies(order: Sequence[Place], seats: Seats, holds: Mapping[str, int | None]) -> tuple[Copy, ...]:
    """Who sends whom a stage's state, each newcomer from another peer where there are several.

    Args:
        order: the places by rank.
        seats: the workers at them.
        holds: by name, the stage whose state a worker has until now.

    Raises:
        LookupError: nobody has the state of a stage; the error's argument is its number.
    """
    sent: dict[int, int] = dict.fromkeys(range(len(order)), 0)
    found = []
    for target, place in enumerate(order):
        if holds[seats[place]] == place[1]:
            continue
        sources = [rank for rank, other in enumerate(order) if holds[seats[other]] == place[1]]
        if not sources:
            raise LookupError(place[1])
        source = min(sources, key=lambda rank: (sent[rank], rank))
        sent[source] += 1
        found.append(Copy(source, target, place[1]))
    return tuple(found)


@dataclass(frozen=True)
class Newcomer:
    """A worker that waits for a place."""

    hello: Hello
    since_s: float
