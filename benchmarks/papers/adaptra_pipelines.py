"""How messages of the systems without delegates pass a slow link: by NCCL, as the artifact's injector slows it.

The injector (failslow_injection.cu) puts a kernel that sleeps before each send over a slow link, into the stream that
sends. What then waits for it depends on how the framework sends:

* Megatron's 1F1B exchanges what goes forth and what comes back in one call, and waits for both: a send holds its
  sender. In these calls the injector knows receivers by their number among all stages, and takes numbers 0 and 1 for
  the neighbours before and after. So stage 2's sends to stage 1 are slowed when the link to stage 3 is slow, and not
  when the link to stage 1 is.
* Zero-bubble's runtime sends one message at a time: a pair of neighbours has one stream, which carries what goes forth
  and what comes back in the order in which the schedule, undelayed, has them. Messages that the schedule has at the
  same moment pass together, or one first; both are in the artifact's logs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate, groupby
from math import ceil
from typing import TYPE_CHECKING, Literal

from ...planners.adaptra.plan import ROUNDING, algorithm_2
from ...planners.scheduling.list_schedule import most_in_flight
from ...planners.scheduling.problem import BACKWARD, FORWARD, KINDS, WEIGHT
from ...schemas.plan import Link, Stage

if TYPE_CHECKING:
    from ...planners.shape import Shape
    from ...runners.program import Message, Program
    from ...runners.simulator import Simulation
    from ...schemas.plan import Plan
    from ...schemas.profile import Profile


Delays = Mapping[int, float]  # seconds by link; link i lies between stages i and i + 1
Way = Literal["together", "forth first", "back first"]  # of messages that an undelayed schedule has at one moment
Turns = Mapping[int, list[tuple["Message", ...]]]  # by link, which messages pass at once, in their order


def exchanging_s(plan: Plan, delays_s: Delays, misdirects: bool = True) -> float:
    """An iteration of 1F1B where every send holds its sender for the delay, in s.

    Args:
        plan: of 1F1B.
        delays_s: of links.
        misdirects: whether the injector mistakes stage 2's sends to stage 1.
    """
    from ...runners.program import Send, lower, pairs_of
    from ...runners.simulator import execute

    program = lower(plan)
    delayed = replace(
        program,
        instructions=tuple(
            tuple(
                replace(one, delay_s=delays_s.get(_link(rank, one.to, misdirects), 0.0))
                if isinstance(one, Send)
                else one
                for one in instructions
            )
            for rank, instructions in enumerate(program.instructions)
        ),
    )
    return max(execute(delayed, direct=pairs_of(delayed)).done_s)


def _link(sender: int, receiver: int, misdirects: bool) -> int:
    """The link that the injector takes a send of Megatron's for."""
    return sender if misdirects and (sender, receiver) == (2, 1) else min(sender, receiver)


def passing_s(schedule: Plan, plan: Plan, delays_s: Delays, way: Way) -> float:
    """An iteration of zero-bubble's runtime, in s.

    Args:
        schedule: whose moments order the messages of a link.
        plan: the same orders with the times that operations take.
        delays_s: of links.
        way: how messages pass that the schedule has at the same moment.
    """
    from ...runners.program import lower

    return _Passing(lower(plan), _turns(lower(schedule), way), delays_s).run()


def _turns(schedule: Program, way: Way) -> Turns:
    from ...runners.simulator import execute

    first = "gradient" if way == "back first" else "activation"
    due_s = {message: round(at_s, 9) for message, at_s in execute(schedule).traffic.handed_s.items()}
    ordered = sorted(due_s, key=lambda one: (one.link, due_s[one], one.kind != first, one.microbatch))
    turns: dict[int, list[tuple[Message, ...]]] = {}
    for (link, _), group in groupby(ordered, key=lambda one: (one.link, due_s[one])):
        messages = tuple(group)
        turns.setdefault(link, []).extend([messages] if way == "together" else [(one,) for one in messages])
    return turns


