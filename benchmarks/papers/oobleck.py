"""Oobleck's tables and figures, a function each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from ...planners.oobleck.templates import largest_size, plan_templates
from ...planners.recovery.catalogue import policy
from ...profilers.analytic.costs import ELEMENT_BYTES
from ...schemas.errors import InfeasibleError
from ...schemas.profile import Layer, LayerCost, Profile
from ...schemas.replay import Fleet, Moment
from ...schemas.templates import PipelineTemplate
from .measured import measured, moments_of
from .oobleck_jobs import (
    DEPTHS,
    DTYPE,
    INTERVALS_S,
    MODELS,
    NODES,
    TOLERANCE,
    TRAINED,
    Model,
    Stalling,
    bamboos_job,
    between_failures,
    closed_form,
    costs_of,
    default_stall_s,
    failing,
    job_of,
    microbatch_of,
    per_node,
    profile_of,
    record,
    replayed,
    samples_per_s,
    throughput,
)
from .reproduction import Basis, Claim, Reproduction, Row

PARAMETERS = {"BERT-Large": 340e6, "GPT-2": 345e6, "GPT-3 Medium": 350e6, "GPT-3 2.7b": 2.7e9, "GPT-3 6.7b": 6.7e9}
BAMBOOS = {"BERT-Large": 4, "GPT-2": 1, "GPT-3 Medium": 0, "GPT-3 2.7b": 0, "GPT-3 6.7b": 0}  # 0: not even 1 runs
TRIED = tuple(2**power for power in range(9))
FLEET = Fleet(tuple(f"node{number}" for number in range(NODES)))


def table_1() -> Reproduction:
    """Oobleck Table 1: five models, and the micro-batches that run on 40 GB; the largest one of Bamboo.

    All of it, by computed profiles, rtk's Oobleck planner and its Bamboo.
    """
    return Reproduction(
        "oobleck-table-1",
        "Oobleck Table 1: parameters of the models, and micro-batches that fit into 40 GB",
        ("oobleck", "policies"),
        tuple(row for model in MODELS for row in _rows_of_table_1(model)),
        (
            Claim(
                "with the paper's micro-batches all five models train in two pipelines or more of rtk's Oobleck",
                all(_fits(model, TRAINED[model.name].microbatch) for model in MODELS),
            ),
            Claim(
                "what Bamboo can run falls with the model, as in the paper",
                _bamboos(MODELS[0]) >= _bamboos(MODELS[2]) >= _bamboos(MODELS[3]) >= _bamboos(MODELS[4]),
            ),
        ),
        TABLE_1_METHOD,
        TABLE_1_UNSAID,
    )


TABLE_1_METHOD = (
    "Parameters: those of rtk's computed profile, a head that shares the embedding's matrix counted once. Oobleck: "
    "the largest power of two up to 256 for which rtk's planner finds templates for two pipelines on 30 nodes of 40 "
    "GB, blocks keeping their inputs only; it must be the paper's micro-batch or more. Bamboo: the largest that rtk's "
    "policy of that name holds in some depth of 2 to 15 stages (half as many more with redundancy), all activations "
    "kept."
)
TABLE_1_UNSAID = (
    "Which dimensions the models have: GPT-3's are Brown et al.'s, BERT-Large and GPT-2 24 blocks of 1,024; sequences "
    "of 512, 1,024 and 2,048 tokens. Bytes a parameter: 16 (fp32 with AdamW).",
    "Why Bamboo cannot run what by its parameters, state and activations would fit: its depth, what its framework "
    "keeps beside them, and the allocator's gaps are not said. rtk's Bamboo is made after the papers' description.",
)


def _rows_of_table_1(model: Model) -> Iterator[Row]:
    name = model.name
    yield Row(f"{name}, parameters, 10^6", PARAMETERS[name] / 1e6, _parameters(model) / 1e6, Basis.COMPUTED, 0.05)
    largest = max((tried for tried in TRIED if _fits(model, tried)), default=0)
    yield Row(
        f"{name}, micro-batch of Oobleck", TRAINED[name].microbatch, largest, Basis.PLANNED, 0.0, sense="at least"
    )
    note = "by what it is said to hold, more fits: see Unsaid"
    yield Row(
        f"{name}, largest micro-batch of Bamboo", BAMBOOS[name], _bamboos(model), Basis.PLANNED, 0.0, absolute=True,
        note=note,
    )  # fmt: skip


def _parameters(model: Model) -> float:
    """Of a model whose head has the embedding's matrix."""
    shape, profile = TRAINED[model.name].shape, profile_of(model.name, 1, is_checkpointing=True)
    held = sum(layer.parameter_bytes for layer in profile.layers) / ELEMENT_BYTES[DTYPE]
    return held - shape.vocabulary * shape.width


