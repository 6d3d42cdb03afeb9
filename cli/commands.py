"""The commands: each is imported when it is called, so that `rtk --help` and a mistyped name need none of them."""

from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from .verbs import VerbGroup, dress

# What `rtk --help` says of each. The module beside this one that has the name, with `_` behind it where the name is a
# word of Python, defines either `command`, a function, or `app`, a group of commands.
SUMMARIES = {
    "quickstart": "See a training survive a killed worker, on this machine, in a minute.",
    "init": "Write a job's file, rtk.toml, which the other commands read.",
    "config": "What a job's file says, and where values come from.",
    "profile": "What a model costs on a machine, measured or computed.",
    "plan": "Make a plan from a profile.",
    "explain": "Say why a plan takes so long, and what would help most.",
    "verify": "Check plans, independently of their planner.",
    "simulate": "Execute a plan on a virtual clock.",
    "run": "Execute a plan on real processes, and go on when some die.",
    "coordinate": "Lead a run whose workers are started elsewhere.",
    "checkpoint": "What a run has saved: export it for others.",
    "monitor": "Watch any torch training command, unchanged, for fail-slows.",
    "detect": "Find what is slow in logs of iteration times, of calls, and in traces.",
    "goodput": "Where a job's GPU-hours went, from its logs, over all restarts.",
    "bubble": "Say what a pipeline's iterations lost, beside what they must lose.",
    "doctor": "Say which settings of a job contradict each other, and what failures cost.",
    "probe": "Test all workers and links of a job, and name the slow ones.",
    "trace": "Traces of failures and slow-downs: convert, generate and summarize them.",
    "replay": "Replay a failure trace under each policy: goodput, and where the time went.",
    "sweep": "Replay every combination of models, jobs, clusters, traces and costs.",
    "reproduce": "Reproduce the papers' tables and figures, beside the published ones.",
    "viz": "Draw plans, timelines, pipeline templates and replays.",
    "diff": "Say what changed from one plan to another.",
    "export": "Write a plan for another runtime.",
    "import": "Make a plan of what another runtime wrote.",
    "schema": "Print the JSON Schema of a file format.",
    "help": "Show the help of a command, or of a topic.",
    "completion": "Print the completion script of a shell.",
}
MODULES = {"help": "help_", "import": "import_"}


@cache
def load(name: str) -> Any:
    """The command of a name, with its options; a group has its commands in `commands`."""
    module = import_module(f".{MODULES.get(name, name)}", __package__)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    if hasattr(module, "app"):
        alone.add_typer(module.app, name=name)
        return typer.main.get_group(dress(alone)).commands[name]
    alone.command(name)(module.command)
    return typer.main.get_command(dress(alone))


def every() -> dict[str, Any]:
    """All commands by what is typed for them, such as `plan pipeline`, in the order of the flow; groups, too."""
    found: dict[str, Any] = {}
    for name in SUMMARIES:
        found[name] = load(name)
        found |= {f"{name} {verb}": inner for verb, inner in getattr(found[name], "commands", {}).items()}
    return found


class Commands(VerbGroup):
    """All commands, by name: what is listed is the name and the summary, what is called is the command itself."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for name, summary in SUMMARIES.items():
            self.add_command(TyperCommand(name, short_help=summary))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None where there is none."""
        return load(cmd_name) if cmd_name in SUMMARIES else None
