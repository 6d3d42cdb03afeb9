"""The checkpoints of a job, as its coordinator sees them: when one is due, and what comes of the one under way.

A part of the coordinator's rules (rules.py), pure as they are.
"""

from collections import Counter
from dataclasses import replace

from ...schemas.checkpoint import CheckpointFile
from .announcements import CheckpointSaved
from .protocol import Job, Publish, Published, Saved, Saver


class Saving:
    """One checkpoint under way: savers write a part each, then one worker makes the whole visible.

    Args:
        folder: where it goes.
        iteration: how many iterations are done: the next one to run after loading it.
        taken: steps that were taken in them.
        savers: who writes which part.
        begun_s: now.
        is_last_resort: parts that cannot be written do not spoil the others.
    """

    def __init__(
        self,
        folder: str,
        iteration: int,
        taken: int,
        savers: tuple[Saver, ...],
        begun_s: float,
        is_last_resort: bool = False,
    ) -> None:
        self._folder, self._iteration, self._taken, self._begun_s = folder, iteration, taken, begun_s
        self._is_last_resort = is_last_resort
        self._waited_for = Counter(saver.worker for saver in savers)
        self._parts: list[CheckpointFile] = []
        self._error: str | None = None
        self._publisher: str | None = None
        self._path: str | None = None
        self.is_over = False

    def note(self, worker: str, written: Saved | Published) -> None:
        """A saver has written its part, or the whole is visible; or that could not be."""
        if written.iteration != self._iteration:
            return
        if isinstance(written, Published):
            if self._publisher is not None:
                self._path, self._error = written.path, self._error or written.error
                self.is_over = True
        elif written.part is None:
            self._error = self._error or (written.error if worker in self._waited_for else None)
            del self._waited_for[worker]
        elif worker in self._waited_for and written.part not in self._parts:
            self._waited_for -= Counter([worker])
            self._parts += [written.part, *written.further]

    def lose(self, worker: str) -> None:
        """A worker has died; its part will not come, and another one must publish."""
        if worker in self._waited_for:
            del self._waited_for[worker]
            self._error = self._error or f"worker {worker} failed while it saved its part"
        if worker == self._publisher:
            self._publisher = None

    def give_up(self, reason: str) -> None:
        """The checkpoint will not come to be, or only from what is there."""
        self._error = self._error or reason
        self._waited_for.clear()
        self.is_over = self._publisher is not None

    def publish(self, publisher: str) -> Publish | None:
        """What to tell a worker once all parts are written, or cannot be; None before that, and once it is told.

        Without parts, what was written is to be discarded.
        """
        if self._waited_for or self._publisher is not None or self.is_over:
            return None
        self._publisher = publisher
        is_wanted = self._error is None or self._is_last_resort
        parts = tuple(sorted(self._parts, key=lambda part: part.order)) if is_wanted else ()
        return Publish(self._folder, self._iteration, parts, self._taken)

    def resumed(self, job: Job) -> Job | None:
        """A job from this checkpoint on; None where it has not come to be, or not whole."""
        if self._path is None or self._error is not None or self._is_last_resort:
            return None
        return replace(job, first_iteration=self._iteration, taken=self._taken, resume=self._path)

    def outcome(self, now_s: float) -> CheckpointSaved:
        """What came of it."""
        return CheckpointSaved(
            iteration=self._iteration, path=self._path, seconds=now_s - self._begun_s, error=self._error
        )


class Checkpoints:
    """All checkpoints of a job, one after the other.

    Args:
        job: that says where they go, and how often.

    Attributes:
        under_way: the one that is being saved.
        job: it from the last whole one on; None where there is none, not even one that it began with.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.under_way: Saving | None = None
        self.job = None if job.resume is None else job
        self._is_last_saved = False
        self._begun_s = 0.0  # the last one, or training

    def begin_training(self, now_s: float) -> None:
        """From now on the time counts until the first one."""
        self._begun_s = now_s

    @property
    def lacks_last(self) -> bool:
        """Whether the state after the job's last iteration is yet to be saved."""
        return self._job.checkpoint is not None and not self._is_last_saved

    def is_due(self, done: int, now_s: float) -> bool:
        """Whether one is to be saved after so many iterations; not while another one is under way."""
        job = self._job
        is_time = (
            done == job.iterations
            or (job.checkpoint_every and done % job.checkpoint_every == 0)
            or (job.checkpoint_every_s is not None and now_s >= self._begun_s + job.checkpoint_every_s)
        )
        return job.checkpoint is not None and self.under_way is None and bool(is_time)

    def begin(
        self, done: int, taken: int, savers: tuple[Saver, ...], now_s: float, is_last_resort: bool = False
    ) -> None:
        """One is saved; arguments as of `Saving`."""
        assert self._job.checkpoint is not None
        self.under_way = Saving(self._job.checkpoint, done, taken, savers, now_s, is_last_resort)
        self._begun_s, self._is_last_saved = now_s, done == self._job.iterations

    def lose(self, worker: str) -> None:
        """A worker has died, which may have a part in the one under way."""
        if self.under_way is not None:
            self.under_way.lose(worker)

    def give_up(self, reason: str) -> None:
        """The one under way, if one is, will not come to be, or only from what is there."""
        if self.under_way is not None:
            self.under_way.give_up(reason)

    def go_on(
        self, publisher: str | None, is_anybody_awaited: bool, now_s: float
    ) -> tuple[Publish | None, CheckpointSaved | None]:
        """What to tell the publisher, and what came of the one under way, once it has.

        Args:
            publisher: who could make it visible; None: nobody is there.
            is_anybody_awaited: whether somebody may come back who could.
            now_s: the time.
        """
        saving, publish = self.under_way, None
        if saving is None:
            return None, None
        if publisher is None:
            saving.is_over = saving.is_over or not is_anybody_awaited
        else:
            publish = saving.publish(publisher)
        if not saving.is_over:
            return publish, None
        self.under_way, self.job = None, saving.resumed(self._job) or self.job
        return publish, saving.outcome(now_s)
