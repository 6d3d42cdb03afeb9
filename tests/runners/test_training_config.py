"""What is asked of a training by options: what goes together, what other processes are told, and what is compared."""

from dataclasses import replace
from typing import Any

import pytest

from rtk.runners.training import TrainingConfig, training_of
from rtk.schemas.errors import InvalidInputError

from ..strategies import hand_plan

PLAN = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0"}, 1)
# As an earlier version said it; its workers and logs are those of the same job.
EARLIER = {
    "model": "m", "data": [], "learning_rate": 1e-3, "microbatch_size": None, "sequence_length": None, "paced": False,
    "transport": "auto", "seed": 0,
}  # fmt: skip


def test_what_is_as_usual_is_compared_as_ever() -> None:
    """New settings are only told where they are not as usual: an older version's are the same job's."""
    assert TrainingConfig("m").settings() == EARLIER
    assert TrainingConfig("m", clip_norm=1.0).settings() == EARLIER | {"clip_norm": 1.0}
    assert TrainingConfig("m", eval_data=("e",)).settings() == EARLIER | {"eval_data": ["e"]}


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        *(({"clip_norm": value}, "--clip-norm") for value in (0.0, -1.0, float("inf"), float("nan"))),
        *(({"learning_rate": value}, "--lr") for value in (-1.0, float("inf"), float("nan"))),
        *(({"weight_decay": value}, "--weight-decay") for value in (-0.1, float("nan"))),
        *(({"betas": value}, "--betas") for value in ("0.9", "0.9,1", "0.9,0.95,0.99", "a,b", "-0.1,0.5", "nan,0.9")),
        ({"betas": "0.9,0.95", "optimizer": "sgd"}, "--betas"),
        ({"decay_all": True}, "--decay-all"),
        ({"eval_every": 3}, "--eval-every"),
        ({"eval_microbatches": 3}, "--eval-microbatches"),
        ({"lr_schedule": "cosine", "lr_steps": None}, "--lr-schedule"),
        ({"lr_schedule": "cosine", "lr_steps": 10, "warmup": 10}, "--warmup"),
        ({"lr_steps": 10, "warmup": 11}, "--warmup"),
        ({"lr_schedule": "wsd", "lr_steps": 10, "warmup": 8}, "--warmup"),
        ({"min_lr_ratio": 0.1}, "--min-lr-ratio"),
        *(({"lr_schedule": "wsd", "lr_steps": 9, "min_lr_ratio": one}, "--min-lr-ratio") for one in (-0.1, 1.1)),
        ({"random_weights": True, "weights": "folder"}, "--random-weights"),
    ],
)
def test_what_does_not_go_together_is_refused(wrong: dict[str, Any], where: str) -> None:
    """Before anything is loaded, with the option that is wrong and what to do."""
    with pytest.raises(InvalidInputError) as caught:
        replace(TrainingConfig("m"), **wrong).check()
    assert (caught.value.where, bool(caught.value.fix)) == (where, True)


def test_a_schedule_goes_over_all_iterations() -> None:
    """Unless something else is asked for; where nobody knows how many there are, it must be said."""
    cosine = TrainingConfig("m", lr_schedule="cosine", warmup=2)
    assert training_of(PLAN, cosine, 50).lr_steps == 50
    assert training_of(PLAN, replace(cosine, lr_steps=80), 50).lr_steps == 80
    assert training_of(PLAN, TrainingConfig("m"), 50).lr_steps is None
    assert training_of(PLAN, TrainingConfig("m", warmup=2), 50).lr_steps == 50
    with pytest.raises(InvalidInputError, match="over how many iterations"):
        training_of(PLAN, cosine)
    with pytest.raises(InvalidInputError, match="warm-up of 50 iterations is not over after all 50"):
        training_of(PLAN, replace(cosine, warmup=50), 50)


def test_what_a_machine_has_room_for_is_not_compared() -> None:
    """Workers of one job may keep more or less of an iteration; each is told its limit, nothing included."""
    for limit in (0.0, 1e9):
        training = TrainingConfig("m", log_memory=limit)
        assert training.settings() == EARLIER
        assert training.arguments()[-2:] == ["--log-memory", str(limit)]
    assert "--log-memory" not in TrainingConfig("m").arguments()
