"""Training threads that hang in processes that live and beat: who hangs is given up, alone, and no loss shows it."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rtk.planners.pipeline import plan_pipeline  # noqa: E402
from rtk.planners.shape import Shape  # noqa: E402
from rtk.runners.program import AllReduce, Compute, GradientBucket, Message, Receive  # noqa: E402
from rtk.runners.resilience.progress import HUNG  # noqa: E402
from rtk.runners.resilience.protocol import End, Epoch, Inquiry  # noqa: E402
from rtk.runners.torch import watch as watching  # noqa: E402
from rtk.runners.torch.watch import Activity, ActivityTimer, Interruption  # noqa: E402
from rtk.runners.training import JobConfig, TrainingConfig  # noqa: E402
from rtk.schemas.orders import Operation  # noqa: E402
from rtk.schemas.profile import Layer, LayerCost, Profile  # noqa: E402

from .processes import ProcessJob, single_process  # noqa: E402

TRAINING = TrainingConfig("", (), 1e-4, 1, 16, threads=1, paced=True, seed=0)
STALL_LIMIT_S = 3.0
# Small, and in double precision; whoever finds a file with the number of its process beside this one hangs.
MODEL = """from pathlib import Path
from rtk.benchmarks.hanging_model import Hanging
from torch import nn

def layers():
    inner = [nn.Embedding(256, 16), *(nn.Linear(16, 16) for _ in range(8)), nn.Linear(16, 256)]
    return [Hanging(layer.double(), Path(__file__).parent) for layer in inner]
"""


def wait_for(job: ProcessJob, event: str, since: int, **fields: Any) -> dict[str, Any]:
    """The first announcement of this kind from a place on."""

    def is_wanted(one: dict[str, Any]) -> bool:
        return one["event"] == event and all(one.get(name) == value for name, value in fields.items())

    return job.said[job.wait_for(is_wanted, since=since)]


@pytest.mark.checkout  # trains with a layer of benchmarks/
def test_who_hangs_is_given_up_alone_and_its_process_ends(tmp_path: Path) -> None:
    """A worker whose thread does not come back from a layer, and one that is stopped meanwhile and comes back with its
    thread in an old epoch: each alone is given up, and ends with 137; a replacement joins, and no loss differs."""
    (tmp_path / "model.py").write_text(MODEL)
    training = replace(TRAINING, model=f"{tmp_path / 'model.py'}:layers")
    layer = Layer((LayerCost(0.002, 0.002, 0.002),))
    plan = plan_pipeline(Profile((layer,) * 10), Shape(2, 2, 2), "1f1b")
    how = JobConfig(10**6, stall_limit_s=STALL_LIMIT_S)
    with ProcessJob(plan, how, training, is_watchful=False) as job:
        job.wait_for_iteration(3)
        first, since = job.processes["1/0"], len(job.said)
        (tmp_path / str(first.pid)).touch()
        failure = wait_for(job, "failure", since)
        assert (failure["worker"], "training thread hangs: computing" in failure["reason"]) == ("1/0", True)
        job.start("1/0")
        wait_for(job, "join", since, worker="1/0")
        second, since = job.processes["0/1"], len(job.said)
        (tmp_path / str(second.pid)).touch()
        job.signal("0/1", signal.SIGSTOP)
        assert wait_for(job, "failure", since)["reason"].startswith("silent")
        job.signal("0/1", signal.SIGCONT)
        since = job.wait_for(lambda one: one["event"] == "join" and one["worker"] == "0/1", since=since)
        failure = wait_for(job, "failure", since)
        assert (failure["worker"], "in epoch" in failure["reason"]) == ("0/1", True)
        wait_for(job, "recovered", since)
        for process in (first, second):
            process.join(30)
        job.server.finish(0, "enough")
        job.result()
    assert (first.exitcode, second.exitcode) == (HUNG, HUNG)
    assert [one["worker"] for one in job.said if one["event"] == "failure"] == ["1/0", "0/1", "0/1"]
    assert not [one for one in job.said if one["event"] == "broken_link"]
    losses = job.losses()
    assert losses == pytest.approx(single_process(plan, training, len(losses)), abs=1e-12)


# The watch beside a training thread


@contextmanager
def watched(
    monkeypatch: pytest.MonkeyPatch, may_compute: bool = False
) -> Iterator[tuple[Activity, Interruption, ActivityTimer, list[Any]]]:
    """A watch that counts in hundredths of a second, and what it says of a thread that is stuck."""
    monkeypatch.setattr(watching, "TICK_S", 0.01)
    monkeypatch.setattr(watching, "LET_GO_S", 0.1)
    thread, interruption = Activity(), Interruption()
    stuck: list[Any] = []
    watch = ActivityTimer(thread, interruption, "0/1", may_compute)
    watch.on_stuck = lambda exit_code, reason: stuck.append((exit_code, reason))
    thread.enter(3, ["0/0", "0/1"])
    interruption.begin(3)
    watch.start()
    try:
        yield thread, interruption, watch, stuck
    finally:
        watch.close()


def epoch(number: int) -> Epoch:
    return Epoch(number, 0, False, 9, "", ())


def test_a_wait_that_nothing_wakes_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for others on and on, though its epoch is over, is stuck; one that computes is at the end."""
    for doing, is_stuck in (("waiting", True), ("joining", True), ("computing", False), ("preparing", False)):
        with watched(monkeypatch) as (thread, interruption, watch, stuck):
            thread.be(doing, "something")  # type: ignore[arg-type]
            interruption.announce(epoch(4))
            watch._thread.join(0.5)
            assert (stuck != []) == is_stuck, doing
            assert not stuck or stuck == [(HUNG, "its training thread does not let go of epoch 3")]
            if doing == "computing":
                interruption.announce(End(5, "over"))
                watch._thread.join(30)
                assert stuck == [(5, "its training thread does not let go of its part in the job")]


def test_a_loop_of_its_own_may_compute_beyond_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not rtk's, and hears of the end when it asks; a wait that nothing wakes ends the process all the same."""
    with watched(monkeypatch, may_compute=True) as (thread, interruption, watch, stuck):
        interruption.announce(End(5, "over"))
        for doing in ("computing", "preparing"):
            thread.be(doing, "something")
            watch._thread.join(0.5)
            assert not stuck
        thread.be("waiting", "something")
        watch._thread.join(30)
        assert stuck == [(5, "its training thread does not let go of its part in the job")]


def test_where_a_thread_is_is_told_while_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it executes, for whom it waits, and for how long: nothing once it moves."""
    with watched(monkeypatch) as (thread, _, watch, _):
        thread.execute(Receive(Message("activation", 1, 2, 0), 0))
        while (said := watch.answer(Inquiry(7))).idle_s < 0.03:
            time.sleep(0.01)
        assert (said.inquiry, said.epoch, said.doing, said.what) == (7, 3, "waiting", "activation 1.2")
        assert said.peers == ("0/0",)
        thread.execute(AllReduce((GradientBucket((0, 1), (0, 1)),)))
        said = watch.answer(Inquiry(8))
        assert (said.doing, said.what, said.peers, said.idle_s) == ("waiting", "all-reduce", ("0/0",), 0.0)
        thread.execute(Compute(Operation("F", 1, 0)))
        assert (watch.answer(Inquiry(9)).doing, watch.answer(Inquiry(9)).what) == ("computing", "F1.0")
