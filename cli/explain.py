"""`rtk explain`: why a plan takes as long as it does, and what would help most."""

from dataclasses import asdict
from typing import Annotated

import typer

from .console import Debug, Json, Quiet, print_json

NAME = "explain"
SUMMARY = "Say why a plan takes so long, and what would help most."


def command(
    plan: Annotated[str, typer.Argument(help="The plan; `-` is standard input.")],
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Say why a plan takes as long as it does, and what would help most.

    The critical path, the bound that binds, where the busiest worker's time goes, and what other orders, more memory,
    faster links or faster stages would save: planned anew, as far as the plan's size allows.
    """
    from ..planners.explain.explain import explain
    from .explain_words import words
    from .options import read_valid_plan, scope_section
    from .plan import topology_section

    made = read_valid_plan(plan)
    explanation = explain(made)
    if as_json:
        print_json(asdict(explanation))
    else:
        print("\n".join([*words(explanation), *scope_section(made), *topology_section(made)]))
