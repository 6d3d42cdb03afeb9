"""Bad input ends in one clear error: what, where, what to do; the right exit code; nothing written."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .shell import rtk, rtk_forked, rtk_process

GOLDEN = Path(__file__).parent.parent / "golden"
Change = Callable[[dict[str, Any]], object]


def profile(change: Change) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((GOLDEN / "profile-slots4.json").read_text())
    change(tree)
    return tree


def plan(change: Change) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((GOLDEN / "plan-two-stages.json").read_text())
    change(tree)
    return tree


def order(worker: int, text: str) -> Change:
    return lambda tree: tree["workers"][worker].__setitem__("order", text)


BAD_PROFILES: dict[str, tuple[Change, str, str]] = {
    "unknown key": (lambda t: t["layers"][1].update(activaton_bytes=1), "unknown key", "/layers/1/activaton_bytes"),
    "missing key": (lambda t: t["layers"][2].pop("costs"), "'costs' is missing", "/layers/2/costs"),
    "wrong unit": (lambda t: t["layers"][0]["costs"][0].update(forward_ms=1), "forward_ms", "/layers/0/costs/0/"),
    "text for a number": (
        lambda t: t["layers"][0]["costs"][0].update(forward_s="10ms"),
        "forward_s",
        "/layers/0/costs/0/forward_s",
    ),
    "negative time": (
        lambda t: t["layers"][3]["costs"][0].update(backward_input_s=-1.0),
        "greater than or equal to 0",
        "/layers/3/costs/0/backward_input_s",
    ),
}


@pytest.mark.parametrize("case", BAD_PROFILES)
def test_a_bad_profile_is_refused_with_its_place(case: str, tmp_path: Path) -> None:
    """Exit code 2, the file and the JSON pointer in the message, and no plan written."""
    change, what, where = BAD_PROFILES[case]
    (tmp_path / "p.json").write_text(json.dumps(profile(change)))
    done = rtk("plan", "pipeline", "p.json", "--pp", "2", "--microbatches", "2", "-o", "plan.json", cwd=tmp_path)
    assert done.returncode == 2
    assert what in done.stderr
    assert f"p.json, {where}" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]


BAD_ORDERS: dict[str, tuple[Change, str]] = {
    "missing operation": (order(0, "F0 F1 B0"), "has 1 F"),
    "doubled operation": (order(0, "F0 F1 B0 B1 B1"), "has 1 F, 2 B"),
    "foreign operation": (order(0, "F0 F1 F2 B0 B1 B2"), "is foreign"),
    "deadlock": (lambda t: (order(0, "F0 B0 F1 B1")(t), order(1, "F1 B1 F0 B0")(t)), "deadlock"),
    "backward before forward": (order(1, "B0 F0 F1 B1"), "comes before"),
    "not an order": (order(1, "0F1xyz B0"), "is not an operation"),
}


@pytest.mark.parametrize("case", BAD_ORDERS)
def test_a_plan_with_bad_orders_is_not_executed(case: str, tmp_path: Path) -> None:
    """`simulate`, `run` and `explain` end with 2 and write nothing; the message shows the order's place."""
    change, what = BAD_ORDERS[case]
    (tmp_path / "plan.json").write_text(json.dumps(plan(change)))
    writing = ("--timeline", "t.json")
    for command in (
        ("simulate", "plan.json", *writing),
        ("run", "plan.json", "--model", "gpt-tiny", *writing),
        ("explain", "plan.json"),
    ):
        done = rtk(*command, cwd=tmp_path)
        assert done.returncode == 2
        assert what in done.stderr
        assert "plan.json, /workers/" in done.stderr
        assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("case", [case for case in BAD_ORDERS if case != "not an order"])
