"""What schedulers print: which of them a file is from, and how their times are written."""

import re
from datetime import UTC, datetime, tzinfo
from pathlib import Path

from ....schemas.files import STANDARD_STREAM, opened

_HEAD_BYTES = 1 << 13
_SACCT = re.compile(rb"\s*\{\s*\"(?:jobs|meta)\"\s*:.*", re.DOTALL)
_SACCT_TEXT = re.compile(rb"(?:\w+\|)*JobID(?:Raw)?\|[\w|]+\s*$", re.MULTILINE)
_EVENTS = re.compile(rb"\s*\{\s*\"(?:apiVersion|items|kind)\"\s*:.*", re.DOTALL)
_EVENTS_TEXT = re.compile(rb"(?:NAMESPACE\s+)?LAST SEEN\s+TYPE\s+REASON\s+OBJECT")


def kind_of_document(path: str) -> str | None:
    """Whether a file is what sacct or kubectl prints: "sacct", "kubernetes", or None.

    Raises:
        InvalidInputError: it cannot be read.
    """
    if path == STANDARD_STREAM or (Path(path).exists() and not Path(path).is_file()):
        return None
    with opened(path) as stream:
        head = stream.read1(_HEAD_BYTES)
    if _SACCT.match(head) or _SACCT_TEXT.match(head):
        return "sacct"
    if _EVENTS_TEXT.match(head) or (_EVENTS.match(head) and b'"items"' in head):
        return "kubernetes"
    return None


def stamp_s(text: str, zone: tzinfo = UTC) -> float | None:
    """A time in ISO 8601 as Unix time; None for what is none, such as sacct's "Unknown".

    Args:
        text: as it stands there.
        zone: where the text names none.
    """
    try:
        stamp = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (stamp if stamp.tzinfo else stamp.replace(tzinfo=zone)).timestamp()
