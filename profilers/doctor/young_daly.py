"""How often to save a checkpoint: the first-order optimum of Young and Daly."""

import math


def best_interval_s(save_s: float, mtbf_s: float) -> float:
    """The interval between checkpoints that loses least: sqrt(2 · save · MTBF).

    Source: J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974; J. T. Daly,
    FGCS 22(3), 2006, whose correction is small where a save is short beside the MTBF.
    """
    return math.sqrt(2 * save_s * mtbf_s)


def lost_share(interval_s: float, save_s: float, mtbf_s: float) -> float:
    """The share of all time that saves and redone work take: save / interval + interval / (2 · MTBF) (Young, 1974)."""
    return save_s / interval_s + interval_s / (2 * mtbf_s)
