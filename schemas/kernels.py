"""One implementation, run in two ways: plain Python where there is little to do, compiled by numba where there is much.

A kernel is a plain function over flat sequences: lists when interpreted (numpy's scalars are slow there), numpy arrays
when compiled. Both do the same IEEE operations in the same order, so they agree bit for bit. numba is imported when a
kernel is first compiled, never before: that takes half a second, and a first compilation several; later processes find
the machine code in numba's cache beside the source (NUMBA_CACHE_DIR moves it). Processes that start together compile
once: one does, the others wait and find what it left.
"""

from __future__ import annotations

import fcntl
import sys
import threading
from collections.abc import Callable, Collection, Iterator, MutableSequence, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import wraps
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# What kernels take: lists, or numpy arrays where they are compiled.
Ints = Sequence[int]
Floats = Sequence[float]
MutableInts = MutableSequence[int]
MutableFloats = MutableSequence[float]

# Where nothing is allocated: without numba's reference counts and calls kernels run ten times as fast.
LEAN: dict[str, Any] = {"_nrt": False, "forceinline": True}  # the first is a private option

_kernels: dict[str, list[FunctionType]] = {}
_compiled: dict[str, dict[str, Any]] = {}


def kernel(function: Kernel) -> Kernel:
    """Mark a function that allocates nothing as compilable.

    Inside it only kernels may be called: of its own module, defined before it, or imported into that by their names.
    """
    assert isinstance(function, FunctionType)
    _kernels.setdefault(function.__module__, []).append(function)
    return function


def pays(function: Callable[..., Any], steps: int, most_interpreted: int) -> bool:
    """Whether to use machine code: it is loaded already, or there is more to do than plain Python does meanwhile.

    Args:
        function: a kernel.
        steps: how much there is to do.
        most_interpreted: up to so many steps plain Python is done before the machine code would be loaded.
    """
    return function.__module__ in _compiled or steps > most_interpreted


def compiled(function: Kernel) -> Kernel:
    """The machine code of a kernel, with the same arguments and results; sequences are numpy arrays there."""
    name = function.__module__
    if name not in _compiled:
        _compiled[name] = _compile_module(name)
    return cast(Kernel, _compiled[name][function.__name__])


def _compile_module(name: str) -> dict[str, Any]:
    """The module's names, with its kernels replaced by compiled twins that call each other."""
    from numba import njit
    from numba.core import errors

    # Where colorama is installed numba wraps sys.stdout and sys.stderr for each error that it words, thousands while it
    # looks for types, and puts those back that it has found: what another thread redirects meanwhile is undone.
    errors.ColorShell = nullcontext  # type: ignore[attr-defined]  # it is defined under a condition
    names = dict(vars(sys.modules[name]))
    names |= {function.__name__: compiled(function) for function in _imported(name)}
    beneath = _beneath(name)
    for function in _kernels[name]:
        twin = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
        twin.__qualname__ = function.__qualname__
        names[function.__name__] = njit(cache=True, error_model="numpy", **LEAN)(twin)
        _make_anew_when_changed(names[function.__name__]._cache, beneath)
        _make_anew_what_is_foreign(names[function.__name__]._cache)
        _compile_in_turn(names[function.__name__], f"{name.rpartition('.')[2]}.compiling")
    return names


def _imported(name: str) -> list[FunctionType]:
    """The kernels of other modules that a module's kernels call, by the names that they have there."""
    known, called = vars(sys.modules[name]), {word for one in _kernels[name] for word in one.__code__.co_names}
    others = (function for module, kernels in _kernels.items() if module != name for function in kernels)
    return [one for one in others if one.__name__ in called and known.get(one.__name__) is one]


def _beneath(name: str) -> set[Path]:
    """The sources of the modules whose kernels a module's kernels call, and those that these call."""
    modules = {function.__module__ for function in _imported(name)}
    return {Path(sys.modules[module].__file__ or "") for module in modules}.union(*map(_beneath, modules))


def _make_anew_when_changed(cache: Any, sources: Collection[Path]) -> None:
    """Have a kernel's cache on disk be out of date, too, once the source of a kernel of another module has changed.

    Numba looks at the kernel's own source only, and what is called is part of the machine code.
    """
    stats = [source.stat() for source in sorted(sources)]
    file = cache._cache_file
    file._source_stamp = (file._source_stamp, *((stat.st_mtime, stat.st_size) for stat in stats))


def _make_anew_what_is_foreign(cache: Any) -> None:
    """Have a kernel's cache on disk begin anew where another version of rtk has left what cannot be read any more.

    Numba unpickles the types of all that is there before it looks how old it is; a class that has another name since
    would end every command that needs the kernel.
    """
    load = cache.load_overload

    def load_if_readable(*asked: Any) -> Any:
        try:
            return load(*asked)
        except Exception:
            cache.flush()
            return None

    cache.load_overload = load_if_readable


_compiling: set[Path] = set()
_one_thread = threading.RLock()


def _compile_in_turn(dispatcher: Any, lock: str) -> None:
    """Have one process at a time compile a kernel, or find it in the cache; so the second one finds it.

    Args:
        dispatcher: numba's, of the kernel.
        lock: the name of a file beside the cache's; all kernels of a module have it.
    """
    compile_signature, path = dispatcher.compile, Path(dispatcher._cache.cache_path, lock)

    @wraps(compile_signature)
    def compile_alone(*asked: Any) -> Any:
        with _alone(path):
            return compile_signature(*asked)

    dispatcher.compile = compile_alone


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One thread of one process at a time, which may come here again for what its kernel calls."""
    with _one_thread, ExitStack() as scope:
        if path not in _compiling:
            with suppress(OSError):  # where nothing can be locked each compiles for itself
                fcntl.flock(scope.enter_context(path.open("w")), fcntl.LOCK_EX)
            _compiling.add(path)
            scope.callback(_compiling.remove, path)
        yield
