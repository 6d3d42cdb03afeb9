"""`rtk plan best`: the fastest shape of a job on a cluster, the next ones, and what rules out the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..schemas.errors import InvalidInputError, remark
from ..schemas.files import STANDARD_STREAM, write_bytes
from ..schemas.profile import DataType
from ..schemas.quantities import DURATION, print_number, print_percent, print_share, print_time
from ..schemas.text import counted
from .computing import ComputedOptions
from .console import Common, Seed, Writes, grouped, picture_ending, print_json, print_table, quantity, working
from .options import ChunksOption, PlacementOption

if TYPE_CHECKING:
    from ..planners.best.answer import BestShapes
    from ..planners.best.search import PricedShape

GB = 1e9
SHOWN = 2.0  # times as long as the best, at most, is what the chart shows: beyond that nobody looks
HEADINGS = ("shape", "size", "again", "schedule", "iteration", "GB a GPU", "slower", "by")


@dataclass(frozen=True)
class SearchedOptions:
    """Which shapes are tried."""

    microbatch_size: Annotated[
        str | None,
        typer.Option("--microbatch-size", metavar="N[,N…]", help="Samples of a micro-batch. Default: 1,2,4,8,16."),
    ] = None
    recompute: Annotated[
        bool | None,
        typer.Option("--recompute/--no-recompute", help="Blocks are computed again, or not; default: both are tried."),
    ] = None
    tensor_parallel: Annotated[
        str | None,
        typer.Option("--tensor-parallel", metavar="T[,T…]", help="Degrees. Default: all that nodes and heads allow."),
    ] = None
    schedule: Annotated[
        Literal["best", "1f1b", "zero-bubble"], typer.Option("--schedule", help="The order of operations.")
    ] = "best"
    placement: PlacementOption = "plain"
    chunks: ChunksOption = None
    side_by_side: Annotated[
        Literal["stages", "peers"] | None,
        typer.Option(
            "--side-by-side",
            help="Whose GPUs sit in a node: stages of a pipeline, or peers of a stage. Default: both are tried; if the "
            "cluster's file says peers, only these.",
        ),
    ] = None
    overlap: Annotated[
        bool,
        typer.Option("--overlap", help="Also schedules with a forward beside a backward (a profile's overlap)."),
    ] = False
    shard_optimizer: Annotated[
        bool,
        typer.Option(
            "--shard-optimizer/--no-shard-optimizer", help="Pipelines share the optimizer's state, as ZeRO-1 does."
        ),
    ] = True
    holders: Annotated[
        int,
        typer.Option(
            "--holders", min=1, max=2, help="Of each part of that state: 1; or 2, as in `rtk run`, lest one be lost."
        ),
    ] = 1

    def given(self) -> dict[str, Any]:
        """What Python is called with."""
        numbers = {
            "microbatch_size": _numbers("--microbatch-size", self.microbatch_size),
            "tensor_parallel": _numbers("--tensor-parallel", self.tensor_parallel),
        }
        return {**vars(self), **numbers}


@dataclass(frozen=True)
class ComputedFormOptions(ComputedOptions):
    """In which form a model that is given by name is computed, beside the forms that are tried."""

    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", min=1, help="Of a computed model: tokens of a sample.")
    ] = None
    dtype: Annotated[
        DataType | None, typer.Option("--dtype", help="Of a computed model: numbers; what suits the GPU by default.")
    ] = None


@grouped
def best(
    profile: Annotated[
        str, typer.Argument(metavar="PROFILE|MODEL", help="A profile, or a model's name or config.json to compute.")
    ],
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="FILE|slurm|NxM", help="The machines, as for `rtk plan pipeline`.")
    ],
    batch: Annotated[int, typer.Option("--batch", min=1, help="Samples of an iteration, of all pipelines.")],
    searched: SearchedOptions,
    computed: ComputedFormOptions,
    first: Annotated[int, typer.Option("--first", min=1, help="How many shapes are shown.")] = 11,
    mtbf: Annotated[
        float | None,
        quantity(DURATION, "--mtbf", "Mean time between failures of a node: fastest in expectation, by replay."),
    ] = None,
    repair: Annotated[float, quantity(DURATION, "--repair", "With --mtbf: how long a node is away.")] = 3600.0,
    policy: Annotated[
        str, typer.Option("--policy", help="With --mtbf: what the job does then, as for `rtk replay`.")
    ] = "checkpoint-restart",
    chart: Annotated[
        str | None,
        typer.Option(
            "--chart", help="Where to write a picture of time over memory, a point a shape: .svg, .png or .pdf."
        ),
        Writes("an SVG picture"),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Where to write the best shape's plan; `-` is standard output."),
        Writes("an rtk.plan"),
    ] = None,
    seed: Seed = 0,
    *,
    common: Common,
) -> None:
    """Find the fastest shape: tensor parallelism, stages, pipelines, micro-batch size, schedule, recomputation.

    All shapes are searched, and those that are never planned are ruled out by proof: their memory, or a bound on their
    time that lies above the last one shown. A profile is of one micro-batch size, with or without recomputation, and
    only that is searched; of a model's name everything is.
    """
    from ..shaping import plan_best

    if chart is not None:
        picture_ending(chart, (".svg", ".png", ".pdf"), "end it in .svg, .png or .pdf", "--chart")
    with working("searching shapes"):
        found = plan_best(
            _model(profile),
            cluster=cluster,
            batch=batch,
            **searched.given(),
            mtbf=mtbf,
            repair=repair,
            policy=policy,
            seed=seed,
            first=first,
            **computed.given(),
        )
    _tell(found, chart, output, common.as_json)


def _model(text: str) -> Any:
    """A profile where a file is one, else the model's name, or the path of its configuration."""
    from ..profilers.analytic.configuration import MODELS, is_config, no_such_model
    from ..schemas.documents import read_document, sniff_format
    from ..schemas.files import read_bytes
    from ..schemas.profile import Profile

    if text in MODELS or Path(text).is_dir():
        return text
    if text != STANDARD_STREAM and not Path(text).exists():
        raise no_such_model(text, MODELS, "a profile")
    if text != STANDARD_STREAM and is_config(text) and sniff_format(read_bytes(text), text) is None:
        return text
    return read_document(text, Profile)


