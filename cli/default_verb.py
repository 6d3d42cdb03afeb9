"""A group of commands that is a command itself: what names none of them goes to the one that stands for all."""

from typing import Any

import typer
from typer.core import TyperGroup


class DefaultVerb(TyperGroup):
    """A group whose first command gets all arguments that do not begin with the name of one.

    So `rtk profile MODEL` measures a model, and `rtk profile compare A B` does something else.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the first command's name before arguments that name none."""
        verbs = list(self.commands)
        if args and args[0] not in verbs and args[0] not in ctx.help_option_names:
            args = [verbs[0], *args]
        return super().parse_args(ctx, args)


def group(help_: str) -> typer.Typer:
    """A group with such a first command, still without commands."""
    return typer.Typer(cls=DefaultVerb, no_args_is_help=True, help=help_)
