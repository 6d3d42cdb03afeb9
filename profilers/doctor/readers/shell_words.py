"""Shell scripts in commands and words, with their lines; nothing is executed."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_PARENTHESIS = re.compile(r"[()]")
_ENDS_A_WORD = frozenset(" \t\r\n;&|()")


class Word(NamedTuple):
    """A word of a script without its quotes, and the line it begins in."""

    text: str
    line: int
    is_document: bool = False  # the text of a here-document, which the command reads from its standard input
    file: str = ""  # where the word stands, if not in the script itself

    def saying(self, text: str) -> "Word":
        """Another word at the same place."""
        return self._replace(text=text, is_document=False)

    def commands(self) -> Iterator[list["Word"]]:
        """The commands that the word holds."""
        return commands(self.text, self.line, self.file)


def commands(text: str, line: int = 1, file: str = "") -> Iterator[list[Word]]:
    """The commands of a script, each in its words; comments are left out, a here-document is one word.

    Args:
        text: of the script, or of a part of it.
        line: its first line.
        file: of its words.
    """
    command: list[Word] = []
    for item in _Lexer(text, line).items():
        if item is not None:
            command.append(item._replace(file=file))
        elif command:
            yield command
            command = []
    if command:
        yield command


class _Lexer:
    def __init__(self, text: str, line: int) -> None:
        self._text, self._line, self._at = text, line, 0
        self._newlines = [found.start() for found in re.finditer("\n", text)]
        self._documents_end: int | None = None  # of those that the line under way has begun

    def items(self) -> Iterator[Word | None]:
        """Words, and None between two commands."""
        text = self._text
        while self._at < len(text):
            letter = text[self._at]
            if text.startswith("\\\n", self._at):
                self._at += 2
            elif letter == "\n":
                self._at = max(self._at + 1, self._documents_end or 0)
                self._documents_end = None
                yield None
            elif letter in " \t\r":
                self._at += 1
            elif letter == "#":
                self._at = (text.find("\n", self._at) + len(text) + 1) % (len(text) + 1)
            elif found := _HEREDOC.match(text, self._at):
                self._at = found.end()
                yield self._document(found[2], is_literal=bool(found[1]))
            elif letter in ";&|()":
                self._at += 1
                yield None
            else:
                yield self._word()

    def _document(self, mark: str, is_literal: bool) -> Word:
        """The here-document that ends with a mark: it begins below the line, or below the one before it."""
        begin = self._documents_end or (self._text.find("\n", self._at) + 1 or len(self._text))
        end = re.compile(rf"^[ \t]*{re.escape(mark)}[ \t\r]*(?:\n|\Z)", re.MULTILINE).search(self._text, begin)
        self._documents_end = end.end() if end else len(self._text)
        inner = self._text[begin : end.start() if end else len(self._text)]
        text = inner if is_literal else re.sub(r"\\([\\$`])", r"\1", inner)
        return Word(text, self._line_of(begin), is_document=True)

    def _line_of(self, place: int) -> int:
        return self._line + bisect_right(self._newlines, place - 1)

    def _word(self) -> Word:
        text, start, parts = self._text, self._at, [""]
        while self._at < len(text) and (text[self._at] not in _ENDS_A_WORD or self._opens_an_array(parts)):
            letter = text[self._at]
            if letter in "'\"":
                close = self._closing(letter)
                inner = text[self._at + 1 : close]
                parts.append(inner if letter == "'" else re.sub(r'\\(["\\$`])', r"\1", inner))
                self._at = close + 1
            elif letter == "\\":
                parts.append(text[self._at + 1 : self._at + 2].strip("\n"))
                self._at += 2
            elif letter == "(" or text.startswith("$(", self._at):
                close = self._parenthesis()
                is_array = letter == "("
                parts.append(f" {text[self._at + 1 : close]}" if is_array else text[self._at : close + 1])
                self._at = close + 1
            else:
                parts.append(letter)
                self._at += 1
        return Word("".join(parts), self._line_of(start))

    def _opens_an_array(self, parts: list[str]) -> bool:
        return self._text[self._at] == "(" and parts[-1] == "="

    def _closing(self, quote: str) -> int:
        """Where the quote that opens here closes; the text's end where it does not."""
        place = self._at + 1
        while place < len(self._text) and self._text[place] != quote:
            place += 2 if self._text[place] == "\\" and quote == '"' else 1
        return min(place, len(self._text))

    def _parenthesis(self) -> int:
        """Where the parenthesis that opens here, or behind a `$`, closes."""
        depth = 0
        for found in _PARENTHESIS.finditer(self._text, self._at):
            depth += 1 if found[0] == "(" else -1
            if depth == 0:
                return found.start()
        return len(self._text)
