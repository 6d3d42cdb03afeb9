"""Report: what a simulation or a run was worth."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from .fields import STRICT, Bytes, Ratio, Seconds


@dataclass(frozen=True, slots=True)
class Report:
    """Times, bound and memory of an executed plan; memory stands in the plan's worker order."""

    source: Literal["simulated", "measured"]
    iteration_time_s: Seconds
    makespan_s: Seconds
    period_s: Seconds
    lower_bound_s: Seconds
    bubble_ratio: Ratio
    peak_memory_bytes: tuple[Bytes, ...]
    microbatches_per_s: Ratio
    plan: str | None = None

    FORMAT: ClassVar[str] = "rtk.report"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    __pydantic_config__: ClassVar[Any] = STRICT

    def validate(self) -> None:
        """Nothing here can contradict itself."""
