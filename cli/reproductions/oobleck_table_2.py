"""Oobleck Table 2: throughput with a failure every 6 h, 1 h and 10 min, five models, three systems.

Rows are ratios to the 6 h of the same model and system: of what lies between failures the paper prints nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from .oobleck_policies import TOLERANCE, samples_per_s
from .oobleck_stalls import (
    INTERVALS_S,
    MODELS,
    Model,
    Stalling,
    between_failures,
    closed_form,
    default_stall_s,
    per_node,
    replayed,
)
from .reproduction import Basis, Claim, Reproduction, Row

MEDIUM, LARGEST = MODELS[2], MODELS[4]
VARUNA_CHECKPOINTS_EVERY = 10  # iterations, section 7.1
ARTIFACT_STALL_S = 10.0  # tools/simulator of the artifact, for GPT-3 6.7b
BY_SIZE = ("Oobleck's stall but for the size", "Oobleck's stall for 10^9 parameters")


def reproduce() -> Reproduction:
    """Oobleck Table 2: throughput with a failure every 6 h, 1 h and 10 min, five models, three systems.

    Rows are ratios to the 6 h of the same model and system: of what lies between failures the paper prints nothing.
    """
    rows = [
        *(row for model in MODELS for system in model.printed for row in _by_policy(model, system)),
        _leads_by_policy(),
        *(row for model in MODELS for row in _by_size(model)),
        *(row for model in MODELS for row in _rows(model, "Oobleck", 0.001)),
        *(row for model in MODELS for row in _varuna(model)),
        *(row for model in MODELS[:2] for row in _rows(model, "Bamboo", 0.05)),
        _headline(),
    ]
    return Reproduction(
        "oobleck-table-2",
        "Oobleck Table 2: samples per s at 1 h and 10 min between failures, over those at 6 h",
        ("oobleck", "policies"),
        tuple(rows),
        tuple(_claims()),
        METHOD,
        UNSAID,
    )


METHOD = (
    "`by policy`: `rtk replay` with rtk's own oobleck, varuna and bamboo on computed profiles of A40s, micro-batches "
    "as in Table 1, its default costs of changes (restarts of 300 s, from another cluster), and Varuna's checkpoints "
    "every ten iterations; nothing is fitted, and samples per s at 6 h are beside the paper's. The other rows ask no "
    "planner: X(D) = A (1 - min(s, D) / D), replayed by the engine of `rtk replay`: of 30 nodes one is lost at the "
    "beginning and one more every D, 15 in all; each failure stops training for s; throughput is in proportion to the "
    "nodes. A cancels in ratios to 6 h, so each 1 h and 10 min is told from 6 h with s alone. `own s`: fitted for "
    "each model and system, to these very ratios: 11, 6, 12.5, 34 and 110.5 s for Oobleck, 215, 119, 183, 571 and 583 "
    "s for Varuna, 58 and 52 s for Bamboo. `s by size`: 5 s and 14 s per billion parameters, two parameters fitted to "
    "Oobleck's ten ratios."
)

UNSAID = (
    "What a failure costs is printed nowhere, and neither is throughput without failures, so A cannot be derived; "
    "from 6 h it is 287.25, 85.61, 29.32, 7.30 and 4.35 samples per s for Oobleck.",
    "The text says that Bamboo and Oobleck lose up to one iteration at a failure (7.4.2). GPT-3 Medium's takes 280 "
    "s, and its stall is 12.5 s: half an iteration is not in the averages.",
    "SlipStream's measurements of Oobleck want another stall: half an iteration and 90 s per billion parameters, "
    "which is 700 s for GPT-3 6.7B (slipstream-table-1), against 110 s here. Both papers cannot be met with one "
    "constant.",
    "0.12 and 0.36 are 1 and 3 iterations of 1,024 samples in 8,416 to 8,653 s; with one iteration more or less they "
    "would be 0.24 or 0, and 0.48 or 0.24. On the 0.12 rests the 29.6 of the abstract.",
    "When the first failure comes is not said. In the artifact's traces it comes after one interval; then that "
    "interval alone would give Varuna 0.65 for GPT-3 2.7b at 10 min, and the paper prints 0.36. We let it come at "
    "the beginning.",
)


def _by_policy(model: Model, system: str) -> Iterator[Row]:
    six_hours, *others = model.printed[system]
    ours = samples_per_s(model, system.lower(), "6 h")
    yield Row(f"{system}, {model.name}, 6 h, samples per s, by policy", six_hours, ours, Basis.SIMULATED)
    for often, printed in zip(("1 h", "10 min"), others, strict=True):
        ratio = samples_per_s(model, system.lower(), often) / ours
        note = NOT_BY_POLICY[system] if abs(ratio / (printed / six_hours) - 1) > TOLERANCE else ""
        what = f"{system}, {model.name}, {often}, by policy"
        yield Row(what, printed / six_hours, ratio, Basis.SIMULATED, TOLERANCE, note=note)


NOT_BY_POLICY = {
    "Oobleck": "an iteration of 8,192 samples takes two minutes here, and half of one is lost at each failure, which "
    "is 10 % of ten minutes by itself; the printed averages have no room for that (what is not said)",
    "Varuna": "what a restart and a checkpoint cost there is not printed; with rtk's defaults a restart takes 300 s, "
    "and where ten iterations outlast 10 min hardly anything is ever saved",
}


def _leads_by_policy() -> Row:
    """At 1 h, for at 10 min Varuna commits nothing by policy."""
    ours, theirs = (samples_per_s(LARGEST, system, "1 h") for system in ("oobleck", "varuna"))
    printed = LARGEST.printed["Oobleck"][1] / LARGEST.printed["Varuna"][1]
    return Row("Oobleck : Varuna, GPT-3 6.7b, 1 h, by policy", printed, ours / theirs, Basis.SIMULATED, TOLERANCE)


def _by_size(model: Model) -> Iterator[Row]:
    stall_s = default_stall_s(model)
    for often, paper, ours in _ratios(model, "Oobleck", stall_s):
        yield Row(f"Oobleck, {model.name}, {often}, s by size", paper, ours, Basis.COMPUTED, 0.025, BY_SIZE)


def _rows(model: Model, system: str, tolerance: float) -> list[Row]:
    """With a stall of the model's own."""
    fitted = (stall_of(model, system),)
    return [
        Row(f"{system}, {model.name}, {often}, own s", paper, ours, Basis.COMPUTED, tolerance, fitted)
        for often, paper, ours in _ratios(model, system, model.stalls_s[system])
    ]


