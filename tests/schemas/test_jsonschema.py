"""The shipped JSON Schemas are those of the classes, and say what a file needs."""

import json

import pytest

from rtk.schemas.documents import canonical_json, document_kinds, schema_of, shipped_schema


def test_documents_have_their_names() -> None:
    """The short names are the formats without `rtk.`."""
    assert sorted(document_kinds()) == [
        "atlas",
        "bubble",
        "checkpoint",
        "detection",
        "diagnosis",
        "ledger",
        "plan",
        "profile",
        "replay",
        "report",
        "resumption",
        "templates",
        "timeline",
        "trace",
    ]
    assert all(f"rtk.{name}" == kind.FORMAT for name, kind in document_kinds().items())


@pytest.mark.parametrize("name", document_kinds())
@pytest.mark.wheel("schema")
def test_shipped_schema_equals_the_generated_one(name: str) -> None:
    """The file beside the code is what the class gives now; `python -m rtk.schemas.documents` rewrites it."""
    assert shipped_schema(name) == canonical_json(schema_of(document_kinds()[name]))


@pytest.mark.parametrize("name", document_kinds())
def test_schema_is_of_2020_12_and_closed(name: str) -> None:
    """Each schema names its dialect, demands the header, and admits no unknown key in any object of its own."""
    schema = json.loads(shipped_schema(name))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert {"format", "format_version"} <= set(schema["required"])
    assert schema["properties"]["format"] == {"const": f"rtk.{name}"}
    objects = [schema, *(part for part in schema.get("$defs", {}).values() if part.get("type") == "object")]
    assert all(part["additionalProperties"] is False for part in objects)


def test_schema_states_units_and_limits() -> None:
    """A plan's stage needs its times, as numbers of at least 0."""
    stage = json.loads(shipped_schema("plan"))["$defs"]["Stage"]
    assert set(stage["required"]) == {"layers", "forward_s", "backward_input_s", "backward_weight_s"}
    assert stage["properties"]["forward_s"]["type"] == "number"
    assert stage["properties"]["forward_s"]["minimum"] == 0
