"""Detection: what was found slow in logs of a job, when, how much, and where."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from .errors import InvalidInputError
from .fields import STRICT, Factor, Index, Ratio, Seconds


@dataclass(frozen=True, slots=True)
class Episode:
    """A stretch of a series of times that is slow; places are counted in samples from 0.

    Attributes:
        onset: the first slow sample.
        provisional: the sample that raised the suspicion; None: it was found only in hindsight.
        confirmed: the sample with which it was certain; None: it is not, as yet.
        relief: the first sample that is as usual again; None: none is, as yet.
        severity: the median of its samples, as many as there are so far, over the usual time beside it.
    """

    onset: Index
    provisional: Index | None
    confirmed: Index | None
    relief: Index | None
    severity: Factor

    __pydantic_config__: ClassVar[Any] = STRICT


PLACES = ("onset", "provisional", "confirmed", "relief")  # the samples of an episode, in order


@dataclass(frozen=True, slots=True)
class Scope:
    """Where something is slow: names of workers or ranks, of groups, of links `a-b`, of stages; none for a job."""

    kind: Literal["job", "worker", "group", "link", "stage"] = "job"
    names: tuple[str, ...] = ()

    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def words(self) -> str:
        """`rank 3`, `worker 1/0`, `link 0-1`, `job`: who has a number only is a rank."""
        names = [name.removeprefix("rank ") for name in self.names]
        is_rank = self.kind == "worker" and all(name.isdecimal() for name in names)
        return f"{'rank' if is_rank else self.kind} {', '.join(names)}".strip()


@dataclass(frozen=True, slots=True)
class FailSlow:
    """An episode, what it comes from, and what speaks for that, in sentences.

    Attributes:
        iterations: the log's own numbers of those samples, by their names here; None where the log does not number
            iterations, or too long ago.
    """

    onset: Index
    provisional: Index | None
    confirmed: Index | None
    relief: Index | None
    severity: Factor
    cause: Literal["computation", "communication", "unknown"] = "unknown"
    scope: Scope = Scope()
    evidence: tuple[str, ...] = ()
    iterations: dict[str, int] | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"evidence", "iterations"})
    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def places(self) -> dict[str, int]:
        """When what happened, as far as it has: in the log's own iterations where it numbers them, else in samples."""
        samples = {name: getattr(self, name) for name in PLACES}
        return self.iterations or {name: place for name, place in samples.items() if place is not None}

    @classmethod
    def of(
        cls,
        episode: Episode,
        cause: Literal["computation", "communication", "unknown"] = "unknown",
        scope: Scope = Scope(),
        evidence: tuple[str, ...] = (),
        iterations: dict[str, int] | None = None,
    ) -> "FailSlow":
        """An episode with what is known of it."""
        return cls(
            episode.onset,
            episode.provisional,
            episode.confirmed,
            episode.relief,
            episode.severity,
            cause,
            scope,
            evidence,
            iterations,
        )


@dataclass(frozen=True, slots=True)
class Attribution:
    """How much of a job's slow-down each part is to blame for, by what the job would take without it.

    Attributes:
        slowdown: the job's time over what it would take if all operations of a kind took the same time.
        worker_share: the part of the slow-down that goes away with that of the slowest workers (M_W).
        stage_share: the part that goes away with that of the last stage (M_S). All these parts can be above 1 and below
            0: what is usual is a mean, and without what is slow there may be less to do than that.
        link_share: the part that goes away with that of the slowest links.
        data_share: the part that goes away if each worker's micro-batches take the same.
    """

    slowdown: Factor
    worker_share: Ratio
    stage_share: Ratio
    link_share: Ratio
    data_share: Ratio

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class FileFindings:
    """What was found in one file.

    Attributes:
        file: its name as it was given, `-` for standard input.
        kind: what it was read as.
        samples: how many iterations it tells of.
        usual_s: what an iteration takes when nothing is slow, as far as that was seen.
        events: what is slow, in the order of onset.
        attribution: where the file knows single operations.
    """

    file: str
    kind: str
    samples: Index
    usual_s: Seconds | None
    events: tuple[FailSlow, ...]
    attribution: Attribution | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"attribution"})
    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Detection:
    """What was found in each file, in the order in which they were given."""

    files: tuple[FileFindings, ...]

    FORMAT: ClassVar[str] = "rtk.detection"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    __pydantic_config__: ClassVar[Any] = STRICT

    def validate(self) -> None:
        """Places lie in their file, and in order."""
        for number, findings in enumerate(self.files):
            for index, event in enumerate(findings.events):
                places = [event.onset, event.provisional, event.confirmed]
                known = [place for place in places if place is not None]
                if known != sorted(known) or known[-1] >= max(findings.samples, 1):
                    raise InvalidInputError(
                        "the samples of an event are out of order, or beyond the last one",
                        where=f"/files/{number}/events/{index}",
                        fix="onset, provisional and confirmed stand in this order",
                    )
