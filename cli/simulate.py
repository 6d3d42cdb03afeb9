"""`rtk simulate`: a plan on a virtual clock."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..planners.recovery.answers import answers_for, remedies_of
from ..runners.program import Sending
from ..schemas.errors import InvalidInputError, RuntimeFailedError, remark
from ..schemas.fields import MOST_TIMELINE_SPANS
from ..schemas.files import STANDARD_STREAM
from ..schemas.quantities import (
    DURATION,
    SIZE,
    print_bytes,
    print_change,
    print_number,
    print_percent,
    print_time,
    time_unit,
)
from ..schemas.site import Site, site_of
from ..schemas.text import counted, listed
from .console import Common, Seed, Writes, grouped, print_document, print_table, quantity, suggest, working, wrote
from .options import (
    TIMELINE,
    AnswerOptions,
    ClusterOption,
    LinkDelays,
    OverlayOption,
    ProfileOption,
    Slow,
    parse_link_delays,
    parse_slow_places,
    read_valid_plan,
)

if TYPE_CHECKING:
    from ..runners.virtual.job import SimulatedRun, SwitchCosts
    from ..schemas.plan import Plan
    from ..schemas.profile import Profile
    from ..schemas.templates import Templates
    from ..schemas.timeline import Timeline
    from ..schemas.trace import Trace


@grouped
def command(
    plan: Annotated[str, typer.Argument(help="The plan; `-` is standard input.")],
    link_delay: LinkDelays = None,
    slow: Slow = None,
    cluster: ClusterOption = None,
    overlay: OverlayOption = None,
    jitter: Annotated[float, typer.Option("--jitter", min=0, help="Log-normal sigma of operation times.")] = 0.0,
    seed: Seed = 0,
    iterations: Annotated[int, typer.Option("--iterations", min=1, help="How many.")] = 1,
    transport: Annotated[
        Sending,
        typer.Option(
            "--transport",
            help="direct: sending holds a worker for the link's delay; delegated: it takes no time; auto: delegated on "
            "links of which the plan says a delay, --link-delay included, or which were found to be slow.",
        ),
    ] = "auto",
    inject: Annotated[
        str | None, typer.Option("--inject", help="A trace of failures and slow-downs, as `rtk run --inject` takes it.")
    ] = None,
    *,
    how: AnswerOptions,
    heartbeat_limit: Annotated[
        float,
        quantity(DURATION, "--heartbeat-limit", "Silence after which a stopped worker is lost.", least=0.1),
    ] = 2.0,
    regroup: Annotated[
        float,
        quantity(
            DURATION,
            "--regroup",
            "Time to connect anew after a failure, as measured with gloo on one machine; it begins when all have left "
            "what they were in. Copies come on top, if --profile says their sizes and speed.",
        ),
    ] = 0.05,
    log_memory: Annotated[
        float | None,
        quantity(
            SIZE,
            "--log-memory",
            "For messages of an iteration that each worker keeps, lest they be computed again when others die; all of "
            "them by default; 0: nothing is kept, and the iteration is done again. Any other limit needs --profile, "
            "which says how large they are.",
        ),
    ] = None,
    timeline: Annotated[
        str | None, typer.Option("--timeline", help="Write the timeline to this file."), TIMELINE
    ] = None,
    resumption: Annotated[
        str | None,
        typer.Option(
            "--resumption",
            help="Write what was left of the last iteration that was gone on with after a failure, and the plan that "
            "followed, to this file.",
        ),
        Writes("an rtk.resumption"),
    ] = None,
    profile: ProfileOption = None,
    common: Common,
) -> None:
    """Execute a plan on a virtual clock, its orders as they are, under slow workers and links.

    With --inject workers die, come back and slow down as a trace says, and links slow down and break; the monitor of
    `rtk run` finds out what is slow, and its coordinator decides what follows. An iteration that loses workers goes on
    where it was, unless --log-memory keeps nothing of it. The iteration time is then the whole
    time, what was lost included, over the committed iterations; the command exits with 5 if the job could not go on,
    or was to start again on other workers (--mitigate S4). What an --overlay calls failed fails at the start.
    """
    from ..planners.plain.verbs import conditioned
    from ..schemas.trace import failing, read_valid_trace
    from ..wiring import story_of

    read = read_valid_plan(plan, profile)
    site = site_of(cluster, overlay)
    conditions, failed = conditioned(read, parse_slow_places(slow), parse_link_delays(link_delay), site)
    if inject is None and not failed:
        if resumption is not None:
            what = "nothing is gone on with where nobody dies"
            raise InvalidInputError(what, where="--resumption", fix="give --inject, with a failure in it")
        with working(f"simulating {counted(iterations, 'iteration')}"):
            _simulate(conditions, read, jitter, seed, transport, iterations, timeline, common.as_json)
        _say_next(plan, timeline)
        return
    costs = _costs(read, profile, site, heartbeat_limit, regroup)
    answers = answers_for(conditions, how.policy, how.atlas, how.normalize_within, how.host_memory)
    remedies = remedies_of(how.mitigate, read, how.policy)
    trace = failing(conditions, failed, lambda left: None if inject is None else read_valid_trace(inject, left))
    _require_few(read, iterations)
    with working(f"simulating {counted(iterations, 'iteration')}"):
        story = story_of(conditions, trace, iterations, answers, remedies, costs, jitter, seed, transport, log_memory)
    _tell(story, iterations, jitter, timeline, common.as_json)
    if resumption is not None:
        _write_resumption(resumption, story)
    _tell_unreached(trace, story, iterations)
    _say_next(plan, timeline)


def _simulate(
    plan: "Plan",
    read: "Plan",
    jitter: float,
    seed: int,
    transport: Sending,
    iterations: int,
    timeline: str | None,
    as_json: bool,
) -> None:
    """Execute a plan, and repeat it."""
    from ..runners.simulator import simulate

    if timeline is not None:
        _require_few(plan, iterations)
    simulation = simulate(plan, jitter, seed, transport)
    # Jitter may make operations shorter than the plan says, and so an iteration shorter than the plan's bound.
    bound_s = 0.0 if jitter else min(_bound_s(plan), simulation.iteration_time_s)
    report = simulation.report(plan, bound_s)
    if timeline is not None:
        _write(timeline, simulation.repeated(iterations) if iterations > 1 else simulation.timeline)
    if as_json:
        print_document(report)
    else:
        print_table(
            ("", ""),
            [
                ("iteration", print_time(report.iteration_time_s)),
                ("makespan", print_time(report.makespan_s)),
                ("period", print_time(report.period_s)),
                ("lower bound", print_time(report.lower_bound_s)),
                ("bubbles", print_percent(report.bubble_ratio)),
                ("micro-batches a second", print_number(report.microbatches_per_s)),
                ("peak activations of a worker", print_bytes(max(report.peak_memory_bytes))),
            ],
        )
        if read.prediction and read.prediction.iteration_time_s:
            change = report.iteration_time_s / read.prediction.iteration_time_s - 1
            print(f"{print_change(change)} against the plan's prediction")


def _costs(plan: "Plan", profile: str | None, site: Site, heartbeat_limit_s: float, regroup_s: float) -> "SwitchCosts":
    """What changes take; the copies too, where it is known how large each layer's state is and how fast it is sent."""
    from ..planners.oobleck.plan import templates_of
    from ..runners.virtual.job import SwitchCosts
    from ..schemas.documents import read_document
    from ..schemas.profile import Profile
    from ..schemas.templates import Templates

    costs = SwitchCosts(heartbeat_limit_s=heartbeat_limit_s, regroup_s=regroup_s)
    known: Profile | Templates
    if profile is not None:
        known = site.adapted(read_document(profile, Profile))
    elif plan.planner.name == "oobleck":  # such a plan says them itself
        known = templates_of(plan)
    else:
        return costs
    network = known.network.between_workers
    return replace(
        costs,
        state_bytes=tuple(_copied_bytes(plan, known, number) for number in range(len(known.layers))),
        gradient_bytes=tuple(layer.parameter_bytes for layer in known.layers),
        output_bytes=tuple(layer.output_bytes for layer in known.layers) if isinstance(known, Profile) else (),
        bandwidth_bytes_per_s=network.bandwidth_bytes_per_s if network else None,
    )


