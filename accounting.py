"""Where an iteration's time goes: what its passes are made of, beside waiting, sums and the step.

It stands at the root because the planners know who decides and waits, and the profilers what a pass is made of.
"""

from typing import TYPE_CHECKING

from .schemas.errors import InvalidInputError

if TYPE_CHECKING:
    from .planners.explain.account import IterationAccount
    from .planners.explain.explain import Busiest
    from .schemas.plan import Plan
    from .schemas.profile import Profile


def account(plan: "Plan", profile: "Profile", busiest: "Busiest | None" = None) -> "IterationAccount":
    """Say where the iteration goes of the worker that decides how long it is, in parts that add up to all of it.

    Args:
        plan: a valid plan.
        profile: from which it was made: with a computed one passes are told as matrix products, attention and so on,
            with a measured one as F, I, W and B.
        busiest: what `explain` has said of that worker; None: it is found.

    Raises:
        InvalidInputError: the plan's orders deadlock.
    """
    from .planners.explain.account import account_of, is_made_from
    from .planners.explain.explain import explain
    from .profilers.analytic.parts import ComputedParts

    busiest = busiest or explain(plan, searches=0).busiest
    if not is_made_from(plan, busiest.worker, profile):
        return account_of(
            plan, busiest, None, "passes take other times in this profile: the plan was made from another"
        )
    try:
        computed = ComputedParts(profile)
    except InvalidInputError as error:
        return account_of(plan, busiest, None, error.what)
    return account_of(plan, busiest, computed.of_stage)
