"""A job of real processes that is saved because it is slow, and starts again on others (S4)."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from rtk.cli import conducting
from rtk.cli.conducting import Conduct, raise_for
from rtk.schemas.conditions import Conditions, SlowWorker
from rtk.schemas.errors import RuntimeFailedError
from rtk.schemas.plan import Plan
from rtk.schemas.protocols import Measured, Monitor

from ..runners.processes import ProcessJob
from ..runners.test_survival import TRAINING, plan_of, single_process

SLOW = Conditions(slow_workers=(SlowWorker("1/0", 8.0),))


class Told:
    """A monitor that is told who is slow; on busy cores a real one takes as long as it takes."""

    def __init__(self, slow: Conditions | None) -> None:
        self._slow = slow

    def note(self, measured: Measured) -> Conditions | None:
        """The first iteration shows it."""
        found, self._slow = self._slow, None
        return found

    def forget(self, worker: str) -> None:
        """Nothing changes."""


def test_a_job_that_is_slow_for_long_is_saved_and_goes_on_with_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says because of whom and how to go on, with 5; the rest is not slow, starts again no more, and the losses are
    those of a job that nothing happens to."""
    slow: list[Conditions | None] = [SLOW, None]

    def monitor_of(plan: Plan, is_resumed: bool = False) -> Monitor:
        return Told(slow.pop(0))

    monkeypatch.setattr(conducting, "monitor_of", monitor_of)
    plan, iterations, training = plan_of(1, 3, 1), 8, replace(TRAINING, paced=True)
    (tmp_path / "trace.jsonl").write_text('{"iteration": 0, "kind": "slow_compute", "worker": "1/0", "factor": 8}\n')
    inject, saved = str(tmp_path / "trace.jsonl"), str(tmp_path / "saved")
    how = Conduct(iterations, inject=inject, checkpoint=saved, mitigate="S4=0.2")
    with ProcessJob(plan, how, training) as first:
        finished = first.result(60)
    assert finished.exit_code == RuntimeFailedError.exit_code
    assert first.conductor.may_go_on
    with pytest.raises(RuntimeFailedError, match=r"restart on other workers pays: worker 1/0 \(8 times") as caught:
        raise_for(finished, first.conductor)
    assert f"--resume {saved}" in str(caught.value.fix)
    rest = first.conductor.again()
    assert rest.trace is not None
    assert rest.trace.events == ()
    with ProcessJob(plan, rest.how, training) as second:
        assert second.result(60).exit_code == 0
    assert not second.conductor.may_go_on
    assert rest.job.first_iteration == first.conductor.restarts_at
    assert first.losses() + second.losses() == pytest.approx(single_process(plan, iterations), abs=1e-4)
