"""Files: canonical bytes, `.gz`, `-`, atomic writing, and one clear error with its place for every bad input."""

import gzip
import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.documents import (
    canonical,
    canonical_json,
    digest,
    parse_document,
    pointer,
    read_document,
    read_one_of,
    sniff_format,
    to_tree,
    write_document,
)
from rtk.schemas.errors import InfeasibleError, InvalidInputError, RtkError, RuntimeFailedError
from rtk.schemas.files import read_bytes, write_bytes
from rtk.schemas.plan import Plan, Worker
from rtk.schemas.profile import Profile
from rtk.schemas.timeline import Timeline

from ..strategies import plans, profiles

GOLDEN = Path(__file__).parents[1] / "golden"
PLAN = GOLDEN / "plan-two-stages.json"
Change = Callable[[dict[str, Any]], None]


@given(plans(max_pp=3, max_microbatches=3))
def test_plans_round_trip(plan: Plan) -> None:
    """A printed plan reads back equal, and prints again as the same bytes."""
    data = canonical(plan)
    again = parse_document(data, Plan, "printed")
    assert again == plan
    assert canonical(again) == data
    assert digest(again) == digest(plan)


@given(profiles())
def test_profiles_round_trip(profile: Profile) -> None:
    """A printed profile reads back equal, and prints again as the same bytes."""
    data = canonical(profile)
    again = parse_document(data, Profile, "printed")
    assert again == profile
    assert canonical(again) == data


@given(st.floats(0, 1e300))
def test_floats_print_shortest_and_read_back(seconds: float) -> None:
    """Every float reads back to the last bit; whole byte counts print as integers, times never do."""
    tree = json.loads(canonical_json(to_tree({"x_s": seconds, "y_bytes": seconds, "z_s": 3})))
    assert tree["x_s"] == seconds
    assert tree["y_bytes"] == seconds
    assert isinstance(tree["x_s"], float)
    assert isinstance(tree["z_s"], float)
    assert isinstance(tree["y_bytes"], int) == seconds.is_integer()


def test_equal_documents_are_equal_bytes() -> None:
    """Zeros of either sign and whole numbers written as integers print alike."""
    assert to_tree({"a_s": -0.0, "b_bytes": -0.0}) == {"a_s": 0.0, "b_bytes": 0}
    assert math.copysign(1, to_tree({"a_s": -0.0})["a_s"]) == 1
    assert canonical_json(to_tree({"a_s": 1})) == canonical_json(to_tree({"a_s": 1.0}))


def test_canonical_file_round_trips_byte_for_byte() -> None:
    """The shared example of a plan is canonical: it is read and printed as the same bytes."""
    assert canonical(read_document(str(PLAN), Plan)) == PLAN.read_bytes()


@pytest.mark.parametrize("name", ["profile-adaptra4.json", "profile-slots4.json"])
def test_short_files_gain_their_defaults_once(name: str) -> None:
    """The shared profiles leave defaults out: their canonical form names them, and is then its own canonical form."""
    profile = read_document(str(GOLDEN / name), Profile)
    data = canonical(profile)
    assert parse_document(data, Profile, "printed") == profile
    written = json.loads((GOLDEN / name).read_bytes())
    assert (
        json.loads(data)["layers"][0].items() >= {k: v for k, v in written["layers"][0].items() if k != "costs"}.items()
    )


def test_canonical_form_is_sorted_utf8_with_a_newline() -> None:
    """Keys are sorted, text is not escaped, the file ends in one newline."""
    assert canonical_json({"b": 1, "a": "µ"}) == '{\n  "a": "µ",\n  "b": 1\n}\n'.encode()


def test_gz_is_deterministic_and_chosen_by_the_ending(tmp_path: Path) -> None:
    """Equal plans give equal `.gz` bytes, under any name and at any time, and read back equal."""
    plan = read_document(str(PLAN), Plan)
    first, second = tmp_path / "a.json.gz", tmp_path / "b.json.gz"
    write_document(str(first), plan)
    write_document(str(second), plan)
    assert first.read_bytes() == second.read_bytes()
    assert gzip.decompress(first.read_bytes()) == PLAN.read_bytes()
    assert first.read_bytes()[4:8] == b"\0\0\0\0"  # no time stamp
    assert read_document(str(first), Plan) == plan


