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
from rtk.schemas.replay import ReplayReport

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


def test_no_name_needs_the_command_line() -> None:
    """Every name resolves without `rtk.cli` and typer: what a command does a program can do."""
    pytest.importorskip("torch")
    script = (
        "import json, sys, rtk; [getattr(rtk, name) for name in rtk._PLACES]; print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout)
    assert "typer" not in modules
    assert [name for name in modules if name.startswith("rtk.cli")] == []


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


def test_plans_heed_a_cluster_and_what_is_wrong_with_it(tmp_path: Path) -> None:
    """Who has failed on the machines is dead in the plan, which names what it was made from; simulating it is refused,
    and as a story it happens."""
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("failed: ['node1:2']\n")
    plan = rtk.plan_joint(PROFILE, pp=4, dp=2, microbatches=4, cluster="2x4", overlay=str(overlay))
    assert [worker.name for worker in plan.workers if worker.failed] == ["1/2"]
    assert {"profile", "cluster", "overlay"} <= plan.inputs.keys()
    healthy = rtk.plan_pipeline(PROFILE, pp=4, dp=2, microbatches=4)
    with pytest.raises(rtk.RtkError, match="failed on this cluster"):
        rtk.simulate(healthy, cluster="2x4", overlay=str(overlay))
    story = rtk.inject(healthy, iterations=2, cluster="2x4", overlay=str(overlay))
    assert [event.worker for event in story.timeline.events if event.kind == "failure"] == ["1/2"]


def test_an_atlas_gives_its_plans(tmp_path: Path) -> None:
    """A plan out of an atlas is the one made directly."""
    atlas = rtk.plan_atlas(PROFILE, str(tmp_path / "atlas"), pp=4, dp=2, microbatches=4, max_failures=1)
    assert [entry.failed_units for entry in atlas.plans] == [0, 1]
    plan = rtk.plan_from_atlas(str(tmp_path / "atlas"), failures=1)
    assert plan == rtk.plan_slipstream(PROFILE, pp=4, dp=2, microbatches=4, failures=1)


def test_an_explanation_is_told_as_by_the_command() -> None:
    """Its words begin with the time of an iteration."""
    plan = rtk.plan_pipeline(PROFILE, pp=4, microbatches=4)
    assert rtk.words_of_explanation(rtk.explain(plan), plan).startswith("An iteration takes ")


def test_orders_go_out_and_come_back(tmp_path: Path) -> None:
    """A plan that is exported and imported has the same orders."""
    plan, path = rtk.plan_pipeline(PROFILE, pp=4, microbatches=4), tmp_path / "orders.csv"
    rtk.export_plan(plan).write(str(path))
    assert [one.order for one in rtk.import_plan(str(path), PROFILE).workers] == [one.order for one in plan.workers]


def test_traces_are_made_up_and_looked_at(tmp_path: Path) -> None:
    """A trace that is made up and written says of itself how long it lasts."""
    path = str(tmp_path / "made.jsonl")
    rtk.write(path, rtk.Trace(tuple(rtk.trace_generate(nodes=4, days=2.0, mtbf="1d", repair="1h"))))
    assert rtk.trace_show(path).lasts_s == 2 * 86_400


def test_slow_iterations_in_a_file_are_found(tmp_path: Path) -> None:
    """A log of numbers that become twice as large tells one fail-slow."""
    path = tmp_path / "times.txt"
    path.write_text("".join(f"{time_s}\n" for time_s in [1.0] * 60 + [2.0] * 60))
    (found,) = rtk.detect_files([str(path)]).files
    assert [event.onset for event in found.events] == [60]


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


def test_a_coordinator_leads_until_it_is_told_to_end() -> None:
    """`rtk coordinate` from Python: it listens, and an end without success is an error."""
    plan, addresses = rtk.plan_pipeline(PROFILE, pp=4, microbatches=4), []

    def is_ready(server: rtk.Coordinator) -> None:
        addresses.append(server.address)
        server.finish(5, "nobody has come")

    with pytest.raises(rtk.RtkError, match="nobody has come"):
        rtk.coordinate(plan, rtk.JobConfig(iterations=1), b"0" * 32, is_ready=is_ready)
    assert [address.partition(":")[0] for address in addresses] == ["127.0.0.1"]
