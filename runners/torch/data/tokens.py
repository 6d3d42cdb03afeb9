"""Rows of tokens out of files: raw, numpy's, or Megatron's.

Files are read piece by piece (pread), never mapped: one that shrinks under a run is an error with a name, not SIGBUS.
"""

import os
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ....schemas.errors import InvalidInputError
from .corpus import unreadable
from .fingerprints import digest_of_bytes, digest_of_parts

Row = tuple[torch.Tensor, torch.Tensor]


class TokenRows:
    """Rows that follow one another in streams of tokens; a map-style dataset.

    Row r of a stream takes the tokens [r L, (r + 1) L]: L inputs, and as targets the tokens that follow each. The next
    row begins with the last target, so every token but a stream's first is a target once, and fewer than L tokens at a
    stream's end are left out. Rows do not cross from one stream into the next.

    Args:
        streams: what is read, in order.
        sequence_length: L, tokens a row.

    Raises:
        InvalidInputError: no stream has a whole row.
    """

    def __init__(self, streams: "Sequence[TokenFile | TokenArray]", sequence_length: int) -> None:
        if sequence_length < 1:
            raise InvalidInputError(
                f"a row of {sequence_length} tokens cannot be", where="sequence_length", fix="1 or more"
            )
        self.streams = tuple(streams)
        self.sequence_length = sequence_length
        rows = [max(0, stream.tokens - 1) // sequence_length for stream in streams]
        self._firsts = np.cumsum([0, *rows])
        if not len(self):
            raise InvalidInputError(
                f"{sum(stream.tokens for stream in streams)} tokens are shorter than one row of {sequence_length + 1}",
                where=self.name,
                fix="give more data, or a smaller sequence length",
            )

    @property
    def name(self) -> str:
        """The names of the streams."""
        return ", ".join(stream.name for stream in self.streams)

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def __getitem__(self, row: int) -> Row:
        """(inputs, targets), each L tokens of int64."""
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Row]:
        """Several rows; torch's DataLoader asks datasets that have this for a batch at once."""
        length = self.sequence_length
        tokens = np.empty((len(rows), length + 1), dtype=np.int64)
        for place, row in enumerate(rows):
            stream, start = self._place_of(row)
            tokens[place] = stream.read(start, length + 1)
        return [(one[:-1], one[1:]) for one in torch.from_numpy(tokens)]

    def where(self, row: int, place: int) -> str:
        """Where a row's token is."""
        stream, start = self._place_of(row)
        return f"{stream.name}, token {start + place}"

    def fingerprint(self) -> dict[str, Any]:
        """Type, length and a digest of some tokens of every stream, by the file's name without its folder."""
        return {Path(stream.name).name: stream.fingerprint() for stream in self.streams}

    def _place_of(self, row: int) -> "tuple[TokenFile | TokenArray, int]":
        """The stream of a row, and the place of its first token there."""
        if not 0 <= row < len(self):
            raise IndexError(f"there are {len(self)} rows")
        number = int(np.searchsorted(self._firsts, row, side="right")) - 1
        return self.streams[number], (row - int(self._firsts[number])) * self.sequence_length


class Tokens(TokenRows):
    """Rows of tokens out of files: `.bin` of a type, `.npy` of one dimension, or Megatron's `.bin` with its `.idx`.

    Megatron's documents are taken as they stand in the file, one after the other, and a row may hold the end of one and
    the beginning of the next, as in its GPTDataset; documents are not shuffled there, for rows are.

    Args:
        path: a file, or several; Megatron's by its `.idx`, its `.bin`, or the name without either.
        dtype: of a `.bin` without an index, such as "uint16"; of the others it must be what they say.
        sequence_length: tokens a row.

    Raises:
        InvalidInputError: a file cannot be read, is not what its name says, or is shorter than one row.
    """

    def __init__(
        self, path: str | Path | Sequence[str | Path], dtype: str | None = None, *, sequence_length: int
    ) -> None:
        paths = [path] if isinstance(path, str | Path) else [*path]
        if not paths:
            raise InvalidInputError("there is no file of tokens", where="path", fix="name one, or several")
        wanted = None if dtype is None else _token_type(dtype)
        super().__init__([_opened(Path(one), wanted) for one in paths], sequence_length)


