"""What no command overwrites: its inputs, and files of another kind, unless --force says so."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.documents import write_document
from rtk.schemas.overwriting import kind_of

from ..resumptions import KILL, small_plan
from .shell import rtk
from .test_quantities import options

SHAPE = ("--pp", "2", "--microbatches", "4")
# Every option that names a file to be written, by command, and a command line without it that writes there; beside it
# the kind of what is written.
WRITING: dict[str, tuple[tuple[str, ...], str]] = {
    "plan pipeline --output": (("p.json", *SHAPE), "an rtk.plan"),
    "plan adaptra --output": (("p.json", *SHAPE), "an rtk.plan"),
    "plan joint --output": (("p.json", *SHAPE), "an rtk.plan"),
    "plan best --output": (("p.json", "--cluster", "2x1", "--batch", "8"), "an rtk.plan"),
    "plan best --chart": (("p.json", "--cluster", "2x1", "--batch", "8"), "an SVG picture"),
    "plan topology --output": (("p.json", *SHAPE, "--dp", "2"), "an rtk.plan"),
    "plan slipstream --output": (("p.json", *SHAPE, "--dp", "2", "--failed", "1/0"), "an rtk.plan"),
    "plan templates --output": (("p.json", "--nodes", "4"), "an rtk.templates"),
    "plan oobleck --output": (
        ("templates.json", "--nodes", "4", "--global-batch", "64", "--microbatch-size", "8"),
        "an rtk.plan",
    ),
    "plan reconfigure --output": (("oobleck.json", "--failed", "0/0"), "an rtk.plan"),
    "plan batch --output": (("--times", "7,3.5", "--microbatches", "30"), "JSON"),
    "plan mitigate --output": (("--costs", "5s,1min,20min"), "JSON"),
    "profile model --output": (("gpt3-medium", "--analytic", "--gpu", "h100-sxm"), "an rtk.profile"),
    "simulate --timeline": (("plan.json",), "an rtk.timeline"),
    "simulate --resumption": (("two.json", "--iterations", "3", "--inject", "faults.jsonl"), "an rtk.resumption"),
    "viz --output": (("plan.json",), "a Chrome trace"),
    "bubble --output": (("timeline.json",), "an rtk.bubble"),
    "goodput --output": (("job.log",), "an rtk.ledger"),
    "goodput --trace": (("job.log",), "JSON lines"),
    "export --output": (("plan.json", "--to", "torch-csv"), "text"),
    "import --output": (("orders.csv", "--from", "torch-csv", "--profile", "p.json"), "an rtk.plan"),
    "trace convert --output": (("spot.csv",), "JSON lines"),
    "trace generate --output": (
        ("--nodes", "4", "--days", "9", "--mtbf", "1d", "--repair", "2h"),
        "JSON lines",
    ),
    "replay --output": (
        ("--profile", "p.json", *SHAPE, "--dp", "1", "--trace", "spot.csv", "--policies", "spares"),
        "an rtk.replay",
    ),
    "replay --html": (
        ("--profile", "p.json", *SHAPE, "--dp", "1", "--trace", "spot.csv", "--policies", "spares"),
        "a web page",
    ),
    "detect --output": (("train.log",), "a web page"),
    "reproduce --markdown": ((), "text"),
}
# Those that want processes, torch or devices, or write into folders of their own; what they write is refused before.
UNTRIED = {"profile links --output", "profile refine --output", "monitor --output", "probe --output", "init --output"}
UNTRIED |= {"run --timeline", "run --metrics", "coordinate --timeline", "coordinate --metrics"}
FOLDERS = {"checkpoint export --output", "sweep --output", "quickstart --output"}
FORMS = {"checkpoint export --to", "export --to", "profile links --into"}  # what is written is said by --output
ENDINGS = {"a web page": ".html", "an SVG picture": ".svg", "text": ".csv", "JSON lines": ".jsonl"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of each kind."""
    place = tmp_path_factory.mktemp("files")
    (place / "spot.csv").write_text("".join(f"0,add,n{i}\n" for i in range(4)) + "9000000,remove,n1\n")
    (place / "train.log").write_text("\n".join(["1.0"] * 40) + "\n")
    (place / "job.log").write_text(_log_of_two_attempts())
    (place / "notes.txt").write_text("to be kept\n")
    write_document(str(place / "two.json"), small_plan())
    (place / "faults.jsonl").write_text(KILL)
    (place / "config.json").write_text('{"model_type": "llama"}\n')
    for line in (
        ("profile", "gpt3-medium", "--analytic", "--gpu", "h100-sxm", "-o", "p.json"),
        ("plan", "pipeline", "p.json", *SHAPE, "-o", "plan.json"),
        ("plan", "templates", "p.json", "--nodes", "4", "-o", "templates.json"),
        ("plan", "oobleck", "templates.json", *WRITING["plan oobleck --output"][0][1:], "-o", "oobleck.json"),
        ("simulate", "plan.json", "--timeline", "timeline.json"),
        ("viz", "plan.json", "-o", "chrome.json"),
        ("viz", "plan.json", "-o", "packed.pftrace"),
        ("viz", "plan.json", "-o", "picture.svg"),
        ("viz", "plan.json", "-o", "picture.png"),
        ("viz", "plan.json", "-o", "page.html"),
        ("export", "plan.json", "--to", "torch-csv", "-o", "orders.csv"),
        ("trace", "generate", *WRITING["trace generate --output"][0], "-o", "events.jsonl"),
    ):
        done = rtk(*line, cwd=place)
        assert done.returncode == 0, done.stderr
    return place


