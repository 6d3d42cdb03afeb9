"""Why what is left of an iteration takes as long as it does: what is kept, what is sent again, what it waits for."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap

from ...schemas.check_rest import TimedStep, timed_rest
from ...schemas.orders import print_operation
from ...schemas.plan import Plan
from ...schemas.quantities import print_percent, print_time
from ...schemas.resumption import Rest, Resumption, print_rest_operation, seats_in
from ...schemas.text import counted, listed

WIDTH = 98
SAME_S = 1e-9


@dataclass(frozen=True)
class WorkerRest:
    """What a live worker of the plan goes on with.

    Attributes:
        place, worker: k/i, and the name of who takes it.
        kept: micro-batches whose gradients stay in its part of the sums, in some of its layers at least.
        under_way: micro-batches with which it goes on where they were.
        given_up: whether it drops its part of some sums.
        left, again: operations that it runs; those of them that are run again for their messages alone.
        received: kept messages that it gets.
        busy_s, ends_s: how long they take it, and when the last one ends, in s.
    """

    place: str
    worker: str
    kept: int
    under_way: int
    given_up: bool
    left: int
    again: int
    received: int
    busy_s: float
    ends_s: float


@dataclass(frozen=True)
class RestLeg:
    """A stretch of the longest path: a worker runs some operations one after the other.

    Attributes:
        place: k/i.
        first, last: tokens of operations, of which there are `operations`.
        start_s, end_s: from the first one's start to the last one's end.
        waits: why the first one does not start sooner, in words.
    """

    place: str
    first: str
    last: str
    operations: int
    start_s: float
    end_s: float
    waits: str


@dataclass(frozen=True)
class RestExplanation:
    """Why what is left of an iteration takes as long as it does.

    Attributes:
        iteration: its number.
        makespan_s, lower_bound_s, redo_s: of its prediction; None where it has none.
        left: operations.
        workers: who has what, and does what.
        legs: the path that takes longest, from the beginning to the last operation that ends.
        sums_s: what sums and steps take after that.
        sealed: layers whose sums have ended, in words; empty: none.
        copies, sends: kept sums and messages that go from one worker to another, in words.
    """

    iteration: int
    makespan_s: float | None
    lower_bound_s: float | None
    redo_s: float | None
    left: int
    workers: tuple[WorkerRest, ...]
    legs: tuple[RestLeg, ...]
    sums_s: float | None
    sealed: str
    copies: tuple[str, ...]
    sends: tuple[str, ...]


def explain_resumption(resumption: Resumption) -> RestExplanation:
    """Explain a valid resumption."""
    plan, rest = resumption.plan, resumption.rest
    times = timed_rest(plan, rest)
    said = rest.prediction
    end_s = max((run[-1].end_s for run in times if run), default=0.0)
    received = Counter(send.target for send in rest.sends)
    return RestExplanation(
        iteration=rest.iteration,
        makespan_s=None if said is None else said.makespan_s,
        lower_bound_s=None if said is None else said.lower_bound_s,
        redo_s=None if said is None else said.redo_s,
        left=sum(map(len, times)),
        workers=tuple(_worker(plan, rest, number, run, received) for number, run in enumerate(times)),
        legs=tuple(_legs(plan, times)),
        sums_s=None if said is None else max(said.makespan_s - end_s, 0.0),
        sealed=_layers(rest.sealed),
        copies=tuple(_copies(rest)),
        sends=tuple(_sends(rest)),
    )


def _worker(plan: Plan, rest: Rest, number: int, run: list[TimedStep], received: Counter[str]) -> WorkerRest:
    own = rest.workers[number]
    return WorkerRest(
        place=own.place,
        worker=own.worker,
        kept=len(rest.kept(number, plan)),
        under_way=len({microbatch for microbatch, _ in rest.taken_up(number, plan)}),
        given_up=bool(own.given_up),
        left=len(run),
        again=sum(not step.own.accumulates for step in run),
        received=received[own.place],
        busy_s=sum(step.end_s - step.start_s for step in run),
        ends_s=run[-1].end_s if run else 0.0,
    )


def _legs(plan: Plan, times: list[list[TimedStep]]) -> Iterator[RestLeg]:
    """The longest path, walked back from the operation that ends last: each leg is one worker's."""
    busy = [number for number, run in enumerate(times) if run]
    if not busy:
        return
    number = max(busy, key=lambda one: times[one][-1].end_s)
    place = len(times[number]) - 1
    found: list[RestLeg] = []
    while True:
        last = place
        while place and times[number][place - 1].end_s >= times[number][place].start_s - SAME_S:
            place -= 1
        step = times[number][place]
        found.append(_leg(plan, times, number, place, last))
        if step.maker is None:
            break
        number, place = step.maker
    yield from reversed(found)


