"""Who plays which place of a plan, who copies whose state, and who saves it."""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from math import fsum, isfinite, sqrt
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from ...schemas.checkpoint import print_layers
from ...schemas.errors import InvalidInputError
from ...schemas.plan import Layers, Place, Plan, Worker, merged_ranges, name_of
from ...schemas.protocols import Hand
from ...schemas.resumption import Rest, layers_in
from .announcements import IterationCommitted, ModelEvaluated
from .events import Planned, RestPlanned
from .progress import FAILED
from .protocol import (
    Copy,
    Epoch,
    Hello,
    Leaving,
    MeetingPoint,
    MicrobatchLoss,
    RankAssignment,
    Ready,
    Refused,
    Saver,
    StepTerms,
    Vote,
)
from .rank_merging import are_unlike

Seats = dict[Place, str]  # the workers' names by their places
# Losses that workers have told before they summed gradients, by micro-batch and the end of the worker's layers, and all
# of these: of other stages' workers it is what layers add to the loss.
ToldLosses = Mapping[tuple[int, int], tuple[Layers, MicrobatchLoss]]


@dataclass
class Member:
    """A worker with a place.

    Attributes:
        name: `k/i`, by which it was started; its place may have become another.
        connection: where it is reached; None while it is expected back after a restart of the coordinator.
        store: host:port of its meeting place.
        place: what it plays in the present epoch.
        holds: the layers, ranges [first, stop), whose state, as of the last commit, it has: until it says that it is
            ready, those from before the epoch.
        leaving: by which it has said that it will go at the next commit; None: it has not.
        others: host:port of its meeting places on other networks.
        regroups: whether it can tell what it has of an iteration under way.
        further: where its ranks after the first are met.
    """

    name: str
    connection: int | None
    store: str
    place: Place
    holds: tuple[Layers, ...] | None = None
    leaving: Leaving | None = None
    others: tuple[str, ...] = ()
    regroups: bool = False
    further: tuple[MeetingPoint, ...] = ()

    @property
    def is_leaving(self) -> bool:
        """Whether it has said that it will go."""
        return self.leaving is not None

    def unseated(self, now_s: float, gives: bool) -> "Newcomer":
        """It has no place any more, and waits for one; whether it `gives` others what it holds first."""
        holds = self.holds if gives else None
        return Newcomer(
            self.name, self.store, 0, now_s, self.others, self.regroups, self.further, holds, self.is_leaving
        )

    def seat(self) -> RankAssignment:
        """Where it sits, as an epoch says it."""
        return RankAssignment(name_of(self.place), self.name, self.store, self.others, self.further)


@dataclass(frozen=True)
class Newcomer:
    """A worker that waits for a place.

    Attributes:
        not_before: the first iteration that it wants to take part in.
        holds: as of a member, where it has lost its seat, and others may still need what it has; else None.
        is_leaving: whether it was told to go, and will as soon as nobody needs what it has.
    """

    name: str
    store: str
    not_before: int
    since_s: float
    others: tuple[str, ...] = ()
    regroups: bool = False
    further: tuple[MeetingPoint, ...] = ()
    holds: tuple[Layers, ...] | None = None
    is_leaving: bool = False

    @classmethod
    def of(cls, hello: Hello, now_s: float) -> "Newcomer":
        """Who has said hello."""
        return cls(hello.worker, hello.store, hello.not_before, now_s, hello.others, hello.regroups, hello.further)

    def seated(self, connection: int) -> Member:
        """It has a place, of which nobody knows yet."""
        return Member(
            self.name, connection, self.store, (0, 0), self.holds, None, self.others, self.regroups, self.further
        )

    def seat(self) -> RankAssignment:
        """Where it is met, as an epoch says it of who gives what it holds."""
        return RankAssignment("", self.name, self.store, self.others, self.further)


def coming(newcomers: Mapping[int, Newcomer], iteration: int) -> dict[str, int]:
    """The connections of newcomers whose time has come before an iteration, by name, in the order of their arrival."""
    found: dict[str, int] = {}
    for connection, newcomer in newcomers.items():
        if newcomer.not_before <= iteration and not newcomer.is_leaving:
            found.setdefault(newcomer.name, connection)
    return found


