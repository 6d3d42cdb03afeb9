"""Losses that count, clipped gradients and evaluations: whatever dies when, jobs do what one process alone does."""

import time
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rtk.planners.recovery.answers import PolicyName, answers_for
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape
from rtk.planners.slipstream.cluster import AtlasRequest, opening
from rtk.planners.slipstream.replanner import Replanner
from rtk.profilers.models.gpt import language_model_loss
from rtk.runners.checkpoint import read_manifest
from rtk.runners.program import Sending
from rtk.runners.resilience.protocol import Job
from rtk.runners.torch.evaluation import HeldOut
from rtk.runners.torch.runner import PlanRunner, StepResult
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan

from .ranks import run_ranks
from .scripted import Died, ThreadJob, batches, layers, plan_of, profile

ITERATIONS, CLIP = 10, 0.5
EVERY, HELD_OUT = 4, 7
RATE = 0.05


def doubles() -> list[nn.Module]:
    """The model in float64, in which nothing but mistakes is to be seen."""
    return [layer.double() for layer in layers()]


def counting_loss(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum over targets below 40, and how many these are: in some micro-batches few."""
    ignored = target.masked_fill(target >= 40, -100).flatten()
    return F.cross_entropy(output.flatten(0, 1), ignored, reduction="sum"), (ignored != -100).sum()


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    """One whose first steps are small, and in which a clipped gradient is not an unclipped one."""
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.9)


def falling(taken: int) -> float:
    """A schedule."""
    return 1 / (1 + 0.1 * taken)


def held_out(microbatches: int = HELD_OUT) -> HeldOut:
    """Tokens that are in no iteration."""
    return HeldOut(batches(microbatches)(10**6), microbatches, EVERY)


@dataclass(frozen=True)
class Alone:
    """What one process gives: of each iteration, and of each evaluation by the iteration before which it is."""

    losses: list[float]
    norms: list[float]
    counts: list[float]
    evaluations: dict[int, float]


@cache
def one_process(
    microbatches: int, loss: Any, clip_norm: float | None, schedule: Any = None, skip: tuple[int, ...] = ()
) -> Alone:
    """All micro-batches one after the other through the whole model, and torch's own clipping and schedule."""
    whole = nn.Sequential(*doubles())
    stepping = optimizer(whole.parameters())
    rates = torch.optim.lr_scheduler.LambdaLR(stepping, schedule or (lambda taken: 1.0))
    found = Alone([], [], [], {})

    def total_of(rows: Any, is_trained: bool) -> tuple[float, float]:
        total = counted = 0.0
        for inputs, targets in rows:
            given = loss(whole(inputs), targets)
            value, number = given if isinstance(given, tuple) else (given, 1.0)
            if is_trained:
                value.backward()
            total, counted = total + value.item(), counted + float(number)
        return total, counted

    for iteration in range(ITERATIONS + 1):
        if iteration == ITERATIONS or (iteration and iteration % EVERY == 0):
            with torch.no_grad():
                total, counted = total_of(held_out().batch, False)  # type: ignore[arg-type,unused-ignore]
            found.evaluations[iteration] = total / counted
        if iteration == ITERATIONS:
            return found
        stepping.zero_grad()
        total, counted = total_of(batches(microbatches)(iteration), True)
        for parameter in whole.parameters():
            assert parameter.grad is not None
            parameter.grad /= counted
        norm = torch.nn.utils.clip_grad_norm_(whole.parameters(), float("inf") if clip_norm is None else clip_norm)
        if iteration not in skip:
            stepping.step()
            rates.step()
        found.losses.append(total / counted)
        found.norms.append(float(norm))
        found.counts.append(counted)
    raise AssertionError


def slipstream(technique: str, pp: int, dp: int) -> Plan:
    """A plan of 2 micro-batches a pipeline by SlipStream."""
    request = AtlasRequest(Shape(pp, dp, 2), technique, effort=Effort("heuristic"))  # type: ignore[arg-type]
    return Replanner(opening(profile(), request), 0).in_place(frozenset())


def job_of(
    plan: Plan, *deaths: tuple[str, int], loss: Any = language_model_loss, how: Job | None = None, **changes: Any
) -> ThreadJob:
    """A job in float64 whose failures are planned for as `rtk run` does, where nobody moves."""
    answers = answers_for(plan, PolicyName.SLIPSTREAM, None, 0)
    job = ThreadJob(plan, how or Job(plan, ITERATIONS), answers, set(deaths), loss=loss)
    job.changes = {"make_layers": doubles, "optimizer": optimizer, "evaluation": held_out(), **changes}
    return job


def assert_as_alone(job: ThreadJob, alone: Alone) -> None:
    """Every number that was announced is that of one process."""
    said = job.events("iteration")
    assert [one["iteration"] for one in said] == list(range(ITERATIONS))
    for name, wanted in (("loss", alone.losses), ("grad_norm", alone.norms), ("count", alone.counts)):
        assert [one[name] for one in said] == pytest.approx(wanted, rel=1e-12), name
    evaluations = {one["iteration"]: one["loss"] for one in job.events("evaluation")}
    assert len(job.events("evaluation")) == len(evaluations)
    assert evaluations == pytest.approx(alone.evaluations, rel=1e-12)


@pytest.mark.parametrize("technique", ["adaptive", "staggered"])
@pytest.mark.parametrize("loss", [language_model_loss, counting_loss], ids=["mean", "counts"])
def test_deaths_change_no_number(technique: str, loss: Any) -> None:
    """With deaths in both stages losses, norms and evaluations are those of one process that clips and has a schedule,
    whatever the loss counts; also where stages step before the others are done."""
    alone = one_process(6, loss, CLIP, falling)
    assert any(norm > CLIP for norm in alone.norms)
    deaths = ("1/0", 4), ("0/1", 5), ("2/1", 8)
    job = job_of(slipstream(technique, 2, 3), *deaths, loss=loss, clip_norm=CLIP, schedule=falling)
    assert job.run().exit_code == 0
    assert_as_alone(job, alone)
    assert len(job.events("failure")) == 3
    rates = [RATE * falling(iteration) for iteration in range(ITERATIONS)]
    assert [one["learning_rate"] for one in job.events("iteration")] == pytest.approx(rates)


def marking(iteration: int, microbatches: int) -> Any:
    """A loss that is not finite in a micro-batch of an iteration."""
    marked = batches(microbatches)(iteration)[1][1]

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return language_model_loss(output, target) * (float("nan") if torch.equal(target, marked) else 1.0)

    return loss


def test_what_was_skipped_is_no_step_of_the_schedule(tmp_path: Path) -> None:
    """After an iteration without a step, and after a checkpoint and in another process, the schedule goes on with the
    steps that were taken; and no number but those of that iteration is another one."""
    wanted = one_process(4, language_model_loss, None, falling, skip=(2,))
    plan, loss = plan_of(2, 2, 2), marking(2, 4)
    more = {"loss": loss, "schedule": falling}
    first = job_of(plan, ("1/1", 4), how=Job(plan, 6, checkpoint=str(tmp_path)), **more)
    assert first.run().exit_code == 0
    manifest = read_manifest(tmp_path / "step-00000006")
    assert (manifest.iteration, manifest.steps) == (6, 5)
    how = Job(plan, ITERATIONS, first_iteration=6, taken=manifest.steps, resume=str(tmp_path / "step-00000006"))
    second = job_of(plan, how=how, **more)
    assert second.run().exit_code == 0
    said = [*first.events("iteration"), *second.events("iteration")]
    assert [one["iteration"] for one in said if one["skipped"]] == [2]
    steps = [max(0, iteration - (iteration > 2)) for iteration in range(ITERATIONS)]
    assert [one["learning_rate"] for one in said] == pytest.approx([RATE * falling(taken) for taken in steps])
    for name, alone in (("loss", wanted.losses), ("grad_norm", wanted.norms)):
        assert said[2][name] is None
        got = [one[name] for one in said if not one["skipped"]]
        assert got == pytest.approx([*alone[:2], *alone[3:]], rel=1e-12), name


@pytest.mark.parametrize("clip_norm", [None, 1e6])
def test_the_staggered_optimizer_foresees_its_terms(clip_norm: float | None) -> None:
    """Where nothing is clipped, and losses are means, stages step ahead: no iteration is done twice."""
    job = job_of(slipstream("staggered", 3, 2), clip_norm=clip_norm)
    assert job.run().exit_code == 0
    assert_as_alone(job, one_process(4, language_model_loss, clip_norm))
    assert len(job.events("epoch")) == 1


def test_a_loss_that_counts_nothing_anywhere_ends_the_job() -> None:
    """All workers end, with the exit code of wrong input and what is wrong."""

    def nothing(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, float]:
        return output.sum() * 0, 0.0

    job = job_of(plan_of(2, 2, 2), loss=nothing)
    finished = job.run()
    assert finished.exit_code == InvalidInputError.exit_code
    assert "count is 0" in finished.reason
    assert not job.events("iteration")


@pytest.mark.parametrize("staggered", [False, True])
@pytest.mark.parametrize("loss", [language_model_loss, counting_loss], ids=["mean", "counts"])
@pytest.mark.parametrize("clip_norm", [None, CLIP])
def test_without_a_coordinator_the_numbers_are_the_same(staggered: bool, loss: Any, clip_norm: float | None) -> None:
    """A plain runner's ranks agree on them by themselves; staggered, only where a step needs them."""
    plan = plan_of(2, 2, 2, staggered=staggered)
    alone = one_process(4, loss, clip_norm)

    def train(runner: PlanRunner) -> tuple[list[StepResult], dict[int, float | None]]:
        results, evaluations = [], {}
        for iteration in range(ITERATIONS + 1):
            if iteration == ITERATIONS or held_out().is_due_before(iteration):
                evaluations[iteration] = runner.evaluate(held_out())[0]
            if iteration < ITERATIONS:
                results.append(runner.step(batches(4)(iteration)))
        return results, evaluations

    # Held-out data take two turns, which queues of delegates must hold.
    transport: Sending = "delegated" if staggered else "direct"
    ranks = run_ranks(plan, doubles(), loss, optimizer, train, transport=transport, clip_norm=clip_norm)
    for rank, (results, evaluations) in enumerate(ranks):
        assert evaluations == pytest.approx(alone.evaluations, rel=1e-12)
        assert [one.count for one in results] == pytest.approx(alone.counts)
        is_known = not staggered or clip_norm is not None or loss is counting_loss
        if is_known or plan.live_workers()[rank].stage == 1:
            assert [one.loss for one in results] == pytest.approx(alone.losses, rel=1e-12)
        norms = [one.grad_norm for one in results]
        assert norms == (pytest.approx(alone.norms, rel=1e-12) if is_known else [None] * ITERATIONS)


def test_a_plain_job_skips_what_is_not_finite() -> None:
    """As one with a coordinator does: nobody steps, and all go on."""
    wanted = one_process(4, language_model_loss, None, skip=(2,))

    def train(runner: PlanRunner) -> list[StepResult]:
        return [runner.step(batches(4)(iteration)) for iteration in range(4)]

    for results in run_ranks(plan_of(2, 2, 2), doubles(), marking(2, 4), optimizer, train):
        assert [one.skipped for one in results] == [False, False, True, False]
        assert results[2].grad_norm is None
        assert [results[n].loss for n in (0, 1, 3)] == pytest.approx([wanted.losses[n] for n in (0, 1, 3)], rel=1e-12)


def test_an_evaluation_leaves_no_trace() -> None:
    """Dropout and batch norms are off in it, and what these have learned, and the steps that follow, are as without."""

    class Normed(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer, self.norm, self.dropout = layer, nn.BatchNorm1d(16), nn.Dropout(0.5)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.layer(inputs)
            output = self.norm(output.double()) if output.shape[1] == 16 else output
            dropped: torch.Tensor = self.dropout(output)
            return dropped

    def train(runner: PlanRunner, times: int) -> tuple[list[float | None], list[float | None]]:
        losses, evaluated = [], []
        for iteration in range(3):
            losses.append(runner.step(batches(2)(iteration)).loss)
            evaluated += [runner.evaluate(held_out())[0] for _ in range(times)]
        return losses, evaluated

    torch.manual_seed(0)
    first, *blocks, last = doubles()
    made = [first, *(Normed(block).double() for block in blocks), last]
    plan = plan_of(1, 1, 2)
    found = [run_ranks(plan, made, language_model_loss, optimizer, partial(train, times=times)) for times in (0, 2)]
    ((plain, none),), ((also, evaluated),) = found
    assert (plain, none) == (also, [])
    assert evaluated[::2] == evaluated[1::2]
    assert len(set(evaluated)) == 3


def test_a_rerouted_plan_evaluates_all() -> None:
    """Where a worker executes another pipeline's micro-batches it evaluates them as well, each once."""
    plan = slipstream("adaptive", 2, 2)
    job = job_of(plan, ("1/1", 1))
    assert job.run().exit_code == 0
    assert_as_alone(job, one_process(4, language_model_loss, None))
    assert {one["live_workers"] for one in job.events("iteration")} == {3, 4}


class Deadly:
    """Held-out data of which one worker dies, once."""

    def __init__(self) -> None:
        self._rows, self._asked = batches(HELD_OUT)(10**6), count()

    def __getitem__(self, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
        if next(self._asked) == 8:
            raise Died
        return self._rows[microbatch]


@pytest.mark.parametrize("every", [EVERY, 10**6])
def test_a_death_in_an_evaluation_has_it_done_anew(every: int) -> None:
    """Before an iteration, and after the last one, when there is nothing else left to do."""
    job = job_of(slipstream("adaptive", 2, 2), evaluation=HeldOut(Deadly(), HELD_OUT, every))
    assert job.run().exit_code == 0
    alone = one_process(4, language_model_loss, None)
    wanted = {n: loss for n, loss in alone.evaluations.items() if n == ITERATIONS or n % every == 0}
    assert_as_alone(job, replace(alone, evaluations=wanted))
    (failure,) = job.events("failure")
    assert failure["iteration"] == min(wanted)


class Slow:
    """Held-out data that take their time."""

    def __getitem__(self, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.02)
        return batches(1)(microbatch)[0]


def test_an_evaluation_that_lasts_is_no_standstill() -> None:
    """It may take several times what an iteration may: somebody moves; and it is no part of an iteration's time."""
    plan = plan_of(2, 1, 2)
    job = job_of(plan, how=Job(plan, 4, stall_limit_s=0.5), evaluation=HeldOut(Slow(), 60, 2))
    assert job.run().exit_code == 0
    assert [one["iteration"] for one in job.events("evaluation")] == [2, 4]
    assert len(job.events("epoch")) == 1
    evaluation, iteration = job.events("evaluation")[0], job.events("iteration")[2]
    assert evaluation["seconds"] > 1.2 > iteration["iteration_time_s"]


@pytest.mark.parametrize(("microbatches", "every"), [(0, 1), (1, 0), (-1, 5)])
def test_an_evaluation_of_nothing_is_refused(microbatches: int, every: int) -> None:
    """At once."""
    with pytest.raises(InvalidInputError, match="no number to evaluate by"):
        replace(held_out(), microbatches=microbatches, every=every)
