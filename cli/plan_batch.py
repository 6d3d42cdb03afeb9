"""`rtk plan batch`: micro-batches for pipelines of unlike speed."""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.documents import canonical_json
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM, write_bytes
from .console import Debug, Json, Output, Quiet, print_json, remark
from .parsing import USUAL_TIME_LIMIT_S

if TYPE_CHECKING:
    from ..planners.batch.distribute import Distribution
    from ..planners.batch.pace import Pace


class Objective(StrEnum):
    """What is made least: the slowest pipeline's time, or how much the times vary."""

    MIN_MAX = "min-max"
    VARIANCE = "variance"


class Solver(StrEnum):
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
        Objective, typer.Option("--objective", help="Least time of the slowest, or least variance of all times.")
    ] = Objective.MIN_MAX,
    solver: Annotated[
        Solver, typer.Option("--solver", help="pyomo (HiGHS, and SCIP for the variance) also takes bounds.")
    ] = Solver.EXACT,
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
    from ..planners.batch.pace import Pace

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