@cache
def _fits(model: Model, microbatch: int) -> bool:
    """Whether Oobleck's planner finds templates."""
    profile = profile_of(model.name, microbatch, is_checkpointing=True)
    try:
        plan_templates(profile, NODES, 1, 1, largest=largest_size(profile, NODES, 1, 1), gaps=True)
    except InfeasibleError:
        return False
    return True


@cache
def _bamboos(model: Model) -> int:
    """The largest micro-batch of Bamboo; 0: none."""
    return max((tried for tried in TRIED if any(_bamboo_fits(model, tried, depth) for depth in DEPTHS)), default=0)


def _bamboo_fits(model: Model, microbatch: int, depth: int) -> bool:
    try:
        policy("bamboo", job_of(model, "bamboo", depth, microbatch=microbatch)).begin(FLEET)
    except InfeasibleError:
        return False
    return True


MEDIUM, LARGEST = MODELS[2], MODELS[4]
VARUNA_CHECKPOINTS_EVERY = 10  # iterations, section 7.1
ARTIFACT_STALL_S = 10.0  # tools/simulator of the artifact, for GPT-3 6.7b
BY_SIZE = ("Oobleck's stall but for the size", "Oobleck's stall for 10^9 parameters")


def table_2() -> Reproduction:
    """Oobleck Table 2: throughput with a failure every 6 h, 1 h and 10 min, five models, three systems.

    Rows are ratios to the 6 h of the same model and system: of what lies between failures the paper prints nothing.
    """
    rows = [
        *(row for model in MODELS for system in model.printed for row in _by_policy_of_table_2(model, system)),
        _leads_by_policy(),
        *(row for model in MODELS for row in _by_size(model)),
        *(row for model in MODELS for row in _rows_of_table_2(model, "Oobleck", 0.001)),
        *(row for model in MODELS for row in _varuna(model)),
        *(row for model in MODELS[:2] for row in _rows_of_table_2(model, "Bamboo", 0.05)),
        _headline_of_table_2(),
    ]
    return Reproduction(
        "oobleck-table-2",
        "Oobleck Table 2: samples per s at 1 h and 10 min between failures, over those at 6 h",
        ("oobleck", "policies"),
        tuple(rows),
        tuple(_claims_of_table_2()),
        TABLE_2_METHOD,
        TABLE_2_UNSAID,
    )


