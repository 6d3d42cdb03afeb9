"""How fast a template is: the time of its 1F1B pipeline as a straight line over its micro-batches.

Oobleck (section 4.2.2) distributes micro-batches by the time of one, and chooses templates by a formula (section 4.1.2)
that splits an iteration into filling, steady state and draining. Both differ from what the pipeline does: the formula
lies below the true time where stages behind the slowest are light, and knows no links. So we time the 1F1B orders,
links and memory limits included, as the simulator would, at two numbers of micro-batches, and draw the line through
both. Without links it is exact once the pipeline is full. With them micro-batches leave a full pipeline in bursts, S at
a time, and the line is their mean; both numbers lie whole bursts apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ...schemas.kernels import Floats, Ints, MutableFloats, kernel
from ...schemas.plan import Link, Stage
from ...schemas.templates import PipelineTemplate
from ..batch.pace import Pace
from ..scheduling.forms import Form, pays
from ..scheduling.limits import most_in_flight

FULL, LONG = 2, 6  # micro-batches a stage at which a pipeline is timed
# Plain Python times so many operations while the machine code is loaded.
INTERPRETED_OPERATIONS = 1_000_000


def paces_of(templates: Sequence[PipelineTemplate]) -> list[Pace]:
    """The pace of each template; all-reduce and optimizer step are not in it.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    operations = sum(2 * (FULL + LONG) * len(template.stages) ** 2 for template in templates)
    form = Form(pays(one_iteration_s, operations, INTERPRETED_OPERATIONS))
    return [_pace(form, template.stages, template.links) for template in templates]


def stage_ends_s(stages: Sequence[Stage], links: Sequence[Link], microbatches: int) -> tuple[float, ...]:
    """When each stage of a pipeline has done its micro-batches, all-reduce and optimizer step not counted, in s.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    operations = 2 * microbatches * len(stages)
    form = Form(pays(one_iteration_s, operations, INTERPRETED_OPERATIONS))
    warm_ups = [min(microbatches, most) for most in warm_ups_of(stages)]
    _, ends_s = _run(form, _costs(form, stages, links, warm_ups), warm_ups, microbatches)
    return tuple(map(float, ends_s))


def _pace(form: Form, stages: Sequence[Stage], links: Sequence[Link]) -> Pace:
    depth = len(stages)
    warm_ups = warm_ups_of(stages)
    costs = _costs(form, stages, links, warm_ups)
    full_s, long_s = (_run(form, costs, warm_ups, microbatches)[0] for microbatches in (FULL * depth, LONG * depth))
    per_microbatch_s = (long_s - full_s) / ((LONG - FULL) * depth)
    return Pace(max(0.0, full_s - FULL * depth * per_microbatch_s), per_microbatch_s)


def _costs(form: Form, stages: Sequence[Stage], links: Sequence[Link], warm_ups: Sequence[int]) -> tuple[Any, ...]:
    return (
        form.ints(warm_ups),
        form.floats([stage.duration_s("F") for stage in stages]),
        form.floats([stage.duration_s("B") for stage in stages]),
        form.floats([*(link.delay_s for link in links), 0.0]),
    )


def _run(form: Form, costs: tuple[Any, ...], warm_ups: Sequence[int], microbatches: int) -> tuple[float, Any]:
    """How long an iteration takes, and when each stage is done, in s."""
    depth = len(warm_ups)
    free_s, back_s, sent_s = map(form.float_space, (depth, depth, depth * warm_ups[0]))
    return form.kernel(one_iteration_s)(microbatches, *costs, free_s, back_s, sent_s), free_s


def warm_ups_of(stages: Sequence[Stage]) -> list[int]:
    """The forwards before each stage's first backward, in a 1F1B pipeline that is full.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    depth = len(stages)
    rooms = enumerate(most_in_flight(stages, depth))
    return list(accumulate((min(depth - i, room) for i, room in rooms), min))


@kernel
def one_iteration_s(
    microbatches: int,
    warm_up: Ints,
    forward_s: Floats,
    backward_s: Floats,
    delay_s: Floats,
    free_s: MutableFloats,
    back_s: MutableFloats,
    sent_s: MutableFloats,
) -> float:
    """The time of one 1F1B iteration, in s: round j ends with the backward of micro-batch j at every stage.

    Args:
        microbatches: at least as many as the first warm-up.
        warm_up: forwards before the first backward, of each stage; never more than at the stage before.
        forward_s, backward_s: of each stage.
        delay_s: of the link behind each stage; the last one counts for nothing.
        free_s, back_s: work space of stages, zeros: the last operation's end, and the round's backward's end.
        sent_s: work space of stages x the first warm-up: the ends of the forwards that are in flight.
    """
    stages, ring = len(warm_up), warm_up[0]
    for j in range(microbatches):
        for i in range(stages):
            for n in range(0 if j == 0 else j + warm_up[i] - 1, min(j + warm_up[i], microbatches)):
                start_s = free_s[i]
                if i > 0:
                    start_s = max(start_s, sent_s[(i - 1) * ring + n % ring] + delay_s[i - 1])
                free_s[i] = sent_s[i * ring + n % ring] = start_s + forward_s[i]
        for i in range(stages - 1, -1, -1):
            start_s = free_s[i]
            if i < stages - 1:
                start_s = max(start_s, back_s[i + 1] + delay_s[i])
            free_s[i] = back_s[i] = start_s + backward_s[i]
    return free_s[0]
