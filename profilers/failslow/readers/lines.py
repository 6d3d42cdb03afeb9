"""The text of a log's line: without colours, whose it is, and the numbers in it as people of any country write them."""

import re

LONGEST_BYTES = 8192  # of a line, what is looked at
NUMBER = rb"([-+]?(?:[0-9](?:[0-9.,]{0,30}[0-9])?\.?(?:[eE][-+]?[0-9]{1,4})?|nan|NaN|inf))"
COLOUR = re.compile(rb"\x1b\[[0-9;?]{0,32}[A-Za-z]")  # and what else moves a terminal's cursor: `grep` writes \\x1b[K
_RANK = re.compile(rb"\s*(?:\[(?:rank|default)(\d{1,9})\]:|(\d{1,9}):\s)")
_THOUSANDS = re.compile(rb"[-+]?\d{1,3}(?:,\d{3})+")


def plain(line: bytes) -> bytes:
    """The beginning of a line, without the colours of terminals."""
    line = line[:LONGEST_BYTES]
    return COLOUR.sub(b"", line) if b"\x1b" in line else line


def rank_of(line: bytes) -> str | None:
    """The rank that torchrun (`[rank0]:`, `[default0]:`) or srun (`0: `) puts before a line."""
    match = _RANK.match(line)
    return (match[1] or match[2]).decode() if match else None


def number_text(text: bytes) -> str:
    """A number as Python reads it.

    A comma divides off the decimals (`1.234,5`, `512,3`), or thousands where a point follows it (`1,234.5`), where
    there are several, or where three digits and nothing else follow it (`5,970`).
    """
    if b"," not in text:
        return text.decode()
    if text.rfind(b".") > text.rfind(b",") or _THOUSANDS.fullmatch(text):
        return text.replace(b",", b"").decode()
    return text.replace(b".", b"").replace(b",", b".").decode()


def number_in(pattern: re.Pattern[bytes], line: bytes) -> int | None:
    """The whole number that the pattern's group finds."""
    match = pattern.search(line)
    return int(match[1]) if match else None
