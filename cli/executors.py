"""`--executor`: who replays, processes of this machine or a cluster of Dask's or Ray's."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ..schemas.errors import InvalidInputError, RuntimeFailedError
from .pools import process_pool

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
        RuntimeFailedError: nobody answers there.
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
        yield client.get_executor(pure=False)


@contextmanager
def _ray(address: str | None, jobs: int) -> Iterator[Executor]:
    """A cluster of Ray's at an address, or one of this machine that has so many processes and no dashboard."""
    ray = _imported("ray", "ray")
    try:
        if address is None:
            ray.init("local", num_cpus=jobs, include_dashboard=False, log_to_driver=False)
        else:
            ray.init(address, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise _silent("Ray", address or "this machine", error) from error
    try:
        yield _RayExecutor(ray)
    finally:
        ray.shutdown()


class _RayExecutor(Executor):
    """Ray's tasks as futures; Ray has no executor of its own."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Run a function somewhere in the cluster."""
        future: Future[Any] = self._ray.remote(call).remote(*arguments, **named).future()
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
