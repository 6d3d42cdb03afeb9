"""The folder of a sweep: a report a combination, and a summary of all.

A report is there whole or not at all, and says by a digest what it answers: run again, a sweep makes what is missing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..schemas.documents import canonical_json, read_document, write_document
from ..schemas.errors import InvalidInputError
from ..schemas.files import write_bytes
from ..schemas.replay_report import ReplayReport
from .sweep_spec import Combination

SUMMARY = "summary.json"


@dataclass(frozen=True)
class Outcome:
    """What came of a combination.

    Attributes:
        goodput: by policy; 0 where it cannot train this job.
        refusals: why some cannot.
        impossible: why not even the cluster that never fails can; None where it can.
    """

    goodput: dict[str, float]
    refusals: dict[str, str]
    impossible: str | None = None


def outcome_of(report: ReplayReport) -> Outcome:
    """What a report says of each policy."""
    return Outcome(
        {one.policy: one.goodput for one in report.policies},
        {one.policy: one.refusal for one in report.policies if one.refusal is not None},
    )


class SweepFolder:
    """Reports, each under its combination's name.

    Args:
        path: the folder; it may be there already, the folder that it stands in must be.

    Raises:
        InvalidInputError: the folder cannot be made.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        try:
            self._path.mkdir(exist_ok=True)
        except OSError as error:
            what = f"cannot make the folder: {error.strerror or error}"
            raise InvalidInputError(what, where=path, fix="check the path and its permissions") from error

    def finished(self, combinations: Iterable[Combination]) -> dict[int, Outcome]:
        """The outcomes that are there, by the combinations' numbers; damaged reports and those of others are not."""
        found = ((number, self._read(one)) for number, one in enumerate(combinations))
        return {number: outcome for number, outcome in found if outcome is not None}

    def keep(self, combination: Combination, report: ReplayReport) -> Outcome:
        """Write a report; what is written when this returns outlives this process."""
        write_document(str(self._path / combination.name), report)
        return outcome_of(report)

    def summarize(self, summary: dict[str, Any]) -> None:
        """Write what all reports say together."""
        write_bytes(str(self._path / SUMMARY), canonical_json(summary))

    def _read(self, combination: Combination) -> Outcome | None:
        path = self._path / combination.name
        if not path.exists():
            return None
        try:
            report = read_document(str(path), ReplayReport)
        except InvalidInputError:
            return None
        return outcome_of(report) if report.inputs.get("question") == combination.digest else None