TABLE_2_METHOD = (
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

TABLE_2_UNSAID = (
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


def _by_policy_of_table_2(model: Model, system: str) -> Iterator[Row]:
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
    for often, paper, ours in _ratios_of_table_2(model, "Oobleck", stall_s):
        yield Row(f"Oobleck, {model.name}, {often}, s by size", paper, ours, Basis.COMPUTED, 0.025, BY_SIZE)


def _rows_of_table_2(model: Model, system: str, tolerance: float) -> list[Row]:
    """With a stall of the model's own."""
    fitted = (stall_of(model, system),)
    return [
        Row(f"{system}, {model.name}, {often}, own s", paper, ours, Basis.COMPUTED, tolerance, fitted)
        for often, paper, ours in _ratios_of_table_2(model, system, model.stalls_s[system])
    ]


def stall_of(model: Model, system: str) -> str:
    """The name of a fitted number."""
    return f"{system}'s stall, {model.name}"


def _ratios_of_table_2(model: Model, system: str, stall_s: float) -> Iterator[tuple[str, float, float]]:
    """How often, the paper's throughput over that at 6 h, and ours."""
    six_hours, *others = model.printed[system]
    ours = _replayed(model, system, stall_s)
    for often, printed in zip(("1 h", "10 min"), others, strict=True):
        yield often, printed / six_hours, ours(often) / ours("6 h")


def _replayed(model: Model, system: str, stall_s: float) -> Callable[[str], float]:
    rate = per_node(between_failures(model.printed[system][0], stall_s))
    return lambda often: replayed(Stalling(rate, stall_s), INTERVALS_S[often])


def _varuna(model: Model) -> Iterator[Row]:
    hour, ten_minutes = _rows_of_table_2(model, "Varuna", 0.05)
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


def _headline_of_table_2() -> Row:
    ours = {system: _replayed(LARGEST, system, LARGEST.stalls_s[system])("10 min") for system in ("Oobleck", "Varuna")}
    fitted = tuple(stall_of(LARGEST, system) for system in ours)
    ratio = ours["Oobleck"] / ours["Varuna"]
    return Row("Oobleck : Varuna, GPT-3 6.7b, 10 min", 29.6, ratio, Basis.COMPUTED, 0.05, fitted)


def _claims_of_table_2() -> Iterator[Claim]:
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
    from ...profilers.analytic.configuration import known_model
    from ...profilers.analytic.costs import MicrobatchShape
    from ...profilers.analytic.estimate import analytic_profile, rates_of
    from ...schemas.gpus import gpu

    device, known = gpu("a40"), known_model("gpt3-6.7b")
    batch = MicrobatchShape(2, known.sequence_length, "fp32")
    profile = analytic_profile(
        "gpt3-6.7b", known.shape, batch, device, rates_of(device, batch.dtype), is_checkpointing=True
    )
    templates = plan_templates(profile, 30, 1, 1, memory_limit_bytes=40e9)
    per_node_s = [1 / (nodes * instantiate(templates, nodes, 512).slowest_s) for nodes in range(15, 31)]
    return max(per_node_s) / min(per_node_s) < 1.035


NAME = "oobleck-table-3"
LAYERS = (24, 32, 64, 96)
# Seconds by nodes and GPUs of a node, for these numbers of layers.
PAPER_S = {
    (8, 1): (0.28, 0.71, 9.65, 68.50),
    (8, 4): (0.41, 1.15, 11.58, 74.56),
    (8, 8): (0.54, 1.50, 20.98, 109.76),
    (16, 1): (3.37, 7.45, 66.35, 540.36),
    (16, 4): (4.56, 10.41, 108.10, 649.67),
    (16, 8): (4.90, 11.78, 176.04, 1213.63),
    (24, 1): (11.35, 30.11, 262.47, 1477.54),
    (24, 4): (14.78, 45.80, 472.53, 2153.84),
    (24, 8): (15.59, 49.25, 520.08, 3297.92),
}
# What an independent build of the authors' planner made of equal layers, F 1 and B 2, nothing for messages: T by its
# own objective, (2 S + k + 1) t instead of the paper's (3 S + k - 1) t; so stages are compared, not T.
STAGES = {(8, 24): 8, (8, 32): 8, (16, 24): 16, (24, 24): 24}


def table_3() -> Reproduction:
    """Oobleck Table 3: seconds to plan a template, 8 to 24 nodes of 1 to 8 GPUs, 24 to 96 layers.

    Recorded times of all cells, and some of the templates planned anew.
    """
    return Reproduction(
        NAME,
        "Oobleck Table 3: s to plan one pipeline template",
        ("oobleck",),
        (*_stages(), *_times()),
        (
            Claim(
                "the templates of all numbers of nodes take no longer than the paper's single one", _all_are_quicker()
            ),
        ),
        TABLE_3_METHOD,
        TABLE_3_UNSAID,
    )


TABLE_3_METHOD = (
    "Times are measured once, on one core, by `benchmarks/oobleck_templates.py` on unlike layers, machine code loaded: "
    "the machine of docs/benchmarks.md, not theirs. Planned anew each time: templates of equal layers and one GPU a "
    "node, which have as many stages as the authors' public planner makes, rebuilt for this comparison."
)
TABLE_3_UNSAID = (
    "The machine, and the profile that is planned for.",
    "The authors' public planner sums times into memory that it never clears, and then returns other plans from run to "
    "run; with that mended its templates have the stages of these rows. rtk's are the optimum of the published "
    "objective, which the published recursion may miss (docs/oobleck.md).",
)


def _times() -> Iterator[Row]:
    for cell in measured(NAME):
        nodes, gpus, layers = cell["nodes"], cell["gpus_per_node"], cell["layers"]
        what = f"{nodes} nodes of {gpus}, {layers} layers, s"
        yield Row(what, _paper_s(nodes, gpus, layers), cell["one_s"], Basis.MEASURED, 0.0, sense="at most")


def _paper_s(nodes: int, gpus: int, layers: int) -> float:
    return PAPER_S[nodes, gpus][LAYERS.index(layers)]


def _stages() -> Iterator[Row]:
    for (nodes, layers), stages in STAGES.items():
        what = f"{nodes} nodes of 1, {layers} equal layers, stages"
        yield Row(what, stages, len(_largest_of_table_3(nodes, layers).stages), Basis.PLANNED, 0.0)


def _largest_of_table_3(nodes: int, layers: int) -> PipelineTemplate:
    """The template of all nodes, of layers that take 1 s forwards and 2 s back."""
    profile = Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),) * layers)
    return plan_templates(profile, nodes, 1, 0, largest=nodes).templates[-1]


