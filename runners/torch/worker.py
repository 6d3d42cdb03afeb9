"""One process of a job: a worker that a coordinator tells what to do, or one of a plain job under torchrun."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial

import torch

from ...schemas.documents import digest, write_document
from ...schemas.errors import InvalidInputError, RtkError, RuntimeFailedError
from ...schemas.timeline import IterationTime, iteration_time_s
from ..processes import LAUNCHED, die_with_launcher
from ..resilience.conditions import cores_here
from ..resilience.events import Announcement, IterationCommitted, JobEnded, JobStarted, ModelEvaluated
from ..resilience.link import CoordinatorLink
from ..resilience.progress import INTERRUPTED
from ..resilience.protocol import End, Failed, Hello, Leaving, Returning
from ..resilience.wire import parse_address
from ..training import NOT_BEFORE
from .data.provider import Provider
from .rendezvous import MeetingPlace
from .resilient import ResilientWorker
from .runner import PlanRunner, StepResult
from .task import Task

LAST_WORDS_S = 1.0


class EndedError(RtkError):
    """The job ended without success; whoever coordinates has said why."""

    def __init__(self, end: End) -> None:
        super().__init__(f"the coordinator has ended the job: {end.reason}")
        self.exit_code = end.exit_code


def be_worker(make_task: Callable[[str], Task], addresses: list[str], patience_s: float, threads: int) -> None:
    """Be a worker until the coordinator says that the job, or this worker's part in it, is over.

    Args:
        make_task: gives what to train, by this machine's address.
        addresses: of the coordinator, and of standbys.
        patience_s: how long to look for a lost coordinator, in s.
        threads: of torch.

    Raises:
        InvalidInputError: the model or the data do not fit the plan, an address is not this machine's, or the
            coordinator refuses this worker.
        RuntimeFailedError: no coordinator is found for `patience_s`.
        EndedError: the job failed.
    """
    die_with_launcher()
    torch.set_num_threads(threads)
    task = make_task(_own_address(addresses[0]))
    secret = task.secret
    meeting, besides = MeetingPlace(secret, task.hostname), _places_besides(secret, task.others)
    worker = ResilientWorker(task)
    hello = _hello_of(task, meeting.address, tuple(place.address for place in besides))
    link = CoordinatorLink(
        addresses, secret, hello, patience_s=patience_s, on_interrupt=worker.announce, on_inquiry=worker.answer
    )
    welcome = link.start()
    _leave_when_told(link)
    try:
        end = worker.run(link, welcome, partial(_end_at_once, link))
    except InvalidInputError as error:
        link.send(Failed(error.exit_code, str(error)))
        raise
    finally:
        link.close()
        if isinstance(task.batch, Provider):
            task.batch.close()
        for place in (meeting, *besides):
            place.close()
    if (
        end.exit_code == INTERRUPTED and LAUNCHED in os.environ
    ):  # whoever has asked for it is told once, by the launcher
        sys.exit(INTERRUPTED)
    if end.exit_code:
        raise EndedError(end)


def _hello_of(task: Task, store: str, others: tuple[str, ...]) -> Callable[[str, Returning | None], Hello]:
    """What the worker says to each coordinator first; `store` and `others`: where its meeting places are."""
    plan_digest, cores = digest(task.plan), cores_here()

    def hello(proof: str, returning: Returning | None) -> Hello:
        return Hello(
            proof=proof,
            worker=task.name,
            store=store,
            plan=plan_digest,
            job=task.settings,
            pid=os.getpid(),
            not_before=0 if returning else int(os.environ.get(NOT_BEFORE, "0")),
            returning=returning,
            others=others,
            cores=cores,
            evaluates=task.evaluation is not None,
        )

    return hello


def _end_at_once(link: CoordinatorLink, exit_code: int, reason: str) -> None:
    """End this process, whose main thread nothing wakes any more, and let the coordinator know why.

    The kernel closes what is open; exit functions would wait for that thread.
    """
    print(f"error: {reason}; this worker ends itself", file=sys.stderr, flush=True)
    telling = threading.Thread(target=link.send, args=(Failed(exit_code, reason),), daemon=True)
    telling.start()
    telling.join(LAST_WORDS_S)  # a coordinator that is stopped does not take them
    os._exit(exit_code)


def _places_besides(secret: bytes, addresses: Sequence[str]) -> list[MeetingPlace]:
    """Where other workers find this one on other networks."""
    try:
        return [MeetingPlace(secret, address) for address in addresses]
    except RuntimeFailedError as error:
        raise InvalidInputError(error.what, where="--interface", fix=error.fix) from None


def _own_address(coordinator: str) -> str:
    """The address of this machine on the way to the coordinator: other workers reach it there as well."""
    host, port = parse_address(coordinator, where="--coordinator")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing; only chooses the interface
            return str(probe.getsockname()[0])
    except OSError as error:
        raise InvalidInputError(
            f"there is no way to the coordinator: {error.strerror or error}", where=coordinator, fix="check the address"
        ) from None


def _leave_when_told(link: CoordinatorLink) -> None:
    """On SIGTERM, as spot instances give it before they go: finish the iteration and leave."""

    def leave(*_: object) -> None:
        # In a thread: the interrupted code may hold the lock that sending takes.
        threading.Thread(target=link.send, args=(Leaving(),), daemon=True).start()
        print("asked to leave: will do so after this iteration", file=sys.stderr)

    signal.signal(signal.SIGTERM, leave)


def own_device() -> str:
    """Where this worker computes: its GPU, of those that there are, else the CPU."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"


