"""`rtk probe`: which workers and links are slow, by tests that the ranks of a job do themselves."""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import InvalidInputError, RuntimeFailedError
from .console import Debug, Json, Quiet
from .run import Workers, die_with_launcher

if TYPE_CHECKING:
    from ..runners.passes import Pass
    from ..runners.torch.probe import Place


# What commands share that run on every rank of a job: under torchrun, or as processes that they start here.


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


NAME = "probe"
SUMMARY = "Test all workers and links of a job, and name the slow ones."

MEGABYTE = 1_000_000


class Pairs(StrEnum):
    """Which links are tested."""

    RING = "ring"
    TREE = "tree"
    ALL = "all"


def command(
    sizes: Annotated[
        str | None,
        typer.Option("--sizes", metavar="MB[,MB…]", help="Of the messages; else 16,32,64 on GPUs and 1,2,4 on CPUs."),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, max=1000, help="Readings of each test.")] = 3,
    gemm: Annotated[
        int | None,
        typer.Option("--gemm", min=1, max=100_000, help="Rows of the matrices; else 8192 on GPUs and 512 on CPUs."),
    ] = None,
    pairs: Annotated[Pairs, typer.Option("--pairs", help="Links: those of a ring, of NCCL's two trees, or all.")] = (
        Pairs.RING
    ),
    processes: Processes = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if something is slow.")] = False,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Also write what --json prints to here.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Multiply matrices on all workers at once, then exchange messages in passes; rank 0 names who is over 10 % slower.

    Under torchrun: `torchrun --nproc-per-node 8 --no-python rtk probe`. A ring's links need 2 passes, or 3 for an odd
    number of ranks; a tree's 4, of which NCCL has two; all pairs one less than there are ranks.
    """
    sizes_bytes = _bytes_of(sizes)
    if processes is not None:
        start_here(processes, _arguments(sizes, repeat, gemm, pairs, exit_code, output, as_json, quiet, debug))
        return
    be_rank("rtk probe")
    if not _probe(pairs, sizes_bytes, gemm, repeat, output, as_json) and exit_code:
        raise typer.Exit(1)


def _bytes_of(sizes: str | None) -> tuple[int, ...]:
    """`16,32,64` in MB."""
    try:
        found = tuple(int(float(size) * MEGABYTE) for size in sizes.split(",")) if sizes is not None else ()
    except (ValueError, OverflowError):
        found = (0,)
    if not all(0 < size <= 10**6 * MEGABYTE for size in found):
        raise InvalidInputError(f"`{sizes}` are no sizes", where="--sizes", fix="give MB, such as 16,32,64")
    return found


def _arguments(
    sizes: str | None, repeat: int, gemm: int | None, pairs: Pairs, *flags: "bool | str | None"
) -> list[str]:
    """The command line of a rank that this process starts."""
    exit_code, output, as_json, quiet, debug = flags
    given = {"--sizes": sizes, "--repeat": repeat, "--gemm": gemm, "--pairs": pairs.value, "--output": output}
    switches = {"--exit-code": exit_code, "--json": as_json, "--quiet": quiet, "--debug": debug}
    options = [text for name, value in given.items() if value is not None for text in (name, str(value))]
    return [NAME, *options, *(name for name, is_on in switches.items() if is_on)]


def _probe(
    pairs: Pairs, sizes_bytes: tuple[int, ...], gemm: int | None, repeat: int, output: str | None, as_json: bool
) -> bool:
    """Be a rank; whether all is well, as far as this rank has to say."""
    from ..runners.torch.probe import Bench, Trials, meeting, take_readings

    size = int(os.environ.get("WORLD_SIZE", "1"))
    with meeting(os.environ.get(MEETING)) as device:
        begin_s = time.perf_counter()
        passes = _passes(pairs, size)
        readings = take_readings(Trials(passes, sizes_bytes, gemm, repeat), Bench(device))
        took_s = time.perf_counter() - begin_s
    if int(os.environ["RANK"]) != 0:
        return True
    from .links_report import report

    return report(readings, pairs.value, len(passes), took_s, output, as_json)


def _passes(pairs: Pairs, size: int) -> "tuple[Pass, ...]":
    from ..runners.passes import pairwise_passes, ring_passes, tree_passes

    return {Pairs.RING: ring_passes, Pairs.TREE: tree_passes, Pairs.ALL: pairwise_passes}[pairs](size)