@dataclass(frozen=True, eq=False)
class TokenFile:
    """A stream of tokens in a file.

    Attributes:
        path: of the file.
        dtype: of a token.
        offset: of the first token, in bytes.
        tokens: how many there are.
        index: a digest of what else says how the file is to be read; empty: nothing does.
    """

    path: Path
    dtype: np.dtype[Any]
    offset: int
    tokens: int
    index: str = ""

    @property
    def name(self) -> str:
        """The file's."""
        return str(self.path)

    def read(self, start: int, count: int) -> NDArray[Any]:
        """The tokens [start, start + count).

        Raises:
            InvalidInputError: the file cannot be read, or is shorter than it was.
        """
        size = self.dtype.itemsize
        return np.frombuffer(self._bytes(self.offset + start * size, count * size), dtype=self.dtype)

    def fingerprint(self) -> dict[str, Any]:
        """Type, length and a digest of some bytes."""
        size = self.offset + self.tokens * self.dtype.itemsize
        told = {"dtype": self.dtype.name, "tokens": self.tokens, "sample": digest_of_parts(size, self._bytes)}
        return told | ({"index": self.index} if self.index else {})

    @cached_property
    def _descriptor(self) -> int:
        """Open for as long as this is there: a file that is replaced stays what it was."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise unreadable(self.path, error) from error
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    def _bytes(self, offset: int, length: int) -> bytes:
        try:
            found = os.pread(self._descriptor, length, offset)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if len(found) < length:
            raise InvalidInputError(
                f"the file has {os.fstat(self._descriptor).st_size} bytes: it has become shorter since it was opened",
                where=self.name,
                fix="leave the data as they are while they are trained on",
            )
        return found


@dataclass(frozen=True, eq=False)
class TokenArray:
    """A stream of tokens in memory.

    Attributes:
        name: where they come from.
        values: the tokens.
    """

    name: str
    values: NDArray[Any]

    @property
    def tokens(self) -> int:
        """How many there are."""
        return len(self.values)

    def read(self, start: int, count: int) -> NDArray[Any]:
        """The tokens [start, start + count)."""
        return self.values[start : start + count]

    def fingerprint(self) -> dict[str, Any]:
        """Length and a digest of some tokens."""
        return {"tokens": self.tokens, "sample": digest_of_bytes(self.values)}


def megatron_parts(path: Path) -> tuple[Path, Path] | None:
    """The `.bin` and the `.idx` that a name of either, or without ending, means; None where there is no `.idx`."""
    base = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    data, index = Path(f"{base}.bin"), Path(f"{base}.idx")
    return (data, index) if index.exists() or path.suffix == ".idx" else None


def _opened(path: Path, wanted: "np.dtype[Any] | None") -> TokenFile:
    parts = megatron_parts(path)
    if parts is not None:
        found = _opened_megatron(*parts)
    elif path.suffix == ".npy":
        found = _opened_npy(path)
    elif wanted is None:
        raise InvalidInputError(
            "a .bin does not say of which type its tokens are", where=str(path), fix='say it, as in dtype="uint16"'
        )
    else:
        size = _size_of(path)
        if size % wanted.itemsize:
            raise InvalidInputError(
                f"the file has {size} bytes, which are no whole number of {wanted.name} of {wanted.itemsize} bytes",
                where=str(path),
                fix="see whether the file is whole, and its dtype right",
            )
        return TokenFile(path, wanted, 0, size // wanted.itemsize)
    if wanted is not None and wanted != found.dtype:
        raise InvalidInputError(
            f"the tokens are {found.dtype.name}, not {wanted.name}", where=str(path), fix="leave the dtype out"
        )
    return found


def _opened_npy(path: Path) -> TokenFile:
    _size_of(path)
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(found, np.memmap):
            raise ValueError("it holds no array")
    except (ValueError, OSError, EOFError) as error:
        raise InvalidInputError(
            f"this is no array of numpy's: {error}", where=str(path), fix="write it with numpy.save"
        ) from error
    if found.ndim != 1:
        raise InvalidInputError(
            f"the array has the shape {list(found.shape)}, not one dimension",
            where=str(path),
            fix="save the tokens as one stream: numpy.save(path, tokens.reshape(-1))",
        )
    return TokenFile(path, _token_type(found.dtype, str(path)), found.offset, len(found))


MEGATRON = b"MMIDIDX\x00\x00"
# Codes of types in an .idx; floating-point ones are no tokens (megatron-core, core/datasets/indexed_dataset.py: DType).
MEGATRON_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
MEGATRON_HEADER = struct.Struct("<9sQBQQ")


def _opened_megatron(path: Path, index: Path) -> TokenFile:
    """Megatron's IndexedDataset: header `MMIDIDX\\0\\0`, version 1, the type's code, how many sequences and ends of
    documents there are; then lengths (int32), offsets in bytes (int64) and documents' ends (int64), all little-endian.
    (megatron-core 0.16.1, core/datasets/indexed_dataset.py: _IndexWriter.)
    """
    try:
        told = index.read_bytes()
    except OSError as error:
        raise unreadable(index, error) from error
    if len(told) < MEGATRON_HEADER.size or not told.startswith(MEGATRON):
        raise InvalidInputError(
            "this is no index of Megatron's: it does not begin with MMIDIDX", where=str(index), fix="write it again"
        )
    _, version, code, sequences, ends = MEGATRON_HEADER.unpack_from(told)
    if version != 1:
        raise InvalidInputError(
            f"the index is of version {version}; version 1 is known",
            where=str(index),
            fix="write it with megatron-core",
        )
    if code not in MEGATRON_TYPES:
        raise InvalidInputError(
            f"the index names type {code}, which there is not", where=str(index), fix="write it again"
        )
    if not path.exists():
        raise InvalidInputError(
            f"{path.name}, which has the tokens, is not beside its index",
            where=str(index),
            fix="copy both files to the same folder",
        )
    dtype = _token_type(MEGATRON_TYPES[code], str(index))
    if len(told) != MEGATRON_HEADER.size + 12 * sequences + 8 * ends:
        raise InvalidInputError(
            f"the index has {len(told)} bytes, not those of {sequences} sequences and {ends} documents",
            where=str(index),
            fix="see whether the file is whole; an index of images (multimodal) cannot be read",
        )
    lengths = np.frombuffer(told, "<i4", sequences, MEGATRON_HEADER.size).astype(np.int64)
    offsets = np.frombuffer(told, "<i8", sequences, MEGATRON_HEADER.size + 4 * sequences)
    size, counted = _size_of(path), int(lengths.sum()) * dtype.itemsize
    follow = np.concatenate(([0], np.cumsum(lengths)[:-1])) * dtype.itemsize if sequences else offsets
    if size != counted or (lengths < 0).any() or not np.array_equal(offsets, follow):
        raise InvalidInputError(
            f"the file has {size} bytes, and the index counts {counted}"
            if size != counted
            else "the index does not name the file's sequences one after the other",
            where=str(path),
            fix=f"use the file that {index.name} was written with",
        )
    return TokenFile(path, dtype, 0, size // dtype.itemsize, digest_of_bytes(np.frombuffer(told, np.uint8)))


def _size_of(path: Path) -> int:
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error


def _token_type(name: "str | np.dtype[Any]", where: str = "dtype") -> "np.dtype[Any]":
    try:
        found = np.dtype(name)
    except TypeError:
        found = None
    if found is None or found.kind not in "iu":
        raise InvalidInputError(f"tokens cannot be {name}", where=where, fix="give integers, such as uint16 or int32")
    return found
