"""The house: packaging, the star of imports, late imports, docstrings and sizes."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = sorted(
    folder
    for folder in ROOT.iterdir()
    if (folder / "__init__.py").exists()
    and not folder.name.startswith(".")
    and folder.name not in ("build", "benchmarks")
)
ROOMS.append(ROOT / "benchmarks" / "papers")  # of the benchmarks only these are shipped, for `rtk reproduce`
SOURCES = [*sorted(ROOT.glob("*.py")), *sorted(path for room in ROOMS for path in room.rglob("*.py"))]
TESTS = sorted(ROOT.joinpath("tests").rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_wheel_holds_every_package() -> None:
    """The packages that pyproject.toml lists are the folders that hold an `__init__.py`."""
    folders = {path.parent.relative_to(ROOT) for path in SOURCES if path.name == "__init__.py"}
    names = {".".join(("rtk", *folder.parts)) for folder in folders}
    assert names == set(PYPROJECT["tool"]["setuptools"]["packages"])


def test_every_source_file_stands_in_a_package() -> None:
    """No Python file lies in a folder without `__init__.py`, which a wheel would leave out."""
    assert [_name(path) for path in SOURCES if not (path.parent / "__init__.py").exists()] == []


def test_shipped_data_is_listed() -> None:
    """The JSON Schemas, the typing marker, the papers' traces and measurements, and pages' assets are package data."""
    data = PYPROJECT["tool"]["setuptools"]["package-data"]
    traces = {"rtk.benchmarks.papers": ["measured.json", "traces/*"]}
    page = {"rtk.viz": ["live.html", "page.css", "page.js"]}
    assert data == {"rtk": ["py.typed"], "rtk.schemas": ["*.schema.json"], **page, **traces}
    assert (ROOT / "py.typed").exists()


def test_wings_never_meet() -> None:
    """import-linter finds the star kept: `cli` over the wings over `schemas`, no wing in another."""
    pytest.importorskip("importlinter")
    script = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([script, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _modules_after(*lines: list[str], exit_code: int = 0) -> set[str]:
    """The top-level modules that are loaded once `rtk` has run with each of these arguments, and ended with this
    code."""
    script = """
import json, sys
from rtk.cli.main import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as end:
        if (end.code or 0) != int(sys.argv[2]): raise
sys.stderr.write("\\nMODULES " + json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
    command = [sys.executable, "-c", script, json.dumps(lines), str(exit_code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.rpartition("MODULES ")[2]))


LIGHT = {"torch", "numpy", "scipy", "numba", "rich", "plotly", "matplotlib", "transformers"}


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], LIGHT | {"pydantic"}),
        (["--version"], LIGHT | {"pydantic"}),
        (["plan", "pipeline", "--help"], LIGHT),  # typer takes pydantic for parameters
        (["run", "--help"], LIGHT),
    ],
)
def test_help_loads_nothing_heavy(arguments: list[str], heavy: set[str]) -> None:
    """`rtk --help` loads no torch, numpy, pydantic or painter, the help of a command none of rtk's heavy wings."""
    assert _modules_after(arguments) & heavy == set()


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        (["profile"], {"rich"}),  # for the progress bar
        (["run", str(ROOT / "tests" / "golden" / "plan-two-stages.json"), "--model"], {"numpy"}),  # to check the plan
    ],
)
def test_a_wrong_model_name_loads_nothing_heavy(command: list[str], needed: set[str]) -> None:
    """A model that is not there is told without torch or transformers: in half a second."""
    names = ("gpt-tinny", "meta-llama/Llama-3-8B", "nowhere.py:make", "nowhere/config.json")
    assert _modules_after(*([*command, name] for name in names), exit_code=2) & LIGHT - needed == set()


def test_planning_loads_neither_torch_nor_painters(tmp_path: Path) -> None:
    """`rtk plan pipeline`, `verify` and `simulate` load neither torch nor plotly nor matplotlib."""
    profile, plan = ROOT / "tests" / "golden" / "profile-slots4.json", tmp_path / "plan.json"
    planning = ["plan", "pipeline", str(profile), "--pp", "4", "--microbatches", "6", "-o", str(plan)]
    for arguments in ([*planning, "--schedule", "zero-bubble"], ["simulate", str(plan)]):
        assert _modules_after(arguments) & {"torch", "plotly", "matplotlib"} == set()


