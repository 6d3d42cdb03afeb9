"""Jobs of real processes, which are killed, stopped, asked to leave and slandered; what they train does not show it."""

import random
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rtk.planners.oobleck.plan import plan_oobleck  # noqa: E402
from rtk.planners.oobleck.templates import plan_templates  # noqa: E402
from rtk.planners.pipeline import plan_pipeline  # noqa: E402
from rtk.planners.shape import Shape  # noqa: E402
from rtk.runners.checkpoint import read_manifest  # noqa: E402
from rtk.runners.torch.gloo import CONNECT_LIMIT  # noqa: E402
from rtk.runners.training import JobConfig, TrainingConfig  # noqa: E402
from rtk.schemas.plan import Plan  # noqa: E402
from rtk.schemas.profile import Layer, LayerCost, Profile  # noqa: E402

from .processes import ProcessJob, single_process  # noqa: E402

HEARTBEAT_S = 2.0
MODEL = Path(__file__).parent / "small_model.py"
# So small a model learns little of each gradient: at 1e-4 one micro-batch too many hardly shows in its losses. Paced,
# or what is waited for would be spent on iterations.
TRAINING = TrainingConfig(f"{MODEL}:layers", (), 3e-3, 1, 16, threads=1, paced=True, seed=0)
CLIP_NORM = 0.5  # of some gradients, and of others not: the first two, for a start
# Of hundreds of iterations, in which rounding, which differs with who executes what, may grow in AdamW: by a factor of
# 1e2 at 1e-3, with and without faults. At this rate it does not, and what is wrong has time to show.
CLIPPING = replace(TRAINING, learning_rate=3e-4, clip_norm=CLIP_NORM)
FOREVER = 1_000_000


def plan_of(pp: int, dp: int, microbatches: int = 2, seconds: float = 0.002) -> Plan:
    """1F1B of the small model's ten layers."""
    layer = Layer((LayerCost(seconds, seconds, seconds),), activation_bytes=2, weight_stash_bytes=1)
    return plan_pipeline(Profile((layer,) * 10), Shape(pp, dp, microbatches), "1f1b")


def kept_by(pid: int) -> tuple[int, int]:
    """How many threads and descriptors a process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    threads = next(line for line in status.splitlines() if line.startswith("Threads:"))
    return int(threads.split()[1]), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def is_flat(now: tuple[int, int], before: tuple[int, int]) -> bool:
    """Whether there are no more threads and descriptors than before, give or take one and two."""
    return now[0] <= before[0] + 1 and now[1] <= before[1] + 2


class Story:
    """What is done to a job's workers, and waited for."""

    def __init__(self, job: ProcessJob) -> None:
        self.job = job

    def now(self) -> int:
        """A place in what was said."""
        return len(self.job.said)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """A signal to a worker."""
        self.job.signal(name, number)

    def await_live(self, workers: int, since: int) -> dict[str, Any]:
        """Wait for an iteration of so many workers; gives it."""
        job = self.job
        place = job.wait_for(lambda one: one["event"] == "iteration" and one["live_workers"] == workers, since=since)
        return job.said[place]

    def await_event(self, kind: str, since: int, **fields: Any) -> dict[str, Any]:
        """Wait for an event with these fields."""

        def is_wanted(one: dict[str, Any]) -> bool:
            return one["event"] == kind and all(one.get(name) == value for name, value in fields.items())

        return self.job.said[self.job.wait_for(is_wanted, since=since)]

    def bring_back(self, *names: str) -> None:
        """Replacements for dead workers; wait until everybody trains."""
        since = self.now()
        for name in names:
            self.job.processes[name].join(60)
            self.job.start(name)
        self.await_live(len(self.job.plan.workers), since)


def unwatched(plan: Plan, how: JobConfig, training: TrainingConfig = TRAINING) -> ProcessJob:
    """A job that does not look for what is slow: on a busy machine something is now and then, and an epoch that begins
    for it would be in the tests' way."""
    return ProcessJob(plan, how, training, is_watchful=False)


@pytest.mark.parametrize(("training", "iterations"), [(TRAINING, 12), (CLIPPING, 40)], ids=["short", "long"])
def test_one_micro_batch_too_many_at_one_stage_would_be_seen(training: TrainingConfig, iterations: int) -> None:
    """What jobs are compared with below tells it by ten times what they may differ by."""

    def count_one_of_four_twice(iteration: int, layers: Any) -> None:
        if iteration == 4:
            for parameter in layers[2:5].parameters():
                parameter.grad *= 1.25

    right = single_process(plan_of(3, 2), training, iterations)
    wrong = single_process(plan_of(3, 2), training, iterations, count_one_of_four_twice)
    assert max(abs(one - other) for one, other in zip(right, wrong, strict=True)) > 1e-5


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    """A job of 3 stages x 2 pipelines; the tests below happen to it one after the other."""
    plan = plan_of(3, 2, seconds=0.004)
    with unwatched(plan, JobConfig(FOREVER, heartbeat_limit_s=HEARTBEAT_S), CLIPPING) as job:
        job.wait_for_iteration(3)
        yield Story(job)


