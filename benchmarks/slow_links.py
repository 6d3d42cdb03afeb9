"""What slow links cost a real run: `python benchmarks/slow_links.py --only SECTION [-o FILE]`.

* figure_14: 4 stages, 12 micro-batches, the last link delayed by 3 operations, as in Adaptra's Figure 14: zero-bubble
  with direct sends, with delegated ones, and with adapted warm-ups as well; measured beside simulated.
* figure_15: 8 stages, 32 micro-batches, delays of 0 to 6 operations on the last link, as in Figure 15.
* overhead: delegated sends where nothing is slow, against direct ones, in turns.
* loop: a link slows down in a live run, and recovers; when it is found, when the adapted plan runs, what it gains.
* replan: how long making the next plan takes the coordinator, once warm.
* trace: the trace of section 7.5, scaled in time: 1F1B, zero-bubble and Adaptra's loop on real processes.
* trace_simulated: all 1,200 iterations of it on the virtual clock.
* loss: losses under delay, adaptation and a broken link, beside those of a job that nothing happens to.

Runs are paced: every operation lasts OPERATION_S, in traces TRACE_OPERATION_S. Processes are forked from one that has
imported torch, and share this machine's cores.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.planners.adaptra.plan import plan_adaptra
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.recovery.answers import PolicyName, answers_for
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape
from rtk.profilers.failslow.monitor.ring import monitor_of
from rtk.runners.program import Sending
from rtk.runners.simulator import simulate
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.runners.virtual.job import simulate_story
from rtk.schemas.conditions import Conditions, SlowLink, under_conditions
from rtk.schemas.documents import read_document, write_document
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.protocols import Hand
from rtk.schemas.timeline import Timeline
from rtk.schemas.trace import Trace, TraceEvent, print_trace
from rtk.tests.runners.processes import ProcessJob

OPERATION_S = 0.02
TRACE_OPERATION_S = 0.01  # there are many iterations
LAYERS = 8
WARM = 2  # iterations before anything is measured
MODEL, DOUBLE = (Path(__file__).parent / f"small_model.py:{name}" for name in ("eight", "eight_double"))

# (first iteration, last, links, delay in operations of 10 ms), "Adaptra" section 7.5; a network card fails at 1030.
PAPER_TRACE: Sequence[tuple[int, int, Sequence[int], float]] = (
    (15, 85, (2,), 3),
    (120, 190, (0, 5), 4),
    (230, 300, (6,), 2),
    (340, 410, (2, 3, 6), 5),
    (450, 520, (5,), 6),
    (560, 630, (1, 6), 6),
    (670, 740, (0, 4), 2),
    (780, 850, (0, 1, 2), 4),
    (890, 960, (4, 5), 5),
)
PAPER_ITERATIONS, CARD_FAILS, CARD_LINK = 1200, 1030, 3


@dataclass(frozen=True)
class Ran:
    """What a run gave: iteration times in s, those of the first ones left out, and all announcements."""

    times_s: list[float]
    said: list[dict[str, Any]]

    @property
    def median_s(self) -> float:
        """Of the iteration times."""
        return statistics.median(self.times_s)


def even_profile(stages: int, seconds: float = OPERATION_S) -> Profile:
    """Eight layers, in so many stages whose F, I and W take `seconds` each."""
    share_s = seconds * stages / LAYERS
    return Profile(tuple(Layer((LayerCost(share_s, share_s, share_s),)) for _ in range(LAYERS)))


def zero_bubble(stages: int, microbatches: int, seconds: float = OPERATION_S) -> Plan:
    """Adaptra's own schedule without a delay, which is what its zero-bubble baseline runs."""
    return plan_adaptra(even_profile(stages, seconds), Shape(stages, 1, microbatches), "adapted", Effort())


def adapted(stages: int, microbatches: int, delays_s: dict[int, float]) -> Plan:
    """By Algorithm 2 for these delays of links."""
    shape = Shape(stages, 1, microbatches, link_delay_s={(None, link): delay for link, delay in delays_s.items()})
    return plan_adaptra(even_profile(stages), shape, "adapted", Effort())


def healthy(plan: Plan) -> Plan:
    """The plan as if its links had no delay: what is started, for the true delays come from the trace."""
    links = range(len(plan.template_of(0).links))
    return under_conditions(plan, {}, {(None, link): 0.0 for link in links})


def training(transport: Sending, model: Path = MODEL, paced: bool = True) -> TrainingConfig:
    """On micro-batches so small that the workers keep any pace."""
    return TrainingConfig(str(model), (), 1e-3, 2, 32, 1, paced, transport, 0)


