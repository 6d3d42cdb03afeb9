"""Groups of options: dataclasses that typer shows one by one, and commands receive whole."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rtk.cli.console import grouped
from rtk.cli.job import command_of
from rtk.cli.options import own_proof
from rtk.cli.verbs import CONTEXT
from rtk.planners.scheduling.assemble import with_prediction
from rtk.planners.scheduling.solve import OPTION
from rtk.runners.training import TrainingConfig
from rtk.schemas.plan import Planner

from ..strategies import hand_plan


@dataclass(frozen=True)
class Plain:
    """What a library takes."""

    size: int = 3
    secret: str = "own"


@dataclass(frozen=True)
class Offered(Plain):
    """What a command offers of it."""

    size: Annotated[int, typer.Option("--size", min=1, help="How large.")] = 3


@dataclass(frozen=True)
class More(Offered):
    """What another offers beside."""

    word: Annotated[str, typer.Option("--word", help="Which.")] = "none"


def run(*arguments: str) -> tuple[int, str]:
    """Run a command with two groups between options of its own."""
    app = typer.Typer()

    @app.command()
    @grouped
    def command(
        name: Annotated[str, typer.Argument()], how: More, last: Annotated[bool, typer.Option("--last")] = False
    ) -> None:
        """Says what it was given."""
        print(name, how, last)

    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


@pytest.mark.parametrize("size", [1, 3, 99])
def test_a_group_is_received_as_its_dataclass(size: int) -> None:
    """Options that are given and those that are not come together, as the class that the parameter names."""
    assert run("a", "--size", str(size), "--last") == (0, f"a More(size={size}, secret='own', word='none') True\n")


def test_options_stand_where_the_group_stands() -> None:
    """The help lists a group's options in the place of its parameter, in the order of its fields."""
    _, told = run("--help")
    assert [word for word in told.split() if word in ("--size", "--word", "--last")] == ["--size", "--word", "--last"]


def test_what_is_not_annotated_is_no_option() -> None:
    """Fields that a command does not offer keep their default, and cannot be given."""
    assert run("a", "--secret", "x")[0] == 2


def test_values_are_checked_as_of_any_option() -> None:
    """What typer refuses of an option it refuses of a group's."""
    assert run("a", "--size", "0")[0] == 2


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"is_asked": False}, "milp was not asked for a proof of its own: 4 operations, no time is left"),
        ({"is_asked": True, "proof": "optimal"}, "milp proves it itself: no orders of this routing take less"),
        ({"is_asked": True, "proof": "bound", "lower_bound_s": 2.5}, "milp itself proves no more than 2.5 s"),
        ({"is_asked": True, "proof": "none"}, "milp itself proves nothing; the bound is the planner's"),
    ],
)
def test_proof_of_the_solver_itself_is_told(own: dict[str, Any], told: str) -> None:
    """Whether it was asked, and what it has proven by itself; of a plan that asked none, nothing is said."""
    plan = with_prediction(hand_plan({"0/0": "F0 B0", "0/1": "F0 B0"}, 1))
    assert list(own_proof(plan)) == []
    option = {"solver": "milp", "operations": 4, **own}
    (line,) = own_proof(replace(plan, planner=Planner("by hand", "1", {OPTION: option})))
    assert line.startswith(told)


shares = st.floats(0, 1, exclude_max=True)
asked = st.builds(
    TrainingConfig,
    model=st.just("m"),
    data=st.lists(st.sampled_from(["a.txt", "b c.bin"]), max_size=2).map(tuple),
    learning_rate=st.floats(0, 10),
    data_dtype=st.sampled_from([None, "uint16"]),
    tokenizer=st.sampled_from([None, "tokens"]),
    eval_data=st.just(("e.txt",)),
    eval_every=st.none() | st.integers(1, 10),
    eval_microbatches=st.none() | st.integers(1, 10),
    optimizer=st.sampled_from(["adamw", "muon"]),
    betas=st.none() | st.tuples(shares, shares).map(lambda pair: f"{pair[0]!r},{pair[1]!r}"),
    weight_decay=st.floats(0, 1),
    decay_all=st.booleans(),
    clip_norm=st.none() | st.floats(1e-9, 1e9),
    lr_schedule=st.sampled_from(["linear", "cosine", "wsd"]),
    lr_steps=st.integers(130, 1000),  # the last fifth falls
    warmup=st.integers(0, 100),
    min_lr_ratio=st.floats(0, 1),
    precision=st.sampled_from([None, "fp32", "bf16-master"]),
    random_weights=st.booleans(),
    shard_optimizer=st.sampled_from([None, True, False]),
)


@given(asked)
def test_another_process_is_asked_the_same(config: TrainingConfig) -> None:
    """Workers that are started with the arguments train the same, and say so."""
    config.check()
    params = command_of("run").make_context("run", ["plan.json", *config.arguments()], **CONTEXT).params
    given = {one.name: params[one.name] for one in fields(TrainingConfig) if one.name in params}
    asked = TrainingConfig(**given)
    assert (asked.settings(), asked.shard_optimizer) == (config.settings(), config.shard_optimizer)
