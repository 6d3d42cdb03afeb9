"""The shim in foreign programs: it steps aside, it is quiet, and its errors are its own."""

import json
import subprocess
import sys
from pathlib import Path

from rtk.profilers.shim import entrance
from rtk.profilers.shim.hook import RINGS

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
    from rtk.profilers.shim.recorder import DONE
    from rtk.profilers.shim.ring import RingReader

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
