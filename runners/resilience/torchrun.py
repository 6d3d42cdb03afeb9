"""One process of a torchrun job: a supervisor of its worker, and on rank 0 the job's coordinator as well."""

import os
import signal
import socket
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from ...schemas.documents import canonical
from ...schemas.errors import InvalidInputError, RtkError, RuntimeFailedError, remark
from ..processes import GRACE_S, LAUNCHED, LED
from ..ranks import counted_processes
from ..training import COORDINATOR, SECRET
from .controller import Announcements, JobController
from .supervisor import GIVEN, Supervisor, dying_with_parent, introduce
from .wire import make_secret

if TYPE_CHECKING:
    from ...schemas.plan import Plan
    from ..nursery import Nursery
    from .server import Server

MEETING_PLACE = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells beside RANK
AGENT = "TORCHELASTIC_RUN_ID"  # which only torchrun itself sets


def is_rank(has_coordinator: bool) -> bool:
    """Whether this process is one of a torchrun job, or of a job started as if by torchrun, and so to be a supervisor.

    One that has a coordinator may be a worker that somebody else keeps going, unless torchrun itself has started it.

    Raises:
        InvalidInputError: it is a rank of a job that tells not where the others are.
    """
    if LAUNCHED in os.environ or (has_coordinator and AGENT not in os.environ):
        return False
    if "RANK" not in os.environ:
        if not has_coordinator and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
            raise InvalidInputError(
                f"srun has started {os.environ['SLURM_STEP_NUM_TASKS']} of these, and nothing says who coordinates",
                where=COORDINATOR,
                fix=f"start `rtk coordinate` first, and give all of them {COORDINATOR} and {SECRET}",
            )
        return False
    missing = [name for name in MEETING_PLACE if name not in os.environ]
    if missing and not has_coordinator:
        raise InvalidInputError(
            f"RANK says that this is a process of a job, and {', '.join(missing)} is not set",
            where=missing[0],
            fix="start it with torchrun, which sets them; or without RANK, as a job of this machine alone",
        )
    return True


def require_as_many(plan: "Plan") -> None:
    """Raise InvalidInputError unless the job has a process for each GPU of each live worker of a plan."""
    live, world = len(plan.live_ranks()), os.environ["WORLD_SIZE"]
    if world != str(live):
        raise InvalidInputError(
            f"the plan has {counted_processes(plan)}, this job has {world} processes",
            where="WORLD_SIZE",
            fix=f"start it with torchrun --nproc-per-node {live}, or without torchrun",
        )


LEFT = 128 + signal.SIGTERM  # the exit code of a rank that was told to end before it had a worker


class TorchrunRank:
    """One process of a torchrun job.

    Args:
        plan: valid.
        name: of this rank's worker, or of its process, of several of a worker.
        arguments: the worker's command line behind the plan.
        nursery: forks it.
        addresses: of the job's coordinator; none: rank 0 is it.
        secret: the job's, where all ranks have been given it.
    """

    def __init__(
        self,
        plan: "Plan",
        name: str,
        arguments: Sequence[str],
        nursery: "Nursery",
        addresses: Sequence[str],
        secret: bytes | None,
    ) -> None:
        self._plan, self._name, self._arguments = plan, name, list(arguments)
        self._nursery, self._addresses, self._secret = nursery, list(addresses), secret
        self._supervisor: Supervisor | None = None
        self._is_told = threading.Event()

    def follow(self) -> int:
        """Keep the worker of a job going that is led elsewhere; gives the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._leave())
        with dying_with_parent(_die), tempfile.TemporaryFile() as plan:
            plan.write(canonical(self._plan))
            plan.flush()
            told = self._told()
            if not told:
                return LEFT
            supervisor = self._start(told, plan.fileno())
            code, may_go_on = supervisor.run()
            if code and may_go_on and not self._is_told.is_set():
                supervisor.outlast()
                return 0
            return code

    def lead(self, controller: JobController, announce: Announcements) -> int:
        """Lead the job, and keep this rank's worker going beside that; gives the exit code.

        Raises:
            RuntimeFailedError: training could not go on, or not all ranks have come.
        """
        with dying_with_parent(_die), tempfile.TemporaryFile() as plan:
            plan.write(canonical(self._plan))
            plan.flush()
            threads: list[threading.Thread] = []

            def is_ready(server: "Server") -> None:
                work = partial(self._work_beside, server, plan.fileno())
                threads.append(threading.Thread(target=work, name="supervising", daemon=True))
                threads[0].start()

            self._secret = self._secret or make_secret()
            # Ranks that end first have torchrun end us: not before we have said why.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self._leave())
            try:
                controller.lead(announce, self._secret, None, _own_host(), 0, is_ready, (signal.SIGINT, signal.SIGTERM))
            except BaseException:
                self._leave()
                raise
            finally:
                for thread in threads:
                    thread.join(GRACE_S)
        return 0

    def _work_beside(self, server: "Server", plan: int) -> None:
        """In a thread beside the coordinator: have the others know of it, and keep a worker going."""
        try:
            given = {GIVEN: "1"} if SECRET in os.environ else {}
            assert self._secret is not None
            told = {COORDINATOR: server.address, SECRET: self._secret.decode()}
            if not introduce(self._nursery, {**told, **given}, self._is_told):
                return
            code, may_go_on = self._start(told, plan).run()
        except RtkError as error:
            server.finish(error.exit_code, error.what)
            return
        if code and not may_go_on:
            server.finish(code, f"worker {self._name} ended with exit code {code}")

    def _told(self) -> dict[str, str]:
        """Where the coordinator is, and the secret: as given, or as rank 0 tells."""
        if not self._addresses:
            return introduce(self._nursery, {}, self._is_told)
        assert self._secret is not None
        return {COORDINATOR: ",".join(self._addresses), SECRET: self._secret.decode()}

    def _start(self, told: dict[str, str], plan: int) -> Supervisor:
        if SECRET not in told:
            raise RuntimeFailedError(
                f"rank 0 has been given a secret in {SECRET}, and this rank has not",
                where=SECRET,
                fix="give it to all ranks, or to none",
            )
        arguments = ["run", f"/dev/fd/{plan}", *self._arguments, "--worker", self._name]
        addresses = told[COORDINATOR].split(",")
        is_all_here = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
        told = {**told, LED: "1"} if is_all_here and not self._addresses else told
        self._supervisor = Supervisor(self._nursery, self._name, arguments, told, addresses, [plan])
        if self._is_told.is_set():
            self._supervisor.leave()
        return self._supervisor

    def _leave(self) -> None:
        """Have the worker leave, now or when it is there."""
        self._is_told.set()
        if self._supervisor is not None:
            self._supervisor.leave()


def _die() -> NoReturn:
    """End at once; the worker ends with us."""
    with suppress(OSError):
        remark("torchrun is gone: this process ends, and its worker with it")
    os._exit(RuntimeFailedError.exit_code)


def _own_host() -> str:
    """Where rank 0 listens: for its own machine alone where all ranks are on it, else where torchrun's store is."""
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        return "127.0.0.1"
    host = os.environ["MASTER_ADDR"]
    try:
        with socket.create_server((host, 0)):
            return host
    except OSError:  # not an address of this machine's
        return socket.getfqdn()
