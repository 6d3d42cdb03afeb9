"""What the boundary of a stage costs: the same two layers as two stages, and as one.

The layers are as small as can be, so that what is left of the difference is the boundary: the input made a leaf of a
graph of its own, torch's engine started anew, the gradient handed over. It does not depend on the model's sizes, for
nothing is copied. In the difference between a whole model as stages of one layer and as one stage it would be lost: two
runs of the same layers differ by more (docs/profiles-method.md).
"""

import time
from dataclasses import replace
from statistics import median

import torch
from torch import nn

from ..schemas.profile import BoundaryCost, Profile
from ..schemas.protocols import StageFactory
from .measure import Clock, ClockStopwatch, Rehearsal

ROUNDS, WARM_UP = 200, 20  # of a tenth of a millisecond each
WIDTH = 4


def measure_boundary(
    make_stage: StageFactory, *, rounds: int = ROUNDS, clock: Clock = time.perf_counter
) -> BoundaryCost:
    """Measure the boundary of a stage on the CPU.

    Args:
        make_stage: makes of layers what a runner would execute.
        rounds: that count, of which the medians are compared; they take turns.
        clock: seconds.
    """
    watch = ClockStopwatch(clock)
    found: list[list[list[float]]] = [[], []]
    with torch.random.fork_rng(devices=[]):
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
        cuts = (layers[:2], [nn.Sequential(*layers[2:])])
        rehearsals = [Rehearsal(cut, make_stage, None, torch.ones(1, WIDTH), None) for cut in cuts]
        for number in range(WARM_UP + rounds):
            for times_s, rehearsal in zip(found, rehearsals, strict=True):
                round_s = [sum(same) for same in zip(*rehearsal.run(watch), strict=True)]
                if number >= WARM_UP:
                    times_s.append(round_s)
    two_s, one_s = ([median(same) for same in zip(*times_s, strict=True)] for times_s in found)
    forward_s, input_s, weight_s, _, full_s = (max(0.0, two - one) for two, one in zip(two_s, one_s, strict=True))
    return BoundaryCost(forward_s, input_s, weight_s, full_s)


def with_boundary(profile: Profile, boundary: BoundaryCost) -> Profile:
    """A profile whose layers' times contain a boundary each, or as much of it as all of them can contain."""
    return replace(profile, boundary=boundary.within([cost for layer in profile.layers for cost in layer.costs]))