def run(
    plan: Plan,
    iterations: int,
    transport: Sending,
    events: Sequence[TraceEvent] = (),
    *,
    policy: PolicyName = PolicyName.SLIPSTREAM,
    timeline: str | None = None,
    model: Path = MODEL,
    paced: bool = True,
) -> Ran:
    """A job of real processes; by `PolicyName.SLIPSTREAM` nobody adapts the plan to what is slow."""
    with tempfile.TemporaryDirectory() as folder:
        inject = Path(folder) / "trace.jsonl"
        inject.write_bytes(print_trace(Trace(tuple(events))))
        how = JobConfig(iterations, policy=policy, inject=str(inject), timeline=timeline)
        with ProcessJob(plan, how, training(transport, model, paced)) as job:
            finished = job.result(60.0 + 60.0 * iterations)
            if timeline is not None:
                job.conductor.write_timeline()
        assert finished.exit_code == 0, finished.reason
    commits = [one for one in job.said if one["event"] == "iteration"]
    return Ran([one["iteration_time_s"] for one in commits[WARM:]], job.said)


def slow(link: int, delay_s: float, first: int = 0, stop: int | None = None) -> list[TraceEvent]:
    """A link between stages link and link + 1 that is slow from one iteration on, until another."""
    name = f"0/{link}-0/{link + 1}"
    events = [TraceEvent("slow_link", iteration=first, link=name, delay_s=delay_s)]
    return events + ([TraceEvent("recover", iteration=stop, link=name)] if stop is not None else [])


def predicted_s(plan: Plan, delays_s: dict[int, float], transport: Sending) -> float:
    """Seconds an iteration takes on the virtual clock."""
    under = under_conditions(plan, {}, {(None, link): delay for link, delay in delays_s.items()})
    return simulate(under, transport=transport).iteration_time_s


def beside(measured_s: float, simulated_s: float, undelayed_s: float, undelayed_simulated_s: float) -> dict[str, float]:
    """A measured iteration time beside the simulated one, in s and as ratios to the undelayed ones."""
    return {
        "measured_s": measured_s,
        "simulated_s": simulated_s,
        "measured_ratio": measured_s / undelayed_s,
        "simulated_ratio": simulated_s / undelayed_simulated_s,
        "error": measured_s / simulated_s - 1,
    }


def figure_14(iterations: int = 12, folder: str | None = None) -> dict[str, Any]:
    """Three variants under the same delay; with a folder, timelines of one iteration are left there."""
    link, delay_s = 2, 3 * OPERATION_S
    plain, bent = zero_bubble(4, 12), healthy(adapted(4, 12, {link: delay_s}))
    base, base_s = run(plain, iterations, "delegated"), predicted_s(plain, {}, "delegated")
    found: dict[str, Any] = {"undelayed": beside(base.median_s, base_s, base.median_s, base_s)}
    variants: Sequence[tuple[str, Plan, Sending]] = (
        ("direct", plain, "direct"),
        ("delegated", plain, "delegated"),
        ("adapted", bent, "delegated"),
    )
    for name, plan, transport in variants:
        timeline = None if folder is None else str(Path(folder) / f"{name}.json")
        ran = run(plan, iterations, transport, slow(link, delay_s), timeline=timeline)
        found[name] = beside(ran.median_s, predicted_s(plan, {link: delay_s}, transport), base.median_s, base_s)
        if timeline is not None:
            under = under_conditions(plan, {}, {(None, link): delay_s})
            write_document(timeline, one_iteration(timeline, iterations - 1))
            write_document(timeline.replace(".json", "-simulated.json"), simulate(under, transport=transport).timeline)
    return found


def one_iteration(path: str, number: int) -> Timeline:
    """A measured timeline's iteration alone, from 0 on."""
    whole = read_document(path, Timeline)
    spans = [span for span in whole.spans if span.iteration == number]
    origin_s = min(span.start_s for span in spans)
    moved = (replace(span, start_s=span.start_s - origin_s, end_s=span.end_s - origin_s) for span in spans)
    return replace(whole, spans=tuple(moved), events=())


def figure_15(iterations: int = 6) -> dict[str, Any]:
    """Each baseline and the adapted plan under growing delays."""
    link = 6
    plans: dict[str, tuple[Callable[[float], Plan], Sending]] = {
        "1f1b direct": (lambda _: plan_pipeline(even_profile(8), Shape(8, 1, 32), "1f1b"), "direct"),
        "zero-bubble direct": (lambda _: zero_bubble(8, 32), "direct"),
        "zero-bubble delegated": (lambda _: zero_bubble(8, 32), "delegated"),
        "adapted": (lambda delay_s: healthy(adapted(8, 32, {link: delay_s})), "delegated"),
    }
    found: dict[str, Any] = {name: {} for name in plans}
    for name, (make, transport) in plans.items():
        base_s, base_simulated_s = 0.0, 0.0
        for operations in range(7) if name == "adapted" else (0, 2, 4, 6):
            delay_s = operations * OPERATION_S
            plan = make(delay_s)
            ran, simulated_s = (
                run(plan, iterations, transport, slow(link, delay_s)),
                predicted_s(plan, {link: delay_s}, transport),
            )
            base_s, base_simulated_s = base_s or ran.median_s, base_simulated_s or simulated_s
            found[name][str(operations)] = beside(ran.median_s, simulated_s, base_s, base_simulated_s)
    return found


