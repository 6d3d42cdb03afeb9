"""A stream of bytes, cut into lines of limited length."""

from collections.abc import Iterator

from ...schemas.errors import InvalidInputError


class Lines:
    """Bytes in, lines out.

    Args:
        limit_bytes: the longest line to accept; may be changed between lines.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._searched = 0  # so that a long line that comes in many pieces is searched once

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that `data` completes, without their ends.

        Raises:
            InvalidInputError: a line, complete or not, is longer than the limit.
        """
        self._buffer += data
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            self._check(end)
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            yield line
        self._searched = len(self._buffer)
        self._check(self._searched)

    def _check(self, length: int) -> None:
        if length > self.limit_bytes:
            raise InvalidInputError(f"a line of more than {self.limit_bytes} bytes")
