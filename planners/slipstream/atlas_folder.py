"""The folder of an atlas: `atlas.json`, stored plans beside it, and a journal while it is being made.

The journal, `unfinished.jsonl`, is what an interruption leaves: its first line is everything that the plans have in
common, each further line an entry that was finished. Run again with the same inputs, the command goes on from there.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...schemas.atlas import Atlas, AtlasEntry
from ...schemas.documents import (
    parse_document,
    pointer,
    read_document,
    to_tree,
    type_adapter,
    version_of,
    write_document,
)
from ...schemas.errors import InvalidInputError
from ...schemas.files import STANDARD_STREAM, read_bytes
from ...schemas.plan import Plan
from ...schemas.text import listed

ATLAS, JOURNAL, PLANS = "atlas.json", "unfinished.jsonl", "plans"


class AtlasFolder:
    """An atlas that is being made: `begin` once, `append` each entry that is finished, `finish` with the whole.

    One process makes an atlas at a time. Killed anywhere, it loses none of the entries whose `append` had returned.

    Args:
        path: the folder; it may be there already, the folder that it stands in must be.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._is_stream = path == STANDARD_STREAM

    def begin(self, opening: Atlas) -> dict[int, AtlasEntry]:
        """Make the folder or go on in it.

        Args:
            opening: the atlas without plans; together they determine every entry, so entries that stand in the folder
                are taken for finished if, and only if, they were made with an equal opening.

        Returns:
            The finished entries by their number of failed units, of the journal and of a finished atlas (which may
            have ended at fewer failures). An entry whose stored plan is gone or damaged is not among them.

        Raises:
            InvalidInputError: the folder cannot be written, is of other inputs, or is damaged.
        """
        if self._is_stream:
            raise InvalidInputError(
                "an atlas is a folder, it cannot go to standard output", where="-", fix="name a folder to write it to"
            )
        try:
            self.path.mkdir(exist_ok=True)
        except FileNotFoundError:
            raise InvalidInputError(
                "the folder that the atlas would stand in is not there", where=str(self.path), fix="make it first"
            ) from None
        except FileExistsError:
            raise InvalidInputError(
                "an atlas is a folder, and a file stands here", where=str(self.path), fix="name another place"
            ) from None
        except OSError as error:
            raise _unwritable(self.path, error) from error
        entries: dict[int, AtlasEntry] = {}
        if _stands(self.path / ATLAS):
            made = read_document(str(self.path / ATLAS), Atlas)
            self._demand_same_inputs(_common(made), opening, "the atlas")
            entries = dict(enumerate(made.plans))
        entries.update((entry.failed_units, entry) for entry in self._journal_entries(opening))
        return {number: entry for number, entry in sorted(entries.items()) if self._holds_its_plan(entry)}

    def append(self, entry: AtlasEntry, plan: Plan | None = None) -> None:
        """Keep a finished entry, and its plan if one is given: before the entry, which promises that it is there.

        Raises:
            InvalidInputError: the folder cannot be written.
        """
        if plan is not None:
            self.write_plan(entry.failed_units, plan)
        # Handed to the kernel, a line outlives this process. It is not forced to the disk: that takes milliseconds an
        # entry, and would save from a power cut what is made again in less, for `begin` finds out what is missing.
        self._append_line(to_tree(entry))

    def write_plan(self, failed_units: int, plan: Plan) -> None:
        """Write a plan into `plans/`, as `append` does.

        Raises:
            InvalidInputError: the folder cannot be written.
        """
        target = plan_path(self.path, failed_units)
        try:
            target.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise _unwritable(target.parent, error) from error
        write_document(str(target), plan, in_own_folder=True)

    def finish(self, atlas: Atlas) -> None:
        """Write `atlas.json`, and only then remove the journal and what kills have left half-written.

        Raises:
            InvalidInputError: the atlas contradicts itself, or the folder cannot be written.
        """
        atlas.validate()
        write_document(str(self.path / ATLAS), atlas, in_own_folder=True)
        try:
            # The journal goes for good, so what replaces it must be on the disk.
            with (self.path / ATLAS).open("rb") as stream:
                os.fsync(stream.fileno())
            (self.path / JOURNAL).unlink(missing_ok=True)
            for leftover in [*self.path.glob(f".{ATLAS}.*"), *(self.path / PLANS).glob(".*.json.gz.*")]:
                leftover.unlink()
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _journal_entries(self, opening: Atlas) -> Iterator[AtlasEntry]:
        """Open the journal, cut to its whole lines, or begin one; then its entries."""
        journal = self.path / JOURNAL
        lines = _whole_lines(journal)
        try:
            with journal.open("ab") as stream:
                stream.truncate(sum(map(len, lines)))  # a kill may have cut the last line short
        except OSError as error:
            raise _unwritable(journal, error) from error
        if not lines:
            self._append_line(_common(opening))
            return
        try:
            common = json.loads(lines[0])
        except (ValueError, RecursionError) as error:
            raise _damaged(str(error), f"{journal}, line 1", "remove the folder") from None
        self._demand_same_inputs(common, opening, "the unfinished atlas")
        for number, line in enumerate(lines[1:], start=2):
            yield _parse_entry(line, opening, f"{journal}, line {number}")

    def _append_line(self, tree: Any) -> None:
        journal = self.path / JOURNAL
        line = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n"
        try:
            with journal.open("ab") as stream:
                stream.write(line.encode())
        except OSError as error:
            raise _unwritable(journal, error) from error

    def _demand_same_inputs(self, found: Any, opening: Atlas, what: str) -> None:
        places = [pointer(place) for place in _differences(found, _common(opening), ())]
        if places:
            raise InvalidInputError(
                f"the folder holds {what} of other inputs: they differ at {listed(places)}",
                where=str(self.path),
                fix="give another folder, or remove this one",
            )

    def _holds_its_plan(self, entry: AtlasEntry) -> bool:
        # Only a power cut or a hand loses a stored plan; the entry is then made again.
        try:
            return entry.recipe.stored is None or bool(_stored_bytes(self.path, entry))
        except InvalidInputError:
            return False


