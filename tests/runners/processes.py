"""A job of real processes, forked from one that has imported torch: a worker is there in a fraction of a second."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from rtk.runners.lifeline import LIFELINE, lifeline_if_any
from rtk.runners.ranks import processes_of
from rtk.runners.resilience.announcements import Announcement
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.running import controller_of
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import RtkError
from rtk.schemas.plan import Plan
from rtk.training import Training

if __name__ != "worker":
    from ..warm import fork

PATIENCE_S = 60.0  # as `--patience` of `rtk run`


def single_process(
    plan: Plan, training: TrainingConfig, iterations: int, spoil: Callable[[int, Any], None] = lambda *_: None
) -> list[float]:
    """The losses of all micro-batches one after the other through the whole model, then AdamW.

    What spoils gradients is called with each iteration and its layers, before they are used.
    """
    import torch

    model, corpus = Training.of(training).load(plan)
    whole = torch.nn.Sequential(*model.layers)
    optimizer = torch.optim.AdamW(whole.parameters(), lr=training.learning_rate)
    losses, total = [], plan.total_microbatches()
    torch.set_num_threads(training.threads)
    for iteration in range(iterations):
        optimizer.zero_grad()
        batch, parts = corpus.batch(iteration), []
        for inputs, targets in (batch[number] for number in range(total)):
            loss = model.loss(whole(inputs), targets) / total
            loss.backward()  # type: ignore[no-untyped-call]
            parts.append(loss.item())
        losses.append(sum(parts))
        spoil(iteration, whole)
        if training.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(whole.parameters(), training.clip_norm)
        optimizer.step()
    return losses


def work(
    plan: bytes,
    training: TrainingConfig,
    name: str,
    addresses: list[str],
    secret: bytes,
    not_before: int,
    lifeline: str | None = None,
) -> None:
    """A worker's process: what `rtk run --coordinator` does."""
    from rtk.runners.training import NOT_BEFORE
    from rtk.running import work as be_worker

    os.environ[NOT_BEFORE] = str(not_before)
    if lifeline is not None:
        os.environ[LIFELINE] = str(os.open(lifeline, os.O_RDWR))
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
        spare_ranks: single ranks that stand by, for which it waits before it begins.
    """

    def __init__(
        self,
        plan: Plan,
        how: JobConfig,
        training: TrainingConfig,
        host: str = "127.0.0.1",
        is_watchful: bool | None = None,
        spare_ranks: int = 0,
    ) -> None:
        self.plan, self.training = plan, training
        self.conductor = controller_of(plan, how)
        if spare_ranks:
            self.conductor.job = replace(self.conductor.job, spare_ranks=spare_ranks)
        self.said: list[dict[str, Any]] = []
        self.secret = b"a secret for one test only"
        self._changed = threading.Condition()
        watchful = training.paced if is_watchful is None else is_watchful
        self.server = self.conductor.server(self.secret, self._hear, host=host, is_watchful=watchful)
        self.addresses = [self.server.address]
        self.processes: dict[str, Any] = {}
        self._files: list[int] = []  # of lifelines
        self._finished: Any = None
        self._leading = threading.Thread(target=self._lead, daemon=True)

    def __enter__(self) -> Self:
        self.conductor.warm_up()
        self._leading.start()
        for name in processes_of(self.plan):
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.finish(1, "the test is over")
        self._leading.join(60)
        for process in self.processes.values():
            process.join(5)
            process.kill()
        for file in self._files:
            os.close(file)

    def start(self, name: str, not_before: int = 0) -> None:
        """Start a worker, or a rank `k/i:r` of one, or what is to replace it."""
        line = lifeline_if_any()
        path = None if line is None else f"/proc/{os.getpid()}/fd/{line.file}"
        process = self.processes[name] = self.launch(name, not_before, path)
        if line is not None:
            self._files.append(line.file)
            line.watch(lambda: process.exitcode is not None, lambda: self.server.mourn(name, process.pid or 0))

    def launch(self, name: str, not_before: int, lifeline: str | None) -> Any:
        """The process of a worker."""
        told = (canonical(self.plan), self.training, name, self.addresses, self.secret, not_before, lifeline)
        return fork(__file__, *told)

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

    def _hear(self, what: Announcement) -> None:
        with self._changed:
            self.said.append({**what.as_json(), "at_s": time.perf_counter()})
            self._changed.notify_all()


if __name__ == "worker":
    work(*globals()["ARGUMENTS"])
