"""Workers of several ranks, each a real process: single ranks are killed, and what is trained does not show it."""

import random
import signal
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from .ranked import RankedJob, losses_alone, plan_of  # noqa: E402
from .test_survival import FOREVER  # noqa: E402

EXACT = 1e-12


def event(kind: str, **fields: Any) -> Any:
    """Tells an announcement."""
    return lambda one: one["event"] == kind and all(one.get(name) == value for name, value in fields.items())


def killed(job: RankedJob, process: str, delay_s: float) -> int:
    """Kill a rank after so long, and wait until the others go on; gives the place in what was said."""
    since = len(job.said)
    time.sleep(delay_s)
    job.signal(process, signal.SIGKILL)
    at = job.wait_for(event("failure", worker=process.partition(":")[0]), since=since)
    return job.wait_for(event("recovered"), since=at)


def assert_exact(job: RankedJob, clip_norm: float | None = None) -> None:
    """Every loss so far is that of one process."""
    losses = job.losses()
    assert losses == pytest.approx(losses_alone(len(losses), job.plan.total_microbatches(), clip_norm), rel=EXACT)


def test_a_rank_dies_the_rest_go_on_and_another_takes_its_place() -> None:
    """Of 2 stages x 2 pipelines x 2 ranks, by F, I and W and with clipping, one rank dies in the midst of an iteration:
    its worker's peers go on, its partner waits, and with a new process of that rank the worker is there again."""
    plan = plan_of(2, 2, 2, 2, "zero-bubble")
    with RankedJob(plan, FOREVER, clip_norm=0.5) as job:
        job.wait_for_iteration(3)
        at = killed(job, "1/0:1", random.Random(3).random() * 0.1)
        assert {one["live_workers"] for one in job.said[at:] if one["event"] == "iteration"} <= {3}
        waits = next(one for one in job.said if one["event"] == "orphans")
        assert (waits["worker"], waits["missing"], waits["waiting"]) == ("1/0", (1,), (0,))
        job.start("1/0:1")
        at = job.wait_for(event("join", worker="1/0"), since=at)
        job.wait_for(event("iteration", live_workers=4), since=at)
        assert_exact(job, clip_norm=0.5)
        assert job.processes["1/0:0"].is_alive()  # it was there all the time


def test_a_waiting_rank_takes_the_place_of_a_dead_one_at_once() -> None:
    """Where a second process of a rank waits, the epoch after the death has all workers, and only that rank's part of
    the state is copied; with a staggered optimizer, whose steps the partner undoes or keeps."""
    plan = plan_of(1, 2, 2, 2, optimizer="staggered")
    with RankedJob(plan, 30, spare_ranks=1) as job:
        first = job.processes["0/0:0"]
        job.start("0/0:0", not_before=1)  # the job begins only once it waits
        standby = job.processes["0/0:0"]
        job.wait_for_iteration(2)
        job.processes["0/0:0"] = first
        at = killed(job, "0/0:0", 0.0)
        job.processes["0/0:0"] = standby
        told = {one["event"]: one for one in job.said[:at]}
        assert "orphans" not in told
        assert (told["replaced"]["worker"], told["replaced"]["lacking"]) == ("0/0", (0,))
        assert job.result().exit_code == 0
        assert_exact(job)
        assert any(one["live_workers"] == 2 for one in job.said[at:] if one["event"] == "iteration")
