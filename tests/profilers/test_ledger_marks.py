"""Marks are found all at once as they are found one by one."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rtk.profilers.ledger.readers.marks import MarkSearch

MARKS = (
    b"loss",
    b"step: ",
    b"checkpoint",
    b" checkpoint",
    b"Watchdog caught",
    b"oom-kill",
    b"\x00\xff\x00\xff\x00\xff\x00",
)
PIECES = (*MARKS, b"\n", b"\r", b"\n\n", b"x", b" ", b"check", b"point", b"Watchdog", b"oom-kil", b"iteration 7 | " * 3)
texts = st.lists(st.sampled_from(PIECES), max_size=60).map(b"".join)


def one_by_one(marks: Sequence[Sequence[bytes]], data: bytes, end: int) -> list[tuple[int, int]]:
    """The first of each mark in each line."""
    hits, begin = [], 0
    for line in data[:end].split(b"\n"):
        found = [(line.find(mark), listener) for listener, own in enumerate(marks) for mark in own]
        hits += [(begin + at, listener) for at, listener in found if at >= 0]
        everything = [listener for listener, own in enumerate(marks) if not own]
        stop = begin + len(line)
        if stop < end:
            hits += [(stop, listener) for listener in everything]
        elif line or not data.endswith(b"\n", 0, end):
            hits += [(end - 1, listener) for listener in everything]
        begin = stop + 1
    return sorted(hits)


@given(
    st.lists(st.tuples(texts, st.floats(0, 1)), min_size=1, max_size=4),
    st.lists(st.lists(st.sampled_from(MARKS), unique=True), min_size=1, max_size=3),
)
def test_marks_are_found_wherever_they_stand(blocks: list[tuple[bytes, float]], marks: list[list[bytes]]) -> None:
    """At any offset, in blocks of any end, for several readers with the same marks and for one that hears all."""
    search = MarkSearch(marks)
    for data, share in blocks:
        end = max(round(share * len(data)), 1)
        if data:
            assert search.hits(data, end) == one_by_one(marks, data, end)


def test_what_a_log_begins_to_say_late_is_found() -> None:
    """Marks that were rare in the first block are frequent in the second, and others the other way round."""
    marks = [[b"Watchdog caught", b"checkpoint"]]
    first, second = (
        b"checkpoint and on\n" * 4000 + b"Watchdog caught\n",
        b"Watchdog caught it\n" * 4000 + b"checkpoint\n",
    )
    search = MarkSearch(marks)
    for data in (first, second, first):
        assert search.hits(data, len(data)) == one_by_one(marks, data, len(data))
