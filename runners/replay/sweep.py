"""A sweep: replays of many combinations, a report each in a folder, and what all of them say together.

Who replays (`--executor`) are processes of this machine, or a cluster of Dask's or Ray's.
"""

import logging
import os
import re
import secrets
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path, PurePath
from statistics import fmean, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Generic, Protocol, TypeVar

from ...schemas.documents import canonical_json, read_document, write_document
from ...schemas.errors import InfeasibleError, InvalidInputError, RuntimeFailedError, installing, remark
from ...schemas.files import write_bytes
from ...schemas.pools import process_pool, uninterrupted
from ...schemas.replay import ReplayReport

LONGEST_WAIT_S = 10.0


@contextmanager
def executor_of(text: str, jobs: int) -> Iterator[Executor | None]:
    """The executor that `process`, `dask:ADDRESS`, `ray` or `ray:ADDRESS` names; None: this process alone.

    On machines of a cluster the same rtk must be installed, and files must be found under the same paths.

    Args:
        text: the value of `--executor`.
        jobs: processes, where they are ours.

    Raises:
        InvalidInputError: there is no such executor, or what it needs is not installed.
        RuntimeFailedError: nobody answers there, or gives up.
    """
    kind, colon, address = text.partition(":")
    if text == "process":
        if jobs == 1:
            yield None
            return
        with process_pool(jobs) as pool:
            yield pool
    elif kind == "dask" and address:
        with _dask(address) as executor:
            yield executor
    elif kind == "ray" and bool(address) == bool(colon):
        with _ray(address or None, jobs) as executor:
            yield executor
    else:
        fix = "write process, dask:ADDRESS, ray or ray:ADDRESS, such as dask:tcp://10.0.0.1:8786"
        raise InvalidInputError(f"there is no executor {text!r}", where="--executor", fix=fix)


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    distributed = _imported("distributed", "dask")
    try:
        client = distributed.Client(address, timeout=LONGEST_WAIT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise _silent("Dask scheduler", address, error) from error
    with client:
        try:
            yield client.get_executor(pure=False)
        except (distributed.KilledWorker, distributed.client.FutureCancelledError) as error:
            raise _lost("Dask", error) from error


@contextmanager
def _ray(address: str | None, jobs: int) -> Iterator[Executor]:
    """A cluster of Ray's at an address, or one of this machine that has so many processes and ends with them."""
    if address is None:
        os.environ.update(_alone() | os.environ)
    ray = _imported("ray", "ray")
    with redirect_stdout(sys.stderr), ExitStack() as stack:  # Ray prints what happens to its processes
        given: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            folder = stack.enter_context(TemporaryDirectory(prefix="rtk-ray-", ignore_cleanup_errors=True))
            given |= {"num_cpus": jobs, "include_dashboard": False, "_temp_dir": folder}
        stack.callback(uninterrupted(ray.shutdown), wait_for_processes=True)
        try:
            _knock(address or "")
            (ray.init if address else uninterrupted(ray.init))(address or "local", **given)
        except (OSError, RuntimeError, ValueError) as error:
            raise _silent("Ray", address or "this machine", error) from error
        try:
            yield _RayExecutor(ray)
        except ray.exceptions.RayError as error:
            raise _lost("Ray", error) from error


def _knock(address: str) -> None:
    """Ask whether anybody is at HOST:PORT, of which Ray itself takes minutes to despair.

    Raises:
        OSError: nobody.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), LONGEST_WAIT_S).close()


def _alone() -> dict[str, str]:
    """Settings for a cluster of this machine only: it speaks on loopback, keeps its secret, and reports to nobody."""
    return {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # of no system: it takes 127.0.0.1 for this machine's only address
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # otherwise Ray leaves one in the home folder
        "RAY_USAGE_STATS_ENABLED": "0",
    }


class _RayExecutor(Executor):
    """Ray's tasks as futures; Ray has no executor of its own."""

    def __init__(self, ray: Any) -> None:
        self._remote = cache(ray.remote)  # each call of it sends the function to the cluster anew

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Run a function somewhere in the cluster."""
        future: Future[Any] = self._remote(call).remote(*arguments, **named).future()
        return future


def _imported(package: str, extra: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise InvalidInputError(
            f"the package {package} is not installed",
            where=f"--executor {extra}",
            fix=f"{installing(extra)}, here and on the machines of the cluster",
        ) from error


def _silent(whose: str, address: str, error: Exception) -> RuntimeFailedError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return RuntimeFailedError(
        f"no {whose} answers: {reason}", where=f"--executor, {address}", fix="start it, or correct the address"
    )


def _lost(whose: str, error: Exception) -> RuntimeFailedError:
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    # Of what was raised on another machine the text is a traceback, of which the last line says what.
    reason = lines[-1] if any("Traceback" in line or line.startswith("  File") for line in lines) else lines[0]
    return RuntimeFailedError(
        f"{whose} could not finish a replay: {reason}",
        where="--executor",
        fix="see its logs: machines may lack rtk or memory; the same command goes on from there",
    )


LONGEST_NAME = 80  # of a report's file, before the digest

Q = TypeVar("Q")
Asked = TypeVar("Asked", contravariant=True)


class Replays(Protocol[Asked]):
    """Asks many questions at once."""

    def __call__(
        self, questions: Sequence[Asked], executor: Executor | None = None
    ) -> Iterator[tuple[int, ReplayReport | InfeasibleError]]:
        """Replay in this process, or in those of an executor; yields a question's number and its report, as they come,
        or why nobody could train its job."""
        ...


@dataclass(frozen=True)
class Combination(Generic[Q]):
    """One of each list.

    Attributes:
        axes: what was taken from which list, as it stands in the file.
        question: what is asked.
        digest: of all that the answer depends on.
        shape: of the job, in a word.
    """

    axes: Mapping[str, str]
    question: Q
    digest: str
    shape: str

    @property
    def name(self) -> str:
        """Of its report's file: for people, and unlike any other's."""
        seed = self.axes.get("seed")
        parts = [_stem(self.axes["profile"]), self.shape, _stem(self.axes["trace"])]
        parts += [] if seed is None else [f"seed{seed}"]
        slug = re.sub(r"[^A-Za-z0-9_]+", "-", "-".join(parts))[:LONGEST_NAME]
        return f"{slug}-{self.digest[:16]}.json"


def run_sweep(
    combinations: Sequence[Combination[Q]],
    replays: Replays[Q],
    output: str,
    jobs: int,
    executor: str,
    tell: Callable[[int, int], None],
) -> dict[str, Any]:
    """Replay combinations whose reports are not there yet, and say what all have in common.

    Args:
        combinations: each once.
        replays: asks many questions, in this process or in an executor's, and gives the reports as they are finished.
        output: the folder of a report a combination; those that are there already, of the same inputs, are not made
            again.
        jobs: processes, which share the combinations.
        executor: who replays: "process", "dask:ADDRESS", "ray" or "ray:ADDRESS".
        tell: hears how many replays are finished, and of how many.

    Returns:
        What all have in common, as `summary.json` in the folder says it: see `summary_of`.

    Raises:
        InvalidInputError: a trace cannot be read, the folder cannot be made, or there is no such executor.
        RuntimeFailedError: a cluster's scheduler does not answer, or a process has ended by itself.
    """
    folder = SweepFolder(output)
    outcomes = folder.finished(combinations)
    missing = [number for number in range(len(combinations)) if number not in outcomes]
    if outcomes:
        remark(f"{len(outcomes)} of {len(combinations)} reports are there already")
    tell(len(outcomes), len(combinations))
    try:
        if missing:
            with executor_of(executor, min(jobs, len(missing))) as pool:
                for index, found in replays([combinations[number].question for number in missing], pool):
                    number = missing[index]
                    if isinstance(found, InfeasibleError):
                        outcomes[number] = SweepOutcome({}, {}, found.what)
                    else:
                        outcomes[number] = folder.keep(combinations[number], found)
                    tell(len(outcomes), len(combinations))
    except KeyboardInterrupt:
        remark("what is finished is kept: the same command goes on from there")
        raise
    summary = summary_of([(one, outcomes[number]) for number, one in enumerate(combinations)])
    folder.summarize(summary)
    return summary


def _stem(name: str) -> str:
    return PurePath(name).name.partition(".")[0]


# The folder of a sweep: a report a combination, and a summary of all.
#
# A report is there whole or not at all, and says by a digest what it answers: run again, a sweep makes what is missing.


SUMMARY_FILE = "summary.json"


@dataclass(frozen=True)
class SweepOutcome:
    """What came of a combination.

    Attributes:
        goodput: by policy; 0 where it cannot train this job.
        refusals: why some cannot.
        impossible: why not even the cluster that never fails can; None where it can.
    """

    goodput: dict[str, float]
    refusals: dict[str, str]
    impossible: str | None = None


def outcome_of(report: ReplayReport) -> SweepOutcome:
    """What a report says of each policy."""
    return SweepOutcome(
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

    def finished(self, combinations: Iterable[Combination[Any]]) -> dict[int, SweepOutcome]:
        """The outcomes that are there, by the combinations' numbers; damaged reports and those of others are not."""
        found = ((number, self._read(one)) for number, one in enumerate(combinations))
        return {number: outcome for number, outcome in found if outcome is not None}

    def keep(self, combination: Combination[Any], report: ReplayReport) -> SweepOutcome:
        """Write a report; what is written when this returns outlives this process."""
        write_document(str(self._path / combination.name), report, in_own_folder=True)
        return outcome_of(report)

    def summarize(self, summary: dict[str, Any]) -> None:
        """Write what all reports say together."""
        write_bytes(str(self._path / SUMMARY_FILE), canonical_json(summary), in_own_folder=True)

    def _read(self, combination: Combination[Any]) -> SweepOutcome | None:
        path = self._path / combination.name
        if not path.exists():
            return None
        try:
            report = read_document(str(path), ReplayReport)
        except InvalidInputError:
            return None
        return outcome_of(report) if report.inputs.get("question") == combination.digest else None


# What hundreds of replays say together: per policy, and for each value of what was varied.


FAULT_FREE = "fault-free"
SEED = "seed"  # repeats a replay; its values mean nothing
LEVEL = 1e-9  # goodputs that differ by less are alike

Swept = Sequence[tuple[Combination[Any], SweepOutcome]]


def summary_of(swept: Swept) -> dict[str, Any]:
    """The whole as JSON.

    `policies`: over all replays the mean, quartiles, least and most goodput of each, the share of replays in which it
    is the best (several may be) of those that do fail, and in how many it cannot train the job, which counts as no
    goodput. `axes`: for each value of what was varied, the mean goodputs. `replays`: each one's file, what was taken
    from which list, and goodputs. `impossible`: those that not even a cluster that never fails can train.
    """
    possible = [(one, outcome) for one, outcome in swept if outcome.impossible is None]
    outcomes = [outcome for _, outcome in possible]
    return {
        "replays": [
            {"file": one.name, "axes": dict(one.axes), "goodput": outcome.goodput} for one, outcome in possible
        ],
        "impossible": [
            {"axes": dict(one.axes), "why": outcome.impossible}
            for one, outcome in swept
            if outcome.impossible is not None
        ],
        "policies": {name: _policy(name, outcomes) for name in _names(outcomes)},
        "axes": {
            axis: {
                value: means_of([outcome for one, outcome in possible if one.axes.get(axis) == value])
                for value in dict.fromkeys(one.axes[axis] for one, _ in possible if axis in one.axes)
            }
            for axis in _varied(possible)
        },
    }


def _policy(name: str, outcomes: Sequence[SweepOutcome]) -> dict[str, Any]:
    goodputs = [outcome.goodput[name] for outcome in outcomes]
    lower, median, upper = quantiles(goodputs, n=4, method="inclusive") if len(goodputs) > 1 else goodputs * 3
    return {
        "mean": fmean(goodputs),
        "lower_quartile": lower,
        "median": median,
        "upper_quartile": upper,
        "min": min(goodputs),
        "max": max(goodputs),
        "best_share": fmean(name in _best(outcome) for outcome in outcomes),
        "refusals": sum(name in outcome.refusals for outcome in outcomes),
    }


def _best(outcome: SweepOutcome) -> set[str]:
    """The best policies of a replay, apart from the cluster that never fails, to which nothing compares."""
    rivals = {name: goodput for name, goodput in outcome.goodput.items() if name != FAULT_FREE}
    most = max(rivals.values(), default=0.0)
    return {name for name, goodput in rivals.items() if 0 < goodput >= most - LEVEL}


def _varied(possible: Swept) -> list[str]:
    """What has more than one value, in the file's order."""
    axes = dict.fromkeys(axis for one, _ in possible for axis in one.axes)
    return [
        axis for axis in axes if axis != SEED and len({one.axes[axis] for one, _ in possible if axis in one.axes}) > 1
    ]


def means_of(outcomes: Sequence[SweepOutcome]) -> dict[str, float]:
    """The mean goodput of each policy."""
    return {name: fmean(outcome.goodput[name] for outcome in outcomes) for name in _names(outcomes)}


def _names(outcomes: Sequence[SweepOutcome]) -> Iterable[str]:
    return outcomes[0].goodput if outcomes else ()
