"""`rtk bubble`: what a run's pipeline lost, beside what its schedule must lose."""

from typing import Annotated

import typer

from ..schemas.errors import remark
from ..schemas.files import written
from ..viz.style import PICTURE_ENDINGS
from .console import Common, Writes, grouped, picture_ending, print_document

ENDINGS = (*PICTURE_ENDINGS, ".json")
FIX = f"end it in {', '.join(ENDINGS)}, or these and .gz; --json prints the report"


@grouped
def command(
    traces: Annotated[
        list[str],
        typer.Argument(
            help="A timeline; traces of torch's profiler, a file a rank or their folder; or a Megatron-LM log with "
            "timers. `.gz` or not."
        ),
    ],
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="PLAN", help="The plan that was run: what it promised is told.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help=f"A picture ({', '.join(PICTURE_ENDINGS)}) or the report (.json); .gz."),
        Writes(),
    ] = None,
    *,
    common: Common,
) -> None:
    """Say where the time of a pipeline's iterations goes, beside what its schedule must take.

    Bubble, exposed communication and imbalance by stage; which schedule it ran, what the same orders take by the times
    that were measured, and the least that any order takes; and the three changes that would help most.
    """
    from ..bubbling import bubble
    from ..schemas.documents import read_document, write_document
    from ..schemas.plan import Plan
    from ..viz.bubble import words_of_bubble
    from ..viz.drawing import drawn
    from ..wiring import drawing_of

    ending = None if output is None else picture_ending(output, ENDINGS, FIX)
    report = bubble(*traces, plan=None if plan is None else read_document(plan, Plan))
    if output is not None and ending == ".json":
        write_document(output, report)
    elif output is not None and ending is not None:
        drawing = drawing_of(report)
        with written(output) as stream:
            stream.writelines(drawn(drawing, drawing.title, ending))
    if output is not None:
        remark(f"wrote {output}")
    if common.as_json:
        print_document(report)
    else:
        print(words_of_bubble(report))
