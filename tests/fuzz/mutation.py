"""Files that somebody has damaged, by chance or by design, but that still look like what they were.

A mutation knows the structure: trees of JSON lose, double, swap and rename their parts, and hold values of other kinds
or of absurd size; lines and cells likewise. Everything is drawn from one random generator, so that a seed tells a file.
"""

import copy
import gzip
import json
import pickle
import random
import re
from collections.abc import Callable
from typing import Any

Chance = random.Random
Tree = Any
Holder = tuple[Any, Any]  # a list or an object, and the place in it

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 0.5, -0.0, 1e308, 1.7e308, 9e14, 1e15, 5e-324, 1e-12, -1e308, 10**9 - 1, 10**9, 2**31, 2**53 + 1,
    2**63, 10**30, 10**400, 999_999_999, float("nan"), float("inf"), -float("inf"),
)  # fmt: skip
WORDS = (
    "",
    "0",
    "-",
    "x" * 5000,
    "0/0",
    "9/9",
    "F0",
    "nan",
    "\ud7ff\u202e\x00",
    "../../etc",
    "null",
    "1e999",
    "é",
    "١٢",
)
# What no tree of Python's can say: it is put into the text of JSON afterwards.
RAW = ("1e999", "-1e999", "[" * 3000 + "]" * 3000, '{"a":' * 500 + "1" + "}" * 500, "NaN", "1" * 5000, "01", "'a'", "")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_RAW_MARK = re.compile(r'"<<raw (\d+)>>"')


def mutated(text: bytes, form: str, chance: Chance) -> bytes:
    """A file that is damaged once or a few times.

    Args:
        text: the file.
        form: `json`, `lines` (of JSON), `text` or `pickle`.
        chance: says how.
    """
    if chance.random() < 0.04:
        return _packed(text, chance)
    times = chance.choice((1, 1, 1, 2, 3))
    if form == "json":
        return _json(text.decode(), times, chance)
    if form == "pickle":
        return _pickled(text, times, chance)
    lines = text.decode().splitlines(keepends=True)
    for _ in range(times):
        place = chance.randrange(max(len(lines), 1))
        if form == "lines" and lines and _is_json(lines[place]) and chance.random() < 0.6:
            lines[place] = _json(lines[place], 1, chance).decode("utf-8", "surrogateescape").replace("\n", "") + "\n"
        else:
            lines = _lines(lines, chance)
    return "".join(lines).encode("utf-8", "surrogateescape")


def _packed(text: bytes, chance: Chance) -> bytes:
    """Compressed, cut short, not text at all, empty, or with much of nothing in it."""
    packed = gzip.compress(text, 1)
    place = chance.randrange(len(text) + 1)
    choices: tuple[Callable[[], bytes], ...] = (
        lambda: packed,
        lambda: packed[: chance.randrange(len(packed))],
        lambda: text[:place],
        lambda: text[:place] + bytes([chance.randrange(256)]) + text[place + 1 :],
        lambda: b"",
        lambda: b"\xef\xbb\xbf" + text,
        lambda: text.decode("utf-8", "replace").encode("utf-16"),
        lambda: text[:place] + b"\n" * (3 << 20) + text[place:],
        lambda: bytes(chance.choices(range(256), k=100)),
    )
    return chance.choice(choices)()


def _is_json(line: str) -> bool:
    """Whether a line has not been damaged yet."""
    try:
        copy.deepcopy(json.loads(line))
    except (ValueError, RecursionError):
        return False
    return True


def _json(text: str, times: int, chance: Chance) -> bytes:
    """A JSON text that is damaged where it is a tree."""
    tree = json.loads(text)
    for _ in range(times):
        tree = mutated_tree(tree, chance)
    printed = json.dumps(tree, indent=chance.choice((None, None, 1)))
    return _RAW_MARK.sub(lambda mark: RAW[int(mark[1])], printed).encode()


def mutated_tree(tree: Tree, chance: Chance) -> Tree:
    """A tree of JSON values with one of its parts gone, doubled, moved, or something else."""
    tree = copy.deepcopy(tree)
    holders = _holders(tree)
    if not holders:
        return _value(tree, chance)
    holder, place = chance.choice(holders)
    (change,) = chance.choices((*_CHANGES, _other_value), (*(1 for _ in _CHANGES), 5))
    change(holder, place, holders, chance)
    return tree


def _gone(holder: Any, place: Any, holders: list[Holder], chance: Chance) -> None:
    del holder[place]


def _doubled(holder: Any, place: Any, holders: list[Holder], chance: Chance) -> None:
    twin = copy.deepcopy(holder[place])
    if isinstance(holder, list):
        holder.insert(chance.randrange(len(holder) + 1), twin)
    else:
        holder[chance.choice(("zzz", "extra_s", "slow", "links"))] = twin


