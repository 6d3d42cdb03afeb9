"""Ranks that say the same: what several of them tell of one iteration, checkpoint or start is heard once."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..happenings import Happening

_REMEMBERED = 64  # iterations
_ECHO_S = 1.0  # where nobody says who speaks, the same within so short a time is the same
_LATE_S = 60.0  # and from another rank within so long a time


@dataclass
class HeardOnce:
    """What was told since a job began, or loaded a checkpoint."""

    iterations: OrderedDict[int, Happening] = field(default_factory=OrderedDict)
    others: dict[tuple[str, int | None, str | None], Happening] = field(default_factory=dict)

    def is_echo(self, told: Happening) -> bool:
        """Whether it was told before, by somebody else; if not, it is remembered."""
        if told.kind in ("failure", "detected", "other"):
            if told.kind == "failure":
                self.others.clear()
            return False
        if told.kind == "iteration":
            if told.iteration is None:
                return False
            before = self.iterations.get(told.iteration)
            if before is not None:
                if _is_same(before, told):
                    return True
                self.iterations.move_to_end(told.iteration)
            self.iterations[told.iteration] = told
            if len(self.iterations) > _REMEMBERED:
                self.iterations.popitem(last=False)
            self.others.clear()
            return False
        key = told.kind, told.iteration, told.cause if told.kind != "start" else None  # whoever says it
        before = self.others.get(key)
        if before is not None and _is_same(before, told):
            return True
        self.others[key] = told
        if told.kind in ("start", "load"):
            self.iterations.clear()
        return False


def _is_same(before: Happening, told: Happening) -> bool:
    """Whether two that tell alike are one that two ranks tell."""
    if before.ranks and before.ranks == told.ranks and before.where.file == told.where.file:
        return False
    apart_s = abs(told.time_s - before.time_s) if told.time_s is not None and before.time_s is not None else None
    if before.ranks or told.ranks or before.where.file != told.where.file:
        return apart_s is None or apart_s < max(_LATE_S, 5 * (told.took_s or 0.0))
    if apart_s is None:
        return told.took_s == before.took_s and told.where.line - before.where.line < _REMEMBERED
    return apart_s <= max(_ECHO_S, (told.took_s or 0.0) / 2)


def heard_once(happenings: Iterator[Happening]) -> Iterator[Happening]:
    """Without what several ranks tell again."""
    heard = HeardOnce()
    for told in happenings:
        if not told.each_s:
            if not heard.is_echo(told):
                yield told
        elif (told.iteration or 0) - told.steps < max(heard.iterations, default=0):
            yield from (one for one in told.singles() if not heard.is_echo(one))
        else:  # all of them are new
            for one in told.singles(max(told.steps - _REMEMBERED, 0)):
                heard.is_echo(one)
            yield told
