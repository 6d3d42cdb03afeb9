"""A solver that is named proves by itself, and a plan says what its bound is over."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling import solve as solve_module
from rtk.planners.scheduling.problem import problem_of
from rtk.planners.scheduling.solve import OPTION, Effort, solve, with_own_proof
from rtk.planners.shape import Shape
from rtk.planners.slipstream.cluster import AtlasRequest, opening
from rtk.planners.slipstream.replanner import Replanner
from rtk.schemas.plan import Plan, Prediction
from rtk.schemas.profile import Layer, LayerCost, Profile

from ..cli.shell import rtk

COSTS = st.sampled_from([1.0, 2.0, 3.0])


def _planned(profile: Profile, failed: int, effort: Effort, slow: float = 1.0) -> Plan:
    """Two pipelines of two stages, a worker dead, another one perhaps slow."""
    slowdown = {(0, 1 - failed): slow} if slow > 1 else {}
    common = opening(profile, AtlasRequest(Shape(2, 2, 2), "decoupled", effort=effort, slowdown=slowdown))
    return Replanner(common, 1).in_place(frozenset({(1, failed)}))


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(COSTS, COSTS, COSTS), min_size=2, max_size=2), st.integers(0, 1))
def test_the_milp_proves_what_the_bound_says(costs: list[tuple[float, float, float]], failed: int) -> None:
    """It is asked although the plan reaches its bound, knows no bound, and comes to one between that and the time."""
    profile = Profile(tuple(Layer((LayerCost(*one),)) for one in costs))
    effort = Effort("milp", 30.0)
    plan = with_own_proof(lambda: _planned(profile, failed, effort), effort)
    own, promised = plan.planner.options[OPTION], plan.prediction
    assert promised is not None
    assert own["is_asked"] and own["solver"].startswith(("HiGHS", "CBC"))
    assert own["proof"] == "optimal" or promised.proof != "optimal"
    assert own["lower_bound_s"] <= promised.iteration_time_s * (1 + 1e-9)
    assert own["lower_bound_s"] <= solve(problem_of(plan), Effort("milp", 30.0)).value_s * (1 + 1e-9)


def test_who_names_no_solver_gets_no_word_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `auto` the plan is as it was; a solver is not asked beyond what it takes, and the plan says so."""
    profile = Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),) * 2)
    plan = _planned(profile, 0, Effort())
    assert with_own_proof(lambda: plan, Effort("auto", 5.0)) is plan
    told = with_own_proof(lambda: plan, Effort("milp", 0.0)).planner.options[OPTION]
    assert (told["is_asked"], told["proof"], told["solver"]) == (False, "none", "milp")

    class Small:
        most_operations = 3

    monkeypatch.setattr(solve_module, "exact_solver", lambda *_: Small())
    assert not with_own_proof(lambda: plan, Effort("milp", 5.0)).planner.options[OPTION]["is_asked"]


def test_a_plan_says_what_its_bound_is_over() -> None:
    """All routings where workers are alike, else the one that is taken; nothing where nobody can re-route."""
    profile = Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),) * 2)
    alike, unlike = (_planned(profile, 0, Effort("heuristic"), slow).prediction for slow in (1.0, 2.0))
    assert alike is not None and alike.proof_scope == "all-routings"
    assert unlike is not None and unlike.proof_scope == "routing"
    assert Prediction(1.0, 1.0, 1.0, 1.0, 0.0, "optimal", 0.0, ()).proof_scope is None


def test_the_command_says_who_has_proven_what(tmp_path: Path) -> None:
    """In the summary, in a line about the solver, in `rtk verify` and in `rtk explain`."""
    layers = [{"costs": [{"tensor_parallel": 1, "forward_s": 1, "backward_input_s": 1, "backward_weight_s": 1}]}] * 2
    profile = {"format": "rtk.profile", "format_version": "1.0", "model": {"name": "toy"}, "origin": "given"}
    (tmp_path / "p.json").write_text(json.dumps({**profile, "layers": layers}))
    path = str(tmp_path / "plan.json")
    asked = ("plan", "slipstream", str(tmp_path / "p.json"), "--pp", "2", "--dp", "2", "--microbatches", "2")
    done = rtk(*asked, "--failed", "1/0", "--solver", "milp", "--require-optimal", "-o", path)
    assert done.returncode == 0
    assert "(optimal over all routings)" in done.stderr
    assert "proves it itself: no orders of this routing take less" in done.stderr
    assert "valid (it says: optimal over all routings)" in rtk("verify", path).stdout
    assert "is over all routings" in rtk("explain", path).stdout
