"""Counts and lists in messages, worded alike by all commands."""

from collections.abc import Iterable

MOST_LISTED = 4


def counted(count: int, noun: str, plural: str = "s") -> str:
    """`1 join`, `2 joins`.

    Args:
        count: how many.
        noun: in the singular.
        plural: what it ends in where there is not just one.
    """
    return f"{count} {noun}{'' if count == 1 else plural}"


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
