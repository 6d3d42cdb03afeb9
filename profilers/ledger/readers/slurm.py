"""Slurm's accounts: what `sacct --json` and `sacct -P` print, a start and an end for each time that a job ran.

Sources: sacct(1); slurm's data_parser plugins v0.0.38 and later for the JSON. With `-D` sacct lists a job once for each
time that it was requeued; steps of a job (`123.batch`, `123.0`) are left out.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import tzinfo
from typing import Any, NamedTuple

from ....schemas.errors import InvalidInputError
from ....schemas.files import JsonStream, opened, source_of
from ..happenings import Happening, LogPlace
from ..log_count import LogCount
from .reader import MOST_QUANTITY
from .scheduler import stamp_s

_GPUS = re.compile(r"\bgres/gpu(?::[\w.-]+)?=(\d{1,9})")
_MOST_BYTES = 16 << 20  # of one job
_NEEDED = ("State", "Start", "End")
_FIX = "sacct -P -D --format=JobID,State,Start,End,ExitCode,AllocTRES,NodeList, or sacct --json"


def read_sacct(path: str, count: LogCount, zone: tzinfo) -> list[Happening]:
    """The starts and ends of jobs, in order.

    A job that is COMPLETED ends; FAILED, NODE_FAIL, TIMEOUT, PREEMPTED, CANCELLED and others are failures with the
    state as their cause. Jobs that still run have a start only.

    Args:
        path: of the file.
        count: hears of rows that cannot be read.
        zone: of times in text, which name none; those in JSON are Unix times.

    Raises:
        InvalidInputError: it is neither, or lacks the times.
    """
    source = source_of(path)
    with opened(path) as stream:
        is_json = stream.peek(64).lstrip()[:1] == b"{"
        rows = (
            _json_rows(iter(lambda: stream.read1(1 << 16), b""), source)
            if is_json
            else _text_rows(stream, source, zone)
        )
        told = [one for row in rows for one in _happenings(row, count)]
    count.files += 1
    count.formats[source] = "sacct"
    return sorted(told, key=lambda one: one.time_s or 0.0)


class _Job(NamedTuple):
    """A job, once: `times` are its start and end, where it has them; `code` says how it ended."""

    name: str
    state: str
    times: tuple[float | None, float | None]
    code: str
    gpus: int | None
    nodes: str
    place: LogPlace


def _happenings(row: _Job, count: LogCount) -> Iterator[Happening]:
    start_s, end_s = row.times
    nodes = (row.nodes,) if row.nodes else ()
    count.lines += 1
    if start_s is None:
        return  # it never began
    count.telling += 1
    yield Happening("start", start_s, row.place, gpus=row.gpus, ranks=nodes, cause="Slurm")
    if end_s is None or row.state in ("RUNNING", "SUSPENDED"):
        return
    if end_s < start_s:
        count.remark("a job of sacct's ends before it starts", str(row.place))
        return
    if row.state == "COMPLETED":
        yield Happening("end", end_s, row.place, ranks=nodes)
    else:
        cause = f"{row.state} ({row.code})" if row.code else row.state
        yield Happening("failure", end_s, row.place, ranks=nodes, cause=cause)


def _text_rows(lines: Iterable[bytes], source: str, zone: tzinfo) -> Iterator[_Job]:
    names: list[str] = []
    for number, line in enumerate(lines, start=1):
        cells = line.decode("utf-8", "replace").rstrip("\r\n").split("|")
        if not names:
            names = cells
            missing = [name for name in _NEEDED if name not in names]
            if missing:
                raise InvalidInputError(
                    f"sacct's table has no column {', '.join(missing)}", where=f"{source}, line {number}", fix=_FIX
                )
            continue
        row = dict.fromkeys(_NEEDED, "") | dict(zip(names, cells, strict=False))
        name = row.get("JobID") or row.get("JobIDRaw", "")
        if "." in name or row == dict(zip(names, names, strict=True)) or not line.strip():
            continue
        gpus = _GPUS.search(row.get("AllocTRES") or row.get("ReqTRES", ""))
        yield _Job(
            name,
            row["State"].split(" ")[0].rstrip("+"),
            (stamp_s(row["Start"], zone), stamp_s(row["End"], zone)),
            _code_words(*[*row.get("ExitCode", "0").split(":"), "0"][:2]),
            int(gpus[1]) if gpus else None,
            "" if row.get("NodeList", "").startswith("None") else row.get("NodeList", ""),
            LogPlace(source, number),
        )
    if not names:
        raise InvalidInputError("the file is empty", where=source, fix=_FIX)


def _json_rows(chunks: Iterable[bytes], source: str) -> Iterator[_Job]:
    stream = JsonStream(chunks, source, most_bytes=_MOST_BYTES, fix="print it again: sacct --json")
    for number, job in enumerate(stream.items("jobs"), start=1):
        if not isinstance(job, dict) or not isinstance(job.get("time"), dict):
            raise InvalidInputError("a job has no times", where=f"{source}, /jobs/{number - 1}/time", fix=_FIX)
        state = _mapping(job.get("state")).get("current", "")
        code = _mapping(job.get("exit_code"))
        yield _Job(
            str(job.get("job_id", "")),
            str(state[0] if isinstance(state, list) and state else state),
            (_unix(job["time"].get("start")), _unix(job["time"].get("end"))),
            _code_words(_plain(code.get("return_code")), _plain(_mapping(code.get("signal")).get("id"))),
            _gpus(_mapping(job.get("tres")).get("allocated")),
            "" if str(job.get("nodes", "")).startswith("None") else str(job.get("nodes", "")),
            LogPlace(source, number),
        )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _plain(value: Any) -> str:
    """A number, which later versions wrap (`{"set": true, "number": 1}`)."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) else None
    return str(value) if isinstance(value, int) else "0"


def _unix(value: Any) -> float | None:
    seconds = int(_plain(value))
    return float(seconds) if 0 < seconds < MOST_QUANTITY else None


def _gpus(allocated: Any) -> int | None:
    counts = [
        one["count"]
        for one in (allocated if isinstance(allocated, list) else [])
        if isinstance(one, dict)
        and one.get("type") == "gres"
        and one.get("name") == "gpu"  # beside it stand the kinds, as gpu:h100
        and isinstance(one.get("count"), int)
    ]
    return sum(counts) or None


def _code_words(code: str, number: str) -> str:
    if number not in ("", "0"):
        return f"signal {number}"
    return f"exit code {code}" if code not in ("", "0") else ""
