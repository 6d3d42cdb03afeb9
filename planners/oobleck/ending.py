"""What follows the slowest pipeline: layers are summed between the pipelines, then the optimizer steps.

The all-reduce grows with the number of pipelines and with the stages' parameters, which are most in small templates; so
both belong to the choice of pipelines. An iteration lasts no longer than its slowest pipeline, the longest all-reduce
and the longest step together (docs/semantics.md: a little less where a component that is ready early has that
all-reduce).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...schemas.plan import Stage
from ...schemas.profile import Connection, held_bytes
from ...schemas.templates import LayerState, Templates


@dataclass(frozen=True)
class Ending:
    """What templates of consecutive sizes add to an iteration.

    Attributes:
        smallest: nodes of the first.
        connection: that the all-reduce takes.
        reduced_bytes: of each template, the most that the GPUs of one stage sum up each.
        optimizer_s: of each template, the longest step.
    """

    smallest: int
    connection: Connection
    reduced_bytes: tuple[float, ...]
    optimizer_s: tuple[float, ...]

    def lasts_s(self, sizes: Collection[int]) -> float:
        """The longest all-reduce between pipelines of these sizes, and the longest optimizer step, in s."""
        used = {size - self.smallest for size in sizes}
        most_bytes, step_s = max(self.reduced_bytes[n] for n in used), max(self.optimizer_s[n] for n in used)
        return self.connection.ring_s(most_bytes, len(sizes)) + step_s


def ending_of(templates: Templates) -> Ending:
    """The ending of each of the templates."""
    return Ending(
        templates.smallest,
        connection_of(templates),
        tuple(max(reduced_bytes(templates.layers, stage) for stage in one.stages) for one in templates.templates),
        tuple(max(stage.optimizer_s for stage in one.stages) for one in templates.templates),
    )


def connection_of(templates: Templates) -> Connection:
    """The path between nodes; where nothing is known of it, one that costs nothing."""
    return templates.network.between_workers or Connection()


def reduced_bytes(layers: Sequence[LayerState], stage: Stage) -> float:
    """What a GPU of a stage sums with others: its share of the gradients, as many bytes as of the parameters."""
    return held_bytes(layers, *stage.layers)[0] / stage.tensor_parallel