def givers(newcomers: Iterable[Newcomer]) -> tuple[RankAssignment, ...]:
    """Those who have lost their seats, and may have what others still lack."""
    return tuple(one.seat() for one in newcomers if one.holds is not None)


def excused(newcomers: Mapping[int, Newcomer]) -> dict[int, Newcomer]:
    """The same, of whom nobody needs anything: others have what these hold, or do without."""
    return {number: replace(one, holds=None) for number, one in newcomers.items()}


def live_places(plan: Plan) -> tuple[Place, ...]:
    """The places of a plan by rank."""
    return tuple((worker.pipeline, worker.stage) for worker in plan.live_workers())


def layers_at(plan: Plan, place: Place) -> tuple[Layers, ...]:
    """The layers of a place: ranges [first, stop)."""
    return plan.layers_of(Worker(*place))


def layers_of(plan: Plan) -> int:
    """How many layers the model has."""
    return plan.templates[0].stages[-1].layers[1]


def copies(wanted: Sequence[Sequence[Layers]], holds: Sequence[Sequence[Layers] | None]) -> tuple[Copy, ...]:
    """Who sends whom which layers, so that everybody gets what it lacks and no source sends much more than others.

    Args:
        wanted: by rank, the layers that each is to hold, in ranges.
        holds: by rank, the layers whose state each has until now.

    Raises:
        LookupError: nobody has a layer; the error's argument is its number.
    """
    sent = [0] * len(wanted)
    found = []
    for target, (layer, stop) in ((target, layers) for target, ranges in enumerate(wanted) for layers in ranges):
        own = holds[target] or ()
        while layer < stop:
            if (until := _end_of_range(own, layer)) is not None:
                layer = until
                continue
            ends = {rank: _end_of_range(held or (), layer) for rank, held in enumerate(holds)}
            stops = {rank: end for rank, end in ends.items() if end is not None}
            if not stops:
                raise LookupError(layer)
            source = min(stops, key=lambda rank: (sent[rank], rank))
            until = min(stop, stops[source], *(first for first, _ in own if first > layer))
            found.append(Copy(source, target, (layer, until)))
            sent[source] += until - layer
            layer = until
    return tuple(found)


def _end_of_range(ranges: Iterable[Layers], layer: int) -> int | None:
    """The end of the range that a layer is in."""
    return next((stop for first, stop in ranges if first <= layer < stop), None)


def savers(
    layers: int, holdings: Iterable[tuple[str, Sequence[Layers] | None]], together: bool = False
) -> tuple[Saver, ...]:
    """Who saves which layers: each layer once, as far as anybody holds it, in the order of the layers.

    Args:
        layers: how many the model has.
        holdings: workers and what they hold, in ranges, those that should rather save first.
        together: whether all that hold a layer save it together, for each has a part of the optimizer's state.
    """
    held = [(worker, own) for worker, ranges in holdings for own in ranges or ()]
    if together:
        edges = sorted({edge for _, own in held for edge in own})
        parts = [(first, stop) for first, stop in pairwise(edges) if stop <= layers]
        return tuple(
            Saver(worker, part) for part in parts for worker, own in held if own[0] <= part[0] and part[1] <= own[1]
        )
    found, layer = [], 0
    while layer < layers:
        holder = next(((worker, own) for worker, own in held if own[0] <= layer < own[1]), None)
        if holder is None:
            layer += 1
            continue
        found.append(Saver(holder[0], (layer, holder[1][1])))
        layer = holder[1][1]
    return tuple(found)


