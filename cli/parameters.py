"""What an option or argument is called, and what it takes, for help pages and messages."""

from typing import Any, get_args

from .groups import METAVARS

LONGEST_CHOICES = 32  # characters of `a|b|c` that stand beside an option; longer ones stand in its text
PLACEHOLDERS: dict[Any, str] = {int: "N", float: "NUMBER", str: "TEXT"}


def is_option(param: Any) -> bool:
    """Whether it is an option, not an argument."""
    return bool(param.param_type_name == "option")


def name_of(param: Any) -> str:
    """`--output` of `-o, --output`; an argument's is in capitals."""
    return str(max(param.opts, key=len)) if is_option(param) else metavar(param)


def usage_of(param: Any) -> str:
    """`--pp N`, or `PROFILE`."""
    return f"{name_of(param)} {metavar(param)}" if is_option(param) else metavar(param)


def metavar(param: Any) -> str:
    """What stands for a value: `N`, `FILE`, `gpipe|1f1b|zero-bubble`."""
    if param.metavar is not None:
        return str(param.metavar)
    if not is_option(param):
        return str(param.name).upper() + ("..." if param.nargs != 1 else "")
    if choices := choices_of(param):
        told = "|".join(choices)
        return told if len(told) <= LONGEST_CHOICES else "NAME"
    return METAVARS.get(max(param.opts, key=len)) or str(PLACEHOLDERS.get(kind_of(param), "TEXT"))


def kind_of(param: Any) -> Any:
    """The type of one value."""
    annotation = param.type_descriptor.annotation
    return next(iter(get_args(annotation)), annotation)


def choices_of(param: Any) -> list[str]:
    """The words that it takes, where it takes some words only."""
    return [str(choice) for choice in param.type_descriptor.choices or ()]


def range_of(param: Any) -> str:
    """`1 or more`, `1 to 256`; nothing where any number will do."""
    least, most = param.min, param.max
    if least is None or most is None:
        return f"{least:g} or more" if least is not None else f"{most:g} or less" if most is not None else ""
    return f"{least:g} to {most:g}"
