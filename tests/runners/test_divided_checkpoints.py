"""Checkpoints of slices and pieces: what ranks and peers wrote together is read at any other degree, or whole."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.checkpoint import MANIFEST, publish, read_manifest
from rtk.runners.torch.checkpoint import read_state, write_part
from rtk.runners.torch.recut import recut
from rtk.runners.torch.saved_tensors import SavedTensors
from rtk.runners.torch.tensor_files import Divisions, State
from rtk.schemas.blocks import piece_name
from rtk.schemas.checkpoint import Checkpoint, CheckpointFile, Portion, missing_layers, whole_layers
from rtk.schemas.documents import write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Layers
from rtk.schemas.slices import TensorCut

PLAN = hashlib.sha256(b"plan").hexdigest()
# Matrices cut by columns, three side by side, by rows, by words of which the last rank has fewer, and by two heads.
CUTS = {
    "qkv.weight": TensorCut(0, 36, 3),
    "qkv.bias": TensorCut(0, 36, 3),
    "proj.weight": TensorCut(1, 12),
    "words.weight": TensorCut(0, 13),
    "keys.weight": TensorCut(0, 8, most=2),
}
SHAPES = {
    "qkv.weight": (36, 5),
    "qkv.bias": (36,),
    "proj.weight": (4, 12),
    "words.weight": (13, 3),
    "keys.weight": (8, 3),
    "norm.weight": (7,),
}


def _cuts_of(layers: range) -> dict[str, TensorCut]:
    return {f"{layer}.{name}": cut for layer in layers for name, cut in CUTS.items()}


def _whole(layers: range) -> State:
    """A model after some steps of AdamW with masters, on one GPU: every number is another one."""
    counter = torch.arange(float(len(layers) * 4000), dtype=torch.float64)
    state: State = {}
    at = 0
    for layer in layers:
        for name, shape in SHAPES.items():
            for key, dtype in (("", torch.bfloat16), ("/exp_avg", torch.float32), ("/master", torch.float32)):
                size = torch.Size(shape).numel()
                state[f"{layer}.{name}{key}"] = (counter[at : at + size] / 7).to(dtype).reshape(shape)
                at += size
            state[f"{layer}.{name}/step"] = torch.tensor(float(at))
        state[f"{layer}.running_mean"] = counter[at : at + 3].clone()
        state[f"{layer}./loss_scale"] = torch.tensor(float(layer))
    return state


def _pieces(state: State, part: int, edges: Mapping[str, list[int]]) -> tuple[State, dict[str, tuple[int, ...]]]:
    """What one of several peers writes: of trained state the numbers between two edges; the first the rest."""
    found: State = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, value in state.items():
        parameter, _, key = name.partition("/")
        if parameter not in edges:
            found |= {name: value} if part == 0 else {}
            continue
        start, stop = edges[parameter][part : part + 2]
        if start < stop:
            shapes[name] = tuple(value.shape)
            found[piece_name(name, start, stop)] = value if key == "step" else value.reshape(-1)[start:stop]
    return found, shapes


def _write(folder: Path, layers: Layers, whole: State, degree: int, parts: int, draw: Any) -> Iterator[CheckpointFile]:
    """The files of some layers, of workers of a degree whose optimizers hold pieces, if they are several."""
    cuts = _cuts_of(range(*layers))
    own = [name for name in whole if layers[0] <= int(name.partition(".")[0]) < layers[1]]
    for rank in range(degree):
        state = dict(recut([whole], own, cuts, degree, rank))
        told = cuts if degree > 1 else {}
        ranks: Portion | None = (rank, degree) if degree > 1 else None
        if parts == 1:
            yield write_part(folder, 3, layers, state, Divisions(told), rank=ranks)
            continue
        edges = {}
        for name in (name for name in own if f"{name}/step" in state):
            size = state[name].numel()
            inner = draw(st.lists(st.integers(0, size), min_size=parts - 1, max_size=parts - 1))
            edges[name] = [0, *sorted(inner), size]
        for part in range(parts):
            held, shapes = _pieces(state, part, edges)
            yield write_part(folder, 3, layers, held, Divisions(told, shapes), rank=ranks, part=(part, parts))


def _publish(folder: Path, layers: int, files: list[CheckpointFile]) -> Path:
    gaps = missing_layers(layers, whole_layers(files))
    return publish(folder, Checkpoint(3, layers, PLAN, 0, 8, tuple(files), missing=gaps))


def _assert_equal(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name


@given(st.data())
def test_any_degree_and_any_peers_are_read_at_any_other(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Each rank of any degree finds bit for bit its slices of what ranks and peers of any numbers saved."""
    layers = data.draw(st.integers(1, 3))
    whole, cuts = _whole(range(layers)), _cuts_of(range(layers))
    folder, files = tmp_path_factory.mktemp("checkpoints"), list[CheckpointFile]()
    edges = [0, *sorted(data.draw(st.sets(st.integers(1, layers - 1))) if layers > 1 else ()), layers]
    for first, stop in itertools.pairwise(edges):
        degree, parts = data.draw(st.sampled_from([1, 2, 3, 4])), data.draw(st.integers(1, 3))
        files += _write(folder, (first, stop), whole, degree, parts, data.draw)
    path = _publish(folder, layers, files)
    degree = data.draw(st.sampled_from([1, 2, 3, 4]))
    rank = data.draw(st.integers(0, degree - 1))
    first = data.draw(st.integers(0, layers - 1))
    asked = (first, data.draw(st.integers(first + 1, layers)))
    names = [name for name in whole if asked[0] <= int(name.partition(".")[0]) < asked[1]]
    _assert_equal(read_state(path, asked, cuts, degree, rank), recut([whole], names, cuts, degree, rank))
    saved = SavedTensors(path)
    assert {name: kind.shape for name, kind in saved.kinds.items()} == {name: one.shape for name, one in whole.items()}
    _assert_equal({name: saved.read(name) for name in reversed(saved.kinds)}, whole)


