"""Waits in a foreign program until it imports `torch.distributed`, and follows it from its first process group on.

A program that never makes a process group pays for one comparison an import, and one that makes one for a wrapped
function, `init_process_group`. Everything else begins when that has returned. Little is imported here, not even what
types are made of: every Python process of the watched command passes by.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

RINGS = "RTK_MONITOR_RINGS"  # the environment's name of the folder where rings are made
MODULE = "torch.distributed.distributed_c10d"


def install() -> None:
    """Look out for the import, if somebody wants to know."""
    if os.environ.get(RINGS):
        sys.meta_path.insert(0, _Lookout())


class _Lookout:
    """Sees one module imported, once."""

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None", target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """What the other finders say; of our module, with a loader that calls us."""
        if fullname != MODULE:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Then(spec.loader)  # type: ignore[assignment]
                return spec
        return None


class _Then:
    """Loads as another loader does, and takes its place; then wraps what makes the first group."""

    def __init__(self, loader: "Loader") -> None:
        self._loader = loader

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        """As the other one does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: "ModuleType") -> None:
        """As the other one does, and no trace is left of us but a wrapped function."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _wrap(module)


def _wrap(module: "ModuleType") -> None:
    import functools

    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: "Any", **kwargs: "Any") -> "Any":
        result = original(*args, **kwargs)
        try:
            from . import recorder

            recorder.start(os.environ[RINGS], module.get_rank())
        except Exception as error:
            print(f"rtk monitor: it watches nothing here: {error!r}", file=sys.stderr)
        return result

    module.init_process_group = init_process_group  # type: ignore[attr-defined]
