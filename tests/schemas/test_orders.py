"""Orders: the strict text form of a worker's operations."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtk.schemas import orders as orders_module
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.orders import (
    KINDS,
    Operation,
    check_order_text,
    parse_columns,
    parse_operation,
    parse_order,
    print_operation,
    print_order,
)

# Orders are read at once by numpy, by machine code, or by what that is compiled from.
WAYS = ["numpy", "machine code", "its source"]
OPERATIONS = st.builds(
    Operation, st.sampled_from(["F", "I", "W", "B"]), st.integers(0, 12), st.integers(0, 10**9 - 1), st.none()
)
STAGES = [0, 3, 12]


def _interpreted(kernel: Callable[..., int]) -> Callable[..., int]:
    """A kernel as it stands in the source: it reads lists."""
    return lambda *arguments: kernel(*(one.tolist() for one in arguments[:3]), *arguments[3:])


@contextmanager
def _read_by(way: str) -> Iterator[None]:
    """Orders are read in this way, however short."""
    with patch.object(orders_module, "pays", lambda *_: way != "numpy"):
        if way == "its source":
            with patch.object(orders_module, "compiled", _interpreted):
                yield
        else:
            yield


@given(st.lists(OPERATIONS), st.integers(0, 12))
def test_orders_round_trip(operations: list[Operation], pipeline: int) -> None:
    """Parsing what was printed gives the same operations, whatever the worker's pipeline."""
    text = print_order(operations, pipeline)
    check_order_text(text)
    assert parse_order(text, pipeline) == tuple(operations)


@given(st.text(alphabet="FIWB01239. x", max_size=12))
@example("F1.0")
def test_accepted_text_is_canonical(text: str) -> None:
    """Any text is either refused, or the only text of its operations (but for a prefix that names the own pipeline)."""
    try:
        operations = parse_order(text, pipeline=9999)
    except InvalidInputError:
        return
    assert print_order(operations, 9999) == text.replace("9999.", "")


@given(st.lists(st.tuples(st.lists(OPERATIONS, max_size=8), st.integers(0, 12)), max_size=5), st.sampled_from(WAYS))
def test_columns_hold_what_the_orders_hold(orders: list[tuple[list[Operation], int]], way: str) -> None:
    """Many orders read at once, empty ones among them, hold the operations that they hold one by one."""
    texts, pipelines = [print_order(*order) for order in orders], [pipeline for _, pipeline in orders]
    with _read_by(way):
        counts, *columns, stages, is_paired = parse_columns(
            texts, pipelines, [(number,) for number in range(len(texts))]
        )
    found = [Operation(KINDS[kind], k, j) for kind, k, j in zip(*(column.tolist() for column in columns), strict=True)]
    assert is_paired is None
    assert stages.tolist() == np.repeat(np.arange(len(texts)), counts).tolist()
    parsed = [parse_order(text, pipeline) for text, pipeline in zip(texts, pipelines, strict=True)]
    assert counts.tolist() == [len(operations) for operations in parsed]
    assert found == [operation for operations in parsed for operation in operations]


def _refusal(parse: Callable[[], object]) -> tuple[str, str | None] | None:
    """What an error says, or None where there is none."""
    try:
        parse()
    except InvalidInputError as error:
        return error.what, error.fix
    return None


@given(st.lists(st.text(alphabet="FIWB01239. x٣\n", max_size=7), max_size=4), st.sampled_from(WAYS))
@example(["F0", "F1.0 W0123"], "machine code")
@example(["F1.0 W0123"], "its source")
@example(["F0 ", "F0"], "machine code")
@example(["F0 ", "F0"], "its source")
@example(["", " ", "F0"], "machine code")
@example(["F1234567890"], "machine code")
@example(["F1234567890"], "its source")
def test_columns_refuse_what_orders_refuse(texts: list[str], way: str) -> None:
    """Orders read at once are refused as the first of them that is refused alone, in the same words."""
    alone = [_refusal(partial(parse_order, text, 0)) for text in texts]
    with _read_by(way):
        together = _refusal(partial(parse_columns, texts, [0] * len(texts), [(0,)] * len(texts)))
    assert together == next((refusal for refusal in alone if refusal), None)


@given(st.text(alphabet="FIWB01239. ", max_size=24))
def test_order_is_text_whose_every_token_is_an_operation(text: str) -> None:
    """A text is an order just where it is empty or each part between single spaces is an operation by itself."""
    tokens = text.split(" ") if text else []
    broken = any(token[:1].isdigit() or _refusal(partial(parse_operation, token, 0)) for token in tokens)
    assert (_refusal(partial(check_order_text, text)) is None) == (not broken)


