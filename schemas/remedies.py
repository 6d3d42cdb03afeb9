"""What to do about a file of another kind, and about a key in another place than its own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InvalidInputError
from .overwriting import format_in, head_of


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Args:
        name: with its article, as messages say it.
        made_by: the command that makes one.
        used_by: what commands are for it; FILE stands for its name.
    """

    name: str
    made_by: str
    used_by: tuple[str, ...]


KINDS = {
    "rtk.plan": Kind(
        "a plan",
        "rtk plan pipeline PROFILE --pp 2 --microbatches 8 -o plan.json",
        ("rtk simulate FILE", "rtk explain FILE", "rtk verify FILE", "rtk viz FILE", "rtk run FILE --model MODEL"),
    ),
    "rtk.profile": Kind(
        "a profile",
        "rtk profile MODEL -o p.json",
        ("rtk plan pipeline FILE --pp 2 --microbatches 8", "rtk profile compare FILE OTHER"),
    ),
    "rtk.templates": Kind(
        "a file of pipeline templates",
        "rtk plan templates PROFILE --nodes 4 -o templates.json",
        ("rtk plan oobleck FILE --nodes 4 --global-batch 64 --microbatch-size 4", "rtk viz FILE"),
    ),
    "rtk.timeline": Kind(
        "a timeline",
        "rtk simulate PLAN --timeline t.json",
        (
            "rtk viz FILE",
            "rtk verify PLAN --timeline FILE",
            "rtk profile refine PROFILE --timeline FILE",
            "rtk explain FILE",
            "rtk bubble FILE",
        ),
    ),
    "rtk.trace": Kind(
        "a trace",
        "rtk trace generate --nodes 4 --days 30 --mtbf 30d -o trace.json",
        ("rtk trace show FILE", "rtk replay --trace FILE", "rtk run PLAN --inject FILE"),
    ),
    "rtk.report": Kind("a report of a simulation", "rtk simulate PLAN --json", ()),
    "rtk.replay": Kind("a report of a replay", "rtk replay --profile PROFILE --trace TRACE", ("rtk viz FILE",)),
    "rtk.bubble": Kind("a report of bubbles", "rtk bubble TIMELINE -o bubbles.json", ("rtk viz FILE",)),
    "rtk.resumption": Kind(
        "a resumption (the rest of an iteration)",
        "rtk simulate PLAN --inject faults.jsonl --resumption r.json",
        ("rtk explain FILE", "rtk viz FILE", "rtk verify FILE"),
    ),
    "rtk.detection": Kind("a list of findings", "rtk detect LOG --json", ()),
    "rtk.ledger": Kind("a ledger of a job's GPU-hours", "rtk goodput LOG -o ledger.json", ("rtk viz FILE",)),
    "rtk.diagnosis": Kind("a diagnosis of settings", "rtk doctor JOB.sh --json", ()),
    "rtk.atlas": Kind(
        "an atlas", "rtk plan slipstream PROFILE --max-failures 2 -o atlas", ("rtk plan slipstream --from FOLDER",)
    ),
    "rtk.checkpoint": Kind("a checkpoint", "rtk run PLAN --checkpoint FOLDER", ("rtk run PLAN --resume FOLDER",)),
}

# Files of other people by a key that they have: what each is, and what rtk does with it.
FOREIGN = {
    "traceEvents": ("a Chrome trace", "look at it in ui.perfetto.dev; for rtk write a timeline: --timeline t.json"),
    "model_type": ("a Hugging Face config", "make a profile of it: rtk profile FILE -o p.json"),
    "architectures": ("a Hugging Face config", "make a profile of it: rtk profile FILE -o p.json"),
}

# Folders that rtk makes, by a file that is in them.
FOLDERS = {"atlas.json": "rtk.atlas", "checkpoint.json": "rtk.checkpoint"}


