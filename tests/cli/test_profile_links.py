"""`rtk profile links` as a user calls it; what ranks do is tested in tests/runners/test_link_times.py."""

from pathlib import Path

import pytest

from rtk.cli import probe
from rtk.cli.links_report import print_survey
from rtk.cli.probe import parse_sizes
from rtk.profilers.link_survey import LinkSurvey, survey
from rtk.runners.torch.probe import Place
from rtk.schemas.documents import read_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.profile import Connection, Network, Profile

from .shell import rtk

PROFILE = str(Path(__file__).parent.parent / "golden" / "profile-slots4.json")


def test_it_tells_who_must_start_it() -> None:
    """Outside of a job it says how it is started."""
    done = rtk("profile", "links")
    assert done.returncode == 2
    assert "torchrun --nproc-per-node 8 --no-python rtk profile links" in done.stderr
    assert "--processes" in done.stderr


def test_sizes_have_units() -> None:
    """Sizes have units, decimal or binary, or are bytes; they come in rising order, and each once."""
    assert parse_sizes(None) == ()
    assert parse_sizes("16MB, 4,64KiB,1.5KB,1500B") == (4, 1500, 65536, 16_000_000)


@pytest.mark.parametrize(
    "sizes",
    ["", "0B,1kB", "-1B,1kB", "many", "4B,,1kB", "nanB,1kB", "0.5B,1kB", "999GB,1B", "4B,64kb"],
)
def test_sizes_that_are_none_are_refused(sizes: str) -> None:
    """What is no size of a message, as it is written everywhere, is refused."""
    with pytest.raises(InvalidInputError) as caught:
        parse_sizes(sizes)
    assert (caught.value.where, caught.value.fix is not None) == ("--sizes", True)


def test_a_size_that_is_none_ends_the_command() -> None:
    """Before any rank is started, with what was probably meant."""
    done = rtk("profile", "links", "--processes", "2", "--sizes", "4B,64kib")
    assert (done.returncode, "--sizes" in done.stderr) == (2, True)
    assert "did you mean KiB?" in done.stderr


def test_one_size_is_too_few() -> None:
    """A line has two points at least."""
    done = rtk("profile", "links", "--processes", "2", "--sizes", "1kB,1000B")
    assert (done.returncode, "two sizes or more" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--processes", "1"), "one rank"),
        (("--processes", "2", "--into", "missing.json", "-o", "p.json"), "missing.json"),
        (("--processes", "2", "--into", "-", "-o", "p.json"), "--into"),
        (("--processes", "2", "--into", PROFILE, "--json"), "standard output takes one document"),
        (("--processes", "2", "--into", __file__, "-o", "p.json"), "not valid JSON"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_measured(
    options: tuple[str, ...], what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Exit code 2, a message, no rank started and no file written."""
    started: list[object] = []
    monkeypatch.setattr(probe, "start_here", lambda *arguments: started.append(arguments))
    done = rtk("profile", "links", *options, cwd=tmp_path)
    assert (done.returncode, started, list(tmp_path.iterdir())) == (2, [], [])
    assert what in done.stderr


@pytest.mark.wheel("profile links")
def test_ranks_started_here_get_all_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --processes every rank is called as this command was, but for that option."""
    started: list[tuple[int, list[str]]] = []
    monkeypatch.setattr(probe, "start_here", lambda ranks, arguments: started.append((ranks, arguments)))
    given = ["--sizes", "4B,1KB", "--repeat", "3", "--into", PROFILE, "--output", "p.json", "--seed", "7"]
    flags = ["--together", "--json", "--quiet", "--debug"]
    assert rtk("profile", "links", "--processes", "3", *given, *flags).returncode == 0
    assert started == [(3, ["profile", "links", *given, *flags])]


@pytest.mark.parametrize("measured", ["intra_node", "inter_node"])
def test_what_was_not_measured_stays_in_the_profile(measured: str) -> None:
    """A profile's path of a kind that no pair was of is kept, and so is all else."""
    old, new = Connection(1.0, 2.0), Connection(3.0, 4.0)
    profile = read_document(PROFILE, Profile)
    before = LinkSurvey((), (), Network(old, old)).into(profile)
    alone, both = (Network(new), Network(new, old)), (Network(None, new), Network(old, new))
    found, expected = alone if measured == "intra_node" else both
    after = LinkSurvey((), (), found).into(before)
    assert after.network == expected
    assert after.layers == profile.layers


def test_the_report_says_what_not_to_trust(capsys: pytest.CaptureFixture[str]) -> None:
    """Times that are no line, readings that differ, an all-reduce that is no ring, and crowded cores: each is said."""
    no_line = {4: [1e-5, 9e-5, 1e-3], 1000: [1e-2] * 3, 2000: [1e-5] * 3, 4000: [5e-3] * 3, 2**20: [1e-2] * 3}
    found = survey("aa", {(0, 1): no_line}, {(0, 1): {size: [1.0] for size in no_line}})
    print_survey(found, [Place("a", "cpu", 1)] * 2)
    said = capsys.readouterr().err
    assert "pairs in a node: no line fits well" in said
    assert "pairs in a node: readings differ so much that the latency is uncertain" in said
    assert "all-reduce of all 2: 1 MiB take" in said
    assert "nothing is known of links between nodes" in said
    assert "ranks on a share its cores" in said
