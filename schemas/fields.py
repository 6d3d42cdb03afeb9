"""The kinds of numbers and names that files carry, as types that the border validates, and how large things may be.

The bounds are far above what there is, so that they refuse mistakes and malice only: what lies below them can be added
up and multiplied without an overflow, and be counted through in some seconds.
"""

from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt, MinLen

# `Lt` also refuses NaN and infinity: no comparison with NaN holds. 1e15 s are thirty million years, and 1e24 bytes more
# than all data there are: both can be added up and multiplied.
LONGEST_S, LARGEST_BYTES = 1e15, 1e24
Seconds = Annotated[float, Ge(0), Lt(LONGEST_S)]
Bytes = Annotated[float, Ge(0), Lt(LARGEST_BYTES)]
BytesPerSecond = Annotated[float, Ge(1e-3), Lt(LARGEST_BYTES)]
Ratio = Annotated[float, Gt(-1e15), Lt(1e15)]
Factor = Annotated[float, Gt(0), Lt(1e9)]
# The time of two passes side by side over that of one after the other: neither is quicker beside the other than alone.
Overlap = Annotated[float, Gt(0.5), Le(1)]
Count = Annotated[int, Ge(1), Lt(10**9)]
Index = Annotated[int, Ge(0), Lt(10**9)]
Name = Annotated[str, MinLen(1)]

# The deepest models have some hundred blocks; cut into single modules, some ten thousand layers.
MOST_LAYERS = 100_000
# The largest jobs have some 100,000 workers, and a thousand micro-batches in each of a thousand pipelines.
MOST_NODES = 100_000  # also where a number stands for them: more is a slip of the pen, and fills the memory
MOST_WORKERS = 1_000_000
MOST_MICROBATCHES = 10_000_000
# Micro-batches of each stage: what is computed in an iteration. Planning takes a second for some millions of them.
MOST_CELLS = 100_000_000

# What is planned or put on a timeline: some minutes of work, and some GB. The largest jobs have 2,048 workers with 256
# micro-batches, each F, I and W: 1.6 million operations.
MOST_OPERATIONS = 5_000_000
MOST_TIMELINE_SPANS = 10_000_000
MOST_OF_A_PIPELINE = 50_000  # micro-batches: the time to plan grows with their square

LayerNumber = Annotated[int, Ge(0), Lt(MOST_LAYERS + 1)]

# Unknown keys are errors here; `documents.py` lets those of a later minor version pass with a warning.
STRICT: Any = {"extra": "forbid", "strict": True}
