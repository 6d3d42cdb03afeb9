"""Options of how a running job answers failures, newcomers and slow parts; planners/recovery/ has the answers."""

from typing import Annotated

import typer

from ..planners.recovery.answers import PolicyName

PolicyOption = Annotated[
    PolicyName | None,
    typer.Option(
        "--policy",
        help="What follows: slipstream re-routes a dead worker's micro-batches to its peers, joint does so too and "
        "adapts the plan to slow links and workers, oobleck makes pipelines of all nodes that are left and adapts to "
        "nothing else. Default: oobleck for its own plans, joint for others.",
    ),
]
AtlasOption = Annotated[
    str | None, typer.Option("--atlas", help="A folder of plans made ahead; else failures are planned on the spot.")
]
NormalizeWithin = Annotated[
    int,
    typer.Option(
        "--normalize-within",
        min=0,
        help="Move workers, or form other pipelines, if that pays within so many iterations; 0: never.",
    ),
]
HostMemory = Annotated[
    float,
    typer.Option(
        "--host-memory",
        min=0,
        help="Bytes of activations that a worker may hold beyond its memory limit, on the host, under an adapted plan.",
    ),
]
MitigateOption = Annotated[
    str | None,
    typer.Option(
        "--mitigate",
        metavar="S3=SECONDS,S4=SECONDS",
        help="What costly remedies for slow workers and links cost, each taken once being slow has cost as much: S3, "
        "workers change places (by default the copies' time, there and back); S4, the job is saved and starts again "
        "on other workers (never, unless given).",
    ),
]
