"""Completion: the protocol that shells speak, for each of them, and a real bash."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rtk.cli.completion import COMPLETE, of_format, policies

from .shell import RTK, endings, rtk

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, a profile, an atlas, a file of somebody else, and folders with some."""
    made = tmp_path_factory.mktemp("files")
    (made / "out").mkdir()
    shutil.copy(GOLDEN / "plan-two-stages.json", made / "plan.json")
    shutil.copy(GOLDEN / "plan-two-stages.json", made / "out" / "plan-b.json")
    shutil.copy(GOLDEN / "profile-slots4.json", made / "profile.json")
    (made / "package.json").write_text('{"name": "somebody"}')
    (made / "atlas").mkdir()
    (made / "atlas" / "atlas.json").write_text('{"format": "rtk.atlas"}')
    (made / "lab.yaml").write_text("nodes: node[1-2]\n")
    return made


def asked(shell: str, words: Sequence[str], folder: Path) -> list[str]:
    """What a shell is told at a Tab behind these words, the last of which is begun."""
    environment = {**os.environ, **variables(shell, words)}
    done = subprocess.run(RTK, env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


def variables(shell: str, words: Sequence[str]) -> dict[str, str]:
    """How a shell tells what stands there."""
    return {
        "_RTK_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": " ".join(words),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }


CASES = {
    ("rtk", "si"): ["simulate"],
    ("rtk", "plan", "sl"): ["slipstream"],
    ("rtk", "plan", "pipeline", "--sch"): ["--schedule"],
    ("rtk", "plan", "pipeline", "p.json", "--schedule", "z"): ["zero-bubble"],
    ("rtk", "simulate", ""): ["plan.json", "out/plan-b.json"],
    ("rtk", "simulate", "out/"): ["out/plan-b.json"],
    ("rtk", "diff", "plan.json", "p"): ["plan.json"],
    ("rtk", "plan", "pipeline", "p"): ["profile.json"],
    ("rtk", "profile", "gpt-t"): ["gpt-tiny"],
    ("rtk", "profile", "model", "gpt-t"): ["gpt-tiny"],
    ("rtk", "run", "plan.json", "--model", "gpt-t"): ["gpt-tiny"],
    ("rtk", "profile", "llama3-8b", "--gpu", "h1"): ["h100-sxm", "h100-pcie"],
    ("rtk", "replay", "--policies", "rtk,oob"): ["rtk,oobleck"],
    ("rtk", "plan", "pipeline", "--placement", ""): ["plain", "loop", "v", "best"],
    ("rtk", "plan", "slipstream", "--placement", "b"): ["best"],
    ("rtk", "plan", "slipstream", "--from", ""): ["atlas"],
    ("rtk", "plan", "joint", "p.json", "--cluster", "l"): ["lab.yaml"],
    ("rtk", "reproduce", "adaptra-figure-8"): ["adaptra-figure-8"],
    ("rtk", "schema", "pl"): ["plan"],
    ("rtk", "help", "exit"): ["exit-codes"],
    ("rtk", "help", "plan", "sl"): ["slipstream"],
    ("rtk", "viz", "pack"): [],
}


@pytest.fixture(scope="module")
def bash_is_told(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], list[str]]:
    """What bash is told in each case, by a process of its own each, forked from one that has loaded what takes long."""
    place = tmp_path_factory.mktemp("told")
    scripts = [
        f"os.environ.update({variables('bash', words)!r}); os.chdir({str(folder)!r})\n"
        f"sys.stdout = open({str(place / str(number))!r}, 'w')\nmain()"
        for number, words in enumerate(CASES)
    ]
    with Path(os.devnull).open("w") as nothing:
        ended = endings("import numpy, pydantic\nfrom rtk.cli.main import main", scripts, nothing.fileno(), place)
    assert {errors for _, errors in ended} == {""}
    said = ((place / str(number)).read_text().splitlines() for number in range(len(CASES)))
    return {words: [line for line in lines if line] for words, lines in zip(CASES, said, strict=True)}


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_bash_is_told_what_may_come(words: tuple[str, ...], bash_is_told: dict[tuple[str, ...], list[str]]) -> None:
    """Commands, options, choices, names, and files by what is in them."""
    assert bash_is_told[words] == CASES[words]


def test_zsh_and_fish_are_told_the_same(folder: Path) -> None:
    """Each in its own form."""
    assert '"zero-bubble"' in "".join(asked("zsh", ("rtk", "plan", "pipeline", "p.json", "--schedule", "z"), folder))
    assert asked("zsh", ("rtk", "viz", "pack"), folder) == ["_files"]
    assert asked("fish", ("rtk", "diff", "pl"), folder) == ["plan.json"]


@pytest.mark.wheel("completion")
def test_scripts_are_those_of_the_shells() -> None:
    """`rtk completion SHELL` prints a script that asks `rtk`; another shell is refused."""
    for shell, word in (("bash", "complete -o default"), ("zsh", "compdef"), ("fish", "complete --command rtk")):
        done = rtk("completion", shell)
        assert done.returncode == 0
        assert word in done.stdout
        assert f"_RTK_COMPLETE=complete_{shell}" in done.stdout
    refused = rtk("completion", "tcsh")
    assert refused.returncode == 2
    assert "takes bash, zsh or fish, not 'tcsh'" in refused.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_real_bash_completes(folder: Path, tmp_path: Path) -> None:
    """The script, loaded by bash, fills COMPREPLY as the Tab key would."""
    (tmp_path / "rtk").write_text(f'#!/bin/sh\nexec {sys.executable} -m rtk.cli.main "$@"\n')
    (tmp_path / "rtk").chmod(0o755)
    script = (
        'eval "$(rtk completion bash)"; COMP_WORDS=(rtk simulate pl); COMP_CWORD=2; '
        '_rtk_completion rtk; printf "%s\\n" "${COMPREPLY[@]}"; complete -p rtk'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["plan.json", "complete -o default -F _rtk_completion rtk"]


def test_policies_are_not_offered_twice() -> None:
    """Behind a comma, those that are not there yet."""
    assert "rtk,rtk" not in policies("rtk,")
    assert policies("nothing") == []


def test_files_that_cannot_be_read_are_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged, foreign and unreadable files are passed over without a word."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json.gz").write_bytes(b"no gzip")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe")
    (tmp_path / "c.json").mkdir()
    (tmp_path / "d.json").write_text(json.dumps({"a": 1, "format": "rtk.plan"}))
    assert of_format("rtk.plan")("") == ["d.json"]


def test_all_that_completes_is_of_an_option_or_argument() -> None:
    """The table has no key that no command has."""
    from .test_help import PAGES

    names = {name for command in PAGES.values() for param in command.params for name in (param.name, *param.opts)}
    assert {key.rpartition(" ")[2] for key in COMPLETE} <= names
