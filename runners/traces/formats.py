"""The formats of traces, and how a file is recognised by its first line."""

import re
from enum import StrEnum
from pathlib import PurePath

from ...schemas.errors import InvalidInputError
from ...schemas.text import did_you_mean
from .lines import Source


class Format(StrEnum):
    """What a trace may be read as."""

    RTK = "rtk"
    SPOT = "spot"
    PARCAE = "parcae"
    SAMPLES = "samples"
    COUNTS_MS = "counts-ms"
    COUNTS_S = "counts-s"
    COUNTS_H = "counts-h"
    FAULTS = "faults"


UNITS_S = {Format.COUNTS_MS: 1e-3, Format.COUNTS_S: 1.0, Format.COUNTS_H: 3600.0}

_NUMBER = r"\s*-?\d+(\.\d+)?\s*"
_LOOKS = {
    Format.RTK: re.compile(r'\{.*|(?=.*\bkind\b)[\w"]+(\s*,\s*[\w"]+)+'),
    Format.PARCAE: re.compile(rf'\[{_NUMBER},\s*".*'),
    Format.FAULTS: re.compile(r"\[\s*(\{.*|\])?"),
    Format.SAMPLES: re.compile(r"\d{4}-\d\d-\d\d\s*,.*"),
    Format.SPOT: re.compile(rf"{_NUMBER},[^,]*,[^,]*"),
}
_COUNTS = re.compile(f"{_NUMBER},{_NUMBER}")
# Files that everybody has by these names, and whose unit stands in no line: Bamboo's figures and Parcae's P3 trace.
_NAMED = {
    "aws-spot-instances-p2-": Format.COUNTS_H,
    "aws-spot-instances-g4dn-": Format.COUNTS_S,
    "p3.csv": Format.COUNTS_MS,
}


def named(name: str) -> Format:
    """The format of a name; raises InvalidInputError with a suggestion where there is none."""
    try:
        return Format(name)
    except ValueError:
        fix = did_you_mean(name, Format, f"the formats are {', '.join(Format)}")
        raise InvalidInputError(f"traces have no format {name!r}", where="--trace-format", fix=fix) from None


def recognised(source: Source) -> Format:
    """The format of a file.

    Raises:
        InvalidInputError: it is empty, or none of these; or counts, in nobody knows which unit of time.
    """
    head = source.head
    if not head:
        raise InvalidInputError("the trace is empty", where=source.name, fix="give one with at least one event")
    found = next((kind for kind, looks in _LOOKS.items() if looks.fullmatch(head)), None)
    if found is not None:
        return found
    if _COUNTS.fullmatch(head) is None:
        raise InvalidInputError(
            f"a trace does not begin with {head[:60]!r}",
            where=source.at_line(1),
            fix=f"say its --trace-format: {', '.join(Format)}",
        )
    name = PurePath(source.name).name
    by_name = next((kind for start, kind in _NAMED.items() if name.startswith(start)), None)
    if by_name is None:
        raise InvalidInputError(
            "these are counts over time, and the unit of time is not said",
            where=source.name,
            fix="say --trace-format counts-ms, counts-s or counts-h",
        )
    return by_name
