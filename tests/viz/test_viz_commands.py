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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--pipelines", "0,2"), {"worker 0/0", "worker 0/1", "worker 2/0", "worker 2/1"}),
        (("--workers", "0/1,2/1"), {"worker 0/1", "worker 2/1", "worker 1/1"}),
    ],
)
def test_rows_are_chosen(
    capsys: pytest.CaptureFixture[str], files: SimpleNamespace, options: tuple[str, ...], expected: set[str]
) -> None:
    """Only the chosen pipelines or workers are drawn, with those whose micro-batches they have taken."""
    _, printed = run(capsys, viz, files.after, *options, "--json")
    records = json.loads(printed)["traceEvents"]
    names = {record["args"]["name"] for record in records if record["name"] == "process_name"}
    assert names - {"worker 1/1"} == expected - {"worker 1/1"}


def test_an_iteration_is_laid_over_a_simulation(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """With --iterations N each timeline is cut to it and begins at 0, so that plan and run lie over each other."""
    long = str(files.folder / "long.json")
    write_document(long, simulate(rtk.read(files.after)).repeated(5))
    _, printed = run(capsys, viz, files.after, long, "--iterations", "3", "--json")
    slices = [record for record in json.loads(printed)["traceEvents"] if record["ph"] == "X"]
    firsts, seconds = slices[: len(slices) // 2], slices[len(slices) // 2 :]
    assert [one["name"] for one in firsts] == [one["name"] for one in seconds]
    assert [one["ts"] for one in seconds] == pytest.approx([one["ts"] for one in firsts], abs=1e-6)
    assert {one["args"]["iteration"] for one in seconds} == {3}
    run(capsys, viz, long, "--from", "10ms", "--until", "0.05", "-o", str(files.folder / "part.html"))
    assert "makespan 40 ms (one iteration)" in (files.folder / "part.html").read_text()


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (("--pipelines", "x"), "--pipelines"),
        (("--pipelines", "3-1"), "--pipelines"),
        (("--pipelines", "7"), "--pipelines"),
        (("--workers", "1"), "--workers"),
        (("--iterations", "1-2"), "--iterations"),
        (("--from", "2s", "--until", "1s"), "--until"),
        (("--plotly", "-o", "x.svg"), "--plotly"),
    ],
)
def test_wrong_parts_are_told(
    capsys: pytest.CaptureFixture[str], files: SimpleNamespace, options: tuple[str, ...], where: str
) -> None:
    """An option that chooses nothing, or cannot be read, is an error that names it."""
    with pytest.raises(InvalidInputError) as caught:
        run(capsys, viz, files.after, *options)
    assert caught.value.where == where and caught.value.fix


def test_plotly_on_request(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """With --plotly the page is plotly's; the title is what the plan is, not the file's name."""
    for options, least in (((), 30_000), (("--plotly",), 3_000_000)):
        output = files.folder / "page.html"
        run(capsys, viz, files.after, "-o", str(output), *options)
        text = output.read_text()
        assert len(text) > least and ("plotly" in text) == bool(options)
        assert "<h1>by hand · 3 pipelines of 2 stages · 4 micro-batches each</h1>" in text


def test_a_folder_is_told(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """A folder cannot be drawn; of an atlas the error says how to draw one of its plans."""
    atlas = files.folder / "atlas"
    (atlas / "plans").mkdir(parents=True)
    for made, fix in (("nothing", "give files"), ("atlas.json", "--from"), ("plans/1.json.gz", "plans/1.json.gz")):
        (atlas / made).touch()
        with pytest.raises(InvalidInputError) as caught:
            run(capsys, viz, str(atlas))
        assert caught.value.fix and fix in caught.value.fix


def test_a_kind_of_picture_is_an_entry_of_the_painters(
    capsys: pytest.CaptureFixture[str], files: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stands in `PAINTERS` is asked by `rtk viz`, by `rtk.draw` and where the errors name what can be drawn."""

    def toy(documents: Sequence[Profile], names: Sequence[str]) -> Drawing:
        words = f"{names} {len(documents[0].layers)}"
        return Drawing(lambda title: words, lambda title: Sheet(title).picture(), lambda: iter(()), lambda width: [])

    with pytest.raises(InvalidInputError, match=r"templates.* can be drawn"):
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
        InvalidInputError,
        match=r"only plans, resumptions, timelines, templates,? .*can be drawn.*this is rtk\.profile",
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
