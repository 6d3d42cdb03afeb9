"""Oobleck Table 1: five models, and the micro-batches that run on 40 GB; the largest one of Bamboo."""

from collections.abc import Iterator
from functools import cache

from ...planners.oobleck.templates import largest_size, plan_templates
from ...planners.policies.catalogue import policy
from ...profilers.analytic.costs import ELEMENT_BYTES
from ...schemas.errors import InfeasibleError
from ...schemas.replay import Fleet
from .oobleck_policies import DEPTHS, DTYPE, TRAINED, job_of, profile_of
from .oobleck_stalls import MODELS, NODES, Model
from .reproduction import Basis, Claim, Reproduction, Row

PARAMETERS = {"BERT-Large": 340e6, "GPT-2": 345e6, "GPT-3 Medium": 350e6, "GPT-3 2.7b": 2.7e9, "GPT-3 6.7b": 6.7e9}
BAMBOOS = {"BERT-Large": 4, "GPT-2": 1, "GPT-3 Medium": 0, "GPT-3 2.7b": 0, "GPT-3 6.7b": 0}  # 0: not even 1 runs
TRIED = tuple(2**power for power in range(9))
FLEET = Fleet(tuple(f"node{number}" for number in range(NODES)))


def reproduce() -> Reproduction:
    """Oobleck Table 1: five models, and the micro-batches that run on 40 GB; the largest one of Bamboo.

    All of it, by computed profiles, rtk's Oobleck planner and its Bamboo.
    """
    return Reproduction(
        "oobleck-table-1",
        "Oobleck Table 1: parameters of the models, and micro-batches that fit into 40 GB",
        ("oobleck", "policies"),
        tuple(row for model in MODELS for row in _rows(model)),
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
        METHOD,
        UNSAID,
    )


METHOD = (
    "Parameters: those of rtk's computed profile, a head that shares the embedding's matrix counted once. Oobleck: "
    "the largest power of two up to 256 for which rtk's planner finds templates for two pipelines on 30 nodes of 40 "
    "GB, blocks keeping their inputs only; it must be the paper's micro-batch or more. Bamboo: the largest that rtk's "
    "policy of that name holds in some depth of 2 to 15 stages (half as many more with redundancy), all activations "
    "kept."
)
UNSAID = (
    "Which dimensions the models have: GPT-3's are Brown et al.'s, BERT-Large and GPT-2 24 blocks of 1,024; sequences "
    "of 512, 1,024 and 2,048 tokens. Bytes a parameter: 16 (fp32 with AdamW).",
    "Why Bamboo cannot run what by its parameters, state and activations would fit: its depth, what its framework "
    "keeps beside them, and the allocator's gaps are not said. rtk's Bamboo is made after the papers' description.",
)


def _rows(model: Model) -> Iterator[Row]:
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