def _log_of_two_attempts() -> str:
    """Megatron's, of a job of eight GPUs that is lost after ten iterations and started again."""
    return "".join(
        f"using world size: 8, data-parallel size: 8\n{stamp(start, 0)} after megatron is initialized\n"
        + "".join(
            f" {stamp(start, 10 * number)} iteration {number:8d}/ 100 | elapsed time per iteration (ms): 10000.0 |\n"
            for number in range(1, 11)
        )
        for start in (10, 11)
    )


def stamp(hour: int, second: int) -> str:
    """A time of one day."""
    return f"[2025-08-01 {hour}:{second // 60:02d}:{second % 60:02d}]"


KINDS = {
    "p.json": "an rtk.profile",
    "plan.json": "an rtk.plan",
    "templates.json": "an rtk.templates",
    "timeline.json": "an rtk.timeline",
    "chrome.json": "a Chrome trace",
    "packed.pftrace": "a Perfetto trace",
    "picture.svg": "an SVG picture",
    "picture.png": "a PNG picture",
    "page.html": "a web page",
    "orders.csv": "text",
    "events.jsonl": "JSON lines",
    "notes.txt": "text",
    "config.json": "JSON",
}


def test_a_file_s_beginning_says_its_kind(made: Path, tmp_path: Path) -> None:
    """Also that of a packed file; an empty file is of none."""
    for name, kind in KINDS.items():
        assert kind_of(made / name) == kind
        (tmp_path / name).write_bytes(gzip.compress((made / name).read_bytes()))
        assert kind_of(tmp_path / name) == kind
    (tmp_path / "empty").touch()
    assert kind_of(tmp_path / "empty") is kind_of(tmp_path / "missing") is None


@given(st.binary(max_size=200))
def test_any_file_has_a_kind_or_none(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """No bytes are too strange to be told a kind."""
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    assert kind_of(path) is None or isinstance(kind_of(path), str)


def test_every_file_that_is_written_is_tried() -> None:
    """All options called --output, and all that say `write`, are in the tables above."""
    found = {
        f"{name} {option.opts[0]}"
        for name, option in options()
        if option.opts[0] == "--output" or "rite" in (option.help or "") or option.opts[0] == "--metrics"
    }
    assert found <= set(WRITING) | UNTRIED | FOLDERS | FORMS, found
    assert found >= set(WRITING) | UNTRIED


@pytest.mark.parametrize("writer", [one for one in WRITING if one != "reproduce --markdown"])
def test_no_command_overwrites_a_file_of_another_kind(writer: str, made: Path, tmp_path: Path) -> None:
    """It is refused, and the file stays as it was; with --force it is written, and then again, being of its kind."""
    (*verb, option), (arguments, kind) = writer.split(), WRITING[writer]
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    target = tmp_path / f"target{ENDINGS.get(kind, '.json')}"
    line = (*verb, *arguments, option, target.name)
    for there in (one for one in KINDS if KINDS[one] != kind):
        target.write_bytes((made / there).read_bytes())
        done = rtk(*line, cwd=tmp_path)
        assert (done.returncode, target.read_bytes()) == (2, (made / there).read_bytes())
        assert f"the file is {KINDS[there]}, which {kind} would overwrite\nat: " in done.stderr
        assert "do: write to another file, or add --force" in done.stderr
    for more in (("--force",), ()):
        assert rtk(*line, *more, cwd=tmp_path).returncode == 0
        assert kind_of(target) == kind
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".")]


