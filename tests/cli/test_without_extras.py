"""rtk with none of its optional packages: what needs one says which, in one clear error."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtk.cli.commands import every
from rtk.schemas.errors import EXTRAS, installing

GOLDEN = Path(__file__).parents[1] / "golden"
# Comes first in this process and in all that it starts: the packages are not there.
HIDDEN = f"import sys\nfor name in {sorted(EXTRAS)!r}:\n    sys.modules[name] = None\n"
RUN_ALL = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from rtk.cli.main import main

def ended(arguments):
    out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as end:
            return end.code or 0, err.buffer.getvalue().decode()

print(json.dumps([ended(line) for line in json.load(sys.stdin)]))
"""
PLAN = ["plan.json", "--model", "gpt-tiny"]
SHAPE = ["profile.json", "--pp", "2", "--dp", "2", "--microbatches", "4"]
BATCH = ["--global-batch", "16", "--microbatch-size", "1"]
LOG = [f" iteration {number}/ 50 | elapsed time per iteration (ms): 500.0 |" for number in range(50)]
# Of every command a use, in an order in which each finds its files, and the package that it lacks.
USES: dict[str, tuple[list[str], str | None]] = {
    "profile model": (["gpt-tiny"], "torch"),
    "profile links": (["--processes", "2"], "torch"),
    "plan pipeline": ([*SHAPE, "-o", "plan.json"], None),
    "plan adaptra": ([*SHAPE, "--memory-limit", "9"], None),
    "plan slipstream": ([*SHAPE, "--failed", "1/1", "-o", "slipstream.json"], None),
    "plan joint": ([*SHAPE], None),
    "plan batch": (
        ["--times", "1,2", "--microbatches", "4", "--objective", "variance", "--solver", "pyomo"],
        "pyscipopt",
    ),
    "plan templates": (["profile.json", "--nodes", "2", "--gpus-per-node", "1", "-o", "templates.json"], None),
    "plan oobleck": (
        ["templates.json", "--nodes", "4", "--global-batch", "16", "--microbatch-size", "1", "-o", "oobleck.json"],
        None,
    ),
    "plan reconfigure": (["oobleck.json", "--failed", "0/0"], None),
    "plan best": (["profile.json", "--cluster", "2x2", "--batch", "16", "-o", "best.json"], None),
    "plan topology": ([*SHAPE], None),
    "plan mitigate": (["--costs", "5,60,1200"], None),
    "simulate": (["plan.json", "--timeline", "timeline.json"], None),
    "run": (PLAN, "torch"),
    "coordinate": (["plan.json", "--policy", "oobleck"], None),
    "monitor": (["--", "true"], None),
    "probe": (["--processes", "2"], "torch"),
    "detect": (["train.log"], None),
    "goodput": (["train.log", "-o", "ledger.json"], None),
    "doctor": (["--torchrun", "torchrun --nnodes 2 train.py"], None),
    "bubble": (["timeline.json"], None),
    "verify": (["plan.json"], None),
    "explain": (["plan.json"], None),
    "viz": (["plan.json", "-o", "plan.svg"], None),
    "diff": (["plan.json", "slipstream.json"], None),
    "export": (["plan.json", "--to", "torch-csv", "-o", "plan.csv"], None),
    "import": (["plan.csv", "--from", "torch-csv", "--profile", "profile.json", "-o", "imported.json"], None),
    "checkpoint export": (["nowhere", "--to", "hf", "-o", "model"], None),
    "schema": (["plan"], None),
    "init": (["--yes"], None),
    "config show": ([], None),
    "help": (["plan"], None),
    "completion": (["bash"], None),
    "trace generate": (["--nodes", "2", "--days", "1", "--mtbf", "1d", "--repair", "4h", "-o", "trace.jsonl"], None),
    "trace show": (["trace.jsonl"], None),
    "trace convert": (["trace.jsonl"], None),
    "replay": (
        ["--profile", "profile.json", "--trace", "trace.jsonl", *SHAPE[1:], "--cost", "copy_bytes_per_s=1e9"],
        None,
    ),
    "sweep": (["nowhere.yaml", "-o", "sweep"], None),
    "reproduce": (["nothing"], None),
    "profile refine": (["profile.json", "--timeline", "timeline.json"], None),
    "profile compare": (["profile.json", "profile.json"], None),
    "quickstart": (["-o", "first"], "torch"),
}
# What these are given is refused: they would go on for long, or need a run.
REFUSED = {"checkpoint export", "coordinate", "sweep", "reproduce", "profile refine"}


def commands() -> Iterator[str]:
    """All of them, those of groups with their group."""
    return (name for name, command in every().items() if not hasattr(command, "commands"))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """The exit code and the errors of each use, where no optional package is installed."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(HIDDEN)
    (folder / "train.log").write_text(
        "".join(f" iteration {n}/ 50 | elapsed time per iteration (ms): 500.0 |\n" for n in range(50))
    )
    (folder / "profile.json").write_bytes((GOLDEN / "profile-slots4.json").read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps([[*name.split(), *arguments] for name, (arguments, _) in USES.items()]),
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / "first").exists(), "the quickstart has begun"
    return dict(zip(USES, map(tuple, json.loads(done.stdout)), strict=True))


def test_every_command_has_a_use() -> None:
    """No command is left out of what follows."""
    assert set(USES) == set(commands())


@pytest.mark.parametrize("name", USES)
def test_no_command_ends_in_a_traceback(name: str, ended: dict[str, tuple[int, str]]) -> None:
    """A command that needs an optional package says so, once, with what to install; all others do without."""
    code, said = ended[name]
    assert "Traceback" not in said
    assert "bug of rtk" not in said
    lacks = USES[name][1]
    if lacks is None:
        assert "is not installed" not in said
        assert code == 0 or name in REFUSED
    else:
        assert code == 2
        assert said.count(f"error: {lacks} is not installed\n") == 1
        assert f"do: {installing(EXTRAS[lacks])}\n" in said
