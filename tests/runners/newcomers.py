"""Places for newcomers, in jobs whose plans tests make themselves."""

from collections.abc import Iterable, Sequence

from rtk.schemas.plan import Place, place_of
from rtk.schemas.protocols import Hand


def with_newcomers(crew: Iterable[Hand], places: Sequence[Place]) -> dict[Place, str]:
    """Give every newcomer a vacant place: the one it is named after, where that is free, else the first.

    Args:
        crew: who is there, newcomers in the order of their arrival.
        places: all places.
    """
    filled = {hand.place: hand.worker for hand in crew if hand.place is not None}
    seated = set(filled)
    newcomers = [hand.worker for hand in crew if hand.place is None]
    for name in [name for name in newcomers if place_of(name) in places and place_of(name) not in seated]:
        filled[place_of(name)] = name
        newcomers.remove(name)
    vacant = [place for place in places if place not in filled]
    return filled | dict(zip(vacant, newcomers, strict=False))
