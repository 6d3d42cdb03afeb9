"""The coordinator's rules: a state machine, events in (events.py) and instructions out, without I/O, clock or chance.

Membership is by epochs. Whenever it changes, all live workers leave the iteration under way, form new groups and go on
with the plan for who is left. Where somebody is lost in the midst of an iteration, they do only what is left of it
(regrouping.py), else all of it; an iteration counts once every worker of the epoch has voted that its gradients are
reduced, and only then does anybody step the optimizer (with a staggered optimizer: make its step final). What was
committed is therefore never lost, and what was not leaves no trace.

Changes that can wait, such as a newcomer, a worker that was asked to leave, or an examination of suspects (for which an
epoch begins with the same plan and seats), happen between two iterations: the commit before says which iteration is the
last one of the epoch. With a staggered optimizer stages overlap by one iteration, so that commit n announces the end
after n + 1.

What a step has to know of the whole iteration (`StepTerms`) goes with the commit. Who steps before it says what it
takes for granted; where that was wrong for somebody, the iteration is not committed but done anew, and all wait.

The rules are level-triggered: an event changes the state, and `_advance` does whatever the state calls for; a second
death during a change, or a plan that arrives too late, needs no rule of its own.

"SlipStream" (ReCycle) section 4 has such a coordinator and rolls optimizers back where an iteration was interrupted;
torchft's `should_commit` is the vote. We vote, and roll back only where the optimizer is staggered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ...schemas.checkpoint import missing_layers, print_layers
from ...schemas.conditions import Conditions
from ...schemas.documents import canonical, digest, parse_document
from ...schemas.errors import InvalidInputError
from ...schemas.plan import Plan, name_of, place_of
from . import announcements as said
from .announcements import Announcement, announcements_of
from .conditions import Chronicle, Circumstances, unreachable
from .events import (
    Announce,
    Arrived,
    Drop,
    Elapsed,
    Event,
    Finish,
    Instruction,
    Lost,
    MakePlan,
    Noticed,
    Planned,
    PlanRest,
    Restarted,
    RestPlanned,
    Said,
    StopAsked,
    Tell,
    Wake,
)
from .membership import (
    Checksums,
    Crew,
    Member,
    Newcomer,
    Questions,
    Seats,
    VoteCounter,
    coming,
    copies,
    evaluated,
    givers,
    held_by,
    layers_at,
    layers_of,
    live_places,
    nothing_counted,
    refusal_of_double,
    seats_of,
    state_lost,
    stranger_to,
)
from .progress import FAILED, FUTILE_EPOCHS, HUNG, INTERRUPTED, SPLIT, UNEXPLAINED, Judgement, Standstill
from .protocol import (
    Commit,
    End,
    Epoch,
    FromCoordinator,
    Halt,
    Hello,
    Job,
    Leaving,
    LossesTold,
    Published,
    Ready,
    Refused,
    Regroup,
    Saved,
    Saver,
    StandingTold,
    StateLost,
    StepTerms,
    Suspect,
    Vote,
    Whereabouts,
)
from .quorum import Quorum
from .regrouping import ANEW, Inventory
from .roster import Roster
from .saving import Checkpoints

HALT_S = 60.0  # how long the last workers may take to save what they hold


class CoordinatorRules:
    """The state of a job, and what each event makes of it.

    Args:
        job: what to do.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.phase: Literal["gathering", "running", "halting", "ended"] = "gathering"
        self.epoch = 0
        self.committed = job.first_iteration - 1
        self.plan = job.plan
        self._roster = Roster()
        self._digest = digest(job.plan)
        self._names = frozenset(worker.name for worker in job.plan.workers)
        self._layers = layers_of(job.plan)
        self._questions = Questions[tuple[Crew, Conditions], Planned]()  # for the plan that follows the running one
        self._quorum = Quorum(job)
        self._inventory = Inventory()
        self._redone: int | None = None  # the iteration that is to be done anew, for its rest has come to nothing
        self.circumstances = Circumstances()
        self._standstill = Standstill(job)
        self._tally = VoteCounter(job.plan)
        self._checkpoints = Checkpoints(job)
        self._last = job.iterations - 1
        self._stops_after: int | None = None  # the iteration that was under way when the job was asked to stop
        self._is_draining = False
        self._must_reform = False
        self._was_skipped = False
        self._terms: StepTerms | None = None  # of the last committed iteration
        self._taken = job.steps  # until then
        self._is_void = False  # what is voted in this epoch from now on
        self._unforeseen: int | None = None  # the iteration in which somebody stepped with other terms than its own
        self._wants_evaluation = False  # after the last iteration
        self._is_suspected = False
        self._watches = 0  # how often the watch for a standstill has begun
        self._checksums = Checksums()
        self._epoch_message: Epoch | None = None
        self._commit_message: Commit | None = None
        self._halt_message: Halt | None = None
        self._end: End | None = None
        self._chronicle = Chronicle()
        self._now_s = 0.0
        self._out: list[Instruction] = []

    @property
    def members(self) -> dict[str, Member]:
        """Who has a place, by name."""
        return self._roster.members

    def handle(self, *events: Event) -> list[Instruction]:
        """What to do now that this has happened, or all this at the same moment."""
        self._out = []
        matters = [self._take(event) for event in events]
        if any(matters):
            self._advance()
        return self._out

    def _take(self, event: Event) -> bool:
        """Note what has happened; gives whether anything may follow from it."""
        self._now_s = event.now_s
        match event:
            case Arrived():
                self._arrive(event)
            case Lost():
                self._lose(event.connection, event.reason)
            case Said(connection=connection, message=StandingTold() | LossesTold() as told):
                return self._changes(connection, told)  # of thousands of workers one after the other
            case Said():
                self._listen(event)
            case Planned() | RestPlanned() | Noticed():
                self._learn(event)
            case Elapsed():
                self._elapse(event.timer)
            case Restarted():
                self._restart()
            case StopAsked() if self._stops_after is None:
                self._stops_after = self.committed + 1
                self._announce(said.JobStopping(), self._stops_after)
        return True

    def _learn(self, event: Planned | RestPlanned | Noticed) -> None:
        """The plan, or what is left, is there that was asked for, or a monitor has found something."""
        match event:
            case Planned():
                self._chronicle.reach("plan", self._now_s)
                self._questions.note(event)
            case RestPlanned():
                self._chronicle.reach("rest", self._now_s)
                self._inventory.questions.note(event)
            case Noticed():
                for found in self.circumstances.note(event.conditions):
                    self._announce(found, self.committed + 1)

    # Who is there

    def _arrive(self, event: Arrived) -> None:
        hello = event.hello
        returning = self.members.get(hello.worker) if hello.worker in self._roster.awaited else None
        refusal = self._refusal(hello)
        if refusal is not None:
            self._tell(event.connection, refusal)
            self._out.append(Drop(event.connection))
            self._announce(said.WorkerRefused(worker=hello.worker, reason=refusal.reason))
        elif returning is not None and hello.returning is not None:
            self._take_back(returning, event.connection, hello)
        else:
            if returning is not None:  # another process in place of the one that was awaited
                self._lose_member(returning, "its process was replaced")
            self._roster.settings = self.circumstances.settings = hello.job
            self._wants_evaluation = self._wants_evaluation or hello.evaluates
            if hello.worker not in self.members:
                self.circumstances.expect(hello.worker, hello.slowdown)
            self._roster.newcomers[event.connection] = Newcomer.of(hello, event.now_s)

    def _refusal(self, hello: Hello) -> Refused | None:
        if self.phase in ("halting", "ended"):
            return Refused("the job is over")
        reason = stranger_to(hello, self._digest, self._roster.settings, self._names, (self.epoch, self.committed))
        if reason is None:
            seated = hello.worker in self.members and hello.worker not in self._roster.awaited
            return refusal_of_double(hello, self._roster.newcomers.values(), seated, self.committed)
        return Refused(reason)

    def _take_back(self, member: Member, connection: int, hello: Hello) -> None:
        """A member is back after a restart of the coordinator; it is told what it may have missed."""
        self._roster.take_back(member, connection, hello)
        assert hello.returning is not None
        latest = self._inventory.message or self._epoch_message
        if hello.returning.epoch < self.epoch and latest is not None:
            self._tell(connection, latest)
        elif hello.returning.committed < self.committed and self._commit_message is not None:
            self._tell(connection, self._commit_message)
        if self._halt_message is not None:
            self._tell(connection, self._halt_message)
        self._announce(said.WorkerReturned(worker=member.name))

    def _lose(self, connection: int, reason: str) -> None:
        newcomer = self._roster.newcomers.pop(connection, None)
        self._must_reform = self._must_reform or (newcomer is not None and newcomer.holds is not None)
        if newcomer is not None and self.phase == "running":
            self._announce(said.WorkerFailed(worker=newcomer.name, reason=f"{reason} while joining"))
        member = self._roster.by_connection.get(connection)
        if member is not None:
            self._lose_member(member, reason)

    def _lose_member(self, member: Member, reason: str) -> None:
        self._forget(member)
        if self.phase == "running":
            self._chronicle.change.note(f"worker {member.name} failed: {reason}", self._now_s)
        if self.phase in ("running", "halting"):
            failure = said.WorkerFailed(worker=member.name, place=name_of(member.place), reason=reason)
            self._announce(failure, self.committed + 1)

    def _forget(self, member: Member) -> None:
        self._roster.forget(member)
        self._forget_what_it_did(member)

    def _forget_what_it_did(self, member: Member) -> None:
        self.circumstances.forget(member.name)
        self._standstill.forget(member.name)
        self._checkpoints.lose(member.name)

    def _elapse(self, timer: str) -> None:
        kind, _, number = timer.partition("/")
        if kind == "suspect" and self.phase == "running" and int(number) == self.epoch and self._is_suspected:
            self._settle()
        elif kind == "gather":
            self._quorum.elapse(number)
        elif kind == "stall" and int(number) == self._watches:
            self._watch()
        elif kind == "standings" and int(number) == self.epoch:
            # Go on without what somebody has not told; whether it hangs is seen when it does not enter the epoch.
            if self._roster.awaited:  # after a restart of the coordinator
                self._wait_for_standings()
            else:
                self._inventory.give_up()
        elif kind == "return":
            for name in sorted(self._roster.awaited):
                self._lose_member(self.members[name], "did not come back to the restarted coordinator")
        elif kind == "halt" and self._checkpoints.under_way is not None:
            self._checkpoints.give_up("it took too long")
            # Whoever is to discard it, or publish what is there, may hang as well.
            if not self._checkpoints.under_way.is_over:
                self._out.append(Wake(HALT_S, "halt"))

    def _restart(self) -> None:
        """Connections are gone; members that are alive will be back."""
        self._roster.restart(keeps_members=self.phase != "gathering")
        self._questions.restart()
        self._inventory.questions.restart()
        self._checkpoints.give_up("the coordinator was restarted")
        if self.phase == "halting":
            self._checkpoints.under_way = None
        self._is_suspected = False  # what was to follow from it is forgotten
        if self.phase == "running":
            self._begin_watch()
            self._wait_for_standings()
            self._out.append(Wake(self.job.heartbeat_limit_s, "return"))
            self._announce(said.CoordinatorRestarted(), self.committed + 1)

    # What members say

    def _listen(self, event: Said) -> None:
        member = self._roster.by_connection.get(event.connection)
        if member is None:
            newcomer = self._roster.newcomers.get(event.connection)
            if newcomer is not None and isinstance(event.message, Leaving):
                self._roster.newcomers[event.connection] = replace(newcomer, is_leaving=True)
                self._dismiss_spent()
            return
        match event.message:
            case Vote() as vote if vote.epoch == self.epoch and self.phase == "running" and not self._is_void:
                self._tally.add(member.place, vote)
                self._commit_what_is_complete()
            case Ready() as ready:
                self._note_ready(member, ready)
            case StateLost(epoch, layers) if epoch == self.epoch and self.phase == "running":
                self._roll_back(layers)
            case Suspect() as suspect if suspect.epoch == self.epoch:
                self._suspect(member, suspect)
            case Whereabouts() as answer:
                self._note_whereabouts(member, answer)
            case Leaving() as leaving:
                self._note_leaving(member, leaving)
            case Saved() | Published() as written if self._checkpoints.under_way is not None:
                self._checkpoints.under_way.note(member.name, written)

    def _dismiss_spent(self) -> None:
        """Newcomers that were told to go do, but for those who have what others still lack."""
        for connection, newcomer in list(self._roster.newcomers.items()):
            if newcomer.is_leaving and newcomer.holds is None:
                del self._roster.newcomers[connection]
                self._dismiss(connection, End(0, "left as asked, before it had a place"))

    def _note_leaving(self, member: Member, leaving: Leaving) -> None:
        if not leaving.at_once or self.phase != "running":
            member.leaving = leaving
            return
        self._dismiss_leaver(member, "it is at its own end")
        # Who has just come, and has no state yet, finds nobody any more who could give it any.
        if not any(self._nothing_committed or one.holds is not None for one in self.members.values()):
            self._halt("all workers are at their own end", 0)

    def _note_ready(self, member: Member, ready: Ready) -> None:
        if ready.epoch != self.epoch:
            # It had been superseded already, and the worker holds what it was to hold there.
            had, member.holds = member.holds, ready.holds
            if had not in (None, ready.holds) and self.phase == "running":
                # The present epoch may count on it for layers that it has given up.
                self._must_reform = True
                self._chronicle.change.note(f"worker {member.name} had changed its stage already", self._now_s)
            return
        member.holds = ready.holds
        self._chronicle.note_ready(self._now_s)
        self._standstill.move(member.name, self._now_s)
        assert self._epoch_message is not None
        for source, target in self._checksums.add(member.name, ready, self._epoch_message):
            if target in self.members:
                self._expel(self.members[target], f"its copy of worker {source}'s state is not equal to it")
        if self._checksums.covers(self._roster.seats.values()):  # they have what givers had
            self._roster.excuse()
        wrong = self._checksums.contradiction(member.name, self._epoch_message.nothing_committed)
        if wrong is not None and self.phase == "running":
            self._halt(*wrong)

    def _expel(self, member: Member, reason: str, exit_code: int = FAILED) -> None:
        if member.connection is not None:
            self._dismiss(member.connection, End(exit_code, reason))
        self._lose_member(member, reason)

    # Who holds the job up; progress.py says by what. Nobody is lost for what others say of it: where nothing is
    # committed any more, or somebody has lost touch, all are asked where they are.

    def _suspect(self, member: Member, suspect: Suspect) -> None:
        """Usually the reason is a death that is known, or will be in a moment."""
        self.circumstances.suspect(member.name, suspect.peer)
        if not suspect.of_some:
            self._standstill.complain(member.name)
        if not self._is_suspected and self.phase == "running":
            self._is_suspected = True
            self._ask_all()
            self._out.append(Wake(self.job.heartbeat_limit_s, f"suspect/{self.epoch}"))

    def _begin_watch(self) -> None:
        """From now on somebody looks whether anything is committed; timers of before count no more."""
        self._watches += 1
        self._out.append(Wake(self._limit_s, f"stall/{self._watches}"))

    def _watch(self) -> None:
        """Nothing may have been committed for too long: then all are asked, and asked again while it lasts."""
        if self.phase != "running":
            return
        if self._stands_still and not self._roster.awaited:
            self._settle()  # though somebody has not answered
            self._ask_all()
        left_s = self._standstill.left_s(self._now_s, self._limit_s)
        self._out.append(Wake(max(left_s, self.job.heartbeat_limit_s), f"stall/{self._watches}"))

    @property
    def _stands_still(self) -> bool:
        """Whether nothing has been committed for too long, and nobody has said why."""
        return not self._is_suspected and self._standstill.left_s(self._now_s, self._limit_s) == 0.0

    @property
    def _limit_s(self) -> float:
        return self._standstill.limit_s(self._chronicle.iteration_time_s())

    def _ask_all(self) -> None:
        self._tell_all(self._standstill.ask())

    def _note_whereabouts(self, member: Member, answer: Whereabouts) -> None:
        self._standstill.note(member.name, answer)
        if self._standstill.is_complete(self._roster.present) and self._stands_still:
            self._settle()

    def _settle(self) -> None:
        """From what all say together: give up who hangs; else go other ways, or begin anew."""
        if self.must_change:
            return
        found = self._standstill.judge(self._roster.present, self.epoch, self._limit_s, is_suspected=self._is_suspected)
        names = {name for name, _ in found.hung}
        lost = missing_layers(self._layers, held_by(hand for hand in self.crew() if hand.worker not in names))
        hung = [one for one in found.hung if not lost or self._standstill.has_hung_long(one[0], self._limit_s)]
        if hung:
            self.circumstances.acquit()
            for name, reason in hung:
                self._expel(self.members[name], reason, HUNG)
        elif found.is_busy or found.hung:  # an epoch that somebody cannot enter yet would come to nothing
            if self._is_suspected:
                self._ask_all()
                self._out.append(Wake(self.job.heartbeat_limit_s, f"suspect/{self.epoch}"))
        elif not self._is_done:
            if self._is_suspected or found.is_still:
                self._begin_anew(found)
        elif found.is_still:
            self._checkpoints.give_up("who saves it stands still")

    def _begin_anew(self, found: Judgement) -> None:
        """Nobody hangs, and the epoch comes to nothing: its messages go other ways, or the same ones once more."""
        self._must_reform = True
        was_lost = "lost touch with each other" if self._is_suspected else "wait for each other"
        self._chronicle.change.note(f"workers {was_lost}", self._now_s)
        if self._break_links() or found.is_anybody_absent:
            return
        futile = self._standstill.count_futile()
        self._redone = self.committed + 1
        if futile == UNEXPLAINED:
            self._roster.excuse()  # what one gives whom somebody does not reach is lost
            for pair in self._standstill.lost_between():
                self.circumstances.suspect(*pair)
            self._break_links()
        elif futile == SPLIT:
            for name in self._standstill.outsiders(self._roster.present):
                self._expel(self.members[name], f"it is not where the others are, for {futile} epochs", HUNG)
        elif futile == FUTILE_EPOCHS:
            self._halt(f"{futile} epochs before iteration {self.committed + 1} came to nothing, and nobody says why")

    def _break_links(self) -> bool:
        """All live, and miss each other: they go other ways from now on; where none is left, a worker is given up."""
        broken = self.circumstances.break_links({name: len(one.others) for name, one in self.members.items()})
        for ends in broken:
            self._announce(said.LinkBroken(link="-".join(ends)), self.committed + 1)
        for _, other in unreachable(self.circumstances.now, list(self._roster.seats.values())):
            if other in self.members:
                self._expel(self.members[other], "no way leads to it from a worker that it works with")
        return bool(broken)

    # Votes and commits

    def _commit_what_is_complete(self) -> None:
        while not (self._is_void or self._is_done) and self._tally.is_complete(self.committed + 1, self._roster.seats):
            iteration = self.committed + 1
            if iteration == self.job.iterations:
                self._tell_evaluation(iteration)  # of what was trained
                self._wants_evaluation = False
                return
            wrong, terms = self._tally.miscount(iteration), self._tally.terms(iteration, self._taken)
            if wrong is not None:
                self._redo_or_halt(iteration, wrong)
                return
            if terms.count <= 0:
                self._halt(nothing_counted(iteration), InvalidInputError.exit_code)
                return
            if self._tally.is_finite(iteration) and not self._tally.is_foreseen(iteration, terms):
                # Gradients that are reduced with the step before its terms were known are not kept, so it is done anew.
                self._unforeseen = iteration
                self._go_back(f"iteration {iteration} takes another step than was foreseen")
                return
            self._commit(iteration, terms)

    def _redo_or_halt(self, iteration: int, wrong: str) -> None:
        """Not everything was done once: with the rest of an iteration somebody had not what it had told."""
        assert self._epoch_message is not None
        if self._epoch_message.rest is None or self._epoch_message.iteration != iteration:
            self._halt(wrong)
        else:
            self._announce(said.IterationRedone(reason=wrong), iteration)
            self._redone = iteration
            self._go_back(wrong)

    def _go_back(self, reason: str) -> None:
        """Stages that have stepped already must all go back; their next iteration, under way, is worth nothing."""
        self._must_reform = self._is_void = True
        self._chronicle.change.note(reason, self._now_s)

    def _roll_back(self, layers: tuple[int, ...]) -> None:
        """Of an optimizer's state a part is in the last checkpoint only: all begin anew from that, if there is one."""
        self._checkpoints.give_up("the job goes back to the one before")
        reason, job = state_lost(layers), self._checkpoints.job
        if job is None:
            self._end = End(FAILED, f"{reason}, and there is no checkpoint to go back to")
            self._finish()
            return
        self._announce(said.JobRolledBack(reason=reason, path=job.resume or ""), job.first_iteration)
        self.job, self.committed, self._taken = job, job.first_iteration - 1, job.steps
        self._terms, self._was_skipped, self._redone = None, False, job.first_iteration
        self.epoch += 1  # what is said of the one under way counts no more
        self._inventory = Inventory()
        self._go_back(reason)

    def _commit(self, iteration: int, terms: StepTerms) -> None:
        self.committed, self._terms = iteration, terms
        self._standstill.commit(self._now_s)
        self._was_skipped = not self._tally.is_finite(iteration)
        self._taken += not self._was_skipped
        evaluation_s = self._tell_evaluation(iteration)
        self._inventory.losses.commit(iteration)
        self.circumstances.examinations.commit()
        self._set_last(iteration)
        if self._was_skipped and self.plan.optimizer == "staggered":
            self._go_back(f"a gradient of iteration {iteration} is not finite")
        due = self._savers_now(iteration)
        self._commit_message = Commit(
            epoch=self.epoch,
            iteration=iteration,
            skip=self._was_skipped,
            last=self._last,
            save=self.job.checkpoint if due else None,
            savers=due,
            terms=terms,
            evaluate=self._must_evaluate,
        )
        self._tell_all(self._commit_message)
        time_s, recovery = self._chronicle.note_commit(self._now_s, evaluation_s)
        self._announce(self._tally.committed(iteration, terms, time_s, len(self._roster.seats)), iteration)
        self._tally.forget(iteration)
        if recovery is not None:
            self._announce(recovery, iteration)

    def _tell_evaluation(self, iteration: int) -> float:
        """Announce what was evaluated before an iteration, if anything was; gives the seconds that it took."""
        losses, seconds = self._tally.evaluation(iteration)
        if losses:
            self._announce(evaluated(losses, seconds), iteration)
        return seconds

    @property
    def _must_evaluate(self) -> bool:
        """Whether what was trained is yet to be evaluated, all iterations being committed."""
        return self._wants_evaluation and self._stops_after is None and self.committed >= self.job.iterations - 1

    @property
    def _is_done(self) -> bool:
        """Whether there is nothing left to do but to save."""
        return self.committed >= self.job.iterations - 1 and not self._must_evaluate

    def _set_last(self, iteration: int) -> None:
        if self._stops_after is not None:
            self._last = iteration
        if self._is_draining or self._stops_after is not None:
            return
        boundary = iteration + (self.plan.optimizer == "staggered")
        suspects = self.circumstances.examinations.wanted(self.members)
        is_wanted = self._wants_change(boundary + 1) or self._is_adaptation_ready() or suspects
        if is_wanted and boundary < self.job.iterations - 1:
            self._is_draining, self._last = True, boundary

    def _wants_change(self, iteration: int) -> bool:
        """Whether somebody comes or goes who can wait until before an iteration."""
        return bool(self._leavers()) or not coming(self._roster.newcomers, iteration).keys() <= self._roster.spare

    def _is_adaptation_ready(self) -> bool:
        """Whether another plan, or other ways between workers, are there for what has become slow, or better again."""
        if not self.circumstances.have_changed:
            return False
        crew = self.crew()
        answer = self._questions.answer((crew, self.circumstances.now))
        return answer is not None and not self._is_as_it_is(crew, answer)

    def _is_as_it_is(self, crew: Crew, answer: Planned) -> bool:
        """Whether an answer is the running plan, or none, with everybody where he is, and nobody sends otherwise."""
        assert self._epoch_message is not None
        stays = answer.plan is None or (answer.plan == self._epoch_message.plan and answer.seats == seats_of(crew))
        return stays and not answer.restart and not self.circumstances.change_ways(list(self._roster.seats.values()))

    def _savers_now(self, iteration: int) -> tuple[Saver, ...]:
        """Who is to save the state after an iteration; nobody where no checkpoint is due."""
        if self._is_to_stop or not self._checkpoints.is_due(iteration + 1, self._now_s):
            return ()
        self._begin_saving()
        return self._roster.savers(self._layers)

    def _begin_saving(self, is_last_resort: bool = False) -> None:
        self._checkpoints.begin(
            self.committed + 1, self._taken, self._roster.savers(self._layers), self._now_s, is_last_resort
        )

    # What the state calls for

    def _advance(self) -> None:
        if self.phase == "gathering" and self._stops_after is not None:
            self._end = End(INTERRUPTED, "stopped as asked, before all workers were there")
            self._finish()
        elif self.phase == "gathering":
            self._gather()
        if self.phase == "running":
            self._dismiss_spent()
            self._refuse_superfluous()
        self._go_on_saving()
        if self.phase == "running":
            self._go_on()
        elif self.phase == "halting" and self._checkpoints.under_way is None:
            self._finish()

    def _gather(self) -> None:
        """Begin once all are there, or, where that is allowed, with those who have come."""
        wake = self._quorum.see(self._roster.newcomers)
        self._out += [] if wake is None else [wake]
        if self._quorum.is_complete(self._roster.newcomers):
            self._start("all workers are there", canonical(self.job.plan).decode(), self._quorum.wanted)
        elif self._quorum.is_enough:
            found = self._planned_for(self._quorum.crew)
            if found is not None and found.plan is not None:  # else whoever comes may make one possible
                seats = {place_of(place): worker for worker, place in found.seats}
                self._start("as many workers are there as are to be", found.plan, seats)

    def _start(self, reason: str, plan: str, seats: Seats) -> None:
        self.phase = "running"
        self._checkpoints.begin_training(self._now_s)
        job = self.job
        self._announce(said.JobStarted(live_workers=len(seats), iterations=job.iterations), job.first_iteration)
        self._chronicle.change.note(reason, self._now_s)
        self._begin_epoch(plan, seats)
        self._begin_watch()

    def _refuse_superfluous(self) -> None:
        """A newcomer whose time has come, and whose name is still there, has no place."""
        for connection, newcomer in list(self._roster.newcomers.items()):
            name = newcomer.name
            if name in self.members and newcomer.not_before <= self.committed + 1:
                del self._roster.newcomers[connection]
                self._dismiss(connection, Refused(f"worker {name} is there already"))
                self._announce(said.WorkerRefused(worker=name, reason=f"worker {name} is there already"))

    def _go_on(self) -> None:
        if self._is_done:
            self._end_well()
            return
        if self._roster.awaited:
            return  # who is there is known in a moment; an epoch with somebody who is gone would only have to be redone
        if self._is_to_stop:
            self._halt("stopped as asked", INTERRUPTED)
        elif self.must_change:
            self._regroup()
            self._prepare_change(at_once=True)
        elif self._must_evaluate:
            pass  # nothing that can wait is worth while any more
        elif self._wants_change(self.committed + 1) or self.circumstances.have_changed:
            self._prepare_change(at_once=False)

    @property
    def _is_to_stop(self) -> bool:
        """Whether the job was asked to, and no iteration is under way that it was asked during."""
        return self._stops_after is not None and (self.committed >= self._stops_after or self.must_change)

    @property
    def must_change(self) -> bool:
        """Whether the running epoch is over, and another one is to begin as soon as there is a plan for it."""
        if self._is_done:
            return False  # no epoch follows
        if self._must_reform or self._roster.is_short:
            return True
        # Also where those who wanted it are gone: workers wait for the epoch that was announced.
        return self._is_draining and self.committed >= self._last

    def _end_well(self) -> None:
        """All iterations are done; the job ends once the last state is saved, where that is wanted."""
        if self._checkpoints.under_way is not None:
            return
        if self._checkpoints.lacks_last:
            # The checkpoint before it was still under way when the last iteration was committed.
            self._begin_saving()
            self._tell_to_save(self._roster.savers(self._layers), "saving the last state")
            return
        self._end = End(0, "all iterations are done")
        self._finish()

    def _prepare_change(self, at_once: bool) -> None:
        """Have the plan for who will be there made; with `at_once` go over to it, or halt."""
        crew = self.crew()
        lost = missing_layers(self._layers, held_by(crew))
        answer = self._questions.answer((crew, self.circumstances.now))
        newcomers = {hand.worker for hand in crew if hand.place is None}
        if lost:
            if at_once:
                self._halt(f"nobody is left who holds {print_layers(lost)}")
        elif answer is None and at_once and self._is_only_examined(crew):
            assert self._epoch_message is not None
            self._begin_epoch(self._epoch_message.plan, dict(self._roster.seats))
        elif answer is None:
            self._planned_for(crew)
        elif answer.plan is None and newcomers:
            # Nobody is worse off for somebody who comes.
            self._roster.spare = newcomers
            self._prepare_change(at_once)
        elif at_once and answer.plan is None and len(crew) == len(self._roster.seats):
            # Nobody is gone, and there is no plan for what is slow; what there is goes on.
            assert self._epoch_message is not None
            self._say_if_none(answer)
            self._go_over(crew, self._epoch_message.plan, dict(self._roster.seats))
        elif at_once and answer.plan is None:
            gone = sorted(self._names - {hand.worker for hand in crew})
            self._halt(f"there is no plan without {', '.join(gone)}: {answer.reason}")
        elif at_once and answer.restart:
            self._announce(said.JobRestarting(reason=answer.restart), self.committed + 1)
            self._halt(answer.restart)
        elif at_once and answer.plan is not None:
            self._go_over(crew, answer.plan, {place_of(place): worker for worker, place in answer.seats})
        else:
            self._roster.spare = newcomers if answer.seats == seats_of(crew) else self._roster.spare
            self._keep_if_it_serves(crew, answer)

    def _planned_for(self, crew: Crew) -> Planned | None:
        """The plan for a crew as things are; where nobody has been asked for it, somebody is."""
        number = self._questions.ask((crew, self.circumstances.now))
        self._out += [] if number is None else [MakePlan(number, self.plan, crew, self.circumstances.now)]
        return self._questions.answer((crew, self.circumstances.now))

    def _is_only_examined(self, crew: Crew) -> bool:
        """Whether members are to be examined, and nothing else is a reason for another plan."""
        is_otherwise = self._must_reform or self.circumstances.have_changed
        suspects = self.circumstances.examinations.wanted(self.members)
        return bool(suspects) and not is_otherwise and [hand.worker for hand in crew] == [*self._roster.seats.values()]

    def _keep_if_it_serves(self, crew: Crew, answer: Planned) -> None:
        """Reckon with things as they are where nothing is to be changed for them."""
        if self.circumstances.have_changed and self._is_as_it_is(crew, answer):
            self.circumstances.reckoned = self.circumstances.now
            self._say_if_none(answer)

    def _say_if_none(self, answer: Planned) -> None:
        if answer.plan is None:
            self._announce(said.PlanKept(reason=f"no other plan: {answer.reason}"), self.committed + 1)

    def _go_over(self, crew: Crew, plan: str, seats: Seats) -> None:
        lost = missing_layers(self._layers, held_by(hand for hand in crew if hand.worker in seats.values()))
        if lost:
            self._halt(f"nobody is left who holds {print_layers(lost)}")
        elif (left := self._what_is_left(crew, plan, seats)) is not None:
            self._begin_epoch(plan, seats, left)

    def crew(self) -> Crew:
        """Who will be there: those who stay, by their places, and newcomers whose time has come."""
        # Before the first commit everybody can make the state of every layer.
        anything = ((0, self._layers),) if self._nothing_committed else None
        return self._roster.crew(self.committed + 1, anything, self._leavers())

    def _leavers(self) -> tuple[str, ...]:
        return self._roster.leavers(self._nothing_committed)

    # What is left of an iteration in the midst of which somebody is lost

    def _regroup(self) -> None:
        """Ask those who are left what they have of the iteration under way, where that is worth anything."""
        is_between = self._is_draining and self.committed >= self._last
        can_tell = all(member.regroups for member in self.members.values())
        if is_between or self._is_void or self._must_evaluate or not can_tell or self._inventory.covers(self.members):
            return
        self.epoch += 1
        message = Regroup(
            epoch=self.epoch,
            iteration=self.committed + 1,
            skipped=self._was_skipped,
            members=tuple(member.seat() for member in self._roster.staying),
            terms=self._terms,
        )
        self._inventory.begin(message, self.plan)
        self._chronicle.reach("told", self._now_s)
        self._tell_all(message)
        self._wait_for_standings()

    def _wait_for_standings(self) -> None:
        if self._inventory.message is not None:
            self._out.append(Wake(self.job.heartbeat_limit_s, f"standings/{self.epoch}"))

    def _changes(self, connection: int, told: StandingTold | LossesTold) -> bool:
        """Note what somebody has of the iteration under way; gives whether anything follows from that."""
        member = self._roster.by_connection.get(connection)
        if member is None:
            return False
        if isinstance(told, LossesTold):
            self._inventory.losses.add((member.holds or ((0, 0),))[0], told, self.committed)
            return False
        wrong = self._inventory.note(member.name, member.holds, told)
        if wrong is not None:
            self._expel(member, f"what it says to have of iteration {told.iteration} is wrong: {wrong}")
        elif self._inventory.is_complete:
            self._chronicle.reach("standings", self._now_s)
        return wrong is not None or self._inventory.is_complete

    def _what_is_left(self, crew: Crew, plan: str, seats: Seats) -> RestPlanned | None:
        """What is left of the iteration under way, all where one comes that can take no sums; None: not known yet."""
        if self._redone == self.committed + 1 or not all(one.regroups for one in self._roster.newcomers.values()):
            return ANEW
        places = tuple((worker, name_of(place)) for place, worker in sorted(seats.items()))
        held = {name: member.holds for name, member in self.members.items()}
        standings = self._inventory.standings(crew, held)
        left = self._inventory.left((plan, places, standings, self.circumstances.now))
        self._out += [left] if isinstance(left, PlanRest) else []
        return left if isinstance(left, RestPlanned) else None

    # Epochs

    def _begin_epoch(self, plan: str, seats: Seats, left: RestPlanned = ANEW) -> None:
        """Seat everybody, and let a new epoch begin with the iteration after the last commit, or what is left of it."""
        for name in self._leavers():
            self._dismiss_leaver(self.members[name])
        self.plan = parse_document(plan.encode(), Plan, "the plan")
        self._questions.clear()
        self.epoch += self._inventory.message is None
        self._inventory.begin_epoch(self.epoch, left.rest)
        self._tally = VoteCounter(self.plan, left.rest, self._inventory.losses.of(self.committed + 1))
        self._last, self._is_draining = self.job.iterations - 1, False
        self._must_reform = self._is_suspected = self._is_void = False
        self._standstill.begin_epoch(list(seats.values()), self._now_s)
        self._checksums = Checksums()
        arrived, self._roster.seats = coming(self._roster.newcomers, self.committed + 1), dict(sorted(seats.items()))
        waiting = self._stand_by()
        joining = self._seat(arrived)
        self._roster.spare = {*waiting, *arrived} - set(joining)
        order = live_places(self.plan)
        names = list(self._roster.seats.values())
        examine = self.circumstances.examinations.begin_epoch(names)
        reason = self._chronicle.begin_epoch() or self.circumstances.news
        ways = self.circumstances.begin_epoch(names)
        holds = [self.members[self._roster.seats[place]].holds for place in order]
        self._epoch_message = Epoch(
            epoch=self.epoch,
            iteration=self.committed + 1,
            skipped=self._was_skipped,
            last=self._last,
            plan=plan,
            seats=tuple(self.members[self._roster.seats[place]].seat() for place in order),
            copies=() if self._nothing_committed else copies([layers_at(self.plan, place) for place in order], holds),
            nothing_committed=self._nothing_committed,
            resume=self.job.resume,
            delegated=ways.delegated,
            detours=ways.detours,
            sidesteps=ways.sidesteps,
            examine=examine,
            reason=reason,
            terms=self._terms,
            taken=self._taken,
            waits=self._unforeseen == self.committed + 1,
            evaluate=self._must_evaluate,
            rest=left.rest,
            givers=() if self._nothing_committed else givers(self._roster.newcomers.values()),
        )
        self._chronicle.reach("epoch", self._now_s)
        self._tell_all(self._epoch_message)
        for connection, newcomer in self._roster.newcomers.items():
            if newcomer.holds is not None or connection in waiting.values():
                self._tell(connection, self._epoch_message)
        for one in announcements_of(self._epoch_message, self.plan, joining):
            self._announce(one)
        if left.rest is None and left.reason:
            self._announce(said.IterationRedone(reason=left.reason), self.committed + 1)

    def _stand_by(self) -> dict[str, int]:
        """Members without a seat wait for one, like newcomers; gives their connections."""
        had = dict(self.members)
        waiting = self._roster.unseat(self._now_s, self._roster.is_sharded and not self._nothing_committed)
        for name, (_, place) in waiting.items():
            self._forget_what_it_did(had[name])
            self._announce(said.WorkerWaiting(worker=name, place=place), self.committed + 1)
        return {name: connection for name, (connection, _) in waiting.items()}

    def _dismiss_leaver(self, member: Member, reason: str | None = None) -> None:
        left = said.WorkerLeft(worker=member.name, place=name_of(member.place), reason=reason)
        self._announce(left, self.committed + 1)
        self._chronicle.change.note(f"worker {member.name} left", self._now_s)
        if member.connection is not None:
            self._tell(member.connection, End(0, "left as asked"))
        self._forget(member)

    def _seat(self, arrived: dict[str, int]) -> list[str]:
        """Make newcomers members, and note everybody's place; gives the newcomers' names."""
        joining = self._roster.seat(arrived)
        for one in joining if self.epoch > 1 else ():
            # One that comes at an appointed iteration has waited for that, not for us.
            self._chronicle.change.note(f"worker {one.name} joined", self._now_s if one.not_before else one.since_s)
        return [one.name for one in joining]

    @property
    def _nothing_committed(self) -> bool:
        return self.committed < self.job.first_iteration

    # The end

    def _halt(self, reason: str, exit_code: int = FAILED) -> None:
        """Training cannot, or is not to, go on: save what can be saved, and end."""
        self.phase = "halting"
        self._end = End(exit_code, reason)
        last = () if self._nothing_committed or self.job.checkpoint is None else self._roster.savers(self._layers)
        self._checkpoints.give_up(reason)
        self._go_on_saving()
        self._checkpoints.under_way = None
        if last:
            self._begin_saving(is_last_resort=True)
            self._out.append(Wake(HALT_S, "halt"))
        self._tell_to_save(last, reason)
        if self._checkpoints.under_way is None:
            self._finish()

    def _tell_to_save(self, due: tuple[Saver, ...], reason: str) -> None:
        """Have everybody stop, and some save what they hold."""
        folder = self.job.checkpoint if due else None
        self._halt_message = Halt(self.committed + 1, self._was_skipped, folder, due, reason, self._terms)
        self._tell_all(self._halt_message)

    def _go_on_saving(self) -> None:
        """Once all parts are written, have the checkpoint published; once that is done or hopeless, forget it."""
        publisher = next((member for member in self.members.values() if member.connection is not None), None)
        name = None if publisher is None else publisher.name
        publish, outcome = self._checkpoints.go_on(name, bool(self._roster.awaited), self._now_s)
        if publish is not None:
            assert publisher is not None and publisher.connection is not None
            self._tell(publisher.connection, publish)
        if outcome is not None:
            self._announce(outcome)

    def _finish(self) -> None:
        assert self._end is not None
        self.phase = "ended"
        # Not dropped: they may have something to say yet, such as what they executed last.
        for connection in [*self._roster.newcomers, *self._roster.connections()]:
            self._tell(connection, self._end)
        self._announce(
            said.JobEnded(
                exit_code=self._end.exit_code,
                reason=self._end.reason,
                iterations=self.committed + 1,
                iteration_time_s=self._chronicle.iteration_time_s(),
                epochs=self.epoch,
            )
        )
        self._out.append(Finish(self._end.exit_code, self._end.reason))

    # Saying it

    def _tell(self, connection: int, message: FromCoordinator) -> None:
        self._out.append(Tell(connection, message))

    def _tell_all(self, message: FromCoordinator) -> None:
        for connection in self._roster.connections():
            self._tell(connection, message)

    def _dismiss(self, connection: int, message: FromCoordinator) -> None:
        self._tell(connection, message)
        self._out.append(Drop(connection))

    def _announce(self, what: Announcement, iteration: int | None = None) -> None:
        dated = replace(what, epoch=self.epoch, iteration=what.iteration if iteration is None else iteration)
        self._out.append(Announce(dated))