@given(st.lists(st.tuples(OPERATIONS, st.sampled_from(STAGES))), st.integers(0, 12))
def test_orders_of_several_virtual_stages_round_trip(drawn: list[tuple[Operation, int]], pipeline: int) -> None:
    """Each token says its virtual stage, read one by one and as columns."""
    operations = tuple(one._replace(stage=stage) for one, stage in drawn)
    text = print_order(operations, pipeline)
    assert parse_order(text, pipeline, STAGES) == operations
    found = parse_columns([text, "F0"], [pipeline, 0], [STAGES, (7,)])
    assert found.stage.tolist() == [*(one.stage for one in operations), 7]
    assert found.counts.tolist() == [len(operations), 1]
    assert found.microbatch.tolist() == [*(one.microbatch for one in operations), 0]


@pytest.mark.parametrize(
    ("text", "seats", "what"),
    [
        ("0F1 F3", (0, 5), r"'F3' does not say of which virtual stage it is; the worker holds 0, 5 \(operation 1"),
        ("5F3", (5,), "'5F3' names a virtual stage, but the worker holds one only"),
        ("5F3", (0, 3), "'5F3' is of a virtual stage that the worker does not hold"),
        ("05F3", (0, 5), "'05F3' is not an operation"),
        ("5 F3", (0, 5), "'5' is not an operation"),
        ("5F", (0, 5), "'5F' is not an operation"),
        ("5F1.", (0, 5), "'5F1.' is not an operation"),
        ("5f3", (0, 5), "'5f3' is not an operation"),
        ("(5F7;2B3)OVERLAP_F_B", (2, 5), r"'\(5F7;2B3\)OVERLAP_F_B' is not an operation"),
        ("(2B3;5F7)", (2, 5), r"'\(2B3;5F7\)' is no pair of a forward and a full backward"),
        ("1000000000F3", (0, 5), "is not an operation"),
    ],
)
def test_virtual_stages_are_named_where_there_are_several(text: str, seats: tuple[int, ...], what: str) -> None:
    """A prefix stands if and only if its worker holds several virtual stages, this one among them."""
    with pytest.raises(InvalidInputError, match=what):
        check_order_text(text, seats)


def test_prefix_names_another_pipeline() -> None:
    """`F3` is of the worker's own pipeline, `F1.3` of pipeline 1; the own pipeline prints without its prefix."""
    assert parse_order("F0 B1.2", 4) == (Operation("F", 4, 0), Operation("B", 1, 2))
    assert print_operation(Operation("W", 1, 3), 1) == "W3"
    assert print_operation(Operation("W", 1, 3), 0) == "W1.3"
    assert parse_operation("W1.3", 0) == Operation("W", 1, 3)


def test_empty_order_has_no_operations() -> None:
    """A live worker may have nothing to do."""
    assert parse_order("", 0) == ()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("0F1xyz", 0),
        ("F01", 0),
        ("F0  F1", 1),
        (" F0", 0),
        ("F0 ", 1),
        ("F", 0),
        ("1.F2", 0),
        ("F0 f1", 1),
        ("F0 F1.", 1),
        ("F0 F.1", 1),
        ("F0 F1.02", 1),
        ("F0 F1.2.3", 1),
        ("F-1", 0),
        ("F+1", 0),
        ("F1,F2", 0),
        ("F1\tF2", 0),
        ("F1\n", 0),
        ("F٣", 0),
        ("F0 B0 X0", 2),
        ("F1000000000", 0),
        ("F" + "9" * 5000, 0),
    ],
)
def test_anything_else_is_refused_with_its_place(text: str, place: int) -> None:
    """Leading zeros, doubled spaces, lower case, foreign digits and stray characters are errors that name the token."""
    with pytest.raises(InvalidInputError, match=rf"\(operation {place}, counted from 0\)") as caught:
        parse_order(text, 0)
    assert "F3, or F1.3 of pipeline 1" in (caught.value.fix or "")


def test_single_operation_is_read_as_strictly() -> None:
    """One token alone is as strict as an order."""
    for token in ("F01", "F", "", "F0 F1", "00F1"):
        with pytest.raises(InvalidInputError, match="is not an operation"):
            parse_operation(token, 0)
