"""Oobleck Figures 1 and 11: where the time goes under Bamboo, Varuna and Oobleck, BERT-Large and GPT-3 6.7b.

The bars have no numbers in the text, which says 75 % and more of Oobleck's time, up to 95 % of Varuna's, and 50 %.
"""

from collections.abc import Iterator, Mapping
from itertools import product

from .oobleck_policies import failing, samples_per_s
from .oobleck_stalls import INTERVALS_S, MODELS, Model, between_failures, closed_form
from .oobleck_table_2 import stall_of
from .reproduction import Basis, Claim, Reproduction, Row

SHOWN = (MODELS[0], MODELS[4])
SYSTEMS = ("oobleck", "varuna", "bamboo")
EFFECTIVE, WASTED, REDUNDANT = 0.75, 0.95, 0.5
RECONFIGURING = ("detecting", "planning", "copying", "restarting")


def reproduce() -> Reproduction:
    """Oobleck Figures 1 and 11: where the time goes under Bamboo, Varuna and Oobleck, BERT-Large and GPT-3 6.7b.

    The bars have no numbers in the text, which says 75 % and more of Oobleck's time, up to 95 % of Varuna's, and 50 %.

    All of it, by `rtk replay` with rtk's own policies.
    """
    return Reproduction(
        "oobleck-figure-11",
        "Oobleck Figures 1 and 11: shares of the time of Bamboo, Varuna and Oobleck, a failure every 6 h, 1 h, 10 min",
        ("oobleck", "policies"),
        (*_said(), *_shares()),
        (
            Claim(
                "in every case Oobleck is at work for a larger share of the time than Varuna",
                all(_share(model, "oobleck", often) > _share(model, "varuna", often) for model, often in _cases()),
            ),
            Claim(
                "rarer failures leave more of the time to work, under every policy",
                all(_grows(model, system) for model, system in product(SHOWN, SYSTEMS[:2])),
            ),
        ),
        METHOD,
        UNSAID,
    )


METHOD = (
    "`rtk replay` as in oobleck-table-2, `by policy`: 30 nodes, of which 15 fail one by one; each second goes to work "
    "that counts, to work that is lost, to noticing, copying and restarting, or to checkpoints. Nothing is fitted but "
    "what says `by its stall`: 1 - s / D with oobleck-table-2's 11 s and 110.5 s."
)
UNSAID = (
    "The bars' numbers. Effective throughput is taken to be the share of the time at work; redundant computation "
    "to be what Bamboo's throughput is below Oobleck's with a failure every 6 h.",
    "More than 50 % redundancy counts smaller micro-batches, deeper pipelines and no checkpointing of activations: in "
    "computed profiles a micro-batch of 4 is nearly as quick a sample as one of 32, and repeated forwards alone are a "
    "quarter; what else Bamboo lost there is not said.",
)


def _cases() -> Iterator[tuple[Model, str]]:
    yield from product(SHOWN, INTERVALS_S)


def _said() -> Iterator[Row]:
    for model, often in _cases():
        what = f"{model.name}, {often}, Oobleck's effective share, by policy"
        ours = _share(model, "oobleck", often)
        yield Row(what, EFFECTIVE, ours, Basis.SIMULATED, 0.0, sense="at least")
    for model in SHOWN:
        stall_s = model.stalls_s["Oobleck"]
        between = between_failures(model.printed["Oobleck"][0], stall_s)
        ours = closed_form(between, stall_s, INTERVALS_S["10 min"]) / between
        what = f"{model.name}, 10 min, Oobleck's effective share, by its stall"
        fitted = (stall_of(model, "Oobleck"),)
        yield Row(what, EFFECTIVE, ours, Basis.COMPUTED, 0.0, borrowed=fitted, sense="at least")
    wasted = max(1 - _share(model, "varuna", often) for model, often in _cases())
    yield Row("the most that Varuna wastes, by policy", WASTED, wasted, Basis.SIMULATED, 0.10)
    bert = SHOWN[0]
    below = 1 - samples_per_s(bert, "bamboo", "6 h") / samples_per_s(bert, "oobleck", "6 h")
    what = "BERT-Large, 6 h, Bamboo's redundancy, by policy"
    yield Row(what, REDUNDANT, below, Basis.SIMULATED, 0.0, sense="at least", note="see Unsaid")


def _shares() -> Iterator[Row]:
    for (model, often), system in product(_cases(), SYSTEMS):
        if system.capitalize() in model.printed:
            for purpose, share in _spent(model, system, often).items():
                yield Row(f"{model.name}, {often}, {system}: {purpose}", None, share, Basis.SIMULATED)


def _spent(model: Model, system: str, often: str) -> Mapping[str, float]:
    """Shares of the time."""
    done = failing(model, system, often)
    shares = {purpose: spent_s / done.lasts_s for purpose, spent_s in done.spent_s.items()}
    return {
        "at work": shares.get("working", 0.0),
        "work lost": shares.get("lost", 0.0),
        "reconfiguring": sum(shares.get(purpose, 0.0) for purpose in RECONFIGURING),
        "checkpoints": shares.get("checkpointing", 0.0),
    }


def _share(model: Model, system: str, often: str) -> float:
    return _spent(model, system, often)["at work"]


def _grows(model: Model, system: str) -> bool:
    shares = [_share(model, system, often) for often in INTERVALS_S]
    return shares == sorted(shares, reverse=True)
