"""Checkpoints load under any cut, survive a kill at any point and a full disk, and refuse what was not saved."""

import contextlib
import errno
import hashlib
import json
import os
import pickle
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.checkpoint import (
    MANIFEST,
    CheckpointFailedError,
    discard,
    find,
    newest,
    prune,
    publish,
    read_manifest,
    writing_folder,
)
from rtk.runners.torch.checkpoint import read_state, write_part
from rtk.runners.torch.tensor_files import State
from rtk.schemas.checkpoint import Checkpoint, CheckpointFile, missing_layers
from rtk.schemas.documents import write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Layers

PLAN = hashlib.sha256(b"plan").hexdigest()
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]
Cut = list[Layers]


@st.composite
def _cuts(draw: st.DrawFn, layers: int) -> Cut:
    stops = sorted(draw(st.sets(st.integers(1, layers - 1)))) if layers > 1 else []
    return list(zip([0, *stops], [*stops, layers], strict=True))


def _tensor(seed: int) -> torch.Tensor:
    """Any bits of any type (NaNs, infinities), of 0 to 3 dimensions, empty among them, some of them strided views."""
    generator = torch.Generator().manual_seed(seed)
    dtype = DTYPES[seed % len(DTYPES)]
    shape = [(), (0, 3), (5,), (2, 3, 4), (4, 6)][seed % 5]
    bits = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    tensor = bits.bool()[..., 0] if dtype == torch.bool else bits.view(dtype)[..., 0]
    return tensor.T if seed % 2 and tensor.dim() == 2 else tensor


def _layer_state(layer: int, seed: int) -> State:
    """A layer with a parameter and its optimizer's state, a buffer, tied parameters, and views of one memory."""
    shared = torch.arange(12.0).add(seed)
    return {
        f"{layer}.qkv.weight": _tensor(seed),
        f"{layer}.qkv.weight/exp_avg": _tensor(seed + 1),
        f"{layer}.qkv.weight/step": torch.tensor(float(seed)),
        f"{layer}.mask": torch.ones(3, 2, dtype=torch.bool).T,
        f"{layer}.head.weight": shared[2:8].view(2, 3),
        f"{layer}.tied.weight": shared[2:8].view(2, 3),
        f"{layer}.tail": shared[8:],
    }


def _model_state(layers: int, seed: int = 0) -> State:
    return {k: v for layer in range(layers) for k, v in _layer_state(layer, seed + 7 * layer).items()}


def _of(state: State, layers: Layers) -> State:
    return {name: tensor for name, tensor in state.items() if layers[0] <= int(name.partition(".")[0]) < layers[1]}


