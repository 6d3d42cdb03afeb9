"""What is wrong with a command line, in the words of all our errors: what, where, what to do."""

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import typer

from ..schemas.errors import InvalidInputError
from ..schemas.text import did_you_mean, joined
from .parameters import choices_of, kind_of, metavar, name_of, range_of, usage_of

OF_COMMANDS = ("--json", "--quiet", "--debug", "-q")
MOST_CHARACTERS = 60  # of a value in a message


def usage_error(error: typer.TyperException, ctx: Any = None) -> InvalidInputError:
    """typer's complaint about a line, as ours.

    Args:
        error: what typer says.
        ctx: of the command that has read the line, where the error does not know it.
    """
    ctx = getattr(error, "ctx", None) or ctx
    path = ctx.command_path if ctx is not None else "rtk"
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        return _unknown_option(option, error.possibilities or (), ctx, path)
    if option is not None:
        return _without_value(option, error.message, ctx, path)
    param = getattr(error, "param", None)
    if param is not None:
        return _wrong_value(error, param, path)
    if error.message.startswith("Got unexpected extra argument"):
        return _one_too_many(error.message, ctx, path)
    if error.message == "Missing command.":
        return InvalidInputError(f"{path} needs a command", where=path, fix=_look(path))
    return InvalidInputError(error.format_message(), where=path, fix=_look(path))


def lacking(command: Any, ctx: Any, args: Iterable[str]) -> InvalidInputError | None:
    """The error for a line without something that must be given: it names all that is missing. None if nothing is."""
    try:
        opts, _, _ = command.make_parser(ctx).parse_args(args=list(args))
    except typer.TyperException:  # another error comes first
        return None
    missing = [
        param
        for param in command.get_params(ctx)
        if param.required and param.value_is_missing(param.consume_value(ctx, opts)[0])
    ]
    if not missing:
        return None
    from .job import homes_of  # it knows the commands, which know this

    path, is_one = ctx.command_path, len(missing) == 1
    homes = homes_of(path.partition(" ")[2], missing)
    add = f"add {joined(map(usage_of, missing))}{homes and f', or {homes}'}"
    return InvalidInputError(
        f"{joined(map(name_of, missing))} {'is' if is_one else 'are'} missing",
        where=path,
        fix=f"{add}; `{path} -h` says what {'it means' if is_one else 'they mean'}",
    )


def stray_word(group: Any, ctx: Any, word: str) -> InvalidInputError:
    """The error for a word in a command's place that is none."""
    names, path = group.list_commands(ctx), ctx.command_path
    if is_file(word):
        from ..schemas.remedies import uses_of

        if path == "rtk":
            fix = f"say what to do with it: {joined(uses_of(word), 'or')}"
        else:
            fix = f"name a command first, such as `{path} {names[0]} {word} …`; there are {joined(names)}"
        return InvalidInputError(f"{shown(word)} is a file, not a command of {path}", where=path, fix=fix)
    return InvalidInputError(
        f"{path} has no command {shown(word)}",
        where=path,
        fix=did_you_mean(word, names, f"there are {joined(names)}; `{path} -h` says what they do"),
    )


def is_file(word: str) -> bool:
    """Whether a word looks like a file's name, there or not."""
    return Path(word).exists() or os.sep in word or word.endswith((".json", ".gz", ".jsonl", ".py", ".yaml", ".log"))


def shown(value: Any) -> str:
    """A value in a message, cut where it is long, without control characters."""
    text = repr(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def _look(path: str) -> str:
    return f"`{path} -h` says what it takes"


def _unknown_option(option: str, near: Iterable[str], ctx: Any, path: str) -> InvalidInputError:
    near = list(near)
    known = {name for one in ctx.command.params for name in one.opts} if ctx is not None else set()
    if "--lr" in known and (fix := _of_another_framework(option, known)):
        return InvalidInputError(f"{path} has no option {option}", where=option, fix=fix)
    if option == "--max-input":
        fix = f"give it before the command's name: rtk --max-input 4GiB {path.partition(' ')[2]} …"
    elif ctx is not None and hasattr(ctx.command, "commands") and option in OF_COMMANDS:
        fix = f"give it after the command's name: {path} COMMAND {option}"
    elif near:
        fix = f"did you mean {joined(near, 'or')}?"
    else:
        fix = _look(path)
    return InvalidInputError(f"{path} has no option {option}", where=option, fix=fix)


def _of_another_framework(option: str, known: Collection[str]) -> str | None:
    """What to write for an option that another framework has; None where it is none, or there is nothing like it.

    Args:
        option: as it was typed.
        known: the command's own.
    """
    from ..schemas.other_names import meant_by

    meant = meant_by(option.partition("=")[0])
    if meant is None:
        return None
    if not meant.names:
        return meant.note
    if not all(f"--{name.replace('_', '-')}" in known for name in meant.names):
        return None
    return f"it is {meant.options()} here{meant.note and f', {meant.note}'}"


def _without_value(option: str, message: str, ctx: Any, path: str) -> InvalidInputError:
    if "not take a value" in message:
        return InvalidInputError(f"{option} takes no value", where=option, fix=f"write {option} alone")
    param = next((one for one in ctx.command.params if option in one.opts), None) if ctx is not None else None
    value = metavar(param) if param is not None else "VALUE"
    return InvalidInputError(f"{option} needs a value", where=option, fix=f"write {option} {value}; {_look(path)}")


def _wrong_value(error: Any, param: Any, path: str) -> InvalidInputError:
    name = name_of(param)
    problems = error.__cause__.errors() if hasattr(error.__cause__, "errors") else ()
    if not problems:
        return InvalidInputError(f"{name}: {error.message}", where=name, fix=_look(path))
    value, choices = problems[0]["input"], choices_of(param)
    if choices:
        short = next(
            (choice for choice in choices if "".join(part[:1] for part in choice.split("-")) == str(value).lower()),
            None,
        )
        meant = f"did you mean {short}?" if short else did_you_mean(str(value), choices, "take one of them", 0.4)
        what, fix = joined(choices, "or"), meant
    else:
        what, fix = _number_words(param, range_of(param)), _look(path)
    return InvalidInputError(f"{name} takes {what}, not {shown(value)}", where=name, fix=fix)


def _number_words(param: Any, limits: str) -> str:
    noun = "a whole number" if kind_of(param) is int else "a number"
    return f"{noun} of {limits}" if "or" in limits else f"{noun} from {limits}" if limits else noun


def _one_too_many(message: str, ctx: Any, path: str) -> InvalidInputError:
    extra = message.partition("(")[2].partition("(")[2].rstrip(")")
    usage = ctx.get_usage().removeprefix("Usage: ") if ctx is not None else path
    return InvalidInputError(
        f"there is more on the line than {path} takes: {shown(extra)}",
        where=path,
        fix=f"write {' '.join(usage.split())}",
    )
