"""The quickstart's steps, with a profile that is given and a run that is simulated."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from rtk import whole_flow
from rtk.runners.simulator import simulate
from rtk.runners.training import JobConfig, Training
from rtk.schemas.documents import read_document, write_document
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.timeline import Timeline
from rtk.viz import gantt
from rtk.whole_flow import MARGIN, Progress, QuickstartResult, quickstart

from .cli.shell import rtk

COST = LayerCost(1.0, 1.0, 1.0)
TIMES = 1.5  # as long as an iteration is simulated to take, those of runs do


@pytest.mark.parametrize(("cores", "slowdown"), [(4, None), (3, MARGIN * 4 / 3)])
def test_run_is_compared_with_its_plan(
    cores: int, slowdown: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that share cores get a plan that is so much slower, and its pace; all files are there."""
    ran: list[Training] = []
    spans: dict[str, list[tuple[str, int, float]]] = {}

    def run(plan: Plan, training: Training, job: JobConfig) -> None:
        ran.append(training)
        simulation = simulate(plan)
        begins_s = {n: n * TIMES * simulation.iteration_time_s for n in range(job.iterations)}
        run_spans = tuple(
            replace(one, iteration=n, start_s=begin_s + one.start_s, end_s=begin_s + one.end_s)
            for n, begin_s in begins_s.items()
            for one in simulation.timeline.spans
        )
        assert job.timeline is not None
        write_document(job.timeline, replace(simulation.timeline, spans=run_spans))

    def drawn(timelines: list[tuple[str, Timeline]], title: str) -> str:
        spans[title] = [(name, len(one.spans), min(span.start_s for span in one.spans)) for name, one in timelines]
        return title

    monkeypatch.setattr(whole_flow, "available_cores", lambda: cores)
    monkeypatch.setattr(whole_flow, "profile_measured", lambda *_, **__: Profile((Layer((COST,)),) * 4))
    monkeypatch.setattr(whole_flow, "run", run)
    monkeypatch.setattr(gantt, "gantt_html", drawn)
    result = quickstart(str(tmp_path / "out"), seed=3)
    assert [(one.paced, one.seed) for one in ran] == [(slowdown is not None, 3)]
    assert result.paced == (slowdown is not None)
    assert result.measured_s == pytest.approx(TIMES * result.predicted_s)
    plan = read_document(str(tmp_path / "out" / "plan.json"), Plan)
    assert {worker.slowdown for worker in plan.workers} == {slowdown}
    assert {Path(name).name for name in result.files} == {path.name for path in (tmp_path / "out").iterdir()}
    # Over the simulated iteration lies the last one that was measured, both from 0 on.
    (simulated,), both = spans["The plan, simulated"], spans["One plan, two runners: simulated over measured"]
    assert both == [simulated, ("measured", *simulated[1:])]


@pytest.mark.parametrize("as_json", [False, True])
def test_quickstart_tells_what_came_of_it(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """For people both times, how far they lie apart, and the pictures; as JSON all of it."""

    def found(folder: str, seed: int, showing: Callable[[str], AbstractContextManager[Progress]]) -> QuickstartResult:
        with showing("training") as tell:
            tell(1, 2)
        return QuickstartResult(2.0, 3.0, True, (f"{folder}/plan.json", f"{folder}/{seed}.html"))

    monkeypatch.setattr(whole_flow, "quickstart", found)
    done = rtk("quickstart", "-o", "out", "--seed", "4", *(["--json"] if as_json else []))
    assert done.returncode == 0, done.stderr
    if as_json:
        times = {"predicted_iteration_time_s": 2.0, "measured_iteration_time_s": 3.0}
        assert json.loads(done.stdout) == {**times, "paced": True, "files": ["out/plan.json", "out/4.html"]}
    else:
        first, second = done.stdout.splitlines()
        assert first == "iteration time: predicted 2.0000 s, measured 3.0000 s (+50.0%, paced)"
        assert second == "pictures: out/4.html"