def _public_without_docstring(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    if ast.get_docstring(tree) is None:
        yield f"{_name(path)}: the module"
    for node in tree.body:
        yield from _undocumented(node, _name(path))


def _undocumented(node: ast.stmt, where: str) -> Iterator[str]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
        return
    if ast.get_docstring(node) is None:
        yield f"{where}:{node.lineno} {node.name}"
    if isinstance(node, ast.ClassDef):
        for child in node.body:
            yield from _undocumented(child, where)


def test_everything_public_has_a_docstring() -> None:
    """Every module, and every public class, function and method of the package, says what it is."""
    assert [place for path in SOURCES for place in _public_without_docstring(path)] == []


def test_every_test_says_what_it_proves() -> None:
    """Every test has a docstring: the sentence it proves."""
    tests = ((path, node) for path in TESTS for node in ast.walk(ast.parse(path.read_text())))
    missing = [
        f"{_name(path)}:{node.lineno} {node.name}"
        for path, node in tests
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and ast.get_docstring(node) is None
    ]
    assert missing == []


def test_no_file_is_over_1000_lines() -> None:
    """A file is as large as its subject, some 100 to 500 lines; 1,000 are a wall."""
    lengths = {_name(path): len(path.read_text().splitlines()) for path in [*SOURCES, *TESTS]}
    assert {name: length for name, length in lengths.items() if length > 1000} == {}


def test_imports_inside_the_package_are_relative() -> None:
    """No source file imports `rtk` by name: moved or renamed, the package stays whole."""
    absolute = re.compile(r"^ *(?:from rtk\b|import [^#\n]*\brtk\b)", re.MULTILINE)
    assert [_name(path) for path in SOURCES if absolute.search(path.read_text())] == []


def test_files_that_are_named_are_there() -> None:
    """A `file.py` that a page or a docstring names in backticks stands in the project: moved, it is named anew."""
    # Of users', of torch's and of Megatron's, and what an export is called.
    examples = {"NAME.py", "m.py", "schedules.py", "pipeline_parallel_layer_layout.py", "pipelining.py"}
    there = {path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    pages = [*SOURCES, ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    named = {
        (_name(path), name)
        for path in pages
        for name in re.findall(r"`(?:[\w/]+/)?(\w+\.py)`", path.read_text(encoding="utf-8"))
    }
    assert sorted(one for one in named if one[1] not in there | examples) == []


def test_inits_are_empty() -> None:
    """`__init__.py` files hold a docstring only; the root's is the library's face (tests/test_library.py)."""
    for path in SOURCES:
        if path.name == "__init__.py" and path.parent != ROOT:
            assert len(ast.parse(path.read_text()).body) == 1, _name(path)


def test_no_class_name_stands_for_two_classes() -> None:
    """A class's name means one class in the whole package; the papers' reproductions have words of their own."""
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        if "reproductions" in path.parts or "papers" in path.parts:
            continue
        for name in re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE):
            places.setdefault(name, []).append(_name(path))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_private_method_is_cut_off() -> None:
    """Each is asked for in its own file, or in one of a class above or below its own: what a subclass overrides and its
    base no longer calls is dead, and nothing else tells."""
    texts = {path: path.read_text() for path in SOURCES}
    classes = {
        node.name: (path, node)
        for path, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    }

    def lineage(name: str) -> set[str]:
        """A class of ours and those that it is derived from."""
        if name not in classes:
            return set()
        bases = (ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in classes[name][1].bases)
        return {name}.union(*(lineage(base) for base in bases if base != name))

    above = {name: lineage(name) for name in classes}
    cut_off = []
    for name, (_, node) in classes.items():
        related = above[name] | {other for other in classes if name in above[other]}
        where = {classes[one][0] for one in related}
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and re.fullmatch(r"_[a-z]\w*[a-z]", method.name):
                asked = re.compile(rf"(?<!def )\b{method.name}\b")
                if not any(asked.search(texts[path]) for path in where):
                    cut_off.append(f"{name}.{method.name}")
    assert cut_off == []
