"""What is left of an iteration in which workers were lost: who has told what of it, and what was planned from that.

A part of the coordinator's rules (rules.py), pure as they are. When somebody is lost in the midst of an iteration all
others are told to `Regroup`, and say what they have of it. The plan for who is left is made meanwhile; once it and all
standings are there, what is left is planned from both, and comes with the next epoch. Nobody is waited for longer than
a silent worker is: who has not told by then has nothing, and drops what it has when it enters the epoch.

Where nothing is worth keeping, nobody plans what is left, or that does not stand the test (schemas/check_rest.py), the
iteration is done anew.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ...schemas.check_standing import check_standing, print_ranges
from ...schemas.conditions import HEALTHY, Conditions
from ...schemas.documents import parse_document
from ...schemas.errors import RtkError
from ...schemas.plan import Layers, Plan, place_of
from ...schemas.protocols import Hand, Resume
from ...schemas.resumption import LedgerEntry, Rest, Standing, nothing_of
from .events import PlanRest, RestPlanned
from .membership import Questions, ToldLosses, is_of_model, layers_of, seals
from .protocol import LossesTold, MicrobatchLoss, Regroup, StandingTold

Places = tuple[tuple[str, str], ...]  # workers and their places, in the order of the places
RestQuestion = tuple[str, Places, tuple[Standing, ...], Conditions]  # the plan as canonical JSON

ANEW = RestPlanned(0.0, 0, None)  # there is nothing to be kept


class Inventory:
    """What members have of the iteration under way, as far as they have told, and what is left, as far as planned.

    Attributes:
        message: that asks for it; None: nobody is asked.
        losses: that were told meanwhile.
        questions: for what is left.
    """

    def __init__(self) -> None:
        self.losses = LossBook()
        self.questions = Questions[RestQuestion, RestPlanned]()
        self.message: Regroup | None = None
        self._plan: Plan | None = None
        self._awaited: set[str] = set()
        self._told: dict[str, Standing] = {}

    def begin(self, message: Regroup, plan: Plan) -> None:
        """All are asked, or all who are left asked anew.

        Args:
            message: what they are told.
            plan: that they have executed until now.
        """
        self._clear()
        self.message, self._plan = message, plan
        self._awaited = {member.worker for member in message.members}

    def begin_epoch(self, epoch: int, rest: Rest | None) -> None:
        """An epoch begins, with what is left of an iteration, or with all of it."""
        self._clear()
        self.losses.begin_epoch(epoch, rest)

    def _clear(self) -> None:
        self.message = None
        self._told.clear()
        self.questions.clear()

    def covers(self, names: Collection[str]) -> bool:
        """Whether exactly these have been asked."""
        return self.message is not None and {member.worker for member in self.message.members} == set(names)

    @property
    def is_complete(self) -> bool:
        """Whether members were asked, and nobody is waited for any more."""
        return self.message is not None and not self._awaited

    def note(self, name: str, holds: Sequence[Layers] | None, told: StandingTold) -> str | None:
        """A member has told what it has; gives what is wrong with that, in words.

        Args:
            name: of the member.
            holds: the ranges of layers that it holds; None where it has come anew and is not ready yet: what it has is
                from before it was lost, and nobody reckons with that.
            told: what it has said; of no use where it was not asked, or is not waited for any more.
        """
        if self.message is None or told.epoch != self.message.epoch or name not in self._awaited:
            return None
        wrong = None if holds is None else self._wrong(name, tuple(holds), told)
        if wrong is None:
            self._awaited.discard(name)
            self._told[name] = nothing_of(name, None) if holds is None else told.standing
        return wrong

    def _wrong(self, name: str, holds: tuple[Layers, ...], told: StandingTold) -> str | None:
        assert self.message is not None and self._plan is not None
        if told.iteration != self.message.iteration:
            return f"it is of iteration {told.iteration}, and {self.message.iteration} is under way"
        if told.standing.worker != name:
            return f"it is that of worker {told.standing.worker}"
        if told.standing.holds != holds:
            said, known = print_ranges(told.standing.holds), print_ranges(holds)
            return f"it is of other layers ({said}) than the worker holds ({known})"
        return check_standing(layers_of(self._plan), self._plan.total_microbatches(), told.standing)

    def give_up(self) -> None:
        """Who has not told has nothing."""
        self._awaited.clear()

    def standings(self, crew: Iterable[Hand], members: Mapping[str, Sequence[Layers] | None]) -> tuple[Standing, ...]:
        """Of all who will be there, in the order of their names.

        Args:
            crew: those.
            members: what each holds; who is none has nothing.
        """
        names = sorted(hand.worker for hand in crew)
        return tuple(self._told.get(name) or nothing_of(name, members.get(name)) for name in names)

    def left(self, question: RestQuestion) -> RestPlanned | PlanRest | None:
        """What is left, or what has that planned; None while it is not known, and somebody sees to it."""
        if self.message is None or self._plan is None:
            return ANEW
        if not self.is_complete:
            return None
        if all(standing.is_empty for standing in question[2]):
            return ANEW
        answer = self.questions.answer(question)
        if answer is None:
            return self._ask(question)
        last = layers_of(self._plan)
        told = self.losses.of(self.message.iteration).values()
        known = {loss[0] for layers, loss in told if is_of_model(loss, layers, last)}
        if answer.rest is not None and seals(answer.rest, last - 1) and len(known) < self._plan.total_microbatches():
            return replace(answer, rest=None, reason="losses of some micro-batches are lost with who told them")
        return answer

    def _ask(self, question: RestQuestion) -> PlanRest | None:
        assert self.message is not None
        number = self.questions.ask(question)
        if number is None:
            return None
        plan, seats, standings, conditions = question
        following = parse_document(plan.encode(), Plan, "the plan")
        return PlanRest(number, following, seats, self.message.iteration, standings, conditions)


def planned_rest(request: PlanRest, resume: Resume | None) -> RestPlanned:
    """The answer to a question for what is left, the time to be filled in.

    Args:
        request: the question.
        resume: plans it; None: nobody does.
    """
    if resume is None:
        return RestPlanned(0.0, request.number, None, "nobody plans what is left")
    seats = tuple((worker, place_of(place)) for worker, place in request.seats)
    try:
        rest = resume(request.plan, seats, request.iteration, request.standings, request.conditions)
    except RtkError as error:
        return RestPlanned(0.0, request.number, None, error.what)
    except Exception as error:
        return RestPlanned(0.0, request.number, None, f"the planner failed: {error!r}")
    wrong = _misfit(rest, request)
    return RestPlanned(0.0, request.number, None if wrong else rest, wrong or "")


def rehearse(plan: Plan, resume: Resume) -> None:
    """Plan once what is left of an iteration, so that what this loads is there when the first worker dies.

    Args:
        plan: that the job begins with; the first micro-batch of each pipeline is taken to be done.
        resume: plans it.
    """
    workers = plan.live_workers()
    standings = []
    for worker in sorted(workers, key=lambda one: one.name):
        holds, done = plan.layers_of(worker), plan.microbatch_offset(worker.pipeline)
        has = tuple(LedgerEntry(layers, (done,)) for layers in holds)
        standings.append(replace(nothing_of(worker.name, holds), ledger=has))
    places = tuple((worker.name, worker.name) for worker in workers)
    planned_rest(PlanRest(0, plan, places, 0, tuple(standings), HEALTHY), resume)


def _misfit(rest: Rest, request: PlanRest) -> str | None:
    """Why what is left, as it was planned, must not be done; None where it may."""
    seated = dict(request.seats)
    if rest.iteration != request.iteration or rest.standings != request.standings:
        return "what was planned is left of something else"
    if {one.worker: one.place for one in rest.workers} != seated:
        return "what was planned is for other workers"
    from ...schemas.check import in_brief
    from ...schemas.check_rest import check_rest  # with numpy, which nobody needs before

    problems = check_rest(request.plan, rest)
    return f"what was planned is wrong: {in_brief(problems)}" if problems else None


class LossBook:
    """What workers have told of losses before they summed gradients, for it counts where these sums outlive them."""

    def __init__(self) -> None:
        self._since = 0  # the epoch in which the iteration under way was begun anew last
        self._told: dict[int, dict[tuple[int, int], tuple[Layers, MicrobatchLoss]]] = {}  # by iteration

    def add(self, layers: Layers, told: LossesTold, committed: int) -> None:
        """A worker has told some; the latest of a micro-batch and a stage counts.

        Args:
            layers: that it holds, the first of them where they are in several ranges.
            told: by it.
            committed: the last iteration that is.
        """
        if told.epoch >= self._since and told.iteration > committed:
            stages = ((layers, told.losses), *told.stages)
            found = {(loss[0], own[1]): (own, loss) for own, losses in stages for loss in losses}
            self._told.setdefault(told.iteration, {}).update(found)

    def of(self, iteration: int) -> ToldLosses:
        """Those of an iteration."""
        return self._told.get(iteration, {})

    def begin_epoch(self, epoch: int, rest: Rest | None) -> None:
        """What is under way is dropped, but for what there is a rest of."""
        if rest is None:
            self._since = epoch
        self._told = {n: told for n, told in self._told.items() if rest is not None and n == rest.iteration}

    def commit(self, iteration: int) -> None:
        """An iteration is committed, and all before it."""
        self._told = {n: told for n, told in self._told.items() if n > iteration}