@dataclass
class _Passing:
    """An iteration under way: how far each worker and each link has come, in s."""

    program: Program
    turns: Turns
    delays_s: Delays
    handed_s: dict[Message, float] = field(default_factory=dict)
    arrived_s: dict[Message, float] = field(default_factory=dict)

    def run(self) -> float:
        """Let workers and links go on in turn until all is done; orders are fixed, so only times are to be found."""
        workers = [0.0] * len(self.program.workers)
        places = [0] * len(workers)
        links = dict.fromkeys(self.turns, 0.0)
        passed = dict.fromkeys(self.turns, 0)
        goes_on = True
        while goes_on:
            goes_on = False
            for rank, place in enumerate(places):
                workers[rank], places[rank] = self._work(rank, place, workers[rank])
                goes_on |= places[rank] > place
            for link, turn in passed.items():
                links[link], passed[link] = self._pass(link, turn, links[link])
                goes_on |= passed[link] > turn
        assert places == [len(one) for one in self.program.instructions]
        return max(workers)

    def _work(self, rank: int, place: int, now_s: float) -> tuple[float, int]:
        """A worker's time and place once it waits for a message, or is done."""
        from ...runners.program import Compute, Receive, Send

        instructions = self.program.instructions[rank]
        stage = self.program.plan.stage_of(self.program.workers[rank])
        while place < len(instructions):
            match instructions[place]:
                case Compute(operation):
                    now_s += stage.duration_s(operation.kind)
                case Send(message):
                    self.handed_s[message] = now_s
                case Receive(message):
                    if message not in self.arrived_s:
                        break
                    now_s = max(now_s, self.arrived_s[message])
                case _:  # there are no peers to sum gradients with, and no step is timed
                    pass
            place += 1
        return now_s, place

    def _pass(self, link: int, turn: int, free_s: float) -> tuple[float, int]:
        """A link's time and turn once the messages of its turn are not all handed over."""
        while turn < len(self.turns[link]) and all(one in self.handed_s for one in self.turns[link][turn]):
            messages = self.turns[link][turn]
            free_s = max(free_s, *(self.handed_s[one] for one in messages)) + self.delays_s.get(link, 0.0)
            self.arrived_s.update(dict.fromkeys(messages, free_s))
            turn += 1
        return free_s, turn


# Adaptra's jobs as its authors ran them: stages, micro-batches, times, and orders of the systems compared.
#
# The paper prints neither micro-batches nor times. The authors' artifact (github.com/wutianyuan1/PipeMorph, the
# system's later name) has both: its launch scripts say how many micro-batches, its profiles how long operations take,
# its logs how long iterations take where nothing is slow. Of its logs of slow iterations, which the figures were drawn
# from, no number is used; they only tell in which way messages pass (adaptra_pipelines.py).


System = Literal["1F1B", "ZB", "Adaptra-CPU", "Adaptra"]
SYSTEMS: tuple[System, ...] = ("1F1B", "ZB", "Adaptra-CPU", "Adaptra")
IN_TURN: tuple[Way, ...] = ("forth first", "back first")

EQUAL_S = (0.01, 0.01, 0.01)  # for operations of 10 ms the artifact's generator makes the orders of ZB
# By how much a delegated message comes later: fitted to figure 14's 579 ms, and to nothing else.
DELEGATED_S = 0.0034
DELEGATED = ("how much later a delegated message comes",)


@dataclass(frozen=True, slots=True)
class Setting:
    """A pipeline of equal stages.

    Attributes:
        stages: how many.
        microbatches: how many pass.
        times_s: of F, I and W of each stage, in s (the paper's F, B and W).
    """

    stages: int
    microbatches: int
    times_s: tuple[float, float, float]

    @property
    def last(self) -> int:
        """The last link."""
        return self.stages - 2


@dataclass(frozen=True, slots=True)
class Job:
    """A job whose iterations were timed.

    Attributes:
        setting: its pipeline.
        undelayed_s: of an iteration where nothing is slow, measured: 1F1B, ZB, and ZB by delegates only. What this is
            above the simulated pipeline (the optimizer, gaps between kernels) is added to whatever is simulated.
    """

    setting: Setting
    undelayed_s: tuple[float, float, float]

    def undelayed(self, system: System) -> float:
        """Of a system, in s."""
        return self.undelayed_s[min(SYSTEMS.index(system), 2)]


def _job(stages: int, times_ms: tuple[float, float, float], undelayed_ms: tuple[float, float, float]) -> Job:
    """A job of the artifact: its scripts give each pipeline three micro-batches a stage."""
    forward_s, input_s, weight_s = (one / 1000 for one in times_ms)
    first_s, second_s, third_s = (one / 1000 for one in undelayed_ms)
    return Job(Setting(stages, 3 * stages, (forward_s, input_s, weight_s)), (first_s, second_s, third_s))


# Times: means over stages of what the artifact's profiler saw (its simu.txt, in whole ms). Iterations: its times.txt.
JOBS = {
    "7B": _job(4, (9.0, 9.75, 5.75), (421.68, 394.0, 435.4)),
    "14B": _job(8, (9.25, 10.125, 5.875), (862.08, 767.0, 787.16)),
    "30B": _job(8, (10.375, 12.25, 6.625), (974.64, 932.82, 1104.24)),
    "60B": _job(8, (11.125, 12.375, 6.125), (1040.54, 962.36, 1165.12)),
}


def fitted_of(*systems: System) -> tuple[str, ...]:
    """What was fitted to figure 14 and the times of these systems rest on."""
    return DELEGATED if any(system.startswith("Adaptra") for system in systems) else ()


