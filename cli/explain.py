"""`rtk explain`: why a plan takes as long as it does, and what would help most; or what came of failures."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.errors import InvalidInputError, remark
from .console import Common, grouped, print_json

if TYPE_CHECKING:
    from ..planners.explain.explain import Explanation
    from ..schemas.plan import Plan
    from ..schemas.profile import Profile


@grouped
def command(
    plan: Annotated[
        str,
        typer.Argument(
            help="The plan, or a resumption, a timeline with failures, or a computed profile; `-` is standard input."
        ),
    ],
    *,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="PROFILE",
            help="The plan's profile: says where an iteration goes, and what a GPU holds, by part.",
        ),
    ] = None,
    sharded: Annotated[
        bool, typer.Option("--sharded-optimizer", help="Count the optimizer's state as divided among peers (ZeRO-1).")
    ] = False,
    common: Common,
) -> None:
    """Say why a plan takes as long as it does, and what would help most.

    The critical path, the bound that binds, where the busiest worker's time goes, and what other orders, more memory,
    faster links or faster stages would save: planned anew, as far as the plan's size allows. With its profile also
    where the iteration goes of the worker that decides, matrix products, attention, sums and so on where the profile
    was computed, and what the fullest GPU holds.

    Of a resumption: what is kept, sent again and copied, and what takes longest. Of a timeline: event by event, what
    each failure cost, what was kept, and when the iteration was done. Of a computed profile: what its times are made
    of.
    """
    if sharded and profile is None:
        raise InvalidInputError(
            "only a profile says what the optimizer holds", where="--sharded-optimizer", fix="give --profile as well"
        )
    told, words = _explained(plan) if profile is None else _explained_by(plan, profile, sharded)
    if common.as_json:
        print_json(told)
    else:
        print(words)


def _explained_by(path: str, profile_path: str, sharded: bool) -> tuple[dict[str, Any], str]:
    """What there is to say of a plan whose profile is known, as a tree and in words."""
    from ..accounting import account
    from ..planners.explain.words import words_of_account
    from ..schemas.documents import digest, read_document
    from ..schemas.plan import Plan
    from ..schemas.profile import Profile

    plan, profile = read_document(path, Plan), read_document(profile_path, Profile)
    if plan.inputs.get("profile") not in (None, digest(profile)):
        remark(f"the plan was made from another profile than {profile_path}, or for a cluster that changed it")
    explanation, told, words = _of_plan(plan, path)
    where = account(plan, profile, explanation.busiest)
    memory, more = _memory(plan, profile, sharded)
    return {**told, "account": asdict(where), "memory_bytes": memory}, f"{words}\n\n{words_of_account(where)}\n\n{more}"


def _memory(plan: "Plan", profile: "Profile", sharded: bool) -> tuple[dict[str, float], str]:
    """What the fullest GPU of a plan holds, by part, as a tree and in words."""
    from ..planners.gpu_memory import fullest, memory_of
    from ..schemas.quantities import print_bytes

    found = fullest(memory_of(profile, plan, len(plan.pipelines) if sharded else None))
    if found is None:
        return {}, "No worker is alive."
    parts = {name: size for name, size in found.parts().items() if size}
    rows = [f"  {name:<12}{print_bytes(size):>10}" for name, size in parts.items()]
    limit = profile.device.memory_bytes
    of = "" if limit is None else f", of {print_bytes(limit)}"
    total = f"The fullest GPU holds some {print_bytes(found.total_bytes)}{of}:"
    told = {**parts, "total": found.total_bytes}
    if plan.shards_optimizer and not sharded:
        later = fullest(memory_of(profile, plan, after_losses=True))
        assert later is not None
        told["total_after_losses"] = later.total_bytes
        rows.append(f"Its peers share the optimizer's state; once one is lost, it is {print_bytes(later.total_bytes)}.")
    return told, "\n".join([total, *rows])


def _of_plan(plan: "Plan", path: str) -> tuple["Explanation", dict[str, Any], str]:
    """What there is to say of a plan, as it is found, as a tree and in words."""
    from ..planners.degrees import compared_degrees
    from ..planners.explain.explain import explain
    from ..planners.explain.words import words_of_explanation
    from ..schemas.check import require_valid
    from ..schemas.files import source_of

    require_valid(plan, source_of(path))
    explanation = explain(plan)
    compared = [asdict(one) for one in compared_degrees(plan)]
    tree = {**asdict(explanation), **({"degrees": compared} if compared else {})}
    return explanation, tree, words_of_explanation(explanation, plan)


def _explained(path: str) -> tuple[dict[str, Any], str]:
    """What there is to say of a file, as a tree and in words."""
    from ..schemas.documents import read_one_of
    from ..schemas.files import source_of
    from ..schemas.plan import Plan
    from ..schemas.profile import Profile
    from ..schemas.resumption import Resumption
    from ..schemas.timeline import Timeline

    match read_one_of(path, Plan, Resumption, Timeline, Profile):
        case Resumption() as resumption:
            from ..planners.explain.resumed import explain_resumption, words_of_resumption
            from ..schemas.check_rest import require_valid_resumption

            require_valid_resumption(resumption, source_of(path))
            rest = explain_resumption(resumption)
            return asdict(rest), words_of_resumption(rest)
        case Timeline() as timeline:
            from ..viz.recoveries import recoveries_of, words_of_recoveries

            recoveries = recoveries_of(timeline)
            return {"recoveries": [asdict(one) for one in recoveries]}, words_of_recoveries(recoveries)
        case Profile() as profile:
            from ..profilers.analytic.parts import parts_of, words_of_parts

            parts = parts_of(profile)
            return {"parts": [asdict(one) for one in parts]}, words_of_parts(parts)
        case plan:
            _, tree, words = _of_plan(plan, path)
            return tree, words
