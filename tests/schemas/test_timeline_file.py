"""Timelines' files, read straight into columns."""

import gzip
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas import timeline_file
from rtk.schemas.columns import columns_of
from rtk.schemas.documents import canonical
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.timeline import Event, Span, Timeline, WorkerMemory
from rtk.schemas.timeline_file import read_columns

SPANS = st.builds(
    Span,
    st.sampled_from(["0/0", "0/1", "1/0", "12/3"]),
    st.sampled_from(["F0", "I0", "W7", "F7.2", "B13.5", "allreduce", "step", "3F1", "B2:4-6", 'odd\n    },\n"', "ü"]),
    st.floats(0, 10),
    st.floats(10, 20),
    st.integers(0, 3),
)
EVENTS = (Event(1.5, "failure", "0/1", '\n  "spans": [\n'),)


def test_columns_are_those_of_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the chunks fall: all columns, names and what a timeline says beside its spans, also of a packed file."""
    monkeypatch.setattr(timeline_file, "CHUNK_BYTES", 97)

    @given(st.lists(SPANS, min_size=1, max_size=30), st.booleans())
    def check(spans: list[Span], packed: bool) -> None:
        memory = (WorkerMemory("0/0", 3.0), WorkerMemory("0/1", 4.5, memory_limit_bytes=7.0))
        timeline = Timeline("measured", tuple(spans), memory, EVENTS, "ab" * 32, True)
        path = tmp_path / ("t.json.gz" if packed else "t.json")
        path.write_bytes(gzip.compress(canonical(timeline)) if packed else canonical(timeline))
        found, expected = read_columns(str(path)), columns_of(timeline)
        assert found is not None
        for one in fields(expected):
            ours, theirs = getattr(found, one.name), getattr(expected, one.name)
            same = np.array_equal(ours, theirs) if isinstance(theirs, np.ndarray) else ours == theirs
            assert same, one.name

    check()


def document() -> dict[str, Any]:
    spans = tuple(Span(f"0/{n % 2}", f"F{n}", float(n), n + 1.0) for n in range(5))
    tree: dict[str, Any] = json.loads(canonical(Timeline("simulated", spans)))
    return tree


def written(tree: Any) -> bytes:
    return (json.dumps(tree, sort_keys=True, indent=2) + "\n").encode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda span: span.pop("op"),
        lambda span: span.update(more=1),
        lambda span: span.update(op=""),
        lambda span: span.update(op=7),
        lambda span: span.update(op="\ud800"),  # half a character: nothing could write it
        lambda span: span.update(start_s=-1.0),
        lambda span: span.update(start_s=9.0, end_s=8.0),
        lambda span: span.update(end_s=float("nan")),
        lambda span: span.update(end_s=1e15),
        lambda span: span.update(iteration=-1),
        lambda span: span.update(iteration=10**9),
        lambda span: span.update(iteration=1.0),
        lambda span: span.update(op="1F0"),
    ],
)
def test_what_is_not_valid_is_left_to_the_reader_of_documents(damage: Any, tmp_path: Path) -> None:
    """A span that breaks the format, wherever it stands, gives no columns: the other reader says what and where."""
    path = tmp_path / "t.json"
    for place in (0, 4):
        tree = document()
        damage(tree["spans"][place])
        path.write_bytes(written(tree))
        assert read_columns(str(path)) is None
    path.write_bytes(written(document()))
    assert read_columns(str(path)) is not None


def test_other_forms_are_left_too(tmp_path: Path) -> None:
    """Other indents, no spans, other documents, files that are cut short."""
    whole = written(document())
    path = tmp_path / "t.json"
    others = [
        json.dumps(document()).encode(),
        canonical(Timeline("simulated", ())),
        b"",
        b"{}",
        *(whole[: len(whole) * share // 8] for share in range(1, 6)),
    ]
    for data in others:
        path.write_bytes(data)
        assert read_columns(str(path)) is None, data
    assert read_columns("-") is None


def test_what_stands_beside_the_spans_is_judged(tmp_path: Path) -> None:
    """A version of tomorrow, and a damaged archive, are errors with the file's name."""
    path = tmp_path / "t.json"
    path.write_bytes(written({**document(), "format_version": "9.0"}))
    with pytest.raises(InvalidInputError, match="format version 9"):
        read_columns(str(path))
    packed = tmp_path / "t.json.gz"
    many = replace(Timeline("simulated", ()), spans=tuple(Span("0/0", f"F{n}", n / 7, n + 0.1) for n in range(9999)))
    data = gzip.compress(canonical(many))
    packed.write_bytes(data[: len(data) // 2])
    with pytest.raises(InvalidInputError, match="damaged or cut short"):
        read_columns(str(packed))
