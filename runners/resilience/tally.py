"""The votes of an epoch: who has reduced which iteration's gradients, and whether nothing was lost or done twice."""

from collections.abc import Collection
from itertools import pairwise
from math import fsum

from ...schemas.checkpoint import print_layers
from ...schemas.plan import Place, Plan
from .messages import Vote
from .seating import layers_at, live_places


class Tally:
    """The votes of one epoch.

    Args:
        plan: what is executed.
    """

    def __init__(self, plan: Plan) -> None:
        self._wanted = list(range(plan.total_microbatches()))
        self._layers = {place: layers_at(plan, place) for place in live_places(plan)}
        self._votes: dict[int, dict[Place, Vote]] = {}

    def add(self, place: Place, vote: Vote) -> None:
        """Count a vote; the same one again changes nothing."""
        self._votes.setdefault(vote.iteration, {})[place] = vote

    def is_complete(self, iteration: int, places: Collection[Place]) -> bool:
        """Whether everybody has voted: nobody else can."""
        return len(self._votes.get(iteration, ())) == len(places)

    def miscount(self, iteration: int) -> str | None:
        """What is wrong with an iteration in which not every layer saw every micro-batch exactly once."""
        cuts = sorted({cut for layers in self._layers.values() for cut in layers})
        for first, stop in pairwise(cuts):
            numbers = [
                number
                for place, vote in self._votes[iteration].items()
                if self._layers[place][0] <= first < self._layers[place][1]
                for number in vote.microbatches
            ]
            if sorted(numbers) != self._wanted:
                missing = sorted(set(self._wanted) - set(numbers))
                double = sorted({n for n in numbers if numbers.count(n) > 1})
                where = print_layers([(first, stop)])
                return f"{where} lost micro-batches {missing} and did {double} twice in iteration {iteration}"
        return None

    def is_finite(self, iteration: int) -> bool:
        """Whether all gradients are finite."""
        return all(vote.is_finite for vote in self._votes[iteration].values())

    def loss(self, iteration: int) -> float | None:
        """The mean loss, the same to the last bit whoever executed what; None where it is not finite or not known."""
        parts = [loss for vote in self._votes[iteration].values() for _, loss in vote.losses]
        known = [loss for loss in parts if loss is not None]
        return fsum(known) if known and len(known) == len(parts) else None

    def forget(self, iteration: int) -> None:
        """The votes of a committed iteration are of no more use."""
        del self._votes[iteration]
