"""Reading and writing the JSON documents: validation at the border, canonical bytes.

Their JSON Schemas (2020-12) are generated from their classes and shipped beside this file: `python -m
rtk.schemas.documents` writes them again after a change; a test holds the shipped ones to the classes.
"""

import hashlib
import json
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from .errors import InvalidInputError
from .files import read_bytes, source_of, write_bytes
from .remedies import home_of, other_kind
from .text import near

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

from importlib.resources import files
from pathlib import Path

# Documents that have a placement (plan.py) are of version 2.0: readers of 1.x would take them for plain ones. Those
# that say what pairs of passes take, at which tensor-parallel degrees they were asked for, or that peers share the
# optimizer's state, are of version 3.0: readers of before do not know how long their orders last, on how many GPUs, or
# what has room there. All others stay 1.0, to the byte.
PLAIN_MAJOR, PLACED_MAJOR, NEWEST_MAJOR, FORMAT_MINOR = 1, 2, 3, 0
# By which properties of a document one of the newest version is known, and what it has then.
NEWEST = {
    "may_pair": "pairs of passes",
    "has_degrees": "tensor-parallel degrees",
    "shards_optimizer": "a sharded optimizer",
}
PLAIN_VERSION = f"{PLAIN_MAJOR}.{FORMAT_MINOR}"
# Beside seconds, the numbers without a unit that may be fractions.
FLOATS = frozenset({"bubble_ratio", "factor", "gap", "overlap", "slowdown", "weight_wait"})
FLOATS |= {"dependency_bubble_ratio", "even_ratio", "idle_over_compute", "imbalance"}

NOT_OURS = "give a file that rtk has written, or correct the place"

_VERSION = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")


class Document(Protocol):
    """A noun with a file format of its own: a dataclass that names its kind and checks its own consistency."""

    FORMAT: ClassVar[str]
    OPTIONAL: ClassVar[frozenset[str]]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def validate(self) -> None:
        """Raise InvalidInputError (with a JSON pointer as `where`) if the parts contradict each other."""
        ...


D = TypeVar("D", bound=Document)


def read_document(path: str, kind: type[D]) -> D:
    """Read one document of a kind from a file.

    Args:
        path: a file's path; `-` is standard input (see `opened`).
        kind: the document's class, such as Plan.

    Returns:
        The validated document.

    Raises:
        InvalidInputError: the file cannot be read, is not JSON, or breaks the format; says where.
    """
    return parse_document(read_bytes(path), kind, source_of(path))


def parse_document(data: bytes, kind: type[D], source: str) -> D:
    """Validate the bytes of one document; `source` names them in errors.

    A file of format version 1.0, 2.0 or 3.0 may hold only keys that are known; one of a later 1.x, 2.x or 3.x may hold
    others, which are ignored with a warning; another major version is refused, a placement in 1.x, and what pairs take,
    tensor-parallel degrees or a sharded optimizer in 1.x and 2.x.
    """
    return _document_of(_parse_json(data, source), kind, source)


def _document_of(tree: Any, kind: type[D], source: str) -> D:
    """Validate the JSON tree of one document."""
    if not isinstance(tree, dict):
        raise InvalidInputError("the document is not a JSON object", where=f"{source}, /")
    if tree.get("format") != kind.FORMAT:
        raise other_kind(tree, kind.FORMAT, source)
    version = tree.get("format_version")
    numbers = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if numbers is None:
        raise InvalidInputError(
            f"the format version {version!r} is not of the form major.minor", where=f"{source}, /format_version"
        )
    if not PLAIN_MAJOR <= int(numbers[1]) <= NEWEST_MAJOR:
        raise InvalidInputError(
            f"format version {version} is not known here, only {PLAIN_MAJOR}.x to {NEWEST_MAJOR}.x",
            where=f"{source}, /format_version",
            fix="use the rtk that wrote the file, or write it again with this one",
        )
    minor = int(numbers[2])
    body = {key: value for key, value in tree.items() if key not in ("format", "format_version")}
    document: D = _validate(body, kind, source, tolerate_unknown=minor > FORMAT_MINOR)
    try:
        if int(numbers[1]) < _major_of(document):
            has = _newest_of(document) or "a placement"
            raise InvalidInputError(
                f"the document has {has}, which format version {version} does not know",
                where="/format_version",
                fix=f"write {version_of(document)}, if that is meant",
            )
        document.validate()
    except InvalidInputError as error:
        raise InvalidInputError(error.what, where=f"{source}, {error.where}", fix=error.fix) from None
    return document


