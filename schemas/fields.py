"""The kinds of numbers and names that files carry, as types that the border validates."""

import math
from typing import Annotated, Any

from annotated_types import Ge, Gt, Lt, MinLen

# `Lt` also refuses NaN and infinity: no comparison with NaN holds. Times have room to be added up and multiplied.
Seconds = Annotated[float, Ge(0), Lt(1e15)]
Bytes = Annotated[float, Ge(0), Lt(math.inf)]
BytesPerSecond = Annotated[float, Gt(0), Lt(math.inf)]
Ratio = Annotated[float, Lt(math.inf)]
Factor = Annotated[float, Gt(0), Lt(1e9)]
Count = Annotated[int, Ge(1), Lt(10**9)]
Index = Annotated[int, Ge(0), Lt(10**9)]
Name = Annotated[str, MinLen(1)]

# Unknown keys are errors here; `documents.py` lets those of a later minor version pass with a warning.
STRICT: Any = {"extra": "forbid", "strict": True}
