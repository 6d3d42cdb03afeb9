"""What Python runs as it starts where this folder is on its path: `rtk monitor` puts it there for its command.

It runs in other people's interpreters, which need not have rtk: it finds the shim by its path. It leaves the path as it
would be without it, runs the `sitecustomize` that it stands in front of, and whatever goes wrong in rtk's own part
costs one line on standard error, nothing else.
"""

import importlib.util
import sys
from importlib.machinery import PathFinder


def _install() -> None:
    folder = __file__.rpartition("/entrance/")[0]
    spec = importlib.util.spec_from_file_location(
        "_rtk_shim", folder + "/__init__.py", submodule_search_locations=[folder]
    )
    assert spec is not None
    sys.modules["_rtk_shim"] = importlib.util.module_from_spec(spec)
    importlib.import_module("_rtk_shim.hook").install()


def _step_aside() -> None:
    """Run the one that would have run without us, under its own name."""
    here = __file__.rpartition("/")[0]
    sys.path[:] = [folder for folder in sys.path if folder.rstrip("/") != here]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _install()
except Exception as error:
    print(f"rtk monitor: it watches nothing here: {error!r}", file=sys.stderr)
_step_aside()
