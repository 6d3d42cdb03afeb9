"""`rtk profile links`: latency and bandwidth between the ranks of a job, of messages and of all-reduces."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.documents import canonical_json, read_document, write_document
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM, write_bytes
from ..schemas.quantities import parse_bytes
from .console import Debug, Json, Output, Quiet, Seed, print_json, progress
from .probe import MEETING, Processes, be_rank, start_here

if TYPE_CHECKING:
    from ..profilers.link_survey import LinkSurvey
    from ..runners.torch.link_times import LinkReadings
    from ..schemas.profile import Profile

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

    Under torchrun: `torchrun --nproc-per-node 8 --no-python rtk profile links -o links.json`. Pairs come one at a time:
    all of them, or above 32 ranks those of a ring and of NCCL's two trees. All-reduces go over all ranks, over
    those of each node, and over one of each node. A node is a host name, or what RTK_HOST says.

    With --into the output is that profile, whose network.intra_node and inter_node have become the median over pairs;
    otherwise it is all that was measured, which --json prints in both cases.
    """
    sizes_bytes = parse_sizes(sizes)
    if into is not None:
        _refuse_standard_streams(into, output, as_json)
    if processes is not None:
        _load(into)
        start_here(_several(processes), _arguments(sizes, repeat, together, into, output, seed, as_json, quiet, debug))
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


def _arguments(
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
    from ..runners.torch.link_times import LinkTrials, take_link_readings
    from ..runners.torch.probe import Bench, meeting

    passes = passes_of(int(os.environ["WORLD_SIZE"]))
    trials = LinkTrials(passes if together else one_at_a_time(passes), sizes_bytes, repeat)
    with meeting(os.environ.get(MEETING)) as device:
        if os.environ["RANK"] != "0":
            return take_link_readings(trials, Bench(device))
        with progress() as bar:
            task = bar.add_task("measuring links", total=None)
            return take_link_readings(
                trials, Bench(device), progress=lambda done, total: bar.update(task, completed=done, total=total)
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
