"""Which processes a job has, and what each is called."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rtk.runners.ranks import counted_processes, degree_of, name_of_rank, processes_of
from rtk.runners.training import TrainingConfig, asked_to_shard, training_of
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan, rank_of, worker_of

from ..placed_plans import placed_plans
from ..strategies import hand_plan, plans


def on_gpus(plan: Plan, *degrees: int) -> Plan:
    """The plan with stages on so many GPUs each."""
    made = tuple(
        replace(
            template,
            stages=tuple(
                replace(stage, tensor_parallel=degrees[number % len(degrees)])
                for number, stage in enumerate(template.stages)
            ),
        )
        for template in plan.templates
    )
    return replace(plan, templates=made)


@given(st.one_of(plans(max_pp=3, max_microbatches=3), placed_plans()), st.integers(1, 4))
def test_each_gpu_of_a_live_worker_has_a_process(plan: Plan, degree: int) -> None:
    """Names say worker and rank, in the order of a job's ranks, and each names itself; of one GPU they are as ever."""
    given_ = on_gpus(plan, degree)
    names = processes_of(given_)
    live = [worker.name for worker in plan.live_workers()]
    assert [(worker_of(name), rank_of(name)) for name in names] == [(one, r) for one in live for r in range(degree)]
    assert degree > 1 or list(names) == live
    with pytest.MonkeyPatch.context() as patch:
        for number, name in enumerate(names):
            patch.setenv("RANK", str(number))
            assert name_of_rank(given_, None) == name_of_rank(given_, name) == name
        patch.setenv("RANK", str(len(names)))
        with pytest.raises(InvalidInputError, match=counted_processes(given_)):
            name_of_rank(given_, None)


PLAN = hand_plan({"0/0": "F0 B0", "0/1": "F0 B0"}, 1)


@pytest.mark.parametrize(
    ("degree", "name", "what"),
    [
        (1, "2/0", "the plan has no worker 2/0"),
        (1, "0/0:0", "worker 0/0 is on 1 GPU"),
        (2, "0/0", "worker 0/0 is 2 processes"),
        (2, "0/1:2", "and 0/1:2 is none of them"),
        (4, "0/1:x", "worker 0/1 is 4 processes"),
        (2, "3/3:0", "the plan has no worker 3/3"),
    ],
)
def test_names_that_nobody_has_are_refused(degree: int, name: str, what: str) -> None:
    """With what a name looks like."""
    with pytest.raises(InvalidInputError, match=what) as caught:
        name_of_rank(on_gpus(PLAN, degree), name)
    assert caught.value.where == "--worker"
    assert ("k/i:r" if degree > 1 else "k/i") in (caught.value.fix or "")


def test_workers_may_be_on_unlike_numbers_of_gpus() -> None:
    """Each has as many processes as its stage has GPUs, and nobody shares an optimizer's blocks with another."""
    unlike = on_gpus(PLAN, 2, 1)
    assert (degree_of(unlike), processes_of(unlike)) == (2, ("0/0:0", "0/0:1", "0/1"))
    assert counted_processes(unlike) == "2 live workers on 3 GPUs"
    assert asked_to_shard(unlike, None) is False
    assert [asked_to_shard(PLAN, asked) for asked in (None, True, False)] == [None, True, False]
    with pytest.raises(InvalidInputError, match="no blocks of the optimizer's state in common"):
        asked_to_shard(unlike, True)


@given(placed_plans())
@settings(max_examples=6)  # each is planned; all that counts is that a worker has two stages
def test_stages_of_a_worker_are_on_equally_many(plan: Plan) -> None:
    """Else the plan is refused before anything is loaded, with the worker."""
    assume(len(plan.stages_of(plan.workers[0])) > 1)
    for refuse in (degree_of, lambda plan: training_of(plan, TrainingConfig("m"))):
        with pytest.raises(InvalidInputError, match=r"the stages of worker .* are on 1 and 2 GPUs") as caught:
            refuse(on_gpus(plan, 1, *[2] * 64))
        assert "--tensor-parallel 1" in (caught.value.fix or "")