SURVIVOR = "0/1"


@pytest.fixture(scope="module")
def kept(story: Story) -> tuple[int, int]:
    """What the survivor has after its first changes of epoch."""
    story.kill("1/2")
    story.await_live(5, story.now())
    story.bring_back("1/2")
    return kept_by(story.job.processes[SURVIVOR].pid)


@pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.08, 0.15])
def test_a_second_death_during_the_switch(story: Story, kept: tuple[int, int], delay_s: float) -> None:
    """Another worker dies while the survivors of the first death are connecting, or have just done so."""
    since = story.now()
    story.kill("0/0")
    time.sleep(delay_s)
    story.kill("1/2")
    story.await_live(4, since)
    story.bring_back("0/0", "1/2")


def test_a_worker_that_dies_while_joining(story: Story, kept: tuple[int, int]) -> None:
    """A replacement that dies as soon as it has a place, while it receives its state, costs its epoch only."""
    since = story.now()
    story.kill("1/1")
    story.await_live(5, since)
    for _ in range(2):
        since = story.now()
        story.job.processes["1/1"].join(60)
        story.job.start("1/1")
        story.await_event("epoch", since, live_workers=6)
        story.kill("1/1")
        story.await_event("failure", since, worker="1/1")
        story.await_live(5, since)
    story.bring_back("1/1")


def test_kills_and_replacements(story: Story, kept: tuple[int, int]) -> None:
    """Workers killed at random moments are replaced; training goes on within moments, with and without them."""
    generator = random.Random(5)
    for _ in range(3):
        name = generator.choice([one for one in story.job.processes if one != SURVIVOR])
        time.sleep(generator.random() * 0.15)
        since = story.now()
        story.kill(name)
        failure = story.await_event("failure", since, worker=name)
        assert failure["reason"] == "connection closed"
        story.await_live(5, since)
        story.bring_back(name)


def test_a_stopped_worker_is_noticed_and_comes_back(story: Story, kept: tuple[int, int]) -> None:
    """A stopped process is lost for its silence; continued, it joins again by itself."""
    since = story.now()
    story.kill("0/2", signal.SIGSTOP)
    failure = story.await_event("failure", since, worker="0/2")
    assert failure["reason"].startswith("silent for")
    story.await_live(5, since)
    since = story.now()
    story.kill("0/2", signal.SIGCONT)
    story.await_event("join", since, worker="0/2")
    story.await_live(6, since)


def test_a_notice_loses_nothing(story: Story, kept: tuple[int, int]) -> None:
    """A worker that gets SIGTERM leaves between two iterations with exit code 0, and no iteration is interrupted."""
    since = story.now()
    story.kill("1/0", signal.SIGTERM)
    left = story.await_event("leave", since, worker="1/0")
    first = story.await_live(5, since)
    process = story.job.processes["1/0"]
    process.join(60)
    assert process.exitcode == 0
    said = story.job.said[since:]
    assert not [one for one in said if one["event"] == "failure"]
    assert [one["epoch"] for one in said if one["event"] == "epoch"] == [first["epoch"]]
    assert first["iteration"] == left["iteration"]
    story.bring_back("1/0")


def test_hostile_company(story: Story, kept: tuple[int, int], capfd: pytest.CaptureFixture[str]) -> None:
    """Garbage, a wrong secret and a second worker of the same name are turned away, and nobody's epoch changes."""
    job, since = story.job, story.now()
    host, port = job.server.address.split(":")
    for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64, b'{"kind":"vote","epoch":1,"iteration":1}\n'):
        with socket.create_connection((host, int(port)), 5) as connection:
            connection.sendall(data)
    secret, real = job.secret, dict(job.processes)
    job.secret = b"a secret of another job altogether"
    job.start("0/0")
    job.processes["0/0"].join(60)
    assert job.processes["0/0"].exitcode == 2
    job.secret = secret
    job.start("0/0")
    impostor = job.processes["0/0"]
    job.processes.update(real)
    story.await_event("refused", since, worker="0/0")
    impostor.kill()
    last = story.await_live(6, story.now())
    changes = [one for one in job.said[since:] if one["event"] in ("epoch", "failure", "join")]
    assert not changes, job.said[since:]
    assert last["epoch"] == next(one["epoch"] for one in reversed(job.said) if one["event"] == "iteration")
    assert "does not know the job's secret" in capfd.readouterr().err


