"""Checkpoint: its document, and what it must not say."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.checkpoint import Checkpoint, CheckpointFile, file_name, missing_layers, print_layers
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import InvalidInputError

SHA256 = "0" * 64


def _file(first: int, stop: int) -> CheckpointFile:
    return CheckpointFile(file_name((first, stop)), (first, stop), SHA256, 8)


WHOLE = Checkpoint(50, 4, SHA256, 0, 8, (_file(0, 2), _file(2, 4)), {"model": "gpt", "lr": 0.1})


@given(st.sets(st.integers(0, 9)), st.integers(0, 10**6))
def test_checkpoints_round_trip(held: set[int], iteration: int) -> None:
    """Whatever layers are held, the document reads back equal, prints as the same bytes, and names the others."""
    files = tuple(_file(layer, layer + 1) for layer in sorted(held))
    gaps = missing_layers(10, (file.layers for file in files))
    assert {layer for first, stop in gaps for layer in range(first, stop)} == set(range(10)) - held
    checkpoint = replace(WHOLE, iteration=iteration, layers=10, files=files, missing=gaps)
    assert parse_document(canonical(checkpoint), Checkpoint, "c") == checkpoint


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (replace(WHOLE, plan="abc"), "/plan"),
        (replace(WHOLE, files=(replace(_file(0, 2), sha256="f"), _file(2, 4))), "/files/0/sha256"),
        (replace(WHOLE, files=(_file(0, 2), replace(_file(2, 4), name="../x"))), "/files/1/name"),
        (replace(WHOLE, files=(_file(0, 2), _file(2, 5))), "/files/1/layers"),
        (replace(WHOLE, files=(_file(2, 2),)), "/files/0/layers"),
        (replace(WHOLE, files=(_file(0, 3), _file(2, 4))), "/files/1/layers"),
        (replace(WHOLE, files=(_file(2, 4), _file(0, 2))), "/files/1/layers"),
        (replace(WHOLE, files=(_file(2, 4),)), "/missing"),
        (replace(WHOLE, missing=((2, 4),)), "/missing"),
    ],
)
def test_contradictions_are_refused(wrong: Checkpoint, where: str) -> None:
    """Names that lead out of the folder, layers that overlap or do not exist, and gaps that are not owned up to."""
    with pytest.raises(InvalidInputError) as caught:
        wrong.validate()
    assert caught.value.where == where


def test_layers_in_words() -> None:
    """Ranges [first, stop) are told with their last layer."""
    assert print_layers(()) == "no layers"
    assert print_layers([(3, 4)]) == "layer 3"
    assert print_layers([(0, 2)]) == "layers 0-1"
    assert print_layers([(0, 2), (4, 5)]) == "layers 0-1 and 4"
    assert print_layers([(0, 2), (4, 5), (7, 9)]) == "layers 0-1, 4 and 7-8"
