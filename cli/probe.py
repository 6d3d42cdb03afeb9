"""`rtk probe`: which workers and links are slow, by tests that the ranks of a job do themselves."""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.documents import canonical_json, read_document, write_document
from ..schemas.errors import InvalidInputError, RuntimeFailedError
from ..schemas.files import STANDARD_STREAM, write_bytes
from ..schemas.quantities import parse_bytes
from .console import Debug, Json, Output, Quiet, Seed, print_json, progress
from .run import WorkerProcesses, die_with_launcher

if TYPE_CHECKING:
    from ..profilers.link_survey import LinkSurvey
    from ..runners.passes import Pass
    from ..runners.torch.probe import LinkReadings, Place
    from ..schemas.profile import Profile


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
    with tempfile.TemporaryDirectory() as folder, WorkerProcesses() as workers:
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


class ProbedLinks(StrEnum):
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
    pairs: Annotated[
        ProbedLinks, typer.Option("--pairs", help="Links: those of a ring, of NCCL's two trees, or all.")
    ] = (ProbedLinks.RING),
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
    sizes: str | None, repeat: int, gemm: int | None, pairs: ProbedLinks, *flags: "bool | str | None"
) -> list[str]:
    """The command line of a rank that this process starts."""
    exit_code, output, as_json, quiet, debug = flags
    given = {"--sizes": sizes, "--repeat": repeat, "--gemm": gemm, "--pairs": pairs.value, "--output": output}
    switches = {"--exit-code": exit_code, "--json": as_json, "--quiet": quiet, "--debug": debug}
    options = [text for name, value in given.items() if value is not None for text in (name, str(value))]
    return [NAME, *options, *(name for name, is_on in switches.items() if is_on)]


def _probe(
    pairs: ProbedLinks, sizes_bytes: tuple[int, ...], gemm: int | None, repeat: int, output: str | None, as_json: bool
) -> bool:
    """Be a rank; whether all is well, as far as this rank has to say."""
    from ..runners.torch.probe import ProbeWorkload, Trials, meeting, take_readings

    size = int(os.environ.get("WORLD_SIZE", "1"))
    with meeting(os.environ.get(MEETING)) as device:
        begin_s = time.perf_counter()
        passes = _passes(pairs, size)
        readings = take_readings(Trials(passes, sizes_bytes, gemm, repeat), ProbeWorkload(device))
        took_s = time.perf_counter() - begin_s
    if int(os.environ["RANK"]) != 0:
        return True
    from .links_report import report

    return report(readings, pairs.value, len(passes), took_s, output, as_json)


def _passes(pairs: ProbedLinks, size: int) -> "tuple[Pass, ...]":
    from ..runners.passes import pairwise_passes, ring_passes, tree_passes

    return {ProbedLinks.RING: ring_passes, ProbedLinks.TREE: tree_passes, ProbedLinks.ALL: pairwise_passes}[pairs](size)


# `rtk profile links`: latency and bandwidth between the ranks of a job, of messages and of all-reduces.


LARGEST_BYTES = 10**11


def links(
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes",
            metavar="SIZE,SIZE…",
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
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure messages between pairs of ranks, and all-reduces, at several sizes; fit latency and bandwidth to them.

    Under torchrun: `torchrun --nproc-per-node 8 --no-python rtk profile links -o links.json`. Pairs come one at a
    time: all of them, or above 32 ranks those of a ring and of NCCL's two trees. All-reduces go over all ranks, over
    those of each node, and over one of each node. A node is a host name, or what RTK_HOST says.

    With --into the output is that profile, whose network.intra_node and inter_node have become the median over pairs;
    otherwise it is all that was measured, which --json prints in both cases.
    """
    sizes_bytes = parse_sizes(sizes)
    if into is not None:
        _refuse_standard_streams(into, output, as_json)
    if processes is not None:
        _load(into)
        start_here(
            _several(processes), _link_arguments(sizes, repeat, together, into, output, seed, as_json, quiet, debug)
        )
        return
    be_rank("rtk profile links")
    _several(int(os.environ.get("WORLD_SIZE", "1")))
    profile = _load(into if os.environ["RANK"] == "0" else None)
    readings = _measure(sizes_bytes, repeat, together)
    if os.environ["RANK"] == "0":
        _report(readings, together, seed, profile, output, as_json, quiet)


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


def _several(ranks: int) -> int:
    if ranks < 2:
        raise InvalidInputError(
            "there are no links in a job of one rank", where="--processes, or torchrun", fix="start two ranks or more"
        )
    return ranks


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


def _load(into: str | None) -> "Profile | None":
    """What is written into is read before anything is measured."""
    from ..schemas.profile import Profile

    return read_document(into, Profile) if into is not None else None


def _link_arguments(
    sizes: str | None, repeat: int, together: bool, into: str | None, output: str, seed: int, *flags: bool
) -> list[str]:
    """The command line of a rank that this process starts."""
    given = {"--sizes": sizes, "--repeat": repeat, "--into": into, "--output": output, "--seed": seed}
    switches = dict(zip(("--together", "--json", "--quiet", "--debug"), (together, *flags), strict=True))
    options = [text for name, value in given.items() if value is not None for text in (name, str(value))]
    return ["profile", "links", *options, *(name for name, is_on in switches.items() if is_on)]


def _measure(sizes_bytes: tuple[int, ...], repeat: int, together: bool) -> "LinkReadings":
    """Be a rank; rank 0 shows how far all are."""
    from ..runners.passes import one_at_a_time, passes_of
    from ..runners.torch.probe import LinkTrials, ProbeWorkload, meeting, take_link_readings

    passes = passes_of(int(os.environ["WORLD_SIZE"]))
    trials = LinkTrials(passes if together else one_at_a_time(passes), sizes_bytes, repeat)
    with meeting(os.environ.get(MEETING)) as device:
        if os.environ["RANK"] != "0":
            return take_link_readings(trials, ProbeWorkload(device))
        with progress() as bar:
            task = bar.add_task("measuring links", total=None)
            return take_link_readings(
                trials,
                ProbeWorkload(device),
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )


def _report(
    readings: "LinkReadings",
    together: bool,
    seed: int,
    profile: "Profile | None",
    output: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Fit, and write what was asked for."""
    from ..profilers.link_survey import survey
    from .links_report import print_survey, tree_of

    found = survey([place.host for place in readings.places], readings.exchange_s, readings.allreduce_s, seed)
    if not quiet:
        print_survey(found, readings.places)
    tree = tree_of(found, readings.places, together)
    if profile is not None:
        write_document(output, with_network(profile, found))
    else:
        write_bytes(output, canonical_json(tree))
    if as_json and output != STANDARD_STREAM:
        print_json(tree)


def with_network(profile: "Profile", found: "LinkSurvey") -> "Profile":
    """The profile with the paths that were measured; a kind that no pair was of stays as it is."""
    network, measured = profile.network, found.network
    changed = replace(
        network,
        intra_node=measured.intra_node or network.intra_node,
        inter_node=measured.inter_node or network.inter_node,
    )
    return replace(profile, network=changed)