def test_dash_is_standard_input_and_output() -> None:
    """`-` reads from standard input and writes to standard output, the same bytes."""
    script = (
        "from rtk.schemas.documents import read_document, write_document\n"
        "from rtk.schemas.plan import Plan\n"
        "write_document('-', read_document('-', Plan))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], input=PLAN.read_bytes(), capture_output=True, check=True)
    assert done.stdout == PLAN.read_bytes()


def test_errors_of_standard_input_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in piped data says `standard input` where a file's name would stand."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[]")))
    with pytest.raises(InvalidInputError) as caught:
        read_document("-", Plan)
    assert caught.value.where == "standard input, /"


def test_written_file_has_the_usual_permissions(tmp_path: Path) -> None:
    """A written file is as readable as the user's umask lets any new file be."""
    target, plain = tmp_path / "a.json", tmp_path / "plain"
    plain.touch()
    write_bytes(str(target), b"x")
    assert target.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("failing", ["replace", "chmod"])
def test_failing_write_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """When writing fails half-way the old file keeps its bytes and no temporary file stays."""
    target = tmp_path / "a.json"
    target.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, failing, fail)
    with pytest.raises(InvalidInputError, match="No space left on device") as caught:
        write_bytes(str(target), b"new")
    assert caught.value.where == str(target)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert target.read_bytes() == b"old"


def test_interrupted_write_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control-C during a write cleans up, too."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(str(tmp_path / "a.json"), b"new")
    assert list(tmp_path.iterdir()) == []