def _numbers(option: str, text: str | None) -> list[int] | None:
    """`1,2,4`: whole numbers above 0.

    Raises:
        InvalidInputError: one of them is none.
    """
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise InvalidInputError(f"{text!r} cannot be read", where=option, fix="write whole numbers, such as 1,2,4")
    return [int(part) for part in parts]


def _tell(found: "BestShapes", chart: str | None, output: str | None, as_json: bool) -> None:
    from ..schemas.documents import write_document

    to_stderr = output == STANDARD_STREAM or as_json
    if output is not None:
        write_document(output, found.plan())
    if chart is not None:
        ending = Path(chart).suffix
        write_bytes(chart, _picture(found).data(ending))
    if as_json and output != STANDARD_STREAM:
        print_json(found.tree())
    print_table(HEADINGS, _rows(found), to_stderr=to_stderr)
    if found.expected:
        print_table(EXPECTED, _expected_rows(found), to_stderr=to_stderr)
    for line in _words(found):
        remark(line)
    for path in (chart, output):
        if path not in (None, STANDARD_STREAM):
            remark(f"wrote {path}")


EXPECTED = ("in expectation", "size", "samples/s", "of its own", "iteration")


def _rows(found: "BestShapes") -> Iterator[Sequence[str]]:
    fastest = found.shapes[0]
    for one in found.shapes:
        slower = one.iteration_time_s / fastest.iteration_time_s - 1 if fastest.iteration_time_s else 0.0
        # Its schedule and placement, and whose GPUs sit in a node where several orders were tried.
        yield (
            _name(one),
            str(one.shape.form.microbatch_size),
            "yes" if one.shape.form.recomputes else "no",
            f"{one.way}, {one.way.side_by_side} in a node" if found.question.has_orders else str(one.way),
            print_time(one.iteration_time_s),
            print_number(one.memory.total_bytes / GB, 3),
            "" if one is fastest else print_percent(slower),
            "" if one is fastest else one.loses_by(fastest),
        )


def _expected_rows(found: "BestShapes") -> Iterator[Sequence[str]]:
    for one in found.expected:
        yield (
            _name(one.priced),
            str(one.priced.shape.form.microbatch_size),
            print_number(one.samples_per_s),
            print_share(one.goodput),
            print_time(one.priced.iteration_time_s),
        )


def _name(one: "PricedShape") -> str:
    return f"TP {one.shape.tensor_parallel} x PP {one.shape.pp} x DP {one.shape.dp}"


def _words(found: "BestShapes") -> Iterator[str]:
    """What was ruled out, what the best one's memory holds, and what must be known of it."""
    told, best = found.ruled_out, found.best
    yield (
        f"of {counted(told['shapes'], 'shape')} {told['memory']:,} do not fit the memory, {told['bound']:,} are slower "
        f"by a proven bound, {told['planned']:,} were planned"
    )
    parts = ", ".join(f"{name} {print_number(size / GB, 3)}" for name, size in best.memory.parts().items() if size)
    yield f"a GPU of {_name(best)} holds {print_number(best.memory.total_bytes / GB, 3)} GB: {parts}"
    idle = found.question.gpus - best.shape.gpus
    if idle:
        yield f"{counted(idle, 'GPU')} of {found.question.gpus} idle: pipelines get equally many micro-batches"
    if found.question.has_orders and best.way.side_by_side == "peers":
        yield (
            "the GPUs of a node are those of peers of a stage: write `side_by_side: peers` under `network` in the "
            "cluster's file, and count ranks so: by tensor-parallel rank, then pipeline, then stage"
        )
    if found.expected:
        if found.expected[0].priced is not found.shapes[0]:
            yield "when nodes fail, another shape is the fastest than without failures"
        if not found.is_proven:
            yield f"only {len(found.expected)} shapes were replayed: slower ones may be better in expectation"
        if found.unreplayed:
            yield f"{counted(found.unreplayed, 'shape')} cannot be replayed: their pipelines fill no whole nodes"


def _picture(found: "BestShapes") -> Any:
    from ..viz.shapes import ShapePoint, shapes_picture

    best = found.best
    points = [
        ShapePoint(
            one.memory.total_bytes,
            one.iteration_time_s,
            f"TP {one.shape.tensor_parallel}",
            f"{one.shape}, {one.way}: {print_time(one.iteration_time_s)}",
            one is best,
        )
        for one in sorted(found.planned, key=lambda one: one.shape.tensor_parallel)
        if one.iteration_time_s <= SHOWN * best.iteration_time_s
    ]
    memory_bytes = best.shape.form.profile.device.memory_bytes
    question = found.question
    title = f"{best.shape.form.profile.model.get('name', 'a model')} on {counted(question.gpus, 'GPU')}"
    left_out = len(found.planned) - len(points)
    facts = [
        next(_words(found)),
        *([f"{left_out} plans that take over twice as long are not shown"] if left_out else []),
    ]
    return shapes_picture(title, facts, points, memory_bytes)
