"""Which arguments a function takes by name."""

import inspect
from collections.abc import Callable
from typing import Any


def names_taken(function: Callable[..., Any]) -> frozenset[str] | None:
    """The names of a function's parameters after the first, which may be given by name; None where it takes any (**).

    A layer's `forward` takes its input first, and what else belongs to a micro-batch by these names.
    """
    others = list(inspect.signature(function).parameters.values())[1:]
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in others):
        return None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(one.name for one in others if one.kind in by_name)
