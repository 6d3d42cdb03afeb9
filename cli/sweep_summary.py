"""What hundreds of replays say together: per policy, and for each value of what was varied."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, quantiles
from typing import Any

from .sweep_folder import Outcome
from .sweep_spec import Combination

FAULT_FREE = "fault-free"
SEED = "seed"  # repeats a replay; its values mean nothing
LEVEL = 1e-9  # goodputs that differ by less are alike

Swept = Sequence[tuple[Combination, Outcome]]


def summary_of(swept: Swept) -> dict[str, Any]:
    """The whole as JSON.

    `policies`: over all replays the mean, quartiles, least and most goodput of each, the share of replays in which it
    is the best (several may be) of those that do fail, and in how many it cannot train the job, which counts as no
    goodput. `axes`: for each value of what was varied, the mean goodputs. `replays`: each one's file, what was taken
    from which list, and goodputs. `impossible`: those that not even a cluster that never fails can train.
    """
    possible = [(one, outcome) for one, outcome in swept if outcome.impossible is None]
    outcomes = [outcome for _, outcome in possible]
    return {
        "replays": [
            {"file": one.name, "axes": dict(one.axes), "goodput": outcome.goodput} for one, outcome in possible
        ],
        "impossible": [
            {"axes": dict(one.axes), "why": outcome.impossible}
            for one, outcome in swept
            if outcome.impossible is not None
        ],
        "policies": {name: _policy(name, outcomes) for name in _names(outcomes)},
        "axes": {axis: _axis(axis, possible) for axis in _varied(possible)},
    }


def _policy(name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    goodputs = [outcome.goodput[name] for outcome in outcomes]
    lower, median, upper = quantiles(goodputs, n=4, method="inclusive") if len(goodputs) > 1 else goodputs * 3
    return {
        "mean": fmean(goodputs),
        "lower_quartile": lower,
        "median": median,
        "upper_quartile": upper,
        "min": min(goodputs),
        "max": max(goodputs),
        "best_share": fmean(name in _best(outcome) for outcome in outcomes),
        "refusals": sum(name in outcome.refusals for outcome in outcomes),
    }


def _best(outcome: Outcome) -> set[str]:
    """The best policies of a replay, apart from the cluster that never fails, to which nothing compares."""
    rivals = {name: goodput for name, goodput in outcome.goodput.items() if name != FAULT_FREE}
    most = max(rivals.values(), default=0.0)
    return {name for name, goodput in rivals.items() if 0 < goodput >= most - LEVEL}


def _varied(possible: Swept) -> list[str]:
    """What has more than one value, in the file's order."""
    axes = dict.fromkeys(axis for one, _ in possible for axis in one.axes)
    return [
        axis for axis in axes if axis != SEED and len({one.axes[axis] for one, _ in possible if axis in one.axes}) > 1
    ]


def _axis(axis: str, possible: Swept) -> dict[str, dict[str, float]]:
    values = dict.fromkeys(one.axes[axis] for one, _ in possible if axis in one.axes)
    return {value: means_of([outcome for one, outcome in possible if one.axes.get(axis) == value]) for value in values}


def means_of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The mean goodput of each policy."""
    return {name: fmean(outcome.goodput[name] for outcome in outcomes) for name in _names(outcomes)}


def _names(outcomes: Sequence[Outcome]) -> Iterable[str]:
    return outcomes[0].goodput if outcomes else ()


HEADINGS = ("policy", "mean", "25 %", "median", "75 %", "least", "most", "best in", "cannot train")


def policy_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """The table of policies, the best first."""
    keys = ("mean", "lower_quartile", "median", "upper_quartile", "min", "max", "best_share")
    return [
        [name, *(f"{one[key]:.1%}" for key in keys), str(one["refusals"] or "")] for name, one in _best_first(summary)
    ]


def axis_tables(summary: Mapping[str, Any]) -> Iterator[tuple[list[str], list[list[str]]]]:
    """For whatever was varied a table of mean goodputs: a column for each value, a row for each policy, the best first.

    Yields:
        Headings and rows.
    """
    for axis, values in summary["axes"].items():
        rows = [[name, *(f"{means[name]:.1%}" for means in values.values())] for name, _ in _best_first(summary)]
        yield [axis, *values], rows


def _best_first(summary: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return sorted(summary["policies"].items(), key=lambda item: (-item[1]["mean"], item[0]))