def _all_are_quicker() -> bool:
    return all(
        cell["all_s"] <= _paper_s(cell["nodes"], cell["gpus_per_node"], cell["layers"]) for cell in measured(NAME)
    )


@dataclass(frozen=True)
class Unsaved:
    """Varuna whose checkpoints, every two iterations, cost nothing.

    Attributes:
        model: which.
        printed: samples per s at 6 h, 1 h, 10 min.
        stall_s: s of the closed form, fitted.
        restart_s, between: the pause, and A in samples per s, fitted where work since the last checkpoint is lost, too.
    """

    model: Model
    printed: tuple[float, float, float]
    stall_s: float
    restart_s: float
    between: float

    @property
    def stall(self) -> str:
        """The name of a fitted number."""
        return f"Varuna's stall without saving, {self.model.name}"

    @property
    def rolled_back(self) -> tuple[str, str]:
        """Those of two more."""
        return (f"Varuna's restart, {self.model.name}", f"Varuna's A without saving, {self.model.name}")


UNSAVED = (
    Unsaved(MODELS[0], (275.27, 270.81, 245.78), 66.0, 38.0, 276.15),
    Unsaved(MODELS[4], (4.57, 4.00, 0.36), 554.0, 262.0, 4.67),
)
EVERY, SAVED_EVERY = 2, 10  # iterations from one checkpoint to the next, without and with their cost (7.4.3, 7.1)


def table_4() -> Reproduction:
    """Oobleck Table 4: Varuna with and without the cost of saving; a failure every 6 h, 1 h and 10 min, two models.

    Its rows of Varuna and Oobleck are those of Table 2, and judged there.
    """
    rows = [
        row
        for one in UNSAVED
        for row in (
            *_by_policy_of_table_4(one),
            *_by_stall(one),
            *_by_rollback(one),
            *_saved(one),
            _headline_of_table_4(one),
        )
    ]
    return Reproduction(
        "oobleck-table-4",
        "Oobleck Table 4: samples per s of Varuna without and with the cost of saving",
        ("oobleck", "policies"),
        tuple(rows),
        tuple(_claims_of_table_4()),
        TABLE_4_METHOD,
        TABLE_4_UNSAID,
    )


TABLE_4_METHOD = (
    "`by policy`: as there in oobleck-table-2, with checkpoints every two iterations that take no time; nothing "
    "fitted. The other rows, which ask no planner, as in oobleck-table-2. `own s`: a fixed stall, 66 s and 554 s, "
    "fitted to these ratios. `rolled back`: after a failure a restart, and what came after the last checkpoint is "
    "lost, iterations and checkpoints replayed one by one; restart (38 s and 262 s) and A (276.15 and 4.67 samples "
    "per s) are fitted to the row without the cost of saving, two numbers to three. `saved for nothing`: the same "
    "constants, a checkpoint every ten iterations instead of two: nothing is fitted to that row, and it must be above "
    "the paper's, for saving takes time."
)

TABLE_4_UNSAID = (
    "How long saving, loading and restarting take is not printed. What `saved for nothing` is above the paper's is "
    "what saving costs: some 6 % for BERT-Large and 9 % for GPT-3 6.7b at 6 h.",
    "GPT-3 6.7b at 10 min is a matter of single iterations: 0.36 is three of them in all, 0.12 one, within 8,416 to "
    "8,653 s. We count 9,000 s, which is 5 % more, and find three and one.",
)


