"""One bound on what files unpack to: what is within is read as it stands, what is beyond is refused by name."""

import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.errors import InvalidInputError
from rtk.schemas.streams import CHUNK_BYTES, MOST_BLANK_BYTES, InputBound, bounded


def stream_of(data: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(data))


@given(st.binary(max_size=300), st.integers(0, 300), st.booleans(), st.integers(1, 50))
def test_a_file_is_read_whole_or_refused(data: bytes, most: int, is_packed: bool, step: int) -> None:
    """Whatever the steps it is read in: as many bytes as the bound admits are read, one more is an error."""
    data = b"." + data  # not what gzip begins with
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rtk.schemas.streams.BOUND", InputBound(most))
        stream = bounded(stream_of(gzip.compress(data) if is_packed else data), "a file", is_gzip=None)
        read = b""
        try:
            while part := stream.read(step):
                read += part
        except InvalidInputError as error:
            assert len(data) > most
            assert error.where == "a file"
            assert "--max-input" in str(error)
        else:
            assert read == data
            assert len(data) <= most


@pytest.mark.parametrize("blank", [b" ", b"\n", b"\r\n", b"\t"])
def test_white_space_without_end_is_refused_at_once(blank: bytes) -> None:
    """A mebibyte of it in a row packs to a kilobyte: it is refused where it begins, after about as much again."""
    packed = gzip.compress(b"1\n" * CHUNK_BYTES + blank * (64 << 20), 1)
    lines = 0
    with pytest.raises(InvalidInputError, match="white space") as caught:
        for _ in bounded(stream_of(packed), "log.gz", is_gzip=True):
            lines += 1
    assert caught.value.where == f"log.gz, byte {2 * CHUNK_BYTES}"
    assert lines <= CHUNK_BYTES + MOST_BLANK_BYTES + CHUNK_BYTES


def test_a_log_that_is_followed_has_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read line by line, for as long as it grows."""
    monkeypatch.setattr("rtk.schemas.streams.BOUND", InputBound(10))
    assert len(bounded(stream_of(b"1\n" * 100), "log", is_gzip=None, is_endless=True).readlines()) == 100