def stall_of(model: Model, system: str) -> str:
    """The name of a fitted number."""
    return f"{system}'s stall, {model.name}"


def _ratios(model: Model, system: str, stall_s: float) -> Iterator[tuple[str, float, float]]:
    """How often, the paper's throughput over that at 6 h, and ours."""
    six_hours, *others = model.printed[system]
    ours = _replayed(model, system, stall_s)
    for often, printed in zip(("1 h", "10 min"), others, strict=True):
        yield often, printed / six_hours, ours(often) / ours("6 h")


def _replayed(model: Model, system: str, stall_s: float) -> Callable[[str], float]:
    rate = per_node(between_failures(model.printed[system][0], stall_s))
    return lambda often: replayed(Stalling(rate, stall_s), INTERVALS_S[often])


def _varuna(model: Model) -> Iterator[Row]:
    hour, ten_minutes = _rows(model, "Varuna", 0.05)
    if model is not LARGEST:
        yield from (hour, ten_minutes)
        return
    note = "no s fits 1 h and 10 min at once (1,130 s would fit 1 h, and leave nothing at 10 min); the next row does"
    yield replace(hour, tolerance=None, note=note)
    six_hours, one_hour, _ = model.printed["Varuna"]
    commits = VARUNA_CHECKPOINTS_EVERY * model.batch / INTERVALS_S["1 h"] / six_hours
    why = "ten iterations take 2,550 s, so one checkpoint is all that an hour can keep"
    yield Row("Varuna, GPT-3 6.7b, 1 h, one checkpoint", one_hour / six_hours, commits, Basis.COMPUTED, 0.05, note=why)
    yield ten_minutes


