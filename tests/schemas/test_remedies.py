"""What is said of files of another kind, and of keys in another place."""

import gzip
import json
from pathlib import Path

import pytest

from rtk.schemas.documents import canonical_json, document_kinds, schema_of
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.files import read_bytes
from rtk.schemas.profile import Profile
from rtk.schemas.remedies import KINDS, format_at, home_of, other_kind, uses_of


def test_every_format_has_a_remedy() -> None:
    """No format is without a name and a command that makes it."""
    assert {f"rtk.{name}" for name in document_kinds()} == set(KINDS)


@pytest.mark.parametrize("needed", KINDS)
@pytest.mark.parametrize("found", KINDS)
def test_another_kind_is_named_with_what_to_do(needed: str, found: str) -> None:
    """What it is, what is needed, and the command that makes that."""
    error = other_kind({"format": found}, needed, "f.json")
    assert error.what == f"this is {KINDS[found].name}, {KINDS[needed].name} is needed here"
    assert error.where == "f.json, /format"
    assert KINDS[needed].made_by in str(error.fix)


def test_a_key_is_sent_home() -> None:
    """B5: to the place nearest to where it stands, with its indices."""
    schema = schema_of(Profile)
    assert home_of("forward_s", ("layers", 3), schema) == "/layers/3/costs/0"
    assert home_of("nonsense", ("layers", 3), schema) is None


def test_a_file_says_what_it_is_at_a_glance(tmp_path: Path) -> None:
    """Plain or packed; nothing for what is damaged, foreign or not there."""
    plain, packed = tmp_path / "a.json", tmp_path / "a.json.gz"
    plain.write_bytes(canonical_json({"format": "rtk.plan"}))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert format_at(str(plain)) == format_at(str(packed)) == "rtk.plan"
    packed.write_bytes(b"\x1f\x8b damaged")
    assert format_at(str(packed)) is format_at(str(tmp_path / "none")) is None
    assert uses_of(str(plain))[0] == f"rtk simulate {plain}"


def test_a_folder_that_rtk_made_is_known(tmp_path: Path) -> None:
    """C16: an atlas in a file's place is told as one; any other folder is a folder."""
    with pytest.raises(InvalidInputError, match="Is a directory"):
        read_bytes(str(tmp_path))
    (tmp_path / "atlas.json").write_text(json.dumps({"format": "rtk.atlas"}))
    with pytest.raises(InvalidInputError, match="this is an atlas") as caught:
        read_bytes(str(tmp_path))
    assert "--from" in str(caught.value.fix)
