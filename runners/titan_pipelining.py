"""torch's runtime under torchtitan's trainer, with every receive where the plan has it.

`rtk export --to torchtitan` writes this file beside `schedule-comms.csv`; it needs nothing of rtk:

    from pipelining import pipelining_fn
    spec.pipelining_fn = pipelining_fn  # of the model's ModelSpec
"""

from pathlib import Path
from typing import Any

COMMS = Path(__file__).with_name("schedule-comms.csv")


def pipelining_fn(model: Any, **given: Any) -> Any:
    """As torchtitan's own `pipeline_llm`; its settings name `schedule.csv`, the same orders without messages."""
    from torchtitan.distributed.pipeline_parallel import pipeline_llm

    schedule, parts, has_first, has_last = pipeline_llm(model, **given)
    schedule._load_csv(str(COMMS), format="compute_comms")
    return schedule, parts, has_first, has_last
