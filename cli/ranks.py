"""What commands share that run on every rank of a job: under torchrun, or as processes that they start here."""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import InvalidInputError, RuntimeFailedError
from .launch import Workers, die_with_launcher

if TYPE_CHECKING:
    from ..runners.torch.probe import Place

# A file on which the ranks that --processes starts meet: for that nobody has to listen on a port.
MEETING = "RTK_PROBE_MEETING"
LOOK_EVERY_S = 0.05

Processes = Annotated[
    int | None, typer.Option("--processes", min=1, max=256, help="Start so many ranks here, without torchrun.")
]


def start_here(processes: int, arguments: Sequence[str]) -> None:
    """Be the ranks' launcher, and end as they do.

    Args:
        processes: how many ranks.
        arguments: the command line of each, behind `rtk`.

    Raises:
        RuntimeFailedError: a rank was killed; what it said is otherwise all there is to say.
    """
    with tempfile.TemporaryDirectory() as folder, Workers() as workers:
        for rank in range(processes):
            workers.start(str(rank), arguments, _environment(rank, processes, folder))
        while not workers.are_over() and workers.ended() is None:
            time.sleep(LOOK_EVERY_S)
        failed = workers.ended()
    if failed is not None and failed[1] < 0:
        raise RuntimeFailedError(
            f"rank {failed[0]} was killed by signal {-failed[1]}",
            where=f"rank {failed[0]} of {processes}",
            fix="see whether the machine has run out of memory, and start again",
        )
    if failed is not None:
        raise typer.Exit(failed[1])


def be_rank(command: str) -> None:
    """Make sure that this process is a rank of a job, which ends with whoever started it.

    Args:
        command: what the user calls, such as `rtk probe`.

    Raises:
        InvalidInputError: it is none.
    """
    if "RANK" not in os.environ:
        raise InvalidInputError(
            f"{command} runs on every rank of a job, and this process is none",
            where="RANK",
            fix=f"start it as `torchrun --nproc-per-node 8 --no-python {command}`, or here with --processes N",
        )
    die_with_launcher()


def crowded_hosts(places: "Iterable[Place]") -> list[str]:
    """Machines with more ranks than processor cores, where these compute."""
    given = list(places)
    ranks = Counter(one.host for one in given if one.device == "cpu")
    cores = {one.host: one.cores for one in given}
    return sorted(host for host, count in ranks.items() if count > cores[host])


def _environment(rank: int, processes: int, folder: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        MEETING: str(Path(folder) / "meeting"),
    }
