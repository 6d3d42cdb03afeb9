"""A worker of a resilient run: one process, which a coordinator tells what to execute."""

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ..schemas.errors import InvalidInputError, RtkError, RuntimeFailedError
from .console import SETTINGS
from .launch import die_with_launcher
from .training import Training, device, load_training

if TYPE_CHECKING:
    from ..runners.resilience.link import Link
    from ..runners.resilience.messages import End, Hello, Returning
    from ..runners.torch.meeting import MeetingPlace
    from ..runners.torch.task import Task
    from ..schemas.plan import Plan

M_ARENA_MAX = -8  # of malloc.h
LAST_WORDS_S = 1.0
COORDINATOR, SECRET, NOT_BEFORE = "RTK_COORDINATOR", "RTK_SECRET", "RTK_NOT_BEFORE"


class EndedError(RtkError):
    """The job ended without success; whoever coordinates has said why."""

    def __init__(self, end: "End") -> None:
        super().__init__(f"the coordinator has ended the job: {end.reason}")
        self.exit_code = end.exit_code


def work(
    plan: "Plan",
    training: Training,
    name: str,
    addresses: list[str],
    secret: bytes,
    patience_s: float,
    others: Sequence[str] = (),
) -> None:
    """Be worker `name` until the coordinator says that the job, or this worker's part in it, is over.

    Args:
        plan: that the job begins with.
        training: what to train.
        name: `k/i`.
        addresses: of the coordinator, and of standbys.
        secret: the job's.
        patience_s: how long to look for a lost coordinator, in s.
        others: this machine's addresses on other networks than that of the coordinator.

    Raises:
        InvalidInputError: the model or the data do not fit the plan, an address is not this machine's, or the
            coordinator refuses this worker.
        RuntimeFailedError: no coordinator is found for `patience_s`.
        EndedError: the job failed.
    """
    _keep_one_arena()
    import torch

    from ..runners.resilience.link import Link
    from ..runners.resilience.messages import Failed
    from ..runners.torch.meeting import MeetingPlace
    from ..runners.torch.resilient import ResilientWorker

    die_with_launcher()
    torch.set_num_threads(training.threads)
    hostname = _own_address(addresses[0])
    task = _task(plan, training, name, secret, hostname, others)
    meeting, besides = MeetingPlace(secret, hostname), _places_besides(secret, others)
    worker = ResilientWorker(task)
    hello = _hello_of(task, meeting.address, tuple(place.address for place in besides))
    link = Link(addresses, secret, hello, patience_s=patience_s, on_interrupt=worker.announce, on_inquiry=worker.answer)
    SETTINGS.trains = True
    welcome = link.start()
    _leave_when_told(link)
    try:
        end = worker.run(link, welcome, partial(_end_at_once, link))
    except InvalidInputError as error:
        link.send(Failed(error.exit_code, str(error)))
        raise
    finally:
        link.close()
        for place in (meeting, *besides):
            place.close()
    if end.exit_code:
        raise EndedError(end)


def _end_at_once(link: "Link", exit_code: int, reason: str) -> None:
    """End this process, whose main thread nothing wakes any more, and let the coordinator know why.

    The kernel closes what is open; exit functions would wait for that thread.
    """
    from ..runners.resilience.messages import Failed

    print(f"error: {reason}; this worker ends itself", file=sys.stderr, flush=True)
    telling = threading.Thread(target=link.send, args=(Failed(exit_code, reason),), daemon=True)
    telling.start()
    telling.join(LAST_WORDS_S)  # a coordinator that is stopped does not take them
    os._exit(exit_code)


def _task(plan: "Plan", training: Training, name: str, secret: bytes, hostname: str, others: Sequence[str]) -> "Task":
    """What the worker is to train; `hostname` and `others` are its addresses."""
    import torch

    from ..runners.torch.task import Task

    model, corpus = load_training(plan, training)
    return Task(
        name=name,
        plan=plan,
        make_layers=lambda: load_training(plan, training)[0].layers,
        loss=model.loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=training.learning_rate),
        batch=corpus.batch,
        settings=training.settings(),
        secret=secret,
        device=device(),
        hostname=hostname,
        others=tuple(others),
        paced=training.paced,
        seed=training.seed,
        transport=training.transport,
    )


def _hello_of(task: "Task", store: str, others: tuple[str, ...]) -> "Callable[[str, Returning | None], Hello]":
    """What the worker says to each coordinator first; `store` and `others`: where its meeting places are."""
    from ..runners.resilience.crowding import cores_here
    from ..runners.resilience.messages import Hello
    from ..schemas.documents import digest

    plan_digest, cores = digest(task.plan), cores_here()

    def hello(proof: str, returning: "Returning | None") -> Hello:
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
        )

    return hello


def name_of_rank(plan: "Plan", worker: str | None) -> str:
    """The name of this worker: as given, else that of the plan's live worker number RANK.

    Raises:
        InvalidInputError: there is neither, or the plan has no such worker.
    """
    names = [one.name for one in plan.workers]
    if worker is not None:
        if worker not in names:
            raise InvalidInputError(f"the plan has no worker {worker}", where="--worker", fix="name one as k/i")
        return worker
    live, rank = plan.live_workers(), os.environ.get("RANK")
    if rank is None or not rank.isdecimal() or int(rank) >= len(live):
        raise InvalidInputError(
            f"RANK is {rank}, the plan has {len(live)} live workers" if rank else "nothing says which worker this is",
            where="RANK",
            fix=f"give --worker k/i, or start {len(live)} workers with torchrun",
        )
    return live[int(rank)].name


def secret_of(file: str | None) -> bytes:
    """The job's secret: from a file, else from the environment.

    Raises:
        InvalidInputError: there is none, or it is too short.
    """
    from ..runners.resilience.secret import SHORTEST_BYTES, read_secret

    if file is not None:
        return read_secret(file)
    secret = os.environ.get(SECRET, "").strip().encode()
    if len(secret) < SHORTEST_BYTES:
        raise InvalidInputError(
            f"the job's secret is missing, or shorter than {SHORTEST_BYTES} bytes",
            where=f"--secret-file or {SECRET}",
            fix="give a file; `rtk coordinate` makes one where there is none, and its workers need the same",
        )
    return secret


def _keep_one_arena() -> None:
    """Have glibc allocate for all threads in one place.

    Every epoch has threads of its own; with an arena each, what they leave behind grew by 20 MB in 100 epochs.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def _places_besides(secret: bytes, addresses: Sequence[str]) -> "list[MeetingPlace]":
    """Where other workers find this one on other networks."""
    from ..runners.torch.meeting import MeetingPlace

    try:
        return [MeetingPlace(secret, address) for address in addresses]
    except RuntimeFailedError as error:
        raise InvalidInputError(error.what, where="--interface", fix=error.fix) from None


def _own_address(coordinator: str) -> str:
    """The address of this machine on the way to the coordinator: other workers reach it there as well."""
    from ..runners.resilience.addresses import parse_address

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


def _leave_when_told(link: "Link") -> None:
    """On SIGTERM, as spot instances give it before they go: finish the iteration and leave."""
    from ..runners.resilience.messages import Leaving

    def leave(*_: object) -> None:
        # In a thread: the interrupted code may hold the lock that sending takes.
        threading.Thread(target=link.send, args=(Leaving(),), daemon=True).start()
        print("asked to leave: will do so after this iteration", file=sys.stderr)

    signal.signal(signal.SIGTERM, leave)
