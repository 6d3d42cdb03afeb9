"""`rtk probe`: which workers and links are slow, by tests that the ranks of a job do themselves."""

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..runners.processes import MEETING, WorkerProcesses, arguments_of, several
from ..schemas.documents import canonical_json, read_document, write_document
from ..schemas.errors import InvalidInputError, RuntimeFailedError, require_package
from ..schemas.files import STANDARD_STREAM, write_bytes
from ..schemas.quantities import parse_bytes
from .console import Common, Output, Seed, Writes, counting, grouped, print_json

# What commands share that run on every rank of a job: under torchrun, or as processes that they start here.


LOOK_EVERY_S = 0.05
THREADS = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # which torch reads when it is loaded

Processes = Annotated[
    int | None, typer.Option("--processes", min=1, max=256, help="Start so many ranks here, without torchrun.")
]


def start_here(processes: int, arguments: Sequence[str]) -> None:
    """Be the ranks' launcher, and end as they do.

    Args:
        processes: how many ranks.
        arguments: the command line of each, behind `rtk`.

    Raises:
        InvalidInputError: torch is not installed.
        RuntimeFailedError: a rank was killed; what it said is otherwise all there is to say.
    """
    require_package("torch")  # told once, and not by every rank
    from ..runners.nursery import Nursery  # only here

    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Nursery(["rtk.cli.main", "rtk.runners.torch.probe"], THREADS)) as nursery,
        WorkerProcesses(nursery) as workers,
    ):
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


def _environment(rank: int, processes: int, folder: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "GLOO_SOCKET_IFNAME": "lo",
        **THREADS,
        MEETING: str(Path(folder) / "meeting"),
    }


# A test of bandwidth: less tells the latency only, and is a number of MB whose unit was forgotten.
SMALLEST_BYTES, LARGEST_BYTES = 1000, 10**11


@grouped
def command(
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes",
            metavar="SIZE[,SIZE…]",
            help="Of the messages; else 16MB,32MB,64MB on GPUs and 1MB,2MB,4MB on CPUs.",
        ),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, max=1000, help="Readings of each test.")] = 3,
    gemm: Annotated[
        int | None,
        typer.Option("--gemm", min=1, max=100_000, help="Rows of the matrices; else 8192 on GPUs and 512 on CPUs."),
    ] = None,
    pairs: Annotated[
        Literal["ring", "tree", "all"],
        typer.Option("--pairs", help="Links: those of a ring, of NCCL's two trees, or all."),
    ] = "ring",
    processes: Processes = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if something is slow.")] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Also write what --json prints to here."), Writes()
    ] = None,
    *,
    common: Common,
) -> None:
    """Multiply matrices on all workers at once, then exchange messages in passes; rank 0 names who is over 10 % slower.

    Under torchrun: `torchrun --nproc-per-node 8 --no-python rtk probe`. A ring's links need 2 passes, or 3 for an odd
    number of ranks; a tree's 4, of which NCCL has two; all pairs one less than there are ranks.
    """
    from ..probing import probe as run_probe
    from .links_report import print_probe

    sizes_bytes = _bytes_of(sizes)
    if processes is not None:
        options: dict[str, object] = {
            "--sizes": sizes,
            "--repeat": repeat,
            "--gemm": gemm,
            "--pairs": pairs,
            "--output": output,
        }
        start_here(processes, ["probe", *arguments_of(options | {"--exit-code": exit_code}), *common.arguments()])
        return
    found = run_probe(pairs, sizes_bytes=sizes_bytes, gemm=gemm, repeat=repeat)
    if found is None:
        return
    if output is not None:
        write_bytes(output, canonical_json(found.tree()))
    if common.as_json:
        print_json(found.tree())
    else:
        print_probe(found)
    if exit_code and found.slow:
        raise typer.Exit(1)


def _bytes_of(sizes: str | None) -> tuple[int, ...]:
    """`16MB,32MB` as bytes."""
    found = () if sizes is None else tuple(int(parse_bytes(size, "--sizes")) for size in sizes.split(","))
    if found and not SMALLEST_BYTES <= min(found) <= max(found) <= LARGEST_BYTES:
        raise InvalidInputError(
            f"`{sizes}`: messages of a test have 1 kB to 100 GB", where="--sizes", fix="write 16MB,32MB,64MB, say"
        )
    return found


