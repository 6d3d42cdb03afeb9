"""The time that a line of a log says, as Unix time."""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ....schemas.errors import InvalidInputError

# ISO 8601 and what Python's logging makes of it; with a zone where a container's log puts one.
_STAMP = re.compile(
    rb"(\d{4}[-/]\d\d[-/]\d\d[T ](?:[01]\d|2[0-3]):[0-5]\d):([0-5]\d|60)(?:[.,](\d{1,9}))?\s?"
    rb"(Z\b|UTC\b|[+-](?:0\d|1[0-4]):?[0-5]\d\b(?!:))?"  # no zone is further off than 14 hours
)
# glog's, as torch and torchrun write it: `[E1206 18:44:12.715298746 …`, or `[E321 02:07:08.…` for the 21st of March.
_GLOG = re.compile(rb"[IWEF](\d{1,2})(\d\d) (\d\d):([0-5]\d):([0-5]\d)\.(\d{1,9})\b")
_AT_THE_BEGINNING = 160  # bytes of a line in which a stamp is looked for: beyond them stands what the line tells of
_UNKNOWN_YEAR_S = 961_977_600.0  # the middle of 2000
_JITTER_S = 60.0  # lines of several processes come in no strict order


def zone_of(name: str) -> tzinfo:
    """A time zone by its name.

    Raises:
        InvalidInputError: this system knows none of that name.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInputError(
            f"no time zone is named {name}", where="--timezone", fix="give one such as Europe/Berlin, or UTC"
        ) from None


class LineClock:
    """Reads the time of lines of one log.

    Stamps without a zone are taken as of `zone`; where it sets its clocks back, the hour that comes twice is told apart
    by the stamps before. glog's stamps have no year: it is that of the stamp before, or of the first one that follows
    (`look_ahead`), or else 2000, so that what lies between them is right (`has_guessed_year`).

    Args:
        zone: of stamps that name none.
    """

    def __init__(self, zone: tzinfo = UTC) -> None:
        self._zone = zone
        self._last_s: float | None = None
        self._near_s = _UNKNOWN_YEAR_S  # of glog's stamps
        self.has_guessed_year = False

    def look_ahead(self, text: bytes) -> float | None:
        """The first time in what follows, from which the year is learned that other stamps lack."""
        for match in _STAMP.finditer(text):
            time_s = self._time_s(match)
            if time_s is not None:
                if self._last_s is None:
                    self._near_s = time_s
                return time_s
        return None

    def of(self, line: bytes, anywhere: bool = False) -> float | None:
        """The first time that a line says.

        Args:
            line: without its colours.
            anywhere: look further than its beginning.
        """
        # Docker's JSON lines have their stamp at the end.
        match = _STAMP.search(line, 0, len(line) if anywhere or line[:1] == b"{" else _AT_THE_BEGINNING)
        if match is None:
            return self._glog(line)
        time_s = self._time_s(match)
        if time_s is not None:
            self._last_s = self._near_s = time_s
        return time_s

    def _time_s(self, match: re.Match[bytes]) -> float | None:
        minute, second, fraction, zone = match.groups()
        minute_s = _minute_s(minute)
        if minute_s is None:
            return None
        time_s: float = minute_s + int(second)
        if fraction:
            time_s += int(fraction) / 10 ** len(fraction)
        if zone:
            return time_s - _offset_s(zone)
        return time_s if self._zone is UTC else self._local(time_s)

    def _glog(self, line: bytes) -> float | None:
        match = _GLOG.search(line, 0, _AT_THE_BEGINNING)
        if match is None:
            return None
        month, day, hour, minute, second = (int(part) for part in match.groups()[:5])
        self.has_guessed_year = self.has_guessed_year or self._near_s == _UNKNOWN_YEAR_S
        before = datetime.fromtimestamp(self._near_s, UTC)
        try:
            years = [datetime(before.year + more, month, day, hour, minute, second, tzinfo=UTC) for more in (-1, 0, 1)]
        except ValueError:
            return None
        nearest = min(years, key=lambda stamp: abs(stamp - before))
        time_s = nearest.timestamp() + int(match[6]) / 10 ** len(match[6])
        self._near_s = time_s
        self._last_s = time_s if self._zone is UTC else self._local(time_s)
        return self._last_s

    def _local(self, time_s: float) -> float:
        """Of what a clock of the zone shows, counted as if it were UTC's."""
        shown = datetime.fromtimestamp(time_s, UTC).replace(tzinfo=self._zone)
        ahead = [shown.replace(fold=fold).utcoffset() or timedelta() for fold in (0, 1)]
        first_s, second_s = (time_s - one.total_seconds() for one in ahead)
        is_second = self._last_s is not None and first_s < self._last_s - _JITTER_S <= second_s
        return second_s if is_second else first_s


@lru_cache(maxsize=4096)
def _minute_s(text: bytes) -> int | None:
    """The Unix time at which a minute begins, in UTC; None where there is no such day."""
    try:
        day = datetime(int(text[:4]), int(text[5:7]), int(text[8:10]), tzinfo=UTC)
    except ValueError:
        return None
    return int(day.timestamp()) + 3600 * int(text[11:13]) + 60 * int(text[14:16])


@lru_cache(maxsize=64)
def _offset_s(zone: bytes) -> int:
    if zone in (b"Z", b"UTC"):
        return 0
    seconds = 3600 * int(zone[1:3]) + 60 * int(zone[-2:])
    return -seconds if zone.startswith(b"-") else seconds


def unix_time(text: bytes, clock: LineClock) -> float | None:
    """A time that is a stamp, or a count of seconds since 1970."""
    try:
        seconds = float(text)
    except ValueError:
        return clock.of(text, anywhere=True)
    return seconds if 0 < seconds < 1e11 else None
