"""One process of a job: a worker that a coordinator tells what to do, or one of a plain job under torchrun."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

import torch

from ...schemas.documents import digest
from ...schemas.errors import InvalidInputError, RtkError, RuntimeFailedError
from ..addresses import parse_address
from ..processes import LAUNCHED, LED
from ..ranks import has_unlike_degrees
from ..resilience.conditions import cores_here
from ..resilience.link import CoordinatorLink
from ..resilience.progress import INTERRUPTED
from ..resilience.protocol import (
    End,
    Epoch,
    Failed,
    Hello,
    Inquiry,
    Leaving,
    Reshape,
    Reshaped,
    Returning,
    Welcome,
    Whereabouts,
)
from ..resilience.supervisor import BEGUN, ENDED, tell_supervisor
from ..resilience.worker_rules import Turn
from ..training import NOT_BEFORE
from .data.provider import Provider
from .rendezvous import MeetingPlace
from .resilient import ResilientWorker
from .task import Task

LAST_WORDS_S = 1.0


class EndedError(RtkError):
    """The job ended without success; whoever coordinates has said why."""

    def __init__(self, end: End) -> None:
        super().__init__(f"the coordinator has ended the job: {end.reason}")
        self.exit_code = end.exit_code


def be_worker(
    make_task: Callable[[str], Task],
    addresses: list[str],
    patience_s: float,
    explain: Callable[[Exception], InvalidInputError | None] = lambda error: None,
) -> None:
    """Be a worker until the coordinator says that the job, or this worker's part in it, is over.

    Args:
        make_task: gives what to train, by this machine's address.
        addresses: of the coordinator, and of standbys.
        patience_s: how long to look for a lost coordinator, in s.
        explain: says of an error whether what is trained is wrong: the job ends for that, and not this worker alone.

    Raises:
        InvalidInputError: the model or the data do not fit the plan, an address is not this machine's, or the
            coordinator refuses this worker; or as `explain` says.
        RuntimeFailedError: no coordinator is found for `patience_s`.
        EndedError: the job failed.
    """
    task = make_task(own_address(addresses[0]))
    secret = task.secret
    meeting, besides = MeetingPlace(secret, task.hostname), _places_besides(secret, task.others)
    shape = _Shape(task)
    hello = hello_of(task, meeting.address, tuple(place.address for place in besides), shape)
    try:
        shape.make(task)
    except Exception as error:
        _give_up(CoordinatorLink(addresses, secret, hello, patience_s=LAST_WORDS_S), error, explain, is_new=True)

    def announce(message: Turn) -> None:
        if isinstance(message, Epoch):
            tell_supervisor(BEGUN)
        shape.announce(message)

    link = CoordinatorLink(
        addresses, secret, hello, patience_s=patience_s, on_interrupt=announce, on_inquiry=shape.answer
    )
    welcome = _welcome(link, task)
    _leave_when_told(link)
    try:
        end = shape.run(link, welcome)
    except Exception as error:
        _give_up(link, error, explain)
    finally:
        link.close()
        _stop_reading(task)
        for place in (meeting, *besides):
            place.close()
    if end.exit_code == INTERRUPTED and LAUNCHED in os.environ:
        tell_supervisor(ENDED, INTERRUPTED)
        sys.exit(INTERRUPTED)  # whoever has asked for it is told once, by the launcher
    if end.exit_code:
        _end(EndedError(end))
    tell_supervisor(ENDED, 0)


def _give_up(
    link: CoordinatorLink,
    error: Exception,
    explain: Callable[[Exception], InvalidInputError | None],
    *,
    is_new: bool = False,
) -> NoReturn:
    """End with an error; where what is trained is wrong, the coordinator hears of it, and ends the job."""
    wrong = error if isinstance(error, InvalidInputError) else explain(error)
    if wrong is None:
        raise error
    # One that is gone has ended the job for the same reason; one that does not let us in will not hear of it.
    with suppress(RuntimeFailedError):
        try:
            if is_new:
                link.start()
        except InvalidInputError:
            raise wrong from error
        link.send(Failed(wrong.exit_code, str(wrong)))
    link.close()
    _end(wrong, error)


def _end(why: RtkError, error: Exception | None = None) -> NoReturn:
    """End with an error that the coordinator knows: without a word, where it says it in the same output."""
    tell_supervisor(ENDED, why.exit_code)
    if LED in os.environ and "--debug" not in sys.argv:  # which asks for all tracebacks
        sys.exit(why.exit_code)
    raise why from error


def _welcome(link: CoordinatorLink, task: Task) -> Welcome:
    """What the coordinator says first; where it refuses the worker, nobody reads its data any more."""
    try:
        return link.start()
    except BaseException:
        _stop_reading(task)
        raise


def _stop_reading(task: Task) -> None:
    if isinstance(task.batch, Provider):
        task.batch.close()


class _Shape:
    """What this process is of its worker: the rank that it was started as, or another one since.

    Args:
        task: of the rank that it was started as.

    Attributes:
        home: that task.
        task: of what it is now.
        worker: which does it; None while it is made.
    """

    def __init__(self, task: Task) -> None:
        self.home = self.task = task
        self.worker: ResilientWorker | None = None
        self.smaller_degrees: tuple[int, ...] = ()

    def make(self, task: Task) -> ResilientWorker:
        """Be the rank of a task; what there was before makes room first."""
        self.worker = None
        worker = ResilientWorker(task)
        self.task, self.worker, self.smaller_degrees = task, worker, worker.smaller_degrees
        return worker

    def run(self, link: CoordinatorLink, welcome: Welcome) -> End:
        """Go through the job, as one rank after the other."""
        while isinstance(end := self._made.run(link, welcome, partial(end_at_once, link)), Reshape):
            self.make(self.home.reshaped(end))
            link.send(Reshaped(end.rank, end.ranks))
        return end

    def announce(self, message: Turn) -> None:
        """For the link, in its thread: whoever trains is called away."""
        if self.worker is not None:
            self.worker.announce(message)

    def answer(self, inquiry: Inquiry) -> Whereabouts:
        """For the link, in its thread: where the training thread is."""
        if self.worker is None:
            return Whereabouts(inquiry.number, 0, "preparing", "its stage", 0.0)
        return self.worker.answer(inquiry)

    @property
    def shape(self) -> tuple[int, int] | None:
        """Which rank of how many, where it is not what it was started as."""
        now, home = ((one.share, one.degree) for one in (self.task, self.home))
        return None if now == home else now

    @property
    def _made(self) -> ResilientWorker:
        assert self.worker is not None
        return self.worker


def hello_of(
    task: Task, store: str, others: tuple[str, ...], shape: _Shape | None = None
) -> Callable[[str, Returning | None], Hello]:
    """What the worker says to each coordinator first.

    Args:
        task: of the rank that it was started as.
        store, others: where its meeting places are.
        shape: which rank it may be, and is; None: always this one.
    """
    plan_digest, cores = digest(task.plan), cores_here()

    def hello(proof: str, returning: Returning | None) -> Hello:
        """With `proof` of the job's secret; `returning`: what it knows of the job, where it has been in it before."""
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
            # Sums are copied between ranks of one number only.
            regroups=not has_unlike_degrees(task.plan),
            rank=task.share,
            ranks=task.degree,
            degrees=() if shape is None else shape.smaller_degrees,
            shape=None if shape is None else shape.shape,
        )

    return hello


def end_at_once(link: CoordinatorLink, exit_code: int, reason: str) -> None:
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


def own_address(coordinator: str) -> str:
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
