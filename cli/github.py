"""Findings as GitHub's workflow commands, which become annotations of a pull request."""

from typing import Annotated, Literal

import typer

Github = Annotated[
    bool, typer.Option("--github", help="Print findings as GitHub annotations, for a workflow of GitHub Actions.")
]


def annotation(level: Literal["error", "warning", "notice"], file: str, title: str, message: str) -> str:
    """A workflow command in a line.

    Args:
        level: how bad it is.
        file: the path of the file, as the repository has it.
        title: of the annotation.
        message: its text, of any number of lines.
    """
    return f"::{level} file={_property(file)},title={_property(title)}::{_text(message)}"


def _text(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _text(text).replace(":", "%3A").replace(",", "%2C")
