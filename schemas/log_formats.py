"""The logs that `rtk detect` and `rtk goodput` know by name (`--format`).

A file of its own, so that help pages load nothing else.
"""

from typing import Literal

# Logs of iteration times, which are read line by line, each by the reader of that name …
SeriesFormat = Literal["csv", "jsonl", "numbers", "megatron", "torchtitan", "nanogpt", "mlperf", "dllogger"]
# … and what is read as whole files.
LogFormat = Literal[SeriesFormat, "calls", "operations"]
# Logs of whole jobs, with their restarts, that `rtk goodput --format` knows.
JobLogFormat = Literal[
    "megatron", "nemo", "torchtitan", "torchtitan-events", "deepspeed", "mlperf", "dllogger", "nanogpt", "lightning",
    "csv", "jsonl",
]  # fmt: skip
