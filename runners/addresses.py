"""host:port and [IPv6 address]:port, in text and as a pair."""

import re

from ..schemas.errors import InvalidInputError

LOOPBACK = "127.0.0.1"

# An IPv6 address has colons of its own, so it stands in brackets.
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[^\[\]\s]+)?)\]|(?P<name>[^:\[\]\s/]+)):(?P<port>[0-9]{1,5})")


def parse_address(text: str, *, where: str | None = None) -> tuple[str, int]:
    """The host, without brackets, and the port.

    Args:
        text: such as `127.0.0.1:29500`, `node3:29500` or `[::1]:29500`.
        where: the option or file it comes from, for the error.

    Raises:
        InvalidInputError: the text is no such thing, or the port is not in 1..65535.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise InvalidInputError(
            f"{text!a} is no address", where=where, fix="write host:port, an IPv6 address as [::1]:port"
        )
    return match["v6"] or match["name"], int(match["port"])


def parse_listening(text: str, *, where: str | None = None) -> tuple[str, int]:
    """Host and port to listen at: loopback where only a port is given; port 0 is any free one.

    Raises:
        InvalidInputError: as `parse_address`.
    """
    if text.isascii() and text.isdecimal():
        text = f"{LOOPBACK}:{text}"
    host, colon, port = text.rpartition(":")
    if colon and port == "0":
        return parse_address(f"{host}:1", where=where)[0], 0
    return parse_address(text, where=where)


def format_address(host: str, port: int) -> str:
    """The text that `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