def _by_policy_of_table_4(one: Unsaved) -> Iterator[Row]:
    six_hours = samples_per_s(one.model, "varuna", "6 h", is_saving=False)
    saved = samples_per_s(one.model, "varuna", "6 h")
    printed = one.printed[0] / one.model.printed["Varuna"][0]
    what = f"{one.model.name}, 6 h, no ckpt over with, by policy"
    yield Row(what, printed, six_hours / saved, Basis.SIMULATED, TOLERANCE)
    for often, paper in zip(("1 h", "10 min"), one.printed[1:], strict=True):
        ours = samples_per_s(one.model, "varuna", often, is_saving=False)
        what = f"{one.model.name}, {often} over 6 h, no ckpt, by policy"
        yield Row(what, paper / one.printed[0], ours / six_hours, Basis.SIMULATED, TOLERANCE, note=_note(often))
        lead = samples_per_s(one.model, "oobleck", often) / ours
        theirs = one.model.printed["Oobleck"][1 if often == "1 h" else 2] / paper
        what = f"{one.model.name}, {often}, Oobleck : Varuna (no ckpt), by policy"
        yield Row(what, theirs, lead, Basis.SIMULATED, TOLERANCE, note=_note(often))


def _note(often: str) -> str:
    return (
        "rtk's default restart takes 300 s, half of each interval; theirs is not printed" if often == "10 min" else ""
    )


def _by_stall(one: Unsaved) -> Iterator[Row]:
    rate = per_node(between_failures(one.printed[0], one.stall_s))
    six_hours, *others = (replayed(Stalling(rate, one.stall_s), interval_s) for interval_s in INTERVALS_S.values())
    for often, printed, ours in zip(("1 h", "10 min"), one.printed[1:], others, strict=True):
        what = f"{one.model.name}, {often} over 6 h, no ckpt, own s"
        yield Row(what, printed / one.printed[0], ours / six_hours, Basis.COMPUTED, 0.05, (one.stall,))


def _by_rollback(one: Unsaved) -> Iterator[Row]:
    for often, printed in zip(INTERVALS_S, one.printed, strict=True):
        is_single = _is_single(printed, one.model, often)
        note = "three iterations here, as there, in a time that is 5 % longer" if is_single else ""
        what = f"{one.model.name}, {often}, no ckpt, rolled back"
        yield Row(what, printed, _rolled_back(one, often, EVERY), Basis.COMPUTED, 0.05, one.rolled_back, note=note)


def _saved(one: Unsaved) -> Iterator[Row]:
    for often, printed in zip(INTERVALS_S, one.model.printed["Varuna"], strict=True):
        note = "one iteration here, as there" if _is_single(printed, one.model, often) else ""
        ours = _rolled_back(one, often, SAVED_EVERY)
        yield Row(
            f"{one.model.name}, {often}, Varuna, saved for nothing",
            printed,
            ours,
            Basis.COMPUTED,
            borrowed=one.rolled_back,
            sense="at least",
            note=note,
        )


def _headline_of_table_4(one: Unsaved) -> Row:
    oobleck, ten_minutes_s = one.model.printed["Oobleck"], INTERVALS_S["10 min"]
    stalls = (one.model.stalls_s["Oobleck"], one.stall_s)
    ours, unsaved = (
        closed_form(between_failures(printed[0], stall_s), stall_s, ten_minutes_s)
        for printed, stall_s in zip((oobleck, one.printed), stalls, strict=True)
    )
    what = f"{one.model.name}, 10 min, Oobleck : Varuna (no ckpt)"
    return Row(
        what,
        oobleck[2] / one.printed[2],
        ours / unsaved,
        Basis.COMPUTED,
        0.05,
        (stall_of(one.model, "Oobleck"), one.stall),
    )


def _rolled_back(one: Unsaved, often: str, every: int) -> float:
    policy = Stalling(per_node(one.between), one.restart_s, iteration_samples=one.model.batch, checkpoint_every=every)
    return replayed(policy, INTERVALS_S[often])


def _is_single(printed: float, model: Model, often: str) -> bool:
    """Whether a cell is a few iterations only."""
    return printed * 15 * INTERVALS_S[often] / model.batch < 5


def _claims_of_table_4() -> Iterator[Claim]:
    saved = [row for one in UNSAVED for row in _saved(one) if not row.note]
    yield Claim(
        "without the time that saving takes, Varuna with a checkpoint every ten iterations is above the paper's "
        "wherever more than single iterations count",
        all(isinstance(row.ours, float) and row.paper is not None and row.ours > row.paper for row in saved),
    )
    yield Claim("and never by more than 15 %", all((row.difference or 0) < 0.15 for row in saved))
    largest = UNSAVED[1]
    yield Claim(
        "at 6 h Varuna without the cost of saving is ahead of Oobleck for GPT-3 6.7b, and behind it at 1 h, as in "
        "the paper",
        _rolled_back(largest, "6 h", EVERY) > largest.model.printed["Oobleck"][0]
        and _rolled_back(largest, "1 h", EVERY) < largest.model.printed["Oobleck"][1],
    )


