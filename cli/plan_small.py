"""`rtk plan mitigate`: at which loss to take which strategy against a slow-down; and `rtk plan batch`."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from ..schemas.documents import canonical_json
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM, write_bytes
from ..schemas.quantities import USUAL_TIME_LIMIT_S
from ..schemas.remarks import remark
from .console import Common, Output, grouped, print_json

WORDS = {
    "S2": "uneven micro-batches",
    "S3": "other places for workers",
    "S4": "checkpoint and restart on other machines",
}


@grouped
def mitigate(
    costs: Annotated[
        str,
        typer.Option(
            "--costs", metavar="S2,S3,S4", help="Seconds that each strategy takes: 5,60,1200, or some: S3=60,S4=1200."
        ),
    ],
    left: Annotated[
        str | None,
        typer.Option(
            "--left", metavar="S2,S3,S4", help="Share of the slow-down left under each: 0.6,0.2,0, or some: S2=0.6."
        ),
    ] = None,
    revert_cost: Annotated[
        float, typer.Option("--revert-cost", metavar="SECONDS", help="To undo S3 on relief; added to its cost.")
    ] = 0.0,
    output: Output = "-",
    *,
    common: Common,
) -> None:
    """Plan when to switch from doing nothing (S1) to micro-batches (S2), places (S3) and a restart (S4).

    `after_s` is what the slow-down has cost so far: iterations' times beyond the usual, added up. Nobody knows when it
    will end; who switches so never loses more than `ratio` times what one loses who knows. Strategies that a cheaper
    one makes needless are dropped. Without --json standard output has a table; a file has JSON.
    """
    from ..planners.plain.verbs import plan_mitigate

    shares = _numbers("--left", left) if left else None
    found = plan_mitigate(_numbers("--costs", costs), left=shares, revert_cost=revert_cost)
    tree = asdict(found)
    if output != STANDARD_STREAM:
        write_bytes(output, canonical_json(tree))
    if common.as_json:
        print_json(tree)
    elif output == STANDARD_STREAM:
        print("S1  at once           nothing: it may pass")
        for one in found.switches:
            print(f"{one.strategy}  {f'{one.after_s:g} s lost':<16}  {WORDS[one.strategy]}")
        for other in found.dropped:
            print(f"{other.strategy}  never             {other.why}")
        print(f"never more than {found.ratio:.4g} times the loss of one who knows when it ends (proven, and tight)")


def _numbers(option: str, value: str) -> dict[str, float]:
    """`5,60,1200` are those of S2, S3 and S4; `S3=60,S4=1200` name them."""
    from ..planners.greyhound.mitigate import STRATEGIES

    parts = value.split(",")
    named = [re.fullmatch(r"(S\d)=(.+)", part) for part in parts]
    if not any(named) and len(parts) > len(STRATEGIES):
        raise InvalidInputError(f"{len(parts)} numbers for 3 strategies", where=option, fix="give those of S2, S3, S4")
    pairs = [
        (match[1], match[2]) if match else (name, part)
        for match, part, name in zip(named, parts, [*STRATEGIES, *parts], strict=False)
    ]
    if len({name for name, _ in pairs}) < len(pairs) or (any(named) and not all(named)):
        raise InvalidInputError(f"{value!r} cannot be read", where=option, fix="name none, or each once: S3=60,S4=1200")
    found = {}
    for name, text in pairs:
        try:
            found[name] = float(text)
        except ValueError:
            raise InvalidInputError(f"{text!r} is not a number", where=option, fix="write it without a unit") from None
    return found


# `rtk plan batch`: micro-batches for pipelines of unlike speed.


@grouped
def batch(
    times: Annotated[
        str, typer.Option("--times", metavar="T0,T1,…", help="Seconds that a micro-batch takes, of each pipeline.")
    ],
    microbatches: Annotated[int, typer.Option("--microbatches", min=1, help="Micro-batches of all pipelines.")],
    multiple_of: Annotated[
        int, typer.Option("--multiple-of", min=1, help="Each pipeline gets a multiple of it; for 1F1B its stages.")
    ] = 1,
    objective: Annotated[
        Literal["min-max", "variance"],
        typer.Option("--objective", help="Least time of the slowest, or least variance of all times."),
    ] = "min-max",
    solver: Annotated[
        Literal["exact", "pyomo"],
        typer.Option("--solver", help="pyomo (HiGHS, and SCIP for the variance) also takes bounds."),
    ] = "exact",
    at_least: Annotated[
        str | None, typer.Option("--at-least", metavar="N[,N…]", help="Micro-batches: one, or one a pipeline.")
    ] = None,
    at_most: Annotated[
        str | None, typer.Option("--at-most", metavar="N[,N…]", help="Micro-batches: one, or one a pipeline.")
    ] = None,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=0, metavar="SECONDS", help="Of pyomo's solvers.")
    ] = USUAL_TIME_LIMIT_S,
    output: Output = "-",
    *,
    common: Common,
) -> None:
    """Distribute micro-batches over pipelines of unlike speed; each gets at least one.

    Without --json standard output has a line for people; a file has JSON.
    """
    from ..planners.plain.verbs import plan_batch

    times_s: list[float] = []
    for index, text in enumerate(times.split(",")):
        try:
            times_s.append(float(text))
        except ValueError:
            what = f"the time of pipeline {index}, {text!r}, is not a number"
            raise InvalidInputError(what, where="--times", fix="give seconds, without a unit: 7,3.5,2") from None
    found = plan_batch(
        times_s,
        microbatches=microbatches,
        multiple_of=multiple_of,
        objective=objective,
        solver=solver,
        at_least=_parse_bounds("--at-least", at_least),
        at_most=_parse_bounds("--at-most", at_most),
        time_limit=time_limit,
    )
    tree: dict[str, Any] = {
        "microbatches": list(found.microbatches),
        "slowest_s": found.slowest_s,
        "objective": found.objective,
    }
    line = f"slowest {found.slowest_s:.6g} s ({found.objective})"
    if output != STANDARD_STREAM:
        write_bytes(output, canonical_json(tree))
    if common.as_json:
        print_json(tree)
    elif output == STANDARD_STREAM:
        print(f"{' '.join(map(str, found.microbatches))}: {line}")
    else:
        remark(line)


def _parse_bounds(option: str, value: str | None) -> int | Sequence[int] | None:
    """`8` for all pipelines, `8,8,4` one a pipeline."""
    if value is None:
        return None
    parts = value.split(",")
    if not all(re.fullmatch(r"\d{1,9}", part) for part in parts):
        raise InvalidInputError(f"{value!r} cannot be read", where=option, fix="give whole numbers, such as 8 or 8,8,4")
    bounds = [int(part) for part in parts]
    return bounds[0] if len(bounds) == 1 else bounds
