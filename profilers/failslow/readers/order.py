"""What a series must not do, and what a single value cannot show: lose its order, or change its unit."""

from collections import deque
from statistics import median

from ....schemas.errors import InvalidInputError

# A job that is started again goes back and then on. Sorted by name (1, 10, 11, 2, ...), newest first or shuffled,
# iterations go back and do not go on from there; once may be an accident.
DISORDERS = 2
# Milliseconds among seconds: a jump by about a thousand that stays for some samples, of those before and after it.
LEAST_JUMP, MOST_JUMP, AROUND = 500.0, 2000.0, 8


class Order:
    """Watches the numbers of iterations."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._stride = 1
        self._just_back = False
        self._disorders = 0

    def note(self, iteration: int) -> None:
        """The number of the next row.

        Raises:
            InvalidInputError: the rows are not in the order in which the iterations were done.
        """
        last, self._last = self._last, iteration
        if last is None:
            return
        step = iteration - last
        is_odd = self._just_back and (step < 0 or step > 2 * self._stride)
        self._just_back = step < 0
        if is_odd:
            self._disorders += 1
        elif step > 0:
            self._stride = step
        if self._disorders >= DISORDERS:
            raise InvalidInputError(
                f"the iterations are not in order: {iteration} comes after {last}",
                fix="sort the rows by iteration; only a job that was started again may go back, and then on",
            )


class Unit:
    """Watches for a change of unit amidst a series."""

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=AROUND)
        self._held: list[float] = []  # since a jump, while it is not clear what it is

    def note(self, time_s: float) -> None:
        """The next time.

        Raises:
            InvalidInputError: since some samples, times are about a thousand times as long, or as short.
        """
        if not self._held:
            before = self._before
            if not before or LEAST_JUMP > time_s / before[-1] > 1 / LEAST_JUMP:
                before.append(time_s)
                return
        self._held.append(time_s)
        if len(self._held) == AROUND:
            self._judge()

    def finish(self) -> None:
        """Nothing follows.

        Raises:
            InvalidInputError: as for `note`, with what there is.
        """
        if len(self._held) >= AROUND / 2:
            self._judge()

    def _judge(self) -> None:
        factors = [time_s / median(self._before) for time_s in self._held]
        long = sum(LEAST_JUMP <= factor <= MOST_JUMP for factor in factors)
        short = sum(LEAST_JUMP <= 1 / factor <= MOST_JUMP for factor in factors)
        if len(self._before) >= AROUND / 2 and 2 * max(long, short) >= len(self._held):
            raise InvalidInputError(
                f"the last {len(self._held)} times are about a thousand times as "
                f"{'long' if long > short else 'short'} as those before: seconds and milliseconds seem to be mixed",
                fix="write all times in one unit, or name columns iter_s and iter_ms and fill in the one that is meant",
            )
        self._before.extend(self._held)
        self._held = []
