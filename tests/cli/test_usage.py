"""What is wrong with a line is told as all errors are, and as JSON where --json asks for it."""

import json
from pathlib import Path

import pytest

from .shell import rtk

GOLDEN = Path(__file__).parents[1] / "golden"
PLAN = str(GOLDEN / "plan-two-stages.json")


@pytest.mark.parametrize(
    "line",
    ["paln", "plan", "plan pipeline", "verify", "simulate p --jitter x", "simulate p --nope", "viz p -o", "diff a b c"],
)
def test_no_line_gets_another_dialect(line: str) -> None:
    """Never `Usage: … Try … Error: …`: three lines, or the page where a group was named alone."""
    done = rtk(*line.split())
    assert done.returncode == 2
    assert "Try 'rtk" not in done.stderr and "Error:" not in done.stderr
    assert done.stderr.startswith(("error: ", "Usage: rtk plan "))


def test_errors_are_one_json_document() -> None:
    """With --json an error is a document on standard output; standard error has the same in words."""
    done = rtk("simulate", "nowhere.json", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout) == {
        "error": {
            "what": "cannot read the file: No such file or directory",
            "where": "nowhere.json",
            "fix": "check the path",
            "exit_code": 2,
        }
    }
    assert done.stderr.startswith("error: cannot read the file")


def test_a_line_that_is_not_understood_is_json_too() -> None:
    """Also where --json was seen only by its name; what stands behind `--` is another program's."""
    assert json.loads(rtk("plan", "pipeline", "--json").stdout)["error"]["where"] == "rtk plan pipeline"
    assert json.loads(rtk("simulate", "p", "--nope", "--json").stdout)["error"]["where"] == "--nope"
    assert rtk("simulate", "nowhere.json", "--", "--json").stdout == ""
    assert rtk("simulate", "nowhere.json").stdout == ""


def test_an_event_where_events_are_told() -> None:
    """`rtk run --json` prints JSON lines: the error is one."""
    done = rtk("run", "nowhere.json", "--model", "gpt-tiny", "--json")
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["event"] == "error"
    assert json.loads(line)["error"]["where"] == "nowhere.json"


def test_what_run_says_of_json_does_not_contradict_itself() -> None:
    """JSON lines in the text and in the option's help; elsewhere one document."""
    assert "one JSON document" not in rtk("run", "-h").stdout
    assert "JSON lines" in rtk("run", "-h").stdout
    assert "one JSON document" in rtk("simulate", "-h").stdout


def test_options_on_the_wrong_side_of_the_command_are_told_where_they_belong() -> None:
    """--json goes behind the command's name, --max-input before it."""
    assert "rtk COMMAND --json" in rtk("--json", "simulate", PLAN).stderr
    assert (
        "before the command's name: rtk --max-input 4GiB simulate" in rtk("simulate", PLAN, "--max-input", "1GB").stderr
    )


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("--max_grad_norm=1", "it is --clip-norm here"),
        ("--clip-grad 1", "it is --clip-norm here"),
        ("--training.max_norm 1", "it is --clip-norm here"),
        ("--lr-decay-style cosine", "it is --lr-schedule here"),
        ("--gradient_accumulation_steps 4", "gradients are accumulated over the plan's micro-batches: rtk plan …"),
        ("--warmup-ratio 0.1", "it is --warmup here, a number of iterations"),
        ("--fp16", "it is --precision here, fp16-master in place of fp16"),
    ],
)
def test_other_frameworks_options_are_answered(option: str, fix: str) -> None:
    """What Hugging Face, Megatron and torchtitan call an option of `rtk run` is told under our name."""
    done = rtk("run", PLAN, "--model", "gpt-tiny", *option.split())
    assert (done.returncode, f"do: {fix}" in done.stderr) == (2, True), done.stderr


def test_only_a_run_knows_other_frameworks_options() -> None:
    """A command that has no such options says what it has."""
    assert "here" not in rtk("simulate", PLAN, "--max-grad-norm", "1").stderr


