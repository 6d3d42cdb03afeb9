"""What was measured here once and recorded in `measured.json`, which `benchmarks/paper_times.py` writes: times, mostly."""

import json
from functools import cache
from importlib.resources import files
from typing import Any

FILE = "measured.json"


@cache
def measured(name: str) -> Any:
    """What is recorded for a table or figure, by the name of its reproduction."""
    return json.loads((files(__package__) / FILE).read_text())[name]