@pytest.mark.parametrize(
    "line",
    [
        ("plan", "pipeline", "p.json", *SHAPE, "-o"),
        ("plan", "reconfigure", "oobleck.json", "--failed", "0/0", "-o"),
        ("simulate", "plan.json", "--timeline"),
        ("viz", "plan.json", "-o"),
        ("viz", "chrome.json", "timeline.json", "-o"),
        ("trace", "convert", "spot.csv", "-o"),
        ("replay", "--trace", "spot.csv", "--profile", "p.json", *SHAPE, "-o"),
        ("run", "plan.json", "--model", "gpt-tiny", "--timeline"),
        ("run", "plan.json", "--model", "gpt-tiny", "--metrics"),
    ],
)
@pytest.mark.parametrize("link", ["itself", "symbolic", "hard", "./"])
def test_no_command_overwrites_what_it_reads(line: tuple[str, ...], link: str, made: Path, tmp_path: Path) -> None:
    """Neither under its own name nor through a link; nothing of it is read or computed before."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    source = next(one for one in line if (made / one).is_file())
    target = {"itself": source, "./": f"./{source}"}.get(link, f"link-{source}")
    if link == "symbolic":
        (tmp_path / target).symlink_to(source)
    elif link == "hard":
        (tmp_path / target).hardlink_to(tmp_path / source)
    done = rtk(*line, target, cwd=tmp_path)
    assert (done.returncode, "is the same file\nat: --" in done.stderr) == (2, True), done.stderr
    assert (tmp_path / source).read_bytes() == (made / source).read_bytes()


def test_what_is_read_behind_a_file_is_not_overwritten(made: Path, tmp_path: Path) -> None:
    """A profile that nothing on the command line names, such as an atlas's, is known when it is written to."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    (tmp_path / "cluster.yaml").write_text("nodes: a[1-4]\ngpus_per_node: 1\n")
    (tmp_path / "o.yaml").symlink_to("cluster.yaml")
    line = ("plan", "pipeline", "p.json", *SHAPE, "--cluster", "cluster.yaml", "-o", "o.yaml")
    assert rtk(*line, cwd=tmp_path).returncode == 2
    assert (tmp_path / "cluster.yaml").read_text().startswith("nodes")


def test_two_outputs_are_two_files(made: Path, tmp_path: Path) -> None:
    """Two outputs cannot be one file; a device can be both."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    line = ("replay", "--trace", "spot.csv", "--profile", "p.json", *SHAPE, "--dp", "1", "--policies", "spares")
    done = rtk(*line, "-o", "new.html", "--html", "./new.html", cwd=tmp_path)
    assert (done.returncode, "--output is the same file\nat: --html" in done.stderr) == (2, True)
    assert not (tmp_path / "new.html").exists()
    assert rtk("simulate", "plan.json", "--timeline", "/dev/null", cwd=tmp_path).returncode == 0
    assert json.loads(rtk("plan", "pipeline", "p.json", *SHAPE, "-o", "-", cwd=tmp_path).stdout)


def test_a_program_overwrites_what_it_likes(made: Path, tmp_path: Path) -> None:
    """The guard is that of commands: who imports rtk reads a file and writes it again."""
    import rtk as library

    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "p.json"
    library.write(path, library.read(path))
    library.write(path, library.read(tmp_path / "plan.json"))
    assert kind_of(path) == "an rtk.plan"
