"""What is left of an iteration is planned so that every layer sees every micro-batch once, whoever was lost."""

from __future__ import annotations

from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rtk.planners.resumption.plan import plan_rest
from rtk.schemas.check_rest import check_rest
from rtk.schemas.conditions import HEALTHY
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.plan import Layers, Placement, Plan, Stage, place_of
from rtk.schemas.resumption import Rest, RestOperation

from ..placed_plans import folded, looped
from ..random_plans import Own, PlacedPlans, RandomPlans
from ..rests import rests
from .toy_iteration import ToyEpoch, ToyModel, ToyWorker, check_done, stages_of, take_over


class Job:
    """A toy job: a plan, who is where, and random losses; with a placement where pipelines are cut alike."""

    def __init__(self, seed: int, alike: bool, ties: bool, placement: Placement | None = None) -> None:
        self.rng = rng = Random(seed)
        self.alike, self.is_placed = alike, placement is not None
        layers = rng.randint(3, 9) if placement is None else sum(map(len, placement)) + rng.randint(0, 3)
        self.model = ToyModel(layers, ((0, layers - 1),) if ties else ())
        self.splits = rng.random() < 0.7
        self.limit = rng.random() < 0.3
        delay_s, dp, microbatches = rng.choice((0.0, 0.0, 0.3)), rng.randint(2, 4), rng.randint(2, 4)
        self.total = dp * microbatches
        self.plans: RandomPlans | PlacedPlans
        if placement is not None:
            limit_bytes = rng.choice((9.0, 18.0)) if self.limit else None
            kinds = "FIW" if self.splits else "FB"
            self.plans = PlacedPlans(
                rng, layers, self.stage, placement, kinds, delay_s=delay_s, limit_bytes=limit_bytes
            )
        else:
            self.plans = RandomPlans(rng, layers, self.stage, self.order, delay_s=delay_s, leaves_out=0.2)
        if isinstance(self.plans, PlacedPlans):
            self.plans.begin(dp, microbatches)
        elif alike:
            self.plans.begin_alike(dp, microbatches)
        else:
            self.plans.begin_unlike(rng.randint(4, 8), self.total)
        self.names = 0
        self.workers = [self.newcomer() for _ in self.plan.live_workers()]
        for worker, who in zip(self.plan.live_workers(), self.workers, strict=True):
            who.stages = stages_of(self.plan, worker)
            who.splits = self.splits

    @property
    def plan(self) -> Plan:
        """The present one."""
        return self.plans.plan

    def newcomer(self) -> ToyWorker:
        """Somebody who has nothing."""
        self.names += 1
        return ToyWorker(f"w{self.names}")

    def stage(self, layers: Layers) -> Stage:
        """A stage whose layers take random times."""
        rng, count = self.rng, layers[1] - layers[0]
        return Stage(
            layers=layers,
            forward_s=count * rng.choice((1.0, 1.5)),
            backward_input_s=count * rng.choice((1.0, 1.5)),
            backward_weight_s=count * rng.choice((0.5, 1.0)),
            allreduce_s=rng.choice((0.0, 0.5)),
            optimizer_s=rng.choice((0.0, 0.25)),
            activation_bytes=3.0,
            weight_stash_bytes=1.0,
            memory_limit_bytes=rng.choice((3.0, 6.0, 9.0)) if self.limit and not self.is_placed else None,
        )

    def order(self, own: Own, pipeline: int) -> str:
        """All F, then the rest of each; with a limit of memory one after the other."""
        names = [f"{j}" if k == pipeline else f"{k}.{j}" for k, j in own]
        ends = [f"I{name} W{name}" if self.splits else f"B{name}" for name in names]
        if self.limit:
            return " ".join(f"F{name} {end}" for name, end in zip(names, ends, strict=True))
        return " ".join([*(f"F{name}" for name in names), *ends])

    def first_epoch(self) -> ToyEpoch:
        """All of the iteration."""
        for who in self.workers:
            who.clear()
        orders = [
            [RestOperation(one, self.plan.stage_at(worker, one).layers) for one in worker.operations()]
            for worker in self.plan.live_workers()
        ]
        return ToyEpoch(self.model, self.plan, self.workers, orders, (), self.rng)

    def lose(self) -> list[ToyWorker] | None:
        """Somebody dies, others come; gives who takes which place of the next plan, None: nobody can go on."""
        rng, live = self.rng, len(self.workers)
        victims = {rng.randrange(live)}
        if rng.random() < 0.4:  # a neighbour
            victims.add(min(max(0, min(victims) + rng.choice((-1, 1))), live - 1))
        survivors = [who for number, who in enumerate(self.workers) if number not in victims]
        coming = [self.newcomer() for _ in range(rng.choice((0, 0, 1, 2)))]
        held = {layer for who in survivors for layer in who.held}
        # Nobody may copy the state of a stage whose holders are all new.
        if not survivors or (self.alike and len(held) < self.model.layers):
            return None
        return self.plans.follow(self.workers, victims, coming)

    def forget_messages(self) -> None:
        """Logs are limited: some have lost some."""
        share = self.rng.choice((0.0, 0.0, 0.2, 0.6, 1.0))
        for who in self.workers:
            who.log = {message: value for message, value in who.log.items() if self.rng.random() >= share}