TRACES = {"EC2 P3": ("scale_p3-trace.csv", 7.7), "GCP": ("scale_gcp-trace.csv", 10.3)}  # file, min between preemptions
SMALL, LARGE = MODELS[:3], MODELS[3:]
UNSAVED_BETWEEN = {one.model: one.between for one in UNSAVED}
CHECKPOINT_EVERY = 10  # iterations, section 7.1
# What changes cost Varuna: a restart, warned in time; the stall of Table 2; a restart from the last checkpoint. Where
# it saves only when warned, its throughput is that without the cost of saving, which Table 4 has for two models.
WARNED, STALLED, FALLEN_BACK, SAVING_LESS = "warned", "stalled", "fallen back", "saving only when warned"

# Throughputs by system under one convention: whether nodes that come cost what a failure costs, and Varuna's way.
Convention = tuple[bool, str]
Throughputs = Mapping[Convention, Mapping[str, float]]


def figure_10() -> Reproduction:
    """Oobleck Figure 10 and Appendix C: two traces of spot instances, five models, Oobleck against Varuna and Bamboo.

    The figure's averages are dotted lines without numbers; the text has 9.1x, 7.7 min and 10.3 min, and who matches
    whom.
    """
    traces = {name: moments_of(file) for name, (file, _) in TRACES.items()}
    found = {(trace, model): _throughputs(model, traces[trace]) for trace, model in product(TRACES, MODELS)}
    rows = [
        *_gaps(traces),
        *_by_policy_of_figure_10(traces),
        *(row for key in found for row in _rows_of_figure_10(*key, found[key])),
        _largest_of_figure_10(found),
    ]
    return Reproduction(
        "oobleck-figure-10",
        "Oobleck Figure 10 and Appendix C: average throughput over spot traces, Oobleck : Varuna and Oobleck : Bamboo",
        ("oobleck", "policies"),
        tuple(rows),
        tuple(_claims_of_figure_10(found)),
        FIGURE_10_METHOD,
        FIGURE_10_UNSAID,
    )


FIGURE_10_METHOD = (
    "`by policy`: the traces of the artifact (15 to 30 nodes) under rtk's own policies, as in oobleck-table-2, "
    "nothing fitted. The other rows ask no planner: the same traces under policies whose constants are those of "
    "Tables 2 and 4: throughput A in proportion to the nodes, and a stall at each change. Each range is over what is "
    "not said: whether nodes that come cost what a failure costs, or nothing; and what a change costs Varuna, which "
    "is warned: a restart only (26 s and 35 s per billion parameters, through the 38 s and 262 s of oobleck-table-4), "
    "the stall of Table 2, or, where it cannot save in time, a restart from a checkpoint made every ten iterations. "
    "Appendix C says that for the three small models it saves in time, so the last is for GPT-3 2.7b and 6.7b only. "
    "For BERT-Large and GPT-3 6.7b, of which Table 4 has the throughput without it, it may also save only when it is "
    "warned."
)

FIGURE_10_UNSAID = (
    "The averages are not printed, so only `matches` (appendix C; taken as 1) and `up to 9.1x on average` (section "
    "1; of which model and against whom is not said) can be compared.",
    "Whether Varuna, once warned of each preemption, still saves every ten iterations. In Table 2 it does, and Oobleck "
    "is ahead by 11 % with BERT-Large however rare failures are (287.10 to 259.57), so that the two cannot match if it "
    "does here. The other reading was added for this reason, once BERT-Large was seen to be at 1.16 without it.",
    "The text says GCP a2-highgpu-1g. The file of that name in the artifact has the time stamps of Bamboo's g4dn "
    "trace on AWS, rescaled to 15 to 30 nodes; 10.3 min between preemptions is that file's, so it is what was "
    "replayed.",
    "The text says 12 hours; the traces last 11.4 h and 10.6 h, and are replayed once.",
    "Varuna `hung` for GPT-3 6.7b, which is no number; a checkpoint of ten iterations (2,550 s) is hardly ever "
    "reached.",
)


