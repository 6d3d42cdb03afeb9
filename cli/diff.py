"""`rtk diff`: what changed from one plan to another."""

from typing import Annotated

import typer

from ..schemas.documents import read_document
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM
from .console import Common, grouped, print_json


@grouped
def command(
    a: Annotated[str, typer.Argument(metavar="A", help="The plan before; `-` is standard input.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The plan after; `-` is standard input.")],
    as_markdown: Annotated[bool, typer.Option("--md", help="A Markdown table, for a pull request.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if the plans differ.")] = False,
    *,
    common: Common,
) -> None:
    """Say in words what changed from plan A to plan B."""
    from ..schemas.plan import Plan
    from ..viz import diff

    if a == b == STANDARD_STREAM:
        raise InvalidInputError("standard input can be read only once", where="A and B", fix="give one `-`")
    if common.as_json and as_markdown:
        raise InvalidInputError("--json and --md are two forms of one answer", where="--md", fix="give one of them")
    found = diff.diff_plans(read_document(a, Plan), read_document(b, Plan))
    if common.as_json:
        print_json(diff.as_tree(found))
    else:
        print(diff.as_markdown(found) if as_markdown else diff.as_words(found))
    if exit_code and found:
        raise typer.Exit(1)
