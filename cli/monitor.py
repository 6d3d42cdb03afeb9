"""`rtk monitor -- COMMAND`: any torch training command, unchanged, watched for fail-slows."""

import sys
from collections import defaultdict
from collections.abc import Sequence
from shlex import join
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..schemas.errors import remark
from ..schemas.files import write_bytes
from ..schemas.quantities import print_time
from ..schemas.text import counted
from ..viz.style import PICTURE_ENDINGS
from .console import Common, Writes, grouped, picture_ending, print_document, print_table

if TYPE_CHECKING:
    from ..profilers.failslow.monitor.job import Heard, News
    from ..profilers.failslow.monitor.watch import WatchedCommand

FIX = f"end it in {', '.join(PICTURE_ENDINGS)}, or these and .gz"


@grouped
def command(
    watched: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The training command, after `--`.")],
    mode: Annotated[
        Literal["robust", "paper"], typer.Option("--mode", help="robust, or paper for the published methods.")
    ] = "robust",
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help=f"Draw what was found ({', '.join(PICTURE_ENDINGS)}); .gz compresses."),
        Writes(),
    ] = None,
    *,
    common: Common,
) -> None:
    """Run a training command and watch how long its iterations take, by the communication calls that torch makes.

    Its own code is not touched: what notes the calls comes in by PYTHONPATH. Fail-slows are reported as they are found,
    on standard error, with the rank, group or link that they come from, as far as the ranks of this host can tell. With
    --json, what the command prints goes to standard error. The exit code is the command's own.

    Calls that are made without torch.distributed's process groups are not seen, nor are the insides of CUDA graphs.
    """
    from ..profilers.failslow.monitor.watch import monitor
    from ..profilers.failslow.tracker import fewest_samples
    from ..schemas.detection import Detection
    from ..viz.detection import COLUMNS, Panel, Thinned, cells_of, drawn_detection, nothing_slow

    ending = None if output is None else picture_ending(output, PICTURE_ENDINGS, FIX)
    curves: defaultdict[int, Thinned] = defaultdict(Thinned)

    def tell(heard: "Sequence[Heard]") -> None:
        for one in heard:
            curves[one.phase].note(one.time_s)
            for news in one.news:
                remark(f"rtk monitor: iteration {one.place}: {_words(news)}")

    found = monitor(watched, mode=mode, stdout=sys.stderr if common.as_json else None, tell=tell)
    if not found.findings:
        remark(f"rtk monitor: {_why_nothing(found)}")
    if common.as_json:
        print_document(Detection(tuple(found.findings.values())))
    else:
        for one in found.findings.values():
            usual = "" if one.usual_s is None else f", usually {print_time(one.usual_s)} each"
            slow = counted(len(one.events), "fail-slow") if one.events else nothing_slow(one, fewest_samples(mode))
            remark(f"rtk monitor: {counted(one.samples, 'iteration')}{usual}, {slow}")
            if one.events:
                print_table(COLUMNS, map(cells_of, one.events), to_stderr=True)
    if output is not None and ending is not None:
        panels = [Panel(one, curves[phase].points()) for phase, one in found.findings.items()]
        write_bytes(output, drawn_detection(panels, join(watched), ending))
    raise typer.Exit(found.exit_code if found.exit_code >= 0 else 128 - found.exit_code)


def _why_nothing(found: "WatchedCommand") -> str:
    if not found.ranks:
        return "no calls were seen: the command made no process group by torch.distributed.init_process_group"
    if not found.calls:
        return "no calls were seen in its process groups"
    return f"no iterations were found in {found.calls} calls: they do not repeat themselves often enough"


def _words(news: "News") -> str:
    """A line about what changed."""
    episode, found = news.change.episode, news.blame
    slower = f"{episode.severity:.2f} x slower since {episode.onset}"
    match news.change.kind:
        case "provisional":
            return f"{slower} (provisional)"
        case "dismissed":
            return f"what was slow since {episode.onset} is not any more"
        case "relief":
            return f"as usual again since {episode.relief}"
    if found is None:
        return f"{slower} ({news.change.kind})"
    return f"{slower} ({news.change.kind}): {found.cause}, {found.scope.words} ({'; '.join(found.evidence)})"