# A worker of a plain run.


class PlainJob:
    """One worker of a job without a coordinator, which ends when one of its workers fails: a process of torchrun's.

    Args:
        task: what is trained; its worker is the plan's live one number RANK.

    Attributes:
        reports_loss: whether this is the worker that tells what happens.

    Raises:
        InvalidInputError: the model does not fit the plan, or the plan not the number of ranks.
    """

    def __init__(self, task: Task) -> None:
        self._runner = PlanRunner(
            task.plan,
            task.make_layers(),
            task.loss,
            task.optimizer,
            device=task.device,
            paced=task.paced,
            seed=task.seed,
            transport=task.transport,
            clip_norm=task.clip_norm,
            fill=task.fill,
            schedule=task.schedule,
            precision=task.precision,
            buffers=task.buffers,
        )
        self._batch, self._evaluation = task.batch, task.evaluation
        self.reports_loss = self._runner.reports_loss()

    def run(self, iterations: int, announce: Callable[[Announcement], None]) -> None:
        """Run all iterations, and say what each gave; it lasts from the end of the one before it.

        Args:
            iterations: how many.
            announce: hears of it, where this worker reports.
        """
        tell = announce if self.reports_loss else lambda what: None
        live = len(self._runner.plan.live_workers())
        tell(JobStarted(epoch=0, live_workers=live, iterations=iterations, iteration=0))
        times: list[IterationTime] = []
        last_end_s = None
        for iteration in range(iterations):
            if self._evaluation is not None and self._evaluation.is_due_before(iteration):
                last_end_s = self._evaluate(iteration, tell)
            result = self._step(iteration)
            begun_s = result.start_s if last_end_s is None else last_end_s
            times.append(IterationTime(iteration, result.end_s - begun_s, is_first=not times))
            last_end_s = result.end_s
            tell(
                IterationCommitted(
                    epoch=0,
                    iteration=iteration,
                    loss=result.loss,
                    iteration_time_s=times[-1].seconds,
                    live_workers=live,
                    skipped=result.skipped,
                    count=result.count,
                    grad_norm=result.grad_norm,
                    learning_rate=result.learning_rate,
                )
            )
        if self._evaluation is not None:
            self._evaluate(iterations, tell)
        usual_s, done = iteration_time_s(times), "all iterations are done"
        tell(JobEnded(epoch=0, exit_code=0, reason=done, iterations=iterations, iteration_time_s=usual_s))

    def _evaluate(self, iteration: int, tell: Callable[[Announcement], None]) -> float:
        """Evaluate before an iteration; gives when that has ended, by the runner's clock."""
        assert self._evaluation is not None
        begun_s = self._runner.now_s()
        loss, count = self._runner.evaluate(self._evaluation)
        ended_s = self._runner.now_s()
        tell(ModelEvaluated(epoch=0, iteration=iteration, loss=loss, count=count, seconds=ended_s - begun_s))
        return ended_s

    def _step(self, iteration: int) -> StepResult:
        if isinstance(self._batch, Provider):
            for one in (iteration, iteration + 1):
                self._batch.prefetch(one, self._runner.reads)
        return self._runner.step(self._batch(iteration))

    def end(self, timeline: str | None) -> None:
        """Write what all workers executed, where that is asked for, and leave the group."""
        measured = None if timeline is None else self._runner.timeline()
        if timeline is not None and measured is not None:
            write_document(timeline, measured)
        self._runner.close()
        if isinstance(self._batch, Provider):
            self._batch.close()
