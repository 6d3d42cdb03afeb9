"""Machine code: loaded when there is enough to do, and never before."""

import fcntl
import subprocess
import sys
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

from rtk.planners.scheduling.retime import move
from rtk.schemas.kernels import _compile_in_turn, _make_anew_what_is_foreign, compiled, pays

PLANNING = """
import sys
from rtk.planners.scheduling.problem import home_problem
from rtk.planners.scheduling.solve import solve
from rtk.schemas.plan import Link, Pipeline, Plan, Planner, Stage, Template, Worker

for depth, microbatches in ((4, 12), (8, 32)):
    stages = tuple(Stage((i, i + 1), 0.01, 0.01, 0.01) for i in range(depth))
    template = Template("t0", stages, tuple(Link(0.02) for _ in range(depth - 1)))
    workers = tuple(Worker(0, i, "") for i in range(depth))
    plan = Plan(Planner("by hand", "1", {}), (template,), (Pipeline("t0", microbatches),), "synchronous", workers)
    assert solve(home_problem(plan, split=True)).optimal
print(*sorted({"numba", "torch", "pulp", "ortools", "highspy"} & set(sys.modules)))
"""


def test_small_problems_load_neither_compiler_nor_solvers() -> None:
    """Pipelines of 4 x 12 and 8 x 32 are planned and proven without numba, torch or a solver."""
    ran = subprocess.run([sys.executable, "-c", PLANNING], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


def test_machine_code_pays_when_loaded_or_when_there_is_much_to_do() -> None:
    """A kernel's module is compiled once there is more to do than plain Python does, and used from then on."""
    compiled(move)
    assert pays(move, steps=1, most_interpreted=10)

    def never_compiled() -> None:
        """Of a module without kernels."""

    assert not pays(never_compiled, steps=10, most_interpreted=10)
    assert pays(never_compiled, steps=11, most_interpreted=10)


def test_a_kernel_is_compiled_with_those_of_other_modules_that_it_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imported kernels are compiled as well, and with them change what calls them: also in the cache on disk."""
    header = "from rtk.schemas.kernels import kernel\n"
    below, above = tmp_path / "kernels_below.py", tmp_path / "kernels_above.py"
    below.write_text(f"{header}@kernel\ndef taken(x):\n    return x + 1\n")
    above.write_text(f"{header}from kernels_below import taken\n@kernel\ndef twice(x):\n    return 2 * taken(x)\n")
    asking = "from rtk.schemas.kernels import compiled; import kernels_above; print(compiled(kernels_above.twice)(3))"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))

    def asked() -> str:
        ran = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True, check=True)
        return ran.stdout.strip()

    assert asked() == "8"
    below.write_text(f"{header}@kernel\ndef taken(x):\n    return x + 10\n")
    assert asked() == "26"


def test_kernels_remain_plain_functions() -> None:
    """What is marked as a kernel can be called as it stands, with lists."""
    order = [1, 2, 3, 4]
    move(order, 3, 1)
    assert order == [1, 4, 2, 3]
    move(order, 1, 3)
    assert order == [1, 2, 3, 4]


def test_who_compiles_leaves_the_standard_streams_alone() -> None:
    """Another thread may have redirected them: numba sets neither, not even while it words an error."""
    pytest.importorskip("colorama")
    compiled(move)
    from numba.core.errors import termcolor

    seen: list[object] = []

    class Message(str):
        def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
            seen.append((sys.stdout, sys.stderr))
            return super().encode(encoding, errors)

    termcolor().errmsg(Message("no type"))
    assert seen == [(sys.stdout, sys.stderr)]


def test_what_another_version_left_in_the_cache_is_made_anew() -> None:
    """A cache that names a class which is gone is emptied, and the kernel compiled; a readable one is used."""

    class Foreign:
        flushed = 0

        def load_overload(self, signature: str) -> str | None:
            if signature == "gone":
                raise AttributeError("Can't get attribute 'Costs'")
            return signature

        def flush(self) -> None:
            self.flushed += 1

    cache = Foreign()
    _make_anew_what_is_foreign(cache)
    assert (cache.load_overload("here"), cache.flushed) == ("here", 0)
    assert (cache.load_overload("gone"), cache.flushed) == (None, 1)


def test_one_process_at_a_time_compiles_a_module(tmp_path: Path) -> None:
    """A kernel waits for another process that compiles its module, and not for itself when one calls another."""
    compiled_kernels: list[str] = []

    def compile_signature(kernel: str) -> None:
        if kernel == "caller":
            dispatcher.compile("called")
        compiled_kernels.append(kernel)

    dispatcher = SimpleNamespace(compile=compile_signature, _cache=SimpleNamespace(cache_path=str(tmp_path)))
    _compile_in_turn(dispatcher, "module.compiling")
    with (tmp_path / "module.compiling").open("w") as other:  # a lock of another opening is another process's
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = Thread(target=dispatcher.compile, args=("caller",))
        waiting.start()
        waiting.join(0.1)
        assert compiled_kernels == []
    waiting.join()
    assert compiled_kernels == ["called", "caller"]


def test_where_nothing_can_be_locked_each_process_compiles(tmp_path: Path) -> None:
    """A cache's folder that is not there, or has no locks, keeps nobody from compiling."""
    compiled_kernels: list[str] = []
    dispatcher = SimpleNamespace(
        compile=compiled_kernels.append, _cache=SimpleNamespace(cache_path=str(tmp_path / "gone"))
    )
    _compile_in_turn(dispatcher, "module.compiling")
    dispatcher.compile("kernel")
    assert compiled_kernels == ["kernel"]
