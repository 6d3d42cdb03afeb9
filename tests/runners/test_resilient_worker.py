"""The worker of a resilient run, and small jobs of them with everything but processes."""

import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rtk.planners.recovery.answers import PolicyName, answers_for
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape
from rtk.planners.slipstream.cluster import AtlasRequest, opening
from rtk.planners.slipstream.replanner import Replanner
from rtk.profilers.models.gpt import language_model_loss
from rtk.runners.resilience.protocol import (
    Commit,
    End,
    Epoch,
    FromCoordinator,
    FromWorker,
    Halt,
    Job,
    RankAssignment,
    Saver,
    StepTerms,
    Vote,
    Welcome,
)
from rtk.runners.torch.rendezvous import MeetingPlace
from rtk.runners.torch.resilient import ResilientWorker
from rtk.schemas.documents import canonical
from rtk.schemas.plan import Place, Plan

from .scripted import (
    SECRET,
    ThreadJob,
    batches,
    layers,
    plan_of,
    profile,
    replan_with,
    single_process,
    task_of,
)
from .test_transport_epochs import is_back_to

Story = dict[tuple[int, int], Sequence[FromCoordinator]]  # what follows the vote on (epoch, iteration)

# What a worker hears, in its order


class Script:
    """A link that is told what the coordinator says: `then` after each vote."""

    def __init__(self, worker: ResilientWorker, first: FromCoordinator, then: Story) -> None:
        self._worker, self._waiting, self._then = worker, [first], then
        self.votes: list[Vote] = []
        worker.announce(first)

    def send(self, message: FromWorker) -> None:
        """Everything that follows a vote has been heard, though not obeyed, before the worker looks up."""
        if isinstance(message, Vote):
            self.votes.append(message)
            for answer in self._then.pop((message.epoch, message.iteration)):
                if isinstance(answer, Epoch | Halt | End):
                    self._worker.announce(answer)
                self._waiting.append(answer)

    def receive(self, timeout_s: float | None = None) -> FromCoordinator:
        """The next line."""
        return self._waiting.pop(0)


def alone(staggered: bool = False) -> tuple[ResilientWorker, Plan]:
    """A job of one worker."""
    plan = plan_of(1, 1, 2, staggered=staggered)
    return ResilientWorker(task_of(plan, "0/0", batches(2))), plan


@cache
def meeting() -> MeetingPlace:
    """Where a worker meets nobody."""
    return MeetingPlace(SECRET)


def epoch(plan: Plan, number: int, iteration: int, skipped: bool = False) -> Epoch:
    seats = (RankAssignment("0/0", "0/0", meeting().address),)
    terms = terms_of(iteration - 1) if iteration else None
    return Epoch(
        *(number, iteration, skipped, 99, canonical(plan).decode(), seats),
        nothing_committed=iteration == 0,
        terms=terms,
        taken=iteration,
    )


def terms_of(iteration: int) -> StepTerms:
    """Of a step of two micro-batches; a schedule that knows of skipped ones is not in use."""
    return StepTerms(2.0, None, iteration)


def commit(number: int, iteration: int, **more: Any) -> Commit:
    return Commit(number, iteration, last=99, terms=terms_of(iteration), **more)


def parameters(worker: ResilientWorker) -> list[torch.Tensor]:
    return [value.clone() for name, value in worker.held.state().items() if "/" not in name]


def after(steps: Sequence[int]) -> list[torch.Tensor]:
    """The parameters after the steps of some iterations, as the worker takes them."""
    whole = nn.Sequential(*layers())
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-4)
    for iteration in steps:
        optimizer.zero_grad()
        for inputs, targets in batches(2)(iteration):
            (language_model_loss(whole(inputs), targets) / 2).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [value.detach() for value in whole.parameters()]