def test_a_table_of_other_cuts_reads_them_as_well(tmp_path: Path) -> None:
    """What was cut by one table is read by another, of the same degree too: by none, and by other dimensions."""
    whole = _whole(range(1))
    path = _publish(tmp_path, 1, list(_write(tmp_path, (0, 1), whole, 2, 1, None)))
    others = {"0.qkv.weight": TensorCut(0, 36), "0.proj.weight": TensorCut(0, 4)}
    for cuts in ({}, others):
        _assert_equal(read_state(path, (0, 1), cuts, 2, 1), recut([whole], list(whole), cuts, 2, 1))


def test_a_rank_reads_its_own_file_where_that_is_enough(tmp_path: Path) -> None:
    """At the degree of those who saved a rank does not read the values of others: these may be gone."""
    whole, cuts = _whole(range(1)), _cuts_of(range(1))
    path = _publish(tmp_path, 1, list(_write(tmp_path, (0, 1), whole, 2, 1, None)))
    other = path / "layers-0-1-rank-0-of-2.safetensors"
    data = bytearray(other.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    _assert_equal(read_state(path, (0, 1), cuts, 2, 1), recut([whole], list(whole), cuts, 2, 1))
    for degree in (1, 4):
        with pytest.raises(InvalidInputError, match="other bytes") as caught:
            read_state(path, (0, 1), cuts, degree, 0)
        assert caught.value.where == str(other)


def test_without_a_rank_layers_are_missing(tmp_path: Path) -> None:
    """Without the files of one rank the layers are missing: the checkpoint is a partial one."""
    whole = _whole(range(2))
    last = {name: value for name, value in whole.items() if name.startswith("1.")}
    for gone in (0, 1, None):
        files = [*_write(tmp_path, (0, 1), whole, 2, 2, lambda _: [20]), write_part(tmp_path, 3, (1, 2), last)]
        assert [file.name for file in files] == [
            *(f"layers-0-1-rank-{rank}-of-2-part-{part}-of-2.safetensors" for rank in (0, 1) for part in (0, 1)),
            "layers-1-2.safetensors",
        ]
        path = _publish(tmp_path, 2, [file for file in files if gone is None or file.rank != (gone, 2)])
        assert path.name == "step-00000003" + ("" if gone is None else "-partial")
        assert read_manifest(path).missing == (() if gone is None else ((0, 1),))


def _vouch(path: Path, number: int, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change what a file says of its tensors; the manifest vouches for it."""
    manifest = read_manifest(path)
    file = path / manifest.files[number].name
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    sha256, size = hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_size
    files = list(manifest.files)
    files[number] = replace(files[number], sha256=sha256, size_bytes=size)
    write_document(str(path / MANIFEST), replace(manifest, files=tuple(files)))
    return file


def _renamed(header: dict[str, Any], name: str, other: str) -> None:
    header[other] = header.pop(name)


def _told(header: dict[str, Any], key: str, value: object) -> None:
    header["__metadata__"][key] = value if isinstance(value, str) else json.dumps(value)


SPAN = "0.proj.weight/master[0:20]"
WRONG: dict[str, Callable[[dict[str, Any]], object]] = {
    "no cuts": lambda header: _told(header, "cuts", "[]"),
    "odd cuts": lambda header: _told(header, "cuts", {"0.qkv.weight": {"dimension": "x"}}),
    "another cut": lambda header: _told(header, "cuts", {"0.qkv.weight": {"dimension": 0, "size": 99, "parts": 3}}),
    "into nothing": lambda header: _told(header, "cuts", {"0.qkv.weight": {"dimension": 0, "size": 36, "parts": 0}}),
    "no heads": lambda header: _told(header, "cuts", {"0.qkv.weight": {"dimension": 0, "size": 36, "most": 0}}),
    "another dimension": lambda header: _told(header, "cuts", {"0.norm.weight": {"dimension": 3, "size": 7}}),
    "negative": lambda header: _told(header, "shapes", {"0.proj.weight/master": [-4, -6]}),
    "another shape": lambda header: _told(header, "shapes", {"0.proj.weight/master": [4, 7]}),
    "rubbish": lambda header: _told(header, "shapes", "{"),
    "gap": lambda header: _renamed(header, SPAN, "0.proj.weight/master[1:21]"),
    "twice": lambda header: _renamed(header, SPAN, "0.proj.weight/master[20:24]"),
    "lacking": lambda header: _renamed(header, SPAN, "0.proj.weight/other[0:20]"),
    "another layer": lambda header: _renamed(header, SPAN, "7.proj.weight/master[0:20]"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_contradicts_itself_is_refused(tmp_path: Path, wrong: str) -> None:
    """Cuts and pieces that cannot be are one error with the file, though the manifest vouches for it."""
    files = list(_write(tmp_path, (0, 1), _whole(range(1)), 2, 2, lambda _: [20]))
    path = _publish(tmp_path, 1, files)
    file = _vouch(path, 0, WRONG[wrong])
    with pytest.raises(InvalidInputError) as caught:
        read_state(path, (0, 1))
    assert caught.value.where in {str(path / one.name) for one in files}, file


def test_a_tensor_that_is_called_like_a_piece(tmp_path: Path) -> None:
    """A module may have such a name: then it is not a piece of anything."""
    state = {"0.odd[0:4]": torch.arange(6.0)}
    path = _publish(tmp_path, 1, [write_part(tmp_path, 3, (0, 1), state)])
    _assert_equal(read_state(path, (0, 1)), state)
