"""The ring of a watched rank: bounded, and a reader knows what it missed."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.profilers.shim.recorder import FIRST_AT, NOBODY, RECORD, Entry, RingReader, Writer


def _write(writer: Writer, count: int, since: int) -> list[Entry]:
    entries = []
    for number in range(since, since + count):
        values = (10**18 + number, number * 2**33, number, number % 2**32, NOBODY, number % 7, 3, number % 5)
        assert writer.write(*values) == number
        entries.append(Entry(*values, number))
    return entries


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(0, 14), max_size=12))
def test_reader_gets_each_record_once_or_knows_that_it_is_lost(records: int, bursts: list[int]) -> None:
    """Whatever a writer does between two readings, the newest records come as they were written, and others count."""
    with TemporaryDirectory() as folder:
        writer = Writer(folder, 5, records)
        (path,) = Path(folder).glob("*.ring")
        reader, written, read = RingReader(path), 0, 0
        for burst in bursts:
            entries = _write(writer, burst, written)
            written += burst
            new = reader.new()
            read += len(new)
            assert new == entries[-records:]
            assert read + reader.lost == written
        assert len(reader.all()) == min(records, written)
        assert reader.rank == 5
        assert path.stat().st_size == FIRST_AT + records * RECORD.size


def test_names_are_written_once(tmp_path: Path) -> None:
    """A name keeps its place, and a reader that is there already learns of new ones."""
    writer = Writer(str(tmp_path), 0, 4)
    (path,) = tmp_path.glob("*.ring")
    reader = RingReader(path)
    first, second = writer.place_of("a", op="a"), writer.place_of(("group", "0"), group="0", ranks=[0, 1])
    assert (first, second, writer.place_of("a", op="a")) == (0, 1, 0)
    assert reader.name(second) == {"place": 1, "group": "0", "ranks": [0, 1]}
    third = writer.place_of("b", op="b")
    assert reader.name(third)["op"] == "b"
