"""What is left of an iteration, after deaths at any moment: gradients, losses and steps are those of one process."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from random import Random

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from rtk.planners.resumption.plan import plan_rest
from rtk.runners.program import Program, lower, lower_rest
from rtk.runners.resilience.protocol import StepTerms
from rtk.runners.torch.boundaries import boundary_samples, like
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.iteration import Iteration, seed_randomness, splits_backward
from rtk.runners.torch.progress import IterationProgress
from rtk.runners.torch.rank import Rank
from rtk.runners.torch.resume import SumTaker
from rtk.runners.torch.stage import add_loss
from rtk.runners.torch.ties import ties_of, trained_together
from rtk.runners.torch.trees import Named, Tree
from rtk.schemas.check_rest import check_rest
from rtk.schemas.check_standing import check_standing
from rtk.schemas.conditions import HEALTHY
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.plan import Layers, Placement, Plan, Stage, Worker
from rtk.schemas.resumption import Rest, SharedLayers, Standing

from ..placed_plans import folded, looped
from ..random_plans import Own, PlacedPlans, RandomPlans
from .turns import Turns, TurnTransport

WIDTH, SEED, NUMBER = 3, 11, 4
CLOSE = 1e-14


class Block(nn.Module):
    """A layer with all that matters: gradients that I makes, others that W makes, randomness, buffers, a loss."""

    mean: torch.Tensor
    count: torch.Tensor

    def __init__(self, adds: bool, draws: bool) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.3 if draws else 0.0)
        self.adds = adds
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, value: Tree, shift: torch.Tensor | None = None) -> Tree:
        """Map rows, and another tensor beside them where there is one, to such."""
        rows, *beside = value if isinstance(value, tuple) else (value,)
        rows = rows + self.dropout(torch.tanh(self.linear(self.norm(rows))))
        rows = rows if shift is None else rows + shift
        if self.training:
            self.mean.mul_(0.9).add_(rows.detach().mean())
            self.count.add_(1)
        if self.adds:
            add_loss(0.1 * rows.square().mean())
        return (rows, *(one * 0.5 + rows.mean(0) for one in beside)) if beside else rows


def loss_of(output: Tree, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A sum over those rows whose target is not too small, and their number."""
    rows, *beside = output if isinstance(output, tuple) else (output,)
    counts = (target > -1.5).double()
    total = ((rows - target).square() * counts).sum()
    return sum((one.square().sum() for one in beside), total), counts.sum()


@dataclass(eq=False)
class Member:
    """A worker: what it holds, and what it has of the iteration."""

    name: str
    held: HeldStage | None = None
    progress: IterationProgress | None = None
    losses: dict[int, tuple[float, float]] = field(default_factory=dict)  # told before the first sum

    def tell(self, run: Iteration) -> None:
        """Say what will be in sums."""
        self.losses = run.losses