def _gaps(traces: Mapping[str, Sequence[Moment]]) -> Iterator[Row]:
    for name, (_, minutes) in TRACES.items():
        times_s = [moment.time_s for moment in traces[name] if moment.lost]
        ours = (times_s[-1] - times_s[0]) / 60 / (len(times_s) - 1)
        yield Row(f"{name}, min between preemptions", minutes, ours, Basis.COMPUTED, 0.02)


def _by_policy_of_figure_10(traces: Mapping[str, Sequence[Moment]]) -> Iterator[Row]:
    most = 0.0
    for (trace, moments), model in product(traces.items(), MODELS):
        ours = {system: _played(model, system.lower(), moments) for system in model.printed}
        for system, samples in ours.items():
            if system == "Oobleck" or not samples:
                continue
            what, lead = f"{trace}, {model.name}, Oobleck : {system}, by policy", ours["Oobleck"] / samples
            is_matched = system == "Varuna" and model in SMALL
            note = "rtk's default restart takes 300 s at each change; theirs is not printed" if is_matched else ""
            tolerance = TOLERANCE if is_matched else None
            yield Row(what, 1.0 if is_matched else None, lead, Basis.SIMULATED, tolerance, note=note)
            most = max(most, lead if model is not MODELS[-1] else 0.0)
    what = "up to, on average, by policy, Varuna with GPT-3 6.7b apart"
    yield Row(what, 9.1, most, Basis.SIMULATED, TOLERANCE, note=APART)


APART = "with GPT-3 6.7b, where theirs hung, it would be within 1 % on EC2's trace, which is chance"


def _played(model: Model, system: str, moments: Sequence[Moment]) -> float:
    """Samples per s of one of rtk's policies."""
    job = bamboos_job(model) if system == "bamboo" else job_of(model, system)
    if system == "varuna":
        job = job_of(model, system, costs=costs_of(model))
    done = record(system, job, moments, moments[-1].time_s)
    return done.microbatches * microbatch_of(model, system) / done.lasts_s


def _throughputs(model: Model, moments: Sequence[Moment]) -> Throughputs:
    ways = [WARNED, STALLED]
    if model not in SMALL:
        ways.append(FALLEN_BACK)
    if model in UNSAVED_BETWEEN:
        ways.append(SAVING_LESS)
    return {
        (joins, way): {
            system: throughput(_policy(model, system, joins, way), moments, moments[-1].time_s)
            for system in model.printed
        }
        for joins, way in product((False, True), ways)
    }


def _policy(model: Model, system: str, joins: bool, way: str) -> Stalling:
    rate = per_node(between_failures(model.printed[system][0], model.stalls_s[system]))
    stall_s = model.stalls_s[system] if system != "Varuna" or way == STALLED else _restart_s(model)
    if system == "Varuna" and way == SAVING_LESS:
        rate = per_node(UNSAVED_BETWEEN[model])
    if system == "Varuna" and way == FALLEN_BACK:
        return Stalling(rate, stall_s, stall_s * joins, model.batch, CHECKPOINT_EVERY)
    return Stalling(rate, stall_s, stall_s * joins)


def _restart_s(model: Model) -> float:
    """Varuna's, by the model's size: the line through the 38 s and 262 s that are fitted in oobleck.py."""
    return 26.0 + 35.2 * model.billions


def _rows_of_figure_10(trace: str, model: Model, found: Throughputs) -> Iterator[Row]:
    name = f"{trace}, {model.name}, Oobleck : "
    varuna = _range(_ratios_of_figure_10(found, "Varuna"))
    if model not in SMALL:
        yield Row(
            f"{name}Varuna", None, varuna, Basis.COMPUTED, borrowed=_borrowed(model, "Varuna"), note=_stops(found)
        )
    else:
        yield Row(f"{name}Varuna", 1.0, varuna, Basis.COMPUTED, 0.1, borrowed=_borrowed(model, "Varuna"))
    if "Bamboo" in model.printed:
        yield Row(
            f"{name}Bamboo",
            None,
            _range(_ratios_of_figure_10(found, "Bamboo")),
            Basis.COMPUTED,
            borrowed=_borrowed(model, "Bamboo"),
        )


