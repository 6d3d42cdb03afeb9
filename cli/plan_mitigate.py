"""`rtk plan mitigate`: at which loss to take which strategy against a slow-down."""

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.documents import canonical_json
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM, write_bytes
from .console import Debug, Json, Output, Quiet, print_json

if TYPE_CHECKING:
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
