"""A job's file: what is read of it, what is refused and where, and where it is found."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.errors import InvalidInputError
from rtk.schemas.job_file import (
    KEYS,
    MOST_BYTES,
    TABLES,
    JobKey,
    ValueKind,
    find_job_file,
    job_schema,
    job_text,
    read_job_file,
)
from rtk.schemas.other_names import OTHER_NAMES

VALUES = {
    ValueKind.COUNT: st.integers(1, 10**6),
    ValueKind.NUMBER: st.one_of(st.integers(0, 10**9), st.floats(0, 1e6), st.just("10ms")),
    ValueKind.TEXT: st.sampled_from(["a", "gpt-tiny", "ünï", 'a"b\\c', "# no comment", "[x]", "a = b"]),
    ValueKind.FLAG: st.booleans(),
    ValueKind.TEXTS: st.lists(st.sampled_from(["a", "b c", "x=1"]), min_size=1, max_size=3),
    ValueKind.LIST: st.lists(st.one_of(st.integers(0, 9), st.sampled_from(["8GB", "joint"])), min_size=1, max_size=3),
}
FILES = st.fixed_dictionaries({}, optional={key: VALUES[key.kind] for key in KEYS})


def values(path: str) -> dict[str, object]:
    """What a file says, by the keys' places."""
    return {key.place: value for key, value in read_job_file(path).values.items()}


def read(folder: Path, text: str) -> dict[str, object]:
    """The same of a file with this text."""
    (folder / "rtk.toml").write_text(text)
    return values(str(folder / "rtk.toml"))


@given(FILES)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, told: dict[JobKey, object]) -> None:
    """A file with any of the keys says these and no others, as a command line has them; each stands on its line."""
    path = tmp_path_factory.mktemp("job") / "rtk.toml"
    path.write_text(job_text({key.place: value for key, value in told.items()}))
    found = read_job_file(str(path))
    assert set(found.values) == set(told)
    lines = path.read_text().split("\n")
    for key, value in found.values.items():
        assert lines[found.lines[key] - 1].startswith(f"{key.name} = ")
        items = told[key] if isinstance(told[key], list) else [told[key]]
        assert isinstance(items, list)
        if key.kind is ValueKind.TEXTS:
            assert [str(one).rpartition("/")[2] for one in value] == items  # type: ignore[union-attr]
        elif key.kind is not ValueKind.FLAG and not key.is_path:
            assert value == ",".join(map(str, items))


def test_all_that_init_writes_may_be_uncommented(tmp_path: Path) -> None:
    """Each key stands in the written file with an example that is read as it stands."""
    text = job_text({})
    assert read(tmp_path, text) == {}
    bare = "\n".join(line.removeprefix("# ") for line in text.split("\n")[2:])
    assert set(read(tmp_path, bare)) == {key.place for key in KEYS}