def leavers(members: Mapping[str, Member], seated: Iterable[str], is_sharded: bool) -> tuple[str, ...]:
    """Members that go at the next change: all who were asked to.

    Where the optimizer is sharded, each part of its state is with two workers only: then one of a layer's holders goes
    at a time, and nobody while somebody is lost. The others go one change later. Who goes only if it is spared
    (`Leaving.if_spared`) does so alone, while nobody is lost and others have the state of all its layers.

    Args:
        members: by name.
        seated: the names of those who sit in the present epoch; who is no member any more is lost.
        is_sharded: whether parts of a state are to be kept.
    """
    leaving = [one for one in members.values() if one.leaving is not None and not one.leaving.if_spared]
    are_all_there = all(name in members for name in seated)
    if not leaving:
        spared = (one.name for one in members.values() if one.is_leaving and are_all_there and _is_spared(one, members))
        return tuple(islice(spared, 1))
    if not is_sharded:
        return tuple(one.name for one in leaving)
    found: list[str] = []
    taken = set[int]()
    for one in leaving if are_all_there else ():
        layers = layers_in(one.holds or ())
        if layers.isdisjoint(taken):
            found.append(one.name)
            taken |= layers
    return tuple(found)


def _is_spared(member: Member, members: Mapping[str, Member]) -> bool:
    """Whether others have the state of all that a member has."""
    others = (layers_in(one.holds or ()) for one in members.values() if one is not member)
    return layers_in(member.holds or ()) <= set[int]().union(*others)


def state_lost(layers: Collection[int]) -> str:
    """What is wrong where some layers have a part whose state no worker has."""
    numbers = print_layers(merged_ranges((layer, layer + 1) for layer in layers))
    return (
        f"the optimizer's state of {numbers} is lost: of a part of it both workers that held it are gone "
        "(--no-shard-optimizer keeps all of it on every worker)"
    )


def evaluated(losses: Sequence[MicrobatchLoss], seconds: float) -> ModelEvaluated:
    """What is announced of held-out micro-batches, whose evaluation took so many seconds."""
    count = fsum(count for _, _, count in losses)
    return ModelEvaluated(loss=mean_loss(losses), count=count, seconds=seconds)


def nothing_counted(iteration: int) -> str:
    """What is wrong with an iteration whose losses count nothing."""
    return (
        f"the loss of every micro-batch of iteration {iteration} is a sum of nothing: its count is 0\n"
        "at: the loss function\ndo: see whether all targets are ignored, or return a mean alone"
    )


# The votes of an epoch: who has reduced which iteration's gradients, and whether nothing was lost or done twice.


