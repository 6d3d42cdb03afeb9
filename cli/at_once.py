"""The same model measured by several processes at the same time: one a GPU, or on a CPU, to keep its cores busy."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from ..schemas.errors import RtkError, RuntimeFailedError
from .measuring_here import Measuring, load, measure_here

if TYPE_CHECKING:
    from ..schemas.profile import Connection, Profile


def measure_at_once(
    asked: Measuring, count: int, intra_node: "Connection | None", tell: Callable[[int, int], None]
) -> "list[Profile]":
    """Start processes that load the model, let them measure together, and give the profile of each in order.

    Raises:
        RtkError: the first that a process met.
        RuntimeFailedError: a process ended without a profile.
    """
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    try:
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_measure_one, args=(asked, number, intra_node, theirs), daemon=True)
            process.start()
            theirs.close()  # so that its end is heard
            pipes.append(ours)
            processes.append(process)
        for number, pipe in enumerate(pipes):
            _hear(pipe, number)
        for pipe in pipes:
            pipe.send("go")
        return _collect(pipes, tell)
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _collect(pipes: list[Pipe], tell: Callable[[int, int], None]) -> "list[Profile]":
    profiles: dict[int, Profile] = {}
    while len(profiles) < len(pipes):
        open_ = [pipe for number, pipe in enumerate(pipes) if number not in profiles]
        for pipe in wait(open_):
            number = pipes.index(pipe)  # type: ignore[arg-type]
            kind, value = _hear(pipes[number], number)
            if kind == "profile":
                profiles[number] = value
            elif number == 0:
                tell(*value)
    return [profiles[number] for number in range(len(pipes))]


def _hear(pipe: Pipe, number: int) -> "tuple[str, Any]":
    try:
        kind, value = pipe.recv()
    except EOFError as error:
        raise RuntimeFailedError(
            f"measuring process {number} ended without a profile",
            where=f"--at-once, process {number}",
            fix="see what it said above; --at-once 1 measures in one process",
        ) from error
    if kind == "error":
        raise value
    return kind, value


def _measure_one(asked: Measuring, number: int, intra_node: "Connection | None", pipe: Pipe) -> None:
    """One of the processes: tells when it is ready, how far it is, and what it has found."""
    try:
        model = load(asked)
        pipe.send(("ready", None))
        pipe.recv()
        found = measure_here(asked, model, intra_node, lambda done, all_: pipe.send(("progress", (done, all_))), number)
        pipe.send(("profile", found))
    except RtkError as error:
        pipe.send(("error", error))