def assert_same(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert all(torch.allclose(a, b, atol=1e-6, rtol=0) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("staggered", [False, True])
@pytest.mark.parametrize("is_heard", [True, False])
def test_a_committed_step_is_taken_though_the_epoch_is_over(staggered: bool, is_heard: bool) -> None:
    """A commit that a new epoch follows at once, or that is lost with its coordinator, still steps the optimizer."""
    worker, plan = alone(staggered)
    commits = [commit(1, 0)] if is_heard else []
    over = epoch(plan, 2, 1)
    script = Script(worker, epoch(plan, 1, 0), {(1, 0): [*commits, over], (2, 1): [commit(2, 1), End(0, "done")]})
    worker.run(script, Welcome(1.0, 0.0, ""))  # type: ignore[arg-type]
    assert [(vote.epoch, vote.iteration) for vote in script.votes] == [(1, 0), (2, 1)]
    assert_same(parameters(worker), after([0, 1]))


@pytest.mark.parametrize("staggered", [False, True])
def test_what_was_not_committed_is_redone(staggered: bool) -> None:
    """An iteration that was voted on and not committed leaves no trace, and is done again."""
    worker, plan = alone(staggered)
    again = epoch(plan, 2, 0)
    script = Script(worker, epoch(plan, 1, 0), {(1, 0): [again], (2, 0): [commit(2, 0), End(0, "done")]})
    worker.run(script, Welcome(1.0, 0.0, ""))  # type: ignore[arg-type]
    assert [vote.epoch for vote in script.votes] == [1, 2]
    assert_same(parameters(worker), after([0]))


@pytest.mark.parametrize("staggered", [False, True])
def test_a_skipped_step_is_not_taken(staggered: bool) -> None:
    """A commit without a step, whether it is heard or only the epoch after it, leaves the parameters as they were."""
    worker, plan = alone(staggered)
    script = Script(
        worker,
        epoch(plan, 1, 0),
        {
            (1, 0): [commit(1, 0)],
            (1, 1): [commit(1, 1, skip=True), epoch(plan, 2, 2, skipped=True)],
            (2, 2): [epoch(plan, 3, 3, skipped=True)],
            (3, 3): [commit(3, 3), End(0, "done")],
        },
    )
    worker.run(script, Welcome(1.0, 0.0, ""))  # type: ignore[arg-type]
    assert_same(parameters(worker), after([0, 3]))


def test_the_later_of_two_commits_says_both() -> None:
    """Staggered, a worker whose coordinator died with two votes unanswered may hear of the later commit only."""
    worker, plan = alone(staggered=True)
    story = {(1, 0): [], (1, 1): [commit(1, 1)], (1, 2): [commit(1, 2), End(0, "done")]}
    worker.run(Script(worker, epoch(plan, 1, 0), story), Welcome(1.0, 0.0, ""))  # type: ignore[arg-type]
    assert_same(parameters(worker), after([0, 1, 2]))


def test_a_checkpoint_that_falls_due_as_an_epoch_ends_is_saved(tmp_path: Any) -> None:
    """A worker that was interrupted as it heard a commit saves the state after it all the same."""
    worker, plan = alone()
    saving = commit(1, 0, save=str(tmp_path), savers=(Saver("0/0", (0, 3)),))
    script = Script(
        worker, epoch(plan, 1, 0), {(1, 0): [saving, Halt(1, False, None, (), "over", terms_of(0)), End(5, "over")]}
    )
    worker.run(script, Welcome(1.0, 0.0, ""))  # type: ignore[arg-type]
    assert list(tmp_path.rglob("*.safetensors"))


# Small jobs


def slipstream(technique: str, pp: int, dp: int, failed: frozenset[Place] = frozenset()) -> Plan:
    """A plan of 2 micro-batches a pipeline by SlipStream, some of whose workers may be dead."""
    request = AtlasRequest(Shape(pp, dp, 2), technique, effort=Effort("heuristic"))  # type: ignore[arg-type]
    return Replanner(opening(profile(), request), len(failed)).in_place(failed)


def job_of(plan: Plan, iterations: int, *deaths: tuple[str, int], **more: Any) -> ThreadJob:
    """A job whose failures are planned for as `rtk run` does, where nobody moves."""
    return ThreadJob(
        plan, Job(plan, iterations, **more), answers_for(plan, PolicyName.SLIPSTREAM, None, 0), set(deaths)
    )


def assert_peers_agree(job: ThreadJob) -> None:
    assert all(len(found) == 1 for found in job.checksums().values())


def state_of(job: ThreadJob) -> dict[str, torch.Tensor]:
    """What the workers hold in the end, together."""
    assert_peers_agree(job)
    return {name: value for worker in job.workers.values() for name, value in worker.held.state().items()}


def assert_equal_bits(one: ThreadJob, other: ThreadJob) -> None:
    mine, its = state_of(one), state_of(other)
    assert mine.keys() == its.keys()
    assert all(torch.equal(mine[name], its[name]) for name in mine)
    assert one.losses() == other.losses()


@pytest.mark.parametrize("technique", ["adaptive", "staggered"])
def test_deaths_change_no_loss(technique: str) -> None:
    """With deaths in both stages, every loss is that of one process, and peers end with the same bits."""
    job = job_of(slipstream(technique, 2, 3), 12, ("1/0", 3), ("0/1", 5), ("2/0", 5), ("2/1", 8))
    assert job.run().exit_code == 0
    assert job.losses() == pytest.approx(single_process(12, 6), abs=1e-6)
    assert len(job.events("failure")) == 4
    assert len(job.workers) == 2


def test_a_plan_may_begin_with_a_dead_worker() -> None:
    """A job whose plan has a dead worker runs, and its place can be taken while it does."""
    plan = slipstream("decoupled", 2, 2, frozenset({(1, 1)}))
    job = job_of(plan, 10)
    job.start("1/1", not_before=4)
    assert job.run().exit_code == 0
    assert job.losses() == pytest.approx(single_process(10, 4), abs=1e-6)
    assert_peers_agree(job)
    assert [(one["worker"], one["iteration"]) for one in job.events("join")] == [("1/1", 4)]
    assert [one["live_workers"] for one in job.events("iteration")] == [3] * 4 + [4] * 6


def test_the_staggered_optimizer_trains_the_same_bits() -> None:
    """Whether stages step on their own or all at once, losses and state are the same to the last bit."""
    plan = slipstream("staggered", 3, 2)
    staggered, synchronous = job_of(plan, 10), job_of(replace(plan, optimizer="synchronous", prediction=None), 10)
    assert (staggered.run().exit_code, synchronous.run().exit_code) == (0, 0)
    assert_equal_bits(staggered, synchronous)
    assert staggered.losses() == pytest.approx(single_process(10, 4), abs=1e-6)


def test_a_gradient_that_is_not_finite_rolls_every_stage_back() -> None:
    """After a loss that is not finite, at once or just after a death, all stages go on as if the step had not been."""
    plan = slipstream("staggered", 3, 2)
    marked = [batches(4)(iteration)[number][1] for iteration, number in ((3, 1), (6, 3), (7, 0))]

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        factor = float("inf") if any(torch.equal(target, one) for one in marked) else 1.0
        return language_model_loss(output, target) * factor

    jobs = [job_of(plan, 10), job_of(replace(plan, optimizer="synchronous", prediction=None), 10)]
    for job in jobs:
        job.loss = loss
        assert job.run().exit_code == 0
        assert [one["iteration"] for one in job.events("iteration") if one["skipped"]] == [3, 6, 7]
    assert_equal_bits(*jobs)
    wanted = single_process(10, 4, skip=[3, 6, 7])
    assert [n for n, one in enumerate(jobs[0].losses()) if one is None] == [3, 6, 7]
    for got, loss_s in zip(jobs[0].losses(), wanted, strict=True):
        assert got is None or got == pytest.approx(loss_s, abs=1e-6)


def moving_job() -> ThreadJob:
    """Twelve iterations of 2 stages and 3 pipelines; when 1/0 and 2/0 are dead, 2/1 takes the place of 2/0."""
    plan = slipstream("adaptive", 2, 3)

    def make(failed: frozenset[Place], may_move: bool) -> tuple[Plan, tuple[tuple[Place, Place], ...]]:
        if failed == {(1, 0), (2, 0)} and may_move:
            return slipstream("adaptive", 2, 3, frozenset({(1, 0), (2, 1)})), (((2, 1), (2, 0)),)
        return slipstream("adaptive", 2, 3, failed), ()

    return ThreadJob(plan, Job(plan, 12), replan_with(plan, make), {("1/0", 3), ("2/0", 5)})


def test_a_worker_takes_over_another_stage() -> None:
    """A plan that moves a worker gives it the other stage's state, and the losses stay those of one process."""
    job = moving_job()
    assert job.run().exit_code == 0
    assert job.losses() == pytest.approx(single_process(12, 6), abs=1e-6)
    assert_peers_agree(job)
    moved = [one for one in job.events("copy") if one["worker"] == "2/1"]
    assert [(one["place"], one["source"]) for one in moved] == [("2/0", "0/0")]


@pytest.mark.parametrize("staggered", [False, True])
def test_checkpoints_resume_in_another_shape(tmp_path: Path, staggered: bool) -> None:
    """Saved every few iterations through a death, resumed with other stages and pipelines, the losses go on."""
    first = job_of(plan_of(3, 2, 2, staggered=staggered), 9, ("0/0", 4), checkpoint=str(tmp_path), checkpoint_every=2)
    assert first.run().exit_code == 0
    saved = [Path(one["path"]).name for one in first.events("checkpoint")]
    assert saved[-1] == "step-00000009"
    assert len(saved) >= 3
    for pp, dp, microbatches in ((2, 1, 4), (1, 2, 2)):
        plan = plan_of(pp, dp, microbatches, "zero-bubble")
        second = job_of(plan, 14, first_iteration=9, resume=str(tmp_path / saved[-1]))
        assert second.run().exit_code == 0
        assert first.losses() + second.losses() == pytest.approx(single_process(14, 4), abs=1e-6)


def test_a_full_disk_costs_only_checkpoints(tmp_path: Path) -> None:
    """Each checkpoint that does not fit on the disk is announced once, with its error; training goes on to its end."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        job = job_of(plan_of(2, 1, 2), 8, checkpoint=str(tmp_path), checkpoint_every=4)
        assert job.run().exit_code == 0
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert job.losses() == pytest.approx(single_process(8, 2), abs=1e-6)
    assert [one["iteration"] for one in job.events("checkpoint")] == [4, 8]
    assert all("No space left" in one["error"] for one in job.events("checkpoint"))


def settled() -> tuple[int, int]:
    """Threads and descriptors, once they stay the same: connections are made ahead, in the background."""
    seen: list[tuple[int, int]] = []
    while len(seen) < 10 or len({*seen[-10:]}) > 1:
        seen.append((threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))))
        time.sleep(0.1)
    return seen[-1]


def test_11_epochs_leave_nothing_behind() -> None:
    """Workers die and are replaced until the 11th epoch: survivors keep their number of threads and descriptors."""
    plan = plan_of(2, 2, 2)
    job = job_of(plan, 10_000)
    counts = []
    job.begin()
    for cycle in range(6):
        job.wait_for_epoch(2 * cycle + 1)
        if cycle in (1, 2, 3, 5):
            counts.append(settled())
        name = ("1/0", "1/1")[cycle % 2]
        job.deaths.add((name, job.events("iteration")[-1]["iteration"] + 1))
        job.wait_for_epoch(2 * cycle + 2)
        job.start(name)
    job.wait_for_epoch(13)  # the last one has been let in
    job.server.finish(0, "enough")
    job.finish()
    assert job.losses() == pytest.approx(single_process(len(job.losses()), 4), abs=1e-6)
    *before, now = counts  # on a busy machine some are taken too early
    assert is_back_to([max(one) for one in zip(*before, strict=True)], now), counts
