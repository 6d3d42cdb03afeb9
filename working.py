"""What the workers of `rtk run` do: a model and data for a plan, and one process that a coordinator tells what to do.

It stands at the root because it loads the profilers' models into the runners' workers.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from .runners.processes import arguments_of, die_with_launcher
from .schemas.errors import InvalidInputError, RtkError, RuntimeFailedError
from .schemas.profile import AS_USUAL, ModelForm, form_of

if TYPE_CHECKING:
    from .profilers.models.load import Model
    from .runners.program import Sending
    from .runners.resilience.events import Announcement
    from .runners.resilience.link import CoordinatorLink
    from .runners.resilience.protocol import End, Hello, Returning
    from .runners.torch.iteration import Task
    from .runners.torch.rendezvous import MeetingPlace
    from .runners.torch.runner import ByteCorpus
    from .schemas.plan import Plan


@dataclass(frozen=True)
class Training:
    """What is trained how; the same for all workers but for `threads`. All workers read the form out of the plan.

    Attributes:
        model: a preset, "file.py:factory", or a config.json.
        data: text files; none: Python's own library.
        learning_rate: of AdamW.
        microbatch_size: samples a micro-batch; None: the profile's.
        sequence_length: tokens a sample; None: the profile's.
        threads: of torch, in each worker.
        paced: every operation lasts what the plan says: more workers than cores.
        transport: how messages are sent.
        seed: of all randomness.
        form: of the model behind the plan.
    """

    model: str
    data: Sequence[str] | None = None
    learning_rate: float = 1e-3
    microbatch_size: int | None = None
    sequence_length: int | None = None
    threads: int = 1
    paced: bool = False
    transport: "Sending" = "auto"
    seed: int = 0
    form: ModelForm = AS_USUAL

    def arguments(self) -> list[str]:
        """The options by which another process trains the same."""
        return arguments_of(
            {
                "--model": self.model,
                "--data": tuple(self.data or ()),
                "--lr": self.learning_rate,
                "--microbatch-size": self.microbatch_size,
                "--sequence-length": self.sequence_length,
                "--threads": self.threads,
                "--seed": self.seed,
                "--transport": self.transport,
                "--paced": self.paced,
            }
        )

    def settings(self) -> dict[str, Any]:
        """What the coordinator compares between workers."""
        told = {name: value for name, value in asdict(self).items() if name not in ("threads", "form")}
        return told | {"data": list(self.data or ())} | self.form.options()


def training_of(plan: "Plan", asked: Training) -> Training:
    """The training that is asked for; sizes that it leaves open, and the form, are of the profile behind the plan.

    Raises:
        InvalidInputError: the plan's options ask for a form that there is not.
    """
    size, length = sizes_of(plan)
    return replace(
        asked,
        data=tuple(asked.data or ()),
        microbatch_size=asked.microbatch_size or size,
        sequence_length=asked.sequence_length or length,
        form=form_of(plan.planner.options),
    )


def sizes_of(plan: "Plan") -> tuple[int | None, int | None]:
    """Samples a micro-batch and tokens a sample of the profile behind a plan; None where the plan does not say."""
    told = (plan.planner.options.get(name) for name in ("microbatch_size", "sequence_length"))
    size, length = (value if isinstance(value, int) else None for value in told)
    return size, length


def load_training(plan: "Plan", training: Training) -> "tuple[Model, ByteCorpus]":
    """The model and the data, checked against the plan and each other.

    Raises:
        InvalidInputError: they do not fit.
    """
    from .profilers.models.load import load_model
    from .runners.torch.runner import ByteCorpus, check_model

    for t, template in enumerate(plan.templates):
        for i, stage in enumerate(template.stages):
            if stage.tensor_parallel > 1:
                raise InvalidInputError(
                    f"a stage of template {template.name} is on {stage.tensor_parallel} GPUs; a worker computes on one",
                    where=f"/templates/{t}/stages/{i}/tensor_parallel",
                    fix="plan from a profile with costs at tensor_parallel 1 only",
                )
    model = load_model(training.model, training.microbatch_size, training.sequence_length, training.seed, training.form)
    check_model(plan, model.layers)
    if model.vocabulary is None or model.vocabulary < 256 or model.sequence_length is None:
        raise InvalidInputError(
            "the model does not read bytes: its vocabulary must be 256 or more",
            where="--model",
            fix="for other data, use PlanRunner in a script of your own (docs/library.md)",
        )
    return model, ByteCorpus(tuple(training.data or ()), model.microbatch_size, model.sequence_length, training.seed)


def tokens_of(plan: "Plan", corpus: "ByteCorpus") -> int:
    """Tokens of one iteration."""
    return plan.total_microbatches() * corpus.microbatch_size * corpus.sequence_length


def available_cores() -> int:
    """The cores that this process, and so the workers it starts, may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device() -> str:
    """Where this worker computes: its GPU, of those that there are, else the CPU."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"


# A worker of a resilient run.


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

    from .runners.resilience.link import CoordinatorLink
    from .runners.resilience.protocol import Failed
    from .runners.torch.rendezvous import MeetingPlace
    from .runners.torch.resilient import ResilientWorker

    die_with_launcher()
    torch.set_num_threads(training.threads)
    hostname = _own_address(addresses[0])
    task = _task(plan, training, name, secret, hostname, others)
    meeting, besides = MeetingPlace(secret, hostname), _places_besides(secret, others)
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
        for place in (meeting, *besides):
            place.close()
    if end.exit_code:
        raise EndedError(end)


def _end_at_once(link: "CoordinatorLink", exit_code: int, reason: str) -> None:
    """End this process, whose main thread nothing wakes any more, and let the coordinator know why.

    The kernel closes what is open; exit functions would wait for that thread.
    """
    from .runners.resilience.protocol import Failed

    print(f"error: {reason}; this worker ends itself", file=sys.stderr, flush=True)
    telling = threading.Thread(target=link.send, args=(Failed(exit_code, reason),), daemon=True)
    telling.start()
    telling.join(LAST_WORDS_S)  # a coordinator that is stopped does not take them
    os._exit(exit_code)


def _task(plan: "Plan", training: Training, name: str, secret: bytes, hostname: str, others: Sequence[str]) -> "Task":
    """What the worker is to train; `hostname` and `others` are its addresses."""
    import torch

    from .runners.torch.iteration import Task

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
    from .runners.resilience.conditions import cores_here
    from .runners.resilience.protocol import Hello
    from .schemas.documents import digest

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
    from .runners.resilience.wire import SHORTEST_BYTES, read_secret

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
    from .runners.torch.rendezvous import MeetingPlace

    try:
        return [MeetingPlace(secret, address) for address in addresses]
    except RuntimeFailedError as error:
        raise InvalidInputError(error.what, where="--interface", fix=error.fix) from None


def _own_address(coordinator: str) -> str:
    """The address of this machine on the way to the coordinator: other workers reach it there as well."""
    from .runners.resilience.wire import parse_address

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


def _leave_when_told(link: "CoordinatorLink") -> None:
    """On SIGTERM, as spot instances give it before they go: finish the iteration and leave."""
    from .runners.resilience.protocol import Leaving

    def leave(*_: object) -> None:
        # In a thread: the interrupted code may hold the lock that sending takes.
        threading.Thread(target=link.send, args=(Leaving(),), daemon=True).start()
        print("asked to leave: will do so after this iteration", file=sys.stderr)

    signal.signal(signal.SIGTERM, leave)


# A worker of a plain run.


class PlainJob:
    """One worker of a job without a coordinator, which ends when one of its workers fails: a process of torchrun's.

    Args:
        plan: valid.
        training: what is trained.

    Attributes:
        tokens: of one iteration.
        reports_loss: whether this is the worker that tells what happens.

    Raises:
        InvalidInputError: the model or the data do not fit the plan.
    """

    def __init__(self, plan: "Plan", training: Training) -> None:
        import torch

        from .runners.torch.runner import PlanRunner

        torch.set_num_threads(training.threads)
        model, corpus = load_training(plan, training)
        self._runner = PlanRunner(
            plan,
            model.layers,
            model.loss,
            lambda parameters: torch.optim.AdamW(parameters, lr=training.learning_rate),
            device=device(),
            paced=training.paced,
            seed=training.seed,
            transport=training.transport,
        )
        self._batch = corpus.batch
        self.tokens, self.reports_loss = tokens_of(plan, corpus), self._runner.reports_loss()

    def run(self, iterations: int, announce: Callable[["Announcement"], None]) -> None:
        """Run all iterations, and say what each gave; it lasts from the end of the one before it.

        Args:
            iterations: how many.
            announce: hears of it, where this worker reports.
        """
        from .runners.resilience.events import IterationCommitted, JobEnded, JobStarted

        if not self.reports_loss:
            for iteration in range(iterations):
                self._runner.step(self._batch(iteration))
            return
        live = len(self._runner.plan.live_workers())
        announce(JobStarted(epoch=0, live_workers=live, iterations=iterations, iteration=0))
        times_s, last_end_s = [], None
        for iteration in range(iterations):
            result = self._runner.step(self._batch(iteration))
            times_s.append(result.end_s - (result.start_s if last_end_s is None else last_end_s))
            last_end_s = result.end_s
            announce(
                IterationCommitted(
                    epoch=0, iteration=iteration, loss=result.loss, iteration_time_s=times_s[-1], live_workers=live
                )
            )
        done = "all iterations are done"
        announce(JobEnded(epoch=0, exit_code=0, reason=done, iterations=iterations, iteration_time_s=median(times_s)))

    def end(self, timeline: str | None) -> None:
        """Write what all workers executed, where that is asked for, and leave the group."""
        from .schemas.documents import write_document

        measured = None if timeline is None else self._runner.timeline()
        if timeline is not None and measured is not None:
            write_document(timeline, measured)
        self._runner.close()
