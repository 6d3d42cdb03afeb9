"""Many marks looked for at once: where in a block the lines stand that tell readers something.

`bytes.find` reads a block anew for each mark, and there are thirty. Here a block is read once, four bytes at a time
(as in Wu and Manber, A Fast Algorithm for Multi-Pattern Searching, 1994, with blocks of four): of any seven bytes of a
mark, four are such a word, wherever it stands.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

_WORD = 4  # bytes
_MULTIPLIER, _SHIFT = np.uint32(2_654_435_761), np.uint32(16)  # Knuth's multiplicative hash, to 16 bits
_RARE = 1 << 11  # bytes, at the least, from one word of a mark to the next: marks with more are looked for one by one


class MarkSearch:
    """Finds the lines with marks; it learns from a block which parts of the marks are rare in this log.

    Args:
        marks: of each listener; none where it listens to all lines.
    """

    def __init__(self, marks: Sequence[Sequence[bytes]]) -> None:
        self._listeners: defaultdict[bytes, list[int]] = defaultdict(list)
        for listener, own in enumerate(marks):
            for mark in own or (b"\n",):
                self._listeners[mark].append(listener)
        self._frequent: list[bytes] = []  # looked for one by one
        self._parts: dict[int, list[tuple[bytes, int]]] = {}  # words of the others: of which mark, and where in it
        self._words, self._table = _table_of(())
        self._most = 0  # words that may be found in a block, before the parts are chosen anew

    def hits(self, data: bytes, end: int) -> list[tuple[int, int]]:
        """Where marks stand before `end`, of each the first in a line, and which listener's it is; in order."""
        words = np.frombuffer(data, "<u4", end // _WORD)
        at = self._found(words)
        if len(at) > self._most or not self._parts:
            self._choose(words)
            at = self._found(words)
        hits: list[tuple[int, int]] = []
        for mark in self._frequent:
            starts = _first_of_lines(data, end, mark)
            for listener in self._listeners[mark]:
                hits += [(start, listener) for start in starts]
        for index, word in zip(at.tolist(), words[at].tolist(), strict=True):
            for mark, offset in self._parts[word]:
                start = _WORD * index - offset
                if start >= 0 and data.startswith(mark, start, end):
                    hits += [(start, listener) for listener in self._listeners[mark]]
        hits.sort()
        return hits

    def _found(self, words: NDArray[np.uint32]) -> NDArray[np.intp]:
        """Where in a block parts of marks stand."""
        hashes = words * _MULTIPLIER
        hashes >>= _SHIFT
        at = np.flatnonzero(self._table[hashes])
        found = words[at]
        nearest = np.minimum(np.searchsorted(self._words, found), len(self._words) - 1)
        exact: NDArray[np.intp] = at[self._words[nearest] == found]
        return exact

    def _choose(self, words: NDArray[np.uint32]) -> None:
        """Of each mark, the seven bytes whose words are rarest in this block; if they are frequent, none."""
        own = {
            mark: [int.from_bytes(mark[at : at + _WORD], "little") for at in range(len(mark) - _WORD + 1)]
            for mark in self._listeners
        }
        self._words, self._table = _table_of([word for some in own.values() for word in some])
        values, counts = np.unique(words[self._found(words)], return_counts=True)
        count = dict(zip(values.tolist(), counts.tolist(), strict=True))
        most = _WORD * len(words) // _RARE
        self._parts, self._frequent, self._most = {}, [], (most + 1) * len(own)
        for mark, some in own.items():
            costs = [sum(count.get(word, 0) for word in some[at : at + _WORD]) for at in range(len(some) - _WORD + 1)]
            if not costs or min(costs) > most:
                self._frequent.append(mark)
                continue
            begin = costs.index(min(costs))
            for offset in range(begin, begin + _WORD):
                self._parts.setdefault(some[offset], []).append((mark, offset))
        self._words, self._table = _table_of(self._parts)


def _table_of(words: Iterable[int]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Words in order, and which hashes are those of one."""
    ordered = np.array(sorted(set(words)) or [0], dtype=np.uint32)
    table = np.zeros(1 << 16, dtype=np.bool_)
    table[(ordered * _MULTIPLIER) >> _SHIFT] = True
    return ordered, table


def _first_of_lines(data: bytes, end: int, mark: bytes) -> list[int]:
    """Where a mark stands for the first time in a line; the last line has an end, whether it is there or not."""
    starts, at = [], data.find(mark, 0, end)
    while at >= 0:
        starts.append(at)
        stop = data.find(b"\n", at, end)
        at = data.find(mark, stop + 1, end) if stop >= 0 else -1
    if mark == b"\n" and not data.endswith(b"\n", 0, end):
        starts.append(end - 1)
    return starts
