"""A job of real processes, forked from one that has imported torch: a worker is there in a fraction of a second."""

import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from rtk.cli.conducting import Conduct, Conductor
from rtk.cli.training import Training
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import RtkError
from rtk.schemas.plan import Plan

PRELOAD = ["torch._dynamo", "rtk.runners.torch.resilient", "rtk.runners.torch.meeting", "rtk.profilers.models.load"]
PATIENCE_S = 60.0  # as `--patience` of `rtk run`


def forking() -> ForkServerContext:
    """The context whose processes know torch already; it has one server, which all tests share."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def fork(file: str, *arguments: Any) -> ForkServerProcess:
    """Run a file of tests as `worker` in a process that knows torch already; it finds its arguments as `ARGUMENTS`.

    pytest imports test files under names that another process does not find.
    """
    process = forking().Process(target=runpy.run_path, args=(file, {"ARGUMENTS": arguments}, "worker"), daemon=True)
    process.start()
    return process


def work(plan: bytes, training: Training, name: str, addresses: list[str], secret: bytes, not_before: int) -> None:
    """A worker's process: what `rtk run --coordinator` does."""
    from rtk.cli.resilient_worker import NOT_BEFORE
    from rtk.cli.resilient_worker import work as be_worker

    os.environ[NOT_BEFORE] = str(not_before)
    try:
        be_worker(parse_document(plan, Plan, "the plan"), training, name, addresses, secret, PATIENCE_S)
    except RtkError as error:
        print(f"worker {name}: {error.what}", file=sys.stderr)
        sys.exit(error.exit_code)


class ProcessJob:
    """A coordinator in a thread of this process, and workers that can be killed for real.

    Args:
        plan: what they are started with.
        how: how the job is led.
        training: what is trained.
        host: where the coordinator listens.
        is_watchful: whether it looks for what is slow; None: where workers keep a pace, for those that share cores
            without one are slow by turns.
    """

    def __init__(
        self, plan: Plan, how: Conduct, training: Training, host: str = "127.0.0.1", is_watchful: bool | None = None
    ) -> None:
        self.plan, self.training = plan, training
        self.conductor = Conductor(plan, how)
        self.said: list[dict[str, Any]] = []
        self.secret = b"a secret for one test only"
        self._changed = threading.Condition()
        watchful = training.paced if is_watchful is None else is_watchful
        self.server = self.conductor.server(self.secret, self._hear, host=host, is_watchful=watchful)
        self.addresses = [self.server.address]
        self.processes: dict[str, Any] = {}
        self._finished: Any = None
        self._leading = threading.Thread(target=self._lead, daemon=True)

    def __enter__(self) -> "ProcessJob":
        self.conductor.warm_up()
        self._leading.start()
        for worker in self.plan.live_workers():
            self.start(worker.name)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.finish(1, "the test is over")
        self._leading.join(60)
        for process in self.processes.values():
            process.join(5)
            process.kill()

    def start(self, name: str, not_before: int = 0) -> None:
        """Start a worker, or its replacement."""
        arguments = (canonical(self.plan), self.training, name, self.addresses, self.secret, not_before)
        self.processes[name] = fork(__file__, *arguments)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a worker a signal."""
        os.kill(self.processes[name].pid, number)

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], timeout_s: float = 60.0, since: int = 0) -> int:
        """Wait for an announcement; gives its place in `said`."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = next((i for i, one in enumerate(self.said[since:], since) if wanted(one)), None)
                if found is not None:
                    return found
                if not self._changed.wait(deadline_s - time.monotonic()):
                    raise AssertionError(f"it was not said in {timeout_s} s; last: {self.said[-5:]}")

    def wait_for_iteration(self, iteration: int, timeout_s: float = 60.0) -> int:
        """Wait until an iteration is committed."""
        return self.wait_for(lambda one: one["event"] == "iteration" and one["iteration"] >= iteration, timeout_s)

    def result(self, timeout_s: float = 60.0) -> Any:
        """How the job ended."""
        self._leading.join(timeout_s)
        assert not self._leading.is_alive(), f"the job hangs; last: {self.said[-5:]}"
        return self._finished

    def losses(self) -> list[float]:
        """The loss of every committed iteration."""
        return [one["loss"] for one in self.said if one["event"] == "iteration"]

    def _lead(self) -> None:
        self._finished = self.server.run()

    def _hear(self, fields: dict[str, Any]) -> None:
        with self._changed:
            self.said.append({**fields, "at_s": time.perf_counter()})
            self._changed.notify_all()


if __name__ == "worker":
    work(*globals()["ARGUMENTS"])
