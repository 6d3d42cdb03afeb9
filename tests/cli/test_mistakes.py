"""Sixty mistakes of a clumsy user, by number: the exit code, the place that is told, and what to do.

A row is a mistake; where it has several forms, each is a step of it. Those that need processes of their own are held by
other tests, which `ELSEWHERE` names.
"""

import gzip
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.schemas.documents import read_document, write_document
from rtk.schemas.profile import Profile

from .shell import Done, rtk, rtk_forked

TESTS = Path(__file__).parents[1]
SHAPE = "--pp 2 --dp 2 --microbatches 4"


@dataclass(frozen=True)
class Step:
    """A line as the user types it.

    Args:
        line: behind `rtk`.
        code: the exit code.
        says: stands in the answer, on either stream, each of them.
        never: does not stand there.
        torch: the command needs torch.
    """

    line: str
    code: int
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ("Traceback",)
    torch: bool = False


def wrong(line: str, *says: str, code: int = 2, torch: bool = False, never: tuple[str, ...] = ()) -> Step:
    """A step that ends in our kind of error: what, and what to do."""
    return Step(line, code, says, ("Traceback", *never), torch)


def at(place: str) -> str:
    return f"\nat: {place}\n"


ROWS: dict[int, tuple[Step, ...]] = {
    1: (Step("", 2, ("Usage: rtk", "Plan:", "Examples:")),),
    2: (Step("-h", 0, ("Usage: rtk",)), Step("plan pipeline -h", 0, ("Usage: rtk plan pipeline",))),
    3: (Step("help", 0, ("Usage: rtk",)), Step("help run", 0, ("Usage: rtk run",))),
    4: (
        wrong("paln", at("rtk"), "do: did you mean plan?"),
        wrong("profle", "did you mean profile?"),
        wrong("plan pipline", at("rtk plan"), "did you mean pipeline?"),
    ),
    5: (
        wrong("plan p.json", "is a file", at("rtk plan"), "rtk plan pipeline p.json", "slipstream"),
        wrong("plan.json", "is a file", "rtk simulate plan.json"),
    ),
    6: (wrong("plan pipeline p.json", "--pp and --microbatches are missing", "add --pp N and --microbatches N"),),
    7: (wrong("plan pipeline p.json --pp 2 --micro-batches 4", at("--micro-batches"), "did you mean --microbatches?"),),
    8: (
        wrong(
            f"plan pipeline p.json {SHAPE} --schedule zb",
            "--schedule takes gpipe, 1f1b or zero-bubble, not 'zb'",
            at("--schedule"),
            "did you mean zero-bubble?",
            never=("Value error",),
        ),
    ),
    9: (
        wrong(
            "plan pipeline p.json --pp two --microbatches 4",
            "--pp takes a whole number of 1 or more, not 'two'",
            at("--pp"),
        ),
        wrong("simulate plan.json --jitter much", "--jitter takes a number of 0 or more, not 'much'"),
    ),
    10: (wrong("plan pipeline p.json --pp 0 --microbatches 4", "1 or more, not '0'", at("--pp")),),
    11: (wrong("plan pipeline p.json --pp 11 --microbatches 4", "cannot be cut", "take at most 10", code=3),),
    12: (wrong("plan pipeline p.json --pp 2 --dp 100000 --microbatches 100", "--dp"),),
    13: (
        wrong("plan pipeline p.json --pp 2 --dp 2 --microbatches 100000000", "--microbatches"),
        wrong("plan pipeline p.json --pp 2 --dp 2 --microbatches 99999999999999999999", "--microbatches"),
        wrong("plan pipeline p.json --pp 2 --dp 999999999999 --microbatches 4", "--dp"),
    ),
    14: (
        wrong(
            f"plan pipeline plan.json {SHAPE}",
            "this is a plan, a profile is needed here",
            at("plan.json, /format"),
            "rtk profile MODEL -o p.json; or did you mean rtk simulate plan.json",
        ),
        wrong("simulate p.json", "this is a profile, a plan is needed here", "rtk plan pipeline PROFILE"),
        wrong("simulate config.json", "this is a Hugging Face config", "rtk profile config.json -o p.json"),
    ),
    15: (wrong("run plan.json", "--model is missing", "add --model MODEL"),),
    16: (wrong("run plan.json --model gpt-tinny", "did you mean gpt-tiny?", torch=True),),
    17: (wrong("run plan.json --model gpt-small", "the plan places 10 layers, the model has 14", torch=True),),
    18: (
        wrong("run plan.json --model gpt-tiny --data nope.txt", "nope.txt", torch=True),
        wrong("run plan.json --model gpt-tiny --data .", "the folder holds no dataset", torch=True),
        wrong("run plan.json --model gpt-tiny --data empty.txt", "empty.txt", torch=True),
        wrong("run plan.json --model gpt-tiny --data short.txt", "short.txt", torch=True),
    ),
    21: (
        wrong("simulate empty.json", at("empty.json, line 1 column 1")),
        wrong("simulate my.txt", "not valid JSON", "line 1 column 1"),
        wrong("simulate binary.bin", "not UTF-8 text (byte 0)"),
        wrong("simulate .", "Is a directory"),
        wrong("simulate atlas", "this is an atlas", at("atlas"), "rtk plan slipstream --from atlas"),
        wrong("explain atlas", "this is an atlas", "rtk plan slipstream --from atlas"),
        Step("verify atlas", 0, ("atlas, 1 failure: valid",)),
    ),
    22: (Step("verify plan.json zb.json", 0, ("plan.json: valid", "zb.json: valid")),),
    23: (
        wrong("viz plan.json -o out.bmp", at("--output out.bmp"), ".svg", ".html"),
        wrong("viz plan.json -o out", at("--output out"), ".svg"),
    ),
    24: (wrong("viz plan.json -o nodir/out.svg", "nodir"),),
    25: (wrong("viz plan.json -o plan.json", "plan.json"),),
    26: (
        wrong(f"plan pipeline p.json {SHAPE} -o p.json", "p.json"),
        wrong("simulate plan.json --timeline plan.json", "plan.json"),
    ),
    27: (wrong(f"plan pipeline p.json {SHAPE} -o /", "cannot write", at("/")),),
    28: (
        wrong(f"plan slipstream p.json {SHAPE} --failed 5/9", "0/0 to 1/1"),
        wrong(f"plan slipstream p.json {SHAPE} --failed 1-0", "k/i"),
    ),
    29: (
        wrong(
            "plan slipstream p.json --pp 2 --dp 1 --microbatches 4 --failed 0/0",
            "has lost all its workers",
            "checkpoint",
            code=3,
        ),
    ),
    30: (wrong(f"plan slipstream p.json {SHAPE} --max-failures 150% -o new", at("--max-failures")),),
    31: (
        wrong("simulate plan.json --slow 0/1=fast", at("--slow")),
        wrong("simulate plan.json --slow 0/1=-2", at("--slow")),
        wrong("simulate plan.json --slow 9/9=2", "9/9"),
    ),
    32: (
        Step("simulate plan.json --link-delay 0=10ms", 0),
        wrong("simulate plan.json --link-delay 7=0.01", "link"),
        Step(f"plan pipeline p.json {SHAPE} --memory-limit 1GB -o limited.json", 0),
    ),
    33: (wrong(f"plan pipeline p.json {SHAPE} --memory-limit 1000", code=3, never=("e+0",)),),
    34: (Step(f"plan pipeline p.json {SHAPE} --link-delay 0=5000000 -o slow.json", 0, never=("e+0",)),),
    35: (wrong("simulate plan.json --iterations 100000000 --timeline t.json", "--iterations"),),
    36: (
        wrong("diff p.json plan.json", "this is a profile, a plan is needed here", at("p.json, /format")),
        wrong("diff plan.json", "B is missing", "add B"),
    ),
    37: (
        wrong("export plan.json --to csv", "not 'csv'", "torch-csv"),
        wrong("import orders.csv --profile p.json", "--from is missing", "add --from"),
    ),
    38: (
        Step("detect one.log", 0, ("too few",)),
        wrong("detect my.txt", "my.txt"),
        wrong("detect plan.json", "plan.json"),
        wrong("detect empty.txt", "empty.txt"),
        wrong("detect binary.bin", "binary.bin"),
    ),
    39: (wrong("monitor", "COMMAND... is missing"), wrong("monitor -- no-such-program", "no-such-program", code=127)),
    40: (
        wrong("probe", "torchrun", "--processes", torch=True),
        wrong("profile links", "torchrun", "--processes", torch=True),
    ),
    41: (
        wrong("plan templates p.json --nodes 0", "--nodes takes a whole number of 1 or more, not '0'"),
        wrong("plan oobleck templates.json --nodes 4 --global-batch 50 --microbatch-size 4", "take 48 or 52", code=3),
    ),
    42: (wrong("plan reconfigure plan.json --failed 0/0", "rtk plan oobleck"),),
    43: (
        wrong("plan mitigate --costs 5,four", "'four'", at("--costs")),
        wrong("plan mitigate --costs -5", "-5"),
    ),
    44: (
        wrong("profile llama3-70b --analytic", "--gpu"),
        wrong("profile gpt-tiny --analytic --gpu h1000", at("--gpu"), "did you mean h100-sxm"),
    ),
    45: (wrong("profile meta-llama/Llama-3-8B", "config.json", "folder", torch=True),),
    46: (wrong("profile gpt-tiny --microbatch-size 100000000", "TiB", torch=True, code=3),),
    47: (wrong("profile gpt-tiny --sequence-length 4096", "positions", "give at most", torch=True),),
    48: (
        wrong("profile mamba.json", "mamba", torch=True, never=("vocab_size", "did you mean llama")),
        wrong("profile mamba.json --analytic --gpu h100-sxm", "mamba", never=("vocab_size", "did you mean llama")),
    ),
    49: (
        wrong("profile five.py:make", "int", "five.py", torch=True, never=("a int",)),
        wrong("profile boom.py:make", "KeyError: 'boom'", "boom.py:2, in make", torch=True),
        wrong("profile syntax.py:make", "syntax.py", "syntax.py:1", torch=True),
    ),
    50: (
        wrong("simulate fake.json.gz", "gzip", at("fake.json.gz")),
        wrong("simulate cut.json.gz", "cut short"),
        wrong("simulate nine.json", "format version 9.0", at("nine.json, /format_version")),
        wrong(f"plan pipeline layerz.json {SHAPE}", "layerz", "did you mean 'layers'?"),
    ),
    51: (
        wrong(
            f"plan pipeline level.json {SHAPE}",
            "unknown key 'forward_s'",
            at("level.json, /layers/0/forward_s"),
            "do: forward_s belongs in /layers/0/costs/0",
        ),
    ),
    52: (
        Step("verify reversed.json", 1, ("not valid", "problem")),
        wrong("simulate reversed.json", "rtk verify"),
        wrong("viz reversed.json -o r.svg", "rtk verify"),
    ),
    53: (
        wrong(f"replay --profile p.json --trace my.txt {SHAPE}", "my.txt"),
        wrong(f"replay --profile p.json --trace trace.json {SHAPE} --policies slipstrem", "did you mean slipstream?"),
        wrong(f"replay --profile p.json --trace trace.json {SHAPE} --cost restart=60", "did you mean restart_s?"),
        wrong(f"replay --profile p.json --trace trace.json {SHAPE} --html which", at("--html which"), ".html"),
    ),
    54: (
        wrong("trace generate --nodes 4 --days 30 -o t.json", "--mtbf"),
        wrong("trace generate --nodes 4 --days 1000000000 --mtbf 30d --repair 4h -o t.json", "--days"),
    ),
    55: (
        wrong("sweep bad.yaml -o sweep", "bad.yaml, line"),
        wrong("sweep unknown.yaml -o sweep", "unknown.yaml", "policies"),
    ),
    56: (
        wrong("simulate plan.json --inject die.jsonl", "die"),
        wrong("simulate plan.json --inject nobody.jsonl", "7/1"),
        Step("simulate plan.json --inject late.jsonl", 0, ("500",)),
    ),
    57: (
        wrong("reproduce figure-8", "did you mean adaptra-figure-8"),
        wrong("schema plans", "plan", "profile"),
        Step("schema", 0, ("plan", "profile", "trace")),
    ),
}