def overhead(rounds: int = 6, iterations: int = 10) -> dict[str, Any]:
    """Iteration times of both transports where nothing is slow, in turns."""
    plan = zero_bubble(4, 12, 0.01)
    times: dict[Sending, list[float]] = {"direct": [], "delegated": []}
    for _ in range(rounds):
        for transport, values in times.items():
            values.append(run(plan, iterations, transport).median_s)
    ratios = [one / other for one, other in zip(times["delegated"], times["direct"], strict=True)]
    return {"iteration_s": times, "ratios": ratios, "median_ratio": statistics.median(ratios)}


def loop(metrics: str | None = None, timeline: str | None = None) -> dict[str, Any]:
    """A link of four stages slows down at iteration 15 and recovers at 40, under the loop and without it."""
    plan, delay_s = zero_bubble(4, 12), 3 * OPERATION_S
    events = slow(2, delay_s, 15, 40)
    ran = run(plan, 60, "auto", events, policy=PolicyName.JOINT, timeline=timeline)
    left = run(plan, 60, "direct", events)
    if metrics is not None:
        for name, one in (("loop", ran), ("left", left)):
            write_lines(f"{metrics}-{name}.jsonl", one.said)
    epochs = [one["iteration"] for one in ran.said if one["event"] == "epoch"]
    return {
        "slow_from": 15,
        "found_before_iteration": [one["iteration"] for one in ran.said if one["event"] == "slow_link"],
        "adapted_from": [one for one in epochs if 15 < one < 40],
        "recovers_at": 40,
        "back_from": [one for one in epochs if one >= 40],
        "median_s": {name: phases(one) for name, one in (("loop", ran), ("left alone", left))},
    }


def phases(ran: Ran) -> dict[str, float]:
    """Median iteration times before, during (once adapted) and after the delay."""
    times_s = [one["iteration_time_s"] for one in ran.said if one["event"] == "iteration"]
    spans = {"before": (WARM, 15), "during": (25, 40), "after": (50, 60)}
    return {name: statistics.median(times_s[slice(*span)]) for name, span in spans.items()}


def write_lines(path: str, said: Sequence[dict[str, Any]]) -> None:
    """Announcements as JSON lines, as `rtk run --metrics` writes them, on a clock of their own."""
    Path(path).write_text("".join(json.dumps({**one, "unix_time_s": one["at_s"]}) + "\n" for one in said))


def replan(rounds: int = 20) -> dict[str, Any]:
    """Seconds for a plan under one, and under three, slow links; each question is new."""
    found: dict[str, Any] = {}
    for stages, pipelines, microbatches in ((4, 1, 12), (8, 1, 32), (4, 4, 16), (8, 8, 32)):
        profile = even_profile(stages)
        plan = plan_adaptra(profile, Shape(stages, pipelines, microbatches), "adapted", Effort())
        answers = answers_for(plan, PolicyName.JOINT, None, 100)
        answers.warm_up()
        crew = tuple(Hand(w.name, (w.pipeline, w.stage), plan.layers_of(w)) for w in plan.workers)
        times_s = []
        for number in range(rounds):
            links = [(f"0/{i}", f"0/{i + 1}") for i in range(0, stages - 1, 2)][: 1 + 2 * (number % 2)]
            delay_s = (2 + number / 10) * OPERATION_S
            conditions = Conditions(tuple(SlowLink(ends, delay_s) for ends in links))
            begun_s = time.perf_counter()
            answers(plan, crew, conditions)
            times_s.append(time.perf_counter() - begun_s)
        found[f"{stages}x{pipelines}x{microbatches}"] = {
            "median_s": statistics.median(times_s),
            "largest_s": max(times_s),
        }
    return found


def paper_trace(scale: float, operation_s: float) -> list[TraceEvent]:
    """The trace, its iterations scaled; the card that fails takes the link between stages 3 and 4 with it."""
    events = [
        event
        for first, last, links, operations in PAPER_TRACE
        for link in links
        for event in slow(link, operations * operation_s, round(first * scale), round((last + 1) * scale))
    ]
    card = TraceEvent("fail", iteration=round(CARD_FAILS * scale), link=f"0/{CARD_LINK}-0/{CARD_LINK + 1}")
    return sorted([*events, card], key=lambda event: event.iteration or 0)


