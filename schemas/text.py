"""Counts, lists and suggestions in messages, worded alike everywhere."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from .errors import InvalidInputError

MOST_LISTED = 4


def counted(count: int, noun: str, plural: str = "s") -> str:
    """`1 join`, `2 joins`.

    Args:
        count: how many.
        noun: in the singular.
        plural: what it ends in where there is not just one.
    """
    return f"{count} {noun}{'' if count == 1 else plural}"


def with_article(noun: str) -> str:
    """`a tuple`, `an int`, `an Embedding`."""
    return f"{'an' if noun[:1].lower() in set('aeiou') else 'a'} {noun}"


def listed(names: Iterable[str], most: int = MOST_LISTED, between: str = ", ") -> str:
    """`0/1, 1/2`; of many only the first few, and how many more there are: `0/0, 0/1, 0/2, 0/3 and 5 more`.

    Args:
        names: what to list.
        most: how many at the most.
        between: what stands between two; one without commas in it where the names have some.
    """
    names = list(names)
    more = len(names) - most
    told = between.join(names[:most])
    return f"{told}{'' if between == ', ' else between.rstrip()} and {more} more" if more > 0 else told


def joined(names: Iterable[str], last: str = "and") -> str:
    """`one`, `one and two`, `one, two and three`; nothing where there are none.

    Args:
        names: what to list, all of it.
        last: the word before the last one.
    """
    *others, name = names if (names := list(names)) else [""]
    return f"{', '.join(others)} {last} {name}" if others else name


def near(word: str, known: Iterable[str], least: float = 0.6) -> str | None:
    """The known word that is most like a mistyped one; None where none is.

    Args:
        word: as it was typed.
        known: the words that there are.
        least: the likeness from which on it may have been meant, from 0 to 1 (`difflib`'s ratio).
    """
    return next(iter(get_close_matches(word, list(known), n=1, cutoff=least)), None)


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "", least: float = 0.6) -> str:
    """`did you mean gpt-tiny?`, or something else where no known word is like it; arguments as for `near`."""
    found = near(word, known, least)
    return f"did you mean {found}?" if found else otherwise


def known(word: str, words: Sequence[str], option: str) -> None:
    """Raise InvalidInputError unless a word is one of those that an option takes."""
    if word not in words:
        raise InvalidInputError(
            f"{word!r} is not known", where=option, fix=did_you_mean(word, words, f"take one of {listed(words)}")
        )
