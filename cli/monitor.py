"""`rtk monitor -- COMMAND`: any torch training command, unchanged, watched for fail-slows."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import InvalidInputError
from ..schemas.files import write_bytes
from ..viz.style import PICTURE_ENDINGS
from .console import Debug, Json, Quiet, picture_ending, print_document, print_table, remark

if TYPE_CHECKING:
    from ..profilers.failslow.monitor.job import Heard, News, WatchedJob
    from ..schemas.detection import FailSlow, FileFindings
    from ..viz.detection import Thinned

NAME = "monitor"
SUMMARY = "Watch any torch training command, unchanged, for fail-slows."
FIX = f"end it in {', '.join(PICTURE_ENDINGS)}, or these and .gz"
POLL_S = 0.25
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as shells say it
SHARED_MEMORY = Path("/dev/shm")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
FROM_THE_KERNEL = 0x80  # si_code of what the terminal sends, to the whole group of processes


def command(
    watched: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The training command, after `--`.")],
    mode: Annotated[str, typer.Option("--mode", help="robust, or paper for the published methods.")] = "robust",
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help=f"Draw what was found ({', '.join(PICTURE_ENDINGS)}); .gz compresses."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run a training command and watch how long its iterations take, by the communication calls that torch makes.

    Its own code is not touched: what notes the calls comes in by PYTHONPATH. Fail-slows are reported as they are found,
    on standard error, with the rank, group or link that they come from, as far as the ranks of this host can tell. With
    --json, what the command prints goes to standard error. The exit code is the command's own.

    Calls that are made without torch.distributed's process groups are not seen, nor are the insides of CUDA graphs.
    """
    from ..profilers.failslow.monitor.job import WatchedJob

    _check(mode, output)
    with tempfile.TemporaryDirectory(prefix="rtk-monitor-", dir=_memory()) as folder:
        watch = WatchedJob(Path(folder), "paper" if mode == "paper" else "robust")
        report = _Report(watch)
        process = _start(watched, Path(folder), json)
        for _ in _while_it_runs(process):
            report.tell(watch.poll())
        report.tell(watch.finish())
        report.end(join(watched), output, json)
    raise typer.Exit(process.returncode if process.returncode >= 0 else 128 - process.returncode)


def _check(mode: str, output: str | None) -> None:
    if mode not in ("robust", "paper"):
        raise InvalidInputError(f"there is no mode {mode!r}", where="--mode", fix="robust or paper")
    if output is not None:
        picture_ending(output, PICTURE_ENDINGS, FIX)


def _memory() -> Path | None:
    """Where files never touch a disk, if the system has that."""
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None


class _CommandNotFoundError(InvalidInputError):
    exit_code = NOT_FOUND


class _CommandNotExecutableError(InvalidInputError):
    exit_code = NOT_EXECUTABLE


def environment(folder: Path) -> dict[str, str]:
    """The environment of a command that is watched: the shim's folder is in front of its path."""
    from ..profilers.shim import entrance, hook

    paths = [str(Path(entrance.__path__[0]).resolve()), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), hook.RINGS: str(folder)}


def _start(watched: Sequence[str], folder: Path, is_json: bool) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(watched, env=environment(folder), stdout=sys.stderr if is_json else None)
    except FileNotFoundError as error:
        raise _CommandNotFoundError(
            f"the command {watched[0]!r} is not there", where=f"COMMAND: {join(watched)}", fix="check its name and PATH"
        ) from error
    except OSError as error:
        raise _CommandNotExecutableError(
            f"the command cannot be started: {error.strerror}", where=f"COMMAND: {join(watched)}"
        ) from error


def _while_it_runs(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Again and again while the command runs; what rtk is told by signals is passed on to it."""
    with _signals_held():
        while process.poll() is None:
            yield
            caught = signal.sigtimedwait((*PASSED_ON, signal.SIGCHLD), POLL_S)
            if caught is not None and caught.si_signo != signal.SIGCHLD and caught.si_code != FROM_THE_KERNEL:
                process.send_signal(caught.si_signo)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Signals wait until they are asked for. What Ctrl-C sends reaches the command by itself, and ends it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, signal.SIGCHLD))
    try:
        yield
    finally:
        while signal.sigtimedwait(PASSED_ON, 0) is not None:
            pass  # the command has it, and has ended
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Report:
    """What is told while the command runs, and at its end."""

    def __init__(self, watch: "WatchedJob") -> None:
        self._watch = watch
        self._curves: dict[int, Thinned] = {}
        self._has_told_period = False

    def tell(self, heard: Sequence["Heard"]) -> None:
        """Say what is new."""
        from ..viz.detection import Thinned

        for one in heard:
            self._curves.setdefault(one.phase, Thinned()).note(one.time_s)
            for news in one.news:
                remark(f"rtk monitor: iteration {one.place}: {_words(news)}")

    def end(self, name: str, output: str | None, is_json: bool) -> None:
        """The table, the document, the picture."""
        from ..schemas.detection import Detection

        findings = self._watch.findings(name)
        if not findings:
            remark(f"rtk monitor: {self._why_nothing()}")
        if is_json:
            print_document(Detection(tuple(findings.values())))
        else:
            for one in findings.values():
                _print_findings(one)
        if output is not None:
            self._draw(findings, name, output)

    def _why_nothing(self) -> str:
        if not self._watch.ranks:
            return "no calls were seen: the command made no process group by torch.distributed.init_process_group"
        if not self._watch.calls:
            return "no calls were seen in its process groups"
        return f"no iterations were found in {self._watch.calls} calls: they do not repeat themselves often enough"

    def _draw(self, findings: dict[int, "FileFindings"], name: str, output: str) -> None:
        from ..viz.detection import Panel, drawn_detection

        panels = [Panel(one, self._curves[phase].points()) for phase, one in findings.items()]
        write_bytes(output, drawn_detection(panels, name, picture_ending(output, PICTURE_ENDINGS, FIX)))


def _words(news: "News") -> str:
    """A line about what changed."""
    episode, found = news.change.episode, news.blame
    slower = f"{episode.severity:.2f} x slower since {episode.onset}"
    match news.change.kind:
        case "provisional":
            return f"{slower} (provisional)"
        case "dismissed":
            return f"what was slow since {episode.onset} is not any more"
        case "relief":
            return f"as usual again since {episode.relief}"
    told = "" if found is None else f": {_blamed(found.cause, found.scope.kind, found.scope.names, found.evidence)}"
    return f"{slower} ({news.change.kind}){told}"


def _blamed(cause: str, kind: str, names: Sequence[str], evidence: Sequence[str]) -> str:
    who = f"{'rank' if kind == 'worker' else kind} {', '.join(names)}".strip()
    return f"{cause}, {who} ({'; '.join(evidence)})"


def _print_findings(findings: "FileFindings") -> None:
    usual = "" if findings.usual_s is None else f", usually {findings.usual_s * 1000:.2f} ms each"
    remark(f"rtk monitor: {findings.samples} iterations{usual}, {len(findings.events)} slow")
    if findings.events:
        columns = ("slow since", "suspected", "confirmed", "relieved", "times usual", "cause", "where")
        print_table(columns, [_row(event) for event in findings.events], to_stderr=True)


def _row(event: "FailSlow") -> list[str]:
    places = (event.onset, event.provisional, event.confirmed, event.relief)
    where = f"{event.scope.kind} {', '.join(event.scope.names)}".strip()
    return [*("-" if place is None else str(place) for place in places), f"{event.severity:.2f}", event.cause, where]