def iteration_s(job: Job, system: System, delays_s: Delays, way: Way = "forth first") -> float:
    """How long an iteration of a job takes, in s.

    Args:
        job: which.
        system: whose orders, and how it sends.
        delays_s: of links.
        way: how ZB's messages share a link.
    """
    added_s = simulated_s(job.setting, system, delays_s, way) - simulated_s(job.setting, system, {}, way)
    if system == "Adaptra":  # which has the orders of ZB until something is slow
        added_s = simulated_s(job.setting, system, delays_s) - simulated_s(job.setting, "ZB", {})
    return job.undelayed(system) + added_s


def in_turn_s(job: Job, system: System, delays_s: Delays) -> tuple[float, float]:
    """The same, one message after the other on a link; a range for ZB, whose messages' order is not known."""
    found = [iteration_s(job, system, delays_s, way) for way in (IN_TURN if system == "ZB" else IN_TURN[:1])]
    return min(found), max(found)


def simulated_s(setting: Setting, system: System, delays_s: Delays, way: Way = "forth first") -> float:
    """One iteration of the pipeline alone, in s."""
    if system == "1F1B":
        return exchanging_s(one_f_one_b(setting), delays_s)
    if system == "ZB":
        return passing_s(_equal_orders(setting), unaware(setting), delays_s, way)
    return delegated(setting, system, {link: delay_s + DELEGATED_S for link, delay_s in delays_s.items()}).makespan_s


def delegated(setting: Setting, system: System, delays_s: Delays) -> Simulation:
    """One iteration by delegates: Adaptra plans for the delays, without a limit of memory; Adaptra-CPU knows none."""
    from ...runners.simulator import simulate
    from ...schemas.conditions import under_conditions

    plan = adapted(setting, delays_s) if system == "Adaptra" else unaware(setting)
    return simulate(under_conditions(plan, {}, {(None, link): delay_s for link, delay_s in delays_s.items()}))


def unaware(setting: Setting) -> Plan:
    """The orders of ZB and of Adaptra-CPU, those of equal operations, with the setting's times."""
    plan = _equal_orders(setting)
    template = plan.templates[0]
    forward_s, input_s, weight_s = setting.times_s
    stages = tuple(
        replace(stage, forward_s=forward_s, backward_input_s=input_s, backward_weight_s=weight_s)
        for stage in template.stages
    )
    return replace(plan, templates=(replace(template, stages=stages),), prediction=None)


def adapted(setting: Setting, delays_s: Delays) -> Plan:
    """Algorithm 2's plan for these delays, without a limit of memory."""
    return _adapted(setting, tuple(sorted(delays_s.items())))


@cache
def _adapted(setting: Setting, delays_s: tuple[tuple[int, float], ...]) -> Plan:
    from ...planners.adaptra.plan import plan_adaptra
    from ...planners.scheduling.solve import Effort

    delayed = replace(_shape(setting), link_delay_s={(None, link): delay_s for link, delay_s in delays_s})
    return plan_adaptra(_profile(setting), delayed, "adapted", Effort())


def _equal_orders(setting: Setting) -> Plan:
    """Algorithm 2's plan for operations of 10 ms where nothing is slow."""
    return adapted(replace(setting, times_s=EQUAL_S), {})


@cache
def one_f_one_b(setting: Setting) -> Plan:
    """1F1B's plan."""
    from ...planners.pipeline import plan_pipeline

    return plan_pipeline(_profile(setting), _shape(setting), "1f1b")


def _profile(setting: Setting) -> Profile:
    from ...schemas.profile import Layer, LayerCost, Profile

    return Profile((Layer((LayerCost(*setting.times_s),)),) * setting.stages)


def _shape(setting: Setting) -> Shape:
    from ...planners.shape import Shape

    return Shape(setting.stages, 1, setting.microbatches)


# Adaptra's schedule as published, Algorithms 2 to 4: a baseline for benchmarks; plans are made by the shared core.
#
# Time runs in steps of 1/30 of the longest operation (section 7.4's granularity); operations and delays are rounded up
# to whole steps, and that rounding is nearly all that the published rule loses. In each step every idle stage chooses
# by Algorithm 3: while warm-up forwards are owed a forward or nothing, afterwards a backward before a forward before a
# weight gradient.
#
# Three misprints are not followed, for nothing would run: in Algorithm 4 a message leaves when its operation starts
# (lines 16 to 19; here when it ends), a stage's W becomes available with the backward of the stage below (line 19; here
# with its own), and nobody makes the last stage's backward available (here its forward does). Three amendments make it
# end: warm-ups are at least 1 and at most N, a forward that memory does not admit is not available, and an operation
# takes a step at least. Steps in which nothing can happen are skipped, which saves time and changes nothing.


