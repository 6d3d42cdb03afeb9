"""Which format a log has: as its first line says, or else by the first line that one of the known programs writes."""

from ....schemas.errors import InvalidInputError
from .logs import DlLogger, Megatron, MlPerf, NanoGpt, TorchTitan
from .reading import Reader, Reading
from .rows import Csv, JsonLines, Numbers, header_of, names_a_time

READERS: dict[str, type[Reader]] = {
    reader.NAME: reader for reader in (Csv, JsonLines, Numbers, Megatron, TorchTitan, NanoGpt, MlPerf, DlLogger)
}
_LOGS: tuple[type[Reader], ...] = (Megatron, TorchTitan, NanoGpt, MlPerf, DlLogger)


class Recognised:
    """A reader that finds out which format it reads, and then leaves the reading to that format's.

    Args:
        name: of the format, where it is known.
    """

    def __init__(self, name: str | None = None) -> None:
        self.reader: Reader | None = READERS[name]() if name is not None else None
        # All kinds of logs listen until one understands, for some remember what lines before have said.
        self._listening: list[Reader] = []

    def read(self, line: bytes) -> Reading | None:
        """What a line tells.

        Raises:
            InvalidInputError: the line breaks the format.
        """
        if self.reader is not None:
            return self.reader.read(line)
        if not self._listening:
            if not line.strip() or line.lstrip().startswith(b"#"):
                return None
            self.reader = _by_first_line(line)
            if self.reader is not None:
                return self.reader.read(line)
            self._listening = [kind() for kind in _LOGS]
        for reader in self._listening:
            reading = reader.read(line)
            if reading is not None:
                self.reader = reader
                return reading
        return None


def _by_first_line(line: bytes) -> Reader | None:
    """The format of rows with that first line; None: it is a log, or nothing known."""
    text = line.strip()
    if text.startswith(b"{"):
        return JsonLines()
    if _is_number(text):
        return Numbers()
    try:
        _, names = header_of(text.decode("utf-8"))
    except (InvalidInputError, UnicodeDecodeError):
        return None
    return Csv() if names_a_time(names) else None


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def unrecognised(source: str, lines: int) -> InvalidInputError:
    """The error for a file in which nothing known was found."""
    if not lines:
        return InvalidInputError("the file is empty", where=source, fix="give a log with iteration times in it")
    names = ", ".join(READERS)
    return InvalidInputError(
        "no line tells an iteration time in any known format",
        where=source,
        fix=f"known are {names}; rows need a column or key iter_s or iter_ms. --format NAME says which one it is",
    )
