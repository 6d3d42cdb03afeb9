"""One difference of two plans, and how numbers that changed are said."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .units import print_bytes, print_number, print_percent, print_time


@dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    Args:
        path: a JSON pointer to the place, in the second plan where it has the place, else in the first.
        kind: the part of the plan: prediction, planner, inputs, optimizer, template, pipeline, worker, re-routing
            or order.
        before: the first plan's value, as JSON; None where it has none.
        after: the second plan's.
        words: the difference as a sentence.
    """

    path: str
    kind: str
    before: Any
    after: Any
    words: str


def changed(path: str, kind: str, name: str, before: Any, after: Any) -> Iterator[Change]:
    """A change of a named value, if it is one; how its numbers are printed follows from the path's unit."""
    if before != after:
        yield Change(path, kind, before, after, f"{name}: {becomes(before, after, unit_of(path))}")


def becomes(before: Any, after: Any, unit: str = "") -> str:
    """`10 ms → 12 ms (+2 ms, +20 %)`: both values and, of numbers, the difference.

    Args:
        before: a number, text or None.
        after: the same.
        unit: of numbers: `s`, `bytes`, `ratio` or `count`; of numbers without one no difference is said.
    """
    show = _PRINTERS.get(unit, print_number)
    shown = [_show(value, show) for value in (before, after)]
    if shown[0] == shown[1]:  # they differ behind the fourth digit
        return f"{before!r} → {after!r}"
    return f"{shown[0]} → {shown[1]}" + (
        _difference(before, after, unit) if unit and _are_numbers(before, after) else ""
    )


def unit_of(path: str) -> str:
    """The unit that a JSON pointer's last name carries."""
    name = path.rstrip("/0123456789")
    return next((unit for unit in ("bytes", "s") if name.endswith(f"_{unit}")), "")


def _difference(before: float, after: float, unit: str) -> str:
    if unit == "ratio":
        return f" ({(after - before) * 100:+.3g} points)"
    sign = "+" if after > before else "−"  # noqa: RUF001
    parts = [sign + _PRINTERS.get(unit, print_number)(abs(after - before))]
    if before and unit != "count":
        parts.append(sign + print_percent(abs(after - before) / before))
    return f" ({', '.join(parts)})"


def _show(value: Any, show: Callable[[float], str]) -> str:
    if value is None:
        return "none"
    return show(value) if _are_numbers(value) else str(value)


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


_PRINTERS: dict[str, Callable[[float], str]] = {"s": print_time, "bytes": print_bytes, "ratio": print_percent}
