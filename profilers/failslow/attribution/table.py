"""A table of single operations, read from Parquet or CSV and checked; nothing of it is interpreted yet."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from ....schemas.errors import InvalidInputError, installing
from ....schemas.files import BOUND, opened

PARQUET_MAGIC = b"PAR1"
NUMBER_BYTES = 8

# As in the tables that ByteDance's StragglerAnalysis published.
WHOLE = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")
TIMES = ("start_ts", "duration")
COLUMNS = (*WHOLE, *TIMES, "optype")
MAY_BE_NONE = ("mc", "mb_id", "gmc")  # -1 where an operation belongs to no micro-batch or chunk

Whole = NDArray[np.int64]
Times = NDArray[np.float64]
Raw = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The columns, one value a row.

    Attributes:
        whole: the columns of whole numbers, by name.
        kind: the operation's kind, as a place in `KNOWN`.
        start_s: when it started; only differences within a step matter.
        duration_s: how long it took, waiting included.
    """

    whole: dict[str, Whole]
    kind: Whole
    start_s: Times
    duration_s: Times


def looks_like_one(path: Path) -> bool:
    """Whether a file is a Parquet file, or a CSV file (or .gz of one) with a column `optype`.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(4) == PARQUET_MAGIC:
            return True
    try:
        with _opened(path) as text:
            return "optype" in [name.strip() for name in text.readline(4096).split(",")]
    except (UnicodeDecodeError, InvalidInputError):
        return False


def read_table(path: Path) -> Table:
    """Read and check a table.

    Args:
        path: a Parquet file, CSV, or gzipped CSV, with the `COLUMNS`.

    Raises:
        InvalidInputError: it is damaged or empty, lacks a column, or has a value that cannot be; or it is Parquet and
            pyarrow is not installed.
    """
    with path.open("rb") as file:
        is_parquet = file.read(4) == PARQUET_MAGIC
    raw = (_read_parquet if is_parquet else _read_csv)(path)
    where = str(path)
    missing = [name for name in COLUMNS if name not in raw]
    if missing:
        raise InvalidInputError(
            f"the table of operations has no column {', '.join(missing)}",
            where=where,
            fix=f"give it the columns {', '.join(COLUMNS)}",
        )
    if not len(raw["optype"]):
        raise InvalidInputError("the table of operations has no rows", where=where, fix="record at least one step")
    whole = {name: _whole(raw[name], name, where) for name in WHOLE}
    start_s, duration_s = (_converted(raw[name], name, where) for name in TIMES)
    for name, times in zip(TIMES, (start_s, duration_s), strict=True):
        _refuse(~(np.abs(times) < 1e15), times, name, where, "give seconds")
    _refuse(duration_s < 0, duration_s, "duration", where, "an operation cannot take less than no time")
    names, places = np.unique(raw["optype"].astype(str), return_inverse=True)
    for place, name in enumerate(names):
        if name not in KNOWN:
            row = int(np.flatnonzero(places == place)[0])
            raise _bad_value("optype", name, row, where, f"known are {', '.join(KNOWN)}")
    known: Whole = np.array([KNOWN.index(name) for name in names], dtype=np.int64)[places]
    return Table(whole, known, start_s, duration_s)


def _read_parquet(path: Path) -> Raw:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise InvalidInputError(
            "reading Parquet needs pyarrow, which is not installed",
            where=str(path),
            fix=f"{installing('parquet')}, or give the table as CSV",
        ) from None
    try:
        file = parquet.ParquetFile(path)
        there = [name for name in COLUMNS if name in file.schema_arrow.names]
        # Equal values pack without end: as with other files, the bound is on what they unpack to.
        values = file.metadata.num_rows * len(there)
        if values * NUMBER_BYTES > BOUND.most_bytes:
            raise InvalidInputError(
                f"the table has {values:,} values, which unpack to more than {BOUND.most_bytes:,.0f} bytes",
                where=str(path),
                fix="give fewer steps, or if you trust it allow more: rtk --max-input 4GiB …",
            )
        table = file.read(columns=there)
    except (arrow.ArrowException, OSError) as error:
        raise InvalidInputError(
            f"the Parquet file cannot be read: {error}", where=str(path), fix="write it again"
        ) from None
    return {name: table[name].to_numpy(zero_copy_only=False) for name in there}


def _read_csv(path: Path) -> Raw:
    rows: list[list[str]] = []
    try:
        with _opened(path) as text:
            reader = csv.reader(text, strict=True)
            for row in filter(None, reader):
                if rows and len(row) != len(rows[0]):
                    raise InvalidInputError(
                        f"a row has {len(row)} values, the header {len(rows[0])}",
                        where=f"{path}:{reader.line_num}",
                        fix="it may have been cut off: leave the row out",
                    )
                rows.append(row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError(f"the table cannot be read: {error}", where=str(path), fix="write it again") from None
    if not rows:
        raise InvalidInputError("the file is empty", where=str(path), fix="record at least one step")
    columns = list(zip(*rows[1:], strict=True)) if len(rows) > 1 else [()] * len(rows[0])
    return {name.strip(): np.array(column, dtype=str) for name, column in zip(rows[0], columns, strict=True)}


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    with opened(str(path)) as stream:
        yield TextIOWrapper(stream, encoding="utf-8", newline="")


def _whole(column: NDArray[Any], name: str, where: str) -> Whole:
    numbers = _converted(column, name, where)
    if name in MAY_BE_NONE:
        numbers = np.where(np.isnan(numbers), -1, numbers)
    least = -1 if name in MAY_BE_NONE else 0
    is_one = (numbers >= least) & (numbers < 1e9) & (numbers == np.floor(numbers))
    _refuse(~is_one, numbers, name, where, f"give whole numbers from {least} on")
    return numbers.astype(np.int64)


def _converted(column: NDArray[Any], name: str, where: str) -> Times:
    if column.dtype.kind in "mM":
        raise _bad_value(name, column[0], 0, where, "give a number of seconds, not a date or a time of day")
    try:
        return column.astype(np.float64)
    except (TypeError, ValueError):
        for row, value in enumerate(column):
            try:
                float(value)
            except (TypeError, ValueError):
                raise _bad_value(name, value, row, where, "give a number") from None
        raise


def _refuse(is_bad: NDArray[np.bool_], column: Times, name: str, where: str, fix: str) -> None:
    if is_bad.any():
        row = int(np.flatnonzero(is_bad)[0])
        raise _bad_value(name, float(column[row]), row, where, fix)


def _bad_value(name: str, value: object, row: int, where: str, fix: str) -> InvalidInputError:
    return InvalidInputError(f"{name} is {value}", where=f"{where}, row {row + 1}", fix=fix)


# The kinds of operations that a table may have, by what they wait for, and what is usual of them.


FORWARD = "forward-compute"
BACKWARD = "backward-compute"
COMPUTE = (FORWARD, BACKWARD)

FORWARD_SEND, FORWARD_RECV = "forward-send", "forward-recv"
BACKWARD_SEND, BACKWARD_RECV = "backward-send", "backward-recv"
MESSAGES = (FORWARD_SEND, FORWARD_RECV, BACKWARD_SEND, BACKWARD_RECV)

PARAMETERS = "params-all-gather"
GRADIENTS = "grads-reduce-scatter"
SEPARATE_GRADIENTS = "separate-grads-all-reduce"
EMBEDDING = "embedding-grads-all-reduce"
LAYERNORM = "layernorm-grads-all-reduce"
CLIP = "optimizer-clip-main-grad"
OPTIMIZER = "optimizer"
COLLECTION = "gc"

# Data-parallel peers start these together; a stage's own (but for `CLIP`, in which all stages meet).
AMONG_PEERS = (PARAMETERS, GRADIENTS, SEPARATE_GRADIENTS, CLIP)
# They wait for somebody, so only the time from the last one's start on is theirs.
WAITING = (*MESSAGES, *AMONG_PEERS, EMBEDDING)
# Communication, of which the median is usual: a few waits are very long. Of computation, the mean is.
COMMUNICATION = (*WAITING, LAYERNORM)

KNOWN = (*COMPUTE, *COMMUNICATION, OPTIMIZER, COLLECTION)