def _bits(state: State) -> dict[str, tuple[torch.dtype, torch.Size, bytes]]:
    return {
        name: (tensor.dtype, tensor.shape, tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, tensor in state.items()
    }


def _manifest(iteration: int, layers: int, parts: list[CheckpointFile]) -> Checkpoint:
    gaps = missing_layers(layers, (part.layers for part in parts))
    return Checkpoint(iteration, layers, PLAN, 0, 8, tuple(parts), {"model": "tiny"}, gaps)


def _save(folder: Path, iteration: int, state: State, cut: Cut, layers: int | None = None) -> Path:
    parts = [write_part(folder, iteration, part, _of(state, part)) for part in cut]
    return publish(folder, _manifest(iteration, layers or cut[-1][1], parts))


@given(st.data())
def test_any_cut_loads_under_any_other(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """What stages saved under one cut, stages of another cut read bit for bit: any types, views, ties, any DP."""
    layers = data.draw(st.integers(1, 6))
    state = _model_state(layers, data.draw(st.integers(0, 1000)))
    folder = tmp_path_factory.mktemp("checkpoints")
    _save(folder, 50, state, data.draw(_cuts(layers)))
    loaded: State = {}
    for part in data.draw(_cuts(layers)):
        read = read_state(find(folder), part)
        assert set(read) == set(_of(state, part))
        loaded |= read
    assert _bits(loaded) == _bits(state)
    assert len({tensor.untyped_storage().data_ptr() for tensor in loaded.values() if tensor.numel()}) == sum(
        tensor.numel() > 0 for tensor in loaded.values()
    )


def test_equal_states_are_equal_bytes(tmp_path: Path) -> None:
    """Two peers, which hold the same state, would write the same file, and the manifest is what was published."""
    first = write_part(tmp_path, 1, (0, 3), _model_state(3))
    assert write_part(tmp_path, 1, (0, 3), dict(reversed(_model_state(3).items()))) == first
    path = publish(tmp_path, _manifest(1, 3, [first]))
    assert path == tmp_path / "step-00000001"
    assert read_manifest(path) == _manifest(1, 3, [first])
    assert sorted(entry.name for entry in path.iterdir()) == [MANIFEST, "layers-0-3.safetensors"]


def test_the_newest_whole_checkpoint_is_found(tmp_path: Path) -> None:
    """`find` takes a checkpoint itself, or the highest whole step of a folder, and says what is wrong otherwise."""
    for iteration in (9, 100, 20):
        _save(tmp_path, iteration, _model_state(2), [(0, 1), (1, 2)])
    _save(tmp_path, 200, _model_state(2), [(0, 1)], layers=2)
    write_part(tmp_path, 300, (0, 2), _model_state(2))
    (tmp_path / "step-00000400").mkdir()
    assert find(tmp_path) == tmp_path / "step-00000100"
    assert find(tmp_path / "step-00000009") == tmp_path / "step-00000009"
    for nothing in (tmp_path / "step-00000400", tmp_path / "nowhere"):
        with pytest.raises(InvalidInputError) as caught:
            find(nothing)
        assert caught.value.where == str(nothing) and caught.value.fix


def test_partial_checkpoints_are_refused(tmp_path: Path) -> None:
    """A checkpoint without some layers has a name of its own and is not resumed from; the error names the way out."""
    state = _model_state(6)
    partial = _save(tmp_path, 60, state, [(0, 1), (3, 4)], layers=6)
    assert partial.name == "step-00000060-partial"
    assert newest(tmp_path) is None
    with pytest.raises(InvalidInputError, match="layers 1-2 and 4-5 of 6 are missing") as alone:
        read_state(partial, (0, 1))
    assert "no complete checkpoint" in str(alone.value.fix)
    whole = _save(tmp_path, 50, state, [(0, 6)])
    for refusing in (lambda: find(partial), lambda: read_state(partial, (0, 1))):
        with pytest.raises(InvalidInputError) as caught:
            refusing()
        assert caught.value.fix == f"resume from {whole}"


def test_prune_keeps_the_newest_and_what_is_not_ours(tmp_path: Path) -> None:
    """The oldest whole checkpoints go, with what crashes left before the newest; partial and foreign folders stay."""
    for iteration in (1, 2, 3, 4):
        _save(tmp_path, iteration, _model_state(1), [(0, 1)])
    _save(tmp_path, 1, _model_state(1), [(0, 1)], layers=2)
    for name in ("step-1", "step-00000001-best", "notes", "step-00000000"):
        (tmp_path / name).mkdir()
    shutil.copytree(tmp_path / "step-00000004", tmp_path / ".step-00000004.old")
    write_part(tmp_path, 3, (0, 1), _model_state(1))
    write_part(tmp_path, 5, (0, 1), _model_state(1))
    (tmp_path / ".step-00000002.removed").mkdir()
    assert [path.name for path in prune(tmp_path, 2)] == ["step-00000001", "step-00000002"]
    expected = [".step-00000005.tmp", "notes", "step-00000000", "step-00000001-best", "step-00000001-partial"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [*expected, "step-00000003", "step-00000004", "step-1"]
    assert prune(tmp_path, 2) == [] == prune(tmp_path / "nowhere", 1)
    with pytest.raises(InvalidInputError):
        prune(tmp_path, 0)


def test_an_abandoned_attempt_does_no_harm(tmp_path: Path) -> None:
    """Parts of an attempt under another cut are not published with the next one; discarded parts are gone."""
    write_part(tmp_path, 50, (0, 3), _model_state(3, 1))
    (writing_folder(tmp_path, 50) / ".layers-0-2.safetensors.0123").write_bytes(b"half")
    (writing_folder(tmp_path, 50) / MANIFEST).write_bytes(b"old")
    path = _save(tmp_path, 50, _model_state(3), [(0, 1), (1, 3)])
    assert len(list(path.iterdir())) == 3
    assert _bits(read_state(path, (0, 3))) == _bits(_model_state(3))
    write_part(tmp_path, 51, (0, 3), _model_state(3))
    for _ in range(2):
        discard(tmp_path, 51)
    assert list(tmp_path.iterdir()) == [path]


def test_publishing_needs_every_part(tmp_path: Path) -> None:
    """A part that is not there, or has another length, is not published."""
    part = write_part(tmp_path, 50, (0, 2), _model_state(2))
    with pytest.raises(CheckpointFailedError):
        publish(tmp_path, _manifest(50, 2, [replace(part, size_bytes=part.size_bytes + 1)]))
    discard(tmp_path, 50)
    with pytest.raises(CheckpointFailedError) as caught:
        publish(tmp_path, _manifest(50, 2, [part]))
    assert caught.value.exit_code == 5
    assert newest(tmp_path) is None


class _KilledError(BaseException):
    """Stands for the end of the process: nothing but BaseException handlers sees it."""


_CALLS = ("replace", "fsync", "unlink", "rmdir", "mkdir")


@contextlib.contextmanager
def _killed_at(call: int) -> Iterator[list[str]]:
    """Raise at the n-th change of the disk and at all after it, as a dead process cleans nothing up."""
    made: list[str] = []

    def dying(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def change(*arguments: object, **options: object) -> object:
            made.append(name)
            if len(made) > call:
                raise _KilledError
            return function(*arguments, **options)

        return change

    with pytest.MonkeyPatch.context() as patch:
        for name in _CALLS:
            patch.setattr(os, name, dying(name, getattr(os, name)))
        with contextlib.suppress(_KilledError):
            yield made


@pytest.mark.parametrize("again", [False, True], ids=["a new step", "the same step again"])
def test_a_kill_leaves_the_newest_checkpoint_whole(tmp_path: Path, again: bool) -> None:
    """Killed at any change of the disk while saving and pruning, the newest checkpoint loads, and saving works again.

    It is the earlier one or the new one, never a mixture; after the next save and prune nothing is left over.
    """
    earlier, later = _model_state(2, 1), _model_state(2, 2)
    step = 50 if again else 60
    for call in range(1000):
        folder = tmp_path / str(call)
        _save(folder, 40, _model_state(2, 9), [(0, 2)])
        _save(folder, 50, earlier, [(0, 2)])
        with _killed_at(call) as made:
            _save(folder, step, later, [(0, 1), (1, 2)])
            prune(folder, 1)
        loaded = _bits(read_state(find(folder), (0, 2)))
        assert loaded in (_bits(earlier), _bits(later)), call
        if len(made) <= call:
            break
        assert all(path.name.startswith((".", "step-")) for path in folder.iterdir())
        _save(folder, step, later, [(0, 1), (1, 2)])
        assert _bits(read_state(find(folder), (0, 2))) == _bits(later)
        prune(folder, 1)
        assert [path.name for path in folder.iterdir()] == [f"step-{step:08d}"], call
    assert {"replace", "fsync", "unlink", "rmdir"} <= set(made)
    assert 15 < call < 200
    assert loaded == _bits(later)


@pytest.mark.parametrize("failing", ["replace", "fsync"])
def test_a_disk_error_is_one_error_and_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Any error of the disk is a CheckpointFailedError, of the process's own making nothing is left in the folder."""
    _save(tmp_path, 50, _model_state(1), [(0, 1)])

    def fail(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(CheckpointFailedError, match="quota") as caught:
        write_part(tmp_path, 60, (0, 1), _model_state(1))
    assert caught.value.where == str(writing_folder(tmp_path, 60))
    assert list(writing_folder(tmp_path, 60).iterdir()) == []
    assert find(tmp_path).name == "step-00000050"


def test_a_file_size_limit_is_reported(tmp_path: Path) -> None:
    """A write that the system cuts short (EFBIG) fails with one error, and leaves nothing half-written."""
    large = {"0.weight": torch.zeros(2**18)}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, limits[1]))
    try:
        with pytest.raises(CheckpointFailedError, match="File too large"):
            write_part(tmp_path, 50, (0, 1), large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(writing_folder(tmp_path, 50).iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; skips where the test may not mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_costs_only_the_new_checkpoint(small_disk: Path) -> None:
    """On a full disk parts and manifest fail with one error, the earlier checkpoint loads, and room comes back."""
    small = {"0.weight": torch.rand(2**13)}
    _save(small_disk, 50, small, [(0, 1)])
    part = write_part(small_disk, 60, (0, 1), small)
    for _ in range(3):
        with pytest.raises(CheckpointFailedError, match="No space left"):
            write_part(small_disk, 60, (1, 2), {"1.weight": torch.rand(2**16)})
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(bytes(4096))
    with pytest.raises(CheckpointFailedError, match="No space left"):
        publish(small_disk, _manifest(60, 1, [part]))
    assert [path.name for path in writing_folder(small_disk, 60).iterdir()] == [part.name]
    assert find(small_disk).name == "step-00000050"
    assert _bits(read_state(find(small_disk), (0, 1))) == _bits(small)
    discard(small_disk, 60)
    (small_disk / "filler").unlink()
    assert _save(small_disk, 70, small, [(0, 1)]).name == "step-00000070"


def _tamper(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "tampered": _tamper,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": Path.unlink,
    "foreign": lambda path: shutil.copy(path.with_name("layers-0-1.safetensors"), path),
    "a folder": lambda path: path.rename(path.with_name("aside")).with_name(path.name).mkdir(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused(tmp_path: Path, damage: str) -> None:
    """A tensor file that is not the one that was saved is refused by name; the layers of other files still load."""
    path = _save(tmp_path, 50, _model_state(3), [(0, 1), (1, 3)])
    DAMAGES[damage](path / "layers-1-3.safetensors")
    for layers in ((1, 2), (0, 3)):
        with pytest.raises(InvalidInputError) as caught:
            read_state(path, layers)
        assert caught.value.where == str(path / "layers-1-3.safetensors")
    assert _bits(read_state(path, (0, 1))) == _bits(_model_state(1))


class _Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, ("exploded",))


@pytest.mark.parametrize("how", ["pickle", "torch", "names", "dtype", "rubbish"])
def test_no_code_and_no_other_layers_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A pickle, a torch file, rubbish and other layers' tensors are refused, though the manifest vouches for them."""
    monkeypatch.chdir(tmp_path)
    path = _save(tmp_path, 50, _model_state(2), [(0, 1), (1, 2)])
    file = path / "layers-0-1.safetensors"
    if how == "torch":
        torch.save({"0.weight": _Bomb()}, file)
    else:
        data = {
            "pickle": pickle.dumps({"0.weight": _Bomb()}),
            "names": (path / "layers-1-2.safetensors").read_bytes(),
            "dtype": file.read_bytes().replace(b'"BOOL"', b'"F4"  ', 1),
            "rubbish": bytes(range(256)),
        }[how]
        file.write_bytes(data)
    manifest = read_manifest(path)
    vouched = replace(
        manifest.files[0],
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        size_bytes=file.stat().st_size,
    )
    write_document(str(path / MANIFEST), replace(manifest, files=(vouched, manifest.files[1])))
    with pytest.raises(InvalidInputError) as caught:
        read_state(path, (0, 2))
    assert caught.value.where == str(file)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("layers", [(-1, 1), (1, 1), (2, 1), (0, 4)])
def test_other_layers_are_not_read(tmp_path: Path, layers: Layers) -> None:
    """Layers that the checkpoint does not have are an error of the one who asks."""
    path = _save(tmp_path, 50, _model_state(3), [(0, 3)])
    with pytest.raises(InvalidInputError, match="3 of the checkpoint"):
        read_state(path, layers)


@pytest.mark.parametrize(
    "state",
    [
        {"2.weight": torch.zeros(1)},
        {"weight": torch.zeros(1)},
        {"1.": torch.zeros(1)},
        {"01.weight": torch.zeros(1)},
        {"1.weight": torch.eye(2).to_sparse()},
        {"1.weight": torch.zeros(1, dtype=torch.complex128)},
        {"1.weight": torch.zeros(1, device="meta")},
    ],
    ids=str,
)
def test_what_no_file_can_hold_is_not_written(tmp_path: Path, state: State) -> None:
    """Names of other layers, and tensors that safetensors do not have, are refused before anything is written."""
    with pytest.raises(InvalidInputError):
        write_part(tmp_path / "new", 50, (0, 2), state)
    assert not (tmp_path / "new").exists()


def test_every_type_of_number_is_safetensors(tmp_path: Path) -> None:
    """The library's own reader loads each type of number from a part, and no tensor lies unaligned in it."""
    dtypes = [torch.int8, torch.int16, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, *DTYPES]
    state = {f"0.{index}": torch.arange(3.0).to(dtype) for index, dtype in enumerate(dtypes)}
    part = write_part(tmp_path, 1, (0, 1), state)
    written = (writing_folder(tmp_path, 1) / part.name).read_bytes()
    assert len(written) == part.size_bytes
    assert _bits(safetensors.torch.load(written)) == _bits(state)
    length = int.from_bytes(written[:8], "little")
    for name, entry in json.loads(written[8 : 8 + length]).items():
        assert (8 + length + entry["data_offsets"][0]) % state[name].itemsize == 0


def test_conjugate_views_are_written_as_they_read(tmp_path: Path) -> None:
    """A lazily conjugated tensor is saved as what it stands for."""
    view = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj()
    assert view.is_conj()
    path = _save(tmp_path, 1, {"0.phases": view}, [(0, 1)])
    assert torch.equal(read_state(path, (0, 1))["0.phases"], view)