def other_kind(tree: Mapping[str, Any], needed: str, source: str) -> InvalidInputError:
    """The error for a document of another kind than the one that is needed.

    Args:
        tree: the document.
        needed: the format that is needed, such as `rtk.plan`.
        source: the file.
    """
    found, wanted = tree.get("format"), KINDS[needed]
    make = f"make {wanted.name}: {wanted.made_by}"
    if isinstance(found, str) and found in KINDS:
        kind = KINDS[found]
        uses = " or ".join(use.replace("FILE", source) for use in kind.used_by[:2])
        what = f"this is {kind.name}, {wanted.name} is needed here"
        return InvalidInputError(
            what, where=f"{source}, /format", fix=f"{make}{f'; or did you mean {uses}?' if uses else ''}"
        )
    for key, (name, fix) in FOREIGN.items():
        if "format" not in tree and key in tree:
            what = f"this is {name}, {wanted.name} is needed here"
            return InvalidInputError(what, where=source, fix=fix.replace("FILE", source))
    said = f"it says {found!r}" if "format" in tree else "the file names no format"
    return InvalidInputError(f"{wanted.name} is needed here; {said}", where=f"{source}, /format", fix=make)


def uses_of(path: str) -> list[str]:
    """What commands are for a file, by what it says it is; a look at its beginning is enough."""
    kind = KINDS.get(format_at(path) or "")
    if kind is None or not kind.used_by:
        return ["rtk simulate PLAN", "rtk viz PLAN", "rtk plan pipeline PROFILE …"]
    return [use.replace("FILE", path) for use in kind.used_by[:3]]


def format_at(path: str, most_bytes: int = 1 << 20) -> str | None:
    """The format of ours that a file says it has, by its beginning alone; None where it says none."""
    return format_in(head_of(Path(path), most_bytes))


def folder_error(path: str) -> InvalidInputError | None:
    """The error for a folder in a file's place, where rtk has made it; None for any other."""
    for name, kind in FOLDERS.items():
        if (Path(path) / name).exists():
            return InvalidInputError(
                f"this is {KINDS[kind].name}, a folder; a file is needed here", where=path, fix=_of_folder(path, kind)
            )
    return None


def _of_folder(path: str, kind: str) -> str:
    if kind == "rtk.checkpoint":
        return f"go on from it: rtk run PLAN --resume {path}"
    return f"take a plan from it: rtk plan slipstream --from {path} --failures 1 -o plan.json"


def home_of(key: str, place: tuple[str | int, ...], schema: Mapping[str, Any]) -> str | None:
    """Where a key belongs that stands in another place, as a JSON pointer; None where it belongs nowhere.

    Args:
        key: the key.
        place: the keys and indices that lead to where it stands, without itself.
        schema: the JSON Schema of the document.
    """
    homes = list(_homes(key, schema, schema, (), 12))
    if not homes:
        return None
    best = max(homes, key=lambda home: _shared(home, place))
    numbers = [part for part in place if isinstance(part, int)]
    return "/" + "/".join(str(numbers.pop(0) if numbers else 0) if part == "*" else part for part in best)


def _homes(
    key: str, tree: Mapping[str, Any], root: Mapping[str, Any], path: tuple[str, ...], depth: int
) -> Iterator[tuple[str, ...]]:
    """The places of all objects that may hold a key; `*` stands for an index."""
    if depth == 0:
        return
    if "$ref" in tree:
        name = tree["$ref"].rpartition("/")[2]
        yield from _homes(key, root["$defs"][name], root, path, depth - 1)
    properties = tree.get("properties", {})
    if key in properties:
        yield path
    for name, inner in properties.items():
        yield from _homes(key, inner, root, (*path, name), depth - 1)
    for name in ("items", "additionalProperties"):
        if isinstance(tree.get(name), dict):
            yield from _homes(key, tree[name], root, (*path, "*"), depth - 1)
    for inner in (*tree.get("anyOf", ()), *tree.get("prefixItems", ())):
        yield from _homes(key, inner, root, path, depth - 1)


def _shared(home: tuple[str, ...], place: tuple[str | int, ...]) -> int:
    """How far two places go the same way."""
    count = 0
    for one, other in zip(home, place, strict=False):
        if one not in ("*", other):
            break
        count += 1
    return count
