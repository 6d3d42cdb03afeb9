"""`rtk help`: the page of a command, or of a topic."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ..schemas.errors import InvalidInputError
from ..schemas.text import did_you_mean, joined
from .completion import helped

EXIT_CODES = {
    0: "done",
    1: "a finding or a difference, with --exit-code or --fail-if; `rtk verify`: a plan that is not valid",
    2: "wrong usage, or a file that does not say what it must",
    3: "there is no answer: such as a model that does not fit, or a stage that has lost all its workers",
    4: "the answer is written, but not proven optimal, as --require-optimal asked",
    5: "a worker or the runtime failed",
    70: "a bug of rtk",
    127: "`rtk monitor`: there is no such program; else it ends with the exit code of the program",
    130: "interrupted (Ctrl-C)",
}

ERRORS = """An error is told in three lines on standard error: what is wrong, at: where (a file and the JSON pointer in
it, an option or a command), and do: what helps.

With --json it is also one JSON document on standard output:

  {"error": {"exit_code": 2, "fix": "...", "what": "...", "where": "..."}}

`where` and `fix` may be null. Where the command has printed its document already, as before exit code 4, standard
output has that document and nothing else. `rtk run --json` and `rtk coordinate --json` print JSON lines: there the
error is the last line, {"event": "error", "error": {...}, "unix_time_s": ...}, unless an `end` tells of it.
"""

TOPICS = {"exit-codes": "What the exit codes mean.", "errors": "How errors are told, as text and as JSON."}


def command(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND...|TOPIC]", help="Such as `plan slipstream`, or a topic.", autocompletion=helped
        ),
    ] = None,
) -> None:
    """Show the help of a command, or of a topic: exit-codes, errors."""
    given = words or []
    if given == ["exit-codes"]:
        print("Exit codes:\n" + "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items()))
        return
    if given == ["errors"]:
        print(ERRORS, end="")
        return
    found = command_at(context.find_root(), given)
    if found is None:
        known = [*context.find_root().command.commands, *TOPICS]  # type: ignore[attr-defined]
        look = f"`rtk -h` lists the commands; topics are {joined(TOPICS)}"
        fix = f"`rtk {given[0]} -h` says what it takes" if given[0] in known else did_you_mean(given[0], known, look)
        raise InvalidInputError(f"there is no command {' '.join(given)!r}", where="rtk help", fix=fix)
    print(found.get_help())


def command_at(root: Any, words: Sequence[str]) -> Any:
    """The context of a command by its words, as one that is asked for its help; None where there is none."""
    context = root
    for word in words:
        find = getattr(context.command, "get_command", None)
        command = find and find(context, word)
        if command is None:
            return None
        context = type(root)(command, info_name=word, parent=context)
    return context
