"""Help pages: options in groups, whole summaries, the terminal's width, and examples that run."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer

from rtk.cli.commands import every
from rtk.cli.examples import EXAMPLES, PARSED
from rtk.cli.groups import COMMANDS, ENOUGH, GENERAL, PANELS, panel_of
from rtk.cli.main import app
from rtk.cli.parameters import is_option, metavar, name_of

from .shell import Done, rtk

ROOT = Path(__file__).parents[2]
TREE: Any = typer.main.get_command(app)


PAGES = {"": TREE, **every()}
VERBS = [path for path, command in PAGES.items() if not hasattr(command, "commands")]


def page(path: str, columns: int = 80) -> str:
    done = rtk(*path.split(), "-h", environment={"COLUMNS": str(columns)})
    assert done.returncode == 0
    return done.stdout


@pytest.mark.parametrize("path", PAGES)
def test_every_page_has_examples_and_plain_types(path: str) -> None:
    """Each page ends in examples of its command, and shows no programmer's types and no cut summaries."""
    text = page(path)
    assert "\nExamples:\n  " in text
    assert "range>" not in text and "list[" not in text and "<int" not in text
    assert "..." not in text.replace("PLAN...", "").replace("[ARGS]...", "").partition("\nExamples")[0] or "..." in str(
        PAGES[path].params and [metavar(one) for one in PAGES[path].params]
    )


@pytest.mark.parametrize("path", VERBS)
def test_many_options_stand_in_groups(path: str) -> None:
    """A page of more than eight options has headings, none of which is longer than fifteen options but Training's."""
    options = [name_of(one) for one in PAGES[path].params if is_option(one)]
    if len(options) < ENOUGH:
        return
    groups: dict[str, list[str]] = {}
    for option in options:
        groups.setdefault(panel_of(path, option), []).append(option)
    text = page(path)
    assert len(groups) >= 2
    assert max(map(len, groups.values())) <= 12
    for title in groups:
        assert f"\n{title}:\n" in text


def test_every_option_has_a_heading() -> None:
    """No option of a page with headings stands under General because nobody thought of it."""
    for path in VERBS:
        options = list(filter(is_option, PAGES[path].params))
        for param in options if len(options) >= ENOUGH else ():
            if panel_of(path, name_of(param)) == GENERAL:
                assert name_of(param) in PANELS[GENERAL], f"{path} {name_of(param)}"


def test_commands_stand_in_the_order_of_the_flow() -> None:
    """Under headings, profile and plan before simulate and run; no command is left out."""
    text = page("")
    titles = [f"\n{title}:\n" for title in COMMANDS]
    places = [text.index(title) for title in titles]
    assert places == sorted(places)
    known = {name for names in COMMANDS.values() for name in names}
    assert set(TREE.commands) <= known
    assert text.index("  profile ") < text.index("  plan ") < text.index("  simulate ") < text.index("  viz ")


@pytest.mark.parametrize("path", ["run", "plan slipstream", "", "replay"])
def test_a_page_is_as_wide_as_the_terminal_up_to_100(path: str) -> None:
    """80 columns where nothing says more; a wider terminal gets fewer lines, up to 100."""
    narrow, wide, wider = (page(path, columns).splitlines() for columns in (80, 120, 200))
    assert max(map(len, narrow)) <= 80
    assert 80 < max(map(len, wide)) <= 100
    assert wide == wider
    assert len(wide) < len(narrow)


def test_required_options_stand_first_and_in_the_usage() -> None:
    """What must be given is in the first line and first under its heading."""
    text = page("plan slipstream")
    assert page("plan pipeline").startswith("Usage: rtk plan pipeline --pp N --microbatches N [OPTIONS] PROFILE\n")
    assert text.startswith("Usage: rtk plan slipstream [OPTIONS] [PROFILE]\n")
    assert "Training:\n  --model MODEL" in page("run")


def test_short_options() -> None:
    """-h, -V, -q, -o and -j are there."""
    assert rtk("-h").stdout == rtk("--help").stdout == rtk("help").stdout
    assert rtk("-V").stdout == rtk("--version").stdout
    assert "-q, --quiet" in page("simulate")
    assert "-j, --jobs" in page("replay")


def test_help_shows_the_page_of_a_command_and_topics() -> None:
    """`rtk help plan pipeline` is `rtk plan pipeline -h`; exit codes and errors have a page."""
    assert rtk("help", "plan", "pipeline").stdout == page("plan pipeline")
    assert rtk("help", "profile").stdout == page("profile")
    codes = rtk("help", "exit-codes").stdout
    assert all(f" {code}  " in codes for code in (0, 1, 2, 3, 4, 5, 70, 127, 130))
    assert '{"error": {"exit_code"' in rtk("help", "errors").stdout
    wrong = rtk("help", "plan", "pipelin")
    assert wrong.returncode == 2
    assert "`rtk plan -h`" in wrong.stderr
    assert "did you mean simulate?" in rtk("help", "simulat").stderr


def test_schema_without_a_name_lists_the_names() -> None:
    """The names of the formats, as a table or JSON."""
    assert rtk("schema").returncode == 0
    assert "plan " in rtk("schema").stdout
    assert '"plan"' in rtk("schema", "--json").stdout


# The examples, run in their order in one folder.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of examples/, and the profiles that take long to measure."""
    made = tmp_path_factory.mktemp("examples")
    shutil.copytree(ROOT / "examples", made, dirs_exist_ok=True)
    computed = rtk("profile", "gpt-tiny", "--analytic", "--gpu", "a100-sxm", "-o", "p.json", cwd=made)
    assert computed.returncode == 0, computed.stderr
    shutil.copy(made / "p.json", made / "refined.json")
    return made


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Done]:
    """What became of every example that is run, in the order of the table; each once."""
    found: dict[str, Done] = {}
    for line in [line for lines in EXAMPLES.values() for line in lines]:
        if line not in found and not line.startswith(PARSED):
            found[line] = rtk(*shlex.split(line)[1:], cwd=folder)
    return found


@pytest.mark.parametrize("path", EXAMPLES)
def test_the_examples_of_a_page_run(path: str, results: dict[str, Done]) -> None:
    """Each ends with 0, or with 1 where it finds what it looks for."""
    for line in EXAMPLES[path]:
        if line in results:
            found = {1} if "--fail-if" in line or "--exit-code" in line else set()
            assert results[line].returncode in {0, *found}, f"{line}\n{results[line].stderr}"


@pytest.mark.parametrize("path", EXAMPLES)
def test_the_examples_that_are_not_run_are_read_as_meant(path: str) -> None:
    """Their commands are there, and take these options."""
    for line in EXAMPLES[path]:
        words = shlex.split(line)
        if not line.startswith(PARSED) or "rtk" not in words:
            continue
        words = words[words.index("rtk") + 1 :]
        context, command = TREE.make_context("rtk", [], resilient_parsing=True), TREE
        while hasattr(command, "commands"):
            name = words.pop(0) if words[0] in command.commands else next(iter(command.commands))
            command = command.get_command(context, name)
        command.make_context(name, words, parent=context)


def test_examples_are_of_commands_that_there_are() -> None:
    """No page's examples outlive it."""
    assert set(EXAMPLES) <= {*PAGES, "init", "config"}
