"""The errors a user can cause or meet: each says what is wrong, where, and what to do about it.

And remarks: what a person may want to know beside a result. `rtk` prints them, without it Python's logging decides.
"""

import logging
from importlib.util import find_spec

REMARKS = logging.getLogger("rtk")


def remark(text: str) -> None:
    """Say a line for people."""
    REMARKS.info(text)


def installing(extra: str) -> str:
    """The command that installs an extra. `rtk` on the Python index is another library: ours is `rtk-train`."""
    return f"pip install 'rtk-train[{extra}]'"


# Which extra brings a package that most of rtk works without.
EXTRAS = {
    "torch": "torch",
    "safetensors": "torch",
    "transformers": "hf",
    "datasets": "data",
    "pyarrow": "parquet",
    "ortools": "cp-sat",
    "pyscipopt": "scip",
    "distributed": "dask",
    "ray": "ray",
    "tensorboardX": "tensorboard",
    "prometheus_client": "prometheus",
    "opentelemetry": "otlp",
}


class RtkError(Exception):
    """An error with one line of what, one of where and one of what to do.

    Args:
        what: what is wrong, in one sentence.
        where: the file and the JSON pointer (or line, or option) where it was found.
        fix: what the user can do about it.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"at: {self.where}")
        if self.fix:
            lines.append(f"do: {self.fix}")
        return "\n".join(lines)


class InvalidInputError(RtkError):
    """Wrong usage, or a file that does not say what its format demands (exit code 2)."""

    exit_code = 2


def not_installed(package: str, where: str | None = None) -> InvalidInputError:
    """The error of a command that needs one of the packages of `EXTRAS`.

    Args:
        package: its name.
        where: the option that asks for it.
    """
    return InvalidInputError(f"{package} is not installed", where=where, fix=installing(EXTRAS[package]))


def require_package(package: str, where: str | None = None) -> None:
    """Raise `not_installed` if a package is not here; it is not imported. Arguments as for `not_installed`."""
    if find_spec(package) is None:
        raise not_installed(package, where)


class InfeasibleError(RtkError):
    """The question is well put and has no answer, such as a memory limit below one activation (exit code 3)."""

    exit_code = 3


class NoRoomError(InfeasibleError):
    """What one GPU holds at least is more than its memory: more of them, or more to a stage, may have room."""


class LimitReachedError(RtkError):
    """A limit was reached before the proof that --require-optimal asked for (exit code 4); the answer is written."""

    exit_code = 4


class RuntimeFailedError(RtkError):
    """A worker or the runtime failed while executing a plan (exit code 5)."""

    exit_code = 5


class BugError(RtkError):
    """Something happened that rtk does not expect: a bug, whatever the input was (exit code 70, as in sysexits.h)."""

    exit_code = 70
