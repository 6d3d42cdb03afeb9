"""Programs in processes of their own that know torch already: forked, where importing it would take three seconds.

The processes are real: each has its identity, streams, folder, environment and exit code, and signals reach it. What
only an interpreter that starts anew can show, such as how its modules are found, is for `subprocess`; what its end
does, for `endings` in `tests/cli/shell.py`.
"""

import atexit
import fcntl
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import termios
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from unittest import mock

# Besides torch what each command that trains or measures, and each worker, would load by itself in half a second more.
PRELOAD = [
    "torch._dynamo",
    "torch.distributed.run",
    "numba",
    "pytest",  # which files of tests import that are run as programs
    "rich.live",
    "rich.progress",
    "rich.table",
    "rtk.cli.coordinate",
    "rtk.cli.main",
    "rtk.cli.monitor",
    "rtk.cli.profile",
    "rtk.cli.run",
    "rtk.planners.recovery.rtk",
    "rtk.profilers.boundary",
    "rtk.profilers.failslow.monitor.ring",
    "rtk.profilers.failslow.monitor.watch",
    "rtk.profilers.links",
    "rtk.profilers.measure",
    "rtk.profilers.measuring",
    "rtk.profilers.models.load",
    "rtk.profilers.overlap",
    "rtk.runners.resilience.controller",
    "rtk.runners.torch.data.text",
    "rtk.runners.torch.named",
    "rtk.runners.torch.rendezvous",
    "rtk.runners.torch.resilient",
    "rtk.runners.torch.runner",
    "rtk.running",
    "rtk.wiring",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
]


def forking() -> ForkServerContext:
    """The context whose processes know torch already; it has one server, which all tests share."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


# A collection of garbage would look at all that torch has loaded, and copy it: half a second in every process.
BEGIN = """
import gc, runpy
gc.freeze()
runpy.run_path(file, {"ARGUMENTS": arguments}, "worker")
"""


def fork(file: str, *arguments: Any) -> ForkServerProcess:
    """Run a file of tests as `worker` in a process that knows torch already; it finds its arguments as `ARGUMENTS`.

    pytest imports test files under names that another process does not find.
    """
    told = {"file": file, "arguments": arguments}
    process = forking().Process(target=exec, args=(BEGIN, told), daemon=True)
    process.start()
    return process


class Warm:
    """`python -m MODULE ARGUMENTS` in a process that knows torch already, at the head of a session of its own.

    Workers that `rtk` or torchrun starts on this machine are its children, as always, and forked from it.

    Args:
        module: `rtk.cli.main`, or another program: a module, or a script's path.
        arguments: its command line.
        cwd: its folder.
        env: its environment.
        streams: its standard input, output and error.
        cores: on which it may run; none: on all.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        streams: Sequence[IO[Any]],
        cores: Collection[int] = (),
    ) -> None:
        self.args = arguments
        handed = [Connection(os.dup(stream.fileno())) for stream in streams]  # what multiprocessing hands on
        self._process = fork(__file__, module, list(arguments), str(cwd), dict(env), handed, tuple(cores))
        for stream in handed:
            stream.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and give its exit code."""
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        self.send_signal(signal.SIGKILL)


def _be(
    module: str,
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    streams: list[Connection],
    cores: tuple[int, ...],
) -> None:
    """What a forked process does."""
    os.setsid()
    if cores:
        os.sched_setaffinity(0, cores)
    if os.isatty(streams[0].fileno()):  # whose Ctrl-C and whose end are then for this session
        fcntl.ioctl(streams[0].fileno(), termios.TIOCSCTTY, 0)
    os.chdir(folder)
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
    _become(module, arguments, environment)


def _become(module: str, arguments: list[str], environment: Mapping[str, str], keep: Collection[int] = ()) -> None:
    """Be the program with the standard streams that are there, and end as it ends; of other files only `keep` stay
    open."""
    import torch

    from rtk.cli.console import SETTINGS, Settings
    from rtk.cli.main import main

    tracker = resource_tracker._resource_tracker._fd  # type: ignore[attr-defined]  # a queue writes to it by its number
    for number in [int(file.name) for file in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number != tracker and number not in keep:
            with suppress(OSError):  # that of the listing itself is closed already
                os.close(number)
    gc.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):  # an agent of torchrun handles them
        signal.signal(number, signal.SIG_DFL)
    # As an interpreter that starts does: `Popen` has made it deadly where this is what it forks, and gloo, of which a
    # peer has died, writes to closed connections.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environment)
    if threads := environment.get("OMP_NUM_THREADS"):  # which torch reads when it is loaded
        torch.set_num_threads(int(threads))
    vars(SETTINGS).update(vars(Settings()))
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.argv = [module, *arguments]
    code: object = 1
    with _forking_workers():
        try:
            if module == main.__module__:  # which knows what it is, and need not be read again
                main(arguments)
            elif module.endswith(".py"):
                runpy.run_path(module, run_name="__main__")
            else:
                # It is known already, which is what we are here for.
                warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
    with suppress(OSError):
        atexit._run_exitfuncs()
        sys.stdout.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


@contextmanager
def _forking_workers() -> Iterator[None]:
    """Whoever launches workers forks them from here: torchrun, and the nursery of `rtk`'s."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler as torchrun

    from rtk.runners import nursery

    forked = SimpleNamespace(Popen=_fork_from_here, DEVNULL=subprocess.DEVNULL)
    with mock.patch.object(nursery, "subprocess", forked), mock.patch.object(torchrun, "Popen", _fork_from_here):
        yield


def _fork_from_here(
    args: Sequence[str], env: Mapping[str, str], pass_fds: Collection[int] = (), **options: Any
) -> "subprocess.Popen[bytes]":
    """What `subprocess.Popen` does for a launcher's `python -m MODULE ARGUMENTS`, `python -u SCRIPT ARGUMENTS` or `rtk
    ARGUMENTS`, but nothing is loaded anew: the child becomes the program before it would execute the command, and so
    never does."""
    module, arguments = ("rtk.cli.main", args[1:]) if args[0] == "rtk" else (args[2], args[3:])
    become = partial(_become, module, list(arguments), env, tuple(pass_fds))
    return subprocess.Popen(args, pass_fds=pass_fds, preexec_fn=become, **options)


if __name__ == "worker":
    _be(*globals()["ARGUMENTS"])
