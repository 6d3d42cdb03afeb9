"""The page of a running job: `live.html` with what is known of the job before it begins.

The page asks its server (`runners/live_page.py`) for events and draws them by itself: no build step, no network.
"""

import json
from importlib.resources import files

from ..schemas.plan import Plan
from ..schemas.text import counted
from .style import LOOKS, legend_of


def live_html(plan: Plan, model: str | None, tokens: int | None) -> str:
    """The page.

    Args:
        plan: that the job begins with.
        model: its name; None where it is not known.
        tokens: of an iteration; None where that is not known.
    """
    live = plan.live_workers()
    shape = f"{counted(len(plan.pipelines), 'pipeline')}, {counted(len(live), 'worker')}, {plan.optimizer} optimizer"
    facts = {
        "title": f"{model}: {shape}" if model else shape,
        "workers": [worker.name for worker in live],
        "failed": [worker.name for worker in plan.workers if worker.failed],
        "predicted_s": plan.prediction.iteration_time_s if plan.prediction else None,
        "bound_s": plan.prediction.lower_bound_s if plan.prediction else None,
        "tokens": tokens,
        "colours": {kind: look.colour for kind, look in LOOKS.items()},
        "words": {kind: legend_of(kind) for kind in LOOKS},
    }
    page = files("rtk.viz").joinpath("live.html").read_text(encoding="utf-8")
    # A name may hold anything, and `</script>` would end the script.
    return page.replace("FACTS", json.dumps(facts).replace("<", "\\u003c"))