def test_what_was_trained(story: Story, kept: tuple[int, int]) -> None:
    """After all of that every committed iteration has the loss of one process, and a survivor holds nothing more."""
    job = story.job
    iterations = [one["iteration"] for one in job.said if one["event"] == "iteration"]
    assert iterations == list(range(len(iterations)))
    survivor = job.processes[SURVIVOR].pid
    # Connections that were being made when their epoch ended are given up at the limit for connecting.
    deadline_s = time.monotonic() + 2 * CONNECT_LIMIT.total_seconds()
    while not is_flat(kept_by(survivor), kept) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert is_flat(kept_by(survivor), kept)
    job.server.finish(0, "enough")
    job.result()
    losses = job.losses()
    assert losses == pytest.approx(single_process(job.plan, CLIPPING, len(losses)), abs=1e-6)
    norms = [one["grad_norm"] for one in job.said if one["event"] == "iteration"]
    assert None not in norms and max(norms) > CLIP_NORM > min(norms)


def test_a_stage_down_to_its_last_worker_and_beyond(tmp_path: Path) -> None:
    """Two of three peers may go; with the last one the others save what they hold, and all end with exit code 5."""
    plan = plan_of(2, 3, 1)
    with unwatched(plan, JobConfig(FOREVER, heartbeat_limit_s=HEARTBEAT_S, checkpoint=str(tmp_path))) as job:
        job.wait_for_iteration(2)
        story = Story(job)
        for left, name in ((5, "1/1"), (4, "0/1")):
            since = story.now()
            story.kill(name)
            story.await_live(left, since)
        job.wait_for_iteration(len(job.losses()) + 3)
        story.kill("2/1")
        finished = job.result()
        assert finished.exit_code == 5
        assert finished.reason == "nobody is left who holds layers 5-9"
        for name in ("0/0", "1/0", "2/0"):
            job.processes[name].join(60)
            assert job.processes[name].exitcode == 5
    losses = job.losses()
    assert losses == pytest.approx(single_process(plan, TRAINING, len(losses)), abs=1e-6)
    saved = story.await_event("checkpoint", 0)
    manifest = read_manifest(Path(saved["path"]))
    assert manifest.iteration == len(losses)
    assert {file.layers for file in manifest.files} == {(0, 5)}
    assert [tuple(layers) for layers in manifest.missing] == [(5, 10)]


def test_a_stage_that_is_told_to_go_is_saved_and_goes_on_elsewhere(tmp_path: Path) -> None:
    """All workers of a stage get SIGTERM: the iteration is finished, the whole state is saved, and everybody ends with
    5; what resumes from there, in other processes, trains as if nothing had happened."""
    plan, saved = plan_of(2, 2, 1), str(tmp_path)
    with unwatched(plan, JobConfig(FOREVER, heartbeat_limit_s=HEARTBEAT_S, checkpoint=saved)) as job:
        job.wait_for_iteration(2)
        for name in ("0/1", "1/1"):
            job.signal(name, signal.SIGTERM)
        assert job.result().exit_code == 5
        for process in job.processes.values():
            process.join(60)
        assert {process.exitcode for process in job.processes.values()} == {5}
    done = job.losses()
    manifest = read_manifest(Path(Story(job).await_event("checkpoint", 0)["path"]))
    assert (manifest.iteration, manifest.missing) == (len(done), ())
    assert not [one for one in job.said if one["event"] == "failure"]
    with unwatched(plan, JobConfig(len(done) + 3, resume=saved)) as rest:
        assert rest.result().exit_code == 0
    assert done + rest.losses() == pytest.approx(single_process(plan, TRAINING, len(done) + 3), abs=1e-6)


def test_unlike_pipelines_lose_nothing() -> None:
    """Of pipelines of 3, 2 and 2 workers two are killed at once and replaced: every loss is that of one process.

    The two hold layers in common. What becomes of an optimizer's state that they alone have is not what is tested here
    (test_resharding.py), so each worker has all of it.
    """
    layer = Layer((LayerCost(0.002, 0.002, 0.002),), state_bytes=1.0)
    templates = plan_templates(Profile((layer,) * 10), 7, 1, 1, memory_limit_bytes=5.0)
    plan = plan_oobleck(templates, 7, 7, 1)
    assert [pipeline.template for pipeline in plan.pipelines] == ["n3", "n2", "n2"]
    training = replace(TRAINING, shard_optimizer=False)
    with unwatched(plan, JobConfig(FOREVER, heartbeat_limit_s=HEARTBEAT_S), training) as job:
        job.wait_for_iteration(2)
        story = Story(job)
        since = story.now()
        story.kill("0/1")
        time.sleep(0.05)
        story.kill("1/0")
        story.await_live(5, since)
        story.bring_back("0/1", "1/0")
        job.server.finish(0, "enough")
        job.result()
    assert [one["event"] for one in job.said].count("join") == 2
    assert "copy" in [one["event"] for one in job.said]
    losses = job.losses()
    assert losses == pytest.approx(single_process(plan, TRAINING, len(losses)), abs=1e-6)
