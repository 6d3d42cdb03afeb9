"""`rtk schema`: the JSON Schemas."""

import sys
from typing import Annotated

import typer

from .console import Common, grouped


@grouped
def command(
    name: Annotated[str, typer.Argument(help="atlas, checkpoint, job, plan, profile, report, timeline or trace.")],
    *,
    common: Common,
) -> None:
    """Print the JSON Schema of a file format."""
    from ..schemas.documents import shipped_schema

    sys.stdout.write(shipped_schema(name).decode())