class Job:
    """A model, a plan, and workers that run one iteration of it, some of whom die."""

    def __init__(
        self,
        seed: int,
        alike: bool,
        *,
        tied: bool = False,
        adds: bool = False,
        limit: bool = False,
        placement: Placement | None = None,
    ) -> None:
        self.rng = rng = Random(seed)
        torch.manual_seed(seed)
        self.depth = rng.randint(2, 6) if placement is None else sum(map(len, placement)) + rng.randint(0, 2)
        draws = rng.random() < 0.5
        self.layers = [Block(adds and rng.random() < 0.5, draws).double() for _ in range(self.depth)]
        if tied:
            self.layers[-1].linear.weight = self.layers[0].linear.weight
        self.ties, self.adds = ties_of(self.layers), adds
        self.limit_bytes = rng.choice((0, 200, 1000)) if limit else None
        self.names = 0
        self.plans: RandomPlans | PlacedPlans
        if placement is not None:
            self.plans = PlacedPlans(rng, self.depth, self.stage, placement, rng.choice(("FIW", "FB")))
        else:
            self.plans = RandomPlans(rng, self.depth, self.stage, self.order)
        dp, microbatches = rng.randint(2, 3), rng.randint(1, 3)
        self.total, self.together = dp * microbatches, rng.randint(1, 3)
        is_pair, is_named = rng.random() < 0.3, rng.random() < 0.3
        self.batch = [self.microbatch(is_pair, is_named) for _ in range(self.total)]
        self.samples = boundary_samples(self.layers, self.batch[0][0], self.batch[0][2])
        self.hosted = {number for number in range(self.total) if rng.random() < 0.2}
        if isinstance(self.plans, PlacedPlans):
            self.plans.begin(dp, microbatches)
        elif alike:
            self.plans.begin_alike(dp, microbatches)
        else:
            self.plans.begin_unlike(rng.randint(3, 6), self.total)
        self.crew = [self.member() for _ in self.plan.live_workers()]
        self.gone: list[Member] = []  # whose losses count, for what they are of is summed

    def microbatch(self, is_pair: bool, is_named: bool) -> tuple[Tree, torch.Tensor, Named]:
        """Inputs, of one tensor or two, a target, and what layers take by name."""
        rows, beside, target, shift = torch.randn(4, 2, WIDTH, dtype=torch.float64)
        return (rows, beside[0]) if is_pair else rows, target, {"shift": shift} if is_named else {}

    def member(self) -> Member:
        """Somebody who has nothing."""
        self.names += 1
        return Member(f"w{self.names}")

    def stage(self, layers: Layers) -> Stage:
        """A stage whose operations take a second a layer."""
        seconds = layers[1] - layers[0]
        return Stage(layers, seconds, seconds, seconds, optimizer_s=0.1)

    def order(self, own: Own, pipeline: int) -> str:
        """Some micro-batches after others, the same everywhere; of these all F, then I or B, and W at some time."""
        is_split, found, late = self.rng.random() < 0.7, list[str](), list[str]()
        for _, group in groupby(own, lambda one: one[1] // self.together):
            names = [f"{j}" if k == pipeline else f"{k}.{j}" for k, j in group]
            found += [f"F{name}" for name in names]
            for name in names:
                found.append(f"I{name}" if is_split else f"B{name}")
                late += [f"W{name}"] if is_split else []
                if late and self.rng.random() < 0.6:
                    found.append(late.pop(0))
        return " ".join([*found, *late])

    @property
    def plan(self) -> Plan:
        """The present one."""
        return self.plans.plan

    def build(self, worker: Worker) -> HeldStage:
        """The stage of a worker of the plan, as at the beginning."""
        first, *further = self.plan.layers_of(worker)
        held = HeldStage(
            copy.deepcopy(self.layers),
            first,
            loss_of,
            lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
            is_last=self.depth in (stop for _, stop in (first, *further)),
            ties=self.ties,
            clip_norm=0.5,
            further=further,
        )
        held.expect(self.batch[0][2])
        return held

    def rank(self, number: int, program: Program, held: HeldStage, turns: Turns) -> Rank:
        """What a worker of the plan executes its program with."""
        held.adapt(splits_backward(program.instructions[number]), self.hosted)
        return Rank(
            program,
            number,
            held,
            TurnTransport(turns, number),
            lambda boundary: like(self.samples[boundary]),
            lambda: 0.0,
            lambda span: None,
            seed=SEED,
            executing=lambda instruction: turns.pause(number),
            before_sums=self.crew[number].tell,
        )

    # An epoch

    def run(self, rest: Rest | None, turns: int | None = None, victims: Sequence[int] = ()) -> bool:
        """Run what is to be done; whether it came to its end."""
        ties = trained_together(self.ties)
        program = lower(self.plan, ties) if rest is None else lower_rest(self.plan, rest, ties)
        ranks = Turns(self.rng)
        bodies = [self.body(number, program, ranks) for number in range(len(self.crew))]
        return ranks.run(bodies, turns, victims, self.rng.randint(0, 20))

    def body(self, number: int, program: Program, turns: Turns) -> Callable[[], None]:
        """What a worker of the plan does in an epoch."""
        member, worker = self.crew[number], program.workers[number]

        def run() -> None:
            held = member.held
            if held is None or held.holds != self.plan.layers_of(worker):
                held = self.build(worker)
            if program.rest is None:
                held.reset()
                member.progress = IterationProgress(self.limit_bytes)
            elif member.progress is None:
                member.progress = IterationProgress(self.limit_bytes)
            rank = self.rank(number, program, held, turns)
            if program.rest is not None:
                SumTaker(program.rest, number, rank.transport).take(member.progress, held)
            member.held = held
            run = Iteration(rank, NUMBER, self.batch, member.progress)
            run.reduce()
            if self.rng.random() < 0.5:
                self.step_ahead(held)

        return run

    def step_ahead(self, held: HeldStage) -> None:
        """A worker that steps, begins the next iteration, and takes that back."""
        held.keep(with_sums=True)
        held.step(StepTerms(3.0, 1.0, 0))
        held.begin()
        inputs, target, named = self.batch[0]
        held.stage.forward("next", inputs, target if held.is_last else None, named=named)
        held.restore()

    # Deaths

    def lose(self, victims: Sequence[int]) -> list[Member] | None:
        """Who takes which place of the next plan; None: nobody can go on."""
        left = [one for number, one in enumerate(self.crew) if number not in victims]
        coming = [self.member() for _ in range(self.rng.choice((0, 0, 1, 2)))]
        held = {n for one in left if one.held is not None for n in one.held.numbers}
        return self.plans.follow(self.crew, victims, coming) if held == set(range(self.depth)) else None

    def go_on(self, crew: list[Member]) -> Rest | None:
        """What is left, planned from the standings; None: all."""
        ties = trained_together(self.ties)
        standings = tuple(self.standing(one, ties) for one in crew)
        assert [check_standing(self.depth, self.total, one) for one in standings] == [None] * len(crew)
        seats = tuple((one.name, worker.place) for one, worker in zip(crew, self.plan.live_workers(), strict=True))
        gone, self.crew = [one for one in self.crew if one not in crew], crew
        try:
            rest = plan_rest(self.plan, seats, NUMBER, standings, HEALTHY)
        except InfeasibleError:
            self.gone = []
            for one in crew:
                one.losses = {}
            return None
        assert not check_rest(self.plan, rest)
        self.gone += gone if any(stop == self.depth for _, stop in rest.sealed) else []
        return rest

    def standing(self, one: Member, ties: Sequence[tuple[int, ...]]) -> Standing:
        """What one has; a newcomer has nothing."""
        if one.held is None or one.progress is None:
            return Standing(one.name, None, ties=tuple(SharedLayers(tie) for tie in ties))
        return one.progress.standing(one.name, one.held, ties)


def live_through(job: Job, deaths: int) -> None:
    """Run an iteration with so many interruptions, and compare with one process."""
    rest = None
    for _ in range(deaths):
        victims = {job.rng.randrange(len(job.crew))}
        if job.rng.random() < 0.3:
            victims.add(job.rng.randrange(len(job.crew)))
        most = sum(map(len, lower(job.plan).instructions)) * 2
        if job.run(rest, job.rng.randint(0, most), tuple(victims)):
            break
        crew = job.lose(tuple(victims))
        if crew is None:
            return
        rest = job.go_on(crew)
    else:
        assert job.run(rest)
    compare(job)


def compare(job: Job) -> None:
    """All gradients are those of one process, all losses are told once, and all holders step alike."""
    whole = HeldStage(copy.deepcopy(job.layers), (0, job.depth), loss_of, lambda p: torch.optim.AdamW(p), is_last=True)
    whole.begin()
    wanted = torch.zeros(2, dtype=torch.float64)
    for number, (inputs, target, more) in enumerate(job.batch):
        seed = partial(seed_randomness, whole.device, SEED, NUMBER, number)
        wanted += whole.stage.forward(number, inputs, target, seed, more)
        whole.stage.backward(number)
    held = [one.held for one in job.crew if one.held is not None]
    for one in held:
        mine, other = named(one), named(whole)
        for name, parameter in mine.items():
            assert_close(parameter.grad, other[name].grad, name)
    told, outlived = (
        [(number, loss) for one in members for number, loss in one.losses.items() if loss[1] or not job.adds]
        for members in (job.crew, job.gone)
    )
    assert len(dict(told)) == len(told)
    counted = dict(outlived) | dict(told)
    assert sorted(counted) == list(range(job.total))
    assert math.fsum(count for _, count in counted.values()) == wanted[1].item()
    if not job.adds:
        assert math.fsum(total for total, _ in counted.values()) == pytest.approx(wanted[0].item(), rel=1e-13)
    for one in held:
        one.step(StepTerms(wanted[1].item() or 1.0, 2.0, 0))
    for layer in range(job.depth):
        assert len({one.checksums([layer])[layer] for one in held if layer in one.numbers}) == 1


def assert_close(found: torch.Tensor | None, wanted: torch.Tensor | None, name: str) -> None:
    """Two gradients differ by rounding alone."""
    assert found is not None
    assert wanted is not None
    scale = wanted.abs().max().clamp(min=1e-3)
    assert (found - wanted).abs().max() <= CLOSE * scale, name


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 3), st.booleans(), st.booleans(), st.booleans(), st.booleans())
@example(5567, 1, False, True, False, True)  # what layers share is summed elsewhere only, and some of them are let go
@example(1904, 2, True, True, False, True)  # of a split backward pass only W are left, and then it is broken off again
def test_nothing_is_lost_or_counted_twice(
    seed: int, deaths: int, alike: bool, tied: bool, adds: bool, limit: bool
) -> None:
    """Workers die at any moment, also amidst sums and copies, and others take over, in pipelines cut alike or not, with
    tied weights, dropout, losses of layers, and logs that are limited: gradients are those of one process to the last
    digits, every loss is told once, and all holders of a layer take the same step."""
    live_through(Job(seed, alike, tied=tied, adds=adds, limit=limit), deaths)


PLACEMENTS = [folded(2, 2), looped(2, 2), folded(3, 2), looped(2, 3), ((0, 4), (1, 3), (2,)), ((0, 1), (2, 3))]


@settings(max_examples=12)
@given(
    st.integers(0, 2**32), st.integers(1, 3), st.sampled_from(PLACEMENTS), st.booleans(), st.booleans(), st.booleans()
)
def test_nothing_of_several_stages_is_lost_or_counted_twice(
    seed: int, deaths: int, placement: Placement, tied: bool, adds: bool, limit: bool
) -> None:
    """The same where workers hold several virtual stages, of which chunks go to different peers."""
    live_through(Job(seed, True, tied=tied, adds=adds, limit=limit, placement=placement), deaths)


def named(held: HeldStage) -> dict[str, nn.Parameter]:
    """Parameters by their layers in the model."""
    return {
        f"{held.numbers[place]}.{name}": parameter
        for place, layer in enumerate(held.stage.layers)
        for name, parameter in layer.named_parameters()
    }
