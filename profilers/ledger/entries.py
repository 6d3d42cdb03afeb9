"""An attempt of a job while its log is read: what it does, and where its time went."""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto

from ...schemas.ledger import AttemptEnd, LedgerClass
from .happenings import Happening
from .history import Loss


class JobState(Enum):
    """What the job does."""

    NOTHING = auto()
    STARTING = auto()
    RUNNING = auto()
    BROKEN = auto()
    ENDED = auto()


@dataclass(slots=True)
class AttemptEntry:
    """An attempt under way; times in microseconds since the beginning of the span.

    Attributes:
        starting_us: what its beginning took of the class restart; the rest of that was tearing it down.
        failure: the first thing that broke, or the first that noticed.
        resumes: after which iteration it goes on; None: not known yet.
        loss: what was lost when it went back to that.
        saved: the last iteration that a checkpoint of it has.
        is_off_beat: that checkpoint came earlier, or later, than it was due.
        teller: whose line its first iteration was.
        came_up: whether its model was built, or a checkpoint loaded.
        formed_us: when its processes had formed their group.
        started: who has told of its start: launchers, and the program.
        is_dated: whether a line of it had a clock.
        is_undated: nothing that broke, or noticed, has had a clock so far.
        left_us: time since its last progress by class, given when the next attempt began without a word of its end.
        alarm_us: time since the failure, or up to the end, by class, in case that it was none.
    """

    begins: Happening
    begin_us: int
    us: Counter[LedgerClass] = field(default_factory=Counter)
    gpus: int | None = None
    training_us: int | None = None
    progress_us: int = 0
    noticed_us: int | None = None
    end_us: int = 0
    until_us: int = 0
    starting_us: int = 0
    first: int | None = None
    last: int | None = None
    failure: Happening | None = None
    detected: bool = False
    is_undated: bool = False
    ended: AttemptEnd = "open"
    resumes: int | None = None
    loss: Loss | None = None
    saved: int | None = None
    is_off_beat: bool = False
    teller: tuple[str, ...] = ()
    came_up: bool = False
    formed_us: int | None = None
    started: set[str | None] = field(default_factory=set)
    is_dated: bool = True
    left_us: Counter[LedgerClass] = field(default_factory=Counter)
    alarm_us: Counter[LedgerClass] = field(default_factory=Counter)
