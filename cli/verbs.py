"""How every command looks and reads its line: help in groups, with examples, and plain words where a line is wrong.

rich's help would group as well; importing it costs as much as all else that `rtk --help` does.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..schemas.quantities import print_bytes, print_time
from .console import SETTINGS
from .examples import EXAMPLES
from .groups import COMMANDS, ENOUGH, PANELS, panel_of
from .help_ import TOPICS
from .parameters import choices_of, is_option, metavar, name_of, range_of, usage_of
from .usage import lacking, stray_word, usage_error

FIRST_COLUMN = 26  # characters; what is longer has a line of its own
PRINTED: dict[str, Callable[[float], str]] = {
    "DURATION": print_time,
    "SIZE": print_bytes,
}  # defaults, by what stands for a value
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 102}  # of which 2 stay blank


class Verb(TyperCommand):
    """A command: its page has groups of options and examples, its errors say all that is missing."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the line, or say what is wrong with it.

        Raises:
            InvalidInputError: an option or argument is missing, unknown or has a wrong value.
        """
        given, SETTINGS.command = list(args), path_of(ctx)
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            if ctx.resilient_parsing:
                raise
            raise (lacking(self, ctx, given) or usage_error(error, ctx)) from error.__cause__

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`--pp N [OPTIONS] PROFILE`: what must be given stands there by name."""
        needed = [usage_of(param) for param in self.params if is_option(param) and param.required]
        arguments = [param for param in self.params if not is_option(param)]
        return [*needed, "[OPTIONS]", *(metavar(one) if one.required else f"[{metavar(one)}]" for one in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then the options in groups where there are many."""
        shown: list[Any] = [param for param in self.get_params(ctx) if not getattr(param, "hidden", False)]
        rows = {"Arguments": [(metavar(one), one.help or "") for one in shown if not is_option(one)]}
        for title, group in _panels(path_of(ctx), list(filter(is_option, shown))).items():
            rows[title] = [_row(param) for param in group]
        write_sections(formatter, rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The examples."""
        write_examples(formatter, path_of(ctx))


class VerbGroup(TyperGroup):
    """A command that has commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the line as far as the command's name; without any print the page."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(2)
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            if ctx.resilient_parsing:
                raise
            raise usage_error(error, ctx) from error.__cause__

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the line names.

        Raises:
            InvalidInputError: it names none.
        """
        try:
            return super().invoke(ctx)
        except typer.TyperException as error:
            raise usage_error(error, ctx) from error.__cause__

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of that name.

        Raises:
            InvalidInputError: there is none.
        """
        if ctx.resilient_parsing or self.get_command(ctx, args[0]) is not None:
            return super().resolve_command(ctx, args)
        raise stray_word(self, ctx, args[0])

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The commands in their sections, then the options."""
        named = sections(self.commands).items()
        rows = {title: [(name, summary(self.commands[name])) for name in names] for title, names in named}
        rows["Options"] = [_row(param) for param in self.get_params(ctx)]
        if ctx.parent is None:
            rows["Topics"] = [(f"help {topic}", meaning) for topic, meaning in TOPICS.items()]
        write_sections(formatter, rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The examples."""
        write_examples(formatter, path_of(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the page."""
        return [name for names in sections(self.commands).values() for name in names]


def dress(app: typer.Typer) -> typer.Typer:
    """Give all commands of an application, and of those in it, these pages and these errors."""
    for command in app.registered_commands:
        command.cls = Verb
    for group in app.registered_groups:
        if group.typer_instance is not None:
            dress(group.typer_instance)
            if not isinstance(group.typer_instance.info.cls, type):  # it has none of its own
                group.cls = VerbGroup
    return app


def path_of(ctx: Any) -> str:
    """`plan pipeline`: the command's name under `rtk`; empty for `rtk` itself."""
    names: list[str] = []
    while ctx.parent is not None:
        names.insert(0, ctx.info_name)
        ctx = ctx.parent
    return " ".join(names)


def sections(commands: Mapping[str, Any]) -> dict[str, list[str]]:
    """Commands that are not hidden under their headings; those that no heading names, under the last one."""
    names = [name for name, command in commands.items() if not command.hidden]
    found = {title: [name for name in of if name in names] for title, of in COMMANDS.items()}
    known = {name for of in found.values() for name in of}
    if not known.intersection(names):
        return {"Commands": names}
    found["More"] = [name for name in names if name not in known]
    return {title: of for title, of in found.items() if of}


def summary(command: Any) -> str:
    """What a command does, in a sentence, whole."""
    text = " ".join(inspect.cleandoc(command.short_help or command.help or "").partition("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".") + "." if text else ""


def write_sections(formatter: Any, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Names and what they mean under headings, all in the same two columns; nothing of a heading without rows."""
    widest = max((len(name) for rows in sections.values() for name, _ in rows if len(name) <= FIRST_COLUMN), default=0)
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl([(f"{name:{widest}}", text) for name, text in rows], col_max=widest)


def write_examples(formatter: Any, path: str) -> None:
    """The examples of a command, as they are typed; long ones go on in a second line."""
    if path in EXAMPLES:
        with formatter.section("Examples"):
            for example in EXAMPLES[path]:
                formatter.write(f"{_continued(example, formatter.width - 2)}\n")


def _continued(line: str, width: int) -> str:
    """A command line, cut before an option where it is too long, as a shell reads it."""
    lines, rest = [], line
    while len(rest) > width and (at := rest.rfind(" -", 0, width - 2)) > 4:
        lines.append(rest[:at])
        rest = f"   {rest[at:]}"
    return " \\\n".join(f"  {one}" for one in (*lines, rest))


def _panels(path: str, options: Sequence[Any]) -> dict[str, list[Any]]:
    """The options of a page under their headings, those that must be given first."""
    if len(options) <= ENOUGH:
        return {"Options": list(options)}
    found: dict[str, list[Any]] = {title: [] for title in PANELS}
    for param in sorted(options, key=lambda one: not one.required):
        found[panel_of(path, name_of(param))].append(param)
    return {title: group for title, group in found.items() if group}


def _row(param: Any) -> tuple[str, str]:
    names = ", ".join(sorted(param.opts, key=len))
    if not param.is_flag:
        names += f" {metavar(param)}"
    found = "; ".join(_remarks(param))  # `default: 1; 1 or more`: what the text does not say
    return names, "  ".join(filter(None, (param.help or "", f"[{found}]" if found else "")))


def _remarks(param: Any) -> Iterator[str]:
    if param.required:
        yield "required"
    if param.show_envvar and param.envvar:
        yield f"env var: {param.envvar}"
    if param.show_default and param.default is not None and param.default is not False:
        told = PRINTED.get(metavar(param), str) if isinstance(param.default, float) else str  # else it has its unit
        yield f"default: {told(param.default)}"
    choices = choices_of(param)
    if choices and metavar(param) == "NAME":
        yield f"one of {', '.join(choices)}"
    if limits := range_of(param):
        yield limits
