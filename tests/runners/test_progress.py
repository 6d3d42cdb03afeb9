"""What is noted of an iteration is what it is: messages within a limit, and sums that are whole or not touched."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.torch.progress import MessageLog
from rtk.schemas.errors import RuntimeFailedError
from rtk.schemas.resumption import MessageKey

from .test_gradients import KINDS, held


@given(st.lists(st.integers(0, 5), max_size=20), st.one_of(st.none(), st.integers(0, 100)))
def test_a_log_holds_the_latest_messages_that_fit(sizes: list[int], limit_bytes: int | None) -> None:
    """The oldest are dropped until the rest fits; those that stay are the very tensors, and their bytes are counted."""
    log = MessageLog(limit_bytes)
    messages: dict[MessageKey, torch.Tensor] = {
        ("activation", 1, number): torch.zeros(size) for number, size in enumerate(sizes)
    }
    for key, message in messages.items():
        log.keep(key, message)
    kept = list(log.keys())
    assert kept == list(messages)[len(sizes) - len(kept) :]
    assert all(log.find(key) is messages[key] for key in kept)
    assert log.held_bytes == sum(messages[key].nbytes for key in kept)
    if limit_bytes is None:
        assert len(kept) == len(sizes)
    else:
        assert log.held_bytes <= limit_bytes
        more = messages[list(messages)[-len(kept) - 1]].nbytes if len(kept) < len(sizes) else limit_bytes + 1
        assert log.held_bytes + more > limit_bytes


def test_a_log_keeps_no_more_than_a_message() -> None:
    """Of a view it has a copy, not all that is around it; and the first of two messages of one name."""
    whole = torch.arange(100.0)
    log = MessageLog()
    log.keep(("gradient", 2, 7), whole[3:6])
    found = log.find(("gradient", 2, 7))
    assert found is not None
    assert torch.equal(found, whole[3:6])
    assert found.untyped_storage().nbytes() == log.held_bytes == 12
    log.keep(("gradient", 2, 7), whole)
    assert log.find(("gradient", 2, 7)) is found


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), st.integers(0, 5))
def test_a_sum_that_breaks_off_changes_nothing(kinds: list[str], lasts: int) -> None:
    """Gradients are summed over all types, or none is: the sum of whoever breaks off is nobody's, nor is its memory."""
    _, gradients = held(kinds, 0, len(kinds))
    views = gradients.of_layers((0, len(kinds)))
    for number, view in enumerate(views, start=1):
        view.fill_(number)
    taken: list[torch.Tensor] = []

    def broken(values: Iterator[bool]) -> None:
        def reduce(tensor: torch.Tensor) -> None:
            taken.append(tensor)
            tensor.mul_(10)
            if not next(values):
                raise RuntimeFailedError("broken off")

        gradients.sum_apart([(view, reduce) for view in views])

    if lasts < len(views):
        with pytest.raises(RuntimeFailedError):
            broken(iter([True] * lasts + [False]))
        assert all(view.eq(number).all() for number, view in enumerate(views, start=1))
        late, before = taken[-1], [view.clone() for view in views]
        broken(iter([True] * len(views)))
        late.fill_(torch.nan)  # gloo writes to it at last
        assert all(torch.equal(view, 10 * other) for view, other in zip(views, before, strict=True))
    broken(iter([True] * len(views)))
    assert all(view.isfinite().all() for view in views)