def read_one_of(path: str, *kinds: type[Any]) -> Any:
    """Read a document of one of several kinds, by what the file says that it is.

    Args:
        path: as of `read_document`.
        kinds: classes of documents; the first is meant where the file says something else.

    Raises:
        InvalidInputError: as of `read_document`.
    """
    source = source_of(path)
    tree = _parse_json(read_bytes(path), source)
    known = {kind.FORMAT: kind for kind in kinds}
    return _document_of(tree, known.get(_format_of(tree) or "", kinds[0]), source)


def sniff_format(data: bytes, source: str) -> str | None:
    """The `format` a JSON document names, None where it names none."""
    return _format_of(_parse_json(data, source))


def _format_of(tree: Any) -> str | None:
    name = tree.get("format") if isinstance(tree, dict) else None
    return name if isinstance(name, str) else None


def canonical(document: Document) -> bytes:
    """The one form of a document: sorted keys, shortest round-trip floats, newline at the end.

    Byte counts print as integers where they are whole, all other floats as floats, so equal documents are equal bytes.
    """
    tree = {"format": document.FORMAT, "format_version": version_of(document), **to_tree(document)}
    return canonical_json(tree)


def version_of(document: Document) -> str:
    """The lowest format version that can say a document."""
    return f"{_major_of(document)}.{FORMAT_MINOR}"


def _major_of(document: Document) -> int:
    """By what a document has; most kinds never have a placement, or operations that are written as with one."""
    if _newest_of(document):
        return NEWEST_MAJOR
    return PLACED_MAJOR if getattr(document, "is_placed", False) else PLAIN_MAJOR


def _newest_of(document: Document) -> str | None:
    """What a document has that only the newest version knows; None: nothing."""
    return next((has for name, has in NEWEST.items() if getattr(document, name, False)), None)


