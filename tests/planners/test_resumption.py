"""What is left of an iteration is planned so that every layer sees every micro-batch once, whoever was lost."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.resumption.plan import plan_rest
from rtk.schemas.check_rest import check_rest
from rtk.schemas.conditions import HEALTHY
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.plan import Link, Pipeline, Plan, Planner, Stage, Template, Worker
from rtk.schemas.resumption import RestOperation
from rtk.tests.planners.toy_iteration import ToyEpoch, ToyModel, ToyWorker, check_done, take_over


def stages_of(cuts: list[int], rng: Random, limit: bool) -> tuple[Stage, ...]:
    """Stages between cuts, whose layers take random times."""
    return tuple(
        Stage(
            layers=(first, stop),
            forward_s=(stop - first) * rng.choice((1.0, 1.5)),
            backward_input_s=(stop - first) * rng.choice((1.0, 1.5)),
            backward_weight_s=(stop - first) * rng.choice((0.5, 1.0)),
            allreduce_s=rng.choice((0.0, 0.5)),
            optimizer_s=rng.choice((0.0, 0.25)),
            activation_bytes=3.0,
            weight_stash_bytes=1.0,
            memory_limit_bytes=rng.choice((3.0, 6.0, 9.0)) if limit else None,
        )
        for first, stop in pairwise(cuts)
    )


def order_of(own: list[tuple[int, int]], pipeline: int, splits: bool, limit: bool) -> str:
    """All F, then the rest of each; with a limit of memory one after the other."""
    names = [f"{j}" if k == pipeline else f"{k}.{j}" for k, j in own]
    ends = [f"I{name} W{name}" if splits else f"B{name}" for name in names]
    if limit:
        return " ".join(f"F{name} {end}" for name, end in zip(names, ends, strict=True))
    return " ".join([*(f"F{name}" for name in names), *ends])


class Job:
    """A toy job: a plan, who is where, and random losses."""

    def __init__(self, seed: int, alike: bool, ties: bool) -> None:
        self.rng = rng = Random(seed)
        self.alike = alike
        layers = rng.randint(3, 9)
        self.model = ToyModel(layers, ((0, layers - 1),) if ties else ())
        self.splits = rng.random() < 0.7
        self.limit = rng.random() < 0.3
        self.microbatches = rng.randint(2, 4)
        self.delay_s = rng.choice((0.0, 0.0, 0.3))
        if alike:
            self.template = self._template("all")
            self.dead: set[tuple[int, int]] = set()
        self.dp = rng.randint(2, 4)
        self.total = self.dp * self.microbatches
        self.names = 0
        self.plan = self._plan_alike() if alike else self._plan_unlike(rng.randint(4, 8))
        self.workers = [self._new() for _ in self.plan.live_workers()]
        for worker, who in zip(self.plan.live_workers(), self.workers, strict=True):
            who.layers = self.plan.stage_of(worker).layers
            who.splits = self.splits

    def _new(self) -> ToyWorker:
        self.names += 1
        return ToyWorker(f"w{self.names}", None)

    def _template(self, name: str, most: int = 4) -> Template:
        layers = self.model.layers
        stages = self.rng.randint(1 if not self.alike else 2, min(most, layers))
        cuts = [0, *sorted(self.rng.sample(range(1, layers), stages - 1)), layers]
        return Template(
            name, stages_of(cuts, self.rng, self.limit), tuple(Link(self.delay_s) for _ in range(stages - 1))
        )

    def _plan_alike(self) -> Plan:
        stages = len(self.template.stages)
        orders = {}
        for i in range(stages):
            live = [k for k in range(self.dp) if (k, i) not in self.dead]
            own: dict[int, list[tuple[int, int]]] = {k: [] for k in live}
            turn = 0
            for j in range(self.microbatches):
                for k in range(self.dp):
                    if k in own:
                        own[k].append((k, j))
                    else:
                        own[live[turn % len(live)]].append((k, j))
                        turn += 1
            for k in live:
                orders[k, i] = order_of(own[k], k, self.splits, self.limit)
        workers = tuple(
            Worker(k, i, orders[k, i]) if (k, i) in orders else Worker(k, i, failed=True)
            for k in range(self.dp)
            for i in range(stages)
        )
        pipelines = tuple(Pipeline("all", self.microbatches) for _ in range(self.dp))
        return Plan(Planner("toy", "0", {}), (self.template,), pipelines, "synchronous", workers)

    def _plan_unlike(self, count: int) -> Plan:
        """Pipelines of so many workers at most."""
        templates: list[Template] = []
        while count > 0:
            templates.append(self._template(f"t{len(templates)}", min(4, count)))
            count -= len(templates[-1].stages)
            if self.rng.random() < 0.2 and len(templates) > 1:
                break
        shares = [self.total // len(templates)] * len(templates)
        for k in range(self.total - sum(shares)):
            shares[k] += 1
        if min(shares) == 0:
            templates, shares = templates[:1], [self.total]
        pipelines = tuple(Pipeline(one.name, share) for one, share in zip(templates, shares, strict=True))
        workers = tuple(
            Worker(k, i, order_of([(k, j) for j in range(shares[k])], k, self.splits, self.limit))
            for k, template in enumerate(templates)
            for i in range(len(template.stages))
        )
        return Plan(Planner("toy", "0", {}), tuple(templates), pipelines, "synchronous", workers)

    def first_epoch(self) -> ToyEpoch:
        """All of the iteration."""
        for who in self.workers:
            who.clear()
        orders = [
            [RestOperation(one, self.plan.stage_of(worker).layers) for one in worker.operations()]
            for worker in self.plan.live_workers()
        ]
        return ToyEpoch(self.model, self.plan, self.workers, orders, (), self.rng)

    def lose(self) -> list[ToyWorker] | None:
        """Somebody dies, others come; gives who takes which place of the next plan, None: nobody can go on."""
        rng = self.rng
        live = list(self.plan.live_workers())
        victims = {rng.randrange(len(live))}
        if rng.random() < 0.4:  # a neighbour
            victims.add(min(max(0, min(victims) + rng.choice((-1, 1))), len(live) - 1))
        survivors = [who for number, who in enumerate(self.workers) if number not in victims]
        newcomers = [self._new() for _ in range(rng.choice((0, 0, 1, 2)))]
        if not self.alike:
            crew = [*survivors, *newcomers]
            if not survivors:
                return None
            self.plan = self._plan_unlike(len(crew))
            rng.shuffle(crew)
            return crew[: len(self.plan.live_workers())]
        seats = {live[number].place: who for number, who in enumerate(self.workers) if number not in victims}
        places = [(k, i) for k in range(self.dp) for i in range(len(self.template.stages))]
        for place in places:
            if place not in seats and newcomers:
                seats[place] = newcomers.pop()
        self.dead = set(places) - set(seats)
        if any(all((k, i) in self.dead for k in range(self.dp)) for i in range(len(self.template.stages))):
            return None
        # Nobody may copy the state of a stage whose holders are all new.
        for i in range(len(self.template.stages)):
            if all(seats[k, i].layers is None for k in range(self.dp) if (k, i) in seats):
                return None
        self.plan = self._plan_alike()
        return [seats[worker.place] for worker in self.plan.live_workers()]

    def forget_messages(self) -> None:
        """Logs are limited: some have lost some."""
        share = self.rng.choice((0.0, 0.0, 0.2, 0.6, 1.0))
        for who in self.workers:
            who.log = {message: value for message, value in who.log.items() if self.rng.random() >= share}


def live_through(job: Job, deaths: int) -> tuple[int, int]:
    """Run an iteration with deaths; gives how many rests there were, and how often all was done again."""
    epoch, rests, redone = job.first_epoch(), 0, 0
    for _ in range(deaths):
        steps = job.rng.randint(
            0, 1 + int(1.3 * sum(map(len, epoch.orders)) + len(epoch.coming) + 3 * len(epoch.parts))
        )
        if epoch.run(steps):
            break
        job.forget_messages()
        crew = job.lose()
        if crew is None:
            return rests, redone
        names = {who.name for who in crew}
        others = [who for who in job.workers if who.name not in names]
        standings = tuple(who.standing(job.model) for who in (*crew, *others[:1]))
        job.workers = crew
        seats = tuple((who.name, worker.place) for who, worker in zip(crew, job.plan.live_workers(), strict=True))
        for who in crew:
            if who.layers is None:
                who.splits = job.splits
        try:
            rest = plan_rest(job.plan, seats, 3, standings, HEALTHY)
        except InfeasibleError:
            redone += 1
            for worker, who in zip(job.plan.live_workers(), crew, strict=True):
                who.layers = job.plan.stage_of(worker).layers
            epoch = job.first_epoch()
            continue
        rests += 1
        assert check_rest(job.plan, rest) == []
        take_over(job.model, job.plan, rest, crew)
        orders = [rest.operations(number, job.plan) for number in range(len(crew))]
        epoch = ToyEpoch(job.model, job.plan, crew, orders, rest.sealed, job.rng)
        epoch.resend(rest)
    assert epoch.run()
    check_done(job.model, job.workers, job.total)
    return rests, redone


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans())
def test_pipelines_cut_alike_go_on_with_every_sum_right(seed: int, deaths: int, ties: bool) -> None:
    """Whoever dies at whatever moment, every layer sees every micro-batch once, and all sums are right."""
    live_through(Job(seed, alike=True, ties=ties), deaths)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans())
def test_pipelines_cut_unlike_go_on_with_every_sum_right(seed: int, deaths: int, ties: bool) -> None:
    """The same where survivors and newcomers form other pipelines, cut elsewhere."""
    live_through(Job(seed, alike=False, ties=ties), deaths)
