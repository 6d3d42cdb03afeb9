"""The traces of spot instances that the papers' artifacts brought, in `traces/`."""

from functools import cache
from importlib.resources import as_file, files

from ...runners.traces.read import read_moments
from ...schemas.replay import Moment


@cache
def moments_of(file: str) -> tuple[Moment, ...]:
    """A trace's moments, the fleet at the start first."""
    with as_file(files(__package__) / "traces" / file) as path:
        return tuple(read_moments(str(path)))
