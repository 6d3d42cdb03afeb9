"""`rtk init` and `rtk config show`: a job's file is asked for, written, and explained."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.cli.init import stages_for
from rtk.schemas.job_file import KEYS, read_job_file

from .shell import rtk


def values(folder: Path, name: str = "rtk.toml") -> dict[str, Any]:
    """What a file says, by the keys' places."""
    return {key.place: value for key, value in read_job_file(str(folder / name)).values.items()}


@pytest.mark.wheel("init")
def test_questions_are_asked_and_the_answers_written(tmp_path: Path) -> None:
    """An empty answer takes what is suggested, which follows from the answers before it."""
    done = rtk("init", cwd=tmp_path, stdin="gpt-small\n4x2\n\n\n6\n a.txt, b.txt\n20\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
    found = values(tmp_path)
    assert [Path(one).name for one in found.pop("training.data")] == ["a.txt", "b.txt"]
    shape = {"shape.pp": "2", "shape.dp": "4", "shape.microbatches": "6", "training.iterations": "20"}
    assert shape.items() <= found.items()
    assert {"model.name": "gpt-small", "cluster.cluster": "4x2"}.items() <= found.items()
    assert "Stages of a pipeline, of 8 workers [2]" in done.stderr
    assert "rtk plan pipeline" in done.stderr.partition("next:")[2]


def test_nothing_is_asked_of_scripts(tmp_path: Path) -> None:
    """--yes takes what options say and suggests the rest; --json says what was written."""
    done = rtk("init", "--yes", "--pp", "3", "--data", "x.txt", "-o", "job.toml", "--json", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["file"] == "job.toml"
    assert {"shape.pp": 3, "shape.microbatches": 12, "training.data": ["x.txt"]}.items() <= told["values"].items()
    assert set(values(tmp_path, "job.toml")) == set(told["values"])


def test_only_what_no_option_says_is_asked(tmp_path: Path) -> None:
    """Each option answers its question."""
    options = ("--model", "m.py:net", "--cluster", "here", "--pp", "1", "--dp", "2", "--microbatches", "4")
    done = rtk("init", *options, "--data", "x.txt", cwd=tmp_path, stdin="7\n")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("[") == 1
    assert values(tmp_path)["training.iterations"] == "7"


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    """Unless --force says otherwise; before anything is asked."""
    (tmp_path / "rtk.toml").write_text("# mine\n")
    refused = rtk("init", cwd=tmp_path)
    assert refused.returncode == 2
    assert "at: rtk.toml" in refused.stderr
    assert "--force" in refused.stderr
    assert "Model" not in refused.stderr
    assert (tmp_path / "rtk.toml").read_text() == "# mine\n"
    assert rtk("init", "--yes", "--force", cwd=tmp_path).returncode == 0
    assert values(tmp_path)["model.name"] == "gpt-tiny"


@pytest.mark.parametrize(
    ("stdin", "told"),
    [
        ("", ("a question has no answer", "at: Model", "--yes")),
        ("\n\n0\n", ("0 is too few", "at: Stages", "give 1 or more")),
        ("\nnone.yaml\n", ("none.yaml",)),
    ],
)
def test_wrong_answers_write_nothing(tmp_path: Path, stdin: str, told: tuple[str, ...]) -> None:
    """They are told as errors, and there is no file."""
    done = rtk("init", cwd=tmp_path, stdin=stdin)
    assert done.returncode == 2
    assert all(words in done.stderr for words in told)
    assert not (tmp_path / "rtk.toml").exists()


@given(st.integers(1, 10**6))
def test_suggested_stages_divide_the_workers(workers: int) -> None:
    """All workers are used, and there are no fewer pipelines than stages, so that somebody can take over."""
    stages = stages_for(workers)
    assert workers % stages == 0
    assert workers // stages >= stages


@pytest.mark.wheel("config show")
def test_show_says_where_each_value_comes_from(tmp_path: Path) -> None:
    """All keys, with the line of the file or the default, and the commands that use them."""
    (tmp_path / "rtk.toml").write_text("[shape]\n# two\npp = 2\n[training]\npaced = false\ndata = ['a', 'b']\n")
    rows = {row.split()[0]: row.split() for row in rtk("config", "show", cwd=tmp_path).stdout.splitlines()[1:]}
    assert list(rows) == [key.place for key in KEYS]
    assert rows["shape.pp"][1:5] == ["2", "rtk.toml:3", "plan", "pipeline,"]
    assert rows["shape.dp"][1:3] == ["1", "default"]
    assert rows["training.paced"][1:] == ["no", "rtk.toml:5", "run"]
    assert rows["training.data"][1:] == ["a", "b", "rtk.toml:6", "run"]
    assert rows["policy.policy"][1:] == ["default", "run,", "coordinate,", "simulate"]


def test_show_as_json_has_exact_values(tmp_path: Path) -> None:
    """Whole numbers are numbers; what stands nowhere has the defaults of its options."""
    (tmp_path / "rtk.toml").write_text("shape = {pp = 2}\n[training]\nlr = 0.5\n")
    told = json.loads(rtk("config", "show", "--json", cwd=tmp_path).stdout)
    assert told["file"] == "rtk.toml"
    rows = {one["key"]: one for one in told["keys"]}
    assert (rows["shape.pp"]["value"], rows["shape.pp"]["line"], rows["shape.pp"]["from"]) == (2, None, "file")
    assert (rows["training.lr"]["value"], rows["training.lr"]["line"]) == ("0.5", 3)
    assert rows["training.iterations"] == {
        "key": "training.iterations",
        "from": "default",
        "value": None,
        "defaults": [10],
        "options": {"run": "--iterations", "coordinate": "--iterations"},
    }


def test_show_without_a_file_shows_the_defaults(tmp_path: Path) -> None:
    """And says how to get one; a file that is wrong is an error."""
    done = rtk("config", "show", cwd=tmp_path)
    assert done.returncode == 0
    assert "rtk init writes one" in done.stderr
    assert json.loads(rtk("config", "show", "--json", cwd=tmp_path).stdout)["file"] is None
    (tmp_path / "rtk.toml").write_text("[shape]\nppp = 1")
    assert "did you mean pp?" in rtk("config", "show", cwd=tmp_path).stderr


def test_the_schema_is_printed() -> None:
    """For editors; it is named among the others."""
    assert json.loads(rtk("schema", "job").stdout)["title"] == "rtk.toml"
    assert "job" in rtk("schema", "jib").stderr


@pytest.mark.checkout
def test_the_page_shows_a_file_that_is_read(tmp_path: Path) -> None:
    """The whole example of docs/job-file.md is one."""
    page = (Path(__file__).parents[2] / "docs" / "job-file.md").read_text()
    (tmp_path / "rtk.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    assert values(tmp_path)["training.heartbeat_limit"] == "2s"