class VoteCounter:
    """The votes of one epoch.

    Args:
        plan: what is executed.
        rest: what is left of the first iteration; None: all.
        losses: of that, as they were told before the sums; where those are sealed they count, whoever is gone since.
    """

    def __init__(self, plan: Plan, rest: Rest | None = None, losses: ToldLosses = MappingProxyType({})) -> None:
        self._rest = rest
        self._wanted = list(range(plan.total_microbatches()))
        self._layers = {place: layers_at(plan, place) for place in live_places(plan)}
        self._number_of_layers = layers_of(plan)
        parts = {self._part(loss, layers): loss for layers, loss in losses.values()}
        self._told = {part: loss for part, loss in parts.items() if self._outlives(part)}
        self._votes: dict[int, dict[Place, Vote]] = {}

    def add(self, place: Place, vote: Vote) -> None:
        """Count a vote; the same one again changes nothing."""
        self._votes.setdefault(vote.iteration, {})[place] = vote

    def is_complete(self, iteration: int, places: Collection[Place]) -> bool:
        """Whether everybody has voted: nobody else can."""
        return len(self._votes.get(iteration, ())) == len(places)

    def miscount(self, iteration: int) -> str | None:
        """What is wrong with an iteration in which not every layer saw every micro-batch exactly once."""
        done = [entry for place, vote in self._votes[iteration].items() for entry in self._ledger(place, vote)]
        sealed = self._sealed(iteration)
        held = (layers for ranges in self._layers.values() for layers in ranges)
        cuts = sorted({cut for layers in [*held, *(own for own, _ in done), *sealed] for cut in layers})
        for first, stop in pairwise(cuts):
            if any(layers[0] <= first < layers[1] for layers in sealed):
                continue  # the sum has ended, and with it was every micro-batch of its time
            numbers = [n for layers, own in done if layers[0] <= first < layers[1] for n in own]
            if sorted(numbers) != self._wanted:
                missing = sorted(set(self._wanted) - set(numbers))
                double = sorted({n for n in numbers if numbers.count(n) > 1})
                where = print_layers([(first, stop)])
                return f"{where} lost micro-batches {missing} and did {double} twice in iteration {iteration}"
        return None

    def _ledger(self, place: Place, vote: Vote) -> Iterator[tuple[Layers, tuple[int, ...]]]:
        """The micro-batches in a worker's own part of the sums, by layers that it holds."""
        for first, stop in self._layers[place]:
            if vote.ledger is None:
                yield (first, stop), vote.microbatches
            for entry in vote.ledger or ():
                yield (max(first, entry.layers[0]), min(stop, entry.layers[1])), entry.microbatches

    def _sealed(self, iteration: int) -> tuple[Layers, ...]:
        return self._rest.sealed if self._rest is not None and self._rest.iteration == iteration else ()

    def is_finite(self, iteration: int) -> bool:
        """Whether all gradients are finite, and so is their norm."""
        squares = self._squares(iteration)
        is_small = None not in squares and isfinite(sum(one for one in squares if one is not None))
        return is_small and all(vote.is_finite for vote in self._votes[iteration].values())

    def terms(self, iteration: int, taken: int) -> StepTerms:
        """What its step has to know; the norm only where that of every layer was told, and is finite.

        Args:
            iteration: a complete one.
            taken: steps taken before it.
        """
        losses, squares = self._losses(iteration), self._squares(iteration)
        # Nobody tells losses on the virtual clock.
        count = fsum(count for _, _, count in losses) if losses else float(len(self._wanted))
        is_whole = len(squares) == self._number_of_layers and count > 0 and self.is_finite(iteration)
        return StepTerms(count, sqrt(sum(one or 0.0 for one in squares)) / count if is_whole else None, taken)

    def is_foreseen(self, iteration: int, terms: StepTerms) -> bool:
        """Whether everybody who steps before the commit takes a step of these terms."""
        return all(vote.ahead is None or vote.ahead.holds(terms) for vote in self._votes[iteration].values())

    def loss(self, iteration: int) -> float | None:
        """The mean loss, the same to the last bit whoever executed what; None where it is not finite or not known."""
        return mean_loss(self._losses(iteration))

    def committed(self, iteration: int, terms: StepTerms, time_s: float, workers: int) -> IterationCommitted:
        """What is announced of an iteration that is committed.

        Args:
            iteration: a complete one.
            terms: its own.
            time_s: that it took.
            workers: how many took part.
        """
        votes = (vote for _, vote in sorted(self._votes[iteration].items()))
        return IterationCommitted(
            loss=self.loss(iteration),
            iteration_time_s=time_s,
            live_workers=workers,
            skipped=not self.is_finite(iteration),
            count=terms.count,
            grad_norm=terms.norm,
            learning_rate=next((vote.learning_rate for vote in votes if vote.learning_rate is not None), None),
        )

    def evaluation(self, iteration: int) -> tuple[tuple[MicrobatchLoss, ...], float]:
        """The losses of held-out micro-batches before it, in their order, and how long that took."""
        votes = self._votes[iteration].values()
        losses = sorted((loss for vote in votes for loss in vote.evaluated), key=lambda loss: loss[0])
        return tuple(losses), max(vote.evaluation_s for vote in votes)

    def _squares(self, iteration: int) -> list[float | None]:
        """The squared norms that were told, in the layers' order."""
        told = {layer: square for vote in self._votes[iteration].values() for layer, square in vote.norms}
        return [told[layer] for layer in sorted(told)]

    def _losses(self, iteration: int) -> list[MicrobatchLoss]:
        """Of each micro-batch and stage once; in logs of before these are shares of the mean.

        Where no progress is kept it is what all stages of a worker come to together.
        """
        found = dict[tuple[int, Layers | Place], MicrobatchLoss]()
        for place, vote in self._votes[iteration].items():
            for loss in vote.losses:
                told = loss if len(loss) == 3 else (*loss, 1 / len(self._wanted))
                found[(loss[0], place) if self._rest is None else self._part(told, self._layers[place][0])] = told
            found |= {self._part(loss, layers): loss for layers, losses in vote.stages for loss in losses}
        told_before = self._told if self._sealed(iteration) else {}
        return [*{**told_before, **found}.values()]

    def _part(self, loss: MicrobatchLoss, layers: Layers) -> tuple[int, Layers]:
        """A micro-batch, and the layers whose loss it is: the last one's is the model's, others only add to it.

        A worker that holds the last layer no more tells of it still, where it has had a part in the sum.
        """
        last = self._number_of_layers
        return loss[0], (last - 1, last) if is_of_model(loss, layers, last) else layers

    def _outlives(self, part: tuple[int, Layers]) -> bool:
        """Whether a loss counts, whoever has told it: the sums are there that it came with."""
        rest = self._rest
        return rest is not None and all(seals(rest, layer) for layer in range(*part[1]))

    def forget(self, iteration: int) -> None:
        """The votes of a committed iteration are of no more use."""
        del self._votes[iteration]