def _headline() -> Row:
    ours = {system: _replayed(LARGEST, system, LARGEST.stalls_s[system])("10 min") for system in ("Oobleck", "Varuna")}
    fitted = tuple(stall_of(LARGEST, system) for system in ours)
    ratio = ours["Oobleck"] / ours["Varuna"]
    return Row("Oobleck : Varuna, GPT-3 6.7b, 10 min", 29.6, ratio, Basis.COMPUTED, 0.05, fitted)


def _claims() -> Iterator[Claim]:
    yield Claim(
        "the closed form and the replay agree within 0.1 % in all cells of Oobleck and Varuna",
        all(abs(ours / formula - 1) < 1e-3 for ours, formula in _both_ways()),
    )
    yield Claim("in every cell of ours the systems stand in the paper's order", all(map(_has_their_order, MODELS)))
    yield Claim(
        "half an iteration lost at each failure cannot be: GPT-3 Medium at 10 min would be 21 % too low",
        _off(MEDIUM, MEDIUM.batch / MEDIUM.printed["Oobleck"][0] / 2) < -0.2,
    )
    yield Claim(
        "nor the constants of the artifact's simulator: with its 10 s GPT-3 6.7b at 10 min would be 20 % too high",
        _off(LARGEST, ARTIFACT_STALL_S) > 0.19,
    )
    yield Claim(
        "ten iterations, after which Varuna is said to save, outlast 10 min for four models of five, whose "
        "throughput would then be 0; the paper prints none that is 0",
        sum(_ten_iterations_s(model) > INTERVALS_S["10 min"] for model in MODELS) == 4,
    )
    yield Claim(
        "throughput is in proportion to nodes: pipelines that rtk's Oobleck planner makes for GPT-3 6.7b on 15 to 30 "
        "A40s (computed profile) are within 3 % of it",
        _is_in_proportion(),
    )


def _both_ways() -> Iterator[tuple[float, float]]:
    for model in MODELS:
        for system in ("Oobleck", "Varuna"):
            stall_s = model.stalls_s[system]
            between, ours = between_failures(model.printed[system][0], stall_s), _replayed(model, system, stall_s)
            for often, interval_s in INTERVALS_S.items():
                yield ours(often), closed_form(between, stall_s, interval_s)


def _has_their_order(model: Model) -> bool:
    for index, interval_s in enumerate(INTERVALS_S.values()):
        ours = {
            system: closed_form(
                between_failures(printed[0], model.stalls_s[system]), model.stalls_s[system], interval_s
            )
            for system, printed in model.printed.items()
        }
        theirs = {system: printed[index] for system, printed in model.printed.items()}
        if sorted(ours, key=ours.__getitem__) != sorted(theirs, key=theirs.__getitem__):
            return False
    return True


def _off(model: Model, stall_s: float) -> float:
    """How far Oobleck's 10 min would be off with another stall, told from 6 h."""
    six_hours, _, ten_minutes = model.printed["Oobleck"]
    return closed_form(between_failures(six_hours, stall_s), stall_s, INTERVALS_S["10 min"]) / ten_minutes - 1


def _ten_iterations_s(model: Model) -> float:
    return VARUNA_CHECKPOINTS_EVERY * model.batch / model.printed["Varuna"][0]


def _is_in_proportion() -> bool:
    from ...planners.oobleck.instantiation import instantiate
    from ...planners.oobleck.templates import plan_templates
    from ...profilers.analytic.catalogue import known_model
    from ...profilers.analytic.costs import Batch
    from ...profilers.analytic.estimate import analytic_profile, rates_of
    from ...schemas.gpus import gpu

    device, known = gpu("a40"), known_model("gpt3-6.7b")
    batch = Batch(2, known.sequence_length, "fp32")
    profile = analytic_profile(
        "gpt3-6.7b", known.shape, batch, device, rates_of(device, batch.dtype), is_checkpointing=True
    )
    templates = plan_templates(profile, 30, 1, 1, memory_limit_bytes=40e9)
    per_node_s = [1 / (nodes * instantiate(templates, nodes, 512).slowest_s) for nodes in range(15, 31)]
    return max(per_node_s) / min(per_node_s) < 1.035
