"""The names of modules: which ones a pattern means, and which patterns would mean something."""

from fnmatch import fnmatchcase

from torch import nn

from ...schemas.errors import InvalidInputError

MOST_CANDIDATES = 5


def matching(root: nn.Module, pattern: str, where: str) -> dict[str, nn.Module]:
    """The modules whose name fits a pattern such as `model.layers.*`, by name; `*` stands for one part of a name.

    Raises:
        InvalidInputError: no module's name does.
    """
    found = {name: module for name, module in root.named_modules() if name and _fits(name, pattern)}
    if not found:
        known = candidates(root)
        raise InvalidInputError(
            f"no module of {type(root).__name__} is called {pattern}",
            where=f"{where}, --cut",
            fix=f"its sequences of modules are {known}" if known else "name some of its modules",
        )
    return found


def candidates(root: nn.Module) -> str:
    """Patterns that name a sequence of modules, with how many these are, the longest first; empty where none does."""
    sequences = [
        (len(module), name)
        for name, module in root.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1
    ]
    ordered = sorted(sequences, key=lambda one: -one[0])[:MOST_CANDIDATES]
    return " or ".join(f"{f'{name}.*' if name else '*'} ({count})" for count, name in ordered)


def _fits(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
