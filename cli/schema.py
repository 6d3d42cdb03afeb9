"""`rtk schema`: the JSON Schemas."""

import sys
from typing import Annotated

import typer

from ..schemas.errors import InvalidInputError
from .console import Debug, Json, Quiet

NAME = "schema"
SUMMARY = "Print the JSON Schema of a file format."


def command(
    name: Annotated[str, typer.Argument(help="atlas, checkpoint, plan, profile, report, timeline or trace.")],
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Print the JSON Schema of a file format."""
    from ..schemas.jsonschema import document_kinds, shipped_schema

    if name not in document_kinds():
        raise InvalidInputError(f"there is no schema {name!r}", fix=f"the schemas are {', '.join(document_kinds())}")
    sys.stdout.write(shipped_schema(name).decode())
