"""What stands around any training program's lines: torchrun's agent, Slurm, NCCL's watchdog, Python's tracebacks.

Sources: torch/distributed/elastic/agent/server/api.py and multiprocessing/api.py; torch/csrc/distributed/c10d/
ProcessGroupNCCL.cpp; slurmstepd's and srun's messages; deepspeed/launcher/launch.py.
"""

import re
import signal
from collections.abc import Callable, Iterator
from typing import ClassVar

from ...failslow.readers.lines import plain, rank_of
from ..happenings import Happening, HappeningKind
from .reader import MOST_CAUSE, HappeningReader, LineContext, text_of

_TRACEBACK = b"Traceback (most recent call last)"
# What stands before a traceback's lines where several processes write: `[default1]:[rank1]: `, `3: `.
_PREFIX = re.compile(rb"(?:\s*\[(?:rank|default)\d{1,9}\]:\s?|\s*\d{1,9}:\s)*")
_LAST_LINE = re.compile(rb"[A-Za-z_][\w.]*(?::|$)")
_MOST_LINES = 300  # of a traceback, those of other processes among them

_EXIT = re.compile(rb"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,9})")
_WATCHDOG = re.compile(
    rb"Rank (\d{1,9})\] Watchdog caught collective operation timeout: \w+\((.*?)\) ran for (\d{1,15}) milliseconds"
)
_OPERATION = re.compile(rb"OpType=(\w+)")
_CANCELLED = re.compile(
    rb"slurmstepd: error: \*\*\* (?:JOB|STEP) \S+ (?:ON (\S+) )?(CANCELLED|FAILED)\b(.*?)(?:\*\*\*|$)"
)
_SRUN = re.compile(rb"srun: error: (\S+): tasks? \S+ (.{1,80})")
_SIGNAL = re.compile(rb"(?:[Rr]eceived (?:Signals\.|death signal )?|signal: )(SIG[A-Z]+|\d{1,2})\b")
_RETURN = re.compile(rb"exits with return code = (-?\d{1,5})")


class Launchers(HappeningReader):
    """The failures that stand in any log, and what launchers tell of processes.

    A traceback is a failure whose cause is its last line, found among those of other ranks by what stands before it. A
    collective that timed out is `detected`, and `took_s` says since when it hung.
    """

    NAME: ClassVar[str] = "launcher"
    MARKS: ClassVar[tuple[bytes, ...]] = (
        _TRACEBACK,
        b"failed (exitcode: ",
        b"Watchdog caught collective operation timeout",
        b"slurmstepd: error: *** ",
        b"srun: error: ",
        b" attempts left",
        b" death signal",
        b"received SIG",
        b"exits with return code = ",
        b"Rendezvous complete for workers",
        b"] starting workers for entrypoint",
        b"oom-kill",
        b"worker group successfully finished",
        b"Out Of Memory",
    )

    def read(self, line: bytes, around: LineContext) -> Iterator[Happening]:
        """What a line tells."""
        for mark, words in _WORDS.items():
            if mark in line:
                found = words(line, around)
                if found is not None:
                    kind, cause, ranks, took_s = found
                    time_s = self.clock.of(line, anywhere=True)
                    yield Happening(kind, time_s, around.place, took_s, ranks=ranks, cause=cause)
                return


_Found = tuple[HappeningKind, str | None, tuple[str, ...], float | None] | None


def _traceback(line: bytes, around: LineContext) -> _Found:
    prefix = line[: line.index(_TRACEBACK)]
    rank = rank_of(line)
    cause = _last_line(prefix, around)
    # torchrun's own traceback says only that a process failed.
    kind: HappeningKind = "detected" if "ChildFailedError" in cause else "failure"
    return kind, cause, (rank,) if rank else (), None


def _last_line(prefix: bytes, around: LineContext) -> str:
    """Of a traceback: the first line at the prefix's depth that no source line is."""
    prefix = prefix if _PREFIX.fullmatch(prefix) else b""
    is_inside = False
    for following in around.following(_MOST_LINES):
        text = plain(following)
        if not text.startswith(prefix.rstrip()):
            continue
        text = text[len(prefix) :] if text.startswith(prefix) else b""
        if text[:1] in (b" ", b"\t"):
            is_inside = True
        elif is_inside and _LAST_LINE.match(text):
            return text_of(text)[:MOST_CAUSE]
    return "an exception, whose last line is not in the log"


def _exit(line: bytes, around: LineContext) -> _Found:
    match = _EXIT.search(line)
    return ("failure", _code_words(int(match[1])), (f"local {int(match[2])}",), None) if match else None


def _code_words(code: int) -> str:
    """An exit code; a negative one, or one above 128, is a signal's."""
    number = -code if code < 0 else code - 128 if 128 < code < 192 else 0
    try:
        return f"{signal.Signals(number).name} (exit code {code})"
    except ValueError:
        return f"exit code {code}"


def _watchdog(line: bytes, around: LineContext) -> _Found:
    match = _WATCHDOG.search(line)
    if match is None:
        return None
    operation = _OPERATION.search(match[2])
    words = f" ({text_of(operation[1])})" if operation else ""
    return "detected", f"NCCL time-out{words}", (text_of(match[1]),), int(match[3]) / 1e3


def _cancelled(line: bytes, around: LineContext) -> _Found:
    match = _CANCELLED.search(line)
    if match is None:
        return None
    reason = match[3].partition(b"DUE TO")[2]
    words = text_of(match[2]) + (f" due to {text_of(reason).lower()}" if reason else "")
    return "failure", words, (text_of(match[1]),) if match[1] else (), None


def _srun(line: bytes, around: LineContext) -> _Found:
    match = _SRUN.search(line)
    return ("failure", text_of(match[2]), (text_of(match[1]),), None) if match else None


def _restart(line: bytes, around: LineContext) -> _Found:
    return "detected", "the agent restarts the workers", (), None


def _signal(line: bytes, around: LineContext) -> _Found:
    match = _SIGNAL.search(line)
    if match is None:
        return None
    name = text_of(match[1])
    return "failure", _code_words(-int(name)) if name.isdecimal() else name, (), None


def _return_code(line: bytes, around: LineContext) -> _Found:
    match = _RETURN.search(line)
    return ("failure", _code_words(int(match[1])), (), None) if match else None


def _memory(line: bytes, around: LineContext) -> _Found:
    return "failure", "out of memory (the host's)", (), None


_WORDS: dict[bytes, Callable[[bytes, LineContext], _Found]] = {
    _TRACEBACK: _traceback,
    b"failed (exitcode: ": _exit,
    b"Watchdog caught collective operation timeout": _watchdog,
    b"slurmstepd: error: *** ": _cancelled,
    b"oom-kill": _memory,
    b"Out Of Memory": _memory,
    b"srun: error: ": _srun,
    b" attempts left": _restart,
    b" death signal": _signal,
    b"received SIG": _signal,
    b"exits with return code = ": _return_code,
    b"Rendezvous complete for workers": lambda line, around: ("rendezvous", None, (), None),
    b"] starting workers for entrypoint": lambda line, around: ("start", "a launcher", (), None),
    b"worker group successfully finished": lambda line, around: ("end", None, (), None),
}