@pytest.mark.parametrize(
    ("text", "what", "where", "fix"),
    [
        ("[shape]\nppp = 2", "unknown key ppp", "shape.ppp (line 2)", "did you mean pp?"),
        ("[shape]\nmicrobatch = 2", "unknown key microbatch", "shape.microbatch (line 2)", "mean microbatches?"),
        ("[training]\ncheckpoint-every = 2", "unknown key checkpoint-every", "(line 2)", "mean checkpoint_every?"),
        ("[model]\nschedul = '1f1b'", "unknown key schedul", "(line 2)", "did you mean shape.schedule?"),
        ("[model]\nzzz = 1", "unknown key zzz", "model.zzz (line 2)", "the keys of [model] are name, profile"),
        ("[model]\n\npp = 2", "pp belongs in [shape]", "model.pp (line 3)", "move it to [shape]"),
        ("pp = 2", "pp belongs in [shape]", "pp (line 1)", "move it to [shape]"),
        ("zzz = 2", "unknown key zzz", "zzz (line 1)", "the tables are [model], [cluster]"),
        ("[shap]\npp = 2", "unknown table [shap]", "shap (line 1)", "did you mean [shape]?"),
        ("[zzz]\npp = 2", "unknown table [zzz]", "zzz (line 1)", "the tables are [model]"),
        ("shape = 2", "shape is a table", "shape (line 1)", "write [shape] above its keys"),
        ("[[shape]]\npp = 2", "shape is a table", "shape", "write [shape]"),
        ("[shape]\npp = '2'", 'pp is a whole number, not "2"', "shape.pp (line 2)", "write pp = 2, say"),
        ("[shape]\npp = 2.0", "pp is a whole number, not 2.0", "shape.pp (line 2)", "write pp = 2, say"),
        ("[shape]\npp = true", "pp is a whole number, not true", "shape.pp (line 2)", "write pp = 2, say"),
        ("[shape]\npp = [2]", "pp is a whole number, not [2]", "shape.pp (line 2)", "write pp = 2, say"),
        ("shape.pp = 'x'", "pp is a whole number", "shape.pp (line 1)", "write pp = 2"),
        ("shape = { pp = 'x' }", "pp is a whole number", "rtk.toml, shape.pp", "write pp = 2"),
        ("[model]\nname = 3", "name is a text, not 3", "model.name (line 2)", 'write name = "gpt-tiny", say'),
        ("[training]\ndata = []", "data is a text, or a list of texts, not []", "(line 2)", "write data = "),
        ("[training]\ndata = [1]", "data is a text, or a list of texts, not [1]", "(line 2)", "write data = "),
        ("[training]\npaced = 1", "paced is true or false, not 1", "(line 2)", "write paced = true"),
        ("[training]\nlr = 1979-05-27", "lr is a number, or a text with a unit", "(line 2)", "write lr = 1e-3"),
        ("[training]\nlr = {a = 1}", "lr is a number, or a text with a unit", "(line 2)", "write lr = 1e-3"),
        ("[shape]\npp = two", "the file is not valid TOML: Invalid value", "rtk.toml, line 2 column 6", "in quotes"),
        ("[shape\npp = 2", "the file is not valid TOML", "line 1 column 7", "correct it"),
        (
            "[shape]\npp = 2\npp = 3",
            "the file is not valid TOML: Cannot overwrite a value",
            ", at its end",
            "each key and table once",
        ),
        ("[shape]\npp = " + "9" * 5000, "the file is not valid TOML", "rtk.toml", "correct it"),
        ("[shape]\npp = 0x" + "f" * 5000, "not so large a number", "shape.pp (line 2)", "write pp = 2"),
        ("a = " + "[" * 5000, "the file is not valid TOML", "rtk.toml", "correct it"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, text: str, what: str, where: str, fix: str) -> None:
    """What no key holds is refused: what it is, on which line, and what was meant."""
    with pytest.raises(InvalidInputError) as caught:
        read(tmp_path, text)
    told = caught.value
    assert what in told.what
    assert "rtk.toml" in (told.where or "")
    assert where in (told.where or "")
    assert fix in (told.fix or "")


PIECES = st.sampled_from([
    "[shape]", "[[shape]]", "[model", "pp", "shape", "=", ".", "2", "'x'", '"', '"""', "{", "}", "[", "]", ",", "\n",
    " ", "#", "1e999", "nan", "2024-01-01", "true", "\x00", "ü", "data", "9" * 20,
])  # fmt: skip


@given(st.one_of(st.lists(PIECES, max_size=12).map("".join), st.text(max_size=60)))
def test_any_text_is_a_job_or_an_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Whatever stands in the file, it is read or refused, and nothing else."""
    path = tmp_path_factory.mktemp("any") / "rtk.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        found = read_job_file(str(path))
    except InvalidInputError as error:
        assert str(path) in (error.where or "")
    else:
        assert set(found.values) <= set(KEYS)


@pytest.mark.parametrize(
    ("data", "what"),
    [(b"\xff\xfe", "the file is not UTF-8 text"), (b"#" * (MOST_BYTES + 1), "too large for a job's file")],
)
def test_what_is_no_text_of_a_job_is_refused(tmp_path: Path, data: bytes, what: str) -> None:
    """Bytes that are no text, and files that nobody wrote by hand, are told as such."""
    (tmp_path / "rtk.toml").write_bytes(data)
    with pytest.raises(InvalidInputError, match=what):
        read_job_file(str(tmp_path / "rtk.toml"))


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    """One error says so, with its name."""
    with pytest.raises(InvalidInputError) as caught:
        read_job_file(str(tmp_path / "none.toml"))
    assert caught.value.where == str(tmp_path / "none.toml")


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a folder below, paths lead up to the file's folder; presets, counted clusters and absolute paths stay."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    text = (
        '[model]\nname = "{}"\n[cluster]\ncluster = "{}"\n[training]\ndata = ["x.txt", "/y.txt"]\n[shape]\nplan = "-"'
    )
    (tmp_path / "rtk.toml").write_text(text.format("net.py:make", "c.yaml"))
    monkeypatch.chdir(inner)
    rest = {"training.data": ("../../x.txt", "/y.txt"), "shape.plan": "-"}
    assert values("../../rtk.toml") == {"model.name": "../../net.py:make", "cluster.cluster": "../../c.yaml", **rest}
    (tmp_path / "rtk.toml").write_text(text.format("gpt-tiny", "8x8"))
    assert values("../../rtk.toml") == {"model.name": "gpt-tiny", "cluster.cluster": "8x8", **rest}
    monkeypatch.chdir(tmp_path)
    for name in ("rtk.toml", "./rtk.toml", str(tmp_path / "rtk.toml")):
        assert values(name)["training.data"] == ("x.txt", "/y.txt")


def test_the_nearest_file_of_the_repository_is_found(tmp_path: Path) -> None:
    """The folder's own file holds, else the nearest above it up to the repository's root, and no other."""
    inner = tmp_path / "repository" / "a" / "b"
    inner.mkdir(parents=True)
    outer = tmp_path / "rtk.toml"
    outer.touch()
    assert find_job_file(inner) is None  # there is no repository: somebody else may have put it there
    assert find_job_file(tmp_path) == outer
    (tmp_path / "repository" / ".git").mkdir()
    assert find_job_file(inner) is None  # above the root
    for folder in (tmp_path / "repository", inner.parent, inner):
        (folder / "rtk.toml").touch()
        assert find_job_file(inner) == folder / "rtk.toml"


def test_the_schema_knows_all_keys_and_no_others() -> None:
    """An editor is told of each key what it holds and means, and that there are no others."""
    schema = job_schema()
    assert {f"{table}.{name}" for table, one in schema["properties"].items() for name in one["properties"]} == {
        key.place for key in KEYS
    }
    assert list(schema["properties"]) == list(TABLES)
    assert not any(one["additionalProperties"] for one in (schema, *schema["properties"].values()))


def test_keys_are_unlike() -> None:
    """No name stands in two tables, so that one in the wrong table is known where it belongs."""
    assert len({key.name for key in KEYS}) == len(KEYS)
    assert {key.table for key in KEYS} == set(TABLES)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("max_grad_norm", "it is clip_norm here"),
        ("lr_scheduler_type", "it is lr_schedule here"),
        ("gradient_accumulation_steps", "gradients are accumulated over the plan's micro-batches: rtk plan"),
        ("min_lr", "it is min_lr_ratio here, a share of --lr"),
    ],
)
def test_other_frameworks_names_are_answered(tmp_path: Path, name: str, fix: str) -> None:
    """A key that Hugging Face, Megatron or torchtitan has in its place is told under our name."""
    with pytest.raises(InvalidInputError, match=f"unknown key {name}") as caught:
        read(tmp_path, f"[training]\n{name} = 1\n")
    assert str(caught.value.fix).startswith(fix)


def test_other_frameworks_names_lead_to_keys() -> None:
    """All that they mean here is a key of the job's file or an option, and none of them is a key itself."""
    ours = {key.name for key in KEYS if "run" in key.options} | {"model", "resume"}
    assert {name for meant in OTHER_NAMES.values() for name in meant.names} <= ours
    assert not {key.name for key in KEYS if key.table == "training"} & set(OTHER_NAMES)
    assert all(meant.names or meant.note for meant in OTHER_NAMES.values())


def test_logs_stand_beside_the_file(tmp_path: Path) -> None:
    """The path behind a log's kind is found from where the file is; the kind is left alone."""
    found = read(tmp_path, 'training.log_to = ["tensorboard:logs", "jsonl:/tmp/x.jsonl", "nothing"]\n')
    assert found["training.log_to"] == (f"tensorboard:{tmp_path}/logs", "jsonl:/tmp/x.jsonl", "nothing")
