"""Diagnosis: what a job's settings say, what is wrong with them, and what failures cost with them."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from .errors import InvalidInputError
from .fields import STRICT, Count, Index, Name, Seconds

# contradiction: two settings that cannot both be meant, or one that nothing reads; risk: a setting with which failures
# cost much, or end the job.
Severity = Literal["contradiction", "risk"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True, slots=True)
class ToldSetting:
    """A setting as it stands somewhere.

    Attributes:
        name: as it is written there, such as `NCCL_IB_TIMEOUT` or `comm.train_timeout_seconds`.
        text: its value, as it is written there.
        file: where it stands: a file, an option of `rtk doctor`, or `default of …` where it is not set.
        line: its line there; None: the place has no lines.
    """

    name: Name
    text: str
    file: Name
    line: Count | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"line"})
    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def place(self) -> str:
        """`job.sh:12`, `default of torchft`."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    @property
    def words(self) -> str:
        """`NCCL_IB_TIMEOUT=31 (job.sh:12)`."""
        return f"{self.name}{f'={self.text}' if self.text else ''} ({self.place})"


@dataclass(frozen=True, slots=True)
class UnreadSetting:
    """A setting that says nothing: it is not known, cannot be read, or nobody reads it.

    Attributes:
        setting: as it stands.
        kind: `unknown`: rtk does not know it; `unreadable`: its value makes no sense; `ignored`: no program reads it.
        why: in words.
    """

    setting: ToldSetting
    kind: Literal["unknown", "unreadable", "ignored"]
    why: str

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class SettingsFinding:
    """What a rule has found.

    Attributes:
        rule: the rule's name.
        severity: of what is found.
        says: what is wrong, in a sentence, with the values.
        fix: what to do.
        settings: those that it is about, with their places; defaults included.
        sources: what says so: pages, threads, source files.
    """

    rule: Name
    severity: Severity
    says: str
    fix: str
    settings: tuple[ToldSetting, ...]
    sources: tuple[str, ...]

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class CheapChange:
    """A setting that would cost little to change.

    Attributes:
        says: what to change, in a sentence.
        saves_gpu_hours: at each failure, or each hang, on average.
        at: what it saves them at.
    """

    says: str
    saves_gpu_hours: Seconds
    at: Literal["hang", "failure"]

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class JobCosts:
    """What a hang and a failure cost with a job's settings; None: not known, see `missing`.

    Attributes:
        gpus: of the job.
        hang_s: how long a hang goes on at most until something ends the job; None: nothing does.
        hang_ended_by: the setting that ends it; None: nothing.
        hang_gpu_hours: what it costs until then.
        redone_s: what is computed again after a failure, on average: half of what lies between two checkpoints.
        restart_s: from the end of the old processes to the first new iteration.
        failure_gpu_hours: detection at worst, restart, and what is redone, as far as these are known.
        changes: what would be cheap to change.
        missing: what would have to be known to say more, each with the option that gives it.
    """

    gpus: Count | None
    hang_s: Seconds | None
    hang_ended_by: ToldSetting | None
    hang_gpu_hours: Seconds | None
    redone_s: Seconds | None
    restart_s: Seconds | None
    failure_gpu_hours: Seconds | None
    changes: tuple[CheapChange, ...]
    missing: tuple[str, ...]

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file that was read: what it was taken for, and how many settings of it are known."""

    file: Name
    kind: Name
    known: Index

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was read, the settings that count, what is wrong with them, and what they cost.

    Attributes:
        files: in the order in which they were given.
        settings: those that are set, once each: the one that counts.
        findings: contradictions first.
        unread: settings that say nothing.
        costs: of a hang and a failure.
    """

    files: tuple[SettingsFile, ...]
    settings: tuple[ToldSetting, ...]
    findings: tuple[SettingsFinding, ...]
    unread: tuple[UnreadSetting, ...]
    costs: JobCosts

    FORMAT: ClassVar[str] = "rtk.diagnosis"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    __pydantic_config__: ClassVar[Any] = STRICT

    def validate(self) -> None:
        """Contradictions come before risks, and each finding has a source."""
        order = [SEVERITIES.index(found.severity) for found in self.findings]
        if order != sorted(order):
            raise InvalidInputError("a risk stands before a contradiction", where="/findings", fix="sort by severity")
        for number, found in enumerate(self.findings):
            if not found.sources:
                raise InvalidInputError(
                    "the finding has no source", where=f"/findings/{number}/sources", fix="name what says so"
                )
