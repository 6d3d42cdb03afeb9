"""A resilient worker, its parts in a test's hands: a small model, and a job of workers that are threads."""

import copy
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import nn

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.resumption.plan import plan_rest
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.presets import GptConfig
from rtk.runners.resilience.announcements import Announcement
from rtk.runners.resilience.link import CoordinatorLink
from rtk.runners.resilience.protocol import Hello, Job, Returning
from rtk.runners.resilience.rules import CoordinatorRules
from rtk.runners.resilience.server import Finished, Limits, Server, Surroundings
from rtk.runners.torch.rendezvous import MeetingPlace
from rtk.runners.torch.resilient import ResilientWorker
from rtk.runners.torch.task import Task
from rtk.schemas.conditions import Conditions
from rtk.schemas.documents import digest
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.orders import Schedule
from rtk.schemas.plan import Place, Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.protocols import Hand, Replan, Replanned

from .newcomers import with_newcomers

BLOCKS = 4
# Workers here are threads: who dies closes its connection, and who is silent waits for a busy machine.
SILENT_S = 60.0
SECRET = b"a secret for one test only"
Microbatch = tuple[torch.Tensor, torch.Tensor]
Batches = Callable[[int], Sequence[Microbatch]]


def profile(seconds: float = 1.0, state_bytes: float = 0.0) -> Profile:
    """Of the model below."""
    cost = LayerCost(seconds, seconds, seconds)
    layer = Layer((cost,), activation_bytes=2, weight_stash_bytes=1, state_bytes=state_bytes)
    return Profile((layer,) * (BLOCKS + 2))


def plan_of(pp: int, dp: int, microbatches: int, schedule: Schedule = "1f1b", staggered: bool = False) -> Plan:
    """A classic schedule, with either optimizer."""
    plan = plan_pipeline(profile(), Shape(pp, dp, microbatches), schedule)
    return replace(plan, optimizer="staggered", prediction=None) if staggered else plan


@cache
def _made() -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return list(gpt_layers(GptConfig(blocks=BLOCKS, width=32, heads=2, vocabulary=64, positions=16)))


def layers() -> list[nn.Module]:
    """The model's, the same at every call; workers that are threads share the generator that made them."""
    return copy.deepcopy(_made())


def batches(microbatches: int) -> Batches:
    """Random tokens, the same for the same iteration."""

    def batch(iteration: int) -> list[Microbatch]:
        generator = torch.Generator().manual_seed(iteration)
        tokens = torch.randint(0, 64, (microbatches, 2, 17), generator=generator)
        return [(rows[:, :-1], rows[:, 1:]) for rows in tokens]

    return batch


def single_process(iterations: int, microbatches: int, skip: Sequence[int] = ()) -> list[float]:
    """The reference: the losses of all micro-batches one after the other through the whole model, then AdamW."""
    whole = nn.Sequential(*layers())
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-4)
    losses = []
    for iteration in range(iterations):
        optimizer.zero_grad()
        total = 0.0
        for inputs, targets in batches(microbatches)(iteration):
            loss = language_model_loss(whole(inputs), targets) / microbatches
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        losses.append(total)
        if iteration not in skip:
            optimizer.step()
    return losses


def task_of(plan: Plan, name: str, batch: Batches, loss: Any = language_model_loss) -> Task:
    """What a worker trains."""
    return Task(name, plan, layers, loss, lambda ones: torch.optim.AdamW(ones, lr=1e-4), batch, {"lr": 1e-4}, SECRET)


