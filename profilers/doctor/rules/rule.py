"""What a rule is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ....schemas.diagnosis import SettingsFinding, Severity, ToldSetting
from ..settings import JobSettings, Setting


class Broken(NamedTuple):
    """One place where a rule is broken: what is wrong there, in a sentence, and the settings that it is about."""

    says: str
    settings: tuple[ToldSetting, ...]


Check = Callable[[JobSettings], Iterator[Broken]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule about settings.

    Attributes:
        id: its name.
        severity: of what it finds.
        reads: fields of `JobSettings` that it asks for.
        condition: when it is broken, in words.
        check: gives what is broken in a job's settings.
        fix: what to do about it.
        sources: what says so: threads as `owner/name#number`, source files with their repository, pages by address.
    """

    id: str
    severity: Severity
    reads: tuple[str, ...]
    condition: str
    check: Check
    fix: str
    sources: tuple[str, ...]

    def findings(self, job: JobSettings) -> Iterator[SettingsFinding]:
        """What the rule finds in a job's settings; nothing where it asks for what only the job itself knows."""
        if not job.unknown.isdisjoint(self.reads):
            return
        for broken in self.check(job):
            yield SettingsFinding(self.id, self.severity, broken.says, self.fix, broken.settings, self.sources)


def rule(severity: Severity, reads: str, fix: str, *sources: str) -> Callable[[Check], Rule]:
    """Make a rule of a function: its name is the rule's, its docstring the condition.

    Args:
        severity: of what it finds.
        reads: the fields that it asks for, with blanks between them.
        fix: what to do.
        sources: what says so.
    """

    def made(check: Check) -> Rule:
        condition = " ".join((check.__doc__ or "").split())
        name = check.__name__.replace("_", "-")
        return Rule(name, severity, tuple(reads.split()), condition, check, fix, sources)

    return made


def broken(says: str, *settings: Setting[Any]) -> Broken:
    """What is broken, said of typed settings."""
    return Broken(says, tuple(setting.told for setting in settings))
