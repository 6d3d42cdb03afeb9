"""The shim in foreign programs: it steps aside, it is quiet, and its errors are its own."""

import atexit
import importlib.util
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from rtk.profilers.shim import entrance, hook, recorder
from rtk.profilers.shim.hook import RINGS
from rtk.profilers.shim.recorder import DONE, MOST_AWAITED, NOBODY, WHATS, Recorder, RingReader, Writer, listen

ENTRANCE = entrance.__path__[0]

WITH_TORCH = """
import json, sys, torch, torch.distributed as dist
from torch.distributed import _functional_collectives as functional
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
ones = torch.ones(8)
dist.all_reduce(ones)
with torch.no_grad():
    dist.broadcast(ones, 0)
with torch.inference_mode():
    dist.all_reduce(torch.ones(2, dtype=torch.float64))
doubled = functional.all_reduce(torch.ones(3) * 2, "sum", dist.group.WORLD) + 1
dist.barrier()
from _rtk_shim import recorder
recorder._running[0]._writer.write = None
dist.all_reduce(ones)
dist.all_reduce(ones)
dist.destroy_process_group()
print(json.dumps([ones.tolist(), doubled.tolist(), "rtk" in sys.modules]))
"""


def _python(script: str, *arguments: str, path: str = "", rings: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script in an interpreter that has the shim in front of its path, and rtk nowhere."""
    command = [sys.executable, "-c", script, *arguments]
    environment = {"PYTHONPATH": f"{ENTRANCE}:{path}", RINGS: rings, "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_shim_notes_what_torch_calls_and_its_errors_change_nothing(tmp_path: Path) -> None:
    """With gradients or not, in inference mode, functional: all is noted; an error costs one line, no result."""
    done = _python(WITH_TORCH, str(tmp_path / "store"), rings=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[1.0] * 8, [3.0] * 3, False]
    (path,) = tmp_path.glob("rank0.*.ring")
    reader = RingReader(path)
    entries = reader.new()
    calls = [entry for entry in entries if reader.name(entry.op)["op"] != DONE]
    told = [(reader.name(one.op)["op"], one.bytes, reader.name(one.dtype)["dtype"]) for one in calls]
    assert told[:4] == [
        ("all_reduce", 32, "float32"),
        ("broadcast", 32, "float32"),
        ("all_reduce", 16, "float64"),
        ("all_reduce", 12, "float32"),
    ]
    assert told[4][0] == "barrier"
    assert [line for line in done.stderr.splitlines() if "rtk monitor" in line] == [
        "rtk monitor: it watches no more here: TypeError(\"'NoneType' object is not callable\")"
    ]


def test_other_sitecustomize_is_run_and_the_path_is_as_it_was(tmp_path: Path) -> None:
    """The shim runs the `sitecustomize` that it hides, under its name, and takes its folder off the path."""
    (tmp_path / "sitecustomize.py").write_text("VALUE = 7\n")
    script = "import sitecustomize, sys; print(sitecustomize.VALUE, sitecustomize.__file__, *sys.path)"
    done = _python(script, path=str(tmp_path), rings=str(tmp_path))
    value, file, *path = done.stdout.split()
    assert (value, file) == ("7", str(tmp_path / "sitecustomize.py"))
    assert str(tmp_path) in path
    assert ENTRANCE not in path
    assert done.stderr == ""


def test_programs_without_torch_load_nothing_of_it(tmp_path: Path) -> None:
    """A program that imports no torch has one look-out more, and no ring; without a folder for rings, not even that."""
    script = "import sys, json; print(sorted(m for m in sys.modules if m.startswith('_rtk')), len(sys.meta_path))"
    watched, plain = _python(script, rings=str(tmp_path)), _python(script)
    assert watched.stdout.split("]")[0] == plain.stdout.split("]")[0] == "['_rtk_shim', '_rtk_shim.hook'"
    assert int(watched.stdout.split("]")[1]) == int(plain.stdout.split("]")[1]) + 1
    assert list(tmp_path.iterdir()) == []


def test_shim_that_cannot_start_says_so_in_one_line(tmp_path: Path) -> None:
    """Where no ring can be made, the program runs on, and one line tells of it."""
    (tmp_path / "torch" / "distributed").mkdir(parents=True)
    for name in ("torch/__init__.py", "torch/distributed/__init__.py"):
        (tmp_path / name).touch()
    module = tmp_path / "torch" / "distributed" / "distributed_c10d.py"
    module.write_text("def init_process_group(): return 5\ndef get_rank(): return 1 / 0\n")
    script = "from torch.distributed.distributed_c10d import init_process_group as init; print(init())"
    done = _python(script, path=str(tmp_path), rings=str(tmp_path / "nowhere"))
    assert done.stdout == "5\n"
    assert done.stderr == "rtk monitor: it watches nothing here: ZeroDivisionError('division by zero')\n"


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`torch.distributed` as rank 0 of two sees it; the other one is pretended, and every transfer is done at once."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import FakeWork
    from torch.testing._internal.distributed.fake_pg import FakeStore

    monkeypatch.setattr(dist, "Work", FakeWork)
    monkeypatch.setattr(FakeWork, "wait", FakeWork.wait)  # the recorder wraps it; this takes the wrapper off
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield dist
    dist.destroy_process_group()


def _noted(folder: Path) -> list[tuple[Any, ...]]:
    """What is in a ring: of calls what they are, of ends which call's they are."""
    (path,) = folder.glob("rank0.*.ring")
    reader = RingReader(path)
    names = {entry.number: reader.name(entry.op)["op"] for entry in reader.new()}
    return [
        (DONE, names[entry.order])
        if names[entry.number] == DONE
        else (names[entry.number], entry.bytes, entry.peer, entry.order, reader.name(entry.group)["ranks"])
        for entry in reader.all()
    ]


def test_calls_are_noted_with_their_ends(tmp_path: Path, two_ranks: Any) -> None:
    """Collectives are numbered by group and messages by peer and tag; ends are noted where they are known."""
    import torch

    own = Recorder(Writer(str(tmp_path), 0))
    listening = listen(own)
    ones, parts = torch.ones(8), [torch.ones(4), torch.ones(4)]
    two_ranks.all_reduce(ones)
    two_ranks.send(ones, 1, tag=5)
    two_ranks.send(ones, 1, tag=6)
    two_ranks.send(ones, 1, tag=5)
    two_ranks.reduce_scatter(ones[:4], parts)
    waiting = two_ranks.irecv(ones, 1)
    two_ranks.broadcast(ones.double(), 0)
    waiting.wait()
    own.settle()
    two_ranks.all_reduce(ones)
    listening._destroy()
    both = [0, 1]
    assert _noted(tmp_path) == [
        ("all_reduce", 32, NOBODY, 0, both),
        (DONE, "all_reduce"),
        ("send", 32, 1, 0, both),
        ("send", 32, 1, 0, both),
        ("send", 32, 1, 1, both),
        ("reduce_scatter", 32, NOBODY, 1, both),
        (DONE, "reduce_scatter"),
        ("recv", 32, 1, 0, both),
        ("broadcast", 64, NOBODY, 2, both),
        (DONE, "broadcast"),
        (DONE, "recv"),
    ]


def test_messages_that_nobody_waits_for_are_forgotten(tmp_path: Path, two_ranks: Any) -> None:
    """Of many received messages the last ones are looked out for; what waits for an older one is not noted."""
    import torch

    listening = listen(Recorder(Writer(str(tmp_path), 0)))
    waiting = [two_ranks.irecv(torch.ones(2), 1) for _ in range(MOST_AWAITED + 3)]
    for one in waiting:
        one.wait()
    listening._destroy()
    assert _noted(tmp_path).count((DONE, "recv")) == MOST_AWAITED


def test_what_cannot_be_noted_ends_the_noting(
    tmp_path: Path, two_ranks: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tensor without values is not noted; after an error nothing is, and one line says why; calls go on."""
    import torch

    own = Recorder(Writer(str(tmp_path), 0))
    listening = listen(own)
    assert own.note(WHATS["allreduce_"], ([torch.ones(2, device="meta")], None)) is None
    own._ops.clear()
    ones = torch.ones(2)
    two_ranks.all_reduce(ones)
    two_ranks.all_reduce(ones)
    listening._destroy()
    assert capsys.readouterr().err == "rtk monitor: it watches no more here: KeyError('all_reduce')\n"
    assert _noted(tmp_path) == []


def test_noting_begins_once_and_ends_with_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second start makes no second ring; a forked child notes nothing, and the interpreter's end waits."""
    forked: list[object] = []
    ending: list[object] = []
    monkeypatch.setattr(recorder, "_running", [])
    monkeypatch.setattr(os, "register_at_fork", lambda *, after_in_child: forked.append(after_in_child))
    monkeypatch.setattr(atexit, "register", ending.append)
    recorder.start(str(tmp_path), 0)
    recorder.start(str(tmp_path), 1)
    own, listening = recorder._running
    listening._destroy()
    assert [path.name for path in tmp_path.glob("*.ring")] == [f"rank0.{os.getpid()}.ring"]
    assert (forked, ending) == ([own.stop], [own.settle])


@pytest.fixture
def watched_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import a module in the place of torch's, as a program does that the hook watches."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv(RINGS, str(tmp_path))
    hook.install()

    def imported(source: str) -> Any:
        (tmp_path / "distributed_c10d.py").write_text(source)
        lookout = sys.meta_path[0]
        assert lookout.find_spec("json", None) is None
        spec = lookout.find_spec(hook.MODULE, [str(tmp_path)])
        assert spec is not None
        assert lookout not in sys.meta_path
        module = importlib.util.module_from_spec(spec)
        assert spec.loader is not None
        spec.loader.exec_module(module)
        return module

    return imported


def test_first_process_group_begins_the_noting(
    watched_import: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module has its own loader again; once a group is made, the rank that it gives is noted in the folder."""
    begun = []
    monkeypatch.setattr(recorder, "start", lambda *told: begun.append(told))
    module = watched_import("def init_process_group(name): return name\ndef get_rank(): return 3\n")
    assert not isinstance(module.__loader__, hook._Then)
    assert module.__spec__.loader is module.__loader__
    assert begun == []
    assert module.init_process_group("gloo") == "gloo"
    assert begun == [(str(tmp_path), 3)]


def test_group_is_made_though_the_noting_cannot_begin(
    watched_import: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """An error of ours costs one line, not the program's group."""
    module = watched_import("def init_process_group(): return 5\ndef get_rank(): return 1 / 0\n")
    assert module.init_process_group() == 5
    assert capsys.readouterr().err == "rtk monitor: it watches nothing here: ZeroDivisionError('division by zero')\n"


@pytest.mark.parametrize("is_broken", [False, True])
def test_entrance_steps_aside_whatever_happens_to_the_shim(
    is_broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shim that cannot be loaded costs one line; the hidden `sitecustomize` runs either way, off a clean path."""

    def broken(name: str) -> None:
        raise ImportError(name)

    (tmp_path / "sitecustomize.py").write_text("VALUE = 7\n")
    monkeypatch.setattr(sys, "path", [ENTRANCE, str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv(RINGS, str(tmp_path))
    if is_broken:
        monkeypatch.setattr(importlib, "import_module", broken)
    lookouts = len(sys.meta_path)
    with patch.dict(sys.modules):
        runpy.run_path(f"{ENTRANCE}/sitecustomize.py")
        assert sys.modules["sitecustomize"].VALUE == 7
    assert len(sys.meta_path) == lookouts + (not is_broken)
    assert ENTRANCE not in sys.path
    told = "rtk monitor: it watches nothing here: ImportError('_rtk_shim.hook')\n"
    assert capsys.readouterr().err == (told if is_broken else "")
