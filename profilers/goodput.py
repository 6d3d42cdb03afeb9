"""`rtk goodput`, and `rtk.goodput`: from a job's logs to its ledger."""

from collections.abc import Sequence

from ..schemas.ledger import GoodputLedger
from ..schemas.log_formats import JobLogFormat
from .failslow.readers.stamps import zone_of
from .ledger.ledger import ledger_of
from .ledger.log_count import LogCount
from .ledger.readers.reading import read_happenings


def goodput(
    paths: Sequence[str],
    *,
    format_name: JobLogFormat | None = None,
    patterns: Sequence[str] = (),
    gpus: int | None = None,
    sacct: str | None = None,
    kubernetes: str | None = None,
    timezone: str = "UTC",
) -> GoodputLedger:
    """Where the GPU-hours of a job went, over all its restarts: each second of each GPU in one class.

    The logs are read as streams, however long they are. Goodput is the useful share of all GPU-seconds, as in google's
    ml-goodput-measurement; ETTR is Meta's (arXiv 2410.21680); `schemas/ledger.py` has all definitions.

    Args:
        paths: logs of one job, of one attempt or of many each, compressed or not; "-" is standard input.
        format_name: whose logs they are; None: it is recognised.
        patterns: regular expressions for lines of your own, whose groups are named after what they tell
            (docs/goodput.md); beside the formats that are known.
        gpus: that the job ran on, where the logs do not say, or say wrong.
        sacct: what Slurm's sacct says of the job's attempts, a file.
        kubernetes: events of its pods, a file.
        timezone: of clocks in logs that name none, such as "Europe/Berlin".

    Returns:
        The ledger, with what was not understood, and what to know before believing it.

    Raises:
        InvalidInputError: a file cannot be read, no iteration is in it, or more than one job; there is no such zone.
    """
    count = LogCount()
    happenings = read_happenings(
        paths,
        count,
        format_name=format_name,
        patterns=patterns,
        sacct=sacct,
        kubernetes=kubernetes,
        zone=zone_of(timezone),
    )
    return ledger_of(happenings, gpus=gpus, count=count)
