"""JSON Schemas (2020-12) of the documents: generated from their classes, shipped beside this file.

`python -m rtk.schemas.jsonschema` writes them again after a change; a test holds the shipped ones to the classes.
"""

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .documents import canonical_json, type_adapter
from .errors import InvalidInputError

if TYPE_CHECKING:
    from .documents import Document


@cache
def document_kinds() -> "dict[str, type[Document]]":
    """The documents by the name that `rtk schema` takes."""
    from .atlas import Atlas
    from .checkpoint import Checkpoint
    from .detection import Detection
    from .plan import Plan
    from .profile import Profile
    from .replay_report import ReplayReport
    from .report import Report
    from .templates import Templates
    from .timeline import Timeline
    from .trace import Trace

    kinds: list[type[Document]] = [
        Atlas, Checkpoint, Detection, Plan, Profile, ReplayReport, Report, Templates, Timeline, Trace,
    ]  # fmt: skip
    return {kind.FORMAT.removeprefix("rtk."): kind for kind in kinds}


@cache
def schema_of(kind: "type[Document]") -> dict[str, Any]:
    """The JSON Schema of a document's class, with its format and version."""
    tree = type_adapter(kind).json_schema()
    header = {
        "format": {"const": kind.FORMAT},
        "format_version": {"type": "string", "pattern": "^1\\.[0-9]+$"},
    }
    return {
        **tree,
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{kind.FORMAT.replace('.', ':')}:1.0",
        "properties": {**header, **tree.get("properties", {})},
        "required": [*header, *tree.get("required", [])],
    }


def shipped_schema(name: str) -> bytes:
    """The bytes of a shipped schema, by its short name such as `plan`.

    Raises:
        InvalidInputError: there is none of that name.
    """
    if name not in document_kinds():
        raise InvalidInputError(f"there is no schema {name!r}", fix=f"the schemas are {', '.join(document_kinds())}")
    return files("rtk.schemas").joinpath(f"{name}.schema.json").read_bytes()


if __name__ == "__main__":
    for short_name, document_kind in document_kinds().items():
        Path(__file__).with_name(f"{short_name}.schema.json").write_bytes(canonical_json(schema_of(document_kind)))
