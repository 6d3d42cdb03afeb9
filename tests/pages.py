"""The commands that a page of the documentation shows, executed as a reader would: in order, in a folder of their own.

A block of a page runs if `<!-- runs -->` stands in the line before it. All such blocks of a page are one session, in a
folder that holds a copy of examples/ at the beginning.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .cli.shell import Done, rtk, rtk_forked

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^<!-- runs -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TRAINING = frozenset({"run", "quickstart", "probe", "monitor", "coordinate"})  # these start processes, or set up torch


def commands(page: Path) -> list[str]:
    """The commands of a page that are to run, each with its continuation lines and here-documents."""
    return [command for block in BLOCK.findall(page.read_text()) for command in _commands(block)]


def _commands(block: str) -> Iterator[str]:
    lines = iter(block.splitlines())
    for line in lines:
        command = line
        while command.endswith("\\"):
            command += "\n" + next(lines)
        if ending := re.search(r"<<'(\w+)'", command):
            while not command.endswith(f"\n{ending[1]}"):
                command += "\n" + next(lines)
        if command.strip() and not command.startswith("#"):
            yield command


def run_page(page: Path, folder: Path) -> list[tuple[str, Done]]:
    """Run a page's commands; the first one that fails is the last.

    Args:
        page: of Markdown.
        folder: where to run them; it gets the examples.
    """
    shutil.copytree(ROOT / "examples", folder, dirs_exist_ok=True)
    done: list[tuple[str, Done]] = []
    for command in commands(page):
        done.append((command, _run(command, folder)))
        if done[-1][1].returncode:
            break
    return done


def _run(command: str, folder: Path) -> Done:
    """Run a command: `rtk` alone in this process, which is quick, or in one that knows torch; all else in a shell."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    if words[0] != "rtk" or {"|", ">", "&&", "&", ">>"} & set(words):
        binaries = Path(sys.executable).parent
        environment = {"PATH": f"{binaries}:/usr/bin:/bin", "HOME": str(folder)}
        return subprocess.run(
            ["bash", "-euc", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
    return (rtk_forked if words[1] in TRAINING else rtk)(*words[1:], cwd=folder)