def contenders() -> dict[str, tuple[Plan, Sending, PolicyName]]:
    """Whose iterations are compared: plan, transport, policy."""
    frozen = zero_bubble(8, 16, TRACE_OPERATION_S)
    one_f_one_b = plan_pipeline(even_profile(8, TRACE_OPERATION_S), Shape(8, 1, 16), "1f1b")
    return {
        "1f1b": (one_f_one_b, "direct", PolicyName.SLIPSTREAM),
        "zero-bubble": (frozen, "direct", PolicyName.SLIPSTREAM),
        "zero-bubble delegated": (frozen, "auto", PolicyName.SLIPSTREAM),
        "adaptra": (frozen, "auto", PolicyName.JOINT),
    }


def trace(scale: float = 0.25, metrics: str | None = None) -> dict[str, Any]:
    """Real processes: seconds for all iterations together, and what the loop did."""
    found: dict[str, Any] = {"scale": scale, "iterations": round(PAPER_ITERATIONS * scale)}
    events = paper_trace(scale, TRACE_OPERATION_S)
    for name, (plan, transport, policy) in contenders().items():
        ran = run(plan, found["iterations"], transport, events, policy=policy)
        commits = [one["at_s"] for one in ran.said if one["event"] == "iteration"]
        found[name] = {
            "total_s": commits[-1] - commits[WARM],
            "median_s": ran.median_s,
            "epochs": sum(one["event"] == "epoch" for one in ran.said),
            "failures": sum(one["event"] == "failure" for one in ran.said),
        }
        if metrics is not None:
            write_lines(f"{metrics}-{name}.jsonl", ran.said)
    return found | speedups(found)


def trace_simulated(scale: float = 1.0) -> dict[str, Any]:
    """The same on the virtual clock."""
    found: dict[str, Any] = {"scale": scale, "iterations": round(PAPER_ITERATIONS * scale)}
    events = Trace(tuple(paper_trace(scale, TRACE_OPERATION_S)))
    for name, (plan, transport, policy) in contenders().items():
        answers = answers_for(plan, policy, None, 100)
        story = simulate_story(
            plan, events, found["iterations"], answers, monitor=monitor_of(plan), transport=transport
        )
        found[name] = {"total_s": story.committed_s[-1] - story.committed_s[WARM], "exit_code": story.exit_code}
    return found | speedups(found)


def speedups(found: dict[str, Any]) -> dict[str, float]:
    """How many times as long as the loop the others take."""
    ours_s = found["adaptra"]["total_s"]
    return {
        f"over_{name}": found[name]["total_s"] / ours_s for name in ("1f1b", "zero-bubble", "zero-bubble delegated")
    }


def loss(iterations: int = 40) -> dict[str, Any]:
    """In double precision: what differs is rounding, for sums over micro-batches come in another order."""
    plan, delay_s = zero_bubble(4, 12), 3 * OPERATION_S
    card = [TraceEvent("fail", iteration=30, link="0/0-0/1")]
    events = [*slow(2, delay_s, 5, 20), *card]
    sides = {
        "undelayed": run(plan, iterations, "direct", model=DOUBLE),
        "loop": run(plan, iterations, "auto", events, policy=PolicyName.JOINT, model=DOUBLE),
        "direct": run(plan, iterations, "direct", events[:2], model=DOUBLE),
    }
    losses = {name: [one["loss"] for one in ran.said if one["event"] == "iteration"] for name, ran in sides.items()}
    return {
        "iterations": iterations,
        "epochs": sum(one["event"] == "epoch" for one in sides["loop"].said),
        "largest_difference": {
            name: max(abs(a - b) for a, b in zip(values, losses["undelayed"], strict=True))
            for name, values in losses.items()
            if name != "undelayed"
        },
    }


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "figure_14": figure_14,
    "figure_15": figure_15,
    "overhead": overhead,
    "loop": loop,
    "replan": replan,
    "trace": trace,
    "trace_simulated": trace_simulated,
    "loss": loss,
}


def main() -> None:
    """Measure one section and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SECTIONS, required=True)
    parser.add_argument("--keep", help="figure_14: a folder for timelines; loop, trace: how metrics files begin")
    parser.add_argument("--scale", type=float, help="trace: of its iterations")
    parser.add_argument("-o", "--output", default="-")
    arguments = parser.parse_args()
    options: dict[str, Any] = {}
    if arguments.keep is not None:
        options["folder" if arguments.only == "figure_14" else "metrics"] = arguments.keep
    if arguments.scale is not None:
        options["scale"] = arguments.scale
    write_result({arguments.only: SECTIONS[arguments.only](**options)}, arguments.output)


if __name__ == "__main__":
    main()