# `rtk profile links`: latency and bandwidth between the ranks of a job, of messages and of all-reduces.


@grouped
def links(
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes",
            metavar="SIZE[,SIZE…]",
            help="Of messages and of sums, such as 4B,64KiB,16MB; else 1 KiB to 64 MiB on GPUs, 4 B to 16 MiB on CPUs.",
        ),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, max=10_000, help="Readings of each.")] = 15,
    together: Annotated[
        bool, typer.Option("--together", help="Disjoint pairs exchange at the same time: links as they are when busy.")
    ] = False,
    processes: Processes = None,
    into: Annotated[
        str | None, typer.Option("--into", metavar="PROFILE", help="Write this profile, with the network as measured.")
    ] = None,
    output: Output = STANDARD_STREAM,
    seed: Seed = 0,
    *,
    common: Common,
) -> None:
    """Measure messages between pairs of ranks, and all-reduces, at several sizes; fit latency and bandwidth to them.

    Under torchrun: `torchrun --nproc-per-node 8 --no-python rtk profile links -o links.json`. Pairs come one at a
    time: all of them, or above 32 ranks those of a ring and of NCCL's two trees. All-reduces go over all ranks, over
    those of each node, and over one of each node. With several ranks a node, all pairs between two nodes also exchange
    at once. A node is a host name, or what RTK_HOST says.

    With --into the output is that profile, whose network.intra_node and inter_node have become the median over pairs,
    and network.node what a node has in all; otherwise it is all that was measured, which --json prints in both cases.
    """
    from ..probing import profile_links
    from ..schemas.profile import Profile
    from .links_report import print_survey

    sizes_bytes = parse_sizes(sizes)
    if into is not None:
        _refuse_standard_streams(into, output, common.as_json)
    if processes is not None:
        _ = into and read_document(into, Profile)  # refused before anything is measured
        options: dict[str, object] = {
            "--sizes": sizes,
            "--repeat": repeat,
            "--into": into,
            "--output": output,
            "--seed": seed,
        }
        command_line = ["profile", "links", *arguments_of(options | {"--together": together}), *common.arguments()]
        start_here(several(processes), command_line)
        return
    is_first = os.environ.get("RANK") == "0"
    profile = read_document(into, Profile) if into is not None and is_first else None
    with counting("measuring links") if is_first else nullcontext(lambda done, of: None) as tell:
        found = profile_links(sizes_bytes=sizes_bytes, repeat=repeat, together=together, seed=seed, tell=tell)
    if found is None:
        return
    if not common.quiet:
        print_survey(found.survey, found.places)
    if profile is not None:
        write_document(output, found.into(profile))
    else:
        write_bytes(output, canonical_json(found.tree()))
    if common.as_json and output != STANDARD_STREAM:
        print_json(found.tree())


def parse_sizes(text: str | None) -> tuple[int, ...]:
    """`4B,64KiB,16MB` as rising bytes; none where nothing was given.

    Raises:
        InvalidInputError: these are no sizes, or fewer than the two that a line needs.
    """
    if text is None:
        return ()
    found = sorted({int(parse_bytes(one, "--sizes")) for one in text.split(",")})
    if found[0] < 1 or found[-1] > LARGEST_BYTES:
        raise InvalidInputError(
            "a message has 1 B to 100 GB", where="--sizes", fix="give other sizes, such as 4B,64KiB,16MB"
        )
    if len(found) < 2:
        raise InvalidInputError(
            "latency and bandwidth are fitted to two sizes or more", where="--sizes", fix="add another size"
        )
    return tuple(found)


def _refuse_standard_streams(into: str, output: str, as_json: bool) -> None:
    """A rank has no standard input of its own; and standard output takes one document."""
    if into == STANDARD_STREAM:
        raise InvalidInputError("ranks do not read standard input", where="--into", fix="give the profile as a file")
    if as_json and output == STANDARD_STREAM:
        raise InvalidInputError(
            "standard output takes one document, and --into and --json make two",
            where="--json",
            fix="write the profile to a file with -o",
        )