def seals(rest: Rest, layer: int) -> bool:
    """Whether the sum over a layer's gradients has ended before; the last one's losses then are not computed again."""
    return any(first <= layer < stop for first, stop in rest.sealed)


def is_of_model(loss: MicrobatchLoss, layers: Layers, number_of_layers: int) -> bool:
    """Whether a loss that a worker with these layers has told is the model's, and not what layers add to it."""
    return loss[2] > 0 or layers[1] == number_of_layers


def mean_loss(losses: Collection[MicrobatchLoss]) -> float | None:
    """The mean over all that the losses are sums of, whatever their order; None where it is not finite or not known."""
    sums = [total for _, total, _ in losses if total is not None]
    count = fsum(count for _, _, count in losses)
    return fsum(sums) / count if count > 0 and len(sums) == len(losses) else None


# What was asked for to be planned, and the answers.


Crew = tuple[Hand, ...]
Question = TypeVar("Question", bound=Hashable)
Answer = TypeVar("Answer", Planned, RestPlanned)


class Questions(Generic[Question, Answer]):
    """What is to be planned, in every case that could be; each is asked once, under a number of its own."""

    def __init__(self) -> None:
        self._count = 0
        self._asked: dict[Question, int] = {}
        self._answers: dict[int, Answer] = {}

    def ask(self, question: Question) -> int | None:
        """The number under which to ask; None where it was asked already."""
        if question in self._asked:
            return None
        self._count += 1
        self._asked[question] = self._count
        return self._count

    def answer(self, question: Question) -> Answer | None:
        """The answer, where it is there."""
        return self._answers.get(self._asked.get(question, -1))

    def note(self, answer: Answer) -> None:
        """An answer has come; one to a question of before is of no use."""
        if answer.number in self._asked.values():
            self._answers[answer.number] = answer

    def clear(self) -> None:
        """Things are otherwise, such as by another plan that is running: all questions are new."""
        self._asked.clear()
        self._answers.clear()

    def restart(self) -> None:
        """Answers that were under way will not come."""
        self._asked = {question: number for question, number in self._asked.items() if number in self._answers}


def held_by(crew: Iterable[Hand]) -> Iterator[Layers]:
    """The layers that somebody of a crew has."""
    return (layers for hand in crew for layers in hand.layers or ())


def seats_of(crew: Crew) -> tuple[tuple[str, str], ...]:
    """Everybody where he is, as an answer says it."""
    return tuple((hand.worker, name_of(hand.place)) for hand in crew if hand.place is not None)


# Whether states of layers that are to be equal are, by the checksums that workers have said: copies, and at a job's
# start what each has made for itself. So are sums of gradients that several workers have.


