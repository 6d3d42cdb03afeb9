"""Rows out of files of tokens, and the files that are refused."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.runners.torch.data.tokens import Tokens
from rtk.schemas.errors import InvalidInputError


def write_megatron(base: Path, documents: list[list[int]], dtype: str = "uint16", version: int = 1) -> Path:
    """The two files as megatron-core 0.16.1's IndexedDatasetBuilder writes them, a sequence a document."""
    code = {"uint8": 1, "int32": 4, "int64": 5, "float32": 7, "uint16": 8}[dtype]
    lengths = [len(one) for one in documents]
    np.array([token for one in documents for token in one], dtype=dtype).tofile(f"{base}.bin")
    offsets = np.cumsum([0, *lengths])[:-1] * np.dtype(dtype).itemsize
    with Path(f"{base}.idx").open("wb") as stream:
        stream.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", version, code, len(lengths), len(lengths) + 1))
        stream.write(np.array(lengths, "<i4").tobytes() + offsets.astype("<i8").tobytes())
        stream.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())
    return Path(f"{base}.idx")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(2, 90), min_size=1, max_size=4),
    st.integers(1, 9),
    st.sampled_from(["uint8", "uint16", "int32", "int64", ">u2"]),
    st.sampled_from([".bin", ".npy", ".idx"]),
)
def test_rows_are_the_stream(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], length: int, dtype: str, ending: str
) -> None:
    """Every row has the tokens that stand there, and its targets are one further; files follow one another."""
    if ending == ".idx" and dtype == ">u2":
        dtype = "uint16"
    folder, wanted, paths = tmp_path_factory.mktemp("tokens"), [], []
    for number, size in enumerate(sizes):
        values = (np.arange(size) + 50 * number) % 250
        path = folder / f"{number}{ending}"
        if ending == ".idx":
            write_megatron(path.with_suffix(""), [values[:1].tolist(), values[1:].tolist()], dtype)
        elif ending == ".npy":
            np.save(path, values.astype(dtype))
        else:
            values.astype(dtype).tofile(path)
        paths.append(path)
        wanted += [values[first : first + length + 1] for first in range(0, size - length, length)]
    if not wanted:
        with pytest.raises(InvalidInputError, match="shorter than one row"):
            Tokens(paths, dtype, sequence_length=length)
        return
    rows = Tokens(paths, dtype if ending == ".bin" else None, sequence_length=length)
    assert len(rows) == len(wanted)
    for row, tokens in enumerate(wanted):
        inputs, targets = rows[row]
        assert (inputs.tolist(), targets.tolist()) == (tokens[:-1].tolist(), tokens[1:].tolist())
    assert inputs.dtype == torch.int64
    assert [one[0].tolist() for one in rows.__getitems__([0, len(rows) - 1])] == [rows[0][0].tolist(), inputs.tolist()]
    with pytest.raises(IndexError):
        rows[len(rows)]


def test_megatrons_names(tmp_path: Path) -> None:
    """The `.idx`, the `.bin` beside it and the name without either mean the same two files."""
    index = write_megatron(tmp_path / "mine", [[1, 2, 3], [4, 5]])
    for name in (index, index.with_suffix(".bin"), index.with_suffix("")):
        assert Tokens(name, sequence_length=2)[1][0].tolist() == [3, 4]


