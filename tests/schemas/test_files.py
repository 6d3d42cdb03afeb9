"""One bound on what files unpack to, and JSON documents that are read part by part."""

import gzip
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.errors import InvalidInputError
from rtk.schemas.files import CHUNK_BYTES, MOST_BLANK_BYTES, InputBound, JsonStream, bounded


def stream_of(data: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(data))


@given(st.binary(max_size=300), st.integers(0, 300), st.booleans(), st.integers(1, 50))
def test_a_file_is_read_whole_or_refused(data: bytes, most: int, is_packed: bool, step: int) -> None:
    """Whatever the steps it is read in: as many bytes as the bound admits are read, one more is an error."""
    data = b"." + data  # not what gzip begins with
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rtk.schemas.files.BOUND", InputBound(most))
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
    monkeypatch.setattr("rtk.schemas.files.BOUND", InputBound(10))
    assert len(bounded(stream_of(b"1\n" * 100), "log", is_gzip=None, is_endless=True).readlines()) == 100


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """A JSON document with a list among other things, or a list; at times with a character too few or too many."""
    items, rest = draw(st.lists(VALUES, max_size=4)), draw(st.dictionaries(st.sampled_from("abé"), VALUES))
    whole = draw(st.sampled_from([items, {**rest, "list": items}, {"list": items, **rest}]))
    text = json.dumps(whole, ensure_ascii=False, indent=draw(st.sampled_from([None, 1])))
    place = draw(st.integers(0, len(text) - 1))
    return draw(
        st.sampled_from(
            [text, text[:place] + text[place + 1 :], text[:place] + draw(st.sampled_from('[]{},:"1é ')) + text[place:]]
        )
    )


@given(documents(), st.integers(1, 40))
def test_a_document_is_read_part_by_part(text: str, chunk: int) -> None:
    """As `json` reads it as a whole, wherever the parts end; and what `json` refuses is refused."""
    data = text.encode()
    chunks = (data[start : start + chunk] for start in range(0, len(data), chunk))
    stream = JsonStream(chunks, "f", most_bytes=1 << 20, fix="")
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, list):
        assert list(stream.items("list")) == whole
    elif isinstance(whole, dict) and isinstance(whole.get("list"), list):
        items = list(stream.items("list"))
        assert {**stream.rest, "list": items} == whole
    elif not isinstance(whole, dict):
        with pytest.raises(InvalidInputError):
            list(stream.items("list"))
