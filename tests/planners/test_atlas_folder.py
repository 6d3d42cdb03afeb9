"""The folder of an atlas: nothing that was finished is lost, and what is not the same atlas is refused."""

import gzip
import hashlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.slipstream.atlas_folder import AtlasFolder, plan_path, read_atlas, stored_plan
from rtk.schemas.atlas import Atlas, AtlasEntry, Recipe, SlotRules
from rtk.schemas.documents import digest, read_document, write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan, Planner, Prediction

from ..schemas.test_atlas_schema import atlases
from ..strategies import hand_plan

PLAN = hand_plan({"0/0": "F0 F1.0 B0 B1.0", "1/0": None}, 1)
RULES = SlotRules((1,), (1,), (0.0,), (1,), (0,))
PREDICTION = Prediction(3.0, 3.0, 3.0, 3.0, 0.0, "optimal", 0.0, (1.0,))
OPTIONS = {
    "pp": 1, "dp": 4, "microbatches": 1, "technique": "adaptive", "solver": "auto", "seed": 0, "time_limit_s": 0.0,
    "cost": "heuristic", "slow": {}, "link_delay_s": {}, "network": None,
}  # fmt: skip
STORED = 1  # the entry of the small atlas whose plan is stored


def small_atlas(most_failures: int = 3) -> Atlas:
    """Four pipelines of one stage; the plan for one failure is stored, the others are made by rules."""
    recipes = [
        Recipe(stored=digest(PLAN)) if f == STORED else Recipe((1,), RULES, "slots") for f in range(most_failures + 1)
    ]
    return Atlas(
        planner=Planner("slipstream", "1", OPTIONS),
        template=PLAN.templates[0],
        dp=4,
        microbatches=1,
        optimizer="synchronous",
        split=False,
        failure_unit=(1, 1),
        state_bytes=(8.0,),
        plans=tuple(AtlasEntry(f, (f,), PREDICTION, recipe) for f, recipe in enumerate(recipes)),
    )


def make(path: Path, atlas: Atlas, entries: int | None = None, begin: bool = True) -> AtlasFolder:
    """Begin an atlas and append its first entries, or all; not finished."""
    folder = AtlasFolder(str(path))
    if begin:
        folder.begin(replace(atlas, plans=()))
    for entry in atlas.plans[:entries]:
        folder.append(entry, PLAN if entry.recipe.stored == digest(PLAN) else None)
    return folder


def contents(path: Path) -> dict[str, bytes]:
    """Every file of a folder by its path in it."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def refused(action: Callable[..., object], *arguments: object) -> InvalidInputError:
    """The error that an action ends with, which says where and what to do."""
    with pytest.raises(InvalidInputError) as caught:
        action(*arguments)
    assert caught.value.where
    assert caught.value.fix
    return caught.value


def test_finished_folder_holds_the_atlas_and_stored_plans(tmp_path: Path) -> None:
    """A finished folder is read back equal, its stored plan too; the journal and half-written files are gone."""
    atlas = small_atlas()
    folder = make(tmp_path / "a", atlas)
    (tmp_path / "a" / ".atlas.json.x7").write_bytes(b"half")
    (tmp_path / "a" / "plans" / ".2.json.gz.x7").write_bytes(b"half")
    folder.finish(atlas)
    assert sorted(contents(tmp_path / "a")) == ["atlas.json", "plans/1.json.gz"]
    assert read_atlas(str(tmp_path / "a")) == atlas
    assert stored_plan(str(tmp_path / "a"), atlas.plans[STORED]) == PLAN


@given(atlas=atlases(), data=st.data())
def test_cut_anywhere_the_journal_gives_its_whole_entries(atlas: Atlas, data: st.DataObject) -> None:
    """Whatever byte an interruption cuts the journal at, its whole entries are found, in whatever order they finished,
    and going on from them gives the same folder as going through."""
    by_rules = tuple(
        replace(entry, recipe=Recipe(stored=digest(PLAN))) if entry.recipe.stored else entry for entry in atlas.plans
    )
    atlas = replace(atlas, plans=by_rules)
    with TemporaryDirectory() as place:
        through, cut_short = Path(place) / "through", Path(place) / "cut"
        make(through, replace(atlas, plans=tuple(data.draw(st.permutations(atlas.plans)))))
        shutil.copytree(through, cut_short)
        journal = (through / "unfinished.jsonl").read_bytes()
        cut = data.draw(st.integers(0, len(journal)))
        (cut_short / "unfinished.jsonl").write_bytes(journal[:cut])
        AtlasFolder(str(through)).finish(atlas)

        found = AtlasFolder(str(cut_short)).begin(replace(atlas, plans=()))
        lines = journal[:cut].split(b"\n")[1:-1]
        assert list(found) == sorted(json.loads(line)["failed_units"] for line in lines)
        assert all(entry == atlas.plans[number] for number, entry in found.items())
        missing = tuple(entry for entry in atlas.plans if entry.failed_units not in found)
        folder = make(cut_short, replace(atlas, plans=missing), begin=False)
        assert folder.begin(replace(atlas, plans=())) == dict(enumerate(atlas.plans))
        folder.finish(atlas)
        assert contents(cut_short) == contents(through)


ENDLESS = """
import sys
from dataclasses import replace
from rtk.planners.slipstream.atlas_folder import AtlasFolder
from rtk.schemas.documents import read_document
from rtk.schemas.atlas import Atlas
from rtk.schemas.plan import Plan
path, atlas, plan = sys.argv[1], read_document(sys.argv[2], Atlas), read_document(sys.argv[3], Plan)
folder = AtlasFolder(path)
folder.begin(replace(atlas, plans=()))
while True:
    for entry in atlas.plans:
        folder.append(entry, plan if entry.recipe.stored else None)
        print(entry.failed_units, flush=True)
