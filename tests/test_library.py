"""The library's face: what `import rtk` gives."""

import ast
import inspect
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

import rtk
from rtk.schemas.display import Displayed
from rtk.schemas.documents import Document
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.replay_report import ReplayReport

PROFILE = Profile(tuple(Layer((LayerCost(1.0, 1.0, 1.0),)) for _ in range(8)))
NAMES = sorted(rtk._PLACES)


def test_importing_the_library_is_light() -> None:
    """`import rtk`, and asking for its names, loads neither torch nor numpy, and no wing."""
    script = "import json, sys, rtk; names = dir(rtk); print(json.dumps([names, sorted(sys.modules)]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    names, modules = json.loads(done.stdout)
    assert set(NAMES) <= set(names)
    assert not {"torch", "numpy", "pydantic", "typer", "plotly", "matplotlib"} & set(modules)
    assert [name for name in modules if name.startswith("rtk.")] == ["rtk.schemas", "rtk.schemas.display"]


def test_editors_know_the_names_that_are_there() -> None:
    """What `if TYPE_CHECKING` names is what `__getattr__` finds."""
    body = ast.parse(Path(rtk.__file__).read_text()).body
    block = next(node for node in body if isinstance(node, ast.If))
    told = {
        alias.asname or alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    told |= {node.targets[0].id for node in block.body if isinstance(node, ast.Assign)}  # type: ignore[attr-defined]
    assert sorted(name for name in told if not name.startswith("_")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    """Each name resolves, and has a docstring."""
    if name in ("PlanRunner", "ResilientWorker"):
        pytest.importorskip("torch")
    assert inspect.getdoc(getattr(rtk, name))


def test_other_names_are_not_there() -> None:
    """A misspelt name is an AttributeError, as of any module."""
    with pytest.raises(AttributeError, match="plan_slipsteam"):
        _ = rtk.plan_slipsteam  # type: ignore[attr-defined]


@pytest.mark.parametrize("failed", [["1/2"], [(1, 2)]])
def test_a_worker_is_named_in_either_form(failed: Sequence[str | tuple[int, int]]) -> None:
    """`1/2` and (1, 2) give the same plan, valid, with that worker dead."""
    plan = rtk.plan_slipstream(PROFILE, pp=4, dp=2, microbatches=4, failed=failed)
    assert rtk.verify(plan) == []
    assert [worker.name for worker in plan.workers if worker.failed] == ["1/2"]


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"failed": ["1-2"]}, "--failed"),
        ({"technique": "staged"}, "--technique"),
        ({"link_delay": {0: -1.0}}, "--link-delay"),
        ({"slow": {"0/0": 0.0}}, "--slow"),
        ({"solver": "gurobi"}, "--solver"),
        ({"memory_limit": -1.0}, "--memory-limit"),
    ],
)
def test_wrong_arguments_are_refused_with_their_names(wrong: dict[str, object], where: str) -> None:
    """What makes no sense is an RtkError that says which argument it is."""
    with pytest.raises(rtk.RtkError, match=where):
        rtk.plan_joint(PROFILE, pp=4, dp=2, microbatches=4, **wrong)  # type: ignore[arg-type]


def test_documents_are_read_as_what_they_say_they_are(tmp_path: Path) -> None:
    """A plan, a profile and a trace come back as they were written."""
    plan = rtk.plan_pipeline(PROFILE, pp=4, microbatches=4)
    trace = rtk.Trace((rtk.TraceEvent("fail", iteration=5, worker="1/2"),))
    documents: dict[str, Document] = {"plan.json.gz": plan, "profile.json": PROFILE, "trace.jsonl": trace}
    for name, document in documents.items():
        rtk.write(tmp_path / name, document)
        assert rtk.read(tmp_path / name) == document


def test_a_trace_happens_to_a_plan() -> None:
    """A worker's death costs time, and the job goes on: as `rtk simulate --inject`."""
    plan = rtk.plan_pipeline(PROFILE, pp=4, dp=2, microbatches=4)
    story = rtk.inject(plan, rtk.Trace((rtk.TraceEvent("fail", iteration=1, worker="1/2"),)), iterations=4)
    assert len(story.committed_s) == 4
    assert story.lost_s > 0


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ReplayReport:
    """A replay of one failure and its end."""
    path = tmp_path_factory.mktemp("replay") / "trace.jsonl"
    path.write_text('{"time_s": 0, "kind": "fail", "node": "node1"}\n{"time_s": 9000, "kind": "end"}\n')
    asked, cost = ["slipstream", "oobleck"], {"copy_bytes_per_s": 1e9}
    return rtk.replay(PROFILE, str(path), pp=4, dp=2, microbatches=4, nodes=8, cost=cost, policies=asked)


def test_a_replay_tells_every_policy(report: ReplayReport) -> None:
    """The report has the policies that were asked for, in their order."""
    assert [one.policy for one in report.policies] == ["slipstream", "oobleck"]


def test_documents_show_themselves_in_a_notebook(report: ReplayReport) -> None:
    """A plan, a timeline, templates and the report of a replay are SVG images where Jupyter asks for them."""
    plan = rtk.plan_pipeline(PROFILE, pp=4, microbatches=4)
    shown: list[Displayed] = [plan, rtk.simulate(plan).timeline, rtk.plan_templates(PROFILE, nodes=4), report]
    for document in shown:
        assert ElementTree.fromstring(document._repr_svg_() or "").tag.endswith("svg")