def _change(path: Path, offset: int, content: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[offset : offset + len(content)] = content
    path.write_bytes(bytes(whole))


def test_wrong_indices_are_refused(tmp_path: Path) -> None:
    """Another version, another file, another length, no `.bin`: each is told."""
    index = write_megatron(tmp_path / "mine", [[1, 2, 3], [4, 5]])
    whole, tokens = index.read_bytes(), index.with_suffix(".bin").read_bytes()
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: _change(index, 9, struct.pack("<Q", 2)), "version 2"),
        (lambda: _change(index, 0, b"HELLO"), "does not begin with MMIDIDX"),
        (lambda: _change(index, 17, b"\x63"), "type 99"),
        (lambda: _change(index, 17, b"\x07"), "cannot be float32"),
        (lambda: index.write_bytes(whole[:-3]), "not those of 2 sequences"),
        (lambda: _change(index, 34, struct.pack("<i", 9)), "the index counts 22"),
        (lambda: _change(index, 42, struct.pack("<q", 2)), "one after the other"),
        (lambda: index.with_suffix(".bin").unlink(), r"mine\.bin, which has the tokens, is not beside"),
    ]
    for damage, said in cases:
        index.write_bytes(whole)
        index.with_suffix(".bin").write_bytes(tokens)
        damage()
        with pytest.raises(InvalidInputError, match=said) as raised:
            Tokens(index, sequence_length=2)
        assert raised.value.fix and raised.value.where
    with pytest.raises(InvalidInputError, match="No such file"):
        Tokens(tmp_path / "none.idx", sequence_length=2)


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    """A `.bin` of half a token, of no type or of none that is a token; arrays of other shapes and types."""
    (tmp_path / "odd.bin").write_bytes(b"12345")
    np.save(tmp_path / "square.npy", np.zeros((3, 3), int))
    np.save(tmp_path / "reals.npy", np.zeros(9))
    np.save(tmp_path / "whole.npy", np.zeros(9, "u2"))
    (tmp_path / "text.npy").write_text("hello")
    cases = [
        ("odd.bin", "uint16", "5 bytes, which are no whole number of uint16"),
        ("odd.bin", None, "does not say of which type"),
        ("odd.bin", "float32", "tokens cannot be float32"),
        ("odd.bin", "uint17", "tokens cannot be uint17"),
        ("square.npy", None, r"shape \[3, 3\]"),
        ("reals.npy", None, "cannot be float64"),
        ("whole.npy", "int32", "the tokens are uint16, not int32"),
        ("text.npy", None, "no array of numpy's"),
        ("none.bin", "uint16", "No such file"),
        (".", "uint16", "it is a folder"),
    ]
    for name, dtype, said in cases:
        with pytest.raises(InvalidInputError, match=said):
            Tokens(tmp_path / name, dtype, sequence_length=2)
    with pytest.raises(InvalidInputError, match="no file of tokens"):
        Tokens([], "uint16", sequence_length=2)
    with pytest.raises(InvalidInputError, match="a row of 0 tokens"):
        Tokens(tmp_path / "whole.npy", sequence_length=0)


def test_a_file_that_shrinks_is_an_error_with_a_name(tmp_path: Path) -> None:
    """Rows that were cut off are told, those before are read; a file that is replaced stays what it was."""
    path = tmp_path / "t.bin"
    np.arange(100, dtype="u2").tofile(path)
    rows, replaced = (Tokens(path, "uint16", sequence_length=9) for _ in range(2))
    _ = rows[0]
    os.truncate(path, 60)
    assert rows[1][0][0] == 9
    with pytest.raises(InvalidInputError, match="has 60 bytes: it has become shorter"):
        _ = rows[10]
    np.arange(100, 200, dtype="u2").tofile(tmp_path / "u.bin")
    (tmp_path / "u.bin").replace(path)
    assert rows[1][0][0] == 9
    assert replaced[1][0][0] == 109


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**20 - 1))
def test_a_fingerprint_sees_other_tokens(tmp_path_factory: pytest.TempPathFactory, place: int) -> None:
    """All of a small file counts; of a large one its ends, what lies between now and then, and its size."""
    path = tmp_path_factory.mktemp("tokens") / "t.bin"
    values = np.zeros(2**20, dtype="u1")
    values.tofile(path)
    before = Tokens(path, "uint8", sequence_length=9).fingerprint()
    values[place] = 1
    values.tofile(path)
    assert Tokens(path, "uint8", sequence_length=9).fingerprint() != before
    assert before["t.bin"]["dtype"] == "uint8"
    np.zeros(2**20 + 1, dtype="u1").tofile(path)
    assert Tokens(path, "uint8", sequence_length=9).fingerprint() != before
