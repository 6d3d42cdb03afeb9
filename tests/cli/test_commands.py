"""Commands are found by their names, and imported when they are called."""

import pytest

from rtk.cli.commands import MODULES, SUMMARIES, load

from .shell import rtk


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_command_of_the_list_is_there(name: str) -> None:
    """What `rtk --help` names can be loaded, under that name, and says more of itself than the list does."""
    command = load(name)
    assert command.name == name
    assert command.help


def test_the_list_is_that_of_the_help() -> None:
    """`rtk --help` names every command with its summary, in one order; a module's other name is nobody's business."""
    said = "".join(rtk("--help").stdout.split())  # lines may break behind a hyphen
    places = [said.index(f"{name}{summary}".replace(" ", "")) for name, summary in SUMMARIES.items()]
    assert places == sorted(places)
    assert not any(module in said for module in MODULES.values())


def test_a_command_says_who_it_is() -> None:
    """Usage and errors name the command as it was called, groups and their verbs included."""
    assert "Usage: rtk import " in rtk("import", "--help").stdout
    assert "Usage: rtk plan pipeline " in rtk("plan", "pipeline", "--help").stdout
    assert "did you mean plan?" in rtk("pln").stderr


@pytest.mark.parametrize("name", [name for name in SUMMARIES if hasattr(load(name), "commands")])
def test_a_group_says_the_same_in_both_places(name: str) -> None:
    """A group's own help begins with what `rtk --help` says of it."""
    assert (load(name).help or "").splitlines()[0].rstrip(".") in SUMMARIES[name]
