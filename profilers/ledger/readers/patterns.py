"""Lines as a user describes them: regular expressions whose groups say what they find."""

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar, get_args

from ....schemas.errors import InvalidInputError
from ...failslow.readers.lines import rank_of
from ...failslow.readers.stamps import LineClock, unix_time
from ..happenings import Happening, HappeningKind
from .reader import MOST_CAUSE, HappeningReader, LineContext, Progress, quantity_of, text_of

KINDS: tuple[HappeningKind, ...] = get_args(HappeningKind)
_NUMBERED: tuple[HappeningKind, ...] = ("iteration", "save", "evaluation", "load")
VALUES = ("time", "took_s", "took_ms", "step", "gpus", "rank", "skipped")


class PatternLog(HappeningReader):
    """A log read by a user's own expressions: `--pattern 'iter (?P<iteration>\\d+) took (?P<took_ms>[\\d.]+) ms'`.

    A line that an expression finds is of the kind that one of its groups is named after (`iteration`, `save`, `load`,
    `failure`, `start`, …). What this group holds is a number for iterations, saves, evaluations and loads, and else the
    cause. Other groups: `time` (a stamp, or seconds since 1970; without it the line's own stamp counts), `took_s` or
    `took_ms`, `step` (an iteration counted from 0), `gpus`, `rank`, `skipped`.

    Args:
        clock: as for every reader.
        patterns: in the order in which they are tried.

    Raises:
        InvalidInputError: one of them is no regular expression, or has groups that say nothing.
    """

    NAME: ClassVar[str] = "pattern"

    def __init__(self, clock: LineClock, patterns: Sequence[str]) -> None:
        super().__init__(clock)
        self._patterns = [(compiled(pattern), _kind_of(pattern)) for pattern in patterns]
        self._progress = Progress()

    @property
    def tells_iterations(self) -> bool:
        """Whether one of them does."""
        return any(kind == "iteration" for _, kind in self._patterns)

    def read(self, line: bytes, around: LineContext) -> Iterator[Happening]:
        """What the first expression that fits finds."""
        for pattern, kind in self._patterns:
            match = pattern.search(line)
            if match is not None:
                yield self._found(match.groupdict(), kind, line, around)
                return

    def _found(
        self, groups: dict[str, bytes | None], kind: HappeningKind, line: bytes, around: LineContext
    ) -> Happening:
        told = groups.get(kind) or b""
        stamp, step, rank = groups.get("time"), _number(groups, "step"), groups.get("rank")
        number = _number(groups, kind) if kind in _NUMBERED and told[:1].isdigit() else None
        if step is not None:
            number = step + 1
        took_s, took_ms = _number(groups, "took_s"), _number(groups, "took_ms")
        if took_s is None and took_ms is not None:
            took_s = took_ms / 1e3
        gpus, skipped = _number(groups, "gpus"), _number(groups, "skipped")
        who = text_of(rank) if rank else rank_of(line)
        whole = int(number) if number is not None else None
        if kind == "load":
            self._progress.restart(whole)
        return Happening(
            kind,
            unix_time(stamp, self.clock) if stamp else self.clock.of(line),
            around.place,
            took_s,
            whole,
            int(gpus) if gpus else None,
            (who,) if who else (),
            text_of(told)[:MOST_CAUSE] if kind in ("failure", "detected", "end", "other") else None,
            self._progress.steps(whole, who) if kind == "iteration" and whole is not None else 1,
            int(skipped) if skipped else 0,
        )


def compiled(pattern: str) -> re.Pattern[bytes]:
    """A user's expression.

    Raises:
        InvalidInputError: it is none.
    """
    try:
        return re.compile(pattern.encode())
    except re.error as error:
        raise InvalidInputError(
            f"no regular expression: {error}", where=f"--pattern {pattern!r}", fix="write it as for Python's re"
        ) from None


def _kind_of(pattern: str) -> HappeningKind:
    names = compiled(pattern).groupindex
    kinds: list[HappeningKind] = [kind for kind in KINDS if kind in names]
    if not kinds and "step" in names:
        kinds = ["iteration"]
    foreign = [name for name in names if name not in (*KINDS, *VALUES)]
    if len(kinds) != 1 or foreign:
        what = f"a group is named {foreign[0]}" if foreign else "it says several kinds" if kinds else "it says no kind"
        raise InvalidInputError(
            f"the expression does not say what a line tells of: {what}",
            where=f"--pattern {pattern!r}",
            fix=f"name one group after what happens ({', '.join(KINDS)}), others {', '.join(VALUES)}: "
            r"'iter (?P<iteration>\d+) took (?P<took_s>[\d.]+)'",
        )
    return kinds[0]


def _number(groups: dict[str, bytes | None], name: str) -> float | None:
    text = groups.get(name)
    return quantity_of(text, name) if text else None
