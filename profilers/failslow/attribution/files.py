"""What a table of single operations tells: the door of this folder for `rtk detect`."""

from pathlib import Path

import numpy as np

from ....schemas.detection import Attribution, FailSlow, FileFindings
from .causes import NOTICEABLE, Effect, causes_of
from .operations import arrange
from .shares import attribution_of
from .table import looks_like_one, read_table
from .what_if import WhatIf

KIND = "operations"


def is_operation_table(path: Path) -> bool:
    """Whether a file is a table of single operations: a Parquet file, or CSV (or .gz of it) with a column `optype`.

    Args:
        path: the file; what cannot be read is none.
    """
    try:
        return looks_like_one(path)
    except OSError:
        return False


def findings_of(path: Path) -> FileFindings:
    """Who is to blame for a job's slow-down, from the times of its operations.

    After "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25), which published the
    format: one row an operation, with the columns of `table.COLUMNS`. Samples are the table's steps, which need not be
    consecutive. An event's severity is what the step takes over what it would take without it, once all earlier events
    are amended; it lasts from the first to the last step in which it costs more than 10 %.

    Args:
        path: a Parquet file, CSV, or gzipped CSV.

    Raises:
        InvalidInputError: the table is damaged or empty, lacks a column, has a value that cannot be, or is not one of
            whole steps; or it is Parquet and pyarrow is not installed.
    """
    where = str(path)
    job = arrange(read_table(path), where)
    what_if = WhatIf.of(job, where)
    attribution = attribution_of(what_if)
    effects = causes_of(what_if)
    notes = _notes(what_if)
    events = tuple(_event(effect, notes if not n else ()) for n, effect in enumerate(effects))
    if not events and attribution.slowdown >= NOTICEABLE:
        events = (_unexplained(attribution, job.steps, notes),)
    events = tuple(sorted(events, key=lambda event: event.onset))
    return FileFindings(where, KIND, job.steps, what_if.ideal_s(), events, attribution)


def _event(effect: Effect, notes: tuple[str, ...]) -> FailSlow:
    """A cause as an event, over the steps that it slows."""
    slow = np.flatnonzero(effect.before_s > NOTICEABLE * effect.after_s)
    first, last = (int(slow[0]), int(slow[-1])) if len(slow) else (0, len(effect.before_s) - 1)
    cost = f"without that, a step takes {effect.after_s.mean():.3g} s instead of {effect.before_s.mean():.3g} s"
    return FailSlow(
        onset=first,
        provisional=None,
        confirmed=last,
        relief=last + 1 if last + 1 < len(effect.before_s) else None,
        severity=effect.slowdown,
        cause=effect.cause.of,
        scope=effect.cause.scope,
        evidence=(*effect.cause.evidence, cost, *notes),
    )


def _unexplained(attribution: Attribution, steps: int, notes: tuple[str, ...]) -> FailSlow:
    """A slow-down that no single remedy takes away."""
    told = f"a step takes {attribution.slowdown:.2f} times what it would with all operations of a kind alike"
    evidence = (told, "no link, worker or stage, nor the data, costs 10 % by itself", *notes)
    return FailSlow(0, None, steps - 1, None, attribution.slowdown, "unknown", evidence=evidence)


def _notes(what_if: WhatIf) -> tuple[str, ...]:
    """What limits how far the findings can be trusted."""
    job, was_s = what_if.job, what_if.as_it_was_s()
    measured_s = float(job.end_s.max(axis=(0, 2)).mean())
    notes = []
    if measured_s > NOTICEABLE * was_s:
        notes.append(f"of a step's {measured_s:.3g} s, {measured_s - was_s:.3g} s pass between operations")
    if job.left_out:
        notes.append(f"{job.left_out} steps with other operations than most were left out")
    return tuple(notes)