def _leg(plan: Plan, times: list[list[TimedStep]], number: int, place: int, last: int) -> RestLeg:
    live, run = plan.live_workers(), times[number]
    step, worker = run[place], live[number]
    seats = seats_in(plan, worker)
    first_token, last_token = (
        print_rest_operation(run[at].own, worker.pipeline, seats[run[at].own.operation.stage]) for at in (place, last)
    )
    waits = "from the beginning"
    if step.is_resent and step.start_s > SAME_S:
        waits = "after a kept message that was sent again"
    elif step.maker is not None:
        maker = times[step.maker[0]][step.maker[1]]
        sender = live[step.maker[0]]
        token = print_operation(maker.own.operation, sender.pipeline)
        waits = f"after {token} of {sender.name}"
    return RestLeg(worker.name, first_token, last_token, last - place + 1, step.start_s, run[last].end_s, waits)


def _layers(ranges: tuple[tuple[int, int], ...]) -> str:
    return listed([str(first) if stop == first + 1 else f"{first}-{stop - 1}" for first, stop in ranges])


def _copies(rest: Rest) -> Iterator[str]:
    for copy in rest.copies:
        what = [f"layers {_layers((copy.layers,))}"] if copy.layers[0] < copy.layers[1] else []
        what += [f"what the layers {listed(list(map(str, tie)))} share" for tie in copy.ties]
        yield f"sums over {listed(what)}: from {copy.source} to {copy.target}"


def _sends(rest: Rest) -> Iterator[str]:
    """Messages of one kind, boundary and way together."""
    counts = Counter((send.source, send.target, send.kind, send.boundary) for send in rest.sends)
    for (source, target, kind, boundary), count in counts.items():
        yield f"{counted(count, kind)} of the boundary before layer {boundary}: from {source} to {target}"


def words_of_resumption(told: RestExplanation) -> str:
    """An explanation for people."""
    sections = [_headline(told), _table(told), _path(told), _kept_elsewhere(told)]
    return "\n".join([line for section in sections for line in (*section, "")][:-1])


def _headline(told: RestExplanation) -> Iterator[str]:
    if told.makespan_s is None or told.lower_bound_s is None or told.redo_s is None:
        yield f"Iteration {told.iteration}: {counted(told.left, 'operation')} left."
        return
    share = told.makespan_s / told.redo_s if told.redo_s else 1.0
    yield (
        f"Iteration {told.iteration}: {counted(told.left, 'operation')} left, which take "
        f"{print_time(told.makespan_s)}, {print_percent(share)} of the {print_time(told.redo_s)} that all of it takes."
    )
    if told.makespan_s > told.lower_bound_s * (1 + SAME_S):
        above = told.makespan_s / told.lower_bound_s - 1 if told.lower_bound_s else 0.0
        yield f"No order and no routing takes less than {print_time(told.lower_bound_s)}: {print_percent(above)} above."
    else:
        yield "No order and no routing takes less: it is proven optimal."


def _table(told: RestExplanation) -> Iterator[str]:
    """Who has what, and does what."""
    yield "Who goes on with what (micro-batches), and what each runs"
    rows = [("", "", "summed", "under way", "operations", "again", "messages", "busy", "ends")]
    for one in told.workers:
        kept = f"{one.kept}{' (some given up)' if one.given_up else ''}"
        again = str(one.again) if one.again else ""
        received = str(one.received) if one.received else ""
        name = one.worker if one.worker != one.place else ""
        times = print_time(one.busy_s), print_time(one.ends_s)
        rows.append((one.place, name, kept, str(one.under_way), str(one.left), again, received, *times))
    shown = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in shown]
    for row in zip(*shown, strict=True):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield f"  {'  '.join(cells)}".rstrip()


def _path(told: RestExplanation) -> Iterator[str]:
    yield "What takes longest"
    for leg in told.legs:
        operations = leg.first if leg.operations == 1 else f"{leg.operations} operations, {leg.first} to {leg.last}"
        yield f"  {print_time(leg.start_s)} to {print_time(leg.end_s)}  {leg.place}  {operations}: {leg.waits}"
    if told.sums_s:
        yield f"  then sums of gradients and steps: {print_time(told.sums_s)}"


def _kept_elsewhere(told: RestExplanation) -> Iterator[str]:
    if told.sealed:
        yield f"The sums over layers {told.sealed} had ended: nothing of them is done again."
    if told.copies:
        yield "Copied"
        yield from (f"  {line}" for one in told.copies for line in wrap(one, WIDTH))
    if told.sends:
        yield "Sent again"
        yield from (f"  {line}" for one in told.sends for line in wrap(one, WIDTH))
