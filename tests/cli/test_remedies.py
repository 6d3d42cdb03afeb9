"""Jobs of real processes of which something is slow: micro-batches go elsewhere (S2), workers change places (S3), the
job is saved and starts again on others (S4)."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from rtk.profilers.failslow.monitor import ring
from rtk.runners.resilience.controller import raise_for
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.schemas.conditions import HEALTHY, Conditions, SlowLink, SlowWorker
from rtk.schemas.errors import RuntimeFailedError
from rtk.schemas.plan import Plan
from rtk.schemas.protocols import Measured, Monitor

from ..runners.processes import ProcessJob, single_process
from ..runners.test_survival import plan_of

MODEL = Path(__file__).parents[1] / "runners" / "small_model.py"
TRAINING = TrainingConfig(f"{MODEL}:layers", (), 3e-4, 1, 16, threads=1, paced=True, seed=0)
SLOW = Conditions(slow_workers=(SlowWorker("1/0", 8.0),))
Findings = dict[int, Conditions]


class Told:
    """A monitor that is told who is slow; on busy cores a real one takes as long as it takes."""

    def __init__(self, findings: Findings) -> None:
        self._findings = sorted(findings.items())

    def note(self, measured: Measured) -> Conditions | None:
        """What is found with an iteration, or with the first one after it that is told of."""
        if self._findings and self._findings[0][0] <= measured.iteration:
            return self._findings.pop(0)[1]
        return None

    def forget(self, worker: str) -> None:
        """Nothing changes."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Findings]:
    """What the monitors of the jobs to come are told, one after the other."""
    findings: list[Findings] = []

    def monitor_of(plan: Plan, is_resumed: bool = False) -> Monitor:
        return Told(findings.pop(0))

    monkeypatch.setattr(ring, "monitor_of", monitor_of)
    return findings


def forwards(job: ProcessJob, place: str) -> list[int]:
    """How many micro-batches the worker of a place has computed in each iteration."""
    spans = [span for span in job.conductor._timeline().spans if span.worker == place and span.op.startswith("F")]
    return [sum(span.iteration == iteration for span in spans) for iteration in range(len(job.losses()))]


def test_a_slow_worker_computes_less_until_it_is_well_again(tmp_path: Path, told: list[Findings]) -> None:
    """S2: its peer does what it has too much of; nobody is started, nothing is copied, and what is trained is the same;
    with relief all is as before."""
    told.append({1: Conditions(slow_workers=(SlowWorker("1/0", 8.0),)), 6: HEALTHY})
    plan, iterations = plan_of(1, 2, 4, seconds=0.001), 11
    (tmp_path / "trace.jsonl").write_text(
        '{"iteration": 1, "kind": "slow_compute", "worker": "1/0", "factor": 8}\n'
        '{"iteration": 6, "kind": "recover", "worker": "1/0"}\n'
    )
    how = JobConfig(iterations, inject=str(tmp_path / "trace.jsonl"), timeline=str(tmp_path / "t.json"))
    with ProcessJob(plan, how, TRAINING) as job:
        assert job.result(60).exit_code == 0
    slow, peer = forwards(job, "1/0"), forwards(job, "0/0")
    assert [one + other for one, other in zip(slow, peer, strict=True)] == [8] * iterations
    assert (slow[0], slow[-1]) == (4, 4)
    assert min(slow) < 4
    kinds = [one["event"] for one in job.said]
    assert (kinds.count("slow_worker"), kinds.count("relief"), kinds.count("epoch")) == (1, 1, 3)
    assert not {"copy", "join", "failure"}.intersection(kinds)
    assert job.losses() == pytest.approx(single_process(plan, TRAINING, iterations), abs=1e-5)


def test_workers_of_a_slow_link_change_places_and_go_back(tmp_path: Path, told: list[Findings]) -> None:
    """S3: once being slow has cost as much as that, two workers swap their stages, with all that they hold, so that the
    link has nothing to carry; with relief they are where they were; what is trained is the same."""
    told.append({1: Conditions((SlowLink(("0/1", "1/1"), 0.15),)), 9: HEALTHY})
    plan, iterations = plan_of(2, 2, 2, seconds=0.0005), 15
    (tmp_path / "trace.jsonl").write_text(
        '{"iteration": 1, "kind": "slow_link", "link": "0/1-1/1", "delay_s": 0.15}\n'
        '{"iteration": 9, "kind": "recover", "link": "0/1-1/1"}\n'
    )
    how = JobConfig(iterations, inject=str(tmp_path / "trace.jsonl"), mitigate="S3=0.05")
    with ProcessJob(plan, how, TRAINING) as job:
        assert job.result(60).exit_code == 0
    seats = [one["workers"] for one in job.said if one["event"] == "epoch"]
    home = {worker.name: worker.name for worker in plan.workers}
    assert (seats[0], seats[-1]) == (home, home)
    (away,) = [one for one in seats if one != home]
    assert sum(away[place] != place for place in home) == 2
    stage_of = {worker: place.partition("/")[2] for place, worker in away.items()}
    assert stage_of["0/1"] != stage_of["1/1"]
    kinds = [one["event"] for one in job.said]
    assert (kinds.count("copy"), kinds.count("failure"), kinds.count("join")) == (4, 0, 0)
    assert job.losses() == pytest.approx(single_process(plan, TRAINING, iterations), abs=1e-5)


def test_a_job_that_is_slow_for_long_is_saved_and_goes_on_with_other_processes(
    tmp_path: Path, told: list[Findings]
) -> None:
    """S4: it says because of whom and how to go on, with 5; the rest is not slow, starts again no more, and the losses
    are those of a job that nothing happens to."""
    told.extend([{0: SLOW}, {}])
    plan, iterations = plan_of(1, 3, 1), 8
    (tmp_path / "trace.jsonl").write_text('{"iteration": 0, "kind": "slow_compute", "worker": "1/0", "factor": 8}\n')
    inject, saved = str(tmp_path / "trace.jsonl"), str(tmp_path / "saved")
    how = JobConfig(iterations, inject=inject, checkpoint=saved, mitigate="S4=0.2")
    with ProcessJob(plan, how, TRAINING) as first:
        finished = first.result(60)
    assert finished.exit_code == RuntimeFailedError.exit_code
    assert first.conductor.may_go_on
    with pytest.raises(RuntimeFailedError, match=r"restart on other workers pays: worker 1/0 \(8 times") as caught:
        raise_for(finished, first.conductor)
    assert f"--resume {saved}" in str(caught.value.fix)
    rest = first.conductor.again()
    assert rest.trace is not None
    assert rest.trace.events == ()
    with ProcessJob(plan, rest.how, TRAINING) as second:
        assert second.result(60).exit_code == 0
    assert not second.conductor.may_go_on
    assert rest.job.first_iteration == first.conductor.restarts_at
    assert first.losses() + second.losses() == pytest.approx(single_process(plan, TRAINING, iterations), abs=1e-5)
