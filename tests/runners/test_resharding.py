"""Jobs whose peers share the optimizer's state: whoever is lost and comes, they train what one process trains."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import language_model_loss
from rtk.runners.resilience.protocol import Job
from rtk.runners.torch.gathering import Gathering
from rtk.runners.torch.gloo import GlooTransport
from rtk.runners.torch.resharding import STATES_TAG, Shards
from rtk.runners.torch.resilient import ResilientWorker
from rtk.runners.torch.stage_blocks import StageBlocks
from rtk.runners.training import JobConfig
from rtk.schemas import blocks
from rtk.schemas.blocks import BlockId, split_piece
from rtk.schemas.conditions import Conditions
from rtk.schemas.plan import Plan
from rtk.schemas.protocols import Hand, Replanned

from .processes import ProcessJob, single_process
from .ranked import RankedJob
from .ranked import plan_of as ranked_plan
from .scripted import Died, ThreadJob, batches, layers, plan_of, profile
from .test_ranked_survival import assert_exact, event, killed
from .test_resilient_worker import job_of, moving_job, slipstream
from .test_survival import FOREVER, TRAINING, Story
from .test_survival import plan_of as process_plan
from .test_unlike_runs import job_of as unlike_job
from .test_unlike_runs import unlike

Hook = Callable[..., Any]


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small layers have several blocks, of lengths that vectors divide."""
    monkeypatch.setattr(blocks, "BLOCK", 1024)
    yield


def doubles() -> list[nn.Module]:
    """The layers in float64, in which what is only rounding stays small."""
    return [layer.double() for layer in layers()]


def shared(job: ThreadJob, **more: Any) -> ThreadJob:
    """The same job with a sharded optimizer, in float64."""
    job.changes |= {"make_layers": doubles, "shard_optimizer": True, **more}
    return job


def alone(
    iterations: int,
    microbatches: int,
    clip_norm: float | None = None,
    skip: tuple[int, ...] = (),
    make_layers: Callable[[], list[nn.Module]] = doubles,
) -> tuple[list[float], dict[str, Any]]:
    """One process: the losses, and the parameters in the end by their names in the state."""
    made = make_layers()
    whole = nn.Sequential(*made)
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-4)
    losses = []
    for iteration in range(iterations):
        optimizer.zero_grad()
        parts = []
        for inputs, targets in batches(microbatches)(iteration):
            loss = language_model_loss(whole(inputs), targets) / microbatches
            loss.backward()  # type: ignore[no-untyped-call]
            parts.append(loss.item())
        losses.append(sum(parts))
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(whole.parameters(), clip_norm)
        if iteration not in skip:
            optimizer.step()
    return losses, dict(whole.named_parameters())


def check_state(job: ThreadJob, parameters: dict[str, Any]) -> None:
    """Parameters are those of one process, and of each block both holders have the same bits of all its state.

    Whoever hears of the end before it has the others' parameters of the last step needs them no more.
    """
    owned: dict[BlockId, list[dict[str, torch.Tensor]]] = {}
    for worker in job.workers.values():
        own = blocks_of(worker)
        for block in own.held:
            owned.setdefault(block, []).append(own.values_of([block]) | own.state_of([block]))
    assert owned.keys() == {block for worker in job.workers.values() for block in blocks_of(worker).sizes}
    for block, copies in owned.items():
        assert len(copies) == min(2, sum(block[0] in worker.held.numbers for worker in job.workers.values()))
        for copy in copies:
            assert copy.keys() == copies[0].keys()
            assert all(torch.equal(copy[name], copies[0][name]) for name in copy)
        for name, value in copies[0].items():
            whole, span = split_piece(name)
            if "/" not in whole:
                wanted = parameters[whole].detach()
                wanted = wanted if span is None else wanted.flatten()[slice(*span)]
                torch.testing.assert_close(value, wanted, rtol=0, atol=1e-12)


def blocks_of(worker: ResilientWorker) -> StageBlocks:
    """Of a worker's stage."""
    assert worker.held.blocks is not None
    return worker.held.blocks


def check(
    job: ThreadJob, iterations: int, microbatches: int, clip_norm: float | None = None, waiting: Sequence[str] = ()
) -> None:
    """The job ends well, with what one process trains; some wait for a place, and hold nothing that counts."""
    finished = job.run()
    assert finished.exit_code == 0, finished.reason
    losses, parameters = alone(iterations, microbatches, clip_norm)
    assert job.losses() == pytest.approx(losses, rel=0, abs=1e-12)
    for name in waiting:
        del job.workers[name]
    check_state(job, parameters)


