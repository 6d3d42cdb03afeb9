"""Traces with plain arguments: what `rtk trace …` calls, and what Python calls."""

from collections.abc import Iterator
from typing import Any

from ...schemas.errors import InvalidInputError
from ...schemas.trace import TraceEvent
from .files import LONGEST_S
from .generate import DAY_S, generate, recipe_of
from .read import Summary, TraceOptions, read_events, summary_of, write_events


def trace_generate(*, nodes: int, days: float, seed: int = 0, **faults: Any) -> Iterator[TraceEvent]:
    """Make up a trace: nodes that fail and are repaired, racks that fail as a whole, slow nodes and slow links.

    Args:
        nodes: how many, called node1, node2, ….
        days: how long it lasts.
        seed: of all that is drawn; the same gives the same events.
        faults: what is to happen, as the options of `rtk trace generate` say it (`recipe_of`): `mtbf="30d"`.

    Raises:
        InvalidInputError: a value is not one that it can be, or one is missing; names the option.
    """
    if not 0 < days * DAY_S < LONGEST_S:
        fix = f"give more than 0, and less than {LONGEST_S / DAY_S:.0f}"
        raise InvalidInputError(f"a trace cannot last {days * DAY_S:g} s", where="--days", fix=fix)
    return generate(recipe_of(nodes, days * DAY_S, seed, **faults))


def trace_convert(file: str, output: str, options: TraceOptions | None = None) -> int:
    """Write somebody's trace as rtk's own: JSON lines, or CSV where the name ends in .csv.

    Args:
        file: in any format that `rtk trace convert` names.
        output: where to write.
        options: what the trace does not say itself.

    Returns:
        How many events it has.

    Raises:
        InvalidInputError: it cannot be read, or written.
    """
    return write_events(output, (one.event for one in read_events(file, options)))


def trace_show(file: str, options: TraceOptions | None = None) -> Summary:
    """What a trace is like: how long, how many nodes, how often some are lost and how many at once.

    Args:
        file, options: as for `trace_convert`.

    Raises:
        InvalidInputError: it cannot be read.
    """
    return summary_of(read_events(file, options), 0.0 if options is None else options.usual_link_s)
