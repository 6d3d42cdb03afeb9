"""rtk plans, simulates and runs large-model training that keeps going when workers fail or slow down.

The names below are those of the commands: `rtk plan slipstream P --pp 4 …` is `rtk.plan_slipstream(profile, pp=4, …)`.
They are loaded when they are first used. docs/library.md has them in use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .schemas.display import Displayed

if TYPE_CHECKING:
    from .accounting import account as account
    from .benchmarks.papers.catalogue import reproduce as reproduce
    from .bubbling import bubble as bubble
    from .calibrating import read_calibration as read_calibration
    from .exporting import export_checkpoint as export_checkpoint
    from .planners.explain.explain import explain as explain
    from .planners.explain.words import words_of_explanation as words_of_explanation
    from .planners.oobleck.plan import plan_oobleck as plan_oobleck
    from .planners.plain.slipstream import plan_atlas as plan_atlas
    from .planners.plain.slipstream import plan_from_atlas as plan_from_atlas
    from .planners.plain.slipstream import plan_slipstream as plan_slipstream
    from .planners.plain.verbs import plan_adaptra as plan_adaptra
    from .planners.plain.verbs import plan_batch as plan_batch
    from .planners.plain.verbs import plan_joint as plan_joint
    from .planners.plain.verbs import plan_mitigate as plan_mitigate
    from .planners.plain.verbs import plan_pipeline as plan_pipeline
    from .planners.plain.verbs import plan_reconfigure as plan_reconfigure
    from .planners.plain.verbs import plan_templates as plan_templates
    from .planners.plain.verbs import plan_topology as plan_topology
    from .probing import probe as probe
    from .probing import profile_links as profile_links
    from .profilers.analytic.estimate import profile_analytic as profile_analytic
    from .profilers.comparing import compare as _compare
    from .profilers.detecting import detect_files as detect_files
    from .profilers.diagnosing import KnownFacts as KnownFacts
    from .profilers.diagnosing import doctor as doctor
    from .profilers.failslow.monitor.watch import monitor as monitor
    from .profilers.failslow.tracker import track as _track
    from .profilers.goodput import goodput as goodput
    from .replaying import replay as replay
    from .runners.foreign import export_plan as export_plan
    from .runners.processes import main as main
    from .runners.resilience.server import Server as _Server
    from .runners.torch.resilient import ResilientWorker as ResilientWorker
    from .runners.torch.runner import PlanRunner as PlanRunner
    from .runners.traces.read import TraceOptions as TraceOptions
    from .runners.traces.verbs import trace_convert as trace_convert
    from .runners.traces.verbs import trace_generate as trace_generate
    from .runners.traces.verbs import trace_show as trace_show
    from .runners.training import JobConfig as JobConfig
    from .runners.training import TrainingConfig as TrainingConfig
    from .running import coordinate as coordinate
    from .running import run as run
    from .schemas.atlas import Atlas as Atlas
    from .schemas.bubble import BubbleReport as BubbleReport
    from .schemas.check import check_plan as _check_plan
    from .schemas.check import check_timeline as check_timeline
    from .schemas.columns import Selection as Selection
    from .schemas.documents import shipped_schema as _shipped_schema
    from .schemas.errors import RtkError as RtkError
    from .schemas.ledger import GoodputLedger as GoodputLedger
    from .schemas.plan import Plan as Plan
    from .schemas.profile import Profile as Profile
    from .schemas.replay import ReplayReport as ReplayReport
    from .schemas.resumption import Resumption as Resumption
    from .schemas.site import read_cluster as read_cluster
    from .schemas.templates import Templates as Templates
    from .schemas.timeline import Report as Report
    from .schemas.timeline import Timeline as Timeline
    from .schemas.trace import Trace as Trace
    from .schemas.trace import TraceEvent as TraceEvent
    from .shaping import plan_best as plan_best
    from .sweeping import sweep as sweep
    from .viz.bubble import words_of_bubble as words_of_bubble
    from .viz.diff import as_words as _as_words
    from .viz.diff import diff_plans as _diff_plans
    from .whole_flow import quickstart as quickstart
    from .wiring import draw as draw
    from .wiring import figure as figure
    from .wiring import import_plan as import_plan
    from .wiring import inject as inject
    from .wiring import profile_measured as profile_measured
    from .wiring import profile_refine as profile_refine
    from .wiring import read as read
    from .wiring import simulate as simulate
    from .wiring import write as write

    Coordinator = _Server
    detect = _track
    diff = _diff_plans
    profile_compare = _compare
    schema = _shipped_schema
    verify = _check_plan
    words_of_diff = _as_words

__version__ = "0.2.0"

# Where each name is, and what it is called there if that is not the same.
_PLACES = {
    "Atlas": "schemas.atlas",
    "BubbleReport": "schemas.bubble",
    "Coordinator": "runners.resilience.server:Server",
    "GoodputLedger": "schemas.ledger",
    "JobConfig": "runners.training",
    "KnownFacts": "profilers.diagnosing",
    "Plan": "schemas.plan",
    "PlanRunner": "runners.torch.runner",
    "Profile": "schemas.profile",
    "ReplayReport": "schemas.replay",
    "Report": "schemas.timeline",
    "Resumption": "schemas.resumption",
    "ResilientWorker": "runners.torch.resilient",
    "RtkError": "schemas.errors",
    "Selection": "schemas.columns",
    "Templates": "schemas.templates",
    "Timeline": "schemas.timeline",
    "Trace": "schemas.trace",
    "TraceEvent": "schemas.trace",
    "TraceOptions": "runners.traces.read",
    "TrainingConfig": "runners.training",
    "account": "accounting",
    "bubble": "bubbling",
    "check_timeline": "schemas.check",
    "coordinate": "running",
    "detect": "profilers.failslow.tracker:track",
    "detect_files": "profilers.detecting",
    "diff": "viz.diff:diff_plans",
    "doctor": "profilers.diagnosing",
    "draw": "wiring",
    "explain": "planners.explain.explain",
    "export_checkpoint": "exporting",
    "export_plan": "runners.foreign:export_plan",
    "figure": "wiring",
    "goodput": "profilers.goodput",
    "import_plan": "wiring",
    "inject": "wiring",
    "main": "runners.processes",
    "monitor": "profilers.failslow.monitor.watch",
    "plan_adaptra": "planners.plain.verbs",
    "plan_atlas": "planners.plain.slipstream",
    "plan_batch": "planners.plain.verbs",
    "plan_best": "shaping",
    "plan_from_atlas": "planners.plain.slipstream",
    "plan_joint": "planners.plain.verbs",
    "plan_mitigate": "planners.plain.verbs",
    "plan_oobleck": "planners.oobleck.plan",
    "plan_pipeline": "planners.plain.verbs",
    "plan_reconfigure": "planners.plain.verbs",
    "plan_slipstream": "planners.plain.slipstream",
    "plan_templates": "planners.plain.verbs",
    "plan_topology": "planners.plain.verbs",
    "probe": "probing",
    "profile_analytic": "profilers.analytic.estimate",
    "profile_compare": "profilers.comparing:compare",
    "profile_links": "probing",
    "profile_measured": "wiring",
    "profile_refine": "wiring",
    "quickstart": "whole_flow",
    "read": "wiring",
    "read_calibration": "calibrating",
    "read_cluster": "schemas.site",
    "replay": "replaying",
    "reproduce": "benchmarks.papers.catalogue",
    "run": "running",
    "schema": "schemas.documents:shipped_schema",
    "simulate": "wiring",
    "sweep": "sweeping",
    "trace_convert": "runners.traces.verbs",
    "trace_generate": "runners.traces.verbs",
    "trace_show": "runners.traces.verbs",
    "verify": "schemas.check:check_plan",
    "words_of_bubble": "viz.bubble",
    "words_of_diff": "viz.diff:as_words",
    "words_of_explanation": "planners.explain.words",
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
