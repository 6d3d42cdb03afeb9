"""SLURM's lists of hosts: `node[001-016,020]` stands for 17 names, in that order.

Not ClusterShell's NodeSet, with which the tests compare it: that one sorts the names, though ranks follow the list's
order, looks for four configuration files when it is imported, and takes `!`, `&`, `^`, `@` and `*` for operators.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import product

from ..schemas.errors import InvalidInputError
from ..schemas.fields import MOST_NODES

_FIX = "write names such as node1, or lists such as node[001-016,020]"
_NAME = r"[A-Za-z0-9._-]+"
_BRACKETS = r"\[[^\[\]]*\]"
_WORD = re.compile(rf"(?:{_NAME}|{_BRACKETS})+")
_PARTS = re.compile(rf"{_NAME}|{_BRACKETS}")
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")
_LAST_NUMBER = re.compile(r"(.*?)(\d{1,12})(\D*)")


def expand(text: str, where: str) -> tuple[str, ...]:
    """The names that a list stands for, in its order.

    Args:
        text: names and lists, separated by commas; of several brackets in a name the last one counts fastest.
        where: names the place of the text in errors.

    Raises:
        InvalidInputError: it is no such list, or names a node twice, or more than `MOST_NODES`.
    """
    names: list[str] = []
    for word in _words(text, where):
        choices = [_choices(part, where) for part in _PARTS.findall(word)]
        _require_few(len(names), choices, where)
        names += ["".join(parts) for parts in product(*choices)]
    _require_unlike(names, where)
    return tuple(names)


def fold(names: Sequence[str]) -> str:
    """The list that stands for names, each run of consecutive numbers in brackets; `expand` gives the names back."""
    groups: list[tuple[str, str, list[tuple[str, str]]]] = []  # before the number, behind it, ranges of it
    for name in names:
        match = _LAST_NUMBER.fullmatch(name)
        head, number, tail = match.groups() if match else (name, "", "")
        if not (groups and number and groups[-1][2] and groups[-1][:2] == (head, tail)):
            groups.append((head, tail, [(number, number)] if number else []))
            continue
        ranges = groups[-1][2]
        first, last = ranges[-1]
        if _follows(number, first, last):
            ranges[-1] = (first, number)
        else:
            ranges.append((number, number))
    return ",".join(head + _brackets(ranges) + tail for head, tail, ranges in groups)


def _words(text: str, where: str) -> Iterator[str]:
    """What commas outside of brackets separate."""
    for word in re.split(r",(?![^\[]*\])", text.strip()):
        if not _WORD.fullmatch(word.strip()):
            raise InvalidInputError(f"{word!r} is no list of nodes", where=where, fix=_FIX)
        yield word.strip()


def _choices(part: str, where: str) -> Sequence[str]:
    """What stands for one part of a name: itself, or the numbers in its brackets."""
    if not part.startswith("["):
        return [part]
    ranges = [_range(one, part, where) for one in part[1:-1].split(",")]
    _require_few(sum(len(numbers) for numbers, _ in ranges), [], where)
    return [f"{number:0{width}d}" for numbers, width in ranges for number in numbers]


def _range(text: str, part: str, where: str) -> tuple[range, int]:
    """The numbers of `001-016`, and how many digits they have at least."""
    match = _RANGE.fullmatch(text.strip())
    first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
    padded = _is_padded(first) or _is_padded(last)
    if int(first) > int(last) or (padded and len(first) != len(last)):
        raise InvalidInputError(f"{text!r} in {part} is no range of numbers", where=where, fix=_FIX)
    return range(int(first), int(last) + 1), len(first)


def _require_few(already: int, choices: Sequence[Sequence[str]], where: str) -> None:
    """Raise InvalidInputError before too many names are made."""
    count = 1
    for one in choices:
        count *= len(one)
    if already + count > MOST_NODES:
        raise InvalidInputError(f"the list stands for more than {MOST_NODES} nodes", where=where, fix=_FIX)


def _require_unlike(names: Sequence[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInputError(f"node {name} is named twice", where=where, fix="name each node once")
        seen.add(name)


def _follows(number: str, first: str, last: str) -> bool:
    """Whether a number continues a range; one with leading zeros keeps its width."""
    return number == f"{int(last) + 1:0{len(last)}d}" and (len(number) == len(first) or not _is_padded(first))


def _is_padded(number: str) -> bool:
    return number.startswith("0") and len(number) > 1


def _brackets(ranges: Sequence[tuple[str, str]]) -> str:
    if not ranges or (len(ranges) == 1 and ranges[0][0] == ranges[0][1]):
        return ranges[0][0] if ranges else ""
    return "[" + ",".join(first if first == last else f"{first}-{last}" for first, last in ranges) + "]"