def _borrowed(model: Model, rival: str) -> tuple[str, ...]:
    """What was fitted to Tables 2 and 4: stalls of both, and the restart of Varuna, a line through two models'."""
    restarts = tuple(one.rolled_back[0] for one in UNSAVED) if rival == "Varuna" else ()
    return (stall_of(model, "Oobleck"), stall_of(model, rival), *restarts)


def _stops(found: Throughputs) -> str:
    stops = any(one["Varuna"] == 0 for one in found.values())
    return "or Varuna gets nowhere, where it falls back to a checkpoint at each change" if stops else ""


def _ratios_of_figure_10(found: Throughputs, system: str) -> dict[Convention, float]:
    """Of Oobleck to another, where the other one commits anything."""
    return {convention: one["Oobleck"] / one[system] for convention, one in found.items() if one[system]}


def _range(ratios: Mapping[Convention, float]) -> tuple[float, float]:
    return min(ratios.values()), max(ratios.values())


def _largest_of_figure_10(found: Mapping[tuple[str, Model], Throughputs]) -> Row:
    """Over traces, models and systems but Varuna with GPT-3 6.7b, under each convention."""
    ratios: dict[Convention, float] = {}
    for (_, model), throughputs in found.items():
        for system in model.printed:
            if system != "Oobleck" and model is not MODELS[-1]:
                for convention, ratio in _ratios_of_figure_10(throughputs, system).items():
                    if convention[1] != SAVING_LESS:  # which is known of one of these models only
                        ratios[convention] = max(ratio, ratios.get(convention, 0.0))
    fitted = tuple(dict.fromkeys(name for model in MODELS[:-1] for name in _borrowed(model, "Varuna")))
    return Row(
        "up to, on average, Varuna with GPT-3 6.7b apart", 9.1, _range(ratios), Basis.COMPUTED, 0.1, borrowed=fitted
    )


def _claims_of_figure_10(found: Mapping[tuple[str, Model], Throughputs]) -> Iterator[Claim]:
    each = [one for throughputs in found.values() for one in throughputs.values()]
    yield Claim(
        "Oobleck is ahead of Varuna, and Varuna of Bamboo, on both traces, with every model, under all assumptions "
        "of the ranges",
        all(one["Oobleck"] > one["Varuna"] > one.get("Bamboo", -1.0) for one in each),
    )
    yield Claim(
        "Oobleck's lead over Varuna grows with the model: GPT-3 2.7b and 6.7b above GPT-2 and GPT-3 Medium",
        all(
            _grows_of_figure_10(found, trace, convention)
            for trace in TRACES
            for convention in product((False, True), (WARNED, STALLED))
        ),
    )
    fallen = [found[trace, MODELS[-1]][joins, FALLEN_BACK] for trace, joins in product(TRACES, (False, True))]
    yield Claim(
        "where Varuna falls back to checkpoints, GPT-3 6.7b comes to less than a tenth of Oobleck's on both traces; "
        "in the paper it hung",
        all(one["Varuna"] < 0.1 * one["Oobleck"] for one in fallen),
    )


def _grows_of_figure_10(found: Mapping[tuple[str, Model], Throughputs], trace: str, convention: Convention) -> bool:
    leads = [one["Oobleck"] / one["Varuna"] for one in (found[trace, model][convention] for model in MODELS)]
    return min(leads[3:]) > max(leads[1:3])


SHOWN = (MODELS[0], MODELS[4])
SYSTEMS = ("oobleck", "varuna", "bamboo")
EFFECTIVE, WASTED, REDUNDANT = 0.75, 0.95, 0.5
RECONFIGURING = ("detecting", "planning", "copying", "restarting")


def figure_11() -> Reproduction:
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
                all(_grows_of_figure_11(model, system) for model, system in product(SHOWN, SYSTEMS[:2])),
            ),
        ),
        FIGURE_11_METHOD,
        FIGURE_11_UNSAID,
    )


FIGURE_11_METHOD = (
    "`rtk replay` as in oobleck-table-2, `by policy`: 30 nodes, of which 15 fail one by one; each second goes to work "
    "that counts, to work that is lost, to noticing, copying and restarting, or to checkpoints. Nothing is fitted but "
    "what says `by its stall`: 1 - s / D with oobleck-table-2's 11 s and 110.5 s."
)
FIGURE_11_UNSAID = (
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


def _grows_of_figure_11(model: Model, system: str) -> bool:
    shares = [_share(model, system, often) for often in INTERVALS_S]
    return shares == sorted(shares, reverse=True)