def _copied_bytes(plan: "Plan", known: "Profile | Templates", number: int) -> float:
    """What of a layer is sent to who lacks it; where peers share the optimizer's state, no more than its share."""
    from ..schemas.profile import Profile
    from ..schemas.sharded import OptimizerShare, TrainedBytes

    if isinstance(known, Profile) and plan.shards_optimizer:
        sizes = TrainedBytes.of(known.layers, [(number, number + 1)])
        return OptimizerShare(len(plan.pipelines)).held_bytes(sizes)
    return known.layers[number].parameter_bytes + known.layers[number].state_bytes


def _tell(story: "SimulatedRun", iterations: int, jitter: float, timeline: str | None, as_json: bool) -> None:
    """Write and print what came of a trace.

    Raises:
        RuntimeFailedError: the job could not go on.
    """
    from ..runners.resilience.announcements import JobRestarting, Recovered
    from ..schemas.documents import canonical

    _write(timeline, story.timeline)
    if as_json:
        # Epochs come back to the same plans, whose bounds take long: each is found once.
        unlike = {canonical(plan): plan for plan in story.plans}
        print_document(story.report(0.0 if jitter else min(map(_bound_s, unlike.values()))))
    else:
        rows = [
            (event.time_s, " ".join(part for part in (event.kind, event.worker) if part), event.message)
            for event in story.timeline.events
        ]
        lost = [
            (at_s, "recovered", f"iteration {one.iteration} done, {print_time(one.lost_s)} lost")
            for at_s, one in story.announced
            if isinstance(one, Recovered)
        ]
        unit = time_unit(story.total_s)
        for at_s, what, words in sorted([*rows, *lost], key=lambda row: row[0]):
            print(f"{print_time(at_s, unit):>12}  {what:<18}  {words}")
        print_table(
            ("", ""),
            [
                ("committed iterations", f"{len(story.committed_s)}"),
                ("total time", print_time(story.total_s)),
                ("time lost", print_time(story.lost_s)),
                ("iteration, in the mean", print_time(story.iteration_time_s)),
            ],
        )
    if story.exit_code:
        raise RuntimeFailedError(
            f"the job ended after {len(story.committed_s)} of {iterations} iterations: {story.reason}",
            fix="a stage needs one worker that lives; let one join before the last one fails"
            if not any(isinstance(one, JobRestarting) for _, one in story.announced)
            else "`rtk run --checkpoint` goes on from there with new processes",
        )