class Checksums:
    """Those of one epoch."""

    def __init__(self) -> None:
        self._said: dict[str, dict[int, str]] = {}
        self._sums: dict[str, dict[int, str]] = {}

    def add(self, worker: str, ready: Ready, epoch: Epoch) -> Iterator[tuple[str, str]]:
        """What a worker has said; gives (source, target) of every copy of the epoch known to be wrong by now."""
        self._said[worker], self._sums[worker] = dict(ready.checksums), dict(ready.sums)
        for copy in epoch.copies:
            source, target = (epoch.seats[rank].worker for rank in (copy.source, copy.target))
            sums, others = self._said.get(source, {}), self._said.get(target, {})
            told = [layer for layer in range(*copy.layers) if layer in sums and layer in others]
            if any(are_unlike(sums[layer], others[layer]) for layer in told):
                yield source, target

    def covers(self, workers: Collection[str]) -> bool:
        """Whether all of these have said theirs."""
        return self._said.keys() >= {*workers}

    def contradiction(self, worker: str, is_first: bool) -> tuple[str, int] | None:
        """What two have otherwise that must be equal, where one of them is this worker, and the exit code for that.

        Args:
            worker: who has said something.
            is_first: whether everybody has made its state for itself.
        """
        if (torn := _unequal(self._sums, worker)) is not None:
            other, layer = torn
            return f"workers {other} and {worker} have other sums of layer {layer}'s gradients", FAILED
        if is_first and (unlike := _unequal(self._said, worker)) is not None:
            other, layer = unlike
            said = (
                f"workers {other} and {worker} begin with other values of layer {layer}\n"
                "at: the model's initial values\n"
                "do: let them follow from torch's generator, which rtk seeds, or from a file that all workers have"
            )
            return said, InvalidInputError.exit_code
        return None


def _unequal(said: Mapping[str, Mapping[int, str]], worker: str) -> tuple[str, int] | None:
    """Who has said another checksum of some layer than this worker, and the layer; None where nobody has."""
    own = said[worker]
    return next(
        (
            (other, layer)
            for other, sums in (sorted(said.items()) if own else ())
            for layer in sorted(own.keys() & sums.keys())
            if are_unlike(sums[layer], own[layer])
        ),
        None,
    )


# Whether a worker that says hello is of this job, and may come in.


def stranger_to(
    hello: Hello,
    plan: str,
    settings: dict[str, Any] | None,
    names: Collection[str],
    progress: tuple[int, int],
) -> str | None:
    """Why a worker does not belong to a job; None where it does.

    Args:
        hello: what it said.
        plan: the digest of the job's plan.
        settings: what all workers have in common; None before the first has come.
        names: those that workers may have.
        progress: the job's epoch and its last committed iteration.
    """
    if hello.plan != plan:
        return f"its plan (sha256 {hello.plan[:12]}…) is not this job's (sha256 {plan[:12]}…)"
    if settings is not None and hello.job != settings:
        return f"its settings are not this job's: {', '.join(_unlike(hello.job, settings))}"
    if hello.worker not in names:
        return f"the plan has no worker {hello.worker}"
    known = hello.returning
    if known is not None and progress < (known.epoch, known.committed):
        return "this coordinator does not know the run; start it with the log of the one before it"
    return None


def _unlike(theirs: Mapping[str, Any], ours: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Where settings differ, each by its name, after those of the settings that it is within."""
    for key in sorted({*theirs, *ours}):
        one, other = theirs.get(key), ours.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _unlike(one, other, f"{within}{key}/")
        elif one != other:
            yield f"{within}{key}"


def refusal_of_double(hello: Hello, waiting: Iterable[Newcomer], is_seated: bool, committed: int) -> Refused | None:
    """Refuse a worker for the time being whose name is there already: its predecessor may not be known to be dead.

    Args:
        hello: what it said.
        waiting: those who have no place yet.
        is_seated: whether one of its name has a place, and is not awaited.
        committed: the job's last committed iteration.
    """
    is_waiting = any((one.name, one.not_before) == (hello.worker, hello.not_before) for one in waiting)
    if is_waiting or (is_seated and hello.not_before <= committed + 1):
        return Refused(f"worker {hello.worker} is there already", retry=True)
    return None
