"""`--executor`: who replays, processes of this machine or a cluster of Dask's or Ray's."""

import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import cache
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

from ...schemas.errors import InvalidInputError, RuntimeFailedError
from ...schemas.pools import process_pool, uninterrupted

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
            fix=f"pip install 'rtk[{extra}]', here and on the machines of the cluster",
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
