"""Workers at places, as the kernels see them: kinds of workers, what arrangements cost, and the search for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import factorial, prod
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from ...schemas.conditions import Pair
from ...schemas.kernels import pays
from ...schemas.plan import Place, Plan
from ..batch.pace import Pace
from ..oobleck.pace import warm_ups_of
from ..scheduling.forms import Form
from .arrangement_kernels import (
    EVENLY,
    HEALTHY,
    NOBODY,
    Costs,
    State,
    descend,
    enumerate_all,
    iteration_s,
    look,
    settle,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

# So many arrangements are looked at one by one: all of 8 different workers (8! = 40,320).
MOST_ENUMERATED = 50_000
# A search ends after about so many swaps, tried once each after every kick of so many swaps by chance.
KICK_SWAPS_TRIED, FEWEST_KICKS, MOST_KICKS = 50_000, 4, 64
KICK_SWAPS = 3
# Plain Python does so many steps while the machine code is loaded.
INTERPRETED_STEPS = 400_000
SCANS = 60  # of all swaps, in a search; about


@dataclass(frozen=True)
class Kinds:
    """Workers by what distinguishes them: kind 0 is healthy, and there is one worker of each kind with a slow link.

    Attributes:
        of: the kind of each worker, by name.
        factor: the slow-down of each kind.
        delay_s: of slow links, by two kinds.
    """

    of: Mapping[str, int]
    factor: Sequence[float]
    delay_s: Mapping[tuple[int, int], float]

    @classmethod
    def among(cls, workers: Iterable[str], slow: Mapping[str, float], links: Mapping[Pair, float]) -> Kinds:
        """The kinds of some workers; who is slow but not among them does not count."""
        names = sorted(workers)
        known = set(names)
        placed = {pair: delay_s for pair, delay_s in sorted(links.items()) if delay_s and known.issuperset(pair)}
        linked = {name for pair in placed for name in pair}
        keys = {name: (slow.get(name, 1.0), name if name in linked else "") for name in names}
        numbers = {(1.0, ""): HEALTHY}
        for key in sorted(set(keys.values())):
            numbers.setdefault(key, len(numbers))
        of = {name: numbers[key] for name, key in keys.items()}
        delays = {(of[one], of[other]): delay_s for (one, other), delay_s in placed.items()}
        return cls(of, [factor for factor, _ in numbers], delays)


class Search:
    """Looks for the arrangement in which an iteration takes the least time.

    Args:
        plan: of alike pipelines; its orders, and what it says of slow workers, do not matter.
        start: who sits where; at other places there is nobody.
        kinds: of these workers.
        counts: micro-batches of each pipeline; None: they are distributed as is best.

    Attributes:
        home: the kinds at all places as they are at first; shape (pipelines * stages,).
    """

    def __init__(self, plan: Plan, start: Mapping[str, Place], kinds: Kinds, counts: Sequence[int] | None) -> None:
        self._depth = len(plan.template_of(0).stages)
        self.home = np.full(len(plan.pipelines) * self._depth, NOBODY, dtype=np.int64)
        for name, (k, i) in start.items():
            self.home[k * self._depth + i] = kinds.of[name]
        self._taken = np.flatnonzero(self.home >= HEALTHY)
        self._count = _arrangements(self.home[self._taken].tolist())
        self._form = Form(pays(look, self._steps(len(plan.pipelines)), INTERPRETED_STEPS))
        self._costs = _costs(self._form, plan, self._live(), kinds, counts)
        self._state = self._state_at(self.home, len(plan.pipelines), len(kinds.factor))
        self._rows_alike = _alike(plan, counts)

    def best(self, most_moved: int, seed: int) -> tuple[Ints, bool]:
        """The best arrangement that is found, and whether none is better; shape (pipelines * stages,).

        Args:
            most_moved: so many workers may leave their places.
            seed: of the kicks.
        """
        if most_moved < 2 or not (self.home > HEALTHY).any():
            return self.home, True
        if self.is_small:
            return self.exact(most_moved), True
        return self.local(most_moved, seed), most_moved == 2

    def look(self, who: Ints) -> list[Pace]:
        """How long each pipeline of an arrangement takes, the sums of gradients included."""
        self._set(who)
        fixed_s, paces_s = np.asarray(self._state.end_s).tolist(), np.asarray(self._state.pace_s).tolist()
        return [Pace(*line) for line in zip(fixed_s, paces_s, strict=True)]

    def ends_s(self, who: Ints, counts: Sequence[int]) -> list[float]:
        """When each pipeline of an arrangement ends, its sums included, with so many micro-batches each, in s."""
        self._costs.counts[:] = self._form.floats(counts)
        return [line.time_s(count) for line, count in zip(self.look(who), counts, strict=True)]

    def time_s(self, who: Ints) -> float:
        """T of an arrangement, by these lines, in s."""
        self._set(who)
        return float(self._kernel(iteration_s)(self._costs, self._state))

    @property
    def is_small(self) -> bool:
        """Whether all arrangements can be looked at."""
        return self._count <= MOST_ENUMERATED

    def exact(self, most_moved: int) -> Ints:
        """The best arrangement of all, and of those one in which the fewest workers move."""
        first = self.home.copy()
        first[self._taken] = np.sort(first[self._taken])
        self._set(first)
        best = self._form.ints(self.home.copy())
        self._kernel(enumerate_all)(self._costs, self._state, self._form.ints(self._taken), most_moved, best)
        return np.array(best)

    def local(self, most_moved: int, seed: int, kicks: int | None = None) -> Ints:
        """The best arrangement of a local search: best swaps, from home and after some kicks."""
        random = Random(seed)
        best_s = self._descent(self.home, most_moved)
        best, origin = self._now(), self._now()
        for _ in range(self._kicks(most_moved) if kicks is None else kicks):
            found_s = self._descent(self._kicked(origin, random, most_moved), most_moved)
            if found_s <= best_s * (1 + EVENLY):
                origin = self._now()
            if found_s < best_s * (1 - EVENLY):
                best, best_s = origin, found_s
        return self._settled(best, best_s * (1 + EVENLY))

    def _kicks(self, most_moved: int) -> int:
        """The fewer the more a descent takes; none where a single swap is allowed, for all of these are looked at."""
        if most_moved <= 2:
            return 0
        swaps = int((self.home > HEALTHY).sum()) * len(self.home)
        return min(max(KICK_SWAPS_TRIED // swaps, FEWEST_KICKS), MOST_KICKS)

    def _descent(self, who: Ints, most_moved: int) -> float:
        self._set(who)
        return float(self._kernel(descend)(self._costs, self._state, most_moved, self._rows_alike))

    def _kicked(self, who: Ints, random: Random, most_moved: int) -> Ints:
        """An arrangement after some swaps of workers who are not healthy."""
        kicked = who.copy()
        for _ in range(KICK_SWAPS):
            place = random.choice(np.flatnonzero(kicked > HEALTHY).tolist())
            other = random.choice(self._taken.tolist())
            kicked[[place, other]] = kicked[[other, place]]
        return kicked if int((kicked != self.home).sum()) <= most_moved else who

    def _settled(self, who: Ints, level_s: float) -> Ints:
        """As good an arrangement in which fewer workers move."""
        self._set(_rows_at_home(who, self.home, self._depth) if self._rows_alike else who)
        self._kernel(settle)(self._costs, self._state, level_s)
        return self._now()

    def _set(self, who: Ints) -> None:
        self._state.who[:] = self._form.ints(who)
        self._kernel(look)(self._costs, self._state)

    def _now(self) -> Ints:
        return np.array(self._state.who)

    def _kernel(self, function: Any) -> Any:
        return self._form.kernel(function)

    def _live(self) -> list[int]:
        """The workers of each stage."""
        return np.bincount(self._taken % self._depth, minlength=self._depth).tolist()  # type: ignore[no-any-return]

    def _steps(self, pipelines: int) -> int:
        """About how much there is to do."""
        places = len(self.home)
        if self.is_small:
            return self._count * 3 * places
        return SCANS * int((self.home > HEALTHY).sum()) * places * (4 * self._depth + pipelines)

    def _state_at(self, who: Ints, pipelines: int, kinds: int) -> State:
        form = self._form
        sizes = (pipelines, pipelines, pipelines, len(who), self._depth + 1, self._depth, 2)
        spaces = [form.float_space(size) for size in sizes]
        marks = [form.int_space(size) for size in (pipelines, 2)]
        return State(form.ints(who.copy()), form.ints(who.copy()), form.int_space(kinds), *spaces, *marks)


def _costs(form: Form, plan: Plan, live: Sequence[int], kinds: Kinds, counts: Sequence[int] | None) -> Costs:
    pipelines, stages = len(plan.pipelines), plan.template_of(0).stages
    once_s = [stage.work_s for stage in stages]
    hops = [[*(link.delay_s for link in plan.links_of(k)), 0.0] for k in range(pipelines)]
    size = len(kinds.factor)
    delay_s = np.zeros((size, size))
    for (one, other), seconds in kinds.delay_s.items():
        delay_s[one, other] = delay_s[other, one] = seconds
    return Costs(
        once_s=form.floats(once_s),
        each_s=form.floats([c * pipelines / max(1, n) for c, n in zip(once_s, live, strict=True)]),
        back_s=form.floats([stage.duration_s("B") for stage in stages]),
        tail_s=form.floats([stage.allreduce_s + stage.optimizer_s for stage in stages]),
        steps=form.floats([2 * max(0, n - 1) for n in live]),
        warm_up=form.ints(warm_ups_of(stages)),
        hop_s=form.floats(np.ravel(hops)),
        factor=form.floats(kinds.factor),
        is_linked=form.ints([int(kind in {end for pair in kinds.delay_s for end in pair}) for kind in range(size)]),
        delay_s=form.floats(delay_s.ravel()),
        ends=form.ints([end for pair in kinds.delay_s for end in pair]),
        counts=form.floats(counts or [0] * pipelines),
        total=float(plan.total_microbatches()),
        usual_s=max(once_s),
    )


def _arrangements(kinds: Sequence[int]) -> int:
    """In how many ways these can be arranged."""
    return factorial(len(kinds)) // prod(factorial(count) for count in Counter(kinds).values())


def _alike(plan: Plan, counts: Sequence[int] | None) -> bool:
    """Whether pipelines can change places as a whole."""
    return len({plan.links_of(k) for k in range(len(plan.pipelines))}) == 1 and (not counts or len(set(counts)) == 1)


def _rows_at_home(who: Ints, home: Ints, depth: int) -> Ints:
    """The same pipelines in another order, so that fewer workers move."""
    rows, homes = who.reshape(-1, depth), home.reshape(-1, depth)
    if ((rows < HEALTHY) != (homes < HEALTHY)).any() or (homes < HEALTHY).any():
        return who
    same = (rows[:, None, :] == homes[None, :, :]).sum(axis=2)
    order = list(range(len(rows)))
    pairs = [(k, n) for k in order for n in range(k)]
    while gains := [
        (same[order[k], n] + same[order[n], k] - same[order[k], k] - same[order[n], n], k, n) for k, n in pairs
    ]:
        gain, k, n = max(gains)
        if gain <= 0:
            break
        order[k], order[n] = order[n], order[k]
    found: Ints = rows[order].ravel()
    return found
