"""A group of commands that is a command itself."""

import pytest
import typer
from typer.testing import CliRunner

from rtk.cli.profile import group


@pytest.fixture
def app() -> typer.Typer:
    """Says which command it was, and what with."""
    made = group("Two verbs.")

    @made.command("show")
    def show(name: str, loud: bool = False) -> None:
        print("show", name, loud)

    @made.command("drop")
    def drop(name: str) -> None:
        print("drop", name)

    return made


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a"], "show a False"),
        (["--loud", "a"], "show a True"),
        (["show", "drop"], "show drop False"),
        (["drop", "a"], "drop a"),
    ],
)
def test_the_first_verb_may_be_left_out(app: typer.Typer, arguments: list[str], said: str) -> None:
    """Arguments that begin with no verb are the first one's, options included."""
    assert CliRunner().invoke(app, arguments).stdout == f"{said}\n"


def test_help_is_the_groups(app: typer.Typer) -> None:
    """It names all verbs."""
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert "show" in shown
    assert "drop" in shown