"""


@pytest.mark.parametrize("finished", [1, 2, 3, 9])
def test_killed_process_loses_nothing_it_called_finished(tmp_path: Path, finished: int) -> None:
    """After SIGKILL in the middle of writing, every entry that the process called finished is found with its plan."""
    atlas = small_atlas()
    write_document(str(tmp_path / "atlas.json"), atlas)
    write_document(str(tmp_path / "plan.json"), PLAN)
    script = [sys.executable, "-c", ENDLESS, *(str(tmp_path / name) for name in ("a", "atlas.json", "plan.json"))]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(finished)]
        process.kill()
        said += [int(line) for line in process.stdout]
    assert process.returncode == -signal.SIGKILL
    found = AtlasFolder(str(tmp_path / "a")).begin(atlas)
    assert set(said) <= set(found)
    assert all(entry == atlas.plans[number] for number, entry in found.items())
    if STORED in found:
        assert stored_plan(str(tmp_path / "a"), found[STORED]) == PLAN


def test_finished_atlas_goes_on_to_more_failures(tmp_path: Path) -> None:
    """A finished atlas of the same inputs counts as finished entries, beside those that were appended to it since."""
    short, long = small_atlas(1), small_atlas(3)
    make(tmp_path / "a", short).finish(short)
    assert AtlasFolder(str(tmp_path / "a")).begin(long) == dict(enumerate(short.plans))
    AtlasFolder(str(tmp_path / "a")).append(long.plans[2])
    assert AtlasFolder(str(tmp_path / "a")).begin(long) == dict(enumerate(long.plans[:3]))
    assert read_atlas(str(tmp_path / "a")) == short


@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(gzip.compress(b"{}"))])
def test_entry_without_its_plan_is_made_again(tmp_path: Path, lose: Callable[[Path], object], finish: bool) -> None:
    """An entry whose stored plan is gone or another is not called finished."""
    atlas = small_atlas()
    folder = make(tmp_path / "a", atlas)
    if finish:
        folder.finish(atlas)
    lose(plan_path(tmp_path / "a", STORED))
    assert list(folder.begin(atlas)) == [0, 2, 3]


@pytest.mark.parametrize("finish", [False, True])
def test_atlas_of_other_inputs_is_refused(tmp_path: Path, finish: bool) -> None:
    """A folder that holds another atlas, finished or not, is refused and left as it is; the error says what differs."""
    atlas = small_atlas()
    folder = make(tmp_path / "a", atlas)
    if finish:
        folder.finish(atlas)
    before = contents(tmp_path / "a")
    planner = replace(atlas.planner, options=OPTIONS | {"solver": "milp", "seed": 1})
    other = replace(atlas, planner=planner, dp=5, microbatches=2, inputs={"profile": "1" * 64})
    error = refused(folder.begin, other)
    assert error.what == (
        f"the folder holds the {'' if finish else 'unfinished '}atlas of other inputs: they differ at "
        "/dp, /inputs/profile, /microbatches, /planner/options/seed and 1 more"
    )
    assert error.where == str(tmp_path / "a")
    assert contents(tmp_path / "a") == before


@pytest.mark.parametrize(
    ("line", "damage", "what", "place"),
    [
        (1, b"{", "Expecting", ""),
        (1, b"[]", "other inputs", ""),
        (2, b"", "EOF", ", /"),
        (3, b"\xff", "expected value", ", /"),
        (3, b'{"failed_units":1}', "required", ", /failures"),
        (4, b"\0" * 9, "expected value", ", /"),
    ],
)
def test_damaged_line_is_named(tmp_path: Path, line: int, damage: bytes, what: str, place: str) -> None:
    """A line of the journal that no interruption leaves so is one error with the file and the line."""
    folder = make(tmp_path / "a", small_atlas())
    journal = tmp_path / "a" / "unfinished.jsonl"
    lines = journal.read_bytes().split(b"\n")
    lines[line - 1] = damage
    journal.write_bytes(b"\n".join(lines))
    error = refused(folder.begin, small_atlas())
    assert what in error.what
    assert error.where == (f"{journal}, line {line}{place}" if damage != b"[]" else str(tmp_path / "a"))


def test_entry_that_contradicts_the_atlas_is_named(tmp_path: Path) -> None:
    """An entry of the journal is held to what the plans have in common, as one of the finished atlas is."""
    folder = make(tmp_path / "a", small_atlas(), 1)
    folder.append(replace(small_atlas().plans[2], failures=(9,)))
    error = refused(folder.begin, small_atlas())
    assert "each with a live worker of 4" in error.what
    assert error.where == f"{tmp_path / 'a' / 'unfinished.jsonl'}, line 3, /failures"


def test_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """Standard output, a file, a place in no folder or under a file, and occupied names are one error each."""
    atlas = small_atlas()
    (tmp_path / "file").write_text("")
    (tmp_path / "occupied" / "unfinished.jsonl").mkdir(parents=True)
    (tmp_path / "plan").mkdir()
    write_document(str(tmp_path / "plan" / "atlas.json"), PLAN)
    for name, what in [
        ("file", "a file stands here"),
        ("no/where", "the folder that the atlas would stand in is not there"),
        ("file/a", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("occupied", "Is a directory"),
        ("plan", "this is a plan, an atlas is needed here"),
    ]:
        assert what in refused(AtlasFolder(str(tmp_path / name)).begin, atlas).what
    assert "standard output" in refused(AtlasFolder("-").begin, atlas).what


def test_folder_that_vanishes_or_fills_is_an_error(tmp_path: Path) -> None:
    """Entries, plans and the atlas that cannot be written later are errors with their place, never lost silently."""
    atlas = small_atlas()
    folder = make(tmp_path / "a", atlas, 1)
    (tmp_path / "a" / "plans").write_text("")
    assert "cannot write" in refused(folder.append, atlas.plans[STORED], PLAN).what
    shutil.rmtree(tmp_path / "a")
    assert "cannot write" in refused(folder.append, atlas.plans[0]).what
    assert "cannot write" in refused(folder.finish, atlas).what


def test_other_files_of_the_folder_are_left_alone(tmp_path: Path) -> None:
    """An atlas may be made in a folder that holds other files; they stay."""
    (tmp_path / "notes.txt").write_text("mine")
    make(tmp_path, small_atlas()).finish(small_atlas())
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert read_atlas(str(tmp_path)) == small_atlas()


def test_contradicting_atlas_is_not_written(tmp_path: Path) -> None:
    """An atlas that lacks an entry is refused, and the journal stays."""
    atlas = small_atlas()
    folder = make(tmp_path / "a", atlas)
    with pytest.raises(InvalidInputError, match="the plan for 1 failures must stand here"):
        folder.finish(replace(atlas, plans=atlas.plans[::2]))
    assert len(folder.begin(atlas)) == 4


def test_reading_what_is_not_finished(tmp_path: Path) -> None:
    """An unfinished atlas says how many plans are there, a place without one that there is none."""
    make(tmp_path / "a", small_atlas(), 2)
    with (tmp_path / "a" / "unfinished.jsonl").open("ab") as stream:
        stream.write(b'{"failed')
    error = refused(read_atlas, str(tmp_path / "a"))
    assert error.what == "the atlas is unfinished: 2 plans are there"
    assert "it goes on where it stopped" in (error.fix or "")
    (tmp_path / "a" / "unfinished.jsonl").write_bytes(b"")
    assert "0 plans are there" in refused(read_atlas, str(tmp_path / "a")).what
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "none", tmp_path / "file"):
        assert refused(read_atlas, str(place)).what == "there is no atlas here"


def test_stored_plan_must_be_the_one_of_the_recipe(tmp_path: Path) -> None:
    """A stored plan that is missing, damaged or another is refused by its file."""
    atlas = small_atlas()
    make(tmp_path / "a", atlas).finish(atlas)
    stored, entry = plan_path(tmp_path / "a", STORED), atlas.plans[STORED]
    write_document(str(stored), replace(PLAN, inputs={"profile": "other"}))
    error = refused(stored_plan, str(tmp_path / "a"), entry)
    assert "not the plan that the atlas was made with" in error.what
    assert error.where == str(stored)
    stored.write_bytes(stored.read_bytes()[:-9])
    with pytest.raises(InvalidInputError, match="damaged or cut short"):
        stored_plan(str(tmp_path / "a"), entry)
    stored.unlink()
    with pytest.raises(InvalidInputError, match="No such file"):
        stored_plan(str(tmp_path / "a"), entry)


def test_plans_may_be_written_out_beside_their_rules(tmp_path: Path) -> None:
    """A plan that is rebuilt by rules may stand in `plans/` too, under its number of failures."""
    atlas = small_atlas()
    folder = make(tmp_path / "a", atlas, 0)
    folder.append(atlas.plans[2], PLAN)
    written = plan_path(tmp_path / "a", 2)
    assert read_document(str(written), Plan) == PLAN
    assert hashlib.sha256(gzip.decompress(written.read_bytes())).hexdigest() == digest(PLAN)
    assert list(folder.begin(atlas)) == [2]