def test_verify_says_what_is_wrong_and_exits_with_1(case: str, tmp_path: Path) -> None:
    """A plan that can be read but is not valid is a finding."""
    change, what = BAD_ORDERS[case]
    (tmp_path / "plan.json").write_text(json.dumps(plan(change)))
    done = rtk("verify", "plan.json", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert not found["valid"]
    assert what in found["problems"][0]["message"]
    assert found["problems"][0]["path"].startswith("/workers/")


def test_a_plan_of_another_profile_is_refused(tmp_path: Path) -> None:
    """With --profile, a plan whose profile has changed is not simulated, run or verified."""
    (tmp_path / "p.json").write_text(json.dumps(profile(lambda tree: None)))
    rtk("plan", "pipeline", "p.json", "--pp", "2", "--microbatches", "2", "-o", "plan.json", cwd=tmp_path)
    assert rtk("verify", "plan.json", "--profile", "p.json", cwd=tmp_path).returncode == 0
    changed = profile(lambda tree: tree["layers"][0]["costs"][0].update(forward_s=2.0))
    (tmp_path / "p.json").write_text(json.dumps(changed))
    for command in (("verify",), ("simulate",), ("run", "--model", "gpt-tiny")):
        done = rtk(command[0], "plan.json", *command[1:], "--profile", "p.json", cwd=tmp_path)
        assert done.returncode == 2
        assert "/inputs/profile" in done.stderr


def test_bad_data_is_refused_once(tmp_path: Path) -> None:
    """Data that are not there, or shorter than one sample, are refused before any worker starts."""
    (tmp_path / "p.json").write_text(json.dumps(profile(lambda tree: None)))
    (tmp_path / "model.py").write_text(
        "from torch import nn\ndef m():\n    return [nn.Embedding(256, 8), nn.Tanh(), nn.Tanh(), nn.Linear(8, 256)]\n"
    )
    (tmp_path / "short.txt").write_text("abc")
    rtk("plan", "pipeline", "p.json", "--pp", "2", "--microbatches", "2", "-o", "plan.json", cwd=tmp_path)
    for data, what in (("nowhere.txt", "No such file"), ("short.txt", "shorter than one sample")):
        done = rtk("run", "plan.json", "--model", "model.py:m", "--data", data, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.count("error:") == 1
        assert what in done.stderr
        assert data in done.stderr


def test_a_wrong_world_size_is_refused(tmp_path: Path) -> None:
    """Under torchrun with another number of processes than the plan's live workers: exit code 2."""
    (tmp_path / "p.json").write_text(json.dumps(profile(lambda tree: tree.update(layers=tree["layers"] * 3))))
    done = rtk("plan", "pipeline", "p.json", "--pp", "2", "--microbatches", "2", "-o", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    tree = json.loads((tmp_path / "plan.json").read_text())
    tree["templates"][0]["stages"][0]["layers"], tree["templates"][0]["stages"][1]["layers"] = [0, 5], [5, 10]
    (tmp_path / "plan.json").write_text(json.dumps(tree))
    job = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    done = rtk_forked("run", "plan.json", "--model", "gpt-tiny", cwd=tmp_path, environment=job)
    assert done.returncode == 2
    assert "2 live workers, this job has 3 processes" in done.stderr


ADAPTRA = ("plan", "adaptra", "p.json", "--pp", "4", "--microbatches", "4", "-o", "made.json")


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (("plan", "pipeline", "p.json", "--pp", "9", "--microbatches", "1"), 3, "9 stages cannot be cut"),
        (
            ("plan", "pipeline", "p.json", "--pp", "4", "--microbatches", "4", "--memory-limit", "0.5"),
            3,
            "memory limit",
        ),
        (("plan", "pipeline", "p.json", "--pp", "4", "--microbatches", "4", "--memory-limit", "1,2"), 2, "4 stages"),
        (
            ("plan", "pipeline", "p.json", "--pp", "4", "--microbatches", "4", "--memory-limit", "80Gb"),
            2,
            "did you mean GB?",
        ),
        (("plan", "pipeline", "p.json", "--pp", "4", "--microbatches", "4", "--link-delay", "7=0.1"), 2, "no link 7"),
        (("plan", "pipeline", "p.json", "--pp", "4", "--microbatches", "4", "--link-delay", "0=-1"), 2, "0=-1"),
        (("plan", "pipeline", "p.json", "--pp", "4", "--microbatches", "4", "--link-delay", "0=nan"), 2, "nan"),
        (("plan", "pipeline", "p.json", "--pp", "0", "--microbatches", "4"), 2, "--pp"),
        ((*ADAPTRA, "--memory-limit", "0.5"), 3, "stage 0 holds 1 B a micro-batch, its memory limit is 0.5 B"),
        ((*ADAPTRA, "--memory-limit", "4,4,0.9,4"), 3, "stage 2"),
        ((*ADAPTRA, "--memory-limit", "1,2"), 2, "4 stages"),
        ((*ADAPTRA, "--pp", "9"), 3, "9 stages cannot be cut"),
        ((*ADAPTRA, "--microbatches", "0"), 2, "--microbatches"),
        ((*ADAPTRA, "--link-delay", "3=0.1"), 2, "no link 3"),
        ((*ADAPTRA, "--link-delay", "1/0=0.1"), 2, "no link 1/0"),
        ((*ADAPTRA, "--link-delay", "0=-0.1"), 2, "0=-0.1"),
        ((*ADAPTRA, "--link-delay", "0=nan"), 2, "nan"),
        ((*ADAPTRA, "--link-delay", "0=inf"), 2, "inf"),
        ((*ADAPTRA, "--link-delay", "0=20sec"), 2, "'sec' in '20sec' is no unit here"),
        ((*ADAPTRA, "--technique", "1f1b"), 2, "1f1b"),
        ((*ADAPTRA, "--technique", "adapted", "--solver", "cp-sat"), 2, "adapted takes no solver"),
        ((*ADAPTRA, "--time-limit", "-1"), 2, "--time-limit"),
        ((*ADAPTRA, "--time-limit", "nan"), 2, "--time-limit"),
        (("plan", "pipeline", "nowhere.json", "--pp", "4", "--microbatches", "4"), 2, "No such file"),
        (("simulate", "p.json"), 2, "this is a profile, a plan is needed here"),
        (("explain", "p.json"), 2, "the profile was not computed: what its times are made of is not known"),
        (("explain", "nowhere.json", "--json"), 2, "No such file"),
        (("simulate", "plan.json", "--slow", "9/9=2"), 2, "no live worker 9/9"),
        (("simulate", "plan.json", "--slow", "0/0=0"), 2, "0/0=0"),
        (("schema", "plam"), 2, "there is no schema"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_wrong_usage_is_one_clear_error(arguments: tuple[str, ...], code: int, what: str, tmp_path: Path) -> None:
    """Every wrong call says what is wrong, with the exit code of its kind, and no traceback."""
    (tmp_path / "p.json").write_text((GOLDEN / "profile-slots4.json").read_text())
    (tmp_path / "plan.json").write_text((GOLDEN / "plan-two-stages.json").read_text())
    done = rtk(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert what in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "made.json").exists()


KNOWN = "a secret for one test only"
COORDINATE = ("coordinate", "plan.json", "--secret-file", "secret")
JOIN = ("run", "plan.json", "--model", "gpt-tiny", "--secret-file", "secret", "--coordinator", "127.0.0.1:1")
INJECT = ("run", "plan.json", "--model", "gpt-tiny", "--inject", "trace.jsonl")
TRACES = {
    "unknown worker": ({"iteration": 1, "kind": "fail", "worker": "7/7"}, "no worker 7/7", "/events/0/worker"),
    "by time": ({"time_s": 1.0, "kind": "fail", "worker": "0/0"}, "by iteration, not by time", "/events/0"),
    "no link": (
        {"iteration": 1, "kind": "slow_link", "link": "0/0-0/0", "delay_s": 0.1},
        "there is no link 0/0-0/0",
        "/events/0/link",
    ),
    "nobody gone": ({"iteration": 1, "kind": "join", "worker": "0/0"}, "nobody can join in its place", "/events/0"),
}


@pytest.mark.parametrize("case", TRACES)
def test_a_trace_that_cannot_be_injected_is_refused(case: str, tmp_path: Path) -> None:
    """Exit code 2, with the event's place in the trace, before any worker is started."""
    event, what, where = TRACES[case]
    (tmp_path / "plan.json").write_text((GOLDEN / "plan-two-stages.json").read_text())
    (tmp_path / "trace.jsonl").write_text(json.dumps(event))
    done = rtk(*INJECT, "--timeline", "t.json", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert what in done.stderr
    assert f"at: trace.jsonl, {where}\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "trace.jsonl"}


@pytest.mark.parametrize(
    ("arguments", "what", "where"),
    [
        ((*COORDINATE, "--listen", "garbage"), "'garbage' is no address", "--listen"),
        ((*COORDINATE, "--listen", "203.0.113.7:0"), "cannot listen", "203.0.113.7:0"),
        ((*COORDINATE[:-1], "short"), "a secret of 5 bytes is too easy to guess", "short"),
        (COORDINATE[:2], "the job's secret is missing", "RTK_SECRET"),
        ((*COORDINATE[:-1], "open"), "others than its owner can read or change the job's secret (mode 644)", "open"),
        ((*JOIN[:5], "open", *JOIN[6:], "--worker", "0/0"), "others than its owner", "open"),
        ((*COORDINATE, "--standby"), "a standby waits for a log", "--standby"),
        ((*COORDINATE, "--min-workers", "9"), "to begin with 9", "--min-workers"),
        ((*COORDINATE, "--log", "plan.json"), "no coordinator's log", "plan.json, line 1"),
        ((*COORDINATE, "--resume", "nowhere"), "there is no such folder", "nowhere"),
        ((*COORDINATE, "--resume", "empty"), "there is no complete checkpoint here", "empty"),
        ((*JOIN, "--worker", "0/0", "--iterations", "5"), "the coordinator decides on --iterations", "--iterations"),
        ((*JOIN, "--worker", "0/0", "--resume", "empty"), "the coordinator decides on --resume", "--resume"),
        ((*JOIN[:-1], "garbage", "--worker", "0/0"), "'garbage' is no address", "--coordinator"),
        ((*INJECT[:4], "--interface", "127.0.0.2"), "only a coordinator's workers meet there", "--interface"),
        ((*JOIN, "--worker", "9/9"), "the plan has no worker 9/9", "--worker"),
        (JOIN, "nothing says which worker this is", "RANK"),
    ],
)
def test_a_job_that_cannot_be_led_or_joined_is_one_clear_error(
    arguments: tuple[str, ...], what: str, where: str, tmp_path: Path
) -> None:
    """`rtk coordinate` and its workers end with 2 before they do anything, and say what is wrong, where and the fix."""
    (tmp_path / "plan.json").write_text((GOLDEN / "plan-two-stages.json").read_text())
    for name, text, mode in (("secret", KNOWN, 0o600), ("short", "short", 0o600), ("open", KNOWN, 0o644)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    (tmp_path / "empty").mkdir()
    done = rtk(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("error:") == 1
    assert what in done.stderr
    assert "at: " in done.stderr
    assert where in done.stderr
    assert "do: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_log_that_is_not_this_job_s_is_left_alone(tmp_path: Path) -> None:
    """The log of another job, or one that a living coordinator has, is refused and stays as it is."""
    from rtk.runners.resilience.journal import take

    (tmp_path / "plan.json").write_text((GOLDEN / "plan-two-stages.json").read_text())
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_text(KNOWN)
    held = take(tmp_path / "job.log", plan="of another job", job={"iterations": 3})
    before = (tmp_path / "job.log").read_bytes()
    for what in ("another coordinator has this log", "this is the log of another job: "):
        done = rtk_forked(*COORDINATE, "--log", "job.log", cwd=tmp_path)
        assert done.returncode == 2
        assert what in done.stderr
        assert "at: job.log" in done.stderr
        assert "Traceback" not in done.stderr
        assert (tmp_path / "job.log").read_bytes() == before
        held.close()


@pytest.mark.parametrize("technique", ["initial", "adapted", "best"])
def test_more_warm_up_than_micro_batches_is_no_trouble(technique: str, tmp_path: Path) -> None:
    """One micro-batch over four stages and a huge delay: the warm-ups are cut to 1, and the plan is valid."""
    (tmp_path / "p.json").write_text((GOLDEN / "profile-slots4.json").read_text())
    shape = ("--pp", "4", "--microbatches", "1", "--link-delay", "0=1e9", "--technique", technique)
    done = rtk("plan", "adaptra", "p.json", *shape, "-o", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "plan.json").read_text())["workers"][0]["order"] == "F0 I0 W0"
    assert rtk("verify", "plan.json", cwd=tmp_path).returncode == 0


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    """A traceback is shown with --debug, and only then; the exit code is the same."""
    plain = rtk_process("verify", "nowhere.json", cwd=tmp_path)
    done = rtk_process("verify", "nowhere.json", "--debug", cwd=tmp_path)
    assert ("Traceback" in plain.stderr, "Traceback" in done.stderr) == (False, True)
    assert done.stderr.startswith(plain.stderr)
    assert done.returncode == plain.returncode == 2


def test_a_bug_never_ends_as_a_finding_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What rtk does not expect ends with 70 and one error; with --debug its traceback is there; no memory is 5."""
    (tmp_path / "plan.json").write_text((GOLDEN / "plan-two-stages.json").read_text())
    monkeypatch.setattr("rtk.schemas.check.check_plan", lambda plan: plan.nothing)
    done = rtk("verify", "plan.json", cwd=tmp_path)
    assert done.returncode == 70
    assert done.stderr.startswith("error: this is a bug of rtk (AttributeError: ")
    assert "do: report it" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in rtk("verify", "plan.json", "--debug", cwd=tmp_path).stderr

    def fill(plan: object) -> None:
        raise MemoryError

    monkeypatch.setattr("rtk.schemas.check.check_plan", fill)
    done = rtk("verify", "plan.json", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (5, "error: there is not enough memory")


READERS: dict[str, tuple[str, ...]] = {
    "verify": ("big.gz",),
    "verify --timeline": ("plan.json", "--timeline", "big.gz"),
    "simulate": ("plan.json", "--inject", "big.gz"),
    "simulate --cluster": ("plan.json", "--cluster", "big.gz"),
    "viz": ("big.gz", "-o", "out.html"),
    "diff": ("plan.json", "big.gz"),
    "import": ("big.gz", "--from", "torch-csv", "--profile", "p.json", "-o", "out.json"),
    "profile model": (
        "big.json",
        "--analytic",
        "--gpu",
        "h100-sxm",
        "--microbatch-size",
        "1",
        "--sequence-length",
        "8",
    ),
    "profile compare": ("big.gz", "p.json"),
    "plan templates": ("big.gz", "--nodes", "4", "--gpus-per-node", "1"),
    "plan slipstream": ("--from", "atlas", "--failures", "1"),
    "detect": ("big.gz",),
    "detect --format operations": ("big.gz", "--format", "operations"),
    "trace show": ("trace.gz",),
    "replay": ("--profile", "p.json", "--pp", "2", "--dp", "2", "--microbatches", "2", "--trace", "trace.gz"),
    "sweep": ("big.gz", "-o", "out"),
}


@pytest.mark.parametrize("reader", READERS)
def test_no_command_reads_a_file_without_a_bound(reader: str, tmp_path: Path) -> None:
    """What unpacks to more than `--max-input` is refused with its name, whoever reads it, and nothing is written."""
    (tmp_path / "plan.json").write_text((GOLDEN / "plan-two-stages.json").read_text())
    (tmp_path / "p.json").write_text((GOLDEN / "profile-slots4.json").read_text())
    (tmp_path / "atlas").mkdir()
    numbers = b"1000000,2000000\n" * (1 << 13)
    for name in ("big.gz", "big.json", "atlas/atlas.json"):
        (tmp_path / name).write_bytes(gzip.compress(numbers))
    (tmp_path / "trace.gz").write_bytes(gzip.compress(b"".join(b"0,add,node%d\n" % n for n in range(1 << 13))))
    verb = [word for word in reader.split() if not word.startswith("--") and word != "operations"]
    done = rtk("--max-input", "100KiB", *verb, *READERS[reader], cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert "there are more than 102,400 bytes in the file, unpacked" in done.stderr
    assert not list(tmp_path.glob("out*"))
