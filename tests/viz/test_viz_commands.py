"""`rtk viz` and `rtk diff` from files to files."""

import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import typer

import rtk
from rtk.cli import diff, viz
from rtk.runners.simulator import simulate
from rtk.schemas.documents import canonical, write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.viz.drawing import PAINTERS, Drawing, Painter
from rtk.viz.painter import Sheet

MakePlan = Callable[..., Plan]


@pytest.fixture
def files(tmp_path: Path, make_plan: MakePlan, rerouted_plan: Plan) -> SimpleNamespace:
    plans = {"before": make_plan(pipelines=3, stages=2), "after": rerouted_plan}
    paths = {name: str(tmp_path / f"{name}.json") for name in (*plans, "run", "profile")}
    for name, plan in plans.items():
        write_document(paths[name], plan)
    write_document(paths["run"], simulate(rerouted_plan).timeline)
    write_document(paths["profile"], Profile((Layer((LayerCost(1, 1, 1),)),)))
    return SimpleNamespace(**paths, folder=tmp_path)


def run(capsys: pytest.CaptureFixture[str], module: ModuleType, *arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(module.command)
    code = app(list(arguments), standalone_mode=False)
    return code or 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("ending", "start"),
    [
        (".html", b"<!DOCTYPE html>"),
        (".svg", b"<svg "),
        (".svg.gz", b"<svg "),
        (".png", b"\x89PNG"),
        (".pdf", b"%PDF"),
        (".json", b"{"),
        (".json.gz", b"{"),
    ],
)
@pytest.mark.wheel("viz")
def test_the_ending_chooses_the_picture(
    capsys: pytest.CaptureFixture[str], files: SimpleNamespace, ending: str, start: bytes
) -> None:
    """A plan is simulated and drawn in the form that the output's ending names; .gz compresses."""
    output = str(files.folder / f"picture{ending}")
    assert run(capsys, viz, files.after, "-o", output) == (0, "")
    data = Path(output).read_bytes()
    data = gzip.decompress(data) if ending.endswith(".gz") else data
    assert data.startswith(start) and (b"F1.2" in data or ending in (".html", ".png", ".pdf"))


def test_plan_and_timeline_draw_the_same(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """A plan is drawn as the timeline that its simulation gives."""
    run(capsys, viz, files.after, "-o", str(files.folder / "a.json"))
    run(capsys, viz, files.run, "-o", str(files.folder / "b.json"))
    assert (files.folder / "a.json").read_bytes() == (files.folder / "b.json").read_bytes()


@pytest.mark.parametrize("output", ["x.jpg", "x", "-", "x.gz"])
def test_other_endings_are_refused(capsys: pytest.CaptureFixture[str], files: SimpleNamespace, output: str) -> None:
    """An ending that names no picture is an error that lists those that do."""
    with pytest.raises(InvalidInputError) as caught:
        run(capsys, viz, files.after, "-o", output)
    assert ".html, .svg, .png, .pdf, .json" in str(caught.value)


def test_json_prints_the_trace_or_what_was_written(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """With --json standard output is one document: the trace, or the place of the picture."""
    _, printed = run(capsys, viz, files.after, "--json")
    assert {record["ph"] for record in json.loads(printed)["traceEvents"]} >= {"X", "M", "s", "f", "C"}
    output = str(files.folder / "x.svg")
    _, printed = run(capsys, viz, files.after, "-o", output, "--json", "--terminal")
    assert json.loads(printed) == {"written": output}


def test_the_terminal_is_the_default(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """Without an output the chart is drawn in the terminal."""
    _, printed = run(capsys, viz, files.after)
    assert printed.startswith("simulated · makespan ") and "\n0/0 F0" in printed
    assert run(capsys, viz, files.after, "--terminal") == (0, printed)


def test_files_of_one_source_are_told_apart_by_name(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """Two simulated plans are labelled by their files, and the same file twice by numbers."""
    _, printed = run(capsys, viz, files.before, files.after, "--json")
    labels = [entry["label"] for entry in json.loads(printed)["otherData"]["timelines"]]
    assert labels == ["simulated before", "simulated after"]
    _, printed = run(capsys, viz, files.after, files.after, "--json")
    labels = [entry["label"] for entry in json.loads(printed)["otherData"]["timelines"]]
    assert labels == ["simulated after (1)", "simulated after (2)"]


def test_standard_input_is_read_once(
    capsys: pytest.CaptureFixture[str], files: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, rerouted_plan: Plan
) -> None:
    """`-` is standard input, for one file."""
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(canonical(rerouted_plan))))
    assert "0/0 F0" in run(capsys, viz, "-")[1]
    for module in (viz, diff):
        with pytest.raises(InvalidInputError, match="only once"):
            run(capsys, module, "-", "-")


def test_a_kind_of_picture_is_an_entry_of_the_painters(
    capsys: pytest.CaptureFixture[str], files: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stands in `PAINTERS` is asked by `rtk viz`, by `rtk.draw` and where the errors name what can be drawn."""

    def toy(documents: Sequence[Profile], names: Sequence[str]) -> Drawing:
        words = f"{names} {len(documents[0].layers)}"
        return Drawing(lambda title: words, lambda title: Sheet(title).picture(), lambda: iter(()), lambda width: [])

    with pytest.raises(InvalidInputError, match="templates and replays can be drawn"):
        run(capsys, viz, files.profile)
    monkeypatch.setitem(PAINTERS, Profile, Painter("profiles", toy, alone="a profile"))
    for draw in (
        lambda path: run(capsys, viz, files.profile, "-o", path),
        lambda path: rtk.draw(rtk.read(files.profile), path),
    ):
        draw(str(files.folder / "toy.html"))
        assert (files.folder / "toy.html").read_text().endswith(" 1")
        (files.folder / "toy.html").unlink()
    with pytest.raises(InvalidInputError, match="2 files, with a profile among them"):
        run(capsys, viz, files.profile, files.after)


def test_other_documents_are_refused(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """Neither a profile can be drawn, nor a plan that is not valid."""
    with pytest.raises(
        InvalidInputError, match=r"only plans, timelines, templates and replays can be drawn.*this is rtk\.profile"
    ):
        run(capsys, viz, files.profile)
    text = Path(files.after).read_text().replace("F0 B0", "B0 F0", 1)
    Path(files.after).write_text(text)
    with pytest.raises(InvalidInputError):
        run(capsys, viz, files.after)


@pytest.mark.wheel("diff")
def test_diff_in_three_forms(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """`rtk diff` says the same in words, as a table and as JSON."""
    assert "  worker 1/1 failed\n" in run(capsys, diff, files.before, files.after)[1]
    assert "| worker | worker 1/1 failed |" in run(capsys, diff, files.before, files.after, "--md")[1]
    tree = json.loads(run(capsys, diff, files.before, files.after, "--json")[1])
    assert tree["changes"][0]["words"] == "worker 1/1 failed"
    with pytest.raises(InvalidInputError):
        run(capsys, diff, files.before, files.after, "--json", "--md")


def test_exit_code_only_when_asked(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """A difference is exit code 1 with --exit-code, and 0 without; no difference is always 0."""
    assert run(capsys, diff, files.before, files.after)[0] == 0
    assert run(capsys, diff, files.before, files.after, "--exit-code")[0] == 1
    assert run(capsys, diff, files.after, files.after, "--exit-code") == (0, "no difference\n")
