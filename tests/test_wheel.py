"""What only an installed package can lack: its command, its data, and modules that are imported late.

Tests marked `wheel` run once more against the built wheel (`.ci/run`): these, and one of each command, which it names.
"""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib import import_module
from importlib.util import find_spec, resolve_name
from pathlib import Path

import pytest

pytestmark = pytest.mark.wheel

TESTS = Path(__file__).parent
PACKAGE = Path(str(import_module("rtk").__file__)).parent
PACKAGING = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_the_command_is_there() -> None:
    """`rtk` is installed beside Python, and says its version."""
    command = [str(Path(sys.executable).with_name("rtk")), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == f"rtk {import_module('rtk').__version__}\n"


def test_every_package_is_there() -> None:
    """Those that pyproject.toml lists can be imported."""
    for name in PACKAGING["packages"]:
        import_module(name)


def test_all_data_is_there() -> None:
    """Each kind of file that pyproject.toml lists as data is found beside the modules."""
    for package, patterns in PACKAGING["package-data"].items():
        folder = PACKAGE.joinpath(*package.split(".")[1:])
        names = [file.relative_to(folder).as_posix() for file in folder.rglob("*")]
        assert [one for one in patterns if not any(fnmatch(name, one) for name in names)] == []


def test_every_late_import_leads_somewhere() -> None:
    """Also what a function imports when it is called, of the package itself, is a module of it, or a name in one."""
    missing = []
    for package in PACKAGING["packages"]:
        for file in PACKAGE.joinpath(*package.split(".")[1:]).glob("*.py"):
            missing += [
                f"{package}.{file.stem}: {name}" for name in _imported(file, package) if find_spec(name) is None
            ]
    assert missing == []


def _imported(file: Path, package: str) -> Iterator[str]:
    """The modules that a file imports of its own package, late or not."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield resolve_name("." * node.level + (node.module or ""), package)


@pytest.mark.checkout
def test_every_command_runs_from_the_wheel() -> None:
    """Each command has a test that the wheel must pass, and which says so."""
    sys.path.insert(0, str(PACKAGE / "docs"))
    commands = set(import_module("make_reference").COMMANDS) - {"plan", "trace", "config", "checkpoint"}  # groups only
    sys.path.remove(str(PACKAGE / "docs"))
    marked = {name for file in TESTS.rglob("test_*.py") for name in _marked(file)}
    assert marked == commands


def _marked(file: Path) -> Iterator[str]:
    """The commands that a file's tests name in their mark."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.wheel":
            yield from map(ast.literal_eval, node.args)
