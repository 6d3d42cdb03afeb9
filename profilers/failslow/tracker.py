"""Following a series of iteration times: when it becomes slow, how slow, and when it is as usual again.

Slow is what takes 10 % longer than usual (section 4.2). Two tiers: three slow iterations in a row are a suspicion,
which costs nothing (*provisional*, and *dismissed* when it goes away); what persists longer than bursts of jitter do,
and by more than chance, is *confirmed*. `robust` is `rcusum.py`; `paper` is `bocd.py`.
"""

from collections.abc import Sequence
from math import exp, inf, log
from typing import Any, Literal, get_args

from ...schemas.detection import Episode
from ...schemas.errors import InvalidInputError
from .bocd import Bocd
from .detector import Detector
from .medians import Medians
from .rcusum import Rcusum
from .telling import Change as Change
from .telling import Story

Mode = Literal["robust", "paper"]

SHORTEST = 10


class Tracker:
    """Follows a series of times in bounded memory (beside the episodes themselves), in constant time a sample.

    Args:
        mode: `robust`, or `paper` for the published detector.
        shortest: how many slow iterations it takes to confirm; more than the longest burst that is no fail-slow.

    Raises:
        InvalidInputError: `shortest` is below 3.
    """

    def __init__(self, mode: Mode = "robust", shortest: int = SHORTEST) -> None:
        self._detector = detector_of(mode, shortest)
        self._medians = Medians()
        self._story = Story(self._medians)

    @property
    def samples(self) -> int:
        """How many were noted."""
        return self._detector.samples

    @property
    def usual_s(self) -> float | None:
        """What an iteration takes when nothing is slow; None: too few were seen to say."""
        return None if self._detector.is_learning else exp(self._detector.reference)

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """What was found so far in the order of onset, what is not over (and a suspicion) included."""
        return self._story.episodes

    def note(self, time_s: float) -> tuple[Change, ...]:
        """Another iteration's time.

        Returns:
            What changed with it, mostly nothing.

        Raises:
            InvalidInputError: the time is not a finite number above 0; it is as if it had not been noted.
        """
        if not 0.0 < time_s < inf:
            raise _no_time(self.samples, time_s)
        y = log(time_s)
        self._medians.note(y)
        found = self._detector.update(y)
        return self._story.tell(found) if found else ()

    def finish(self) -> tuple[Change, ...]:
        """The series is over: a short one is judged by what there is, and a suspicion comes to nothing."""
        return self._story.tell(self._detector.finish()) + self._story.dismiss()


def track(times_s: Sequence[float], mode: Mode = "robust", shortest: int = SHORTEST) -> tuple[Episode, ...]:
    """All episodes of a whole series: what a `Tracker` finds.

    Raises:
        InvalidInputError: a time is not a finite number above 0, or `shortest` is below 3.
    """
    tracker = Tracker(mode, shortest)
    for time_s in times_s:
        tracker.note(time_s)
    tracker.finish()
    return tracker.episodes


def detector_of(mode: Mode, shortest: int = SHORTEST) -> Detector:
    """The detector of a mode, with no sample seen; arguments and errors as for `Tracker`."""
    if mode not in get_args(Mode):
        raise InvalidInputError(f"there is no mode {mode!r}", fix="choose robust or paper")
    if shortest < 3:
        raise InvalidInputError(
            f"{shortest} slow iterations cannot confirm anything",
            fix="ask for 3 at least; 10 to 15 keep usual bursts out",
        )
    return Rcusum(shortest) if mode == "robust" else Bocd()


def _no_time(place: int, time_s: Any) -> InvalidInputError:
    return InvalidInputError(
        f"{time_s} is no iteration time",
        where=f"sample {place}, counted from 0",
        fix="times are finite numbers above 0, in seconds",
    )