def test_document_that_cannot_be_printed_writes_nothing(tmp_path: Path) -> None:
    """A document is printed whole before a file is touched."""
    profile = Profile((), model={"name": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        write_document(str(tmp_path / "a.json"), profile)
    assert list(tmp_path.iterdir()) == []


def test_writing_into_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    """A folder that is not there is named, and not made."""
    with pytest.raises(InvalidInputError, match="cannot write the file: No such file or directory"):
        write_bytes(str(tmp_path / "none" / "a.json"), b"x")


def test_special_files_are_written_through() -> None:
    """`/dev/null` is written to, not renamed over."""
    write_bytes("/dev/null", b"x")
    assert not Path("/dev/null").is_file()


def test_pipe_is_written_through(tmp_path: Path) -> None:
    """A named pipe gets the bytes and stays a pipe."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_bytes(str(path), b"hello")
    assert os.read(reader, 10) == b"hello"
    os.close(reader)
    assert path.is_fifo()


def _stage(tree: dict[str, Any]) -> dict[str, Any]:
    stage: dict[str, Any] = tree["templates"][0]["stages"][1]
    return stage


def _with(place: str, value: Any) -> Change:
    """Set the value at a JSON pointer."""

    def change(tree: Any) -> None:
        *path, last = [int(part) if part.isdigit() else part for part in place.split("/")[1:]]
        for part in path:
            tree = tree[part]
        tree[last] = value

    return change


def _without(key: str) -> Change:
    def change(tree: dict[str, Any]) -> None:
        del _stage(tree)[key]

    return change


def _renamed(key: str, other: str) -> Change:
    def change(tree: dict[str, Any]) -> None:
        _stage(tree)[other] = _stage(tree).pop(key)

    return change


STAGE = "/templates/0/stages/1"
BAD: dict[str, tuple[Change, str, str, str]] = {
    "unknown key": (_with(f"{STAGE}/forwad_s", 1), "unknown key 'forwad_s'", f"{STAGE}/forwad_s", "'forward_s'"),
    "unknown top key": (_with("/plannr", 1), "unknown key 'plannr'", "/plannr", "did you mean 'planner'?"),
    "unlike any key": (_with("/zzz", 1), "unknown key 'zzz'", "/zzz", "rtk schema"),
    "key with slash": (_with("/x", {}), "unknown key 'x'", "/x", ""),
    "missing key": (_without("forward_s"), "the key 'forward_s' is missing", f"{STAGE}/forward_s", "add it"),
    "wrong unit": (
        _renamed("forward_s", "forward_ms"),
        "unknown key 'forward_ms'",
        f"{STAGE}/forward_ms",
        "'forward_s'",
    ),
    "negative time": (
        _with(f"{STAGE}/forward_s", -1),
        "forward_s: input should be greater",
        f"{STAGE}/forward_s",
        "seconds",
    ),
    "NaN": (_with(f"{STAGE}/forward_s", math.nan), "forward_s: nan is not a finite", f"{STAGE}/forward_s", ""),
    "infinity": (_with(f"{STAGE}/forward_s", -math.inf), "forward_s: -inf is not a finite", f"{STAGE}/forward_s", ""),
    "free infinity": (_with("/planner/options", {"a": [1, math.inf]}), "1: inf is not", "/planner/options/a/1", ""),
    "bool for number": (_with(f"{STAGE}/forward_s", True), "a valid number, not true", f"{STAGE}/forward_s", ""),
    "string for number": (_with(f"{STAGE}/forward_s", "1"), 'a valid number, not "1"', f"{STAGE}/forward_s", ""),
    "null for number": (_with(f"{STAGE}/forward_s", None), "a valid number, not null", f"{STAGE}/forward_s", ""),
    "fraction for count": (_with("/pipelines/0/microbatches", 1.5), "a valid integer", "/pipelines/0/microbatches", ""),
    "float for count": (_with("/pipelines/0/microbatches", 2.0), "a valid integer", "/pipelines/0/microbatches", ""),
    "zero for count": (
        _with("/pipelines/0/microbatches", 0),
        "greater than or equal to 1",
        "/pipelines/0/microbatches",
        "",
    ),
    "giant count": (
        _with("/pipelines/0/microbatches", 10**30),
        "less than 1000000000",
        "/pipelines/0/microbatches",
        "",
    ),
    "giant time": (_with(f"{STAGE}/forward_s", 10**400), "less than 1000000000000000", f"{STAGE}/forward_s", ""),
    "negative bytes": (
        _with(f"{STAGE}/activation_bytes", -1),
        "greater than or equal to 0",
        f"{STAGE}/activation_bytes",
        "bytes",
    ),
    "list for object": (_with("/prediction", []), "should be an object, not []", "/prediction", ""),
    "object for list": (_with("/workers", {}), "workers: ", "/workers", ""),
    "wrong word": (_with("/optimizer", "sync"), "'synchronous' or 'staggered', not \"sync\"", "/optimizer", ""),
    "failed: false": (_with("/workers/0/failed", False), "input should be True", "/workers/0/failed", ""),
    "empty name": (_with("/templates/0/name", ""), "at least 1 character", "/templates/0/name", ""),
    "major": (
        _with("/format_version", "4.0"),
        "format version 4.0 is not known here",
        "/format_version",
        "the rtk that wrote",
    ),
    "version number": (_with("/format_version", 1.0), "not of the form major.minor", "/format_version", ""),
    "version zeros": (_with("/format_version", "01.0"), "not of the form major.minor", "/format_version", ""),
    "version digits": (
        _with("/format_version", "1." + "9" * 5000),
        "not of the form major.minor",
        "/format_version",
        "",
    ),
    "format": (
        _with("/format", "rtk.profile"),
        "this is a profile, a plan is needed here",
        "/format",
        "rtk plan pipeline",
    ),
    "deep nesting": (
        _with("/planner/options", {"a": json.loads("[" * 500 + "]" * 500)}),
        "not valid JSON",
        "/",
        "deeper",
    ),
}


def _bytes_of(change: Change) -> bytes:
    tree = json.loads(PLAN.read_bytes())
    change(tree)
    return json.dumps(tree).encode()


@pytest.mark.parametrize("name", BAD)
def test_bad_plan_is_refused_at_its_place(name: str) -> None:
    """One clear error: what is wrong, the file and the exact JSON pointer, and what to do."""
    change, what, where, fix = BAD[name]
    with pytest.raises(InvalidInputError) as caught:
        parse_document(_bytes_of(change), Plan, "p.json")
    error = caught.value
    assert what in error.what
    assert error.where == f"p.json, {where}"
    assert fix in (error.fix or "")
    assert error.exit_code == 2


def test_pointer_escapes_slashes_and_tildes() -> None:
    """JSON pointers follow RFC 6901: `~` is `~0`, `/` is `~1`."""
    with pytest.raises(InvalidInputError) as caught:
        parse_document(_bytes_of(lambda tree: _stage(tree).update({"a/b~c": 1})), Plan, "p.json")
    assert caught.value.where == f"p.json, {STAGE}/a~1b~0c"
    assert pointer(("a", 0, "~/")) == "/a/0/~0~1"


def test_error_counts_what_else_is_wrong() -> None:
    """The first problem is told, the others are counted, and a list is not called short for its bad items."""
    with pytest.raises(InvalidInputError, match="and 1 more"):
        parse_document(_bytes_of(_renamed("forward_s", "forward_ms")), Plan, "p.json")
    with pytest.raises(InvalidInputError) as caught:
        parse_document(_bytes_of(_with(f"{STAGE}/forward_s", -1)), Plan, "p.json")
    assert "more" not in caught.value.what


@pytest.mark.parametrize(
    ("old", "new", "what", "where"),
    [
        (b'"forward_s": 1.0', b'"forward_s": 1e999', "inf is not a finite number", "/templates/0/stages/0/forward_s"),
        (b'"forward_s": 1.0', b'"forward_s": NaN', "nan is not a finite number", "/templates/0/stages/0/forward_s"),
        (b'"seed": 0', b'"seed": 0, "seed": 1', "the key 'seed' stands twice in one object", ""),
        (b'"by hand"', b'"\\ud800"', "not valid JSON", "/"),
        (b'"by hand"', b'"\xff"', "the file is not UTF-8 text (byte ", ""),
        (b'"format"', b"format", "not valid JSON: Expecting property name", "line 2 column 3"),
        (b'"seed": 0', b'"seed": 0,', "not valid JSON", "line "),
        (b"{", b"\xef\xbb\xbf{", "Unexpected UTF-8 BOM", "line 1 column 1"),
    ],
)
def test_bad_text_is_refused(old: bytes, new: bytes, what: str, where: str) -> None:
    """What is no strict JSON, or no UTF-8, or holds a key twice, is refused and placed as well as can be."""
    with pytest.raises(InvalidInputError) as caught:
        parse_document(PLAN.read_bytes().replace(old, new, 1), Plan, "p.json")
    assert what in caught.value.what
    assert (caught.value.where or "").startswith(f"p.json, {where}" if where else "p.json")


@pytest.mark.parametrize("depth", [150, 250, 900, 940, 960, 980, 990, 1000, 5000, 200_000])
def test_nesting_of_any_depth_never_crashes(depth: int) -> None:
    """Deeply nested JSON is read or refused, never a crash of the reader."""
    nested = b'"options": {"a": ' + b"[" * depth + b"]" * depth + b"}"
    data = PLAN.read_bytes().replace(b'"options": {}', nested)
    try:
        parse_document(data, Plan, "p.json")
    except InvalidInputError as error:
        assert "not valid JSON" in error.what


@pytest.mark.parametrize(
    ("data", "what"), [(b"", "Expecting value"), (b"[]", "not a JSON object"), (b"{}", "no format")]
)
def test_other_json_is_refused(data: bytes, what: str) -> None:
    """Empty files, lists and objects without a format are no documents."""
    with pytest.raises(InvalidInputError, match=what):
        parse_document(data, Plan, "p.json")


def test_newer_minor_version_ignores_unknown_keys_with_a_warning() -> None:
    """A file of version 1.7 may hold keys that are unknown here, at any depth; each is warned of by its place."""

    def change(tree: dict[str, Any]) -> None:
        tree["format_version"] = "1.7"
        tree["colour"] = "red"
        _stage(tree)["a/b"] = {"c": 1}

    with pytest.warns(UserWarning, match="unknown key ignored") as warned:
        plan = parse_document(_bytes_of(change), Plan, "p.json")
    assert plan == read_document(str(PLAN), Plan)
    places = {str(warning.message) for warning in warned}
    assert places == {f"p.json, {place}: unknown key ignored" for place in ("/colour", f"{STAGE}/a~1b")}


def test_newer_minor_version_still_needs_the_known_keys() -> None:
    """Unknown keys of a later minor version excuse neither a missing key nor a wrong value."""

    def change(tree: dict[str, Any]) -> None:
        tree["format_version"] = "1.1"
        _renamed("forward_s", "forward_ms")(tree)

    with pytest.warns(UserWarning), pytest.raises(InvalidInputError, match="'forward_s' is missing"):
        parse_document(_bytes_of(change), Plan, "p.json")


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there, or a folder, is one error with its path."""
    with pytest.raises(InvalidInputError, match="No such file or directory") as caught:
        read_document(str(tmp_path / "none.json"), Plan)
    assert caught.value.where == str(tmp_path / "none.json")
    with pytest.raises(InvalidInputError, match="Is a directory"):
        read_bytes(str(tmp_path))


@pytest.mark.parametrize("cut", [3, 12, 40, -1, -9])
def test_truncated_gz_is_an_error(tmp_path: Path, cut: int) -> None:
    """A gzip file cut anywhere is refused as damaged."""
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(PLAN.read_bytes(), mtime=0)[:cut])
    with pytest.raises(InvalidInputError, match="damaged or cut short") as caught:
        read_document(str(path), Plan)
    assert caught.value.where == str(path)


def test_damaged_gz_is_an_error(tmp_path: Path) -> None:
    """Flipped bytes, and plain JSON under a `.gz` name, are refused as damaged."""
    path = tmp_path / "a.json.gz"
    data = bytearray(gzip.compress(PLAN.read_bytes(), mtime=0))
    for place in (20, len(data) // 2, len(data) - 6):
        flipped = data.copy()
        flipped[place] ^= 0xFF
        path.write_bytes(flipped)
        with pytest.raises(InvalidInputError, match="damaged or cut short"):
            read_bytes(str(path))
    path.write_bytes(PLAN.read_bytes())
    with pytest.raises(InvalidInputError, match="damaged or cut short"):
        read_bytes(str(path))


def test_sniffing_names_the_format() -> None:
    """The format of a file can be asked before it is read."""
    assert sniff_format(PLAN.read_bytes(), "p.json") == "rtk.plan"
    assert sniff_format(b"{}", "p.json") is None
    assert sniff_format(b'{"format": 3}', "p.json") is None
    assert sniff_format(b"[]", "p.json") is None


def test_a_file_of_several_kinds_is_read_as_what_it_says() -> None:
    """Of kinds that may be meant the file's own is read; a file of none of them is refused as the first would be."""
    assert read_one_of(str(PLAN), Profile, Plan) == read_document(str(PLAN), Plan)
    with pytest.raises(InvalidInputError) as several:
        read_one_of(str(PLAN), Profile, Timeline)
    with pytest.raises(InvalidInputError) as one:
        read_document(str(PLAN), Profile)
    assert str(several.value) == str(one.value)


def test_errors_have_three_lines_and_an_exit_code() -> None:
    """An error prints what, where and what to do, a line each, and has its exit code."""
    assert str(RtkError("what", where="here", fix="this")) == "what\nat: here\ndo: this"
    assert str(RtkError("what")) == "what"
    assert [kind.exit_code for kind in (InvalidInputError, InfeasibleError, RuntimeFailedError)] == [2, 3, 5]


def test_optional_keys_are_left_out() -> None:
    """Keys that hold nothing and need not stand do not stand in the file."""
    assert to_tree(Worker(0, 1, "F0 B0")) == {"pipeline": 0, "stage": 1, "order": "F0 B0"}
    assert to_tree(Worker(0, 1, failed=True)) == {"pipeline": 0, "stage": 1, "failed": True}
