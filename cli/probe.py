"""`rtk probe`: which workers and links are slow, by tests that the ranks of a job do themselves."""

import os
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import InvalidInputError
from .console import Debug, Json, Quiet
from .ranks import MEETING, Processes, be_rank, start_here

if TYPE_CHECKING:
    from ..runners.passes import Pass

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
    from .probe_report import report

    return report(readings, pairs.value, len(passes), took_s, output, as_json)


def _passes(pairs: Pairs, size: int) -> "tuple[Pass, ...]":
    from ..runners.passes import pairwise_passes, ring_passes, tree_passes

    return {Pairs.RING: ring_passes, Pairs.TREE: tree_passes, Pairs.ALL: pairwise_passes}[pairs](size)
