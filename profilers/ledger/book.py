"""The book of a job: what happens is taken line by line, and every microsecond is put into one class of one attempt.

A stretch of time between two happenings belongs to what ends it: before a line of progress there were iterations,
before a loaded checkpoint there was loading, and before an error somebody had yet to notice it.
"""

from collections import Counter
from collections.abc import Sequence

from ...schemas.errors import InvalidInputError
from ...schemas.ledger import LedgerClass
from .clock import COARSE_US, LATE_US, US, JobClock, coarseness_us, us_of
from .entries import AttemptEntry, JobState
from .happenings import Happening
from .history import DoneRow, JobHistory
from .timer_habit import TimerHabit

# So many lines in a row, each with an iteration that the attempt has done already, are a roll-back that nobody told;
# fewer are other ranks, which are late.
BEHIND = 3
FAR = 20  # log intervals: no rank is so late
MOST_CROSSINGS = 5  # between two rows of iterations, and there are two jobs
CLOSE = 200  # lines of iterations, among which there are so many
FIRST_INTERVAL = 100  # an attempt that loads nothing, and begins with a line of these, has begun at iteration 0
NO_WORD = "no word of an error: the log stops, and the job begins again"


class Book:
    """Takes what happens to a job, in order, and keeps who did what for how long.

    Attributes:
        attempts: in their order.
        history: iterations.
        clock: of the job.
        saves_us: how long each checkpoint took.
        between_saves_us: from one checkpoint of an attempt to the next.
        evaluations: how many there were.
        unmeasured: of these, how many did not say how long they took.
        alarms: lines that spoke of errors after which training went on as before.
        missing: iterations that no line tells of.
        others: places where another job seems to begin.
        anew: places where an attempt begins at iteration 1 though the one before had not ended cleanly.
        lines, dated: lines of iterations, and those that have a clock.
        again: lines of iterations that had been told before, and name no rank.
        pauses: how many there were between iterations without a word.
        longest: of them, with the line after it.
    """

    def __init__(self) -> None:
        self.attempts: list[AttemptEntry] = []
        self.history = JobHistory()
        self.clock = JobClock()
        self.saves_us: list[int] = []
        self.between_saves_us: list[int] = []
        self.evaluations = self.unmeasured = 0
        self.alarms: list[Happening] = []
        self.missing = 0
        self.others: list[Happening] = []
        self.anew: list[Happening] = []
        self.lines = self.again = self.dated = self.pauses = 0
        self.longest: tuple[int, Happening] | None = None
        self._state = JobState.NOTHING
        self._open_us = 0  # time of the attempt that has no class yet: the next happening gives it one
        self._claimed_us = 0  # what checkpoints without a clock have taken since the last line with one
        self._evaluated_us = 0  # and evaluations
        self._evaluates = False  # whether there was one since the last iteration that did not say how long it took
        self._habit = TimerHabit()
        self._paused_us = 0  # time since the last iteration that has its class, and may be part of what it says it took
        self._interval = 0  # iterations from line to line
        self._fastest_us = 0.0
        self._beat: int | None = None  # iterations from checkpoint to checkpoint
        self._pace_us: float | None = None
        self._sign_us: int | None = None
        self._behind: list[Happening] = []
        self._leapt: list[Happening] = []
        self._crossings: list[int] = []  # at which of them
        self._saved_us: int | None = None
        self._evaluated: int | None = None  # the iteration after which the model was evaluated last
        self._called_off: tuple[int, Happening] | None = None  # the attempt's last alarm, and when

    @property
    def _now(self) -> AttemptEntry:
        return self.attempts[-1]

    def take(self, happening: Happening) -> None:
        """The next thing that has happened."""
        kind = happening.kind
        if kind == "iteration":
            if happening.each_s:
                self._take_run(happening)
            else:
                self._take_iteration(happening)
            return
        if happening.gpus is not None and self.attempts and kind not in _BEGINNINGS:
            self._now.gpus = happening.gpus
        if kind == "other":
            self._note_sign(happening)
        elif kind in _BEGINNINGS:
            self._take_beginning(happening)
        elif kind in ("save", "evaluation"):
            self._take_pause(happening)
        else:
            self._take_end(happening)

    def finish(self) -> None:
        """Nothing happens any more."""
        if not self.attempts:
            return
        for happening in self._behind if len(self._behind) >= BEHIND else ():
            self._take_iteration(happening)
        tail_us = max((self._sign_us or 0) - self.clock.elapsed_us, 0)
        self.clock.elapsed_us += tail_us
        tail_us += self._open_us + self._pass_claims(has_clock=True)
        tail_us -= self._spend_claims(tail_us)
        self._give("restart" if self._state in (JobState.BROKEN, JobState.ENDED) else "unknown", tail_us)
        self._close(self.clock.elapsed_us)

    # --- what begins -------------------------------------------------------------------------------------------------

    def _take_beginning(self, happening: Happening) -> None:
        if self._state is JobState.RUNNING and happening.kind in ("init", "load"):
            # In the midst of training: an optimizer is made anew, or a checkpoint is loaded that loses nothing.
            reached = self._now.last or 0
            if happening.kind == "init" or (reached if happening.iteration is None else happening.iteration) >= reached:
                self._note_sign(happening)
                return
        own_us, claims_us = us_of(happening.took_s or 0.0), self._pass_claims(has_clock=True)
        passed_us = self.clock.advance(happening, own_us, counts_alone=False)
        name: LedgerClass = "load" if happening.kind in ("init", "load") else "restart"
        if self._state is JobState.STARTING and not self._starts_anew(happening):
            self._give(name, self._of_its_own(passed_us, own_us, happening))
        else:
            own_us = min(own_us, passed_us)
            if self.attempts:
                self._leave(happening, claims_us + passed_us - own_us)
            self._begin(happening, own_us, name)
        if happening.gpus is not None:
            self._now.gpus = happening.gpus
        if happening.kind == "load" and happening.iteration is not None:
            self._now.resumes = happening.iteration
        if happening.kind == "start":
            self._now.started.add(happening.cause)
        if happening.kind == "rendezvous":
            self._now.formed_us = self.clock.elapsed_us
        self._now.came_up = self._now.came_up or happening.kind in ("init", "load")
        self._now.end_us = self.clock.elapsed_us

    def _starts_anew(self, happening: Happening) -> bool:
        """Whether a process that starts while an attempt comes up is another attempt's.

        Launchers start theirs before the group is formed, or just after it (nvidia-resiliency-ext), and the program
        itself tells of its start later on: the group of an attempt is formed once between two words of the same.
        """
        entry = self._now
        if happening.kind != "start" or entry.came_up:
            return happening.kind == "start"
        return entry.formed_us is not None and happening.cause in entry.started

    def _of_its_own(self, passed_us: int, own_us: int, happening: Happening) -> int:
        """How much of the time up to a line is the attempt's.

        Where its first line had no clock, it began with the first that has one; what passed before that was idle.
        """
        entry = self._now
        if entry.is_dated or happening.time_s is None:
            return passed_us
        entry.is_dated = True
        if len(self.attempts) == 1:
            return passed_us
        idle_us, before = max(passed_us - own_us, 0), self.attempts[-2]
        before.us["idle"] += idle_us
        before.left_us["idle"] += idle_us
        before.until_us += idle_us
        entry.begin_us += idle_us
        entry.progress_us = max(entry.progress_us, entry.begin_us)
        return passed_us - idle_us

    def _leave(self, happening: Happening, passed_us: int) -> None:
        """The last attempt is over; so much time is its own, or nobody's, before another one begins."""
        entry, anew = self._now, happening.kind == "start"
        alive_us = min(max((self._sign_us or 0) - (self.clock.elapsed_us - passed_us), 0), passed_us)
        if self._state is JobState.RUNNING:
            told_us = self._spend_claims(self._open_us + passed_us)
            detection_us = max(self._open_us + alive_us - told_us, 0)
            entry.left_us = Counter({"detection": detection_us})
            entry.left_us["idle" if anew else "restart"] += self._open_us + passed_us - told_us - detection_us
            entry.us.update(entry.left_us)
            entry.ended = "silent"
        elif self._state is JobState.STARTING:
            self._give("restart", passed_us)
            entry.ended = "silent"
        elif self._state is JobState.BROKEN:
            self._give("restart", alive_us if anew else passed_us)
            self._give("idle", passed_us - alive_us if anew else 0)
        else:
            self._give("idle", self._open_us + passed_us)
        entry.end_us = max(entry.end_us, self.clock.elapsed_us - passed_us + alive_us)

    def _begin(self, happening: Happening, own_us: int, name: LedgerClass) -> None:
        """A new attempt, which has already taken so much time for its beginning."""
        begin_us = self.clock.elapsed_us - own_us
        if self.attempts:
            self._close(begin_us)
        entry = AttemptEntry(happening, begin_us, gpus=happening.gpus, progress_us=self.clock.elapsed_us)
        entry.is_dated = happening.time_s is not None or happening.kind != "start"
        self.attempts.append(entry)
        self._state = JobState.STARTING
        self._open_us = self._claimed_us = self._evaluated_us = 0
        self._evaluates = False
        self._sign_us = self._saved_us = self._evaluated = self._called_off = None
        self._behind.clear()
        self._leapt.clear()
        self._give(name, own_us)

    def _close(self, until_us: int) -> None:
        self._now.until_us, self._now.end_us = until_us, min(self._now.end_us, until_us)

    # --- iterations --------------------------------------------------------------------------------------------------

    def _take_iteration(self, happening: Happening) -> None:
        self.lines += 1
        self.dated += happening.time_s is not None
        if not self.attempts:  # the log begins in the midst
            took_us = us_of((happening.took_s or 0.0) * happening.steps)
            self.clock.advance(happening, took_us, counts_alone=True)
            self._begin_at(happening, happening.iteration or happening.steps, took_us)
            return
        entry, number = self._now, happening.iteration
        has_done = self._state is not JobState.STARTING and entry.last is not None
        if number is None:
            number = (entry.last if has_done and entry.last is not None else entry.resumes or 0) + happening.steps
        elif has_done and entry.last is not None:
            if number <= entry.last:
                self._note_behind(happening)
                return
            if self._behind:
                self._note_crossing(happening)
        if self._state is JobState.STARTING:
            self._take_first(happening, number)
        elif self._state is JobState.ENDED and self._began_before_now(happening):
            self._call_off()  # the scheduler's clock, or one of whole seconds, was ahead
            self._take_next(happening, number)
            self._state, entry.ended = JobState.ENDED, "clean"
        elif self._state is JobState.ENDED:  # training goes on without a word of a new beginning
            self._begin_at(happening, number, self._pass_before(happening, "idle"))
        else:
            self._take_next(happening, number)

    def _take_run(self, run: Happening) -> None:
        """Iterations of which a line tells one by one, without a clock."""
        for place, one in enumerate(run.singles(), start=1):
            self._take_iteration(one)
            if self._is_steady and self._now.last == one.iteration:
                self._take_steady(run, run.each_s[place:])
                return

    @property
    def _is_steady(self) -> bool:
        """Whether nothing waits for the next iteration: it takes what it says, if it has no clock."""
        open_us = self._open_us + self._claimed_us + self._evaluated_us + self._paused_us
        is_waiting = self._evaluates or self._behind or self._leapt
        return self._state is JobState.RUNNING and not open_us and not is_waiting

    def _take_steady(self, run: Happening, each_s: Sequence[float]) -> None:
        """The last iterations of a run, as `_take_next` would one by one."""
        if not each_s:
            return
        entry, works_us = self._now, [us_of(took_s) for took_s in each_s]
        attempt, job, elapsed_us = len(self.attempts) - 1, self.history.job, self.clock.elapsed_us
        for number, work_us in enumerate(works_us, start=(entry.last or 0) + 1):
            elapsed_us += work_us
            self.history.note(DoneRow(attempt, number, 1, work_us, elapsed_us, job, False, run.skipped))
        self.lines += len(each_s)
        self._habit.note_exact(len(each_s))
        self._fastest_us = min(filter(None, (self._fastest_us, *works_us)), default=0.0)
        self._pace_us, self._interval = works_us[-1], 1
        self.clock.elapsed_us = entry.progress_us = entry.end_us = elapsed_us
        entry.last = number

    def _take_next(self, happening: Happening, number: int) -> None:
        """An iteration after others of the same attempt."""
        entry = self._now
        steps = number - entry.last if entry.last is not None else happening.steps
        took_us = None if happening.took_s is None else us_of(happening.took_s * steps)
        expected_us = took_us if took_us is not None else round((self._pace_us or 0.0) * steps)
        least_us = took_us if took_us is not None else round(self._fastest_us * steps)
        if leaps := self._leaps(happening, steps, least_us):
            self._leapt.append(happening)
            if len(self._leapt) < BEHIND:
                return
            least_us = 0
        elif self._leapt:
            self._note_two_jobs(self._leapt[-1], happening)
        self._leapt.clear()
        if self._state is JobState.BROKEN:
            self._call_off()
        claims_us = self._pass_claims(
            has_clock=happening.time_s is not None, in_timer_us=expected_us - round((self._pace_us or 0.0) * steps)
        )
        passed_us = self.clock.advance(
            happening, expected_us, counts_alone=True, least_us=max(least_us - self._paused_us, 0)
        )
        whole_us = self._open_us + claims_us + passed_us
        if self._claimed_us or self._evaluated_us:
            whole_us -= self._spend_claims(whole_us)
        surplus_us = whole_us - expected_us
        if surplus_us > COARSE_US and expected_us and not self._evaluates:
            whole_us -= self.clock.put_forward(surplus_us, expected_us, happening)
        has_evaluated, self._evaluates = self._evaluates, False
        work_us, pause_us, left_us = whole_us, 0, 0
        if took_us is not None:
            work_us, pause_us, left_us = self._habit.divide(
                whole_us,
                took_us,
                open_us=self._open_us,
                coarse_us=coarseness_us(happening),
                has_evaluated=has_evaluated,
            )
        self._open_us, self._paused_us = max(left_us, 0), 0
        self.clock.elapsed_us -= min(left_us, 0)  # a clock that is behind: the lines that follow make up for it
        self._fastest_us = min(self._fastest_us or work_us / steps, work_us / steps) or self._fastest_us
        if has_evaluated:
            self.history.note_evaluation(pause_us)
        elif pause_us:
            self._give("unknown", pause_us)
            self.pauses += 1
            self.longest = max(self.longest or (0, happening), (pause_us, happening), key=lambda one: one[0])
        self._interval = self._interval if leaps else steps
        self._done(happening, number, steps, work_us, is_mixed=has_evaluated and not pause_us)

    def _began_before_now(self, happening: Happening) -> bool:
        """Whether iterations took longer than what happened last is ago."""
        told_us, took_us = self.clock.sign(happening), us_of((happening.took_s or 0.0) * happening.steps)
        return told_us is not None and took_us > told_us - self.clock.elapsed_us

    def _leaps(self, happening: Happening, steps: int, least_us: int) -> bool:
        """Whether so many iterations cannot have been done since the last line.

        Their number was garbled, or is another job's; or, where it comes again and again, nobody has told of a jump.
        """
        if steps <= FAR * max(self._interval, 1) or (told_us := self.clock.sign(happening)) is None:
            return False
        return -LATE_US <= told_us - self.clock.elapsed_us < least_us // 2

    def _went_on(self, happening: Happening, number: int) -> AttemptEntry | None:
        """The attempt that has gone on, if the first iteration of one after it is its next, without a moment between.

        Then nothing has begun: other ranks, or hosts whose clocks are ahead, told of the same start. One that had begun
        before that start, and that it has done already, is of such a rank, too.
        """
        told_us, before = self.clock.sign(happening), self.attempts[:-1]
        while before and before[-1].ended == "silent" and before[-1].last is None:
            before.pop()
        if not before or before[-1].ended != "silent" or before[-1].last is None or told_us is None:
            return None
        steps = number - before[-1].last
        each_us = (self._pace_us or 0.0) if happening.took_s is None else happening.took_s * US
        begun_us = told_us - each_us * (steps if steps > 0 else happening.steps)
        if steps > max(self._interval, 1) or (steps > 0 and begun_us > before[-1].progress_us + COARSE_US):
            return None
        return before[-1] if steps > 0 or begun_us < self._now.begin_us - COARSE_US else None

    def _rejoin(self, before: AttemptEntry) -> None:
        """Attempts after that one were none: their time is its own."""
        while self._now is not before:
            self._open_us += self.attempts.pop().us.total()
        before.us.subtract(before.left_us)
        self._open_us += before.left_us.total()
        before.left_us.clear()
        before.ended, self._state = "open", JobState.RUNNING

    def _take_first(self, happening: Happening, number: int) -> None:
        """The first iteration of an attempt: before it, it has loaded."""
        if (before := self._went_on(happening, number)) is not None:
            if number > (before.last or 0):
                self._rejoin(before)
                self._take_next(happening, number)
            return
        entry = self._now
        steps = self._steps_of_first(happening, number)
        if happening.took_s and entry.formed_us is not None and (told_us := self.clock.sign(happening)) is not None:
            # More than there was time for since then was done before, and loaded without a word.
            steps = max(min(steps, (told_us - entry.formed_us + COARSE_US) // max(us_of(happening.took_s), 1)), 1)
        took_us = None if happening.took_s is None else us_of(happening.took_s * steps)
        passed_us = self._open_us + self.clock.advance(happening, took_us or 0, counts_alone=True)
        passed_us, self._open_us = self._of_its_own(passed_us, took_us or 0, happening), 0
        entry.is_dated = True  # it began, at the latest, before its first iteration, whatever clock that has
        if took_us is not None and took_us > passed_us + COARSE_US:
            passed_us += self._begin_earlier(took_us - passed_us)
        work_us = passed_us if took_us is None else min(took_us, passed_us)
        self._give("load", passed_us - work_us)
        entry.training_us = self.clock.elapsed_us - work_us
        entry.first = number - steps + 1
        self._go_back(happening, number - steps)
        self._done(happening, number, steps, work_us, is_first=True)

    def _begin_earlier(self, by_us: int) -> int:
        """An attempt whose first line took longer than it has been there began before its log did.

        Args:
            by_us: so much.

        Returns:
            As much of that as there was: idle time of the attempt before, or time before the first line.
        """
        entry = self._now
        if len(self.attempts) == 1:
            self.clock.begin_earlier(by_us)
            return by_us
        before = self.attempts[-2]
        by_us = min(by_us, before.us["idle"])
        before.us["idle"] -= by_us
        before.until_us -= by_us
        before.end_us = min(before.end_us, before.until_us)
        entry.begin_us -= by_us
        return by_us

    def _steps_of_first(self, happening: Happening, number: int) -> int:
        """How many iterations the first line of an attempt stands for."""
        entry = self._now
        if entry.resumes is not None and entry.resumes < number:
            within = max(happening.steps, self._interval, 1)
            return min(number - entry.resumes, within) if self._interval else number - entry.resumes
        if self._interval and number % self._interval == 0:
            return max(happening.steps, self._interval)
        begins = entry.begins.kind != "iteration" and not self._interval and number <= FIRST_INTERVAL
        return number if begins and number > 0 else happening.steps

    def _begin_at(self, happening: Happening, number: int, own_us: int) -> None:
        """An attempt begins of which nothing was told before its first iterations, which took so much."""
        self._begin(happening, own_us, "load")
        entry, steps = self._now, max(happening.steps, 1)
        entry.us.clear()
        entry.training_us, entry.first = entry.begin_us, number - steps + 1
        self._go_back(happening, number - steps)
        self._done(happening, number, steps, own_us, is_first=True)

    def _pass_before(self, happening: Happening, name: LedgerClass) -> int:
        """Give the time up to first iterations a class; how much is theirs, as their line or the pace says."""
        took_us = (self._pace_us or 0.0) if happening.took_s is None else happening.took_s * US
        own_us = round(took_us * happening.steps)
        passed_us = self._open_us + self._pass_claims(has_clock=True)
        passed_us += self.clock.advance(happening, own_us, counts_alone=True)
        passed_us -= self._spend_claims(passed_us)
        own_us = min(own_us, passed_us)
        self._give(name, passed_us - own_us)
        return own_us

    def _done(
        self,
        happening: Happening,
        number: int,
        steps: int,
        work_us: int,
        is_first: bool = False,
        is_mixed: bool = False,
    ) -> None:
        entry = self._now
        if happening.gpus is not None:
            entry.gpus = happening.gpus
        if entry.last is None:
            entry.teller = happening.ranks
        elapsed_us, attempt, job = self.clock.elapsed_us, len(self.attempts) - 1, self.history.job
        entry.last, entry.progress_us, entry.end_us = number, elapsed_us, elapsed_us
        self._state = JobState.RUNNING
        self._pace_us = work_us / steps if not is_first or self._pace_us is None else self._pace_us
        row = DoneRow(attempt, number, steps, work_us, elapsed_us, job, is_first, happening.skipped, 0, is_mixed)
        self.history.note(row)

    def _go_back(self, happening: Happening, to: int) -> None:
        """An attempt goes on after iteration `to`."""
        entry, before = self._now, next((one for one in self.attempts[-2::-1] if one.last is not None), None)
        rows = self.history.rows
        reached = rows[-1].last if rows and rows[-1].job == self.history.job else None
        to = to if entry.resumes is None else entry.resumes
        if before is None or reached is None:
            return
        if before.ended != "clean" and to <= 0 and entry.resumes is None and reached > 0:
            self.anew.append(happening)
        if before.ended == "clean" and to <= 0 and entry.resumes is None:
            self.history.job += 1
            self.others.append(happening)
            return
        if before.ended == "silent" and before.is_off_beat and before.saved == before.last == to:
            before.ended = "clean"  # it was stopped with a checkpoint of its own, and goes on from it
        self.missing += max(to - reached, 0)
        entry.loss = self.history.go_back(to)

    # --- iterations that the attempt has done already ----------------------------------------------------------------

    def _note_behind(self, happening: Happening) -> None:
        """A line of a rank that is late, or the job has gone back without a word."""
        number, told_us = happening.iteration or 0, self.clock.sign(happening)
        if happening.ranks and happening.ranks != self._now.teller and self._now.teller:
            return
        if told_us is not None and told_us < self._now.progress_us:
            self.again += not happening.ranks
            return
        if self._behind and number <= (self._behind[-1].iteration or 0):
            if number == self._behind[-1].iteration:
                return
            self._behind.clear()
        self._behind.append(happening)
        if len(self._behind) >= BEHIND:
            again, self._behind = self._behind, []
            own_us = self._pass_before(again[0], "restart")  # an attempt of which nobody has told began before them
            if self._state is JobState.RUNNING:
                self._now.ended = "silent"
            self._begin_at(again[0], again[0].iteration or 0, own_us)
            for one in again[1:]:
                self._take_iteration(one)

    def _note_crossing(self, happening: Happening) -> None:
        """A new iteration after old ones: a rank was late, or there are two jobs."""
        behind = self._behind[0]
        old, new = behind.iteration or 0, happening.iteration or 0
        self.again += sum(not one.ranks for one in self._behind)
        self._behind.clear()
        # A reader that has both jobs' lines takes the way between them for an interval.
        steps = min(happening.steps, new - (self._now.last or 0))
        if new - old > FAR * max(self._interval, steps, 1):
            self._note_two_jobs(behind, happening)

    def _note_two_jobs(self, one: Happening, other: Happening) -> None:
        """Numbers of iterations that are of one job only if it happens now and then, as in lines that are written over.

        Raises:
            InvalidInputError: it happens again and again.
        """
        self._crossings = [line for line in self._crossings if self.lines - line < CLOSE] + [self.lines]
        if len(self._crossings) >= MOST_CROSSINGS:
            raise InvalidInputError(
                f"two jobs are in one log: iterations {one.iteration} and {other.iteration} are told in turns",
                where=f"{one.where} and {other.where}",
                fix="give the logs of one job at a time",
            )

    # --- checkpoints and evaluations ---------------------------------------------------------------------------------

    def _take_pause(self, happening: Happening) -> None:
        """A checkpoint, or an evaluation: training has stood still for it."""
        is_save, took_us = happening.kind == "save", us_of(happening.took_s or 0.0)
        name: LedgerClass = "checkpoint" if is_save else "load"
        if not self.attempts:
            self._begin(happening, self.clock.advance(happening, took_us, counts_alone=False), name)
        elif self._state is not JobState.RUNNING:
            passed_us = self.clock.advance(happening, took_us, counts_alone=not is_save)
            own_us = min(took_us, passed_us)
            if is_save or self._now.last is None:
                self._give(name, own_us)
            else:  # the last one, when training is done
                self._count_evaluation(happening)
                self.history.note_evaluation(own_us)
            self._give("load" if self._state is JobState.STARTING else "restart", passed_us - own_us)
        elif happening.time_s is not None:
            self._pause(happening, took_us)
        elif is_save:
            self._claimed_us += took_us if self._count_save(happening, took_us) else 0
        else:
            self._count_evaluation(happening)
            self._evaluated_us += took_us
            self._evaluates = self._evaluates or happening.took_s is None

    def _pause(self, happening: Happening, took_us: int) -> None:
        """A pause within training whose end has a clock; iterations before it may not have been told yet."""
        entry = self._now
        passed_us = self.clock.advance(happening, took_us, counts_alone=False)
        whole_us = self._open_us + passed_us
        further = max((happening.iteration or 0) - (entry.last or 0), 0)
        pace_us = round((self._pace_us or 0.0) * further)
        spent_us = min(took_us, passed_us) if happening.took_s is not None else max(passed_us - pace_us, 0)
        if further and further <= FAR * max(self._interval, 1) and happening.iteration is not None:
            self._open_us = 0
            self._done(happening, happening.iteration, further, whole_us - spent_us)
        else:
            self._open_us = whole_us - spent_us
        self._paused_us += whole_us
        if happening.kind == "evaluation":
            self._count_evaluation(happening)
            self.history.note_evaluation(spent_us)
        elif self._count_save(happening, spent_us):
            self._give("checkpoint", spent_us)
        else:
            self._open_us += spent_us
        entry.progress_us = entry.end_us = self.clock.elapsed_us

    def _pass_claims(self, *, has_clock: bool, in_timer_us: int = 0) -> int:
        """Let the time of checkpoints and evaluations pass that neither a clock nor a timer of iterations has in it.

        Args:
            has_clock: what comes next has one, or is none of the iterations: it passes only if nothing had one before.
            in_timer_us: what the timer of the next iterations says beyond the pace. If that is half of theirs or more,
                the timer ran on (Megatron's, before 2024).

        Returns:
            How much has passed.
        """
        claims_us = self._claimed_us + self._evaluated_us
        if (has_clock and self.clock.begin_s is not None) or 2 * in_timer_us >= claims_us:
            return 0
        self.clock.elapsed_us += claims_us
        return claims_us

    def _spend_claims(self, within_us: int) -> int:
        """Give checkpoints and evaluations without a clock their time; how much of so much that is."""
        saved_us = min(self._claimed_us, within_us)
        evaluated_us = min(self._evaluated_us, within_us - saved_us)
        self._claimed_us = self._evaluated_us = 0
        self._give("checkpoint", saved_us)
        self.history.note_evaluation(evaluated_us)
        return saved_us + evaluated_us

    def _count_evaluation(self, happening: Happening) -> None:
        """Once for an iteration, however many sets the model is evaluated with."""
        if happening.iteration is None or happening.iteration != self._evaluated:
            self.evaluations += 1
            self.unmeasured += happening.took_s is None and happening.time_s is None
        self._evaluated = happening.iteration

    def _count_save(self, happening: Happening, took_us: int) -> bool:
        """Whether it is a checkpoint that no other rank has told of."""
        entry = self._now
        if happening.iteration is not None and happening.iteration == entry.saved:
            return False
        before = entry.resumes if entry.saved is None else entry.saved
        entry.saved = entry.last if happening.iteration is None else happening.iteration
        beat = (entry.saved or 0) - (before or 0)
        entry.is_off_beat, self._beat = self._beat is not None and beat != self._beat, beat
        self.saves_us.append(took_us)
        if self._saved_us is not None:
            self.between_saves_us.append(self.clock.elapsed_us - self._saved_us)
        self._saved_us = self.clock.elapsed_us
        return True

    # --- what ends ---------------------------------------------------------------------------------------------------

    def _take_end(self, happening: Happening) -> None:
        """A failure, somebody who notices, or a clean end."""
        passed_us = self._pass_claims(has_clock=True)
        passed_us += self.clock.advance(happening, 0, counts_alone=False)
        if not self.attempts:
            self._begin(happening, 0, "restart")
        entry = self._now
        entry.end_us = self.clock.elapsed_us
        passed_us = self._of_its_own(passed_us + self._open_us, 0, happening)
        passed_us -= self._spend_claims(passed_us)
        self._open_us = 0
        if happening.kind == "end":
            self._give("restart", passed_us)
            entry.alarm_us["restart"] += passed_us
            if self._state is not JobState.BROKEN:
                entry.ended = "clean"
            self._state = JobState.ENDED if self._state is not JobState.BROKEN else JobState.BROKEN
            return
        # A first error without a clock was between the lines around it: nobody knows how soon it was noticed.
        is_late = self._state is JobState.BROKEN and (
            entry.is_undated or (happening.kind == "detected" and not entry.detected)
        )
        name: LedgerClass = "detection" if self._state is JobState.RUNNING or is_late else "restart"
        self._give(name, passed_us)
        if self._state is JobState.ENDED and entry.ended == "clean":
            return
        entry.alarm_us[name] += passed_us
        entry.detected = entry.detected or happening.kind == "detected"
        if name == "detection" or entry.noticed_us is None:
            entry.noticed_us = self.clock.elapsed_us
        entry.is_undated = happening.time_s is None and (entry.failure is None or entry.is_undated)
        if entry.failure is None:
            entry.failure = self._alarm_before(happening) or happening
        elif happening.cause and (entry.failure.cause or _FOLLOWS).startswith(_FOLLOWS):
            entry.failure = happening
        entry.ended = "failed"
        self._state = JobState.BROKEN

    def _alarm_before(self, happening: Happening) -> Happening | None:
        """The error of which a launcher tells only now that it ended a process: others had gone on for a moment."""
        if self._called_off is None or not (happening.cause or "").startswith(_OF_LAUNCHERS):
            return None
        (since_us, alarm), self._called_off = self._called_off, None
        if self.clock.elapsed_us - since_us > LATE_US:
            return None
        self.alarms.remove(alarm)
        return alarm

    def _call_off(self) -> None:
        """Training goes on after an error: it was none of the job's."""
        entry = self._now
        if entry.failure is not None:
            self.alarms.append(entry.failure)
            self._called_off = self.clock.elapsed_us, entry.failure
        for name, us in entry.alarm_us.items():
            entry.us[name] -= us
            self._open_us += us
        entry.alarm_us.clear()
        entry.starting_us = min(entry.starting_us, entry.us["restart"])
        entry.failure, entry.noticed_us, entry.detected, entry.ended = None, None, False, "open"

    def _note_sign(self, happening: Happening) -> None:
        sign_us = self.clock.sign(happening)
        if sign_us is not None:
            self._sign_us = max(self._sign_us or 0, sign_us)

    def _give(self, name: LedgerClass, us: int) -> None:
        """So much time of the attempt was spent so."""
        self._now.us[name] += us
        if name == "restart" and self._state is JobState.STARTING:
            self._now.starting_us += us


_OF_LAUNCHERS = ("exit code", "SIG", "the agent")  # causes that say how a process ended, and not why
_FOLLOWS = "SIGTERM"  # what ends the others when one has failed: the cause is what else is said
_BEGINNINGS = frozenset({"start", "rendezvous", "init", "load"})
