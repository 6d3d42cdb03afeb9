"""Reading YAML files that people write: every value knows its place, so that errors can say file, line and key.

Nothing is constructed: scalars stay the text that stands there, so `4:2` is not the number 242, nor `no` a falsehood.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..schemas.documents import pointer
from ..schemas.errors import InvalidInputError
from ..schemas.files import read_bytes, source_of
from ..schemas.text import near

if TYPE_CHECKING:
    from yaml.nodes import Node


@dataclass(frozen=True)
class Value:
    """A value of a YAML file, and where it stands."""

    node: "Node"
    source: str
    keys: tuple[str | int, ...] = ()

    @property
    def where(self) -> str:
        """File, line and key path, for errors."""
        return f"{self.source}, line {self.node.start_mark.line + 1}, {pointer(self.keys)}"

    def wrong(self, what: str, fix: str) -> InvalidInputError:
        """An error at this place."""
        return InvalidInputError(what, where=self.where, fix=fix)

    def entries(self, known: Collection[str] | None = None) -> "dict[str, Value]":
        """The values of a mapping by their keys, which must be among the known ones where these are given.

        Raises:
            InvalidInputError: it is no mapping, has a key twice, or one that is not known.
        """
        if self.node.id != "mapping":
            raise self.wrong("a mapping is needed here", "write `key: value`, a line each")
        found: dict[str, Value] = {}
        for key_node, node in self.node.value:
            key = Value(key_node, self.source, self.keys).text()
            value = Value(node, self.source, (*self.keys, key))
            place = Value(key_node, self.source, value.keys)
            if key in found:
                raise place.wrong(f"the key {key!r} stands twice", "write it once")
            if known is not None and key not in known:
                raise place.wrong(f"unknown key {key!r}", _suggestion(key, known))
            found[key] = value
        return found

    def items(self) -> "list[Value]":
        """The values of a list.

        Raises:
            InvalidInputError: it is none.
        """
        if self.node.id != "sequence":
            raise self.wrong("a list is needed here", "write [one, other], or a line `- one` each")
        return [Value(node, self.source, (*self.keys, number)) for number, node in enumerate(self.node.value)]

    def text(self) -> str:
        """What stands there.

        Raises:
            InvalidInputError: it is a list, a mapping, or nothing.
        """
        if self.node.id != "scalar" or not self.node.value.strip():
            raise self.wrong("a text or a number is needed here", "write one value")
        return str(self.node.value).strip()

    def count(self) -> int:
        """A whole number of 1 or more.

        Raises:
            InvalidInputError: it is none.
        """
        text = self.text()
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
            raise self.wrong(f"{text!r} is no whole number of 1 or more", "write one such as 8")
        return int(text)

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return bool(self.node.id == "sequence")


def read_yaml(path: str) -> Value:
    """Read one YAML document from a file; `-` is standard input.

    Raises:
        InvalidInputError: the file cannot be read, is empty, or is not YAML; says the line.
    """
    import yaml

    source = source_of(path)
    try:
        node = yaml.compose(read_bytes(path).decode(), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"the file is not UTF-8 text (byte {error.start})", where=source) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise _not_yaml(error, source) from None
    if node is None:
        raise InvalidInputError("the file is empty", where=source, fix="write `key: value`, a line each")
    return Value(node, source)


def _suggestion(word: str, known: Collection[str]) -> str:
    """What may have been meant, or what there is."""
    meant = near(word, known)
    return f"did you mean {meant!r}?" if meant else f"there are {', '.join(sorted(known))}"


def _not_yaml(error: Any, source: str) -> InvalidInputError:
    mark = getattr(error, "problem_mark", None)
    where = f"{source}, line {mark.line + 1} column {mark.column + 1}" if mark else source
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "nested too deeply"
    return InvalidInputError(f"not valid YAML: {reason}", where=where, fix="write `key: value`, a line each")