def _renamed(holder: Any, place: Any, holders: list[Holder], chance: Chance) -> None:
    """Or swapped, where places have no names."""
    if isinstance(holder, list):
        other = chance.randrange(len(holder))
        holder[place], holder[other] = holder[other], holder[place]
    else:
        holder[chance.choice((*WORDS[:8], f"{place}_s", "zzz"))] = holder.pop(place)


def _crossed(holder: Any, place: Any, holders: list[Holder], chance: Chance) -> None:
    other, there = chance.choice(holders)
    holder[place] = copy.deepcopy(other[there])


def _repeated(holder: Any, place: Any, holders: list[Holder], chance: Chance) -> None:
    if isinstance(holder[place], list) and len(holder[place]) < 100:
        holder[place] = holder[place] * chance.choice((0, 2, 50))


def _untold(holder: Any, place: Any, holders: list[Holder], chance: Chance) -> None:
    """What no tree can say; it is put into the text."""
    holder[place] = f"<<raw {chance.randrange(len(RAW))}>>"


def _of_another_kind(holder: Any, place: Any, holders: list[Holder], chance: Chance) -> None:
    holder[place] = copy.deepcopy(chance.choice((None, True, False, [], {}, [[]], {"a": 1}, [1, 2], "")))


def _other_value(holder: Any, place: Any, holders: list[Holder], chance: Chance) -> None:
    holder[place] = _value(holder[place], chance)


_CHANGES = (_gone, _doubled, _renamed, _crossed, _repeated, _untold, _of_another_kind)


def _holders(tree: Tree) -> list[Holder]:
    """Every place in a tree, with the list or the object that it is a place of."""
    found: list[Holder] = []
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            places = list(one) if isinstance(one, dict) else range(len(one))
            found += [(one, place) for place in places]
            waiting += [one[place] for place in places]
    return found


def _value(value: Any, chance: Chance) -> Any:
    """Another value of the same kind, as a rule."""
    if isinstance(value, str) and chance.random() < 0.8:
        return _text(value, chance)
    if isinstance(value, int | float) and not isinstance(value, bool) and chance.random() < 0.3:
        return value * chance.choice((-1, 0.5, 2, 1000, 1e12)) if abs(value) < 1e200 else value
    return chance.choice(NUMBERS) if chance.random() < 0.8 else chance.choice(WORDS)


def _text(text: str, chance: Chance) -> str:
    """A text with a number, or a word, that is another one."""
    numbers = list(_NUMBER.finditer(text))
    if numbers and chance.random() < 0.7:
        one = chance.choice(numbers)
        return f"{text[: one.start()]}{_printed(chance)}{text[one.end() :]}"
    words = text.split(" ")
    place = chance.randrange(len(words))
    changes: tuple[list[str], ...] = (
        [chance.choice(WORDS)],
        [],
        [words[place]] * 2,
        [words[place][::-1]],
        [words[place], words[0]],
    )
    words[place : place + 1] = chance.choice(changes)
    return " ".join(words)


def _printed(chance: Chance) -> str:
    number = chance.choice(NUMBERS)
    return repr(number) if abs(number) < 10**300 or number != number else chance.choice(("1e999", "inf", "9" * 400))


def _lines(lines: list[str], chance: Chance) -> list[str]:
    """Lines of which one is gone, doubled, moved, cut, or has another number or word in it."""
    if not lines:
        return [chance.choice(WORDS)]
    lines, place = list(lines), chance.randrange(len(lines))
    kind = chance.randrange(9)
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(chance.randrange(len(lines) + 1), lines[place])
    elif kind == 2:
        other = chance.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    elif kind == 3:
        lines[place] = lines[place][: chance.randrange(len(lines[place]) + 1)]
    elif kind == 4:
        cells = re.split("([,;:|/=-])", lines[place])
        cells[chance.randrange(len(cells))] = chance.choice((*WORDS, ",", "\t", "  "))
        lines[place] = "".join(cells)
    elif kind == 5:
        lines[place] = chance.choice(("\n", " " * 20 + lines[place], "# " + lines[place], "\t" + lines[place]))
    else:
        lines[place] = _text(lines[place].rstrip("\n"), chance) + "\n"
    return lines


def _pickled(data: bytes, times: int, chance: Chance) -> bytes:
    """A pickle of damaged data, or damaged itself; at times with lists that stand in many places."""
    if chance.random() < 0.3:
        place = chance.randrange(len(data))
        return data[:place] + bytes([chance.randrange(256)]) + data[place + chance.randrange(3) :]
    tree = pickle.loads(data)
    for _ in range(times):
        tree = mutated_tree(tree, chance)
    if chance.random() < 0.2:
        many: Any = chance.choice(holders)[0] if (holders := _holders(tree)) else tree
        for _ in range(chance.choice((2, 30))):
            many = chance.choice(([many, many], {"a": many, "b": many}, (many, many)))
        holder, place = chance.choice(_holders(tree))
        holder[place] = many
    return pickle.dumps(tree, chance.randrange(2, 6))
