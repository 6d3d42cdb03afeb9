"""The logs that `rtk detect --format` knows by name; a file of its own, so that help pages load nothing else."""

from typing import Literal

# Logs of iteration times, which are read line by line, each by the reader of that name …
SeriesFormat = Literal["csv", "jsonl", "numbers", "megatron", "torchtitan", "nanogpt", "mlperf", "dllogger"]
# … and what is read as whole files.
LogFormat = Literal[SeriesFormat, "calls", "operations"]