def test_a_long_or_strange_value_is_shown_safely() -> None:
    """Cut, and without control characters."""
    told = rtk("simulate", PLAN, "--jitter", "\x1b[31m" + "x" * 500).stderr
    assert "\x1b" not in told
    assert "…" in told
    assert len(told) < 300


# `rtk verify` and `rtk diff` for a workflow of GitHub Actions.


def broken(folder: Path) -> str:
    tree = json.loads(Path(PLAN).read_text())
    tree["workers"][0]["order"] = " ".join(reversed(tree["workers"][0]["order"].split()))
    (folder / "broken.json").write_text(json.dumps(tree))
    return str(folder / "broken.json")


def test_verify_takes_several_plans(tmp_path: Path) -> None:
    """Each is judged; one that is not valid is enough for exit code 1, and JSON says which."""
    bad = broken(tmp_path)
    assert rtk("verify", PLAN, PLAN).returncode == 0
    done = rtk("verify", PLAN, bad, "--json")
    assert done.returncode == 1
    tree = json.loads(done.stdout)
    assert not tree["valid"]
    assert {problem["file"] for problem in tree["problems"]} == {bad}


def test_verify_speaks_github_annotations(tmp_path: Path) -> None:
    """An error a problem, with the file; nothing where all is well."""
    bad = broken(tmp_path)
    done = rtk("verify", PLAN, bad, "--github")
    assert done.returncode == 1
    assert all(line.startswith(f"::error file={bad},title=rtk verify::/workers/") for line in done.stdout.splitlines())
    assert rtk("verify", PLAN, "--github").stdout == ""
    assert rtk("verify", PLAN, "--github", "--json").returncode == 2


def slower(folder: Path, by: float) -> str:
    """The plan with a prediction of another time."""
    tree = json.loads(Path(PLAN).read_text())
    for key in ("iteration_time_s", "makespan_s", "period_s", "lower_bound_s"):
        tree["prediction"][key] *= by
    (folder / "slower.json").write_text(json.dumps(tree))
    return str(folder / "slower.json")


def test_diff_begins_with_a_headline(tmp_path: Path) -> None:
    """What matters in a line: in words, bold in Markdown, a key in JSON, a notice for GitHub."""
    other = slower(tmp_path, 1.43)
    assert rtk("diff", PLAN, other).stdout.startswith("43 % slower\n")
    assert rtk("diff", PLAN, other, "--md").stdout.startswith("**43 % slower**\n")
    assert json.loads(rtk("diff", PLAN, other, "--json").stdout)["headline"] == "43 % slower"
    assert rtk("diff", PLAN, other, "--github").stdout == f"::notice file={other},title=rtk diff::43 %25 slower\n"
    assert rtk("diff", PLAN, PLAN).stdout == "no difference\n"


def test_fail_if_sets_a_limit(tmp_path: Path) -> None:
    """More than the limit is exit code 1, also where --exit-code is not given; less is none."""
    other = slower(tmp_path, 1.04)
    failed = rtk("diff", PLAN, other, "--fail-if", "slower:3%", "--fail-if", "memory:5%", "--json")
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["failures"] == ["4 % slower, 3 % are allowed"]
    assert rtk("diff", PLAN, other, "--fail-if", "slower:0.05").returncode == 0
    assert rtk("diff", PLAN, slower(tmp_path, 0.9), "--fail-if", "slower").returncode == 0
    for wrong in ("slowr:3%", "slower:much", "slower:-3%"):
        done = rtk("diff", PLAN, other, "--fail-if", wrong)
        assert done.returncode == 2
        assert "--fail-if" in done.stderr


def test_tolerance_hides_what_is_small(tmp_path: Path) -> None:
    """Numbers within the share are equal, for --exit-code as well; others are not."""
    other = slower(tmp_path, 1.04)
    within = rtk("diff", PLAN, other, "--tolerance", "5%", "--exit-code")
    assert (within.returncode, within.stdout) == (0, "no difference\n")
    assert rtk("diff", PLAN, other, "--tolerance", "3%", "--exit-code").returncode == 1
    assert rtk("diff", PLAN, other, "--tolerance", "few").returncode == 2
