"""What is wrong for one rank, before it is connected or after, ends all of them within two seconds, with its words."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._C._distributed_c10d import HashStore

from rtk.runners.torch.refusals import Refusals
from rtk.runners.torch.runner import PlanRunner
from rtk.schemas.errors import InvalidInputError, RtkError

from .scripted import plan_of

PLAN = plan_of(3, 1, 2)


class Odd(nn.Module):
    """Works until something is to go wrong."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        raise ValueError("a layer of mine is broken")


def layers(broken: int | None = None) -> list[nn.Module]:
    return [Odd() if place == broken else nn.Linear(3, 3) for place in range(6)]


def data(rows: int = 2) -> list[Any]:
    return [(torch.randn(2, 3), torch.randn(2, 3)) for _ in range(rows)]


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters)


def no_optimizer(parameters: Any) -> torch.optim.Optimizer:
    raise TypeError("an optimizer of mine is broken")


def run(one: int, **wrong: Any) -> tuple[list[BaseException], float]:
    """What three ranks end with of which one is wrong, and in what time after the last of them has begun."""
    store, ended = HashStore(), dict[int, BaseException]()

    def work(rank: int) -> None:
        own = wrong if rank == one else {}
        try:
            runner = PlanRunner(
                PLAN,
                own.get("layers", layers()),
                own.get("loss", F.mse_loss),
                own.get("optimizer", adamw),
                rank=rank,
                world_size=3,
                store=store,
            )
            for number in range(3):
                runner.step(own.get("data", data)() if number == own.get("when", 0) else data())
        except BaseException as error:
            ended[rank] = error

    torch.set_num_threads(1)
    adamw(layers()[0].parameters()).step()  # torch imports half of itself for the first one
    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(3)]
    begun_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(ended) == 3, "a rank hangs"
    return [ended[rank] for rank in range(3)], time.monotonic() - begun_s


class BrokenRows(list[Any]):
    def __getitem__(self, number: Any) -> Any:
        raise OSError("a disk of mine is broken")


def no_loss(output: torch.Tensor, target: torch.Tensor) -> Any:
    return "a loss of mine is broken"


CASES: Sequence[tuple[int, dict[str, Any], str]] = [
    (1, {"optimizer": no_optimizer}, "an optimizer of mine is broken"),
    (0, {"layers": layers(1)}, "a layer of mine is broken"),
    (1, {"layers": layers(2)}, "a layer of mine is broken"),
    (1, {"layers": layers()[:-1]}, "places 6 layers, the model has 5"),
    (2, {"loss": no_loss}, "the loss is a str"),
    (0, {"data": BrokenRows}, "a disk of mine is broken"),
    (2, {"data": BrokenRows, "when": 1}, "a disk of mine is broken"),
    (0, {"data": lambda: [data(1)[0], (torch.randn(2, 4), None)], "when": 2}, "the inputs of micro-batch 1 are"),
]


@pytest.mark.parametrize(("one", "wrong", "words"), CASES, ids=[f"{words} {one}" for one, _, words in CASES])
def test_all_ranks_end_with_the_words_of_the_one(one: int, wrong: dict[str, Any], words: str) -> None:
    """Its own error is what it was; the others' are wrong input, and say the same."""
    errors, took_s = run(one, **wrong)
    assert all(words in str(error) for error in errors)
    assert all(isinstance(error, InvalidInputError) for rank, error in enumerate(errors) if rank != one)
    if not isinstance(errors[one], RtkError):
        said = f"worker 0/{one} cannot go on: {type(errors[one]).__name__}"
        assert all(said in str(error) for rank, error in enumerate(errors) if rank != one)
    assert took_s < 2


def test_whoever_waits_for_nobody_hears_nothing() -> None:
    """Where all go well nothing is said, and an error that another rank told is not told again."""
    store = HashStore()
    ranks = [Refusals(store, rank, 2, f"0/{rank}") for rank in range(2)]
    store.set("key", "value")
    with ranks[0].telling():
        assert ranks[0].get("key") == b"value"
    assert not store.check(["rtk/refused"])