def read_atlas(path: str) -> Atlas:
    """Read the finished atlas of a folder.

    Args:
        path: the folder.

    Raises:
        InvalidInputError: there is no atlas, it is unfinished, its file breaks the format, or it contradicts itself.
    """
    from .rerouting import require_consistent

    folder = Path(path)
    if _stands(folder / ATLAS):
        atlas = read_document(str(folder / ATLAS), Atlas)
        with of_atlas(path):
            require_consistent(atlas)
        return atlas
    if _stands(folder / JOURNAL):
        count = max(0, len(_whole_lines(folder / JOURNAL)) - 1)
        raise InvalidInputError(
            f"the atlas is unfinished: {count} plans are there",
            where=path,
            fix="run the command that makes it again: it goes on where it stopped",
        )
    raise InvalidInputError(
        "there is no atlas here", where=path, fix=f"give a folder that holds {ATLAS}, as rtk plan slipstream writes it"
    )


@contextmanager
def of_atlas(path: str) -> Iterator[None]:
    """Errors that name a place in the atlas, by its JSON pointer, name the file as well."""
    try:
        yield
    except InvalidInputError as error:
        if error.where is None or not error.where.startswith("/"):
            raise
        raise InvalidInputError(error.what, where=f"{Path(path) / ATLAS}, {error.where}", fix=error.fix) from error


def stored_plan(path: str, entry: AtlasEntry) -> Plan:
    """Read the plan that stands beside an atlas, where an entry's recipe is `stored`.

    Args:
        path: the atlas's folder.
        entry: of that atlas.

    Raises:
        InvalidInputError: the plan is not there, or is not the one that the recipe names.
    """
    return parse_document(_stored_bytes(Path(path), entry), Plan, str(plan_path(Path(path), entry.failed_units)))


def plan_path(folder: Path, failed_units: int) -> Path:
    """Where the plan for a number of failed units stands in an atlas's folder."""
    return folder / PLANS / f"{failed_units}.json.gz"


def _stored_bytes(folder: Path, entry: AtlasEntry) -> bytes:
    source = str(plan_path(folder, entry.failed_units))
    data = read_bytes(source)
    # Plans are written canonically: this is `schemas.documents.digest`, without parsing a plan of millions of bytes.
    if hashlib.sha256(data).hexdigest() != entry.recipe.stored:
        raise InvalidInputError(
            "this is not the plan that the atlas was made with: its sha256 is another",
            where=source,
            fix=f"bring that file back, or remove {ATLAS} and make the atlas again",
        )
    return data


def _common(atlas: Atlas) -> dict[str, Any]:
    """What all plans of an atlas have in common, as JSON."""
    tree = {name: value for name, value in to_tree(atlas).items() if name != "plans"}
    return {"format": Atlas.FORMAT, "format_version": version_of(atlas), **tree}


def _whole_lines(journal: Path) -> list[bytes]:
    """The lines of a journal that end in a newline; none where there is no journal."""
    data = read_bytes(str(journal)) if _stands(journal) else b""
    return [line + b"\n" for line in data.split(b"\n")[:-1]]


def _stands(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder that may not be looked into: reading the file says so
        return True


def _parse_entry(line: bytes, opening: Atlas, where: str) -> AtlasEntry:
    from pydantic import ValidationError

    fix = "remove this line: its plan is then made again"
    try:
        entry: AtlasEntry = type_adapter(AtlasEntry).validate_json(line)
        opening.validate_entry(entry, "")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _damaged(first["msg"], f"{where}, {pointer(first['loc'])}", fix) from None
    except InvalidInputError as error:
        raise _damaged(error.what, f"{where}, {error.where}", fix) from None
    return entry


def _differences(one: Any, other: Any, place: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The keys, down through objects, at which two JSON values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from _differences(one.get(key), other.get(key), (*place, key))
    elif one != other:
        yield place


def _damaged(what: str, where: str, fix: str) -> InvalidInputError:
    return InvalidInputError(f"the journal of the unfinished atlas is damaged: {what}", where=where, fix=fix)


def _unwritable(path: Path, error: OSError) -> InvalidInputError:
    reason = error.strerror or str(error)
    return InvalidInputError(
        f"cannot write the atlas: {reason}", where=str(path), fix="check the path and its permissions"
    )