def canonical_json(tree: Any) -> bytes:
    """A JSON tree in the same form: for output that is no document, such as the problems `rtk verify` lists."""
    return (json.dumps(tree, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def digest(document: Document) -> str:
    """The sha256 of a document's canonical bytes, in hexadecimal."""
    return hashlib.sha256(canonical(document)).hexdigest()


def write_document(path: str, document: Document, *, in_own_folder: bool = False) -> None:
    """Write a document's canonical bytes to a file (gzip by `.gz`) or to standard output (`-`), as `written` does."""
    write_bytes(path, canonical(document), in_own_folder=in_own_folder)


def to_tree(value: Any, key: str = "") -> Any:
    """A document's dataclasses as JSON values; optional keys that hold None are left out."""
    if hasattr(value, "__dataclass_fields__"):
        optional: frozenset[str] = getattr(value, "OPTIONAL", frozenset())
        items = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: to_tree(item, name) for name, item in items if not (name in optional and item is None)}
    if isinstance(value, dict):
        return {str(name): to_tree(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_tree(item, key) for item in value]
    if isinstance(value, float) and key.endswith("_bytes") and value.is_integer():
        return int(value)
    if isinstance(value, int) and (key.endswith("_s") or key in FLOATS) and not isinstance(value, bool):
        return float(value)
    return value + 0.0 if isinstance(value, float) else value  # -0.0 becomes 0.0


@cache
def type_adapter(kind: type[Any]) -> "TypeAdapter[Any]":
    """The validator of a document's class (pydantic is imported only when a file is read)."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def typed(value: Any, kind: type[Any], where: str) -> Any:
    """A JSON value as one of our classes: of what a document holds without a type of its own, such as options.

    Args:
        value: whatever stands there.
        kind: the class, a dataclass whose fields are typed.
        where: the JSON pointer of the value.

    Raises:
        InvalidInputError: it is none; with the pointer of what is wrong.
    """
    from pydantic import ValidationError

    try:
        return type_adapter(kind).validate_json(json.dumps(value))  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        names = [str(part) for part in first["loc"] if part != "[key]"]
        what = f"{names[-1] if names else 'it'}: {first['msg'][0].lower()}{first['msg'][1:]}"
        place = where + "".join(pointer((name,)) for name in names)
        raise InvalidInputError(what, where=place, fix="correct the value, or let rtk plan write it again") from None


def pointer(parts: tuple[str | int, ...]) -> str:
    """A JSON pointer (RFC 6901) from the keys and indices that lead to a place."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts) or "/"


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object hook for `json.loads` that refuses doubled keys, of which JSON readers silently keep the last."""
    tree = dict(pairs)
    if len(tree) < len(pairs):
        names = [key for key, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {doubled!r} stands twice in one object")
    return tree


def _parse_json(data: bytes, source: str) -> Any:
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=unique_keys)
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"the file is not UTF-8 text (byte {error.start})", where=source, fix=NOT_OURS
        ) from error
    except json.JSONDecodeError as error:
        where = f"{source}, line {error.lineno} column {error.colno}"
        raise InvalidInputError(f"the file is not valid JSON: {error.msg}", where=where, fix=NOT_OURS) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the file is not valid JSON: {error}", where=source, fix=NOT_OURS) from error


def _validate(body: dict[str, Any], kind: type[D], source: str, tolerate_unknown: bool) -> D:
    from pydantic import ValidationError

    adapter = type_adapter(kind)
    while True:
        try:
            document: D = adapter.validate_json(json.dumps(body, allow_nan=False))
            return document
        except ValidationError as error:
            problems = error.errors(include_url=False)
            unknown = [problem for problem in problems if problem["type"] == "unexpected_keyword_argument"]
            if not (tolerate_unknown and unknown):
                raise _invalid(problems, kind, source) from None
            for problem in unknown:
                *outer, key = problem["loc"]
                tree: Any = body
                for part in outer:
                    tree = tree[part]
                del tree[key]
                warnings.warn(f"{source}, {pointer(problem['loc'])}: unknown key ignored", stacklevel=4)
        except ValueError:
            place, value = next(_not_finite(body, ()))
            what = f"{place[-1]}: {value} is not a finite number"
            raise InvalidInputError(what, where=f"{source}, {pointer(place)}", fix="correct the value") from None


def _not_finite(tree: Any, place: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], float]]:
    """Where NaN and infinities stand, which Python reads from JSON though it has no such numbers."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from _not_finite(value, (*place, key))
    if isinstance(tree, float) and not math.isfinite(tree):
        yield place, tree


def _invalid(problems: list["ErrorDetails"], kind: type[Document], source: str) -> InvalidInputError:
    # pydantic also finds a list too short when an item of it is wrong.
    found = [problem["loc"] for problem in problems if problem["type"] != "too_short"]
    problems = [
        problem
        for problem in problems
        if problem["type"] != "too_short" or not any(at[: len(problem["loc"])] == problem["loc"] for at in found)
    ]
    # Unknown keys come first: a mistyped key shows as two problems, and the unknown one names the mistake.
    first = min(problems, key=lambda problem: problem["type"] != "unexpected_keyword_argument")
    place = first["loc"]
    what, fix = _explain(first, kind)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return InvalidInputError(what + more, where=f"{source}, {pointer(place)}", fix=fix)


def _explain(problem: "ErrorDetails", kind: type[Document]) -> tuple[str, str]:
    key = str(problem["loc"][-1]) if problem["loc"] else ""
    if problem["type"] == "unexpected_keyword_argument":
        return f"unknown key {key!r}", _instead(key, problem["loc"][:-1], kind)
    if problem["type"] in ("missing", "missing_argument"):
        return f"the key {key!r} is missing", "add it (rtk schema prints what a file holds)"
    if problem["type"] == "json_invalid":
        reason = problem["ctx"]["error"].rpartition(" at line ")[0]
        return f"the file is not valid JSON: {reason}", "write plain JSON, not nested deeper than a hundred levels"
    value = json.dumps(problem["input"])
    shown = value if len(value) <= 60 else value[:57] + "..."
    message = problem["msg"][0].lower() + problem["msg"][1:]
    unit = "; times are in seconds, as numbers" if key.endswith("_s") else ""
    unit = "; sizes are in bytes, as numbers" if key.endswith("_bytes") else unit
    return f"{key}: {message}, not {shown}", f"correct the value{unit}"


def _instead(key: str, place: tuple[str | int, ...], kind: type[Document]) -> str:
    """What to do about an unknown key: it belongs elsewhere, is another one mistyped, or has nothing to do there."""
    home = home_of(key, place, type_adapter(kind).json_schema())
    if home is not None:
        return f"{key} belongs in {home}"
    names = sorted(_all_field_names(kind))
    stem = key.rpartition("_")[0]
    same_quantity = [name for name in names if stem and name.rpartition("_")[0] == stem]
    meant = same_quantity[0] if same_quantity else near(key, names)
    return f"did you mean {meant!r}?" if meant else "remove it (rtk schema prints what a file holds)"


def _all_field_names(kind: type[Document]) -> set[str]:
    def names(tree: Any) -> set[str]:
        if isinstance(tree, dict):
            own = set(tree["properties"]) if isinstance(tree.get("properties"), dict) else set()
            return own.union(*(names(value) for value in tree.values()))
        return set().union(*(names(value) for value in tree)) if isinstance(tree, list) else set()

    return {"format", "format_version"} | names(type_adapter(kind).json_schema())


@cache
def document_kinds() -> "dict[str, type[Document]]":
    """The documents by the name that `rtk schema` takes."""
    from .atlas import Atlas
    from .bubble import BubbleReport
    from .checkpoint import Checkpoint
    from .detection import Detection
    from .diagnosis import Diagnosis
    from .ledger import GoodputLedger
    from .plan import Plan
    from .profile import Profile
    from .replay import ReplayReport
    from .resumption import Resumption
    from .templates import Templates
    from .timeline import Report, Timeline
    from .trace import Trace

    kinds: list[type[Document]] = [
        Atlas, BubbleReport, Checkpoint, Detection, Diagnosis, GoodputLedger, Plan, Profile, ReplayReport, Report,
        Resumption, Templates, Timeline, Trace,
    ]  # fmt: skip
    return {kind.FORMAT.removeprefix("rtk."): kind for kind in kinds}


@cache
def schema_of(kind: "type[Document]") -> dict[str, Any]:
    """The JSON Schema of a document's class, with its format and version."""
    tree = type_adapter(kind).json_schema()
    known = {PLACED_MAJOR: ("is_placed",), NEWEST_MAJOR: tuple(NEWEST)}
    later = "".join(str(major) for major, says in known.items() if any(hasattr(kind, name) for name in says))
    majors = f"[{PLAIN_MAJOR}{later}]" if later else f"{PLAIN_MAJOR}"
    header = {
        "format": {"const": kind.FORMAT},
        "format_version": {"type": "string", "pattern": f"^{majors}\\.[0-9]+$"},
    }
    return {
        **tree,
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{kind.FORMAT.replace('.', ':')}:1.0",
        "properties": {**header, **tree.get("properties", {})},
        "required": [*header, *tree.get("required", [])],
    }


def shipped_schema(name: str) -> bytes:
    """The bytes of a shipped schema, by its short name such as `plan`; `job` is that of `rtk.toml`.

    Raises:
        InvalidInputError: there is none of that name.
    """
    if name == "job":
        from .job_file import job_schema

        return canonical_json(job_schema())
    if name not in document_kinds():
        names = sorted([*document_kinds(), "job"])
        raise InvalidInputError(f"there is no schema {name!r}", fix=f"the schemas are {', '.join(names)}")
    return files("rtk.schemas").joinpath(f"{name}.schema.json").read_bytes()


if __name__ == "__main__":
    for short_name, document_kind in document_kinds().items():
        Path(__file__).with_name(f"{short_name}.schema.json").write_bytes(canonical_json(schema_of(document_kind)))
