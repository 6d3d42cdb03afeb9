"""`rtk plan mitigate`: at which loss to take which strategy against a slow-down."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.documents import canonical_json
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM, write_bytes
from ..schemas.quantities import USUAL_TIME_LIMIT_S
from .console import Debug, Json, Output, Quiet, print_json, remark

if TYPE_CHECKING:
    from ..planners.batch.distribute import Distribution
    from ..planners.batch.groups import Pace
    from ..planners.greyhound.mitigate import Switching


WORDS = {
    "S2": "uneven micro-batches",
    "S3": "other places for workers",
    "S4": "checkpoint and restart on other machines",
}


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
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Plan when to switch from doing nothing (S1) to micro-batches (S2), places (S3) and a restart (S4).

    `after_s` is what the slow-down has cost so far: iterations' times beyond the usual, added up. Nobody knows when it
    will end; who switches so never loses more than `ratio` times what one loses who knows. Strategies that a cheaper
    one makes needless are dropped. Without --json standard output has a table; a file has JSON.
    """
    from ..planners.greyhound.mitigate import plan_switches

    found = plan_switches(_numbers("--costs", costs), _numbers("--left", left) if left else None, revert_cost)
    tree = asdict(found)
    if output != STANDARD_STREAM:
        write_bytes(output, canonical_json(tree))
    if as_json:
        print_json(tree)
    elif output == STANDARD_STREAM:
        print("\n".join(_table(found)))


def _table(found: "Switching") -> list[str]:
    """The plan in lines."""
    lines = ["S1  at once           nothing: it may pass"]
    lines += [f"{one.strategy}  {f'{one.after_s:g} s lost':<16}  {WORDS[one.strategy]}" for one in found.switches]
    lines += [f"{one.strategy}  never             {one.why}" for one in found.dropped]
    lines.append(f"never more than {found.ratio:.4g} times the loss of one who knows when it ends (proven, and tight)")
    return lines


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
    return {name: _number(option, text) for name, text in pairs}


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError(f"{text!r} is not a number", where=option, fix="write it without a unit") from None


# `rtk plan batch`: micro-batches for pipelines of unlike speed.


class BatchObjective(StrEnum):
    """What is made least: the slowest pipeline's time, or how much the times vary."""

    MIN_MAX = "min-max"
    VARIANCE = "variance"


class ExactMethod(StrEnum):
    """The exact algorithms, or the problem as a mathematical program."""

    EXACT = "exact"
    PYOMO = "pyomo"


def batch(
    times: Annotated[
        str, typer.Option("--times", metavar="T0,T1,…", help="Seconds that a micro-batch takes, of each pipeline.")
    ],
    microbatches: Annotated[int, typer.Option("--microbatches", min=1, help="Micro-batches of all pipelines.")],
    multiple_of: Annotated[
        int, typer.Option("--multiple-of", min=1, help="Each pipeline gets a multiple of it; for 1F1B its stages.")
    ] = 1,
    objective: Annotated[
        BatchObjective, typer.Option("--objective", help="Least time of the slowest, or least variance of all times.")
    ] = BatchObjective.MIN_MAX,
    solver: Annotated[
        ExactMethod, typer.Option("--solver", help="pyomo (HiGHS, and SCIP for the variance) also takes bounds.")
    ] = ExactMethod.EXACT,
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
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Distribute micro-batches over pipelines of unlike speed; each gets at least one.

    Without --json standard output has a line for people; a file has JSON.
    """
    from ..planners.batch.distribute import distribute

    paces = _parse_times(times)
    found = distribute(
        paces,
        microbatches,
        multiple_of,
        objective.value,
        solver.value,
        _parse_bounds("--at-least", at_least, len(paces)),
        _parse_bounds("--at-most", at_most, len(paces)),
        time_limit_s=time_limit,
    )
    _emit(found, output, as_json)


def _emit(found: "Distribution", output: str, as_json: bool) -> None:
    """Write the result to a file, if one is named; say it on standard output, as JSON or in a line."""
    tree: dict[str, Any] = {
        "microbatches": list(found.microbatches),
        "slowest_s": found.slowest_s,
        "objective": found.objective,
    }
    line = f"slowest {found.slowest_s:.6g} s ({found.objective})"
    if output != STANDARD_STREAM:
        write_bytes(output, canonical_json(tree))
    if as_json:
        print_json(tree)
    elif output == STANDARD_STREAM:
        print(f"{' '.join(map(str, found.microbatches))}: {line}")
    else:
        remark(line)


def _parse_times(value: str) -> "list[Pace]":
    """`7,3.5,2`: seconds a micro-batch, of each pipeline; above 0."""
    from ..planners.batch.groups import Pace

    paces = []
    for index, text in enumerate(value.split(",")):
        try:
            paces.append(Pace(0.0, float(text)))
        except ValueError:
            what = f"the time of pipeline {index}, {text!r}, is not a number"
            raise InvalidInputError(what, where="--times", fix="give seconds, without a unit: 7,3.5,2") from None
    return paces


def _parse_bounds(option: str, value: str | None, pipelines: int) -> Sequence[int] | None:
    """`8` for all pipelines, `8,8,4` one a pipeline."""
    if value is None:
        return None
    parts = value.split(",")
    if not all(re.fullmatch(r"\d{1,9}", part) for part in parts):
        raise InvalidInputError(f"{value!r} cannot be read", where=option, fix="give whole numbers, such as 8 or 8,8,4")
    bounds = [int(part) for part in parts]
    return bounds * pipelines if len(bounds) == 1 else bounds