# Rows that others mend, and the part that does.

# Rows that need processes of their own, or only confirm that all is well: the tests that hold them.
ELSEWHERE = {
    19: "cli/test_run_report.py",  # any bytes are data
    20: "runners/test_resilient_worker.py::test_a_gradient_that_is_not_finite_rolls_every_stage_back",
    58: "cli/test_sweep.py::test_an_interruption_keeps_what_is_done",
    59: "cli/test_flow.py::test_an_interrupted_run_is_saved_and_says_how_to_go_on",
    60: "runners/test_plan_runner.py::test_a_script_ends_with_one_message",
}


def kept(change: Callable[[dict[str, Any]], object], tree: dict[str, Any]) -> str:
    """A document with a slip in it."""
    changed = json.loads(json.dumps(tree))
    change(changed)
    return json.dumps(changed)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All files that the mistakes are made with, by name."""
    made = tmp_path_factory.mktemp("made")
    lines = (
        "profile gpt-tiny --analytic --gpu a100-sxm -o p.json",
        "plan templates p.json --nodes 4 -o templates.json",
        f"plan slipstream p.json {SHAPE} --max-failures 1 -o atlas",
        "trace generate --nodes 4 --days 3 --mtbf 2d --repair 1h -o trace.json",
    )
    for line in lines:
        done = rtk(*shlex.split(line), cwd=made)
        assert done.returncode == 0, done.stderr
    profile = read_document(str(made / "p.json"), Profile)
    for name, schedule in (("plan.json", "1f1b"), ("zb.json", "zero-bubble")):
        write_document(str(made / name), plan_pipeline(profile, Shape(pp=2, dp=2, microbatches=4), schedule))  # type: ignore[arg-type]
    plan, costs = json.loads((made / "plan.json").read_text()), json.loads((made / "p.json").read_text())
    texts = {
        "my.txt": "some words\n",
        "empty.json": "",
        "empty.txt": "",
        "short.txt": "abc",
        "config.json": '{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}',
        "mamba.json": '{"model_type": "mamba", "architectures": ["MambaForCausalLM"], "hidden_size": 64}',
        "one.log": " iteration 1/ 10 | elapsed time per iteration (ms): 512.3 | lm loss: 1.0E+00 |\n",
        "five.py": "def make():\n    return 5\n",
        "boom.py": "def make():\n    raise KeyError('boom')\n",
        "syntax.py": "def make(:\n",
        "nine.json": kept(lambda tree: tree.update(format_version="9.0"), plan),
        "layerz.json": kept(lambda tree: tree.update(layerz=tree.pop("layers")), costs),
        "level.json": kept(lambda tree: tree["layers"][0].update(forward_s=1.0), costs),
        "reversed.json": kept(_reverse, plan),
        "bad.yaml": "profiles: [p.json\n",
        "unknown.yaml": "profiles: [p.json]\npolicy: [rtk]\n",
        "die.jsonl": '{"iteration": 0, "kind": "die", "worker": "1/1"}\n',
        "nobody.jsonl": '{"iteration": 0, "kind": "fail", "worker": "7/1"}\n',
        "late.jsonl": '{"iteration": 500, "kind": "fail", "worker": "1/1"}\n',
        "orders.csv": "0F0\n",
        "fake.json.gz": "{}",
    }
    for name, text in texts.items():
        (made / name).write_text(text)
    (made / "binary.bin").write_bytes(b"\xff\xfe\x00")
    (made / "cut.json.gz").write_bytes(gzip.compress((made / "plan.json").read_bytes())[:-20])
    return {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*") if path.is_file()}


def _reverse(tree: dict[str, Any]) -> None:
    for worker in tree["workers"]:
        worker["order"] = " ".join(reversed(worker["order"].split()))


@pytest.fixture
def folder(files: dict[str, bytes], tmp_path: Path) -> Path:
    """A folder with these files, as new."""
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.mark.parametrize("number", ROWS)
def test_a_mistake_gets_the_answer_that_helps(number: int, folder: Path, files: dict[str, bytes]) -> None:
    """The exit code, the place and the remedy are right, and no file that was there is another one afterwards."""
    for step in ROWS[number]:
        if step.torch:
            pytest.importorskip("torch")
        done = _done(step, folder)
        told = done.stderr + done.stdout
        assert done.returncode == step.code, f"rtk {step.line}\n{told}"
        for said in step.says:
            assert said in told, f"rtk {step.line}: {said!r} is missing in\n{told}"
        for unsaid in step.never:
            assert unsaid not in told, f"rtk {step.line}: {unsaid!r} is in\n{told}"
        if step.code == 2 and step.line:
            assert done.stderr.startswith("error: ") and "\ndo: " in done.stderr, f"rtk {step.line}\n{told}"
        assert {name: (folder / name).read_bytes() for name in files} == files, f"rtk {step.line}"


def _done(step: Step, folder: Path) -> Done:
    run = rtk_forked if step.torch or step.line.startswith("monitor --") else rtk
    return run(*shlex.split(step.line), cwd=folder, environment={"COLUMNS": "80"})


def test_sixty_mistakes_are_held() -> None:
    """Each number of the note is a row here, or a test elsewhere that is still there."""
    assert {*ROWS, *ELSEWHERE} == set(range(1, 61))
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (TESTS / file).read_text() if name else (TESTS / file).exists(), place
