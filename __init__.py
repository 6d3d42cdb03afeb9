"""rtk plans, simulates and runs large-model training that keeps going when workers fail or slow down.

The names below are those of the commands: `rtk plan slipstream P --pp 4 …` is `rtk.plan_slipstream(profile, pp=4, …)`.
They are loaded when they are first used. docs/library.md has them in use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .schemas.display import Displayed

if TYPE_CHECKING:
    from .planners.explain.explain import explain as explain
    from .planners.oobleck.plan import plan_oobleck as plan_oobleck
    from .planners.plain.verbs import plan_adaptra as plan_adaptra
    from .planners.plain.verbs import plan_batch as plan_batch
    from .planners.plain.verbs import plan_joint as plan_joint
    from .planners.plain.verbs import plan_mitigate as plan_mitigate
    from .planners.plain.verbs import plan_pipeline as plan_pipeline
    from .planners.plain.verbs import plan_reconfigure as plan_reconfigure
    from .planners.plain.verbs import plan_slipstream as plan_slipstream
    from .planners.plain.verbs import plan_templates as plan_templates
    from .planners.plain.verbs import plan_topology as plan_topology
    from .profilers.analytic.analysis import profile_analytic as profile_analytic
    from .profilers.failslow.tracker import track as _track
    from .runners.resilience.server import Server as _Server
    from .runners.torch.resilient import ResilientWorker as ResilientWorker
    from .runners.torch.runner import PlanRunner as PlanRunner
    from .schemas.atlas import Atlas as Atlas
    from .schemas.check import check_plan as _check_plan
    from .schemas.cluster_file import read_cluster_file as _read_cluster_file
    from .schemas.errors import RtkError as RtkError
    from .schemas.plan import Plan as Plan
    from .schemas.profile import Profile as Profile
    from .schemas.replay_report import ReplayReport as ReplayReport
    from .schemas.report import Report as Report
    from .schemas.templates import Templates as Templates
    from .schemas.timeline import Timeline as Timeline
    from .schemas.trace import Trace as Trace
    from .schemas.trace import TraceEvent as TraceEvent
    from .viz.diff import as_words as _as_words
    from .viz.diff import diff_plans as _diff_plans
    from .wiring import draw as draw
    from .wiring import inject as inject
    from .wiring import profile_measured as profile_measured
    from .wiring import read as read
    from .wiring import replay as replay
    from .wiring import simulate as simulate
    from .wiring import write as write

    Coordinator = _Server
    detect = _track
    diff = _diff_plans
    read_cluster = _read_cluster_file
    verify = _check_plan
    words_of_diff = _as_words

__version__ = "0.1.0"

# Where each name is, and what it is called there if that is not the same.
_PLACES = {
    "Atlas": "schemas.atlas",
    "Coordinator": "runners.resilience.server:Server",
    "Plan": "schemas.plan",
    "PlanRunner": "runners.torch.runner",
    "Profile": "schemas.profile",
    "ReplayReport": "schemas.replay_report",
    "Report": "schemas.report",
    "ResilientWorker": "runners.torch.resilient",
    "RtkError": "schemas.errors",
    "Templates": "schemas.templates",
    "Timeline": "schemas.timeline",
    "Trace": "schemas.trace",
    "TraceEvent": "schemas.trace",
    "detect": "profilers.failslow.tracker:track",
    "diff": "viz.diff:diff_plans",
    "draw": "wiring",
    "explain": "planners.explain.explain",
    "inject": "wiring",
    "plan_adaptra": "planners.plain.verbs",
    "plan_batch": "planners.plain.verbs",
    "plan_joint": "planners.plain.verbs",
    "plan_mitigate": "planners.plain.verbs",
    "plan_oobleck": "planners.oobleck.plan",
    "plan_pipeline": "planners.plain.verbs",
    "plan_reconfigure": "planners.plain.verbs",
    "plan_slipstream": "planners.plain.verbs",
    "plan_templates": "planners.plain.verbs",
    "plan_topology": "planners.plain.verbs",
    "profile_analytic": "profilers.analytic.analysis",
    "profile_measured": "wiring",
    "read": "wiring",
    "read_cluster": "schemas.cluster_file:read_cluster_file",
    "replay": "wiring",
    "simulate": "wiring",
    "verify": "schemas.check:check_plan",
    "words_of_diff": "viz.diff:as_words",
    "write": "wiring",
}


if not TYPE_CHECKING:  # who checks types shall find a misspelt name

    def __getattr__(name: str) -> Any:
        place = _PLACES.get(name)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, other = place.partition(":")
        found = globals()[name] = getattr(import_module(f".{module}", __name__), other or name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})


def _svg(document: Any) -> str:
    from .wiring import svg_of

    return svg_of(document)


Displayed.render_svg = staticmethod(_svg)
