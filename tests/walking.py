"""Typing the lines of docs/tour.md, walk by walk, in a folder with the files of examples/."""

import os
import re
import shlex
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from .cli.shell import Command, Shell, rtk, rtk_forked, wait_for
from .ports import free_port

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tour.md"
TOUR = PAGE.read_text() if PAGE.exists() else ""  # where the wheel is tried, tests are collected without the checkout
WALKS = {
    found[1]: found[2] for found in re.finditer(r"^## (\d+)\. .*?$(.*?)(?=^## |\Z)", TOUR, re.MULTILINE | re.DOTALL)
}
# What starts processes, or sets up its own for good, has one of its own; the rest runs in that of the test.
FORKED = re.compile(r"rtk (run|monitor|coordinate|detect --follow|profile(?! refine| compare)(?!.*--analytic))")
# What measures a model as long as it takes to be exact; here a few rounds do.
MEASURING = re.compile(r"rtk profile(?! refine| compare| links)(?!.*--(analytic|repeats))")
PORT = "29517"


@dataclass(frozen=True)
class Line:
    """A command line of a page, without its comment."""

    text: str
    comment: str

    @property
    def words(self) -> list[str]:
        """Those of the command."""
        return shlex.split(self.text)

    @property
    def outputs(self) -> list[str]:
        """The files that it says it writes."""
        following = zip(self.words, self.words[1:], strict=False)
        writing = {"-o", "--html", "--checkpoint", "--log", *(["--timeline"] if "refine" not in self.words else [])}
        return [word for option, word in following if option in writing]


def lines(page: str) -> list[Line]:
    """The command lines of a page's sh blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    parts = [line.partition("#") for block in blocks for line in block.splitlines()]
    return [Line(command.strip(), comment.strip()) for command, _, comment in parts if command.strip()]


class Walker:
    """Types the lines of a walk, one after the other."""

    def __init__(self, folder: Path, shell: Shell) -> None:
        self._folder, self._shell = folder, shell
        self._port = str(free_port())
        self._background: list[Command] = []
        self._count = 0

    def type(self, line: Line) -> str:
        """Execute a line, which is to succeed and to write what it says; gives its output."""
        if line.text == "wait":
            return "".join(self._end(command) for command in self._background)
        self._count += 1
        text = line.text.replace(PORT, self._port)
        said = self._do(f"{text} --repeats 3" if MEASURING.match(text) else text, "Ctrl-C" in line.comment)
        if not line.text.endswith("&"):
            missing = [name for name in line.outputs if not (self._folder / name).exists()]
            assert missing == [], line.text
        return said

    def _do(self, text: str, is_endless: bool) -> str:
        program, *words = shlex.split(text)
        if program == "torchrun":
            return self._end(self._shell.torchrun(f"torchrun-{self._count}", *words))
        if program == "python":
            return self._end(self._shell.program(f"python-{self._count}", *words))
        assert program == "rtk", text
        if text.endswith("&"):
            self._background.append(self._shell.rtk(f"background-{self._count}", *words[:-1]))
            return ""
        if is_endless:
            return self._interrupted(self._shell.rtk(f"endless-{self._count}", *words))
        here = {"PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))}  # for torchrun
        done = (rtk_forked if FORKED.match(text) else rtk)(*words, cwd=self._folder, environment=here)
        assert done.returncode == 0, f"{text}\n{done.stderr}"
        return done.stdout + done.stderr

    def _end(self, command: Command) -> str:
        assert command.ended(100) == 0, command.errors
        return command.output + command.errors

    def _interrupted(self, command: Command) -> str:
        wait_for(lambda: command.output + command.errors, "it says something")
        command.process.send_signal(signal.SIGINT)
        return self._end(command)


# What a walk's lines are to say, by their beginnings.
SAYS = {
    "rtk monitor": r"slower since \d+ .*rank 1",
    "rtk detect train.log": "1 fail-slow",
    "rtk verify": "valid",
    "rtk explain plan.json": "No order of these operations takes less",
    "rtk plan slipstream gpt3.json --pp 4 --dp 4 --microbatches 8 --failed": "optimal",
    "rtk plan batch": "6 4 2",
    "rtk run train-plan.json --model gpt-tiny --iterations 9": r"(?s)worker 1/1 failed.*worker 1/1 joined",
    "rtk run train-plan.json --model gpt-tiny --data train.log --iterations 5": "from iteration 3",
    "rtk run llama-plan.json": r"(?s)worker 1/1 failed.*worker 1/1 joined.*evaluation after 8 iterations",
    "rtk replay": "(?m)^rtk .*%",
}


def take(walk: str, folder: Path) -> None:
    """Take a walk: every line ends well, writes what it says, and shows what the tour says that one sees."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    shutil.copytree(ROOT / "examples", folder, dirs_exist_ok=True)
    with Shell(folder) as shell:
        walker = Walker(folder, shell)
        for line in lines(WALKS[walk]):
            said = walker.type(line)
            for begin, pattern in SAYS.items():
                if line.text.startswith(begin):
                    assert re.search(pattern, said), f"{line.text}\n{said}"
