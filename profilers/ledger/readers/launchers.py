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
_ANY = re.compile(rb"")  # where the mark says all


# What is told: kind, cause, ranks, and since when.
_Found = tuple[HappeningKind, str | None, tuple[str, ...], float | None]
_HOST_MEMORY: _Found = ("failure", "out of memory (the host's)", (), None)


def _traceback(line: bytes, around: LineContext) -> _Found:
    """Its cause is the first line at its own depth that no source line is.

    torchrun's own traceback says only that a process failed.
    """
    prefix = line[: line.index(_TRACEBACK)]
    prefix = prefix if _PREFIX.fullmatch(prefix) else b""
    rank, is_inside, cause = rank_of(line), False, "an exception, whose last line is not in the log"
    for following in around.following(_MOST_LINES):
        text = plain(following)
        if not text.startswith(prefix.rstrip()):
            continue
        text = text[len(prefix) :] if text.startswith(prefix) else b""
        if text[:1] in (b" ", b"\t"):
            is_inside = True
        elif is_inside and _LAST_LINE.match(text):
            cause = text_of(text)[:MOST_CAUSE]
            break
    return "detected" if "ChildFailedError" in cause else "failure", cause, (rank,) if rank else (), None


def _code_words(code: int) -> str:
    """An exit code; a negative one, or one above 128, is a signal's."""
    number = -code if code < 0 else code - 128 if 128 < code < 192 else 0
    try:
        return f"{signal.Signals(number).name} (exit code {code})"
    except ValueError:
        return f"exit code {code}"


def _watchdog(found: re.Match[bytes]) -> _Found:
    operation = _OPERATION.search(found[2])
    words = f" ({text_of(operation[1])})" if operation else ""
    return "detected", f"NCCL time-out{words}", (text_of(found[1]),), int(found[3]) / 1e3


def _cancelled(found: re.Match[bytes]) -> _Found:
    reason = found[3].partition(b"DUE TO")[2]
    words = text_of(found[2]) + (f" due to {text_of(reason).lower()}" if reason else "")
    return "failure", words, (text_of(found[1]),) if found[1] else (), None


def _signal(found: re.Match[bytes]) -> _Found:
    name = text_of(found[1])
    return "failure", _code_words(-int(name)) if name.isdecimal() else name, (), None


# By their marks, of which the first that stands in a line counts: what the line tells beside it, and in words.
_WORDS: dict[bytes, tuple[re.Pattern[bytes], Callable[[re.Match[bytes]], _Found]]] = {
    b"failed (exitcode: ": (
        _EXIT,
        lambda found: ("failure", _code_words(int(found[1])), (f"local {int(found[2])}",), None),
    ),
    b"Watchdog caught collective operation timeout": (_WATCHDOG, _watchdog),
    b"slurmstepd: error: *** ": (_CANCELLED, _cancelled),
    b"oom-kill": (_ANY, lambda found: _HOST_MEMORY),
    b"Out Of Memory": (_ANY, lambda found: _HOST_MEMORY),
    b"srun: error: ": (_SRUN, lambda found: ("failure", text_of(found[2]), (text_of(found[1]),), None)),
    b" attempts left": (_ANY, lambda found: ("detected", "the agent restarts the workers", (), None)),
    b" death signal": (_SIGNAL, _signal),
    b"received SIG": (_SIGNAL, _signal),
    b"exits with return code = ": (_RETURN, lambda found: ("failure", _code_words(int(found[1])), (), None)),
    b"Rendezvous complete for workers": (_ANY, lambda found: ("rendezvous", None, (), None)),
    b"] starting workers for entrypoint": (_ANY, lambda found: ("start", "a launcher", (), None)),
    b"worker group successfully finished": (_ANY, lambda found: ("end", None, (), None)),
}


class Launchers(HappeningReader):
    """The failures that stand in any log, and what launchers tell of processes.

    A traceback is a failure whose cause is its last line, found among those of other ranks by what stands before it. A
    collective that timed out is `detected`, and `took_s` says since when it hung.
    """

    NAME: ClassVar[str] = "launcher"
    MARKS: ClassVar[tuple[bytes, ...]] = (_TRACEBACK, *_WORDS)

    def read(self, line: bytes, around: LineContext) -> Iterator[Happening]:
        """What a line tells."""
        if _TRACEBACK in line:
            yield self._told(_traceback(line, around), line, around)
            return
        for mark, (pattern, words) in _WORDS.items():
            if mark in line:
                if (found := pattern.search(line)) is not None:
                    yield self._told(words(found), line, around)
                return

    def _told(self, found: _Found, line: bytes, around: LineContext) -> Happening:
        kind, cause, ranks, took_s = found
        return Happening(kind, self.clock.of(line, anywhere=True), around.place, took_s, ranks=ranks, cause=cause)