@pytest.mark.parametrize("technique", ["adaptive", "staggered"])
def test_deaths_change_nothing(technique: str) -> None:
    """With deaths in both stages, one peer after the other, down to one that has all; clipped, so with every norm."""
    deaths = ("1/0", 3), ("0/1", 5), ("2/0", 5), ("2/1", 8)
    check(shared(job_of(slipstream(technique, 2, 3), 11, *deaths), clip_norm=0.5), 11, 6, 0.5)


def test_who_holds_no_block_has_the_others_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three peers whose stage is one block two step it, and the third one computes with what they made of it."""
    monkeypatch.setattr(blocks, "BLOCK", 1 << 16)

    def ends() -> list[nn.Module]:
        return [doubles()[0], doubles()[-1]]

    plan = plan_pipeline(replace(profile(), layers=profile().layers[:2]), Shape(2, 3, 2), "1f1b")
    job = shared(job_of(plan, 5), make_layers=ends)
    assert job.run().exit_code == 0
    losses, parameters = alone(5, 6, make_layers=ends)
    assert sorted(len(blocks_of(worker).held) for worker in job.workers.values()) == [0, 0, 1, 1, 1, 1]
    assert job.losses() == pytest.approx(losses, rel=0, abs=1e-12)
    check_state(job, parameters)


def test_a_newcomer_takes_its_share() -> None:
    """One that takes a dead one's place holds its part of the state from then on, with the others' parameters."""
    job = shared(job_of(slipstream("adaptive", 1, 4), 10, ("1/0", 2)))
    job.start("1/0", not_before=6)
    check(job, 10, 8)
    assert [(one["worker"], one["iteration"]) for one in job.events("join")] == [("1/0", 6)]
    held = [len(blocks_of(worker).held) for worker in job.workers.values()]
    assert len(held) == 4
    assert max(held) - min(held) <= 0.35 * max(held)


def test_a_worker_takes_over_another_stage() -> None:
    """One that moves gives the state of its blocks to those who stay, and has its part of the other stage's."""
    check(shared(moving_job()), 12, 6)


def test_unlike_pipelines_share_what_several_hold() -> None:
    """Where pipelines cut the layers at other places, one sends another state of layers that others hold as well, and
    of layers that none of these holds: all of it comes, through two deaths."""
    check(shared(unlike_job(unlike(7, 1, 2, 7), 10, ("0/0", 3), ("1/0", 6))), 10, 7)


