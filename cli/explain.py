"""`rtk explain`: why a plan takes as long as it does, and what would help most."""

from dataclasses import asdict
from typing import Annotated

import typer

from .console import Common, grouped, print_json


@grouped
def command(
    plan: Annotated[str, typer.Argument(help="The plan; `-` is standard input.")],
    *,
    common: Common,
) -> None:
    """Say why a plan takes as long as it does, and what would help most.

    The critical path, the bound that binds, where the busiest worker's time goes, and what other orders, more memory,
    faster links or faster stages would save: planned anew, as far as the plan's size allows.
    """
    from ..planners.explain.explain import explain
    from ..planners.explain.words import words_of_explanation
    from .options import read_valid_plan

    made = read_valid_plan(plan)
    explanation = explain(made)
    if common.as_json:
        print_json(asdict(explanation))
    else:
        print(words_of_explanation(explanation, made))
