"""`rtk completion`: the script that lets a shell complete commands, options, names and files; and what it completes.

The shell runs `rtk` with `_RTK_COMPLETE` in its environment at each Tab. Only then are the functions below attached to
options (`completed`), and what they need imported.
"""

import os
from collections.abc import Callable, Iterable
from copy import copy
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

import typer

VARIABLE = "_RTK_COMPLETE"
Complete = Callable[[str], list[str]]

MOST_FILES = 400  # that are looked at for one Tab
PEEK_BYTES = 1 << 16  # of each: a file of ours says its format early, or is a long timeline


def command(
    context: typer.Context,
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", help="Which shell.")],
) -> None:
    """Print the completion script of a shell.

    Load it where the shell starts. bash, in ~/.bashrc: eval "$(rtk completion bash)". zsh, in ~/.zshrc after compinit:
    eval "$(rtk completion zsh)". fish: rtk completion fish > ~/.config/fish/completions/rtk.fish

    It completes commands, options and their choices, models, GPUs, policies, schedules, reproductions, and files by
    what is in them: plans where a plan is wanted, profiles where a profile is.
    """
    from typer.completion import shell_complete

    start_completing()
    shell_complete(context.find_root().command, {}, "rtk", VARIABLE, f"source_{shell}")


def start_completing() -> None:
    """Make typer know the shells."""
    from typer.completion import get_completion_inspect_parameters

    get_completion_inspect_parameters()


def completed(parameter: Parameter, module: str) -> Parameter:
    """A command's parameter with what completes it, if a shell asks; else as it is.

    Args:
        parameter: annotated as typer wants it.
        module: the command's, without its package: `diff`.
    """
    if VARIABLE not in os.environ or get_origin(parameter.annotation) is not Annotated:
        return parameter
    kind, info, *_ = get_args(parameter.annotation)
    given = (getattr(info, "default", None), *(getattr(info, "param_decls", None) or ()))  # typer keeps the first apart
    names = [name for name in given if isinstance(name, str) and name.startswith("-")] or [parameter.name]
    keys = [key for name in names for key in (f"{module} {name}", name)]
    found = next((COMPLETE[key] for key in keys if key in COMPLETE), None)
    if found is None:
        return parameter
    info = copy(info)
    info.autocompletion = found
    return parameter.replace(annotation=Annotated[kind, info])


def of_format(*formats: str) -> Complete:
    """Completes files of ours, in the folder that is begun and the folders in it."""

    def complete(incomplete: str) -> list[str]:
        from ..schemas.remedies import format_at

        files = _files(incomplete, (".json", ".json.gz"))
        return [file for file in files if format_at(file, PEEK_BYTES) in formats]

    return complete


def ending_in(*endings: str, words: Iterable[str] = ()) -> Complete:
    """Completes files by the endings of their names, and some words."""

    def complete(incomplete: str) -> list[str]:
        return [*(word for word in words if word.startswith(incomplete)), *_files(incomplete, endings)]

    return complete


def folders_with(name: str) -> Complete:
    """Completes folders in which there is a file of this name."""

    def complete(incomplete: str) -> list[str]:
        return [file.removesuffix(f"/{name}") for file in _files(incomplete, (f"/{name}",))]

    return complete


def models(incomplete: str) -> list[str]:
    """Completes presets and published models; configurations and Python files, too."""
    from ..profilers.analytic.configuration import MODELS

    return [*_beginning(incomplete, MODELS), *_files(incomplete, ("/config.json", ".py"))]


def gpus(incomplete: str) -> list[str]:
    """Completes names of GPUs."""
    from ..schemas.gpus import GPUS

    return _beginning(incomplete, GPUS)


def placements(incomplete: str) -> list[str]:
    """Completes names of placements."""
    from ..planners.choosing import NAMES

    return _beginning(incomplete, NAMES)


def policies(incomplete: str) -> list[str]:
    """Completes names of policies, also behind others and a comma."""
    from ..planners.recovery.catalogue import BY_GPU, NAMES

    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return [f"{before}{comma}{name}" for name in (*NAMES, *BY_GPU) if name.startswith(last) and name not in given]


def reproductions(incomplete: str) -> list[str]:
    """Completes names of the papers' tables and figures."""
    from .reproduce import known_names

    return _beginning(incomplete, known_names())


def schemas(incomplete: str) -> list[str]:
    """Completes names of file formats."""
    from ..schemas.documents import document_kinds

    return _beginning(incomplete, document_kinds())


def helped(context: typer.Context, args: list[str], incomplete: str) -> list[str]:
    """Completes commands and topics behind `rtk help`."""
    from .help_ import TOPICS, command_at

    group = command_at(context.find_root(), context.params.get("words") or [])
    names = [] if group is None else list(getattr(group.command, "commands", ()))
    return _beginning(incomplete, [*names, *(() if group is None or group.parent else TOPICS)])


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _files(incomplete: str, endings: tuple[str, ...]) -> list[str]:
    """Files whose paths begin and end so: those of the folder that is begun, then those of the folders in it."""
    folder = incomplete[: incomplete.rfind("/") + 1]
    found: list[str] = []
    for pattern in ("*", "*/*"):
        for file in sorted(Path(folder or ".").glob(pattern))[:MOST_FILES]:
            path = f"{folder}{file.relative_to(folder or '.')}"
            if path.startswith(incomplete) and f"/{path}".endswith(endings) and file.is_file():
                found.append(path)
    return found


PLANS, PROFILES = of_format("rtk.plan"), of_format("rtk.profile")
TIMELINES, YAML = of_format("rtk.timeline"), ending_in(".yaml", ".yml")
TRACES = ending_in(".jsonl", ".csv", ".json", ".jsonl.gz", ".csv.gz", ".json.gz")

# By an option's name or an argument's; where they mean different things, the command's module stands before it.
COMPLETE: dict[str, Callable[..., list[str]]] = {
    "plan": PLANS,
    "--plan": PLANS,
    "diff a": PLANS,
    "diff b": PLANS,
    "verify plans": of_format("rtk.plan", "rtk.resumption"),
    "viz files": of_format("rtk.plan", "rtk.timeline", "rtk.resumption", "rtk.templates", "rtk.replay", "rtk.bubble"),
    "bubble traces": TIMELINES,
    "profile": PROFILES,
    "--profile": PROFILES,
    "--calibrate": PROFILES,
    "--into": PROFILES,
    "profile_refine a": PROFILES,
    "profile_refine b": PROFILES,
    "templates": of_format("rtk.templates"),
    "--timeline": TIMELINES,
    "--trace": TRACES,
    "--inject": TRACES,
    "trace file": TRACES,
    "profile name": models,
    "--model": models,
    "--gpu": gpus,
    "--placement": placements,
    "--policies": policies,
    "reproduce names": reproductions,
    "schema name": schemas,
    "sweep spec": YAML,
    "--cluster": ending_in(".yaml", ".yml", words=("slurm",)),
    "--overlay": YAML,
    "plan_slipstream --from": folders_with("atlas.json"),
    "--atlas": folders_with("atlas.json"),
    "--resume": folders_with("checkpoint.json"),
}