def unseating_job(deaths: set[tuple[str, int]]) -> ThreadJob:
    """Eight iterations of 2 stages and 4 pipelines: when 1/0 is dead, 2/0 and 3/0 lose their seats as well, until
    another one is dead."""
    plan = slipstream("adaptive", 2, 4)
    without = frozenset({(1, 0), (2, 0), (3, 0)})

    def replan(plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
        names = {hand.worker for hand in crew}
        dead = {(k, i) for k in range(4) for i in range(2) if f"{k}/{i}" not in names}
        found = slipstream("adaptive", 2, 4, frozenset(dead | without if dead == {(1, 0)} else dead))
        return Replanned(found, tuple((one.name, one.place) for one in found.live_workers()))

    return ThreadJob(plan, Job(plan, 8), replan, deaths)


def test_who_loses_its_seat_gives_what_it_holds() -> None:
    """Of four peers, of whom each has half of the blocks, one dies and two have no place in the next plan: these send
    the last one what it lacks, before they let go."""
    job = shared(unseating_job({("1/0", 3)}))
    check(job, 8, 8, waiting=("2/0", "3/0"))
    assert sorted(one["worker"] for one in job.events("wait")) == ["2/0", "3/0"]
    assert not job.events("rollback")
    assert len(blocks_of(job.workers["0/0"]).held) == len(blocks_of(job.workers["0/0"]).sizes)


def test_who_loses_its_seat_may_have_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker dies in the epoch that two give their state in: they have their seats again, with all they had."""
    moment = Moment(monkeypatch, Shards, "meet")
    moment.die("3/1", 2)
    job = shared(unseating_job({("1/0", 3)}))
    check(job, 8, 8)
    assert {one["worker"] for one in job.events("failure")} == {"1/0", "3/1"}
    assert not job.events("rollback")


class Moment:
    """Of calls of a method, by which worker and at which of them something else is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> None:
        self._calls: dict[str, int] = {}
        self._then: dict[tuple[str, int], Callable[[], None]] = {}
        original = getattr(owner, method)

        def call(*arguments: Any, **more: Any) -> Any:
            name = threading.current_thread().name.removeprefix("worker ")
            self._calls[name] = self._calls.get(name, 0) + 1
            self._then.get((name, self._calls[name]), lambda: None)()
            return original(*arguments, **more)

        monkeypatch.setattr(owner, method, call)

    def die(self, name: str, number: int) -> None:
        """A worker dies before its call of this number, which begins with 1."""

        def end() -> None:
            raise Died

        self._then[name, number] = end


@pytest.mark.parametrize("technique", ["adaptive", "staggered"])
def test_a_death_while_parameters_are_gathered(technique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some peers have the dead one's parameters of the step, and others not: all have them from its buddies."""
    Moment(monkeypatch, Gathering, "run").die("1/0", 4)
    check(shared(job_of(slipstream(technique, 2, 3), 8)), 8, 6)


def test_a_death_in_the_midst_of_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second worker dies while blocks of the first one are on their way: what others had before still counts."""
    moment = Moment(monkeypatch, Shards, "end")
    job = shared(job_of(slipstream("adaptive", 1, 5), 8, ("1/0", 3)))
    moment.die("2/0", 3 + 3 + 1)  # of each iteration before, at its vote and at its end
    check(job, 8, 10)
    assert len(job.events("failure")) == 2


def test_both_holders_lost_at_once() -> None:
    """Without a checkpoint the job ends, and says of which layers the state is lost, and which option keeps it."""
    finished = shared(job_of(slipstream("adaptive", 1, 4), 8, ("1/0", 3), ("2/0", 3))).run()
    assert finished.exit_code == 5
    assert "is lost: of a part of it both workers that held it are gone" in finished.reason
    assert finished.reason.startswith("the optimizer's state of layers 1")
    assert "--no-shard-optimizer" in finished.reason


def test_what_comes_is_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """State of which a number has changed on its way is not taken: it is sent once more, in another epoch."""
    original, spoiled = GlooTransport.send, list[int]()

    def send(self: GlooTransport, tag: int, to: int, tensor: torch.Tensor) -> None:
        if tag == STATES_TAG and not spoiled:
            spoiled.append(to)
            tensor = torch.cat([tensor[:1] + 1, tensor[1:]])
        original(self, tag, to, tensor)

    monkeypatch.setattr(GlooTransport, "send", send)
    job = shared(job_of(slipstream("adaptive", 1, 4), 8, ("1/0", 3)))
    check(job, 8, 8)
    assert spoiled
    assert len(job.events("epoch")) == 3


@pytest.mark.parametrize("technique", ["adaptive", "staggered"])
def test_both_holders_lost_at_once_after_a_checkpoint(technique: str, tmp_path: Path) -> None:
    """All go back to the last one by themselves, twice, and train what one process trains; a newcomer is as welcome."""
    deaths = ("1/0", 4), ("2/0", 4), ("3/0", 9), ("4/0", 9)
    how = {"checkpoint": str(tmp_path), "checkpoint_every": 3}
    job = shared(job_of(slipstream(technique, 1, 6), 13, *deaths, **how), clip_norm=0.5)
    job.start("1/0", not_before=11)
    finished = job.run()
    assert finished.exit_code == 0, finished.reason
    went_back = [one["iteration"] for one in job.events("rollback")]
    assert went_back and set(went_back) <= {3, 6, 9}
    losses, parameters = alone(13, 12, 0.5)
    iterations = [one["iteration"] for one in job.events("iteration")]
    assert sorted(set(iterations)) == list(range(13))
    assert len(iterations) >= 13
    assert job.losses() == pytest.approx([losses[number] for number in iterations], rel=0, abs=1e-12)
    assert [one["worker"] for one in job.events("join")] == ["1/0"]
    check_state(job, parameters)


def test_a_buddy_is_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four workers on two machines both of one may be lost at once."""
    machines = {"0/0": "a", "1/0": "a", "2/0": "b", "3/0": "b"}
    original = Shards.__init__

    def here(self: Shards, unit: str) -> None:
        original(self, machines[threading.current_thread().name.removeprefix("worker ")])

    monkeypatch.setattr(Shards, "__init__", here)
    check(shared(job_of(slipstream("adaptive", 1, 4), 8, ("2/0", 3), ("3/0", 3))), 8, 8)


def test_without_deaths_it_is_the_replicated_run_to_the_last_bit() -> None:
    """In float32, with the same sums."""
    runs = []
    for is_sharded in (False, True):
        job = job_of(slipstream("adaptive", 1, 3), 5)
        job.changes |= {"shard_optimizer": is_sharded}
        assert job.run().exit_code == 0
        runs.append(job)
    wanted, own = runs[0].workers["0/0"].held.state(), blocks_of(runs[1].workers["0/0"])
    assert runs[0].losses() == runs[1].losses()
    for name, value in (own.values_of(own.held) | own.state_of(own.held)).items():
        entry, span = split_piece(name)
        one = wanted[entry]
        assert torch.equal(value, one if span is None or one.dim() == 0 else one.flatten()[slice(*span)])


@pytest.mark.parametrize("staggered", [False, True])
def test_checkpoints_resume_with_other_peers(tmp_path: Path, staggered: bool) -> None:
    """Saved through a death by all who hold blocks, resumed with more and fewer peers and another cut of the layers."""
    plan = slipstream("staggered" if staggered else "adaptive", 2, 3)
    first = shared(job_of(plan, 7, ("0/0", 4), checkpoint=str(tmp_path), checkpoint_every=2))
    assert first.run().exit_code == 0
    saved = [Path(one["path"]) for one in first.events("checkpoint") if not one.get("error")]
    assert saved[-1].name == "step-00000007"  # one under way as somebody dies may come to nothing
    losses, parameters = alone(11, 6)
    for pp, dp, is_sharded in ((1, 3, True), (3, 2, False)):
        again = plan_of(pp, dp, 6 // dp)
        second = job_of(again, 11, ("1/0", 9), first_iteration=7, resume=str(saved[-1]))
        second.changes |= {"make_layers": doubles, "shard_optimizer": is_sharded}
        assert second.run().exit_code == 0
        assert first.losses() + second.losses() == pytest.approx(losses, rel=0, abs=1e-12)
        if is_sharded:
            check_state(second, parameters)


def test_processes_that_are_killed_and_replaced(tmp_path: Path) -> None:
    """Real ones, of whom nobody was told to share: one is killed and replaced; then three of four are killed at once,
    and the last one goes back to a checkpoint by itself, trains on alone, and shares what it has with a newcomer."""
    plan = process_plan(1, 4, 1)
    how = JobConfig(FOREVER, heartbeat_limit_s=2.0, checkpoint=str(tmp_path), checkpoint_every=2)
    with ProcessJob(plan, how, TRAINING, is_watchful=False) as job:
        job.wait_for_iteration(2)
        story = Story(job)
        since = story.now()
        story.kill("1/0")
        story.await_live(3, since)
        story.bring_back("1/0")
        story.await_event("checkpoint", story.now())
        since = story.now()
        for name in ("0/0", "1/0", "2/0"):
            story.kill(name)
        back = story.await_event("rollback", since)
        story.await_live(1, since)
        job.processes["0/0"].join(60)
        job.start("0/0")
        story.await_live(2, since)
        job.server.finish(0, "enough")
        job.result()
    assert back["path"] == str(tmp_path / f"step-{back['iteration']:08}")
    iterations = [one["iteration"] for one in job.said if one["event"] == "iteration"]
    wanted = single_process(plan, TRAINING, max(iterations) + 1)
    assert job.losses() == pytest.approx([wanted[number] for number in iterations], abs=1e-6)


def test_ranks_of_workers_share_each_its_slices() -> None:
    """Of 3 workers of 2 ranks, each of which has blocks of its slices, one rank is killed and replaced."""
    with RankedJob(ranked_plan(1, 3, 1, 2), FOREVER, is_sharded=True) as job:
        job.wait_for_iteration(3)
        at = killed(job, "1/0:1", 0.02)
        job.start("1/0:1")
        at = job.wait_for(event("join", worker="1/0"), since=at)
        job.wait_for(event("iteration", live_workers=3), since=at)
        assert_exact(job)


def test_a_step_that_is_undone() -> None:
    """With a staggered optimizer, after a loss that is not finite: others' parameters of that step are fetched anew."""
    marked = [batches(6)(iteration)[number][1] for iteration, number in ((3, 1), (5, 0))]

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        factor = float("inf") if any(torch.equal(target, one) for one in marked) else 1.0
        return language_model_loss(output, target) * factor

    job = shared(job_of(slipstream("staggered", 2, 3), 8, ("1/1", 1)))
    job.loss = loss
    finished = job.run()
    assert finished.exit_code == 0, finished.reason
    assert [one["iteration"] for one in job.events("iteration") if one["skipped"]] == [3, 5]
    wanted, parameters = alone(8, 6, skip=(3, 5))
    assert [n for n, one in enumerate(job.losses()) if one is None] == [3, 5]
    told = [(one, two) for one, two in zip(job.losses(), wanted, strict=True) if one is not None]
    assert [one for one, _ in told] == pytest.approx([two for _, two in told], rel=0, abs=1e-12)
    check_state(job, parameters)
