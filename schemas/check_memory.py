"""Whether workers that share the optimizer's state have room for what they hold: a checker beside the planners.

A plan's limits are of activations; what they leave out, its profile says. It shares no code with what planners reckon
limits by, and counts layer by layer.
"""

from .check import Violation
from .plan import Plan, Worker
from .profile import Profile, gradient_share
from .quantities import print_bytes

ROUNDING = 1e-9


def check_memory(plan: Plan, profile: Profile) -> list[Violation]:
    """What does not fit of a plan whose peers share the optimizer's state: now, and where it is whole once one is lost.

    Args:
        plan: valid, with a prediction.
        profile: it was made from, with the memory of the device that it is for.

    Returns:
        The workers that hold more than the device has; none where the plan shares nothing, or nobody says what it has.
    """
    memory_bytes = profile.device.memory_bytes
    if memory_bytes is None or plan.prediction is None or not plan.shards_optimizer:
        return []
    numbers = {
        worker.place: [number for first, stop in plan.layers_of(worker) for number in range(first, stop)]
        for worker in plan.workers
        if not worker.failed
    }
    problems = []
    for n, (worker, peak_bytes) in enumerate(zip(plan.workers, plan.prediction.peak_memory_bytes, strict=True)):
        if worker.failed:
            continue
        own = numbers[worker.place]
        alive = min(sum(layer in others for others in numbers.values()) for layer in own)
        left = max(1, min(alive, len(plan.pipelines) - 1))
        held_bytes = peak_bytes + _static_bytes(plan, worker, profile, own, min(1.0, 2 / left))
        if held_bytes > memory_bytes * (1 + ROUNDING):
            message = (
                f"worker {worker.name} holds {print_bytes(held_bytes)} with {left} left to share the optimizer's "
                f"state, {print_bytes(held_bytes - memory_bytes)} more than the device has"
            )
            problems.append(Violation(f"/workers/{n}", message))
    return problems


def _static_bytes(plan: Plan, worker: Worker, profile: Profile, own: list[int], part: float) -> float:
    """What a GPU of a worker holds all the time, with such a part of the optimizer's state."""
    total, copies = 0.0, 2.0 if plan.optimizer == "staggered" else 1.0  # one is kept to undo a step
    shared = [layer for layer in profile.layers if layer.tied_to is not None]
    for number in own:
        layer = profile.layers[number]
        tied = layer.tied_to in own
        parameters = layer.parameter_bytes - (layer.tied_bytes or 0.0 if tied else 0.0)
        state = layer.state_bytes - (layer.tied_state_bytes or 0.0 if tied else 0.0)
        gradients = parameters * gradient_share(layer)
        total += parameters + gradients + part * (copies * (state - gradients) + (copies - 1) * parameters)
        # A matrix that several layers use is whole with all peers: what was left out of it above.
        users = [layer] if layer.tied_to is not None and not tied else []
        users += [other for other in shared if other.tied_to == number][:1]
        for other in users:
            parameters, state = other.tied_bytes or 0.0, other.tied_state_bytes or 0.0
            moments = max(0.0, state - parameters * gradient_share(other))
            total += (1 - part) * (copies * moments + (copies - 1) * parameters)
    return total / plan.gpus_of(worker)