def nobody_plans(plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
    """Stands in where nothing is to be planned."""
    raise InfeasibleError("nobody plans here")


class Died(BaseException):
    """Ends a worker's thread as a signal would end its process."""


@dataclass
class ThreadJob:
    """A real coordinator and real workers, all threads of this process; workers die where the data are to blame.

    Attributes:
        plan: what they are started with.
        job: what the coordinator is to do.
        replan: its planner.
        deaths: (worker, iteration): it dies when it asks for the data of the iteration, or of a later one, once.
        loss: of a micro-batch.
        changes: to the workers' tasks.
    """

    plan: Plan
    job: Job
    replan: Replan = nobody_plans
    deaths: set[tuple[str, int]] = field(default_factory=set)
    loss: Any = language_model_loss
    changes: dict[str, Any] = field(default_factory=dict)
    said: list[dict[str, Any]] = field(default_factory=list)
    workers: dict[str, ResilientWorker] = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Workers that are threads would otherwise each start as many threads again.
        torch.set_num_threads(1)
        layers()
        self._changed = threading.Condition()
        around = Surroundings(make_plan=self.replan, resume=plan_rest, announce=self._hear)
        limits = Limits(heartbeat_s=SILENT_S)
        self.server = Server(CoordinatorRules(self.job), None, SECRET, around, limits=limits)
        self._leading = threading.Thread(target=self._lead, name="coordinator's", daemon=True)
        self._threads: list[threading.Thread] = []
        self._finished: Finished | None = None

    def run(self, timeout_s: float = 60.0) -> Finished:
        """The job from its beginning to its end."""
        self.begin()
        return self.finish(timeout_s)

    def finish(self, timeout_s: float = 60.0) -> Finished:
        """Wait for the end of a job that has begun: of the coordinator, and of all workers."""
        self._leading.join(timeout_s)
        assert not self._leading.is_alive(), f"the job hangs; last: {self.said[-5:]}"
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads), "a worker hangs"
        if self.failures:
            raise self.failures[0]
        assert self._finished is not None
        return self._finished

    def begin(self) -> None:
        """Start everybody."""
        self._leading.start()
        for worker in self.plan.live_workers():
            self.start(worker.name)

    def start(self, name: str, not_before: int = 0) -> None:
        """Start a worker, or its replacement."""
        arguments = (name, not_before)
        self._threads.append(threading.Thread(target=self._work, args=arguments, name=f"worker {name}", daemon=True))
        self._threads[-1].start()

    def losses(self) -> list[float | None]:
        """The loss of every committed iteration."""
        return [one["loss"] for one in self.said if one["event"] == "iteration"]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What was announced of a kind."""
        return [one for one in self.said if one["event"] == kind]

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], timeout_s: float = 60.0) -> None:
        """Wait for an announcement."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(wanted, self.said)), timeout_s), self.said[-5:]

    def wait_for_epoch(self, number: int) -> None:
        """Wait until an iteration of an epoch, or of a later one, is committed."""
        self.wait_for(lambda one: one["event"] == "iteration" and one["epoch"] >= number)

    def checksums(self) -> dict[int, set[str]]:
        """Of each layer's states that workers hold in the end: one, where all who hold it agree."""
        found: dict[int, set[str]] = {}
        for worker in self.workers.values():
            for layer, sha256 in worker.held.checksums().items():
                found.setdefault(layer, set()).add(sha256)
        return found

    def _work(self, name: str, not_before: int) -> None:
        microbatches = batches(self.plan.total_microbatches())

        def batch(iteration: int) -> Sequence[Microbatch]:
            for death in [one for one in self.deaths if one[0] == name and one[1] <= iteration]:
                self.deaths.remove(death)
                raise Died
            return microbatches(iteration)

        link: CoordinatorLink | None = None
        meeting = MeetingPlace(SECRET)
        try:
            task = replace(task_of(self.plan, name, microbatches, self.loss), batch=batch, **self.changes)
            worker = ResilientWorker(task)

            def hello(proof: str, returning: Returning | None) -> Hello:
                evaluates = task.evaluation is not None
                known = (1, not_before, returning)
                address = meeting.address
                job = {"shard_optimizer": True} if task.shard_optimizer else {}
                return Hello(proof, name, address, digest(self.plan), job, *known, evaluates=evaluates, regroups=True)

            link = CoordinatorLink(
                [self.server.address],
                SECRET,
                hello,
                patience_s=30,
                on_interrupt=worker.announce,
                on_inquiry=worker.answer,
            )
            welcome = link.start()
            self.workers[name] = worker
            worker.run(link, welcome)
            self.workers[name] = worker  # who waits to replace another has had its name all the while
        except Died:
            if self.workers.get(name) is worker:
                del self.workers[name]
        except BaseException as error:
            self.failures.append(error)
        finally:
            if link is not None:
                link.close()
            meeting.close()

    def _lead(self) -> None:
        try:
            self._finished = self.server.run()
        except BaseException as error:
            self.failures.append(error)

    def _hear(self, what: Announcement) -> None:
        with self._changed:
            self.said.append({**what.as_json(), "at_s": time.perf_counter()})
            self._changed.notify_all()


def replan_with(
    plan: Plan, make: Callable[[frozenset[Place], bool], tuple[Plan, tuple[tuple[Place, Place], ...]]]
) -> Replan:
    """A coordinator's planner out of one that thinks in failed places of a plan and in moves."""
    places = [(worker.pipeline, worker.stage) for worker in plan.workers]

    def replan(plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
        seats = with_newcomers(crew, places)
        may_move = all(hand.place is not None for hand in crew)
        found, moves = make(frozenset(places).difference(seats), may_move)
        return Replanned(found, tuple((name, dict(moves).get(place, place)) for place, name in seats.items()))

    return replan