def live_through(job: Job, deaths: int) -> None:
    """Run an iteration with deaths."""
    epoch = job.first_epoch()
    for _ in range(deaths):
        steps = job.rng.randint(
            0, 1 + int(1.3 * sum(map(len, epoch.orders)) + len(epoch.coming) + 3 * len(epoch.parts))
        )
        if epoch.run(steps):
            break
        job.forget_messages()
        crew = job.lose()
        if crew is None:
            return
        names = {who.name for who in crew}
        others = [who for who in job.workers if who.name not in names]
        standings = tuple(who.standing(job.model) for who in (*crew, *others[:1]))
        job.workers = crew
        seats = tuple((who.name, worker.place) for who, worker in zip(crew, job.plan.live_workers(), strict=True))
        for who in crew:
            if not who.stages:
                who.splits = job.splits
        try:
            rest = plan_rest(job.plan, seats, 3, standings, HEALTHY)
        except InfeasibleError:
            for worker, who in zip(job.plan.live_workers(), crew, strict=True):
                who.stages = stages_of(job.plan, worker)
            epoch = job.first_epoch()
            continue
        assert check_rest(job.plan, rest) == []
        take_over(job.plan, rest, crew)
        orders = [rest.operations(number, job.plan) for number in range(len(crew))]
        epoch = ToyEpoch(job.model, job.plan, crew, orders, rest.sealed, job.rng)
        epoch.resend(rest)
    assert epoch.run()
    check_done(job.model, job.workers, job.total)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans())
def test_pipelines_cut_alike_go_on_with_every_sum_right(seed: int, deaths: int, ties: bool) -> None:
    """Whoever dies at whatever moment, every layer sees every micro-batch once, and all sums are right."""
    live_through(Job(seed, alike=True, ties=ties), deaths)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans())
@example(830, 2, False)  # a survivor has more under way than its next place's limit
@example(851, 4, True)  # sealed layers lie between those of one worker; nobody waits for their sums
def test_pipelines_cut_unlike_go_on_with_every_sum_right(seed: int, deaths: int, ties: bool) -> None:
    """The same where survivors and newcomers form other pipelines, cut elsewhere."""
    live_through(Job(seed, alike=False, ties=ties), deaths)


PLACEMENTS = [folded(2, 2), looped(2, 2), folded(3, 2), looped(2, 3), ((0, 4), (1, 3), (2,)), ((0, 1), (2, 3))]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from(PLACEMENTS), st.booleans())
def test_workers_of_several_stages_go_on_with_every_sum_right(
    seed: int, deaths: int, placement: Placement, ties: bool
) -> None:
    """The same where workers hold several virtual stages, whose chunks go to different peers."""
    live_through(Job(seed, alike=True, ties=ties, placement=placement), deaths)


def has_nothing_twice(rest: Rest) -> bool:
    """Whether no two workers say that they have the same micro-batch in their parts of a sum."""
    entries = [entry for standing in rest.standings for entry in standing.ledger]
    cells = [(layer, m) for entry in entries for layer in range(*entry.layers) for m in entry.microbatches]
    return len(cells) == len(set(cells))


@settings(max_examples=30, deadline=None)
@given(rests(has_nothing_twice))
def test_any_standings_have_a_plan_that_passes(drawn: tuple[Plan, Rest]) -> None:
    """Whoever holds whatever layers, in one range or several, and has anything of them: what is planned is valid."""
    plan, rest = drawn
    seats = tuple((one.worker, place_of(one.place)) for one in rest.workers)
    try:
        found = plan_rest(plan, seats, rest.iteration, rest.standings, HEALTHY)
    except InfeasibleError as error:
        assert "as quick" in error.what
    else:
        assert check_rest(plan, found) == []
