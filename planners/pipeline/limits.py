"""How many micro-batches a memory limit admits."""

from collections.abc import Sequence

from ...schemas.errors import InfeasibleError
from ...schemas.plan import Stage


def most_in_flight(stages: Sequence[Stage], microbatches: int) -> list[int]:
    """For each stage, how many micro-batches its memory limit admits at once, at most `microbatches`.

    Raises:
        InfeasibleError: a limit does not admit a single one.
    """
    rooms = [_room(stage, microbatches) for stage in stages]
    for index, (stage, room) in enumerate(zip(stages, rooms, strict=True)):
        if room < 1:
            raise InfeasibleError(
                f"stage {index} holds {stage.activation_bytes:g} bytes a micro-batch, "
                f"its memory limit is {stage.memory_limit_bytes:g}",
                where="--memory-limit",
                fix="raise the limit, take a smaller micro-batch, or more stages",
            )
    return rooms


def _room(stage: Stage, microbatches: int) -> int:
    if stage.memory_limit_bytes is None or microbatches * stage.activation_bytes <= stage.memory_limit_bytes:
        return microbatches
    return int(stage.memory_limit_bytes // stage.activation_bytes)
