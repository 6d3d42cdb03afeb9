"""`rtk schema`: the JSON Schemas."""

import sys
from typing import Annotated

import typer

from .console import SETTINGS, Common, grouped, print_json, print_table


@grouped
def command(
    name: Annotated[str | None, typer.Argument(help="Of which format; without one, the names are listed.")] = None,
    *,
    common: Common,
) -> None:
    """Print the JSON Schema of a file format, or the names of the formats."""
    from ..schemas.documents import document_kinds, shipped_schema
    from ..schemas.remedies import KINDS

    if name is None:
        names = list(document_kinds())
        if common.as_json:
            print_json({"schemas": names})
        else:
            print_table(("format", "the file is"), [(one, KINDS[f"rtk.{one}"].name) for one in names], left=2)
        return
    sys.stdout.write(shipped_schema(name).decode())
    SETTINGS.has_answered = True