PRIORITY = (BACKWARD, FORWARD, WEIGHT)
NEVER = sys.maxsize


def time_stepped(
    stages: Sequence[Stage], links: Sequence[Link], microbatches: int, granularity: int = 30
) -> list[list[int]]:
    """The published schedule of one pipeline.

    Args:
        stages: the pipeline's stages, with their memory limits.
        links: the links between them.
        microbatches: how many pass.
        granularity: steps that the longest operation takes.

    Returns:
        Operation codes of each stage, in order: `3 * microbatch + kind`.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    step_s = max(stage.duration_s(kind) for stage in stages for kind in "FIW") / granularity or 1.0
    warmup = published_warmups(stages, links, microbatches)
    workers = [_Worker(stage, _durations(stage, step_s), x) for stage, x in zip(stages, warmup, strict=True)]
    workers[0].arrivals[FORWARD].extend([0] * microbatches)
    delays = [_steps(link.delay_s, step_s) for link in links]
    now = 0
    while any(len(worker.order) < KINDS * microbatches for worker in workers):
        for place, worker in enumerate(workers):
            kind = worker.choose(now) if worker.free <= now else None
            if kind is not None:
                _execute(workers, delays, place, kind, now)
        now = min(moment for worker in workers for moment in worker.moments() if moment > now)
    return [worker.order for worker in workers]


def published_warmups(stages: Sequence[Stage], links: Sequence[Link], microbatches: int) -> list[int]:
    """Algorithm 2's warm-ups with its own limit of N - 2S, cut to 1, N and memory so that a schedule by them ends.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    literal = algorithm_2(stages, links, microbatches - 2 * len(stages))
    rooms = most_in_flight(stages, microbatches)
    return list(accumulate((max(1, min(x, room)) for x, room in zip(literal, rooms, strict=True)), min))


@dataclass
class _Worker:
    """One stage while the schedule is made; times in steps.

    `arrivals[kind]` are the steps at which its forwards, backwards and weight gradients become available, in order, and
    `done[kind]` how many of them have been chosen; `owed` are the warm-up forwards still to run.
    """

    stage: Stage
    durations: list[int]
    owed: int
    free: int = 0
    arrivals: tuple[list[int], ...] = field(default_factory=lambda: ([], [], []))
    done: list[int] = field(default_factory=lambda: [0] * KINDS)
    order: list[int] = field(default_factory=list)

    def choose(self, now: int) -> int | None:
        """Algorithm 3: the kind of operation to run next, or None."""
        available = [kind for kind in PRIORITY if self._next_arrival(kind) <= now]
        if FORWARD in available and not self._has_room():
            available.remove(FORWARD)
        if self.owed:
            return FORWARD if FORWARD in available else None
        return available[0] if available else None

    def moments(self) -> list[int]:
        """The steps at which something may change here: it gets free, or something arrives."""
        return [self.free, *(self._next_arrival(kind) for kind in PRIORITY)]

    def _next_arrival(self, kind: int) -> int:
        waiting = self.done[kind] < len(self.arrivals[kind])
        return self.arrivals[kind][self.done[kind]] if waiting else NEVER

    def _has_room(self) -> bool:
        """Whether the memory limit admits one more forward."""
        whole, stashed = self.done[FORWARD] - self.done[BACKWARD], self.done[BACKWARD] - self.done[WEIGHT]
        held = (whole + 1) * self.stage.activation_bytes + stashed * self.stage.weight_stash_bytes
        return self.stage.memory_limit_bytes is None or held <= self.stage.memory_limit_bytes


def _durations(stage: Stage, step_s: float) -> list[int]:
    """Steps that F, I and W take at a stage, in the order of their codes."""
    return [max(1, _steps(stage.duration_s(kind), step_s)) for kind in "FIW"]


def _steps(seconds: float, step_s: float) -> int:
    return ceil(seconds / step_s * (1 - ROUNDING))


def _execute(workers: Sequence[_Worker], delays: Sequence[int], place: int, kind: int, now: int) -> None:
    """Run an operation from now on, and announce what becomes available by it (Algorithm 4, lines 13 to 20)."""
    worker = workers[place]
    worker.order.append(KINDS * worker.done[kind] + kind)
    worker.done[kind] += 1
    worker.free = end = now + worker.durations[kind]
    if kind == FORWARD:
        worker.owed = max(0, worker.owed - 1)
        if place + 1 < len(workers):
            workers[place + 1].arrivals[FORWARD].append(end + delays[place])
        else:
            worker.arrivals[BACKWARD].append(end)
    if kind == BACKWARD:
        worker.arrivals[WEIGHT].append(end)
        if place > 0:
            workers[place - 1].arrivals[BACKWARD].append(end + delays[place - 1])