def _say_next(plan: str, timeline: str | None) -> None:
    """Say what was written; and how to look at it, or at the plan."""
    drawn = plan if timeline is None else timeline
    then = f"rtk viz {drawn} -o {Path(drawn.removesuffix('.gz')).with_suffix('.html')}"
    if timeline is not None:
        wrote(timeline, then)
    elif plan != STANDARD_STREAM:
        suggest(then)


def _require_few(plan: "Plan", iterations: int) -> None:
    """Refuse at once more operations than a timeline holds; says how many iterations fit."""
    operations = sum(len(worker.order.split()) for worker in plan.workers if worker.order)
    if operations * iterations > MOST_TIMELINE_SPANS:
        raise InvalidInputError(
            f"that is {operations * iterations:,} operations; a timeline has up to {MOST_TIMELINE_SPANS:,}",
            where=f"--iterations {iterations}",
            fix=f"take at most {max(MOST_TIMELINE_SPANS // operations, 1):,}, of {operations:,} operations each",
        )


def _tell_unreached(trace: "Trace", story: "SimulatedRun", iterations: int) -> None:
    """Say which events of a trace came too late to happen."""
    late = [
        f"{event.kind} {event.worker or event.link or event.node} {when}"
        for event in trace.events
        for when, is_late in (
            (f"in iteration {event.iteration}", event.iteration is not None and event.iteration >= iterations),
            (f"at {print_time(event.time_s or 0.0)}", event.time_s is not None and event.time_s > story.total_s),
        )
        if is_late
    ]
    if late:
        remark(
            f"warning: {counted(len(late), 'event')} came after the end of the simulation, and did not happen: "
            f"{listed(late)}; it has {counted(iterations, 'iteration')}, from 0, and takes {print_time(story.total_s)} "
            "(--iterations makes it longer)"
        )


def _write_resumption(path: str, story: "SimulatedRun") -> None:
    from ..schemas.documents import write_document

    if not story.resumptions:
        remark(f"{path} is not written: no iteration was gone on with")
        return
    write_document(path, story.resumptions[-1])
    wrote(path, f"rtk explain {path}")


def _write(path: str | None, timeline: "Timeline") -> None:
    from ..schemas.documents import write_document

    if path is not None:
        write_document(path, timeline)


def _bound_s(plan: "Plan") -> float:
    if plan.is_placed:
        from ..planners.placement.bounds import bound_of

        return bound_of(plan)
    from ..planners.scheduling.lower_bound import lower_bound
    from ..planners.scheduling.problem import problem_of

    return lower_bound(problem_of(plan)).value_s
