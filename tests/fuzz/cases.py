"""Damaged files given to the commands that read them: whatever they are, they are answered or refused, quickly.

A case is right if it ends with a documented exit code within some seconds and without much memory, if an error is one
error and no traceback, and if nothing was written where there was one.
"""

import faulthandler
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtk.runners.checkpoint import find
from rtk.runners.resilience.journal import take
from rtk.runners.resilience.rules import CoordinatorRules
from rtk.schemas.errors import BugError, InvalidInputError

from ..cli.shell import Done, rtk
from .mutation import NUMBERS, mutated
from .samples import CHECKPOINT, HELLO, JOB, LOG, TARGETS, Command, Target, make_samples

LONGEST_S = 5.0  # of CPU, for files of some kilobytes
STUCK_S = 120.0  # beyond, also what hears no signal is ended, with a traceback of where it is
MEMORY_BYTES = 1 << 30
ANSWERS = frozenset({0, 2, 3, 4})


@dataclass(frozen=True)
class FuzzCase:
    """One damaged file, and one command that reads it.

    Attributes:
        number: of the case; with the seed it says all.
        command: what was run.
        file: that was damaged.
    """

    number: int
    command: Command
    file: str


@dataclass(frozen=True)
class WrongCase:
    """A case that is not right."""

    case: FuzzCase
    what: str
    output: str


class _TooLongError(BaseException):
    """The case takes too long; no command catches this."""


@dataclass
class CaseTally:
    """What came of many cases.

    Attributes:
        cases: how many there were.
        codes: how often each exit code.
        findings: what is not right.
        slowest_s: the slowest case, in s of CPU.
        grown_bytes: by how much the process grew at most, over all of them.
    """

    cases: int
    codes: dict[str, int]
    findings: list[WrongCase]
    slowest_s: float
    grown_bytes: int


def fuzz(groups: Sequence[str], numbers: Sequence[int], seed: int, keep: Path | None = None) -> CaseTally:
    """Run many cases in this process, whose memory is limited from then on.

    Args:
        groups: of `samples.TARGETS`.
        numbers: of the cases.
        seed: of all of them.
        keep: a folder for the damaged files of cases that are not right.
    """
    targets = [target for target in TARGETS if target.group in groups]
    tally = CaseTally(0, {}, [], 0.0, 0)
    with tempfile.TemporaryDirectory(prefix="rtk-fuzz-") as name:
        folder = Path(name)
        make_samples(folder)
        _warm_up(folder, targets)
        with _limited_memory():
            began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for number in numbers:
                _tell(tally, folder, targets, number, seed, keep)
            tally.grown_bytes = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began)
    return tally


def chosen(targets: Sequence[Target], number: int) -> tuple[Target, Command]:
    """What is damaged, and what reads it: in turn, so that few cases leave out no file, and hardly a command."""
    turn, place = divmod(number, len(targets))
    commands = targets[place].commands
    return targets[place], commands[turn % len(commands)]


def _tell(tally: CaseTally, folder: Path, targets: Sequence[Target], number: int, seed: int, keep: Path | None) -> None:
    """Run one case, and add it up."""
    chance = random.Random(f"{seed} {number}")
    target, command = chosen(targets, number)
    path = folder / target.file
    whole = path.read_bytes()
    damaged = mutated(whole, target.form, chance)
    if chance.random() < 0.08:
        command = _mutated_options(command, chance)
    path.write_bytes(damaged)
    before = _written(folder)
    began_s = time.process_time()
    done = run(command, folder)
    tally.slowest_s = max(tally.slowest_s, time.process_time() - began_s)
    what = wrong(done, command, _written(folder) - before)
    if done.returncode == BugError.exit_code:
        done = run((*command, "--debug"), folder)  # its traceback says more
    path.write_bytes(whole)
    tally.cases += 1
    tally.codes[str(done.returncode)] = tally.codes.get(str(done.returncode), 0) + 1
    if what is not None:
        tally.findings.append(WrongCase(FuzzCase(number, command, target.file), what, done.stderr[-3000:]))
        if keep is not None:
            (keep / f"{number}-{path.name}").write_bytes(damaged)
    _clean(folder)


def run(command: Command, folder: Path) -> Done:
    """Run a command, or what a coordinator or a resumed run reads, as long as it may take."""
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    try:
        return rtk(*command, cwd=folder) if command[0] not in (LOG, CHECKPOINT) else _read(command[0], folder)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()


def _read(what: str, folder: Path) -> Done:
    try:
        if what == CHECKPOINT:
            find(folder / "step")
        else:
            journal = take(folder / LOG, **HELLO)
            try:
                for _ in journal.replayed(CoordinatorRules(JOB).handle):
                    pass
            finally:
                journal.close()
    except InvalidInputError as error:
        return Done((what,), 2, "", f"error: {error}")
    except Exception:
        return Done((what,), BugError.exit_code, "", traceback.format_exc())
    return Done((what,), 0, "", "")


def wrong(done: Done, command: Command, written: set[Path]) -> str | None:
    """What is not right with how a command ended; None: nothing."""
    # A plan that is not valid is a finding of verify's, and a job that cannot go on ends with 5.
    answers = ANSWERS | ({1} if command[0] == "verify" else set()) | ({5} if "--inject" in command else set())
    if "_TooLongError" in done.stderr:
        return "too long"
    if "Traceback" in done.stderr:
        return "traceback"
    if "not enough memory" in done.stderr or "MemoryError" in done.stderr:
        return "too much memory"
    if done.returncode not in answers:
        return f"exit code {done.returncode}"
    if done.returncode in (2, 3) and done.stderr.count("error: ") + done.stderr.count("Error: ") < 1:
        return "no error is said"
    if done.returncode in (2, 3) and written:
        return f"{min(path.name for path in written)} was written"
    return None


def _written(folder: Path) -> set[Path]:
    return set(folder.glob("out*"))


def _clean(folder: Path) -> None:
    """Remove what commands have written: an atlas goes on where it was, and a log is its coordinator's."""
    for path in _written(folder):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (folder / "begun" / "atlas.json").unlink(missing_ok=True)


def _mutated_options(command: Command, chance: random.Random) -> Command:
    """The command with another number in one of its options."""
    places = [n for n, word in enumerate(command) if word[0].isdigit() and command[n - 1] != "--iterations"]
    if not places:
        return command
    place = chance.choice(places)
    value = str(chance.choice(NUMBERS))
    return (*command[:place], command[place].replace(command[place][-1], value), *command[place + 1 :])


def _warm_up(folder: Path, targets: Sequence[Target]) -> None:
    """Import and compile, so that neither counts: the undamaged files are all read without an error."""
    for target in targets:
        whole = (folder / target.file).read_bytes()
        for command in target.commands:
            done = rtk(*command, cwd=folder) if command[0] not in (LOG, CHECKPOINT) else _read(command[0], folder)
            assert done.returncode in (0, 5), (command, done.stderr)
            (folder / target.file).write_bytes(whole)
            _clean(folder)


@contextmanager
def _limited_memory() -> Iterator[None]:
    """No more memory than now and a gigabyte; and a signal that ends what takes long."""

    def end(*_: Any) -> None:
        raise _TooLongError

    usual = resource.getrlimit(resource.RLIMIT_DATA)
    held = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (int(held.split()[1]) * 1024 + MEMORY_BYTES, usual[1]))
    before = signal.signal(signal.SIGPROF, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_DATA, usual)
