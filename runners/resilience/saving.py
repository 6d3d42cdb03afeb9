"""A checkpoint under way: savers write a part each, then one worker makes the whole visible."""

from ...schemas.checkpoint import CheckpointFile
from .announcements import CheckpointSaved
from .messages import Publish, Published, Saved, Saver


class Saving:
    """One checkpoint.

    Args:
        folder: where it goes.
        iteration: how many iterations are done: the next one to run after loading it.
        savers: who writes which part.
        begun_s: now.
        is_last_resort: parts that cannot be written do not spoil the others.
    """

    def __init__(
        self, folder: str, iteration: int, savers: tuple[Saver, ...], begun_s: float, is_last_resort: bool = False
    ) -> None:
        self._folder, self._iteration, self._begun_s = folder, iteration, begun_s
        self._is_last_resort = is_last_resort
        self._waited_for = {saver.worker for saver in savers}
        self._parts: list[CheckpointFile] = []
        self._error: str | None = None
        self._publisher: str | None = None
        self._path: str | None = None
        self.is_over = False

    def add(self, worker: str, saved: Saved) -> None:
        """A saver has written its part, or could not."""
        if saved.iteration != self._iteration or worker not in self._waited_for:
            return
        self._waited_for.discard(worker)
        if saved.part is not None:
            self._parts.append(saved.part)
        self._error = self._error or saved.error

    def lose(self, worker: str) -> None:
        """A worker has died; its part will not come, and another one must publish."""
        if worker in self._waited_for:
            self._waited_for.discard(worker)
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
        parts = tuple(sorted(self._parts, key=lambda part: part.layers)) if is_wanted else ()
        return Publish(self._folder, self._iteration, parts)

    def end(self, published: Published) -> None:
        """It is visible, or could not be made so."""
        if published.iteration == self._iteration and self._publisher is not None:
            self._path, self._error = published.path, self._error or published.error
            self.is_over = True

    def outcome(self, now_s: float) -> CheckpointSaved:
        """What came of it."""
        return CheckpointSaved(
            iteration=self._iteration, path=self._path, seconds=now_s - self._begun_s, error=self._error
        )
